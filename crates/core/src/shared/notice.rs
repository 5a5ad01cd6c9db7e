//! That there are values: while nobody has put any, nobody reads.

use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, Weak},
    time::Duration,
};

use foldhash::fast::RandomState;
use parking_lot::{Mutex, RwLock};
use tokio::time::Instant;

use super::{FactListener, News, SharedState, SharedTask};
use crate::time::{later, millis};

/// What a notice says at most of the time to come: a day, so that a layer that keeps for ever is not believed for ever.
const LONGEST: Duration = Duration::from_secs(86_400);

/// The most names that are known of, by each side; of those beyond it nothing is.
const NAMES: usize = 1_024;

/// That this node has put values under a name, and since when others have: a fact that holds for twice as long as the last
/// of them may last, so that it is published at most once in half of that time, and those who put seldom do not seem to
/// begin anew. So a store is asked for what a
/// node does not know while there is something to be found, and not at all otherwise.
pub struct PutNotices {
    state: Arc<dyn SharedState>,
    kind: &'static str,
    /// What this node has published.
    own: Mutex<Times>,
    others: Arc<RwLock<Times>>,
    _hearing: SharedTask,
}

/// By name, since when values were put without a pause, and until when they may be there.
type Times = HashMap<Box<str>, (Instant, Instant), RandomState>;

/// The times of `name`, where there is room for them. Those of which all is over are dropped.
fn set(times: &mut Times, name: &str, time: (Instant, Instant), now: Instant) -> bool {
    if times.len() >= NAMES && !times.contains_key(name) {
        times.retain(|_, (_, until)| *until > now);
    }
    let has_room = times.len() < NAMES || times.contains_key(name);
    if has_room {
        times.insert(name.into(), time);
    }
    has_room
}

impl PutNotices {
    /// Notices of this `kind`, those of others included for as long as this lives.
    ///
    /// # Panics
    ///
    /// Outside of a tokio runtime.
    pub fn new(state: Arc<dyn SharedState>, kind: &'static str) -> Self {
        let others = Arc::<RwLock<Times>>::default();
        let listener = state.subscribe(kind);
        let hearing = SharedTask::spawn(listen(listener, Arc::downgrade(&state), others.clone()));
        Self { state, kind, own: Mutex::default(), others, _hearing: hearing }
    }

    /// This node puts a value under `name` that is there for as long as `lasts`.
    pub fn put(&self, name: &str, now: Instant, lasts: Duration) {
        let lasts = lasts.min(LONGEST);
        let needed = later(now, lasts);
        let mut own = self.own.lock();
        let since = match own.get(name) {
            Some((_, until)) if *until >= later(needed, lasts / 2) => return,
            Some((since, until)) if *until > now => *since,
            _ => now,
        };
        let until = later(needed, lasts);
        let is_known = set(&mut own, name, (since, until), now);
        drop(own);
        if is_known {
            let now_ms = self.state.clock().unix_ms();
            let since_ms = now_ms.saturating_sub(millis(now.saturating_duration_since(since)));
            let until_ms = now_ms.saturating_add(millis(until.saturating_duration_since(now)));
            self.state.publish(self.kind, name, News::holds(since_ms, until_ms, ""));
        }
    }

    /// Since when other nodes have put values under `name` without a pause, while some of those may be there.
    pub fn others(&self, name: &str, now: Instant) -> Option<Instant> {
        let (since, until) = *self.others.read().get(name)?;
        (until > now).then_some(since)
    }
}

async fn listen(
    mut listener: FactListener,
    state: Weak<dyn SharedState>,
    others: Arc<RwLock<Times>>,
) {
    loop {
        let (name, known) = listener.next().await;
        let Some(state) = state.upgrade() else { return };
        let Some(fact) = known.fact else { continue };
        let clock = state.clock();
        // Times there are in whole milliseconds.
        let instant = |ms: u64| clock.to_instant(ms.saturating_add(1));
        let (since, until, now) = (instant(fact.since_ms), instant(fact.until_ms), clock.at());
        let mut others = others.write();
        match others.get_mut(&name) {
            // Those that are there already began before.
            Some((_, known)) if *known > now => *known = until.max(*known),
            _ => {
                set(&mut others, &name, (since, until), now);
            }
        }
    }
}

impl fmt::Debug for PutNotices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PutNotices")
            .field("kind", &self.kind)
            .field("own", &*self.own.lock())
            .field("others", &*self.others.read())
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
        assert_eq!(other.others("x", Instant::now()), None);
        let start = Instant::now();
        let before = a.fleet().store.commands;
        for _ in 0..300 {
            one.put("x", Instant::now(), MINUTE);
            tokio::time::advance(Duration::from_secs(1)).await;
        }
        let commands = a.fleet().store.commands - before;
        assert!((8..=12).contains(&commands), "{commands} in five minutes");
        heard().await;
        let since = other.others("x", Instant::now()).expect("it holds");
        assert_eq!(other.others("y", Instant::now()), None);
        assert!(since - start < Duration::from_millis(3), "all of it is one time");
        assert_eq!(one.others("x", Instant::now()), None, "its own it knows");
        tokio::time::advance(Duration::from_secs(58)).await;
        assert!(other.others("x", Instant::now()).is_some(), "the last value is there yet");
        tokio::time::advance(Duration::from_secs(63)).await;
        assert_eq!(other.others("x", Instant::now()), None);
        let start = Instant::now();
        one.put("x", start, MINUTE);
        heard().await;
        assert!(
            other.others("x", Instant::now()).is_some_and(|since| since >= start),
            "a new time"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn who_joins_hears_of_it_and_so_does_who_was_away() {
        let store = EmbeddedStore::new();
        let (a, b) = (store.join("a"), store.join("b"));
        let (one, other) = (notices(&a), notices(&b));
        b.set_away(true);
        one.put("x", Instant::now(), MINUTE);
        heard().await;
        assert_eq!(other.others("x", Instant::now()), None);
        b.set_away(false);
        let late = notices(&store.join("c"));
        heard().await;
        assert!(
            other.others("x", Instant::now()).is_some()
                && late.others("x", Instant::now()).is_some()
        );
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
