//! A provider's answer, read: whole, or chunk by chunk.

use std::{borrow::Cow, collections::HashMap, ops::Range};

use bytes::Bytes;
use serde::Deserialize;
use steadfast_chat::Deltas;
use steadfast_chat::{Delta, Event, Frame, Opaque, Stop, StopReason};
use steadfast_core::Failure;

use super::{DIALECT, stop};
use crate::{
    dialect::{DecodeFrames, calls::made_up, fault, range_of},
    json::{Raw, Str},
    sse::SseFrame,
};

/// A chunk of a stream, or a whole answer: they differ in whether a choice has a `delta` or a
/// `message`. What this crate does not use is not read.
#[derive(Deserialize)]
struct Chunk<'a> {
    #[serde(borrow)]
    id: Option<Str<'a>>,
    #[serde(borrow)]
    model: Option<Str<'a>>,
    #[serde(borrow)]
    choices: Option<Vec<Choice<'a>>>,
    #[serde(borrow)]
    usage: Option<Raw<'a>>,
    #[serde(borrow)]
    error: Option<Raw<'a>>,
    #[serde(borrow)]
    object: Option<Str<'a>>,
    #[serde(borrow)]
    detail: Option<Raw<'a>>,
    #[serde(borrow)]
    message: Option<Raw<'a>>,
}

#[derive(Deserialize)]
struct Choice<'a> {
    #[serde(default)]
    index: u32,
    #[serde(borrow, alias = "message")]
    delta: Option<Piece<'a>>,
    #[serde(borrow)]
    finish_reason: Option<Str<'a>>,
}

/// The content of one answer, or of one piece of it.
#[derive(Deserialize)]
struct Piece<'a> {
    #[serde(borrow)]
    content: Option<Raw<'a>>,
    #[serde(borrow)]
    refusal: Option<Str<'a>>,
    /// DeepSeek, vLLM and others.
    #[serde(borrow)]
    reasoning_content: Option<Str<'a>>,
    /// OpenRouter, Ollama, Groq.
    #[serde(borrow)]
    reasoning: Option<Str<'a>>,
    #[serde(borrow)]
    tool_calls: Option<Vec<Raw<'a>>>,
    function_call: Option<Function>,
}

#[derive(Default, Deserialize)]
struct Function {
    name: Option<String>,
    arguments: Option<String>,
}

#[derive(Deserialize)]
struct Call {
    index: Option<u32>,
    id: Option<String>,
    #[serde(rename = "type")]
    kind: Option<String>,
    function: Option<Function>,
}

#[derive(Deserialize)]
struct ContentPart {
    #[serde(rename = "type")]
    kind: Option<String>,
    text: Option<String>,
}

/// Reads a whole answer.
pub(super) fn whole(body: &Bytes) -> Result<Event, Failure> {
    const WHAT: &str = "an answer";
    let text = fault::text(body);
    let mut state = Frames { whole: true, ..Frames::default() };
    // Start, text, stop, usage and end, and room for thinking or a call.
    let mut deltas = Deltas::with_capacity(7);
    let has_choice = state.chunk(&text, WHAT, &mut deltas)?;
    if !has_choice {
        return Err(fault::unfinished(DIALECT, "choices"));
    }
    if !state.finished {
        return Err(fault::unfinished(DIALECT, "finish_reason"));
    }
    fault::utf8(DIALECT, WHAT, &text, body)?;
    deltas.push(Delta::End);
    Ok(Event::from_frame(Frame::body(DIALECT, body.clone()), deltas))
}

/// Reads chunks.
#[derive(Debug, Default)]
pub(super) struct Frames {
    /// The answer comes in one piece: each call in it is one of its own.
    whole: bool,
    started: bool,
    /// The provider's id of the answer.
    answer: String,
    next: u32,
    text: Option<u32>,
    refusal: Option<u32>,
    thinking: Option<u32>,
    calls: Vec<OpenCall>,
    /// The last call of each of the provider's numbers: found in the same time however many there
    /// are.
    numbered: HashMap<Option<u32>, usize>,
    finished: bool,
    /// Where in the chunk that was read last its only piece of text stands.
    text_at: Option<Range<usize>>,
}

#[derive(Debug)]
struct OpenCall {
    id: String,
    block: u32,
}

