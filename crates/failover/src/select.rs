//! Which candidate is next: a pure function of what is known.
//!
//! A candidate is one model with one credential of one provider. They are given in order of
//! preference: provider by provider as in the chain, its model before its downgrades, its
//! credentials in order.

use std::{borrow::Cow, ops};

use smallvec::SmallVec;
use steadfast_core::{Needs, Profile, Reason};
use tokio::time::Instant;

/// What is known of one candidate.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CandidateView {
    /// Which provider of the chain.
    pub(crate) spec: u8,
    /// 0 for the model that was asked for, n for the nth downgrade.
    pub(crate) rank: u8,
    /// What it can not do of what the request needs.
    pub(crate) lacks: Lacks,
    pub(crate) window: Option<u64>,
    /// Until when it cools, when it does.
    pub(crate) rest: Option<CandidateRest>,
    /// Most of what it was asked lately has failed.
    pub(crate) mostly_fails: bool,
    /// Its model is cooling for a reason that lets the provider's next model stand in.
    pub(crate) yields: bool,
}

/// A cooldown as far as selection is concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CandidateRest {
    pub(crate) until: Instant,
    pub(crate) probe_from: Instant,
    pub(crate) probing: bool,
    /// The provider asked for it.
    pub(crate) hinted: bool,
    /// Not even a call without another target is made.
    pub(crate) refuses: bool,
    pub(crate) reason: Reason,
}

/// What has happened to the request so far rules out or asks for.
#[derive(Clone, Debug, Default)]
pub(crate) struct Exclusions {
    /// Candidates that have failed this request, by themselves or with their model, credential or
    /// provider.
    pub(crate) excluded: CandidateSet,
    /// Those of them that may be asked again in another round.
    pub(crate) again: CandidateSet,
    /// Candidates that this call was asked to leave alone, and until when.
    pub(crate) waits: SmallVec<[(u8, Instant); 2]>,
    /// A cooling candidate is not asked, even when no other is left.
    pub(crate) strict: bool,
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

/// The candidates to ask, in order, and why others are not.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Plan {
    pub(crate) order: SmallVec<[PlannedCandidate; 8]>,
    pub(crate) skipped: SmallVec<[(u8, Skip); 8]>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PlannedCandidate {
    pub(crate) slot: u8,
    /// It is cooling: only as a probe, if there is none yet.
    pub(crate) probe: bool,
    /// It is cooling, and asked because no other is left.
    pub(crate) insists: Option<CandidateRest>,
}

/// Why a candidate is passed over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Skip {
    Cooling(CandidateRest),
    /// This call was asked to wait until then.
    Wait(Instant),
    Lacks(Lacks),
    /// Its window is not known to be large enough.
    Window(Floor),
}

/// A set of small numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CandidateSet(u128);

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

    pub(crate) fn join(&mut self, other: Self) {
        self.0 |= other.0;
    }

    pub(crate) fn remove(&mut self, other: Self) {
        self.0 &= !other.0;
    }

    pub(crate) fn len(self) -> u32 {
        self.0.count_ones()
    }
}

/// What a target can not do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Lacks(u8);

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

impl Skip {
    /// Why, in short: for a cooling target, why it cools.
    pub(crate) fn reason(&self) -> Reason {
        match self {
            Skip::Cooling(rest) => rest.reason,
            Skip::Wait(_) => Reason::Cooling,
            Skip::Lacks(lacks) => lacks.reason(),
            Skip::Window(_) => Reason::ContextOverflow,
        }
    }

    pub(crate) fn text(&self, now: Instant) -> Cow<'static, str> {
        match self {
            Skip::Cooling(rest) => {
                let left = rest.until.saturating_duration_since(now);
                format!("cooling for {:.1} s more after {}", left.as_secs_f64(), rest.reason).into()
            }
            Skip::Wait(until) => {
                let left = until.saturating_duration_since(now);
                format!("it asked for a wait of {:.1} s more", left.as_secs_f64()).into()
            }
            Skip::Lacks(lacks) => lacks.text().into(),
            Skip::Window(_) => "its window is not known to be large enough".into(),
        }
    }
}

impl Exclusions {
    /// Until when this call leaves candidate `slot` alone, while it does.
    fn wait(&self, slot: u8, now: Instant) -> Option<Instant> {
        let until = self.waits.iter().find(|(waiting, _)| *waiting == slot)?.1;
        (until > now).then_some(until)
    }

    /// Leaves candidate `slot` alone until then.
    pub(crate) fn hold(&mut self, slot: u8, until: Instant) {
        match self.waits.iter_mut().find(|(waiting, _)| *waiting == slot) {
            Some(wait) => wait.1 = wait.1.max(until),
            None => self.waits.push((slot, until)),
        }
    }

    /// A new round: what failed the call and may be asked again is asked again.
    pub(crate) fn next_round(&mut self) {
        self.excluded.remove(self.again);
        self.again = CandidateSet::default();
    }

    /// Rules out what `which` says.
    pub(crate) fn exclude(
        &mut self,
        views: &[CandidateView],
        which: impl Fn(&CandidateView) -> bool,
    ) {
        for (slot, _) in numbered(views).filter(|(_, view)| which(view)) {
            self.excluded.add(slot);
        }
    }
}

impl ops::BitAnd for Lacks {
    type Output = Self;

    fn bitand(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }
}

