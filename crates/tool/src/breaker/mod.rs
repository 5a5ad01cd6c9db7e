//! A breaker for each tool, and for each call of it.

mod circuits;
mod policy;
mod signature;
mod state;

use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use pin_project_lite::pin_project;
use steadfast_chat::{Part, ToolFailureKind, ToolInvocation, ToolResult};
use steadfast_core::{Failure, IntoFailure, Reason, inner_service};
use tower_layer::Layer;
use tower_service::Service;

use self::{
    circuits::{Blocked, CallEnd},
    state::{Pending, Sessions},
};
pub use self::{
    policy::ToolBreakerPolicy,
    state::{ToolBreakerHandle, ToolCircuitSnapshot},
};
use crate::{PolicyError, caught::failure_of};

/// Blocks a tool, or one call of it, that keeps failing in one task or session.
///
/// A blocked call is not made: the model gets a failed result that says what failed, how often, and what to do
/// instead. After [`ToolBreakerPolicy::rest`] one call finds out whether it works again.
///
/// What counts as a failure is [`ToolResult::failure_kind`]: a result that is an error, apart from wrong
/// arguments, commands that ran and ended with a status, aborts and refusals, and an error of the service. A
/// call that its caller drops counts neither way.
///
/// Failures are counted for each tenant and task, or session where no task is named. Calls with none of these
/// are counted together.
///
/// Every service made by one layer value, and by its clones, shares one state.
#[derive(Clone, Debug)]
#[must_use = "a layer does nothing until it is put around a service"]
pub struct ToolBreakerLayer {
    shared: Arc<Sessions>,
}

impl ToolBreakerLayer {
    /// Blocks by `policy`.
    ///
    /// # Errors
    ///
    /// When the policy is invalid; the error says what would be valid.
    pub fn new(policy: ToolBreakerPolicy) -> Result<Self, PolicyError> {
        policy.validate()?;
        Ok(Self { shared: Arc::new(Sessions::new(policy)) })
    }

    /// As this layer is set, with the state of the layer that `handle` is of. Sessions that are known keep the
    /// numbers that they began with.
    pub fn sharing(mut self, handle: &ToolBreakerHandle) -> Self {
        self.shared = Arc::new(self.shared.sharing(&handle.0));
        self
    }

    /// The policy in force.
    pub fn policy(&self) -> &ToolBreakerPolicy {
        &self.shared.policy
    }

    /// A handle that shows the state and resets it.
    pub fn handle(&self) -> ToolBreakerHandle {
        ToolBreakerHandle(self.shared.clone())
    }
}

impl Default for ToolBreakerLayer {
    fn default() -> Self {
        Self { shared: Arc::new(Sessions::new(ToolBreakerPolicy::default())) }
    }
}

impl<S> Layer<S> for ToolBreakerLayer {
    type Service = ToolBreaker<S>;

    fn layer(&self, inner: S) -> ToolBreaker<S> {
        ToolBreaker { inner, shared: self.shared.clone() }
    }
}

/// Blocks calls of the inner service; see [`ToolBreakerLayer`].
#[derive(Clone, Debug)]
#[must_use = "services do nothing unless called"]
pub struct ToolBreaker<S> {
    inner: S,
    shared: Arc<Sessions>,
}

inner_service!(ToolBreaker<S>);

impl<S, R> Service<R> for ToolBreaker<S>
where
    S: Service<R, Response = ToolResult>,
    S::Error: IntoFailure,
    R: ToolInvocation,
{
    type Response = ToolResult;
    type Error = Failure;
    type Future = ToolBreakerFuture<S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Failure>> {
        self.inner.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, request: R) -> Self::Future {
        match self.shared.admit(&request) {
            Ok(mut pending) => {
                pending.polled = true;
                let inner = self.inner.call(request);
                pending.polled = false;
                ToolBreakerFuture { inner: Some(inner), pending: Some(pending), blocked: None }
            }
            Err(blocked) => {
                let text = text(&request.call().name, &blocked);
                let result = ToolResult::failed(request.call(), ToolFailureKind::Refused, text);
                ToolBreakerFuture { inner: None, pending: None, blocked: Some(result) }
            }
        }
    }
}

/// What the model reads of a blocked call.
fn text(tool: &str, blocked: &Blocked) -> String {
    let Blocked { whole_tool, failures, tag, wait, last } = blocked;
    let what = match (whole_tool, tag) {
        (true, Some(tag)) => {
            format!("it failed {failures} times in a row, again and again with `{tag}`")
        }
        (true, None) => format!("it failed {failures} times in a row, with whatever arguments"),
        (false, _) => format!("this same call failed {failures} times in a row"),
    };
    let last = match last.trim() {
        "" => String::new(),
        last => format!(" The last failure: \"{last}\"."),
    };
    let instead = match whole_tool {
        true => {
            "Do not call it for now: use another tool, do another part of the task, or report what you could not do."
        }
        false => {
            "Do not repeat it: change the arguments, use another tool, or do another part of the task."
        }
    };
    let wait = wait.as_secs_f64().ceil().max(1.0);
    format!(
        "`{tool}` was not called, because {what}.{last} {instead} It can be tried once more in {wait} s."
    )
}

pin_project! {
    /// Waits for the result. Dropping it drops the call, which then counts neither way.
    #[must_use = "futures do nothing unless polled"]
    pub struct ToolBreakerFuture<F> {
        #[pin]
        inner: Option<F>,
        pending: Option<Pending>,
        blocked: Option<ToolResult>,
    }
}

impl<F, E> Future for ToolBreakerFuture<F>
where
    F: Future<Output = Result<ToolResult, E>>,
    E: Into<Failure>,
{
    type Output = Result<ToolResult, Failure>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        let (Some(inner), Some(pending)) =
            (this.inner.as_mut().as_pin_mut(), this.pending.as_mut())
        else {
            let again = "the future of a tool call was polled after it was ready";
            let again = || Failure::refused_fixed(Reason::Unknown, again);
            return Poll::Ready(this.blocked.take().ok_or_else(again));
        };
        pending.polled = true;
        let polled = inner.poll(cx);
        pending.polled = false;
        let result = ready!(polled).map_err(Into::into);
        this.inner.set(None);
        if let Some(pending) = this.pending.take() {
            ended(pending, &result);
        }
        Poll::Ready(result)
    }
}

/// Counts a result.
fn ended(pending: Pending, result: &Result<ToolResult, Failure>) {
    match result {
        Ok(result) => match result.failure_kind() {
            None => pending.end(CallEnd::Success),
            Some(kind) => {
                let tag = result.failure.as_ref().and_then(|failure| failure.tag.as_ref());
                let text = result.content.iter().find_map(Part::as_text).unwrap_or_default();
                pending.end(CallEnd::Failed { kind, tag, text });
            }
        },
        Err(failure) if matches!(failure.reason(), Reason::Safety | Reason::Cancelled) => {
            pending.end(CallEnd::Cancelled);
        }
        Err(failure) => {
            let marked = failure_of(failure);
            let (kind, tag, text) = (marked.kind, marked.tag.as_ref(), failure.message());
            pending.end(CallEnd::Failed { kind, tag, text });
        }
    }
}

impl<F> fmt::Debug for ToolBreakerFuture<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ToolBreakerFuture")
            .field("over", &self.inner.is_none())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
