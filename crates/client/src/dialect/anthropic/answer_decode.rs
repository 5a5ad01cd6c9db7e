//! A provider's answer, read: whole, or event by event.

use std::{borrow::Cow, collections::HashMap};

use bytes::Bytes;
use serde::Deserialize;
use serde_json::Value;
use steadfast_chat::Deltas;
use steadfast_chat::{Citation, Delta, Event, Frame, Opaque, RawJson, surrogates};
use steadfast_core::Failure;

use super::{
    DIALECT, citations,
    stop::{self, Wire},
};
use crate::{
    dialect::{DecodeFrames, DecodedFrame, fault, range_of},
    json::{Raw, Str, TextPieces, items},
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
    #[serde(borrow)]
    id: Option<Str<'a>>,
    #[serde(borrow)]
    model: Option<Str<'a>>,
    #[serde(borrow)]
    content: Option<Vec<Raw<'a>>>,
    #[serde(borrow)]
    stop_reason: Option<Str<'a>>,
    #[serde(borrow)]
    stop_sequence: Option<Str<'a>>,
    #[serde(borrow)]
    usage: Option<Raw<'a>>,
}

#[derive(Deserialize)]
struct Block<'a> {
    #[serde(borrow, rename = "type")]
    kind: Str<'a>,
    #[serde(borrow)]
    text: Option<Raw<'a>>,
    #[serde(borrow)]
    thinking: Option<Raw<'a>>,
    #[serde(borrow)]
    signature: Option<Str<'a>>,
    #[serde(borrow)]
    data: Option<Str<'a>>,
    #[serde(borrow)]
    id: Option<Str<'a>>,
    #[serde(borrow)]
    name: Option<Str<'a>>,
    #[serde(borrow)]
    input: Option<Raw<'a>>,
    #[serde(borrow)]
    citations: Option<Raw<'a>>,
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
    #[serde(borrow)]
    signature: Option<Str<'a>>,
    #[serde(borrow)]
    partial_json: Option<Raw<'a>>,
    #[serde(borrow)]
    citation: Option<Raw<'a>>,
    #[serde(borrow)]
    stop_reason: Option<Str<'a>>,
    #[serde(borrow)]
    stop_sequence: Option<Str<'a>>,
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
    deltas.push(Delta::Start { id: owned(message.id), model: owned(message.model) });
    for (at, raw) in content.into_iter().enumerate() {
        let at = at as u64;
        state.begin(at, raw, WHAT, &mut deltas)?;
        state.end(at, &mut deltas);
    }
    let Some(Str(word)) = message.stop_reason else {
        return Err(fault::unfinished(DIALECT, "stop_reason"));
    };
    deltas.push(Delta::Stop(stop::read(&word, owned(message.stop_sequence), state.called)));
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
    /// A tool has been called.
    called: bool,
    /// The stop reason has come.
    stopped: bool,
    /// How much text has come, in characters.
    chars: u64,
}

/// A block that is open.
#[derive(Debug)]
struct Open {
    block: u32,
    kind: Kind,
}

#[derive(Debug)]
enum Kind {
    Text {
        pieces: TextPieces,
        /// Where it begins in the answer's text, in characters.
        start: u64,
        citations: Vec<Citation>,
    },
    Thinking(TextPieces),
    Redacted,
    Call {
        input: TextPieces,
        /// Whether any of its arguments has come.
        has_arguments: bool,
    },
    /// A block of a kind this crate does not know, as it began, and the input that came after that.
    Other {
        kind: String,
        start: RawJson,
        pieces: TextPieces,
        input: String,
    },
}

