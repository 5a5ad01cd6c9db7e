//! What an answer is watched with.

use std::{fmt, sync::Arc};

use steadfast_chat::ChatRequest;
use steadfast_core::{Near, RecoveryLog};
use tokio::time::Instant;

use crate::{
    Stop,
    counters::Counters,
    ledger::Ledger,
    state::{Shared, Task},
};

/// Who sees the calls of tools in an answer.
#[derive(Debug)]
pub(crate) enum Sight {
    /// The layer around the tools.
    Elsewhere,
    /// Nobody but this one: with the book so far, when there is anything in it.
    Answer(Option<Box<Ledger>>),
}

/// What an answer is watched with.
pub(crate) struct Watch {
    pub(crate) shared: Near<Shared>,
    pub(crate) task: Option<Arc<Task>>,
    /// The task's time is over.
    pub(crate) until: Option<Instant>,
    pub(crate) elsewhere: bool,
    /// Boxed: most answers come without any before.
    pub(crate) ledger: Option<Box<Ledger>>,
    pub(crate) log: RecoveryLog,
}

impl Watch {
    pub(crate) fn new(
        shared: Near<Shared>,
        task: Option<Arc<Task>>,
        sight: Sight,
        request: &ChatRequest,
    ) -> Self {
        let until = task.as_ref().and_then(|task| task.until(&shared.c));
        let (elsewhere, ledger) = match sight {
            Sight::Elsewhere => (true, None),
            Sight::Answer(ledger) => (false, ledger),
        };
        let log = request.context.log.clone();
        Self { shared, task, until, elsewhere, ledger, log }
    }

    /// The answer has begun.
    pub(crate) fn begun(&self) {
        if self.elsewhere
            && let Some(task) = &self.task
        {
            task.book.lock().ledger.answered();
        }
    }

    /// The stop for time that is up, when it is.
    pub(crate) fn late(&mut self) -> Option<Stop> {
        let now = Instant::now();
        if self.until.is_none_or(|until| now <= until) {
            return None;
        }
        // An operator may have extended the task meanwhile.
        let task = self.task.as_ref()?;
        self.until = task.until(&self.shared.c);
        if self.until.is_none_or(|until| now <= until) {
            return None;
        }
        let limits = &self.shared.c.policy.limits;
        let cause = self.with_counters(|counters| counters.room_for_event(limits, now).err())?;
        Some(self.with_counters(|counters| counters.stop(cause, now)))
    }

    /// The stop for something that the answer itself shows.
    pub(crate) fn stop(&self, cause: crate::StopCause) -> Stop {
        self.with_counters(|counters| counters.stop(cause, Instant::now()))
    }

    fn with_counters<T>(&self, read: impl FnOnce(&Counters) -> T) -> T {
        match (&self.ledger, &self.task) {
            (Some(ledger), _) => read(&ledger.counters),
            (None, Some(task)) if self.elsewhere => read(&task.book.lock().ledger.counters),
            (None, _) => read(&self.first().counters),
        }
    }

    /// The book of a task of which this answer is the first event.
    fn first(&self) -> Ledger {
        let began = self.task.as_ref().and_then(|task| task.book.lock().ledger.counters.began);
        let mut ledger = Ledger::new(began);
        ledger.answered();
        ledger
    }

    /// The book so far, to count the answer's own calls in.
    pub(crate) fn take_ledger(&mut self) -> Box<Ledger> {
        self.ledger.take().unwrap_or_else(|| Box::new(self.first()))
    }

    /// Tells of a stop inside the answer.
    pub(crate) fn stopped(&self, stop: &Stop) {
        let task = self.task.as_ref().map(|task| task.id()).unwrap_or_default();
        self.shared.stopped(task, stop, true, &self.log);
    }
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watch")
            .field("task", &self.task)
            .field("elsewhere", &self.elsewhere)
            .finish_non_exhaustive()
    }
}
