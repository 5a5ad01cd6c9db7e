//! The sessions of one layer, what is reported of them, and the handle.

use std::{fmt, hash::BuildHasher, sync::Arc};

use foldhash::quality::RandomState;
use parking_lot::Mutex;
use steadfast_chat::ToolInvocation;
use steadfast_core::{
    CallContext, Keep, Keyed, RecoveryLog, Step,
    circuit::{CircuitSnapshot, CircuitState},
    time::millis,
};
use tokio::time::Instant;

use super::{
    ToolBreakerPolicy,
    circuits::{Blocked, CallEnd, CallPermits, Change, Circuits},
    signature::signature,
};
use crate::called::head;

/// What the services of one layer share.
#[derive(Debug)]
pub(super) struct Sessions {
    pub(super) policy: ToolBreakerPolicy,
    hasher: RandomState,
    keyed: Arc<Keyed<u64, Session>>,
}

/// A task or session.
#[derive(Debug)]
pub(super) struct Session {
    owner: u64,
    tenant: Option<Box<str>>,
    name: Option<Box<str>>,
    circuits: Mutex<Circuits>,
}

/// How much of a name is kept for display, in bytes, since callers choose it.
const LONGEST: usize = 256;

impl Keep for Session {
    fn keep(&self, now: Instant) -> bool {
        self.circuits.lock().is_worth_keeping(now)
    }

    /// A tenant that names many sessions does not unblock another's tools.
    fn owner(&self) -> u64 {
        self.owner
    }
}

/// A call that is under way. Dropped, it counts as cancelled, or as panicked while it is polled.
#[derive(Debug)]
pub(super) struct Pending {
    session: Arc<Session>,
    permits: CallPermits,
    log: RecoveryLog,
    /// It is being polled: if it is dropped now, or after, it has panicked.
    pub(super) polled: bool,
    over: bool,
}

impl Sessions {
    pub(super) fn new(policy: ToolBreakerPolicy) -> Self {
        let keyed = Arc::new(Keyed::new(policy.sessions));
        Self { policy, hasher: RandomState::default(), keyed }
    }

    /// This policy, with the sessions of `other`. Sessions that are known keep the policy they began with.
    pub(super) fn sharing(&self, other: &Self) -> Self {
        other.keyed.set_policy(self.policy.sessions);
        Self { policy: self.policy, hasher: other.hasher.clone(), keyed: other.keyed.clone() }
    }

    fn session(&self, context: &CallContext, now: Instant) -> Arc<Session> {
        let (tenant, name) = (context.tenant(), context.task().or_else(|| context.session()));
        self.keyed.get_or_insert_with(&self.hasher.hash_one((tenant, name)), now, || Session {
            owner: self.hasher.hash_one(tenant),
            tenant: tenant.map(|tenant| head(tenant, LONGEST).into()),
            name: name.map(|name| head(name, LONGEST).into()),
            circuits: Mutex::new(Circuits::new(self.policy)),
        })
    }

    /// Whether the call may be made.
    pub(super) fn admit<R: ToolInvocation>(&self, request: &R) -> Result<Pending, Blocked> {
        let now = Instant::now();
        let (context, call) = (request.context(), request.call());
        let session = self.session(context, now);
        let signature = signature(&self.hasher, call);
        let mut changes = Vec::new();
        let admitted = session.circuits.lock().admit(now, &call.name, signature, &mut changes);
        session.report(&changes, &context.log);
        match admitted {
            Ok(permits) => {
                if permits.is_probe() {
                    session.report_probe(&call.name, &context.log);
                }
                let log = context.log.clone();
                Ok(Pending { session, permits, log, polled: false, over: false })
            }
            Err(blocked) => {
                session.report_blocked(&call.name, &blocked, &context.log);
                Err(blocked)
            }
        }
    }
}

impl Pending {
    pub(super) fn end(mut self, end: CallEnd<'_>) {
        self.ended(end);
    }

    fn ended(&mut self, end: CallEnd<'_>) {
        if std::mem::replace(&mut self.over, true) {
            return;
        }
        let mut changes = Vec::new();
        self.session.circuits.lock().end(Instant::now(), self.permits, end, &mut changes);
        self.session.report(&changes, &self.log);
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        let kind = steadfast_chat::ToolFailureKind::Panicked;
        self.ended(match self.polled {
            true => CallEnd::Failed { kind, tag: None, text: "it panicked" },
            false => CallEnd::Cancelled,
        });
    }
}

