//! Windows that providers have stated, shared with other processes.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use steadfast_core::shared::{Known, News, SharedFacts, SharedState, SharedTask};
use tokio::time::Instant;

use super::models::{LearnedWindow, Models};

/// Windows, as a kind of fact.
const KIND: &str = "windows";

/// Other processes, as the models of a layer have them.
#[derive(Debug)]
pub(super) struct Fleet {
    models: Arc<SharedFacts<String>>,
    /// Reads what they learn, for as long as the models live.
    _hearing: SharedTask,
}

/// What others learn of a model.
#[derive(Debug, Deserialize, Serialize)]
struct StatedWindow {
    window: u64,
}

/// Shares what `models` learn; whether they did not before.
pub(crate) fn share(models: &Arc<Models>, state: Arc<dyn SharedState>) -> bool {
    if models.fleet.get().is_some() {
        return false;
    }
    // A model's name is the same everywhere; what is learned of it is less than what is known in any case.
    let facts = SharedFacts::new(state, KIND, |model: &String| Some(model.clone()));
    let (of, known) = (Arc::downgrade(models), facts.clone());
    let hearing = facts.listen(move |model, found| {
        of.upgrade().is_some_and(|models| {
            hear(&models, &known, model, &found);
            true
        })
    });
    models.fleet.set(Fleet { models: facts, _hearing: hearing }).is_ok()
}

/// Others have learned or forgotten the window of `model`.
fn hear(models: &Models, facts: &SharedFacts<String>, model: &str, known: &Known) {
    let fact = known.fact.as_ref();
    let stated = fact.and_then(|fact| {
        let stated = serde_json::from_str::<StatedWindow>(&fact.value).ok()?;
        Some(LearnedWindow {
            window: stated.window,
            until: facts.clock().to_instant(fact.until_ms),
        })
    });
    match stated {
        Some(stated) => {
            models.learn_until(model, stated);
        }
        None if known.over_ms > 0 => {
            models.forget_here(model);
        }
        None => {}
    }
}

impl Fleet {
    pub(super) fn learned(&self, model: &str, window: u64, until: Instant) {
        let clock = self.models.clock();
        let value = serde_json::to_string(&StatedWindow { window }).unwrap_or_default();
        let news = News::holds(clock.unix_ms(), clock.to_unix_ms(until), value);
        self.models.publish(&model.to_owned(), news);
    }

    pub(super) fn forgotten(&self, model: &str) {
        self.models.publish(&model.to_owned(), News::over(self.models.clock().unix_ms()));
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use steadfast_core::shared::EmbeddedStore;
    use tokio::time::{advance, sleep};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_window_that_one_learns_all_know_until_it_is_forgotten_or_over() {
        let store = EmbeddedStore::new();
        let node = |name| {
            let models = Arc::new(Models::default());
            assert!(share(&models, Arc::new(store.join(name))));
            models
        };
        let heard = || sleep(Duration::from_millis(1));
        let [one, other] = ["one", "other"].map(node);
        one.learn("gpt-4o", 50_000);
        heard().await;
        assert_eq!(other.limits("gpt-4o").window, 50_000);
        other.learn("gpt-4o", 70_000);
        heard().await;
        assert_eq!(one.limits("gpt-4o").window, 50_000, "the smallest");
        let late = node("late");
        heard().await;
        assert_eq!(late.limits("gpt-4o").window, 50_000);
        assert!(other.forget("gpt-4o"));
        heard().await;
        for models in [&one, &other, &late] {
            assert_eq!(models.limits("gpt-4o").window, 128_000);
        }
        advance(Duration::from_millis(5)).await;
        late.learn("gpt-4o", 60_000);
        heard().await;
        assert_eq!(one.limits("gpt-4o").window, 60_000);
        advance(Duration::from_secs(3_600)).await;
        assert_eq!(one.limits("gpt-4o").window, 128_000);
    }
}
