//! A provider's answer, read: whole, or event by event.

use std::{collections::HashMap, ops::Range};

use bytes::Bytes;
use serde::Deserialize;
use serde_json::Value;
use steadfast_chat::Deltas;
use steadfast_chat::{Delta, Event, Frame, Opaque, RawJson};
use steadfast_core::Failure;

use super::{
    DIALECT,
    stop::{self, Wire},
};
use crate::{
    dialect::{DecodeFrames, fault, range_of},
    json::{Raw, Str},
    sse::SseFrame,
};

/// Any event of a stream, or a whole answer; what is used of them.
#[derive(Deserialize)]
struct Read<'a> {
    #[serde(borrow, rename = "type")]
    kind: Option<Str<'a>>,
    index: Option<u64>,
    #[serde(borrow)]
    message: Option<Raw<'a>>,
    #[serde(borrow)]
    content_block: Option<Raw<'a>>,
    #[serde(borrow)]
    delta: Option<Raw<'a>>,
    #[serde(borrow)]
    usage: Option<Raw<'a>>,
    #[serde(borrow)]
    error: Option<Raw<'a>>,
}

/// The message of a whole answer or of `message_start`.
#[derive(Deserialize)]
struct Message<'a> {
    id: Option<String>,
    model: Option<String>,
    #[serde(borrow)]
    content: Option<Vec<Raw<'a>>>,
    stop_reason: Option<String>,
    stop_sequence: Option<String>,
    #[serde(borrow)]
    usage: Option<Raw<'a>>,
}

#[derive(Deserialize)]
struct Block<'a> {
    #[serde(rename = "type")]
    kind: String,
    text: Option<String>,
    thinking: Option<String>,
    signature: Option<String>,
    data: Option<String>,
    id: Option<String>,
    name: Option<String>,
    #[serde(borrow)]
    input: Option<Raw<'a>>,
}

/// The delta of a block, or of the message.
#[derive(Deserialize)]
struct Change<'a> {
    #[serde(borrow, rename = "type")]
    kind: Option<Str<'a>>,
    #[serde(borrow)]
    text: Option<Raw<'a>>,
    #[serde(borrow)]
    thinking: Option<Raw<'a>>,
    signature: Option<String>,
    partial_json: Option<String>,
    stop_reason: Option<String>,
    stop_sequence: Option<String>,
}

/// Reads a whole answer.
pub(super) fn whole(body: &Bytes) -> Result<Event, Failure> {
    const WHAT: &str = "an answer";
    let text = fault::text(body);
    let mut deltas = Deltas::new();
    let malformed = |error| fault::malformed(DIALECT, WHAT, &error);
    // An error may have the names of a message with other types: it is an error first.
    let top: Read<'_> = serde_json::from_str(&text).map_err(malformed)?;
    if top.error.is_some() || top.kind.is_some_and(|kind| kind.0 == "error") {
        return Err(fault::reported(DIALECT, &text));
    }
    let message: Message<'_> = serde_json::from_str(&text).map_err(malformed)?;
    let Some(content) = message.content else {
        return Err(fault::reported(DIALECT, &text));
    };
    let mut state = Frames::default();
    deltas.push(Delta::Start { id: message.id, model: message.model });
    for (at, raw) in content.into_iter().enumerate() {
        let at = at as u64;
        state.begin(at, raw, WHAT, &mut deltas)?;
        state.end(at, &mut deltas);
    }
    let Some(word) = message.stop_reason else {
        return Err(fault::unfinished(DIALECT, "stop_reason"));
    };
    deltas.push(Delta::Stop(stop::read(&word, message.stop_sequence)));
    let usage = message.usage.and_then(|raw| state.usage.update(raw.get()));
    deltas.extend(usage.map(Delta::Usage));
    fault::utf8(DIALECT, WHAT, &text, body)?;
    deltas.push(Delta::End);
    Ok(Event::from_frame(Frame::body(DIALECT, body.clone()), deltas))
}

