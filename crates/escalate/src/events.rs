//! The events of an answer: the inner service's, or those of one written by hand.

use std::{
    fmt,
    pin::Pin,
    task::{Context, Poll},
    vec,
};

use futures_core::Stream;
use steadfast_chat::{ChatRequest, ChatResponse, Delta, Event, Events, Head, Stop, StopReason};
use steadfast_core::{Dialect, Failure, Usage};

/// The events of an answer through an [`Escalation`](crate::Escalation).
pub struct EscalatedEvents<S>(Source<S>);

enum Source<S> {
    /// As the inner service made them.
    Inner(S),
    /// Of an answer written by hand.
    Written(vec::IntoIter<Event>),
}

impl<S> EscalatedEvents<S> {
    pub(crate) fn inner(events: S) -> Self {
        Self(Source::Inner(events))
    }
}

impl<S: Events + Unpin> Stream for EscalatedEvents<S> {
    type Item = Result<Event, Failure>;

    #[inline]
    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        match &mut self.get_mut().0 {
            Source::Inner(events) => Pin::new(events).poll_next(cx),
            Source::Written(events) => Poll::Ready(events.next().map(Ok)),
        }
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        match &self.0 {
            Source::Inner(events) => events.size_hint(),
            Source::Written(events) => events.size_hint(),
        }
    }
}

impl<S> fmt::Debug for EscalatedEvents<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let written = matches!(self.0, Source::Written(_));
        f.debug_struct("EscalatedEvents").field("written", &written).finish_non_exhaustive()
    }
}

/// The answer to `request` that a person has written, after so many attempts.
pub(crate) fn answer_by_hand<S>(
    request: &ChatRequest,
    text: String,
    attempts: u32,
) -> ChatResponse<EscalatedEvents<S>> {
    let mut head = Head::new(request.dialect().unwrap_or(Dialect::OpenAi));
    (head.stream, head.attempts) = (request.stream, attempts);
    head.log = request.context.log.clone();
    let model = (!request.model.is_empty()).then(|| request.model.as_str().to_owned());
    let deltas = [
        Delta::Start { id: None, model },
        Delta::Text { index: 0, text },
        Delta::BlockEnd { index: 0 },
        // No model was asked.
        Delta::Usage(Usage::new(0, 0)),
        Delta::Stop(Stop::from(StopReason::EndTurn)),
        Delta::End,
    ];
    // A whole answer is one event.
    let events: Vec<Event> = match request.stream {
        true => deltas.into_iter().map(|delta| Event::new([delta])).collect(),
        false => vec![Event::new(deltas)],
    };
    ChatResponse::new(head, EscalatedEvents(Source::Written(events.into_iter())))
}
