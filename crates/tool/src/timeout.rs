//! Time limits and aborts.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll, ready},
    time::Duration,
};

use pin_project_lite::pin_project;
use steadfast_chat::{ToolFailureKind, ToolInvocation, ToolResult};
use steadfast_core::{
    Deadline, Failure, IntoFailure, Reason, RecoveryLog, Step, inner_service,
    time::{later, millis},
};
use tokio::{
    task::coop::{Unconstrained, unconstrained},
    time::{Instant, Sleep},
};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};
use tower_layer::Layer;
use tower_service::Service;

use crate::{PolicyError, called::Called};

/// How long a tool may take, for a [`ToolTimeoutLayer`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
#[cfg_attr(feature = "serde", serde(default, deny_unknown_fields))]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub struct ToolTimeoutPolicy {
    /// The longest time of one call, unless the deadline of its context is earlier. 120 s: builds and tests
    /// of usual size are done by then, and a user still waits.
    #[cfg_attr(
        feature = "serde",
        serde(rename = "timeout_ms", with = "steadfast_core::config::Millis")
    )]
    pub timeout: Duration,
}

impl Default for ToolTimeoutPolicy {
    fn default() -> Self {
        Self { timeout: Duration::from_secs(120) }
    }
}

impl ToolTimeoutPolicy {
    /// Checks the policy.
    ///
    /// # Errors
    ///
    /// When the limit is zero.
    pub fn validate(&self) -> Result<(), PolicyError> {
        if self.timeout.is_zero() {
            return Err(PolicyError::Zero("timeout", ""));
        }
        Ok(())
    }
}

/// Ends calls of tools that take too long, or that their caller aborts.
///
/// The future of such a call is dropped at once, and the model gets a failed result with a fixed text. The
/// limit is the deadline of the request's context too, so that a tool which can end by itself ends in time.
///
/// A call whose deadline is over when it comes, or which has been aborted by then, is not made. That says nothing
/// of the tool: its result is of the kind [`Refused`](ToolFailureKind::Refused) or
/// [`Aborted`](ToolFailureKind::Aborted).
///
/// For the user of an agent, [`ToolFailure::user_text`](steadfast_chat::ToolFailure::user_text) of a result has
/// a fixed text.
///
/// Every service made by one layer value, and by its clones, shares one set of counters.
#[derive(Clone, Debug, Default)]
#[must_use = "a layer does nothing until it is put around a service"]
pub struct ToolTimeoutLayer {
    shared: Arc<TimeoutCounts>,
}

#[derive(Debug, Default)]
struct TimeoutCounts {
    policy: ToolTimeoutPolicy,
    timed_out: AtomicU64,
    aborted: AtomicU64,
}

impl ToolTimeoutLayer {
    /// Limits calls by `policy`.
    ///
    /// # Errors
    ///
    /// When the policy is invalid; the error says what would be valid.
    pub fn new(policy: ToolTimeoutPolicy) -> Result<Self, PolicyError> {
        policy.validate()?;
        Ok(Self { shared: Arc::new(TimeoutCounts { policy, ..TimeoutCounts::default() }) })
    }

    /// Limits calls to `timeout`.
    ///
    /// # Errors
    ///
    /// When it is zero.
    pub fn after(timeout: Duration) -> Result<Self, PolicyError> {
        Self::new(ToolTimeoutPolicy { timeout })
    }

    /// A handle that reads the counters and resets them.
    pub fn handle(&self) -> ToolTimeoutHandle {
        ToolTimeoutHandle(self.shared.clone())
    }
}

impl<S> Layer<S> for ToolTimeoutLayer {
    type Service = ToolTimeout<S>;

    fn layer(&self, inner: S) -> ToolTimeout<S> {
        ToolTimeout { inner, shared: self.shared.clone() }
    }
}

/// Reads and resets the counters of a [`ToolTimeoutLayer`].
#[derive(Clone, Debug)]
pub struct ToolTimeoutHandle(Arc<TimeoutCounts>);

