//! The verdict on a 2xx: fine unless something in it is not.

use std::borrow::Cow;

use steadfast_core::{Failover, Reason, Retry, Window};

use super::{
    MAX_BODY,
    answer::{self, Answer},
    error, events, prose, readable,
    statuses::{self, Stop},
    vendors,
};
use crate::{Evidence, Verdict};

/// A 2xx: fine unless something in it is not.
pub(super) fn judge(evidence: &Evidence<'_>) -> Option<Verdict> {
    let text = answer::text(readable(evidence), usize::MAX);
    let trimmed = text.trim_start();
    if trimmed.is_empty() {
        return None;
    }
    if prose::is_html(trimmed) {
        let mut verdict = error(evidence, prose::head(&text, MAX_BODY), None);
        verdict.reason = Reason::Unknown;
        verdict.retry = Some(Retry::No);
        verdict.evidence = Cow::Borrowed("a web page instead of an answer");
        return Some(verdict);
    }
    let mut answer = Answer::default();
    if events::is_stream(trimmed) {
        answer.stream(trimmed);
        if !answer.error && answer.known && !answer.terminal && answer.stop.is_none() {
            let mut verdict = Verdict::new(Reason::ServerError, "no terminal event");
            verdict.message = "the stream ended without its terminal event".to_owned();
            return Some(verdict);
        }
    } else if trimmed.starts_with(['{', '[']) {
        answer.document(trimmed);
    } else {
        // No JSON: an SDK's text, if it is known.
        let verdict = error(evidence, prose::head(&text, MAX_BODY), None);
        return (verdict.reason != Reason::Unknown).then_some(verdict);
    }
    if answer.error {
        return Some(error(evidence, prose::head(&text, MAX_BODY), None));
    }
    stopped(&answer).or_else(|| silent(evidence, &answer))
}

/// Whether the data of a stream's event is an error.
pub(crate) fn is_error(data: &str) -> bool {
    let mut answer = Answer::default();
    answer.document(data);
    answer.error
}

/// Whether the data of a stream's event states why the answer stopped.
pub(crate) fn has_stop(data: &str) -> bool {
    let mut answer = Answer::default();
    answer.document(data);
    answer.stop.is_some()
}

/// What a stop reason says.
fn stopped(answer: &Answer<'_>) -> Option<Verdict> {
    let reason = answer.stop?.text();
    let stop = statuses::stop(&reason)?;
    let mut verdict = Verdict::new(
        match stop {
            Stop::Truncated => Reason::OutputTruncated,
            Stop::Filtered => Reason::ContentFilter,
            Stop::Malformed => Reason::Format,
            Stop::Broken | Stop::Unclear => Reason::ServerError,
        },
        format!("stop:{reason}"),
    );
    verdict.stop = match stop {
        Stop::Truncated => true,
        Stop::Filtered => !answer.blocked,
        Stop::Malformed | Stop::Broken | Stop::Unclear => false,
    };
    match stop {
        // The model wrote it, not the caller: writing again may do better.
        Stop::Malformed => {
            verdict.retry = Some(Retry::Yes);
            verdict.failover = Some(Failover::NextTarget);
        }
        Stop::Unclear if answer.content => return None,
        _ => {}
    }
    verdict.message = format!("the answer stopped with `{reason}`");
    Some(verdict)
}

/// What an answer does not say: that it is empty, or that its input was cut to fit.
fn silent(evidence: &Evidence<'_>, answer: &Answer<'_>) -> Option<Verdict> {
    if let (Some(window), Some(input)) = (evidence.window, answer.input)
        && input > window
    {
        let mut verdict = Verdict::new(Reason::ContextOverflow, "usage above the window");
        verdict.window = Some(Window { limit: Some(window), requested: Some(input) });
        verdict.message = format!("{input} input tokens were reported for a window of {window}");
        return Some(verdict);
    }
    if !answer.is_empty() {
        return None;
    }
    // LM Studio answers a prompt that does not fit with an end and nothing else.
    let lm_studio = |provider| vendors::of(provider).contains(&vendors::LM_STUDIO);
    let reason = if evidence.provider.is_some_and(lm_studio) {
        Reason::ContextOverflow
    } else {
        Reason::ServerError
    };
    let mut verdict = Verdict::new(reason, "empty answer");
    verdict.message = "the answer has nothing in it".to_owned();
    Some(verdict)
}
