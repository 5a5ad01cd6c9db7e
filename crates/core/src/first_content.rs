//! The future of a call and of the first content of its reply.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
};

use pin_project_lite::pin_project;

use crate::{BufferLimits, Failure, Lease, Reason, Track};

pin_project! {
    /// One attempt of a layer that may make another: the future `F` of a call, then the wait for the
    /// first content of its reply, which is [tracked](Track::Tracked) as `R`. Dropping it drops
    /// whichever is under way.
    #[must_use = "an attempt does nothing unless polled"]
    pub struct FirstContent<F, R> {
        #[pin]
        state: State<F, R>,
    }
}

pin_project! {
    #[project = StateProjection]
    #[project_replace = StateReplaced]
    enum State<F, R> {
        Calling { #[pin] call: F },
        // There is a reply, and its first content has not come.
        Waiting { reply: R },
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

impl<F, R> FirstContent<F, R> {
    /// The attempt whose call is `call`.
    pub const fn new(call: F) -> Self {
        Self { state: State::Calling { call } }
    }

    /// Ready once the reply's first content is there, or the attempt has failed. The call is dropped
    /// as soon as there is a reply, and the reply when it fails.
    #[inline]
    pub fn poll<U, E, T>(
        self: Pin<&mut Self>,
        track: &T,
        limits: BufferLimits,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), AttemptFailure>>
    where
        F: Future<Output = Result<U, E>>,
        E: Into<Failure>,
        T: Track<U, Tracked = R>,
    {
        let mut state = self.project().state;
        if let StateProjection::Calling { call } = state.as_mut().project() {
            match ready!(call.poll(cx)) {
                Ok(reply) => state.set(State::Waiting { reply: track.track(reply) }),
                Err(error) => {
                    state.set(State::Done);
                    let failure = error.into();
                    return Poll::Ready(Err(AttemptFailure { failure, had_reply: false }));
                }
            }
        }
        // In place: replies are large, and each move of one is a copy.
        let failure = match state.as_mut().project() {
            StateProjection::Waiting { reply } => {
                match ready!(track.poll_content(reply, limits, cx)) {
                    Ok(()) => return Poll::Ready(Ok(())),
                    Err(failure) => AttemptFailure { failure, had_reply: true },
                }
            }
            _ => polled_again(),
        };
        state.set(State::Done);
        Poll::Ready(Err(failure))
    }

    /// The reply with `lease` on it, and what was read of it first.
    ///
    /// # Errors
    ///
    /// When there is no reply: before the call has answered, and after a failure. The lease then counts
    /// as cancelled.
    #[inline]
    pub fn finish<U, E, T>(self: Pin<&mut Self>, track: &T, lease: Lease) -> Result<R, Failure>
    where
        F: Future<Output = Result<U, E>>,
        T: Track<U, Tracked = R>,
    {
        let mut state = self.project().state;
        if let StateProjection::Waiting { reply } = state.as_mut().project() {
            track.attach(reply, lease);
        }
        match state.project_replace(State::Done) {
            StateReplaced::Waiting { reply } => Ok(reply),
            _ => Err(polled_again().failure),
        }
    }
}

fn polled_again() -> AttemptFailure {
    let text = "an attempt was polled after it was over";
    AttemptFailure { failure: Failure::refused_fixed(Reason::Unknown, text), had_reply: false }
}

impl<F, R> fmt::Debug for FirstContent<F, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match &self.state {
            State::Calling { .. } => "calling",
            State::Waiting { .. } => "waiting for content",
            State::Done => "done",
        };
        f.debug_struct("FirstContent").field("state", &state).finish()
    }
}
