//! The breaker before the summariser, with one state for the whole layer.

use std::sync::Arc;

use parking_lot::Mutex;
use steadfast_core::Failure;
use tokio::time::Instant;

use super::SummariserState::{self, Closed, HalfOpen, Open};
use crate::{SummaryPolicy, event};

/// Stops asking a summariser that keeps failing.
#[derive(Debug)]
pub(crate) struct Breaker(SummaryPolicy, Mutex<State>);

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
    success: Option<bool>,
}

impl Breaker {
    pub(crate) fn new(policy: SummaryPolicy) -> Self {
        let until = Instant::now();
        Self(policy, Mutex::new(State { state: Closed, failures: 0, until, generation: 0 }))
    }

    pub(crate) fn admit(self: &Arc<Self>, now: Instant) -> Option<Permit> {
        let mut state = self.1.lock();
        let is_probe = state.state != Closed;
        if is_probe {
            // A probe that never reports must not lock everybody out.
            if now < state.until {
                return None;
            }
            state.enter(HalfOpen, now + self.0.probe);
        }
        let (breaker, generation) = (self.clone(), state.generation);
        Some(Permit { breaker, generation, is_probe, success: None })
    }

    pub(crate) fn state(&self) -> SummariserState {
        self.1.lock().state
    }

    pub(crate) fn reset(&self) {
        self.1.lock().enter(Closed, Instant::now());
    }
}

impl State {
    fn enter(&mut self, state: SummariserState, until: Instant) {
        *self = Self { state, failures: 0, until, generation: self.generation + 1 };
    }
}

impl Permit {
    pub(crate) fn success(mut self) {
        self.success = Some(true);
    }

    pub(crate) fn failure(mut self, _: &Failure) {
        self.success = Some(false);
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let (policy, now, mut state) = (self.breaker.0, Instant::now(), self.breaker.1.lock());
        if self.generation != state.generation {
            return;
        }
        let failures = state.failures + 1;
        match self.success {
            // The next one tries at once.
            None if state.state == HalfOpen => return state.enter(Open, now),
            None => return,
            Some(true) if state.state == HalfOpen => state.enter(Closed, now),
            Some(false) if state.state == HalfOpen || failures >= policy.failures => {
                state.enter(Open, now + policy.rest);
            }
            Some(success) => {
                state.failures = if success { 0 } else { failures };
                return;
            }
        }
        let changed = state.state;
        drop(state);
        event::summariser(changed);
    }
}

#[cfg(test)]
mod tests;
