//! A provider's answer, read: whole, or chunk by chunk.

use std::{borrow::Cow, collections::HashMap, mem};

use bytes::Bytes;
use steadfast_chat::Deltas;
use steadfast_chat::{Delta, Event, Frame, Opaque, Stop, StopReason};
use steadfast_core::Failure;

use super::{
    DIALECT,
    chunk::{
        Call, Chunk, ContentPart, Piece, citations, is_error, is_truthy, only_text, some_text,
    },
    stop,
};
use crate::{
    dialect::{DecodeFrames, DecodedFrame, calls::CallIds, fault, media::IMAGES, range_of},
    json::{Raw, Str, TextPieces, items},
    sse::SseFrame,
};

/// Reads a whole answer.
pub(super) fn whole(body: &Bytes) -> Result<Event, Failure> {
    const WHAT: &str = "an answer";
    let text = fault::text(body);
    let mut state = Frames { whole: true, ..Frames::default() };
    // Start, text, stop, usage and end, and room for thinking or a call.
    let mut deltas = Deltas::with_capacity(7);
    let chunk = state.chunk(&text, WHAT, &mut deltas)?;
    if !chunk.has_choice {
        return Err(fault::unfinished(DIALECT, "choices"));
    }
    if !state.finished {
        return Err(fault::unfinished(DIALECT, "finish_reason"));
    }
    fault::utf8(DIALECT, WHAT, &text, body)?;
    deltas.push(Delta::End);
    let frame = Frame::body(DIALECT, body.clone()).with_content(chunk.decoded.content);
    Ok(Event::from_frame(frame, deltas))
}

/// Reads chunks.
#[derive(Debug, Default)]
pub(super) struct Frames {
    /// The answer comes in one piece: each call in it is one of its own.
    whole: bool,
    started: bool,
    /// The provider's id of the answer.
    ids: CallIds,
    next: u32,
    text: TextBlock,
    refusal: TextBlock,
    thinking: TextBlock,
    calls: Vec<OpenCall>,
    /// The last call of each of the provider's numbers: found in the same time however many there
    /// are.
    numbered: HashMap<Option<u32>, usize>,
    finished: bool,
}

/// A kind of text, which is one block.
#[derive(Debug, Default)]
struct TextBlock {
    index: Option<u32>,
    pieces: TextPieces,
}

#[derive(Debug)]
struct OpenCall {
    id: String,
    block: u32,
    arguments: TextPieces,
}

/// What was read of one object.
#[derive(Default)]
struct ReadChunk {
    has_choice: bool,
    decoded: DecodedFrame,
}

