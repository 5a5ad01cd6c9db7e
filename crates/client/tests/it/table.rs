//! The table of translations: each row is shown in all pairs of dialects.

use std::{convert::Infallible, sync::LazyLock};

use bytes::Bytes;
use futures_util::StreamExt;
use http_body_util::Full;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use steadfast_client::{
    ClientBody, LlmClient, Provider, Providers,
    dialect::{StreamEncoder, codec, translation::check},
};
use steadfast_core::{Dialect, Failure, OnUnsupported, Reason};
use tower::{ServiceExt, service_fn};

use crate::fixtures::{caller, decode, encode, try_encode};

/// The table itself.
const ROWS: &str = include_str!("../../data/translation.jsonl");

#[derive(Debug, Deserialize)]
pub(crate) struct Row {
    pub(crate) dialect: Dialect,
    #[serde(rename = "where")]
    pub(crate) side: String,
    pub(crate) field: String,
    pub(crate) like: Option<String>,
    example: Option<Value>,
    #[serde(flatten)]
    rest: Map<String, Value>,
}

impl Row {
    /// Whether it is a field of the requests of `dialect`.
    pub(crate) fn is_request_of(&self, dialect: Dialect) -> bool {
        self.side == "request" && self.like.is_none() && self.dialect == dialect
    }

    /// Whether the dialect `to` has no word for it.
    pub(crate) fn is_refused(&self, to: Dialect) -> bool {
        self.rest.get(to.as_str()).is_some_and(|cell| cell == "refused")
    }

    pub(crate) fn cell(&self, to: Dialect) -> &Value {
        &self.rest[to.as_str()]
    }
}

pub(crate) fn rows() -> &'static [Row] {
    static READ: LazyLock<Vec<Row>> =
        LazyLock::new(|| ROWS.lines().map(|line| serde_json::from_str(line).unwrap()).collect());
    &READ
}

/// The smallest request, with the fields of an example over it.
pub(crate) fn request_of(row: &Row) -> String {
    let mut body = match row.dialect {
        Dialect::OpenAi => {
            json!({"model": "gpt-4o", "messages": [{"role": "user", "content": "hi"}]})
        }
        Dialect::Anthropic => json!({"model": "claude-sonnet-4-5", "max_tokens": 99,
            "messages": [{"role": "user", "content": "hi"}]}),
        Dialect::Gemini => json!({"contents": [{"role": "user", "parts": [{"text": "hi"}]}]}),
        Dialect::Responses => {
            json!({"model": "gpt-4o", "input": [{"role": "user", "content": "hi"}]})
        }
    };
    over(&mut body, row);
    body.to_string()
}

/// The smallest answer, with the fields of an example over it.
fn whole_of(row: &Row) -> Value {
    let mut body = match row.dialect {
        Dialect::OpenAi => json!({"id": "c", "model": "gpt-x", "choices": [{"index": 0,
            "message": {"role": "assistant", "content": "hi"}, "finish_reason": "stop"}]}),
        Dialect::Anthropic => json!({"id": "m", "type": "message", "role": "assistant",
            "model": "claude-x", "content": [{"type": "text", "text": "hi"}],
            "stop_reason": "end_turn", "stop_sequence": null,
            "usage": {"input_tokens": 1, "output_tokens": 1}}),
        Dialect::Gemini => json!({"candidates": [{"content": {"role": "model",
            "parts": [{"text": "hi"}]}, "finishReason": "STOP", "index": 0}], "responseId": "r"}),
        Dialect::Responses => json!({"id": "resp_1", "object": "response", "status": "completed",
            "model": "gpt-x", "output": [{"id": "msg_1", "type": "message", "role": "assistant",
                "status": "completed", "content": [{"type": "output_text", "text": "hi"}]}],
            "usage": {"input_tokens": 1, "output_tokens": 1}}),
    };
    over(&mut body, row);
    body
}

fn over(body: &mut Value, row: &Row) {
    for (name, value) in row.example.as_ref().and_then(Value::as_object).unwrap() {
        body[name] = value.clone();
    }
}

/// A model of each dialect that takes what models usually take.
pub(crate) fn model(to: Dialect) -> &'static str {
    match to {
        Dialect::OpenAi => "gpt-4o",
        Dialect::Anthropic => "claude-sonnet-4-5",
        Dialect::Gemini => "gemini-2.5-flash",
        Dialect::Responses => "gpt-4o",
    }
}

