//! What an attempt gets: the request fitted to its target, and a lease on that target's health.

use std::{num::NonZeroU32, sync::Arc};

use steadfast_core::{Call, Failure, Lease, Permit, PermitKind, RetryBudget, Routed};
use tokio::time::Instant;

use crate::{
    call::CallState,
    candidate::Candidate,
    outcome,
    route::Route,
    select::{self, CandidateView, Exclusions},
};

/// Which candidate is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Selection {
    pub(crate) candidate: u8,
    permit: Permit,
    /// Other candidates that could serve the call, whether or not they cool or have failed it.
    alternatives: u32,
    /// Attempts under way at the same time.
    beside: u32,
    /// It sees whether the provider is still degraded.
    probes: bool,
    /// Nothing can come after it, so it may have the request itself.
    pub(crate) last: bool,
}

impl Selection {
    /// The first candidate, when nothing is wrong with any.
    pub(crate) fn first(route: &Route, permit: Permit) -> Self {
        let last = route.candidates.len() == 1 && !route.policy().may_wait();
        Self { candidate: 0, permit, alternatives: route.spares, beside: 0, probes: false, last }
    }

    /// The same; whether it sees if the provider is still degraded.
    pub(crate) fn probing_provider(self, probes: bool) -> Self {
        Self { probes, ..self }
    }

    /// The same, beside so many attempts under way.
    pub(crate) fn beside(self, beside: u32) -> Self {
        Self { last: false, beside, ..self }
    }
}

impl CallState {
    pub(crate) fn selection(
        &self,
        views: &[CandidateView],
        exclusions: &Exclusions,
        candidate: u8,
        permit: Permit,
    ) -> Selection {
        let others = || (0u8..).zip(views).filter(|(at, _)| *at != candidate);
        let may_serve =
            |at, view: &CandidateView| select::may_serve(views, at, exclusions) && !view.refuses();
        let alternatives = others().filter(|(at, view)| may_serve(*at, view)).count();
        let gone = |at| exclusions.excluded.has(at) || !select::possible(views, at, exclusions);
        let last = !self.policy().may_wait() && others().all(|(at, _)| gone(at));
        let alternatives = u32::try_from(alternatives).unwrap_or(u32::MAX);
        Selection { candidate, permit, alternatives, beside: 0, probes: false, last }
    }

    /// Fits `request` to where it goes; the lease is the attempt's on that target's health.
    ///
    /// # Errors
    ///
    /// When the request can not be made to fit.
    #[inline]
    pub(crate) fn prepare<Req: Call>(
        &mut self,
        selection: Selection,
        request: &mut Req,
    ) -> Result<Lease, Failure> {
        let Selection { candidate: at, permit, alternatives, .. } = selection;
        let is_probe = permit.kind == PermitKind::Probe || selection.probes;
        let probing = || self.candidate(at).probing(self.witness, Instant::now());
        self.probing = is_probe.then(probing);
        self.alone = alternatives == 0;
        let candidate = self.candidate(at);
        let withdrawn = self.history.as_ref().and_then(|history| history.withdrawn);
        // Before anything can go wrong: dropping it releases the probe's permit.
        let lease = outcome::lease(&self.route, permit, self.log.clone(), self.budget(), withdrawn);
        let context = request.context_mut();
        context.target = Some(candidate.target.clone());
        context.attempts = self.before.saturating_add(self.attempts() + selection.beside);
        if let Some(max) = self.share(selection, context.attempts) {
            context.max_attempts = NonZeroU32::new(max);
        }
        context.alternatives = alternatives;
        context.witness = permit.witness;
        let patience = self.patience(alternatives > 0);
        context.patience = Some(patience.saturating_sub(self.waited()));
        let route: Arc<Route> = self.route.clone();
        let mut routed = Routed::new(route, permit);
        routed.repeats = self.repeats(at);
        routed.position = candidate.spec.into();
        routed.is_return = self.history.as_ref().is_some_and(|history| history.rounds > 0);
        routed.is_downgrade = candidate.rank > 0;
        routed.has_downgrade = self
            .route
            .candidates
            .iter()
            .any(|other| other.spec == candidate.spec && other.rank > candidate.rank);
        context.routed = Some(routed);
        if context.budget.is_none() {
            // A success counts here; the layers below put back what they have drawn.
            context.budget = self.route.rules.budget.as_ref().map(RetryBudget::drawing);
        }
        request.adapt(candidate.profile(self.is_foreign(candidate)))?;
        Ok(lease)
    }

    /// Whether the layers below may not go on as they like.
    pub(crate) fn limits_attempts(&self) -> bool {
        self.most_attempts() < u32::MAX
    }

    fn most_attempts(&self) -> u32 {
        let further = self.history.as_ref().is_some_and(|history| history.rounds > 0);
        let rounds = if further { self.policy().attempts } else { u32::MAX };
        self.max_attempts.min(self.before.saturating_add(rounds))
    }

    /// Up to which attempt the layers below may go for `selection`; `None` without a limit. A further
    /// round ends with the last attempt of the policy. Of two attempts at once neither sees what the
    /// other one spends: so one is set aside for the second as long as there may be one, and the second
    /// has no more than that.
    fn share(&self, selection: Selection, attempts: u32) -> Option<u32> {
        let most = self.most_attempts();
        if most == u32::MAX {
            return None;
        }
        if selection.beside > 0 {
            return Some(attempts.saturating_add(1));
        }
        let two = self.hedge_after().is_some() && self.route.providers > 1;
        let second = two && !selection.last && most.saturating_sub(attempts) > 1;
        Some(if second { most - 1 } else { most })
    }

    /// Whether the history was written by somebody else. Without a session it is taken to be the
    /// first selection's, or that of one of its equals.
    pub(crate) fn is_foreign(&self, candidate: &Candidate) -> bool {
        match self.affinity() {
            Some(affinity) => !affinity.reads(&candidate.target),
            None => candidate.rank != 0 || !self.route.is_first(candidate),
        }
    }
}
