//! An answer for a caller, written: whole, or chunk by chunk.

use std::{borrow::Cow, collections::HashMap};

use bytes::Bytes;
use steadfast_chat::{
    Citation, Completion, Delta, Event, FrameKind, MediaSource, Opaque, Part, TokenLogprob,
    surrogates::repaired,
};
use steadfast_core::Failure;

use super::{DIALECT, stop};
use crate::{
    dialect::{
        Caller, EncodeEvents, Known,
        media::{data_url, image_of},
        sse_out,
    },
    json::{Array, JsonPieces, Object},
};

/// Writes a whole answer.
pub(super) fn whole(answer: &Completion, caller: &Caller) -> Bytes {
    let own = answer.head.dialect == DIALECT;
    Object::text(|object| {
        head(object, "chat.completion", answer.id.as_deref(), answer.model.as_deref(), caller);
        {
            let mut choices = object.array("choices");
            let mut choice = choices.object();
            choice.put("index", &0);
            message(&mut choice.object("message"), answer, own, caller);
            if answer.logprobs.is_empty() {
                choice.put("logprobs", &None::<u8>);
            } else {
                put_logprobs(&mut choice, &answer.logprobs);
            }
            let finish = answer.stop.as_ref().map(|stop| stop::reason_name(stop, own));
            choice.put("finish_reason", &finish.map(|finish| older(finish, caller)));
        }
        stop::put_usage(object, &answer.usage);
    })
    .into()
}

fn head(
    object: &mut Object<'_>,
    kind: &str,
    id: Option<&str>,
    model: Option<&str>,
    caller: &Caller,
) {
    match id {
        Some(id) => object.put("id", id),
        None => object.put("id", &format!("chatcmpl-{}", caller.id)),
    };
    object
        .put("object", kind)
        .put("created", &caller.created)
        .put("model", model.unwrap_or(&caller.model));
}

/// The finish reason by the name that a caller knows who declared functions by their older name.
fn older<'a>(finish: &'a str, caller: &Caller) -> &'a str {
    if caller.functions && finish == "tool_calls" { "function_call" } else { finish }
}

fn put_logprobs(choice: &mut Object<'_>, logprobs: &[TokenLogprob]) {
    let mut object = choice.object("logprobs");
    put_tokens(&mut object.array("content"), logprobs);
    object.put("refusal", &None::<u8>);
}

/// Tokens, with how likely they and others were.
pub(in crate::dialect) fn put_tokens(list: &mut Array<'_>, logprobs: &[TokenLogprob]) {
    let put = |token: &mut Object<'_>, text: &str, logprob: f64| {
        token.put("token", text).put("logprob", &logprob).put("bytes", text.as_bytes());
    };
    for read in logprobs {
        let mut token = list.object();
        put(&mut token, &read.token, read.logprob);
        let mut tops = token.array("top_logprobs");
        for (text, logprob) in &read.top {
            put(&mut tops.object(), text, *logprob);
        }
    }
}

fn put_citations(message: &mut Object<'_>, citations: &[Citation], text: u64) {
    let mut list = message.array("annotations");
    for citation in citations {
        let mut annotation = list.object();
        annotation.put("type", "url_citation");
        // One that names no piece of the text is one of all of it.
        let (start, end) = citation.range.unwrap_or((0, text));
        annotation
            .object("url_citation")
            .put("url", &citation.url)
            .put("title", citation.title.as_deref().unwrap_or_default())
            .put("start_index", &start)
            .put("end_index", &end);
    }
}

/// An image that another vendor's model made, as relays and compatible servers have it. Nothing else of
/// another vendor comes here: an answer that has it fails before it is written.
fn put_image(list: &mut Array<'_>, opaque: &Opaque) {
    let url = match image_of(opaque) {
        Some(MediaSource::Base64 { mime, data }) => data_url(&mime, &data),
        Some(MediaSource::Url { url, .. }) => url,
        _ => return,
    };
    let mut image = list.object();
    image.put("type", "image_url").object("image_url").put("url", &url);
}

