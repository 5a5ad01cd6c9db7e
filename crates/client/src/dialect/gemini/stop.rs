//! Why an answer stopped, and what it used, as this dialect writes it.

use serde::Deserialize;
use steadfast_chat::{Stop, StopReason};
use steadfast_core::Usage;

use crate::{dialect::own_word, json::Object};

/// The stop of a finish reason, or `Err` when that means that the model wrote what its server could not
/// use: a call that can not be parsed, an answer that can not. Asking again helps with those. An answer
/// that `called` a tool and ended for a reason nobody knows waits for the tool.
pub(super) fn read(word: &str, called: bool) -> Result<Stop, ()> {
    let reason = match word {
        "STOP" if called => StopReason::ToolUse,
        "STOP" => StopReason::EndTurn,
        "MAX_TOKENS" => StopReason::MaxTokens,
        "SAFETY"
        | "RECITATION"
        | "BLOCKLIST"
        | "PROHIBITED_CONTENT"
        | "SPII"
        | "MODEL_ARMOR"
        | "IMAGE_SAFETY"
        | "IMAGE_PROHIBITED_CONTENT"
        | "IMAGE_RECITATION"
        | "JAILBREAK" => StopReason::ContentFilter,
        "MALFORMED_FUNCTION_CALL"
        | "MALFORMED_RESPONSE"
        | "UNEXPECTED_TOOL_CALL"
        | "TOO_MANY_TOOL_CALLS"
        | "MISSING_THOUGHT_SIGNATURE" => return Err(()),
        _ if called => StopReason::ToolUse,
        _ => StopReason::Other,
    };
    Ok(Stop::new(reason, word))
}

/// The finish reason for `stop`, of an answer of this dialect's `own`.
pub(super) fn reason_name(stop: &Stop, own: bool) -> &str {
    own_word(stop, own).unwrap_or(match stop.reason {
        StopReason::MaxTokens | StopReason::Window => "MAX_TOKENS",
        StopReason::ContentFilter => "SAFETY",
        StopReason::Other => "OTHER",
        _ => "STOP",
    })
}

/// `usageMetadata` as it is on the wire: here the candidates leave out the thoughts.
#[derive(Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct Wire {
    prompt_token_count: Option<u64>,
    candidates_token_count: Option<u64>,
    thoughts_token_count: Option<u64>,
    cached_content_token_count: Option<u64>,
    tool_use_prompt_token_count: Option<u64>,
}

/// Reads usage; figures that can not be read are not known.
pub(super) fn usage(json: &str) -> Option<Usage> {
    let wire: Wire = serde_json::from_str(json).ok()?;
    let sum = |a: Option<u64>, b: Option<u64>| match (a, b) {
        (None, None) => None,
        (a, b) => Some(a.unwrap_or(0).saturating_add(b.unwrap_or(0))),
    };
    let mut usage = Usage::default();
    usage.input = sum(wire.prompt_token_count, wire.tool_use_prompt_token_count);
    usage.output = sum(wire.candidates_token_count, wire.thoughts_token_count);
    usage.cache_read = wire.cached_content_token_count;
    usage.thinking = wire.thoughts_token_count;
    Some(usage)
}

/// Writes usage.
pub(super) fn put_usage(object: &mut Object<'_>, usage: &Usage) {
    let (input, output) = (usage.input.unwrap_or(0), usage.output.unwrap_or(0));
    object
        .object("usageMetadata")
        .put("promptTokenCount", &input)
        .put("candidatesTokenCount", &output.saturating_sub(usage.thinking.unwrap_or(0)))
        .put("totalTokenCount", &input.saturating_add(output))
        .put_some("cachedContentTokenCount", usage.cache_read)
        .put_some("thoughtsTokenCount", usage.thinking);
}
