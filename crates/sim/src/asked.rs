//! A request, read: what answers are made from.

use serde_json::Value;

use crate::Dialect;

/// What a request asks for, the same for all three dialects.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Asked {
    /// The dialect it came in.
    pub dialect: Dialect,
    /// Its number among the provider's generations, from 1.
    pub number: u64,
    /// The model.
    pub model: String,
    /// Whether it wants a stream.
    pub stream: bool,
    /// Its body.
    pub body: Value,
    /// The last text a user wrote; empty if there is none.
    pub last_user: String,
    /// Whether the conversation ends with tool results.
    pub after_tool_results: bool,
    /// The beginning of the answer it gives (prefill); empty if none.
    pub prefill: String,
    /// The text of the answer it gives of which it may want the rest: its prefill, or what the
    /// model said right before the last message of the user's. Empty if none. The texts of one
    /// turn follow each other without anything between.
    pub said: String,
    /// Names and schemas of the tools it declares.
    pub tools: Vec<(String, Value)>,
    /// The output limit it sets.
    pub max_output: Option<u64>,
    /// Whether it wants to see thinking.
    pub thinking: bool,
    /// Its input tokens by [`count_tokens`](crate::count_tokens).
    pub input_tokens: u64,
    /// Whether a stream shall end with usage (OpenAI).
    pub include_usage: bool,
    /// Whether a stream comes as server-sent events (always, but for Gemini without `alt=sse`).
    pub sse: bool,
}

/// Whether `text` stands in the system prompt or in a message of `body`, of any dialect.
pub(crate) fn has_text(body: &Value, text: &str) -> bool {
    fn stands_in(value: &Value, text: &str) -> bool {
        match value {
            Value::String(found) => found.contains(text),
            Value::Array(list) => list.iter().any(|value| stands_in(value, text)),
            Value::Object(fields) => fields.values().any(|value| stands_in(value, text)),
            _ => false,
        }
    }
    ["messages", "contents", "system", "systemInstruction", "system_instruction"]
        .iter()
        .filter_map(|key| body.get(key))
        .any(|part| stands_in(part, text))
}