impl DecodeFrames for Frames {
    fn decode(
        &mut self,
        _: &SseFrame,
        data: &str,
        deltas: &mut Deltas,
    ) -> Result<Option<Range<usize>>, Failure> {
        if data.contains('\n') && serde_json::from_str::<Raw<'_>>(data).is_err() {
            // Some servers put one line end between frames instead of two: each line is one.
            let lines = data.split('\n').filter(|line| !line.is_empty());
            lines.into_iter().try_for_each(|line| self.line(line, deltas).map(drop))?;
            return Ok(None);
        }
        self.line(data, deltas)
    }

    fn finish(&mut self, cut: Option<&SseFrame>) -> Option<Event> {
        // The end has come, only the empty line behind it is missing: a server that closes at once.
        let done = cut.and_then(|frame| frame.data.as_deref()).is_some_and(is_done);
        (done && self.finished).then(|| {
            let frame = Frame::sse(DIALECT, Bytes::from_static(b"data: [DONE]\n\n"));
            Event::from_frame(frame, [Delta::End])
        })
    }
}

fn is_done(data: &[u8]) -> bool {
    data.trim_ascii() == b"[DONE]"
}

impl Frames {
    fn line(&mut self, data: &str, deltas: &mut Deltas) -> Result<Option<Range<usize>>, Failure> {
        if is_done(data.as_bytes()) {
            if !self.finished {
                return Err(fault::cut_off(DIALECT)
                    .with_message("the openai stream sent [DONE] without a finish_reason"));
            }
            deltas.push(Delta::End);
            return Ok(None);
        }
        self.chunk(data, "an event", deltas)?;
        Ok(self.text_at.take())
    }

    /// Reads one object; whether it had a choice.
    fn chunk(&mut self, data: &str, what: &str, deltas: &mut Deltas) -> Result<bool, Failure> {
        let chunk: Chunk<'_> = match serde_json::from_str(data) {
            Ok(chunk) => chunk,
            // An error object may have the known names with other types: it is an error first.
            Err(_) if is_error(data) => return Err(fault::reported(DIALECT, data)),
            Err(error) => return Err(fault::malformed(DIALECT, what, &error)),
        };
        let text = chunk.choices.as_deref().and_then(only_text);
        self.text_at = text.and_then(|text| range_of(data, text));
        let choices = chunk.choices.unwrap_or_default();
        let flat = choices.is_empty() && (chunk.detail.is_some() || chunk.message.is_some());
        if chunk.error.is_some_and(is_truthy)
            || chunk.object.is_some_and(|kind| kind.0 == "error")
            || flat
        {
            return Err(fault::reported(DIALECT, data));
        }
        if !self.started {
            self.started = true;
            let id = chunk.id.map(|id| id.0.into_owned());
            self.answer = id.clone().unwrap_or_default();
            deltas.push(Delta::Start { id, model: chunk.model.map(|model| model.0.into_owned()) });
        }
        let had = !choices.is_empty();
        // Of several answers only the first becomes deltas; the others are in the frames.
        let mut stop = None;
        for choice in choices.into_iter().filter(|choice| choice.index == 0) {
            if let Some(piece) = choice.delta {
                self.piece(piece, what, deltas)?;
            }
            if let Some(Str(word)) = choice.finish_reason {
                let read = stop::read(&word).map_err(|()| fault::broke(DIALECT, &word, data))?;
                self.finished = true;
                stop = Some(self.with_calls(read));
            }
        }
        deltas.extend(stop.map(Delta::Stop));
        let usage = chunk.usage.and_then(|usage| stop::usage(usage.get()));
        deltas.extend(usage.map(Delta::Usage));
        Ok(had)
    }

    /// A forced call of a tool ends with `stop`, though it waits for the tool.
    fn with_calls(&self, mut stop: Stop) -> Stop {
        if stop.reason == StopReason::EndTurn && !self.calls.is_empty() {
            stop.reason = StopReason::ToolUse;
        }
        stop
    }

    fn piece(&mut self, piece: Piece<'_>, what: &str, deltas: &mut Deltas) -> Result<(), Failure> {
        let full = |text: &Str<'_>| !text.0.is_empty();
        if let Some(Str(text)) = piece.reasoning_content.or(piece.reasoning).filter(full) {
            let index = block(&mut self.thinking, &mut self.next);
            deltas.push(Delta::Thinking { index, text: text.into_owned() });
        }
        let content = piece.content.map(text_of).transpose();
        let content = content.map_err(|error| fault::malformed(DIALECT, what, &error))?;
        if let Some(text) = content.filter(|text| !text.is_empty()) {
            let index = block(&mut self.text, &mut self.next);
            deltas.push(Delta::Text { index, text });
        }
        if let Some(Str(text)) = piece.refusal.filter(full) {
            let index = block(&mut self.refusal, &mut self.next);
            deltas.push(Delta::Text { index, text: text.into_owned() });
        }
        for (at, raw) in piece.tool_calls.unwrap_or_default().into_iter().enumerate() {
            let call: Call = serde_json::from_str(raw.get())
                .map_err(|error| fault::malformed(DIALECT, what, &error))?;
            self.call(call, raw, at, deltas);
        }
        if let Some(function) = piece.function_call {
            let call = Call { index: Some(0), id: None, kind: None, function: Some(function) };
            self.call(call, Raw::NULL, 0, deltas);
        }
        Ok(())
    }

    fn call(&mut self, call: Call, raw: Raw<'_>, at: usize, deltas: &mut Deltas) {
        if call.kind.as_deref().is_some_and(|kind| kind != "function") {
            // Whole answers alone have these in one piece.
            if call.index.is_none() {
                let kind = format!("tool_calls.{}", call.kind.unwrap_or_default());
                let block = Opaque { dialect: DIALECT, kind, json: raw.kept() };
                let index = self.fresh();
                deltas.push(Delta::Opaque { index, block });
            }
            return;
        }
        let function = call.function.unwrap_or_default();
        let name = function.name.filter(|name| !name.is_empty());
        let id = call.id.filter(|id| !id.is_empty());
        let wanted = call.index.or(u32::try_from(at).ok());
        // Servers that number every call 0 mark them by id.
        let known = if self.whole {
            None
        } else if call.index.is_none() && id.is_none() && name.is_none() {
            self.calls.len().checked_sub(1)
        } else {
            self.numbered.get(&wanted).copied()
        };
        let known = known.filter(|at| {
            let open = &self.calls[*at];
            name.is_none() || id.as_ref().is_none_or(|id| *id == open.id)
        });
        let block = match known {
            Some(at) => self.calls[at].block,
            None => {
                let index = self.fresh();
                let name = name.unwrap_or_default();
                // A result has to refer to something.
                let id = id.unwrap_or_else(|| made_up(&self.answer, &name, self.calls.len()));
                self.numbered.insert(wanted, self.calls.len());
                self.calls.push(OpenCall { id: id.clone(), block: index });
                deltas.push(Delta::ToolCall { index, id, name });
                index
            }
        };
        if let Some(json) = function.arguments.filter(|json| !json.is_empty()) {
            deltas.push(Delta::Arguments { index: block, json });
        }
    }

    fn fresh(&mut self) -> u32 {
        let block = self.next;
        self.next += 1;
        block
    }
}