/// The candidates to ask now, best first.
pub(crate) fn plan(views: &[CandidateView], now: Instant, exclusions: &Exclusions) -> Plan {
    let required = required(views);
    let mut plan = Plan::default();
    for (slot, view) in numbered(views) {
        match admit(views, slot, view, now, exclusions, required) {
            None => {}
            Some(Ok((probe, insists))) => {
                plan.order.push(PlannedCandidate { slot, probe, insists });
            }
            Some(Err(skip)) => plan.skipped.push((slot, skip)),
        }
    }
    // Those that mostly fail come after the others, and those that cool come last, the first to be
    // back before the others.
    plan.order.sort_by_key(|pick| {
        let view = &views[usize::from(pick.slot)];
        let behind = view.mostly_fails && !pick.probe;
        (pick.insists.map(|rest| rest.until), behind)
    });
    // A session stays where it is while that is well.
    if let Some(preferred) = exclusions.preferred
        && let Some(at) = plan.order.iter().position(|pick| pick.slot == preferred)
        && plan.order[at].is_well(views)
    {
        plan.order[..=at].rotate_right(1);
    }
    plan
}

impl PlannedCandidate {
    fn is_well(&self, views: &[CandidateView]) -> bool {
        !self.probe && self.insists.is_none() && !views[usize::from(self.slot)].mostly_fails
    }
}

/// The cooling candidate that comes back first.
pub(crate) fn soonest(
    views: &[CandidateView],
    now: Instant,
    exclusions: &Exclusions,
) -> Option<(u8, CandidateRest)> {
    plan(views, now, exclusions)
        .skipped
        .into_iter()
        .filter_map(|(slot, skip)| match skip {
            Skip::Cooling(rest) => Some((slot, rest)),
            _ => None,
        })
        .min_by_key(|(slot, rest)| (rest.until, *slot))
}

/// Whether candidate `slot` could take the request at another time: it is not ruled out for good.
pub(crate) fn possible(views: &[CandidateView], slot: u8, exclusions: &Exclusions) -> bool {
    let view = &views[usize::from(slot)];
    (!exclusions.excluded.has(slot) || exclusions.again.has(slot))
        && !(view.lacks & required(views)).any()
        && exclusions.floor.is_none_or(|floor| floor.fits(view.window))
}

/// `None`: no candidate for this request, without a reason worth a line.
fn admit(
    views: &[CandidateView],
    slot: u8,
    view: &CandidateView,
    now: Instant,
    exclusions: &Exclusions,
    required: Lacks,
) -> Option<Result<(bool, Option<CandidateRest>), Skip>> {
    if exclusions.excluded.has(slot) || !may_stand_in(views, view, exclusions) {
        return None;
    }
    let lacks = view.lacks & required;
    if lacks.any() {
        return Some(Err(Skip::Lacks(lacks)));
    }
    if let Some(floor) = exclusions.floor
        && !floor.fits(view.window)
    {
        return Some(Err(Skip::Window(floor)));
    }
    if let Some(until) = exclusions.wait(slot, now) {
        return Some(Err(Skip::Wait(until)));
    }
    Some(match view.rest {
        None => Ok((false, None)),
        Some(rest) if rest.probe_from <= now && !rest.probing => Ok((true, None)),
        Some(rest) if exclusions.strict || rest.refuses => Err(Skip::Cooling(rest)),
        Some(rest) => Ok((false, Some(rest))),
    })
}

/// Whether `view` is the model that was asked for, or every better one of the provider has made
/// way for it.
fn may_stand_in(views: &[CandidateView], view: &CandidateView, exclusions: &Exclusions) -> bool {
    view.rank == 0
        || numbered(views)
            .filter(|(_, better)| better.spec == view.spec && better.rank < view.rank)
            .all(|(slot, better)| {
                better.yields
                    || (exclusions.downgrade.has(view.spec) && exclusions.excluded.has(slot))
            })
}

/// What a candidate must be able to do: what at least one of them can. Where none can see, the
/// request is adapted; where no window is large enough, a layer below may compact.
fn required(views: &[CandidateView]) -> Lacks {
    let all = views.iter().fold(u8::MAX, |all, view| all & view.lacks.0);
    let required = Lacks(!all);
    let somebody = |required| views.iter().any(|view| !(view.lacks & required).any());
    if somebody(required) { required } else { Lacks(required.0 & !Lacks::WINDOW.0) }
}

impl Floor {
    /// An unknown window is not known to be large enough.
    fn fits(&self, window: Option<u64>) -> bool {
        window.is_some_and(|window| window > self.above && window >= self.at_least)
    }

    /// Both together.
    pub(crate) fn max(self, other: Self) -> Self {
        Self { above: self.above.max(other.above), at_least: self.at_least.max(other.at_least) }
    }
}

impl CandidateRest {
    /// Of two cooldowns that both apply, the later end; a provider's own hint in either counts.
    pub(crate) fn later(self, other: Self) -> Self {
        let later = if self.until >= other.until { self } else { other };
        Self {
            probe_from: self.probe_from.max(other.probe_from),
            probing: self.probing || other.probing,
            hinted: self.hinted || other.hinted,
            refuses: self.refuses || other.refuses,
            ..later
        }
    }
}

fn numbered(views: &[CandidateView]) -> impl Iterator<Item = (u8, &CandidateView)> {
    (0u8..).zip(views)
}

#[cfg(test)]
mod tests;
