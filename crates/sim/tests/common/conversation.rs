//! Conversations in each dialect, and readers of the answers.

use serde_json::{Value, json};
use steadfast_sim::{Dialect, SimProvider};

use super::{Read, events, model, path, request, send};

/// A conversation: roles are `user` and `model`.
pub fn chat(dialect: Dialect, turns: &[(&str, &str)], max: Option<u64>, stream: bool) -> Value {
    let role = |role: &str| match (dialect, role) {
        (Dialect::Gemini, role) => role.to_owned(),
        (_, "model") => "assistant".to_owned(),
        (_, role) => role.to_owned(),
    };
    let messages: Vec<Value> = turns
        .iter()
        .map(|(who, text)| match dialect {
            Dialect::Gemini => json!({"role": role(who), "parts": [{"text": text}]}),
            _ => json!({"role": role(who), "content": text}),
        })
        .collect();
    let mut body = match dialect {
        Dialect::Gemini => json!({"contents": messages}),
        Dialect::Responses => {
            json!({"model": model(dialect), "stream": stream, "input": messages})
        }
        _ => json!({"model": model(dialect), "stream": stream, "messages": messages}),
    };
    match (dialect, max) {
        (Dialect::Anthropic, max) => body["max_tokens"] = json!(max.unwrap_or(4_096)),
        (_, None) => {}
        (Dialect::OpenAi, Some(max)) => body["max_tokens"] = json!(max),
        (Dialect::Responses, Some(max)) => body["max_output_tokens"] = json!(max),
        (Dialect::Gemini, Some(max)) => body["generationConfig"] = json!({"maxOutputTokens": max}),
    }
    if dialect == Dialect::OpenAi && stream {
        body["stream_options"] = json!({"include_usage": true});
    }
    body
}

/// An answer as a client understands it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReceivedAnswer {
    pub text: String,
    pub thinking: String,
    pub arguments: Vec<String>,
    pub stop: String,
    pub input: u64,
    pub output: u64,
}

pub async fn send_body(provider: &SimProvider, body: &Value, stream: bool) -> Read {
    let dialect = provider.dialect();
    let path = path(dialect, model(dialect), stream);
    send(provider, request(dialect, &path, body.to_string())).await.unwrap()
}

/// Sends a body and reads the answer, whichever form it has.
pub async fn answer_to(provider: &SimProvider, body: &Value, stream: bool) -> ReceivedAnswer {
    let read = send_body(provider, body, stream).await;
    assert_eq!(read.status, 200, "{}", read.text());
    read_answer(provider.dialect(), &read.text(), stream)
}

pub fn read_answer(dialect: Dialect, text: &str, stream: bool) -> ReceivedAnswer {
    let frames = if stream { events(text) } else { vec![serde_json::from_str(text).unwrap()] };
    let mut received = ReceivedAnswer::default();
    for frame in &frames {
        match dialect {
            Dialect::OpenAi => openai(&mut received, frame),
            Dialect::Anthropic => anthropic(&mut received, frame),
            Dialect::Gemini => gemini(&mut received, frame),
            Dialect::Responses => responses(&mut received, frame),
        }
    }
    received
}

fn add(to: &mut String, value: &Value) {
    to.push_str(value.as_str().unwrap_or_default());
}

fn set(to: &mut u64, value: &Value) {
    *to = value.as_u64().unwrap_or(*to);
}

fn stop(received: &mut ReceivedAnswer, value: &Value) {
    if let Some(word) = value.as_str() {
        word.clone_into(&mut received.stop);
    }
}

fn openai(received: &mut ReceivedAnswer, frame: &Value) {
    let first = &frame["choices"][0];
    for message in [&first["message"], &first["delta"]] {
        add(&mut received.text, &message["content"]);
        add(&mut received.thinking, &message["reasoning_content"]);
        for call in message["tool_calls"].as_array().into_iter().flatten() {
            if call["id"].is_string() {
                received.arguments.push(String::new());
            }
            add(received.arguments.last_mut().unwrap(), &call["function"]["arguments"]);
        }
    }
    stop(received, &first["finish_reason"]);
    set(&mut received.input, &frame["usage"]["prompt_tokens"]);
    set(&mut received.output, &frame["usage"]["completion_tokens"]);
}