fn message(message: &mut Object<'_>, answer: &Completion, own: bool, caller: &Caller) {
    let text = answer.text();
    let thoughts: String = answer
        .parts
        .iter()
        .filter_map(|part| match part {
            Part::Thinking(thinking) => Some(thinking.text.as_str()),
            _ => None,
        })
        .collect();
    // Null would be refused as history where nothing is called.
    let has_text = answer.tool_calls().next().is_none()
        || answer.parts.iter().any(|part| part.as_text().is_some());
    message.put("role", "assistant").put("content", &has_text.then_some(&text));
    // Not OpenAI's own, but what most compatible servers and clients call it.
    message.put_some("reasoning_content", Some(&thoughts).filter(|text| !text.is_empty()));
    message.put("refusal", &None::<u8>);
    if !answer.citations.is_empty() {
        put_citations(message, &answer.citations, text.chars().count() as u64);
    }
    let images = || answer.parts.iter().filter_map(opaque);
    if images().any(|block| image_of(block).is_some()) {
        let mut list = message.array("images");
        images().for_each(|block| put_image(&mut list, block));
    }
    if let Some(call) = answer.tool_calls().next().filter(|_| caller.functions) {
        let arguments = repaired(&call.arguments);
        message.object("function_call").put("name", &call.name).put("arguments", &*arguments);
    } else if answer.tool_calls().next().is_some() {
        let mut calls = message.array("tool_calls");
        for call in answer.tool_calls() {
            let arguments = match own {
                true => Cow::Borrowed(call.arguments.as_str()),
                false => repaired(&call.arguments),
            };
            let mut item = calls.object();
            item.put("id", &call.id).put("type", "function");
            item.object("function").put("name", &call.name).put("arguments", &*arguments);
        }
    }
}

fn opaque(part: &Part) -> Option<&Opaque> {
    match part {
        Part::Opaque(opaque) => Some(opaque),
        _ => None,
    }
}

/// Writes chunks.
#[derive(Debug)]
pub(super) struct Writer {
    known: Known,
    /// The first chunk, which has the role, is out.
    started: bool,
    /// The number of each tool call, by its block.
    calls: HashMap<u32, usize>,
    /// The arguments of each, by its number.
    arguments: Vec<JsonPieces>,
    /// The finish reason is out.
    finished: bool,
    usage_out: bool,
    /// Characters of text so far.
    text: u64,
}

impl Writer {
    pub(super) fn new(caller: &Caller) -> Self {
        Self {
            known: Known::new(caller),
            started: false,
            calls: HashMap::new(),
            arguments: Vec::new(),
            finished: false,
            usage_out: false,
            text: 0,
        }
    }

    /// What to remember of a delta, whoever writes it.
    fn remember(&mut self, delta: &Delta) {
        self.known.note(delta);
        if let Delta::ToolCall { index, .. } = delta {
            let next = self.calls.len();
            self.calls.entry(*index).or_insert(next);
            self.arguments.resize_with(self.calls.len(), JsonPieces::default);
        }
    }

