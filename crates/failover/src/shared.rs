//! What is known of targets, shared with other processes.

mod moved;

use std::sync::Arc;

use steadfast_core::{
    Target,
    shared::{Known, News, SharedFacts, SharedState, SharedTask},
};
use tokio::time::Instant;

use crate::{
    event,
    health::Health,
    registry::{HealthRegistry, ObserveRecords, scope},
    saved::SavedHealth,
    service::FailoverState,
};

/// What cools, as a kind of fact.
const KIND: &str = "rests";

/// Other processes, as a registry has them.
#[derive(Debug)]
struct Fleet {
    circuits: Arc<SharedFacts<Target>>,
    /// Reads what they find, for as long as the registry lives.
    _hearing: SharedTask,
}

/// What a target is called among processes.
type TargetName = Arc<dyn Fn(&Target) -> Option<String> + Send + Sync>;

/// Shares what `failover` knows of targets, and where its conversations are; whether it did not before.
pub(crate) fn share(
    failover: &FailoverState,
    state: Arc<dyn SharedState>,
    name: impl Fn(&Target) -> Option<String> + Send + Sync + 'static,
) -> bool {
    let name: TargetName = Arc::new(name);
    let is_first = share_records(&failover.registry, state.clone(), name.clone());
    if is_first {
        moved::share(&failover.sessions, state, name);
    }
    is_first
}

fn share_records(
    registry: &Arc<HealthRegistry>,
    state: Arc<dyn SharedState>,
    name: TargetName,
) -> bool {
    if registry.observer.get().is_some() {
        return false;
    }
    let circuits = SharedFacts::new(state, KIND, move |target| name(target));
    let (of, known) = (Arc::downgrade(registry), circuits.clone());
    let hearing = circuits.listen(move |name, found| {
        let registry = of.upgrade();
        registry.is_some_and(|registry| {
            registry.hear(&known, name, &found);
            true
        })
    });
    let fleet = Fleet { circuits, _hearing: hearing };
    let is_first = registry.observer.set(Box::new(fleet)).is_ok();
    if is_first {
        // What is known already is news, too.
        for record in registry.all() {
            record.change(Instant::now(), |_, _| ());
        }
    }
    is_first
}

impl ObserveRecords for Fleet {
    fn news(&self, key: &Target, health: &mut Health) -> Option<News> {
        // Nothing in it can not be written; without its parts it would not be read.
        let write = |saved: &SavedHealth| serde_json::to_string(saved).unwrap_or_default();
        health.news(key, self.circuits.clock(), write)
    }

    fn publish(&self, key: &Target, news: News) {
        self.circuits.publish(key, news);
    }

    fn may_probe(&self, key: &Target, now: Instant) -> bool {
        self.circuits.may_probe(key, now)
    }
}

impl HealthRegistry {
    /// Others have found something of the target that is called `name`.
    fn hear(&self, circuits: &SharedFacts<Target>, name: &str, known: &Known) {
        let is_called = |key: &Target| circuits.name(key).is_some_and(|own| own == name);
        let saved = known.fact.as_ref().and_then(|fact| {
            let saved = serde_json::from_str::<SavedHealth>(&fact.value).ok()?;
            is_called(&saved.target).then_some(saved)
        });
        let record = match &saved {
            Some(saved) => Some(self.record(&saved.target, scope(&saved.target))),
            None => self.all().find(|record| is_called(&record.key)),
        };
        let Some(record) = record else { return };
        let clock = circuits.clock();
        let transition =
            record.change(clock.at(), |health, now| health.hear(now, known, saved.as_ref(), clock));
        if let Some(transition) = transition {
            let left = transition.until.map(|until| until.saturating_duration_since(clock.at()));
            event::shared(&record.key, transition.reason, left.unwrap_or_default());
            self.publish();
        }
    }
}
