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

use crate::{GuardEvents, Stop, StopAs, watch::Watch};

pin_project! {
    /// The future of a call through a [`SafetyGuardService`](crate::SafetyGuardService): the inner
    /// call's, or a stop that is ready at once. Dropping it drops the call.
    #[must_use = "futures do nothing unless polled"]
    pub struct ResponseFuture<F> {
        #[pin]
        call: Option<F>,
        watch: Option<Watch>,
        refused: Option<Box<Refused>>,
    }
}

/// A request that the model is not asked.
#[derive(Debug)]
pub(crate) struct Refused {
    pub(crate) stop: Stop,
    pub(crate) stop_as: StopAs,
    pub(crate) dialect: Option<Dialect>,
    pub(crate) stream: bool,
    pub(crate) log: RecoveryLog,
}

impl<F> ResponseFuture<F> {
    #[inline]
    pub(crate) fn asking(call: F, watch: Watch) -> Self {
        Self { call: Some(call), watch: Some(watch), refused: None }
    }

    pub(crate) fn refused(refused: Box<Refused>) -> Self {
        Self { call: None, watch: None, refused: Some(refused) }
    }
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
            return Poll::Ready(match this.refused.take() {
                Some(refused) => refused.answer(),
                None => Err(polled_again()),
            });
        };
        let result = ready!(call.poll(cx));
        this.call.set(None);
        Poll::Ready(match (result, this.watch.take()) {
            (Ok(response), Some(watch)) => {
                watch.begun();
                let stream = response.head.stream;
                Ok(response.map(|events| GuardEvents::new(events, watch, stream)))
            }
            (Ok(_), None) => Err(polled_again()),
            (Err(error), _) => Err(error.into()),
        })
    }
}

impl Refused {
    fn answer<S>(self) -> Result<ChatResponse<GuardEvents<S>>, Failure> {
        match self.stop_as {
            StopAs::Failure => Err(self.stop.failure()),
            StopAs::Answer => {
                let mut head = Head::new(self.dialect.unwrap_or(Dialect::OpenAi));
                head.stream = self.stream;
                // Nobody was asked.
                head.attempts = 0;
                head.log = self.log;
                Ok(ChatResponse::new(head, GuardEvents::last_words(&self.stop, self.stream)))
            }
        }
    }
}

fn polled_again() -> Failure {
    Failure::refused_fixed(Reason::Unknown, "`ResponseFuture` was polled after it was ready")
}

impl<F> fmt::Debug for ResponseFuture<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseFuture")
            .field("over", &self.call.is_none())
            .field("refused", &self.refused)
            .finish_non_exhaustive()
    }
}
