//! Which service each provider is, and with which keys: what has to be the same for what is known of a target to
//! hold after a reload.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use steadfast::{Target, client::Credential};
use steadfast_core::Dialect;

use crate::config::{ProviderConfig, ProviderKind};

/// Every provider's.
#[derive(Clone, Debug, Default)]
pub(super) struct Identities(BTreeMap<String, ProviderIdentity>);

#[derive(Clone, Debug)]
struct ProviderIdentity {
    dialect: Dialect,
    base_url: Option<String>,
    /// Of a cloud: its kind, and where in it.
    site: String,
    headers: BTreeMap<String, String>,
    credentials: Vec<Credential>,
}

impl Identities {
    pub(super) fn add(&mut self, given: &ProviderConfig, credentials: Vec<Credential>) {
        let ProviderConfig { name, dialect, base_url, headers, .. } = given.clone();
        let ProviderConfig { kind, api_version, project, location, region, .. } = given;
        let site = match kind {
            ProviderKind::Vendor => String::new(),
            kind => format!("{kind:?} {api_version:?} {project:?} {location:?} {region:?}"),
        };
        self.0.insert(name, ProviderIdentity { dialect, base_url, site, headers, credentials });
    }

    /// Whether what was known of `target` holds in `new`: the provider is still there and the same, and so
    /// is the key, if it is about one. A renewed key under its old name is another one.
    pub(super) fn holds(&self, new: &Self, target: &Target) -> bool {
        let Some(after) = new.0.get(target.provider()) else { return false };
        // Nothing was known of it.
        let Some(before) = self.0.get(target.provider()) else { return true };
        let same = before.dialect == after.dialect
            && before.base_url == after.base_url
            && before.site == after.site
            && before.headers == after.headers;
        same && target.credential().is_none_or(|name| before.key(name) == after.key(name))
    }

    /// Whether that holds of `provider` with all the keys it had and has: what is known of a provider may be
    /// what one of its keys met.
    pub(super) fn holds_whole(&self, new: &Self, provider: &str) -> bool {
        let whole = Target::new(provider);
        let keys = self.0.get(provider).into_iter().flat_map(|before| &before.credentials);
        let has =
            |key: &Credential| new.0.get(provider).is_some_and(|new| new.key(&key.name).is_some());
        self.holds(new, &whole)
            && keys
                .filter(|key| has(key))
                .all(|key| self.holds(new, &whole.with_credential(&*key.name)))
    }
}

/// Marks of every provider and its keys, by which another process sees that they are the same. Nothing of a key can
/// be read off sixteen bits, nor can a guess be checked by them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
pub(super) struct IdentityTags(BTreeMap<String, ProviderTags>);

#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
struct ProviderTags {
    service: String,
    #[serde(default)]
    credentials: BTreeMap<String, String>,
}

impl Identities {
    pub(super) fn tags(&self) -> IdentityTags {
        let tags = |identity: &ProviderIdentity| {
            let keys = identity.credentials.iter();
            let keys = keys.map(|key| (key.name.to_string(), tag(&[key.secret.expose()])));
            ProviderTags { service: identity.service_tag(), credentials: keys.collect() }
        };
        IdentityTags(self.0.iter().map(|(name, one)| (name.clone(), tags(one))).collect())
    }
}

impl IdentityTags {
    /// What `target` is called where other gateways have to see whether it is the same there: with the marks of its
    /// service, and of its key. `None` for one that is not configured. Providers of a program's own have no marks: there their
    /// names say all.
    pub(super) fn name(&self, target: &Target) -> Option<String> {
        if self.0.is_empty() {
            return Some(target.to_string());
        }
        let tags = self.0.get(target.provider())?;
        let key = match target.credential() {
            Some(name) => tags.credentials.get(name)?.as_str(),
            None => "",
        };
        Some(format!("{target} @{}{key}", tags.service))
    }

    /// Whether what was known of `target` under `before` holds: provider and key are configured, and the same.
    pub(super) fn holds(&self, before: &Self, target: &Target) -> bool {
        let of = |tags: &Self| {
            let tags = tags.0.get(target.provider())?;
            let key = match target.credential() {
                Some(name) => Some(tags.credentials.get(name)?.clone()),
                None => None,
            };
            Some((tags.service.clone(), key))
        };
        of(self).is_some_and(|now| of(before) == Some(now))
    }
}

/// Sixteen bits of a hash.
fn tag(parts: &[&str]) -> String {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update(part.len().to_le_bytes());
        hash.update(part);
    }
    let hash = hash.finalize();
    format!("{:02x}{:02x}", hash[0], hash[1])
}

impl ProviderIdentity {
    fn service_tag(&self) -> String {
        let headers = self.headers.iter().flat_map(|(name, value)| [name.as_str(), value]);
        let url = self.base_url.as_deref().unwrap_or_default();
        let site = Some(self.site.as_str()).filter(|site| !site.is_empty());
        let own = [self.dialect.as_str(), url].into_iter().chain(site);
        tag(&own.chain(headers).collect::<Vec<_>>())
    }

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
            ("d", "http://d", &[("one", "1"), ("two", "2")]),
        ]);
        let new = identities(&[
            ("a", "http://a", &[("one", "another"), ("two", "2")]),
            ("b", "http://elsewhere", &[]),
            ("c", "http://c", &[]),
            ("d", "http://d", &[("two", "2"), ("three", "3")]),
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
        // `a` has a renewed key, and one of `d` is gone.
        for (provider, holds) in
            [("a", false), ("b", false), ("gone", false), ("c", true), ("d", true)]
        {
            assert_eq!(old.holds_whole(&new, provider), holds, "{provider}");
        }
    }
}