fn anthropic(received: &mut ReceivedAnswer, frame: &Value) {
    for block in frame["content"].as_array().into_iter().flatten() {
        add(&mut received.text, &block["text"]);
        add(&mut received.thinking, &block["thinking"]);
        if block["type"] == "tool_use" {
            received.arguments.push(block["input"].to_string());
        }
    }
    if frame["content_block"]["type"] == "tool_use" {
        received.arguments.push(String::new());
    }
    let delta = &frame["delta"];
    add(&mut received.text, &delta["text"]);
    add(&mut received.thinking, &delta["thinking"]);
    if let Some(piece) = delta["partial_json"].as_str() {
        received.arguments.last_mut().unwrap().push_str(piece);
    }
    stop(received, &frame["stop_reason"]);
    stop(received, &delta["stop_reason"]);
    set(&mut received.input, &frame["usage"]["input_tokens"]);
    set(&mut received.output, &frame["usage"]["output_tokens"]);
}

fn gemini(received: &mut ReceivedAnswer, frame: &Value) {
    let candidate = &frame["candidates"][0];
    for part in candidate["content"]["parts"].as_array().into_iter().flatten() {
        let to = if part["thought"] == true { &mut received.thinking } else { &mut received.text };
        add(to, &part["text"]);
        if part["functionCall"].is_object() {
            received.arguments.push(part["functionCall"]["args"].to_string());
        }
    }
    stop(received, &candidate["finishReason"]);
    let usage = &frame["usageMetadata"];
    set(&mut received.input, &usage["promptTokenCount"]);
    if usage.is_object() {
        let tokens = |key: &str| usage[key].as_u64().unwrap_or(0);
        received.output = tokens("candidatesTokenCount") + tokens("thoughtsTokenCount");
    }
}

/// A whole answer, or an event; the last event has all of the answer once more.
fn responses(received: &mut ReceivedAnswer, frame: &Value) {
    for item in frame["output"].as_array().into_iter().flatten() {
        for part in item["content"].as_array().into_iter().flatten() {
            add(&mut received.text, &part["text"]);
        }
        for part in item["summary"].as_array().into_iter().flatten() {
            add(&mut received.thinking, &part["text"]);
        }
        if let Some(arguments) = item["arguments"].as_str().or(item["input"].as_str()) {
            received.arguments.push(arguments.to_owned());
        }
    }
    match frame["type"].as_str().unwrap_or_default() {
        "response.output_text.delta" => add(&mut received.text, &frame["delta"]),
        "response.reasoning_summary_text.delta" => add(&mut received.thinking, &frame["delta"]),
        "response.output_item.added" if frame["item"]["call_id"].is_string() => {
            received.arguments.push(String::new());
        }
        "response.function_call_arguments.delta" | "response.custom_tool_call_input.delta" => {
            add(received.arguments.last_mut().unwrap(), &frame["delta"]);
        }
        _ => {}
    }
    let ended = if frame["object"] == "response" { frame } else { &frame["response"] };
    stop(received, &ended["status"]);
    stop(received, &ended["incomplete_details"]["reason"]);
    set(&mut received.input, &ended["usage"]["input_tokens"]);
    set(&mut received.output, &ended["usage"]["output_tokens"]);
}

/// The dialect's stop reason of an answer that the output limit cut, and of a complete one.
pub fn stops(dialect: Dialect) -> (&'static str, &'static str) {
    match dialect {
        Dialect::OpenAi => ("length", "stop"),
        Dialect::Anthropic => ("max_tokens", "end_turn"),
        Dialect::Gemini => ("MAX_TOKENS", "STOP"),
        Dialect::Responses => ("max_output_tokens", "completed"),
    }
}
