//! What a task has used.

use std::{collections::HashMap, time::Duration};

use foldhash::fast::RandomState;
use tokio::time::Instant;

use crate::{Limits, Stop, StopCause, signature::Facts};

/// Tools and files that are counted each by itself. Beyond them, one count serves all the others:
/// memory is bounded, and nobody gets around a limit by inventing names.
const MOST: usize = 1_024;

/// What a task has used.
#[derive(Clone, Debug, Default)]
pub(crate) struct Counters {
    pub(crate) events: u64,
    pub(crate) calls: u64,
    pub(crate) tools: Each,
    pub(crate) files: Each,
    /// `None` when nobody knows.
    pub(crate) began: Option<Instant>,
}

/// Counts by name. The empty name stands for all that found no place.
#[derive(Clone, Debug, Default)]
pub(crate) struct Each {
    by_name: HashMap<Box<str>, u32, RandomState>,
    /// The largest of them.
    most: u32,
}

impl Each {
    fn of(&self, name: &str) -> u32 {
        match self.by_name.get(name) {
            Some(count) => *count,
            None if self.by_name.len() >= MOST => self.by_name.get("").copied().unwrap_or(0),
            None => 0,
        }
    }

    fn add(&mut self, name: &str) {
        let count = match self.by_name.get_mut(name) {
            Some(count) => count,
            None => {
                let name = if self.by_name.len() < MOST { name } else { "" };
                self.by_name.entry(name.into()).or_default()
            }
        };
        *count = count.saturating_add(1);
        self.most = self.most.max(*count);
    }
}

impl Counters {
    pub(crate) fn elapsed(&self, now: Instant) -> Duration {
        self.began.map_or(Duration::ZERO, |began| now.saturating_duration_since(began))
    }

    pub(crate) fn stop(&self, cause: StopCause, now: Instant) -> Stop {
        Stop { cause, events: self.events, calls: self.calls, elapsed: self.elapsed(now) }
    }

    /// Whether there is room for one more event.
    pub(crate) fn room_for_event(&self, limits: &Limits, now: Instant) -> Result<(), StopCause> {
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

    /// Whether there is room for one more call, its files aside.
    pub(crate) fn room_for_call(
        &self,
        limits: &Limits,
        tool: &str,
        limit: Option<u32>,
        now: Instant,
    ) -> Result<(), StopCause> {
        self.room_for_event(limits, now)?;
        if let Some(most) = limits.calls
            && self.calls >= most
        {
            return Err(StopCause::Calls(most));
        }
        match limit {
            Some(limit) if self.tools.of(tool) >= limit => {
                Err(StopCause::Tool { tool: tool.into(), limit })
            }
            _ => Ok(()),
        }
    }

    /// Whether these files may be edited once more.
    pub(crate) fn room_for_files(
        &self,
        limits: &Limits,
        files: &[String],
    ) -> Result<(), StopCause> {
        let Some(limit) = limits.edits_per_file else { return Ok(()) };
        match files.iter().find(|file| self.files.of(file) >= limit) {
            Some(file) => Err(StopCause::File { file: file.as_str().into(), limit }),
            None => Ok(()),
        }
    }

    /// Whether there is room for one more call.
    pub(crate) fn room_for(
        &self,
        limits: &Limits,
        facts: &Facts<'_>,
        now: Instant,
    ) -> Result<(), StopCause> {
        self.room_for_call(limits, &facts.tool, facts.limit, now)?;
        self.room_for_files(limits, &facts.files)
    }

    pub(crate) fn called(&mut self, tool: &str) {
        self.events = self.events.saturating_add(1);
        self.calls = self.calls.saturating_add(1);
        self.tools.add(tool);
    }

    pub(crate) fn edited(&mut self, files: &[String]) {
        files.iter().for_each(|file| self.files.add(file));
    }

    pub(crate) fn event(&mut self) {
        self.events = self.events.saturating_add(1);
    }

    /// How often the file with the most edits was edited.
    pub(crate) fn most_edits(&self) -> u32 {
        self.files.most
    }

    pub(crate) fn edits_of(&self, file: &str) -> u32 {
        self.files.of(file)
    }

    /// Calls of each tool, in the order of their names.
    pub(crate) fn by_tool(&self) -> Vec<(Box<str>, u32)> {
        let mut all: Vec<_> =
            self.tools.by_name.iter().map(|(name, n)| (name.clone(), *n)).collect();
        all.sort_unstable();
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_made_up_share_one_count_in_the_end() {
        let mut each = Each::default();
        for at in 0..MOST {
            each.add(&at.to_string());
        }
        assert_eq!(each.of("new"), 0);
        for at in 0..50 {
            each.add(&format!("new {at}"));
        }
        assert_eq!(each.of("another"), 50);
        assert_eq!(each.of("7"), 1);
        assert!(each.by_name.len() <= MOST + 1);
    }
}
