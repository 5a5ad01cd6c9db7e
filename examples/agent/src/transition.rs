//! Why one turn follows another, and why the last one was the last.
//!
//! A turn is a question to a model. Some are made by the loop, others by the layers inside it: an answer that is asked for again with
//! more room, or continued, or a conversation that is made shorter and sent again. All of them are in the log, each with one transition.
//! A question that is only repeated (a retry, another provider, a broken stream that is resumed) is no turn.
//!
//! What made a turn does not make the next one. By design these do: a model's work (`next_turn`), continuations of one answer, of which
//! its layer makes at most three, and those of a token budget until they bring little. A conversation that has been made shorter for one
//! provider may have to be for the next one, too.

use std::fmt;

use steadfast::{Failure, Reason, Step};

/// What comes after a turn, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Transition {
    /// The model has its tools' results.
    NextTurn,
    /// The answer did not fit its limit, and is asked for again with a higher one.
    OutputEscalated,
    /// Nor that one: the model goes on where it was cut.
    OutputContinued,
    /// The conversation did not fit the model, or an image of it was refused; large results or media are taken out of it.
    CompactionDrained,
    /// The conversation did not fit the model; older messages are summarised or left out.
    ReactiveCompaction,
    /// The model was done; the check that it has to pass says otherwise.
    StopHookBlocked,
    /// The model was done; its token budget is not used up.
    TokenBudgetContinued,

    /// The model is done.
    Completed,
    /// The conversation does not fit, whatever is taken out of it.
    PromptTooLong,
    /// An image is refused, also as a marker.
    ImageError,
    /// No model answers.
    ModelError,
    /// A limit of this process refuses the call: the guard, a spend cap, a rate limit.
    LimitBlocked,
    /// The user, a watchdog or the end of the process dropped the answer.
    StreamingAborted,
    /// The same, while tools ran.
    ToolsAborted,
    /// The check fails again and nothing was done about it, or it can not be made.
    StopHookPrevented,
    /// As many turns as there may be.
    MostTurns,
}

impl Transition {
    /// All of them.
    #[cfg(test)]
    pub(crate) const ALL: [Self; 16] = [
        Self::NextTurn,
        Self::OutputEscalated,
        Self::OutputContinued,
        Self::CompactionDrained,
        Self::ReactiveCompaction,
        Self::StopHookBlocked,
        Self::TokenBudgetContinued,
        Self::Completed,
        Self::PromptTooLong,
        Self::ImageError,
        Self::ModelError,
        Self::LimitBlocked,
        Self::StreamingAborted,
        Self::ToolsAborted,
        Self::StopHookPrevented,
        Self::MostTurns,
    ];

    /// The name in the log.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::NextTurn => "next_turn",
            Self::OutputEscalated => "output_escalated",
            Self::OutputContinued => "output_continued",
            Self::CompactionDrained => "compaction_drained",
            Self::ReactiveCompaction => "reactive_compaction",
            Self::StopHookBlocked => "stop_hook_blocked",
            Self::TokenBudgetContinued => "token_budget_continued",
            Self::Completed => "completed",
            Self::PromptTooLong => "prompt_too_long",
            Self::ImageError => "image_error",
            Self::ModelError => "model_error",
            Self::LimitBlocked => "limit_blocked",
            Self::StreamingAborted => "streaming_aborted",
            Self::ToolsAborted => "tools_aborted",
            Self::StopHookPrevented => "stop_hook_prevented",
            Self::MostTurns => "most_turns",
        }
    }

    /// Whether another turn follows.
    pub(crate) const fn goes_on(self) -> bool {
        matches!(
            self,
            Self::NextTurn
                | Self::OutputEscalated
                | Self::OutputContinued
                | Self::CompactionDrained
                | Self::ReactiveCompaction
                | Self::StopHookBlocked
                | Self::TokenBudgetContinued
        )
    }
}

impl fmt::Display for Transition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// How a turn of the loop ended.
#[derive(Clone, Copy, Debug)]
pub(crate) enum TurnEnd<'a> {
    /// Its calls have their results.
    Called,
    /// The model is done.
    Done {
        /// What the check says.
        check: Check,
        /// Whether the token budget wants more.
        wants_more: bool,
    },
    /// There is no answer.
    Failed {
        /// Why.
        failure: &'a Failure,
        /// The conversation has an image in it.
        has_image: bool,
    },
}

