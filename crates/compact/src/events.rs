//! An answer, from whose usage the layer learns.

use std::{
    fmt,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use futures_core::Stream;
use steadfast_chat::{CommittedEvents, Event, Events};
use steadfast_core::Failure;

use crate::{look::Watch, state::Shared};

/// The events of an answer, as they come. What it says it has used is noted when it ends; an answer
/// that fails or is dropped says nothing.
pub struct CompactionEvents<S> {
    events: CommittedEvents<S>,
    /// `None` where there is nothing to learn, and once it is learned.
    learns: Option<(Arc<Shared>, Watch)>,
    input: Option<u64>,
}

impl<S> CompactionEvents<S> {
    pub(crate) fn new(events: CommittedEvents<S>, learns: Option<(Arc<Shared>, Watch)>) -> Self {
        Self { events, learns, input: None }
    }
}

impl<S: Events + Unpin> Stream for CompactionEvents<S> {
    type Item = Result<Event, Failure>;

    #[inline]
    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        let polled = Pin::new(&mut this.events).poll_next(cx);
        if this.learns.is_some() {
            this.note(&polled);
        }
        polled
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.events.size_hint()
    }
}

impl<S> CompactionEvents<S> {
    fn note(&mut self, polled: &Poll<Option<Result<Event, Failure>>>) {
        let is_over = match polled {
            Poll::Pending => return,
            Poll::Ready(Some(Ok(event))) => {
                if let Some(input) = event.usage().and_then(|usage| usage.input) {
                    self.input = Some(input);
                }
                event.is_end()
            }
            Poll::Ready(Some(Err(_))) => {
                self.learns = None;
                return;
            }
            Poll::Ready(None) => true,
        };
        if is_over && let (Some((shared, watch)), Some(input)) = (self.learns.take(), self.input) {
            watch.reported(&shared, input);
        }
    }
}

impl<S> fmt::Debug for CompactionEvents<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CompactionEvents")
            .field("learns", &self.learns.is_some())
            .finish_non_exhaustive()
    }
}
