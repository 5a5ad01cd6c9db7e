//! Answers in the shape of responses.

use serde_json::{Value, json};

use super::{errors, read::is_custom};
pub(crate) use crate::dialect::openai::render::{model, models};
use crate::{
    answer::{Answer, Block, Sent, SentCall, Stop, Usage},
    dialect::{Form, Render, openai::render::extend},
    hash::{self, Binding},
    wire::{Frame, Kind},
};

/// An item of the output.
struct Item {
    value: Value,
    what: What,
}

/// What comes of an item in pieces.
enum What {
    Text(String),
    Thinking(String),
    Encrypted,
    Call(String),
    Custom(String),
    Compaction,
}

fn items(answer: &Answer, render: &mut Render<'_>) -> (Vec<Item>, Sent) {
    let mut sent = Sent::default();
    let mut items = Vec::new();
    let encrypts = crate::dialect::items(&render.request.body["include"])
        .iter()
        .any(|what| what == "reasoning.encrypted_content");
    if render.request.asks_for_compaction {
        let texts = answer.blocks.iter().filter_map(|block| match block {
            Block::Text(text) => Some(text.as_str()),
            _ => None,
        });
        let data = render.signer.enclose(&texts.collect::<String>(), Binding::default());
        let id = hash::id(&mut render.rng, "cmp_", 48);
        let value = json!({"id": id, "type": "compaction", "encrypted_content": data});
        items.push(Item { value, what: What::Compaction });
    }
    let spoken = answer.blocks.iter().filter(|_| !render.request.asks_for_compaction);
    for block in spoken {
        items.push(match block {
            Block::Text(text) => {
                sent.text.push_str(text);
                let part = json!({"type": "output_text", "text": text, "annotations": [], "logprobs": []});
                let id = hash::id(&mut render.rng, "msg_", 48);
                let value = json!({"id": id, "type": "message", "status": "completed", "role": "assistant", "content": [part]});
                Item { value, what: What::Text(text.clone()) }
            }
            Block::Thinking(text) | Block::RedactedThinking(text) => {
                let shown = matches!(block, Block::Thinking(_));
                let id = hash::id(&mut render.rng, "rs_", 48);
                let summary = if shown { json!([{"type": "summary_text", "text": text}]) } else { json!([]) };
                let mut value = json!({"id": id, "type": "reasoning", "summary": summary});
                if encrypts {
                    let data = render.signer.enclose(text, Binding::default());
                    sent.signatures.push(data.clone());
                    value["encrypted_content"] = json!(data);
                }
                if shown {
                    sent.thinking.push_str(text);
                }
                let what = if shown { What::Thinking(text.clone()) } else { What::Encrypted };
                Item { value, what }
            }
            Block::ToolCall { id, name, arguments } => {
                let call = id.clone().unwrap_or_else(|| hash::id(&mut render.rng, "call_", 24));
                sent.tool_calls.push(SentCall {
                    id: call.clone(),
                    name: name.clone(),
                    arguments: arguments.clone(),
                });
                if is_custom(&render.request.body, name) {
                    let read: Value = serde_json::from_str(arguments).unwrap_or_default();
                    let input = read["input"].as_str().unwrap_or(arguments).to_owned();
                    let id = hash::id(&mut render.rng, "ctc_", 48);
                    let value = json!({"id": id, "type": "custom_tool_call", "status": "completed", "call_id": call, "name": name, "input": input});
                    Item { value, what: What::Custom(input) }
                } else {
                    let id = hash::id(&mut render.rng, "fc_", 48);
                    let value = json!({"id": id, "type": "function_call", "status": "completed", "call_id": call, "name": name, "arguments": arguments});
                    Item { value, what: What::Call(arguments.clone()) }
                }
            }
        });
    }
    sent.usage = answer.usage.unwrap_or(Usage {
        input: render.request.input_tokens,
        output: answer.output_tokens(),
        reasoning: crate::tokens::count_output(&sent.thinking) as u64,
        ..Usage::default()
    });
    let stop = answer.stop_or_implied();
    sent.truncated = matches!(stop, Stop::MaxTokens | Stop::Window);
    sent.stop = match stop {
        Stop::MaxTokens | Stop::Window => "max_output_tokens".to_owned(),
        Stop::Refusal => "content_filter".to_owned(),
        Stop::Raw(word) => word,
        _ => "completed".to_owned(),
    };
    (items, sent)
}

