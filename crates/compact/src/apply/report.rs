//! What a compaction did.

use std::fmt;

/// How much was done to a conversation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Tier {
    /// Nothing.
    None,
    /// Large results and arguments became markers.
    Strip,
    /// A summary replaces older messages.
    Summary,
    /// A summary replaces the oldest half of what may go.
    Partial,
    /// Older messages were removed, and a list of facts replaces them: an emergency
    /// truncation.
    Fallback,
}

impl Tier {
    /// The name used in logs.
    pub const fn as_str(self) -> &'static str {
        match self {
            Tier::None => "none",
            Tier::Strip => "strip",
            Tier::Summary => "summary",
            Tier::Partial => "partial",
            Tier::Fallback => "fallback",
        }
    }
}

/// What came of a compaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Effect {
    /// It came down to the target.
    Effective,
    /// What is never touched is larger than the target: it came down as far as it could, below what
    /// would cause the next compaction.
    Eased,
    /// It fits the window and nothing more: the next turn will need another.
    Tight,
    /// It did not help, and was taken back: the request is as it was, and fits the window.
    Ineffective,
}

impl Effect {
    /// The name used in logs.
    pub const fn as_str(self) -> &'static str {
        match self {
            Effect::Effective => "effective",
            Effect::Eased => "eased",
            Effect::Tight => "tight",
            Effect::Ineffective => "ineffective",
        }
    }
}

/// What a compaction did: in input tokens, and in messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CompactionReport {
    /// How much was done.
    pub tier: Tier,
    /// What came of it.
    pub effect: Effect,
    /// Tokens before.
    pub before: u64,
    /// Tokens after.
    pub after: u64,
    /// Tokens of all that is never touched.
    pub floor: u64,
    /// Tokens it was to come down to: the policy's target, or what replaced it ([`Effect`]).
    pub target: u64,
    /// Messages that are still there, changed or not; the summary not counted.
    pub kept: usize,
    /// Messages that are gone.
    pub dropped: usize,
    /// Results and arguments that became markers.
    pub stripped: usize,
    /// Repairs that the provider's rules asked for.
    pub repaired: usize,
}

impl fmt::Display for CompactionReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "tier={} effect={} before={} after={} floor={} target={} kept={} dropped={} stripped={}",
            self.tier.as_str(),
            self.effect.as_str(),
            self.before,
            self.after,
            self.floor,
            self.target,
            self.kept,
            self.dropped,
            self.stripped
        )
    }
}
