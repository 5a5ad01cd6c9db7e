//! What the ends of calls change.

use std::time::Duration;

use tokio::time::Instant;

use super::{
    Blame, Circuit, CircuitCause, CircuitState, CircuitVerdict, Moment, Pending, Transition,
    Weight, row::Failures, state,
};
use crate::{Permit, PermitKind};

impl Circuit {
    /// The first content of a call has come, `after` its start. Counts only when the policy says so
    /// ([`CircuitPolicy::content_is_success`](super::CircuitPolicy::content_is_success)).
    pub fn first_content(
        &mut self,
        now: Moment,
        permit: &Permit,
        after: Duration,
    ) -> Option<Transition> {
        if !self.policy.content_is_success || self.is_slow(Some(after)) {
            return None;
        }
        self.last_success = Some(now.at);
        self.own.forget(now.at);
        self.own.succeeded(permit.witness, permit.order);
        match permit.kind {
            PermitKind::Ordinary if self.is_current(permit) => {
                self.row.succeeded(permit.order);
                self.state.is_resting().then(|| self.close(now, CircuitCause::Recovered))
            }
            PermitKind::Ordinary => None,
            PermitKind::Probe => {
                self.probes.iter_mut().find(|one| one.order == permit.order)?.counted = true;
                self.probe_succeeded(now)
            }
            PermitKind::Lone => {
                self.lone.iter_mut().find(|one| one.order == permit.order)?.counted = true;
                self.lone_succeeded(now)
            }
        }
    }

    /// An attempt of a call has failed, and the call goes on with its permit: so a probe decides nothing
    /// yet.
    pub fn attempt_failed(
        &mut self,
        now: Moment,
        permit: &Permit,
        blame: Blame,
    ) -> Option<Transition> {
        match permit.kind {
            PermitKind::Ordinary => self.judge(now, permit, CircuitVerdict::Failure(blame), None),
            PermitKind::Probe | PermitKind::Lone => None,
        }
    }

    /// The call that began as the `order`th has succeeded, the latest of all at `at`, which was not
    /// reported when it did: for layers that look at a healthy circuit without its lock.
    pub fn note_success(&mut self, order: u64, at: Option<Instant>) {
        self.row.succeeded(order);
        self.last_success = self.last_success.max(at);
    }

    /// A call has ended; `first_content` is the time to its first content, when it is known.
    pub fn end(
        &mut self,
        now: Moment,
        permit: &Permit,
        verdict: CircuitVerdict,
        first_content: Option<Duration>,
    ) -> Option<Transition> {
        let transition = self.judge(now, permit, verdict, first_content);
        // Whatever its verdict, it is not under way any more.
        self.own.void(permit.witness, permit.order);
        transition
    }

    fn judge(
        &mut self,
        now: Moment,
        permit: &Permit,
        verdict: CircuitVerdict,
        first_content: Option<Duration>,
    ) -> Option<Transition> {
        let slow = self.is_slow(first_content);
        let verdict = self.with_content(verdict, first_content.is_some());
        self.own.forget(now.at);
        if verdict == CircuitVerdict::Success {
            self.last_success = Some(now.at);
            self.own.succeeded(permit.witness, permit.order);
        }
        match permit.kind {
            // A call from before the last change decides nothing. Where an open circuit lasts as long as
            // its row, it is in there.
            PermitKind::Ordinary if !self.is_current(permit) => {
                if let CircuitVerdict::Failure(blame) = verdict
                    && self.policy.turns.is_some()
                    && blame.weight != Weight::Soft
                {
                    self.row.failed(permit.order, permit.witness);
                }
                None
            }
            PermitKind::Ordinary => self.ordinary_ended(now, permit, verdict, slow),
            // Nor does one that was given up.
            PermitKind::Probe => {
                let probe = take(&mut self.probes, permit.order)?;
                self.probe_ended(now, probe, verdict, slow)
            }
            PermitKind::Lone => {
                let lone = take(&mut self.lone, permit.order)?;
                self.lone_ended(now, lone, verdict, slow)
            }
        }
    }

    fn is_slow(&self, first_content: Option<Duration>) -> bool {
        matches!((self.policy.slow, first_content), (Some(slow), Some(took)) if took > slow.after)
    }

    /// Where content is a success, a failure after it counts only in the rate.
    fn with_content(&self, verdict: CircuitVerdict, had_content: bool) -> CircuitVerdict {
        match verdict {
            CircuitVerdict::Failure(blame)
                if had_content
                    && self.policy.content_is_success
                    && blame.weight == Weight::Hard =>
            {
                CircuitVerdict::Failure(Blame { weight: Weight::Soft, ..blame })
            }
            verdict => verdict,
        }
    }

    fn ordinary_ended(
        &mut self,
        now: Moment,
        permit: &Permit,
        verdict: CircuitVerdict,
        slow: bool,
    ) -> Option<Transition> {
        let blame = match verdict {
            CircuitVerdict::Nothing => {
                self.row.void(permit.order);
                return None;
            }
            CircuitVerdict::Success => {
                self.window.record(now.at, false, slow);
                self.row.succeeded(permit.order);
                if !slow && self.state.is_resting() {
                    return Some(self.close(now, CircuitCause::Recovered));
                }
                None
            }
            CircuitVerdict::Failure(blame) => {
                self.window.record(now.at, true, slow);
                Some(blame)
            }
        };
        let row = match blame {
            Some(blame) if blame.weight == Weight::Soft => {
                self.row.void(permit.order);
                None
            }
            Some(_) => Some(self.row.failed(permit.order, permit.witness)),
            None => None,
        };
        let cause = match self.state {
            CircuitState::Closed => self.cause_to_open(now.at, permit, blame, row, slow)?,
            CircuitState::Open | CircuitState::HalfOpen => {
                if let Some(blame) = blame {
                    self.failed_in_rest(now.at, blame);
                }
                // Half as many as open it, so that it does not open and close with each call.
                let enough = self.policy.consecutive.unwrap_or(0).div_ceil(2);
                let broken = row.is_some_and(|row| row.count < enough);
                return (self.policy.turns.is_some() && broken)
                    .then(|| self.close(now, CircuitCause::Recovered));
            }
            _ => return None,
        };
        self.open_after(now, cause, blame)
    }

