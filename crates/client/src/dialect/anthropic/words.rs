//! The dialect's words for why an answer stopped and what it used.

use serde::Deserialize;
use steadfast_chat::{Stop, StopReason};
use steadfast_core::Usage;

use crate::json::{Cursor, Object, Seen};

/// What a stop reason says.
pub(super) fn stop(word: &str, sequence: Option<String>) -> Stop {
    let mut stop = Stop::new(reason(word), word);
    stop.sequence = sequence;
    stop
}

/// The same without the word.
pub(super) fn reason(word: &str) -> StopReason {
    match word {
        "end_turn" => StopReason::EndTurn,
        "max_tokens" => StopReason::MaxTokens,
        "stop_sequence" => StopReason::StopSequence,
        "tool_use" => StopReason::ToolUse,
        "pause_turn" => StopReason::Pause,
        "refusal" => StopReason::ContentFilter,
        "model_context_window_exceeded" => StopReason::Window,
        _ => StopReason::Other,
    }
}

/// The stop reason that says `stop`.
pub(super) fn stop_reason(stop: &Stop) -> &'static str {
    match stop.reason {
        StopReason::MaxTokens => "max_tokens",
        StopReason::StopSequence => "stop_sequence",
        StopReason::ToolUse => "tool_use",
        StopReason::ContentFilter => "refusal",
        StopReason::Pause => "pause_turn",
        StopReason::Window => "model_context_window_exceeded",
        _ => "end_turn",
    }
}

/// `usage` as it is on the wire: here the input leaves out what the cache read and wrote. A later
/// report may say less than an earlier one; what it leaves out still holds.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Wire {
    input_tokens: Option<u64>,
    output_tokens: Option<u64>,
    cache_creation_input_tokens: Option<u64>,
    cache_read_input_tokens: Option<u64>,
}

impl Wire {
    /// Takes over what a later report says, and the sum of all that.
    pub(super) fn update(&mut self, json: &str) -> Option<Usage> {
        serde_json::from_str(json).ok().map(|later| self.add(later))
    }

    fn add(&mut self, later: Wire) -> Usage {
        self.input_tokens = later.input_tokens.or(self.input_tokens);
        self.output_tokens = later.output_tokens.or(self.output_tokens);
        self.cache_creation_input_tokens =
            later.cache_creation_input_tokens.or(self.cache_creation_input_tokens);
        self.cache_read_input_tokens =
            later.cache_read_input_tokens.or(self.cache_read_input_tokens);
        let mut usage = Usage::default();
        usage.input = self.input_tokens.map(|input| {
            input
                .saturating_add(self.cache_creation_input_tokens.unwrap_or(0))
                .saturating_add(self.cache_read_input_tokens.unwrap_or(0))
        });
        usage.output = self.output_tokens;
        usage.cache_read = self.cache_read_input_tokens;
        usage.cache_write = self.cache_creation_input_tokens;
        usage
    }

    /// Reads usage as it usually is; `None` for anything else.
    pub(super) fn quick(cursor: &mut Cursor<'_>) -> Option<Usage> {
        let (mut wire, mut seen) = (Wire::default(), Seen::default());
        cursor.object(|cursor, name| {
            match name {
                "input_tokens" => wire.input_tokens = seen.first(0, cursor.count())?,
                "output_tokens" => wire.output_tokens = seen.first(1, cursor.count())?,
                "cache_creation_input_tokens" => {
                    wire.cache_creation_input_tokens = seen.first(2, cursor.count())?;
                }
                "cache_read_input_tokens" => {
                    wire.cache_read_input_tokens = seen.first(3, cursor.count())?;
                }
                _ => cursor.pass()?,
            }
            Some(())
        })?;
        Some(Wire::default().add(wire))
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
