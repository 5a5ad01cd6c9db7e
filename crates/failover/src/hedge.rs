//! One more target beside the one that is asked, when that has no content in time.

use std::time::Duration;

use steadfast_core::{Deadline, Failure, Reason, Reservation};
use tokio::time::Instant;

use crate::{call::CallState, event, prepare::Selection, select};

impl CallState {
    /// After how long without content another target is asked beside the one under way.
    pub(crate) fn hedge_after(&self) -> Option<Duration> {
        if self.hedged {
            return None;
        }
        [self.policy().hedge, self.moves_after()].into_iter().flatten().min()
    }

    /// After how long asking another target is to go on to it, as if the one under way had failed.
    fn moves_after(&self) -> Option<Duration> {
        let policy = self.policy();
        let probe = self.probing.and_then(|probe| {
            // One that was merely slow could else never be seen to be back.
            policy.probe_hedge?.checked_mul(1u32.checked_shl(probe.outrun)?)
        });
        let whole = policy.whole_hedge.filter(|_| self.is_whole);
        [probe, whole].into_iter().flatten().min().filter(|_| !self.alone)
    }

    /// One more target beside `main`, which has not begun to answer. The request is to be cloned.
    pub(crate) fn hedge(&mut self, main: u8) -> Option<Selection> {
        let after = self.hedge_after()?;
        let moves = self.moves_after() == Some(after);
        self.hedged = true;
        if self.attempts_left() < 2 || self.deadline.is_some_and(Deadline::is_past) {
            return None;
        }
        let now = Instant::now();
        let views = self.views(now);
        let mut exclusions = self.exclusions(now);
        // A slow provider is not asked twice.
        let slow = self.candidate(main).spec;
        exclusions.exclude(&views, |view| view.spec == slow);
        let plan = select::plan(&views, now, &exclusions);
        for planned in &plan.order {
            if planned.cools() && !moves {
                continue;
            }
            let Some(cost) = self.reserve_hedge(planned.slot, moves) else {
                event::stopped(&self.log, "the retry budget has nothing for a hedge");
                return None;
            };
            let Some(permit) = self.acquire(planned, now) else { continue };
            self.spend(cost);
            let hangs = self.probing.is_none_or(|probe| probe.hangs);
            let stalls = self.is_whole && self.policy().whole_hedge == Some(after);
            self.late_after = (moves && (hangs || stalls)).then_some(after);
            event::hedged(&self.log, &self.candidate(planned.slot).target, after);
            let selection = self.selection(&views, &exclusions, planned.slot, permit);
            return Some(selection.as_hedge());
        }
        None
    }

    /// What it costs; `None` when the budget has too little.
    fn reserve_hedge(&self, at: u8, moves: bool) -> Option<Option<Reservation>> {
        match self.budget() {
            Some(budget) if !moves => budget.reserve(Reason::Timeout).map(Some),
            _ => self.reserve(at),
        }
    }

    /// The answer of another candidate came before that of `loser`.
    pub(crate) fn outrun(&self, loser: u8) {
        event::outrun(&self.log, &self.candidate(loser).target);
    }

    /// What is held against `main`, which was outrun: that its answer, which comes whole, had not come after
    /// the time of a stall, or that it rests for having hung and was silent again when probed. Else one that
    /// hangs would cost caller after caller that time. To be slower than somebody would have it is no failure,
    /// nor is it in any other probe: the next one has more time.
    pub(crate) fn late(&self, main: u8) -> Option<Failure> {
        let Some(after) = self.late_after else {
            if self.probing.is_some() {
                self.candidate(main).note_outrun();
            }
            return None;
        };
        let text = format!("no content in {} ms, and another target answered", after.as_millis());
        Some(Failure::new(Reason::Timeout, text))
    }
}
