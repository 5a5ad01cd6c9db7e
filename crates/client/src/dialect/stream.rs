//! Streams: frames into events, events into frames.

use std::ops::Range;

use bytes::Bytes;
use steadfast_chat::Deltas;
use steadfast_chat::{Delta, Event, Frame, FrameKind};
use steadfast_core::{Dialect, Failure, Reason, Usage};

use super::{
    Caller, codec, fault,
    template::{Learned, Template},
    translation::AnswerCheck,
};
use crate::sse::{MAX_EVENT, Rest, SseFrame, SseParser};

/// Reads one dialect's frames.
pub trait DecodeFrames: std::fmt::Debug + Send {
    /// Reads one frame with data; not one whose event is named `error`.
    ///
    /// # Errors
    ///
    /// When the frame is an error of the provider, or can not be read. Nothing is read after that.
    fn decode(
        &mut self,
        frame: &SseFrame,
        data: &str,
        deltas: &mut Deltas,
    ) -> Result<DecodedFrame, Failure>;

    /// A frame has been passed over that is like the one before, but for the text of its one delta, which
    /// is this, and its count.
    fn repeated(&mut self, delta: &Delta) {
        let _ = delta;
    }

    /// The input has ended without an error before the terminal event was read: the event that
    /// ends the answer, when the end of the input is one. `cut` is a last frame that was not
    /// finished.
    fn finish(&mut self, cut: Option<&SseFrame>) -> Option<Event>;
}

/// What there is to know of a frame beside its deltas.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DecodedFrame {
    /// Where in the data the inside of a string begins and ends, when they have that one piece of text
    /// or thinking and nothing else. Data with another text there, and otherwise the same, must then
    /// mean the same but for that text, as long as nothing else is read between: of those
    /// [`repeated`](DecodeFrames::repeated) alone has the text. `None` costs time and is never wrong.
    pub only_text: Option<Range<usize>>,
    /// Where in the data a number stands that counts frames, which means nothing here: another number is no
    /// other frame.
    pub count: Option<Range<usize>>,
    /// It has content of the answer, be it in a delta or not.
    pub content: bool,
}

/// Where `part` stands in `whole`, if that is its memory.
pub(super) fn range_of(whole: impl AsRef<[u8]>, part: impl AsRef<[u8]>) -> Option<Range<usize>> {
    let (whole, part) = (whole.as_ref(), part.as_ref());
    let from = (part.as_ptr() as usize).checked_sub(whole.as_ptr() as usize)?;
    let to = from.checked_add(part.len())?;
    (to <= whole.len()).then_some(from..to)
}

/// Reads a stream of one dialect: chunks in, events out, one a frame.
///
/// It ends after the terminal event, and for good after the first error. An input that ends before
/// its terminal event is an error; an end is never made up.
///
/// ```
/// use steadfast_client::dialect::StreamDecoder;
/// use steadfast_core::{Dialect, Reason};
///
/// let mut stream = StreamDecoder::new(Dialect::OpenAi);
/// stream.push(r#"data: {"choices":[{"delta":{"content":"Hel"}}]}"#.into());
/// stream.push("\n\n".into());
/// assert!(stream.next_event().unwrap().unwrap().is_content());
/// assert!(stream.next_event().is_none(), "needs more");
///
/// let failure = stream.finish().unwrap().unwrap_err();
/// assert_eq!(failure.reason(), Reason::Network);
/// ```
#[derive(Debug)]
pub struct StreamDecoder {
    dialect: Dialect,
    sse: SseParser,
    frames: Box<dyn DecodeFrames>,
    /// The frame read last, when the next one may be like it.
    template: Option<Box<Template>>,
    usage: Usage,
    /// Of an answer to a caller of another dialect.
    check: Option<Box<AnswerCheck>>,
    over: bool,
}

impl StreamDecoder {
    /// A reader of a stream in `dialect`, with events of at most [`MAX_EVENT`] bytes.
    pub fn new(dialect: Dialect) -> Self {
        Self::with_limit(dialect, MAX_EVENT)
    }

