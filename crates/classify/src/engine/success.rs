//! The verdict on a 2xx: fine unless something in it is not.

use std::borrow::Cow;

use steadfast_core::{FaultSide, Reason, Retry, Scope, Window};

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
    // A prompt that was blocked is answered by that, whatever the word for it.
    let stop = if answer.blocked { Stop::Filtered } else { statuses::stop(&reason)? };
    let mut verdict = Verdict::new(
        match stop {
            Stop::Truncated => Reason::OutputTruncated,
            Stop::Filtered => Reason::ContentFilter,
            Stop::Malformed | Stop::Broken | Stop::Unclear => Reason::ServerError,
        },
        format!("stop:{reason}"),
    );
    verdict.stop = matches!(stop, Stop::Truncated | Stop::Filtered);
    match stop {
        // The model wrote it, not the caller, and the target is fine: another answer may be too.
        Stop::Malformed => {
            (verdict.scope, verdict.fault) = (Some(Scope::Request), Some(FaultSide::Model));
        }
        Stop::Unclear if answer.has_content() => return None,
        _ => {}
    }
    verdict.message = format!("the answer stopped with `{reason}`");
    Some(verdict)
}

/// What an answer does not say: that its input did not fit.
fn silent(evidence: &Evidence<'_>, answer: &Answer<'_>) -> Option<Verdict> {
    if let (Some(window), Some(input)) = (evidence.window, answer.input)
        && input > window
    {
        let mut verdict = Verdict::new(Reason::ContextOverflow, "usage above the window");
        verdict.window = Some(Window { limit: Some(window), requested: Some(input) });
        verdict.message = format!("{input} input tokens were reported for a window of {window}");
        return Some(verdict);
    }
    if answer.is_empty() { empty(evidence.provider) } else { None }
}

/// An answer that ended as it should and has nothing in it. It is what the model had to say, except at
/// LM Studio, which answers a prompt that does not fit with an end and nothing else.
pub(crate) fn empty(provider: Option<&str>) -> Option<Verdict> {
    let lm_studio = |provider| vendors::of(provider).contains(&vendors::LM_STUDIO);
    provider.is_some_and(lm_studio).then(|| {
        let mut verdict = Verdict::new(Reason::ContextOverflow, "empty answer");
        verdict.message = "the answer has nothing in it".to_owned();
        verdict
    })
}