impl DecodeFrames for Frames {
    fn decode(
        &mut self,
        frame: &SseFrame,
        data: &str,
        deltas: &mut Deltas,
    ) -> Result<DecodedFrame, Failure> {
        let mut decoded = DecodedFrame::default();
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
                let Some(raw) = event.message else { return Ok(decoded) };
                let message: Message<'_> = serde_json::from_str(raw.get()).map_err(malformed)?;
                deltas.push(Delta::Start { id: owned(message.id), model: owned(message.model) });
                let usage = message.usage.and_then(|raw| self.usage.update(raw.get()));
                deltas.extend(usage.map(Delta::Usage));
            }
            "content_block_start" => {
                if let (Some(at), Some(raw)) = (event.index, event.content_block) {
                    decoded.content = self.begin(at, raw, WHAT, deltas)?;
                }
            }
            "content_block_delta" => {
                if let (Some(at), Some(raw)) = (event.index, event.delta) {
                    let change: Change<'_> = serde_json::from_str(raw.get()).map_err(malformed)?;
                    let text = change.text.xor(change.thinking).and_then(Raw::inside);
                    let only_text = text.and_then(|text| range_of(data, text));
                    // A half of a character that waits makes another text of this one.
                    let waited = self.waits(at);
                    decoded.content = self.change(at, change, deltas).map_err(malformed)?;
                    decoded.only_text = only_text.filter(|_| !waited && !self.waits(at));
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
                    if let Some(Str(word)) = change.stop_reason {
                        self.stopped = true;
                        let sequence = owned(change.stop_sequence);
                        deltas.push(Delta::Stop(stop::read(&word, sequence, self.called)));
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
        Ok(decoded)
    }

    fn repeated(&mut self, delta: &Delta) {
        if let Delta::Text { text, .. } = delta {
            self.chars += text.chars().count() as u64;
        }
    }

    fn finish(&mut self, _: Option<&SseFrame>) -> Option<Event> {
        None
    }
}

impl Frames {
    /// A block begins. Returns whether its content is in no delta yet.
    fn begin(
        &mut self,
        at: u64,
        raw: Raw<'_>,
        what: &str,
        deltas: &mut Deltas,
    ) -> Result<bool, Failure> {
        let malformed = |error: serde_json::Error| fault::malformed(DIALECT, what, &error);
        let block: Block<'_> = serde_json::from_str(raw.get()).map_err(malformed)?;
        // A number used anew: what it stood for is over.
        self.end(at, deltas);
        let index = self.next;
        self.next += 1;
        let mut pieces = TextPieces::default();
        let kind = match &*block.kind.0 {
            "text" => {
                let text = block.text.map(|raw| pieces.push(raw)).transpose().map_err(malformed)?;
                let text = text.filter(|text| !text.is_empty()).map(Cow::into_owned);
                let start = self.chars;
                if let Some(text) = text {
                    self.chars += text.chars().count() as u64;
                    deltas.push(Delta::Text { index, text });
                }
                let sources = block.citations.and_then(|raw| items(raw).ok()).unwrap_or_default();
                let citations = sources.into_iter().filter_map(citations::read).collect();
                Kind::Text { pieces, start, citations }
            }
            "thinking" => {
                let text = block.thinking.map(|raw| pieces.push(raw)).transpose();
                let text = text.map_err(malformed)?.unwrap_or_default().into_owned();
                let signature = owned(block.signature).filter(|signature| !signature.is_empty());
                // Signed thinking whose text is kept back is a block all the same.
                if !text.is_empty() || signature.is_some() {
                    deltas.push(Delta::Thinking { index, text });
                }
                deltas.extend(signature.map(|signature| Delta::Signature { index, signature }));
                Kind::Thinking(pieces)
            }
            "redacted_thinking" => {
                let data = owned(block.data).unwrap_or_default();
                deltas.push(Delta::Redacted { index, data });
                Kind::Redacted
            }
            "tool_use" => {
                self.called = true;
                let id = owned(block.id).unwrap_or_default();
                let name = owned(block.name).unwrap_or_default();
                deltas.push(Delta::ToolCall { index, id, name });
                // In a stream the input begins empty and comes in pieces.
                let input = block.input.filter(|input| !is_empty_object(input.get()));
                let json = input.map(|input| input.get().to_owned());
                deltas.extend(json.map(|json| Delta::Arguments { index, json }));
                Kind::Call { input: pieces, has_arguments: input.is_some() }
            }
            kind => Kind::Other {
                kind: kind.to_owned(),
                start: raw.kept(),
                pieces,
                input: String::new(),
            },
        };
        let content = matches!(kind, Kind::Other { .. });
        self.open.insert(at, Open { block: index, kind });
        Ok(content)
    }

    /// A piece of a block. Returns whether it is content, be it in a delta or not.
    fn change(
        &mut self,
        at: u64,
        change: Change<'_>,
        deltas: &mut Deltas,
    ) -> Result<bool, serde_json::Error> {
        let Some(open) = self.open.get_mut(&at) else { return Ok(false) };
        let index = open.block;
        let is_piece = |raw: Option<Raw<'_>>| raw.is_some_and(|raw| raw.get() != "\"\"");
        let mut content = false;
        match (change.kind.as_ref().map(|kind| &*kind.0), &mut open.kind) {
            (Some("text_delta"), Kind::Text { pieces, .. }) => {
                content = is_piece(change.text);
                let text = change.text.map(|raw| pieces.push(raw)).transpose()?;
                if let Some(text) = text {
                    self.chars += text.chars().count() as u64;
                    deltas.push(Delta::Text { index, text: text.into_owned() });
                }
            }
            (Some("citations_delta"), Kind::Text { citations, .. }) => {
                citations.extend(change.citation.and_then(citations::read));
            }
            (Some("thinking_delta"), Kind::Thinking(pieces)) => {
                content = is_piece(change.thinking);
                let text = change.thinking.map(|raw| pieces.push(raw)).transpose()?;
                deltas.extend(text.map(|text| Delta::Thinking { index, text: text.into_owned() }));
            }
            (Some("signature_delta"), Kind::Thinking(_)) => {
                let signature = owned(change.signature);
                deltas.extend(signature.map(|signature| Delta::Signature { index, signature }));
            }
            (Some("input_json_delta"), Kind::Call { input, has_arguments }) => {
                content = is_piece(change.partial_json);
                let json = change.partial_json.map(|raw| input.push(raw)).transpose()?;
                if let Some(json) = json.filter(|json| !json.is_empty()) {
                    *has_arguments = true;
                    deltas.push(Delta::Arguments { index, json: json.into_owned() });
                }
            }
            (kind, Kind::Other { pieces, input, .. }) => {
                content = true;
                if let (Some("input_json_delta"), Some(raw)) = (kind, change.partial_json) {
                    input.push_str(&pieces.push(raw)?);
                }
            }
            // Whatever else: the frame has it.
            _ => {}
        }
        Ok(content)
    }

    /// Whether half of a character of a block's text has come.
    fn waits(&self, at: u64) -> bool {
        match self.open.get(&at) {
            Some(Open { kind: Kind::Text { pieces, .. } | Kind::Thinking(pieces), .. }) => {
                pieces.waits()
            }
            _ => false,
        }
    }

    fn end(&mut self, at: u64, deltas: &mut Deltas) {
        let Some(Open { block: index, kind }) = self.open.remove(&at) else { return };
        match kind {
            Kind::Text { mut pieces, start, mut citations } => {
                if let Some(text) = pieces.end() {
                    self.chars += text.chars().count() as u64;
                    deltas.push(Delta::Text { index, text });
                }
                if !citations.is_empty() {
                    citations.iter_mut().for_each(|it| it.range = Some((start, self.chars)));
                    deltas.push(Delta::Citations(citations));
                }
            }
            Kind::Thinking(mut pieces) => {
                deltas.extend(pieces.end().map(|text| Delta::Thinking { index, text }));
            }
            Kind::Redacted => {}
            Kind::Call { mut input, has_arguments } => {
                let rest = input.end();
                let json = rest.or_else(|| (!has_arguments).then(|| "{}".to_owned()));
                deltas.extend(json.map(|json| Delta::Arguments { index, json }));
            }
            Kind::Other { kind, start, mut pieces, mut input } => {
                input.extend(pieces.end());
                let json = with_input(start, &input);
                let block = Opaque { dialect: DIALECT, kind, json };
                deltas.push(Delta::Opaque { index, block });
            }
        }
        deltas.push(Delta::BlockEnd { index });
    }
}

fn owned(text: Option<Str<'_>>) -> Option<String> {
    text.map(|text| text.0.into_owned())
}

fn is_empty_object(json: &str) -> bool {
    json.strip_prefix('{')
        .and_then(|rest| rest.strip_suffix('}'))
        .is_some_and(|inner| inner.trim().is_empty())
}

/// The block `start` with the input that came in pieces.
fn with_input(start: RawJson, input: &str) -> RawJson {
    match (start.to_value(), surrogates::read::<Value>(input)) {
        (Value::Object(mut block), Ok(input)) => {
            block.insert("input".to_owned(), input);
            RawJson::from_value(&Value::Object(block))
        }
        _ => start,
    }
}
