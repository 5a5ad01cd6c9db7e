//! What has happened to a call so far, and what that rules out.

use std::time::Duration;

use smallvec::SmallVec;
use steadfast_core::{Attempt, Failover, Failure, Scope, Usage, Withdrawal};
use tokio::time::Instant;

use crate::{
    candidate::Candidate,
    select::{CandidateSet, Exclusions, Floor, Skip},
    verdict::FailureVerdict,
};

/// What has happened to a call so far; empty while nothing has gone wrong.
#[derive(Debug, Default)]
pub(crate) struct History {
    pub(crate) exclusions: Exclusions,
    /// How often each candidate's target was asked.
    asked: SmallVec<[(u8, u32); 2]>,
    /// All waits together, here and in the layers below.
    pub(crate) waited: Duration,
    /// Further rounds over the candidates.
    pub(crate) rounds: u32,
    /// In the trail, as tried or as skipped.
    pub(crate) listed: CandidateSet,
    /// What was tried and skipped, in order.
    pub(crate) trail: SmallVec<[HistoryEntry; 2]>,
    pub(crate) last: Option<LastFailure>,
    /// How many times a provider was asked.
    pub(crate) attempts: u32,
    pub(crate) withdrawn: Option<Withdrawal>,
    /// What the last wait was, from which the next one grows.
    pub(crate) pause: Duration,
    pub(crate) usage: Option<Usage>,
    /// Why no further target is asked, though there may be some.
    pub(crate) stopped: Option<Stopped>,
}

/// A target that was tried or skipped. Most calls that skip one end well, so no text is made of it
/// before it is needed.
#[derive(Debug)]
pub(crate) enum HistoryEntry {
    Skipped(u8, Skip, Instant),
    /// An attempt, or several made below this layer.
    Failed(SmallVec<[Attempt; 1]>),
    /// The last failure.
    Last,
}

#[derive(Debug)]
pub(crate) struct LastFailure {
    pub(crate) candidate: u8,
    pub(crate) failure: Failure,
    pub(crate) go: Failover,
    /// It came from a provider, and not from trying to fit the request.
    pub(crate) asked: bool,
}

impl History {
    pub(crate) fn is_final(&self) -> bool {
        self.last.as_ref().is_some_and(LastFailure::is_final)
    }

    /// Whether the call may have gone on, had there been room for one more that waits.
    pub(crate) fn is_crowded(&self) -> bool {
        let last = self.last.as_ref().map(|last| &last.failure);
        self.stopped == Some(Stopped::Crowded) || last.is_some_and(Failure::is_crowded)
    }

    /// Notes that `at` is passed over; whether nothing was known of it before.
    pub(crate) fn skip(&mut self, at: u8, skip: &Skip, now: Instant) -> bool {
        let new = !self.listed.has(at);
        if new {
            self.listed.add(at);
            self.trail.push(HistoryEntry::Skipped(at, *skip, now));
        }
        new
    }

    /// Notes that the request could not be made to fit `at`.
    pub(crate) fn unfit(&mut self, at: u8, failure: Failure) {
        let mut attempt = Attempt::from_failure(&failure);
        attempt.skipped = true;
        self.trail.push(HistoryEntry::Failed(SmallVec::from_iter([attempt])));
        self.listed.add(at);
        self.exclusions.excluded.add(at);
        if self.last.as_ref().is_none_or(|last| !last.asked) {
            let go = Failover::NextTarget;
            self.last = Some(LastFailure { candidate: at, failure, go, asked: false });
        }
    }

    /// Notes that there were no means for an attempt at `at` beside another: it may be asked in another round.
    pub(crate) fn unpaid(&mut self, at: u8, failure: &Failure) {
        self.attempts = self.attempts.saturating_add(failure.attempts());
        self.count(at, failure.attempts());
        self.list_tried(at);
        self.exclusions.excluded.add(at);
        self.exclusions.again.add(at);
        self.trail.push(HistoryEntry::Failed(attempts_of(failure)));
    }

    /// How often candidate `at` was asked.
    pub(crate) fn repeats(&self, at: u8) -> u32 {
        self.asked.iter().find(|(asked, _)| *asked == at).map_or(0, |(_, times)| *times)
    }

    fn count(&mut self, at: u8, attempts: u32) {
        match self.asked.iter_mut().find(|(asked, _)| *asked == at) {
            Some((_, times)) => *times = times.saturating_add(attempts),
            None => self.asked.push((at, attempts)),
        }
    }