/// The texts in an example that have to come through: those with MARK in them.
fn marks(value: &Value, out: &mut Vec<String>) {
    match value {
        Value::String(text) if text.contains("MARK") => out.push(text.clone()),
        Value::Array(items) => items.iter().for_each(|item| marks(item, out)),
        Value::Object(fields) => {
            out.extend(fields.keys().filter(|name| name.contains("MARK")).cloned());
            fields.values().for_each(|item| marks(item, out));
        }
        _ => {}
    }
}

/// The marks in a body, with the names of the fields that they stand in.
pub(crate) fn marked(value: &Value) -> Vec<(String, String)> {
    fn walk(value: &Value, path: &str, out: &mut Vec<(String, String)>) {
        match value {
            Value::String(text) if text.contains("MARK") => {
                out.push((path.to_owned(), mark(text)));
            }
            Value::Array(items) => items.iter().for_each(|item| walk(item, path, out)),
            Value::Object(fields) => {
                for (name, item) in fields {
                    let kind = fields.get("type").and_then(Value::as_str).unwrap_or_default();
                    walk(item, &format!("{path}.{kind}.{name}"), out);
                }
            }
            _ => {}
        }
    }
    let mut out = Vec::new();
    walk(value, "", &mut out);
    out
}

/// The part of a text that has to come through: as it stands inside a string that is JSON itself, or in a
/// data URL.
fn mark(text: &str) -> String {
    let part = text.rsplit([',', '"', ':']).find(|part| part.contains("MARK"));
    part.unwrap_or(text).trim_end_matches('}').to_owned()
}

/// What has to be in the translation of a row that is translated.
fn shown(row: &Row, cell: &Value) -> Vec<String> {
    if let Some(shows) = cell["shows"].as_str() {
        return vec![shows.to_owned()];
    }
    let mut texts = Vec::new();
    marks(row.example.as_ref().unwrap(), &mut texts);
    assert!(!texts.is_empty(), "{}: nothing to show", row.field);
    texts.iter().map(|text| mark(text)).collect()
}

#[test]
fn every_row_of_requests_is_translated_named_or_refused() {
    let mut wrong = Vec::new();
    for row in rows().iter().filter(|row| row.side == "request" && row.like.is_none()) {
        let body = request_of(row);
        let read = decode(row.dialect, &body);
        let own = encode(row.dialect, &read);
        assert!(own.starts_with(body.trim_end_matches('}')), "{}: {own}", row.field);
        for to in Dialect::ALL {
            let mut request = read.clone();
            if to == row.dialect {
                assert!(check(&request, to).unwrap().is_empty(), "{}", row.field);
                continue;
            }
            let cell = row.cell(to);
            request.model = cell["model"].as_str().unwrap_or(model(to)).into();
            let checked = check(&request, to);
            let name = format!("{} to {to}: {} {body}", row.dialect, row.field);
            match (cell.as_str(), checked) {
                (Some("refused"), Err(failure)) => {
                    // The row, or one above it.
                    let named = (1..=row.field.len()).any(|end| {
                        let path = row.field.get(..end).unwrap_or_default();
                        let ends = failure.message().split([' ', ':', '(', ')']);
                        ends.into_iter().any(|it| it == path)
                    });
                    if failure.reason() != Reason::Unsupported || !named {
                        wrong.push(format!("{name}: {failure}"));
                    }
                }
                (Some("left_out"), Ok(left_out)) => {
                    if !left_out.names().any(|left| left == row.field) {
                        wrong.push(format!("{name}: not named in `{left_out}`"));
                    }
                    let refusing = {
                        request.on_unsupported = OnUnsupported::Refuse;
                        check(&request, to)
                    };
                    if refusing.is_ok() {
                        wrong.push(format!("{name}: not refused where the operator says so"));
                    }
                }
                (None, Ok(left_out)) => match try_encode(to, &request) {
                    Ok(written) => {
                        for text in shown(row, cell) {
                            if !written.contains(&text) {
                                wrong.push(format!("{name}: no {text} in {written}"));
                            }
                        }
                        if left_out.names().any(|left| left == row.field) {
                            wrong.push(format!("{name}: translated and named"));
                        }
                    }
                    Err(failure) => wrong.push(format!("{name}: {failure}")),
                },
                (_, checked) => wrong.push(format!("{name}: {checked:?}")),
            }
        }
    }
    assert!(wrong.is_empty(), "{} rows:\n{}", wrong.len(), wrong.join("\n"));
}

