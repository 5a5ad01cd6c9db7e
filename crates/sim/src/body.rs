//! The body of a response: a list of steps, played on tokio's clock.

use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use tokio::time::Sleep;

use crate::error::{SimError, SimErrorKind};
use crate::journal::{End, EntryGuard};

/// The body of a simulated response.
///
/// Dropping it before its end is a client that disconnects, and the journal records that. After
/// an error the body has ended.
pub struct SimBody {
    steps: VecDeque<Step>,
    sleep: Option<Pin<Box<Sleep>>>,
    guard: Option<EntryGuard>,
    exact: bool,
    done: bool,
}

/// One step of a body.
#[derive(Debug)]
pub(crate) enum Step {
    /// A pause.
    Wait(Duration),
    /// Lets the transport write what it has buffered, before the connection is broken.
    Flush,
    /// Bytes, and how many content events they complete.
    Data(Bytes, usize),
    /// The connection breaks.
    Fail(SimErrorKind),
    /// No more bytes, and no end.
    Stall,
}

impl SimBody {
    pub(crate) fn new(steps: Vec<Step>, exact: bool, guard: Option<EntryGuard>) -> Self {
        let mut body = Self { steps: steps.into(), sleep: None, guard, exact, done: false };
        if body.steps.is_empty() {
            body.finish(End::Complete);
        }
        body
    }

    fn finish(&mut self, end: End) {
        self.done = true;
        if let Some(mut guard) = self.guard.take() {
            guard.end(end);
        }
    }
}

impl Body for SimBody {
    type Data = Bytes;
    type Error = SimError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, SimError>>> {
        let this = self.get_mut();
        if this.done {
            return Poll::Ready(None);
        }
        loop {
            if let Some(sleep) = &mut this.sleep {
                ready!(sleep.as_mut().poll(cx));
                this.sleep = None;
            }
            match this.steps.pop_front() {
                None => {
                    this.finish(End::Complete);
                    return Poll::Ready(None);
                }
                Some(Step::Wait(wait)) => {
                    if !wait.is_zero() {
                        this.sleep = Some(Box::pin(tokio::time::sleep(wait)));
                    }
                }
                Some(Step::Flush) => {
                    cx.waker().wake_by_ref();
                    return Poll::Pending;
                }
                Some(Step::Data(bytes, events)) => {
                    if let Some(guard) = &this.guard {
                        guard.update(|entry| {
                            entry.events += events;
                            entry.bytes += bytes.len();
                        });
                    }
                    return Poll::Ready(Some(Ok(Frame::data(bytes))));
                }
                Some(Step::Fail(kind)) => {
                    this.finish(End::Broken);
                    return Poll::Ready(Some(Err(SimError::body(kind))));
                }
                Some(Step::Stall) => {
                    // Never woken on purpose.
                    this.steps.push_front(Step::Stall);
                    return Poll::Pending;
                }
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.done
    }

    fn size_hint(&self) -> SizeHint {
        if !self.exact {
            return SizeHint::default();
        }
        let left = self.steps.iter().map(|step| match step {
            Step::Data(bytes, _) => bytes.len() as u64,
            _ => 0,
        });
        SizeHint::with_exact(left.sum())
    }
}

impl Drop for SimBody {
    fn drop(&mut self) {
        if !self.done {
            // A reader that knows the length, or saw the terminal event, need not poll for the end.
            let end = if self.steps.is_empty() { End::Complete } else { End::Dropped };
            self.finish(end);
        }
    }
}

impl fmt::Debug for SimBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SimBody")
            .field("steps_left", &self.steps.len())
            .field("done", &self.done)
            .finish_non_exhaustive()
    }
}
