//! A stream for a caller, written.
//!
//! The dialect sends one block after the other. Other dialects may send several at once, and do not
//! mark when one is complete. So a block is closed when it is known to be complete, and what
//! belongs to the next blocks waits until then.

use std::{borrow::Cow, collections::BTreeMap, mem};

use steadfast_chat::{Citation, Delta, Event, Opaque};
use steadfast_core::Failure;

use super::{DIALECT, answer_encode::head, citations, input::Input, stop};
use crate::{
    dialect::{Caller, EncodeEvents, Known, fault, sse_out},
    json::Object,
};

/// Writes events.
#[derive(Debug)]
pub(super) struct Writer {
    known: Known,
    started: bool,
    /// The stop reason is out.
    stopped: bool,
    /// The number of the next block on the wire.
    next: u32,
    open: Option<Open>,
    /// What belongs to blocks that have not started on the wire, by block: each is written once,
    /// however many blocks are open at a time.
    waiting: BTreeMap<u32, Vec<Delta>>,
    /// Sources that came before the text they are of.
    cited: Vec<Citation>,
}

/// The block being written.
#[derive(Debug)]
struct Open {
    block: u32,
    at: u32,
    kind: Kind,
}

#[derive(Debug)]
enum Kind {
    Text,
    Thinking,
    Call(Input),
}

impl Writer {
    pub(super) fn new(caller: &Caller) -> Self {
        Self {
            known: Known::new(caller),
            started: false,
            stopped: false,
            next: 0,
            open: None,
            waiting: BTreeMap::new(),
            cited: Vec::new(),
        }
    }

    fn start(&mut self, id: Option<&str>, model: Option<&str>, out: &mut Vec<u8>) {
        if mem::replace(&mut self.started, true) {
            return;
        }
        sse_out::frame(out, Some("message_start"), |object| {
            object.put("type", "message_start");
            let mut message = object.object("message");
            head(&mut message, id, model, &self.known.caller);
            message.array("content");
            message.put("stop_reason", &None::<u8>).put("stop_sequence", &None::<u8>);
            let mut usage = self.known.usage;
            // Agents show and add up what stands here: better about right than nothing.
            usage.input = usage.input.or(Some(self.known.caller.input_tokens));
            stop::put_usage(&mut message, &usage);
        });
    }

    /// Writes one delta, or keeps it until its block's turn. `force` when nothing more will come.
    fn write(
        &mut self,
        delta: &Delta,
        foreign: bool,
        force: bool,
        out: &mut Vec<u8>,
    ) -> Result<(), Failure> {
        let Some(index) = block_of(delta) else { return Ok(()) };
        let is_open = self.open.as_ref().is_some_and(|open| open.block == index);
        match delta {
            Delta::BlockEnd { .. } if is_open => self.close(out),
            Delta::BlockEnd { .. } if self.waits(index) => self.wait(index, delta),
            Delta::BlockEnd { .. } => {}
            _ if !is_open && !force && (self.waits(index) || self.is_busy()) => {
                self.wait(index, delta);
            }
            _ => self.piece(delta, index, is_open, foreign, out)?,
        }
        Ok(())
    }

    /// Whether pieces of block `index` are waiting already.
    fn waits(&self, index: u32) -> bool {
        self.waiting.contains_key(&index)
    }

    fn wait(&mut self, index: u32, delta: &Delta) {
        self.waiting.entry(index).or_default().push(delta.clone());
    }

    /// Whether the open block is a call that is not complete.
    fn is_busy(&self) -> bool {
        match &self.open {
            Some(Open { kind: Kind::Call(input), .. }) => !input.is_complete(),
            _ => false,
        }
    }

