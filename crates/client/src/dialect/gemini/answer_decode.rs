//! A provider's answer, read: whole, or chunk by chunk.

use bytes::Bytes;
use serde::Deserialize;
use steadfast_chat::Deltas;
use steadfast_chat::{Delta, Event, Frame, Opaque, Stop, StopReason};
use steadfast_core::Failure;

use super::{DIALECT, notes, stop};
use crate::{
    dialect::{DecodeFrames, DecodedFrame, calls::CallIds, fault},
    json::{Raw, Str, TextPieces},
    sse::SseFrame,
};

/// A whole answer, or a chunk of a stream: they have one shape.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Read<'a> {
    #[serde(borrow)]
    candidates: Option<Vec<Candidate<'a>>>,
    #[serde(borrow)]
    usage_metadata: Option<Raw<'a>>,
    #[serde(borrow)]
    model_version: Option<Str<'a>>,
    #[serde(borrow)]
    response_id: Option<Str<'a>>,
    #[serde(borrow)]
    prompt_feedback: Option<Feedback<'a>>,
    #[serde(borrow)]
    error: Option<Raw<'a>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Candidate<'a> {
    #[serde(default)]
    index: u32,
    #[serde(borrow)]
    content: Option<Content<'a>>,
    #[serde(borrow)]
    finish_reason: Option<Str<'a>>,
    #[serde(borrow)]
    logprobs_result: Option<Raw<'a>>,
    #[serde(borrow)]
    citation_metadata: Option<Raw<'a>>,
    #[serde(borrow)]
    grounding_metadata: Option<Raw<'a>>,
}

#[derive(Deserialize)]
struct Content<'a> {
    #[serde(borrow)]
    parts: Option<Vec<Raw<'a>>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Part<'a> {
    #[serde(borrow)]
    text: Option<Raw<'a>>,
    thought: Option<bool>,
    #[serde(borrow)]
    thought_signature: Option<Str<'a>>,
    #[serde(borrow)]
    function_call: Option<Call<'a>>,
    #[serde(borrow)]
    inline_data: Option<Raw<'a>>,
    #[serde(borrow)]
    executable_code: Option<Raw<'a>>,
    #[serde(borrow)]
    code_execution_result: Option<Raw<'a>>,
    #[serde(borrow)]
    file_data: Option<Raw<'a>>,
}

#[derive(Deserialize)]
struct Call<'a> {
    #[serde(borrow)]
    id: Option<Str<'a>>,
    #[serde(borrow)]
    name: Option<Str<'a>>,
    #[serde(borrow)]
    args: Option<Raw<'a>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Feedback<'a> {
    #[serde(borrow)]
    block_reason: Option<Str<'a>>,
}

/// Reads a whole answer, or the list of chunks that a stream without `alt=sse` is.
pub(super) fn whole(body: &Bytes) -> Result<Event, Failure> {
    const WHAT: &str = "an answer";
    let text = fault::text(body);
    let mut state = Frames::default();
    let mut deltas = Deltas::new();
    let mut content = false;
    let listed = text.trim_ascii_start().starts_with('[');
    if listed {
        let chunks: Vec<Raw<'_>> =
            serde_json::from_str(&text).map_err(|error| fault::malformed(DIALECT, WHAT, &error))?;
        for chunk in chunks {
            state.chunk(chunk.get(), WHAT, &mut deltas)?;
        }
    } else {
        content = state.chunk(&text, WHAT, &mut deltas)?;
    }
    if !state.finished {
        return Err(fault::unfinished(DIALECT, "finishReason"));
    }
    fault::utf8(DIALECT, WHAT, &text, body)?;
    deltas.push(Delta::End);
    // A list is no body a caller of the method without streaming could read.
    Ok(if listed {
        Event::new(deltas)
    } else {
        Event::from_frame(Frame::body(DIALECT, body.clone()).with_content(content), deltas)
    })
}

/// Reads chunks.
#[derive(Debug, Default)]
pub(super) struct Frames {
    started: bool,
    ids: CallIds,
    next: u32,
    /// The block that text goes to, and whether it is thinking.
    text: Option<(u32, bool)>,
    pieces: TextPieces,
    calls: usize,
    finished: bool,
}

impl DecodeFrames for Frames {
    fn decode(
        &mut self,
        _: &SseFrame,
        data: &str,
        deltas: &mut Deltas,
    ) -> Result<DecodedFrame, Failure> {
        let content = self.chunk(data, "an event", deltas)?;
        // Each chunk reports usage anew, so none is like the one before.
        Ok(DecodedFrame { content, ..DecodedFrame::default() })
    }

    fn finish(&mut self, cut: Option<&SseFrame>) -> Option<Event> {
        // There is no terminal event: what ends an answer is the end of the input after a finish
        // reason.
        (self.finished && cut.is_none()).then(|| Event::new([Delta::End]))
    }
}

