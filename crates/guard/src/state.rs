//! The state of one task: a pure machine that takes events and returns verdicts.
//!
//! It counts what the task uses, detects loops ([`Progress`]) and, once stopped, stays stopped. All
//! sources of events use the same machine: the layer around the tools and the operator's handle one by
//! one, a request's [history](crate::history), and an answer as it streams.

use std::{
    borrow::Cow,
    collections::HashMap,
    hash::{BuildHasher, BuildHasherDefault, DefaultHasher},
    time::Duration,
};

use foldhash::fast::RandomState;
use tokio::time::Instant;

use crate::{
    Advice, GuardVerdict, Kind, SafetyStop, StopCause, TaskLimits,
    known::KnownAnswers,
    progress::{Finding, Progress, wait},
    signature::{CallFacts, Compiled, ResultFacts},
};

/// Advice kept for the model's next answer; more in one batch would not help it.
const MAX_ADVICE: usize = 4;

/// What happens in a task.
#[derive(Clone, Copy, Debug)]
pub(crate) enum TaskEvent<'a> {
    /// The model will be called for one more answer.
    Ask,
    /// The model has answered: it saw all advice given before.
    Answer,
    /// A turn of the user.
    UserTurn,
    /// A tool will be called.
    Call(&'a CallFacts<'a>),
    /// The files of a call that was counted without them.
    Edit(&'a [String]),
    /// The result of a call.
    Result(&'a CallFacts<'a>, ResultFacts),
}

/// See the [module](self).
#[derive(Clone, Debug, Default)]
pub(crate) struct TaskState {
    pub(crate) events: u64,
    pub(crate) calls: u64,
    tools: CountByName,
    pub(crate) files: CountByName,
    /// `None` when it is not known.
    pub(crate) began: Option<Instant>,
    /// Whether its caller named it; other tasks have other limits.
    pub(crate) named: bool,
    progress: Progress,
    pub(crate) stopped: Option<StopCause>,
    /// Advice for the model's next answer.
    pub(crate) pending: Vec<Advice>,
    /// What was counted of histories.
    pub(crate) known: KnownAnswers,
    /// The events are known: they are not counted again, only loops are detected.
    pub(crate) is_known: bool,
}

impl TaskState {
    pub(crate) fn new(began: Option<Instant>, named: bool) -> Self {
        Self { began, named, ..Self::default() }
    }

    /// An operator resets all counts of the task.
    pub(crate) fn extend(&mut self, now: Instant) {
        let mut known = std::mem::take(&mut self.known);
        known.extend();
        *self = Self { known, ..Self::new(Some(now), self.named) };
    }

    /// A copy of its counts, in which the calls of an answer are counted as it streams.
    pub(crate) fn counts(&self) -> Self {
        Self {
            events: self.events,
            calls: self.calls,
            tools: self.tools.clone(),
            files: self.files.clone(),
            stopped: self.stopped.clone(),
            ..Self::new(self.began, self.named)
        }
    }

    /// A history was read, and the next one will contain all of it again.
    pub(crate) fn end_of_history(&mut self) {
        self.progress = Progress::default();
    }

