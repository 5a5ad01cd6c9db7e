//! How a call ends when nobody answered.

use std::{mem, time::Duration};

use smallvec::SmallVec;
use steadfast_core::{Attempt, Failover, Failure, Reason};
use tokio::time::Instant;

use super::{
    Course,
    trouble::{Last, Tried, words},
};
use crate::{
    event,
    select::{self, Limits, Plan, Set, Skip, View},
};

impl Course {
    /// The failure the call ends with.
    pub(crate) fn finish(&mut self) -> Failure {
        let now = Instant::now();
        let views = self.views(now);
        let limits = self.limits(now);
        let plan = select::plan(&views, now, &limits);
        // What ends the call wherever it is says nothing of who was not asked.
        if !self.trouble.as_ref().is_some_and(|trouble| trouble.is_final()) {
            self.skip_the_rest(&views, &plan, now);
        }
        let back = self.soonest_back(&views, &plan, limits, now);
        let mut trouble = mem::take(&mut self.trouble).unwrap_or_default();
        let attempts = trouble.attempts;
        let steps = mem::take(&mut trouble.trail);
        let alone = steps.len() <= 1;
        let trail = self.trail(steps, trouble.last.as_ref());
        match trouble.last.take() {
            Some(last) if alone => last.failure.with_attempts(attempts),
            Some(last) if last.is_final() || last.go == Failover::LargerWindow => {
                last.failure.with_attempts(attempts).with_trail(trail)
            }
            None if trouble.stopped.is_some() => {
                Failure::refused(Reason::Budget, trouble.stopped.unwrap_or_default())
            }
            None if alone => refusal(trail, back),
            last => {
                let why = last.as_ref().map(|last| last.failure.reason());
                let failure = exhausted(trail, last, trouble.stopped).with_attempts(attempts);
                let failure = match trouble.usage {
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

    fn skip_the_rest(&mut self, views: &[View], plan: &Plan, now: Instant) {
        for (at, skip) in &plan.skipped {
            self.skip(*at, skip, now);
        }
        // Its place was taken between looking and asking.
        for pick in plan.order.iter().filter(|pick| pick.probe) {
            if let Some(rest) = views[usize::from(pick.slot)].rest {
                self.skip(pick.slot, &Skip::Cooling(rest), now);
            }
        }
    }

    /// When it is worth coming back: once the first target is back that could take the call.
    fn soonest_back(
        &self,
        views: &[View],
        plan: &Plan,
        mut limits: Limits,
        now: Instant,
    ) -> Option<Duration> {
        let hint = self.trouble.as_ref().and_then(|trouble| trouble.hint);
        if plan.order.iter().any(|pick| !pick.probe) {
            // A target is well, and was not asked for want of means.
            return hint;
        }
        limits.excluded = Set::default();
        let cooling = (0u8..)
            .zip(views)
            .filter(|(at, view)| view.rank == 0 && select::possible(views, *at, &limits))
            .filter_map(|(_, view)| view.rest)
            .map(|rest| rest.until - now);
        cooling.chain(hint).min()
    }

    /// What was tried and skipped, in words.
    fn trail(&self, steps: SmallVec<[Tried; 2]>, last: Option<&Last>) -> Vec<Attempt> {
        let mut trail = Vec::with_capacity(steps.len());
        for step in steps {
            match step {
                Tried::Failed(attempts) => trail.extend(attempts),
                Tried::Last => trail.extend(last.into_iter().flat_map(|last| words(&last.failure))),
                Tried::Skipped(at, skip, then) => {
                    let target = self.slot(at).target.clone();
                    trail.push(Attempt::skipped(target, skip.reason(), skip.words(then)));
                }
            }
        }
        trail
    }
}

/// What a call is told that was not made because its only target was passed over.
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

fn exhausted(trail: Vec<Attempt>, last: Option<Last>, stopped: Option<&'static str>) -> Failure {
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
