//! Why an answer stopped, and what it used, as this dialect writes it.

use serde::Deserialize;
use steadfast_chat::{Stop, StopReason};
use steadfast_core::Usage;

use crate::json::Object;

/// The stop of an answer of this `status`, and of this reason where it is incomplete; `None` when it has not stopped.
pub(super) fn read(status: &str, reason: Option<&str>, calls: bool, refused: bool) -> Option<Stop> {
    let (why, word) = match (status, reason) {
        ("completed", _) if calls => (StopReason::ToolUse, status),
        ("completed", _) if refused => (StopReason::ContentFilter, status),
        ("completed", _) => (StopReason::EndTurn, status),
        ("incomplete", Some(reason @ "max_output_tokens")) => (StopReason::MaxTokens, reason),
        ("incomplete", Some(reason @ "content_filter")) => (StopReason::ContentFilter, reason),
        ("incomplete", reason) => (StopReason::Other, reason.unwrap_or(status)),
        _ => return None,
    };
    Some(Stop::new(why, word))
}

/// Why an answer with `stop` is incomplete, if it is: of an answer of this dialect's `own` in the provider's word.
pub(super) fn incomplete(stop: Option<&Stop>, own: bool) -> Option<&str> {
    let stop = stop?;
    let word = stop.word.as_deref().filter(|_| own);
    match stop.reason {
        StopReason::MaxTokens | StopReason::Window => Some(word.unwrap_or("max_output_tokens")),
        // Its own refusals are complete.
        StopReason::ContentFilter if word == Some("completed") => None,
        StopReason::ContentFilter => Some(word.unwrap_or("content_filter")),
        StopReason::Other => word.filter(|word| *word != "completed"),
        _ => None,
    }
}

/// `usage` as it is on the wire.
#[derive(Deserialize, Default)]
#[serde(default)]
struct Wire {
    input_tokens: Option<u64>,
    output_tokens: Option<u64>,
    input_tokens_details: Option<Read>,
    output_tokens_details: Option<Written>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Read {
    cached_tokens: Option<u64>,
    cache_write_tokens: Option<u64>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Written {
    reasoning_tokens: Option<u64>,
}

/// Reads usage; figures that can not be read are not known.
pub(super) fn usage(json: &str) -> Option<Usage> {
    let wire: Wire = serde_json::from_str(json).ok()?;
    let read = wire.input_tokens_details.unwrap_or_default();
    let mut usage = Usage::default();
    usage.input = wire.input_tokens;
    usage.output = wire.output_tokens;
    usage.cache_read = read.cached_tokens;
    usage.cache_write = read.cache_write_tokens;
    usage.thinking = wire.output_tokens_details.unwrap_or_default().reasoning_tokens;
    Some(usage)
}

/// Writes usage: its clients read every figure.
pub(super) fn put_usage(object: &mut Object<'_>, usage: &Usage) {
    let (input, output) = (usage.input.unwrap_or(0), usage.output.unwrap_or(0));
    let mut wire = object.object("usage");
    wire.put("input_tokens", &input);
    wire.object("input_tokens_details")
        .put("cached_tokens", &usage.cache_read.unwrap_or(0))
        .put("cache_write_tokens", &usage.cache_write.unwrap_or(0));
    wire.put("output_tokens", &output);
    wire.object("output_tokens_details").put("reasoning_tokens", &usage.thinking.unwrap_or(0));
    wire.put("total_tokens", &input.saturating_add(output));
}
