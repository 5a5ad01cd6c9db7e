//! Answers in the shape of `GenerateContentResponse`.

use serde_json::{Value, json};

use super::turns::signed;
use crate::answer::{Answer, Block, Sent, SentCall, Stop, Usage};
use crate::dialect::openai::render::extend;
use crate::dialect::{Form, Render};
use crate::hash;
use crate::models::Model;
use crate::raw::{Raw, object_or_empty};
use crate::wire::{Frame, Kind};

fn stop_word(answer: &Answer) -> String {
    match answer.stop_or_implied() {
        Stop::EndTurn | Stop::ToolUse | Stop::StopSequence(_) => "STOP".to_owned(),
        Stop::MaxTokens | Stop::Window => "MAX_TOKENS".to_owned(),
        Stop::Refusal => "SAFETY".to_owned(),
        Stop::Raw(word) => word,
    }
}

/// One part of the answer and the pieces in which it is streamed.
struct Part<'a> {
    /// `None` for a function call, which comes whole.
    text: Option<(&'a str, bool)>,
    call: Option<Value>,
}

/// Parts in order; fills in the record of what is sent.
fn parts<'a>(
    answer: &'a Answer,
    render: &mut Render<'_>,
    raw: &mut Raw,
    sent: &mut Sent,
) -> Vec<Part<'a>> {
    let truncated = matches!(answer.stop_or_implied(), Stop::MaxTokens | Stop::Window);
    let mut reasoning = 0;
    let mut parts = Vec::new();
    for block in &answer.blocks {
        match block {
            Block::Text(text) => {
                sent.text.push_str(text);
                parts.push(Part { text: Some((text, false)), call: None });
            }
            Block::Thinking(text) => {
                reasoning += crate::tokens::count_output(text) as u64;
                sent.thinking.push_str(text);
                parts.push(Part { text: Some((text, true)), call: None });
            }
            Block::RedactedThinking(_) => {}
            Block::ToolCall { id, name, arguments } => {
                let whole = object_or_empty(arguments);
                if truncated && whole != arguments {
                    // A call comes whole or not at all.
                    continue;
                }
                let mut call = json!({"name": name, "args": raw.put(whole)});
                if let Some(id) = id {
                    call["id"] = json!(id);
                }
                let mut part = json!({ "functionCall": call });
                if sent.tool_calls.is_empty() && render.signs {
                    let signature = render.signer.sign(&signed(name));
                    part["thoughtSignature"] = json!(signature);
                    sent.signatures.push(signature);
                }
                sent.tool_calls.push(SentCall {
                    id: id.clone().unwrap_or_default(),
                    name: name.clone(),
                    arguments: whole.to_owned(),
                });
                parts.push(Part { text: None, call: Some(part) });
            }
        }
    }
    sent.usage = answer.usage.unwrap_or(Usage {
        input: render.request.input_tokens,
        output: answer.output_tokens(),
        reasoning,
        ..Usage::default()
    });
    sent.stop = stop_word(answer);
    sent.truncated = truncated;
    parts
}

fn text_part(text: &str, thought: bool) -> Value {
    if thought { json!({"text": text, "thought": true}) } else { json!({"text": text}) }
}

fn usage(usage: Usage) -> Value {
    let prompt = usage.input + usage.cache_read + usage.cache_write;
    let mut out = json!({"promptTokenCount": prompt});
    let candidates = usage.output.saturating_sub(usage.reasoning);
    if candidates > 0 {
        out["candidatesTokenCount"] = json!(candidates);
    }
    out["totalTokenCount"] = json!(prompt + usage.output);
    if usage.cache_read > 0 {
        out["cachedContentTokenCount"] = json!(usage.cache_read);
    }
    out["promptTokensDetails"] = json!([{"modality": "TEXT", "tokenCount": prompt}]);
    if usage.reasoning > 0 {
        out["thoughtsTokenCount"] = json!(usage.reasoning);
    }
    out
}