impl DecodeFrames for Frames {
    fn decode(
        &mut self,
        _: &SseFrame,
        data: &str,
        deltas: &mut Deltas,
    ) -> Result<DecodedFrame, Failure> {
        if data.contains('\n') && serde_json::from_str::<Raw<'_>>(data).is_err() {
            // Some servers put one line end between frames instead of two: each line is one.
            let mut decoded = DecodedFrame::default();
            for line in data.split('\n').filter(|line| !line.is_empty()) {
                decoded.content |= self.line(line, deltas)?.content;
            }
            return Ok(decoded);
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
    fn line(&mut self, data: &str, deltas: &mut Deltas) -> Result<DecodedFrame, Failure> {
        if is_done(data.as_bytes()) {
            if !self.finished {
                return Err(fault::cut_off(DIALECT)
                    .with_message("the openai stream sent [DONE] without a finish_reason"));
            }
            deltas.push(Delta::End);
            return Ok(DecodedFrame::default());
        }
        Ok(self.chunk(data, "an event", deltas)?.decoded)
    }

    /// Reads one object.
    fn chunk(&mut self, data: &str, what: &str, deltas: &mut Deltas) -> Result<ReadChunk, Failure> {
        let chunk: Chunk<'_> = match serde_json::from_str(data) {
            Ok(chunk) => chunk,
            // An error object may have the known names with other types: it is an error first.
            Err(_) if is_error(data) => return Err(fault::reported(DIALECT, data)),
            Err(error) => return Err(fault::malformed(DIALECT, what, &error)),
        };
        let text = chunk.choices.as_deref().and_then(only_text);
        let only_text = text.and_then(|text| range_of(data, text));
        let choices = chunk.choices.unwrap_or_default();
        let flat = choices.is_empty() && (chunk.detail.is_some() || chunk.message.is_some());
        if chunk.error.is_some_and(is_truthy)
            || chunk.object.and_then(Raw::inside) == Some("error")
            || flat
        {
            return Err(fault::reported(DIALECT, data));
        }
        if !self.started {
            self.started = true;
            let id = chunk.id.and_then(some_text);
            self.ids = CallIds::of(id.as_deref());
            deltas.push(Delta::Start { id, model: chunk.model.and_then(some_text) });
        }
        let mut read = ReadChunk { has_choice: !choices.is_empty(), ..ReadChunk::default() };
        // A half of a character that waits makes another text of this one.
        let waited = self.waits();
        let mut stop = None;
        for choice in choices {
            // Of several answers only the first becomes deltas; the others are in the frames.
            let first = choice.index == 0;
            if let Some(piece) = choice.delta {
                let calls = !first && piece.tool_calls.is_some();
                read.decoded.content |= calls || piece.has_content();
                if first {
                    self.piece(piece, what, deltas)?;
                }
            }
            let logprobs = choice.logprobs.filter(|_| first).map(|logprobs| logprobs.read());
            let logprobs = logprobs.filter(|logprobs| !logprobs.is_empty());
            deltas.extend(logprobs.map(Delta::Logprobs));
            if let Some(Str(word)) = choice.finish_reason.filter(|_| first) {
                let read = stop::read(&word).map_err(|()| stop::failure(&word))?;
                stop = Some(self.meant(read));
                self.end(deltas);
            }
        }
        read.decoded.only_text = only_text.filter(|_| !waited && !self.waits());
        deltas.extend(stop.map(Delta::Stop));
        let usage = chunk.usage.and_then(|usage| stop::usage(usage.get()));
        deltas.extend(usage.map(Delta::Usage));
        Ok(read)
    }

    /// A forced call of a tool ends with `stop`, and other calls with values of servers' own, though
    /// both wait for the tool; a refusal ends with `stop` too.
    fn meant(&self, mut stop: Stop) -> Stop {
        stop.reason = match stop.reason {
            StopReason::EndTurn | StopReason::Other if !self.calls.is_empty() => {
                StopReason::ToolUse
            }
            StopReason::EndTurn if self.refusal.index.is_some() => StopReason::ContentFilter,
            reason => reason,
        };
        stop
    }

    /// Whether half of a character of a text has come.
    fn waits(&self) -> bool {
        [&self.thinking, &self.text, &self.refusal].iter().any(|block| block.pieces.waits())
    }

    /// The model has stopped: what has waited for another piece waits no longer.
    fn end(&mut self, deltas: &mut Deltas) {
        if mem::replace(&mut self.finished, true) {
            return;
        }
        if let Some(text) = self.thinking.pieces.end() {
            let index = self.thinking.open(&mut self.next);
            deltas.push(Delta::Thinking { index, text });
        }
        for block in [&mut self.text, &mut self.refusal] {
            if let Some(text) = block.pieces.end() {
                deltas.push(Delta::Text { index: block.open(&mut self.next), text });
            }
        }
        for call in &mut self.calls {
            if let Some(json) = call.arguments.end() {
                deltas.push(Delta::Arguments { index: call.block, json });
            }
        }
    }

