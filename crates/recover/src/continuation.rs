//! Truncated answers: when they are continued, and how.

use std::{fmt, sync::Arc};

use steadfast_chat::{ChatRequest, Delta, Event, StopReason};
use steadfast_core::{Call, Failure, Preference, Retry, Target, Usage};

use crate::{
    Partial, PolicyError,
    call::Reserved,
    event,
    events::RecoveredEvents,
    hold_back::HoldBack,
    join::Join,
    layer::{RecoverHandle, RecoverLayer, RecoverState},
    overlap::Overlap,
    policy::{AnswerInProgress, EventStep, NextAction, Recovery},
    request,
    service::{Recover, RecoverFuture},
};

/// Continues answers that were cut off by the output limit. See the [crate's documentation](crate).
pub type ContinuationLayer = RecoverLayer<ContinuationPolicy>;

/// Continues answers of the inner service that were cut off; see [`ContinuationLayer`].
pub type Continuation<S> = Recover<S, ContinuationPolicy>;

/// The future of a call through a [`Continuation`].
pub type ContinuationFuture<S, F> = RecoverFuture<S, F, ContinuationPolicy>;

/// The events of an answer and, when it is cut off, of what continues it.
pub type ContinuedEvents<S, E> = RecoveredEvents<S, E, ContinuationPolicy>;

/// Reads and resets the counters of a [`ContinuationLayer`].
pub type ContinuationHandle = RecoverHandle<ContinuationPolicy>;

/// The header by which a request asks, with the value `1`, to have its answer continued beyond an output
/// limit of its own. It goes to no provider.
pub const CONTINUE: &str = "x-steadfast-continue";

/// How cut-off answers are continued. Limits are in tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
#[cfg_attr(feature = "serde", serde(default, deny_unknown_fields))]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub struct ContinuationPolicy {
    /// The output limit to send for a caller who set none; 0, the default, for that of provider or
    /// dialect. With it a short answer costs no more room than it needs, and a long one is asked for
    /// again with `escalate_to`.
    pub first_limit: u64,
    /// What the output limit is raised to, once; 0 for never.
    pub escalate_to: u64,
    /// How often one answer is continued, at most; 0 for never.
    pub continuations: u32,
    /// A continuation with fewer new tokens than this counts as poor.
    pub little: u64,
    /// The number of poor continuations in a row after which there are no more; 0 for no such limit.
    pub poor_in_a_row: u32,
    /// Whether an answer is continued, and its limit raised, beyond an output limit that the caller set.
    /// Otherwise it ends there, unless the request has the header `x-steadfast-continue: 1`.
    pub when_callers_limit: bool,
    /// With `when_callers_limit`: an answer to a request for fewer tokens than this is not continued.
    pub least: u64,
    /// Holds back a streamed answer until its stop reason is known, so that the output limit can be
    /// raised for it too.
    pub withhold: bool,
    /// The most to keep or hold back of an answer, in bytes. A longer one is not continued.
    pub max_partial: usize,
}

impl Default for ContinuationPolicy {
    /// 64,000: the most that current models write in one answer; with the usual limit of 8,000 one raise
    /// is enough for nearly all. 3 continuations of that are longer than any answer. Fewer than 500
    /// tokens, three times in a row, is a model in a loop. A caller who sets a limit may rely on it, to
    /// pay no more or to fill a page. A request for fewer than 256 tokens is for a title or a label. 1
    /// MiB: see [`ResumePolicy`](crate::ResumePolicy).
    fn default() -> Self {
        Self {
            first_limit: 0,
            escalate_to: 64_000,
            continuations: 3,
            little: 500,
            poor_in_a_row: 3,
            when_callers_limit: false,
            least: 256,
            withhold: false,
            max_partial: 1 << 20,
        }
    }
}

