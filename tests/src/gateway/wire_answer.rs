//! Hand-written, strict parsers of the answers of the three dialects.

use std::collections::BTreeMap;

use serde_json::{Value, value::RawValue};
use steadfast::sim::{Dialect, Sent, SentCall};

use super::http::Reply;

/// An answer as a client of its dialect reads it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct WireAnswer {
    /// Its text.
    pub text: String,
    /// Its thinking.
    pub thinking: String,
    /// Its calls.
    pub calls: Vec<SentCall>,
    /// All tokens of the input, including those of the cache.
    pub prompt: Option<u64>,
    /// Those read from the cache.
    pub cached: Option<u64>,
    /// All tokens of the output.
    pub output: Option<u64>,
    /// Those of the thinking, where the dialect reports them.
    pub reasoning: Option<u64>,
    /// Why it stopped.
    pub stop: Option<String>,
    /// Which sequence stopped it (Anthropic).
    pub sequence: Option<String>,
    /// Everything that marks the answer as whole: finish reasons and terminal events.
    pub ends: Vec<String>,
    /// The error objects in it. Nothing may follow one.
    pub errors: Vec<Value>,
}

impl WireAnswer {
    /// A stream of `dialect`, as server-sent events.
    pub fn stream(dialect: Dialect, raw: &[u8]) -> Self {
        let mut reader = Reader::default();
        for (name, data) in frames(dialect, raw) {
            assert!(reader.answer.errors.is_empty(), "{data} comes after an error");
            match dialect {
                Dialect::OpenAi => {
                    assert_eq!(name, None, "OpenAI's events have no names");
                    reader.openai(&data);
                }
                Dialect::Anthropic => reader.anthropic(&name.expect("events have names"), &data),
                Dialect::Gemini => {
                    assert_eq!(name, None, "Gemini's events have no names");
                    reader.gemini(&data);
                }
            }
        }
        reader.answer
    }

    /// A stream of Gemini's dialect, as a JSON array.
    pub fn array(raw: &[u8]) -> Self {
        let mut reader = Reader::default();
        for item in items(std::str::from_utf8(raw).unwrap()) {
            assert!(reader.answer.errors.is_empty(), "{item} comes after an error");
            reader.gemini(item.get());
        }
        reader.answer
    }

    /// A whole answer of `dialect`.
    pub fn whole(dialect: Dialect, raw: &[u8]) -> Self {
        let raw = std::str::from_utf8(raw).unwrap();
        let mut reader = Reader::default();
        match dialect {
            Dialect::OpenAi => reader.openai_whole(raw),
            Dialect::Anthropic => reader.anthropic_whole(raw),
            Dialect::Gemini => reader.gemini(raw),
        }
        reader.answer
    }

    /// Its calls, without the ids that some dialects do not have.
    pub fn without_ids(&self) -> Vec<(&str, &str)> {
        without_ids(&self.calls)
    }

    /// Asserts that it is a prefix of what was sent.
    pub fn assert_prefix_of(&self, sent: &Sent, case: &str) {
        assert!(sent.text.starts_with(&self.text), "{case}: {:?} of {:?}", self.text, sent.text);
        assert!(
            sent.thinking.starts_with(&self.thinking),
            "{case}: {:?} of {:?}",
            self.thinking,
            sent.thinking
        );
        assert!(self.text.is_empty() || self.thinking == sent.thinking, "{case}: a hole");
        assert!(self.calls.is_empty() || self.text == sent.text, "{case}: a hole");
        assert!(self.calls.len() <= sent.tool_calls.len(), "{case}: {self:?}");
        for (n, (call, sent)) in self.calls.iter().zip(&sent.tool_calls).enumerate() {
            assert_eq!((&call.name, &call.id), (&sent.name, &sent.id), "{case}");
            let whole = n + 1 < self.calls.len();
            assert!(
                if whole {
                    call.arguments == sent.arguments
                } else {
                    sent.arguments.starts_with(&call.arguments)
                },
                "{case}: {call:?} of {sent:?}"
            );
        }
    }
}

