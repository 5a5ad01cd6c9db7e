//! Applies faults to the frames of an answer: frames in, steps of a body out.

use std::time::Duration;

use bytes::{Bytes, BytesMut};

use crate::body::Step;
use crate::error::SimErrorKind;
use crate::fault::{Break, ErrorKind, Fault, FirstToken, How};

/// Bytes that are neither UTF-8 nor JSON.
pub(crate) const GARBAGE: &[u8] = b"\xff\xfe\x00\x80{\xc3\x28\xf0\x9f";

/// One piece of a body.
#[derive(Clone, Debug)]
pub(crate) struct Frame {
    pub(crate) bytes: Bytes,
    pub(crate) kind: Kind,
    /// The pause before it.
    pub(crate) wait: Duration,
    /// Content events that it completes.
    events: usize,
}

/// What a frame contains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Envelope: everything that is neither content nor the end.
    Meta,
    /// A text, thinking or tool-call delta.
    Content,
    /// The events of a clean end.
    Terminal,
}

impl Frame {
    pub(crate) fn new(kind: Kind, bytes: impl Into<Bytes>) -> Self {
        let events = usize::from(kind == Kind::Content);
        Self { bytes: bytes.into(), kind, wait: Duration::ZERO, events }
    }
}

/// What a dialect sends when a stream breaks or pauses.
pub(crate) trait FaultRender {
    /// The event of an error behind so many others.
    fn error_frame(&self, kind: &ErrorKind, behind: usize) -> Bytes;
    /// The body of that error.
    fn error_body(&self, kind: &ErrorKind) -> Bytes;
    /// Its keep-alive.
    fn ping(&self) -> Bytes;
    /// How its frames are damaged.
    fn framing(&self) -> &dyn Framing;
}

/// What stands around the events of a stream, and so what damages them.
pub(crate) trait Framing {
    /// A frame as the dialect writes it, in this framing.
    fn wrap(&self, frame: Bytes) -> Bytes {
        frame
    }

    /// In place of `next`: a frame that can not be read.
    fn malformed(&self, next: Option<&Bytes>) -> Bytes;

    /// The beginning of a frame, where there is none to cut.
    fn beginning(&self) -> Bytes;

    /// A frame of bytes that mean nothing.
    fn garbage(&self) -> Bytes;
}

/// Server-sent events, and Gemini's list.
#[derive(Debug)]
pub(crate) struct ServerSent;

impl Framing for ServerSent {
    fn malformed(&self, next: Option<&Bytes>) -> Bytes {
        match next {
            Some(next) if next.contains(&b':') => malformed(next, false),
            _ => Bytes::from_static(b"data: {\"broken\"=\r\n\r\n"),
        }
    }

    fn beginning(&self) -> Bytes {
        Bytes::from_static(b"data: {\"id\":\"tr")
    }

    fn garbage(&self) -> Bytes {
        Bytes::from([b"data: ", GARBAGE, b"\r\n\r\n"].concat())
    }
}

/// A body before and after its faults are applied.
#[derive(Debug)]
pub(crate) struct BodyBuilder {
    frames: Vec<Frame>,
    whole: bool,
    tail: Tail,
    broken: bool,
}

#[derive(Clone, Copy, Debug)]
enum Tail {
    End,
    Fail(SimErrorKind),
    Stall,
}

impl BodyBuilder {
    pub(crate) fn whole(bytes: impl Into<Bytes>) -> Self {
        let frame = Frame { events: 0, ..Frame::new(Kind::Content, bytes) };
        Self { frames: vec![frame], whole: true, tail: Tail::End, broken: false }
    }

    /// A whole body after a pause.
    pub(crate) fn whole_after(wait: Duration, bytes: impl Into<Bytes>) -> Self {
        let mut builder = Self::whole(bytes);
        builder.frames[0].wait = wait;
        builder
    }

    pub(crate) fn stream(frames: Vec<Frame>) -> Self {
        Self { frames, whole: false, tail: Tail::End, broken: false }
    }

    /// Applies the faults of the body; those of its framing last.
    pub(crate) fn apply(&mut self, faults: &[Fault], render: &dyn FaultRender) {
        for fault in faults {
            match fault {
                Fault::Break(how) => self.break_off(how, render),
                Fault::FirstToken(first) => self.delay(*first, render),
                _ => {}
            }
        }
        for fault in faults {
            match fault {
                Fault::Coalesce(c) => self.coalesce(c.frames),
                Fault::Drip(d) => self.drip(d.bytes, Duration::from_millis(d.every_ms)),
                _ => {}
            }
        }
    }

