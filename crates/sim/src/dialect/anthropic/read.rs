//! Reads an Anthropic request that passed the rules.

use serde_json::Value;

use super::turns::{Turn, turns};
use crate::request::SimRequest;

pub(crate) fn read(request: &mut SimRequest) {
    let body = &request.body;
    let messages = body["messages"].as_array().map(Vec::as_slice).unwrap_or_default();
    let turns = turns(messages);
    let text_of = |turn: &Turn<'_>| {
        turn.blocks.iter().filter_map(|(_, b)| b.text()).collect::<Vec<_>>().join("\n")
    };
    let last_user = turns
        .iter()
        .rev()
        .filter(|turn| turn.user)
        .map(text_of)
        .find(|text| !text.is_empty())
        .unwrap_or_default();
    let after_tool_results = turns.last().is_some_and(|t| t.user && t.has("tool_result"));
    let prefill = turns.last().filter(|t| !t.user).map(text_of).unwrap_or_default();
    let partial = match turns.iter().rposition(|turn| !turn.user) {
        Some(at) if at + 2 >= turns.len() && !after_tool_results => {
            turns[at].blocks.iter().filter_map(|(_, b)| b.text()).collect()
        }
        _ => String::new(),
    };
    let tools = body["tools"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|tool| Some((tool["name"].as_str()?.to_owned(), tool["input_schema"].clone())))
        .collect();
    let max_output = body["max_tokens"].as_u64();
    let thinking = enabled(body);
    request.last_user = last_user;
    request.after_tool_results = after_tool_results;
    request.prefill = prefill;
    request.partial_answer = partial;
    request.tools = tools;
    request.max_output = max_output;
    request.thinking = thinking;
    request.include_usage = true;
}

/// Whether the request turns thinking on.
pub(crate) fn enabled(body: &Value) -> bool {
    matches!(body["thinking"]["type"].as_str(), Some("enabled" | "adaptive"))
}
