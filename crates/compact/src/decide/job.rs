//! One compaction of one request in the layer, with a summariser where there is one.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

use steadfast_chat::{
    ChatRequest, Message,
    transcript::{TranscriptRules, validate},
};
use steadfast_core::{Failure, Priority, RecoveryLog};

use super::{CallState, CompactionTask, Level, Measurement};
use crate::{
    Applied, CompactionResult, Degraded, Effect, TooLarge,
    event::{self, About},
    fleet::ShareCompactions,
    measure::TargetInfo,
    state::{CompactionPermit, Config, Conversation, ConversationState, LayerState},
    summarise::summarise,
};

/// One compaction of one request.
pub(crate) struct CompactionJob {
    layer: Arc<LayerState>,
    pub(super) request: ChatRequest,
    permit: CompactionPermit,
    target: Arc<TargetInfo>,
    measured: Measurement,
    rules: TranscriptRules,
    /// The tokens of each message.
    tokens: Vec<u64>,
    growth: Option<u64>,
    /// The provider has refused the request.
    refused: bool,
    /// It is prepared for a later turn.
    ahead: bool,
    /// Why no summary may be asked for.
    no_summary: Option<Degraded>,
}

/// Why there is no compaction.
#[derive(Debug)]
enum Failed {
    TooLarge(TooLarge),
    /// An internal error.
    Internal(&'static str),
    /// There is no summary.
    NoSummary(Degraded),
}

/// What came of it.
#[derive(Default)]
struct Outcome {
    done: Option<CompactionResult>,
    degraded: Option<Degraded>,
}

impl Outcome {
    /// Whether the request is smaller now.
    fn helped(&self) -> bool {
        self.done.as_ref().is_some_and(|done| done.report.effect != Effect::Ineffective)
    }
}

/// A summariser's answer, and whether it is about the older half only.
type Written<'a> = Option<(&'a str, bool)>;

impl CompactionJob {
    pub(crate) fn new(
        layer: &Arc<LayerState>,
        permit: CompactionPermit,
        state: &ConversationState,
        request: &ChatRequest,
        target: Arc<TargetInfo>,
        measured: &Measurement,
    ) -> Self {
        let calibration = layer.counter.calibration(&target.model);
        let is_thrashing = state.snapshot.ineffective >= layer.policy().max_ineffective;
        Self {
            no_summary: match permit.conversation.is_kept {
                true => is_thrashing.then_some(Degraded::Thrashing),
                false => Some(Degraded::Unscoped),
            },
            tokens: state.history.messages(&calibration),
            growth: state.history.growth(&calibration),
            rules: target.rules(request),
            layer: layer.clone(),
            request: request.clone(),
            measured: measured.clone(),
            refused: false,
            ahead: false,
            permit,
            target,
        }
    }

    /// For a request that the provider refused, and stated how large it was.
    pub(super) fn refused(mut self, requested: Option<u64>) -> Self {
        self.refused = true;
        let (count, requested) = (&mut self.measured.count, requested.unwrap_or(0));
        count.upper = count.upper.max(requested);
        count.tokens = count.tokens.max(requested);
        self
    }

    /// For a request that does not need it yet.
    pub(super) fn ahead(mut self) -> Self {
        self.ahead = true;
        self
    }

    /// For a request of whose call it is known already why there is no summary.
    pub(super) fn without_summary(mut self, why: Option<Degraded>) -> Self {
        self.no_summary = self.no_summary.or(why);
        self
    }

    /// Compacts the request, and takes over what came of it.
    pub(crate) async fn run(mut self) -> Result<(ChatRequest, CallState), Failure> {
        let outcome = self.compact().await;
        self.conclude(outcome)
    }