    pub(crate) fn limits<'c>(&self, c: &'c Compiled) -> &'c TaskLimits {
        c.policy.limits_of(self.named)
    }

    /// `None` when it is not known when it began.
    pub(crate) fn elapsed(&self, now: Instant) -> Option<Duration> {
        Some(now.saturating_duration_since(self.began?))
    }

    pub(crate) fn stop(&self, c: &Compiled, cause: StopCause, now: Instant) -> SafetyStop {
        let (key, elapsed) = (c.policy.key(self.named, &cause), self.elapsed(now));
        let text = c.policy.stop_text;
        SafetyStop { cause, key, events: self.events, calls: self.calls, elapsed, text }
    }

    /// The stop of the task, if it is stopped.
    pub(crate) fn stopped(&self, c: &Compiled, now: Instant) -> Option<SafetyStop> {
        self.stopped.clone().map(|cause| self.stop(c, cause, now))
    }

    /// Calls of each tool, in the order of their names.
    pub(crate) fn by_tool(&self) -> Vec<(Box<str>, u32)> {
        let mut all: Vec<_> =
            self.tools.counts.iter().map(|(name, n)| (name.clone(), *n)).collect();
        all.sort_unstable();
        all
    }

    /// Whether the call is allowed. Changes nothing.
    pub(crate) fn check(
        &self,
        c: &Compiled,
        facts: &CallFacts<'_>,
        now: Instant,
    ) -> Result<(), SafetyStop> {
        let allowed = match &self.stopped {
            Some(cause) => Err(cause.clone()),
            None => self.allow_call(self.limits(c), facts, now),
        };
        allowed.map_err(|cause| self.stop(c, cause, now))
    }

    /// Applies `event` and returns the verdict: the first event that is not allowed stops the task.
    /// Advice is pending until the model answers.
    pub(crate) fn on(&mut self, c: &Compiled, event: TaskEvent<'_>, now: Instant) -> GuardVerdict {
        let limits = self.limits(c);
        match event {
            // Changes nothing except that a stop is kept.
            TaskEvent::Ask => {
                if self.stopped.is_none() {
                    self.stopped = self.allow_event(limits, now).err();
                }
                self.stopped(c, now).map_or(GuardVerdict::Fine, GuardVerdict::Stop)
            }
            TaskEvent::Answer => {
                self.count_event();
                self.progress.answered();
                self.pending.clear();
                GuardVerdict::Fine
            }
            // The counts of the limits are kept.
            TaskEvent::UserTurn => {
                self.progress.reset();
                self.pending.clear();
                self.stopped.take_if(|cause| matches!(cause, StopCause::Loop { .. }));
                GuardVerdict::Fine
            }
            TaskEvent::Call(facts) if self.is_known => self.advise_last_edits(limits, &facts.files),
            TaskEvent::Call(facts) => match self.check(c, facts, now) {
                Ok(()) => {
                    self.count_event();
                    self.calls = self.calls.saturating_add(1);
                    self.tools.add(&facts.tool);
                    self.edit(limits, &facts.files)
                }
                Err(stop) => self.halt(c, stop.cause, now),
            },
            TaskEvent::Edit(files) => match self.allow_edits(limits, files) {
                Ok(()) => self.edit(limits, files),
                Err(cause) => self.halt(c, cause, now),
            },
            TaskEvent::Result(facts, result) => {
                self.count_event();
                self.check_progress(c, facts, result, now)
            }
        }
    }

    fn count_event(&mut self) {
        self.events = self.events.saturating_add(u64::from(!self.is_known));
    }

    fn halt(&mut self, c: &Compiled, cause: StopCause, now: Instant) -> GuardVerdict {
        self.stopped.get_or_insert(cause.clone());
        GuardVerdict::Stop(self.stop(c, cause, now))
    }

    /// Whether a call with this result is progress.
    fn check_progress(
        &mut self,
        c: &Compiled,
        facts: &CallFacts<'_>,
        result: ResultFacts,
        now: Instant,
    ) -> GuardVerdict {
        let rules = &c.policy.rules;
        let tool = || Box::from(facts.tool.as_ref());
        let advice = match self.progress.observe(rules, facts, result) {
            Finding::Fine => None,
            Finding::Wait(wait) => Some(Advice::Wait { tool: tool(), wait }),
            Finding::Warn(rule, count) => {
                let poll = facts.kind == Kind::Poll;
                let wait = if poll { wait(rules, count) } else { None };
                Some(Advice::Loop { rule, tool: tool(), count, wait })
            }
            Finding::Stop(rule, count) => {
                self.halt(c, StopCause::Loop { rule, tool: tool(), count }, now);
                None
            }
        };
        let advised = advice.map_or(GuardVerdict::Fine, |advice| self.advise(advice));
        self.stopped(c, now).map_or(advised, GuardVerdict::Stop)
    }

    fn edit(&mut self, limits: &TaskLimits, files: &[String]) -> GuardVerdict {
        for file in files {
            self.files.add(file);
        }
        self.advise_last_edits(limits, files)
    }

    fn advise_last_edits(&mut self, limits: &TaskLimits, files: &[String]) -> GuardVerdict {
        let mut verdict = GuardVerdict::Fine;
        for file in files {
            if let Some(limit) = limits.edits_per_file
                && self.files.of(file) == limit
            {
                verdict = self.advise(Advice::LastEdit { file: file.as_str().into(), limit });
            }
        }
        verdict
    }

    fn advise(&mut self, advice: Advice) -> GuardVerdict {
        if self.pending.contains(&advice) {
            return GuardVerdict::Warn(advice);
        }
        if self.pending.len() < MAX_ADVICE {
            self.pending.push(advice.clone());
        } else if let Some(least) = self.pending.iter_mut().min_by_key(|advice| advice.weight())
            && least.weight() < advice.weight()
        {
            // More important advice replaces less important.
            *least = advice.clone();
        }
        GuardVerdict::Warn(advice)
    }

    /// Whether one more event is allowed.
    fn allow_event(&self, limits: &TaskLimits, now: Instant) -> Result<(), StopCause> {
        if let (Some(most), Some(elapsed)) = (limits.time, self.elapsed(now))
            && elapsed > most
        {
            return Err(StopCause::Time(most));
        }
        match limits.events {
            Some(most) if self.events >= most => Err(StopCause::Events(most)),
            _ => Ok(()),
        }
    }

    fn allow_call(
        &self,
        limits: &TaskLimits,
        facts: &CallFacts<'_>,
        now: Instant,
    ) -> Result<(), StopCause> {
        self.allow_event(limits, now)?;
        if let Some(most) = limits.calls
            && self.calls >= most
        {
            return Err(StopCause::Calls(most));
        }
        if let Some(limit) = facts.limits.with(limits.per_tool)
            && self.tools.of(&facts.tool) >= limit
        {
            return Err(StopCause::Tool { tool: facts.tool.as_ref().into(), limit });
        }
        self.allow_edits(limits, &facts.files)
    }

    /// Whether one more edit of these files is allowed.
    fn allow_edits(&self, limits: &TaskLimits, files: &[String]) -> Result<(), StopCause> {
        let Some(limit) = limits.edits_per_file else { return Ok(()) };
        match files.iter().find(|file| self.files.of(file) >= limit) {
            Some(file) => Err(StopCause::File { file: file.as_str().into(), limit }),
            None => Ok(()),
        }
    }
}

