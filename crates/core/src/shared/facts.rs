//! What one layer knows, as facts of one kind.

use std::{
    fmt,
    future::{Future, poll_fn},
    pin::pin,
    sync::Arc,
    task::Poll,
    time::Duration,
};

use tokio::{task::JoinHandle, time::Instant};

use super::{Known, News, ProbeTurns, SharedState};
use crate::{
    circuit::SavedCircuit,
    time::{WallClock, later},
};

/// What one layer knows by key, such as the rests of its circuits, as other processes hear of it: what `share` of a
/// layer's handle makes.
pub struct SharedFacts<K> {
    state: Arc<dyn SharedState>,
    kind: &'static str,
    name: Name<K>,
    turns: ProbeTurns,
}

type Name<K> = Box<dyn Fn(&K) -> Option<String> + Send + Sync>;

/// How much longer a rest has to be to be news: clocks are compared over a network.
const SLACK: Duration = Duration::from_millis(10);

/// What other nodes know of one circuit. Kept beside it, under its lock.
#[derive(Clone, Copy, Debug, Default)]
pub struct PublishedCircuit {
    /// Until when it rests as far as they know. By this process' clock, whatever is learned of the store's.
    until: Option<Instant>,
}

/// A task that ends when this is dropped.
#[derive(Debug)]
#[must_use = "the task ends when this is dropped"]
pub struct SharedTask(JoinHandle<()>);

impl PublishedCircuit {
    /// What is news to the others when the circuit has changed and rests now as it is `saved`, believed until then.
    pub fn changed(
        &mut self,
        saved: Option<(&SavedCircuit, u64)>,
        clock: WallClock,
        value: impl FnOnce() -> String,
    ) -> Option<News> {
        let Some((saved, until_ms)) = saved else {
            let known = self.until.take();
            return known.map(|_| News::over(clock.unix_ms()));
        };
        let until = clock.to_instant(until_ms);
        if until <= clock.at() || self.until.is_some_and(|known| until <= later(known, SLACK)) {
            return None;
        }
        self.until = Some(until);
        Some(News::holds(saved.since_ms, until_ms, value()))
    }

    /// The others know this now, and the circuit `rests`, by that or by itself. Where it does not, because it is forced or
    /// its policy does not believe them, that is no news to anybody.
    pub fn heard(&mut self, known: &Known, rests: bool, clock: WallClock) {
        let fact = known.fact.as_ref().filter(|_| rests);
        self.until = fact.map(|fact| clock.to_instant(fact.until_ms));
    }
}

impl<K: 'static> SharedFacts<K> {
    /// Facts of this `kind`. Each key has its `name` there; one without is not shared.
    pub fn new(
        state: Arc<dyn SharedState>,
        kind: &'static str,
        name: impl Fn(&K) -> Option<String> + Send + Sync + 'static,
    ) -> Arc<Self> {
        let turns = ProbeTurns::new(state.clone(), kind);
        Arc::new(Self { state, kind, name: Box::new(name), turns })
    }

    /// By which times are shared.
    pub fn clock(&self) -> WallClock {
        self.state.clock()
    }

    /// What a key is called.
    pub fn name(&self, key: &K) -> Option<String> {
        (self.name)(key)
    }

    /// Lets the others know. A probe of this node is over by that.
    pub fn publish(&self, key: &K, news: News) {
        if let Some(name) = self.name(key) {
            self.state.publish(self.kind, &name, news);
            self.turns.over(&name);
        }
    }

    /// Whether a call of this process may see whether what rests is back; see [`ProbeTurns`].
    pub fn may_probe(&self, key: &K, now: Instant) -> bool {
        self.name(key).is_none_or(|name| self.turns.may_probe(&name, now))
    }

    /// Calls `hear` with the name of each key of which others have found something, for as long as it returns `true`.
    ///
    /// # Panics
    ///
    /// Outside of a tokio runtime.
    pub fn listen(
        self: &Arc<Self>,
        mut hear: impl FnMut(&str, Known) -> bool + Send + 'static,
    ) -> SharedTask {
        let facts = self.clone();
        let mut listener = self.state.subscribe(self.kind);
        SharedTask::spawn(async move {
            let hearing = async {
                loop {
                    let (name, known) = listener.next().await;
                    if !hear(&name, known) {
                        break;
                    }
                }
            };
            let (mut hearing, mut turns) = (pin!(hearing), pin!(facts.turns.run()));
            poll_fn(|cx| match hearing.as_mut().poll(cx) {
                Poll::Pending => turns.as_mut().poll(cx),
                over => over,
            })
            .await;
        })
    }
}

impl SharedTask {
    /// Runs `task`.
    ///
    /// # Panics
    ///
    /// Outside of a tokio runtime.
    pub fn spawn(task: impl Future<Output = ()> + Send + 'static) -> Self {
        Self(tokio::spawn(task))
    }
}

impl Drop for SharedTask {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl<K> fmt::Debug for SharedFacts<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedFacts")
            .field("state", &self.state)
            .field("kind", &self.kind)
            .finish_non_exhaustive()
    }
}
