//! What OpenAI refuses, with its error messages.

use serde_json::Value;

use super::errors::{invalid, no_prefill};
use super::shape::{empty_array, missing, present, wrong_type};
use super::{messages, tools};
use crate::{
    ToolsBeside,
    dialect::{Check, Dialect, Refusal, overflow},
};

const KNOWN: &[&str] = &[
    "audio",
    "frequency_penalty",
    "function_call",
    "functions",
    "logit_bias",
    "logprobs",
    "max_completion_tokens",
    "max_tokens",
    "messages",
    "metadata",
    "modalities",
    "model",
    "n",
    "parallel_tool_calls",
    "prediction",
    "presence_penalty",
    "prompt_cache_key",
    "prompt_cache_retention",
    "reasoning_effort",
    "response_format",
    "safety_identifier",
    "seed",
    "service_tier",
    "stop",
    "store",
    "stream",
    "stream_options",
    "temperature",
    "tool_choice",
    "tools",
    "top_logprobs",
    "top_p",
    "user",
    "verbosity",
    "web_search_options",
];

pub(crate) fn model_of(body: &Value) -> Result<String, Refusal> {
    match &body["model"] {
        Value::String(name) if !name.is_empty() => Ok(name.clone()),
        Value::Null | Value::String(_) => Err(invalid("you must provide a model parameter")),
        other => Err(wrong_type("model", "a string", other)),
    }
}

pub(crate) fn check(check: &Check<'_>) -> Result<(), Refusal> {
    let body = check.body;
    if check.refuse_unknown
        && let Some(key) = body
            .as_object()
            .and_then(|fields| fields.keys().find(|key| !KNOWN.contains(&key.as_str())))
    {
        return Err(invalid(format!("Unknown parameter: '{key}'."))
            .param(key.as_str())
            .code("unknown_parameter"));
    }
    if let Some(key) = check.model.refused(body) {
        let message = format!("Unsupported parameter: '{key}' is not supported with this model.");
        return Err(invalid(message).param(key).code("unsupported_parameter"));
    }
    parameters(check)?;
    let list = list(&body["messages"])?;
    for (at, message) in list.iter().enumerate() {
        messages::check(at, message, check)?;
    }
    pairing(list)?;
    let last = list.last().is_some_and(|message| message["role"] == "assistant");
    if last && !check.model.prefill.accepted(true) {
        return Err(no_prefill());
    }
    tools::check(body)?;
    size(check)
}