    /// Takes over a compaction of the conversation that another process has made; whether there is one.
    pub(super) async fn adopt(&mut self) -> bool {
        let conversation = self.permit.conversation.clone();
        let fleet = self.layer.memory.fleet.get().filter(|_| conversation.is_kept);
        let read =
            |fleet: &dyn ShareCompactions| fleet.read(&self.request.context, &self.measured.caller);
        let Some(read) = fleet.and_then(|fleet| read(&**fleet)) else { return false };
        let Some(found) = read.await else { return false };
        let mut state = conversation.state.lock();
        let known = self.measured.applied.as_ref().map_or(0, |applied| applied.replaced());
        let is_due = state.generation == self.permit.generation
            && found.applied.replaced() > known
            && found.window >= self.measured.room.window
            && state.may_replace(&self.measured.caller);
        if is_due {
            found.applied.is_news();
            state.keep(found.applied, found.window, found.saved);
            self.permit.generation = state.generation;
        }
        is_due
    }

    /// The request as its caller wrote it, and the permission to compact it, to decide again.
    pub(super) fn again(self: Box<Self>) -> (ChatRequest, CompactionPermit) {
        let Self { mut request, measured, permit, .. } = *self;
        request.messages = measured.caller;
        (request, permit)
    }

    /// Compacts in the background for a later turn than that of `request`; the job itself where there is no
    /// runtime to do that.
    pub(super) fn begin_in_background(
        mut self: Box<Self>,
        request: &ChatRequest,
    ) -> Result<(), Box<Self>> {
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return Err(self) };
        event::deferred(About::of(request));
        // No call waits for it, and the answer's head is written without it.
        let context = &mut self.request.context;
        context.deadline = None;
        context.priority = Priority::Background;
        context.log = RecoveryLog::disabled();
        // Its result is kept, and its events are traced.
        runtime.spawn(async move {
            if !self.ahead && self.adopt().await {
                return Ok(());
            }
            self.run().await.map(drop)
        });
        Ok(())
    }

    /// The same for a request that was refused; `None` when it did not become smaller.
    pub(super) async fn run_if_helpful(mut self) -> Option<(ChatRequest, CallState)> {
        let outcome = self.compact().await;
        let helped = outcome.as_ref().is_ok_and(Outcome::helped);
        helped.then(|| self.conclude(outcome).ok()).flatten()
    }

    /// Does `work` with the task of the compaction. A panic in it is an internal error: the call
    /// continues without.
    fn with_task<R>(
        &self,
        written: Written<'_>,
        half: bool,
        work: impl FnOnce(CompactionTask<'_>) -> Result<R, TooLarge>,
    ) -> Result<R, Failed> {
        let (counter, applied) = (&self.layer.counter, &self.measured.applied);
        let count = |message: &Message| counter.message(message, &self.target.model);
        let mut task = CompactionTask::new(&self.rules, &count);
        task.room = self.measured.room;
        task.known = &self.tokens;
        task.fixed = self.measured.count.fixed;
        task.measured = Some(self.measured.count.upper);
        task.growth = self.growth;
        task.summary = applied.as_ref().and_then(|applied| applied.summary());
        (task.refused, task.ahead) = (self.refused, self.ahead);
        (task.written, task.half) = (written.map(|(text, _)| text), half);
        match catch_unwind(AssertUnwindSafe(|| work(task))) {
            Ok(result) => result.map_err(Failed::TooLarge),
            Err(_) => Err(Failed::Internal("it panicked")),
        }
    }

    /// Compacts the request once, taking it for `measured` tokens; on an error it is as it was.
    fn attempt(
        &mut self,
        measured: u64,
        written: Written<'_>,
    ) -> Result<Option<CompactionResult>, Failed> {
        let mut attempt = self.request.clone();
        let half = written.is_some_and(|(_, half)| half);
        let done = self.with_task(written, half, |mut task| {
            task.measured = Some(measured);
            self.layer.config.compactor.run(&mut attempt, &task, &mut self.layer.rng())
        })?;
        if done.as_ref().is_some_and(|done| done.report.effect != Effect::Ineffective) {
            let is_valid = |request: &ChatRequest| validate(request, &self.rules).is_ok();
            if !is_valid(&attempt) && is_valid(&self.request) {
                return Err(Failed::Internal("the result was not valid"));
            }
            self.request = attempt;
        }
        Ok(done)
    }

    /// Compacts the request: with a summary where there is one, else by rule.
    async fn compact(&mut self) -> Result<Outcome, Failed> {
        let count = self.measured.count;
        let mut outcome = Outcome::default();
        match self.summary().await {
            Ok(Some((text, half))) => {
                match self.attempt(count.upper, Some((&text, half))) {
                    Err(Failed::TooLarge(_)) => {}
                    done => outcome.done = done?,
                }
                if outcome.helped() {
                    self.layer.memory.counts.lock().summarised += 1;
                    return Ok(outcome);
                }
            }
            Ok(None) => {}
            Err(Failed::NoSummary(why)) => {
                self.layer.memory.counts.lock().degraded += 1;
                event::degraded(About::of(&self.request), why);
                outcome.degraded = Some(why);
                if !self.layer.policy().plain {
                    return Ok(outcome);
                }
            }
            // Perhaps it is the estimate that is too large.
            Err(Failed::TooLarge(_)) => {}
            Err(failed) => return Err(failed),
        }
        outcome.done = match self.attempt(count.upper, None) {
            // The upper end of an estimate is no reason to refuse: the likeliest number is.
            Err(Failed::TooLarge(error)) if count.tokens < count.upper => {
                self.attempt(count.tokens, None).map_err(|_| Failed::TooLarge(error))?
            }
            done => done?,
        };
        Ok(outcome)
    }

    /// What the summariser writes, and whether of the older half only; `None` when it need not be
    /// asked.
    async fn summary(&self) -> Result<Option<(String, bool)>, Failed> {
        let Config { summariser, compactor, .. } = &self.layer.config;
        let Some(summariser) = summariser else { return Ok(None) };
        let mut why = Degraded::TooLong;
        for half in [false, true] {
            let pending = |task: CompactionTask<'_>| compactor.pending(&self.request, &task);
            let Some(input) = self.with_task(None, half, pending)? else { return Ok(None) };
            if let Some(why) = self.no_summary {
                return Err(Failed::NoSummary(why));
            }
            if self.layer.is_summariser_degraded(&self.request.context) {
                return Err(Failed::NoSummary(Degraded::ProviderDegraded));
            }
            match summarise(&self.layer, summariser, &input, &self.request.context).await {
                Ok(text) => return Ok(Some((text, half))),
                // Half of it may be within the budget, or the number of calls.
                Err(degraded @ (Degraded::OverBudget | Degraded::TooLong)) => why = degraded,
                Err(degraded) => return Err(Failed::NoSummary(degraded)),
            }
        }
        Err(Failed::NoSummary(why))
    }

    /// Takes over what came of the compaction, or that none was possible.
    fn conclude(
        mut self,
        outcome: Result<Outcome, Failed>,
    ) -> Result<(ChatRequest, CallState), Failure> {
        let (layer, about) = (&self.layer, About::of(&self.request));
        let conversation = &self.permit.conversation;
        let mut notice = self.measured.notice();
        let (mut applied, mut saved) = (self.measured.applied.clone(), 0);
        let threw = matches!(outcome, Err(Failed::Internal(_)));
        match outcome {
            Ok(outcome) => {
                notice.degraded = outcome.degraded;
                if let Some(done) = outcome.done {
                    notice.reports.push(done.report);
                    saved = done.report.before.saturating_sub(done.report.after);
                    applied = self.keep(done, saved).or(applied);
                }
            }
            Err(Failed::TooLarge(error)) => {
                layer.memory.counts.lock().too_large += 1;
                event::too_large(about, &error);
                // A window that is assumed is no reason to refuse.
                if self.target.is_known && layer.policy().plain {
                    let failure = error.into_failure();
                    return Err(match &self.request.context.target {
                        Some(target) => failure.with_target(target.clone()),
                        None => failure,
                    });
                }
            }
            Err(Failed::Internal(what)) => {
                layer.failed_internally(conversation, &self.request, what);
                notice.switched_off = conversation.state.lock().snapshot.is_off;
            }
            Err(Failed::NoSummary(why)) => notice.degraded = Some(why),
        }
        if self.ahead {
            return Ok((self.request, CallState::default()));
        }
        // It is counted as it is sent.
        let mut state = conversation.state.lock();
        notice.tokens = layer.count(&mut state, &self.request, &self.target).upper;
        self.target.leave_room(&mut self.request, notice.tokens);
        notice.warning = layer.policy().level(self.measured.room, notice.tokens) != Level::Fine;
        state.warned = notice.warning;
        let (saved, caller) = (saved.max(state.snapshot.saved), self.measured.caller);
        let is_kept = applied.as_ref().is_some_and(|applied| state.remembers(applied));
        let mut sent =
            CallState::new(conversation, &state, &self.request, notice, applied, caller, saved);
        sent.window = if is_kept { state.window() } else { 0 };
        sent.shows_success &= !threw;
        drop(state);
        Ok((self.request, sent))
    }

    /// Keeps a compaction of the caller's messages to those of the request for the next turn. Returns
    /// what replaced what, when anything was replaced.
    fn keep(&self, done: CompactionResult, saved: u64) -> Option<Arc<Applied>> {
        let (report, caller) = (done.report, &self.measured.caller);
        let (conversation, about) = (&self.permit.conversation, About::of(&self.request));
        event::compacted(about, &report);
        let mut counts = self.layer.memory.counts.lock();
        if report.effect == Effect::Ineffective {
            counts.ineffective += 1;
        } else {
            counts.compacted += 1;
        }
        drop(counts);
        let sent = || self.request.messages.to_vec();
        let applied = (report.effect != Effect::Ineffective)
            .then(|| Arc::new(Applied::new(caller.to_vec(), sent(), done.summary)));
        if !conversation.is_kept {
            if applied.is_some() {
                event::dropped(about, "whose conversation it is can not be determined");
            }
            return applied;
        }
        let mut state = conversation.state.lock();
        let helped = matches!(report.effect, Effect::Effective | Effect::Eased);
        state.snapshot.ineffective = if helped { 0 } else { state.snapshot.ineffective + 1 };
        let ineffective = state.snapshot.ineffective;
        let mut dropped = None;
        if let Some(applied) = &applied {
            if state.generation != self.permit.generation {
                dropped = Some("the conversation has moved on");
            } else if !self.layer.config.keep_ambiguous && !state.may_replace(caller) {
                dropped = Some("two histories go by one name");
            } else {
                let before = if self.measured.applied.is_some() { state.snapshot.saved } else { 0 };
                let window = self.measured.room.window;
                let saved = before.saturating_add(saved);
                match self.ahead {
                    true => state.prepare(applied.clone(), window, saved),
                    false => state.keep(applied.clone(), window, saved),
                }
            }
        }
        drop(state);
        if ineffective == self.layer.policy().max_ineffective {
            event::thrashing(about, ineffective);
        }
        if let Some(why) = dropped {
            event::dropped(about, why);
        }
        applied
    }
}

impl LayerState {
    /// Counts an error of the layer's own; after some of them in a row the conversation is left alone.
    pub(super) fn failed_internally(
        &self,
        conversation: &Conversation,
        request: &ChatRequest,
        what: &'static str,
    ) {
        let mut state = conversation.state.lock();
        state.snapshot.throws += 1;
        let throws = state.snapshot.throws;
        let is_last = conversation.is_kept && throws >= self.policy().max_throws;
        let is_new = is_last && !std::mem::replace(&mut state.snapshot.is_off, true);
        if is_new {
            state.forget();
        }
        drop(state);
        if is_new {
            event::switched_off(About::of(request), true);
        }
        event::threw(About::of(request), what, throws);
    }
}
