//! The one list of what holds whatever happens.

use std::{fmt, sync::Arc};

use parking_lot::Mutex;

/// What holds whatever happens: promises 1 to 5 of the design, in words that can be checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Law {
    /// Every call ends, once: with a whole answer, or with one failure, and nothing comes after.
    EndsOnce,
    /// It ends within the caller's deadline and the pipeline's limit, and nothing is asked for it
    /// afterwards.
    InTime,
    /// A provider is asked no more often than the call allows and the policies of all layers
    /// together can make it; the attempts are numbered, and the caller is told how many they were.
    WithinAttempts,
    /// What the caller gets is what one provider sent, every piece of it once: text, thinking,
    /// names and arguments of tools. A failure that came after content says so.
    NothingLostNothingTwice,
    /// The usage of an answer is what its provider reported, counted once.
    UsageOnce,
    /// A failure has a reason and words, whatever came over the wire.
    Told,
    /// A refusal that forbids every further attempt is final: nobody is asked again.
    ForbiddenIsFinal,
    /// When everybody has gone, no connection is open, no probe or lone call is booked, no task
    /// lives, no timer is set and no budget is overdrawn.
    NothingLeft,
    /// The breaker does what a naive model does that sees nothing but the attempts and how they
    /// ended.
    BreakerAgrees,
    /// So do the cooldowns; and no target is asked while it cools, but as a probe or because there
    /// is nothing else.
    CooldownsAgree,
    /// After a quiet time, or a reset, every provider that is well is asked again, and one attempt
    /// does.
    ProbesReturn,
    /// The recovery log says what was seen to happen: each retry, each limit that fired, each turn
    /// of a breaker, each change of target.
    LogAgrees,
    /// Nothing panics.
    NoPanic,
}

impl Law {
    /// All of them.
    pub(crate) const ALL: [Law; 13] = [
        Law::EndsOnce,
        Law::InTime,
        Law::WithinAttempts,
        Law::NothingLostNothingTwice,
        Law::UsageOnce,
        Law::Told,
        Law::ForbiddenIsFinal,
        Law::NothingLeft,
        Law::BreakerAgrees,
        Law::CooldownsAgree,
        Law::ProbesReturn,
        Law::LogAgrees,
        Law::NoPanic,
    ];

    /// Its name in reports.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Law::EndsOnce => "ends-once",
            Law::InTime => "in-time",
            Law::WithinAttempts => "within-attempts",
            Law::NothingLostNothingTwice => "nothing-lost-nothing-twice",
            Law::UsageOnce => "usage-once",
            Law::Told => "told",
            Law::ForbiddenIsFinal => "forbidden-is-final",
            Law::NothingLeft => "nothing-left",
            Law::BreakerAgrees => "breaker-agrees",
            Law::CooldownsAgree => "cooldowns-agree",
            Law::ProbesReturn => "probes-return",
            Law::LogAgrees => "log-agrees",
            Law::NoPanic => "no-panic",
        }
    }
}

/// A law that did not hold.
#[derive(Clone, Debug)]
pub(crate) struct Broken {
    pub(crate) law: Law,
    /// What was seen, and what should have been.
    pub(crate) what: String,
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.law.name(), self.what)
    }
}

/// Collects what did not hold. Clones are one.
#[derive(Clone, Debug, Default)]
pub(crate) struct Court(Arc<Mutex<Vec<Broken>>>);

impl Court {
    /// Notes that `law` does not hold unless `holds`.
    #[track_caller]
    pub(crate) fn check(&self, law: Law, holds: bool, what: impl FnOnce() -> String) {
        if !holds {
            self.broken(law, what());
        }
    }

    /// Notes that `law` does not hold.
    #[track_caller]
    pub(crate) fn broken(&self, law: Law, what: impl fmt::Display) {
        let at = std::panic::Location::caller();
        self.0.lock().push(Broken { law, what: format!("{what} [{}:{}]", at.file(), at.line()) });
    }

    pub(crate) fn into_list(self) -> Vec<Broken> {
        std::mem::take(&mut *self.0.lock())
    }
}
