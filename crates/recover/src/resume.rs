//! Broken streams: when they are resumed, and how.

use std::{fmt, sync::Arc};

use steadfast_chat::{ChatRequest, Event, ThinkingConfig};
use steadfast_core::{
    Attempt, BudgetSource, Call, Dialect, Failover, Failure, FaultSide, Preference, Reason, Retry,
    RetryBudget, Target, Usage,
};

use crate::{
    PolicyError, ResumePoint,
    call::Reserved,
    event,
    events::RecoveredEvents,
    held_calls::{HeldCalls, is_ping},
    join::Join,
    layer::{RecoverHandle, RecoverLayer, RecoverState},
    overlap::{Overlap, OverlapPolicy},
    policy::{AnswerInProgress, EventStep, NextAction, Recovery},
    request,
    service::{Recover, RecoverFuture},
};

/// Resumes streams that break after content. See the [crate's documentation](crate).
pub type StreamResumeLayer = RecoverLayer<ResumePolicy>;

/// Resumes broken streams of the inner service; see [`StreamResumeLayer`].
pub type StreamResume<S> = Recover<S, ResumePolicy>;

/// The future of a call through a [`StreamResume`].
pub type ResumeFuture<S, F> = RecoverFuture<S, F, ResumePolicy>;

/// The events of an answer, from one stream and, when that breaks, from those that resume it.
pub type ResumedEvents<S, E> = RecoveredEvents<S, E, ResumePolicy>;

/// Reads and resets the counters of a [`StreamResumeLayer`].
pub type ResumeHandle = RecoverHandle<ResumePolicy>;

/// How broken streams are resumed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
#[cfg_attr(feature = "serde", serde(default, deny_unknown_fields))]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub struct ResumePolicy {
    /// How often one answer is resumed, at most; 0 for never.
    pub resumes: u32,
    /// The most text of an answer to keep, and the most to hold back of a tool call, in bytes; a longer
    /// answer that breaks, or one that breaks in a larger call, is not resumed.
    pub max_partial: usize,
    /// How the overlap of the two answers is found.
    #[cfg_attr(feature = "serde", serde(skip))]
    pub overlap: OverlapPolicy,
}

impl Default for ResumePolicy {
    /// 2 resumes: the same target once more, then another. 1 MiB: four times the longest answer of
    /// current models, 64,000 tokens of about four bytes each.
    fn default() -> Self {
        Self { resumes: 2, max_partial: 1 << 20, overlap: OverlapPolicy::default() }
    }
}

impl ResumePolicy {
    /// Checks the policy.
    ///
    /// # Errors
    ///
    /// The first invalid value.
    pub fn validate(&self) -> Result<(), PolicyError> {
        if self.max_partial == 0 {
            return Err(PolicyError::Zero("max_partial", ", or set `resumes` to 0"));
        }
        self.overlap.validate()
    }
}

/// What a [`StreamResumeLayer`] did since it was created.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ResumeSnapshot {
    /// Streams that broke, resumed ones that broke again included.
    pub broken: u64,
    /// Streams that continued where they broke.
    pub resumed: u64,
    /// Failures passed on.
    pub declined: u64,
    /// Tokens the broken parts of resumed streams are known or estimated to have used.
    pub wasted_tokens: u64,
}

impl StreamResumeLayer {
    /// Which targets accept a *prefill*: continue a last message of the model's own. By default none, and
    /// a user message asks the model to repeat the end of the text. `accepts` is called with the target
    /// that answers, when it is known, and its dialect. A prefill is not used with thinking, and when
    /// another target answers that does not accept it, the overlap is searched for instead.
    ///
    /// ```
    /// use steadfast_recover::StreamResumeLayer;
    ///
    /// let layer = StreamResumeLayer::default().with_prefill(|target, _| {
    ///     target.and_then(|target| target.model()).is_some_and(|model| model.starts_with("claude-3"))
    /// });
    /// ```
    pub fn with_prefill(
        self,
        accepts: impl Fn(Option<&Target>, Dialect) -> bool + Send + Sync + 'static,
    ) -> Self {
        self.with(|_, options| options.prefill = Some(Arc::new(accepts)))
    }

    /// Draws every resume from `budget`, even if the request has one. Without this the budget of the
    /// request is used, else one of the layer's.
    pub fn with_budget(self, budget: RetryBudget) -> Self {
        self.with(|_, options| options.budget = BudgetSource::Own(budget))
    }

    /// Draws from no budget.
    pub fn without_budget(self) -> Self {
        self.with(|_, options| options.budget = BudgetSource::Unlimited)
    }
}

type AcceptsPrefill = dyn Fn(Option<&Target>, Dialect) -> bool + Send + Sync;

/// Settings of the layer besides the policy.
#[derive(Clone, Default)]
pub struct ResumeOptions {
    /// Which targets accept a prefill. By default none: current models of Anthropic refuse it, those of
    /// OpenAI answer it like any other message.
    prefill: Option<Arc<AcceptsPrefill>>,
    budget: BudgetSource,
}

impl ResumeOptions {
    fn accepts_prefill(&self, target: Option<&Target>, dialect: Dialect) -> bool {
        self.prefill.as_ref().is_some_and(|accepts| accepts(target, dialect))
    }
}

