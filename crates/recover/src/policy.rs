//! What the two ways to go on with an answer have in common, and where they differ.

use std::{collections::VecDeque, fmt, pin::Pin};

use steadfast_chat::{ChatRequest, Event, Head};
use steadfast_core::{
    CallContext, Deadline, Dialect, Failure, RetryBudget, Target, Usage, Withdrawal,
};
use tokio::time::Sleep;

use crate::{Partial, PolicyError, buffers, call::Reserved, join::Join, layer::RecoverState};

/// When an answer is gone on with, and how: a [`ContinuationPolicy`](crate::ContinuationPolicy) or a
/// [`ResumePolicy`](crate::ResumePolicy). Sealed: what is around them ([`RecoveredEvents`]) is the
/// same for both.
///
/// [`RecoveredEvents`]: crate::RecoveredEvents
pub trait Recovery: Clone + fmt::Debug + Default {
    /// What the layer was given beside the policy.
    type Options: Clone + fmt::Debug + Default;

    /// What the layer did so far.
    type Snapshot: Copy + fmt::Debug + Default;

    /// What is known of one answer.
    type State: Unpin;

    fn off() -> Self;

    /// `validate`, of either policy.
    fn check(&self) -> Result<(), PolicyError>;

    /// The most text to keep of an answer, and its state; `None` for an answer to leave alone.
    fn begin(&self, request: &ChatRequest) -> Option<(usize, Self::State)>;

    /// Whether `event` ends an answer that needs nothing: it is not even read.
    fn ends_well(answer: &Answer<Self>, event: &Event) -> bool;

    /// Whether `event`, which the partial answer has seen, is given as it is.
    fn passes(_answer: &Answer<Self>, _event: &Event) -> bool {
        true
    }

    /// An event that does not pass.
    fn take(_answer: &mut Answer<Self>, event: Event) -> Step {
        Step::Give(event, None)
    }

    /// The stream is over and the answer was cut off ([`Step::Cut`]).
    fn cut(_shared: &RecoverState<Self>, _answer: &mut Answer<Self>) -> Next {
        Next::Over(None)
    }

    /// The stream failed, or (`call`) the call that was to go on with it.
    fn failed(
        shared: &RecoverState<Self>,
        answer: &mut Answer<Self>,
        failure: Failure,
        call: bool,
    ) -> Next;

    /// How the stream of a further call is joined to what was shown.
    fn join(shared: &RecoverState<Self>, answer: &mut Answer<Self>) -> Join;

    /// An event from behind the join is given to the caller.
    fn joined(_shared: &RecoverState<Self>, _answer: &mut Answer<Self>, _event: &Event) {}

    /// The further stream does not go on with what was shown, or that could not be found in time.
    fn not_joined(
        _shared: &RecoverState<Self>,
        _answer: &mut Answer<Self>,
        failure: Failure,
        _why: &'static str,
    ) -> Next {
        Next::Over(Some(failure))
    }
}

/// An answer whose head is there, and what it takes to go on with it.
pub struct Answer<P: Recovery> {
    pub(crate) request: ChatRequest,
    pub(crate) partial: Partial,
    /// Who answers, when that is known.
    pub(crate) target: Option<Target>,
    /// The dialect of the stream under way, and the one the answer began in.
    pub(crate) dialect: Dialect,
    pub(crate) first_dialect: Dialect,
    /// How often a provider was asked.
    pub(crate) asked: u32,
    pub(crate) state: P::State,
    /// To be given to the caller next.
    pub(crate) out: VecDeque<Event>,
    /// What is needed once it was gone on with.
    pub(crate) further: Option<Box<Further>>,
}

/// The further calls of an answer.
#[derive(Debug, Default)]
pub(crate) struct Further {
    pub(crate) join: Option<Join>,
    /// How many there were.
    pub(crate) calls: u32,
    /// What the streams before the one under way used.
    pub(crate) used: Usage,
    /// Goes back into the budget when the answer ends well.
    pub(crate) spent: Vec<(RetryBudget, Withdrawal)>,
    /// Fires at the deadline; armed until the further answer is joined.
    pub(crate) deadline: Option<Pin<Box<Sleep>>>,
}

/// What becomes of one event. What was held back before it is in the queue.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "nearly every one gives; a box would be allocated")]
pub enum Step {
    /// The caller is given it, and then perhaps another one.
    Give(Event, Option<Event>),
    /// See the queue, or read on.
    More,
    /// The stream is over, and the answer was cut off.
    Cut,
}

/// What becomes of an answer whose stream is over.
#[derive(Debug)]
pub enum Next {
    /// It is gone on with by this request.
    Call(Box<ChatRequest>, Reserved),
    /// It is over: the queue and then the failure, if any, are given to the caller.
    Over(Option<Failure>),
}

impl<P: Recovery> Answer<P> {
    /// An answer to `request`; `None` for one to leave alone.
    pub(crate) fn begin(policy: &P, request: ChatRequest, head: &Head) -> Option<Self> {
        let (most, state) = policy.begin(&request)?;
        let mut partial = Partial::new(most);
        partial.text = buffers::take();
        partial.calls.reads(head.dialect, request.stream);
        Some(Self {
            request,
            partial,
            target: head.target.clone(),
            dialect: head.dialect,
            first_dialect: head.dialect,
            asked: head.attempts,
            state,
            out: VecDeque::new(),
            further: None,
        })
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

    /// Why no further call can be made, as far as the request's deadline and attempts go.
    pub(crate) fn no_call(&self) -> Option<&'static str> {
        let context: &CallContext = &self.request.context;
        if context.deadline.is_some_and(Deadline::is_past) {
            Some("deadline")
        } else if context.max_attempts.is_some() && context.attempts_left() <= self.asked {
            Some("attempts_spent")
        } else {
            None
        }
    }
}

impl<P: Recovery> Drop for Answer<P> {
    fn drop(&mut self) {
        buffers::put(std::mem::take(&mut self.partial.text));
    }
}

impl<P: Recovery> fmt::Debug for Answer<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Answer").field("partial", &self.partial).finish_non_exhaustive()
    }
}