    /// Why the call that just ended opens the circuit, if it does.
    fn cause_to_open(
        &mut self,
        now: Instant,
        permit: &Permit,
        blame: Option<Blame>,
        row: Option<Failures>,
        slow: bool,
    ) -> Option<CircuitCause> {
        if let Some(blame) = blame {
            let corroborated =
                row.is_some_and(|row| row.corroborated) || !self.policy.second_witness;
            let proves = blame.weight == Weight::Proof;
            if proves && (corroborated || !self.is_trusted(now)) {
                return Some(CircuitCause::Proof);
            }
            if let (Some(row), Some(enough)) = (row, self.policy.consecutive)
                && row.count >= enough
                && corroborated
            {
                return Some(CircuitCause::Consecutive);
            }
            if row.is_some() && self.policy.second_witness {
                let (order, witness) = (permit.order, permit.witness);
                self.own.failed(now, order, witness, blame, proves, &self.policy);
            }
        } else if !slow {
            return None;
        }
        let counts = self.window.counts(now);
        if counts.calls < u64::from(self.policy.min_calls) {
            return None;
        }
        let reached = |part, rate| state::ratio(part, counts.calls) >= rate;
        let failure_rate = self.policy.failure_rate.filter(|_| blame.is_some());
        if failure_rate.is_some_and(|rate| reached(counts.failures, rate)) {
            return Some(CircuitCause::FailureRate);
        }
        let slow_rate = self.policy.slow.filter(|_| slow);
        slow_rate
            .is_some_and(|policy| reached(counts.slow, policy.rate))
            .then_some(CircuitCause::SlowRate)
    }

    /// Whether a call has succeeded lately, so that one caller's word is not enough.
    fn is_trusted(&self, now: Instant) -> bool {
        let since = self.last_success.map(|at| now.saturating_duration_since(at));
        since.is_some_and(|since| since < self.policy.trusted_for)
    }

    fn probe_ended(
        &mut self,
        now: Moment,
        probe: Pending,
        verdict: CircuitVerdict,
        slow: bool,
    ) -> Option<Transition> {
        let blame = match verdict {
            // Its permit is free; it proves nothing.
            CircuitVerdict::Nothing => return None,
            // Its first content has counted.
            CircuitVerdict::Success if probe.counted => return None,
            CircuitVerdict::Failure(_) if probe.counted => {
                self.window.record(now.at, true, slow);
                return None;
            }
            CircuitVerdict::Success if !slow => return self.probe_succeeded(now),
            CircuitVerdict::Success => None,
            CircuitVerdict::Failure(blame) => Some(blame),
        };
        self.open_after(now, CircuitCause::ProbeFailed, blame)
    }

    fn probe_succeeded(&mut self, now: Moment) -> Option<Transition> {
        self.rest.successes = self.rest.successes.saturating_add(1);
        let enough = self.rest.successes >= self.policy.successes;
        enough.then(|| self.close(now, CircuitCause::Recovered))
    }

    fn lone_ended(
        &mut self,
        now: Moment,
        lone: Pending,
        verdict: CircuitVerdict,
        slow: bool,
    ) -> Option<Transition> {
        // Forced open: no outcome closes it.
        if self.state == CircuitState::ForcedOpen {
            return None;
        }
        match verdict {
            CircuitVerdict::Nothing => None,
            CircuitVerdict::Success if lone.counted => None,
            CircuitVerdict::Success if !slow => self.lone_succeeded(now),
            CircuitVerdict::Success => {
                self.rest.streak = 0;
                None
            }
            CircuitVerdict::Failure(blame) => {
                self.rest.streak = 0;
                self.failed_in_rest(now.at, blame);
                None
            }
        }
    }

    /// A call that is no probe has failed while the circuit rests. Without a hint, or proof, that
    /// changes nothing.
    fn failed_in_rest(&mut self, now: Instant, blame: Blame) {
        let lead = self.policy.probe_lead;
        if blame.hinted {
            self.rest.lengthen(now, blame.cooldown, true, lead);
        }
        if blame.weight == Weight::Proof {
            let (base, _) = self.policy.bounds(Some(blame));
            self.rest.lengthen(now, base, false, lead);
            self.rest.refuses = true;
        }
    }

    fn lone_succeeded(&mut self, now: Moment) -> Option<Transition> {
        self.rest.streak = self.rest.streak.saturating_add(1);
        let enough = self.policy.lone.map_or(1, |lone| lone.successes);
        let believed = !self.rest.hinted || now.at >= self.rest.probe_from;
        let enough = self.rest.streak >= enough.max(self.policy.successes);
        (enough && believed).then(|| self.close(now, CircuitCause::Recovered))
    }
}

/// Takes the call that began as the `order`th out of `calls`, if it is there.
fn take(calls: &mut Vec<Pending>, order: u64) -> Option<Pending> {
    let found = calls.iter().position(|call| call.order == order)?;
    Some(calls.swap_remove(found))
}
