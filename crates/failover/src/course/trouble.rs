//! What has gone wrong with a call so far, and what that rules out.

use std::time::Duration;

use smallvec::SmallVec;
use steadfast_core::{Attempt, Failover, Failure, Reason, Scope, Usage, Withdrawal};
use tokio::time::Instant;

use crate::{
    policy::Verdict,
    select::{Floor, Limits, Set, Skip},
    slot::Slot,
};

/// What has gone wrong so far.
#[derive(Debug, Default)]
pub(super) struct Trouble {
    pub(super) limits: Limits,
    /// Excluded by failures that made something cool: may be asked again after a wait.
    pub(super) resting: Set,
    /// Were asked again after a wait; not a third time.
    pub(super) again: Set,
    /// In the trail as skipped.
    pub(super) passed: Set,
    /// What was tried and skipped, in order.
    pub(super) trail: SmallVec<[Tried; 2]>,
    pub(super) last: Option<Last>,
    /// How many times a provider was asked.
    pub(super) attempts: u32,
    /// The failure that the next attempt has to be paid for.
    pub(super) owed: Option<Reason>,
    pub(super) withdrawn: Option<Withdrawal>,
    pub(super) waited: Duration,
    /// A cooling target was asked all the same; once is enough.
    pub(super) insisted: bool,
    /// The shortest wait that failures asked for which made nothing cool.
    pub(super) hint: Option<Duration>,
    pub(super) usage: Option<Usage>,
    /// Why no further target is asked, though there may be some.
    pub(super) stopped: Option<&'static str>,
}

/// A target that was tried or skipped. Most calls that skip one end well, so what there would be
/// to say of it is not put into words before it is needed.
#[derive(Debug)]
pub(super) enum Tried {
    Skipped(u8, Skip, Instant),
    /// An attempt, or several made below this layer.
    Failed(SmallVec<[Attempt; 1]>),
    /// What the last failure says.
    Last,
}

#[derive(Debug)]
pub(super) struct Last {
    pub(super) slot: u8,
    pub(super) failure: Failure,
    pub(super) go: Failover,
    /// It came from a provider, and not from trying to fit the request.
    pub(super) asked: bool,
}

impl Trouble {
    pub(super) fn is_final(&self) -> bool {
        self.last.as_ref().is_some_and(Last::is_final)
    }

    /// Enters that `at` is passed over; whether that is new.
    pub(super) fn skip(&mut self, at: u8, skip: &Skip, now: Instant) -> bool {
        let new = !self.passed.has(at);
        if new {
            self.passed.add(at);
            self.trail.push(Tried::Skipped(at, *skip, now));
        }
        new
    }

    /// Enters that the request could not be made to fit `at`.
    pub(super) fn unfit(&mut self, at: u8, failure: Failure) {
        let mut attempt = Attempt::from_failure(&failure);
        attempt.skipped = true;
        self.trail.push(Tried::Failed(SmallVec::from_iter([attempt])));
        self.passed.add(at);
        self.limits.excluded.add(at);
        if self.last.as_ref().is_none_or(|last| !last.asked) {
            let go = Failover::NextTarget;
            self.last = Some(Last { slot: at, failure, go, asked: false });
        }
    }

    /// Enters that the attempt at `at` failed, and rules out what it speaks for.
    pub(super) fn fail(&mut self, at: u8, failure: Failure, verdict: &Verdict, slots: &[Slot]) {
        let slot = &slots[usize::from(at)];
        self.attempts = self.attempts.saturating_add(failure.attempts());
        self.owed = Some(failure.reason());
        if let Some(usage) = failure.usage() {
            self.usage = Some(self.usage.unwrap_or_default().plus(usage));
        }
        if verdict.blame.is_none() && failure.retry_after().is_some() {
            self.hint = self.hint.min(failure.retry_after()).or(failure.retry_after());
        }
        if verdict.downgrade {
            self.limits.downgrade.add(slot.spec);
        }
        let mut go = verdict.go;
        if go == Failover::LargerWindow {
            match floor(&failure, slot) {
                Some(floor) => {
                    let known = self.limits.floor.unwrap_or_default();
                    self.limits.floor = Some(known.max(floor));
                }
                // Nothing tells which window would be large enough.
                None => go = Failover::Never,
            }
        }
        for (other, candidate) in (0u8..).zip(slots) {
            if other == at || affects(verdict, slot, candidate) {
                let first = !self.again.has(other) && !self.limits.excluded.has(other);
                self.limits.excluded.add(other);
                if first && verdict.blame.is_some() {
                    self.resting.add(other);
                }
            }
        }
        // What has been found final stays so, whatever an attempt beside it says later.
        if !self.is_final() || go == Failover::Forbidden {
            self.tell_last();
            self.trail.push(Tried::Last);
            self.last = Some(Last { slot: at, failure, go, asked: true });
        } else {
            self.trail.push(Tried::Failed(words(&failure)));
        }
    }

    /// Puts into words what the last failure says, before there is another one.
    fn tell_last(&mut self) {
        let Some(last) = &self.last else { return };
        if let Some(tried) = self.trail.iter_mut().find(|tried| matches!(tried, Tried::Last)) {
            *tried = Tried::Failed(words(&last.failure));
        }
    }
}

/// The attempts that ended with `failure`.
pub(super) fn words(failure: &Failure) -> SmallVec<[Attempt; 1]> {
    match failure.trail() {
        [] => SmallVec::from_iter([Attempt::from_failure(failure)]),
        trail => trail.iter().cloned().collect(),
    }
}

impl Last {
    pub(super) fn is_final(&self) -> bool {
        matches!(self.go, Failover::Never | Failover::Forbidden)
    }
}

/// Whether a failure of `slot` speaks for `other` too.
fn affects(verdict: &Verdict, slot: &Slot, other: &Slot) -> bool {
    if slot.spec != other.spec {
        return false;
    }
    let model = slot.rank == other.rank;
    let credential = slot.credential == other.credential;
    match (verdict.scope, verdict.go) {
        (Scope::Provider, _) => true,
        (Scope::Model, _) | (_, Failover::NextModel) => model,
        (Scope::Credential, _) | (_, Failover::NextCredential) => credential,
        // A request that one provider refuses is refused by all of its keys and models.
        (Scope::Request | Scope::Task, Failover::NextTarget) => true,
        _ => model && credential,
    }
}

/// How large a window has to be after `failure`, as far as anybody knows.
fn floor(failure: &Failure, slot: &Slot) -> Option<Floor> {
    let stated = failure.window().unwrap_or_default();
    let above = stated.limit.or(slot.profile(false).window);
    if above.is_none() && stated.requested.is_none() {
        return None;
    }
    let at_least = stated.requested.unwrap_or(0);
    Some(Floor { above: above.unwrap_or(0), at_least })
}
