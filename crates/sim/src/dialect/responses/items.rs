//! The shape of items and their parts.

use serde_json::Value;

use super::{errors::invalid, read::kind};
use crate::SimCompaction;
use crate::dialect::{
    Check, Refusal,
    openai::{
        messages,
        shape::{empty_array, function_name, missing, present, string, too_long, wrong_type},
    },
};

/// Longest id of a tool call.
const ID_MAX: usize = 64;

pub(crate) fn check(at: usize, item: &Value, check: &Check<'_>) -> Result<(), Refusal> {
    let path = format!("input[{at}]");
    if !item.is_object() {
        return Err(wrong_type(&path, "an object", item));
    }
    match kind(item) {
        "message" => message(&path, item, check),
        "function_call" => {
            call_id(&path, item)?;
            function_name(string(item, "name", &path)?, &format!("{path}.name"))?;
            string(item, "arguments", &path).map(drop)
        }
        "custom_tool_call" => {
            call_id(&path, item)?;
            function_name(string(item, "name", &path)?, &format!("{path}.name"))?;
            string(item, "input", &path).map(drop)
        }
        "function_call_output" | "custom_tool_call_output" => {
            call_id(&path, item)?;
            match &item["output"] {
                Value::String(_) => Ok(()),
                Value::Array(parts) => parts.iter().enumerate().try_for_each(|(n, one)| {
                    part(&format!("{path}.output[{n}]"), "user", one, check)
                }),
                Value::Null => Err(missing(&format!("{path}.output"))),
                other => Err(wrong_type(
                    &format!("{path}.output"),
                    "one of a string or array of objects",
                    other,
                )),
            }
        }
        "reasoning" => reasoning(&path, item, check),
        "item_reference" => Err(invalid(format!(
            "Item with id '{}' not found.",
            item["id"].as_str().unwrap_or_default()
        ))
        .param("input")),
        "compaction" => match &item["encrypted_content"] {
            Value::String(data) if check.signer.opened(data).is_some() => Ok(()),
            Value::String(data) => Err(not_its_own(data)),
            _ => Err(missing(&format!("{path}.encrypted_content"))),
        },
        // Of servers that have the endpoint, not all have this.
        "compaction_trigger" if check.compacts != SimCompaction::Refused => Ok(()),
        other => Err(invalid(format!(
            "Invalid value: '{other}'. Supported values are: 'message', 'reasoning', \
             'function_call', 'function_call_output', 'custom_tool_call', \
             'custom_tool_call_output', 'item_reference', and 'compaction'."
        ))
        .param(path)
        .code("invalid_value")),
    }
}

fn call_id(path: &str, item: &Value) -> Result<(), Refusal> {
    let id = string(item, "call_id", path)?;
    if id.chars().count() > ID_MAX {
        return Err(too_long(&format!("{path}.call_id"), ID_MAX, id));
    }
    Ok(())
}

fn message(path: &str, item: &Value, check: &Check<'_>) -> Result<(), Refusal> {
    let role = string(item, "role", path)?;
    if !["assistant", "system", "developer", "user"].contains(&role) {
        return Err(invalid(format!(
            "Invalid value: '{role}'. Supported values are: 'assistant', 'system', 'developer', \
             and 'user'."
        ))
        .param(format!("{path}.role"))
        .code("invalid_value"));
    }
    let path = format!("{path}.content");
    match &item["content"] {
        Value::String(_) => Ok(()),
        Value::Null => Err(missing(&path)),
        Value::Array(parts) if parts.is_empty() => Err(empty_array(&path)),
        Value::Array(parts) => parts
            .iter()
            .enumerate()
            .try_for_each(|(n, one)| part(&format!("{path}[{n}]"), role, one, check)),
        other => Err(wrong_type(&path, "one of a string or array of objects", other)),
    }
}

fn part(path: &str, role: &str, part: &Value, check: &Check<'_>) -> Result<(), Refusal> {
    if !part.is_object() {
        return Err(wrong_type(path, "an object", part));
    }
    let kind = string(part, "type", path)?;
    let known: &[&str] = match role {
        "assistant" => &["output_text", "refusal"],
        _ => &["input_text", "input_image", "input_file"],
    };
    if !known.contains(&kind) {
        let list: Vec<String> = known.iter().map(|known| format!("'{known}'")).collect();
        return Err(invalid(format!(
            "Invalid value: '{kind}'. Supported values are: {}.",
            list.join(", ")
        ))
        .param(format!("{path}.type"))
        .code("invalid_value"));
    }
    match kind {
        "input_text" | "output_text" => string(part, "text", path).map(drop),
        "input_image" if !check.model.vision => {
            Err(invalid("Invalid content type. image_url is only supported by certain models.")
                .param(format!("{path}.type")))
        }
        "input_image" if present(&part["file_id"]).is_none() => {
            messages::image_url(&format!("{path}.image_url"), string(part, "image_url", path)?)
        }
        "input_file" if present(&part["file_data"]).is_some() => {
            string(part, "filename", path).map(drop)
        }
        _ => Ok(()),
    }
}

/// What is encrypted is this provider's own.
fn reasoning(path: &str, item: &Value, check: &Check<'_>) -> Result<(), Refusal> {
    if !item["summary"].is_array() {
        return Err(missing(&format!("{path}.summary")));
    }
    match &item["encrypted_content"] {
        Value::String(data) if check.signer.enclosed(data).is_some() => Ok(()),
        Value::String(data) => Err(not_its_own(data)),
        // Nothing is stored here.
        _ => Err(Refusal::new(
            404,
            "invalid_request_error",
            format!(
                "Item with id '{}' not found. Items are not persisted when `store` is set to \
                 false. Try again with `store` set to true, or remove this item from your input.",
                item["id"].as_str().unwrap_or_default()
            ),
        )
        .param("input")),
    }
}

/// The refusal of content that another has encrypted.
fn not_its_own(data: &str) -> Refusal {
    let shown: String = data.chars().take(4).collect();
    invalid(format!(
        "The encrypted content {shown}... could not be verified. Reason: Encrypted content could not be \
         decrypted or parsed."
    ))
    .code("invalid_encrypted_content")
}
