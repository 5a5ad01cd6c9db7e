//! The future of a run.

use std::{
    fmt,
    pin::Pin,
    task::{Context, Poll},
};

use steadfast_core::Failure;

use crate::SessionReply;

/// A run, from its wait for the thread to the save of its last turn. Boxed: each run has files to write.
///
/// Dropped, the run is cancelled: turns that have ended are kept, and saved.
#[must_use = "futures do nothing unless polled"]
pub struct ResponseFuture(Pin<Box<dyn Future<Output = Result<SessionReply, Failure>> + Send>>);

impl ResponseFuture {
    pub(crate) fn new(
        run: impl Future<Output = Result<SessionReply, Failure>> + Send + 'static,
    ) -> Self {
        Self(Box::pin(run))
    }
}

impl Future for ResponseFuture {
    type Output = Result<SessionReply, Failure>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.0.as_mut().poll(cx)
    }
}

impl fmt::Debug for ResponseFuture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseFuture").finish_non_exhaustive()
    }
}
