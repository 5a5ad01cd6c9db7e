//! A model of the breaker from its documentation: a naive circuit, and the table of what a failure
//! counts as.

use std::time::Duration;

use steadfast::{
    FaultSide, PermitKind, Reason, Retry, Scope, Target, TimeLimit,
    breaker::{BreakerPolicy, BreakerSnapshot, BreakerTransition},
    circuit::{Blame, CircuitPolicy, CircuitVerdict, Weight},
};
use tokio::time::Instant;

use crate::{
    circuit_model::{Change, CircuitModel},
    timeline::{EndState, Facts},
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Decision {
    Passes(PermitKind),
    /// The breaker only observes; it would have refused.
    Observed,
    Refused(Duration),
}

/// An attempt that asks for a permit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asking {
    /// No other target can serve the call.
    pub(crate) alone: bool,
    /// The call has not asked this target before.
    pub(crate) first: bool,
    pub(crate) witness: Option<u64>,
}

#[derive(Debug)]
pub(crate) struct Breaker {
    policy: BreakerPolicy,
    circuit: CircuitModel,
    /// Failover decides who is asked: it refuses no first attempt, and those that repeat one take turns.
    takes_turns: bool,
    /// When each call in flight started.
    since: Vec<(u64, Duration)>,
}

impl Breaker {
    /// `routed` when there is a failover around it.
    pub(crate) fn new(policy: &BreakerPolicy, routed: bool, now: Duration) -> Self {
        let alone = CircuitPolicy {
            consecutive: policy.consecutive,
            second_witness: false,
            trusted_for: Duration::ZERO,
            window: policy.window,
            min_calls: policy.min_calls,
            failure_rate: policy.failure_rate,
            slow: policy.slow,
            content_is_success: false,
            cooldown: policy.cooldown,
            first_rest: None,
            growth: 2.0,
            max_cooldown: policy.max_cooldown,
            permanent_cooldown: policy.permanent_cooldown,
            max_permanent: policy.max_permanent,
            probe_lead: policy.probe_lead,
            probe_limit: policy.probe_limit,
            probes: policy.probes,
            successes: policy.successes,
            lone: policy.lone,
            turns: None,
        };
        let dead = policy.dead.filter(|_| routed);
        // Only a row opens it, of two witnesses, and any content closes it.
        let circuit = match dead {
            None => alone,
            Some(dead) => CircuitPolicy {
                consecutive: Some(dead),
                second_witness: true,
                failure_rate: None,
                slow: None,
                content_is_success: true,
                cooldown: policy.turn,
                first_rest: Some(policy.turn),
                growth: 1.0,
                lone: None,
                turns: Some(policy.turn),
                ..alone
            },
        };
        let circuit = CircuitModel::new(circuit, now);
        let takes_turns = dead.is_some();
        Self { policy: policy.clone(), circuit, takes_turns, since: Vec::new() }
    }

    /// Whether a call is admitted.
    pub(crate) fn decide(&mut self, id: u64, now: Duration, asking: Asking) -> Decision {
        let Asking { alone, first, witness } = asking;
        let decided = match self.takes_turns {
            true => self.circuit.take_turn(id, now, first, witness),
            false => self.circuit.admit(id, now, alone, None),
        };
        match decided {
            Ok(kind) => {
                self.since.push((id, now));
                Decision::Passes(kind)
            }
            Err(_) if self.policy.observe => Decision::Observed,
            Err(wait) => Decision::Refused(wait),
        }
    }

    /// Call `id` has its first content.
    pub(crate) fn content(&mut self, id: u64, now: Duration) {
        if let Some((_, since)) = self.since.iter().find(|(other, _)| *other == id) {
            self.circuit.content(id, now, now - *since);
        }
    }