impl fmt::Debug for ResumeOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResumeOptions")
            .field("prefill", &self.prefill.is_some())
            .field("budget", &self.budget)
            .finish()
    }
}

/// The state of one answer that may break.
#[derive(Debug, Default)]
pub struct ResumeState {
    /// Tool calls that are not complete.
    held: HeldCalls,
    /// It broke in a call that was held back, and nothing has been delivered since.
    in_call: bool,
    /// The last message of the request is the model's own.
    prefilled: bool,
    /// The failure for the caller if this resume fails.
    failure: Option<Failure>,
    attempts: Vec<Attempt>,
    /// Targets whose failure says that they are not to be asked again.
    not_again: Vec<Target>,
}

type LayerState = RecoverState<ResumePolicy>;
type BrokenAnswer = AnswerInProgress<ResumePolicy>;

impl Recovery for ResumePolicy {
    type Options = ResumeOptions;
    type Snapshot = ResumeSnapshot;
    type State = ResumeState;

    fn off() -> Self {
        Self { resumes: 0, ..Self::default() }
    }

    fn check(&self) -> Result<(), PolicyError> {
        self.validate()
    }

    fn begin(&self, request: &ChatRequest) -> Option<(usize, ResumeState)> {
        // Of several answers only the first is read; the frames have the others.
        let limit = if has_several_answers(request) { 0 } else { self.max_partial };
        let state =
            || ResumeState { held: HeldCalls::until_followed(limit), ..ResumeState::default() };
        (self.resumes > 0).then(|| (self.max_partial, state()))
    }

    fn ends_well(answer: &BrokenAnswer, event: &Event) -> bool {
        event.is_end() && answer.state.held.is_empty()
    }

    fn passes(answer: &BrokenAnswer, _: &Event) -> bool {
        answer.state.held.is_empty() && !answer.state.held.waits(&answer.partial)
    }

    fn take(answer: &mut BrokenAnswer, event: Event) -> EventStep {
        if is_ping(&event) {
            return EventStep::Give(event, None);
        }
        let held = &mut answer.state.held;
        answer.out.extend(held.release_followed(&answer.partial));
        let Some(event) = held.hold(event, &answer.partial) else { return EventStep::More };
        if held.is_empty() && answer.out.is_empty() {
            return EventStep::Give(event, None);
        }
        answer.out.extend(held.release());
        answer.out.push_back(event);
        EventStep::More
    }

    fn failed(
        shared: &LayerState,
        answer: &mut BrokenAnswer,
        failure: Failure,
        call: bool,
    ) -> NextAction {
        shared.count(|counts| counts.broken += u64::from(!call));
        let drops_call = answer.state.held.drop_cut(&mut answer.partial, &mut answer.out);
        answer.state.in_call |= drops_call;
        let reserved = match may_continue(shared, answer, &failure, call) {
            Ok(reserved) => reserved,
            Err(why) => return give_up(shared, answer, failure, why),
        };
        let lost = match call {
            true => Usage::default(),
            false => answer.partial.used(answer.request.needs().input_tokens),
        };
        shared.count(|counts| counts.wasted_tokens += lost.total().unwrap_or(0));
        let further = answer.further();
        further.calls += 1;
        further.used = further.used.plus(&lost);
        answer.state.attempts.push(Attempt::from_failure(&failure));
        let (text, target) = (answer.partial.text(), answer.target.as_ref());
        let context = &answer.request.context;
        event::resuming(context, &failure, target, answer.calls(), text.len(), &lost);
        let in_text = answer.partial.resume_point() == ResumePoint::Text;
        let prefilled = in_text
            && !text.trim().is_empty()
            && !thinks(&answer.request)
            && shared.options.accepts_prefill(target, answer.dialect);
        // A stream breaks by chance; one that breaks twice may break there always, and one that ends with a
        // failure for which its target is not to be asked again does.
        if failure.retry() != Retry::Yes {
            let failed = failure.target().filter(|_| call).or(target);
            answer.state.not_again.extend(failed.cloned());
        }
        let preference = match (&*answer.state.not_again, answer.calls()) {
            ([], 0 | 1) => answer.target.clone().map(Preference::For),
            ([], _) => answer.target.clone().map(Preference::Against),
            (failed, _) => Some(Preference::Except(failed.to_vec())),
        };
        let mut request = match (prefilled, in_text) {
            (true, _) => request::prefilled(&answer.request, text),
            (false, true) => request::repeating(&answer.request, text, &shared.policy.overlap),
            (false, false) => answer.request.clone(),
        };
        request.context.preference = preference.map(Arc::new);
        answer.state.prefilled = prefilled;
        // The caller gets the failure that broke the stream, as without resumes.
        answer.state.failure.get_or_insert(failure);
        NextAction::Call(Box::new(request), reserved)
    }

