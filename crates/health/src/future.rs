//! The future of a call.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    task::{Context, Poll},
};

use pin_project_lite::pin_project;
use steadfast_core::{Failure, Lease, Reason, Track};

pin_project! {
    /// The future of a call through a [`ProviderHealth`](crate::ProviderHealth). Dropping it counts as cancelled.
    #[must_use = "futures do nothing unless polled"]
    pub struct ResponseFuture<F, T> {
        #[pin]
        state: State<F>,
        track: T,
    }
}

pin_project! {
    #[project = StateProjection]
    enum State<F> {
        Calling { #[pin] inner: F, lease: Lease },
        Done,
    }
}

impl<F, T> ResponseFuture<F, T> {
    pub(crate) fn new(inner: F, lease: Lease, track: T) -> Self {
        Self { state: State::Calling { inner, lease }, track }
    }
}

impl<F, T, R, E> Future for ResponseFuture<F, T>
where
    F: Future<Output = Result<R, E>>,
    E: Into<Failure>,
    T: Track<R>,
{
    type Output = Result<T::Tracked, Failure>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        let failure = match this.state.as_mut().project() {
            StateProjection::Calling { inner, lease } => {
                // Held here while the inner future runs: if that panics, the lease is dropped during the
                // panic, which counts as a failure.
                let held = lease.take();
                match inner.poll(cx) {
                    Poll::Pending => {
                        *lease = held;
                        return Poll::Pending;
                    }
                    Poll::Ready(Ok(reply)) => {
                        this.state.set(State::Done);
                        let mut reply = this.track.track(reply);
                        this.track.attach(&mut reply, held);
                        return Poll::Ready(Ok(reply));
                    }
                    Poll::Ready(Err(error)) => {
                        let failure = error.into();
                        held.failure(&failure);
                        failure
                    }
                }
            }
            StateProjection::Done => Failure::refused_fixed(
                Reason::Unknown,
                "`ResponseFuture` was polled after it was ready",
            ),
        };
        this.state.set(State::Done);
        Poll::Ready(Err(failure))
    }
}

impl<F, T> fmt::Debug for ResponseFuture<F, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let done = matches!(self.state, State::Done);
        f.debug_struct("ResponseFuture").field("done", &done).finish_non_exhaustive()
    }
}
