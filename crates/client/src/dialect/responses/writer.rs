//! A stream for a caller, written.
//!
//! Its clients build the answer from items: each is added before its pieces come, and done before the answer is;
//! the last event has all of them once more. So what was written is kept. Events are numbered without a gap, also
//! where the first were a provider's own and passed on.

use std::mem;

use memchr::memmem;
use serde::Deserialize;
use steadfast_chat::{Citation, Delta, Event, TokenLogprob};
use steadfast_core::Failure;

use super::{
    DIALECT,
    answer_encode::{
        Ending, Item, Kind, Status, item_id, of_opaque, put_citation, put_part, put_response,
        response_id,
    },
    custom, error, stop,
};
use crate::{
    dialect::{Caller, EncodeEvents, ErrorReply, Known, openai::put_tokens, sse_out},
    json::{JsonPieces, Object},
};

/// Writes events.
#[derive(Debug)]
pub(super) struct Writer {
    known: Known,
    /// The number of the next event.
    sequence: u64,
    /// Where the number of a provider's event stood: behind how many bytes, and before how many.
    numbered: (usize, usize),
    started: bool,
    finished: bool,
    items: Vec<Item>,
    /// Of each item.
    states: Vec<State>,
    /// The blocks that are open, with the item that each is: few at any time.
    blocks: Vec<(u32, usize)>,
    /// Sources that came before the text they are of.
    early: Vec<Citation>,
    /// The position of the next item in the output.
    next: u64,
}

/// How far an item is.
#[derive(Debug, Default)]
struct State {
    /// Its position in the output.
    output: u64,
    /// The position of its text in it.
    part: u64,
    done: bool,
    pieces: JsonPieces,
}

/// Where an event of a provider's belongs.
#[derive(Deserialize, Default)]
#[serde(default)]
struct Position {
    sequence_number: Option<u64>,
    item_id: Option<String>,
    output_index: Option<u64>,
    content_index: Option<u64>,
    item: Option<Named>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Named {
    id: Option<String>,
}

impl Writer {
    pub(super) fn new(caller: &Caller) -> Self {
        Self {
            known: Known::new(caller),
            sequence: 0,
            numbered: (0, 0),
            started: false,
            finished: false,
            items: Vec::new(),
            states: Vec::new(),
            blocks: Vec::new(),
            early: Vec::new(),
            next: 0,
        }
    }