pub(crate) fn whole(answer: &Answer, render: &mut Render<'_>) -> (String, Sent) {
    let id = hash::id(&mut render.rng, "", 22);
    let mut raw = Raw::new(hash::id(&mut render.rng, "raw", 24));
    let mut sent = Sent::default();
    let parts: Vec<Value> = parts(answer, render, &mut raw, &mut sent)
        .into_iter()
        .map(|part| match (part.text, part.call) {
            (Some((text, thought)), _) => text_part(text, thought),
            (None, call) => call.unwrap_or(Value::Null),
        })
        .collect();
    let mut candidate = json!({});
    if !parts.is_empty() {
        candidate["content"] = json!({"parts": parts, "role": "model"});
    }
    candidate["finishReason"] = json!(sent.stop);
    candidate["index"] = json!(0);
    let mut body = json!({
        "candidates": [candidate],
        "usageMetadata": usage(sent.usage),
        "modelVersion": render.request.model,
        "responseId": id,
    });
    extend(&mut body, &answer.extra);
    (raw.write(&body), sent)
}

pub(crate) fn stream(answer: &Answer, render: &mut Render<'_>) -> (Vec<Frame>, Sent) {
    let id = hash::id(&mut render.rng, "", 22);
    let mut raw = Raw::new(hash::id(&mut render.rng, "raw", 24));
    let mut sent = Sent::default();
    let parts = parts(answer, render, &mut raw, &mut sent);
    let form = render.form;
    let mut frames: Vec<Frame> = Vec::new();
    let mut so_far = Usage { output: 0, reasoning: 0, ..sent.usage };
    let mut push = |kind: Kind, candidate: Value, usage_now: Usage| {
        let mut chunk = json!({
            "candidates": [candidate],
            "usageMetadata": usage(usage_now),
            "modelVersion": render.request.model,
            "responseId": id,
        });
        extend(&mut chunk, &answer.extra);
        let text = raw.write(&chunk);
        let text = match (form.sse, form.crlf) {
            (true, true) => format!("data: {text}\r\n\r\n"),
            (true, false) => format!("data: {text}\n\n"),
            (false, _) if frames.is_empty() => format!("[{text}"),
            (false, _) => format!(",\r\n{text}"),
        };
        frames.push(Frame::new(kind, text));
    };
    let candidate =
        |part: Value| json!({"content": {"parts": [part], "role": "model"}, "index": 0});
    for part in parts {
        if let Some(call) = part.call {
            let pieces = crate::tokens::count_output(&call["functionCall"].to_string()) as u64;
            so_far.output = (so_far.output + pieces).min(sent.usage.output);
            push(Kind::Content, candidate(call), so_far);
        }
        if let Some((text, thought)) = part.text {
            for piece in answer.pieces(text) {
                so_far.output = (so_far.output + 1).min(sent.usage.output);
                so_far.reasoning =
                    (so_far.reasoning + u64::from(thought)).min(sent.usage.reasoning);
                push(Kind::Content, candidate(text_part(piece, thought)), so_far);
            }
        }
    }
    let mut last = candidate(json!({"text": ""}));
    last["finishReason"] = json!(sent.stop);
    push(Kind::Terminal, last, sent.usage);
    if !form.sse {
        frames.push(Frame::new(Kind::Terminal, "]"));
    }
    (frames, sent)
}

pub(crate) fn error_frame(body: &Value, form: Form, behind: usize) -> String {
    match (form.sse, form.crlf) {
        (true, true) => format!("data: {body}\r\n\r\n"),
        (true, false) => format!("data: {body}\n\n"),
        (false, _) if behind == 0 => format!("[{body}]"),
        (false, _) => format!(",\r\n{body}]"),
    }
}

pub(crate) fn models(models: &[Model]) -> Value {
    let models: Vec<Value> = models.iter().map(model).collect();
    json!({ "models": models })
}

pub(crate) fn model(model: &Model) -> Value {
    let methods = match model.dimensions {
        0 => ["generateContent", "countTokens", "streamGenerateContent"].as_slice(),
        _ => &["embedContent", "countTokens"],
    };
    json!({
        "name": format!("models/{}", model.name),
        "version": "001",
        "displayName": model.name,
        "inputTokenLimit": model.context,
        "outputTokenLimit": model.output,
        "supportedGenerationMethods": methods,
    })
}
