//! How a call ends when nobody answered.

use std::{mem, time::Duration};

use smallvec::SmallVec;
use steadfast_core::{Attempt, Failover, Failure, Needs, Reason, Retry};
use tokio::time::Instant;

use crate::{
    call::CallState,
    event,
    health::is_out,
    history::{HistoryEntry, LastFailure, Stopped, attempts_of},
    select::{self, CandidateView, Exclusions, Plan, Skip},
};

impl CallState {
    /// The failure the call ends with.
    pub(crate) fn finish(&mut self) -> Failure {
        let now = Instant::now();
        let views = self.views(now);
        let exclusions = self.exclusions(now);
        let plan = select::plan(&views, now, &exclusions);
        // What ends the call wherever it is says nothing of who was not asked.
        if !self.is_final() {
            self.skip_the_rest(&views, &plan, now);
        }
        let back = soonest_back(&views, &plan, &exclusions, now);
        let mut history = mem::take(&mut self.history).unwrap_or_default();
        let (attempts, waited) = (history.attempts, history.waited);
        let crowded = history.is_crowded();
        let one = history.listed.len() <= 1;
        let mut trail = self.trail(mem::take(&mut history.trail), history.last.as_ref());
        self.note_waits(&mut trail, &exclusions, now);
        let refused = refused_by_all(&plan).map(|(reason, first)| {
            let words = self.candidate(first).refusal(reason);
            Refusal { reason, words }
        });
        let failure = match (history.last.take(), history.stopped, refused) {
            (Some(last), ..) if one => last.failure,
            (Some(last), ..) if last.is_final() || last.go == Failover::LargerWindow => {
                last.failure.with_trail(trail)
            }
            (None, Some(why), _) => Failure::refused(Reason::Budget, why.as_str()),
            (None, None, refused) if one => refusal(trail, refused, back),
            (last, stopped, refused) => {
                let why = last.as_ref().map(|last| last.failure.reason());
                let failure = match refused {
                    Some(refused) if last.is_none() => refusal(trail, Some(refused), back),
                    _ => exhausted(trail, last, stopped)
                        .with_retry_after(back)
                        .with_because(why.filter(|_| self.policy().report_newest)),
                };
                let failure = match history.usage {
                    Some(usage) => failure.with_usage(usage),
                    None => failure,
                };
                let skipped = failure.trail().last().map(|last| last.reason);
                event::exhausted(&self.log, &failure, why.or(skipped).unwrap_or(Reason::Exhausted));
                failure
            }
        };
        let failure = failure.with_attempts(attempts).with_waited(waited);
        if crowded { failure.with_crowded() } else { failure }
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

    /// Notes of each attempt how long its target rests, or leaves this call waiting, from now on.
    fn note_waits(&self, trail: &mut [Attempt], exclusions: &Exclusions, now: Instant) {
        for attempt in trail {
            let candidates = (0u8..).zip(&self.route.candidates);
            let mut known =
                candidates.filter(|(_, one)| attempt.target.as_ref() == Some(&one.target));
            let Some((at, candidate)) = known.next() else { continue };
            let rest = candidate.view(&Needs::default(), self.witness, now).rest;
            let until = rest.map(|rest| rest.until).max(exclusions.wait(at, now));
            let left = until.map(|until| until.saturating_duration_since(now));
            attempt.retry_after = left.filter(|left| !left.is_zero() && !is_out(*left));
        }
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

/// When it is worth coming back.
fn soonest_back(
    views: &[CandidateView],
    plan: &Plan,
    exclusions: &Exclusions,
    now: Instant,
) -> Option<Duration> {
    if plan.order.iter().any(|pick| !pick.probe) {
        // A target could be asked, and was not for want of means.
        return None;
    }
    let back = select::soonest_back(views, now, exclusions)?;
    // What somebody has taken out is nothing to wait for.
    Some(back.saturating_duration_since(now)).filter(|back| !is_out(*back))
}

/// Why every target is not even asked, and the message of the first of them.
struct Refusal {
    reason: Reason,
    words: Option<Box<str>>,
}

/// The one reason for which every target is not even asked: its key is refused, its bill unpaid, its model
/// gone; and the first target.
fn refused_by_all(plan: &Plan) -> Option<(Reason, u8)> {
    let refusal = |skip: &Skip| match skip {
        Skip::Cooling(rest) if rest.refuses && !rest.reason.is_refusal() => Some(rest.reason),
        _ => None,
    };
    let (first, skip) = plan.skipped.first()?;
    let reason = refusal(skip)?;
    let same = plan.skipped.iter().all(|(_, skip)| refusal(skip) == Some(reason));
    (same && plan.order.is_empty()).then_some((reason, *first))
}

/// The failure of a call that was not made: its only target was passed over, or all of them refuse it for
/// one reason, in the words in which the first has.
fn refusal(trail: Vec<Attempt>, refused: Option<Refusal>, back: Option<Duration>) -> Failure {
    let (refused, words) = match refused {
        Some(Refusal { reason, words }) => (Some(reason), words),
        None => (None, None),
    };
    let message = match (&*trail, words) {
        ([], _) => "no target may be asked".into(),
        ([_], Some(words)) => words,
        ([only], None) => only.message.clone(),
        ([first, ..], words) => {
            let (all, text) = (trail.len(), words.as_deref().unwrap_or(&first.message));
            format!("none of {all} targets may be asked; first {first}: {text}").into()
        }
    };
    let skipped = trail.first().map(|skipped| skipped.reason);
    let failure = match (refused, skipped) {
        // That it comes back is no reason to ask again before somebody has changed something.
        (Some(reason), _) => {
            Failure::refused(reason, message).with_because(refused).with_retry(Retry::No)
        }
        (None, Some(own @ (Reason::Unsupported | Reason::ContextOverflow))) => {
            Failure::refused(own, message)
        }
        (None, _) => Failure::refused(Reason::Cooling, message),
    };
    // That a model is asked for again is no sign that there is one by then.
    let back = back.filter(|_| refused != Some(Reason::ModelNotFound));
    let failure = failure.with_retry_after(back);
    let failure = match &*trail {
        [Attempt { target: Some(target), .. }] => failure.with_target(target.clone()),
        _ => failure,
    };
    failure.with_trail(trail)
}

fn exhausted(trail: Vec<Attempt>, last: Option<LastFailure>, stopped: Option<Stopped>) -> Failure {
    let skipped = trail.iter().filter(|attempt| attempt.skipped).count();
    let mut message = match stopped {
        None => format!("no target is left: {} failed", trail.len() - skipped),
        Some(why) => format!("{}: {} failed", why.as_str(), trail.len() - skipped),
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
