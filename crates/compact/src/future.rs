//! The future of a call.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use pin_project_lite::pin_project;
use steadfast_chat::{ChatRequest, ChatResponse, Events};
use steadfast_core::{Failure, Lease, Reason, Track};
use tower_service::Service;

use crate::{
    course::{Sent, Working, compact_again, finish, is_ours, is_overflow, peek, refused_ours},
    events::CompactionEvents,
    state::Own,
};

pin_project! {
    /// The future of a call through a [`Compaction`](crate::Compaction): the inner call's, which is
    /// looked at until its first content; boxed only where a conversation is compacted.
    ///
    /// Dropping it drops the call, and whatever is asked of a summariser; what was set aside for
    /// that and not used is given back.
    #[must_use = "futures do nothing unless polled"]
    pub struct ResponseFuture<S, E>
    where
        S: Service<ChatRequest>,
    {
        #[pin]
        state: State<S::Future, E>,
        own: Arc<Own<S>>,
        // `None` on the slow way, and once ready.
        sent: Option<Sent>,
    }
}

type Look<E> = <ChatResponse<E> as Track>::Look;

pin_project! {
    #[project = StateProj]
    enum State<F, E> {
        Calling {
            #[pin]
            call: F,
        },
        // The answer has begun and its first content has not come.
        Looking {
            // `None` once it has.
            reply: Option<ChatResponse<E>>,
            look: steadfast_chat::Look,
        },
        Working {
            work: Working<E>,
        },
        Done,
    }
}

impl<S, E> ResponseFuture<S, E>
where
    S: Service<ChatRequest>,
{
    #[inline]
    pub(crate) fn calling(call: S::Future, own: Arc<Own<S>>, sent: Sent) -> Self {
        Self { state: State::Calling { call }, own, sent: Some(sent) }
    }

    pub(crate) fn working(work: Working<E>, own: Arc<Own<S>>) -> Self {
        Self { state: State::Working { work }, own, sent: None }
    }
}

impl<S, E> Future for ResponseFuture<S, E>
where
    S: Service<ChatRequest, Response = ChatResponse<E>, Error: Into<Failure>, Future: Send>
        + Clone
        + Send
        + 'static,
    E: Events + Unpin + Send + 'static,
{
    type Output = Result<ChatResponse<CompactionEvents<E>>, Failure>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        loop {
            let found = match this.state.as_mut().project() {
                StateProj::Calling { call } => match ready!(call.poll(cx)) {
                    Ok(mut reply) => {
                        let mut look = Look::<E>::default();
                        match reply.poll_content(&mut look, peek(), cx) {
                            Poll::Ready(found) => found.map(|()| (reply, look)),
                            Poll::Pending => {
                                this.state.set(State::Looking { reply: Some(reply), look });
                                return Poll::Pending;
                            }
                        }
                    }
                    Err(error) => Err(error.into()),
                },
                StateProj::Looking { reply: place, look } => {
                    let Some(reply) = place else { return Poll::Ready(Err(polled_twice())) };
                    match ready!(reply.poll_content(look, peek(), cx)) {
                        Ok(()) => {
                            let look = std::mem::take(look);
                            match place.take() {
                                Some(reply) => Ok((reply, look)),
                                None => return Poll::Ready(Err(polled_twice())),
                            }
                        }
                        Err(failure) => Err(failure),
                    }
                }
                StateProj::Working { work } => {
                    let done = ready!(work.as_mut().poll(cx));
                    this.state.set(State::Done);
                    return Poll::Ready(done);
                }
                StateProj::Done => return Poll::Ready(Err(polled_twice())),
            };
            let Some(sent) = this.sent.take() else {
                this.state.set(State::Done);
                return Poll::Ready(Err(polled_twice()));
            };
            match found {
                Ok((reply, look)) => {
                    this.state.set(State::Done);
                    let reply = reply.commit(look, Lease::idle());
                    return Poll::Ready(Ok(finish(this.own, reply, sent.sight)));
                }
                // The call that failed is dropped before another is made.
                Err(failure) if is_overflow(&failure) && !this.own.shared.config.off => {
                    this.state.set(State::Done);
                    let work = Box::pin(compact_again(this.own.clone(), sent, failure));
                    this.state.set(State::Working { work });
                }
                Err(failure) => {
                    this.state.set(State::Done);
                    if is_ours(&failure, &sent.sight) {
                        refused_ours(this.own, &sent);
                    }
                    return Poll::Ready(Err(failure));
                }
            }
        }
    }
}

fn polled_twice() -> Failure {
    Failure::refused_fixed(Reason::Unknown, "`ResponseFuture` was polled after it was ready")
}

impl<S, E> fmt::Debug for ResponseFuture<S, E>
where
    S: Service<ChatRequest>,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match &self.state {
            State::Calling { .. } => "calling",
            State::Looking { .. } => "looking",
            State::Working { .. } => "compacting",
            State::Done => "done",
        };
        f.debug_struct("ResponseFuture").field("state", &state).finish_non_exhaustive()
    }
}
