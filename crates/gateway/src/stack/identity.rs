//! Which service each provider is, and with which keys: what has to be the same for what is known of a target to
//! hold after a reload.

use std::collections::BTreeMap;

use steadfast::{Target, client::Credential};
use steadfast_core::Dialect;

use crate::config::ProviderConfig;

/// Every provider's.
#[derive(Clone, Debug, Default)]
pub(super) struct Identities(BTreeMap<String, ProviderIdentity>);

#[derive(Clone, Debug)]
struct ProviderIdentity {
    dialect: Dialect,
    base_url: Option<String>,
    headers: BTreeMap<String, String>,
    credentials: Vec<Credential>,
}

impl Identities {
    pub(super) fn add(&mut self, given: &ProviderConfig, credentials: Vec<Credential>) {
        let ProviderConfig { name, dialect, base_url, headers, .. } = given.clone();
        self.0.insert(name, ProviderIdentity { dialect, base_url, headers, credentials });
    }

    /// Whether what was known of `target` holds in `new`: the provider is still there and the same, and so
    /// is the key, if it is about one. A renewed key under its old name is another one.
    pub(super) fn holds(&self, new: &Self, target: &Target) -> bool {
        let Some(after) = new.0.get(target.provider()) else { return false };
        // Nothing was known of it.
        let Some(before) = self.0.get(target.provider()) else { return true };
        let same = before.dialect == after.dialect
            && before.base_url == after.base_url
            && before.headers == after.headers;
        same && target.credential().is_none_or(|name| before.key(name) == after.key(name))
    }
}

impl ProviderIdentity {
    fn key(&self, name: &str) -> Option<&Credential> {
        self.credentials.iter().find(|credential| *credential.name == *name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A provider's name, address and keys.
    type Given = (&'static str, &'static str, &'static [(&'static str, &'static str)]);

    #[test]
    fn what_is_known_holds_for_what_stayed_the_same() {
        let identities = |names: &[Given]| {
            let mut identities = Identities::default();
            for (name, url, keys) in names {
                let mut given = ProviderConfig::new(*name, Dialect::OpenAi);
                given.base_url = Some((*url).to_owned());
                let keys = keys.iter().map(|(name, secret)| Credential::new(*name, *secret));
                identities.add(&given, keys.collect());
            }
            identities
        };
        let old = identities(&[
            ("a", "http://a", &[("one", "1"), ("two", "2")]),
            ("b", "http://b", &[]),
            ("gone", "http://gone", &[("one", "1")]),
        ]);
        let new = identities(&[
            ("a", "http://a", &[("one", "another"), ("two", "2")]),
            ("b", "http://elsewhere", &[]),
            ("c", "http://c", &[]),
        ]);
        let a = Target::new("a");
        for (target, holds) in [
            (a.clone(), true),
            (a.with_model("m"), true),
            (a.with_credential("one"), false),
            (a.with_model("m").with_credential("one"), false),
            (a.with_credential("two"), true),
            (Target::new("b"), false),
            (Target::new("b").with_model("m"), false),
            (Target::new("gone"), false),
            (Target::new("c"), true),
        ] {
            assert_eq!(old.holds(&new, &target), holds, "{target}");
        }
    }
}
