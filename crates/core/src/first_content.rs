//! A call, and then the first content of its reply.

use std::{
    fmt,
    future::Future,
    mem,
    pin::Pin,
    task::{Context, Poll, ready},
};

use pin_project_lite::pin_project;

use crate::{BufferLimits, Failure, Reason, Track};

pin_project! {
    /// One attempt of a layer that may make another: the future `F` of a call, then the wait for the
    /// first content of its reply `R`, with what is read on the way kept in `B`. Dropping it drops
    /// whichever is under way.
    #[must_use = "an attempt does nothing unless polled"]
    pub struct FirstContent<F, R, B> {
        #[pin]
        state: State<F, R, B>,
    }
}

pin_project! {
    #[project = StateProjection]
    enum State<F, R, B> {
        Calling { #[pin] call: F },
        // There is a reply, and its first content has not come.
        Waiting { reply: Option<R>, buffer: B },
        Done,
    }
}

/// Why an attempt has failed.
#[derive(Debug)]
pub struct AttemptFailure {
    /// The failure.
    pub failure: Failure,
    /// There was a reply, which failed before its first content.
    pub had_reply: bool,
}

impl<F, R, B: Default> FirstContent<F, R, B> {
    /// The attempt whose call is `call`.
    pub const fn new(call: F) -> Self {
        Self { state: State::Calling { call } }
    }

    /// The reply and what was read of it, once its first content is there. What was under way is
    /// dropped when it returns.
    #[inline]
    pub fn poll<E, T>(
        self: Pin<&mut Self>,
        track: &T,
        limits: BufferLimits,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(R, B), AttemptFailure>>
    where
        F: Future<Output = Result<R, E>>,
        E: Into<Failure>,
        T: Track<R, Buffer = B>,
    {
        let mut state = self.project().state;
        let result = match state.as_mut().project() {
            StateProjection::Calling { call } => match ready!(call.poll(cx)) {
                Ok(mut reply) => {
                    let mut buffer = B::default();
                    match track.poll_content(&mut reply, &mut buffer, limits, cx) {
                        Poll::Ready(found) => with_reply(found).map(|()| (reply, buffer)),
                        Poll::Pending => {
                            state.set(State::Waiting { reply: Some(reply), buffer });
                            return Poll::Pending;
                        }
                    }
                }
                Err(error) => Err(AttemptFailure { failure: error.into(), had_reply: false }),
            },
            StateProjection::Waiting { reply: slot, buffer } => match slot {
                None => Err(polled_again()),
                Some(reply) => {
                    let found = ready!(track.poll_content(reply, buffer, limits, cx));
                    let taken = slot.take().ok_or_else(polled_again);
                    with_reply(found).and(taken).map(|reply| (reply, mem::take(buffer)))
                }
            },
            StateProjection::Done => Err(polled_again()),
        };
        state.set(State::Done);
        Poll::Ready(result)
    }
}

fn with_reply(found: Result<(), Failure>) -> Result<(), AttemptFailure> {
    found.map_err(|failure| AttemptFailure { failure, had_reply: true })
}

fn polled_again() -> AttemptFailure {
    let text = "an attempt was polled after it was over";
    AttemptFailure { failure: Failure::refused_fixed(Reason::Unknown, text), had_reply: false }
}

impl<F, R, B> fmt::Debug for FirstContent<F, R, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match &self.state {
            State::Calling { .. } => "calling",
            State::Waiting { .. } => "waiting for content",
            State::Done => "done",
        };
        f.debug_struct("FirstContent").field("state", &state).finish()
    }
}
