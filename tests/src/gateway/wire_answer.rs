//! Hand-written, strict parsers of the answers of the dialects.

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
                Dialect::Responses => reader.responses(&name.expect("events have names"), &data),
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
            Dialect::Responses => reader.responses_whole(&value(raw)),
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
        // Of a stream: the answer that failed, or an event of its own.
        Dialect::Responses if inner.is_null() => {
            let failed = &error["response"]["error"];
            let event = if failed.is_object() { failed } else { error };
            assert!(event["code"].is_string() && event["message"].is_string(), "{error}");
            return event["message"].as_str().unwrap().to_owned();
        }
        Dialect::OpenAi | Dialect::Responses => {
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
        Dialect::OpenAi | Dialect::Responses => {}
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
    /// The number of the last event (responses).
    sequence: Option<u64>,
    /// The items that have been added, by their positions: what has come of them, and whether they are done.
    items: BTreeMap<u64, Item>,
}

/// An item of a stream of responses.
#[derive(Default)]
struct Item {
    id: String,
    kind: String,
    text: String,
    call: usize,
    has_part: bool,
    done: bool,
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
        // Azure's first chunk says what its filters made of the prompt, and nothing else.
        if chunk["prompt_filter_results"].is_null() {
            assert_eq!(chunk["object"], "chat.completion.chunk");
        }
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

    fn responses_usage(&mut self, usage: &Value) {
        self.answer.prompt = usage["input_tokens"].as_u64();
        self.answer.output = usage["output_tokens"].as_u64();
        self.answer.cached = usage["input_tokens_details"]["cached_tokens"].as_u64();
        self.answer.reasoning = usage["output_tokens_details"]["reasoning_tokens"].as_u64();
    }

    /// The answer's end: its status, and why it is incomplete.
    fn responses_end(&mut self, response: &Value) {
        let status = text(&response["status"]);
        let reason = response["incomplete_details"]["reason"].as_str();
        assert_eq!(status == "incomplete", reason.is_some(), "{response}");
        self.answer.stop = Some(reason.unwrap_or(status).to_owned());
        self.responses_usage(&response["usage"]);
    }

    fn responses(&mut self, name: &str, raw: &str) {
        let data = value(raw);
        assert_eq!(data["type"], name, "the event's name and its type are one");
        assert!(self.answer.ends.is_empty(), "{raw} comes after the end");
        if name == "error" {
            return self.error(&data);
        }
        let sequence = data["sequence_number"].as_u64().unwrap_or_else(|| panic!("none in {raw}"));
        assert_eq!(sequence, self.sequence.map_or(0, |last| last + 1), "a gap before {raw}");
        self.sequence = Some(sequence);
        assert!(self.started || name == "response.created", "{name} first");
        let at = data["output_index"].as_u64();
        let item = at.and_then(|at| self.items.get_mut(&at));
        let open = || {
            let item = item.unwrap_or_else(|| panic!("{raw} is of no item"));
            assert!(!item.done, "{raw} comes after its item");
            assert_eq!(data["item_id"], item.id, "{raw}");
            item
        };
        match name {
            "response.created" => {
                assert!(!std::mem::replace(&mut self.started, true), "it begins twice");
                assert_eq!(data["response"]["status"], "in_progress");
            }
            "response.in_progress" => {}
            "response.output_item.added" => {
                let at = at.unwrap();
                assert_eq!(at, self.items.len() as u64, "{raw}");
                let added = &data["item"];
                let (id, kind) = (text(&added["id"]).to_owned(), text(&added["type"]).to_owned());
                assert!(self.items.values().all(|other| other.id != id), "{id} twice");
                if matches!(&*kind, "function_call" | "custom_tool_call") {
                    self.answer.calls.push(SentCall {
                        id: text(&added["call_id"]).into(),
                        name: text(&added["name"]).into(),
                        arguments: String::new(),
                    });
                }
                let call = self.answer.calls.len().saturating_sub(1);
                self.items.insert(at, Item { id, kind, call, ..Item::default() });
            }
            "response.content_part.added" | "response.reasoning_summary_part.added" => {
                assert!(!std::mem::replace(&mut open().has_part, true), "{raw}");
            }
            "response.output_text.delta" => {
                let item = open();
                assert!(item.kind == "message" && item.has_part, "{raw}");
                item.text += text(&data["delta"]);
                self.answer.text += text(&data["delta"]);
            }
            "response.reasoning_summary_text.delta" => {
                let item = open();
                assert!(item.kind == "reasoning" && item.has_part, "{raw}");
                item.text += text(&data["delta"]);
                self.answer.thinking += text(&data["delta"]);
            }
            "response.function_call_arguments.delta" | "response.custom_tool_call_input.delta" => {
                let item = open();
                item.text += text(&data["delta"]);
                self.answer.calls[item.call].arguments += text(&data["delta"]);
            }
            "response.output_text.done"
            | "response.reasoning_summary_text.done"
            | "response.function_call_arguments.done"
            | "response.custom_tool_call_input.done" => {
                let whole = ["text", "arguments", "input"].map(|field| data[field].as_str());
                assert_eq!(whole.into_iter().flatten().next(), Some(&*open().text), "{raw}");
            }
            "response.content_part.done" | "response.reasoning_summary_part.done" => {
                assert_eq!(data["part"]["text"], open().text, "{raw}");
            }
            "response.output_text.annotation.added" => drop(open()),
            "response.output_item.done" => {
                let item = at.and_then(|at| self.items.get_mut(&at)).unwrap();
                assert_eq!(data["item"]["id"], item.id, "{raw}");
                assert!(!std::mem::replace(&mut item.done, true), "{raw}");
            }
            "response.completed" | "response.incomplete" => {
                assert!(self.items.values().all(|item| item.done), "an item is open at the end");
                let response = &data["response"];
                assert_eq!(response["status"], name["response.".len()..]);
                let output = response["output"].as_array().unwrap();
                let ids: Vec<&str> = output.iter().map(|item| text(&item["id"])).collect();
                let added: Vec<&str> = self.items.values().map(|item| &*item.id).collect();
                assert_eq!(ids, added, "the end has all items: {raw}");
                let mut whole = Reader::default();
                whole.responses_whole(response);
                assert_eq!(whole.answer.text, self.answer.text, "{raw}");
                assert_eq!(whole.answer.calls, self.answer.calls, "{raw}");
                self.responses_end(response);
                self.answer
                    .ends
                    .extend([self.answer.stop.clone().unwrap_or_default(), name.into()]);
            }
            "response.failed" => self.error(&data),
            other => panic!("what is {other}?"),
        }
    }

    fn responses_whole(&mut self, body: &Value) {
        assert_eq!(body["object"], "response");
        for item in body["output"].as_array().unwrap() {
            match text(&item["type"]) {
                "message" => {
                    assert_eq!(item["role"], "assistant");
                    for part in item["content"].as_array().unwrap() {
                        self.answer.text += text(&part["text"]);
                    }
                }
                "reasoning" => {
                    for part in item["summary"].as_array().unwrap() {
                        self.answer.thinking += text(&part["text"]);
                    }
                }
                kind @ ("function_call" | "custom_tool_call") => {
                    let field = if kind == "function_call" { "arguments" } else { "input" };
                    self.answer.calls.push(SentCall {
                        id: text(&item["call_id"]).into(),
                        name: text(&item["name"]).into(),
                        arguments: text(&item[field]).into(),
                    });
                }
                "image_generation_call" => assert!(item["result"].is_string(), "{item}"),
                other => panic!("what is {other}?"),
            }
        }
        self.responses_end(body);
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