fn parameters(check: &Check<'_>) -> Result<(), Refusal> {
    let body = check.body;
    if let Some(stream) = present(&body["stream"])
        && !stream.is_boolean()
    {
        return Err(wrong_type("stream", "a boolean", stream));
    }
    for key in ["max_tokens", "max_completion_tokens"] {
        match present(&body[key]) {
            None => {}
            Some(Value::Number(n)) if n.is_u64() && n.as_u64() != Some(0) => {}
            Some(Value::Number(n)) if n.is_u64() || n.is_i64() => {
                return Err(invalid(format!(
                    "Invalid '{key}': integer below minimum value. Expected a value >= 1, but \
                     got {n} instead."
                ))
                .param(key)
                .code("integer_below_min_value"));
            }
            Some(other) => return Err(wrong_type(key, "an integer", other)),
        }
    }
    if present(&body["max_tokens"]).is_some() {
        if present(&body["max_completion_tokens"]).is_some() {
            return Err(invalid(
                "Setting 'max_tokens' and 'max_completion_tokens' at the same time is not \
                 supported.",
            )
            .code("invalid_parameter_combination"));
        }
        if check.model.thinking {
            return Err(invalid(
                "Unsupported parameter: 'max_tokens' is not supported with this model. Use \
                 'max_completion_tokens' instead.",
            )
            .param("max_tokens")
            .code("unsupported_parameter"));
        }
    }
    match present(&body["temperature"]) {
        None => {}
        Some(Value::Number(n)) => {
            let value = n.as_f64().unwrap_or_default();
            let edge = if value < 0.0 {
                Some(("decimal below minimum value", ">= 0", "decimal_below_min_value"))
            } else if value > 2.0 {
                Some(("decimal above maximum value", "<= 2", "decimal_above_max_value"))
            } else {
                None
            };
            if let Some((what, bound, code)) = edge {
                return Err(invalid(format!(
                    "Invalid 'temperature': {what}. Expected a value {bound}, but got {n} instead."
                ))
                .param("temperature")
                .code(code));
            }
            if check.model.thinking && (value - 1.0).abs() > f64::EPSILON {
                return Err(invalid(format!(
                    "Unsupported value: 'temperature' does not support {n} with this model. Only \
                     the default (1) value is supported."
                ))
                .param("temperature")
                .code("unsupported_value"));
            }
        }
        Some(other) => return Err(wrong_type("temperature", "a decimal", other)),
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

/// The effort is one that the model knows, and one beside which it takes tools.
fn effort(check: &Check<'_>) -> Result<(), Refusal> {
    let (body, model) = (check.body, check.model);
    let asked = present(&body["reasoning_effort"]);
    if asked.is_some() && !model.thinking {
        return Err(invalid(
            "Unsupported parameter: 'reasoning_effort' is not supported with this model.",
        )
        .param("reasoning_effort")
        .code("unsupported_parameter"));
    }
    let asked = match asked {
        None => None,
        Some(Value::String(word)) => Some(word.as_str()),
        Some(other) => return Err(wrong_type("reasoning_effort", "a string", other)),
    };
    if let Some(word) = asked
        && !model.efforts.is_empty()
        && !model.efforts.contains(&word)
    {
        let known: Vec<String> = model.efforts.iter().map(|known| format!("'{known}'")).collect();
        return Err(invalid(format!(
            "Unsupported value: 'reasoning_effort' does not support '{word}' with this model. \
             Supported values are: {}.",
            known.join(", ")
        ))
        .param("reasoning_effort")
        .code("unsupported_value"));
    }
    let refused = match model.tools {
        ToolsBeside::AnyEffort => false,
        ToolsBeside::NoEffort => asked.is_some_and(|word| word != "none"),
        ToolsBeside::NoneAlone => asked != Some("none"),
    };
    let has_tools = body["tools"].as_array().is_some_and(|tools| !tools.is_empty());
    if refused && has_tools {
        return Err(invalid(format!(
            "Function tools with reasoning_effort are not supported for {} in \
             /v1/chat/completions. To use function tools, use /v1/responses or set \
             reasoning_effort to 'none'.",
            model.name
        ))
        .param("reasoning_effort"));
    }
    Ok(())
}

fn list(value: &Value) -> Result<&[Value], Refusal> {
    match value {
        Value::Null => Err(missing("messages")),
        Value::Array(list) if list.is_empty() => Err(empty_array("messages")),
        Value::Array(list) => Ok(list),
        other => Err(wrong_type("messages", "an array of objects", other)),
    }
}

/// Every call is answered before the next turn, no answer without its call, one answer per call.
fn pairing(messages: &[Value]) -> Result<(), Refusal> {
    let mut calls_before: Option<(usize, Vec<&str>)> = None;
    let mut open: Vec<&str> = Vec::new();
    let unanswered = |at: usize, open: &[&str]| {
        invalid(format!(
            "An assistant message with 'tool_calls' must be followed by tool messages responding \
             to each 'tool_call_id'. The following tool_call_ids did not have response messages: \
             {}",
            open.join(", ")
        ))
        .param(format!("messages.[{at}].role"))
    };
    for (at, message) in messages.iter().enumerate() {
        if message["role"] == "tool" {
            let id = message["tool_call_id"].as_str().unwrap_or_default();
            let Some((_, ids)) = &calls_before else { return Err(orphan(at)) };
            if !ids.contains(&id) {
                return Err(invalid(format!(
                    "Invalid parameter: 'tool_call_id' of '{id}' not found in 'tool_calls' of \
                     previous message."
                ))
                .param(format!("messages.[{at}].tool_call_id")));
            }
            match open.iter().position(|o| *o == id) {
                Some(index) => open.remove(index),
                None => return Err(orphan(at)),
            };
            continue;
        }
        if let Some((from, _)) = &calls_before
            && !open.is_empty()
        {
            return Err(unanswered(*from + 1, &open));
        }
        calls_before = message["tool_calls"]
            .as_array()
            .filter(|calls| !calls.is_empty())
            .map(|calls| (at, calls.iter().filter_map(|call| call["id"].as_str()).collect()));
        open = calls_before.as_ref().map(|(_, ids)| ids.clone()).unwrap_or_default();
    }
    match calls_before {
        Some((from, _)) if !open.is_empty() => Err(unanswered(from, &open)),
        _ => Ok(()),
    }
}

fn orphan(at: usize) -> Refusal {
    invalid(
        "Invalid parameter: messages with role 'tool' must be a response to a preceeding message \
         with 'tool_calls'.",
    )
    .param(format!("messages.[{at}].role"))
}

fn size(check: &Check<'_>) -> Result<(), Refusal> {
    let body = check.body;
    let model = check.model;
    let (key, output) = match body["max_completion_tokens"].as_u64() {
        Some(output) => ("max_completion_tokens", Some(output)),
        None => ("max_tokens", body["max_tokens"].as_u64()),
    };
    if let Some(output) = output
        && output > model.output
    {
        return Err(invalid(format!(
            "{key} is too large: {output}. This model supports at most {} completion tokens, \
             whereas you provided {output}.",
            model.output
        ))
        .param(key)
        .code("invalid_value"));
    }
    let input = crate::tokens::count_tokens(body) as u64;
    overflow::check(Dialect::OpenAi, model, input, output.unwrap_or(0))
}
