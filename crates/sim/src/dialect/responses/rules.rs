//! What the responses endpoint refuses, with its error messages.

use serde_json::Value;

use super::{errors::invalid, items, read::kind};
use crate::dialect::{
    Check, Dialect, Refusal,
    openai::shape::{empty_array, function_name, present, string, wrong_type},
    overflow,
};

const KNOWN: &[&str] = &[
    "background",
    "client_metadata",
    "context_management",
    "conversation",
    "include",
    "input",
    "instructions",
    "max_output_tokens",
    "max_tool_calls",
    "metadata",
    "model",
    "moderation",
    "parallel_tool_calls",
    "previous_response_id",
    "prompt",
    "prompt_cache_key",
    "prompt_cache_options",
    "prompt_cache_retention",
    "reasoning",
    "safety_identifier",
    "service_tier",
    "store",
    "stream",
    "stream_options",
    "temperature",
    "text",
    "tool_choice",
    "tools",
    "top_logprobs",
    "top_p",
    "truncation",
    "user",
];

/// The least output that can be asked for, in tokens.
const OUTPUT_MIN: u64 = 16;

pub(crate) fn check(check: &Check<'_>) -> Result<(), Refusal> {
    let body = check.body;
    // Here unknown ones are refused in any case, but for those that a later version might have.
    let is_unknown = |key: &&String| !KNOWN.contains(&key.as_str()) && !key.starts_with("x_");
    if let Some(key) = body.as_object().and_then(|fields| fields.keys().find(is_unknown)) {
        return Err(invalid(format!("Unknown parameter: '{key}'."))
            .param(key.as_str())
            .code("unknown_parameter"));
    }
    if let Some(key) = check.model.refused(body) {
        let message = format!("Unsupported parameter: '{key}' is not supported with this model.");
        return Err(invalid(message).param(key).code("unsupported_parameter"));
    }
    parameters(check)?;
    let list = match &body["input"] {
        Value::String(_) => &[],
        Value::Null => {
            return Err(invalid(
                "One of \"input\" or \"previous_response_id\" or 'prompt' or 'conversation_id' \
                 must be provided.",
            )
            .code("missing_required_parameter"));
        }
        Value::Array(list) if list.is_empty() => return Err(empty_array("input")),
        Value::Array(list) => list.as_slice(),
        other => {
            return Err(wrong_type("input", "one of a string or array of input items", other));
        }
    };
    for (at, item) in list.iter().enumerate() {
        items::check(at, item, check)?;
    }
    let trigger = list.iter().position(|item| kind(item) == "compaction_trigger");
    if let Some(at) = trigger.filter(|at| at + 1 < list.len()) {
        return Err(invalid("A compaction trigger must be the last input item.")
            .param(format!("input[{at}]"))
            .code("invalid_value"));
    }
    pairing(list)?;
    followed(list)?;
    tools(body)?;
    size(check)
}

fn parameters(check: &Check<'_>) -> Result<(), Refusal> {
    let (body, model) = (check.body, check.model);
    if let Some(id) = present(&body["previous_response_id"]) {
        let id = id.as_str().unwrap_or_default();
        return Err(invalid(format!("Previous response with id '{id}' not found."))
            .param("previous_response_id")
            .code("previous_response_not_found"));
    }
    if let Some(stream) = present(&body["stream"])
        && !stream.is_boolean()
    {
        return Err(wrong_type("stream", "a boolean", stream));
    }
    match present(&body["max_output_tokens"]) {
        None => {}
        Some(Value::Number(n)) if n.as_u64().is_some_and(|n| n >= OUTPUT_MIN) => {}
        Some(Value::Number(n)) => {
            return Err(invalid(format!(
                "Invalid 'max_output_tokens': integer below minimum value. Expected a value >= \
                 {OUTPUT_MIN}, but got {n} instead."
            ))
            .param("max_output_tokens")
            .code("integer_below_min_value"));
        }
        Some(other) => return Err(wrong_type("max_output_tokens", "an integer", other)),
    }
    if let Some(temperature) = present(&body["temperature"]) {
        let Some(value) = temperature.as_f64() else {
            return Err(wrong_type("temperature", "a decimal", temperature));
        };
        if model.thinking {
            return Err(invalid(
                "Unsupported parameter: 'temperature' is not supported with this model.",
            )
            .param("temperature"));
        }
        if !(0.0..=2.0).contains(&value) {
            return Err(invalid(format!(
                "Invalid 'temperature': decimal above maximum value. Expected a value <= 2, but got \
                 {temperature} instead."
            ))
            .param("temperature")
            .code("decimal_above_max_value"));
        }
    }
    effort(check)?;
    if present(&body["stream_options"]).is_some() && body["stream"] != true {
        return Err(invalid(
            "The 'stream_options' parameter is only allowed when 'stream' is enabled.",
        )
        .param("stream_options"));
    }
    Ok(())
}

/// The effort is one that the model knows.
fn effort(check: &Check<'_>) -> Result<(), Refusal> {
    let (body, model) = (check.body, check.model);
    let Some(word) = present(&body["reasoning"]["effort"]) else { return Ok(()) };
    let Some(word) = word.as_str() else {
        return Err(wrong_type("reasoning.effort", "a string", word));
    };
    if !model.thinking {
        return Err(invalid(
            "Unsupported parameter: 'reasoning.effort' is not supported with this model.",
        )
        .param("reasoning.effort")
        .code("unsupported_parameter"));
    }
    if !model.efforts.is_empty() && !model.efforts.contains(&word) {
        let known: Vec<String> = model.efforts.iter().map(|known| format!("'{known}'")).collect();
        return Err(invalid(format!(
            "Unsupported value: '{word}' is not supported with the '{}' model. Supported values \
             are: {}.",
            model.name,
            known.join(", ")
        ))
        .param("reasoning.effort")
        .code("unsupported_value"));
    }
    Ok(())
}

