//! The summariser's breaker, of one tenant: what one tenant's conversations do to the summariser is no
//! reason to keep another's from it.

use std::{sync::Arc, time::Duration};

use parking_lot::Mutex;
use steadfast_core::{
    Lease, LeaseEnd, Observer, Outcome, PermitKind, Reason, RecoveryLog,
    circuit::{
        Blame, Circuit, CircuitPolicy, CircuitState, CircuitVerdict, Moment, Transition, Weight,
    },
};
use tokio::time::Instant;

use crate::{SummaryPolicy, event};

/// Stops calling a summariser that keeps failing for a tenant.
#[derive(Debug)]
pub(crate) struct SummariserBreaker {
    /// Empty for calls without a tenant.
    tenant: Box<str>,
    counted: Mutex<Counted>,
}

#[derive(Debug)]
struct Counted {
    rest: Duration,
    circuit: Circuit,
    /// Compactions that have asked.
    calls: u64,
}

/// A failure in a row counts, whoever meets it: all calls are the tenant's own.
fn circuit(policy: SummaryPolicy) -> CircuitPolicy {
    CircuitPolicy {
        consecutive: Some(policy.failures),
        second_witness: false,
        trusted_for: Duration::ZERO,
        window: Duration::from_secs(60),
        min_calls: u32::MAX,
        failure_rate: None,
        slow: None,
        content_is_success: false,
        cooldown: policy.rest,
        first_rest: None,
        growth: 1.0,
        max_cooldown: policy.rest,
        permanent_cooldown: policy.rest,
        max_permanent: policy.rest,
        probe_lead: Duration::ZERO,
        probe_limit: policy.probe,
        probes: 1,
        successes: 1,
        lone: None,
        turns: None,
    }
}

impl SummariserBreaker {
    pub(crate) fn new(tenant: &str, policy: SummaryPolicy) -> Self {
        let circuit = Circuit::new(circuit(policy), Instant::now());
        let counted = Mutex::new(Counted { rest: policy.rest, circuit, calls: 0 });
        Self { tenant: tenant.into(), counted }
    }

    /// Goes by `policy` from now on, and stands as it stood.
    pub(crate) fn set_policy(&self, policy: SummaryPolicy) {
        let mut counted = self.counted.lock();
        counted.rest = policy.rest;
        counted.circuit.set_policy(circuit(policy), Instant::now());
    }

    /// Whether a compaction may call the summariser: a lease for the outcome, and whether it is the probe.
    pub(crate) fn admit(self: &Arc<Self>, now: Instant) -> Option<(Lease, bool)> {
        let permit = {
            let mut counted = self.counted.lock();
            counted.calls += 1;
            let now = Moment { at: now, order: counted.calls };
            counted.circuit.admit(now, false).result.ok()?
        };
        let lease = Lease::new(self.clone(), permit, RecoveryLog::disabled());
        Some((lease, permit.kind == PermitKind::Probe))
    }

    pub(crate) fn state(&self) -> CircuitState {
        self.counted.lock().circuit.snapshot(Instant::now()).state
    }

    /// Whether it has state that must not be evicted.
    pub(crate) fn is_worth_keeping(&self, now: Instant) -> bool {
        self.counted.lock().circuit.is_worth_keeping(now)
    }

    pub(crate) fn reset(&self) {
        self.change(Circuit::reset);
    }

    fn change(&self, change: impl FnOnce(&mut Circuit, Moment) -> Option<Transition>) {
        let mut counted = self.counted.lock();
        let now = Moment { at: Instant::now(), order: counted.calls };
        let transition = change(&mut counted.circuit, now);
        drop(counted);
        if let Some(transition) = transition {
            event::summariser(&self.tenant, transition.to);
        }
    }
}

impl Observer for SummariserBreaker {
    fn ended(&self, end: LeaseEnd<'_>) {
        let verdict = match end.outcome {
            Outcome::Success => CircuitVerdict::Success,
            // Any other outcome: there is no summary.
            Outcome::Failure(_) => CircuitVerdict::Failure(Blame {
                weight: Weight::Hard,
                reason: Reason::Unknown,
                cooldown: self.counted.lock().rest,
                hinted: false,
                permanent: false,
            }),
            _ => CircuitVerdict::Nothing,
        };
        self.change(|circuit, now| circuit.end(now, &end.permit, verdict, end.first_content));
    }
}

#[cfg(test)]
mod tests;
