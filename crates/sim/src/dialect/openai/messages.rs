//! The shape of messages, their parts and their tool calls.

use serde_json::Value;

use super::errors::invalid;
use super::shape::{empty_array, function_name, missing, present, string, too_long, wrong_type};
use crate::dialect::{Check, Refusal, images};

/// Longest id of a tool call.
const ID_MAX: usize = 40;

pub(crate) fn check(at: usize, message: &Value, check: &Check<'_>) -> Result<(), Refusal> {
    let path = format!("messages[{at}]");
    if !message.is_object() {
        return Err(wrong_type(&path, "an object", message));
    }
    let role = match &message["role"] {
        Value::Null => return Err(missing(&format!("{path}.role"))),
        Value::String(role) => role.as_str(),
        other => return Err(wrong_type(&format!("{path}.role"), "a string", other)),
    };
    if !["system", "assistant", "user", "function", "tool", "developer"].contains(&role) {
        return Err(invalid(format!(
            "Invalid value: '{role}'. Supported values are: 'system', 'assistant', 'user', \
             'function', 'tool', and 'developer'."
        ))
        .param(format!("{path}.role"))
        .code("invalid_value"));
    }
    let calls = present(&message["tool_calls"]);
    let may_be_silent = role == "assistant"
        && ["tool_calls", "function_call", "refusal", "audio"]
            .iter()
            .any(|key| present(&message[*key]).is_some());
    match &message["content"] {
        Value::String(_) => {}
        Value::Null if may_be_silent => {}
        Value::Null => {
            return Err(invalid("Invalid value for 'content': expected a string, got null.")
                .param(format!("messages.[{at}].content")));
        }
        Value::Array(parts) if parts.is_empty() => {
            return Err(empty_array(&format!("{path}.content")));
        }
        Value::Array(parts) => {
            for (n, part) in parts.iter().enumerate() {
                one_part((at, n), role, part, check)?;
            }
        }
        other => {
            let path = format!("{path}.content");
            return Err(wrong_type(&path, "one of a string or array of objects", other));
        }
    }
    if role == "tool" && present(&message["tool_call_id"]).is_none() {
        return Err(invalid(
            "Missing parameter 'tool_call_id': messages with role 'tool' must have a \
             'tool_call_id'.",
        )
        .param(format!("messages.[{at}].tool_call_id")));
    }
    match calls {
        Some(Value::Array(list)) if list.is_empty() => {
            Err(empty_array(&format!("{path}.tool_calls")))
        }
        Some(Value::Array(list)) => {
            list.iter().enumerate().try_for_each(|(n, call)| one_call(&path, n, call))
        }
        Some(other) => Err(wrong_type(&format!("{path}.tool_calls"), "an array of objects", other)),
        None => Ok(()),
    }
}

fn one_part(
    at: (usize, usize),
    role: &str,
    part: &Value,
    check: &Check<'_>,
) -> Result<(), Refusal> {
    let path = format!("messages[{}].content[{}]", at.0, at.1);
    if !part.is_object() {
        return Err(wrong_type(&path, "an object", part));
    }
    let Some(kind) = part["type"].as_str() else {
        return Err(missing(&format!("{path}.type")));
    };
    match kind {
        "text" if part["text"].is_string() => Ok(()),
        "text" => match present(&part["text"]) {
            None => Err(missing(&format!("{path}.text"))),
            Some(other) => Err(wrong_type(&format!("{path}.text"), "a string", other)),
        },
        "image_url" if role != "user" => Err(invalid(format!(
            "Invalid 'messages[{0}]'. Image URLs are only allowed for messages with role 'user', \
             but this message with role '{role}' contains an image URL.",
            at.0
        ))
        .param(format!("messages[{}]", at.0))
        .code("invalid_value")),
        "image_url" if !check.model.vision => {
            Err(invalid("Invalid content type. image_url is only supported by certain models.")
                .param(format!("messages.[{}].content.[{}].type", at.0, at.1)))
        }
        "image_url" => image(&path, &part["image_url"]),
        "input_audio" | "file" | "refusal" | "audio" => Ok(()),
        other => Err(invalid(format!(
            "Invalid value: '{other}'. Supported values are: 'text', 'image_url', 'input_audio', \
             'refusal', 'audio', and 'file'."
        ))
        .param(format!("{path}.type"))
        .code("invalid_value")),
    }
}

fn image(path: &str, image: &Value) -> Result<(), Refusal> {
    match &image["url"] {
        Value::String(url) => image_url(&format!("{path}.image_url.url"), url),
        Value::Null => Err(missing(&format!("{path}.image_url.url"))),
        other => Err(wrong_type(&format!("{path}.image_url.url"), "a string", other)),
    }
}

/// The address of an image at `path`, or the image itself.
pub(crate) fn image_url(path: &str, url: &str) -> Result<(), Refusal> {
    if url.starts_with("https://") || url.starts_with("http://") {
        return Ok(());
    }
    let unsupported = || {
        invalid(
            "You uploaded an unsupported image. Please make sure your image has of one the \
             following formats: ['png', 'jpeg', 'gif', 'webp'].",
        )
        .code("invalid_image_format")
    };
    let Some((mime, data)) = url.strip_prefix("data:").and_then(|rest| rest.split_once(";base64,"))
    else {
        return Err(invalid(format!(
            "Invalid '{path}'. Expected a valid URL, but got a value with an invalid format."
        ))
        .param(path)
        .code("invalid_value"));
    };
    if !["image/png", "image/jpeg", "image/gif", "image/webp"].contains(&mime) {
        return Err(unsupported());
    }
    if images::decode(data).is_none_or(|bytes| bytes.is_empty()) {
        return Err(invalid("Invalid base64 image_url.").code("invalid_base64"));
    }
    Ok(())
}

fn one_call(path: &str, n: usize, call: &Value) -> Result<(), Refusal> {
    let path = format!("{path}.tool_calls[{n}]");
    if !call.is_object() {
        return Err(wrong_type(&path, "an object", call));
    }
    let id = string(call, "id", &path)?;
    if id.chars().count() > ID_MAX {
        return Err(too_long(&format!("{path}.id"), ID_MAX, id));
    }
    string(call, "type", &path)?;
    if call["type"] != "function" {
        return Ok(());
    }
    let function = &call["function"];
    if !function.is_object() {
        return Err(missing(&format!("{path}.function")));
    }
    let path = format!("{path}.function");
    function_name(string(function, "name", &path)?, &format!("{path}.name"))?;
    string(function, "arguments", &path).map(drop)
}