    fn piece(
        &mut self,
        delta: &Delta,
        index: u32,
        is_open: bool,
        foreign: bool,
        out: &mut Vec<u8>,
    ) -> Result<(), Failure> {
        match delta {
            Delta::Text { text, .. } if !text.is_empty() => {
                if !is_open {
                    self.begin(index, Kind::Text, out, |block| {
                        block.put("type", "text").put("text", "");
                    });
                }
                self.delta(out, "text_delta", |delta| {
                    delta.put("text", text);
                });
                let early = mem::take(&mut self.cited);
                self.cite(early, out);
            }
            Delta::Thinking { text, .. } if !text.is_empty() || !foreign => {
                if !is_open {
                    self.begin(index, Kind::Thinking, out, |block| {
                        block.put("type", "thinking").put("thinking", "").put("signature", "");
                    });
                }
                if !text.is_empty() {
                    self.delta(out, "thinking_delta", |delta| {
                        delta.put("thinking", text);
                    });
                }
            }
            Delta::Signature { signature, .. } if !foreign && is_open => {
                self.delta(out, "signature_delta", |delta| {
                    delta.put("signature", signature);
                });
            }
            Delta::Redacted { data, .. } if !foreign => {
                self.whole(out, |block| {
                    block.put("type", "redacted_thinking").put("data", data);
                });
            }
            Delta::ToolCall { id, name, .. } => {
                self.begin(index, Kind::Call(Input::default()), out, |block| {
                    block.put("type", "tool_use").put("id", id).put("name", name);
                    block.object("input");
                });
            }
            Delta::Arguments { json, .. } => {
                if !is_open {
                    if json.trim().is_empty() {
                        return Ok(());
                    }
                    // Something came after the last brace, or before the call itself.
                    return Err(fault::late_arguments(DIALECT));
                }
                let json = match &mut self.open {
                    Some(Open { kind: Kind::Call(input), .. }) if foreign => input.take(json),
                    Some(Open { kind: Kind::Call(input), .. }) => {
                        input.pass(json);
                        Some(Cow::Borrowed(json.as_str()))
                    }
                    _ => Some(Cow::Borrowed(json.as_str())),
                };
                if let Some(json) = json {
                    self.delta(out, "input_json_delta", |delta| {
                        delta.put("partial_json", &*json);
                    });
                }
            }
            Delta::Opaque { block, .. } if block.dialect == DIALECT => self.opaque(block, out),
            _ => {}
        }
        Ok(())
    }

    /// Sources of the text that is being written, or of the next one.
    fn cite(&mut self, citations: impl IntoIterator<Item = Citation>, out: &mut Vec<u8>) {
        for citation in citations {
            if matches!(&self.open, Some(Open { kind: Kind::Text, .. })) {
                self.delta(out, "citations_delta", |delta| {
                    citations::put(&mut delta.object("citation"), &citation);
                });
            } else {
                self.cited.push(citation);
            }
        }
    }

