//! The breaker before the summariser, with one state for the whole layer.

use std::sync::Arc;

use parking_lot::Mutex;
use steadfast_core::Failure;
use tokio::time::Instant;

use crate::{SummaryPolicy, event};

/// Whether the summariser may be asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SummariserState {
    /// It may.
    Closed,
    /// It failed too often, and is not asked for a while.
    Open,
    /// One compaction tries whether it works again.
    HalfOpen,
}

impl SummariserState {
    /// The name used in logs.
    pub const fn as_str(self) -> &'static str {
        match self {
            SummariserState::Closed => "closed",
            SummariserState::Open => "open",
            SummariserState::HalfOpen => "half_open",
        }
    }
}

/// Stops asking a summariser that keeps failing.
#[derive(Debug)]
pub(crate) struct Breaker {
    policy: SummaryPolicy,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    state: SummariserState,
    /// Failures in a row.
    failures: u32,
    /// When an open or half-open one lets somebody try.
    until: Instant,
    /// Changes with the state: a permit from before decides nothing after.
    generation: u64,
}

/// Permission to ask; dropped without an outcome, it was cancelled.
pub(crate) struct Permit {
    breaker: Arc<Breaker>,
    generation: u64,
    /// It is the one that tries.
    pub(crate) is_probe: bool,
}

impl Breaker {
    pub(crate) fn new(policy: SummaryPolicy) -> Self {
        let state = SummariserState::Closed;
        let until = Instant::now();
        Self { policy, state: Mutex::new(State { state, failures: 0, until, generation: 0 }) }
    }

    pub(crate) fn admit(self: &Arc<Self>, now: Instant) -> Option<Permit> {
        let mut state = self.state.lock();
        let is_probe = state.state != SummariserState::Closed;
        if is_probe {
            // A probe that never reports must not lock everybody out.
            if now < state.until {
                return None;
            }
            state.enter(SummariserState::HalfOpen, now + self.policy.probe);
        }
        Some(Permit { breaker: self.clone(), generation: state.generation, is_probe })
    }

    pub(crate) fn state(&self) -> SummariserState {
        self.state.lock().state
    }

    pub(crate) fn reset(&self) {
        self.state.lock().enter(SummariserState::Closed, Instant::now());
    }

    /// Takes note of an outcome; `None` for a call that was cancelled.
    fn outcome(&self, generation: u64, success: Option<bool>) {
        let (now, mut state) = (Instant::now(), self.state.lock());
        if generation != state.generation {
            return;
        }
        let is_probing = state.state == SummariserState::HalfOpen;
        state.failures = match success {
            Some(true) => 0,
            Some(false) => state.failures + 1,
            None => state.failures,
        };
        let next = match success {
            Some(true) if is_probing => SummariserState::Closed,
            // The next one tries at once.
            None if is_probing => return state.enter(SummariserState::Open, now),
            Some(false) if is_probing || state.failures >= self.policy.failures => {
                SummariserState::Open
            }
            _ => return,
        };
        state.enter(next, now + self.policy.rest);
        drop(state);
        event::summariser(next);
    }
}

impl State {
    fn enter(&mut self, state: SummariserState, until: Instant) {
        *self = Self { state, failures: 0, until, generation: self.generation + 1 };
    }
}

impl Permit {
    pub(crate) fn success(self) {
        self.breaker.outcome(self.generation, Some(true));
    }

    pub(crate) fn failure(self, _: &Failure) {
        self.breaker.outcome(self.generation, Some(false));
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.breaker.outcome(self.generation, None);
    }
}

#[cfg(test)]
mod tests;
