//! The order of turns, function calls and their responses, and thought signatures.
//!
//! Two refusals here have no published message (a response under another name, a call of an
//! undeclared function): theirs are modelled on similar ones.

use std::collections::HashSet;

use serde_json::Value;

use super::errors::invalid;
use super::field;
use super::read::parts;
use crate::dialect::{Check, Refusal};

/// Values that the documentation offers for calls that came from elsewhere.
const DUMMIES: &[&str] =
    &["context_engineering_is_the_way_to_go", "skip_thought_signature_validator"];

fn calls(content: &Value) -> impl Iterator<Item = &Value> {
    parts(content)
        .map(|part| field(part, "functionCall", "function_call"))
        .filter(|call| !call.is_null())
}

fn responses(content: &Value) -> impl Iterator<Item = &Value> {
    parts(content)
        .map(|part| field(part, "functionResponse", "function_response"))
        .filter(|response| !response.is_null())
}

pub(crate) fn check(
    contents: &[Value],
    declared: &HashSet<&str>,
    check: &Check<'_>,
) -> Result<(), Refusal> {
    let model = |content: &Value| content["role"] == "model";
    let contents = &joined(contents)[..];
    for (at, content) in contents.iter().enumerate() {
        let before = at.checked_sub(1).map(|before| &contents[before]);
        let expected = before.is_some_and(|before| !model(before));
        if model(content) {
            if !expected {
                return Err(invalid(if calls(content).next().is_some() {
                    "Please ensure that function call turn comes immediately after a user turn or \
                     after a function response turn."
                } else {
                    "Please ensure that multiturn requests alternate between user and model."
                }));
            }
            for call in calls(content) {
                let name = call["name"].as_str().unwrap_or_default();
                if !declared.is_empty() && !declared.contains(name) {
                    return Err(invalid(format!(
                        "Please ensure that function call names are declared in the tools of the \
                         request: `{name}` is not."
                    )));
                }
            }
        } else {
            answer(before.filter(|before| model(before)), content)?;
            if expected {
                return Err(invalid(
                    "Please ensure that multiturn requests alternate between user and model.",
                ));
            }
        }
    }
    match contents.last() {
        Some(last) if model(last) => {
            let called = calls(last).next().is_some();
            if !called && check.model.prefill.accepted(false) {
                return signatures(contents, check);
            }
            return Err(invalid(if called {
                "Please ensure that the number of function response parts is equal to the number \
                 of function call parts of the function call turn."
            } else {
                "Please ensure that multiturn requests end with a user role or a function response."
            }));
        }
        _ => {}
    }
    signatures(contents, check)
}

/// Contents of one role that follow each other are one turn: Google's own SDKs send a turn of the model that
/// was streamed as the chunks it came in, and its own agent asks in two contents which model suits a question.
/// Responses of functions are a turn by themselves.
fn joined(contents: &[Value]) -> Vec<Value> {
    let model = |content: &Value| content["role"] == "model";
    let responds = |content: &Value| responses(content).next().is_some();
    let mut turns: Vec<Value> = Vec::with_capacity(contents.len());
    for content in contents {
        match turns.last_mut() {
            Some(last)
                if model(last) == model(content) && !responds(last) && !responds(content) =>
            {
                if let Some(list) = last["parts"].as_array_mut() {
                    list.extend(parts(content).cloned());
                }
            }
            _ => turns.push(content.clone()),
        }
    }
    turns
}

/// A user turn answers exactly the calls of the model turn before it, in their order.
fn answer(before: Option<&Value>, content: &Value) -> Result<(), Refusal> {
    let expected: Vec<&Value> = before.into_iter().flat_map(calls).collect();
    let given: Vec<&Value> = responses(content).collect();
    if expected.is_empty() && !given.is_empty() {
        return Err(invalid(
            "Please ensure that function response turn comes immediately after a function call \
             turn.",
        ));
    }
    if expected.len() != given.len() {
        return Err(invalid(
            "Please ensure that the number of function response parts is equal to the number of \
             function call parts of the function call turn.",
        ));
    }
    for (call, response) in expected.iter().zip(&given) {
        let other_id =
            call["id"].is_string() && response["id"].is_string() && call["id"] != response["id"];
        if call["name"] != response["name"] || other_id {
            return Err(invalid(format!(
                "Please ensure that function response parts are in the order of the function call \
                 parts of the function call turn and have their names: expected {}, got {}.",
                call["name"], response["name"]
            )));
        }
    }
    Ok(())
}

/// The text that is signed for a function call.
pub(crate) fn signed(name: &str) -> String {
    format!("functionCall:{name}")
}

fn signatures(contents: &[Value], check: &Check<'_>) -> Result<(), Refusal> {
    for content in contents {
        for part in parts(content) {
            let Some(signature) = field(part, "thoughtSignature", "thought_signature").as_str()
            else {
                continue;
            };
            let call = field(part, "functionCall", "function_call");
            let name = call["name"].as_str().unwrap_or_default();
            if !DUMMIES.contains(&signature)
                && !check.signer.verifies(&signed(name), &standard_base64(signature))
            {
                return Err(invalid("Corrupted thought signature."));
            }
        }
    }
    if !check.signatures {
        return Ok(());
    }
    // The current turn begins with the user's last text.
    let start = contents
        .iter()
        .rposition(|content| content["role"] != "model" && responses(content).next().is_none())
        .unwrap_or(0);
    for (at, content) in contents.iter().enumerate().skip(start) {
        let first =
            parts(content).find(|part| !field(part, "functionCall", "function_call").is_null());
        let Some(part) = first else { continue };
        if field(part, "thoughtSignature", "thought_signature").as_str().is_none() {
            let name = field(part, "functionCall", "function_call")["name"].as_str();
            return Err(invalid(format!(
                "Function call is missing a thought_signature in functionCall parts. This is \
                 required for tools to work correctly, and missing thought_signature may lead to \
                 degraded model performance. Additional data, function call `default_api:{}` , \
                 position {}. Please refer to \
                 https://ai.google.dev/gemini-api/docs/thought-signatures for more details.",
                name.unwrap_or_default(),
                at + 1
            )));
        }
    }
    Ok(())
}

/// Bytes in JSON may be in either alphabet of base64, padded or not: the service accepts all, and
/// Google's own SDKs send another one than they received.
fn standard_base64(text: &str) -> String {
    let mut standard = text.replace('-', "+").replace('_', "/");
    while !standard.len().is_multiple_of(4) {
        standard.push('=');
    }
    standard
}
