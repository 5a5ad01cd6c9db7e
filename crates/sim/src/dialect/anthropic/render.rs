//! Answers in the shape of messages.

use serde_json::{Map, Value, json};

use super::binding::Prefix;
use crate::answer::{Answer, Block, Sent, SentCall, Stop, Usage};
use crate::dialect::openai::render::extend;
use crate::dialect::{Form, Render};
use crate::hash;
use crate::models::Model;
use crate::raw::{Raw, object_or_empty};
use crate::wire::{Frame, Kind};

fn stop_word(answer: &Answer) -> (String, Value) {
    match answer.stop_or_implied() {
        Stop::EndTurn => ("end_turn".to_owned(), Value::Null),
        Stop::ToolUse => ("tool_use".to_owned(), Value::Null),
        Stop::MaxTokens => ("max_tokens".to_owned(), Value::Null),
        Stop::Window => ("model_context_window_exceeded".to_owned(), Value::Null),
        Stop::StopSequence(text) => ("stop_sequence".to_owned(), json!(text)),
        Stop::Refusal => ("refusal".to_owned(), Value::Null),
        Stop::Raw(word) => (word, Value::Null),
    }
}

fn begin(answer: &Answer, render: &Render<'_>) -> Sent {
    let reasoning = answer
        .blocks
        .iter()
        .map(|block| match block {
            Block::Thinking(text) | Block::RedactedThinking(text) => {
                crate::tokens::count_output(text) as u64
            }
            _ => 0,
        })
        .sum();
    Sent {
        usage: answer.usage.unwrap_or(Usage {
            input: render.request.input_tokens,
            output: answer.output_tokens(),
            reasoning,
            ..Usage::default()
        }),
        stop: stop_word(answer).0,
        truncated: matches!(answer.stop_or_implied(), Stop::MaxTokens | Stop::Window),
        ..Sent::default()
    }
}

fn usage(usage: Usage, output: u64) -> Value {
    json!({
        "input_tokens": usage.input,
        "cache_creation_input_tokens": usage.cache_write,
        "cache_read_input_tokens": usage.cache_read,
        "cache_creation": {
            "ephemeral_5m_input_tokens": usage.cache_write,
            "ephemeral_1h_input_tokens": 0,
        },
        "output_tokens": output,
        "service_tier": "standard",
    })
}

pub(crate) fn whole(answer: &Answer, render: &mut Render<'_>) -> (String, Sent) {
    let id = message_id(render);
    let mut raw = Raw::new(hash::id(&mut render.rng, "raw", 24));
    let mut sent = begin(answer, render);
    let mut prefix = Prefix::of_answer(&render.request.body);
    let mut content = Vec::new();
    for block in &answer.blocks {
        content.push(match block {
            Block::Text(text) => {
                sent.text.push_str(text);
                prefix.text(text);
                json!({"type": "text", "text": text})
            }
            Block::Thinking(text) => {
                let signature = render.signer.bind(text, prefix.binding());
                prefix.thought(&signature);
                sent.thinking.push_str(text);
                sent.signatures.push(signature.clone());
                json!({"type": "thinking", "thinking": text, "signature": signature})
            }
            Block::RedactedThinking(text) => {
                let data = render.signer.enclose(text, prefix.binding());
                prefix.thought(&data);
                sent.signatures.push(data.clone());
                json!({"type": "redacted_thinking", "data": data})
            }
            Block::ToolCall { id, name, arguments } => {
                let call = SentCall {
                    id: tool_id(id.as_ref(), render),
                    name: name.clone(),
                    arguments: object_or_empty(arguments).to_owned(),
                };
                prefix.call(&call.id, &call.name, &parsed(&call.arguments));
                let input = raw.put(&call.arguments);
                let block = json!({
                    "type": "tool_use", "id": call.id, "name": call.name, "input": input,
                });
                sent.tool_calls.push(call);
                block
            }
        });
    }
    let (stop, sequence) = stop_word(answer);
    let mut body = json!({
        "model": render.request.model,
        "id": id,
        "type": "message",
        "role": "assistant",
        "content": content,
        "stop_reason": stop,
        "stop_sequence": sequence,
        "usage": usage(sent.usage, sent.usage.output),
    });
    extend(&mut body, &answer.extra);
    (raw.write(&body), sent)
}

/// Arguments as they come back: an object.
fn parsed(arguments: &str) -> Value {
    serde_json::from_str(object_or_empty(arguments)).unwrap_or_default()
}

fn tool_id(id: Option<&String>, render: &mut Render<'_>) -> String {
    let prefix = format!("toolu_{}01", render.infix);
    id.cloned().unwrap_or_else(|| hash::id(&mut render.rng, &prefix, 22))
}

fn message_id(render: &mut Render<'_>) -> String {
    let prefix = format!("msg_{}01", render.infix);
    hash::id(&mut render.rng, &prefix, 22)
}

/// Writes events under one name after the other.
struct Events<'a> {
    frames: Vec<Frame>,
    extra: &'a Map<String, Value>,
}

