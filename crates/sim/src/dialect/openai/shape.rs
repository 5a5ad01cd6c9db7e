//! Error messages for missing, malformed and overlong values.

use serde_json::Value;

use super::errors::invalid;
use crate::dialect::{Refusal, type_name};

/// Longest name of a function.
const NAME_MAX: usize = 64;

pub(crate) fn present(value: &Value) -> Option<&Value> {
    (!value.is_null()).then_some(value)
}

pub(crate) fn string<'v>(object: &'v Value, key: &str, path: &str) -> Result<&'v str, Refusal> {
    match &object[key] {
        Value::String(text) => Ok(text),
        Value::Null => Err(missing(&format!("{path}.{key}"))),
        other => Err(wrong_type(&format!("{path}.{key}"), "a string", other)),
    }
}

pub(crate) fn function_name(name: &str, path: &str) -> Result<(), Refusal> {
    let fits = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    if name.is_empty() || !name.chars().all(fits) {
        return Err(invalid(format!(
            "Invalid '{path}': string does not match pattern. Expected a string that matches the \
             pattern '^[a-zA-Z0-9_-]+$'."
        ))
        .param(path)
        .code("invalid_value"));
    }
    if name.len() > NAME_MAX {
        return Err(too_long(path, NAME_MAX, name));
    }
    Ok(())
}

pub(crate) fn missing(path: &str) -> Refusal {
    invalid(format!("Missing required parameter: '{path}'."))
        .param(path)
        .code("missing_required_parameter")
}

pub(crate) fn wrong_type(path: &str, expected: &str, got: &Value) -> Refusal {
    invalid(format!(
        "Invalid type for '{path}': expected {expected}, but got {} instead.",
        type_name(got)
    ))
    .param(path)
    .code("invalid_type")
}

pub(crate) fn empty_array(path: &str) -> Refusal {
    invalid(format!(
        "Invalid '{path}': empty array. Expected an array with minimum length 1, but got an empty \
         array instead."
    ))
    .param(path)
    .code("empty_array")
}

pub(crate) fn too_long(path: &str, max: usize, text: &str) -> Refusal {
    invalid(format!(
        "Invalid '{path}': string too long. Expected a string with maximum length {max}, but got \
         a string with length {} instead.",
        text.chars().count()
    ))
    .param(path)
    .code("string_above_max_length")
}