    fn join(shared: &LayerState, answer: &mut BrokenAnswer) -> Join {
        let text = answer.partial.text();
        let (target, dialect) = (answer.target.as_ref(), answer.dialect);
        let overlap = if text.is_empty() {
            None
        } else if answer.state.prefilled && shared.options.accepts_prefill(target, dialect) {
            Some(Overlap::prefilled(text))
        } else {
            Some(Overlap::new(text, shared.policy.overlap.clone()))
        };
        let used = answer.further().used;
        Join::new(&mut answer.partial, overlap, false, used).before_call(answer.state.in_call)
    }

    fn joined(shared: &LayerState, answer: &mut BrokenAnswer, event: &Event) {
        let is_open = answer.join().is_some_and(|join| join.is_open());
        if is_open || !(event.is_content() || event.is_end()) {
            return;
        }
        answer.state.in_call = false;
        if answer.state.failure.take().is_some() {
            answer.further().deadline = None;
            shared.count(|counts| counts.resumed += 1);
            event::resumed(&answer.request.context, answer.target.as_ref(), answer.calls());
        }
    }

    fn not_joined(
        shared: &LayerState,
        answer: &mut BrokenAnswer,
        failure: Failure,
        why: &'static str,
    ) -> NextAction {
        give_up(shared, answer, failure, why)
    }
}

/// Whether the answer may be resumed after `failure`: the reservation, or why not.
fn may_continue(
    shared: &LayerState,
    answer: &BrokenAnswer,
    failure: &Failure,
    call: bool,
) -> Result<Reserved, &'static str> {
    // A refusal of our own would be repeated at once.
    if !may_resume(failure) || (call && failure.reason().is_refusal()) {
        return Err(if call { "call_failed" } else { "reason" });
    }
    let point = answer.partial.resume_point();
    // A stream that broke before any content is repeated by the layers inside; one that broke in a call,
    // which is content to them, is not.
    let is_untouched = point == ResumePoint::Nothing && answer.state.in_call;
    if !point.is_resumable() && !is_untouched {
        return Err(point.as_str());
    }
    if has_several_answers(&answer.request) {
        return Err("several_answers");
    }
    if answer.calls() >= shared.policy.resumes {
        return Err("resumes_spent");
    }
    if let Some(why) = answer.no_call() {
        return Err(why);
    }
    let budget = shared.options.budget.of(&answer.request.context, &shared.fallback);
    Reserved::reserve(budget, failure.reason()).ok_or("budget")
}

/// The answer is over, with a failure for the caller.
fn give_up(
    shared: &LayerState,
    answer: &mut BrokenAnswer,
    failure: Failure,
    why: &'static str,
) -> NextAction {
    shared.count(|counts| counts.declined += 1);
    event::declined(&answer.request.context, &failure, why);
    let mut reported = failure;
    if answer.further.is_some() {
        let mut attempts = std::mem::take(&mut answer.state.attempts);
        attempts.push(Attempt::from_failure(&reported));
        // A final failure is reported itself.
        if let Some(first) = answer.state.failure.take()
            && reported.retry() != Retry::Forbidden
        {
            reported = first;
        }
        if reported.trail().is_empty() && attempts.len() > 1 {
            reported = reported.with_trail(attempts);
        }
    }
    NextAction::Over(Some(match answer.partial.resume_point() {
        // A call that was held back was content to the layers inside.
        ResumePoint::Nothing => reported.without_delivered(),
        _ => reported.with_delivered(),
    }))
}

/// Whether `request` asks for more than one answer.
fn has_several_answers(request: &ChatRequest) -> bool {
    request.params.answers.is_some_and(|answers| answers > 1)
}

/// Whether `request` has thinking, with which there can be no prefill.
fn thinks(request: &ChatRequest) -> bool {
    !matches!(request.params.thinking, None | Some(ThinkingConfig::Off))
}

/// Whether a stream that broke with `failure` may be resumed at all: not after a final failure, nor
/// beyond the caller's own limits.
fn may_resume(failure: &Failure) -> bool {
    let forbidden =
        failure.retry() == Retry::Forbidden || failure.failover() == Failover::Forbidden;
    let caller = failure.fault() == FaultSide::Caller
        || failure.reason() == Reason::Cancelled
        || failure.time_limit().is_some_and(|limit| !limit.blames_provider());
    let hopeless = failure.retry() == Retry::No && failure.failover() == Failover::Never;
    !(forbidden || caller || hopeless)
}

#[cfg(test)]
mod tests {
    use steadfast_core::TimeLimit;

    use super::*;

    #[test]
    fn retryable_failures_are_resumed() {
        let resumed = |reason| may_resume(&Failure::new(reason, ""));
        for reason in [Reason::Network, Reason::Timeout, Reason::Overloaded, Reason::ServerError] {
            assert!(resumed(reason), "{reason}");
        }
        for reason in [Reason::Safety, Reason::Cancelled, Reason::ContentFilter, Reason::Format] {
            assert!(!resumed(reason), "{reason}");
        }
        let timeout = |limit| Failure::new(Reason::Timeout, "").with_time_limit(limit);
        assert!(may_resume(&timeout(TimeLimit::Stall)));
        assert!(!may_resume(&timeout(TimeLimit::Pipeline)));
        assert!(!may_resume(&Failure::new(Reason::Network, "").with_retry(Retry::Forbidden)));
    }
}