impl Events<'_> {
    fn push(&mut self, kind: Kind, mut data: Value) {
        extend(&mut data, self.extra);
        let name = data["type"].as_str().unwrap_or_default();
        let frame = format!("event: {name}\ndata: {data}\n\n");
        self.frames.push(Frame::new(kind, frame));
    }

    fn start(&mut self, index: usize, block: &Value) {
        self.push(
            Kind::Meta,
            json!({"type": "content_block_start", "index": index, "content_block": block}),
        );
        if index == 0 {
            self.push(Kind::Meta, json!({"type": "ping"}));
        }
    }

    fn delta(&mut self, kind: Kind, index: usize, delta: &Value) {
        self.push(kind, json!({"type": "content_block_delta", "index": index, "delta": delta}));
    }

    fn stop(&mut self, index: usize) {
        self.push(Kind::Meta, json!({"type": "content_block_stop", "index": index}));
    }
}

pub(crate) fn stream(answer: &Answer, render: &mut Render<'_>) -> (Vec<Frame>, Sent) {
    let id = message_id(render);
    let mut sent = begin(answer, render);
    let mut prefix = Prefix::of_answer(&render.request.body);
    let mut events = Events { frames: Vec::new(), extra: &answer.extra };
    let mut message = json!({
        "model": render.request.model,
        "id": id,
        "type": "message",
        "role": "assistant",
        "content": [],
        "stop_reason": null,
        "stop_sequence": null,
        "usage": usage(sent.usage, sent.usage.output.min(1)),
    });
    extend(&mut message, &answer.extra);
    events.push(Kind::Meta, json!({"type": "message_start", "message": message}));

    for (index, block) in answer.blocks.iter().enumerate() {
        match block {
            Block::Text(text) => {
                sent.text.push_str(text);
                prefix.text(text);
                events.start(index, &json!({"type": "text", "text": ""}));
                for piece in answer.pieces(text) {
                    let delta = json!({"type": "text_delta", "text": piece});
                    events.delta(Kind::Content, index, &delta);
                }
            }
            Block::Thinking(text) => {
                let signature = render.signer.bind(text, prefix.binding());
                prefix.thought(&signature);
                sent.thinking.push_str(text);
                sent.signatures.push(signature.clone());
                events.start(index, &json!({"type": "thinking", "thinking": "", "signature": ""}));
                for piece in answer.pieces(text) {
                    let delta = json!({"type": "thinking_delta", "thinking": piece});
                    events.delta(Kind::Content, index, &delta);
                }
                let delta = json!({"type": "signature_delta", "signature": signature});
                events.delta(Kind::Meta, index, &delta);
            }
            Block::RedactedThinking(text) => {
                let data = render.signer.enclose(text, prefix.binding());
                prefix.thought(&data);
                sent.signatures.push(data.clone());
                events.start(index, &json!({"type": "redacted_thinking", "data": data}));
            }
            Block::ToolCall { id, name, arguments } => {
                let id = tool_id(id.as_ref(), render);
                let start = json!({"type": "tool_use", "id": id, "name": name, "input": {}});
                events.start(index, &start);
                let delta =
                    |piece: &str| json!({"type": "input_json_delta", "partial_json": piece});
                events.delta(Kind::Meta, index, &delta(""));
                for piece in answer.pieces(arguments) {
                    events.delta(Kind::Content, index, &delta(piece));
                }
                prefix.call(&id, name, &parsed(arguments));
                sent.tool_calls.push(SentCall {
                    id,
                    name: name.clone(),
                    arguments: arguments.clone(),
                });
            }
        }
        events.stop(index);
    }

    let (stop, sequence) = stop_word(answer);
    let delta = json!({
        "type": "message_delta",
        "delta": {"stop_reason": stop, "stop_sequence": sequence},
        "usage": {
            "input_tokens": sent.usage.input,
            "cache_creation_input_tokens": sent.usage.cache_write,
            "cache_read_input_tokens": sent.usage.cache_read,
            "output_tokens": sent.usage.output,
        },
    });
    // Without it the reader does not know why the answer ended: part of the end.
    events.push(Kind::Terminal, delta);
    events.push(Kind::Terminal, json!({"type": "message_stop"}));
    (events.frames, sent)
}

pub(crate) fn error_frame(body: &Value, _form: Form, _behind: usize) -> String {
    format!("event: error\ndata: {body}\n\n")
}

pub(crate) fn models(models: &[Model]) -> Value {
    let data: Vec<Value> = models.iter().map(model).collect();
    json!({
        "data": data,
        "has_more": false,
        "first_id": models.first().map(|m| &m.name),
        "last_id": models.last().map(|m| &m.name),
    })
}

pub(crate) fn model(model: &Model) -> Value {
    json!({
        "type": "model",
        "id": model.name,
        "display_name": model.name,
        "created_at": "2025-01-01T00:00:00Z",
    })
}