    /// Whether the length of the body is known and true.
    pub(crate) fn exact(&self) -> bool {
        self.whole && !self.broken
    }

    pub(crate) fn into_steps(self) -> Vec<Step> {
        let mut steps = Vec::with_capacity(self.frames.len() * 2 + 4);
        for frame in self.frames {
            if !frame.wait.is_zero() {
                steps.push(Step::Wait(frame.wait));
            }
            if !frame.bytes.is_empty() {
                steps.push(Step::Data(frame.bytes, frame.events));
            }
        }
        match self.tail {
            Tail::End => {}
            Tail::Fail(kind) => {
                steps.extend([Step::Flush, Step::Flush, Step::Flush, Step::Fail(kind)]);
            }
            Tail::Stall => steps.push(Step::Stall),
        }
        steps
    }

    fn break_off(&mut self, how: &Break, render: &dyn FaultRender) {
        self.broken = true;
        if self.whole {
            return self.break_whole(how, render);
        }
        let at = match (how.after_events, how.after_bytes) {
            (_, Some(bytes)) => self.split_at(bytes),
            (Some(0) | None, None) => 0,
            (Some(events), None) => self.after_events(events),
        };
        let next = self.frames.get(at).map(|frame| frame.bytes.clone());
        match &how.how {
            How::Reset => self.cut(at, Tail::Fail(SimErrorKind::Reset)),
            How::Close => self.cut(at, Tail::Fail(SimErrorKind::Closed)),
            How::Stall => self.cut(at, Tail::Stall),
            How::End => self.cut(at, Tail::End),
            How::ErrorEvent(kind) => {
                self.cut(at, Tail::End);
                self.frames.push(Frame::new(Kind::Meta, render.error_frame(kind, at)));
            }
            How::TruncatedJson => {
                self.cut(at, Tail::End);
                let next = next.unwrap_or_else(|| render.framing().beginning());
                let half = next.slice(..next.len().div_ceil(2));
                self.frames.push(Frame::new(Kind::Meta, half));
            }
            How::MalformedJson => {
                self.replace(at, render.framing().malformed(next.as_ref()));
            }
            How::Garbage => {
                self.replace(at, render.framing().garbage());
            }
        }
    }

    fn break_whole(&mut self, how: &Break, render: &dyn FaultRender) {
        let body: Bytes =
            self.frames.iter().map(|f| &f.bytes[..]).collect::<Vec<_>>().concat().into();
        let wait = self.frames.first().map(|f| f.wait).unwrap_or_default();
        let at = how.after_bytes.unwrap_or(body.len() / 2).min(body.len().saturating_sub(1));
        let (bytes, tail) = match &how.how {
            How::Reset => (body.slice(..at), Tail::Fail(SimErrorKind::Reset)),
            How::Close => (body.slice(..at), Tail::Fail(SimErrorKind::Closed)),
            How::Stall => (body.slice(..at), Tail::Stall),
            How::End | How::TruncatedJson => (body.slice(..at), Tail::End),
            How::ErrorEvent(kind) => (render.error_body(kind), Tail::End),
            How::MalformedJson => (malformed(&body, true), Tail::End),
            How::Garbage => ([&body[..at], GARBAGE, &body[at..]].concat().into(), Tail::End),
        };
        self.frames = vec![Frame { wait, events: 0, ..Frame::new(Kind::Content, bytes) }];
        self.tail = tail;
    }

    /// The index right after the n-th content event, or of the terminal events if there are fewer.
    fn after_events(&self, events: usize) -> usize {
        let mut passed = 0;
        for (at, frame) in self.frames.iter().enumerate() {
            if frame.kind == Kind::Terminal {
                return at;
            }
            passed += frame.events;
            if passed >= events {
                return at + 1;
            }
        }
        self.frames.len()
    }

    /// Splits the frames at a byte, which may be inside the terminal events; a byte after the last
    /// one gives the index of the terminal events.
    fn split_at(&mut self, bytes: usize) -> usize {
        let total: usize = self.frames.iter().map(|frame| frame.bytes.len()).sum();
        if bytes >= total {
            return self.after_events(usize::MAX);
        }
        let mut left = bytes;
        for at in 0..self.frames.len() {
            let frame = &mut self.frames[at];
            if left == 0 {
                return at;
            }
            if left < frame.bytes.len() {
                let tail = frame.bytes.split_off(left);
                let rest = Frame { bytes: tail, wait: Duration::ZERO, ..frame.clone() };
                // The event is complete with its last byte.
                frame.events = 0;
                self.frames.insert(at + 1, rest);
                return at + 1;
            }
            left -= frame.bytes.len();
        }
        self.frames.len()
    }

