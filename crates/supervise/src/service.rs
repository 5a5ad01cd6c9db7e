//! The service around the inner one.

use std::{
    fmt, mem,
    task::{Context, Poll},
};

use steadfast_core::{
    Deadline, Failover, Failure, FaultSide, IntoFailure, Reason, Retry, Scope, inner_service,
    time::later,
};
use tokio::time::Instant;
use tower_service::Service;

use crate::{
    AgentRun, RunHandle, RunRegistry, WatchdogPolicy,
    future::{Limits, ResponseFuture},
};

/// Gives up runs of the inner service that take too long; see [`WatchdogLayer`](crate::WatchdogLayer).
#[derive(Clone)]
#[must_use = "services do nothing unless called"]
pub struct Watchdog<S> {
    inner: S,
    policy: WatchdogPolicy,
    registry: RunRegistry,
}

inner_service!(Watchdog<S>);

impl<S> Watchdog<S> {
    pub(crate) const fn new(inner: S, policy: WatchdogPolicy, registry: RunRegistry) -> Self {
        Self { inner, policy, registry }
    }

    /// The handle to the state; see [`WatchdogLayer::registry`](crate::WatchdogLayer::registry).
    pub const fn registry(&self) -> &RunRegistry {
        &self.registry
    }
}

impl<S, T> Service<AgentRun<T>> for Watchdog<S>
where
    S: Service<AgentRun<T>, Error: IntoFailure> + Clone,
{
    type Response = S::Response;
    type Error = Failure;
    type Future = ResponseFuture<S, T>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Failure>> {
        self.inner.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, mut run: AgentRun<T>) -> Self::Future {
        let now = Instant::now();
        let limits = match limits(&self.policy, &run, now) {
            Ok(limits) => limits,
            Err(failure) => return ResponseFuture::refused(failure),
        };
        let (guard, waits) = match self.registry.start(&run, now) {
            Ok(started) => started,
            Err(failure) => return ResponseFuture::refused(failure),
        };
        guard.handle().start(now, limits.budget, limits.hard);
        let deadline = Deadline::of_limit(limits.hard, self.policy.max_run_timeout);
        let context = mem::take(&mut run.context);
        let log = context.log.clone();
        run.context = context.with_deadline(deadline);
        match waits {
            None => ResponseFuture::started(self.inner.call(run), guard, limits, log),
            Some(written) => {
                // The service that was polled ready waits with the run; its clone has to be polled ready again.
                let clone = self.inner.clone();
                let ready = mem::replace(&mut self.inner, clone);
                ResponseFuture::registering(ready, run, written, guard, limits, log)
            }
        }
    }
}

/// The limits of a run, which never reach beyond those of its caller and its parent.
fn limits<T>(policy: &WatchdogPolicy, run: &AgentRun<T>, now: Instant) -> Result<Limits, Failure> {
    if run.parent().is_some_and(RunHandle::is_ended) {
        let failure = Failure::refused_fixed(Reason::Cancelled, "the run's parent has ended");
        return Err(failure);
    }
    let own = later(now, policy.max_run_timeout);
    let parent = run.parent().and_then(RunHandle::deadline);
    let others = [run.context.deadline, parent].into_iter().flatten().map(Deadline::instant);
    let hard = others.fold(own, Instant::min);
    if hard <= now {
        let message = "the deadline of the run's caller has passed";
        let failure = Failure::refused_fixed(Reason::Timeout, message)
            .with_retry(Retry::No)
            .with_failover(Failover::Never)
            .with_scope(Scope::Request)
            .with_fault(FaultSide::Local);
        return Err(failure);
    }
    Ok(Limits { budget: policy.limit(run.max_steps()), hard, max_run: policy.max_run_timeout })
}

impl<S: fmt::Debug> fmt::Debug for Watchdog<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watchdog")
            .field("inner", &self.inner)
            .field("policy", &self.policy)
            .finish_non_exhaustive()
    }
}
