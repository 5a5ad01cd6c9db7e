//! How a call ends when nobody answered.

use std::{mem, time::Duration};

use smallvec::SmallVec;
use steadfast_core::{Attempt, Failover, Failure, Reason};
use tokio::time::Instant;

use crate::{
    call::CallState,
    event,
    history::{HistoryEntry, LastFailure, attempts_of},
    select::{self, CandidateSet, CandidateView, Exclusions, Plan, Skip},
};

impl CallState {
    /// The failure the call ends with.
    pub(crate) fn finish(&mut self) -> Failure {
        let now = Instant::now();
        let views = self.views(now);
        let exclusions = self.exclusions(now);
        let plan = select::plan(&views, now, &exclusions);
        // What ends the call wherever it is says nothing of who was not asked.
        if !self.history.as_ref().is_some_and(|history| history.is_final()) {
            self.skip_the_rest(&views, &plan, now);
        }
        let back = self.soonest_back(&views, &plan, exclusions, now);
        let mut history = mem::take(&mut self.history).unwrap_or_default();
        let attempts = history.attempts;
        let steps = mem::take(&mut history.trail);
        let alone = steps.len() <= 1;
        let trail = self.trail(steps, history.last.as_ref());
        match history.last.take() {
            Some(last) if alone => last.failure.with_attempts(attempts),
            Some(last) if last.is_final() || last.go == Failover::LargerWindow => {
                last.failure.with_attempts(attempts).with_trail(trail)
            }
            None if history.stopped.is_some() => {
                Failure::refused(Reason::Budget, history.stopped.unwrap_or_default())
            }
            None if alone => refusal(trail, back),
            last => {
                let why = last.as_ref().map(|last| last.failure.reason());
                let failure = exhausted(trail, last, history.stopped).with_attempts(attempts);
                let failure = match history.usage {
                    Some(usage) => failure.with_usage(usage),
                    None => failure,
                };
                let failure = failure.with_retry_after(back);
                let skipped = failure.trail().last().map(|last| last.reason);
                event::exhausted(&self.log, &failure, why.or(skipped).unwrap_or(Reason::Exhausted));
                failure
            }
        }
    }

    fn skip_the_rest(&mut self, views: &[CandidateView], plan: &Plan, now: Instant) {
        for (at, skip) in &plan.skipped {
            self.skip(*at, skip, now);
        }
        // Another call acquired its probe between selection and call.
        for pick in plan.order.iter().filter(|pick| pick.probe) {
            if let Some(rest) = views[usize::from(pick.slot)].rest {
                self.skip(pick.slot, &Skip::Cooling(rest), now);
            }
        }
    }

    /// When it is worth coming back: once the first target is back that could take the call.
    fn soonest_back(
        &self,
        views: &[CandidateView],
        plan: &Plan,
        mut exclusions: Exclusions,
        now: Instant,
    ) -> Option<Duration> {
        let hint = self.history.as_ref().and_then(|history| history.hint);
        if plan.order.iter().any(|pick| !pick.probe) {
            // A target is well, and was not asked for want of means.
            return hint;
        }
        exclusions.excluded = CandidateSet::default();
        let cooling = (0u8..)
            .zip(views)
            .filter(|(at, view)| view.rank == 0 && select::possible(views, *at, &exclusions))
            .filter_map(|(_, view)| view.rest)
            .map(|rest| rest.until.saturating_duration_since(now));
        cooling.chain(hint).min()
    }

    /// What was tried and skipped.
    fn trail(
        &self,
        steps: SmallVec<[HistoryEntry; 2]>,
        last: Option<&LastFailure>,
    ) -> Vec<Attempt> {
        let mut trail = Vec::with_capacity(steps.len());
        for step in steps {
            match step {
                HistoryEntry::Failed(attempts) => trail.extend(attempts),
                HistoryEntry::Last => {
                    trail.extend(last.into_iter().flat_map(|last| attempts_of(&last.failure)));
                }
                HistoryEntry::Skipped(at, skip, then) => {
                    let target = self.candidate(at).target.clone();
                    trail.push(Attempt::skipped(target, skip.reason(), skip.text(then)));
                }
            }
        }
        trail
    }
}

/// The failure of a call that was not made because its only target was passed over.
fn refusal(trail: Vec<Attempt>, back: Option<Duration>) -> Failure {
    let skipped = trail.first();
    let reason = match skipped.map(|skipped| skipped.reason) {
        Some(own @ (Reason::Unsupported | Reason::ContextOverflow)) => own,
        _ => Reason::Cooling,
    };
    let message = skipped.map_or("no target may be asked", |skipped| &skipped.message);
    let failure = Failure::refused(reason, message).with_retry_after(back);
    match skipped.and_then(|skipped| skipped.target.clone()) {
        Some(target) => failure.with_target(target),
        None => failure,
    }
    .with_trail(trail)
}

fn exhausted(
    trail: Vec<Attempt>,
    last: Option<LastFailure>,
    stopped: Option<&'static str>,
) -> Failure {
    let skipped = trail.iter().filter(|attempt| attempt.skipped).count();
    let mut message = match stopped {
        None => format!("no target is left: {} failed", trail.len() - skipped),
        Some(why) => format!("{why}: {} failed", trail.len() - skipped),
    };
    if skipped > 0 {
        message.push_str(&format!(", {skipped} passed over"));
    }
    match &last {
        Some(last) => message.push_str(&format!("; last {}", last.failure)),
        None => {
            if let Some(attempt) = trail.last() {
                message.push_str(&format!("; last {attempt}: {}", attempt.message));
            }
        }
    }
    let failure = Failure::refused(Reason::Exhausted, message).with_trail(trail);
    match last {
        Some(last) => failure.with_source(last.failure),
        None => failure,
    }
}
