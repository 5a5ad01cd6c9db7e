//! A provider's answer, read: whole, or event by event.

use std::{borrow::Cow, collections::BTreeMap};

use bytes::Bytes;
use serde::Deserialize;
use steadfast_chat::{Citation, Delta, Deltas, Event, Frame, Opaque, Stop, StopReason};
use steadfast_core::Failure;

use super::{DIALECT, custom, namespace, stop};
use crate::{
    dialect::{DecodeFrames, DecodedFrame, fault, range_of},
    json::{Raw, Str, TextPieces, items},
    sse::SseFrame,
};

/// Any event of a stream; what is used of them.
#[derive(Deserialize)]
struct Read<'a> {
    #[serde(borrow, rename = "type")]
    kind: Option<Str<'a>>,
    #[serde(borrow)]
    response: Option<Raw<'a>>,
    #[serde(borrow)]
    item: Option<Raw<'a>>,
    #[serde(borrow)]
    annotation: Option<Raw<'a>>,
    #[serde(borrow)]
    delta: Option<Raw<'a>>,
    output_index: Option<u64>,
    content_index: Option<u64>,
    summary_index: Option<u64>,
    #[serde(borrow)]
    sequence_number: Option<Raw<'a>>,
}

/// An answer, whole or as far as it has come.
#[derive(Deserialize)]
struct Response<'a> {
    #[serde(borrow)]
    id: Option<Str<'a>>,
    #[serde(borrow)]
    model: Option<Str<'a>>,
    #[serde(borrow)]
    status: Option<Str<'a>>,
    background: Option<bool>,
    #[serde(borrow)]
    output: Option<Vec<Raw<'a>>>,
    #[serde(borrow)]
    error: Option<Raw<'a>>,
    #[serde(borrow)]
    incomplete_details: Option<Details<'a>>,
    #[serde(borrow)]
    usage: Option<Raw<'a>>,
}

#[derive(Deserialize)]
struct Details<'a> {
    #[serde(borrow)]
    reason: Option<Str<'a>>,
}

#[derive(Deserialize)]
struct Item<'a> {
    #[serde(borrow, rename = "type")]
    kind: Str<'a>,
    #[serde(borrow)]
    call_id: Option<Str<'a>>,
    #[serde(borrow)]
    name: Option<Str<'a>>,
    #[serde(borrow)]
    namespace: Option<Str<'a>>,
    #[serde(borrow)]
    arguments: Option<Raw<'a>>,
    #[serde(borrow)]
    input: Option<Raw<'a>>,
    #[serde(borrow)]
    content: Option<Raw<'a>>,
    #[serde(borrow)]
    summary: Option<Raw<'a>>,
    #[serde(borrow)]
    encrypted_content: Option<Str<'a>>,
}

/// A part of an item's content.
#[derive(Deserialize)]
struct Part<'a> {
    #[serde(borrow, rename = "type")]
    kind: Str<'a>,
    #[serde(borrow)]
    text: Option<Raw<'a>>,
    #[serde(borrow)]
    refusal: Option<Raw<'a>>,
    #[serde(borrow)]
    annotations: Option<Raw<'a>>,
}

#[derive(Deserialize)]
struct Annotation<'a> {
    #[serde(borrow)]
    url: Option<Str<'a>>,
    #[serde(borrow)]
    title: Option<Str<'a>>,
    start_index: Option<u64>,
    end_index: Option<u64>,
}