    /// Notes that the attempt at `at` failed, and rules out what it speaks for; `hold` says until when
    /// the call leaves that alone.
    pub(crate) fn fail(
        &mut self,
        at: u8,
        failure: Failure,
        verdict: &FailureVerdict,
        hold: Option<Instant>,
        candidates: &[Candidate],
    ) {
        let slot = &candidates[usize::from(at)];
        self.attempts = self.attempts.saturating_add(failure.attempts());
        self.count(at, failure.attempts());
        self.list_tried(at);
        self.waited = self.waited.saturating_add(failure.waited());
        if let Some(usage) = failure.usage() {
            self.usage = Some(self.usage.unwrap_or_default().plus(usage));
        }
        if verdict.downgrade {
            self.exclusions.downgrade.add(slot.spec);
        }
        let mut go = verdict.go;
        if go == Failover::LargerWindow {
            match floor(&failure, slot) {
                Some(floor) => {
                    let known = self.exclusions.floor.unwrap_or_default();
                    self.exclusions.floor = Some(known.max(floor));
                }
                // It is not known which window would be large enough.
                None => go = Failover::Never,
            }
        }
        for (other, candidate) in (0u8..).zip(candidates) {
            if cools(verdict, slot, candidate) {
                self.exclusions.found.add(other);
            }
            if other == at || affects(verdict, slot, candidate) {
                if !verdict.again {
                    self.exclusions.rule_out(other);
                } else if !self.exclusions.excluded.has(other) {
                    self.exclusions.excluded.add(other);
                    self.exclusions.again.add(other);
                }
                if let Some(hold) = hold {
                    let asked = !failure.reason().is_refusal();
                    self.exclusions.hold(other, hold, asked);
                }
            }
        }
        // What has been found final stays so, whatever an attempt beside it says later.
        if !self.is_final() || go == Failover::Forbidden {
            self.record_last();
            self.trail.push(HistoryEntry::Last);
            self.last = Some(LastFailure { candidate: at, failure, go, asked: true });
        } else {
            self.trail.push(HistoryEntry::Failed(attempts_of(&failure)));
        }
    }

    /// Candidate `at` is in the trail as tried, and not as skipped before.
    fn list_tried(&mut self, at: u8) {
        self.listed.add(at);
        self.trail.retain(|entry| !matches!(entry, HistoryEntry::Skipped(slot, ..) if *slot == at));
    }

    /// Makes attempts of the last failure, before there is another one.
    fn record_last(&mut self) {
        let Some(last) = &self.last else { return };
        if let Some(tried) = self.trail.iter_mut().find(|tried| matches!(tried, HistoryEntry::Last))
        {
            *tried = HistoryEntry::Failed(attempts_of(&last.failure));
        }
    }
}

/// The attempts that ended with `failure`.
pub(crate) fn attempts_of(failure: &Failure) -> SmallVec<[Attempt; 1]> {
    match failure.trail() {
        [] => SmallVec::from_iter([Attempt::from_failure(failure)]),
        trail => trail.iter().cloned().collect(),
    }
}

impl LastFailure {
    pub(crate) fn is_final(&self) -> bool {
        matches!(self.go, Failover::Never | Failover::Forbidden)
    }
}

/// Whether a failure of `slot` is one that `other` cools down for too.
fn cools(verdict: &FailureVerdict, slot: &Candidate, other: &Candidate) -> bool {
    let in_scope = match verdict.scope {
        Scope::Provider => true,
        Scope::Credential => slot.credential == other.credential,
        Scope::Model => slot.rank == other.rank,
        Scope::ModelCredential => slot.rank == other.rank && slot.credential == other.credential,
        _ => false,
    };
    verdict.blame.is_some() && slot.spec == other.spec && in_scope
}

/// Whether a failure of `slot` rules out `other` too for this call.
fn affects(verdict: &FailureVerdict, slot: &Candidate, other: &Candidate) -> bool {
    if slot.spec != other.spec {
        return false;
    }
    let model = slot.rank == other.rank;
    let credential = slot.credential == other.credential;
    match (verdict.scope, verdict.go) {
        (Scope::Model, _) | (_, Failover::NextModel) => model,
        (Scope::Provider, _) => true,
        (Scope::Credential, _) | (_, Failover::NextCredential) => credential,
        // A request that one provider refuses is refused by all of its keys and models.
        (Scope::Request | Scope::Task, Failover::NextTarget) => true,
        _ => model && credential,
    }
}

/// How large a window has to be after `failure`, as far as anybody knows.
fn floor(failure: &Failure, slot: &Candidate) -> Option<Floor> {
    let stated = failure.window().unwrap_or_default();
    let above = stated.limit.or(slot.profile(false).can.window);
    if above.is_none() && stated.requested.is_none() {
        return None;
    }
    let at_least = stated.requested.unwrap_or(0);
    Some(Floor { above: above.unwrap_or(0), at_least })
}

/// Why no further candidate is asked although one could be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stopped {
    /// The deadline of the call has passed.
    Deadline,
    /// The request has had all its attempts.
    Attempts,
    /// The retry budget has nothing left.
    Budget,
    /// Too many calls wait already.
    Crowded,
}

impl Stopped {
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Stopped::Deadline => "the deadline of the call has passed",
            Stopped::Attempts => "the request has had all the attempts it may have",
            Stopped::Budget => "the retry budget is used up",
            Stopped::Crowded => "too many calls wait already",
        }
    }
}