    fn event(&mut self, out: &mut Vec<u8>, name: &str, fill: impl FnOnce(&Self, &mut Object<'_>)) {
        sse_out::frame(out, Some(name), |object| {
            object.put("type", name);
            fill(self, object);
            object.put("sequence_number", &self.sequence);
        });
        self.sequence = self.sequence.saturating_add(1);
    }

    fn response(&self, object: &mut Object<'_>, ending: Option<&Ending<'_>>) {
        let Known { id, model, caller, .. } = &self.known;
        let id = response_id(id.as_deref(), caller);
        let model = model.as_deref().unwrap_or(&caller.model);
        put_response(&mut object.object("response"), (&id, model), caller, &self.items, ending);
    }

    fn start(&mut self, out: &mut Vec<u8>) {
        if !mem::replace(&mut self.started, true) {
            for name in ["response.created", "response.in_progress"] {
                self.event(out, name, |this, object| this.response(object, None));
            }
        }
    }

    /// An event about a piece of item `n`.
    fn piece(
        &mut self,
        out: &mut Vec<u8>,
        name: &str,
        n: usize,
        fill: impl FnOnce(&Self, &mut Object<'_>),
    ) {
        self.event(out, name, |this, object| {
            let state = &this.states[n];
            object.put("item_id", &this.items[n].id).put("output_index", &state.output);
            match this.items[n].kind {
                Kind::Text { .. } => drop(object.put("content_index", &state.part)),
                Kind::Thinking { .. } => drop(object.put("summary_index", &0)),
                _ => {}
            }
            fill(this, object);
        });
    }

    /// The item that is block `index`, which begins when it is new.
    fn item(&mut self, index: u32, kind: impl FnOnce() -> Kind, out: &mut Vec<u8>) -> usize {
        if let Some(n) = self.open(index) {
            return n;
        }
        // Calls may come side by side; a text or a thought is over when something else begins.
        let is_over = |n: &usize| !matches!(self.items[*n].kind, Kind::Call { .. });
        let over: Vec<usize> = self.all_open().filter(is_over).collect();
        over.into_iter().for_each(|n| self.done(n, Status::Completed, out));
        let n = self.add(index, kind(), None);
        self.event(out, "response.output_item.added", |this, object| {
            object.put("output_index", &this.states[n].output);
            this.items[n].put_as(object, Status::InProgress);
        });
        match self.items[n].kind {
            Kind::Text { .. } => self.piece(out, "response.content_part.added", n, |_, object| {
                put_part(&mut object.object("part"), "", &[], &[]);
            }),
            Kind::Thinking { .. } => {
                self.piece(out, "response.reasoning_summary_part.added", n, |_, object| {
                    object.object("part").put("type", "summary_text").put("text", "");
                });
            }
            _ => {}
        }
        n
    }

    /// The item that block `index` is, while it is open.
    fn open(&self, index: u32) -> Option<usize> {
        self.blocks.iter().find(|(block, _)| *block == index).map(|(_, n)| *n)
    }

    fn all_open(&self) -> impl Iterator<Item = usize> + '_ {
        self.blocks.iter().map(|(_, n)| *n)
    }

    /// A new item, which nobody has been shown by this writer.
    fn add(&mut self, index: u32, kind: Kind, at: Option<Position>) -> usize {
        let n = self.items.len();
        let at = at.unwrap_or_default();
        let named = at.item_id.or(at.item.and_then(|item| item.id));
        let id = named.unwrap_or_else(|| item_id(&kind, &self.known.caller.id, n));
        let output = at.output_index.unwrap_or(self.next);
        self.next = self.next.max(output + 1);
        self.items.push(Item { id, kind });
        let part = at.content_index.unwrap_or_default();
        self.states.push(State { output, part, ..State::default() });
        self.blocks.push((index, n));
        n
    }

    /// Ends item `n`.
    fn done(&mut self, n: usize, status: Status, out: &mut Vec<u8>) {
        self.blocks.retain(|(_, open)| *open != n);
        if mem::replace(&mut self.states[n].done, true) {
            return;
        }
        match &self.items[n].kind {
            Kind::Text { .. } => {
                self.piece(out, "response.output_text.done", n, |this, object| {
                    object.put("text", this.text(n));
                    object.array("logprobs");
                });
                self.piece(out, "response.content_part.done", n, |this, object| {
                    let Kind::Text { text, citations, logprobs } = &this.items[n].kind else {
                        return;
                    };
                    put_part(&mut object.object("part"), text, citations, logprobs);
                });
            }
            Kind::Thinking { .. } => {
                self.piece(out, "response.reasoning_summary_text.done", n, |this, object| {
                    object.put("text", this.text(n));
                });
                self.piece(out, "response.reasoning_summary_part.done", n, |this, object| {
                    let mut part = object.object("part");
                    part.put("type", "summary_text").put("text", this.text(n));
                });
            }
            Kind::Call { .. } => self.call_done(n, out),
            Kind::Image(_) | Kind::Raw(_) => {}
        }
        self.event(out, "response.output_item.done", |this, object| {
            object.put("output_index", &this.states[n].output);
            this.items[n].put_as(object, status);
        });
    }

    /// What comes when a call is complete: all of a custom one's text, as it is read out of what came.
    fn call_done(&mut self, n: usize, out: &mut Vec<u8>) {
        if let Some(rest) = self.states[n].pieces.rest().map(|rest| rest.into_owned()) {
            self.arguments(n, &rest, out);
        }
        let Kind::Call { arguments, custom, .. } = &mut self.items[n].kind else { return };
        if *custom {
            *arguments = custom::input(arguments);
            self.piece(out, "response.custom_tool_call_input.delta", n, |this, object| {
                object.put("delta", this.text(n));
            });
            self.piece(out, "response.custom_tool_call_input.done", n, |this, object| {
                object.put("input", this.text(n));
            });
            return;
        }
        if arguments.trim().is_empty() {
            self.arguments(n, "{}", out);
        }
        self.piece(out, "response.function_call_arguments.done", n, |this, object| {
            if let Kind::Call { name, .. } = &this.items[n].kind {
                object.put("name", name);
            }
            object.put("arguments", this.text(n));
        });
    }

    /// The text of an item: its arguments, of a call.
    fn text(&self, n: usize) -> &str {
        match &self.items[n].kind {
            Kind::Text { text, .. } | Kind::Thinking { text, .. } => text,
            Kind::Call { arguments, .. } => arguments,
            Kind::Image(_) | Kind::Raw(_) => "",
        }
    }

    /// A piece of a call's arguments.
    fn arguments(&mut self, n: usize, json: &str, out: &mut Vec<u8>) {
        let Kind::Call { arguments, custom, .. } = &mut self.items[n].kind else { return };
        arguments.push_str(json);
        if !*custom {
            self.piece(out, "response.function_call_arguments.delta", n, |_, object| {
                object.put("delta", json);
            });
        }
    }

    fn cite(&mut self, citations: &[Citation], out: &mut Vec<u8>) {
        let is_text = |n: &usize| matches!(self.items[*n].kind, Kind::Text { .. });
        let Some(n) = self.all_open().find(is_text) else {
            self.early.extend_from_slice(citations);
            return;
        };
        for citation in citations {
            let Kind::Text { text, citations, .. } = &mut self.items[n].kind else { return };
            let (chars, at) = (text.chars().count() as u64, citations.len());
            citations.push(citation.clone());
            self.piece(out, "response.output_text.annotation.added", n, |_, object| {
                object.put("annotation_index", &at);
                put_citation(&mut object.object("annotation"), citation, chars);
            });
        }
    }

    fn end(&mut self, own: bool, out: &mut Vec<u8>) {
        if mem::replace(&mut self.finished, true) {
            return;
        }
        let incomplete = stop::incomplete(self.known.stop.as_ref(), own).is_some();
        let mut open: Vec<usize> = self.all_open().collect();
        open.sort_unstable();
        let last = open.last().copied();
        for n in open {
            let is_cut = incomplete && Some(n) == last;
            let status = if is_cut { Status::Incomplete } else { Status::Completed };
            self.done(n, status, out);
        }
        let name = if incomplete { "response.incomplete" } else { "response.completed" };
        self.event(out, name, |this, object| {
            let Known { stop, usage, .. } = &this.known;
            let ending = Ending { stop: stop.as_ref(), own, usage, error: None };
            this.response(object, Some(&ending));
        });
    }

    fn delta(&mut self, delta: &Delta, foreign: bool, out: &mut Vec<u8>) {
        match delta {
            Delta::Text { index, text } => {
                let n = self.item(*index, new_text, out);
                if let Kind::Text { text: all, .. } = &mut self.items[n].kind {
                    all.push_str(text);
                }
                self.piece(out, "response.output_text.delta", n, |_, object| {
                    object.put("delta", text).array("logprobs");
                });
                let early = mem::take(&mut self.early);
                self.cite(&early, out);
            }
            Delta::Thinking { index, text } => {
                let n = self.item(*index, new_thinking, out);
                if text.is_empty() {
                    return;
                }
                if let Kind::Thinking { text: all, .. } = &mut self.items[n].kind {
                    all.push_str(text);
                }
                self.piece(out, "response.reasoning_summary_text.delta", n, |_, object| {
                    object.put("delta", text);
                });
            }
            Delta::Signature { index, signature: piece } if !foreign => {
                if let Some(n) = self.open(*index)
                    && let Kind::Thinking { signature, .. } = &mut self.items[n].kind
                {
                    signature.get_or_insert_default().push_str(piece);
                }
            }
            Delta::Redacted { index, data } if !foreign => {
                let n = self.item(*index, new_thinking, out);
                if let Kind::Thinking { signature, .. } = &mut self.items[n].kind {
                    *signature = Some(data.clone());
                }
            }
            Delta::ToolCall { index, id, name } => {
                let kind = Kind::call(id, name, &self.known.caller);
                self.item(*index, || kind, out);
            }
            Delta::Arguments { index, json } => {
                let Some(n) = self.open(*index) else { return };
                let json = match foreign {
                    true => self.states[n].pieces.push(json).into_owned(),
                    false => json.clone(),
                };
                if !json.is_empty() {
                    self.arguments(n, &json, out);
                }
            }
            Delta::Opaque { index, block } => {
                if let Some(kind) = of_opaque(block) {
                    let n = self.item(*index, || kind, out);
                    self.done(n, Status::Completed, out);
                }
            }
            Delta::BlockEnd { index } => {
                if let Some(n) = self.open(*index) {
                    self.done(n, Status::Completed, out);
                }
            }
            Delta::Citations(citations) => self.cite(citations, out),
            Delta::Logprobs(logprobs) => self.logprobs(logprobs, out),
            _ => {}
        }
    }

    fn logprobs(&mut self, logprobs: &[TokenLogprob], out: &mut Vec<u8>) {
        let is_text = |n: &usize| matches!(self.items[*n].kind, Kind::Text { .. });
        let Some(n) = self.all_open().find(is_text) else { return };
        self.piece(out, "response.output_text.delta", n, |_, object| {
            object.put("delta", "");
            put_tokens(&mut object.array("logprobs"), logprobs);
        });
        if let Kind::Text { logprobs: all, .. } = &mut self.items[n].kind {
            all.extend_from_slice(logprobs);
        }
    }
}

fn new_text() -> Kind {
    Kind::Text { text: String::new(), citations: Vec::new(), logprobs: Vec::new() }
}

fn new_thinking() -> Kind {
    Kind::Thinking { text: String::new(), signature: None }
}

impl EncodeEvents for Writer {
    fn encode(&mut self, event: &Event, foreign: bool, out: &mut Vec<u8>) -> Result<(), Failure> {
        for delta in &event.deltas {
            self.known.note(delta);
        }
        for delta in &event.deltas {
            match delta {
                Delta::Ping => out.extend_from_slice(b": ping\n\n"),
                Delta::Stop(_) | Delta::Usage(_) => {}
                Delta::End => {
                    self.start(out);
                    self.end(!foreign, out);
                }
                _ => {
                    self.start(out);
                    self.delta(delta, foreign, out);
                }
            }
        }
        Ok(())
    }