fn usage(usage: Usage) -> Value {
    let input = usage.input + usage.cache_read + usage.cache_write;
    json!({
        "input_tokens": input,
        "input_tokens_details": {"cached_tokens": usage.cache_read, "cache_write_tokens": usage.cache_write},
        "output_tokens": usage.output,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning},
        "total_tokens": input + usage.output,
    })
}

/// The answer as an object: `None` while it is in progress.
fn response(
    id: &str,
    answer: &Answer,
    render: &Render<'_>,
    ended: Option<(&[Item], &Sent)>,
) -> Value {
    let incomplete = ended.map(|(_, sent)| sent.stop.as_str()).filter(|stop| *stop != "completed");
    let status = match (ended.is_some(), incomplete) {
        (false, _) => "in_progress",
        (true, None) => "completed",
        (true, Some(_)) => "incomplete",
    };
    let body = &render.request.body;
    let or = |name: &str, default: Value| match &body[name] {
        Value::Null => default,
        asked => asked.clone(),
    };
    let output: Vec<Value> = ended
        .map(|(items, _)| items.iter().map(|item| item.value.clone()).collect())
        .unwrap_or_default();
    let mut object = json!({
        "id": id,
        "object": "response",
        "created_at": render.created,
        "status": status,
        "background": false,
        "error": null,
        "incomplete_details": incomplete.map(|reason| json!({"reason": reason})),
        "instructions": body["instructions"],
        "max_output_tokens": body["max_output_tokens"],
        "model": render.request.model,
        "output": output,
        "parallel_tool_calls": or("parallel_tool_calls", json!(true)),
        "previous_response_id": null,
        "reasoning": {"effort": body["reasoning"]["effort"], "summary": null},
        "service_tier": "default",
        "store": or("store", json!(true)),
        "temperature": or("temperature", json!(1.0)),
        "text": {"format": {"type": "text"}},
        "tool_choice": or("tool_choice", json!("auto")),
        "tools": or("tools", json!([])),
        "top_p": 1.0,
        "truncation": "disabled",
        "usage": ended.map(|(_, sent)| usage(sent.usage)),
        "metadata": {},
    });
    extend(&mut object, &answer.extra);
    object
}

pub(crate) fn whole(answer: &Answer, render: &mut Render<'_>) -> (String, Sent) {
    let id = hash::id(&mut render.rng, "resp_", 48);
    let (items, sent) = items(answer, render);
    (response(&id, answer, render, Some((&items, &sent))).to_string(), sent)
}

/// Numbers events.
struct Events {
    frames: Vec<Frame>,
    sequence: u64,
}

impl Events {
    fn push(&mut self, kind: Kind, name: &str, mut fields: Value) {
        let mut event = json!({"type": name, "sequence_number": self.sequence});
        if let (Value::Object(event), Value::Object(fields)) = (&mut event, &mut fields) {
            event.append(fields);
        }
        self.sequence += 1;
        self.frames.push(Frame::new(kind, format!("event: {name}\ndata: {event}\n\n")));
    }
}

