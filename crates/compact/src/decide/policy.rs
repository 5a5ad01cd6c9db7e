//! When to compact, how far, and what is never touched.

use std::collections::BTreeMap;

use crate::{PolicyError, TokenLimits, apply::MARKER};

/// When to compact, how far, and what is never touched. Data only; shares are of the window.
///
/// ```
/// use steadfast_compact::CompactionPolicy;
///
/// let mut policy = CompactionPolicy::default();
/// policy.keep_recent = 8;
/// assert!(policy.validate().is_ok());
/// policy.target = 0.95;
/// assert_eq!(
///     policy.validate().unwrap_err().to_string(),
///     "`target` is 0.95: it must be above 0 and below `compact_at`, which is 0.9",
/// );
/// ```
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
#[cfg_attr(feature = "serde", serde(default, deny_unknown_fields))]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct CompactionPolicy {
    /// From this share on the answer says that the window is filling. 0.8: a turn or two before
    /// something has to be done.
    pub warn_at: f64,
    /// From this share on the conversation is compacted. 0.9: what remains covers the error of an
    /// estimate and one large tool result.
    pub compact_at: f64,
    /// The share to compact to. 0.6: a third of what was there goes, so that the next turn does
    /// not compact again.
    pub target: f64,
    /// How far the target may be lowered to make room for [`room_turns`](Self::room_turns). 0.3:
    /// below that, too much of what the model works with would go.
    pub least_target: f64,
    /// Turns there is to be room for after a compaction, at the growth measured. 30: a session of
    /// two hundred turns is then compacted six times, and its cached prefix as often broken.
    pub room_turns: u64,
    /// The most recent messages that are never touched. 4: the last question, call, result and
    /// answer.
    pub keep_recent: usize,
    /// Messages there must be before anything is summarised. 6: below that the recent ones are
    /// most of it.
    pub min_messages: usize,
    /// Results and arguments up to so many characters are never stripped. 200: the marker that
    /// replaces one is hardly shorter.
    pub strip_over: usize,
    /// Windows of models by name, in tokens, where they are others than in the built-in table. A provider's
    /// own `window` goes before.
    pub windows: BTreeMap<String, u64>,
    /// Tokens of the window kept for the answer when the request does not say how long it may be.
    /// Without it a tenth of the window, the model's output limit, or 32,000, whichever is least.
    pub reserve: Option<u64>,
    /// The most bytes of a summary's body, with its facts. 16,000: four thousand tokens. It is
    /// less in a small window: a tenth of it.
    pub summary_bytes: usize,
    /// Compactions in a row that did not help, after which a conversation is not summarised any more.
    /// 3: what is recent or pinned in it is too large, and no summary will change that.
    pub max_ineffective: u32,
    /// Whether a compaction with a summariser starts in the background already where the window is filling
    /// (`warn_at`), to be used from `compact_at` on. Off by default: most conversations that come so far
    /// end before they come further, and a summary costs a call.
    pub prepare_at_warning: bool,
    /// Whether older messages become a list of facts where there is no summary of them. Without it a
    /// conversation whose summary fails is sent as it is.
    pub plain: bool,
    /// How often one call is compacted after its provider has refused it as too large. 2: a second time
    /// only when the first has made it smaller, by what the provider counts.
    pub overflows: u32,
    /// The share to compact to after such a refusal; 0, the default, for three quarters of `target`. The
    /// smaller it is, the less stays beside the recent messages.
    pub overflow_target: f64,
    /// Errors of the compaction's own after which a conversation is left alone, without an answer to a
    /// compacted request between. 3: once may be an accident.
    pub max_throws: u32,
    /// Holds back a streamed answer until its end is known, so that a refusal in the middle of it is repaired
    /// like one at its head. Off by default: streaming callers want to see content soon.
    pub withhold: bool,
}

impl Default for CompactionPolicy {
    fn default() -> Self {
        Self {
            warn_at: 0.8,
            compact_at: 0.9,
            target: 0.6,
            least_target: 0.3,
            room_turns: 30,
            keep_recent: 4,
            min_messages: 6,
            strip_over: 200,
            windows: BTreeMap::new(),
            reserve: None,
            summary_bytes: 16_000,
            max_ineffective: 3,
            prepare_at_warning: false,
            plain: true,
            overflows: 2,
            overflow_target: 0.0,
            max_throws: 3,
            withhold: false,
        }
    }
}

/// The least bytes of a summary that can have content.
const LEAST_SUMMARY: usize = 400;