    fn report(&mut self, failure: &Failure, out: &mut Vec<u8>) -> bool {
        let reply = ErrorReply::new(failure, DIALECT, None);
        let message = error::message(failure, &reply.message);
        self.start(out);
        self.event(out, "response.failed", |this, object| {
            let error = Some((error::code(reply.reason), message.as_str()));
            let ending = Ending { stop: None, own: false, usage: &this.known.usage, error };
            this.response(object, Some(&ending));
        });
        true
    }

    fn note(&mut self, event: &Event) -> bool {
        let frame = event.frame.as_ref().map_or(&[][..], |frame| &frame.bytes);
        self.count(frame);
        for delta in &event.deltas {
            self.known.note(delta);
            match delta {
                Delta::Start { .. } => self.started = true,
                Delta::Stop(_) => self.finished = true,
                Delta::Text { index, text } => {
                    let n = self.noted(*index, new_text, frame);
                    if let Kind::Text { text: all, .. } = &mut self.items[n].kind {
                        all.push_str(text);
                    }
                }
                Delta::Thinking { index, text } => {
                    let n = self.noted(*index, new_thinking, frame);
                    if let Kind::Thinking { text: all, .. } = &mut self.items[n].kind {
                        all.push_str(text);
                    }
                }
                Delta::ToolCall { index, id, name } => {
                    let kind = Kind::call(id, name, &self.known.caller);
                    self.noted(*index, || kind, frame);
                }
                Delta::Arguments { index, json } => {
                    if let Some(n) = self.open(*index)
                        && let Kind::Call { arguments, .. } = &mut self.items[n].kind
                    {
                        arguments.push_str(json);
                    }
                }
                Delta::Signature { index, signature: piece } => {
                    if let Some(n) = self.open(*index)
                        && let Kind::Thinking { signature, .. } = &mut self.items[n].kind
                    {
                        signature.get_or_insert_default().push_str(piece);
                    }
                }
                Delta::Redacted { index, data } => {
                    let n = self.noted(*index, new_thinking, frame);
                    if let Kind::Thinking { signature, .. } = &mut self.items[n].kind {
                        *signature = Some(data.clone());
                    }
                }
                Delta::Opaque { index, block } => {
                    let json = block.json.get().to_owned();
                    self.noted(*index, || Kind::Raw(json), frame);
                }
                Delta::BlockEnd { index } => {
                    if let Some(n) = self.open(*index) {
                        self.blocks.retain(|(_, open)| *open != n);
                        self.states[n].done = true;
                        if let Kind::Call { arguments, custom: true, .. } = &mut self.items[n].kind
                        {
                            *arguments = custom::input(arguments);
                        }
                    }
                }
                _ => {}
            }
        }
        true
    }
}

impl Writer {
    /// The item that is block `index`, of a provider's own frames.
    fn noted(&mut self, index: u32, kind: impl FnOnce() -> Kind, frame: &[u8]) -> usize {
        if let Some(n) = self.open(index) {
            return n;
        }
        self.add(index, kind(), position(frame))
    }