    /// Call `id` has ended; its first content came at `content`.
    pub(crate) fn end(
        &mut self,
        id: u64,
        now: Duration,
        how: &EndState,
        content: Option<Duration>,
    ) {
        let Some(at) = self.since.iter().position(|(other, _)| *other == id) else { return };
        let (_, since) = self.since.remove(at);
        let (verdict, content) = match how {
            // The first content of an empty answer is its end.
            EndState::Complete => (CircuitVerdict::Success, content.or(Some(now))),
            EndState::Dropped => (CircuitVerdict::Nothing, content),
            EndState::Failed(facts) => (self.verdict(facts), content),
        };
        self.circuit.end(id, now, verdict, content.map(|at| at - since));
    }

    fn verdict(&self, facts: &Facts) -> CircuitVerdict {
        let Some(weight) = self.weigh(facts) else { return CircuitVerdict::Nothing };
        let own = self.policy.table.rule(facts.reason).cooldown.unwrap_or(self.policy.cooldown);
        let hint = facts.hint.filter(|hint| !hint.is_zero());
        CircuitVerdict::Failure(Blame {
            weight,
            reason: facts.reason,
            cooldown: hint.map_or(own, |hint| hint.min(self.policy.max_permanent)),
            hinted: hint.is_some(),
            permanent: self.permanent(facts),
        })
    }

    /// The table of the documentation; `None` does not count.
    fn weigh(&self, facts: &Facts) -> Option<Weight> {
        let ours = facts.reason.is_refusal() || facts.fault != FaultSide::Provider;
        let request = matches!(facts.scope, Scope::Request | Scope::Task | Scope::Local);
        let patience = matches!(facts.limit, Some(TimeLimit::Makespan | TimeLimit::Pipeline));
        if ours || request || patience {
            return None;
        }
        let throttled = matches!(facts.reason, Reason::RateLimit | Reason::Overloaded);
        let narrow =
            matches!(facts.scope, Scope::Model | Scope::Credential | Scope::ModelCredential);
        Some(if self.takes_turns {
            // Failover knows better what a refused key means.
            // Who refuses everybody is as dead as who fails.
            Weight::Hard
        } else if self.permanent(facts) {
            Weight::Proof
        } else if throttled {
            Weight::Soft
        } else if narrow && facts.retry == Retry::No {
            Weight::Proof
        } else {
            Weight::Hard
        })
    }

    fn permanent(&self, facts: &Facts) -> bool {
        facts.permanent || self.policy.table.rule(facts.reason).permanent
    }

    /// An operator resets it.
    pub(crate) fn reset(&mut self) {
        self.circuit.reset();
    }

    /// The breaker reported a transition; an error if the model did not expect it.
    pub(crate) fn changed(
        &mut self,
        seen: &BreakerTransition<Option<Target>>,
        began: Instant,
    ) -> Result<(), String> {
        let seen = seen.transition;
        let seen = Change {
            from: seen.from,
            to: seen.to,
            cause: seen.cause,
            reason: seen.reason,
            until: seen.until.map(|until| until.saturating_duration_since(began)),
        };
        match self.circuit.take_change() {
            Some(due) if due == seen => Ok(()),
            due => Err(format!("{seen:?}, but {due:?} was due: {self:?}")),
        }
    }

    /// A transition that the breaker never reported.
    pub(crate) fn overdue(&mut self) -> Option<String> {
        let due = self.circuit.take_change()?;
        Some(format!("it should have changed: {due:?}"))
    }

    /// How `seen` differs from the model, if it does.
    pub(crate) fn differs(
        &mut self,
        seen: &BreakerSnapshot<Option<Target>>,
        now: Duration,
        began: Instant,
    ) -> Option<String> {
        let model = &self.circuit;
        let under_way = |kind| model.under_way(kind, now);
        let expected = (
            model.state(),
            model.rest().map(|(until, _)| until),
            model.row(),
            model.failed_probes(),
            model.window(now),
            (under_way(PermitKind::Probe), under_way(PermitKind::Lone)),
        );
        let seen = &seen.circuit;
        let found = (
            seen.state,
            seen.until.map(|until| until.saturating_duration_since(began)),
            seen.consecutive,
            seen.failed_probes,
            (seen.calls, seen.failures, seen.slow),
            (seen.probes, seen.lone),
        );
        (expected != found).then(|| format!("expected {expected:?}, and it is {found:?}"))
    }
}