impl Session {
    fn report(&self, changes: &[Change], log: &RecoveryLog) {
        for change in changes {
            let transition = &change.transition;
            let tool = &*change.tool;
            let covers = covers(change.whole_tool);
            let (tenant, session) = (self.tenant.as_deref(), self.name.as_deref());
            match transition.to {
                CircuitState::Open => {
                    let rest = transition.until.map(|until| until - transition.at);
                    tracing::event!(
                        name: "steadfast::tool::opened",
                        target: "steadfast::tool",
                        tracing::Level::WARN,
                        tenant,
                        session,
                        tool,
                        covers,
                        cause = transition.cause.as_str(),
                        failures = change.failures,
                        tag = change.tag.as_deref(),
                        rest_ms = rest.map(millis),
                        "a tool that keeps failing is blocked"
                    );
                    log.record(|| {
                        let step = Step::new("tool", "opened").with_detail(tool);
                        step.with_wait(rest.unwrap_or_default())
                    });
                }
                CircuitState::Closed => {
                    tracing::event!(
                        name: "steadfast::tool::closed",
                        target: "steadfast::tool",
                        tracing::Level::INFO,
                        tenant,
                        session,
                        tool,
                        covers,
                        "a tool that was blocked works again"
                    );
                    log.record(|| Step::new("tool", "closed").with_detail(tool));
                }
                // The probe that follows is reported.
                _ => {}
            }
        }
    }

    fn report_probe(&self, tool: &str, log: &RecoveryLog) {
        tracing::event!(
            name: "steadfast::tool::probe",
            target: "steadfast::tool",
            tracing::Level::INFO,
            tenant = self.tenant.as_deref(),
            session = self.name.as_deref(),
            tool,
            "one call finds out whether a blocked tool works again"
        );
        log.record(|| Step::new("tool", "probe").with_detail(tool));
    }

    fn report_blocked(&self, tool: &str, blocked: &Blocked, log: &RecoveryLog) {
        tracing::event!(
            name: "steadfast::tool::blocked",
            target: "steadfast::tool",
            tracing::Level::INFO,
            tenant = self.tenant.as_deref(),
            session = self.name.as_deref(),
            tool,
            covers = covers(blocked.whole_tool),
            failures = blocked.failures,
            wait_ms = millis(blocked.wait),
            "call of a tool blocked by its breaker"
        );
        log.record(|| Step::new("tool", "blocked").with_wait(blocked.wait).with_detail(tool));
    }
}

const fn covers(whole_tool: bool) -> &'static str {
    if whole_tool { "tool" } else { "call" }
}

/// Reads and resets the state of a [`ToolBreakerLayer`](crate::ToolBreakerLayer). Cheap to clone; every clone
/// and every service of the layer share one state.
#[derive(Clone)]
pub struct ToolBreakerHandle(pub(super) Arc<Sessions>);

/// A tool that fails, or one call of it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ToolCircuitSnapshot {
    /// The tenant, when that is known.
    pub tenant: Option<String>,
    /// The task or session, when that is known.
    pub session: Option<String>,
    /// The tool.
    pub tool: Box<str>,
    /// The whole tool, and not one call with its arguments.
    pub whole_tool: bool,
    /// Its state and counts.
    pub circuit: CircuitSnapshot,
}

impl ToolBreakerHandle {
    /// What fails at the moment, blocked or not, in no order.
    pub fn snapshot(&self) -> Vec<ToolCircuitSnapshot> {
        let now = Instant::now();
        let mut all = Vec::new();
        for (_, session) in self.0.keyed.entries() {
            let shown = |name: &Option<Box<str>>| name.as_deref().map(str::to_owned);
            let entries = session.circuits.lock().snapshot(now);
            all.extend(entries.into_iter().map(|entry| ToolCircuitSnapshot {
                tenant: shown(&session.tenant),
                session: shown(&session.name),
                tool: entry.tool,
                whole_tool: entry.whole_tool,
                circuit: entry.circuit,
            }));
        }
        all
    }

    /// How many calls were blocked, in the sessions that are remembered.
    pub fn blocked(&self) -> u64 {
        let sessions = self.0.keyed.entries();
        sessions.iter().map(|(_, session)| session.circuits.lock().blocked).sum()
    }

    /// How many calls are under way.
    pub fn in_flight(&self) -> u64 {
        let sessions = self.0.keyed.entries();
        sessions.iter().map(|(_, session)| session.circuits.lock().in_flight()).sum()
    }

    /// Forgets the failures of a tool in every session, so that it may be called at once; whether there were
    /// any.
    pub fn reset(&self, tool: &str) -> bool {
        self.clear(Some(tool))
    }

    /// Forgets all failures.
    pub fn reset_all(&self) -> bool {
        self.clear(None)
    }

    fn clear(&self, tool: Option<&str>) -> bool {
        let sessions = self.0.keyed.entries();
        sessions.iter().map(|(_, session)| session.circuits.lock().reset(tool)).sum::<usize>() > 0
    }
}

impl fmt::Debug for ToolBreakerHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ToolBreakerHandle").field("policy", &self.0.policy).finish_non_exhaustive()
    }
}
