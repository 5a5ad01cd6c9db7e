//! Reads an OpenAI request that passed the rules.

use serde_json::Value;

use crate::{dialect::items, request::SimRequest};

pub(crate) fn read(request: &mut SimRequest) {
    let body = &request.body;
    let messages = items(&body["messages"]);
    request.last_user = messages
        .iter()
        .rev()
        .find(|m| m["role"] == "user")
        .map(|m| text_of(&m["content"]))
        .unwrap_or_default();
    request.after_tool_results = messages.last().is_some_and(|m| m["role"] == "tool");
    if let Some(last) = messages.last().filter(|m| m["role"] == "assistant") {
        request.prefill = text_of(&last["content"]);
    }
    let end = messages.iter().rposition(|m| m["role"] == "assistant" || m["role"] == "tool");
    if let Some(end) = end {
        let from = messages[..=end].iter().rposition(|m| m["role"] != "assistant");
        request.partial_answer = messages[from.map_or(0, |at| at + 1)..=end]
            .iter()
            .map(|m| pieces_of(&m["content"]).concat())
            .collect();
    }
    request.tools = items(&body["tools"])
        .iter()
        .filter_map(|tool| {
            let function = &tool["function"];
            Some((function["name"].as_str()?.to_owned(), function["parameters"].clone()))
        })
        .collect();
    request.max_output =
        body["max_completion_tokens"].as_u64().or_else(|| body["max_tokens"].as_u64());
    request.include_usage = body["stream_options"]["include_usage"].as_bool().unwrap_or(false);
    request.thinking = false;
}

/// The schema of the JSON that it wants.
pub(crate) fn schema(body: &Value) -> Option<&Value> {
    body["response_format"]["json_schema"].get("schema")
}

/// How many results of tools there are.
pub(crate) fn tool_results(body: &Value) -> usize {
    items(&body["messages"]).iter().filter(|message| message["role"] == "tool").count()
}

fn text_of(content: &Value) -> String {
    pieces_of(content).join("\n")
}

fn pieces_of(content: &Value) -> Vec<&str> {
    match content {
        Value::String(text) => vec![text],
        Value::Array(parts) => parts.iter().filter_map(|p| p["text"].as_str()).collect(),
        _ => Vec::new(),
    }
}