impl Frames {
    /// Reads a chunk. Returns whether it has content, be it in a delta or not.
    fn chunk(&mut self, data: &str, what: &str, deltas: &mut Deltas) -> Result<bool, Failure> {
        let malformed = |error: serde_json::Error| fault::malformed(DIALECT, what, &error);
        let chunk: Read<'_> = serde_json::from_str(data).map_err(malformed)?;
        let candidates = chunk.candidates.unwrap_or_default();
        let nothing = candidates.is_empty()
            && chunk.usage_metadata.is_none()
            && chunk.prompt_feedback.is_none()
            && chunk.response_id.is_none();
        if chunk.error.is_some() || nothing {
            return Err(fault::reported(DIALECT, data));
        }
        if !self.started {
            self.started = true;
            let id = owned(chunk.response_id);
            self.ids = CallIds::of(id.as_deref());
            deltas.push(Delta::Start { id, model: owned(chunk.model_version) });
        }
        let (mut stop, mut content) = (None, false);
        for candidate in candidates {
            let parts = candidate.content.and_then(|content| content.parts).unwrap_or_default();
            // Of several answers only the first becomes deltas; the others are in the frames.
            if candidate.index != 0 {
                content |= !parts.is_empty();
                continue;
            }
            for raw in parts {
                let part = serde_json::from_str(raw.get()).map_err(malformed)?;
                content |= self.part(part, raw, deltas).map_err(malformed)?;
            }
            let logprobs = candidate.logprobs_result.map(notes::logprobs).unwrap_or_default();
            deltas.extend(Some(logprobs).filter(|all| !all.is_empty()).map(Delta::Logprobs));
            let mut citations = candidate.citation_metadata.map(notes::cited).unwrap_or_default();
            citations
                .extend(candidate.grounding_metadata.map(notes::grounded).into_iter().flatten());
            deltas.extend(Some(citations).filter(|all| !all.is_empty()).map(Delta::Citations));
            let word = owned(candidate.finish_reason);
            if let Some(word) = word.filter(|word| word != "FINISH_REASON_UNSPECIFIED") {
                let read = stop::read(&word, self.calls > 0);
                stop = Some(read.map_err(|()| fault::unusable(&word))?);
            }
        }
        // A blocked prompt has no candidates and is answered all the same.
        let blocked = chunk.prompt_feedback.and_then(|feedback| owned(feedback.block_reason));
        let blocked = blocked.map(|word| Stop::new(StopReason::ContentFilter, word));
        if let Some(stop) = stop.or(blocked) {
            self.finished = true;
            self.flush(deltas);
            deltas.push(Delta::Stop(stop));
        }
        let usage = chunk.usage_metadata.and_then(|raw| stop::usage(raw.get()));
        deltas.extend(usage.map(Delta::Usage));
        Ok(content)
    }

    /// Reads a part. Returns whether it has content, be it in a delta or not.
    fn part(
        &mut self,
        part: Part<'_>,
        raw: Raw<'_>,
        deltas: &mut Deltas,
    ) -> Result<bool, serde_json::Error> {
        let signature = owned(part.thought_signature).filter(|signature| !signature.is_empty());
        if let Some(text) = part.text {
            return self.text(text, part.thought.unwrap_or(false), signature, deltas);
        }
        if let Some(call) = part.function_call {
            self.call(call, signature, deltas);
            return Ok(true);
        }
        let kind = if part.inline_data.is_some() {
            "inlineData"
        } else if part.executable_code.is_some() {
            "executableCode"
        } else if part.code_execution_result.is_some() {
            "codeExecutionResult"
        } else if part.file_data.is_some() {
            "fileData"
        } else {
            // The vendor adds kinds of parts. A signature alone is none.
            return Ok(signature.is_none());
        };
        self.end_text(deltas);
        let index = self.fresh();
        let block = Opaque { dialect: DIALECT, kind: kind.to_owned(), json: raw.kept() };
        deltas.push(Delta::Opaque { index, block });
        Ok(true)
    }

    fn text(
        &mut self,
        raw: Raw<'_>,
        thought: bool,
        signature: Option<String>,
        deltas: &mut Deltas,
    ) -> Result<bool, serde_json::Error> {
        let blank = raw.get() == "\"\"";
        if blank && signature.is_none() {
            return Ok(false);
        }
        let open = match self.text {
            // A signature with nothing to it belongs to the text before it.
            Some(last) if last.1 == thought || blank => Some(last),
            _ => None,
        };
        if open.is_none() {
            self.end_text(deltas);
        }
        let text = self.pieces.push(raw)?.into_owned();
        let (index, thought) = open.unwrap_or_else(|| (self.fresh(), thought));
        self.text = Some((index, thought));
        if !text.is_empty() || open.is_none() {
            deltas.push(text_delta(index, thought, text));
        }
        deltas.extend(signature.map(|signature| Delta::Signature { index, signature }));
        Ok(!blank)
    }

    /// Another block begins.
    fn end_text(&mut self, deltas: &mut Deltas) {
        self.flush(deltas);
        self.text = None;
    }

    /// What has waited for another piece of the text waits no longer.
    fn flush(&mut self, deltas: &mut Deltas) {
        if let (Some((index, thought)), Some(text)) = (self.text, self.pieces.end()) {
            deltas.push(text_delta(index, thought, text));
        }
    }

    fn call(&mut self, call: Call<'_>, signature: Option<String>, deltas: &mut Deltas) {
        self.end_text(deltas);
        let index = self.fresh();
        let name = owned(call.name).unwrap_or_default();
        let id = owned(call.id).filter(|id| !id.is_empty());
        let id = id.unwrap_or_else(|| self.ids.make(self.calls));
        self.calls += 1;
        deltas.push(Delta::ToolCall { index, id, name });
        deltas.extend(signature.map(|signature| Delta::Signature { index, signature }));
        let json = call.args.map_or("{}", Raw::get).to_owned();
        deltas.push(Delta::Arguments { index, json });
        deltas.push(Delta::BlockEnd { index });
    }

    fn fresh(&mut self) -> u32 {
        let block = self.next;
        self.next += 1;
        block
    }
}

fn text_delta(index: u32, thought: bool, text: String) -> Delta {
    if thought { Delta::Thinking { index, text } } else { Delta::Text { index, text } }
}

fn owned(text: Option<Str<'_>>) -> Option<String> {
    text.map(|text| text.0.into_owned())
}
