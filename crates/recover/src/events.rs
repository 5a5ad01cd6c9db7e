//! An answer that may be continued by further calls.

use std::{
    collections::VecDeque,
    fmt,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use futures_core::Stream;
use steadfast_chat::{ChatRequest, ChatResponse, Event, Events};
use steadfast_core::{Failure, Reason, RetryBudget, Withdrawal};
use tower_service::Service;

use crate::{
    call::FurtherCall,
    policy::{AnswerInProgress, EventStep, Further, NextAction, Recovery},
    service::Source,
};

/// The events of an answer and of the calls that continue it, as one stream. It ends after its first
/// error. Dropping it ends whatever is under way; the reservation of a call that was not sent goes back
/// into the budget.
///
/// In order: its events are delivered and recorded ([`Partial`](crate::Partial)); when it is cut off or
/// breaks, the policy decides whether to continue, and makes the request; the call is made; its events
/// are joined to what was delivered.
pub struct RecoveredEvents<S: Service<ChatRequest>, E, P: Recovery> {
    /// `None` while there is no stream to read.
    events: Option<E>,
    /// `None` once the answer can not need a further call.
    answer: Option<Box<AnswerInProgress<P>>>,
    source: Arc<Source<S, P>>,
    /// Boxed, since few answers have one.
    call: Option<Box<FurtherCall<S>>>,
    /// To be returned next, once `answer` is `None`.
    out: VecDeque<Event>,
    /// To be returned after that; not in the queue, which would have to be allocated.
    then: Option<Event>,
    /// To be returned last.
    failure: Option<Failure>,
}

impl<S: Service<ChatRequest>, E, P: Recovery> RecoveredEvents<S, E, P> {
    pub(crate) fn new(
        events: E,
        answer: Option<Box<AnswerInProgress<P>>>,
        source: Arc<Source<S, P>>,
    ) -> Self {
        let (call, out) = (None, VecDeque::new());
        Self { events: Some(events), answer, source, call, out, then: None, failure: None }
    }
}

impl<S, E, P> RecoveredEvents<S, E, P>
where
    S: Service<ChatRequest, Response = ChatResponse<E>> + Clone,
    S::Error: Into<Failure>,
    E: Events + Unpin,
    P: Recovery,
{
    /// Records an event of the first stream. Returns whether it is delivered unchanged, as most are.
    #[inline]
    fn passes(&mut self, event: &Event) -> bool {
        let Some(answer) = &mut self.answer else { return true };
        if answer.further.is_some() {
            return false;
        }
        if P::ends_well(answer, event) {
            self.answer = None;
            return true;
        }
        answer.partial.see(event);
        P::passes(answer, event)
    }

    /// Handles an event that is not delivered unchanged; returns the next event to deliver.
    fn take(&mut self, event: Event) -> Option<Event> {
        let Some(answer) = &mut self.answer else { return Some(event) };
        let event = match answer.further.as_mut().and_then(|further| further.join.as_mut()) {
            None => event,
            Some(join) => match join.take(event, &mut answer.partial) {
                Ok(event) => {
                    let event = event?;
                    P::joined(&self.source.shared, answer, &event);
                    event
                }
                Err(_) => {
                    self.not_joined(no_overlap(), "no_overlap");
                    return None;
                }
            },
        };
        let step = P::take(answer, event);
        if answer.partial.is_ended() && !matches!(step, EventStep::Cut) {
            // The cost of further calls is refunded.
            for (budget, cost) in self.finish().into_iter().flat_map(|further| further.spent) {
                budget.refund(cost);
            }
        }
        match step {
            EventStep::Give(event, then) => {
                self.then = then;
                Some(event)
            }
            EventStep::More => None,
            EventStep::Cut => {
                if let Some(answer) = &mut self.answer {
                    let next = P::cut(&self.source.shared, answer);
                    self.next_call(next);
                }
                None
            }
        }
    }

    /// The answer can not need a further call any more.
    fn finish(&mut self) -> Option<Box<Further>> {
        let mut answer = self.answer.take()?;
        self.out = std::mem::take(&mut answer.out);
        answer.further.take()
    }

    /// The stream, or (`call`) the further call, failed.
    fn failed(&mut self, failure: Failure, call: bool) {
        let Some(answer) = &mut self.answer else {
            return self.next_call(NextAction::Over(Some(failure)));
        };
        answer.failed(&failure);
        if let Some(further) = &mut answer.further {
            (further.join, further.deadline) = (None, None);
        }
        let next = P::failed(&self.source.shared, answer, failure, call);
        self.next_call(next);
    }

    fn not_joined(&mut self, failure: Failure, why: &'static str) {
        if let Some(answer) = &mut self.answer {
            let next = P::not_joined(&self.source.shared, answer, failure, why);
            self.next_call(next);
        }
    }

    /// Makes the next call, or ends the answer.
    fn next_call(&mut self, next: NextAction) {
        self.events = None;
        match (next, &mut self.answer) {
            (NextAction::Call(mut request, reserved), Some(answer)) => {
                answer.partial.next_piece();
                answer.called(&mut request.context);
                let further = answer.further();
                further.join = None;
                further.deadline = request
                    .context
                    .deadline
                    .map(|deadline| Box::pin(tokio::time::sleep_until(deadline.instant())));
                let call = FurtherCall::new(self.source.spare.get(), *request, reserved);
                self.call = Some(Box::new(call));
            }
            (NextAction::Call(..), None) => {}
            (NextAction::Over(failure), answer) => {
                self.failure = match answer {
                    Some(answer) => failure.map(|failure| answer.counted(failure)),
                    None => failure,
                };
                self.finish();
            }
        }
    }

    /// A further call is answered.
    fn answered(&mut self, reply: ChatResponse<E>, spent: Option<(RetryBudget, Withdrawal)>) {
        let Some(answer) = &mut self.answer else { return };
        let (head, events) = reply.into_parts();
        answer.answered(&head);
        answer.target = head.target.or(answer.target.take());
        answer.dialect = head.dialect;
        answer.partial.calls.set_source(head.dialect, answer.request.stream);
        let join =
            P::join(&self.source.shared, answer).foreign(answer.dialect != answer.first_dialect);
        let further = answer.further();
        further.deadline = further.deadline.take().filter(|_| join.may_fail());
        further.join = Some(join);
        further.spent.extend(spent);
        self.events = Some(events);
    }

    /// Ready when the deadline passed during the wait for a further call, or for the overlap.
    fn poll_late(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let further = self.answer.as_mut().and_then(|answer| answer.further.as_mut());
        match further.and_then(|further| further.deadline.as_mut()) {
            Some(deadline) => ready!(deadline.as_mut().poll(cx)),
            None => return Poll::Pending,
        }
        let text = "the deadline passed before the answer was continued";
        let failure = Failure::refused(Reason::Timeout, text);
        match self.call.take() {
            Some(_) => self.failed(failure, true),
            None => self.not_joined(failure, "deadline"),
        }
        Poll::Ready(())
    }
}

fn no_overlap() -> Failure {
    Failure::new(
        Reason::Unknown,
        "the further answer does not continue the text that was delivered",
    )
    .with_evidence("overlap")
}

/// The failure of a stream that ends without its terminal event.
fn cut_off() -> Failure {
    Failure::new(Reason::Network, "the answer ended without its terminal event")
        .with_evidence("eof")
}

impl<S, E, P> Stream for RecoveredEvents<S, E, P>
where
    S: Service<ChatRequest, Response = ChatResponse<E>> + Clone,
    S::Error: Into<Failure>,
    E: Events + Unpin,
    P: Recovery,
{
    type Item = Result<Event, Failure>;

    #[inline]
    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        loop {
            let out = this.answer.as_mut().map_or(&mut this.out, |answer| &mut answer.out);
            if let Some(event) = out.pop_front().or_else(|| this.then.take()) {
                return Poll::Ready(Some(Ok(event)));
            }
            if let Some(failure) = this.failure.take() {
                return Poll::Ready(Some(Err(failure)));
            }
            if let Some(call) = &mut this.call {
                let Poll::Ready(reply) = call.poll(cx) else {
                    ready!(this.poll_late(cx));
                    continue;
                };
                this.call = None;
                match reply {
                    Ok((reply, spent)) => this.answered(reply, spent),
                    Err(failure) => this.failed(failure, true),
                }
                continue;
            }
            let Some(events) = &mut this.events else { return Poll::Ready(None) };
            match Pin::new(events).poll_next(cx) {
                Poll::Ready(Some(Ok(event))) => {
                    if this.passes(&event) {
                        return Poll::Ready(Some(Ok(event)));
                    }
                    if let Some(event) = this.take(event) {
                        return Poll::Ready(Some(Ok(event)));
                    }
                }
                Poll::Ready(Some(Err(failure))) => this.failed(failure, false),
                Poll::Ready(None) if this.answer.is_none() => return Poll::Ready(None),
                Poll::Ready(None) => this.failed(cut_off(), false),
                Poll::Pending => ready!(this.poll_late(cx)),
            }
        }
    }
}

impl<S: Service<ChatRequest>, E, P: Recovery> fmt::Debug for RecoveredEvents<S, E, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RecoveredEvents")
            .field("over", &self.answer.is_none())
            .field("further_calls", &self.answer.as_ref().map_or(0, |answer| answer.calls()))
            .finish_non_exhaustive()
    }
}