/// The frames of a stream that says the same as a whole answer.
fn frames_of(dialect: Dialect, whole: &Value) -> Vec<Value> {
    match dialect {
        Dialect::OpenAi => {
            let mut chunk = whole.clone();
            let mut last = whole.clone();
            for answer in chunk["choices"].as_array_mut().unwrap() {
                let answer = answer.as_object_mut().unwrap();
                let mut delta = answer.shift_remove("message").unwrap();
                for (n, call) in
                    delta["tool_calls"].as_array_mut().into_iter().flatten().enumerate()
                {
                    call["index"] = json!(n);
                }
                answer.insert("delta".into(), delta);
                answer.insert("finish_reason".into(), Value::Null);
            }
            for answer in last["choices"].as_array_mut().unwrap() {
                let answer = answer.as_object_mut().unwrap();
                answer.shift_remove("message");
                answer.shift_remove("logprobs");
                answer.insert("delta".into(), json!({}));
            }
            vec![chunk, last]
        }
        Dialect::Anthropic => {
            let mut start = whole.clone();
            start["content"] = json!([]);
            start["stop_reason"] = Value::Null;
            let mut out = vec![json!({"type": "message_start", "message": start})];
            for (n, block) in whole["content"].as_array().unwrap().iter().enumerate() {
                let mut started = block.clone();
                let mut deltas = Vec::new();
                match block["type"].as_str().unwrap() {
                    "text" => {
                        deltas.push(json!({"type": "text_delta", "text": block["text"]}));
                        started["text"] = json!("");
                        if let Some(citations) =
                            started.as_object_mut().unwrap().shift_remove("citations")
                        {
                            deltas
                                .push(json!({"type": "citations_delta", "citation": citations[0]}));
                        }
                    }
                    "thinking" => {
                        deltas
                            .push(json!({"type": "thinking_delta", "thinking": block["thinking"]}));
                        deltas.push(
                            json!({"type": "signature_delta", "signature": block["signature"]}),
                        );
                        (started["thinking"], started["signature"]) = (json!(""), json!(""));
                    }
                    "tool_use" => {
                        deltas.push(json!({"type": "input_json_delta", "partial_json": block["input"].to_string()}));
                        started["input"] = json!({});
                    }
                    _ => {}
                }
                out.push(
                    json!({"type": "content_block_start", "index": n, "content_block": started}),
                );
                for delta in deltas {
                    out.push(json!({"type": "content_block_delta", "index": n, "delta": delta}));
                }
                out.push(json!({"type": "content_block_stop", "index": n}));
            }
            let delta = json!({"stop_reason": whole["stop_reason"], "stop_sequence": whole["stop_sequence"], "container": whole["container"]});
            out.push(json!({"type": "message_delta", "delta": delta, "usage": whole["usage"]}));
            out.push(json!({"type": "message_stop"}));
            out
        }
        Dialect::Gemini => vec![whole.clone()],
        Dialect::Responses => {
            let mut started = whole.clone();
            (started["output"], started["status"]) = (json!([]), json!("in_progress"));
            let mut out = vec![
                json!({"type": "response.created", "sequence_number": 0, "response": started}),
            ];
            for (at, item) in whole["output"].as_array().unwrap().iter().enumerate() {
                for name in ["added", "done"] {
                    out.push(json!({"type": format!("response.output_item.{name}"),
                        "sequence_number": out.len(), "output_index": at, "item": item}));
                }
            }
            let status = whole["status"].as_str().unwrap();
            out.push(json!({"type": format!("response.{status}"), "sequence_number": out.len(), "response": whole}));
            out
        }
    }
}

fn sse(dialect: Dialect, frames: &[Value]) -> Bytes {
    let mut out = String::new();
    for frame in frames {
        out.push_str(&format!("data: {frame}\n\n"));
    }
    if dialect == Dialect::OpenAi {
        out.push_str("data: [DONE]\n\n");
    }
    out.into()
}

/// What a caller of the dialect `to` gets of the answer `body` of a provider of `from`, and what the log
/// says.
async fn answer(
    from: Dialect,
    to: Dialect,
    stream: bool,
    body: Bytes,
) -> (Result<String, Failure>, String) {
    let provider = Provider::new("p", from).without_credential();
    let kind = if stream { "text/event-stream" } else { "application/json" };
    let service = service_fn(move |_: http::Request<ClientBody>| {
        let response = http::Response::builder().header("content-type", kind);
        std::future::ready(Ok::<_, Infallible>(response.body(Full::new(body.clone())).unwrap()))
    });
    let client = LlmClient::with_service(Providers::new([provider]).unwrap(), service);
    let smallest = Row {
        dialect: to,
        side: "request".into(),
        field: String::new(),
        like: None,
        example: Some(json!({})),
        rest: Map::new(),
    };
    let mut request = decode(to, &request_of(&smallest));
    request.model = model(from).into();
    request.stream = stream;
    let log = request.context.log.clone();
    let answered = client.oneshot(request).await;
    let written = async {
        let answer = answered?;
        if !stream {
            let answer = answer.collect().await?;
            let written = codec(to).encode_answer(&answer, &caller())?;
            return Ok(String::from_utf8(written.to_vec()).unwrap());
        }
        let mut encoder = StreamEncoder::new(to, &caller(), from);
        let mut out = Vec::new();
        let mut answer = std::pin::pin!(answer);
        while let Some(event) = answer.next().await {
            out.extend_from_slice(&encoder.encode(&event?)?);
        }
        Ok(String::from_utf8(out).unwrap())
    };
    (written.await, log.to_string())
}