    fn chunk(&self, out: &mut Vec<u8>, fill: impl FnOnce(&mut Object<'_>)) {
        sse_out::frame(out, None, |object| {
            let Known { id, model, caller, .. } = &self.known;
            head(object, "chat.completion.chunk", id.as_deref(), model.as_deref(), caller);
            fill(object);
        });
    }

    /// A chunk whose one choice has `delta`.
    fn delta(&self, out: &mut Vec<u8>, finish: Option<&str>, delta: impl FnOnce(&mut Object<'_>)) {
        self.chunk(out, |object| {
            let mut choices = object.array("choices");
            let mut choice = choices.object();
            choice.put("index", &0);
            delta(&mut choice.object("delta"));
            choice.put("finish_reason", &finish);
        });
    }

    fn start(&mut self, out: &mut Vec<u8>) {
        if !std::mem::replace(&mut self.started, true) {
            self.delta(out, None, |delta| {
                delta.put("role", "assistant").put("content", "");
            });
        }
    }

    /// A piece of a call's arguments.
    fn call(&self, number: usize, json: &str, out: &mut Vec<u8>) {
        self.delta(out, None, |delta| {
            if self.known.caller.functions {
                delta.object("function_call").put("arguments", json);
                return;
            }
            let mut calls = delta.array("tool_calls");
            let mut call = calls.object();
            call.put("index", &number).object("function").put("arguments", json);
        });
    }

    fn end(&mut self, own: bool, out: &mut Vec<u8>) {
        for (number, pieces) in self.arguments.iter().enumerate() {
            if let Some(rest) = pieces.rest() {
                self.call(number, &rest, out);
            }
        }
        if !std::mem::replace(&mut self.finished, true)
            && let Some(stop) = &self.known.stop
        {
            let finish = older(stop::reason_name(stop, own), &self.known.caller);
            self.delta(out, Some(finish), |_| {});
        }
        if self.known.caller.stream_usage && !std::mem::replace(&mut self.usage_out, true) {
            self.chunk(out, |object| {
                object.array("choices");
                stop::put_usage(object, &self.known.usage);
            });
        }
        out.extend_from_slice(b"data: [DONE]\n\n");
    }
}

impl EncodeEvents for Writer {
    fn encode(&mut self, event: &Event, foreign: bool, out: &mut Vec<u8>) -> Result<(), Failure> {
        for delta in &event.deltas {
            self.remember(delta);
            match delta {
                Delta::Ping => out.extend_from_slice(b": ping\n\n"),
                Delta::Start { .. } => self.start(out),
                Delta::Text { text, .. } => {
                    self.start(out);
                    self.text += text.chars().count() as u64;
                    self.delta(out, None, |delta| {
                        delta.put("content", text);
                    });
                }
                Delta::Thinking { text, .. } => {
                    self.start(out);
                    self.delta(out, None, |delta| {
                        delta.put("reasoning_content", text);
                    });
                }
                Delta::ToolCall { index, id, name } => {
                    self.start(out);
                    let number = self.calls[index];
                    self.delta(out, None, |delta| {
                        if self.known.caller.functions {
                            delta.object("function_call").put("name", name).put("arguments", "");
                            return;
                        }
                        let mut calls = delta.array("tool_calls");
                        let mut call = calls.object();
                        call.put("index", &number).put("id", id).put("type", "function");
                        call.object("function").put("name", name).put("arguments", "");
                    });
                }
                Delta::Arguments { index, json } => {
                    self.start(out);
                    let number = self.calls.get(index).copied().unwrap_or(0);
                    let json = match self.arguments.get_mut(number) {
                        Some(pieces) if foreign => pieces.push(json),
                        _ => Cow::Borrowed(json.as_str()),
                    };
                    if !json.is_empty() {
                        self.call(number, &json, out);
                    }
                }
                Delta::Opaque { block, .. } if image_of(block).is_some() => {
                    self.start(out);
                    self.delta(out, None, |delta| put_image(&mut delta.array("images"), block));
                }
                Delta::Citations(citations) => {
                    self.start(out);
                    self.delta(out, None, |delta| put_citations(delta, citations, self.text));
                }
                Delta::Logprobs(logprobs) => {
                    self.start(out);
                    self.chunk(out, |object| {
                        let mut choices = object.array("choices");
                        let mut choice = choices.object();
                        choice.put("index", &0).object("delta");
                        put_logprobs(&mut choice, logprobs);
                        choice.put("finish_reason", &None::<u8>);
                    });
                }
                Delta::End => self.end(!foreign, out),
                _ => {}
            }
        }
        Ok(())
    }

    fn note(&mut self, event: &Event) -> bool {
        event.deltas.iter().for_each(|delta| self.remember(delta));
        let has = |what: fn(&Delta) -> bool| event.deltas.iter().any(what);
        self.finished |= has(|delta| matches!(delta, Delta::Stop(_)));
        // We always ask for usage. A caller who did not gets no chunk with nothing else in it.
        let usage_alone =
            !event.deltas.is_empty() && event.deltas.iter().all(|d| matches!(d, Delta::Usage(_)));
        self.usage_out |= usage_alone;
        self.started |= !event.deltas.is_empty() && !has(|delta| matches!(delta, Delta::Ping));
        debug_assert!(event.frame.as_ref().is_none_or(|frame| frame.kind == FrameKind::Sse));
        self.known.caller.stream_usage || !usage_alone
    }
}