/// Calls by name and arguments.
pub fn without_ids(calls: &[SentCall]) -> Vec<(&str, &str)> {
    calls.iter().map(|call| (call.name.as_str(), call.arguments.as_str())).collect()
}

/// Asserts that `error` is an error object of `dialect`; returns its message.
pub fn error_message(dialect: Dialect, error: &Value) -> String {
    let inner = &error["error"];
    match dialect {
        Dialect::OpenAi => {
            assert!(inner["type"].is_string() && inner["code"].is_string(), "{error}");
            assert!(inner.get("param").is_some(), "{error}");
        }
        Dialect::Anthropic => {
            assert_eq!(error["type"], "error", "{error}");
            assert!(
                inner["type"]
                    .as_str()
                    .is_some_and(|kind| kind.ends_with("error") || kind == "request_too_large"),
                "{error}"
            );
        }
        Dialect::Gemini => {
            assert!(inner["code"].as_u64().is_some_and(|code| code >= 400), "{error}");
            let status = inner["status"].as_str().unwrap();
            assert!(status.bytes().all(|b| b.is_ascii_uppercase() || b == b'_'), "{error}");
        }
    }
    let message = inner["message"].as_str().unwrap_or_else(|| panic!("no message in {error}"));
    assert!(!message.is_empty());
    message.to_owned()
}

/// Asserts that `reply` is a complete error of `dialect`; returns its message.
pub fn refusal(dialect: Dialect, status: u16, reply: &Reply) -> String {
    assert_eq!(reply.status, status, "{dialect}: {}", reply.text());
    assert!(reply.clean);
    assert_eq!(reply.header("content-type"), Some("application/json"));
    assert!(reply.header("x-request-id").is_some_and(|id| !id.is_empty()));
    assert!(reply.header("x-steadfast-attempts").is_some());
    let should_retry = reply.header("x-should-retry").unwrap();
    assert!(matches!(should_retry, "true" | "false"), "{should_retry}");
    let body = reply.json();
    match dialect {
        Dialect::Gemini => assert_eq!(body["error"]["code"], status),
        Dialect::Anthropic => {
            assert_eq!(reply.header("request-id"), reply.header("x-request-id"));
        }
        Dialect::OpenAi => {}
    }
    error_message(dialect, &body)
}

/// Names and data of server-sent events. Skips comments and single empty lines, which are the
/// keep-alive of Gemini's streams. A frame without its end is an error.
fn frames(dialect: Dialect, raw: &[u8]) -> Vec<(Option<String>, String)> {
    let raw = std::str::from_utf8(raw).expect("a stream never breaks inside a character");
    assert!(raw.is_empty() || raw.ends_with('\n'), "a frame without its end: {raw:?}");
    let (mut all, mut name, mut data) = (Vec::new(), None, None::<String>);
    for line in raw.lines() {
        if line.is_empty() {
            if let Some(data) = data.take() {
                all.push((name.take(), data));
            }
            assert_eq!(name, None, "an event without data");
        } else if let Some(value) = line.strip_prefix("data:") {
            assert_eq!(data, None, "data on several lines");
            data = Some(value.trim_start().to_owned());
        } else if let Some(value) = line.strip_prefix("event:") {
            name = Some(value.trim().to_owned());
        } else {
            assert!(line.starts_with(':') && dialect != Dialect::Gemini, "what is {line:?}?");
        }
    }
    assert!(data.is_none() && name.is_none(), "a frame without its end: {raw:?}");
    all
}

/// The fields of an object, their values as written.
fn fields(raw: &str) -> BTreeMap<String, Box<RawValue>> {
    serde_json::from_str(raw).unwrap_or_else(|error| panic!("{error} in {raw:?}"))
}

/// The items of an array, as written.
fn items(raw: &str) -> Vec<Box<RawValue>> {
    serde_json::from_str(raw).unwrap_or_else(|error| panic!("{error} in {raw:?}"))
}

/// The string at `key`; empty when there is none.
fn string(fields: &BTreeMap<String, Box<RawValue>>, key: &str) -> String {
    fields.get(key).map(|raw| text(&value(raw.get())).to_owned()).unwrap_or_default()
}

