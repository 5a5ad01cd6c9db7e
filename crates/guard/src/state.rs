//! What is known of one task: a pure machine that takes events and decides what follows.
//!
//! It counts what the task uses, sees whether it gets anywhere ([`Progress`]) and stays stopped once it
//! is. Whoever sees the calls feeds the same machine: the layer around the tools and the operator's
//! handle one by one, a request's [history](crate::history), and an answer as it streams.

use std::{
    borrow::Cow,
    collections::HashMap,
    hash::{BuildHasher, BuildHasherDefault, DefaultHasher},
    time::Duration,
};

use foldhash::fast::RandomState;
use tokio::time::Instant;

use crate::{
    Advice, Kind, Limits, Stop, StopCause, Verdict,
    progress::{Finding, Progress, wait},
    signature::{CallFacts, Compiled, ResultFacts},
};

/// Advice kept for the model's next answer. More in one batch says nothing more.
const MOST_ADVICE: usize = 4;

/// What happens in a task.
#[derive(Clone, Copy, Debug)]
pub(crate) enum TaskEvent<'a> {
    /// The model is to be asked for one more answer.
    Ask,
    /// The model has answered: it saw all advice given before.
    Answer,
    /// The user has spoken.
    UserTurn,
    /// A tool is to be called.
    Call(&'a CallFacts<'a>),
    /// The files of a call that was counted without them.
    Edit(&'a [String]),
    /// What a call came to.
    Result(&'a CallFacts<'a>, ResultFacts),
}

/// See the [module](self).
#[derive(Clone, Debug, Default)]
pub(crate) struct TaskState {
    pub(crate) events: u64,
    pub(crate) calls: u64,
    tools: CountByName,
    pub(crate) files: CountByName,
    /// `None` when nobody knows.
    pub(crate) began: Option<Instant>,
    progress: Progress,
    pub(crate) stopped: Option<StopCause>,
    /// Advice for the model's next answer.
    pub(crate) pending: Vec<Advice>,
    /// Answers in the history before the task began; `None` before it was first read.
    before: Option<usize>,
    /// What has come so far is not to be counted.
    extended: bool,
}

impl TaskState {
    pub(crate) fn new(began: Option<Instant>) -> Self {
        Self { began, ..Self::default() }
    }

    /// An operator gives the task its limits anew.
    pub(crate) fn extend(&mut self, now: Instant) {
        *self = Self { before: self.before, extended: true, ..Self::new(Some(now)) };
    }

    /// How many of the `all` answers in a history are not this task's; `before_turn` of them stand
    /// before the user's last turn, with which each task begins that is one `per_turn`.
    pub(crate) fn skips(&mut self, all: usize, before_turn: usize, per_turn: bool) -> usize {
        let before = match self.before {
            _ if std::mem::take(&mut self.extended) => all,
            Some(before) if before <= all && per_turn => before.max(before_turn),
            Some(before) if before <= all => before,
            // First seen, or the conversation was shortened meanwhile.
            _ => before_turn,
        };
        self.before = Some(before);
        before
    }

    /// Takes over what a history says of the task.
    pub(crate) fn record(&mut self, read: &Self) {
        (self.events, self.calls, self.stopped) = (read.events, read.calls, read.stopped.clone());
    }

    pub(crate) fn elapsed(&self, now: Instant) -> Duration {
        self.began.map_or(Duration::ZERO, |began| now.saturating_duration_since(began))
    }

    pub(crate) fn stop(&self, cause: StopCause, now: Instant) -> Stop {
        Stop { cause, events: self.events, calls: self.calls, elapsed: self.elapsed(now) }
    }

    /// What the task was stopped for.
    pub(crate) fn stopped(&self, now: Instant) -> Option<Stop> {
        self.stopped.clone().map(|cause| self.stop(cause, now))
    }

