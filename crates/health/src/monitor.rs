//! One provider's health: a state machine over the outcomes of calls.

use std::{fmt, time::Duration};

use steadfast_core::{
    Failure, FaultSide, Outcome, Reason, Scope, TimeLimit, circuit::SlidingWindow,
};
use tokio::time::Instant;

use crate::{AgentKey, HealthPolicy, agents::Agents};

/// One provider's health. Pure: it takes the time and what happened, and returns what that changed.
///
/// A call is counted when its first content comes, as a success, and when it ends otherwise. An answer that
/// breaks after its first content is a failure too. What is no fault of the provider is not counted. Calls that
/// began before the provider was degraded or recovered decide nothing any more, however they end.
///
/// ```
/// use steadfast_core::{Failure, Outcome, Reason};
/// use steadfast_health::{AgentKey, HealthMonitor, HealthPolicy, HealthStatus};
/// use tokio::time::Instant;
///
/// let now = Instant::now();
/// let mut monitor = HealthMonitor::new(HealthPolicy::default(), now);
/// let failure = Failure::new(Reason::ServerError, "the model crashed");
/// for agent in ["planner", "coder"] {
///     let call = monitor.began(AgentKey::named(agent));
///     monitor.ended(now, &call, Outcome::Failure(&failure), false);
/// }
/// assert_eq!(monitor.status(), HealthStatus::Degraded);
/// ```
#[derive(Clone, Debug)]
pub struct HealthMonitor {
    policy: HealthPolicy,
    status: HealthStatus,
    forced: bool,
    since: Instant,
    /// Calls that have begun.
    calls: u64,
    /// Calls that began up to this one decide nothing any more.
    epoch: u64,
    /// Calls since then that have neither content nor an end.
    under_way: u64,
    window: SlidingWindow,
    agents: Agents,
    /// Successes since the last failure, while it is degraded.
    successes: u32,
    /// How often it has been degraded.
    degradations: u64,
    last_failure: Option<Reason>,
}

/// How a provider is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum HealthStatus {
    /// Well, as far as is known.
    #[default]
    Healthy,
    /// Its failures are not those of one agent or of a moment.
    Degraded,
}

impl HealthStatus {
    /// The name used in logs and JSON.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Healthy => "healthy",
            Self::Degraded => "degraded",
        }
    }
}

impl fmt::Display for HealthStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// A call under way: its position in the order in which calls began, and who makes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "its end has to be reported"]
pub struct HealthCall {
    pub(crate) order: u64,
    pub(crate) agent: AgentKey,
}

/// A provider was degraded, or recovered.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct HealthTransition {
    /// What it is now.
    pub to: HealthStatus,
    /// Why.
    pub cause: HealthCause,
    /// When.
    pub at: Instant,
    /// How long it was what it was before.
    pub after: Duration,
    /// Agents whose calls have failed within the window.
    pub agents: u32,
    /// Failures in a row of the agent whose failure decided.
    pub in_a_row: u32,
    /// Calls in the window.
    pub calls: u64,
    /// Those of them that failed.
    pub failures: u64,
    /// Why the last of them failed.
    pub reason: Option<Reason>,
}

/// Why a provider's status changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum HealthCause {
    /// Calls of several agents have failed.
    Agents,
    /// Calls of one agent have failed in a row.
    Consecutive,
    /// Calls have succeeded.
    Successes,
    /// An operator wanted it so.
    Manual,
    /// Another process has found it so.
    Shared,
}

impl HealthCause {
    /// The name used in logs.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Agents => "agents",
            Self::Consecutive => "consecutive",
            Self::Successes => "successes",
            Self::Manual => "manual",
            Self::Shared => "shared",
        }
    }
}

