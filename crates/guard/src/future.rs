//! The future of a call through the guard.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
};

use pin_project_lite::pin_project;
use steadfast_chat::{ChatResponse, Events, Head};
use steadfast_core::{Dialect, Failure, Reason, RecoveryLog};

use crate::{GuardEvents, SafetyStop, StopAs, events::Guarded};

pin_project! {
    /// The future of a call through a [`SafetyGuard`](crate::SafetyGuard): the inner
    /// call's, or a stop that is ready at once. Dropping it drops the call.
    #[must_use = "futures do nothing unless polled"]
    pub struct ResponseFuture<F> {
        #[pin]
        pub(crate) call: Option<F>,
        // What the answer is checked with, or why the model is not called; `None` once ready.
        pub(crate) admitted: Option<Result<Guarded, Box<Refused>>>,
    }
}

/// A request that is not sent to the model.
#[derive(Debug)]
pub(crate) struct Refused {
    pub(crate) stop: SafetyStop,
    pub(crate) stop_as: StopAs,
    pub(crate) dialect: Option<Dialect>,
    pub(crate) stream: bool,
    pub(crate) log: RecoveryLog,
}

impl<F, S, E> Future for ResponseFuture<F>
where
    F: Future<Output = Result<ChatResponse<S>, E>>,
    E: Into<Failure>,
    S: Events + Unpin,
{
    type Output = Result<ChatResponse<GuardEvents<S>>, Failure>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        let Some(call) = this.call.as_mut().as_pin_mut() else {
            return Poll::Ready(match this.admitted.take() {
                Some(Err(refused)) => refused.answer(),
                _ => Err(polled_again()),
            });
        };
        let result = ready!(call.poll(cx));
        this.call.set(None);
        Poll::Ready(match result {
            Ok(mut response) => match this.admitted.take() {
                Some(Ok(guarded)) => {
                    if guarded.log.is_enabled() {
                        response.head.log = guarded.log.clone();
                    }
                    guarded.begin();
                    let stream = response.head.stream;
                    Ok(response.map(|events| GuardEvents::new(Some(events), Some(guarded), stream)))
                }
                _ => Err(polled_again()),
            },
            Err(error) => Err(error.into()),
        })
    }
}

fn polled_again() -> Failure {
    Failure::refused_fixed(Reason::Unknown, "`ResponseFuture` was polled after it was ready")
}

impl Refused {
    fn answer<S>(self) -> Result<ChatResponse<GuardEvents<S>>, Failure> {
        match self.stop_as {
            StopAs::Failure => Err(self.stop.failure()),
            StopAs::Answer => {
                let mut head = Head::new(self.dialect.unwrap_or(Dialect::OpenAi));
                // No provider was called.
                (head.stream, head.attempts, head.log) = (self.stream, 0, self.log);
                Ok(ChatResponse::new(head, GuardEvents::stopped(&self.stop, self.stream)))
            }
        }
    }
}

impl<F> fmt::Debug for ResponseFuture<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseFuture")
            .field("over", &self.call.is_none())
            .field("admitted", &self.admitted)
            .finish_non_exhaustive()
    }
}
