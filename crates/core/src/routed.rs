//! How failover came to a target, for the layers below it.

use std::{fmt, sync::Arc};

use crate::{Failure, Observer, Permit, PermitKind, RecoveryLog};

/// How failover came to the target of a call.
///
/// Failover decides which target is asked and when. The layers below it go by that: a breaker does not
/// refuse what failover has selected, and a retry layer reports each failed attempt at once, so that what
/// is known of the target does not wait for the last one.
#[derive(Clone)]
pub struct Routed {
    /// How often the call has asked this target before.
    pub repeats: u32,
    /// Which provider of the chain it is; 0 for the first.
    pub position: u32,
    /// The target is a model that stands in for the one that was asked for.
    pub is_downgrade: bool,
    /// Another model of the provider could stand in for this one.
    pub has_downgrade: bool,
    /// The call has been everywhere and goes round again: no other target is left that it would rather ask.
    pub is_return: bool,
    observer: Arc<dyn Observer>,
    permit: Permit,
}

impl Routed {
    /// A call that is asking its target for the first time, under a permit of `observer`.
    pub fn new(observer: Arc<dyn Observer>, permit: Permit) -> Self {
        let (repeats, position) = (0, 0);
        Self {
            repeats,
            position,
            is_downgrade: false,
            has_downgrade: false,
            is_return: false,
            observer,
            permit,
        }
    }

    /// Whether the call finds out if a resting target works again.
    pub fn is_probe(&self) -> bool {
        self.permit.kind == PermitKind::Probe
    }

    /// Reports a failed attempt. The failure is [marked](Failure::is_recorded), so that the end of the
    /// call does not report it again.
    pub fn failed(&self, failure: Failure, log: &RecoveryLog) -> Failure {
        if failure.is_recorded() {
            return failure;
        }
        self.observer.attempt_failed(self.permit, &failure, log);
        failure.with_recorded()
    }

    /// Whether the target has answered somebody so lately that it is not believed when it asks for a wait
    /// longer than calls take.
    pub fn answered_lately(&self) -> bool {
        self.observer.answered_lately(self.permit)
    }

    /// Whether the target is resting now, so that the call is better made elsewhere.
    pub fn rests(&self) -> bool {
        self.observer.rests(self.permit)
    }
}

impl fmt::Debug for Routed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Routed")
            .field("repeats", &self.repeats)
            .field("permit", &self.permit)
            .finish_non_exhaustive()
    }
}
