//! Answers in the shape of chat completions.

use serde_json::{Map, Value, json};

use crate::answer::{Answer, Block, Sent, SentCall, Stop, Usage};
use crate::dialect::{Form, Render};
use crate::hash;
use crate::models::Model;
use crate::wire::{Frame, Kind};

/// What a chat completion has of an answer: one text, one reasoning, the calls.
fn sent(answer: &Answer, render: &mut Render<'_>) -> Sent {
    let mut sent = Sent::default();
    for block in &answer.blocks {
        match block {
            Block::Text(text) => sent.text.push_str(text),
            Block::Thinking(text) => sent.thinking.push_str(text),
            Block::RedactedThinking(_) => {}
            Block::ToolCall { id, name, arguments } => sent.tool_calls.push(SentCall {
                id: id.clone().unwrap_or_else(|| hash::id(&mut render.rng, "call_", 24)),
                name: name.clone(),
                arguments: arguments.clone(),
            }),
        }
    }
    let reasoning = crate::tokens::count_output(&sent.thinking) as u64;
    sent.usage = answer.usage.unwrap_or(Usage {
        input: render.request.input_tokens,
        output: answer.output_tokens(),
        reasoning,
        ..Usage::default()
    });
    let stop = answer.stop_or_implied();
    sent.truncated = matches!(stop, Stop::MaxTokens | Stop::Window);
    sent.stop = match stop {
        Stop::EndTurn | Stop::StopSequence(_) => "stop".to_owned(),
        Stop::ToolUse => "tool_calls".to_owned(),
        Stop::MaxTokens | Stop::Window => "length".to_owned(),
        Stop::Refusal => "content_filter".to_owned(),
        Stop::Raw(word) => word,
    };
    sent
}

fn usage(usage: Usage) -> Value {
    let prompt = usage.input + usage.cache_read + usage.cache_write;
    json!({
        "prompt_tokens": prompt,
        "completion_tokens": usage.output,
        "total_tokens": prompt + usage.output,
        "prompt_tokens_details": {"cached_tokens": usage.cache_read, "audio_tokens": 0},
        "completion_tokens_details": {
            "reasoning_tokens": usage.reasoning,
            "audio_tokens": 0,
            "accepted_prediction_tokens": 0,
            "rejected_prediction_tokens": 0,
        },
    })
}

pub(crate) fn whole(answer: &Answer, render: &mut Render<'_>) -> (String, Sent) {
    let id = hash::id(&mut render.rng, "chatcmpl-", 29);
    let sent = sent(answer, render);
    let mut message = Map::new();
    message.insert("role".into(), json!("assistant"));
    let silent = sent.text.is_empty() && !sent.tool_calls.is_empty();
    message.insert("content".into(), if silent { Value::Null } else { json!(sent.text) });
    if !sent.thinking.is_empty() {
        message.insert("reasoning_content".into(), json!(sent.thinking));
    }
    if !sent.tool_calls.is_empty() {
        let calls: Vec<Value> = sent
            .tool_calls
            .iter()
            .map(|call| {
                json!({
                    "id": call.id,
                    "type": "function",
                    "function": {"name": call.name, "arguments": call.arguments},
                })
            })
            .collect();
        message.insert("tool_calls".into(), Value::Array(calls));
    }
    message.insert("refusal".into(), Value::Null);
    message.insert("annotations".into(), json!([]));
    let mut body = json!({
        "id": id,
        "object": "chat.completion",
        "created": render.created,
        "model": render.request.model,
        "choices": [{
            "index": 0,
            "message": message,
            "logprobs": null,
            "finish_reason": sent.stop,
        }],
        "usage": usage(sent.usage),
        "service_tier": "default",
        "system_fingerprint": fingerprint(render),
    });
    extend(&mut body, &answer.extra);
    (body.to_string(), sent)
}

pub(crate) fn stream(answer: &Answer, render: &mut Render<'_>) -> (Vec<Frame>, Sent) {
    let id = hash::id(&mut render.rng, "chatcmpl-", 29);
    let sent = sent(answer, render);
    let fingerprint = fingerprint(render);
    let chunk = |choices: Value, usage: Option<Value>| {
        let mut chunk = json!({
            "id": id,
            "object": "chat.completion.chunk",
            "created": render.created,
            "model": render.request.model,
            "service_tier": "default",
            "system_fingerprint": fingerprint,
            "choices": choices,
        });
        if render.request.include_usage {
            chunk["usage"] = usage.unwrap_or(Value::Null);
        }
        extend(&mut chunk, &answer.extra);
        format!("data: {chunk}\n\n")
    };
    let delta = |delta: Value| {
        chunk(json!([{"index": 0, "delta": delta, "logprobs": null, "finish_reason": null}]), None)
    };

    let silent = sent.text.is_empty() && !sent.tool_calls.is_empty();
    let opening = if silent { Value::Null } else { json!("") };
    let mut frames = vec![Frame::new(
        Kind::Meta,
        delta(json!({"role": "assistant", "content": opening, "refusal": null})),
    )];
    for piece in answer.pieces(&sent.thinking) {
        frames.push(Frame::new(Kind::Content, delta(json!({"reasoning_content": piece}))));
    }
    for piece in answer.pieces(&sent.text) {
        frames.push(Frame::new(Kind::Content, delta(json!({"content": piece}))));
    }
    for (index, call) in sent.tool_calls.iter().enumerate() {
        let opening = json!({"tool_calls": [{
            "index": index,
            "id": call.id,
            "type": "function",
            "function": {"name": call.name, "arguments": ""},
        }]});
        frames.push(Frame::new(Kind::Meta, delta(opening)));
        for piece in answer.pieces(&call.arguments) {
            let fragment =
                json!({"tool_calls": [{"index": index, "function": {"arguments": piece}}]});
            frames.push(Frame::new(Kind::Content, delta(fragment)));
        }
    }
    let finish = json!([{"index": 0, "delta": {}, "logprobs": null, "finish_reason": sent.stop}]);
    frames.push(Frame::new(Kind::Terminal, chunk(finish, None)));
    if render.request.include_usage {
        frames.push(Frame::new(Kind::Terminal, chunk(json!([]), Some(usage(sent.usage)))));
    }
    frames.push(Frame::new(Kind::Terminal, "data: [DONE]\n\n"));
    (frames, sent)
}

pub(crate) fn error_frame(body: &Value, _form: Form, _behind: usize) -> String {
    format!("data: {body}\n\n")
}

pub(crate) fn models(models: &[Model]) -> Value {
    let data: Vec<Value> = models.iter().map(model).collect();
    json!({"object": "list", "data": data})
}

pub(crate) fn model(model: &Model) -> Value {
    json!({"id": model.name, "object": "model", "created": 1_715_367_049, "owned_by": "system"})
}

/// The same for the same model, as long as the backend does not change.
fn fingerprint(render: &Render<'_>) -> String {
    let seed = hash::seed(&[b"fingerprint", render.request.model.as_bytes()]);
    format!("fp_{:010x}", seed & 0xff_ffff_ffff)
}

/// Puts the unknown fields at the top of a document.
pub(crate) fn extend(document: &mut Value, extra: &Map<String, Value>) {
    if let Value::Object(fields) = document {
        fields.extend(extra.iter().map(|(key, value)| (key.clone(), value.clone())));
    }
}
