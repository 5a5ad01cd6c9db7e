//! What is known of breakers, shared with other processes.

use std::{hash::Hash, sync::Arc};

use serde::{Serialize, de::DeserializeOwned};
use steadfast_core::shared::{Known, News, SharedFacts, SharedState, SharedTask};
use tokio::time::Instant;

use crate::{
    SavedBreaker,
    state::{Breakers, Counted, ObserveBreakers},
};

/// What rests, as a kind of fact.
const KIND: &str = "breakers";

/// Other processes, as the breakers of a layer have them.
struct Fleet<K> {
    circuits: Arc<SharedFacts<K>>,
    /// Reads what they find, for as long as the breakers live.
    _hearing: SharedTask,
}

/// Shares what `breakers` know; whether they did not before.
pub(crate) fn share<K>(
    breakers: &Arc<Breakers<K>>,
    state: Arc<dyn SharedState>,
    name: impl Fn(&K) -> Option<String> + Send + Sync + 'static,
) -> bool
where
    K: Hash + Eq + Clone + Send + Sync + Serialize + DeserializeOwned + 'static,
{
    let observer = &breakers.common.observer;
    if observer.get().is_some() {
        return false;
    }
    let circuits = SharedFacts::new(state, KIND, name);
    let (of, known) = (Arc::downgrade(breakers), circuits.clone());
    let hearing = circuits.listen(move |name, found| {
        let breakers = of.upgrade();
        breakers.is_some_and(|breakers| {
            hear(&breakers, &known, name, &found);
            true
        })
    });
    let is_first = observer.set(Box::new(Fleet { circuits, _hearing: hearing })).is_ok();
    if is_first {
        // What is known already is news, too.
        for breaker in breakers.all() {
            breaker.steer(|_, _| None);
        }
    }
    is_first
}

/// Others have found something of the breaker that is called `name`.
fn hear<K>(breakers: &Breakers<K>, circuits: &SharedFacts<K>, name: &str, known: &Known)
where
    K: Hash + Eq + Clone + Send + Sync + DeserializeOwned + 'static,
{
    let is_called = |key: &K| circuits.name(key).is_some_and(|own| own == name);
    let saved = known.fact.as_ref().and_then(|fact| {
        let saved = serde_json::from_str::<SavedBreaker<K>>(&fact.value).ok()?;
        is_called(&saved.key).then_some(saved)
    });
    let breaker = match &saved {
        Some(saved) => Some(breakers.get_or_insert(&saved.key, Instant::now())),
        None => breakers.all().into_iter().find(|breaker| is_called(breaker.key())),
    };
    if let Some(breaker) = breaker {
        breaker.hear(known, saved.as_ref(), circuits.clock());
    }
}

impl<K> ObserveBreakers<K> for Fleet<K>
where
    K: Clone + Serialize + Send + Sync + 'static,
{
    fn news(&self, key: &K, counted: &mut Counted) -> Option<News> {
        // A key that can not be written is not read.
        let write = |saved: &SavedBreaker<K>| serde_json::to_string(saved).unwrap_or_default();
        counted.news(key, self.circuits.clock(), write)
    }

    fn publish(&self, key: &K, news: News) {
        self.circuits.publish(key, news);
    }

    fn may_probe(&self, key: &K, now: Instant) -> bool {
        self.circuits.may_probe(key, now)
    }
}
