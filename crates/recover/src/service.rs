//! The service around the inner one, the same for both policies.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use pin_project_lite::pin_project;
use steadfast_chat::{ChatRequest, ChatResponse, Events};
use steadfast_core::{Failure, IntoFailure, Reason, RecoveryLog, Spare, inner_service};
use tower_service::Service;

use crate::{
    events::RecoveredEvents,
    layer::RecoverState,
    policy::{AnswerInProgress, Recovery},
};

/// Continues answers of the inner service: a [`Continuation`](crate::Continuation) those that were cut
/// off, a [`StreamResume`](crate::StreamResume) those that broke.
///
/// The first call is made by the inner service, which is ready, and further ones by clones of it, polled
/// ready before each.
#[derive(Clone, Debug)]
#[must_use = "services do nothing unless called"]
pub struct Recover<S, P: Recovery> {
    inner: S,
    source: Arc<Source<S, P>>,
}

/// What a service, its clones and their answers share.
#[derive(Debug)]
pub(crate) struct Source<S, P: Recovery> {
    pub(crate) shared: Arc<RecoverState<P>>,
    pub(crate) spare: Spare<S>,
}

inner_service!(Recover<S, P: Recovery>);

impl<S, P: Recovery> Recover<S, P> {
    pub(crate) fn new(inner: S, shared: Arc<RecoverState<P>>) -> Self
    where
        S: Clone,
    {
        let spare = Spare::of(&inner);
        Self { inner, source: Arc::new(Source { shared, spare }) }
    }
}

impl<S, E, P> Service<ChatRequest> for Recover<S, P>
where
    S: Service<ChatRequest, Response = ChatResponse<E>> + Clone,
    S::Error: IntoFailure,
    E: Events + Unpin,
    P: Recovery,
{
    type Response = ChatResponse<RecoveredEvents<S, E, P>>;
    type Error = Failure;
    type Future = RecoverFuture<S, S::Future, P>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Failure>> {
        self.inner.poll_ready(cx).map_err(Into::into)
    }

    #[inline]
    fn call(&mut self, mut request: ChatRequest) -> Self::Future {
        let policy = &self.source.shared.policy;
        let kept = Kept {
            answer: AnswerInProgress::expect(policy, request.clone()),
            log: request.context.log.clone(),
            source: self.source.clone(),
        };
        policy.adapt(&mut request);
        RecoverFuture { call: self.inner.call(request), kept: Some(kept) }
    }
}

pin_project! {
    /// Waits for the head of the answer, which gets the recovery log of the request. The failure of a call
    /// before that is passed on. Dropping it drops the call.
    #[must_use = "futures do nothing unless polled"]
    pub struct RecoverFuture<S, F, P: Recovery> {
        #[pin]
        call: F,
        // `None` once ready.
        kept: Option<Kept<S, P>>,
    }
}

/// What is kept of a call until its head has come.
struct Kept<S, P: Recovery> {
    answer: Option<Box<AnswerInProgress<P>>>,
    log: RecoveryLog,
    source: Arc<Source<S, P>>,
}

impl<S, F, E, X, P> Future for RecoverFuture<S, F, P>
where
    S: Service<ChatRequest, Response = ChatResponse<E>>,
    F: Future<Output = Result<ChatResponse<E>, X>>,
    X: Into<Failure>,
    P: Recovery,
{
    type Output = Result<ChatResponse<RecoveredEvents<S, E, P>>, Failure>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        if this.kept.is_none() {
            return Poll::Ready(Err(polled_again()));
        }
        let reply = ready!(this.call.poll(cx));
        let Some(Kept { mut answer, log, source }) = this.kept.take() else {
            return Poll::Ready(Err(polled_again()));
        };
        Poll::Ready(match reply {
            Ok(mut reply) => {
                // A service of a user's own makes its answers without one.
                reply.head.log = log;
                if let Some(answer) = &mut answer {
                    answer.begin(&reply.head);
                }
                Ok(reply.map(|events| RecoveredEvents::new(events, answer, source)))
            }
            Err(error) => Err(error.into()),
        })
    }
}

fn polled_again() -> Failure {
    Failure::refused_fixed(Reason::Unknown, "`RecoverFuture` was polled after it was ready")
}

impl<S, F, P: Recovery> fmt::Debug for RecoverFuture<S, F, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RecoverFuture").field("ready", &self.kept.is_none()).finish_non_exhaustive()
    }
}
