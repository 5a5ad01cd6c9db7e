//! Errors and panics become results.

use std::{
    any::Any,
    fmt,
    future::Future,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll},
};

use pin_project_lite::pin_project;
use steadfast_chat::{ToolFailure, ToolFailureKind, ToolInvocation, ToolResult};
use steadfast_core::{Failure, IntoFailure, Reason, RecoveryLog, Step, inner_service};
use tower_layer::Layer;
use tower_service::Service;

use crate::called::{Called, head};

/// Makes every error and every panic of a tool a failed result that the model reads, so that the agent's loop
/// goes on.
///
/// Two failures stay errors: [`Reason::Safety`], since a stop of the safety guard is meant to end the loop,
/// and [`Reason::Cancelled`], since nobody is left to read a result. An error of `poll_ready` is no call's and
/// stays one too. A panic is reported by one `ERROR` event; after it the tool's own state may be half
/// changed, as after any panic that is caught.
///
/// Every service made by one layer value, and by its clones, shares one set of counters.
#[derive(Clone, Debug, Default)]
#[must_use = "a layer does nothing until it is put around a service"]
pub struct ToolErrorLayer {
    shared: Arc<ErrorCounts>,
}

#[derive(Debug, Default)]
struct ErrorCounts {
    failed: AtomicU64,
    panicked: AtomicU64,
}

impl ToolErrorLayer {
    /// A layer with counters of its own.
    pub fn new() -> Self {
        Self::default()
    }

    /// What the layer has done so far.
    pub fn snapshot(&self) -> ToolErrorSnapshot {
        ToolErrorSnapshot {
            failed: self.shared.failed.load(Ordering::Relaxed),
            panicked: self.shared.panicked.load(Ordering::Relaxed),
        }
    }
}

/// What a [`ToolErrorLayer`] has done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ToolErrorSnapshot {
    /// Errors that became results.
    pub failed: u64,
    /// Panics that became results.
    pub panicked: u64,
}

impl<S> Layer<S> for ToolErrorLayer {
    type Service = ToolErrors<S>;

    fn layer(&self, inner: S) -> ToolErrors<S> {
        ToolErrors { inner, shared: self.shared.clone() }
    }
}

/// Makes errors of the inner service results; see [`ToolErrorLayer`].
#[derive(Clone, Debug)]
#[must_use = "services do nothing unless called"]
pub struct ToolErrors<S> {
    inner: S,
    shared: Arc<ErrorCounts>,
}

inner_service!(ToolErrors<S>);

impl<S, R> Service<R> for ToolErrors<S>
where
    S: Service<R, Response = ToolResult>,
    S::Error: IntoFailure,
    R: ToolInvocation,
{
    type Response = ToolResult;
    type Error = Failure;
    type Future = ToolErrorFuture<S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Failure>> {
        self.inner.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, request: R) -> Self::Future {
        let watched = Watched {
            called: Called::of(request.call()),
            shared: self.shared.clone(),
            log: request.context().log.clone(),
        };
        match catch_unwind(AssertUnwindSafe(|| self.inner.call(request))) {
            Ok(inner) => {
                ToolErrorFuture { inner: Some(inner), watched: Some(watched), panic: None }
            }
            Err(panic) => ToolErrorFuture {
                inner: None,
                watched: Some(watched),
                panic: Some(panicked_with(&*panic)),
            },
        }
    }
}

/// A call that has not ended.
#[derive(Debug)]
struct Watched {
    called: Called,
    shared: Arc<ErrorCounts>,
    log: RecoveryLog,
}

pin_project! {
    /// Waits for the result. Dropping it drops the call.
    #[must_use = "futures do nothing unless polled"]
    pub struct ToolErrorFuture<F> {
        #[pin]
        inner: Option<F>,
        watched: Option<Watched>,
        // The message of a panic in `call`.
        panic: Option<String>,
    }
}