    /// Calls of each tool, in the order of their names.
    pub(crate) fn by_tool(&self) -> Vec<(Box<str>, u32)> {
        let mut all: Vec<_> =
            self.tools.counts.iter().map(|(name, n)| (name.clone(), *n)).collect();
        all.sort_unstable();
        all
    }

    /// Whether the call may be made. Changes nothing.
    pub(crate) fn check(
        &self,
        c: &Compiled,
        facts: &CallFacts<'_>,
        now: Instant,
    ) -> Result<(), Stop> {
        let room = match &self.stopped {
            Some(cause) => Err(cause.clone()),
            None => self.room_for_call(&c.policy.limits, facts, now),
        };
        room.map_err(|cause| self.stop(cause, now))
    }

    /// Takes note of `event` and decides: from the first that may not be on the task is stopped.
    /// Advice stays pending until the model answers.
    pub(crate) fn on(&mut self, c: &Compiled, event: TaskEvent<'_>, now: Instant) -> Verdict {
        let limits = &c.policy.limits;
        match event {
            // Changes nothing but that a stop stays.
            TaskEvent::Ask => {
                if self.stopped.is_none() {
                    self.stopped = self.room_for_event(limits, now).err();
                }
                self.stopped(now).map_or(Verdict::Fine, Verdict::Stop)
            }
            TaskEvent::Answer => {
                self.events = self.events.saturating_add(1);
                self.progress.answered();
                self.pending.clear();
                Verdict::Fine
            }
            // What was counted stays.
            TaskEvent::UserTurn => {
                self.progress.forget();
                self.pending.clear();
                self.stopped.take_if(|cause| matches!(cause, StopCause::Loop { .. }));
                Verdict::Fine
            }
            TaskEvent::Call(facts) => match self.check(c, facts, now) {
                Ok(()) => {
                    self.events = self.events.saturating_add(1);
                    self.calls = self.calls.saturating_add(1);
                    self.tools.add(&facts.tool);
                    self.edit(limits, &facts.files)
                }
                Err(stop) => self.halt(stop.cause, now),
            },
            TaskEvent::Edit(files) => match self.room_for_files(limits, files) {
                Ok(()) => self.edit(limits, files),
                Err(cause) => self.halt(cause, now),
            },
            TaskEvent::Result(facts, result) => {
                self.events = self.events.saturating_add(1);
                self.judge(c, facts, result, now)
            }
        }
    }

    fn halt(&mut self, cause: StopCause, now: Instant) -> Verdict {
        self.stopped.get_or_insert(cause.clone());
        Verdict::Stop(self.stop(cause, now))
    }

