//! An answer for a caller, written: whole, or chunk by chunk.

use std::collections::BTreeMap;

use bytes::Bytes;
use steadfast_chat::{Completion, Delta, Event, MediaSource, Opaque, Part, ToolCall};
use steadfast_core::Failure;

use super::{DIALECT, notes, stop};
use crate::{
    dialect::{Caller, EncodeEvents, Known, calls::arguments, media::image_of, sse_out},
    json::{Array, Object},
};

/// Writes a whole answer.
pub(super) fn whole(answer: &Completion, caller: &Caller) -> Bytes {
    let own = answer.head.dialect == DIALECT;
    Object::text(|object| {
        {
            let mut candidates = object.array("candidates");
            let mut candidate = candidates.object();
            {
                let mut content = candidate.object("content");
                {
                    let mut parts = content.array("parts");
                    for part in &answer.parts {
                        write_part(&mut parts, part, own);
                    }
                    if parts.is_empty() {
                        empty_part(&mut parts);
                    }
                }
                content.put("role", "model");
            }
            let stop = answer.stop.as_ref();
            candidate
                .put_some("finishReason", stop.map(|stop| stop::reason_name(stop, own)))
                .put("index", &0);
            if !answer.citations.is_empty() {
                notes::put_citations(&mut candidate, &answer.citations);
            }
            if !answer.logprobs.is_empty() {
                notes::put_logprobs(&mut candidate, &answer.logprobs);
            }
        }
        stop::put_usage(object, &answer.usage);
        tail(object, answer.id.as_deref(), answer.model.as_deref(), caller);
    })
    .into()
}

fn tail(object: &mut Object<'_>, id: Option<&str>, model: Option<&str>, caller: &Caller) {
    object
        .put("modelVersion", model.unwrap_or(&caller.model))
        .put("responseId", id.unwrap_or(&caller.id));
}

fn write_part(list: &mut Array<'_>, part: &Part, own: bool) {
    match part {
        Part::Text(text) => text_part(list, &text.text, false, text.signature.as_deref(), own),
        Part::Thinking(thinking) => {
            text_part(list, &thinking.text, true, thinking.signature.as_deref(), own);
        }
        Part::ToolCall(call) => call_part(list, call, own),
        Part::Opaque(opaque) if opaque.dialect == DIALECT => list.raw(opaque.json.get()),
        Part::Opaque(opaque) => image_part(list, opaque),
        // What another vendor thought in secret has no word here.
        _ => {}
    }
}

/// An image that another vendor's model made. Nothing else of another vendor comes here: an answer that
/// has it fails before it is written.
fn image_part(list: &mut Array<'_>, opaque: &Opaque) {
    match image_of(opaque) {
        Some(MediaSource::Base64 { mime, data }) => {
            let mut part = list.object();
            part.object("inlineData").put("mimeType", &mime).put("data", &*data);
        }
        Some(MediaSource::Url { url, .. }) => {
            let mut part = list.object();
            part.object("fileData").put("mimeType", "image/png").put("fileUri", &url);
        }
        _ => {}
    }
}

/// What Google ends its own streams with: its SDKs' chats drop a turn, or a chunk of one, that has no
/// part.
fn empty_part(list: &mut Array<'_>) {
    list.object().put("text", "");
}

fn text_part(list: &mut Array<'_>, text: &str, thought: bool, signature: Option<&str>, own: bool) {
    let signature = signature.filter(|_| own);
    if text.is_empty() && signature.is_none() {
        return;
    }
    list.object()
        .put("text", text)
        .put_some("thought", thought.then_some(true))
        .put_some("thoughtSignature", signature);
}

fn call_part(list: &mut Array<'_>, call: &ToolCall, own: bool) {
    let mut object = list.object();
    object
        .object("functionCall")
        .put_some("id", Some(&call.id).filter(|id| !id.is_empty()))
        .put("name", &call.name)
        .raw("args", &arguments(&call.arguments));
    object.put_some("thoughtSignature", call.signature.as_ref().filter(|_| own));
}

/// Writes chunks. A call is one part here, so its arguments are gathered until it is complete.
#[derive(Debug)]
pub(super) struct Writer {
    known: Known,
    /// The finish reason is out.
    finished: bool,
    /// The calls that are not written, by block.
    calls: BTreeMap<u32, Pending>,
}

/// A call that is not complete, or began after one that is not.
#[derive(Debug)]
struct Pending {
    call: ToolCall,
    is_complete: bool,
}

