//! Events under time limits.

use std::{
    fmt,
    pin::Pin,
    task::{Context, Poll, ready},
};

use futures_core::Stream;
use steadfast_chat::{Delta, Event};
use steadfast_core::Failure;

use crate::{
    Clocks,
    hold::{Hold, Piece},
};

/// Events under time limits. When a limit fires, the stream under it is dropped at once, which
/// closes its connection, and the failure is the last item.
pub struct StallEvents<S> {
    /// `None` once over.
    events: Option<S>,
    clocks: Clocks,
    /// Boxed: few have a floor.
    hold: Option<Box<Hold<Event>>>,
}

impl<S> StallEvents<S> {
    /// `events` under `clocks`.
    pub fn new(events: S, clocks: Clocks) -> Self {
        let hold = clocks.floor().map(|floor| Box::new(Hold::new(floor)));
        Self { events: Some(events), clocks, hold }
    }

    /// Takes note of what has come.
    #[inline]
    fn came(&mut self, event: &Event) -> bool {
        let content = event.is_content();
        self.clocks.came(content);
        if !content && event.ends_block() {
            self.clocks.progressed();
        }
        content
    }

    fn deliver(&mut self, event: Event) -> Poll<Option<Result<Event, Failure>>> {
        if event.is_content() {
            self.clocks.delivered();
        }
        Poll::Ready(Some(Ok(event)))
    }

    /// The end: whatever is held back was never seen and never will be.
    fn fail(&mut self, failure: Failure) -> Poll<Option<Result<Event, Failure>>> {
        self.events = None;
        let held = self.hold.take().is_some_and(|hold| hold.is_holding());
        Poll::Ready(Some(Err(self.clocks.told(failure, held))))
    }
}

impl<S> Stream for StallEvents<S>
where
    S: Stream<Item = Result<Event, Failure>> + Unpin,
{
    type Item = Result<Event, Failure>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = &mut *self;
        loop {
            if let Some(hold) = &mut this.hold {
                if let Some(event) = hold.pop() {
                    return this.deliver(event);
                }
                if hold.is_over() {
                    this.hold = None;
                }
            }
            let Some(events) = &mut this.events else { return Poll::Ready(None) };
            if let Some(failure) = this.clocks.overdue() {
                return this.fail(failure);
            }
            let polled = Pin::new(events).poll_next(cx);
            if this.hold.is_none()
                && let Poll::Ready(Some(Ok(event))) = &polled
            {
                if this.came(event) {
                    this.clocks.delivered();
                }
                return polled;
            }
            match polled {
                Poll::Ready(Some(Ok(event))) => {
                    let content = this.came(&event);
                    let Some(hold) = &mut this.hold else { return this.deliver(event) };
                    let about = Piece {
                        content,
                        chars: chars(&event),
                        bytes: event.size(),
                        end: event.is_end(),
                    };
                    if let Some(event) = hold.push(event, about, &mut this.clocks) {
                        return this.deliver(event);
                    }
                }
                Poll::Ready(Some(Err(failure))) => return this.fail(failure),
                Poll::Ready(None) => {
                    this.events = None;
                    if let Some(hold) = &mut this.hold {
                        hold.release(&mut this.clocks);
                    }
                }
                Poll::Pending => {
                    let failure = ready!(this.clocks.poll_fired(cx));
                    return this.fail(failure);
                }
            }
        }
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        // A limit may end it at any time.
        (0, None)
    }
}

/// Characters in it that a reader, or a tool, waits for.
fn chars(event: &Event) -> usize {
    event
        .deltas
        .iter()
        .map(|delta| match delta {
            Delta::Text { text, .. } | Delta::Thinking { text, .. } => text.chars().count(),
            Delta::Arguments { json, .. } => json.chars().count(),
            Delta::ToolCall { name, .. } => name.chars().count(),
            Delta::Redacted { data, .. } => data.len(),
            Delta::Opaque { block, .. } => block.json.get().len(),
            _ => 0,
        })
        .sum()
}

impl<S> fmt::Debug for StallEvents<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StallEvents")
            .field("over", &self.events.is_none())
            .field("clocks", &self.clocks)
            .finish_non_exhaustive()
    }
}
