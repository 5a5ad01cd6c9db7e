//! What Gemini refuses, with its error messages.

use std::collections::HashSet;

use serde_json::Value;

use super::errors::{bad_payload, invalid, unknown_name, violation};
use super::read::declarations;
use super::{field, parts, turns};
use crate::dialect::{Check, Dialect, Refusal, items, overflow};

/// Most bytes of inline data in a request.
const INLINE_MAX: usize = 20 * 1024 * 1024;

const KNOWN: &[&str] = &[
    "cachedContent",
    "contents",
    "generationConfig",
    "generateContentRequest",
    "labels",
    "model",
    "safetySettings",
    "serviceTier",
    "store",
    "systemInstruction",
    "toolConfig",
    "tools",
];

const KNOWN_CONFIG: &[&str] = &[
    "candidateCount",
    "enableEnhancedCivicAnswers",
    "frequencyPenalty",
    "imageConfig",
    "logprobs",
    "maxOutputTokens",
    "mediaResolution",
    "presencePenalty",
    "responseJsonSchema",
    "responseLogprobs",
    "responseMimeType",
    "responseModalities",
    "responseSchema",
    "seed",
    "speechConfig",
    "stopSequences",
    "temperature",
    "thinkingConfig",
    "topK",
    "topP",
];

pub(crate) fn check(check: &Check<'_>) -> Result<(), Refusal> {
    let body = check.body;
    let config = field(body, "generationConfig", "generation_config");
    if check.refuse_unknown {
        unknown(body, KNOWN, None)?;
        unknown(config, KNOWN_CONFIG, Some("generation_config"))?;
    }
    if let Some(key) = check.model.refused(config) {
        return Err(unknown_name(key, Some("generation_config")));
    }
    payload(body)?;
    let contents = match &body["contents"] {
        Value::Array(list) if !list.is_empty() => list,
        Value::Null | Value::Array(_) => {
            return Err(violation("contents", "contents is not specified"));
        }
        other => {
            return Err(bad_payload(format!(
                "Invalid value at 'contents' \
                 (type.googleapis.com/google.ai.generativelanguage.v1beta.Content), {other}"
            )));
        }
    };
    let system = field(body, "systemInstruction", "system_instruction");
    if !system.is_null() {
        parts::content("system_instruction", system, check)?;
    }
    for (at, content) in contents.iter().enumerate() {
        parts::content(&format!("contents[{at}]"), content, check)?;
    }
    generation(config, check)?;
    let names = tools(body)?;
    turns::check(contents, &names, check)?;
    size(config, check)
}

fn unknown(object: &Value, known: &[&str], at: Option<&str>) -> Result<(), Refusal> {
    let Some(fields) = object.as_object() else { return Ok(()) };
    match fields.keys().find(|key| !known.contains(&camel(key).as_str())) {
        Some(key) => Err(unknown_name(key, at)),
        None => Ok(()),
    }
}

/// `system_instruction` is `systemInstruction`.
fn camel(key: &str) -> String {
    let mut out = String::new();
    let mut upper = false;
    for c in key.chars() {
        match c {
            '_' => upper = true,
            c if upper => {
                out.push(c.to_ascii_uppercase());
                upper = false;
            }
            c => out.push(c),
        }
    }
    out
}

