//! Which candidate is next: a pure function of what is known.
//!
//! A candidate is one model with one credential of one provider. They are given in order of
//! preference: provider by provider as in the chain, its model before its downgrades, its
//! credentials in order.

mod exclusions;
mod view;

use std::{borrow::Cow, time::Duration};

use smallvec::SmallVec;
use steadfast_core::{Reason, time::later};
use tokio::time::Instant;

use crate::health::is_out;

pub(crate) use self::{
    exclusions::{CandidateSet, Exclusions, Floor},
    view::{CandidateRest, CandidateView, Lacks, ProviderState},
};

/// The longest wait for a target that cools for a reason of ours: then it is asked all the same. As long as
/// a retry waits at most.
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

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
    /// Its provider is degraded.
    pub(crate) degraded: bool,
    /// It is asked as if its provider were well, to see whether that still is degraded.
    pub(crate) probes_provider: bool,
}

/// The candidate that is the first to be asked in another round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NextRound {
    pub(crate) slot: u8,
    pub(crate) at: Instant,
    /// It has asked this call to wait until then.
    pub(crate) held: bool,
    /// Others can be asked too, then or later.
    pub(crate) spare: bool,
}

/// Why a candidate is passed over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Skip {
    Cooling(CandidateRest),
    /// Its provider is degraded.
    Degraded,
    /// This call was asked to wait until then.
    Wait(Instant),
    Lacks(Lacks),
    /// Its window is not known to be large enough.
    Window(Floor),
}

impl Skip {
    /// Why, in short: for a cooling target, why it cools.
    pub(crate) fn reason(&self) -> Reason {
        match self {
            Skip::Cooling(rest) => rest.reason,
            Skip::Wait(_) | Skip::Degraded => Reason::Cooling,
            Skip::Lacks(lacks) => lacks.reason(),
            Skip::Window(_) => Reason::ContextOverflow,
        }
    }