impl ContinuationPolicy {
    /// Checks the policy.
    ///
    /// # Errors
    ///
    /// The first invalid value.
    pub fn validate(&self) -> Result<(), PolicyError> {
        if self.max_partial == 0 {
            let off = ", or set `continuations` and `escalate_to` to 0";
            return Err(PolicyError::Zero("max_partial", off));
        }
        Ok(())
    }

    /// Whether an answer to `request` that is cut off may be continued: its limit is not the caller's, or
    /// the caller or this policy asks for it.
    fn covers(&self, request: &ChatRequest) -> bool {
        let is_asked = || request.headers.get(CONTINUE).is_some_and(|value| value == "1");
        let is_covered = |limit| is_asked() || (self.when_callers_limit && limit >= self.least);
        request.params.max_output.is_none_or(is_covered)
    }
}

/// What a model can do, in tokens; `None` where it is not known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OutputLimits {
    /// The most it writes in one answer.
    pub max_output: Option<u64>,
    /// Its window, of input and output together.
    pub window: Option<u64>,
}

/// What a [`ContinuationLayer`] did since it was created.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ContinuationSnapshot {
    /// How often the output limit cut off an answer or a continuation.
    pub cut: u64,
    /// Requests sent again with a higher limit.
    pub escalated: u64,
    /// Continuations requested.
    pub continued: u64,
    /// Answers that reached the caller truncated.
    pub truncated: u64,
}

impl ContinuationLayer {
    /// Holds back streamed answers until it is known why they stopped, so that the output limit can
    /// be raised for them too. Their callers then wait for the whole answer.
    pub fn with_withhold(self, withhold: bool) -> Self {
        self.with(|policy, _| policy.withhold = withhold)
    }

    /// The limits of models: a limit is raised neither above that of the model nor above what its
    /// window leaves. Called with the request and the target that answered, when it is known. Without
    /// known limits the raised one may be refused: then the answer is continued from where it was cut.
    ///
    /// ```
    /// use steadfast_recover::{ContinuationLayer, OutputLimits};
    ///
    /// let layer = ContinuationLayer::default().with_limits(|request, _| match &*request.model {
    ///     "gpt-4o" => OutputLimits { max_output: Some(16_384), window: Some(128_000) },
    ///     _ => OutputLimits::default(),
    /// });
    /// ```
    pub fn with_limits(
        self,
        limits: impl Fn(&ChatRequest, Option<&Target>) -> OutputLimits + Send + Sync + 'static,
    ) -> Self {
        self.with(|_, known| *known = ModelLimits(Some(Arc::new(limits))))
    }
}

type LimitsOf = dyn Fn(&ChatRequest, Option<&Target>) -> OutputLimits + Send + Sync;

/// The limits of models.
#[derive(Clone, Default)]
pub struct ModelLimits(Option<Arc<LimitsOf>>);

impl ModelLimits {
    /// What the limit of `request` may be raised to, when that is more than it has; `input` and `wrote`
    /// are its tokens.
    fn raised(
        &self,
        policy: &ContinuationPolicy,
        request: &ChatRequest,
        target: Option<&Target>,
        input: u64,
        wrote: u64,
    ) -> Option<u64> {
        let limits = self.0.as_ref().map(|limits| limits(request, target)).unwrap_or_default();
        let room = limits.window.map(|window| window.saturating_sub(input));
        let most = [limits.max_output, room].into_iter().flatten().min().unwrap_or(u64::MAX);
        let raised = policy.escalate_to.min(most);
        (raised > request.params.max_output.unwrap_or(wrote)).then_some(raised)
    }
}

impl fmt::Debug for ModelLimits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "by closure" } else { "unknown" })
    }
}

/// The state of one answer that may be cut off.
#[derive(Debug)]
pub struct ContinuationState {
    hold_back: HoldBack,
    /// Poor continuations in a row.
    poor: u32,
    escalated: bool,
    /// The answer that was dropped for a request with a higher limit, until the next one begins.
    dropped: Option<Box<Dropped>>,
}

#[derive(Debug)]
struct Dropped {
    partial: Partial,
    events: Vec<Event>,
    max_output: Option<u64>,
    used: Usage,
}