/// One provider as it is now.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct ProviderSnapshot {
    /// Its name; empty for calls without a target.
    pub provider: Box<str>,
    /// How it is.
    pub status: HealthStatus,
    /// An operator has set the status, and outcomes do not change it.
    pub forced: bool,
    /// Since when.
    pub since: Instant,
    /// How often it has been degraded: a watcher that was slow can tell apart an outage that went on and one that
    /// came back.
    pub degradations: u64,
    /// Calls in the window that had content or failed; since it was degraded, when it is.
    pub calls: u64,
    /// Failures in the window. Of an answer that broke after its first content both are counted.
    pub failures: u64,
    /// Calls under way without content.
    pub under_way: u64,
    /// Agents whose calls have failed within the window.
    pub failing_agents: u32,
    /// Successes since the last failure, while it is degraded.
    pub successes: u32,
    /// Why the last failure failed.
    pub last_failure: Option<Reason>,
}

impl HealthMonitor {
    /// A healthy provider of which nothing is known.
    pub fn new(policy: HealthPolicy, now: Instant) -> Self {
        Self {
            status: HealthStatus::Healthy,
            forced: false,
            since: now,
            calls: 0,
            epoch: 0,
            under_way: 0,
            window: SlidingWindow::new(policy.window, now),
            agents: Agents::new(),
            successes: 0,
            degradations: 0,
            last_failure: None,
            policy,
        }
    }

    /// Goes by `policy` from now on. What was counted is kept, except in a window of another length.
    pub fn set_policy(&mut self, policy: HealthPolicy, now: Instant) {
        if policy.window != self.policy.window {
            self.window = SlidingWindow::new(policy.window, now);
            self.agents.clear();
        }
        self.policy = policy;
    }

    /// The policy in force.
    pub const fn policy(&self) -> &HealthPolicy {
        &self.policy
    }

    /// How the provider is.
    pub const fn status(&self) -> HealthStatus {
        self.status
    }

    /// Whether an operator has set the status.
    pub const fn is_forced(&self) -> bool {
        self.forced
    }

    /// A call of `agent` begins.
    pub fn began(&mut self, agent: AgentKey) -> HealthCall {
        self.calls += 1;
        self.under_way += 1;
        HealthCall { order: self.calls, agent }
    }

    /// The first content of a call has come. To be reported at most once a call, and not after its end.
    pub fn reached(&mut self, now: Instant, call: &HealthCall) -> Option<HealthTransition> {
        if !self.is_current(call) {
            return None;
        }
        self.under_way = self.under_way.saturating_sub(1);
        self.window.record(now, false, false);
        self.agents.succeed(call.agent, call.order, now, self.policy.window);
        if self.status == HealthStatus::Healthy {
            return None;
        }
        self.successes = self.successes.saturating_add(1);
        let counts = self.window.counts(now);
        let recovers = self.successes >= self.policy.recover_after
            && share(counts.failures, counts.calls) <= self.policy.recover_share;
        (recovers && !self.forced).then(|| {
            let transition = self.transition(HealthStatus::Healthy, HealthCause::Successes, now, 0);
            self.enter(HealthStatus::Healthy, now);
            transition
        })
    }

    /// A call is over; `reached` when its first content was reported before.
    pub fn ended(
        &mut self,
        now: Instant,
        call: &HealthCall,
        outcome: Outcome<'_>,
        reached: bool,
    ) -> Option<HealthTransition> {
        match outcome {
            _ if !self.is_current(call) => None,
            Outcome::Success if reached => None,
            Outcome::Success => self.reached(now, call),
            Outcome::Failure(failure) if self.counts(failure) => {
                self.under_way = self.under_way.saturating_sub(u64::from(!reached));
                self.fail(now, call, failure.reason())
            }
            _ => {
                self.under_way = self.under_way.saturating_sub(u64::from(!reached));
                None
            }
        }
    }

    /// Sets the status until it is [reset](Self::reset): outcomes do not change it meanwhile.
    pub fn force(&mut self, status: HealthStatus, now: Instant) -> Option<HealthTransition> {
        self.forced = true;
        (self.status != status).then(|| {
            let transition = self.transition(status, HealthCause::Manual, now, 0);
            self.enter(status, now);
            transition
        })
    }

    /// Another process has found that the provider is so, the last time because of `reason`. A status that an operator
    /// has set stays.
    pub fn hear(
        &mut self,
        status: HealthStatus,
        reason: Option<Reason>,
        now: Instant,
    ) -> Option<HealthTransition> {
        (self.status != status && !self.forced).then(|| {
            self.last_failure = reason.or(self.last_failure);
            let transition = self.transition(status, HealthCause::Shared, now, 0);
            self.enter(status, now);
            transition
        })
    }

