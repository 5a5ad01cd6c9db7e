//! An answer that is held back until its end is known.

use std::{
    collections::VecDeque,
    pin::Pin,
    task::{Context, Poll, ready},
};

use futures_core::Stream;
use steadfast_chat::{ChatResponse, Event, Events};
use steadfast_core::Failure;

/// The most that is held back, in bytes: 1 MiB, more than the longest output limit of a model. A longer answer is
/// passed on as it comes.
const MOST: usize = 1 << 20;

/// An answer, and what of it is held back.
pub(crate) struct Withheld<S> {
    answer: Option<ChatResponse<S>>,
    events: VecDeque<Event>,
    bytes: usize,
}

/// An answer that is to be passed on, after what was read of it.
pub(crate) struct Released<S> {
    pub(crate) answer: ChatResponse<S>,
    pub(crate) events: VecDeque<Event>,
}

/// Why there is no answer, and the attempts in its head.
pub(crate) struct Broken {
    pub(crate) failure: Failure,
    pub(crate) attempts: u32,
}

impl<S: Events + Unpin> Withheld<S> {
    pub(crate) fn new(answer: ChatResponse<S>) -> Self {
        Self { answer: Some(answer), events: VecDeque::new(), bytes: 0 }
    }

    /// The answer, once its end, or too much of it, was read; `None` when it was returned before.
    ///
    /// # Errors
    ///
    /// That of the answer, of which nobody has seen anything.
    pub(crate) fn poll(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Option<Released<S>>, Broken>> {
        while let Some(answer) = &mut self.answer {
            let is_over = match ready!(Pin::new(&mut *answer).poll_next(cx)) {
                Some(Ok(event)) => {
                    self.bytes += event.size();
                    let is_end = event.is_end();
                    self.events.push_back(event);
                    is_end || self.bytes > MOST
                }
                Some(Err(failure)) => {
                    let attempts = answer.head.attempts;
                    self.answer = None;
                    let failure = failure.without_delivered();
                    return Poll::Ready(Err(Broken { failure, attempts }));
                }
                None => true,
            };
            if is_over {
                let events = std::mem::take(&mut self.events);
                let answer = self.answer.take();
                return Poll::Ready(Ok(answer.map(|answer| Released { answer, events })));
            }
        }
        Poll::Ready(Ok(None))
    }
}