/// What the check of a model's work says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Check {
    /// It passes, or there is none.
    Passed,
    /// It fails, with something that the model can read.
    Failed,
    /// It could not be made.
    Broken,
}

/// The turns of one run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Turns {
    most: u32,
    /// How many have ended.
    ended: u32,
    /// What made the one that is under way; none for the first.
    made_by: Option<Transition>,
}

impl Turns {
    /// At most `most` of them.
    pub(crate) const fn new(most: u32) -> Self {
        Self { most, ended: 0, made_by: None }
    }

    /// How many have ended.
    pub(crate) const fn ended(&self) -> u32 {
        self.ended
    }

    /// A layer has ended a turn: what the steps of a call say, one after the other.
    pub(crate) fn inside(&mut self, transition: Transition) {
        self.end_by(transition);
    }

    /// Ends a turn of the loop.
    pub(crate) fn end(&mut self, how: TurnEnd<'_>) -> Transition {
        let next = self.next(how);
        let last = next.goes_on() && self.ended + 1 >= self.most;
        self.end_by(if last { Transition::MostTurns } else { next })
    }

    fn next(&self, how: TurnEnd<'_>) -> Transition {
        match how {
            TurnEnd::Called => Transition::NextTurn,
            TurnEnd::Done { check: Check::Failed, .. }
                if self.made_by != Some(Transition::StopHookBlocked) =>
            {
                Transition::StopHookBlocked
            }
            TurnEnd::Done { check: Check::Failed | Check::Broken, .. } => {
                Transition::StopHookPrevented
            }
            TurnEnd::Done { wants_more: true, .. } => Transition::TokenBudgetContinued,
            TurnEnd::Done { .. } => Transition::Completed,
            TurnEnd::Failed { failure, has_image } => of_failure(failure, has_image),
        }
    }

    fn end_by(&mut self, transition: Transition) -> Transition {
        self.ended += 1;
        self.made_by = Some(transition);
        transition
    }
}

/// What a failure is for the loop, after everything that the layers could do.
fn of_failure(failure: &Failure, has_image: bool) -> Transition {
    match failure.outward_reason() {
        Reason::ContextOverflow => Transition::PromptTooLong,
        Reason::Format | Reason::Unsupported | Reason::PayloadTooLarge if has_image => {
            Transition::ImageError
        }
        Reason::PayloadTooLarge => Transition::PromptTooLong,
        Reason::Safety | Reason::SpendCap | Reason::Budget => Transition::LimitBlocked,
        Reason::Cancelled => Transition::StreamingAborted,
        _ => Transition::ModelError,
    }
}