/// Reads a whole answer.
pub(super) fn whole(body: &Bytes) -> Result<Event, Failure> {
    const WHAT: &str = "an answer";
    let text = fault::text(body);
    let malformed = |error| fault::malformed(DIALECT, WHAT, &error);
    let response: Response<'_> = match serde_json::from_str(&text) {
        Ok(response) => response,
        Err(_) if is_error(&text) => return Err(fault::reported(DIALECT, &text)),
        Err(error) => return Err(malformed(error)),
    };
    if response.error.is_some() {
        return Err(fault::reported(DIALECT, &text));
    }
    let mut deltas = Deltas::with_capacity(7);
    let mut state = Frames::default();
    let Some(output) = &response.output else {
        return Err(fault::unfinished(DIALECT, "output"));
    };
    deltas.push(Delta::Start { id: owned(&response.id), model: owned(&response.model) });
    let mut content = false;
    for (at, raw) in output.iter().enumerate() {
        content |= state.whole_item(at as u64, *raw, &mut deltas).map_err(malformed)?;
    }
    // What is made in the background is asked for later: that it was accepted is the whole answer.
    let accepted = response.status.as_ref().map(|status| &*status.0);
    let accepted = accepted.filter(|status| matches!(*status, "queued" | "in_progress"));
    match accepted.filter(|_| response.background == Some(true)) {
        Some(word) => {
            content = true;
            deltas.push(Delta::Stop(Stop::new(StopReason::Other, word)));
        }
        None if state.stop(&response, &mut deltas) => {}
        None => return Err(fault::unfinished(DIALECT, "status of an end")),
    }
    fault::utf8(DIALECT, WHAT, &text, body)?;
    deltas.push(Delta::End);
    Ok(Event::from_frame(Frame::body(DIALECT, body.clone()).with_content(content), deltas))
}

/// Whether it is an error.
fn is_error(text: &str) -> bool {
    #[derive(Deserialize)]
    struct Reported<'a> {
        #[serde(borrow)]
        error: Option<Raw<'a>>,
    }
    serde_json::from_str::<Reported<'_>>(text).is_ok_and(|read| read.error.is_some())
}

/// Reads events.
#[derive(Debug, Default)]
pub(super) struct Frames {
    started: bool,
    next: u32,
    /// The items that are open, by the provider's numbers.
    open: BTreeMap<u64, Open>,
    /// A tool has been called.
    called: bool,
    /// The model has refused.
    refused: bool,
    /// How much text has come, in characters.
    chars: u64,
}

/// An item that is open.
#[derive(Debug)]
enum Open {
    /// Its parts are blocks, by their numbers.
    Message(BTreeMap<u64, Text>),
    Reasoning {
        block: Option<u32>,
        pieces: TextPieces,
        /// The part of it that came last: a summary's, or its content's.
        part: Option<(bool, u64)>,
    },
    Call {
        block: u32,
        pieces: TextPieces,
        has_arguments: bool,
        custom: bool,
    },
    /// An item of a kind that this crate does not know.
    Other,
}

#[derive(Debug)]
struct Text {
    block: u32,
    pieces: TextPieces,
    /// Where it begins in the answer's text, in characters.
    start: u64,
}

