//! An answer for a caller, written: whole, or chunk by chunk.

use std::{borrow::Cow, collections::HashMap};

use bytes::Bytes;
use steadfast_chat::{Completion, Delta, Event, FrameKind, Part, surrogates::repaired};
use steadfast_core::Failure;

use super::{DIALECT, stop};
use crate::{
    dialect::{Caller, EncodeEvents, Known, sse_out},
    json::{JsonPieces, Object},
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
            message(&mut choice.object("message"), answer, own);
            let stop = answer.stop.as_ref();
            choice
                .put("logprobs", &None::<u8>)
                .put("finish_reason", &stop.map(|stop| stop::reason_name(stop, own)));
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

fn message(message: &mut Object<'_>, answer: &Completion, own: bool) {
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
    if answer.tool_calls().next().is_some() {
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
            self.delta(out, Some(stop::reason_name(stop, own)), |_| {});
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
