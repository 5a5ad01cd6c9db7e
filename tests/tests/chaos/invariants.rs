//! The invariants.

use std::{fmt, sync::Arc};

use parking_lot::Mutex;

/// What holds in every run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Invariant {
    /// Every call ends once: with a whole answer or with one failure, and nothing follows.
    EndsOnce,
    /// It ends within the caller's deadline and the pipeline's limit, and no attempt is made for it
    /// afterwards.
    InTime,
    /// There are no more attempts than the call and the policies of all layers together allow; the
    /// attempts are numbered, and their number is reported to the caller.
    WithinAttempts,
    /// The caller gets what one provider sent, every piece of it once: text, thinking, names and
    /// arguments of tools. A failure after content is marked as such.
    NothingLostNothingTwice,
    /// The usage of an answer is what its provider reported, counted once.
    UsageOnce,
    /// A failure has a reason and a message or a status, whatever was on the wire.
    Reported,
    /// A refusal that forbids every further attempt is final: no attempt follows.
    ForbiddenIsFinal,
    /// After all callers are done, no connection is open, no probe or lone call is in flight, no
    /// task runs, no timer is set and no budget is overdrawn.
    NothingLeft,
    /// The breaker agrees with a naive model that sees only the attempts and how they ended.
    BreakerAgrees,
    /// So do the cooldowns; and no target is called while it cools, except as a probe or because
    /// there is no other.
    CooldownsAgree,
    /// After a long time without calls, or a reset, every healthy provider is used again, and
    /// answers at the first attempt.
    ProbesReturn,
    /// The recovery log agrees with the timeline: each retry, each limit that fired, each
    /// transition of a breaker, each change of target.
    LogAgrees,
    /// Nothing panics.
    NoPanic,
}

impl Invariant {
    /// All of them.
    pub(crate) const ALL: [Invariant; 13] = [
        Invariant::EndsOnce,
        Invariant::InTime,
        Invariant::WithinAttempts,
        Invariant::NothingLostNothingTwice,
        Invariant::UsageOnce,
        Invariant::Reported,
        Invariant::ForbiddenIsFinal,
        Invariant::NothingLeft,
        Invariant::BreakerAgrees,
        Invariant::CooldownsAgree,
        Invariant::ProbesReturn,
        Invariant::LogAgrees,
        Invariant::NoPanic,
    ];

    /// Its name in reports.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Invariant::EndsOnce => "ends-once",
            Invariant::InTime => "in-time",
            Invariant::WithinAttempts => "within-attempts",
            Invariant::NothingLostNothingTwice => "nothing-lost-nothing-twice",
            Invariant::UsageOnce => "usage-once",
            Invariant::Reported => "reported",
            Invariant::ForbiddenIsFinal => "forbidden-is-final",
            Invariant::NothingLeft => "nothing-left",
            Invariant::BreakerAgrees => "breaker-agrees",
            Invariant::CooldownsAgree => "cooldowns-agree",
            Invariant::ProbesReturn => "probes-return",
            Invariant::LogAgrees => "log-agrees",
            Invariant::NoPanic => "no-panic",
        }
    }
}

/// An invariant that did not hold.
#[derive(Clone, Debug)]
pub(crate) struct Violation {
    pub(crate) invariant: Invariant,
    /// What happened, and what was expected.
    pub(crate) what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.invariant.name(), self.what)
    }
}

/// Collects violations. Clones share one list.
#[derive(Clone, Debug, Default)]
pub(crate) struct Violations(Arc<Mutex<Vec<Violation>>>);

impl Violations {
    /// Records a violation of `invariant` unless `holds`.
    #[track_caller]
    pub(crate) fn check(&self, invariant: Invariant, holds: bool, what: impl FnOnce() -> String) {
        if !holds {
            self.add(invariant, what());
        }
    }

    /// Records a violation of `invariant`.
    #[track_caller]
    pub(crate) fn add(&self, invariant: Invariant, what: impl fmt::Display) {
        let at = std::panic::Location::caller();
        self.0
            .lock()
            .push(Violation { invariant, what: format!("{what} [{}:{}]", at.file(), at.line()) });
    }

    pub(crate) fn into_list(self) -> Vec<Violation> {
        std::mem::take(&mut *self.0.lock())
    }
}
