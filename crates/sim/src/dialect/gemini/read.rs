//! Reads a Gemini request that passed the rules.

use serde_json::Value;

use super::field;
use crate::{dialect::items, request::SimRequest};

pub(crate) fn read(request: &mut SimRequest) {
    let body = &request.body;
    let contents = items(&body["contents"]);
    request.last_user = contents
        .iter()
        .rev()
        .filter(|content| content["role"] != "model")
        .map(text_of)
        .find(|text| !text.is_empty())
        .unwrap_or_default();
    request.after_tool_results = contents.last().is_some_and(|content| {
        parts(content).any(|part| !field(part, "functionResponse", "function_response").is_null())
    });
    let model = |content: &Value| content["role"] == "model";
    let turn =
        contents.iter().rposition(model).filter(|_| !request.after_tool_results).map(|end| {
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
    if contents.last().is_some_and(model) {
        request.prefill.clone_from(&partial);
    }
    request.tools = declarations(body)
        .filter_map(|(_, declaration)| {
            let schema = match &declaration["parametersJsonSchema"] {
                Value::Null => &declaration["parameters"],
                schema => schema,
            };
            Some((declaration["name"].as_str()?.to_owned(), schema.clone()))
        })
        .collect();
    let config = field(body, "generationConfig", "generation_config");
    request.max_output = field(config, "maxOutputTokens", "max_output_tokens").as_u64();
    let thinking = field(config, "thinkingConfig", "thinking_config");
    request.thinking = field(thinking, "includeThoughts", "include_thoughts") == &Value::Bool(true);
    request.partial_answer = partial;
    request.include_usage = true;
}

pub(crate) fn parts(content: &Value) -> impl Iterator<Item = &Value> {
    items(&content["parts"]).iter()
}

/// All function declarations, each with its path.
pub(crate) fn declarations(body: &Value) -> impl Iterator<Item = (String, &Value)> {
    items(&body["tools"]).iter().enumerate().flat_map(|(t, tool)| {
        let declarations = field(tool, "functionDeclarations", "function_declarations");
        items(declarations).iter().enumerate().map(move |(d, declaration)| {
            (format!("tools[{t}].function_declarations[{d}]"), declaration)
        })
    })
}

/// The schema of the JSON that it wants.
pub(crate) fn schema(body: &Value) -> Option<&Value> {
    let config = field(body, "generationConfig", "generation_config");
    ["responseJsonSchema", "responseSchema", "response_json_schema", "response_schema"]
        .into_iter()
        .find_map(|key| config.get(key))
}

/// How many results of tools there are.
pub(crate) fn tool_results(body: &Value) -> usize {
    items(&body["contents"])
        .iter()
        .flat_map(parts)
        .filter(|part| !field(part, "functionResponse", "function_response").is_null())
        .count()
}

fn text_of(content: &Value) -> String {
    parts(content)
        .filter(|part| part["thought"] != true)
        .filter_map(|part| part["text"].as_str())
        .collect::<Vec<_>>()
        .join("\n")
}