type LayerState = RecoverState<ContinuationPolicy>;
type CutAnswer = AnswerInProgress<ContinuationPolicy>;

impl Recovery for ContinuationPolicy {
    type Options = ModelLimits;
    type Snapshot = ContinuationSnapshot;
    type State = ContinuationState;

    fn off() -> Self {
        Self { escalate_to: 0, continuations: 0, ..Self::default() }
    }

    fn adapt(&self, request: &mut ChatRequest) {
        if self.first_limit > 0 {
            request.params.max_output.get_or_insert(self.first_limit);
        }
    }

    fn check(&self) -> Result<(), PolicyError> {
        self.validate()
    }

    fn begin(&self, request: &ChatRequest) -> Option<(usize, ContinuationState)> {
        let wanted = (self.escalate_to > 0 || self.continuations > 0)
            && self.covers(request)
            && request.params.answers.is_none_or(|answers| answers <= 1);
        wanted.then(|| {
            let withhold = self.escalate_to > 0 && (self.withhold || !request.stream);
            let hold_back = HoldBack::new(self.max_partial, withhold);
            let state = ContinuationState { hold_back, poor: 0, escalated: false, dropped: None };
            (self.max_partial, state)
        })
    }

    fn ends_well(answer: &CutAnswer, event: &Event) -> bool {
        event.is_end()
            && answer.state.hold_back.is_empty()
            && event.stop_reason() != Some(StopReason::MaxTokens)
    }

    fn passes(answer: &CutAnswer, event: &Event) -> bool {
        answer.state.hold_back.passes(event, &answer.partial)
    }

    fn take(answer: &mut CutAnswer, event: Event) -> EventStep {
        answer.state.hold_back.take(event, &mut answer.partial, &mut answer.out)
    }

    fn cut(shared: &LayerState, answer: &mut CutAnswer) -> NextAction {
        shared.count(|counts| counts.cut += 1);
        let policy = &shared.policy;
        let used = answer.partial.used(answer.request.needs().input_tokens);
        let new = used.output.unwrap_or(0);
        answer.state.dropped = None;
        if answer.calls() > 0 {
            answer.state.poor = if new < policy.little { answer.state.poor + 1 } else { 0 };
        }
        let further = answer.further();
        let before = further.used;
        further.used = before.plus(&used);
        let withheld = answer.state.hold_back.withheld.take();
        if let Some(events) = withheld {
            let may_raise = !answer.state.escalated && answer.no_call().is_none();
            answer.state.escalated |= may_raise;
            let (input, target) = (used.input.unwrap_or(0), answer.target.as_ref());
            let raised = shared.options.raised(policy, &answer.request, target, input, new);
            if let Some(to) = raised.filter(|_| may_raise) {
                shared.count(|counts| counts.escalated += 1);
                event::escalated(&answer.request.context, target, to, new);
                let fresh = Partial::new(policy.max_partial);
                let partial = std::mem::replace(&mut answer.partial, fresh);
                let max_output = answer.request.params.max_output.replace(to);
                let dropped = Dropped { partial, events, max_output, used: before.plus(&used) };
                answer.state.dropped = Some(Box::new(dropped));
                answer.state.hold_back.next_piece();
                return call(answer, answer.request.clone());
            }
            answer.out.extend(events);
        }
        next_call(shared, answer, new)
    }