/// Every call has one output, and every output its call, wherever they stand.
fn pairing(list: &[Value]) -> Result<(), Refusal> {
    let ids = |wanted: &'static [&'static str]| {
        list.iter()
            .filter(move |item| wanted.contains(&kind(item)))
            .map(|item| item["call_id"].as_str().unwrap_or_default())
    };
    const CALLS: &[&str] = &["function_call", "custom_tool_call"];
    const OUTPUTS: &[&str] = &["function_call_output", "custom_tool_call_output"];
    for id in ids(CALLS) {
        if !ids(OUTPUTS).any(|output| output == id) {
            return Err(
                invalid(format!("No tool output found for function call {id}.")).param("input")
            );
        }
    }
    let mut open: Vec<&str> = ids(CALLS).collect();
    for id in ids(OUTPUTS) {
        match open.iter().position(|call| *call == id) {
            Some(at) => drop(open.remove(at)),
            None => {
                return Err(invalid(format!(
                    "No tool call found for function call output with call_id {id}."
                ))
                .param("input"));
            }
        }
    }
    Ok(())
}

/// Reasoning is followed by what it led to.
fn followed(list: &[Value]) -> Result<(), Refusal> {
    for (at, item) in list.iter().enumerate().filter(|(_, item)| kind(item) == "reasoning") {
        let next = list[at + 1..].iter().find(|item| kind(item) != "reasoning");
        let is_models = next.is_some_and(|item| match kind(item) {
            "message" => item["role"] == "assistant",
            kind => matches!(kind, "function_call" | "custom_tool_call"),
        });
        if !is_models {
            return Err(invalid(format!(
                "Item '{}' of type 'reasoning' was provided without its required following item.",
                item["id"].as_str().unwrap_or_default()
            ))
            .param("input"));
        }
    }
    Ok(())
}

fn tools(body: &Value) -> Result<(), Refusal> {
    let tools = match present(&body["tools"]) {
        None => &[],
        Some(Value::Array(tools)) => tools.as_slice(),
        Some(other) => return Err(wrong_type("tools", "an array of objects", other)),
    };
    let mut names = Vec::new();
    for (at, tool) in tools.iter().enumerate() {
        let path = format!("tools[{at}]");
        let what = string(tool, "type", &path)?;
        if !matches!(what, "function" | "custom") {
            continue;
        }
        let name = string(tool, "name", &path)?;
        function_name(name, &format!("{path}.name"))?;
        names.push(name);
        let schema = &tool["parameters"];
        if what == "function" && present(schema).is_some() && schema["type"] != "object" {
            return Err(invalid(format!(
                "Invalid schema for function '{name}': schema must be a JSON Schema of 'type: \
                 \"object\"', got 'type: \"{}\"'.",
                schema["type"].as_str().unwrap_or("None")
            ))
            .param(format!("{path}.parameters"))
            .code("invalid_function_parameters"));
        }
        // Where nothing is written, it is held to its schema.
        if what == "function" && tool["strict"] != false && present(schema).is_some() {
            strict(schema, name, &path)?;
        }
    }
    if let Some(name) = body["tool_choice"]["name"].as_str()
        && !names.contains(&name)
    {
        return Err(invalid(format!("Tool choice '{name}' not found in 'tools' parameter."))
            .param("tool_choice"));
    }
    Ok(())
}

/// What a model can be held to: each object is closed and has all of its properties.
fn strict(schema: &Value, name: &str, path: &str) -> Result<(), Refusal> {
    let refuse = |why: String| {
        Err(invalid(format!("Invalid schema for function '{name}': In context=(), {why}"))
            .param(format!("{path}.parameters"))
            .code("invalid_function_parameters"))
    };
    if schema["type"] == "object" {
        if schema["additionalProperties"] != false {
            return refuse(
                "'additionalProperties' is required to be supplied and to be false.".to_owned(),
            );
        }
        let required = crate::dialect::items(&schema["required"]);
        for (property, inner) in schema["properties"].as_object().into_iter().flatten() {
            if !required.iter().any(|known| known == property) {
                return refuse(format!(
                    "'required' is required to be supplied and to be an array including every key \
                     in properties. Missing '{property}'."
                ));
            }
            strict(inner, name, path)?;
        }
    }
    match &schema["items"] {
        Value::Object(_) => strict(&schema["items"], name, path),
        _ => Ok(()),
    }
}

fn size(check: &Check<'_>) -> Result<(), Refusal> {
    let (body, model) = (check.body, check.model);
    let output = body["max_output_tokens"].as_u64();
    if let Some(output) = output
        && output > model.output
    {
        return Err(invalid(format!(
            "max_output_tokens is too large: {output}. This model supports at most {} completion \
             tokens, whereas you provided {output}.",
            model.output
        ))
        .param("max_output_tokens")
        .code("invalid_value"));
    }
    let input = crate::tokens::count_tokens(body) as u64;
    if body["truncation"] == "auto" && input <= model.context * 2 {
        return Ok(());
    }
    overflow::check(Dialect::Responses, model, input, output.unwrap_or(0))
}
