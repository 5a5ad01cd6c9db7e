//! A provider's answer, read: whole, or chunk by chunk.

use std::{borrow::Cow, collections::HashMap, ops::Range};

use bytes::Bytes;
use serde::Deserialize;
use steadfast_core::{Delta, Event, Failure, Frame, Opaque, Stop, StopReason};

use super::{
    DIALECT,
    chunk::{Choice, Chunk, Function, Said},
    gist::gist,
    words,
};
use crate::{
    dialect::{DecodeFrames, Decoded, Deltas, calls::made_up, fault, place, stream::agreed},
    json::Raw,
    sse::SseFrame,
};

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
    let mut deltas = read(body)?;
    if let Some((scanned, _)) = gist(body) {
        deltas = agreed(DIALECT, scanned, deltas)?;
    }
    Ok(Event::from_frame(Frame::body(DIALECT, body.clone()), deltas))
}

/// What a whole answer says.
pub(super) fn read(body: &Bytes) -> Result<Deltas, Failure> {
    let mut state = Frames { whole: true, ..Frames::default() };
    // Start, text, stop, usage and end, and room for thinking or a call.
    let mut deltas = Deltas::with_capacity(7);
    let said = state.chunk(body, "an answer", &mut deltas)?;
    if !said {
        return Err(fault::unfinished(DIALECT, "choices"));
    }
    if !state.finished {
        return Err(fault::unfinished(DIALECT, "finish_reason"));
    }
    if !state.text_checked {
        fault::text(DIALECT, "an answer", body)?;
    }
    deltas.push(Delta::End);
    Ok(deltas)
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
    /// What was read last is known to be UTF-8.
    text_checked: bool,
    /// Where in what was read last the words stand that are all it says, if it says no more.
    said: Option<Range<usize>>,
}

#[derive(Debug)]
struct OpenCall {
    id: String,
    block: u32,
}

impl DecodeFrames for Frames {
    fn decode(
        &mut self,
        frame: &SseFrame,
        data: &[u8],
        deltas: &mut Deltas,
    ) -> Result<Decoded, Failure> {
        if frame.event.as_deref() == Some(b"error") {
            return Err(fault::told(DIALECT, data));
        }
        if data.contains(&b'\n') && Raw::read(data).is_err() {
            // Some servers put one line end between frames instead of two: each line is one.
            let lines = data.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
            lines.into_iter().try_for_each(|line| self.line(line, deltas).map(drop))?;
            return Ok(Decoded::default());
        }
        self.line(data, deltas)
    }