    fn failed(
        shared: &LayerState,
        answer: &mut CutAnswer,
        failure: Failure,
        _: bool,
    ) -> NextAction {
        let has_content = answer.partial.has_content();
        if answer.further.is_none() {
            // The answer itself failed, which this layer does not repair.
            let withheld = answer.state.hold_back.withheld.is_some();
            answer.out.extend(answer.state.hold_back.release());
            let failure = if withheld { failure.without_delivered() } else { failure };
            return NextAction::Over(Some(failure));
        }
        let dropped = answer.state.dropped.take();
        if failure.retry() == Retry::Forbidden || has_content {
            answer.out.extend(answer.state.hold_back.release());
            // The first answer was dropped before the caller saw it.
            let unseen = dropped.is_some() && !has_content;
            return NextAction::Over(Some(if unseen { failure } else { failure.with_delivered() }));
        }
        let Some(dropped) = dropped else {
            return truncate(shared, answer, "continuation_failed");
        };
        // The higher limit was refused: the truncated answer is continued instead.
        let Dropped { partial, events, max_output, used } = *dropped;
        answer.further().used = used;
        answer.partial = partial;
        answer.request.params.max_output = max_output;
        answer.out.extend(events);
        next_call(shared, answer, 0)
    }

    fn join(_: &LayerState, answer: &mut CutAnswer) -> Join {
        let used = answer.further().used;
        let partial = &mut answer.partial;
        if answer.state.dropped.is_some() {
            return Join::fresh(partial, used);
        }
        let overlap = (!partial.text().is_empty()).then(|| Overlap::unasked(partial.text()));
        Join::new(partial, overlap, true, used)
    }
}

/// Continues the answer, or leaves it truncated.
fn next_call(shared: &LayerState, answer: &mut CutAnswer, new: u64) -> NextAction {
    let policy = &shared.policy;
    let why = if answer.calls() >= policy.continuations {
        Some("continuations_spent")
    } else if policy.poor_in_a_row > 0 && answer.state.poor >= policy.poor_in_a_row {
        Some("little_new")
    } else {
        answer.no_call()
    };
    if let Some(why) = why {
        return truncate(shared, answer, why);
    }
    answer.further().calls += 1;
    shared.count(|counts| counts.continued += 1);
    let (text, bytes) = (answer.partial.text(), answer.state.hold_back.cut_bytes);
    let request = match bytes {
        None => request::continuing(&answer.request, text),
        Some(bytes) => request::calling(&answer.request, text, bytes),
    };
    let (context, target) = (&answer.request.context, answer.target.as_ref());
    event::continued(context, target, answer.calls(), new, bytes);
    answer.state.hold_back.next_piece();
    call(answer, request)
}

/// A further call, by preference at the target that has begun the answer.
fn call(answer: &CutAnswer, mut request: ChatRequest) -> NextAction {
    let preference = answer.target.clone().map(Preference::For);
    request.context.preference = preference.map(Arc::new);
    NextAction::Call(Box::new(request), Reserved::default())
}

/// Ends the answer truncated, as the model did.
fn truncate(shared: &LayerState, answer: &mut CutAnswer, why: &'static str) -> NextAction {
    shared.count(|counts| counts.truncated += 1);
    event::truncated(&answer.request.context, answer.target.as_ref(), why);
    let stop = answer.state.hold_back.stop.take();
    let ends = stop.map(Delta::Stop).into_iter().chain([Delta::End]);
    let used = Delta::Usage(answer.further().used);
    answer.out.push_back(Event::new([used].into_iter().chain(ends)));
    NextAction::Over(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_raised_as_far_as_model_and_window_allow() {
        for (asked, max_output, window, raised) in [
            (Some(8_000), None, None, Some(64_000)),
            (None, None, None, Some(64_000)),
            (Some(64_000), None, None, None),
            (Some(100_000), None, None, None),
            (Some(8_000), Some(32_000), None, Some(32_000)),
            (Some(8_000), Some(8_000), None, None),
            (Some(8_000), Some(32_000), Some(21_000), Some(20_000)),
            (Some(8_000), None, Some(500), None),
            (None, None, Some(4_500), None),
        ] {
            let limits =
                ModelLimits(Some(Arc::new(move |_, _| OutputLimits { max_output, window })));
            let mut request = ChatRequest::user("hi");
            request.params.max_output = asked;
            let policy = ContinuationPolicy::default();
            let got = limits.raised(&policy, &request, None, 1_000, 4_000);
            assert_eq!(got, raised, "{asked:?} {max_output:?} {window:?}");
        }
    }
}