/// Reads events.
#[derive(Debug, Default)]
pub(super) struct Frames {
    usage: Wire,
    next: u32,
    /// By the provider's numbers: found in the same time however many there are.
    open: HashMap<u64, Open>,
    /// The stop reason has come.
    stopped: bool,
}

/// A block that is open.
#[derive(Debug)]
struct Open {
    block: u32,
    kind: Kind,
}

#[derive(Debug)]
enum Kind {
    Text,
    Thinking,
    Redacted,
    /// Whether any of its arguments has come.
    Call {
        has_arguments: bool,
    },
    /// A block of a kind this crate does not know, as it began, and the input that came after that.
    Other {
        kind: String,
        start: RawJson,
        input: String,
    },
}

impl DecodeFrames for Frames {
    fn decode(
        &mut self,
        frame: &SseFrame,
        data: &str,
        deltas: &mut Deltas,
    ) -> Result<Option<Range<usize>>, Failure> {
        let mut text_at = None;
        const WHAT: &str = "an event";
        let malformed = |error: serde_json::Error| fault::malformed(DIALECT, WHAT, &error);
        let event: Read<'_> = serde_json::from_str(data).map_err(malformed)?;
        let name = || std::str::from_utf8(frame.event.as_deref()?).ok();
        let kind = event.kind.as_ref().map(|kind| &*kind.0).or_else(name).unwrap_or_default();
        if kind == "error" || (kind.is_empty() && event.error.is_some()) {
            return Err(fault::reported(DIALECT, data));
        }
        match kind {
            "ping" => deltas.push(Delta::Ping),
            "message_start" => {
                let Some(raw) = event.message else { return Ok(None) };
                let message: Message<'_> = serde_json::from_str(raw.get()).map_err(malformed)?;
                deltas.push(Delta::Start { id: message.id, model: message.model });
                let usage = message.usage.and_then(|raw| self.usage.update(raw.get()));
                deltas.extend(usage.map(Delta::Usage));
            }
            "content_block_start" => {
                if let (Some(at), Some(raw)) = (event.index, event.content_block) {
                    self.begin(at, raw, WHAT, deltas)?;
                }
            }
            "content_block_delta" => {
                if let (Some(at), Some(raw)) = (event.index, event.delta) {
                    let change: Change<'_> = serde_json::from_str(raw.get()).map_err(malformed)?;
                    let text = change.text.xor(change.thinking).and_then(Raw::inside);
                    text_at = text.and_then(|text| range_of(data, text));
                    self.change(at, change, deltas).map_err(malformed)?;
                }
            }
            "content_block_stop" => {
                if let Some(at) = event.index {
                    self.end(at, deltas);
                }
            }
            "message_delta" => {
                if let Some(raw) = event.delta {
                    let change: Change<'_> = serde_json::from_str(raw.get()).map_err(malformed)?;
                    if let Some(word) = change.stop_reason {
                        self.stopped = true;
                        deltas.push(Delta::Stop(stop::read(&word, change.stop_sequence)));
                    }
                }
                let usage = event.usage.and_then(|raw| self.usage.update(raw.get()));
                deltas.extend(usage.map(Delta::Usage));
            }
            // As in a whole answer: an end without a reason is none. Written in another
            // dialect it would be an end made up.
            "message_stop" if !self.stopped => {
                return Err(fault::cut_off(DIALECT)
                    .with_message("the anthropic stream sent message_stop without a stop_reason"));
            }
            "message_stop" => deltas.push(Delta::End),
            // The vendor adds kinds of events; who does not know them is to pass over them.
            _ => {}
        }
        Ok(text_at)
    }

    fn finish(&mut self, _: Option<&SseFrame>) -> Option<Event> {
        None
    }
}

