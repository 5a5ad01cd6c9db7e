//! The layer around the tools, which run the model's calls.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use pin_project_lite::pin_project;
use steadfast_chat::{Part, ToolInvocation, ToolResult};
use steadfast_core::{Failure, Reason, inner_service};
use tokio::time::Instant;
use tower_layer::Layer;
use tower_service::Service;

use crate::{GuardVerdict, SafetyGuardHandle, TaskId, signature::CallFacts, tasks::Task};

/// Puts the guard around a service that runs tools. Made by
/// [`SafetyGuardHandle::tool_layer`](crate::SafetyGuardHandle::tool_layer).
#[derive(Clone, Debug)]
#[must_use = "a layer does nothing until it is put around a service"]
pub struct ToolGuardLayer {
    pub(crate) guard: SafetyGuardHandle,
}

impl<S> Layer<S> for ToolGuardLayer {
    type Service = ToolGuard<S>;

    fn layer(&self, inner: S) -> ToolGuard<S> {
        ToolGuard { inner, guard: self.guard.clone() }
    }
}

/// A guarded service that runs tools, for any request that is a [`ToolInvocation`].
///
/// The task is that of the request's context ([`TaskId::of`]), as the model's requests have it; a call
/// without a task or session is not guarded.
///
/// A call that is not allowed is answered with a failed result that says why, so that each call of a
/// batch has its result. Advice is added to the result that caused it.
#[derive(Clone, Debug)]
#[must_use = "services do nothing unless called"]
pub struct ToolGuard<S> {
    inner: S,
    guard: SafetyGuardHandle,
}

inner_service!(ToolGuard<S>);

impl<S, R> Service<R> for ToolGuard<S>
where
    S: Service<R, Response = ToolResult>,
    S::Error: Into<Failure>,
    R: ToolInvocation,
{
    type Response = ToolResult;
    type Error = Failure;
    type Future = ToolFuture<S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Failure>> {
        self.inner.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, request: R) -> Self::Future {
        let Some(task) = TaskId::of(request.context()) else {
            return ToolFuture { inner: Some(self.inner.call(request)), seen: None, refused: None };
        };
        let tasks = self.guard.tasks();
        let (facts, task) = (tasks.c.call(request.call()), tasks.task(task, Instant::now()));
        if let Err(stop) = self.guard.admit(&task, &facts) {
            let refused = Some(SafetyGuardHandle::refusal(request.call(), &stop));
            return ToolFuture { inner: None, seen: None, refused };
        }
        let seen = Box::new(Seen { guard: self.guard.clone(), task, facts: facts.into_owned() });
        ToolFuture { inner: Some(self.inner.call(request)), seen: Some(seen), refused: None }
    }
}

/// A call that is being made.
#[derive(Debug)]
struct Seen {
    guard: SafetyGuardHandle,
    task: Arc<Task>,
    facts: CallFacts<'static>,
}

pin_project! {
    /// The future of a call through a [`ToolGuard`]. Dropping it drops the call; a dropped call is
    /// still counted, but has no result.
    #[must_use = "futures do nothing unless polled"]
    pub struct ToolFuture<F> {
        #[pin]
        inner: Option<F>,
        seen: Option<Box<Seen>>,
        refused: Option<ToolResult>,
    }
}

impl<F, E> Future for ToolFuture<F>
where
    F: Future<Output = Result<ToolResult, E>>,
    E: Into<Failure>,
{
    type Output = Result<ToolResult, Failure>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        let Some(inner) = this.inner.as_mut().as_pin_mut() else {
            let again = "`ToolFuture` was polled after it was ready";
            let again = || Failure::refused_fixed(Reason::Unknown, again);
            return Poll::Ready(this.refused.take().ok_or_else(again));
        };
        let result = ready!(inner.poll(cx));
        this.inner.set(None);
        let seen = this.seen.take();
        Poll::Ready(match (result, seen) {
            (Ok(mut result), Some(seen)) => {
                let Seen { guard, task, facts } = *seen;
                // After a stop the result is returned too; the next call is not made.
                if let GuardVerdict::Warn(advice) = guard.observe(&task, &facts, &result, true) {
                    result.content.push(Part::text(advice.to_string()));
                }
                Ok(result)
            }
            (Ok(result), None) => Ok(result),
            (Err(error), _) => Err(error.into()),
        })
    }
}

impl<F> fmt::Debug for ToolFuture<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ToolFuture").field("over", &self.inner.is_none()).finish_non_exhaustive()
    }
}
