//! What is traced, by its stable names.

use std::{error::Error, time::Duration};

use steadfast_core::{redact, time::millis};
use steadfast_store::{FileRepair, StoreError};
use tracing::{Level, Span, event, field::Empty};

use crate::{
    AgentRun, NoticeKind, NoticeVia, RunId, RunState, ThreadKey,
    panic::{Panicked, caught},
    record::RunEnd,
};

/// The span of `run`, with the fields that OpenTelemetry's conventions have for `invoke_agent`.
pub(crate) fn span<T>(run: &AgentRun<T>) -> Span {
    let agent = run.context.agent();
    let dash = if agent.is_some() { " " } else { "" };
    tracing::info_span!(
        target: "steadfast::supervise",
        "invoke_agent",
        otel.name = %format_args!("invoke_agent{dash}{}", agent.unwrap_or_default()),
        otel.kind = "internal",
        otel.status_code = Empty,
        gen_ai.operation.name = "invoke_agent",
        // Required by the conventions: whose agent it is.
        gen_ai.provider.name = "steadfast",
        gen_ai.agent.name = agent,
        gen_ai.conversation.id = run.context.session(),
        steadfast.tenant = run.context.tenant(),
        steadfast.task = run.context.task(),
        steadfast.run = %run.id(),
        error.type = Empty,
    )
}

/// The run of `span` has ended.
pub(crate) fn ended(span: &Span, end: RunEnd) {
    if end.state.is_announced() {
        span.record("error.type", end.reason.unwrap_or(end.state.as_str()));
        span.record("otel.status_code", "ERROR");
    }
}

/// Links of a `source()` chain that are written: more than any honest chain has, since a chain can be a cycle.
const LINKS: usize = 32;

/// An error with all its sources, the outermost first, secrets masked. Somebody else's error may panic while it is asked: the text then has that in
/// its place.
pub(crate) fn chain(error: &(dyn Error + 'static)) -> String {
    let mut chain = String::new();
    let mut next = Some(error);
    for _ in 0..=LINKS {
        let Some(error) = next else { return chain };
        if !chain.is_empty() {
            chain.push_str(" <- ");
        }
        match caught(|| (redact(&error.to_string()).into_string(), error.source())) {
            Ok((text, source)) => {
                chain.push_str(&text);
                next = source;
            }
            Err(panicked) => {
                chain.push_str("an error that can not be displayed, ");
                chain.push_str(&panicked.to_string());
                return chain;
            }
        }
    }
    chain.push_str(" <- ...");
    chain
}

pub(crate) fn watchdog_timeout(
    id: &RunId,
    parent: Option<&RunId>,
    limit: Duration,
    elapsed: Duration,
    spared: Duration,
    knob: &'static str,
) {
    event!(
        name: "steadfast::supervise::watchdog_timeout",
        target: "steadfast::supervise",
        Level::WARN,
        run = %id,
        parent = parent.map(RunId::as_str),
        limit_ms = millis(limit),
        elapsed_ms = millis(elapsed),
        waited_for_children_ms = millis(spared),
        knob,
        "the watchdog gave up a run that was not over in time",
    );
}

pub(crate) fn ghost_swept(id: &RunId, age: Duration, orphan: bool) {
    event!(
        name: "steadfast::supervise::ghost_swept",
        target: "steadfast::supervise",
        Level::ERROR,
        run = %id,
        age_ms = millis(age),
        orphan,
        "a run that should have ended long ago was still marked as running; it is failed now",
    );
}

pub(crate) fn late_result(id: &RunId, state: RunState, late: RunState) {
    event!(
        name: "steadfast::supervise::late_result",
        target: "steadfast::supervise",
        Level::INFO,
        run = %id,
        state = state.as_str(),
        late = late.as_str(),
        "a run ended after it had been given up; recorded, not announced",
    );
}

pub(crate) fn run_cancelled(id: &RunId) {
    event!(
        name: "steadfast::supervise::run_cancelled",
        target: "steadfast::supervise",
        Level::INFO,
        run = %id,
        "a run was cancelled by hand",
    );
}

pub(crate) fn notice_sent(id: &RunId, kind: NoticeKind, via: NoticeVia) {
    event!(
        name: "steadfast::supervise::notice_sent",
        target: "steadfast::supervise",
        Level::INFO,
        run = %id,
        kind = kind.as_str(),
        via = via.as_str(),
        "the notice of a run was handed on",
    );
}

pub(crate) fn notice_failed(id: &RunId, kind: NoticeKind, error: &str) {
    event!(
        name: "steadfast::supervise::notice_failed",
        target: "steadfast::supervise",
        Level::WARN,
        run = %id,
        kind = kind.as_str(),
        error,
        "the notice of a run could not be handed on; the next sweep sends it again",
    );
}

pub(crate) fn notice_dropped(id: &RunId) {
    event!(
        name: "steadfast::supervise::notice_dropped",
        target: "steadfast::supervise",
        Level::WARN,
        run = %id,
        "too many notices could not be handed on; the oldest is dropped",
    );
}

pub(crate) fn registry_unwritten(error: &StoreError, records: usize) {
    event!(
        name: "steadfast::supervise::registry_unwritten",
        target: "steadfast::supervise",
        Level::WARN,
        records,
        full = error.is_full(),
        error = chain(error),
        "the registry of runs can not be written and is kept in memory; runs go on",
    );
}

pub(crate) fn registry_slow(id: &RunId, waited: Duration) {
    event!(
        name: "steadfast::supervise::registry_slow",
        target: "steadfast::supervise",
        Level::WARN,
        run = %id,
        waited_ms = millis(waited),
        "the disk has not taken the registration of a run; the run starts without it",
    );
}

pub(crate) fn registry_written(records: usize) {
    event!(
        name: "steadfast::supervise::registry_written",
        target: "steadfast::supervise",
        Level::INFO,
        records,
        "the registry of runs is written again",
    );
}

pub(crate) fn registry_not_compacted(error: &StoreError) {
    event!(
        name: "steadfast::supervise::registry_not_compacted",
        target: "steadfast::supervise",
        Level::WARN,
        error = chain(error),
        "the registry's file could not be compacted; it grows until it can",
    );
}

pub(crate) fn registry_opened(repair: FileRepair, running: usize) {
    let FileRepair { records, bad_lines, torn_bytes, .. } = repair;
    if repair.is_clean() {
        event!(
            name: "steadfast::supervise::registry_opened",
            target: "steadfast::supervise",
            Level::INFO,
            records,
            running,
            bad_lines,
            torn_bytes,
            "the registry of runs was read",
        );
    } else {
        event!(
            name: "steadfast::supervise::registry_opened",
            target: "steadfast::supervise",
            Level::WARN,
            records,
            running,
            bad_lines,
            torn_bytes,
            "the registry of runs was read; what could not be read is beside it",
        );
    }
}

pub(crate) fn registry_closed(interrupted: usize) {
    event!(
        name: "steadfast::supervise::registry_closed",
        target: "steadfast::supervise",
        Level::INFO,
        interrupted,
        "the registry of runs was closed; the next start sweeps what still ran",
    );
}

/// What is known of a turn that failed.
#[derive(Debug)]
pub(crate) struct FailedTurn<'a> {
    pub(crate) thread: &'a ThreadKey,
    pub(crate) prompt: u64,
    pub(crate) kind: &'static str,
    pub(crate) reason: &'static str,
    pub(crate) error: String,
    pub(crate) backtrace: Option<&'a str>,
}