    /// A reader of a stream in `dialect`, with events of at most `limit` bytes.
    pub fn with_limit(dialect: Dialect, limit: usize) -> Self {
        Self {
            dialect,
            sse: SseParser::with_limit(limit),
            frames: codec(dialect).frames(),
            template: None,
            usage: Usage::default(),
            check: None,
            over: false,
        }
    }

    /// With what goes through each frame for a caller of another dialect.
    pub(crate) fn checked(mut self, check: Option<Box<AnswerCheck>>) -> Self {
        self.check = check;
        self
    }

    /// What goes through each frame.
    pub(crate) fn check_mut(&mut self) -> Option<&mut AnswerCheck> {
        self.check.as_deref_mut()
    }

    /// Adds a chunk.
    pub fn push(&mut self, chunk: Bytes) {
        if !self.over {
            self.sse.push(chunk);
        }
    }

    /// The next event, or `None` when more bytes are needed or the stream is over.
    pub fn next_event(&mut self) -> Option<Result<Event, Failure>> {
        if self.over {
            return None;
        }
        if let Some(template) = &self.template
            && let Some((delta, len)) = template.read(self.sse.at_hand())
            && let Some(frame) = self.sse.take(len)
        {
            self.frames.repeated(&delta);
            return Some(Ok(Event::from_frame(Frame::sse(self.dialect, frame), [delta])));
        }
        let read = match self.sse.next_frame() {
            Ok(None) => return None,
            Ok(Some(frame)) => self.decode(frame),
            Err(large) => Err(Failure::new(Reason::ServerError, large.to_string())
                .with_evidence("limit:event")
                .with_source(large)),
        };
        Some(self.record(read))
    }

    /// Ends the input: what was left in it, then its end or an error. `None` when the stream was
    /// over before, so it is to be called until then.
    pub fn finish(&mut self) -> Option<Result<Event, Failure>> {
        if self.over {
            return None;
        }
        let read = match self.sse.finish() {
            Rest::Frame(frame) => self.decode(frame),
            Rest::Incomplete(frame) => self.end(Some(&frame)),
            Rest::Nothing | Rest::Blank(_) => self.end(None),
        };
        Some(self.record(read))
    }

    /// Whether the terminal event or an error has been read.
    pub fn is_over(&self) -> bool {
        self.over
    }

    /// What the stream has reported of its usage so far.
    pub fn usage(&self) -> &Usage {
        &self.usage
    }

    fn end(&mut self, cut: Option<&SseFrame>) -> Result<Event, Failure> {
        self.frames.finish(cut).ok_or_else(|| fault::cut_off(self.dialect))
    }

    fn decode(&mut self, frame: SseFrame) -> Result<Event, Failure> {
        if let Some(template) = &mut self.template {
            template.invalidate();
        }
        let mut deltas = Deltas::new();
        let mut content = false;
        match &frame.data {
            Some(data) => {
                let text = fault::text(data);
                if frame.event.as_deref() == Some(b"error") {
                    return Err(fault::reported(self.dialect, &text));
                }
                let decoded = self.frames.decode(&frame, &text, &mut deltas)?;
                fault::utf8(self.dialect, "an event", &text, data)?;
                // A frame that is like the one before, but for its text, has been gone through with that.
                if let Some(check) = &mut self.check {
                    check.body(text.as_bytes())?;
                }
                content = decoded.content;
                // Lines that were joined stand nowhere in the frame.
                if let (Some(text), Some(at)) = (decoded.only_text, range_of(&frame.raw, data)) {
                    let within = |part: Range<usize>| at.start + part.start..at.start + part.end;
                    let (text, count) = (within(text), decoded.count.map(within));
                    let read = Learned { frame: &frame.raw, data: at, text, count };
                    Template::learn(&mut self.template, &read, &deltas);
                }
            }
            None if frame.stray => return Err(fault::stray(self.dialect)),
            None => deltas.push(Delta::Ping),
        }
        let frame = Frame::sse(self.dialect, frame.raw).with_content(content);
        Ok(Event::from_frame(frame, deltas))
    }

