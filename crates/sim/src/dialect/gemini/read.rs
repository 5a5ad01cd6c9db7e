//! Reads a Gemini request that passed the rules.

use serde_json::Value;

use super::field;
use crate::request::SimRequest;

pub(crate) fn read(request: &mut SimRequest) {
    let body = &request.body;
    let contents = body["contents"].as_array().map(Vec::as_slice).unwrap_or_default();
    let last_user = contents
        .iter()
        .rev()
        .filter(|content| content["role"] != "model")
        .map(text_of)
        .find(|text| !text.is_empty())
        .unwrap_or_default();
    let after_tool_results = contents.last().is_some_and(|content| {
        parts(content).any(|part| !field(part, "functionResponse", "function_response").is_null())
    });
    let model = |content: &Value| content["role"] == "model";
    let turn = contents.iter().rposition(model).filter(|_| !after_tool_results).map(|end| {
        let from = contents[..=end].iter().rposition(|content| !model(content));
        (from.map_or(0, |at| at + 1), end)
    });
    let partial: String = turn
        .into_iter()
        .flat_map(|(from, end)| &contents[from..=end])
        .flat_map(parts)
        .filter(|part| part["thought"] != true)
        .filter_map(|part| part["text"].as_str())
        .collect();
    let prefill = if contents.last().is_some_and(model) { partial.clone() } else { String::new() };
    let tools = declarations(body)
        .filter_map(|(_, declaration)| {
            let schema = match &declaration["parametersJsonSchema"] {
                Value::Null => &declaration["parameters"],
                schema => schema,
            };
            Some((declaration["name"].as_str()?.to_owned(), schema.clone()))
        })
        .collect();
    let config = field(body, "generationConfig", "generation_config");
    let max_output = field(config, "maxOutputTokens", "max_output_tokens").as_u64();
    let thinking = field(config, "thinkingConfig", "thinking_config");
    let thinking = field(thinking, "includeThoughts", "include_thoughts") == &Value::Bool(true);
    request.last_user = last_user;
    request.after_tool_results = after_tool_results;
    request.prefill = prefill;
    request.partial_answer = partial;
    request.tools = tools;
    request.max_output = max_output;
    request.thinking = thinking;
    request.include_usage = true;
}

pub(crate) fn parts(content: &Value) -> impl Iterator<Item = &Value> {
    content["parts"].as_array().into_iter().flatten()
}

/// All function declarations, each with its path.
pub(crate) fn declarations(body: &Value) -> impl Iterator<Item = (String, &Value)> {
    body["tools"].as_array().into_iter().flatten().enumerate().flat_map(|(t, tool)| {
        field(tool, "functionDeclarations", "function_declarations")
            .as_array()
            .into_iter()
            .flatten()
            .enumerate()
            .map(move |(d, declaration)| {
                (format!("tools[{t}].function_declarations[{d}]"), declaration)
            })
    })
}

fn text_of(content: &Value) -> String {
    parts(content)
        .filter(|part| part["thought"] != true)
        .filter_map(|part| part["text"].as_str())
        .collect::<Vec<_>>()
        .join("\n")
}
