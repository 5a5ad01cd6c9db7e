//! Reads an Anthropic request that passed the rules.

use serde_json::Value;

use super::turns::{Turn, turns};
use crate::{dialect::items, request::SimRequest};

pub(crate) fn read(request: &mut SimRequest) {
    let body = &request.body;
    let messages = items(&body["messages"]);
    let turns = turns(messages);
    let text_of = |turn: &Turn<'_>| {
        turn.blocks.iter().filter_map(|(_, b)| b.text()).collect::<Vec<_>>().join("\n")
    };
    request.last_user = turns
        .iter()
        .rev()
        .filter(|turn| turn.user)
        .map(text_of)
        .find(|text| !text.is_empty())
        .unwrap_or_default();
    request.after_tool_results = turns.last().is_some_and(|t| t.user && t.has("tool_result"));
    request.prefill = turns.last().filter(|t| !t.user).map(text_of).unwrap_or_default();
    request.partial_answer = match turns.iter().rposition(|turn| !turn.user) {
        Some(at) if at + 2 >= turns.len() && !request.after_tool_results => {
            turns[at].blocks.iter().filter_map(|(_, b)| b.text()).collect()
        }
        _ => String::new(),
    };
    request.tools = items(&body["tools"])
        .iter()
        .filter_map(|tool| Some((tool["name"].as_str()?.to_owned(), tool["input_schema"].clone())))
        .collect();
    request.max_output = body["max_tokens"].as_u64();
    request.thinking = enabled(body);
    request.include_usage = true;
}

/// The schema of the JSON that it wants; the second is its name in the beta.
pub(crate) fn schema(body: &Value) -> Option<&Value> {
    body["output_config"]["format"].get("schema").or_else(|| body["output_format"].get("schema"))
}

/// How many results of tools there are.
pub(crate) fn tool_results(body: &Value) -> usize {
    items(&body["messages"])
        .iter()
        .flat_map(|message| items(&message["content"]))
        .filter(|block| block["type"] == "tool_result")
        .count()
}

/// Whether the request turns thinking on.
pub(crate) fn enabled(body: &Value) -> bool {
    matches!(body["thinking"]["type"].as_str(), Some("enabled" | "adaptive"))
}