fn generation(config: &Value, check: &Check<'_>) -> Result<(), Refusal> {
    match field(config, "maxOutputTokens", "max_output_tokens") {
        Value::Null => {}
        Value::Number(n) if n.as_u64().is_some_and(|n| n >= 1 && n <= check.model.output) => {}
        Value::Number(n) => {
            return Err(invalid(format!(
                "Unable to submit request because it has a maxOutputTokens value of {n} but the \
                 supported range is from 1 (inclusive) to {} (exclusive). Update the value and \
                 try again.",
                check.model.output + 1
            )));
        }
        other => {
            return Err(bad_payload(format!(
                "Invalid value at 'generation_config.max_output_tokens' (TYPE_INT32), {other}"
            )));
        }
    }
    match &config["temperature"] {
        Value::Null => {}
        Value::Number(n) if n.as_f64().is_some_and(|t| (0.0..=2.0).contains(&t)) => {}
        Value::Number(_) => {
            return Err(violation(
                "generation_config.temperature",
                "temperature must be in the range [0.0, 2.0].",
            ));
        }
        other => {
            return Err(bad_payload(format!(
                "Invalid value at 'generation_config.temperature' (TYPE_FLOAT), {other}"
            )));
        }
    }
    let thinking = field(config, "thinkingConfig", "thinking_config");
    if !thinking.is_null() && !check.model.thinking {
        return Err(invalid(
            "Unable to submit request because thinking is not supported by this model.",
        ));
    }
    Ok(())
}

/// Checks the declarations; returns their names.
fn tools(body: &Value) -> Result<HashSet<&str>, Refusal> {
    if !matches!(body["tools"], Value::Null | Value::Array(_) | Value::Object(_)) {
        return Err(bad_payload(format!(
            "Invalid value at 'tools' \
             (type.googleapis.com/google.ai.generativelanguage.v1beta.Tool), {}",
            body["tools"]
        )));
    }
    let mut names = HashSet::new();
    for (path, declaration) in declarations(body) {
        let name = declaration["name"].as_str().unwrap_or_default();
        let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-' | ':');
        let begins = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
        if !begins || name.len() > 64 || !name.chars().all(fits) {
            return Err(violation(
                &format!("{path}.name"),
                "Invalid function name. Must start with a letter or an underscore. Must be \
                 alphameric (a-z, A-Z, 0-9), underscores (_), dots (.), colons (:), or dashes \
                 (-), with a maximum length of 64.",
            ));
        }
        if !names.insert(name) {
            return Err(invalid(format!("Duplicate function declaration found: {name}")));
        }
        let schema = match &declaration["parametersJsonSchema"] {
            Value::Null => &declaration["parameters"],
            schema => schema,
        };
        let object = schema["type"].as_str().is_some_and(|t| t.eq_ignore_ascii_case("object"));
        if !schema.is_null() && !object {
            return Err(invalid(format!(
                "Unable to submit request because `{name}` functionDeclaration `parameters` \
                 schema should be of type OBJECT. Learn more: \
                 https://cloud.google.com/vertex-ai/generative-ai/docs/multimodal/function-calling"
            )));
        }
    }
    let config = field(body, "toolConfig", "tool_config");
    let config = field(config, "functionCallingConfig", "function_calling_config");
    let allowed = field(config, "allowedFunctionNames", "allowed_function_names");
    for name in items(allowed).iter().filter_map(Value::as_str) {
        if !names.contains(name) {
            return Err(violation(
                "tool_config.function_calling_config.allowed_function_names",
                &format!("`{name}` is not in the function declarations."),
            ));
        }
    }
    Ok(names)
}

/// The inline data of all parts together.
fn payload(body: &Value) -> Result<(), Refusal> {
    let inline: usize = items(&body["contents"])
        .iter()
        .flat_map(super::read::parts)
        .filter_map(|part| field(part, "inlineData", "inline_data")["data"].as_str())
        .map(str::len)
        .sum();
    if inline > INLINE_MAX {
        return Err(invalid(format!(
            "Request payload size exceeds the limit: {INLINE_MAX} bytes."
        )));
    }
    Ok(())
}

fn size(config: &Value, check: &Check<'_>) -> Result<(), Refusal> {
    if check.counting {
        return Ok(());
    }
    let input = crate::tokens::count_tokens(check.body) as u64;
    let output = field(config, "maxOutputTokens", "max_output_tokens").as_u64().unwrap_or(0);
    overflow::check(Dialect::Gemini, check.model, input, output)
}