impl Writer {
    pub(super) fn new(caller: &Caller) -> Self {
        Self { known: Known::new(caller), finished: false, calls: BTreeMap::new() }
    }

    /// A chunk whose candidate has the parts that `fill` writes.
    fn chunk(&self, out: &mut Vec<u8>, finish: Option<&str>, fill: impl FnOnce(&mut Array<'_>)) {
        self.candidate(out, fill, |candidate| {
            candidate.put_some("finishReason", finish);
        });
    }

    /// A chunk whose candidate has these parts, and what `notes` writes beside them.
    fn candidate(
        &self,
        out: &mut Vec<u8>,
        fill: impl FnOnce(&mut Array<'_>),
        notes: impl FnOnce(&mut Object<'_>),
    ) {
        sse_out::frame(out, None, |object| {
            {
                let mut candidates = object.array("candidates");
                let mut candidate = candidates.object();
                {
                    let mut content = candidate.object("content");
                    fill(&mut content.array("parts"));
                    content.put("role", "model");
                }
                notes(&mut candidate);
                candidate.put("index", &0);
            }
            let Known { id, model, usage, caller, .. } = &self.known;
            if usage.total().is_some() {
                stop::put_usage(object, usage);
            }
            tail(object, id.as_deref(), model.as_deref(), caller);
        });
    }

    /// Writes calls in the order in which they began, as far as they are complete, or all.
    fn flush(&mut self, all: bool, own: bool, out: &mut Vec<u8>) {
        while let Some(first) = self.calls.first_entry()
            && (all || first.get().is_complete)
        {
            let Pending { call, .. } = first.remove();
            self.chunk(out, None, |list| call_part(list, &call, own));
        }
    }

    fn opaque(&self, block: &Opaque, out: &mut Vec<u8>) {
        self.chunk(out, None, |list| list.raw(block.json.get()));
    }
}

impl EncodeEvents for Writer {
    fn encode(&mut self, event: &Event, foreign: bool, out: &mut Vec<u8>) -> Result<(), Failure> {
        let own = !foreign;
        for delta in &event.deltas {
            match delta {
                Delta::Text { text, .. } if !text.is_empty() => {
                    self.chunk(out, None, |list| text_part(list, text, false, None, own));
                }
                Delta::Thinking { text, .. } if !text.is_empty() => {
                    self.chunk(out, None, |list| text_part(list, text, true, None, own));
                }
                Delta::Signature { index, signature } if own => match self.calls.get_mut(index) {
                    Some(pending) => pending.call.signature = Some(signature.clone()),
                    None => self.chunk(out, None, |list| {
                        text_part(list, "", false, Some(signature), own);
                    }),
                },
                Delta::ToolCall { index, id, name } => {
                    let call =
                        ToolCall { id: id.clone(), name: name.clone(), ..ToolCall::default() };
                    self.calls.entry(*index).or_insert(Pending { call, is_complete: false });
                }
                Delta::Arguments { index, json } => {
                    if let Some(pending) = self.calls.get_mut(index) {
                        pending.call.arguments.push_str(json);
                    }
                }
                Delta::BlockEnd { index } => {
                    if let Some(pending) = self.calls.get_mut(index) {
                        pending.is_complete = true;
                    }
                    self.flush(false, own, out);
                }
                Delta::Opaque { block, .. } if block.dialect == DIALECT => {
                    self.opaque(block, out);
                }
                Delta::Opaque { block, .. } => {
                    self.chunk(out, None, |list| image_part(list, block));
                }
                Delta::Citations(citations) => self.candidate(out, empty_part, |candidate| {
                    notes::put_citations(candidate, citations);
                }),
                Delta::Logprobs(logprobs) => self.candidate(out, empty_part, |candidate| {
                    notes::put_logprobs(candidate, logprobs);
                }),
                Delta::End => {
                    self.flush(true, own, out);
                    if !std::mem::replace(&mut self.finished, true) {
                        let stop = self.known.stop.take();
                        let finish = stop.as_ref().map(|stop| stop::reason_name(stop, own));
                        self.chunk(out, finish, empty_part);
                    }
                }
                // Google's own SDKs can not bear a line that is not data: no ping.
                _ => self.known.note(delta),
            }
        }
        Ok(())
    }

    fn note(&mut self, event: &Event) -> bool {
        for delta in &event.deltas {
            self.known.note(delta);
            self.finished |= matches!(delta, Delta::Stop(_));
        }
        true
    }
}
