//! The books of one task: what it used, whether it goes in circles, whether it is stopped. Both
//! readings of a task, call by call and from a request's history, write the same book.

use tokio::time::Instant;

use crate::{
    Advice, Kind, Stop, StopCause,
    counters::Counters,
    detector::{Detector, Finding, wait},
    signature::{Compiled, Facts, Outcome},
};

/// Advice kept for the model's next answer. More in one batch says nothing more.
const MOST_ADVICE: usize = 4;

#[derive(Clone, Debug, Default)]
pub(crate) struct Ledger {
    pub(crate) counters: Counters,
    detector: Detector,
    stopped: Option<StopCause>,
    /// For the model's next answer.
    pending: Vec<Advice>,
}

impl Ledger {
    pub(crate) fn new(began: Option<Instant>) -> Self {
        Self { counters: Counters { began, ..Counters::default() }, ..Self::default() }
    }

    /// Events and calls so far.
    pub(crate) fn used(&self) -> (u64, u64) {
        (self.counters.events, self.counters.calls)
    }

    /// What the task was stopped for.
    pub(crate) fn stopped(&self, now: Instant) -> Option<Stop> {
        self.stopped.clone().map(|cause| self.counters.stop(cause, now))
    }

    /// Advice that the model has not seen.
    pub(crate) fn pending(&self) -> &[Advice] {
        &self.pending
    }

    /// The user has spoken. What was counted of the task stays, unless it is a new one.
    pub(crate) fn user_turn(&mut self, new_task: bool, now: Option<Instant>) {
        if new_task {
            *self = Self::new(now);
            return;
        }
        self.detector.forget();
        self.pending.clear();
        if matches!(self.stopped, Some(StopCause::Loop { .. })) {
            self.stopped = None;
        }
    }

    /// Whether the model may answer once more. Changes nothing but that a stop stays.
    pub(crate) fn may_answer(&mut self, c: &Compiled, now: Instant) -> Result<(), Stop> {
        if self.stopped.is_none() {
            self.stopped = self.counters.room_for_event(&c.policy.limits, now).err();
        }
        self.stopped(now).map_or(Ok(()), Err)
    }

    /// The model has answered.
    pub(crate) fn answered(&mut self) {
        self.counters.event();
        self.detector.answered();
        self.pending.clear();
    }

    /// The task goes in circles in a way that others found.
    pub(crate) fn halt(&mut self, cause: StopCause) {
        self.stopped.get_or_insert(cause);
    }

    /// Whether the call may be made. Changes nothing.
    pub(crate) fn look(&self, c: &Compiled, facts: &Facts<'_>, now: Instant) -> Result<(), Stop> {
        if let Some(stop) = self.stopped(now) {
            return Err(stop);
        }
        let room = self.counters.room_for(&c.policy.limits, facts, now);
        room.map_err(|cause| self.counters.stop(cause, now))
    }

    /// Counts a call that is about to be made, or says why it may not be. From the first that may
    /// not on the task is stopped.
    pub(crate) fn admit(
        &mut self,
        c: &Compiled,
        facts: &Facts<'_>,
        now: Instant,
    ) -> Result<(), Stop> {
        if let Err(stop) = self.look(c, facts, now) {
            self.halt(stop.cause.clone());
            return Err(stop);
        }
        self.counters.called(&facts.tool);
        self.edit(c, &facts.files);
        Ok(())
    }

    /// The same for a call of which only the tool is known yet.
    pub(crate) fn admit_named(
        &mut self,
        c: &Compiled,
        name: &str,
        now: Instant,
    ) -> Result<Kind, Stop> {
        if let Some(stop) = self.stopped(now) {
            return Err(stop);
        }
        let (tool, kind, limit) = c.tool(name);
        if let Err(cause) = self.counters.room_for_call(&c.policy.limits, &tool, limit, now) {
            self.halt(cause.clone());
            return Err(self.counters.stop(cause, now));
        }
        self.counters.called(&tool);
        Ok(kind)
    }

    /// The rest of it, once its files are known.
    pub(crate) fn admit_files(
        &mut self,
        c: &Compiled,
        files: &[String],
        now: Instant,
    ) -> Result<(), Stop> {
        if let Err(cause) = self.counters.room_for_files(&c.policy.limits, files) {
            self.halt(cause.clone());
            return Err(self.counters.stop(cause, now));
        }
        self.edit(c, files);
        Ok(())
    }

    fn edit(&mut self, c: &Compiled, files: &[String]) {
        self.counters.edited(files);
        let Some(limit) = c.policy.limits.edits_per_file else { return };
        for file in files {
            if self.counters.edits_of(file) == limit {
                self.advise(Advice::LastEdit { file: file.as_str().into(), limit });
            }
        }
    }

    fn advise(&mut self, advice: Advice) {
        if self.pending.len() < MOST_ADVICE {
            self.pending.push(advice);
            return;
        }
        // What matters more takes the place of what matters less.
        let weight = advice.weight();
        if let Some(least) = self.pending.iter_mut().min_by_key(|advice| advice.weight())
            && least.weight() < weight
        {
            *least = advice;
        }
    }

    /// Takes note of a call's result; says what the model should know of it. That stays pending.
    pub(crate) fn observe(
        &mut self,
        c: &Compiled,
        facts: &Facts<'_>,
        outcome: Outcome,
    ) -> Option<Advice> {
        self.counters.event();
        let rules = &c.policy.rules;
        let tool = || Box::from(facts.tool.as_ref());
        let advice = match self.detector.observe(rules, facts, outcome) {
            Finding::Fine => return None,
            Finding::Wait(wait) => Advice::Wait { tool: tool(), wait },
            Finding::Warn(rule, count) => {
                let poll = facts.kind == Kind::Poll;
                let wait = if poll { wait(rules, count) } else { None };
                Advice::Loop { rule, tool: tool(), count, wait }
            }
            Finding::Stop(rule, count) => {
                self.halt(StopCause::Loop { rule, tool: tool(), count });
                return None;
            }
        };
        self.advise(advice.clone());
        Some(advice)
    }

    /// Takes back what was kept for the model's next answer: it was told otherwise.
    pub(crate) fn told(&mut self, advice: &Advice) {
        self.pending.retain(|pending| pending != advice);
    }
}