pub(crate) fn turn_failed(turn: &FailedTurn<'_>) {
    event!(
        name: "steadfast::supervise::turn_failed",
        target: "steadfast::supervise",
        Level::ERROR,
        tenant = turn.thread.tenant(),
        thread = turn.thread.thread(),
        prompt = turn.prompt,
        kind = turn.kind,
        reason = turn.reason,
        error = turn.error,
        backtrace = turn.backtrace,
        "a turn failed; its user got a fixed text, and the next prompt runs",
    );
}

pub(crate) fn drop_panicked(thread: &ThreadKey, prompt: u64, panicked: &Panicked) {
    event!(
        name: "steadfast::supervise::drop_panicked",
        target: "steadfast::supervise",
        Level::ERROR,
        tenant = thread.tenant(),
        thread = thread.thread(),
        prompt,
        error = %panicked,
        backtrace = panicked.backtrace.as_deref(),
        "a turn panicked when it was dropped, after its end; that changes nothing for its user",
    );
}

pub(crate) fn pipeline_timeout(thread: &ThreadKey, prompt: u64, limit: Duration) {
    event!(
        name: "steadfast::supervise::aborted",
        target: "steadfast::supervise",
        Level::WARN,
        tenant = thread.tenant(),
        thread = thread.thread(),
        prompt,
        reason = "pipeline_timeout",
        limit_ms = millis(limit),
        "execution:aborted, a prompt took longer than its whole run may take",
    );
}

pub(crate) fn aborted(thread: &ThreadKey, prompt: u64, reason: &'static str) {
    event!(
        name: "steadfast::supervise::aborted",
        target: "steadfast::supervise",
        Level::INFO,
        tenant = thread.tenant(),
        thread = thread.thread(),
        prompt,
        reason,
        "execution:aborted, a prompt's run was stopped",
    );
}

pub(crate) fn refused(thread: &ThreadKey, why: &'static str) {
    event!(
        name: "steadfast::supervise::refused",
        target: "steadfast::supervise",
        Level::INFO,
        tenant = thread.tenant(),
        thread = thread.thread(),
        why,
        "a message was not taken",
    );
}

pub(crate) fn post_failed(thread: &ThreadKey, prompt: u64, what: &'static str, error: &str) {
    event!(
        name: "steadfast::supervise::post_failed",
        target: "steadfast::supervise",
        Level::WARN,
        tenant = thread.tenant(),
        thread = thread.thread(),
        prompt,
        what,
        error,
        "a message for a user could not be sent and is dropped",
    );
}

pub(crate) fn evicted(thread: &ThreadKey) {
    event!(
        name: "steadfast::supervise::evicted",
        target: "steadfast::supervise",
        Level::DEBUG,
        tenant = thread.tenant(),
        thread = thread.thread(),
        "an idle mailbox was removed; the next prompt makes it again",
    );
}

pub(crate) fn stopped(finished: usize, cut: usize, dropped: usize) {
    event!(
        name: "steadfast::supervise::stopped",
        target: "steadfast::supervise",
        Level::INFO,
        finished,
        cut,
        dropped,
        "all threads were stopped",
    );
}
