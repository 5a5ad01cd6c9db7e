//! What Anthropic refuses, with its error messages.

use std::collections::HashSet;

use serde_json::Value;

use super::blocks;
use super::errors::{invalid, no_thread};
use super::read::enabled;
use super::turns::{Turn, turns};
use super::{thinking, tools};
use crate::dialect::{Check, Dialect, Refusal, items, overflow};

/// Most blocks with a cache mark.
const MARKS_MAX: usize = 4;

const KNOWN: &[&str] = &[
    "cache_control",
    "container",
    "context_management",
    "inference_geo",
    "max_tokens",
    "mcp_servers",
    "messages",
    "metadata",
    "model",
    "output_config",
    "output_format",
    "service_tier",
    "stop_sequences",
    "stream",
    "system",
    "temperature",
    "thinking",
    "thread",
    "tool_choice",
    "tools",
    "top_k",
    "top_p",
];

pub(crate) fn model_of(body: &Value) -> Result<String, Refusal> {
    match &body["model"] {
        Value::String(name) if name.is_empty() => {
            Err(invalid("model: String should have at least 1 character"))
        }
        Value::String(name) => Ok(name.clone()),
        Value::Null => Err(invalid("model: Field required")),
        _ => Err(invalid("model: Input should be a valid string")),
    }
}

pub(crate) fn check(check: &Check<'_>) -> Result<(), Refusal> {
    let body = check.body;
    if check.refuse_unknown
        && let Some(key) = body
            .as_object()
            .and_then(|fields| fields.keys().find(|key| !KNOWN.contains(&key.as_str())))
    {
        return Err(invalid(format!("{key}: Extra inputs are not permitted")));
    }
    if !matches!(&body["thread"], Value::Null | Value::Bool(false)) {
        return Err(no_thread());
    }
    if let Some(key) = check.model.refused(body) {
        return Err(invalid(format!("`{key}` is deprecated for this model.")));
    }
    parameters(check)?;
    blocks::system(&body["system"])?;
    let messages = messages(&body["messages"])?;
    for (at, message) in messages.iter().enumerate() {
        let instructs = check.model.system_turns && at > 0 && messages[at - 1]["role"] == "user";
        blocks::message(at, message, at + 1 == messages.len(), instructs)?;
    }
    if messages[0]["role"] != "user" {
        return Err(invalid("messages: first message must use the \"user\" role"));
    }
    let turns = turns(messages);
    cache_marks(body)?;
    blocks::images(check, &turns)?;
    tools::check(body, &turns)?;
    pairing(&turns)?;
    thinking::check(check, &turns)?;
    prefill(check, &turns)?;
    size(check)
}

fn parameters(check: &Check<'_>) -> Result<(), Refusal> {
    let body = check.body;
    match &body["max_tokens"] {
        _ if check.counting => {}
        Value::Null => return Err(invalid("max_tokens: Field required")),
        Value::Number(n) if n.is_u64() && n.as_u64() != Some(0) => {}
        Value::Number(n) if n.is_u64() || n.is_i64() => {
            return Err(invalid("max_tokens: Input should be greater than or equal to 1"));
        }
        _ => return Err(invalid("max_tokens: Input should be a valid integer")),
    }
    if !matches!(body["stream"], Value::Null | Value::Bool(_)) {
        return Err(invalid("stream: Input should be a valid boolean"));
    }
    match &body["temperature"] {
        Value::Null => {}
        Value::Number(n) if n.as_f64().is_some_and(|t| (0.0..=1.0).contains(&t)) => {}
        Value::Number(_) => return Err(invalid("temperature: range: 0..1")),
        _ => return Err(invalid("temperature: Input should be a valid number")),
    }
    match &body["stop_sequences"] {
        Value::Null => Ok(()),
        Value::Array(list)
            if list.iter().any(|s| s.as_str().is_some_and(|s| s.trim().is_empty())) =>
        {
            Err(invalid("stop_sequences: each stop sequence must contain non-whitespace"))
        }
        Value::Array(list) if list.iter().all(Value::is_string) => Ok(()),
        _ => Err(invalid("stop_sequences: Input should be a valid list")),
    }
}

fn messages(value: &Value) -> Result<&[Value], Refusal> {
    match value {
        Value::Null => Err(invalid("messages: Field required")),
        Value::Array(list) if list.is_empty() => {
            Err(invalid("messages: at least one message is required"))
        }
        Value::Array(list) => Ok(list),
        _ => Err(invalid("messages: Input should be a valid list")),
    }
}

