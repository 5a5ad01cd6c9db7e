//! The dialect's words for why an answer stopped and what it used.

use serde::Deserialize;
use steadfast_chat::{Stop, StopReason};
use steadfast_core::Usage;

use crate::json::{Cursor, Object, Seen};

/// What a finish reason says, or `Err` when it says that the provider broke.
///
/// Beyond OpenAI's own five: `model_length` is Mistral's, `eos` and `end_turn` come from servers
/// that pass their engine's word on, `error` is OpenRouter's, `network_error` Z.AI's,
/// `insufficient_system_resource` DeepSeek's, `abort` vLLM's.
pub(super) fn stop(word: &str) -> Result<Stop, ()> {
    reason(word).map(|reason| Stop::new(reason, word))
}

/// The same without the word.
pub(super) fn reason(word: &str) -> Result<StopReason, ()> {
    Ok(match word {
        "stop" | "eos" | "end_turn" => StopReason::EndTurn,
        "length" | "max_tokens" | "model_length" => StopReason::MaxTokens,
        "tool_calls" | "function_call" | "tool_use" => StopReason::ToolUse,
        "content_filter" => StopReason::ContentFilter,
        "stop_sequence" => StopReason::StopSequence,
        "model_context_window_exceeded" => StopReason::Window,
        "error" | "network_error" | "insufficient_system_resource" | "abort" => return Err(()),
        _ => StopReason::Other,
    })
}

/// The finish reason that says `stop`: its own word, when that is one of this dialect for the same.
pub(super) fn finish_reason(stop: &Stop) -> &str {
    let own = match stop.reason {
        StopReason::ToolUse => "tool_calls",
        StopReason::MaxTokens | StopReason::Window => "length",
        StopReason::ContentFilter => "content_filter",
        _ => "stop",
    };
    match stop.word.as_deref() {
        Some(word @ ("function_call" | "stop" | "length" | "tool_calls" | "content_filter"))
            if self::stop(word).is_ok_and(|read| read.reason == stop.reason) =>
        {
            word
        }
        _ => own,
    }
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
    serde_json::from_str(json).ok().map(told)
}

/// Reads usage as it usually is; `None` for anything else.
pub(super) fn quick_usage(cursor: &mut Cursor<'_>) -> Option<Usage> {
    let (mut wire, mut seen) = (Wire::default(), Seen::default());
    cursor.object(|cursor, name| {
        match name {
            "prompt_tokens" => wire.prompt_tokens = seen.first(0, cursor.count())?,
            "completion_tokens" => wire.completion_tokens = seen.first(1, cursor.count())?,
            "prompt_tokens_details" => {
                wire.prompt_tokens_details = seen.first(2, quick_read(cursor))?;
            }
            "completion_tokens_details" => {
                wire.completion_tokens_details = seen.first(3, quick_written(cursor))?;
            }
            _ => cursor.pass()?,
        }
        Some(())
    })?;
    Some(told(wire))
}

fn quick_read(cursor: &mut Cursor<'_>) -> Option<Option<Read>> {
    if cursor.null() {
        return Some(None);
    }
    let (mut read, mut seen) = (Read::default(), Seen::default());
    cursor.object(|cursor, name| {
        match name {
            "cached_tokens" => read.cached_tokens = seen.first(0, cursor.count())?,
            "cache_write_tokens" => read.cache_write_tokens = seen.first(1, cursor.count())?,
            _ => cursor.pass()?,
        }
        Some(())
    })?;
    Some(Some(read))
}

fn quick_written(cursor: &mut Cursor<'_>) -> Option<Option<Written>> {
    if cursor.null() {
        return Some(None);
    }
    let (mut written, mut seen) = (Written::default(), Seen::default());
    cursor.object(|cursor, name| {
        match name {
            "reasoning_tokens" => written.reasoning_tokens = seen.first(0, cursor.count())?,
            _ => cursor.pass()?,
        }
        Some(())
    })?;
    Some(Some(written))
}

fn told(wire: Wire) -> Usage {
    let read = wire.prompt_tokens_details.unwrap_or_default();
    let mut usage = Usage::default();
    usage.input = wire.prompt_tokens;
    usage.output = wire.completion_tokens;
    usage.cache_read = read.cached_tokens;
    usage.cache_write = read.cache_write_tokens;
    usage.thinking = wire.completion_tokens_details.unwrap_or_default().reasoning_tokens;
    usage
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
