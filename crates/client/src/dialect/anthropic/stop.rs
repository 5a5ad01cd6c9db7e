//! Why an answer stopped, and what it used, as this dialect writes it.

use serde::Deserialize;
use steadfast_chat::{Stop, StopReason};
use steadfast_core::Usage;

use crate::{dialect::own_word, json::Object};

/// The stop of a stop reason. An answer that `called` a tool and ended for a reason nobody knows waits
/// for the tool.
pub(super) fn read(word: &str, sequence: Option<String>, called: bool) -> Stop {
    let reason = match word {
        "end_turn" => StopReason::EndTurn,
        "max_tokens" => StopReason::MaxTokens,
        "stop_sequence" => StopReason::StopSequence,
        "tool_use" => StopReason::ToolUse,
        "pause_turn" => StopReason::Pause,
        "refusal" => StopReason::ContentFilter,
        "model_context_window_exceeded" => StopReason::Window,
        _ if called => StopReason::ToolUse,
        _ => StopReason::Other,
    };
    let mut stop = Stop::new(reason, word);
    stop.sequence = sequence;
    stop
}

/// The stop reason for `stop`, of an answer of this dialect's `own`.
pub(super) fn reason_name(stop: &Stop, own: bool) -> &str {
    own_word(stop, own).unwrap_or(match stop.reason {
        StopReason::MaxTokens => "max_tokens",
        StopReason::StopSequence => "stop_sequence",
        StopReason::ToolUse => "tool_use",
        StopReason::ContentFilter => "refusal",
        StopReason::Pause => "pause_turn",
        StopReason::Window => "model_context_window_exceeded",
        _ => "end_turn",
    })
}

/// `usage` as it is on the wire: here the input leaves out what the cache read and wrote. A newer
/// report may have less than an earlier one; what it leaves out still holds.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Wire {
    input_tokens: Option<u64>,
    output_tokens: Option<u64>,
    cache_creation_input_tokens: Option<u64>,
    cache_read_input_tokens: Option<u64>,
}

impl Wire {
    /// Takes over what a newer report has; the sum of all reports. `None` when it can not be read.
    pub(super) fn update(&mut self, json: &str) -> Option<Usage> {
        let new: Self = serde_json::from_str(json).ok()?;
        self.input_tokens = new.input_tokens.or(self.input_tokens);
        self.output_tokens = new.output_tokens.or(self.output_tokens);
        self.cache_creation_input_tokens =
            new.cache_creation_input_tokens.or(self.cache_creation_input_tokens);
        self.cache_read_input_tokens = new.cache_read_input_tokens.or(self.cache_read_input_tokens);
        let mut usage = Usage::default();
        usage.input = self.input_tokens.map(|input| {
            input
                .saturating_add(self.cache_creation_input_tokens.unwrap_or(0))
                .saturating_add(self.cache_read_input_tokens.unwrap_or(0))
        });
        usage.output = self.output_tokens;
        usage.cache_read = self.cache_read_input_tokens;
        usage.cache_write = self.cache_creation_input_tokens;
        Some(usage)
    }
}

/// Writes usage.
pub(super) fn put_usage(object: &mut Object<'_>, usage: &Usage) {
    let (read, written) = (usage.cache_read.unwrap_or(0), usage.cache_write.unwrap_or(0));
    let fresh = usage.input.unwrap_or(0).saturating_sub(read).saturating_sub(written);
    object
        .object("usage")
        .put("input_tokens", &fresh)
        .put("cache_creation_input_tokens", &written)
        .put("cache_read_input_tokens", &read)
        .put("output_tokens", &usage.output.unwrap_or(0));
}
