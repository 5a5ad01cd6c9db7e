//! Another round over the candidates, after a pause.

use std::time::Duration;

use steadfast_core::Reason;
use tokio::time::Instant;

use crate::{
    call::{CallState, NextAction},
    event,
    history::Stopped,
    policy::WhenExhausted,
    select::{self, CandidateView, Exclusions},
};

impl CallState {
    /// Nobody is left to be asked in this round: goes round the candidates once more, after a pause that
    /// lasts until the first of them is back.
    pub(crate) fn next_round(
        &mut self,
        views: &[CandidateView],
        now: Instant,
        exclusions: &Exclusions,
    ) -> NextAction {
        let policy = self.policy();
        let Some(next) = select::next_round(views, now, exclusions) else {
            return NextAction::End;
        };
        let patience = match policy.when_exhausted {
            WhenExhausted::Fail => return NextAction::End,
            // To ask the only target again is a retry: a layer below that makes retries has made those it
            // wants, and has reported each; and one that limits has waited as long as it may.
            WhenExhausted::TrySoonest
                if self.route.candidates.len() == 1 && self.has_ended_below() =>
            {
                return NextAction::End;
            }
            WhenExhausted::Wait(longest) => longest,
            WhenExhausted::TrySoonest => self.patience(next.spare && !next.held),
        };
        if self.attempts() >= policy.attempts {
            return NextAction::End;
        }
        let (rounds, last, waited) = match &self.history {
            Some(history) => (history.rounds, history.pause, history.waited),
            None => (0, Duration::ZERO, Duration::ZERO),
        };
        let pause = self.route.rules.pause(rounds, last);
        let wait = pause.max(next.at.saturating_duration_since(now));
        let time = self.deadline.map_or(Duration::MAX, |deadline| deadline.remaining_at(now));
        if wait > patience.saturating_sub(waited) || wait >= time {
            return NextAction::End;
        }
        let slot = match self.budget().map(|budget| budget.wait(self.held)) {
            Some(None) => return self.stop(Stopped::Crowded),
            slot => slot.flatten(),
        };
        event::waited(&self.log, &self.candidate(next.slot).target, wait);
        let history = self.history();
        (history.rounds, history.pause) = (rounds + 1, pause);
        history.waited = waited.saturating_add(wait);
        NextAction::Wait(wait, slot)
    }

    fn has_ended_below(&self) -> bool {
        let last = self.history.as_ref().and_then(|history| history.last.as_ref());
        let failure = last.map(|last| &last.failure);
        failure.is_some_and(|last| last.is_recorded() || last.reason() == Reason::Budget)
    }

    /// The wait is over: the next round begins.
    pub(crate) fn wake(&mut self) {
        self.history().exclusions.next_round();
    }
}