impl CompactionPolicy {
    /// Checks that the numbers agree with each other.
    ///
    /// # Errors
    ///
    /// The first field that does not, and what it must be.
    pub fn validate(&self) -> Result<(), PolicyError> {
        for (name, value, bound, limit) in [
            ("compact_at", self.compact_at, "at most the whole", 1.0),
            ("warn_at", self.warn_at, "at most `compact_at`", self.compact_at),
            ("target", self.target, "below `compact_at`", self.compact_at),
            ("least_target", self.least_target, "at most `target`", self.target),
        ] {
            let is_below = value < limit || (value == limit && bound.starts_with("at most"));
            if !(value > 0.0 && is_below) {
                return Err(PolicyError::Share { name, value, bound, limit });
            }
        }
        if !(0.0..self.compact_at).contains(&self.overflow_target) {
            let (name, value, limit) = ("overflow_target", self.overflow_target, self.compact_at);
            return Err(PolicyError::Share { name, value, bound: "below `compact_at`", limit });
        }
        PolicyError::check_least(&[
            ("keep_recent", self.keep_recent, 1),
            ("strip_over", self.strip_over, MARKER),
            ("windows", self.windows.values().min().map_or(1, |least| *least as usize), 1),
            ("summary_bytes", self.summary_bytes, LEAST_SUMMARY),
            ("max_ineffective", self.max_ineffective as usize, 1),
            ("max_throws", self.max_throws as usize, 1),
        ])
    }

    /// The room there is for a request to a model of these limits, which asks for at most
    /// `max_output` tokens of answer. Where the provider does not hold the two together against the
    /// window (`output_counts`, of the target's
    /// [`TranscriptRules`](steadfast_chat::transcript::TranscriptRules::output_counts)), no more is kept than if the
    /// request had not asked: many ask for the most there is and never use it.
    pub fn room(&self, limits: TokenLimits, max_output: Option<u64>, output_counts: bool) -> Room {
        let most = limits.output.unwrap_or(u64::MAX);
        let usual = self.reserve.unwrap_or_else(|| (limits.window / 10).min(32_000)).min(most);
        let reserve = match max_output {
            Some(asked) if output_counts => asked.min(most),
            Some(asked) => asked.min(usual),
            None => usual,
        };
        Room { window: limits.window, reserve: reserve.min(limits.window) }
    }

    /// What a request of so many input tokens calls for. Take the upper end of the estimate.
    pub fn level(&self, room: Room, input: u64) -> Level {
        let used = input.saturating_add(room.reserve) as f64;
        let share = used / room.window.max(1) as f64;
        if share >= self.compact_at {
            Level::Compact
        } else if share >= self.warn_at {
            Level::Warn
        } else {
            Level::Fine
        }
    }

    /// The numbers of one compaction. `growth` is what a turn adds, when it is known.
    pub fn goal(&self, room: Room, growth: Option<u64>) -> Goal {
        let window = room.window as f64;
        let input = |share: f64| ((share * window) as u64).saturating_sub(room.reserve);
        let trigger = input(self.compact_at);
        let room_wanted = growth.unwrap_or(0).saturating_mul(self.room_turns);
        let target = trigger.saturating_sub(room_wanted).max(input(self.least_target));
        // An answer may be asked for that takes most of the window: the target is then a share of
        // what is left for the input.
        let target =
            target.min(input(self.target)).max((trigger as f64 * self.least_target) as u64);
        let target = target.min(trigger.saturating_sub(1));
        Goal { target, trigger, limit: room.limit() }
    }

    /// The bytes that a summary's body may have in a window of so many tokens.
    pub(crate) fn summary_room(&self, window: u64) -> usize {
        // A tenth of the tokens, at four bytes each.
        let share = usize::try_from(window.saturating_mul(4) / 10).unwrap_or(usize::MAX);
        share.clamp(LEAST_SUMMARY, self.summary_bytes.max(LEAST_SUMMARY))
    }
}

/// A window and what of it is kept for the answer, in tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// Input and output together.
    pub window: u64,
    /// Kept for the answer.
    pub reserve: u64,
}

impl Room {
    /// What there is room for in the input.
    pub const fn limit(self) -> u64 {
        self.window.saturating_sub(self.reserve)
    }
}

/// What the size of a request calls for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Level {
    /// Nothing.
    Fine,
    /// A warning.
    Warn,
    /// A compaction.
    Compact,
}

