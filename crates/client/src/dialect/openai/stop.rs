//! Why an answer stopped, and what it used, as this dialect writes it.

use serde::Deserialize;
use steadfast_chat::{Stop, StopReason};
use steadfast_core::{Failure, Usage};

use crate::{
    dialect::{fault, own_word},
    json::Object,
};

/// The stop of a finish reason, or `Err` when that means that the provider broke.
///
/// Beyond OpenAI's own five: `model_length` is Mistral's, `eos` and `end_turn` come from servers
/// that pass on what their engine reports, `error` is OpenRouter's, `network_error` Z.AI's,
/// `insufficient_system_resource` DeepSeek's, `abort` vLLM's, `MALFORMED_...` Gemini's behind a relay.
pub(super) fn read(word: &str) -> Result<Stop, ()> {
    let reason = match word {
        "stop" | "eos" | "end_turn" => StopReason::EndTurn,
        "length" | "max_tokens" | "model_length" => StopReason::MaxTokens,
        "tool_calls" | "function_call" | "tool_use" => StopReason::ToolUse,
        "content_filter" => StopReason::ContentFilter,
        "stop_sequence" => StopReason::StopSequence,
        "model_context_window_exceeded" => StopReason::Window,
        "error"
        | "network_error"
        | "insufficient_system_resource"
        | "abort"
        | "MALFORMED_FUNCTION_CALL"
        | "MALFORMED_RESPONSE" => return Err(()),
        _ => StopReason::Other,
    };
    Ok(Stop::new(reason, word))
}

/// What an answer that ended with `word` failed for.
pub(super) fn failure(word: &str) -> Failure {
    if word.starts_with("MALFORMED_") { fault::unusable(word) } else { fault::broke(word) }
}

/// The finish reason for `stop`, of an answer of this dialect's `own`.
pub(super) fn reason_name(stop: &Stop, own: bool) -> &str {
    own_word(stop, own).unwrap_or(match stop.reason {
        StopReason::ToolUse => "tool_calls",
        StopReason::MaxTokens | StopReason::Window => "length",
        StopReason::ContentFilter => "content_filter",
        _ => "stop",
    })
}

/// `usage` as it is on the wire.
#[derive(Deserialize, Default)]
#[serde(default)]
struct Wire {
    prompt_tokens: Option<u64>,
    completion_tokens: Option<u64>,
    prompt_tokens_details: Option<Read>,
    completion_tokens_details: Option<Written>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Read {
    cached_tokens: Option<u64>,
    /// OpenRouter's.
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
    let read = wire.prompt_tokens_details.unwrap_or_default();
    let mut usage = Usage::default();
    usage.input = wire.prompt_tokens;
    usage.output = wire.completion_tokens;
    usage.cache_read = read.cached_tokens;
    usage.cache_write = read.cache_write_tokens;
    usage.thinking = wire.completion_tokens_details.unwrap_or_default().reasoning_tokens;
    Some(usage)
}

/// Writes usage.
pub(super) fn put_usage(object: &mut Object<'_>, usage: &Usage) {
    let (input, output) = (usage.input.unwrap_or(0), usage.output.unwrap_or(0));
    let mut wire = object.object("usage");
    wire.put("prompt_tokens", &input)
        .put("completion_tokens", &output)
        .put("total_tokens", &input.saturating_add(output));
    if usage.cache_read.is_some() || usage.cache_write.is_some() {
        wire.object("prompt_tokens_details")
            .put("cached_tokens", &usage.cache_read.unwrap_or(0))
            .put_some("cache_write_tokens", usage.cache_write.filter(|written| *written > 0));
    }
    if let Some(thinking) = usage.thinking {
        wire.object("completion_tokens_details").put("reasoning_tokens", &thinking);
    }
}
