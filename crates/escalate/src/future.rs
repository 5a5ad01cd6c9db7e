//! The future of a call that may be held.

use std::{
    fmt,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use pin_project_lite::pin_project;
use steadfast_chat::{ChatRequest, ChatResponse, Events};
use steadfast_core::{Failure, Reason};
use tower_service::Service;

use crate::{escalating::Escalating, events::EscalatedEvents, service::Source};

pin_project! {
    /// Calls; when that fails for good, waits for a decision and carries it out.
    ///
    /// Dropping it ends whichever is under way; a request that is held vanishes at once.
    #[must_use = "futures do nothing unless polled"]
    pub struct ResponseFuture<S>
    where
        S: Service<ChatRequest>,
    {
        #[pin]
        state: State<S, S::Future>,
        // `None` once used, and of a layer that is off.
        kept: Option<(ChatRequest, Arc<Source<S>>)>,
    }
}

pin_project! {
    #[project = StateProjection]
    enum State<S, F>
    where
        S: Service<ChatRequest>,
    {
        Calling { #[pin] call: F },
        // Boxed: it exists on the slow path only.
        Escalating { slow: Box<Escalating<S>> },
        Done,
    }
}

impl<S: Service<ChatRequest>> ResponseFuture<S> {
    #[inline]
    pub(crate) fn new(call: S::Future, kept: Option<(ChatRequest, Arc<Source<S>>)>) -> Self {
        Self { state: State::Calling { call }, kept }
    }
}

impl<S, E> Future for ResponseFuture<S>
where
    S: Service<ChatRequest, Response = ChatResponse<E>> + Clone,
    S::Error: Into<Failure>,
    E: Events + Unpin,
{
    type Output = Result<ChatResponse<EscalatedEvents<E>>, Failure>;

    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        loop {
            let ended = match this.state.as_mut().project() {
                StateProjection::Calling { call } => {
                    let ended = ready!(call.poll(cx)).map_err(Into::into);
                    let kept = this.kept.take();
                    match (ended, kept) {
                        (Ok(reply), kept) => {
                            Ok(passed(reply, kept.as_ref().map(|(request, _)| request)))
                        }
                        (Err(failure), None) => Err(failure),
                        (Err(failure), Some((request, source))) => {
                            // Its connection and permits are free while the request is held.
                            this.state.set(State::Done);
                            match Escalating::begin(source, request, failure) {
                                Ok(slow) => {
                                    this.state.set(State::Escalating { slow: Box::new(slow) });
                                    continue;
                                }
                                Err(failure) => Err(failure),
                            }
                        }
                    }
                }
                StateProjection::Escalating { slow } => ready!(slow.poll(cx)),
                StateProjection::Done => Err(polled_again()),
            };
            this.state.set(State::Done);
            return Poll::Ready(ended);
        }
    }
}

/// An answer of the inner service.
pub(crate) fn passed<E>(
    mut reply: ChatResponse<E>,
    request: Option<&ChatRequest>,
) -> ChatResponse<EscalatedEvents<E>> {
    // A service of a user's own makes its answers without one.
    if let Some(log) = request.map(|request| &request.context.log)
        && log.is_enabled()
    {
        reply.head.log = log.clone();
    }
    reply.map_through(EscalatedEvents::inner)
}

fn polled_again() -> Failure {
    Failure::refused_fixed(Reason::Unknown, "`ResponseFuture` was polled after it was ready")
}

impl<S: Service<ChatRequest>> fmt::Debug for ResponseFuture<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state: &dyn fmt::Debug = match &self.state {
            State::Calling { .. } => &"calling",
            State::Escalating { slow } => slow,
            State::Done => &"done",
        };
        f.debug_struct("ResponseFuture").field("state", state).finish_non_exhaustive()
    }
}