    fn record(&mut self, read: Result<Event, Failure>) -> Result<Event, Failure> {
        match read {
            Ok(event) => {
                if let Some(usage) = event.usage() {
                    self.usage.update(usage);
                }
                self.over = event.is_end();
                Ok(event)
            }
            Err(failure) => {
                self.over = true;
                Err(match self.usage.total() {
                    Some(_) => failure.with_usage(self.usage),
                    None => failure,
                })
            }
        }
    }
}

/// Writes one dialect's frames.
pub trait EncodeEvents: std::fmt::Debug + Send {
    /// Writes `event`. `foreign` when it was read from another dialect: signatures in
    /// it mean nothing here.
    ///
    /// # Errors
    ///
    /// When the dialect can not express it.
    fn encode(&mut self, event: &Event, foreign: bool, out: &mut Vec<u8>) -> Result<(), Failure>;

    /// Writes what reports `failure`, where that depends on what was written before; whether it did. Nothing is
    /// written after it.
    fn report(&mut self, failure: &Failure, out: &mut Vec<u8>) -> bool {
        let _ = (failure, out);
        false
    }

    /// Takes note of an event whose own frame is passed on, so that what is written later fits.
    /// Returns whether the caller is to see the frame at all.
    fn note(&mut self, event: &Event) -> bool;
}

/// Writes a stream for a caller: events in, frames out.
///
/// An event that was read in the caller's dialect, and not changed since, is passed on as the
/// bytes it was read from. What it writes itself ends only when the answer did: a failure is
/// [reported](Self::report), after which nothing may be written.
#[derive(Debug)]
pub struct StreamEncoder {
    dialect: Dialect,
    source: Dialect,
    events: Box<dyn EncodeEvents>,
    out: Vec<u8>,
}

impl StreamEncoder {
    /// A writer for `caller`, who speaks `dialect`, of an answer that a provider gives in
    /// `source` (its [`Head::dialect`](steadfast_chat::Head)).
    pub fn new(dialect: Dialect, caller: &Caller, source: Dialect) -> Self {
        Self { dialect, source, events: codec(dialect).events(caller), out: Vec::new() }
    }

    /// The same as [`encode`](Self::encode) for an event that nobody needs any more.
    ///
    /// # Errors
    ///
    /// The same.
    pub fn encode_owned(&mut self, event: Event) -> Result<Bytes, Failure> {
        if event.frame(self.dialect).is_none_or(|frame| frame.kind != FrameKind::Sse) {
            return self.encode(&event);
        }
        let seen = self.events.note(&event);
        Ok(event.frame.filter(|_| seen).map(|frame| frame.bytes).unwrap_or_default())
    }

    /// What reports `failure`, behind what was written: nothing may follow it.
    pub fn report(&mut self, failure: &Failure) -> Bytes {
        self.out.clear();
        if self.events.report(failure, &mut self.out) {
            return Bytes::copy_from_slice(&self.out);
        }
        codec(self.dialect).encode_stream_error(failure)
    }

    /// The frames of `event`; empty when the caller is to see nothing of it.
    ///
    /// # Errors
    ///
    /// When the caller's dialect can not express it, such as a piece of a tool call after its end.
    pub fn encode(&mut self, event: &Event) -> Result<Bytes, Failure> {
        match event.frame(self.dialect) {
            Some(frame) if frame.kind == FrameKind::Sse => {
                Ok(if self.events.note(event) { frame.bytes.clone() } else { Bytes::new() })
            }
            _ => {
                let source = event.frame.as_ref().map_or(self.source, |frame| frame.dialect);
                self.out.clear();
                self.events.encode(event, source != self.dialect, &mut self.out)?;
                Ok(Bytes::copy_from_slice(&self.out))
            }
        }
    }
}

#[cfg(test)]
mod tests;
