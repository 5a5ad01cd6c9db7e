//! Which targets of a route may be asked now.

use std::collections::HashSet;

use steadfast::{Handles, Target};
use steadfast_core::Reason;
use tokio::time::Instant;

use super::RouteStack;

/// What rests at one moment: by a cooldown, with its reason, or by a breaker that is not closed.
pub(super) struct Resting {
    known: Vec<(Target, bool)>,
    reasons: Vec<(Target, Reason)>,
}

impl Resting {
    pub(super) fn now(handles: &Handles) -> Self {
        let now = Instant::now();
        let breakers = handles.breaker.snapshot();
        let open: HashSet<&Target> = breakers
            .iter()
            .filter(|breaker| breaker.circuit.state.as_str() != "closed")
            .filter_map(|breaker| breaker.key.as_ref())
            .collect();
        let (mut known, mut reasons) = (Vec::new(), Vec::new());
        for health in handles.failover.snapshot().targets() {
            let cooling = health.cooling.as_ref().filter(|_| health.cooling_for(now).is_some());
            reasons.extend(cooling.map(|cooling| (health.target.clone(), cooling.reason)));
            known.push((health.target.clone(), cooling.is_some() || open.contains(&health.target)));
        }
        Self { known, reasons }
    }

    /// What cools, and why.
    pub(super) fn reasons(&self) -> &[(Target, Reason)] {
        &self.reasons
    }

    /// Whether nothing can be had of `target`, a provider with one of its keys: it rests itself, or so does every
    /// model that it was asked for.
    pub(super) fn all_of(&self, target: &Target) -> bool {
        let of = |other: &Target| {
            let keys = (other.credential(), target.credential());
            other.provider() == target.provider() && (keys.0.is_none() || keys.0 == keys.1)
        };
        let rows = || self.known.iter().filter(|(other, _)| of(other));
        if rows().any(|(other, rests)| other.model().is_none() && *rests) {
            return true;
        }
        // A model rests with the key, or whatever the key: one of the two rows has it.
        let models = |all: bool| -> HashSet<&str> {
            let rows = rows().filter(|(_, rests)| all || *rests);
            rows.filter_map(|(other, _)| other.model()).collect()
        };
        let (asked, resting) = (models(true), models(false));
        !asked.is_empty() && asked == resting
    }
}

/// How many targets `route` has, of `all`, and how many of them may be asked now.
pub(super) fn of_route(route: &RouteStack, all: &[Target], resting: &Resting) -> (usize, usize) {
    let is_its = |target: &&Target| {
        route.chain().iter().any(|link| link.names().iter().any(|name| name == target.provider()))
    };
    let its = all.iter().filter(is_its);
    let available = its.clone().filter(|target| !resting.all_of(target)).count();
    (its.count(), available)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_rests_with_its_provider_its_key_or_all_that_it_was_asked_for() {
        let of = |text: &str| {
            let (rest, key) = text.split_once('#').map_or((text, None), |(a, b)| (a, Some(b)));
            let (provider, model) =
                rest.split_once('/').map_or((rest, None), |(a, b)| (a, Some(b)));
            let target = Target::new(provider);
            let target = model.map_or(target.clone(), |model| target.with_model(model));
            key.map_or(target.clone(), |key| target.with_credential(key))
        };
        for (rests, wanted) in [
            (&[][..], false),
            (&["p"], true),
            (&["p#k"], true),
            (&["p#other"], false),
            (&["p/m#k"], false),
            (&["p/m#k", "p/n#k"], true),
            (&["p/m", "p/n"], true),
            (&["p/m", "p/n#other"], false),
            (&["q"], false),
        ] {
            let rows =
                ["p", "p#k", "p#other", "p/m", "p/m#k", "p/m#other", "p/n", "p/n#k", "p/n#other"];
            let known = rows.iter().chain(&["q"]).map(|row| (of(row), rests.contains(row)));
            let resting = Resting { known: known.collect(), reasons: Vec::new() };
            assert_eq!(resting.all_of(&of("p#k")), wanted, "{rests:?}");
        }
        let fresh = Resting { known: Vec::new(), reasons: Vec::new() };
        assert!(!fresh.all_of(&of("p#k")), "nobody has asked it");
    }
}