    fn finish(&mut self, cut: Option<&SseFrame>) -> Option<Event> {
        // The end was said, only the empty line behind it is missing: a server that closes at once.
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
    fn line(&mut self, data: &[u8], deltas: &mut Deltas) -> Result<Decoded, Failure> {
        if is_done(data) {
            if !self.finished {
                return Err(fault::cut_off(DIALECT)
                    .with_message("the openai stream said [DONE] without a finish_reason"));
            }
            deltas.push(Delta::End);
            return Ok(Decoded::default());
        }
        self.chunk(data, "an event", deltas)?;
        Ok(Decoded { is_text: self.text_checked, said: self.said.take() })
    }

    /// Reads one object; whether it had a choice.
    fn chunk(&mut self, data: &[u8], what: &str, deltas: &mut Deltas) -> Result<bool, Failure> {
        let (chunk, checked) = match Chunk::read(data) {
            Ok(read) => read,
            // An error object may have the known names with other types: it is an error first.
            Err(_) if says_error(data) => return Err(fault::told(DIALECT, data)),
            Err(error) => return Err(fault::malformed(DIALECT, what, &error)),
        };
        self.text_checked = checked;
        self.said = chunk.choices.as_deref().and_then(words_at).and_then(|text| place(data, text));
        let choices = chunk.choices.unwrap_or_default();
        let flat = choices.is_empty() && (chunk.detail.is_some() || chunk.message.is_some());
        if chunk.error.is_some_and(is_truthy) || chunk.object.as_deref() == Some("error") || flat {
            return Err(fault::told(DIALECT, data));
        }
        if !self.started {
            self.started = true;
            let id = chunk.id.map(Cow::into_owned);
            self.answer = id.clone().unwrap_or_default();
            deltas.push(Delta::Start { id, model: chunk.model.map(Cow::into_owned) });
        }
        let had = !choices.is_empty();
        // Of several answers only the first is told in deltas; the others are in the frames.
        let mut stop = None;
        for choice in choices.into_iter().filter(|choice| choice.index == 0) {
            if let Some(said) = choice.delta {
                self.said(said, what, deltas)?;
            }
            if let Some(word) = choice.finish_reason {
                let read = words::stop(&word).map_err(|()| fault::broke(DIALECT, &word, data))?;
                self.finished = true;
                stop = Some(self.with_calls(read));
            }
        }
        deltas.extend(stop.map(Delta::Stop));
        let usage = chunk.usage.and_then(|usage| words::usage(usage.get()));
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

    fn said(&mut self, said: Said<'_>, what: &str, deltas: &mut Deltas) -> Result<(), Failure> {
        let full = |text: &Cow<'_, str>| !text.is_empty();
        if let Some(text) = said.reasoning_content.or(said.reasoning).filter(full) {
            let index = block(&mut self.thinking, &mut self.next);
            deltas.push(Delta::Thinking { index, text: text.into_owned() });
        }
        let content = said.content.map(words_of).transpose();
        let content = content.map_err(|error| fault::malformed(DIALECT, what, &error))?;
        if let Some(text) = content.filter(|text| !text.is_empty()) {
            let index = block(&mut self.text, &mut self.next);
            deltas.push(Delta::Text { index, text });
        }
        if let Some(text) = said.refusal.filter(full) {
            let index = block(&mut self.refusal, &mut self.next);
            deltas.push(Delta::Text { index, text: text.into_owned() });
        }
        for (at, raw) in said.tool_calls.unwrap_or_default().into_iter().enumerate() {
            let call: Call = serde_json::from_str(raw.get())
                .map_err(|error| fault::malformed(DIALECT, what, &error))?;
            self.call(call, raw, at, deltas);
        }
        if let Some(function) = said.function_call {
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
        // Servers that number every call 0 tell them apart by id.
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

/// The block a kind of text goes to, begun when it is new.
fn block(open: &mut Option<u32>, next: &mut u32) -> u32 {
    *open.get_or_insert_with(|| {
        let block = *next;
        *next += 1;
        block
    })
}

/// The string of a chunk that is all it says, when it says so little.
fn words_at<'a>(choices: &[Choice<'a>]) -> Option<&'a str> {
    let [Choice { delta: Some(said), .. }] = choices else { return None };
    let content = said.content.and_then(Raw::inside);
    content.filter(|text| !text.is_empty()).or_else(|| {
        match said.reasoning_content.as_ref().or(said.reasoning.as_ref())? {
            Cow::Borrowed(text) => Some(*text),
            Cow::Owned(_) => None,
        }
    })
}

/// The words of a `content` field: a string, or a list of parts as some servers send it.
fn words_of(raw: Raw<'_>) -> Result<String, serde_json::Error> {
    if !raw.is_list() {
        return raw
            .words()
            .map_or_else(|| serde_json::from_str(raw.get()), |text| Ok(text.into_owned()));
    }
    let parts: Vec<ContentPart> = serde_json::from_str(raw.get())?;
    let texts = parts.into_iter().filter(|part| part.kind.as_deref() == Some("text"));
    Ok(texts.filter_map(|part| part.text).collect())
}

/// Whether a field says something: SDKs look at it in this way.
fn is_truthy(raw: Raw<'_>) -> bool {
    !matches!(raw.get(), "null" | "false" | "\"\"" | "0" | "{}" | "[]")
}

/// Whether it is valid JSON with an error in it.
fn says_error(data: &[u8]) -> bool {
    #[derive(Deserialize)]
    struct Probe<'a> {
        #[serde(borrow)]
        error: Raw<'a>,
    }
    serde_json::from_slice::<Probe<'_>>(data).is_ok_and(|probe| is_truthy(probe.error))
}