/// What a [`ToolTimeoutLayer`] has done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ToolTimeoutSnapshot {
    /// Calls that took too long.
    pub timed_out: u64,
    /// Calls that were aborted.
    pub aborted: u64,
}

impl ToolTimeoutHandle {
    /// What the layer has done so far.
    pub fn snapshot(&self) -> ToolTimeoutSnapshot {
        ToolTimeoutSnapshot {
            timed_out: self.0.timed_out.load(Ordering::Relaxed),
            aborted: self.0.aborted.load(Ordering::Relaxed),
        }
    }

    /// Sets the counters to zero.
    pub fn reset(&self) {
        self.0.timed_out.store(0, Ordering::Relaxed);
        self.0.aborted.store(0, Ordering::Relaxed);
    }
}

/// Limits the calls of the inner service; see [`ToolTimeoutLayer`].
#[derive(Clone, Debug)]
#[must_use = "services do nothing unless called"]
pub struct ToolTimeout<S> {
    inner: S,
    shared: Arc<TimeoutCounts>,
}

inner_service!(ToolTimeout<S>);

impl<S, R> Service<R> for ToolTimeout<S>
where
    S: Service<R, Response = ToolResult>,
    S::Error: IntoFailure,
    R: ToolInvocation,
{
    type Response = ToolResult;
    type Error = Failure;
    type Future = ToolTimeoutFuture<S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Failure>> {
        self.inner.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, mut request: R) -> Self::Future {
        let began = Instant::now();
        let timeout = self.shared.policy.timeout;
        let own = Deadline::of_limit(later(began, timeout), timeout);
        let limit = match request.context().deadline {
            Some(earlier) if earlier <= own => earlier,
            _ => own,
        };
        let running = Running {
            called: Called::of(request.call()),
            shared: self.shared.clone(),
            abort: request.abort().clone(),
            log: request.context().log.clone(),
            began,
            until: limit.instant(),
        };
        let is_made = !running.abort.is_cancelled() && began < running.until;
        let inner = is_made.then(|| {
            request.context_mut().deadline = Some(limit);
            self.inner.call(request)
        });
        ToolTimeoutFuture { inner, is_made, timer: None, aborted: None, running: Some(running) }
    }
}

/// A call that has not ended.
#[derive(Debug)]
struct Running {
    called: Called,
    shared: Arc<TimeoutCounts>,
    abort: CancellationToken,
    log: RecoveryLog,
    began: Instant,
    until: Instant,
}

pin_project! {
    /// Waits for the result, the limit or the abort, whichever is first. Dropping it drops the call.
    #[must_use = "futures do nothing unless polled"]
    pub struct ToolTimeoutFuture<F> {
        #[pin]
        inner: Option<F>,
        is_made: bool,
        // Made when the call first has to wait. Both are polled though the tool has used up the task's budget:
        // one that is always busy would never be ended.
        #[pin]
        timer: Option<Unconstrained<Sleep>>,
        #[pin]
        aborted: Option<Unconstrained<WaitForCancellationFutureOwned>>,
        running: Option<Running>,
    }
}

impl<F, E> Future for ToolTimeoutFuture<F>
where
    F: Future<Output = Result<ToolResult, E>>,
    E: Into<Failure>,
{
    type Output = Result<ToolResult, Failure>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        let Some(running) = this.running.as_ref() else {
            let again = "the future of a limited tool call was polled after it was ready";
            return Poll::Ready(Err(Failure::refused_fixed(Reason::Unknown, again)));
        };
        let result = if let Some(inner) = this.inner.as_mut().as_pin_mut() {
            match inner.poll(cx) {
                Poll::Ready(result) => Some(result),
                Poll::Pending => {
                    if this.timer.is_none() {
                        let aborted = running.abort.clone().cancelled_owned();
                        this.timer
                            .set(Some(unconstrained(tokio::time::sleep_until(running.until))));
                        this.aborted.set(Some(unconstrained(aborted)));
                    }
                    let aborted = this.aborted.as_mut().as_pin_mut();
                    if !aborted.is_some_and(|aborted| aborted.poll(cx).is_ready())
                        && let Some(timer) = this.timer.as_mut().as_pin_mut()
                    {
                        ready!(timer.poll(cx));
                    }
                    None
                }
            }
        } else {
            None
        };
        this.inner.set(None);
        this.timer.set(None);
        this.aborted.set(None);
        let running = this.running.take();
        Poll::Ready(match (result, running) {
            (Some(result), _) => result.map_err(Into::into),
            (None, running) => running
                .map(|running| if *this.is_made { running.ended() } else { running.not_made() })
                .ok_or_else(|| Failure::refused_fixed(Reason::Unknown, "a tool call ended twice")),
        })
    }
}

