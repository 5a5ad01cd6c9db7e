//! Events under time limits.

use std::{
    fmt,
    pin::Pin,
    task::{Context, Poll},
};

use futures_core::Stream;
use steadfast_chat::{Delta, Event};
use steadfast_core::Failure;

use crate::{
    Clocks,
    reply::{Limited, Pieces, Size},
};

/// Events under time limits. When a limit fires, the stream under it is dropped at once, which
/// closes its connection, and the failure is the last item.
pub struct StallEvents<S> {
    /// `None` once over.
    events: Option<S>,
    limited: Limited<Event>,
}

impl<S> StallEvents<S> {
    /// `events` under `clocks`.
    pub fn new(events: S, clocks: Clocks) -> Self {
        Self { events: Some(events), limited: Limited::new(clocks) }
    }
}

impl<S> Stream for StallEvents<S>
where
    S: Stream<Item = Result<Event, Failure>> + Unpin,
{
    type Item = Result<Event, Failure>;

    #[inline]
    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let Self { events, limited } = &mut *self;
        limited.poll_next(events, cx)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        // A limit may end it at any time.
        (0, None)
    }
}

impl<S> Pieces for Option<S>
where
    S: Stream<Item = Result<Event, Failure>> + Unpin,
{
    type Piece = Event;

    fn poll_piece(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Event, Failure>>> {
        self.as_mut().map_or(Poll::Ready(None), |events| Pin::new(events).poll_next(cx))
    }

    fn is_over(&self) -> bool {
        self.is_none()
    }

    fn end(&mut self) {
        *self = None;
    }

    fn is_content(&mut self, event: &Event) -> bool {
        event.is_content()
    }

    fn is_progress(&self, event: &Event) -> bool {
        event.ends_block()
    }

    fn size(event: &Event) -> Size {
        let chars = |delta: &Delta| match delta {
            Delta::Text { text, .. } | Delta::Thinking { text, .. } => text.chars().count(),
            Delta::Arguments { json, .. } => json.chars().count(),
            Delta::ToolCall { name, .. } => name.chars().count(),
            Delta::Redacted { data, .. } => data.len(),
            Delta::Opaque { block, .. } => block.json.get().len(),
            _ => 0,
        };
        let chars = event.deltas.iter().map(chars).sum();
        Size { chars, bytes: event.size(), end: event.is_end() }
    }
}

impl<S> fmt::Debug for StallEvents<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StallEvents")
            .field("over", &self.events.is_none())
            .field("clocks", &self.limited.clocks)
            .finish_non_exhaustive()
    }
}
