//! What is known of a candidate.

use std::ops;

use steadfast_core::{Needs, Profile, Reason};
use tokio::time::Instant;

/// What is known of one candidate.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CandidateView {
    /// Which provider of the chain.
    pub(crate) spec: u8,
    /// Where that provider comes: where it stands in the chain, or as equals share the call.
    pub(crate) position: u8,
    /// 0 for the model that was asked for, n for the nth downgrade.
    pub(crate) rank: u8,
    /// What it can not do of what the request needs.
    pub(crate) lacks: Lacks,
    pub(crate) window: Option<u64>,
    /// Until when it cools, when it does.
    pub(crate) rest: Option<CandidateRest>,
    /// It cools for what is known of its own model, and not of its provider or credential alone.
    pub(crate) model_cools: bool,
    /// Most of what it was asked lately has failed.
    pub(crate) mostly_fails: bool,
    /// What is known of its provider across all callers.
    pub(crate) health: ProviderState,
    /// Its provider is degraded, and this call may see whether it still is.
    pub(crate) probe_due: bool,
    /// Its model is cooling for a reason that lets the provider's next model stand in.
    pub(crate) yields: bool,
}

/// A provider as far as selection is concerned.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum ProviderState {
    #[default]
    Well,
    /// It is degraded, and comes after the others.
    Degraded,
    /// It is degraded, and only asked when no other is left.
    Avoided,
}

/// A cooldown as far as selection is concerned. It lasts until a call has seen that it is over, which may be
/// later than `until`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CandidateRest {
    pub(crate) until: Instant,
    pub(crate) probe_from: Instant,
    pub(crate) probing: bool,
    /// Asking now is in vain: not even a call without another target is made.
    pub(crate) refuses: bool,
    pub(crate) reason: Reason,
}

/// What a target can not do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Lacks(pub(super) u8);

impl CandidateView {
    /// Asking it now is in vain.
    pub(crate) fn refuses(&self) -> bool {
        self.rest.is_some_and(|rest| rest.refuses)
    }

    /// A person has chosen it: it is asked whatever is known of it, and in nobody's stead.
    pub(crate) fn demand(&mut self) {
        (self.rest, self.rank, self.mostly_fails) = (None, 0, false);
    }
}

impl CandidateRest {
    /// Of two cooldowns that both apply, the later end.
    pub(crate) fn later(self, other: Self) -> Self {
        let later = if self.until >= other.until { self } else { other };
        Self {
            probe_from: self.probe_from.max(other.probe_from),
            probing: self.probing || other.probing,
            refuses: self.refuses || other.refuses,
            ..later
        }
    }
}

impl Lacks {
    pub(crate) const VISION: Self = Self(1);
    pub(crate) const TOOLS: Self = Self(2);
    pub(crate) const WINDOW: Self = Self(4);

    pub(crate) fn of(profile: &Profile, needs: &Needs) -> Self {
        let mut lacks = Self(0);
        if needs.vision && !profile.can.vision {
            lacks.0 |= Self::VISION.0;
        }
        if needs.tools && !profile.can.tools {
            lacks.0 |= Self::TOOLS.0;
        }
        if profile.can.window.is_some_and(|window| needs.input_tokens > window) {
            lacks.0 |= Self::WINDOW.0;
        }
        lacks
    }

    pub(crate) fn any(self) -> bool {
        self.0 != 0
    }

    pub(crate) fn reason(self) -> Reason {
        if self == Self::WINDOW { Reason::ContextOverflow } else { Reason::Unsupported }
    }

    pub(crate) fn text(self) -> &'static str {
        if (self & Self::VISION).any() {
            "it does not read images"
        } else if (self & Self::TOOLS).any() {
            "it does not call tools"
        } else {
            "the conversation is larger than its window"
        }
    }
}

impl ops::BitAnd for Lacks {
    type Output = Self;

    fn bitand(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }
}
