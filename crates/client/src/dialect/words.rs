//! Words of failures that clients act on: their own recovery from a conversation that is too long, and their own
//! retries.

use std::sync::LazyLock;

use serde::Deserialize;
use steadfast_core::{Dialect, Failure, Reason, Window};

use super::error::full_stop;

const TABLE: &str = include_str!("../../data/words.jsonl");

static ROWS: LazyLock<Vec<Row>> = LazyLock::new(|| {
    // A line that is no row is left out; a test reads all of them.
    TABLE.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
});

/// A row of the table.
#[derive(Debug, Deserialize)]
struct Row {
    reason: Reason,
    words: Box<str>,
    like: Vec<Box<str>>,
}

/// `text`, which reports `failure`, beginning with words on which agents' retries act, where asking again may help.
pub(super) fn recognised(failure: &Failure, text: String) -> String {
    let root = failure.common_reason().or(failure.because()).unwrap_or(failure.reason());
    let passes = root.rule().retry == steadfast_core::Retry::Yes
        || (root.is_refusal() && !root.rule().permanent);
    let row = ROWS.iter().find(|row| row.reason == failure.outward_reason());
    let Some(row) = row.filter(|_| passes) else { return text };
    let lower = text.to_ascii_lowercase();
    if row.like.iter().any(|like| lower.contains(&**like)) {
        return text;
    }
    format!("{}: {text}", row.words)
}

/// How far into a result is looked for a word that says it failed, in bytes.
const OPENING: usize = 200;

/// The text of a result that failed: this dialect has no field for that.
pub(super) fn failed(text: String) -> String {
    let opening: String = text.chars().take(OPENING).collect::<String>().to_lowercase();
    let says = ["error", "fail", "exception", "denied", "not found", "timed out"];
    if says.iter().any(|word| opening.contains(word)) {
        return text;
    }
    format!("Error: {}", if text.is_empty() { "the tool failed" } else { &text })
}

/// The message for a conversation that does not fit, in the words of `dialect`'s vendor: by them and their numbers
/// agents recognise that they have to compact. `own` follows where it was a decision of this process.
pub(super) fn overflow(dialect: Dialect, failure: &Failure, own: &str) -> String {
    let Window { limit, requested } = failure.window().unwrap_or_default();
    // Less than the limit is no reason; a number that is not known is not made up.
    let numbers = requested.zip(limit).filter(|(requested, limit)| requested > limit);
    let mut text = match (dialect, numbers) {
        // Claude Code 2.1 reads both numbers.
        (Dialect::Anthropic, Some((requested, limit))) => {
            format!("prompt is too long: {requested} tokens > {limit} maximum")
        }
        (Dialect::Anthropic, None) => "prompt is too long".to_owned(),
        // opencode 1.18, pi 0.73.1: "maximum context length is N tokens", "input token count ... exceeds the maximum".
        (Dialect::OpenAi | Dialect::Responses, Some((requested, limit))) => format!(
            "This model's maximum context length is {limit} tokens. However, your messages resulted in {requested} \
             tokens. Please reduce the length of the messages."
        ),
        (Dialect::OpenAi | Dialect::Responses, None) => {
            "Your input exceeds the context window of this model. Please adjust your input and try again.".to_owned()
        }
        (Dialect::Gemini, Some((requested, limit))) => format!(
            "The input token count ({requested}) exceeds the maximum number of tokens allowed ({limit})."
        ),
        (Dialect::Gemini, None) => {
            "The input token count exceeds the maximum number of tokens allowed.".to_owned()
        }
    };
    if failure.upstream().is_none() && !own.is_empty() {
        full_stop(&mut text);
        text.push(' ');
        text.push_str(own);
    }
    text
}

#[cfg(test)]
mod tests {
    use steadfast_core::Upstream;

    use super::*;

    #[test]
    fn every_row_is_read() {
        for line in TABLE.lines().skip(1) {
            let row: Row =
                serde_json::from_str(line).unwrap_or_else(|error| panic!("{line}: {error}"));
            let lower = row.words.to_lowercase();
            assert!(
                row.like.iter().any(|like| lower.contains(&**like)),
                "{line}: its own words are none"
            );
            assert!(
                row.like.iter().all(|like| like.to_lowercase() == **like),
                "{line}: lower case"
            );
        }
        assert_eq!(ROWS.len() + 1, TABLE.lines().count());
    }

    #[test]
    fn an_operating_systems_error_alone_is_reported_to_nobody() {
        for (reason, text, reported) in [
            (
                Reason::Network,
                "Connection reset by peer (os error 104)",
                "network error: connection lost: Connection reset by peer (os error 104)",
            ),
            (Reason::Network, "a network error", "a network error"),
            (Reason::Timeout, "nothing for 60 s", "timeout: request timed out: nothing for 60 s"),
            (Reason::RateLimit, "Rate limit reached", "Rate limit reached"),
            (Reason::Overloaded, "no room", "overloaded: no room"),
            (Reason::Cooling, "all rest", "service unavailable: all rest"),
            // What does not pass is reported as it is.
            (Reason::ModelNotFound, "no such model", "no such model"),
            (Reason::Safety, "stopped", "stopped"),
            (Reason::Format, "bad", "bad"),
        ] {
            let failure = Failure::new(reason, text);
            assert_eq!(recognised(&failure, text.to_owned()), reported);
        }
    }

    #[test]
    fn an_overflow_is_reported_in_the_callers_words() {
        let theirs = Failure::from_upstream(Upstream::event("{}"));
        let theirs = theirs.with_window(Window { limit: Some(200), requested: Some(213) });
        let ours = Failure::refused(Reason::ContextOverflow, "the floor is too high");
        for (dialect, both, none) in [
            (
                Dialect::Anthropic,
                "prompt is too long: 213 tokens > 200 maximum",
                "prompt is too long",
            ),
            (Dialect::OpenAi, "maximum context length is 200 tokens", "exceeds the context window"),
            (
                Dialect::Gemini,
                "The input token count (213) exceeds the maximum number of tokens allowed (200)",
                "The input token count exceeds the maximum number of tokens allowed",
            ),
        ] {
            let text = overflow(dialect, &theirs, "raw");
            assert!(text.contains(both) && !text.contains("raw"), "{text}");
            let text = overflow(dialect, &ours, "the floor is too high");
            assert!(text.contains(none) && text.ends_with(". the floor is too high"), "{text}");
        }
    }
}