/// The numbers of one compaction: input tokens, so without what is kept for the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Goal {
    /// What to come down to.
    pub target: u64,
    /// What would cause another compaction.
    pub trigger: u64,
    /// What the provider takes at most.
    pub limit: u64,
}

impl Goal {
    /// The numbers for a request of `tokens` that a provider refused although they allowed it: below
    /// what was refused, and the target three quarters of what it was.
    #[must_use]
    pub(crate) fn below(self, tokens: u64) -> Self {
        let limit = self.limit.min(tokens.saturating_sub(1));
        let trigger = self.trigger.min(limit);
        Self { target: (self.target / 4 * 3).min(trigger / 4 * 3), trigger, limit }
    }

    /// The same with a target that is this share of `window`.
    #[must_use]
    pub(crate) fn to_share(self, share: f64, window: u64) -> Self {
        Self { target: self.target.min((share * window as f64) as u64), ..self }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ROOM: Room = Room { window: 100_000, reserve: 10_000 };

    #[test]
    fn the_default_is_valid_and_contradictions_are_named() {
        assert_eq!(CompactionPolicy::default().validate(), Ok(()));
        type Change = fn(&mut CompactionPolicy);
        let cases: [(Change, &str); 6] = [
            (|p| p.compact_at = 1.2, "`compact_at`"),
            (|p| p.warn_at = f64::NAN, "`warn_at`"),
            (|p| p.target = 0.9, "`target`"),
            (|p| p.least_target = 0.7, "`least_target`"),
            (|p| p.keep_recent = 0, "`keep_recent`"),
            (|p| p.strip_over = 199, "`strip_over`"),
        ];
        for (change, field) in cases {
            let mut policy = CompactionPolicy::default();
            change(&mut policy);
            let error = policy.validate().unwrap_err().to_string();
            assert!(error.starts_with(field), "{error}");
        }
    }

    #[test]
    fn levels_begin_exactly_at_their_share() {
        let policy = CompactionPolicy::default();
        for (input, level) in [
            (69_999, Level::Fine),
            (70_000, Level::Warn),
            (79_999, Level::Warn),
            (80_000, Level::Compact),
            (u64::MAX, Level::Compact),
        ] {
            assert_eq!(policy.level(ROOM, input), level, "{input}");
        }
        assert_eq!(policy.level(Room { window: 0, reserve: 0 }, 1), Level::Compact);
    }

    #[test]
    fn the_target_makes_room_for_turns() {
        let policy = CompactionPolicy::default();
        let target = |growth| policy.goal(ROOM, growth).target;
        assert_eq!(target(None), 50_000, "60 % less the reserve");
        assert_eq!(target(Some(100)), 50_000, "never above it");
        assert_eq!(target(Some(1_500)), 35_000, "30 turns below the trigger");
        // 30 % less the reserve is less than a share of the input: that holds.
        assert_eq!(target(Some(1_000_000)), 24_000);
    }

    #[test]
    fn what_is_kept_for_the_answer() {
        let policy = CompactionPolicy::default();
        let limits = TokenLimits::new(200_000).with_output(64_000);
        let reserve = |limits, asked, counts| policy.room(limits, asked, counts).reserve;
        assert_eq!(reserve(limits, Some(50_000), true), 50_000, "what was asked for");
        assert_eq!(reserve(limits, Some(50_000), false), 20_000, "where it does not count");
        assert_eq!(reserve(limits, Some(1_000), false), 1_000);
        assert_eq!(reserve(limits, None, true), 20_000);
        assert_eq!(reserve(limits, Some(u64::MAX), true), 64_000, "never above the model's own");
        assert_eq!(reserve(limits.with_output(4_000), None, true), 4_000);
        assert_eq!(reserve(TokenLimits::new(1_000_000), None, true), 32_000);
        assert_eq!(reserve(TokenLimits::new(200_000), Some(u64::MAX), true), 200_000);
    }

    proptest! {
        #[test]
        fn goals_are_in_order(
            window in 0_u64..20_000_000,
            reserve in 0_u64..20_000_000,
            growth in prop::option::of(any::<u64>()),
        ) {
            let goal = CompactionPolicy::default().goal(Room { window, reserve }, growth);
            prop_assert!(goal.target < goal.trigger || goal.trigger == 0);
            prop_assert!(goal.trigger <= goal.limit);
            prop_assert!(goal.below(u64::MAX).target <= goal.target);
            prop_assert!(goal.below(9).limit <= 8);
        }
    }
}
