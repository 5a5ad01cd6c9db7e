//! A parsed request: what answers are made from.

use serde_json::Value;

use crate::Dialect;

/// A request that passed the provider's rules, in one form for all dialects.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct SimRequest {
    /// The dialect it came in.
    pub dialect: Dialect,
    /// Its number among the provider's generations, from 1.
    pub number: u64,
    /// The model.
    pub model: String,
    /// Whether it asks for a stream.
    pub stream: bool,
    /// Its body.
    pub body: Value,
    /// The last text a user wrote; empty if there is none.
    pub last_user: String,
    /// Whether the conversation ends with tool results.
    pub after_tool_results: bool,
    /// How many results of tools the conversation has.
    pub tool_results: usize,
    /// Whether it asks for a compaction of the conversation (OpenAI responses).
    pub asks_for_compaction: bool,
    /// The texts of earlier compactions that it has, opened; empty if there are none.
    pub compacted: String,
    /// The beginning of the answer that it prescribes (prefill); empty if none.
    pub prefill: String,
    /// The text of an answer that it may ask to continue: its prefill, or the model's turn right
    /// before the user's last message. Empty if none. The texts of one turn are concatenated
    /// without a separator.
    pub partial_answer: String,
    /// Names and schemas of the tools it declares.
    pub tools: Vec<(String, Value)>,
    /// The output limit it sets.
    pub max_output: Option<u64>,
    /// Whether it asks for thinking.
    pub thinking: bool,
    /// Its input tokens by [`count_tokens`](crate::count_tokens).
    pub input_tokens: u64,
    /// Whether a stream ends with usage (OpenAI).
    pub include_usage: bool,
    /// Whether a stream is sent as server-sent events (always, except Gemini without `alt=sse`).
    pub sse: bool,
}

/// Whether the system prompt or a message of `body` contains `text`, in any dialect.
pub(crate) fn has_text(body: &Value, text: &str) -> bool {
    any_text(body, &mut |found| found.contains(text))
}

/// Whether `is` holds for a text in the system prompt or a message of `body`, in any dialect.
pub(crate) fn any_text(body: &Value, is: &mut dyn FnMut(&str) -> bool) -> bool {
    fn any_in(value: &Value, is: &mut dyn FnMut(&str) -> bool) -> bool {
        match value {
            Value::String(found) => is(found),
            Value::Array(list) => list.iter().any(|value| any_in(value, is)),
            Value::Object(fields) => fields.values().any(|value| any_in(value, is)),
            _ => false,
        }
    }
    [
        "messages",
        "contents",
        "input",
        "requests",
        "system",
        "systemInstruction",
        "system_instruction",
        "instructions",
    ]
    .iter()
    .filter_map(|key| body.get(key))
    .any(|part| any_in(part, is))
}
