//! What continuation and resume have in common, and where they differ.

use std::{collections::VecDeque, fmt, pin::Pin};

use steadfast_chat::{ChatRequest, Event, Head};
use steadfast_core::{
    CallContext, Deadline, Dialect, Failure, RetryBudget, Target, Usage, Withdrawal,
};
use tokio::time::Sleep;

use crate::{Partial, PolicyError, buffers, call::Reserved, join::Join, layer::RecoverState};

/// When an answer is continued, and how: a [`ContinuationPolicy`](crate::ContinuationPolicy) or a
/// [`ResumePolicy`](crate::ResumePolicy). Sealed: [`RecoveredEvents`] drives both.
///
/// [`RecoveredEvents`]: crate::RecoveredEvents
pub trait Recovery: Clone + fmt::Debug + Default {
    /// Settings of the layer besides the policy.
    type Options: Clone + fmt::Debug + Default;

    /// What the layer did so far.
    type Snapshot: Copy + fmt::Debug + Default;

    /// The state of one answer.
    type State: Unpin;

    fn off() -> Self;

    /// `validate`, of either policy.
    fn check(&self) -> Result<(), PolicyError>;

    /// Changes the first call of a request as the policy wants it.
    fn adapt(&self, _request: &mut ChatRequest) {}

    /// The most text to keep of an answer, and its state; `None` for an answer that is not continued.
    fn begin(&self, request: &ChatRequest) -> Option<(usize, Self::State)>;

    /// Whether `event` ends an answer that needs no further call: it is not even recorded.
    fn ends_well(answer: &AnswerInProgress<Self>, event: &Event) -> bool;

    /// Whether `event`, which the partial answer has recorded, is delivered unchanged.
    fn passes(answer: &AnswerInProgress<Self>, event: &Event) -> bool;

    /// Handles an event that does not pass.
    fn take(answer: &mut AnswerInProgress<Self>, event: Event) -> EventStep;

    /// The stream is over and the answer was cut off ([`EventStep::Cut`]).
    fn cut(_shared: &RecoverState<Self>, _answer: &mut AnswerInProgress<Self>) -> NextAction {
        NextAction::Over(None)
    }

    /// The stream failed, or (`call`) a further call.
    fn failed(
        shared: &RecoverState<Self>,
        answer: &mut AnswerInProgress<Self>,
        failure: Failure,
        call: bool,
    ) -> NextAction;

    /// How the stream of a further call is joined to what was delivered.
    fn join(shared: &RecoverState<Self>, answer: &mut AnswerInProgress<Self>) -> Join;

    /// An event of a further call is delivered.
    fn joined(_shared: &RecoverState<Self>, _answer: &mut AnswerInProgress<Self>, _event: &Event) {}

    /// The further stream does not continue what was delivered, or the overlap was not found in time.
    fn not_joined(
        _shared: &RecoverState<Self>,
        _answer: &mut AnswerInProgress<Self>,
        failure: Failure,
        _why: &'static str,
    ) -> NextAction {
        NextAction::Over(Some(failure))
    }
}

/// An answer whose head has come, and what is needed to continue it.
pub struct AnswerInProgress<P: Recovery> {
    pub(crate) request: ChatRequest,
    pub(crate) partial: Partial,
    /// The target that answers, when it is known.
    pub(crate) target: Option<Target>,
    /// The dialect of the current stream, and the one the answer began in.
    pub(crate) dialect: Dialect,
    pub(crate) first_dialect: Dialect,
    /// How often a provider was called for the request, before it came here included.
    attempts: u32,
    /// The same, before the current call.
    before: u32,
    pub(crate) state: P::State,
    /// To be delivered next.
    pub(crate) out: VecDeque<Event>,
    /// What is needed once there is a further call.
    pub(crate) further: Option<Box<Further>>,
}

/// The further calls of an answer.
#[derive(Debug, Default)]
pub(crate) struct Further {
    pub(crate) join: Option<Join>,
    /// How many there were.
    pub(crate) calls: u32,
    /// The usage of the streams before the current one.
    pub(crate) used: Usage,
    /// Refunded when the answer succeeds.
    pub(crate) spent: Vec<(RetryBudget, Withdrawal)>,
    /// Fires at the deadline, until the further answer is joined.
    pub(crate) deadline: Option<Pin<Box<Sleep>>>,
}