/// Tools and files that are counted separately. All others share one count: memory is bounded, and
/// invented names do not evade a limit.
const MAX_NAMES: usize = 1_024;

/// In bytes. Of longer names, which come from the model, the beginning and a hash are kept.
const MAX_NAME: usize = 256;

/// Counts by name. The empty name has the shared count.
#[derive(Clone, Debug, Default)]
pub(crate) struct CountByName {
    counts: HashMap<Box<str>, u32, RandomState>,
    /// The largest of them.
    pub(crate) most: u32,
}

impl CountByName {
    fn of(&self, name: &str) -> u32 {
        match self.counts.get(kept(name).as_ref()) {
            Some(count) => *count,
            None if self.counts.len() >= MAX_NAMES => self.counts.get("").copied().unwrap_or(0),
            None => 0,
        }
    }

    fn add(&mut self, name: &str) {
        let name = &*kept(name);
        let count = match self.counts.get_mut(name) {
            Some(count) => count,
            None => {
                let name = if self.counts.len() < MAX_NAMES { name } else { "" };
                self.counts.entry(name.into()).or_default()
            }
        };
        *count = count.saturating_add(1);
        self.most = self.most.max(*count);
    }
}

/// The key of a name.
fn kept(name: &str) -> Cow<'_, str> {
    if name.len() <= MAX_NAME {
        return Cow::Borrowed(name);
    }
    let hash = BuildHasherDefault::<DefaultHasher>::default().hash_one(name);
    Cow::Owned(format!("{}\u{2026}{hash:016x}", head(name, MAX_NAME - 20)))
}

/// The beginning of `text`, at most `most` bytes.
pub(crate) fn head(text: &str, most: usize) -> &str {
    let end = |&at: &usize| text.is_char_boundary(at);
    &text[..(0..=most.min(text.len())).rev().find(end).unwrap_or(0)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invented_names_share_one_count() {
        let mut count = CountByName::default();
        for at in 0..MAX_NAMES {
            count.add(&at.to_string());
        }
        assert_eq!(count.of("new"), 0);
        for at in 0..50 {
            count.add(&format!("new {at}"));
        }
        assert_eq!(count.of("another"), 50);
        assert_eq!(count.of("7"), 1);
        assert!(count.counts.len() <= MAX_NAMES + 1);
    }

    #[test]
    fn long_names_are_distinguished_and_kept_short() {
        let long = |end: &str| format!("{}{end}", "\u{6f22}".repeat(100_000));
        let mut count = CountByName::default();
        for name in [long("a"), long("b"), long("a")] {
            count.add(&name);
        }
        assert_eq!((count.of(&long("a")), count.of(&long("b")), count.of(&long("c"))), (2, 1, 0));
        assert!(count.counts.keys().all(|name| name.len() <= MAX_NAME));
    }
}