impl Frames {
    fn begin(
        &mut self,
        at: u64,
        raw: Raw<'_>,
        what: &str,
        deltas: &mut Deltas,
    ) -> Result<(), Failure> {
        let block: Block<'_> = serde_json::from_str(raw.get())
            .map_err(|error| fault::malformed(DIALECT, what, &error))?;
        // A number used anew: what it stood for is over.
        self.end(at, deltas);
        let index = self.next;
        self.next += 1;
        let full = |text: &String| !text.is_empty();
        let kind = match block.kind.as_str() {
            "text" => {
                let text = block.text.filter(full);
                deltas.extend(text.map(|text| Delta::Text { index, text }));
                Kind::Text
            }
            "thinking" => {
                let text = block.thinking.filter(full);
                let signature = block.signature.filter(full);
                // Signed thinking whose text is kept back is a block all the same.
                if text.is_some() || signature.is_some() {
                    deltas.push(Delta::Thinking { index, text: text.unwrap_or_default() });
                }
                deltas.extend(signature.map(|signature| Delta::Signature { index, signature }));
                Kind::Thinking
            }
            "redacted_thinking" => {
                deltas.push(Delta::Redacted { index, data: block.data.unwrap_or_default() });
                Kind::Redacted
            }
            "tool_use" => {
                let id = block.id.unwrap_or_default();
                deltas.push(Delta::ToolCall { index, id, name: block.name.unwrap_or_default() });
                // In a stream the input begins empty and comes in pieces.
                let input = block.input.map(Raw::get).filter(|input| !is_empty_object(input));
                deltas.extend(input.map(|json| Delta::Arguments { index, json: json.to_owned() }));
                Kind::Call { has_arguments: input.is_some() }
            }
            _ => Kind::Other { kind: block.kind, start: raw.kept(), input: String::new() },
        };
        self.open.insert(at, Open { block: index, kind });
        Ok(())
    }

    fn change(
        &mut self,
        at: u64,
        change: Change<'_>,
        deltas: &mut Deltas,
    ) -> Result<(), serde_json::Error> {
        let text = change.text.map(Raw::text).transpose()?;
        let thinking = change.thinking.map(Raw::text).transpose()?;
        let Some(open) = self.open.get_mut(&at) else { return Ok(()) };
        let index = open.block;
        match (change.kind.as_ref().map(|kind| &*kind.0), &mut open.kind) {
            (Some("text_delta"), Kind::Text) => {
                deltas.extend(text.map(|text| Delta::Text { index, text: text.into_owned() }));
            }
            (Some("thinking_delta"), Kind::Thinking) => {
                deltas.extend(
                    thinking.map(|text| Delta::Thinking { index, text: text.into_owned() }),
                );
            }
            (Some("signature_delta"), Kind::Thinking) => {
                deltas.extend(
                    change.signature.map(|signature| Delta::Signature { index, signature }),
                );
            }
            (Some("input_json_delta"), Kind::Call { has_arguments }) => {
                if let Some(json) = change.partial_json.filter(|json| !json.is_empty()) {
                    *has_arguments = true;
                    deltas.push(Delta::Arguments { index, json });
                }
            }
            (Some("input_json_delta"), Kind::Other { input, .. }) => {
                input.push_str(change.partial_json.as_deref().unwrap_or_default());
            }
            // Citations and whatever else: the frame has them.
            _ => {}
        }
        Ok(())
    }

    fn end(&mut self, at: u64, deltas: &mut Deltas) {
        let Some(Open { block: index, kind }) = self.open.remove(&at) else { return };
        match kind {
            Kind::Call { has_arguments: false } => {
                deltas.push(Delta::Arguments { index, json: "{}".to_owned() });
            }
            Kind::Other { kind, start, input } => {
                let json = with_input(start, &input);
                let block = Opaque { dialect: DIALECT, kind, json };
                deltas.push(Delta::Opaque { index, block });
            }
            _ => {}
        }
        deltas.push(Delta::BlockEnd { index });
    }
}

fn is_empty_object(json: &str) -> bool {
    json.strip_prefix('{')
        .and_then(|rest| rest.strip_suffix('}'))
        .is_some_and(|inner| inner.trim().is_empty())
}

/// The block `start` with the input that came in pieces.
fn with_input(start: RawJson, input: &str) -> RawJson {
    match (start.to_value(), serde_json::from_str::<Value>(input)) {
        (Value::Object(mut block), Ok(input)) => {
            block.insert("input".to_owned(), input);
            RawJson::from_value(&Value::Object(block))
        }
        _ => start,
    }
}