/// What to do with one event. What was held back before it is in the queue.
#[derive(Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "nearly every event is delivered; a box would be allocated"
)]
pub enum EventStep {
    /// Deliver it, and then the second one.
    Give(Event, Option<Event>),
    /// Deliver the queue, or read the next event.
    More,
    /// The stream is over, and the answer was cut off.
    Cut,
}

/// What to do with an answer whose stream is over.
#[derive(Debug)]
pub enum NextAction {
    /// Continue it with this request.
    Call(Box<ChatRequest>, Reserved),
    /// It is over: deliver the queue and then the failure, if any.
    Over(Option<Failure>),
}

impl<P: Recovery> AnswerInProgress<P> {
    /// The answer to `request`, before its head has come; `None` for one that is not continued. In a box: it is larger
    /// than everything else that a call carries, and would be moved by each layer outside.
    pub(crate) fn expect(policy: &P, request: ChatRequest) -> Option<Box<Self>> {
        let (most, state) = policy.begin(&request)?;
        let before = request.context.attempts;
        Some(Box::new(Self {
            request,
            partial: Partial::new(most),
            target: None,
            dialect: Dialect::OpenAi,
            first_dialect: Dialect::OpenAi,
            attempts: before,
            before,
            state,
            out: VecDeque::new(),
            further: None,
        }))
    }

    /// Its head has come.
    pub(crate) fn begin(&mut self, head: &Head) {
        self.partial.text = buffers::take();
        self.partial.calls.set_source(head.dialect, self.request.stream);
        self.target.clone_from(&head.target);
        (self.dialect, self.first_dialect) = (head.dialect, head.dialect);
        self.attempts = attempts(self.before, head);
    }

    /// How many further calls there were.
    pub(crate) fn calls(&self) -> u32 {
        self.further.as_ref().map_or(0, |further| further.calls)
    }

    pub(crate) fn further(&mut self) -> &mut Further {
        self.further.get_or_insert_default()
    }

    pub(crate) fn join(&mut self) -> Option<&mut Join> {
        self.further.as_mut()?.join.as_mut()
    }

    /// How often a provider was called for the request. The log counts the attempts that layers inside made
    /// after the head of their answer too, when the service at the bottom counts any.
    fn attempts(&self) -> u32 {
        self.attempts.max(self.request.context.log.attempts())
    }

    /// A further call is made with `context`, which counts the attempts before it.
    pub(crate) fn called(&mut self, context: &mut CallContext) {
        self.attempts = self.attempts();
        self.before = self.attempts;
        context.attempts = self.attempts;
    }

    /// A further call is answered.
    pub(crate) fn answered(&mut self, head: &Head) {
        self.attempts = attempts(self.before, head);
    }

    /// The current call has failed, or its stream, with the attempts of that call.
    pub(crate) fn failed(&mut self, failure: &Failure) {
        self.attempts = self.attempts.max(self.before.saturating_add(failure.attempts()));
    }

    /// `failure` with the attempts of all calls that were made here.
    pub(crate) fn counted(&self, failure: Failure) -> Failure {
        failure.with_attempts(self.attempts().saturating_sub(self.request.context.attempts))
    }

    /// Why no further call can be made, as far as the request's deadline and attempts go.
    pub(crate) fn no_call(&self) -> Option<&'static str> {
        let context: &CallContext = &self.request.context;
        if context.deadline.is_some_and(Deadline::is_past) {
            Some("deadline")
        } else if context.max_attempts.is_some_and(|most| self.attempts() >= most.get()) {
            Some("attempts_spent")
        } else {
            None
        }
    }
}

/// The attempts made for a request whose answer has this head, `before` of them for earlier calls. A client
/// counts those too; a service that does not count at all reports one.
fn attempts(before: u32, head: &Head) -> u32 {
    match head.attempts {
        0 => before,
        counted => counted.max(before.saturating_add(1)),
    }
}

impl<P: Recovery> Drop for AnswerInProgress<P> {
    fn drop(&mut self) {
        buffers::put(std::mem::take(&mut self.partial.text));
    }
}

impl<P: Recovery> fmt::Debug for AnswerInProgress<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AnswerInProgress").field("partial", &self.partial).finish_non_exhaustive()
    }
}
