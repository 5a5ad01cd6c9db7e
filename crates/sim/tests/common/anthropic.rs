//! Pieces of Anthropic requests.

use serde_json::{Value, json};
use steadfast_sim::Dialect;

use super::question;

pub const A: Dialect = Dialect::Anthropic;

pub fn with(fields: Value) -> Value {
    let mut body = question(A, "hello", false);
    for (key, value) in fields.as_object().unwrap() {
        body[key] = value.clone();
    }
    body
}

pub fn messages(messages: Value) -> Value {
    with(json!({"messages": messages, "tools": [tool()]}))
}

pub fn tool() -> Value {
    json!({"name": "read", "input_schema": {"type": "object"}})
}

pub fn u() -> Value {
    json!({"role": "user", "content": "go"})
}

pub fn calls(ids: &[&str]) -> Value {
    let calls: Vec<Value> = ids
        .iter()
        .map(|id| json!({"type": "tool_use", "id": id, "name": "read", "input": {}}))
        .collect();
    json!({"role": "assistant", "content": calls})
}

pub fn result(id: &str) -> Value {
    json!({"type": "tool_result", "tool_use_id": id, "content": "ok"})
}

pub fn user(blocks: Value) -> Value {
    json!({"role": "user", "content": blocks})
}

pub fn text(text: &str) -> Value {
    json!({"type": "text", "text": text})
}

pub fn image(media_type: &str, data: &str) -> Value {
    json!({"type": "image", "source": {"type": "base64", "media_type": media_type, "data": data}})
}