/// The turns that layers made within one call, by the steps that they recorded.
pub(crate) fn made_inside(steps: &[Step]) -> Vec<Transition> {
    let mut overflowed = false;
    let mut made = Vec::new();
    for step in steps {
        let transition = match (step.layer, step.action) {
            ("recover", "escalated") => Transition::OutputEscalated,
            ("recover", "continued") => Transition::OutputContinued,
            // The model refused it as too long. A compaction that comes before that is part of the turn.
            ("compact", "overflow") => {
                overflowed = true;
                continue;
            }
            ("compact", "compacted") if overflowed => {
                overflowed = false;
                match step.detail.as_deref().is_some_and(|detail| detail.contains("tier=strip")) {
                    true => Transition::CompactionDrained,
                    false => Transition::ReactiveCompaction,
                }
            }
            ("compact", "repaired") => match step.detail.as_deref() {
                Some("lighten" | "omit_media") => Transition::CompactionDrained,
                _ => continue,
            },
            _ => continue,
        };
        made.push(transition);
    }
    made
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const DONE: TurnEnd<'_> = TurnEnd::Done { check: Check::Passed, wants_more: false };
    const BLOCKED: TurnEnd<'_> = TurnEnd::Done { check: Check::Failed, wants_more: false };

    #[test]
    fn each_end_has_its_transition() {
        let wants_more = TurnEnd::Done { check: Check::Passed, wants_more: true };
        let broken = TurnEnd::Done { check: Check::Broken, wants_more: true };
        for (how, transition) in [
            (TurnEnd::Called, "next_turn"),
            (DONE, "completed"),
            (BLOCKED, "stop_hook_blocked"),
            (wants_more, "token_budget_continued"),
            (broken, "stop_hook_prevented"),
        ] {
            assert_eq!(Turns::new(9).end(how).as_str(), transition, "{how:?}");
        }
        for (reason, has_image, transition) in [
            (Reason::ContextOverflow, false, "prompt_too_long"),
            (Reason::PayloadTooLarge, false, "prompt_too_long"),
            (Reason::PayloadTooLarge, true, "image_error"),
            (Reason::Unsupported, true, "image_error"),
            (Reason::Format, true, "image_error"),
            (Reason::Format, false, "model_error"),
            (Reason::Safety, false, "limit_blocked"),
            (Reason::SpendCap, false, "limit_blocked"),
            (Reason::Budget, false, "limit_blocked"),
            (Reason::Exhausted, true, "model_error"),
            (Reason::Overloaded, false, "model_error"),
        ] {
            let failure = &Failure::new(reason, "");
            let end = Turns::new(9).end(TurnEnd::Failed { failure, has_image });
            assert_eq!(end.as_str(), transition, "{reason}");
            assert!(!end.goes_on());
        }
    }

    #[test]
    fn a_recovery_that_did_not_help_is_not_repeated() {
        let mut turns = Turns::new(99);
        assert_eq!(turns.end(BLOCKED), Transition::StopHookBlocked);
        assert_eq!(turns.end(BLOCKED), Transition::StopHookPrevented);
        // With work between, it is another attempt.
        let mut turns = Turns::new(99);
        assert_eq!(turns.end(BLOCKED), Transition::StopHookBlocked);
        assert_eq!(turns.end(TurnEnd::Called), Transition::NextTurn);
        assert_eq!(turns.end(BLOCKED), Transition::StopHookBlocked);
        assert_eq!(turns.end(DONE), Transition::Completed);
    }

    #[test]
    fn layers_make_turns_as_well() {
        let step = |layer, action, detail: &str| Step::new(layer, action).with_detail(detail);
        let steps = [
            step("compact", "compacted", "tier=summary effect=effective"),
            step("retry", "retried", ""),
            step("compact", "overflow", ""),
            step("compact", "compacted", "tier=strip effect=effective"),
            step("compact", "overflow", ""),
            step("compact", "compacted", "tier=fallback effect=tight"),
            step("compact", "repaired", "repair"),
            step("compact", "repaired", "omit_media"),
            step("recover", "escalated", ""),
            step("recover", "continued", ""),
            step("recover", "continued", ""),
        ];
        use Transition as T;
        let made = made_inside(&steps);
        let wanted = [
            T::CompactionDrained,
            T::ReactiveCompaction,
            T::CompactionDrained,
            T::OutputEscalated,
            T::OutputContinued,
            T::OutputContinued,
        ];
        assert_eq!(made, wanted);
        let mut turns = Turns::new(99);
        made.into_iter().for_each(|made| turns.inside(made));
        assert_eq!(turns.ended(), 6);
    }

    proptest! {
        /// Whatever happens, a run ends, and a check does not make two turns in a row.
        #[test]
        fn a_run_ends(ends in prop::collection::vec(0..6_u8, 0..200), most in 1..50_u32) {
            let mut turns = Turns::new(most);
            let mut before = None;
            let mut made = 0;
            for end in ends {
                let next = match end {
                    0 => turns.end(TurnEnd::Called),
                    1 => turns.end(BLOCKED),
                    2 => turns.end(TurnEnd::Done { check: Check::Passed, wants_more: true }),
                    3 => turns.end(TurnEnd::Done { check: Check::Broken, wants_more: false }),
                    4 => turns.end(DONE),
                    _ => {
                        turns.inside(Transition::ReactiveCompaction);
                        Transition::ReactiveCompaction
                    }
                };
                prop_assert!(next != Transition::StopHookBlocked || before != Some(next));
                before = Some(next);
                made += u32::from(end < 5);
                if !next.goes_on() {
                    prop_assert!(made <= most);
                    return Ok(());
                }
                prop_assert!(made < most, "the last one would have ended it");
            }
        }
    }
}
