//! What is done once, by one node.

use std::{collections::HashMap, hash::BuildHasher, sync::Arc, time::Duration};

use foldhash::fast::{FixedState, RandomState};
use parking_lot::Mutex;
use tokio::{sync::Notify, time::Instant};

use super::SharedState;
use crate::time::{later, millis};

/// The right to do something that is done once. It ends with its time, or when it is
/// [released](super::SharedState::release).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Claim {
    /// What is claimed.
    pub key: Box<str>,
    /// Greater than that of every claim before it in the same store: who writes with it can be refused once another
    /// node has a later one.
    pub token: u64,
}

impl Claim {
    /// The claim of `key` with this token.
    pub fn new(key: impl Into<Box<str>>, token: u64) -> Self {
        Self { key: key.into(), token }
    }
}

/// Which node sees whether a target that rests is back: one of the fleet at a time, by a claim that is taken before
/// it is needed.
///
/// A call never waits for it: the first call that could be a probe asks for the claim and goes on as if it were too
/// early, and the next one is the probe. A node whose store is away probes by itself, as often as its part of the
/// fleet.
#[derive(Debug)]
pub struct ProbeTurns {
    state: Arc<dyn SharedState>,
    kind: &'static str,
    wanted: Mutex<Wanted>,
    notify: Notify,
}

#[derive(Debug, Default)]
struct Wanted {
    turns: HashMap<Box<str>, Turn, RandomState>,
    queue: Vec<(Box<str>, Duration)>,
    /// Without the store: the last time of its own in which a probe has ended.
    slots: HashMap<Box<str>, u64, RandomState>,
}

#[derive(Debug)]
struct Turn {
    /// When a call last could have been the probe.
    wanted: Instant,
    /// Until when nothing is asked of the store; where there is a claim, until when it lasts.
    until: Instant,
    claim: Option<Claim>,
}

/// How long a node has to make its probe, at least. A probe that takes longer is not made twice for that alone in most
/// fleets, and a node that dies with a claim keeps others from probing no longer than this.
const LASTS: Duration = Duration::from_secs(10);

/// And at most, on a node that has a call once in a while.
const LONGEST: Duration = Duration::from_secs(300);

/// How long a node that did not get a claim leaves it to others.
const AGAIN: Duration = Duration::from_secs(1);

/// Keys for which turns are remembered. Beyond it all are forgotten, which costs a claim each.
const TURNS: usize = 1_024;

impl ProbeTurns {
    /// Turns for the keys of one layer. [`run`](Self::run) has to run, or nobody gets one.
    pub fn new(state: Arc<dyn SharedState>, kind: &'static str) -> Self {
        Self { state, kind, wanted: Mutex::default(), notify: Notify::new() }
    }

    /// Whether a call of this node may be the probe of `key` now. A `false` asks for the next turn.
    pub fn may_probe(&self, key: &str, now: Instant) -> bool {
        let nodes = self.state.nodes();
        if nodes <= 1 {
            return true;
        }
        let mut wanted = self.wanted.lock();
        let wanted = &mut *wanted;
        if self.state.is_away() {
            let slot = self.slot();
            return self.is_own(slot, key, nodes) && wanted.slots.get(key) != Some(&slot);
        }
        let lasts = match wanted.turns.get_mut(key) {
            Some(turn) if now < turn.until => {
                turn.wanted = now;
                return turn.claim.is_some();
            }
            // Its next call will come after about as long.
            Some(turn) => (now - turn.wanted).saturating_mul(3).clamp(LASTS, LONGEST),
            None => LASTS,
        };
        if wanted.turns.len() >= TURNS {
            wanted.turns.clear();
        }
        let turn = Turn { wanted: now, until: later(now, AGAIN), claim: None };
        wanted.turns.insert(key.into(), turn);
        wanted.queue.push((key.into(), lasts));
        self.notify.notify_one();
        false
    }

    /// The probe of `key` is over, or none is needed any more.
    pub fn over(&self, key: &str) {
        let mut wanted = self.wanted.lock();
        if self.state.is_away() {
            let slot = self.slot();
            wanted.slots.retain(|_, used| *used == slot);
            wanted.slots.insert(key.into(), slot);
        }
        let turn = wanted.turns.remove(key);
        drop(wanted);
        if let Some(claim) = turn.and_then(|turn| turn.claim) {
            self.state.release(&claim);
        }
    }

    /// Gets the claims that are wanted, for ever.
    pub async fn run(&self) {
        loop {
            let next = self.wanted.lock().queue.pop();
            let Some((key, lasts)) = next else {
                self.notify.notified().await;
                continue;
            };
            let name = format!("probe:{}:{key}", self.kind);
            let asked = Instant::now();
            let Ok(Some(claim)) = self.state.claim(&name, lasts).await else { continue };
            let mut wanted = self.wanted.lock();
            match wanted.turns.get_mut(&key) {
                Some(turn) => {
                    turn.until = later(asked, lasts);
                    turn.claim = Some(claim);
                }
                None => {
                    // It was over meanwhile.
                    drop(wanted);
                    self.state.release(&claim);
                }
            }
        }
    }

    /// Which of the times this is that nodes divide among them when they can not agree.
    fn slot(&self) -> u64 {
        self.state.clock().unix_ms() / millis(LASTS)
    }

    /// Whether it is this node's, of so many: by chance, so that there is about one of each.
    fn is_own(&self, slot: u64, key: &str, nodes: usize) -> bool {
        let hash = FixedState::default().hash_one((self.state.node(), key, slot));
        (hash >> 32).is_multiple_of(nodes as u64)
    }
}