impl DecodeFrames for Frames {
    fn decode(
        &mut self,
        frame: &SseFrame,
        data: &str,
        deltas: &mut Deltas,
    ) -> Result<DecodedFrame, Failure> {
        const WHAT: &str = "an event";
        if data.trim() == "[DONE]" {
            // Some compatible servers send it behind the terminal event.
            return Ok(DecodedFrame::default());
        }
        let malformed = |error: serde_json::Error| fault::malformed(DIALECT, WHAT, &error);
        let event: Read<'_> = match serde_json::from_str(data) {
            Ok(event) => event,
            Err(_) if is_error(data) => return Err(fault::reported(DIALECT, data)),
            Err(error) => return Err(malformed(error)),
        };
        let name = || std::str::from_utf8(frame.event.as_deref()?).ok();
        let kind = event.kind.as_ref().map(|kind| &*kind.0).or_else(name).unwrap_or_default();
        let inside = || range_of(data, event.delta?.inside()?);
        let count = event.sequence_number.and_then(|raw| range_of(data, raw.get()));
        let mut decoded = DecodedFrame { count, ..DecodedFrame::default() };
        let item = event.output_index.unwrap_or_default();
        match kind {
            "response.created" | "response.in_progress" | "response.queued" => {
                self.start(event.response, deltas).map_err(malformed)?;
            }
            "response.output_text.delta" => {
                let (text, part) = (event.delta, event.content_index.unwrap_or_default());
                let alone = self.text(item, part, text, deltas).map_err(malformed)?;
                decoded.only_text = inside().filter(|_| alone);
                decoded.content = text.is_some_and(|raw| raw.get() != "\"\"");
            }
            "response.refusal.delta" => {
                self.refused = true;
                let at = event.content_index.unwrap_or_default();
                self.text(item, at, event.delta, deltas).map_err(malformed)?;
            }
            "response.reasoning_summary_text.delta" => {
                let part = (true, event.summary_index.unwrap_or_default());
                let alone = self.thought(item, part, event.delta, deltas).map_err(malformed)?;
                decoded.only_text = inside().filter(|_| alone);
            }
            "response.reasoning_text.delta" => {
                let part = (false, event.content_index.unwrap_or_default());
                let alone = self.thought(item, part, event.delta, deltas).map_err(malformed)?;
                decoded.only_text = inside().filter(|_| alone);
            }
            "response.function_call_arguments.delta" | "response.custom_tool_call_input.delta" => {
                self.arguments(item, event.delta, deltas).map_err(malformed)?;
            }
            "response.output_text.annotation.added" => {
                let range = self.range(item, event.content_index.unwrap_or_default());
                let read = event.annotation.and_then(|raw| citation(raw, range));
                deltas.extend(read.map(|citation| Delta::Citations(vec![citation])));
            }
            "response.output_item.added" => {
                if let Some(raw) = event.item {
                    decoded.content = self.begin(item, raw, deltas).map_err(malformed)?;
                }
            }
            "response.output_item.done" => {
                if let Some(raw) = event.item {
                    decoded.content = self.end(item, raw, deltas).map_err(malformed)?;
                }
            }
            "response.completed" | "response.incomplete" => {
                let Some(raw) = event.response else {
                    return Err(fault::unfinished(DIALECT, "response"));
                };
                self.start(Some(raw), deltas).map_err(malformed)?;
                let response: Response<'_> = serde_json::from_str(raw.get()).map_err(malformed)?;
                self.rest(&response, deltas).map_err(malformed)?;
                if !self.stop(&response, deltas) {
                    return Err(fault::unfinished(DIALECT, "status of an end"));
                }
                deltas.push(Delta::End);
            }
            "response.failed" => {
                // What is around the error says nothing of it, and may be all of the conversation.
                let error = event.response.and_then(failed).map(failure_of);
                return Err(fault::reported(DIALECT, error.as_deref().unwrap_or(data)));
            }
            "error" => return Err(fault::reported(DIALECT, data)),
            // Events of tools that the provider runs: their content is in no delta until the item is done.
            _ => decoded.content = kind.ends_with(".delta") || kind.ends_with("partial_image"),
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

/// The error of a response that failed.
fn failed(raw: Raw<'_>) -> Option<Raw<'_>> {
    let response: Response<'_> = serde_json::from_str(raw.get()).ok()?;
    response.error.filter(|error| error.is_object())
}

/// The error as the body of one.
fn failure_of(error: Raw<'_>) -> String {
    format!(r#"{{"error":{}}}"#, error.get())
}

impl Frames {
    fn start(
        &mut self,
        raw: Option<Raw<'_>>,
        deltas: &mut Deltas,
    ) -> Result<(), serde_json::Error> {
        let Some(raw) = raw.filter(|_| !self.started) else { return Ok(()) };
        self.started = true;
        let response: Response<'_> = serde_json::from_str(raw.get())?;
        deltas.push(Delta::Start { id: owned(&response.id), model: owned(&response.model) });
        Ok(())
    }

    /// What it ends with; whether it has ended.
    fn stop(&self, response: &Response<'_>, deltas: &mut Deltas) -> bool {
        let reason = response.incomplete_details.as_ref().and_then(|why| why.reason.as_ref());
        let status = response.status.as_ref().map_or("completed", |status| &*status.0);
        let reason = reason.map(|reason| &*reason.0);
        let Some(read) = stop::read(status, reason, self.called, self.refused) else {
            return false;
        };
        deltas.push(Delta::Stop(read));
        deltas.extend(response.usage.and_then(|raw| stop::usage(raw.get())).map(Delta::Usage));
        true
    }

    fn fresh(&mut self) -> u32 {
        let block = self.next;
        self.next += 1;
        block
    }

    /// The range of a part's text so far.
    fn range(&self, item: u64, part: u64) -> Option<(u64, u64)> {
        match self.open.get(&item)? {
            Open::Message(parts) => parts.get(&part).map(|text| (text.start, self.chars)),
            _ => None,
        }
    }

    /// A piece of a message's text. Returns whether it says the same whatever came before.
    fn text(
        &mut self,
        item: u64,
        part: u64,
        raw: Option<Raw<'_>>,
        deltas: &mut Deltas,
    ) -> Result<bool, serde_json::Error> {
        let Some(raw) = raw else { return Ok(false) };
        let (next, chars) = (&mut self.next, &mut self.chars);
        let open = self.open.entry(item).or_insert_with(|| Open::Message(BTreeMap::new()));
        let Open::Message(parts) = open else { return Ok(false) };
        let text = parts.entry(part).or_insert_with(|| {
            let block = *next;
            *next += 1;
            Text { block, pieces: TextPieces::default(), start: *chars }
        });
        let waited = text.pieces.waits();
        let piece = text.pieces.push(raw)?.into_owned();
        *chars += piece.chars().count() as u64;
        let waits = waited || text.pieces.waits();
        if !piece.is_empty() {
            deltas.push(Delta::Text { index: text.block, text: piece });
        }
        Ok(!waits)
    }

    /// A piece of thinking; the parts of a summary are paragraphs. Returns whether it says the same whatever
    /// came before.
    fn thought(
        &mut self,
        item: u64,
        part: (bool, u64),
        raw: Option<Raw<'_>>,
        deltas: &mut Deltas,
    ) -> Result<bool, serde_json::Error> {
        let Some(raw) = raw else { return Ok(false) };
        let next = &mut self.next;
        let open = self.open.entry(item).or_insert_with(reasoning);
        let Open::Reasoning { block, pieces, part: last } = open else { return Ok(false) };
        // A provider that shows what it thought shows a summary of it, too.
        if last.is_some_and(|(summary, _)| summary != part.0) {
            return Ok(false);
        }
        let waited = pieces.waits();
        let mut text = pieces.push(raw)?.into_owned();
        let waits = waited || pieces.waits();
        if text.is_empty() {
            return Ok(false);
        }
        if last.replace(part).is_some_and(|last| last != part) {
            text.insert_str(0, "\n\n");
        }
        let index = *block.get_or_insert_with(|| {
            let block = *next;
            *next += 1;
            block
        });
        deltas.push(Delta::Thinking { index, text });
        Ok(!waits)
    }

    /// A piece of a call's arguments, or of its text.
    fn arguments(
        &mut self,
        item: u64,
        raw: Option<Raw<'_>>,
        deltas: &mut Deltas,
    ) -> Result<(), serde_json::Error> {
        let Some(raw) = raw else { return Ok(()) };
        let Some(Open::Call { block, pieces, has_arguments, custom }) = self.open.get_mut(&item)
        else {
            return Ok(());
        };
        let piece = pieces.push(raw)?;
        if piece.is_empty() {
            return Ok(());
        }
        let json = match custom {
            false => piece.into_owned(),
            true if *has_arguments => custom::inside(&piece),
            true => format!("{}{}", custom::AROUND.0, custom::inside(&piece)),
        };
        *has_arguments = true;
        deltas.push(Delta::Arguments { index: *block, json });
        Ok(())
    }

    /// An item begins. Returns whether its content is in no delta yet.
    fn begin(
        &mut self,
        at: u64,
        raw: Raw<'_>,
        deltas: &mut Deltas,
    ) -> Result<bool, serde_json::Error> {
        let item: Item<'_> = serde_json::from_str(raw.get())?;
        let open = match &*item.kind.0 {
            "message" => Open::Message(BTreeMap::new()),
            "reasoning" => reasoning(),
            kind @ ("function_call" | "custom_tool_call") => {
                self.called = true;
                let block = self.fresh();
                let (id, name) = (owned(&item.call_id), owned(&item.name).unwrap_or_default());
                let name = match &item.namespace {
                    Some(namespace) => namespace::joined(&namespace.0, &name),
                    None => name,
                };
                deltas.push(Delta::ToolCall { index: block, id: id.unwrap_or_default(), name });
                Open::Call {
                    block,
                    pieces: TextPieces::default(),
                    has_arguments: false,
                    custom: kind == "custom_tool_call",
                }
            }
            _ => Open::Other,
        };
        let content = matches!(open, Open::Other);
        self.open.insert(at, open);
        Ok(content)
    }

    /// An item that comes in one piece. Returns whether it has content that is in no delta.
    fn whole_item(
        &mut self,
        at: u64,
        raw: Raw<'_>,
        deltas: &mut Deltas,
    ) -> Result<bool, serde_json::Error> {
        self.begin(at, raw, deltas)?;
        self.end(at, raw, deltas)
    }

    /// Items that stand in the whole answer alone: servers that send no events of them.
    fn rest(
        &mut self,
        response: &Response<'_>,
        deltas: &mut Deltas,
    ) -> Result<(), serde_json::Error> {
        if self.next > 0 || !self.open.is_empty() {
            while let Some(at) = self.open.keys().next().copied() {
                self.close(at, deltas);
            }
            return Ok(());
        }
        for (at, raw) in response.output.iter().flatten().enumerate() {
            self.whole_item(at as u64, *raw, deltas)?;
        }
        Ok(())
    }

    /// An item is complete: what has not come of it in pieces comes now.
    fn end(
        &mut self,
        at: u64,
        raw: Raw<'_>,
        deltas: &mut Deltas,
    ) -> Result<bool, serde_json::Error> {
        let item: Item<'_> = serde_json::from_str(raw.get())?;
        if !self.open.contains_key(&at) {
            self.begin(at, raw, deltas)?;
        }
        match self.open.get_mut(&at) {
            Some(Open::Message(parts)) => {
                if parts.is_empty() {
                    self.message(at, &item, deltas)?;
                }
            }
            Some(Open::Reasoning { block, .. }) => {
                let missing = block.is_none();
                if missing {
                    self.reasoning(at, &item, deltas)?;
                }
                let Some(Open::Reasoning { block, .. }) = self.open.get_mut(&at) else {
                    return Ok(false);
                };
                let signature = owned(&item.encrypted_content).filter(|text| !text.is_empty());
                match (*block, signature) {
                    (Some(index), Some(signature)) => {
                        deltas.push(Delta::Signature { index, signature });
                    }
                    (None, Some(data)) => {
                        let index = self.next;
                        self.next += 1;
                        *block = Some(index);
                        deltas.push(Delta::Redacted { index, data });
                    }
                    _ => {}
                }
            }
            Some(Open::Call { has_arguments: false, custom, .. }) => {
                let whole = if *custom { item.input } else { item.arguments };
                self.arguments(at, whole, deltas)?;
            }
            Some(Open::Call { .. }) => {}
            Some(Open::Other) | None => {
                let kind = item.kind.0.into_owned();
                let block = Opaque { dialect: DIALECT, kind, json: raw.kept() };
                let index = self.fresh();
                deltas.push(Delta::Opaque { index, block });
                deltas.push(Delta::BlockEnd { index });
                self.open.remove(&at);
                return Ok(true);
            }
        }
        self.close(at, deltas);
        Ok(false)
    }

    /// The texts of a message that came in one piece.
    fn message(
        &mut self,
        at: u64,
        item: &Item<'_>,
        deltas: &mut Deltas,
    ) -> Result<(), serde_json::Error> {
        let parts = item.content.map(|raw| items(raw).unwrap_or_default()).unwrap_or_default();
        for (n, raw) in parts.into_iter().enumerate() {
            let part: Part<'_> = serde_json::from_str(raw.get())?;
            self.refused |= part.kind.0 == "refusal";
            let n = n as u64;
            self.text(at, n, part.text.or(part.refusal), deltas)?;
            let range = self.range(at, n);
            let sources = part.annotations.map(|raw| items(raw).unwrap_or_default());
            let sources = sources.unwrap_or_default().into_iter();
            let sources: Vec<_> = sources.filter_map(|raw| citation(raw, range)).collect();
            deltas.extend(Some(sources).filter(|all| !all.is_empty()).map(Delta::Citations));
        }
        Ok(())
    }

    /// The thinking of an item that came in one piece.
    fn reasoning(
        &mut self,
        at: u64,
        item: &Item<'_>,
        deltas: &mut Deltas,
    ) -> Result<(), serde_json::Error> {
        let has_some = |raw: &Raw<'_>| raw.is_list() && raw.get() != "[]";
        let found = (item.content.filter(has_some), item.summary.filter(has_some));
        let (summary, list) = match found {
            (Some(content), _) => (false, content),
            (None, Some(summary)) => (true, summary),
            (None, None) => return Ok(()),
        };
        for (n, raw) in items(list).unwrap_or_default().into_iter().enumerate() {
            let part: Part<'_> = serde_json::from_str(raw.get())?;
            self.thought(at, (summary, n as u64), part.text, deltas)?;
        }
        Ok(())
    }

    /// Nothing more comes of an item.
    fn close(&mut self, at: u64, deltas: &mut Deltas) {
        match self.open.remove(&at) {
            Some(Open::Message(parts)) => {
                for mut text in parts.into_values() {
                    if let Some(rest) = text.pieces.end() {
                        self.chars += rest.chars().count() as u64;
                        deltas.push(Delta::Text { index: text.block, text: rest });
                    }
                    deltas.push(Delta::BlockEnd { index: text.block });
                }
            }
            Some(Open::Reasoning { block: Some(index), mut pieces, .. }) => {
                deltas.extend(pieces.end().map(|text| Delta::Thinking { index, text }));
                deltas.push(Delta::BlockEnd { index });
            }
            Some(Open::Call { block: index, mut pieces, has_arguments, custom }) => {
                let rest = pieces.end().map(|rest| match custom {
                    true => custom::inside(&rest),
                    false => rest,
                });
                deltas.extend(rest.map(|json| Delta::Arguments { index, json }));
                let closing = match (custom, has_arguments) {
                    (true, true) => Some(Cow::Borrowed(custom::AROUND.1)),
                    (true, false) => Some(Cow::Owned(custom::arguments(""))),
                    (false, false) => Some(Cow::Borrowed("{}")),
                    (false, true) => None,
                };
                let closing = closing.map(Cow::into_owned);
                deltas.extend(closing.map(|json| Delta::Arguments { index, json }));
                deltas.push(Delta::BlockEnd { index });
            }
            _ => {}
        }
    }
}

fn reasoning() -> Open {
    Open::Reasoning { block: None, pieces: TextPieces::default(), part: None }
}

/// A source that has an address; `range` is that of the text it stands in.
fn citation(raw: Raw<'_>, range: Option<(u64, u64)>) -> Option<Citation> {
    let read: Annotation<'_> = serde_json::from_str(raw.get()).ok()?;
    let mut citation = Citation::new(read.url?.0);
    citation.title = read.title.map(|title| title.0.into_owned());
    // Its own range is of its part of the text.
    let start = range.map_or(0, |(start, _)| start);
    citation.range =
        read.start_index.zip(read.end_index).map(|(from, to)| (start + from, start + to));
    Some(citation)
}

fn owned(text: &Option<Str<'_>>) -> Option<String> {
    text.as_ref().map(|text| text.0.clone().into_owned())
}