    /// The next event has the number behind that of `frame`, which is found without reading it: mostly where the
    /// one before had its own, from one of its ends.
    fn count(&mut self, frame: &[u8]) {
        let (ahead, behind) = self.numbered;
        let from = frame.len().saturating_sub(behind);
        let read = number(frame, ahead).map(|number| (ahead, number));
        let read = read.or_else(|| number(frame, from).map(|number| (from, number)));
        let read = read.or_else(|| {
            let from = memmem::rfind(frame, NUMBER)?;
            number(frame, from).map(|number| (from, number))
        });
        if let Some((from, number)) = read {
            self.numbered = (from, frame.len() - from);
            self.sequence = number.saturating_add(1);
        }
    }
}

/// What stands before the number of an event.
const NUMBER: &[u8] = b"\"sequence_number\":";

/// The number of an event, if it stands at `from`.
fn number(frame: &[u8], from: usize) -> Option<u64> {
    let digits = frame.get(from..)?.strip_prefix(NUMBER)?.trim_ascii_start();
    let end = digits.iter().position(|byte| !byte.is_ascii_digit()).unwrap_or(digits.len());
    std::str::from_utf8(&digits[..end]).ok()?.parse().ok()
}

/// Where a frame says that it belongs.
fn position(frame: &[u8]) -> Option<Position> {
    let from = memchr::memchr(b'{', frame)?;
    let mut json = serde_json::Deserializer::from_slice(&frame[from..]);
    Position::deserialize(&mut json).ok()
}