/// Every call is answered once at the start of the next user turn, and nothing else is.
fn pairing(turns: &[Turn<'_>]) -> Result<(), Refusal> {
    let mut seen = HashSet::new();
    let mut calls_before: Vec<&str> = Vec::new();
    for (n, turn) in turns.iter().enumerate() {
        if turn.user {
            let mut answered = HashSet::new();
            for (at, result) in turn.of_kind("tool_result") {
                let id = result.str("tool_use_id");
                if !calls_before.contains(&id) {
                    return Err(invalid(format!(
                        "messages.{}.content.{}: unexpected `tool_use_id` found in `tool_result` \
                         blocks: {id}. Each `tool_result` block must have a corresponding \
                         `tool_use` block in the previous message.",
                        at.message, at.block
                    )));
                }
                if !answered.insert(id) {
                    return Err(invalid(format!(
                        "messages.{}.content.{}: each tool_use must have a single result. Found \
                         multiple `tool_result` blocks with id: {id}",
                        at.message, at.block
                    )));
                }
            }
            calls_before.clear();
            continue;
        }
        let calls: Vec<_> = turn.of_kind("tool_use").collect();
        if calls.iter().any(|(_, call)| !seen.insert(call.str("id"))) {
            return Err(invalid("messages: `tool_use` ids must be unique"));
        }
        let next = turns.get(n + 1).map(|next| next.blocks.as_slice()).unwrap_or_default();
        let head: HashSet<&str> = next
            .iter()
            .take_while(|(_, block)| block.kind() == "tool_result")
            .map(|(_, block)| block.str("tool_use_id"))
            .collect();
        let open: Vec<_> = calls.iter().filter(|(_, c)| !head.contains(c.str("id"))).collect();
        if let Some((at, _)) = open.first() {
            let ids: Vec<&str> = open.iter().map(|(_, call)| call.str("id")).collect();
            return Err(invalid(format!(
                "messages.{}: `tool_use` ids were found without `tool_result` blocks immediately \
                 after: {}. Each `tool_use` block must have a corresponding `tool_result` block \
                 in the next message.",
                at.message,
                ids.join(", ")
            )));
        }
        calls_before = calls.iter().map(|(_, call)| call.str("id")).collect();
    }
    Ok(())
}

fn prefill(check: &Check<'_>, turns: &[Turn<'_>]) -> Result<(), Refusal> {
    let Some(last) = turns.last().filter(|turn| !turn.user) else { return Ok(()) };
    if enabled(check.body) && last.blocks.first().is_some_and(|(_, b)| !b.is_thinking()) {
        return Err(thinking::expected(last));
    }
    if !check.model.prefill.accepted(true) || enabled(check.body) {
        return Err(invalid(
            "This model does not support assistant message prefill. The conversation must end \
             with a user message.",
        ));
    }
    let text = last.blocks.last().and_then(|(_, block)| block.text());
    if text.is_some_and(|text| text.ends_with(char::is_whitespace)) {
        return Err(invalid(
            "messages: final assistant content cannot end with trailing whitespace",
        ));
    }
    Ok(())
}

/// At most four marks, longer-lived ones first, in the order tools, system, messages.
fn cache_marks(body: &Value) -> Result<(), Refusal> {
    let mut marks = Vec::new();
    for (key, part) in ["tools", "system"].into_iter().map(|key| (key, &body[key])) {
        for (at, block) in items(part).iter().enumerate() {
            marks.push((format!("{key}.{at}"), &block["cache_control"]));
        }
    }
    for (at, message) in items(&body["messages"]).iter().enumerate() {
        for (n, block) in items(&message["content"]).iter().enumerate() {
            let path = format!("messages.{at}.content.{n}");
            for (m, inner) in items(&block["content"]).iter().enumerate() {
                marks.push((format!("{path}.content.{m}"), &inner["cache_control"]));
            }
            marks.push((path, &block["cache_control"]));
        }
    }
    marks.retain(|(_, mark)| !mark.is_null());
    let mut short = false;
    for (path, mark) in &marks {
        if mark["type"] != "ephemeral" {
            return Err(invalid(format!("{path}.cache_control.type: Input should be 'ephemeral'")));
        }
        match mark["ttl"].as_str() {
            Some("1h") if short => {
                return Err(invalid(format!(
                    "{path}.cache_control.ttl: a ttl='1h' cache_control block must not come after \
                     a ttl='5m' cache_control block. Note that blocks are processed in the \
                     following order: `tools`, `system`, `messages`."
                )));
            }
            Some("1h") => {}
            _ => short = true,
        }
    }
    if marks.len() > MARKS_MAX {
        return Err(invalid(format!(
            "A maximum of {MARKS_MAX} blocks with cache_control may be provided. Found {}.",
            marks.len()
        )));
    }
    Ok(())
}

fn size(check: &Check<'_>) -> Result<(), Refusal> {
    if check.counting {
        return Ok(());
    }
    let model = check.model;
    let output = check.body["max_tokens"].as_u64().unwrap_or_default();
    if output > model.output {
        return Err(invalid(format!(
            "max_tokens: {output} > {}, which is the maximum allowed number of output tokens for \
             {}",
            model.output, model.name
        )));
    }
    let input = crate::tokens::count_tokens(check.body) as u64;
    overflow::check(Dialect::Anthropic, model, input, output)
}