impl Running {
    /// It was ended from outside: its result.
    fn ended(self) -> ToolResult {
        let elapsed = self.began.elapsed();
        let aborted = self.abort.is_cancelled();
        let (count, kind) = match aborted {
            true => (&self.shared.aborted, ToolFailureKind::Aborted),
            false => (&self.shared.timed_out, ToolFailureKind::TimedOut),
        };
        count.fetch_add(1, Ordering::Relaxed);
        report(aborted, &self.called.tool, elapsed, &self.log);
        let text = match aborted {
            true => ABORTED.to_owned(),
            false => timed_out(elapsed),
        };
        self.called.failed(kind, text)
    }

    /// It came too late to be made: its result.
    fn not_made(self) -> ToolResult {
        let aborted = self.abort.is_cancelled();
        if aborted {
            self.shared.aborted.fetch_add(1, Ordering::Relaxed);
        }
        let (kind, text) = not_made(aborted, &self.called.tool, &self.log);
        self.called.failed(kind, text)
    }
}

/// Reports a call that came too late to be made, because it was aborted or its deadline is over: the kind of its
/// result, and what the model reads.
pub(crate) fn not_made(aborted: bool, tool: &str, log: &RecoveryLog) -> (ToolFailureKind, String) {
    if aborted {
        report(true, tool, Duration::ZERO, log);
        let text = "The call was aborted before it was made: it has had no effect.";
        return (ToolFailureKind::Aborted, text.to_owned());
    }
    tracing::event!(
        name: "steadfast::tool::refused",
        target: "steadfast::tool",
        tracing::Level::INFO,
        tool,
        why = "deadline",
        "tool call not made: there is no time left"
    );
    log.record(|| Step::new("tool", "refused").with_detail(format!("{tool} deadline")));
    let text = format!(
        "`{tool}` was not called, so it has had no effect: the time for the whole task is over."
    );
    (ToolFailureKind::Refused, text)
}

/// Reports a call that was ended, because it was aborted or took too long.
pub(crate) fn report(aborted: bool, tool: &str, elapsed: Duration, log: &RecoveryLog) {
    let elapsed_ms = millis(elapsed);
    if aborted {
        tracing::event!(
            name: "steadfast::tool::aborted",
            target: "steadfast::tool",
            tracing::Level::INFO,
            tool,
            elapsed_ms,
            "tool call aborted by its caller"
        );
    } else {
        tracing::event!(
            name: "steadfast::tool::timed_out",
            target: "steadfast::tool",
            tracing::Level::WARN,
            tool,
            elapsed_ms,
            "tool call took too long"
        );
    }
    let action = if aborted { "aborted" } else { "timed_out" };
    log.record(|| {
        let step = Step::new("tool", action).with_wait(elapsed).with_detail(tool);
        if aborted { step } else { step.with_reason(Reason::Timeout) }
    });
}

/// What the model reads of a call that was aborted.
pub(crate) const ABORTED: &str =
    "The call was aborted before it was done. What it had done by then may have taken effect.";

/// What the model reads of a call that took too long.
pub(crate) fn timed_out(elapsed: Duration) -> String {
    format!(
        "The call was stopped because it was not done after {} s. What it had done by then may have taken \
         effect. Check that before you repeat it, and do less in one call: a smaller input, a narrower \
         pattern, fewer tests at once.",
        elapsed.as_secs()
    )
}

impl<F> fmt::Debug for ToolTimeoutFuture<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ToolTimeoutFuture")
            .field("over", &self.running.is_none())
            .finish_non_exhaustive()
    }
}