impl<F, E> Future for ToolErrorFuture<F>
where
    F: Future<Output = Result<ToolResult, E>>,
    E: Into<Failure>,
{
    type Output = Result<ToolResult, Failure>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        let polled = match (this.inner.as_mut().as_pin_mut(), this.panic.take()) {
            (Some(inner), _) => catch_unwind(AssertUnwindSafe(|| inner.poll(cx)))
                .map_err(|panic| panicked_with(&*panic)),
            (None, Some(panic)) => Err(panic),
            (None, None) => {
                let again = "the future of a tool call was polled after it was ready";
                return Poll::Ready(Err(Failure::refused_fixed(Reason::Unknown, again)));
            }
        };
        let result = match polled {
            Ok(Poll::Pending) => return Poll::Pending,
            Ok(Poll::Ready(result)) => Ok(result),
            Err(panic) => Err(panic),
        };
        // What panicked once may panic again when it is dropped; the first panic is what is reported.
        let _ = catch_unwind(AssertUnwindSafe(|| this.inner.set(None)));
        let Some(watched) = this.watched.take() else {
            return Poll::Ready(Err(Failure::refused_fixed(Reason::Unknown, "a call ended twice")));
        };
        Poll::Ready(match result {
            Ok(Ok(result)) => Ok(result),
            Ok(Err(error)) => watched.failed(error.into()),
            Err(panic) => Ok(watched.panicked(&panic)),
        })
    }
}

impl Watched {
    fn failed(self, failure: Failure) -> Result<ToolResult, Failure> {
        let reason = failure.reason();
        if matches!(reason, Reason::Safety | Reason::Cancelled) {
            return Err(failure);
        }
        self.shared.failed.fetch_add(1, Ordering::Relaxed);
        tracing::event!(
            name: "steadfast::tool::failed",
            target: "steadfast::tool",
            tracing::Level::INFO,
            tool = self.called.tool.as_str(),
            reason = reason.as_str(),
            "the error of a tool became a result"
        );
        // An error may quote the call.
        tracing::event!(
            name: "steadfast::tool::error",
            target: "steadfast::tool",
            tracing::Level::DEBUG,
            tool = self.called.tool.as_str(),
            error = failure.message(),
            "the error of a tool"
        );
        self.record(Step::new("tool", "failed"), reason);
        let text = match failure.message() {
            "" => format!("`{}` failed: {reason}.", self.called.tool),
            message => format!("`{}` failed: {message}", self.called.tool),
        };
        Ok(self.called.failed(failure_of(&failure), text))
    }

    fn panicked(self, panic: &str) -> ToolResult {
        self.shared.panicked.fetch_add(1, Ordering::Relaxed);
        let tool = self.called.tool.as_str();
        tracing::event!(
            name: "steadfast::tool::panicked",
            target: "steadfast::tool",
            tracing::Level::ERROR,
            tool,
            error = panic,
            "a tool panicked"
        );
        self.record(Step::new("tool", "panicked"), Reason::Unknown);
        let text = format!(
            "`{tool}` failed with an error of its own (a bug in the tool, not in your call). What it had done by \
             then may have taken effect. Use another tool or another way."
        );
        self.called.failed(ToolFailureKind::Panicked, text)
    }

    fn record(&self, step: Step, reason: Reason) {
        let tool = self.called.tool.as_str();
        self.log.record(|| step.with_reason(reason).with_detail(tool));
    }
}

/// How a tool failed whose service failed.
pub(crate) fn failure_of(failure: &Failure) -> ToolFailure {
    match failure.reason() {
        Reason::Timeout => ToolFailureKind::TimedOut.into(),
        Reason::Format => ToolFailureKind::Arguments.into(),
        // Whatever the arguments, it fails until somebody has changed something.
        reason @ (Reason::Auth | Reason::Billing) => {
            ToolFailure::from(ToolFailureKind::Failed).with_tag(reason.as_str())
        }
        _ => ToolFailureKind::Failed.into(),
    }
}

/// The message of a panic.
fn panicked_with(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    head(text.unwrap_or("(no text)"), 512).to_owned()
}

impl<F> fmt::Debug for ToolErrorFuture<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ToolErrorFuture")
            .field("over", &self.watched.is_none())
            .finish_non_exhaustive()
    }
}