/// The block a kind of text goes to, opened when it is new.
fn block(open: &mut Option<u32>, next: &mut u32) -> u32 {
    *open.get_or_insert_with(|| {
        let block = *next;
        *next += 1;
        block
    })
}

/// The text of a chunk that has no more than one, as it stands in the chunk.
fn only_text<'a>(choices: &[Choice<'a>]) -> Option<&'a str> {
    let [Choice { delta: Some(piece), .. }] = choices else { return None };
    let content = piece.content.and_then(Raw::inside);
    content.filter(|text| !text.is_empty()).or_else(|| {
        match piece.reasoning_content.as_ref().or(piece.reasoning.as_ref())?.0 {
            Cow::Borrowed(text) => Some(text),
            Cow::Owned(_) => None,
        }
    })
}

/// The text of a `content` field: a string, or a list of parts as some servers send it.
fn text_of(raw: Raw<'_>) -> Result<String, serde_json::Error> {
    if !raw.is_list() {
        return raw.text().map(Cow::into_owned);
    }
    let parts: Vec<ContentPart> = serde_json::from_str(raw.get())?;
    let texts = parts.into_iter().filter(|part| part.kind.as_deref() == Some("text"));
    Ok(texts.filter_map(|part| part.text).collect())
}

/// Whether a field counts as set: SDKs decide it in this way.
fn is_truthy(raw: Raw<'_>) -> bool {
    !matches!(raw.get(), "null" | "false" | "\"\"" | "0" | "{}" | "[]")
}

/// Whether it is valid JSON with an error in it.
fn is_error(data: &str) -> bool {
    #[derive(Deserialize)]
    struct Probe<'a> {
        #[serde(borrow)]
        error: Raw<'a>,
    }
    serde_json::from_str::<Probe<'_>>(data).is_ok_and(|probe| is_truthy(probe.error))
}