    pub(crate) fn text(&self, now: Instant) -> Cow<'static, str> {
        match self {
            Skip::Cooling(rest) => {
                let left = rest.until.saturating_duration_since(now);
                if is_out(left) {
                    return "taken out by an operator".into();
                }
                format!("cooling for {:.1} s more after {}", left.as_secs_f64(), rest.reason).into()
            }
            Skip::Degraded => "its provider is degraded".into(),
            Skip::Wait(until) => {
                let left = until.saturating_duration_since(now);
                format!("it asked for a wait of {:.1} s more", left.as_secs_f64()).into()
            }
            Skip::Lacks(lacks) => lacks.text().into(),
            Skip::Window(_) => "its window is not known to be large enough".into(),
        }
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
                let degraded = view.health != ProviderState::Well;
                let probes_provider = view.probe_due && !probe && insists.is_none();
                let planned = PlannedCandidate { slot, probe, insists, degraded, probes_provider };
                plan.order.push(planned);
            }
            Some(Err(skip)) => plan.skipped.push((slot, skip)),
        }
    }
    if !plan.order.iter().any(|pick| !pick.degraded && !pick.cools()) {
        // There is nobody to be asked before them anyway.
        plan.order.iter_mut().for_each(|pick| pick.probes_provider = false);
    }
    // Those whose provider is degraded come after the others, then those that mostly fail by themselves, and
    // those that cool come last, the first to be back before the others. Between equals the share decides.
    plan.order.sort_by_key(|pick| {
        let view = &views[usize::from(pick.slot)];
        let avoided = view.health == ProviderState::Avoided && !pick.probes_provider;
        let fails = view.mostly_fails && !pick.probe;
        let degraded = pick.degraded && !pick.probe && !pick.probes_provider;
        (avoided, pick.insists.map(|rest| rest.until), fails, degraded, view.position)
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

impl Plan {
    /// Why candidate `slot` is not asked before those that are well.
    pub(crate) fn skip(&self, slot: u8) -> Option<Skip> {
        let skipped = self.skipped.iter().find(|(skipped, _)| *skipped == slot);
        let behind = || {
            let planned = self.order.iter().find(|planned| planned.slot == slot)?;
            let degraded = planned.degraded.then_some(Skip::Degraded);
            planned.insists.map(Skip::Cooling).or(degraded)
        };
        skipped.map(|(_, skip)| *skip).or_else(behind)
    }
}

impl PlannedCandidate {
    /// It neither cools nor mostly fails, nor is its provider degraded.
    fn is_well(&self, views: &[CandidateView]) -> bool {
        !self.degraded && !self.cools() && !views[usize::from(self.slot)].mostly_fails
    }

    pub(crate) fn cools(&self) -> bool {
        self.probe || self.insists.is_some()
    }
}

/// The candidate that is the first to be asked in another round, and when.
pub(crate) fn next_round(
    views: &[CandidateView],
    now: Instant,
    exclusions: &Exclusions,
) -> Option<NextRound> {
    let mut first: Option<NextRound> = None;
    for (slot, view) in numbered(views) {
        if !may_serve(views, slot, exclusions) || (view.refuses() && !exclusions.strict) {
            continue;
        }
        let hold = exclusions.wait(slot, now);
        let at = hold.max(free_from(views, slot, now, exclusions)).unwrap_or(now).max(now);
        let held = hold.is_some() && exclusions.asked.has(slot);
        first = match first {
            Some(first) if first.at <= at => Some(NextRound { spare: true, ..first }),
            _ => Some(NextRound { slot, at, held, spare: first.is_some() }),
        };
    }
    first
}

/// From when on candidate `slot` would be asked although it cools.
fn free_from(
    views: &[CandidateView],
    slot: u8,
    now: Instant,
    exclusions: &Exclusions,
) -> Option<Instant> {
    let rest = views[usize::from(slot)].rest?;
    match exclusions.strict {
        true => Some(if rest.probe_from > now { rest.probe_from } else { rest.until }),
        // There is nobody to be preferred to it.
        false if views.len() == 1 => None,
        false => Some(rest.until.min(later(now, LONGEST_PAUSE))),
    }
}

/// When the first of those that cool or are held is back; `None` when another may be asked before, and
/// when there are none.
pub(crate) fn soonest_back(
    views: &[CandidateView],
    now: Instant,
    exclusions: &Exclusions,
) -> Option<Instant> {
    let next_call = Exclusions { excluded: CandidateSet::default(), ..exclusions.clone() };
    let mut soonest: Option<Instant> = None;
    for (slot, view) in numbered(views) {
        let rest = view.rest.map(|rest| rest.until).filter(|until| *until > now);
        let back = exclusions.wait(slot, now).max(rest);
        if back.is_none() && may_serve(views, slot, exclusions) {
            return None;
        }
        if may_serve(views, slot, &next_call) {
            soonest = soonest.into_iter().chain(back).min();
        }
    }
    soonest
}

/// Whether candidate `slot` may serve the call, now or in another round, whether or not it cools.
pub(crate) fn may_serve(views: &[CandidateView], slot: u8, exclusions: &Exclusions) -> bool {
    let view = &views[usize::from(slot)];
    let downgrades = exclusions.downgrade.has(view.spec);
    possible(views, slot, exclusions)
        && may_stand_in(views, view, |_, better| better.yields || downgrades)
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
    let downgrades = exclusions.downgrade.has(view.spec);
    let made_way = |better_slot, better: &CandidateView| {
        better.yields || (downgrades && exclusions.excluded.has(better_slot))
    };
    if exclusions.excluded.has(slot) || !may_stand_in(views, view, made_way) {
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
    // Where cooling targets are never asked, what this very call has just found out about the provider's
    // better models does not rule out their downgrades.
    let before = view.model_cools || exclusions.cooled_before.has(slot);
    let just_found = downgrades && exclusions.found.has(slot) && !before;
    let own_finding = exclusions.strict && view.rank > 0 && just_found;
    Some(match view.rest {
        None => Ok((false, None)),
        Some(rest) if rest.probe_from <= now && !rest.probing => Ok((true, None)),
        Some(_) if own_finding => Ok((false, None)),
        Some(rest) if exclusions.strict || rest.refuses => Err(Skip::Cooling(rest)),
        Some(rest) => Ok((false, Some(rest))),
    })
}

/// Whether `view` is the model that was asked for, or every better one of the provider has made
/// way for it.
fn may_stand_in(
    views: &[CandidateView],
    view: &CandidateView,
    made_way: impl Fn(u8, &CandidateView) -> bool,
) -> bool {
    view.rank == 0
        || numbered(views)
            .filter(|(_, better)| better.spec == view.spec && better.rank < view.rank)
            .all(|(slot, better)| made_way(slot, better))
}

/// What a candidate must be able to do: what at least one of them can. Where none can see, the
/// request is adapted; where no window is large enough, a layer below may compact.
fn required(views: &[CandidateView]) -> Lacks {
    let all = views.iter().fold(u8::MAX, |all, view| all & view.lacks.0);
    let required = Lacks(!all);
    let somebody = |required| views.iter().any(|view| !(view.lacks & required).any());
    if somebody(required) { required } else { Lacks(required.0 & !Lacks::WINDOW.0) }
}

fn numbered(views: &[CandidateView]) -> impl Iterator<Item = (u8, &CandidateView)> {
    (0u8..).zip(views)
}

#[cfg(test)]
mod tests;
