//! The events of an answer, whose usage the layer learns.

use std::{
    collections::VecDeque,
    fmt,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use futures_core::Stream;
use steadfast_chat::{Event, Events, TrackedEvents};
use steadfast_core::Failure;

use crate::{decide::UsageObserver, state::LayerState};

/// The events of an answer, as they come. The usage it reports is learned from when it ends; an
/// answer that fails or is dropped is not learned from.
pub struct CompactionEvents<S> {
    events: TrackedEvents<S>,
    /// `None` where there is nothing to learn, and once it is learned.
    observer: Option<(Arc<LayerState>, UsageObserver)>,
    input: Option<u64>,
    /// What was held back, passed on first.
    withheld: VecDeque<Event>,
}

impl<S> CompactionEvents<S> {
    pub(crate) fn new(
        events: TrackedEvents<S>,
        observer: Option<(Arc<LayerState>, UsageObserver)>,
        withheld: VecDeque<Event>,
    ) -> Self {
        Self { events, observer, input: None, withheld }
    }
}

impl<S: Events + Unpin> Stream for CompactionEvents<S> {
    type Item = Result<Event, Failure>;

    #[inline]
    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        let polled = match this.withheld.pop_front() {
            Some(event) => Poll::Ready(Some(Ok(event))),
            None => Pin::new(&mut this.events).poll_next(cx),
        };
        if this.observer.is_some()
            && let Poll::Ready(event) = &polled
        {
            this.observe(event.as_ref());
        }
        polled
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let (least, most) = self.events.size_hint();
        let held = self.withheld.len();
        (least.saturating_add(held), most.and_then(|most| most.checked_add(held)))
    }
}

impl<S> CompactionEvents<S> {
    fn observe(&mut self, event: Option<&Result<Event, Failure>>) {
        match event {
            Some(Ok(event)) => {
                let reported = event.usage().and_then(|usage| usage.input);
                self.input = reported.or(self.input);
                if !event.is_end() {
                    return;
                }
            }
            Some(Err(_)) => self.input = None,
            None => {}
        }
        if let (Some((layer, observer)), Some(input)) = (self.observer.take(), self.input) {
            observer.reported(&layer, input);
        }
    }
}

impl<S> fmt::Debug for CompactionEvents<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CompactionEvents").finish_non_exhaustive()
    }
}
