//! That there are values: while nobody has put any, nobody reads.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use tokio::time::Instant;

use super::{FactListener, News, SharedState, SharedTask};
use crate::time::{later, millis};

/// The name of the one fact of its kind.
const KEY: &str = "values";

/// What a notice says at most of the time to come: a day, so that a layer that keeps for ever is not believed for ever.
const LONGEST: Duration = Duration::from_secs(86_400);

/// That this node has put values of a kind, and since when others have: a fact that holds for as long as the last of
/// them may last and half as long again, so that it is published at most once in that half. So a store is asked for what a node does not
/// know while there is something to be found, and not at all otherwise.
pub struct PutNotices {
    state: Arc<dyn SharedState>,
    kind: &'static str,
    /// What this node has published: since when it has put values without a pause, and until when they are there.
    own: Mutex<Option<(Instant, Instant)>>,
    others: Arc<Others>,
    _hearing: SharedTask,
}

/// When others have put values: in milliseconds since `epoch`, rounded up; 0: not at all.
#[derive(Debug)]
struct Others {
    epoch: Instant,
    since: AtomicU64,
    until: AtomicU64,
}

impl PutNotices {
    /// Notices of this `kind`, those of others included for as long as this lives.
    ///
    /// # Panics
    ///
    /// Outside of a tokio runtime.
    pub fn new(state: Arc<dyn SharedState>, kind: &'static str) -> Self {
        let epoch = Instant::now();
        let others = Arc::new(Others { epoch, since: AtomicU64::new(0), until: AtomicU64::new(0) });
        let (heard, of) = (others.clone(), Arc::downgrade(&state));
        let listener = state.subscribe(kind);
        let hearing = SharedTask::spawn(async move { heard.listen(listener, &of).await });
        Self { state, kind, own: Mutex::new(None), others, _hearing: hearing }
    }

    /// This node puts a value that is there for as long as `lasts`.
    pub fn put(&self, now: Instant, lasts: Duration) {
        let lasts = lasts.min(LONGEST);
        let needed = later(now, lasts);
        let mut own = self.own.lock();
        let since = match *own {
            Some((_, until)) if until >= needed => return,
            Some((since, until)) if until > now => since,
            _ => now,
        };
        let until = later(needed, lasts / 2);
        *own = Some((since, until));
        drop(own);
        let now_ms = self.state.clock().unix_ms();
        let since_ms = now_ms.saturating_sub(millis(now.saturating_duration_since(since)));
        let until_ms = now_ms.saturating_add(millis(until.saturating_duration_since(now)));
        self.state.publish(self.kind, KEY, News::holds(since_ms, until_ms, ""));
    }

    /// Since when other nodes have put values without a pause, while some of those may be there.
    pub fn others(&self, now: Instant) -> Option<Instant> {
        let Others { epoch, since, until } = &*self.others;
        let until = until.load(Ordering::Relaxed);
        let holds = until > millis(now.saturating_duration_since(*epoch));
        holds.then(|| later(*epoch, Duration::from_millis(since.load(Ordering::Relaxed))))
    }
}

impl Others {
    async fn listen(&self, mut listener: FactListener, state: &std::sync::Weak<dyn SharedState>) {
        loop {
            let (_, known) = listener.next().await;
            let Some(state) = state.upgrade() else { return };
            let Some(fact) = known.fact else { continue };
            let clock = state.clock();
            let since_epoch =
                |ms: u64| millis(clock.to_instant(ms).saturating_duration_since(self.epoch));
            let (since, until) = (since_epoch(fact.since_ms) + 1, since_epoch(fact.until_ms) + 1);
            let (known, now) = (self.until.load(Ordering::Relaxed), since_epoch(clock.unix_ms()));
            if until <= known {
                continue;
            }
            // Those that are there already began before.
            if known <= now {
                self.since.store(since, Ordering::Relaxed);
            }
            self.until.store(until, Ordering::Relaxed);
        }
    }
}

impl fmt::Debug for PutNotices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PutNotices")
            .field("kind", &self.kind)
            .field("own", &*self.own.lock())
            .field("others", &self.others)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared::{EmbeddedNode, EmbeddedStore};

    const MINUTE: Duration = Duration::from_secs(60);

    fn notices(node: &EmbeddedNode) -> PutNotices {
        PutNotices::new(Arc::new(node.clone()), "moved")
    }

    async fn heard() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }

    #[tokio::test(start_paused = true)]
    async fn it_holds_until_the_last_value_is_gone_and_is_seldom_published() {
        let store = EmbeddedStore::new();
        let (a, b) = (store.join("a"), store.join("b"));
        let (one, other) = (notices(&a), notices(&b));
        assert_eq!(other.others(Instant::now()), None);
        let start = Instant::now();
        let before = a.fleet().store.commands;
        for _ in 0..300 {
            one.put(Instant::now(), MINUTE);
            tokio::time::advance(Duration::from_secs(1)).await;
        }
        let commands = a.fleet().store.commands - before;
        assert!((8..=12).contains(&commands), "{commands} in five minutes");
        heard().await;
        let since = other.others(Instant::now()).expect("it holds");
        assert!(since - start < Duration::from_millis(3), "all of it is one time");
        assert_eq!(one.others(Instant::now()), None, "its own it knows");
        tokio::time::advance(Duration::from_secs(58)).await;
        assert!(other.others(Instant::now()).is_some(), "the last value is there yet");
        tokio::time::advance(Duration::from_secs(35)).await;
        assert_eq!(other.others(Instant::now()), None);
        let start = Instant::now();
        one.put(start, MINUTE);
        heard().await;
        assert!(other.others(Instant::now()).is_some_and(|since| since >= start), "a new time");
    }

    #[tokio::test(start_paused = true)]
    async fn who_joins_hears_of_it_and_so_does_who_was_away() {
        let store = EmbeddedStore::new();
        let (a, b) = (store.join("a"), store.join("b"));
        let (one, other) = (notices(&a), notices(&b));
        b.set_away(true);
        one.put(Instant::now(), MINUTE);
        heard().await;
        assert_eq!(other.others(Instant::now()), None);
        b.set_away(false);
        let late = notices(&store.join("c"));
        heard().await;
        assert!(other.others(Instant::now()).is_some() && late.others(Instant::now()).is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn nothing_is_held_by_notices_that_are_gone() {
        let store = EmbeddedStore::new();
        let stays = store.join("stays");
        let gone = notices(&store.join("goes"));
        assert_eq!(stays.nodes(), 2);
        drop(gone);
        heard().await;
        assert_eq!(stays.nodes(), 1);
    }
}