    fn cut(&mut self, at: usize, tail: Tail) {
        self.frames.truncate(at);
        self.tail = tail;
    }

    fn replace(&mut self, at: usize, bytes: Bytes) {
        let bad = Frame::new(Kind::Meta, bytes);
        match self.frames.get_mut(at) {
            Some(frame) if frame.kind != Kind::Terminal => {
                *frame = Frame { wait: frame.wait, ..bad };
            }
            _ => self.frames.insert(at.min(self.frames.len()), bad),
        }
    }

    fn delay(&mut self, first: FirstToken, render: &dyn FaultRender) {
        let Some(at) = self.frames.iter().position(|f| f.kind == Kind::Content) else { return };
        let mut left = Duration::from_millis(first.after_ms);
        let mut pings = Vec::new();
        if let Some(every) = first.ping_every_ms.map(Duration::from_millis)
            && !self.whole
            && !every.is_zero()
        {
            while left > every {
                left -= every;
                pings.push(Frame { wait: every, ..Frame::new(Kind::Meta, render.ping()) });
            }
        }
        self.frames[at].wait += left;
        self.frames.splice(at..at, pings);
    }

    fn coalesce(&mut self, frames: usize) {
        let size = if frames == 0 { usize::MAX } else { frames };
        let mut out: Vec<Frame> = Vec::new();
        for (n, frame) in std::mem::take(&mut self.frames).into_iter().enumerate() {
            match out.last_mut() {
                Some(last) if n % size != 0 => {
                    let mut bytes = BytesMut::from(&last.bytes[..]);
                    bytes.extend_from_slice(&frame.bytes);
                    last.bytes = bytes.freeze();
                    last.events += frame.events;
                    last.wait += frame.wait;
                    last.kind = frame.kind;
                }
                _ => out.push(frame),
            }
        }
        self.frames = out;
    }

    fn drip(&mut self, bytes: usize, every: Duration) {
        let mut out = Vec::new();
        for frame in std::mem::take(&mut self.frames) {
            let count = frame.bytes.len().div_ceil(bytes.max(1));
            for n in 0..count {
                let (from, to) = (n * bytes, ((n + 1) * bytes).min(frame.bytes.len()));
                let wait = if out.is_empty() { Duration::ZERO } else { every };
                out.push(Frame {
                    bytes: frame.bytes.slice(from..to),
                    kind: frame.kind,
                    wait: wait + if n == 0 { frame.wait } else { Duration::ZERO },
                    events: if n + 1 == count { frame.events } else { 0 },
                });
            }
        }
        self.frames = out;
    }
}

/// The same bytes with the first colon inside the JSON made an equals sign. The rest of a frame
/// that was cut in two loses its last brace instead: a colon there may be part of a text.
pub(crate) fn malformed(bytes: &Bytes, whole: bool) -> Bytes {
    let at = if whole || bytes.windows(5).any(|five| five == b"data:") {
        let start = bytes.iter().position(|b| *b == b'{').unwrap_or(0);
        bytes[start..].iter().position(|b| *b == b':').map(|colon| start + colon)
    } else {
        bytes.iter().rposition(|b| *b == b'}')
    };
    let mut bad = BytesMut::from(&bytes[..]);
    if let Some(at) = at {
        bad[at] = b'=';
    }
    bad.freeze()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Wherever a frame is cut, the rest is never valid JSON: a client would rightly accept that.
    #[test]
    fn a_frame_that_is_cut_and_malformed_is_never_valid_json() {
        let frame = Bytes::from_static(
            b"event: content_block_delta\n\
              data: {\"delta\":{\"partial_json\":\"{\\\"at\\\":\\\"noon\\\"}\"}}\n\n",
        );
        for at in 0..frame.len() - 3 {
            let whole = [&frame[..at], &malformed(&frame.slice(at..), false)].concat();
            let text = String::from_utf8(whole).unwrap();
            let json = text.lines().find_map(|line| line.strip_prefix("data: "));
            let json = json.map(serde_json::from_str::<serde_json::Value>);
            assert!(json.is_some_and(|json| json.is_err()), "cut at {at}: {text}");
        }
    }
}
