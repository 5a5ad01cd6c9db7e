//! The breaker before the summariser. Pure: it is told the time.
//!
//! Small and with one state for all: whoever needs more puts a breaker layer around the summariser.

use std::time::Duration;

use tokio::time::Instant;

/// When the summariser is not asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GatePolicy {
    pub(crate) failures: u32,
    pub(crate) rest: Duration,
    pub(crate) probe: Duration,
}

/// Whether the summariser may be asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum GateState {
    /// It may.
    Closed,
    /// It failed too often, and rests.
    Open,
    /// One compaction tries whether it works again.
    Probing,
}

impl GateState {
    /// The name used in logs.
    pub const fn as_str(self) -> &'static str {
        match self {
            GateState::Closed => "closed",
            GateState::Open => "open",
            GateState::Probing => "probing",
        }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Gate {
    policy: GatePolicy,
    state: State,
    /// Moves on with every change of the state: what was admitted before decides nothing after.
    generation: u64,
}

#[derive(Clone, Copy, Debug)]
enum State {
    Closed { failures: u32 },
    Open { until: Instant },
    Probing { until: Instant },
}

/// Leave to ask, given at one state of the gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pass {
    generation: u64,
    /// It is the one that tries.
    pub(crate) probe: bool,
}

/// What came of asking.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Came {
    Good,
    Bad,
    /// Nobody waited for it.
    Nothing,
}

impl Gate {
    pub(crate) fn new(policy: GatePolicy) -> Self {
        Self { policy, state: State::Closed { failures: 0 }, generation: 0 }
    }

    pub(crate) fn admit(&mut self, now: Instant) -> Option<Pass> {
        let probe = match self.state {
            State::Closed { .. } => false,
            // A probe that never reports must not lock everybody out.
            State::Open { until } | State::Probing { until } if now >= until => {
                self.enter(State::Probing { until: now + self.policy.probe });
                true
            }
            State::Open { .. } | State::Probing { .. } => return None,
        };
        Some(Pass { generation: self.generation, probe })
    }

    /// The state that it changed to, when it did.
    pub(crate) fn settle(&mut self, pass: Pass, came: Came, now: Instant) -> Option<GateState> {
        if pass.generation != self.generation {
            return None;
        }
        match (&mut self.state, came) {
            (State::Closed { failures }, Came::Good) => *failures = 0,
            (State::Closed { failures }, Came::Bad) => {
                *failures += 1;
                if *failures >= self.policy.failures {
                    return Some(self.open(now));
                }
            }
            (State::Closed { .. }, Came::Nothing) | (State::Open { .. }, _) => {}
            (State::Probing { .. }, Came::Good) => {
                self.enter(State::Closed { failures: 0 });
                return Some(GateState::Closed);
            }
            (State::Probing { .. }, Came::Bad) => return Some(self.open(now)),
            // The next one tries.
            (State::Probing { .. }, Came::Nothing) => self.enter(State::Open { until: now }),
        }
        None
    }

    pub(crate) fn state(&self) -> GateState {
        match self.state {
            State::Closed { .. } => GateState::Closed,
            State::Open { .. } => GateState::Open,
            State::Probing { .. } => GateState::Probing,
        }
    }

    pub(crate) fn reset(&mut self) {
        self.enter(State::Closed { failures: 0 });
    }

    fn open(&mut self, now: Instant) -> GateState {
        self.enter(State::Open { until: now + self.policy.rest });
        GateState::Open
    }

    fn enter(&mut self, state: State) {
        self.generation += 1;
        self.state = state;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const POLICY: GatePolicy = GatePolicy {
        failures: 5,
        rest: Duration::from_secs(60),
        probe: Duration::from_secs(30),
    };

    fn after(seconds: u64) -> Instant {
        Instant::now() + Duration::from_secs(seconds)
    }

    /// A gate that has failed often enough at `now`.
    fn open(now: Instant) -> Gate {
        let mut gate = Gate::new(POLICY);
        for number in 1..=5 {
            let pass = gate.admit(now).unwrap();
            let changed = gate.settle(pass, Came::Bad, now);
            assert_eq!(changed, (number == 5).then_some(GateState::Open), "{number}");
        }
        gate
    }

    #[tokio::test(start_paused = true)]
    async fn five_failures_in_a_row_open_it_for_a_minute() {
        let mut gate = open(after(0));
        assert_eq!(gate.admit(after(59)), None);
        let probe = gate.admit(after(60)).unwrap();
        assert!(probe.probe);
        assert_eq!(gate.admit(after(60)), None, "one tries at a time");
        assert_eq!(gate.settle(probe, Came::Good, after(61)), Some(GateState::Closed));
        for _ in 0..4 {
            let pass = gate.admit(after(61)).unwrap();
            gate.settle(pass, Came::Bad, after(61));
        }
        let pass = gate.admit(after(61)).unwrap();
        gate.settle(pass, Came::Good, after(61));
        let pass = gate.admit(after(61)).unwrap();
        assert_eq!(gate.settle(pass, Came::Bad, after(61)), None, "they were not in a row");
    }

    #[tokio::test(start_paused = true)]
    async fn a_probe_that_fails_is_dropped_or_never_reports() {
        let mut gate = open(after(0));
        let probe = gate.admit(after(60)).unwrap();
        assert_eq!(gate.settle(probe, Came::Bad, after(60)), Some(GateState::Open));
        assert_eq!(gate.admit(after(119)), None);
        let dropped = gate.admit(after(120)).unwrap();
        assert_eq!(gate.settle(dropped, Came::Nothing, after(121)), None);
        let silent = gate.admit(after(121)).expect("the next one tries at once");
        assert_eq!(gate.admit(after(150)), None);
        let third = gate.admit(after(151)).expect("thirty seconds are enough");
        assert_eq!(gate.settle(silent, Came::Good, after(152)), None, "too late to decide");
        assert_eq!(gate.state(), GateState::Probing);
        assert_eq!(gate.settle(third, Came::Good, after(153)), Some(GateState::Closed));
    }

    #[tokio::test(start_paused = true)]
    async fn who_was_admitted_before_it_opened_decides_nothing() {
        let mut gate = Gate::new(POLICY);
        let old = gate.admit(after(0)).unwrap();
        for _ in 0..5 {
            let pass = gate.admit(after(0)).unwrap();
            gate.settle(pass, Came::Bad, after(0));
        }
        assert_eq!(gate.settle(old, Came::Good, after(1)), None);
        assert_eq!(gate.state(), GateState::Open);
        gate.reset();
        assert!(!gate.admit(after(1)).unwrap().probe);
    }
}
