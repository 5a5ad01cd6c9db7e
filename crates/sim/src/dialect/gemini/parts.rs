//! The shape of contents and their parts.

use serde_json::Value;

use super::errors::{bad_payload, invalid, violation};
use super::field;
use crate::dialect::{Check, Refusal, images};

const DATA: &[(&str, &str)] = &[
    ("text", "text"),
    ("inlineData", "inline_data"),
    ("fileData", "file_data"),
    ("functionCall", "function_call"),
    ("functionResponse", "function_response"),
    ("executableCode", "executable_code"),
    ("codeExecutionResult", "code_execution_result"),
    ("toolCall", "tool_call"),
    ("toolResponse", "tool_response"),
];

pub(crate) fn content(path: &str, content: &Value, check: &Check<'_>) -> Result<(), Refusal> {
    let parts = match &content["parts"] {
        Value::Array(parts) => parts.as_slice(),
        // A message where a list is wanted is a list of one.
        Value::Object(_) => std::slice::from_ref(&content["parts"]),
        Value::Null => &[],
        other => {
            return Err(bad_payload(format!(
                "Invalid value at '{path}.parts' \
                 (type.googleapis.com/google.ai.generativelanguage.v1beta.Part), {other}"
            )));
        }
    };
    match content["role"].as_str() {
        None | Some("" | "user" | "model" | "function" | "system") => {}
        Some(_) => return Err(invalid("Please use a valid role: user, model.")),
    }
    if parts.is_empty() {
        return Err(violation(&format!("{path}.parts"), "contents.parts must not be empty."));
    }
    for (n, part) in parts.iter().enumerate() {
        one(&format!("{path}.parts[{n}]"), part, check)?;
    }
    Ok(())
}

fn one(path: &str, part: &Value, check: &Check<'_>) -> Result<(), Refusal> {
    if !part.is_object() {
        return Err(bad_payload(format!(
            "Invalid value at '{path}' \
             (type.googleapis.com/google.ai.generativelanguage.v1beta.Part), {part}"
        )));
    }
    let mut set = DATA.iter().filter(|(camel, snake)| !field(part, camel, snake).is_null());
    let Some((camel, snake)) = set.next() else {
        return Err(violation(
            &format!("{path}.data"),
            "required oneof field 'data' must have one initialized field",
        ));
    };
    if let Some((second, _)) = set.next() {
        return Err(bad_payload(format!(
            "Invalid value at '{path}' (oneof), oneof field 'data' is already set. Cannot set \
             '{second}'"
        )));
    }
    let data = field(part, camel, snake);
    match *camel {
        "text" if !data.is_string() => {
            Err(bad_payload(format!("Invalid value at '{path}.text' (TYPE_STRING), {data}")))
        }
        "functionCall" | "functionResponse" => {
            let inner = if *camel == "functionCall" { "args" } else { "response" };
            if data["name"].as_str().is_none_or(str::is_empty) {
                return Err(violation(&format!("{path}.{snake}.name"), "Name cannot be empty."));
            }
            match &data[inner] {
                Value::Object(_) => Ok(()),
                Value::Null if inner == "args" => Ok(()),
                Value::Null => {
                    let path = format!("{path}.{snake}.{inner}");
                    Err(violation(&path, "response cannot be empty."))
                }
                other => Err(bad_payload(format!(
                    "Invalid value at '{path}.{snake}.{inner}' \
                     (type.googleapis.com/google.protobuf.Struct), {other}"
                ))),
            }
        }
        "inlineData" => inline(path, data, check),
        _ => Ok(()),
    }
}

fn inline(path: &str, data: &Value, check: &Check<'_>) -> Result<(), Refusal> {
    let mime = field(data, "mimeType", "mime_type").as_str().unwrap_or_default();
    if mime.is_empty() {
        return Err(violation(
            &format!("{path}.inline_data.mime_type"),
            "mime_type must not be empty.",
        ));
    }
    let text = data["data"].as_str().unwrap_or_default();
    let Some(bytes) = images::decode(text) else {
        let shown: String = text.chars().take(40).collect();
        return Err(bad_payload(format!(
            "Invalid value at '{path}.inline_data.data' (TYPE_BYTES), Base64 decoding failed for \
             \"{shown}\""
        )));
    };
    if let Some(kind) = mime.strip_prefix("image/") {
        if !check.model.vision {
            return Err(invalid(format!(
                "Image input modality is not enabled for models/{}",
                check.model.name
            )));
        }
        if !["png", "jpeg", "webp", "heic", "heif", "gif"].contains(&kind) {
            return Err(invalid(format!("Unsupported MIME type: {mime}")));
        }
        if bytes.is_empty() {
            return Err(invalid(
                "Unable to process input image. Please retry or report in \
                 https://developers.generativeai.google/guide/troubleshooting",
            ));
        }
    }
    Ok(())
}