    /// Whether a call with this result gets the task anywhere.
    fn judge(
        &mut self,
        c: &Compiled,
        facts: &CallFacts<'_>,
        result: ResultFacts,
        now: Instant,
    ) -> Verdict {
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
                self.halt(StopCause::Loop { rule, tool: tool(), count }, now);
                None
            }
        };
        let advised = advice.map_or(Verdict::Fine, |advice| self.advise(advice));
        self.stopped(now).map_or(advised, Verdict::Stop)
    }

    fn edit(&mut self, limits: &Limits, files: &[String]) -> Verdict {
        let mut verdict = Verdict::Fine;
        for file in files {
            self.files.add(file);
            if let Some(limit) = limits.edits_per_file
                && self.files.of(file) == limit
            {
                verdict = self.advise(Advice::LastEdit { file: file.as_str().into(), limit });
            }
        }
        verdict
    }

    fn advise(&mut self, advice: Advice) -> Verdict {
        if self.pending.len() < MOST_ADVICE {
            self.pending.push(advice.clone());
        } else if let Some(least) = self.pending.iter_mut().min_by_key(|advice| advice.weight())
            && least.weight() < advice.weight()
        {
            // What matters more replaces what matters less.
            *least = advice.clone();
        }
        Verdict::Warn(advice)
    }

    /// Whether there is room for one more event.
    fn room_for_event(&self, limits: &Limits, now: Instant) -> Result<(), StopCause> {
        if let Some(most) = limits.time
            && self.elapsed(now) > most
        {
            return Err(StopCause::Time(most));
        }
        match limits.events {
            Some(most) if self.events >= most => Err(StopCause::Events(most)),
            _ => Ok(()),
        }
    }

    fn room_for_call(
        &self,
        limits: &Limits,
        facts: &CallFacts<'_>,
        now: Instant,
    ) -> Result<(), StopCause> {
        self.room_for_event(limits, now)?;
        if let Some(most) = limits.calls
            && self.calls >= most
        {
            return Err(StopCause::Calls(most));
        }
        if let Some(limit) = facts.limit
            && self.tools.of(&facts.tool) >= limit
        {
            return Err(StopCause::Tool { tool: facts.tool.as_ref().into(), limit });
        }
        self.room_for_files(limits, &facts.files)
    }

    /// Whether these files may be edited once more.
    fn room_for_files(&self, limits: &Limits, files: &[String]) -> Result<(), StopCause> {
        let Some(limit) = limits.edits_per_file else { return Ok(()) };
        match files.iter().find(|file| self.files.of(file) >= limit) {
            Some(file) => Err(StopCause::File { file: file.as_str().into(), limit }),
            None => Ok(()),
        }
    }
}

/// Tools and files that are counted each by itself. Beyond them, one count serves all the others:
/// memory is bounded, and nobody gets around a limit by inventing names.
const MOST_NAMES: usize = 1_024;

/// Longer names are kept by their beginning and a hash, in bytes: they come from the model.
const LONGEST_NAME: usize = 256;

/// Counts by name. The empty name stands for all that found no room.
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
            None if self.counts.len() >= MOST_NAMES => self.counts.get("").copied().unwrap_or(0),
            None => 0,
        }
    }

    fn add(&mut self, name: &str) {
        let name = &*kept(name);
        let count = match self.counts.get_mut(name) {
            Some(count) => count,
            None => {
                let name = if self.counts.len() < MOST_NAMES { name } else { "" };
                self.counts.entry(name.into()).or_default()
            }
        };
        *count = count.saturating_add(1);
        self.most = self.most.max(*count);
    }
}

/// What is kept of a name.
fn kept(name: &str) -> Cow<'_, str> {
    if name.len() <= LONGEST_NAME {
        return Cow::Borrowed(name);
    }
    let hash = BuildHasherDefault::<DefaultHasher>::default().hash_one(name);
    Cow::Owned(format!("{}\u{2026}{hash:016x}", head(name, LONGEST_NAME - 20)))
}

/// The beginning of `text`, at most so many bytes.
pub(crate) fn head(text: &str, most: usize) -> &str {
    let end = |&at: &usize| text.is_char_boundary(at);
    &text[..(0..=most.min(text.len())).rev().find(end).unwrap_or(0)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_made_up_share_one_count_in_the_end() {
        let mut count = CountByName::default();
        for at in 0..MOST_NAMES {
            count.add(&at.to_string());
        }
        assert_eq!(count.of("new"), 0);
        for at in 0..50 {
            count.add(&format!("new {at}"));
        }
        assert_eq!(count.of("another"), 50);
        assert_eq!(count.of("7"), 1);
        assert!(count.counts.len() <= MOST_NAMES + 1);
    }

    #[test]
    fn long_names_are_told_apart_and_kept_short() {
        let long = |end: &str| format!("{}{end}", "\u{6f22}".repeat(100_000));
        let mut count = CountByName::default();
        for name in [long("a"), long("b"), long("a")] {
            count.add(&name);
        }
        assert_eq!((count.of(&long("a")), count.of(&long("b")), count.of(&long("c"))), (2, 1, 0));
        assert!(count.counts.keys().all(|name| name.len() <= LONGEST_NAME));
    }
}
