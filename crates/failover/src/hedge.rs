//! More targets beside the one that is asked, when that has no content in time.

use std::time::Duration;

use steadfast_core::{Deadline, Failure, Reason, Reservation};
use tokio::time::Instant;

use crate::{call::CallState, event, prepare::Selection, select};

/// Which attempts of a call have been without content for so long that another one was made beside them.
#[derive(Debug, Default)]
pub(crate) struct Hedges {
    /// There will be no further one.
    over: bool,
    /// The candidate that the call moved on to, as if the one before had failed.
    newest: Option<u8>,
    /// Those it moved on from, after how long, and whether that is held against them if another answers.
    late: Vec<(u8, Duration, bool)>,
}

impl Hedges {
    /// The attempt at `at` is over.
    pub(crate) fn ended(&mut self, at: u8) {
        self.late.retain(|(late, ..)| *late != at);
    }

    /// There are no means for a further one.
    pub(crate) fn ended_for_good(&mut self) {
        self.over = true;
    }
}

impl CallState {
    /// After how long without content of the newest attempt another target is asked beside it.
    pub(crate) fn hedge_after(&self) -> Option<Duration> {
        if self.hedges.over {
            return None;
        }
        let hedge = self.policy().hedge.filter(|_| self.hedges.newest.is_none());
        [hedge, self.moves_after()].into_iter().flatten().min()
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

    /// Whether the attempt at `failed`, which has ended, was the one that the call had moved on to, so that it
    /// goes on to the next one without waiting for those it has moved on from.
    pub(crate) fn moves_on_from(&self, failed: u8) -> bool {
        self.hedges.newest == Some(failed) && !self.hedges.over && !self.is_final()
    }

    /// One more target beside those `under_way`, whose newest has not begun to answer in time. The request is to be
    /// cloned.
    pub(crate) fn hedge(&mut self, under_way: &[u8]) -> Option<Selection> {
        let after = self.hedge_after()?;
        let moves = self.moves_after() == Some(after);
        let selection = self.beside(under_way, moves, Some(after))?;
        if moves {
            let hangs = self.probing.is_none_or(|probe| probe.hangs);
            let stalls = self.is_whole && self.policy().whole_hedge == Some(after);
            let newest = under_way.last().map(|at| (*at, after, hangs || stalls));
            self.hedges.late.extend(newest);
            self.hedges.newest = Some(selection.candidate);
        }
        Some(selection)
    }

    /// One more target beside those `under_way`, in place of one that has failed.
    pub(crate) fn move_on(&mut self, under_way: &[u8]) -> Option<Selection> {
        if self.hedges.over {
            return None;
        }
        let selection = self.beside(under_way, true, None)?;
        self.hedges.newest = Some(selection.candidate);
        Some(selection)
    }

    fn beside(
        &mut self,
        under_way: &[u8],
        moves: bool,
        after: Option<Duration>,
    ) -> Option<Selection> {
        // What several at once may spend can not be shared out, so that one more is all.
        self.hedges.over = !moves || self.limits_attempts();
        if self.attempts_left() < 2 || self.deadline.is_some_and(Deadline::is_past) {
            self.hedges.over = true;
            return None;
        }
        let now = Instant::now();
        let mut views = self.views(now);
        // Nobody waits for what is asked as well, so it is no probe of a provider that is degraded.
        views.iter_mut().for_each(|view| view.probe_due = false);
        let mut exclusions = self.exclusions(now);
        for at in under_way {
            // A slow provider is not asked twice.
            let slow = self.candidate(*at).spec;
            exclusions.exclude(&views, |view| view.spec == slow);
        }
        let plan = select::plan(&views, now, &exclusions);
        for planned in &plan.order {
            if planned.cools() && !moves {
                continue;
            }
            let Some(cost) = self.reserve_hedge(planned.slot, moves) else {
                event::stopped(&self.log, "the retry budget has nothing for a hedge");
                break;
            };
            let Some(permit) = self.acquire(planned, now) else { continue };
            self.spend(cost);
            match after {
                Some(after) => {
                    event::hedged(&self.log, &self.candidate(planned.slot).target, after);
                }
                None => self.report_target(&views, planned),
            }
            let selection = self.selection(&views, &exclusions, planned.slot, permit);
            let beside = u32::try_from(under_way.len()).unwrap_or(u32::MAX);
            return Some(selection.beside(beside));
        }
        self.hedges.over = true;
        None
    }

    /// What it costs; `None` when the budget has too little.
    fn reserve_hedge(&self, at: u8, moves: bool) -> Option<Option<Reservation>> {
        match self.budget() {
            Some(budget) if !moves => budget.reserve(Reason::Timeout).map(Some),
            _ => self.reserve(at),
        }
    }

    /// The answer of another candidate came before that of `loser`. What is held against that one: that its
    /// answer, which comes whole, had not come after the time of a stall, or that it rests for having hung and was
    /// silent again when probed. Else one that hangs would cost caller after caller that time. To be slower than
    /// somebody would have it is no failure, nor is it in any other probe: the next one has more time.
    pub(crate) fn outrun(&self, loser: u8, answered: bool) -> Option<Failure> {
        event::outrun(&self.log, &self.candidate(loser).target);
        let late = self.hedges.late.iter().find(|(at, ..)| *at == loser && answered);
        let (_, after, counts) = late?;
        if !counts {
            self.candidate(loser).note_outrun();
            return None;
        }
        let text = format!("no content in {} ms, and another target answered", after.as_millis());
        Some(Failure::new(Reason::Timeout, text))
    }
}