#[tokio::test]
async fn every_row_of_answers_is_translated_named_or_fails() {
    let mut wrong = Vec::new();
    for row in rows().iter().filter(|row| row.side == "answer" && row.example.is_some()) {
        let whole = whole_of(row);
        let frames = sse(row.dialect, &frames_of(row.dialect, &whole));
        for to in Dialect::ALL.into_iter().filter(|to| *to != row.dialect) {
            let cell = row.cell(to);
            for stream in [false, true] {
                let name =
                    format!("{} to {to}, stream {stream}: {} {whole}", row.dialect, row.field);
                let body = if stream { frames.clone() } else { whole.to_string().into() };
                let (written, log) = answer(row.dialect, to, stream, body).await;
                match (cell.as_str(), written) {
                    (Some("refused"), Err(failure)) => {
                        if failure.evidence() != "translation:answer" {
                            wrong.push(format!("{name}: {failure}"));
                        }
                    }
                    (Some("left_out"), Ok(_)) => {
                        let last = row.field.rsplit(['.']).next().unwrap();
                        if !log.contains(last) {
                            wrong.push(format!("{name}: not named in `{log}`"));
                        }
                    }
                    (Some("bookkeeping"), Ok(_)) => {}
                    (None, Ok(written)) => {
                        for text in shown(row, cell) {
                            if !written.contains(&text) {
                                wrong.push(format!("{name}: no {text} in {written}"));
                            }
                        }
                    }
                    (_, written) => wrong.push(format!("{name}: {written:?}")),
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{} rows:\n{}", wrong.len(), wrong.join("\n"));
}

/// Where the table begins in the page, and where it ends.
const MADE: (&str, &str) =
    ("<!-- made from crates/client/data/translation.jsonl -->\n", "<!-- until here -->\n");

/// The page.
const PAGE: &str = include_str!("../../../../docs/translation.md");

/// A cell of the page.
fn shown_cell(cell: &Value) -> String {
    match cell.as_str() {
        Some("left_out") => "left out".to_owned(),
        Some("refused") => "**refused**".to_owned(),
        Some(other) => other.to_owned(),
        None => cell["translated"].as_str().unwrap().to_owned(),
    }
}

fn tables() -> String {
    let mut out = String::new();
    for (side, title) in [("request", "Requests"), ("answer", "Answers")] {
        for dialect in Dialect::ALL {
            let others: Vec<Dialect> =
                Dialect::ALL.into_iter().filter(|other| *other != dialect).collect();
            let names: Vec<&str> = others.iter().map(|other| other.as_str()).collect();
            out.push_str(&format!("\n### {title}: {}\n\n", dialect.as_str()));
            out.push_str(&format!(
                "| field | {} |\n|---{}|\n",
                names.join(" | "),
                "|---".repeat(names.len())
            ));
            for row in rows().iter().filter(|row| row.dialect == dialect && row.side == side) {
                if let Some(like) = &row.like {
                    let of = if like.is_empty() {
                        "the whole answer".into()
                    } else {
                        format!("`{like}`")
                    };
                    let cells = format!(" as {of} |").repeat(others.len());
                    out.push_str(&format!("| `{}` |{cells}\n", row.field));
                    continue;
                }
                let cells = others.iter().map(|to| shown_cell(row.cell(*to)));
                let cells: Vec<String> = cells.collect();
                out.push_str(&format!("| `{}` | {} |\n", row.field, cells.join(" | ")));
            }
        }
    }
    out
}

#[test]
fn the_page_is_made_from_the_table() {
    let (before, rest) = PAGE.split_once(MADE.0).unwrap();
    let (_, after) = rest.split_once(MADE.1).unwrap();
    let page = [before, MADE.0, &tables(), "\n", MADE.1, after].concat();
    if std::env::var_os("UPDATE_DOCS").is_some() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/translation.md");
        std::fs::write(path, page).unwrap();
    } else {
        assert!(page == PAGE, "docs/translation.md is stale; run this test with UPDATE_DOCS=1");
    }
}
