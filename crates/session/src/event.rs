//! What is reported to the log and the traces. Threads are named, contents never.

use std::fmt::Display;

use steadfast_core::{RecoveryLog, Step};
use tracing::{Level, event};

use crate::{OpenReport, Opened, SaveError, ScopeError, slot::Saved};

/// A thread was opened.
pub(crate) fn opened(thread: &str, session: u64, turn: u64, report: &OpenReport) {
    let how = report.how.as_str();
    event!(
        name: "steadfast::session::opened",
        target: "steadfast::session",
        Level::DEBUG,
        thread, session, turn, how,
        "a thread was opened"
    );
    if report.is_clean() {
        return;
    }
    let OpenReport { bad_lines, torn_bytes, missing, .. } = *report;
    let aside = report.aside.len();
    if report.how == Opened::Lost {
        event!(
            name: "steadfast::session::lost",
            target: "steadfast::session",
            Level::ERROR,
            thread, session, bad_lines, missing, aside,
            "the history of a thread could not be read: it starts afresh"
        );
    } else {
        event!(
            name: "steadfast::session::damaged",
            target: "steadfast::session",
            Level::WARN,
            thread, session, how, bad_lines, torn_bytes, missing, aside,
            "the files of a thread were damaged and are repaired"
        );
    }
}

/// A thread was closed.
pub(crate) fn closed(thread: &str) {
    event!(
        name: "steadfast::session::closed",
        target: "steadfast::session",
        Level::DEBUG,
        thread,
        "a thread that is not used was closed"
    );
}

/// A save failed.
pub(crate) fn unsaved(thread: &str, saved: &Saved, error: &SaveError, log: &RecoveryLog) {
    let Saved { waiting, dropped, .. } = *saved;
    let source = std::error::Error::source(error).map(tracing::field::display);
    event!(
        name: "steadfast::session::unsaved",
        target: "steadfast::session",
        Level::WARN,
        thread, waiting, dropped, source, %error,
        "a turn could not be saved: it is kept in memory and saved with the next one"
    );
    log.record(|| Step::new("session", "unsaved"));
}

/// What could not be saved was.
pub(crate) fn saved_late(thread: &str) {
    event!(
        name: "steadfast::session::saved_late",
        target: "steadfast::session",
        Level::INFO,
        thread,
        "turns that could not be saved before were saved"
    );
}

/// A history was repaired for its target.
pub(crate) fn repaired(
    thread: &str,
    repairs: usize,
    unrepaired: usize,
    rules: &str,
    log: &RecoveryLog,
) {
    event!(
        name: "steadfast::session::repaired",
        target: "steadfast::session",
        Level::INFO,
        thread, repairs, unrepaired, rules,
        "a history was repaired, as its target would have refused it"
    );
    log.record(|| Step::new("session", "repaired").with_detail(rules));
}

/// A prompt was answered from the log.
pub(crate) fn replayed(thread: &str, turn: u64, log: &RecoveryLog) {
    event!(
        name: "steadfast::session::replayed",
        target: "steadfast::session",
        Level::INFO,
        thread, turn,
        "a prompt that had been answered was answered from the log"
    );
    log.record(|| Step::new("session", "replayed"));
}

/// A run that was interrupted goes on.
pub(crate) fn resumed(thread: &str, turn: u64, log: &RecoveryLog) {
    event!(
        name: "steadfast::session::resumed",
        target: "steadfast::session",
        Level::INFO,
        thread, turn,
        "an interrupted run goes on after its last turn"
    );
    log.record(|| Step::new("session", "resumed"));
}

/// A new session.
pub(crate) fn rolled_over(thread: &str, session: u64) {
    event!(
        name: "steadfast::session::rolled_over",
        target: "steadfast::session",
        Level::INFO,
        thread, session,
        "a thread has a new session"
    );
}

/// A scope that does not name one live session.
pub(crate) fn refused(error: &ScopeError) {
    let why = match error {
        ScopeError::Empty => "empty",
        ScopeError::Unknown { .. } => "unknown",
        ScopeError::Ambiguous { .. } => "ambiguous",
        ScopeError::NotLive { .. } => "not_live",
    };
    event!(
        name: "steadfast::session::refused",
        target: "steadfast::session",
        Level::WARN,
        why, %error,
        "a scope that does not name one live session was refused"
    );
}

/// A file of the system prompt was left out, or only a part of it was used.
pub(crate) fn prompt_part(path: &std::path::Path, why: &str, error: Option<&dyn Display>) {
    event!(
        name: "steadfast::session::prompt_part",
        target: "steadfast::session",
        Level::WARN,
        path = %path.display(), why, error = error.map(tracing::field::display),
        "a part of the system prompt could not be used as it is"
    );
}
