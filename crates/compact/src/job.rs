//! One compaction of one request, with a summariser where there is one.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

use steadfast_chat::{
    ChatRequest, Message,
    transcript::{Rules, validate},
};

use crate::{
    Applied, Count, Degraded, Effect, Pending, Report, Room, Run, Summary, Task, Tier, TooLarge,
    event,
    look::{Seen, about},
    memory::{Conversation, Flight},
    state::{Shared, add},
    summariser::{Calls, summarise},
};

/// One compaction of one request.
pub(crate) struct Job {
    pub(crate) rules: Rules,
    pub(crate) room: Room,
    pub(crate) model: String,
    pub(crate) count: Count,
    pub(crate) growth: Option<u64>,
    pub(crate) summary: Option<Summary>,
    /// The provider has refused the request.
    pub(crate) refused: bool,
    /// Why nobody may be asked.
    pub(crate) unasked: Option<Degraded>,
}

/// What came of it.
#[derive(Default)]
pub(crate) struct Made {
    pub(crate) run: Option<Run>,
    pub(crate) degraded: Option<Degraded>,
}

/// Why nothing came of it.
#[derive(Debug)]
pub(crate) enum Failed {
    TooLarge(TooLarge),
    /// An error of the layer's own.
    Threw(&'static str),
}

impl Job {
    fn with_task<R>(
        &self,
        shared: &Shared,
        measured: u64,
        (written, half): (Option<&str>, bool),
        f: impl FnOnce(&Task<'_>) -> R,
    ) -> R {
        let counter = &shared.config.counter;
        let weigh = |message: &Message| counter.message(message, &self.model);
        let mut task = Task::new(&self.rules, &weigh);
        task.room = self.room;
        task.fixed = self.count.fixed;
        task.measured = Some(measured);
        task.growth = self.growth;
        task.summary = self.summary.as_ref();
        task.refused = self.refused;
        (task.written, task.half) = (written, half);
        f(&task)
    }

    fn pending(
        &self,
        shared: &Shared,
        request: &ChatRequest,
        half: bool,
    ) -> Result<Option<Pending>, Failed> {
        guarded(|| {
            self.with_task(shared, self.count.upper, (None, half), |task| {
                shared.config.compactor.pending(request, task)
            })
        })
    }

    /// Compacts `request`; on an error it is as it was.
    fn run(
        &self,
        shared: &Shared,
        request: &mut ChatRequest,
        measured: u64,
        written: Option<(&str, bool)>,
    ) -> Result<Option<Run>, Failed> {
        let mut attempt = request.clone();
        let run = guarded(|| {
            let written = written.map_or((None, false), |(words, half)| (Some(words), half));
            self.with_task(shared, measured, written, |task| {
                shared.config.compactor.run(&mut attempt, task, &mut shared.rng())
            })
        })?;
        let changed = run.as_ref().is_some_and(|run| run.report.effect != Effect::Ineffective);
        if changed {
            let was_valid = || validate(request, &self.rules).is_ok();
            if validate(&attempt, &self.rules).is_err() && was_valid() {
                return Err(Failed::Threw("the result was not valid"));
            }
            *request = attempt;
        }
        Ok(run)
    }

    /// Compacts `request`: with the summariser's words where there are any, else without.
    pub(crate) async fn compact(
        &self,
        shared: &Shared,
        request: &mut ChatRequest,
    ) -> Result<Made, Failed> {
        let mut made = Made::default();
        let mut written = None;
        if shared.config.summariser.is_some() {
            match self.ask(shared, request).await {
                Ok(words) => written = words,
                Err(Unwritten::Degraded(why)) => {
                    add(&shared.counts.degraded);
                    event::degraded(about(request), why);
                    made.degraded = Some(why);
                }
                // Perhaps it is the estimate that is too large.
                Err(Unwritten::Failed(Failed::TooLarge(_))) => {}
                Err(Unwritten::Failed(failed)) => return Err(failed),
            }
        }
        if let Some((words, half)) = &written {
            let run = self.run(shared, request, self.count.upper, Some((words, *half)));
            match run {
                Ok(Some(run)) if run.report.effect != Effect::Ineffective => {
                    add(&shared.counts.summarised);
                    made.run = Some(run);
                    return Ok(made);
                }
                Err(threw @ Failed::Threw(_)) => return Err(threw),
                _ => {}
            }
        }
        made.run = match self.run(shared, request, self.count.upper, None) {
            // The upper end of an estimate is no reason to refuse: the likeliest number is.
            Err(Failed::TooLarge(error)) if self.count.tokens < self.count.upper => self
                .run(shared, request, self.count.tokens, None)
                .map_err(|_| Failed::TooLarge(error))?,
            run => run?,
        };
        Ok(made)
    }

    /// What the summariser writes, and whether of the older half only; `None` when nobody has to be
    /// asked.
    async fn ask(
        &self,
        shared: &Shared,
        request: &ChatRequest,
    ) -> Result<Option<(String, bool)>, Unwritten> {
        let Some(summariser) = &shared.config.summariser else { return Ok(None) };
        let mut why = Degraded::TooLong;
        for half in [false, true] {
            let pending = self.pending(shared, request, half).map_err(Unwritten::Failed)?;
            let Some(pending) = pending else { return Ok(None) };
            if let Some(unasked) = self.unasked {
                return Err(Unwritten::Degraded(unasked));
            }
            let Some(calls) = Calls::plan(shared, &pending) else { continue };
            match summarise(shared, summariser, &pending, &calls, &request.context).await {
                Ok(words) => return Ok(Some((words, half))),
                // Half of it may be within the budget.
                Err(Degraded::OverBudget) => why = Degraded::OverBudget,
                Err(degraded) => return Err(Unwritten::Degraded(degraded)),
            }
        }
        Err(Unwritten::Degraded(why))
    }
}

/// Why there are no words.
enum Unwritten {
    Degraded(Degraded),
    Failed(Failed),
}

/// A panic in it is an error of ours: the call goes on without.
fn guarded<R>(f: impl FnOnce() -> Result<R, TooLarge>) -> Result<R, Failed> {
    match catch_unwind(AssertUnwindSafe(f)) {
        Ok(result) => result.map_err(Failed::TooLarge),
        Err(_) => Err(Failed::Threw("it panicked")),
    }
}

/// What is to be remembered of a compaction.
pub(crate) struct Kept {
    pub(crate) applied: Arc<Applied>,
    pub(crate) saved: u64,
}

impl Shared {
    /// Takes over what came of a compaction of the caller's messages to those of `request`, and tells
    /// of it.
    pub(crate) fn book(
        &self,
        flight: Option<&Flight>,
        seen: &Seen,
        request: &ChatRequest,
        run: &mut Run,
    ) -> Option<Kept> {
        let report: Report = run.report;
        event::compacted(about(request), &report);
        let is_kept = report.effect != Effect::Ineffective;
        add(if is_kept { &self.counts.compacted } else { &self.counts.ineffective });
        let helped = matches!(report.effect, Effect::Effective | Effect::Eased);
        let saved = report.before.saturating_sub(report.after);
        let summary = run.summary.take();
        let applied = is_kept.then(|| {
            Arc::new(Applied::new(seen.caller.to_vec(), request.messages.to_vec(), summary))
        });
        if let Some(flight) = flight {
            let mut book = flight.conversation.book.lock();
            book.ineffective = if helped { 0 } else { book.ineffective + 1 };
            let ineffective = book.ineffective;
            let mut why = None;
            if let Some(applied) = &applied {
                if book.generation != flight.generation {
                    why = Some("the conversation has moved on");
                } else if self.config.fail_closed_rollover && !book.may_replace(&seen.caller) {
                    why = Some("two histories go by one name");
                } else {
                    let is_continued = seen.applied.is_some();
                    let saved = if is_continued { book.saved.saturating_add(saved) } else { saved };
                    book.keep(applied.clone(), seen.room.window, saved);
                }
            }
            drop(book);
            if ineffective == self.policy().max_ineffective {
                event::thrashing(about(request), ineffective);
            }
            if let Some(why) = why {
                event::dropped(about(request), why);
            }
        } else if is_kept && report.tier > Tier::None {
            event::dropped(about(request), "whose conversation it is can not be told");
        }
        applied.map(|applied| Kept { applied, saved })
    }

    /// Takes note of an error of the layer's own.
    pub(crate) fn threw(
        &self,
        conversation: Option<&Conversation>,
        request: &ChatRequest,
        what: &'static str,
    ) {
        let mut times = 1;
        if let Some(conversation) = conversation {
            let mut book = conversation.book.lock();
            book.throws += 1;
            times = book.throws;
            if times >= self.policy().max_throws && !std::mem::replace(&mut book.off, true) {
                book.forget();
                drop(book);
                event::switched_off(about(request), true);
            }
        }
        event::threw(about(request), what, times);
    }
}