    fn piece(&mut self, piece: Piece<'_>, what: &str, deltas: &mut Deltas) -> Result<(), Failure> {
        let malformed = |error| fault::malformed(DIALECT, what, &error);
        if let Some(raw) = piece.reasoning_content.or(piece.reasoning) {
            let text = self.thinking.pieces.push(raw).map_err(malformed)?.into_owned();
            if !text.is_empty() {
                let index = self.thinking.open(&mut self.next);
                deltas.push(Delta::Thinking { index, text });
            }
        }
        if let Some(raw) = piece.content {
            let text = self.text.read(raw).map_err(malformed)?;
            if !text.is_empty() {
                deltas.push(Delta::Text { index: self.text.open(&mut self.next), text });
            }
        }
        if let Some(raw) = piece.refusal {
            let text = self.refusal.read(raw).map_err(malformed)?;
            if !text.is_empty() {
                deltas.push(Delta::Text { index: self.refusal.open(&mut self.next), text });
            }
        }
        let images = piece.images.filter(|raw| raw.is_list());
        for raw in images.map(items).transpose().unwrap_or_default().unwrap_or_default() {
            let block = Opaque { dialect: DIALECT, kind: IMAGES.to_owned(), json: raw.kept() };
            deltas.push(Delta::Opaque { index: self.fresh(), block });
        }
        let citations = piece.annotations.map(citations).filter(|citations| !citations.is_empty());
        deltas.extend(citations.map(Delta::Citations));
        for (at, raw) in piece.tool_calls.unwrap_or_default().into_iter().enumerate() {
            let call: Call<'_> = serde_json::from_str(raw.get()).map_err(malformed)?;
            self.call(call, raw, at, deltas).map_err(malformed)?;
        }
        if let Some(function) = piece.function_call {
            let call = Call { index: Some(0), id: None, kind: None, function: Some(function) };
            self.call(call, Raw::NULL, 0, deltas).map_err(malformed)?;
        }
        Ok(())
    }

    fn call(
        &mut self,
        call: Call<'_>,
        raw: Raw<'_>,
        at: usize,
        deltas: &mut Deltas,
    ) -> Result<(), serde_json::Error> {
        if let Some(Str(kind)) = call.kind.filter(|kind| kind.0 != "function") {
            // Whole answers alone have these in one piece.
            if call.index.is_none() {
                let kind = format!("tool_calls.{kind}");
                let block = Opaque { dialect: DIALECT, kind, json: raw.kept() };
                let index = self.fresh();
                deltas.push(Delta::Opaque { index, block });
            }
            return Ok(());
        }
        let function = call.function.unwrap_or_default();
        let name = function.name.map(|name| name.0.into_owned()).filter(|name| !name.is_empty());
        let id = call.id.map(|id| id.0.into_owned()).filter(|id| !id.is_empty());
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
        let at = match known {
            Some(at) => at,
            None => {
                let block = self.fresh();
                let name = name.unwrap_or_default();
                // A result has to refer to something.
                let id = id.unwrap_or_else(|| self.ids.make(self.calls.len()));
                let at = self.calls.len();
                self.numbered.insert(wanted, at);
                self.calls.push(OpenCall {
                    id: id.clone(),
                    block,
                    arguments: TextPieces::default(),
                });
                deltas.push(Delta::ToolCall { index: block, id, name });
                at
            }
        };
        let call = &mut self.calls[at];
        if let Some(raw) = function.arguments {
            let json = match raw.inside() {
                Some(_) => call.arguments.push(raw)?.into_owned(),
                // Some servers send the object itself.
                None => raw.get().to_owned(),
            };
            if !json.is_empty() {
                deltas.push(Delta::Arguments { index: call.block, json });
            }
        }
        Ok(())
    }

    fn fresh(&mut self) -> u32 {
        let block = self.next;
        self.next += 1;
        block
    }
}

impl TextBlock {
    /// The block's number; it begins when it is new.
    fn open(&mut self, next: &mut u32) -> u32 {
        *self.index.get_or_insert_with(|| {
            let block = *next;
            *next += 1;
            block
        })
    }

    /// The text of a field: a string, or a list of parts as some servers send it.
    fn read(&mut self, raw: Raw<'_>) -> Result<String, serde_json::Error> {
        if !raw.is_list() {
            return self.pieces.push(raw).map(Cow::into_owned);
        }
        let parts: Vec<ContentPart<'_>> = serde_json::from_str(raw.get())?;
        let is_text = |part: &ContentPart<'_>| part.kind.as_ref().is_some_and(|k| k.0 == "text");
        let texts = parts.into_iter().filter(is_text).filter_map(|part| part.text);
        let mut joined = String::new();
        for text in texts {
            joined.push_str(&self.pieces.push(text)?);
        }
        Ok(joined)
    }
}