fn value(raw: &str) -> Value {
    serde_json::from_str(raw).unwrap_or_else(|error| panic!("{error} in {raw:?}"))
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// Builds an answer from the frames of a stream, or from a whole body.
#[derive(Default)]
struct Reader {
    answer: WireAnswer,
    /// The block that is open (Anthropic), and how many there have been.
    open: Option<u64>,
    blocks: u64,
    started: bool,
}

impl Reader {
    fn error(&mut self, data: &Value) {
        self.answer.errors.push(data.clone());
    }

    fn openai_usage(&mut self, usage: &Value) {
        if usage.is_object() {
            self.answer.prompt = usage["prompt_tokens"].as_u64();
            self.answer.output = usage["completion_tokens"].as_u64();
            self.answer.cached = usage["prompt_tokens_details"]["cached_tokens"].as_u64();
            self.answer.reasoning = usage["completion_tokens_details"]["reasoning_tokens"].as_u64();
        }
    }

    fn openai(&mut self, raw: &str) {
        assert!(!self.answer.ends.iter().any(|end| end == "[DONE]"), "{raw} comes after the end");
        if raw == "[DONE]" {
            return self.answer.ends.push(raw.into());
        }
        let chunk = value(raw);
        if chunk["error"].is_object() {
            return self.error(&chunk);
        }
        assert_eq!(chunk["object"], "chat.completion.chunk");
        self.openai_usage(&chunk["usage"]);
        for item in chunk["choices"].as_array().expect("chunks have choices") {
            let delta = &item["delta"];
            self.answer.text += text(&delta["content"]);
            self.answer.thinking += text(&delta["reasoning_content"]);
            for call in delta["tool_calls"].as_array().into_iter().flatten() {
                let index = usize::try_from(call["index"].as_u64().unwrap()).unwrap();
                if index == self.answer.calls.len() {
                    self.answer.calls.push(SentCall {
                        id: text(&call["id"]).into(),
                        name: text(&call["function"]["name"]).into(),
                        arguments: String::new(),
                    });
                }
                self.answer.calls[index].arguments += text(&call["function"]["arguments"]);
            }
            if let Some(word) = item["finish_reason"].as_str() {
                self.answer.stop = Some(word.into());
                self.answer.ends.push(word.into());
            }
        }
    }

    fn openai_whole(&mut self, raw: &str) {
        let body = value(raw);
        assert_eq!(body["object"], "chat.completion");
        let item = &body["choices"][0];
        let message = &item["message"];
        self.answer.text = text(&message["content"]).into();
        self.answer.thinking = text(&message["reasoning_content"]).into();
        for call in message["tool_calls"].as_array().into_iter().flatten() {
            assert_eq!(call["type"], "function");
            self.answer.calls.push(SentCall {
                id: text(&call["id"]).into(),
                name: text(&call["function"]["name"]).into(),
                arguments: text(&call["function"]["arguments"]).into(),
            });
        }
        self.answer.stop = item["finish_reason"].as_str().map(Into::into);
        self.openai_usage(&body["usage"]);
    }

    fn anthropic_usage(&mut self, usage: &Value) {
        if let Some(fresh) = usage["input_tokens"].as_u64() {
            let part = |name: &str| usage[name].as_u64().unwrap_or(0);
            let read = part("cache_read_input_tokens");
            self.answer.prompt = Some(fresh + read + part("cache_creation_input_tokens"));
            self.answer.cached = Some(read);
        }
        self.answer.output = usage["output_tokens"].as_u64().or(self.answer.output);
    }

    fn anthropic(&mut self, name: &str, raw: &str) {
        let data = value(raw);
        assert_eq!(data["type"], name, "the event's name and its type are one");
        assert!(!self.answer.ends.iter().any(|end| end == "message_stop"), "{raw} after the end");
        assert!(self.started || matches!(name, "message_start" | "ping" | "error"), "{name} first");
        let index = data["index"].as_u64();
        match name {
            "ping" => {}
            "error" => self.error(&data),
            "message_start" => {
                assert!(!std::mem::replace(&mut self.started, true), "it begins twice");
                self.anthropic_usage(&data["message"]["usage"]);
            }
            "content_block_start" => {
                assert_eq!((self.open, index), (None, Some(self.blocks)), "{raw}");
                (self.open, self.blocks) = (index, self.blocks + 1);
                let block = &data["content_block"];
                if block["type"] == "tool_use" {
                    self.answer.calls.push(SentCall {
                        id: text(&block["id"]).into(),
                        name: text(&block["name"]).into(),
                        arguments: String::new(),
                    });
                }
            }
            "content_block_delta" => {
                assert!(index.is_some() && self.open == index, "{raw}");
                let delta = &data["delta"];
                match text(&delta["type"]) {
                    "text_delta" => self.answer.text += text(&delta["text"]),
                    "thinking_delta" => self.answer.thinking += text(&delta["thinking"]),
                    "input_json_delta" => {
                        self.answer.calls.last_mut().unwrap().arguments +=
                            text(&delta["partial_json"]);
                    }
                    "signature_delta" => {}
                    other => panic!("what is {other}?"),
                }
            }
            "content_block_stop" => {
                assert!(index.is_some() && self.open == index, "{raw}");
                self.open = None;
            }
            "message_delta" => {
                assert_eq!(self.open, None, "a block is open at the end");
                let word = text(&data["delta"]["stop_reason"]);
                self.answer.stop = Some(word.into());
                self.answer.sequence = data["delta"]["stop_sequence"].as_str().map(Into::into);
                self.answer.ends.push(word.into());
                self.anthropic_usage(&data["usage"]);
            }
            "message_stop" => self.answer.ends.push(name.into()),
            other => panic!("what is {other}?"),
        }
    }

    fn anthropic_whole(&mut self, raw: &str) {
        let body = fields(raw);
        assert_eq!(value(body["type"].get()), "message");
        for block in items(body["content"].get()) {
            let block = fields(block.get());
            match &*string(&block, "type") {
                "text" => self.answer.text += &string(&block, "text"),
                "thinking" => self.answer.thinking += &string(&block, "thinking"),
                "tool_use" => self.answer.calls.push(SentCall {
                    id: string(&block, "id"),
                    name: string(&block, "name"),
                    arguments: block["input"].get().into(),
                }),
                other => panic!("what is {other}?"),
            }
        }
        self.answer.stop = value(body["stop_reason"].get()).as_str().map(Into::into);
        self.answer.sequence = value(body["stop_sequence"].get()).as_str().map(Into::into);
        self.anthropic_usage(&value(body["usage"].get()));
    }

    fn gemini(&mut self, raw: &str) {
        let body = fields(raw);
        if body.contains_key("error") {
            return self.error(&value(raw));
        }
        assert!(self.answer.ends.is_empty(), "{raw} comes after the end");
        if let Some(usage) = body.get("usageMetadata").map(|usage| value(usage.get())) {
            self.answer.prompt = usage["promptTokenCount"].as_u64();
            self.answer.cached = usage["cachedContentTokenCount"].as_u64();
            self.answer.reasoning = usage["thoughtsTokenCount"].as_u64();
            let seen = usage["candidatesTokenCount"].as_u64().unwrap_or(0);
            self.answer.output = Some(seen + self.answer.reasoning.unwrap_or(0));
        }
        let candidate = fields(items(body["candidates"].get())[0].get());
        let content = candidate.get("content").map(|content| fields(content.get()));
        let parts = content.as_ref().and_then(|content| content.get("parts"));
        for part in parts.map(|parts| items(parts.get())).unwrap_or_default() {
            let part = fields(part.get());
            if let Some(call) = part.get("functionCall") {
                let call = fields(call.get());
                self.answer.calls.push(SentCall {
                    id: string(&call, "id"),
                    name: string(&call, "name"),
                    arguments: call["args"].get().to_owned(),
                });
            } else if part.contains_key("thought") {
                self.answer.thinking += &string(&part, "text");
            } else {
                self.answer.text += &string(&part, "text");
            }
        }
        if candidate.contains_key("finishReason") {
            let word = string(&candidate, "finishReason");
            self.answer.stop = Some(word.clone());
            self.answer.ends.push(word);
        }
    }
}
