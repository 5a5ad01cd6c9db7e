//! A provider's answer, read: whole, or chunk by chunk.

use std::ops::Range;

use bytes::Bytes;
use serde::Deserialize;
use steadfast_chat::Deltas;
use steadfast_chat::{Delta, Event, Frame, Opaque, Stop, StopReason};
use steadfast_core::Failure;

use super::{DIALECT, stop};
use crate::{
    dialect::{DecodeFrames, calls::made_up, fault},
    json::Raw,
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
    model_version: Option<String>,
    response_id: Option<String>,
    prompt_feedback: Option<Feedback>,
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
    finish_reason: Option<String>,
}

#[derive(Deserialize)]
struct Content<'a> {
    #[serde(borrow)]
    parts: Option<Vec<Raw<'a>>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Part<'a> {
    text: Option<String>,
    thought: Option<bool>,
    thought_signature: Option<String>,
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
    id: Option<String>,
    name: Option<String>,
    #[serde(borrow)]
    args: Option<Raw<'a>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Feedback {
    block_reason: Option<String>,
}

/// Reads a whole answer, or the list of chunks that a stream without `alt=sse` is.
pub(super) fn whole(body: &Bytes) -> Result<Event, Failure> {
    const WHAT: &str = "an answer";
    let text = fault::text(body);
    let mut state = Frames::default();
    let mut deltas = Deltas::new();
    let listed = text.trim_ascii_start().starts_with('[');
    if listed {
        let chunks: Vec<Raw<'_>> =
            serde_json::from_str(&text).map_err(|error| fault::malformed(DIALECT, WHAT, &error))?;
        for chunk in chunks {
            state.chunk(chunk.get(), WHAT, &mut deltas)?;
        }
    } else {
        state.chunk(&text, WHAT, &mut deltas)?;
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
        Event::from_frame(Frame::body(DIALECT, body.clone()), deltas)
    })
}

/// Reads chunks.
#[derive(Debug, Default)]
pub(super) struct Frames {
    started: bool,
    answer: String,
    next: u32,
    /// The block that text goes to, and whether it is thinking.
    text: Option<(u32, bool)>,
    calls: usize,
    finished: bool,
}

impl DecodeFrames for Frames {
    fn decode(
        &mut self,
        _: &SseFrame,
        data: &str,
        deltas: &mut Deltas,
    ) -> Result<Option<Range<usize>>, Failure> {
        // Each chunk reports usage anew, so none is like the one before.
        self.chunk(data, "an event", deltas).map(|()| None)
    }

    fn finish(&mut self, cut: Option<&SseFrame>) -> Option<Event> {
        // There is no terminal event: what ends an answer is the end of the input after a finish
        // reason.
        (self.finished && cut.is_none()).then(|| Event::new([Delta::End]))
    }
}

impl Frames {
    fn chunk(&mut self, data: &str, what: &str, deltas: &mut Deltas) -> Result<(), Failure> {
        let malformed = |error: &serde_json::Error| fault::malformed(DIALECT, what, error);
        let chunk: Read<'_> = serde_json::from_str(data).map_err(|error| malformed(&error))?;
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
            self.answer = chunk.response_id.clone().unwrap_or_default();
            deltas.push(Delta::Start { id: chunk.response_id, model: chunk.model_version });
        }
        let mut stop = None;
        for candidate in candidates.into_iter().filter(|candidate| candidate.index == 0) {
            let parts = candidate.content.and_then(|content| content.parts);
            for raw in parts.unwrap_or_default() {
                let part = serde_json::from_str(raw.get()).map_err(|error| malformed(&error))?;
                self.part(part, raw, deltas);
            }
            let word = candidate.finish_reason.filter(|word| word != "FINISH_REASON_UNSPECIFIED");
            if let Some(word) = word {
                let read = stop::read(&word, self.calls > 0)
                    .map_err(|()| fault::broke(DIALECT, &word, data))?;
                stop = Some(read);
            }
        }
        // A blocked prompt has no candidates and is answered all the same.
        let blocked = chunk.prompt_feedback.and_then(|feedback| feedback.block_reason);
        let blocked = blocked.map(|word| Stop::new(StopReason::ContentFilter, word));
        if let Some(stop) = stop.or(blocked) {
            self.finished = true;
            deltas.push(Delta::Stop(stop));
        }
        let usage = chunk.usage_metadata.and_then(|raw| stop::usage(raw.get()));
        deltas.extend(usage.map(Delta::Usage));
        Ok(())
    }

    fn part(&mut self, part: Part<'_>, raw: Raw<'_>, deltas: &mut Deltas) {
        if let Some(text) = part.text {
            let thought = part.thought.unwrap_or(false);
            let signature = part.thought_signature.filter(|signature| !signature.is_empty());
            if text.is_empty() && signature.is_none() {
                return;
            }
            let open = match self.text {
                // A signature with nothing to it belongs to the text before it.
                Some(last) if last.1 == thought || text.is_empty() => Some(last),
                _ => None,
            };
            let (index, thought) = open.unwrap_or_else(|| (self.fresh(), thought));
            self.text = Some((index, thought));
            if !text.is_empty() || open.is_none() {
                deltas.push(if thought {
                    Delta::Thinking { index, text }
                } else {
                    Delta::Text { index, text }
                });
            }
            deltas.extend(signature.map(|signature| Delta::Signature { index, signature }));
            return;
        }
        if let Some(call) = part.function_call {
            self.call(call, part.thought_signature, deltas);
            return;
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
            return;
        };
        self.text = None;
        let index = self.fresh();
        let block = Opaque { dialect: DIALECT, kind: kind.to_owned(), json: raw.kept() };
        deltas.push(Delta::Opaque { index, block });
    }

    fn call(&mut self, call: Call<'_>, signature: Option<String>, deltas: &mut Deltas) {
        self.text = None;
        let index = self.fresh();
        let name = call.name.unwrap_or_default();
        let id = call.id.filter(|id| !id.is_empty());
        let id = id.unwrap_or_else(|| made_up(&self.answer, &name, self.calls));
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
