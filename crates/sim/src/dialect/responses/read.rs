//! Reads a responses request that passed the rules.

use serde_json::Value;

use crate::{dialect::items, hash::Signer, request::SimRequest};

pub(crate) fn read(request: &mut SimRequest) {
    let body = &request.body;
    if let Value::String(text) = &body["input"] {
        request.last_user = text.clone();
    }
    let input = items(&body["input"]);
    let spoken = |item: &Value, role: &str| kind(item) == "message" && item["role"] == *role;
    if let Some(last) = input.iter().rev().find(|item| spoken(item, "user")) {
        request.last_user = text_of(&last["content"]);
    }
    request.asks_for_compaction =
        input.last().is_some_and(|item| kind(item) == "compaction_trigger");
    request.after_tool_results = input.last().is_some_and(is_result);
    if let Some(last) = input.last().filter(|item| spoken(item, "assistant")) {
        request.prefill = text_of(&last["content"]);
    }
    // What the model wrote last, and what comes behind it.
    if let Some(end) = input.iter().rposition(|item| is_models(item) || is_result(item)) {
        let from = input[..=end].iter().rposition(|item| !is_models(item));
        let texts = input[from.map_or(0, |at| at + 1)..=end].iter();
        request.partial_answer = texts
            .filter(|item| kind(item) == "message")
            .map(|item| joined(&item["content"]))
            .collect();
    }
    request.tools = items(&body["tools"])
        .iter()
        .filter_map(|tool| Some((tool["name"].as_str()?.to_owned(), tool["parameters"].clone())))
        .collect();
    request.max_output = body["max_output_tokens"].as_u64();
    request.include_usage = true;
    // Shown as a summary, to who asks for one.
    request.thinking = body["reasoning"]["summary"].is_string()
        || items(&body["include"]).iter().any(|what| what == "reasoning.encrypted_content");
}

/// The texts of the conversations that were compacted into items of `body`.
pub(crate) fn compacted(body: &Value, signer: &Signer) -> String {
    let sealed = items(&body["input"]).iter().filter(|item| kind(item) == "compaction");
    let texts = sealed.filter_map(|item| signer.opened(item["encrypted_content"].as_str()?));
    texts.collect::<Vec<_>>().join("\n")
}

/// The kind of an item.
pub(crate) fn kind(item: &Value) -> &str {
    item["type"].as_str().unwrap_or("message")
}

fn is_result(item: &Value) -> bool {
    matches!(kind(item), "function_call_output" | "custom_tool_call_output")
}

fn is_models(item: &Value) -> bool {
    match kind(item) {
        "message" => item["role"] == "assistant",
        kind => matches!(kind, "reasoning" | "function_call" | "custom_tool_call"),
    }
}

/// Whether the tool `name` takes free text.
pub(crate) fn is_custom(body: &Value, name: &str) -> bool {
    items(&body["tools"]).iter().any(|tool| tool["type"] == "custom" && tool["name"] == name)
}

/// The schema of the JSON that it wants.
pub(crate) fn schema(body: &Value) -> Option<&Value> {
    body["text"]["format"].get("schema")
}

/// How many results of tools there are.
pub(crate) fn tool_results(body: &Value) -> usize {
    items(&body["input"]).iter().filter(|item| is_result(item)).count()
}

fn text_of(content: &Value) -> String {
    pieces_of(content).join("\n")
}

fn joined(content: &Value) -> String {
    pieces_of(content).concat()
}

fn pieces_of(content: &Value) -> Vec<&str> {
    match content {
        Value::String(text) => vec![text],
        Value::Array(parts) => parts.iter().filter_map(|part| part["text"].as_str()).collect(),
        _ => Vec::new(),
    }
}