    /// Since when it is as it is.
    pub const fn since(&self) -> Instant {
        self.since
    }

    /// Healthy, with nothing counted. Calls under way decide nothing.
    pub fn reset(&mut self, now: Instant) -> Option<HealthTransition> {
        self.forced = false;
        let transition = (self.status != HealthStatus::Healthy)
            .then(|| self.transition(HealthStatus::Healthy, HealthCause::Manual, now, 0));
        self.enter(HealthStatus::Healthy, now);
        self.window.clear();
        self.last_failure = None;
        transition
    }

    /// Its state and counts, under the name `provider`.
    pub fn snapshot(&mut self, provider: &str, now: Instant) -> ProviderSnapshot {
        let counts = self.window.counts(now);
        ProviderSnapshot {
            provider: provider.into(),
            status: self.status,
            forced: self.forced,
            since: self.since,
            degradations: self.degradations,
            calls: counts.calls,
            failures: counts.failures,
            under_way: self.under_way,
            failing_agents: self.agents.failing(now, self.policy.window),
            successes: self.successes,
            last_failure: self.last_failure,
        }
    }

    fn fail(
        &mut self,
        now: Instant,
        call: &HealthCall,
        reason: Reason,
    ) -> Option<HealthTransition> {
        let HealthPolicy { window, agents, failures, min_share, .. } = self.policy;
        self.window.record(now, true, false);
        self.successes = 0;
        self.last_failure = Some(reason);
        let in_a_row = self.agents.fail(call.agent, call.order, now, (window, failures));
        if self.status == HealthStatus::Degraded || self.forced {
            return None;
        }
        let cause = if self.agents.failing(now, window) >= agents {
            HealthCause::Agents
        } else if in_a_row >= failures {
            HealthCause::Consecutive
        } else {
            return None;
        };
        // Failures are known before the successes of their time, so calls under way are taken as good.
        let counts = self.window.counts(now);
        if share(counts.failures, counts.calls + self.under_way) < min_share {
            return None;
        }
        let transition = self.transition(HealthStatus::Degraded, cause, now, in_a_row);
        self.enter(HealthStatus::Degraded, now);
        Some(transition)
    }

    /// Successes since the last failure, while it is degraded.
    pub(crate) const fn successes(&self) -> u32 {
        self.successes
    }

    /// Whether a failure counts against the provider: not the caller's mistakes, the model's, refusals of our own,
    /// nor limits on what an answer may take that comes.
    fn counts(&self, failure: &Failure) -> bool {
        failure.fault() == FaultSide::Provider
            && failure.time_limit().is_none_or(TimeLimit::blames_provider)
            && (self.policy.any_scope || failure.scope() == Scope::Provider)
    }

    /// Whether the end of that call may decide anything.
    fn is_current(&self, call: &HealthCall) -> bool {
        call.order > self.epoch
    }

    fn transition(
        &mut self,
        to: HealthStatus,
        cause: HealthCause,
        at: Instant,
        in_a_row: u32,
    ) -> HealthTransition {
        let counts = self.window.counts(at);
        HealthTransition {
            to,
            cause,
            at,
            after: at.saturating_duration_since(self.since),
            agents: self.agents.failing(at, self.policy.window),
            in_a_row,
            calls: counts.calls,
            failures: counts.failures,
            reason: self.last_failure,
        }
    }

    /// Calls under way decide nothing from now on. After a recovery the window is kept: what is known to be
    /// good is known.
    fn enter(&mut self, status: HealthStatus, now: Instant) {
        (self.status, self.since) = (status, now);
        (self.epoch, self.under_way, self.successes) = (self.calls, 0, 0);
        self.agents.clear();
        if status == HealthStatus::Degraded {
            self.degradations += 1;
            self.window.clear();
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "a share need not be exact")]
fn share(failures: u64, calls: u64) -> f64 {
    // A window may hold the end of a call whose content has left it.
    if calls == 0 { 0.0 } else { (failures as f64 / calls as f64).min(1.0) }
}
