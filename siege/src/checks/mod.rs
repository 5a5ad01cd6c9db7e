//! The attacks, by category.

mod bodies;
mod browser;
mod callers;
mod connections;
mod dashboard;
mod framing;
mod hostile;
mod hostile_raw;
mod http2;
mod limits;
mod secrets;
mod shown;
mod signals;
mod starts;
mod streams;
mod tenants;
mod tls;

use crate::{
    check::Category,
    process::Setup,
    provider::{Part, Providers, answer, response},
};

/// All of them, in the order in which they run.
pub(crate) const CATEGORIES: &[Category] = &[
    framing::CATEGORY,
    http2::CATEGORY,
    browser::CATEGORY,
    dashboard::CATEGORY,
    callers::CATEGORY,
    bodies::CATEGORY,
    hostile::CATEGORY,
    tls::CATEGORY,
    tenants::CATEGORY,
    secrets::CATEGORY,
    shown::CATEGORY,
    starts::CATEGORY,
    signals::CATEGORY,
    streams::CATEGORY,
    connections::CATEGORY,
    limits::CATEGORY,
];

/// A gateway that wants no keys.
fn open(providers: &Providers) -> Setup {
    Setup { config: providers.config(&[]), server: "auth = \"none\"".into(), ..Setup::default() }
}

/// What the soak runs against.
pub(crate) fn soaked(providers: &Providers) -> Setup {
    let taken = vec![Part::Bytes(response("200 OK", "", &answer("Taken."))), Part::Keep];
    providers.raw.serve("taker", taken);
    let own = http2::with_endless(providers);
    Setup { config: providers.config(&["endless", "taker"]), ..own }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn names_of_checks_are_unique_and_there_are_enough_hostile_kinds() {
        let mut names = BTreeSet::new();
        for category in CATEGORIES {
            let checks = (category.checks)();
            assert!(!checks.is_empty(), "{}", category.name);
            for check in checks {
                let name = format!("{}: {}", category.name, check.name);
                assert!(names.insert(name.clone()), "{name} is there twice");
            }
        }
        let hostile = names.iter().filter(|name| name.starts_with("hostile: "));
        assert!(hostile.count() >= 80);
    }

    #[test]
    fn what_the_raw_provider_serves_has_a_path_of_its_own() {
        let kinds = hostile_raw::kinds();
        let slugs: BTreeSet<_> = kinds.iter().map(|kind| hostile::slug(kind.name)).collect();
        assert_eq!(slugs.len(), kinds.len());
    }
}
