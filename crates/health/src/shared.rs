//! Which providers are degraded, shared with other processes.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use steadfast_core::{
    Reason,
    shared::{Known, News, SharedFacts, SharedState, SharedTask},
};
use tokio::time::Instant;

use crate::{HealthCause, HealthStatus, HealthTransition, state::HealthState};

/// Degraded providers, as a kind of fact.
const KIND: &str = "health";

/// How long a node that starts believes that a provider is degraded, after another one found it so. 10 min: one that
/// is still degraded then has been found so again, or is not asked by anybody.
const BELIEVED_MS: u64 = 600_000;

/// Other processes, as the providers of a layer have them.
#[derive(Debug)]
pub(crate) struct Fleet {
    providers: Arc<SharedFacts<String>>,
    /// Reads what they find, for as long as the state lives.
    _hearing: SharedTask,
}

/// What others learn of a degraded provider.
#[derive(Debug, Deserialize, Serialize)]
struct Degraded {
    provider: Box<str>,
    reason: Option<Reason>,
}

/// Shares what `state` knows; whether it did not before.
pub(crate) fn share(
    state: &Arc<HealthState>,
    shared: Arc<dyn SharedState>,
    name: impl Fn(&str) -> Option<String> + Send + Sync + 'static,
) -> bool {
    if state.fleet.get().is_some() {
        return false;
    }
    let providers = SharedFacts::new(shared, KIND, move |provider: &String| name(provider));
    let turns = providers.clone();
    state.degraded.set_turns(move |provider, now| turns.may_probe(&provider.to_owned(), now));
    let (of, known) = (Arc::downgrade(state), providers.clone());
    let hearing = providers.listen(move |name, found| {
        let state = of.upgrade();
        state.is_some_and(|state| {
            hear(&state, &known, name, &found);
            true
        })
    });
    state.fleet.set(Fleet { providers, _hearing: hearing }).is_ok()
}

/// Others have found something of the provider that is called `name`.
fn hear(state: &HealthState, providers: &SharedFacts<String>, name: &str, known: &Known) {
    let is_called =
        |provider: &str| providers.name(&provider.to_owned()).is_some_and(|own| own == name);
    let clock = providers.clock();
    let degraded = known.fact.as_ref().and_then(|fact| {
        let degraded = serde_json::from_str::<Degraded>(&fact.value).ok()?;
        is_called(&degraded.provider).then_some(degraded)
    });
    if let Some(Degraded { provider, reason }) = degraded {
        let provider = state.provider(&provider, clock.at());
        provider.change(clock.at(), None, |monitor| {
            monitor.hear(HealthStatus::Degraded, reason, clock.at())
        });
        return;
    }
    let over = clock.to_instant(known.over_ms);
    let provider = state.all().find(|provider| is_called(provider.name()));
    if let Some(provider) = provider.filter(|_| known.fact.is_none()) {
        provider.change(clock.at(), None, |monitor| {
            let was_before = monitor.since() <= over;
            was_before.then(|| monitor.hear(HealthStatus::Healthy, None, clock.at())).flatten()
        });
    }
}

impl Fleet {
    /// Lets others know of a change, where it was found here.
    pub(crate) fn publish(&self, provider: &str, change: &HealthTransition, forced: bool) {
        if change.cause == HealthCause::Shared || forced {
            return;
        }
        let at_ms = self.providers.clock().to_unix_ms(change.at.min(Instant::now()));
        let news = match change.to {
            HealthStatus::Degraded => {
                let value = Degraded { provider: provider.into(), reason: change.reason };
                let value = serde_json::to_string(&value).unwrap_or_default();
                News::holds(at_ms, at_ms.saturating_add(BELIEVED_MS), value)
            }
            HealthStatus::Healthy => News::over(at_ms),
        };
        self.providers.publish(&provider.to_owned(), news);
    }
}
