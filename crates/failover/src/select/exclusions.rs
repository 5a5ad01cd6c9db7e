//! What a call may not ask, or not yet.

use smallvec::SmallVec;
use tokio::time::Instant;

use super::CandidateView;

/// What has happened to a request so far, as far as it rules candidates out or prefers some.
#[derive(Clone, Debug, Default)]
pub(crate) struct Exclusions {
    /// Candidates that have failed this request, by themselves or with their model, credential or
    /// provider.
    pub(crate) excluded: CandidateSet,
    /// Those of them that may be asked again in another round.
    pub(crate) again: CandidateSet,
    /// Candidates that this call leaves alone, and until when.
    pub(crate) waits: SmallVec<[(u8, Instant); 2]>,
    /// Those of them that have asked for it themselves.
    pub(crate) asked: CandidateSet,
    /// A cooling candidate is not asked, even when no other is left.
    pub(crate) strict: bool,
    /// Candidates that cooled before the call asked anybody.
    pub(crate) cooled_before: CandidateSet,
    /// Candidates that cool for what this call has found out in this round.
    pub(crate) found: CandidateSet,
    /// Providers whose downgrades may stand in for this request.
    pub(crate) downgrade: CandidateSet,
    /// The window that is needed, after one was too small.
    pub(crate) floor: Option<Floor>,
    /// The one its session has an affinity to.
    pub(crate) preferred: Option<u8>,
}

/// How large a window has to be, in tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Floor {
    /// Larger than this.
    pub(crate) above: u64,
    /// At least this.
    pub(crate) at_least: u64,
}

/// A set of small numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CandidateSet(pub(super) u128);

impl CandidateSet {
    pub(crate) fn has(self, item: u8) -> bool {
        self.0 & (1 << item) != 0
    }

    pub(crate) fn add(&mut self, item: u8) {
        self.0 |= 1 << item;
    }

    pub(crate) fn drop(&mut self, item: u8) {
        self.0 &= !(1 << item);
    }

    pub(crate) fn remove(&mut self, other: Self) {
        self.0 &= !other.0;
    }

    pub(crate) fn len(self) -> u32 {
        self.0.count_ones()
    }
}

impl Exclusions {
    /// Until when this call leaves candidate `slot` alone, while it does.
    pub(crate) fn wait(&self, slot: u8, now: Instant) -> Option<Instant> {
        let until = self.waits.iter().find(|(waiting, _)| *waiting == slot)?.1;
        (until > now).then_some(until)
    }

    /// Leaves candidate `slot` alone until then: because the provider has `asked` for it, or because it
    /// is the turn of others.
    pub(crate) fn hold(&mut self, slot: u8, until: Instant, asked: bool) {
        match asked {
            true => self.asked.add(slot),
            false => self.asked.drop(slot),
        }
        match self.waits.iter_mut().find(|(waiting, _)| *waiting == slot) {
            Some(wait) => wait.1 = wait.1.max(until),
            None => self.waits.push((slot, until)),
        }
    }

    /// A new round: what failed the call and may be asked again is asked again.
    pub(crate) fn next_round(&mut self) {
        self.excluded.remove(self.again);
        self.again = CandidateSet::default();
        self.found = CandidateSet::default();
    }

    /// Rules out candidate `slot` for good.
    pub(crate) fn rule_out(&mut self, slot: u8) {
        self.excluded.add(slot);
        self.again.drop(slot);
    }

    /// Rules out what `which` says.
    pub(crate) fn exclude(
        &mut self,
        views: &[CandidateView],
        which: impl Fn(&CandidateView) -> bool,
    ) {
        for (slot, _) in (0u8..).zip(views).filter(|(_, view)| which(view)) {
            self.excluded.add(slot);
        }
    }
}

impl Floor {
    /// An unknown window is not known to be large enough.
    pub(super) fn fits(&self, window: Option<u64>) -> bool {
        window.is_some_and(|window| window > self.above && window >= self.at_least)
    }

    /// Both together.
    pub(crate) fn max(self, other: Self) -> Self {
        Self { above: self.above.max(other.above), at_least: self.at_least.max(other.at_least) }
    }
}