    fn begin(
        &mut self,
        block: u32,
        kind: Kind,
        out: &mut Vec<u8>,
        fill: impl FnOnce(&mut Object<'_>),
    ) {
        self.close(out);
        let at = self.next;
        self.next += 1;
        sse_out::frame(out, Some("content_block_start"), |object| {
            object.put("type", "content_block_start").put("index", &at);
            fill(&mut object.object("content_block"));
        });
        self.open = Some(Open { block, at, kind });
    }

    /// A block that has no pieces.
    fn whole(&mut self, out: &mut Vec<u8>, fill: impl FnOnce(&mut Object<'_>)) {
        self.begin(u32::MAX, Kind::Text, out, fill);
        self.close(out);
    }

    fn opaque(&mut self, block: &Opaque, out: &mut Vec<u8>) {
        self.close(out);
        let at = self.next;
        self.next += 1;
        sse_out::frame(out, Some("content_block_start"), |object| {
            object
                .put("type", "content_block_start")
                .put("index", &at)
                .raw("content_block", block.json.get());
        });
        stop_block(at, out);
    }

    fn delta(&self, out: &mut Vec<u8>, kind: &str, fill: impl FnOnce(&mut Object<'_>)) {
        let at = self.open.as_ref().map_or(0, |open| open.at);
        sse_out::frame(out, Some("content_block_delta"), |object| {
            object.put("type", "content_block_delta").put("index", &at);
            let mut delta = object.object("delta");
            delta.put("type", kind);
            fill(&mut delta);
        });
    }

    fn close(&mut self, out: &mut Vec<u8>) {
        if let Some(Open { kind: Kind::Call(input), .. }) = &self.open
            && let Some(rest) = input.rest()
        {
            self.delta(out, "input_json_delta", |delta| {
                delta.put("partial_json", &*rest);
            });
        }
        if let Some(open) = self.open.take() {
            stop_block(open.at, out);
        }
    }

    /// Writes what was waiting, block after block, as far as its turn has come.
    fn resume(&mut self, foreign: bool, out: &mut Vec<u8>) -> Result<(), Failure> {
        while !self.is_busy()
            && let Some((_, deltas)) = self.waiting.pop_first()
        {
            for delta in &deltas {
                self.write(delta, foreign, false, out)?;
            }
        }
        Ok(())
    }

    fn end(&mut self, foreign: bool, out: &mut Vec<u8>) -> Result<(), Failure> {
        let waiting = mem::take(&mut self.waiting);
        // Block after block; within one in the order they came.
        for delta in waiting.values().flatten() {
            self.write(delta, foreign, true, out)?;
        }
        self.close(out);
        if !mem::replace(&mut self.stopped, true) {
            sse_out::frame(out, Some("message_delta"), |object| {
                object.put("type", "message_delta");
                let stop = self.known.stop.as_ref();
                object
                    .object("delta")
                    .put("stop_reason", &stop.map(|stop| stop::reason_name(stop, !foreign)))
                    .put("stop_sequence", &stop.and_then(|stop| stop.sequence.as_ref()));
                stop::put_usage(object, &self.known.usage);
            });
        }
        sse_out::frame(out, Some("message_stop"), |object| {
            object.put("type", "message_stop");
        });
        Ok(())
    }
}

fn stop_block(at: u32, out: &mut Vec<u8>) {
    sse_out::frame(out, Some("content_block_stop"), |object| {
        object.put("type", "content_block_stop").put("index", &at);
    });
}

fn block_of(delta: &Delta) -> Option<u32> {
    match delta {
        Delta::Text { index, .. }
        | Delta::Thinking { index, .. }
        | Delta::Signature { index, .. }
        | Delta::Redacted { index, .. }
        | Delta::ToolCall { index, .. }
        | Delta::Arguments { index, .. }
        | Delta::Opaque { index, .. }
        | Delta::BlockEnd { index } => Some(*index),
        _ => None,
    }
}

impl EncodeEvents for Writer {
    fn encode(&mut self, event: &Event, foreign: bool, out: &mut Vec<u8>) -> Result<(), Failure> {
        // The beginning has what is known of the usage.
        for delta in &event.deltas {
            self.known.note(delta);
        }
        for delta in &event.deltas {
            match delta {
                Delta::Start { id, model } => self.start(id.as_deref(), model.as_deref(), out),
                Delta::Ping => sse_out::frame(out, Some("ping"), |object| {
                    object.put("type", "ping");
                }),
                Delta::Stop(_) | Delta::Usage(_) => {}
                Delta::Citations(citations) => {
                    self.start(None, None, out);
                    self.cite(citations.iter().cloned(), out);
                }
                Delta::End => {
                    self.start(None, None, out);
                    self.end(foreign, out)?;
                }
                _ => {
                    self.start(None, None, out);
                    self.write(delta, foreign, false, out)?;
                    self.resume(foreign, out)?;
                }
            }
        }
        Ok(())
    }

    fn note(&mut self, event: &Event) -> bool {
        for delta in &event.deltas {
            self.known.note(delta);
            match delta {
                Delta::Start { .. } => self.started = true,
                Delta::Stop(_) => self.stopped = true,
                Delta::Text { index, .. } => self.noted(*index, Kind::Text),
                Delta::Thinking { index, .. } => self.noted(*index, Kind::Thinking),
                Delta::ToolCall { index, .. } => {
                    self.noted(*index, Kind::Call(Input::default()));
                }
                Delta::Arguments { json, .. } => {
                    if let Some(Open { kind: Kind::Call(input), .. }) = &mut self.open {
                        input.pass(json);
                    }
                }
                Delta::Redacted { index, .. } | Delta::Opaque { index, .. } => {
                    self.next = self.next.max(index.saturating_add(1));
                }
                Delta::BlockEnd { index } => {
                    self.next = self.next.max(index.saturating_add(1));
                    self.open = None;
                }
                _ => {}
            }
        }
        true
    }
}

impl Writer {
    /// A block whose own frames are passed on: here the wire's numbers are the blocks' own.
    fn noted(&mut self, block: u32, kind: Kind) {
        if self.open.as_ref().is_none_or(|open| open.block != block) {
            self.open = Some(Open { block, at: block, kind });
            self.next = self.next.max(block.saturating_add(1));
        }
    }
}