pub(crate) fn stream(answer: &Answer, render: &mut Render<'_>) -> (Vec<Frame>, Sent) {
    let id = hash::id(&mut render.rng, "resp_", 48);
    let (items, sent) = items(answer, render);
    let mut events = Events { frames: Vec::new(), sequence: 0 };
    let started = response(&id, answer, render, None);
    for name in ["response.created", "response.in_progress"] {
        events.push(Kind::Meta, name, json!({"response": started}));
    }
    for (at, item) in items.iter().enumerate() {
        one(&mut events, answer, at, item);
    }
    let name = if sent.stop == "completed" { "response.completed" } else { "response.incomplete" };
    let ended = response(&id, answer, render, Some((&items, &sent)));
    events.push(Kind::Terminal, name, json!({"response": ended}));
    (events.frames, sent)
}

fn one(events: &mut Events, answer: &Answer, at: usize, item: &Item) {
    let id = &item.value["id"];
    let mut started = item.value.clone();
    let added = |events: &mut Events, started: Value| {
        events.push(
            Kind::Meta,
            "response.output_item.added",
            json!({"output_index": at, "item": started}),
        );
    };
    match &item.what {
        What::Text(text) => {
            started["content"] = json!([]);
            started["status"] = json!("in_progress");
            added(events, started);
            let position = json!({"item_id": id, "output_index": at, "content_index": 0});
            let with = |more: Value| merged(&position, more);
            let part =
                json!({"type": "output_text", "text": "", "annotations": [], "logprobs": []});
            events.push(Kind::Meta, "response.content_part.added", with(json!({"part": part})));
            for piece in answer.pieces(text) {
                events.push(
                    Kind::Content,
                    "response.output_text.delta",
                    with(json!({"delta": piece, "logprobs": []})),
                );
            }
            events.push(
                Kind::Meta,
                "response.output_text.done",
                with(json!({"text": text, "logprobs": []})),
            );
            events.push(
                Kind::Meta,
                "response.content_part.done",
                with(json!({"part": item.value["content"][0]})),
            );
        }
        What::Thinking(text) => {
            started["summary"] = json!([]);
            added(events, started);
            let position = json!({"item_id": id, "output_index": at, "summary_index": 0});
            let with = |more: Value| merged(&position, more);
            let part = json!({"type": "summary_text", "text": ""});
            events.push(
                Kind::Meta,
                "response.reasoning_summary_part.added",
                with(json!({"part": part})),
            );
            for piece in answer.pieces(text) {
                events.push(
                    Kind::Content,
                    "response.reasoning_summary_text.delta",
                    with(json!({"delta": piece})),
                );
            }
            events.push(
                Kind::Meta,
                "response.reasoning_summary_text.done",
                with(json!({"text": text})),
            );
            events.push(
                Kind::Meta,
                "response.reasoning_summary_part.done",
                with(json!({"part": item.value["summary"][0]})),
            );
        }
        What::Encrypted | What::Compaction => added(events, started),
        What::Call(text) | What::Custom(text) => {
            let (field, name) = match &item.what {
                What::Custom(_) => ("input", "response.custom_tool_call_input"),
                _ => ("arguments", "response.function_call_arguments"),
            };
            started[field] = json!("");
            started["status"] = json!("in_progress");
            added(events, started);
            let position = json!({"item_id": id, "output_index": at});
            for piece in answer.pieces(text) {
                events.push(
                    Kind::Content,
                    &format!("{name}.delta"),
                    merged(&position, json!({"delta": piece})),
                );
            }
            events.push(
                Kind::Meta,
                &format!("{name}.done"),
                merged(&position, json!({field: text})),
            );
        }
    }
    events.push(
        Kind::Meta,
        "response.output_item.done",
        json!({"output_index": at, "item": item.value}),
    );
}

fn merged(position: &Value, mut more: Value) -> Value {
    let mut all = position.clone();
    if let (Value::Object(all), Value::Object(more)) = (&mut all, &mut more) {
        all.append(more);
    }
    all
}

pub(crate) fn error_frame(body: &Value, _form: Form, behind: usize) -> String {
    format!("event: response.failed\ndata: {}\n\n", errors::failed(body, behind))
}
