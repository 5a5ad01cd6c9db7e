//! The body of a streamed answer, event by event.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker},
    time::Duration,
};

use bytes::{Bytes, BytesMut};
use http_body::{Body, Frame};
use steadfast_chat::{ChatResponse, EventStream};
use steadfast_client::dialect::{Caller, StreamEncoder, codec};
use steadfast_core::{Dialect, Failure, time::Alarm};
use tokio::time::Instant;

use super::{array::ArrayEncoder, record::Record, wake::WakeFlag};
use crate::secrets::Mask;

/// Frames that are there together are written together, up to so many bytes: fewer system calls,
/// and nothing ever waits for more.
const COALESCE: usize = 16 * 1024;

/// A call that has not been answered yet.
pub(super) type AnswerFuture = Pin<Box<dyn Future<Output = Result<ChatResponse, Failure>> + Send>>;

/// How long a stream that is broken off waits behind its error event, so that the event is on its way before the end:
/// 100 ms.
const LINGER: Duration = Duration::from_millis(100);

/// Where the events of a streamed answer come from.
pub(super) enum EventSource {
    /// The head was sent before there was an answer.
    Opening {
        /// Brings the answer, with its retries and failovers.
        call: AnswerFuture,
        /// For its encoder.
        addressee: Caller,
    },
    /// The answer has begun.
    Open {
        /// Its events.
        events: EventStream,
        /// Writes them.
        encoder: StreamEncoder,
    },
}

impl EventSource {
    /// The next event, written for the caller.
    fn poll_next(
        &mut self,
        dialect: Dialect,
        record: &mut Record,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Bytes, Failure>>> {
        loop {
            match self {
                Self::Opening { call, addressee } => {
                    let response = match std::task::ready!(call.as_mut().poll(cx)) {
                        Ok(response) => response,
                        Err(failure) => return Poll::Ready(Some(Err(failure))),
                    };
                    record.answered(&response.head);
                    let (head, events) = response.into_parts();
                    let encoder = StreamEncoder::new(dialect, addressee, head.dialect);
                    *self = Self::Open { events, encoder };
                }
                Self::Open { events, encoder } => {
                    let event = std::task::ready!(events.as_mut().poll_next(cx));
                    return Poll::Ready(event.map(|event| {
                        let event = event?;
                        if let Some(usage) = event.usage() {
                            record.used(usage);
                        }
                        let is_end = dialect == Dialect::Responses && event.is_end();
                        let frames = encoder.encode_owned(event)?;
                        if is_end {
                            record.keep_end(&frames);
                        }
                        Ok(frames)
                    }));
                }
            }
        }
    }

    /// What reports `failure` behind all that was written.
    fn report(&mut self, dialect: Dialect, failure: &Failure) -> Bytes {
        match self {
            Self::Opening { addressee, .. } => {
                StreamEncoder::new(dialect, addressee, dialect).report(failure)
            }
            Self::Open { encoder, .. } => encoder.report(failure),
        }
    }
}

/// A stream was broken off behind an event that says why: its caller's SDK takes an end for a good one.
#[derive(Debug, thiserror::Error)]
#[error("the answer failed, which the event before this says")]
pub(super) struct BrokenOff;

/// The body of a streamed answer. It ends as the answer ends; a failure becomes the dialect's
/// error event, after which it ends without a terminal event, or breaks off where the dialect's SDKs would
/// miss the event. Dropping it cancels the call.
pub(super) struct StreamBody {
    dialect: Dialect,
    source: EventSource,
    /// Of a JSON array, as Gemini's dialect streams unless asked for events.
    array: Option<ArrayEncoder>,
    keepalive: Duration,
    /// Armed by the first silence, and moved only when it fires: tokens are frequent, and moving a
    /// timer is dear.
    silence: Option<Alarm>,
    /// When the silence began.
    since: Instant,
    /// Something was sent since the clock was last read.
    spoke: bool,
    record: Record,
    mask: Mask,
    over: bool,
    /// When it breaks off.
    breaks: Option<Alarm>,
    /// Woken when there may be more.
    wake: Arc<WakeFlag>,
    /// Of the flag.
    waker: Waker,
    /// All events there were have been given out; more come only after the next wake-up.
    drained: bool,
    /// No keep-alive is due before the next wake-up.
    silent_until_woken: bool,
}

impl StreamBody {
    pub(super) fn new(
        dialect: Dialect,
        source: EventSource,
        array: Option<ArrayEncoder>,
        keepalive: Duration,
        record: Record,
        mask: Mask,
    ) -> Self {
        let now = Instant::now();
        // Whoever has heard nothing has waited long enough.
        let waited = matches!(source, EventSource::Opening { .. });
        let since = if waited { now.checked_sub(keepalive).unwrap_or(now) } else { now };
        let wake = Arc::new(WakeFlag::default());
        let waker = Waker::from(wake.clone());
        Self {
            wake,
            waker,
            drained: false,
            silent_until_woken: false,
            dialect,
            source,
            array,
            keepalive,
            silence: None,
            since,
            spoke: !waited,
            record,
            mask,
            over: false,
            breaks: None,
        }
    }

    /// The next bytes for the caller, or nothing when the events are pending or over.
    fn poll_bytes(&mut self) -> Out {
        let mut out = Out::default();
        let cx = &mut Context::from_waker(&self.waker);
        while !self.over && out.len() < COALESCE {
            let step = match self.source.poll_next(self.dialect, &mut self.record, cx) {
                Poll::Pending => {
                    self.drained = true;
                    break;
                }
                Poll::Ready(None) => {
                    self.over = true;
                    self.record.done();
                    Ok(self.array.as_mut().map_or_else(Bytes::new, ArrayEncoder::end))
                }
                Poll::Ready(Some(Ok(frames))) => Ok(match &mut self.array {
                    Some(array) => array.frames(&frames),
                    None => frames,
                }),
                Poll::Ready(Some(Err(failure))) => Err(failure),
            };
            match step {
                Ok(bytes) => out.push(bytes),
                Err(failure) => {
                    self.over = true;
                    if self.array.is_none() && codec(self.dialect).facts().error_breaks_off {
                        self.breaks = Some(Alarm::at(Instant::now() + LINGER));
                    }
                    let frame = self.source.report(self.dialect, &failure);
                    let frame = self.mask.bytes(frame);
                    out.push(match &mut self.array {
                        Some(array) => array.error(&frame),
                        None => frame,
                    });
                    self.record.failed(&failure, true);
                }
            }
        }
        out
    }

    /// Something that says the gateway is alive, once the provider has been silent for long.
    fn poll_keepalive(&mut self) -> Poll<Bytes> {
        let cx = &mut Context::from_waker(&self.waker);
        if self.array.is_some() {
            return Poll::Pending;
        }
        let keepalive = self.keepalive;
        if std::mem::take(&mut self.spoke) {
            self.since = Instant::now();
        }
        let mut due = self.since + keepalive;
        let timer = self.silence.get_or_insert_with(|| Alarm::at(due));
        std::task::ready!(timer.poll(cx));
        let now = Instant::now();
        let silent = due <= now;
        if silent {
            self.since = now;
            due = now + keepalive;
        }
        timer.reset(due);
        // The waker must be registered with the new time.
        let _ = timer.poll(cx);
        if !silent {
            return Poll::Pending;
        }
        // An empty line says nothing in any dialect; Gemini's SDKs take every other line for data.
        Poll::Ready(Bytes::from_static(codec(self.dialect).facts().keep_alive.unwrap_or(b"\n")))
    }
}

impl Body for StreamBody {
    type Data = Bytes;
    type Error = BrokenOff;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BrokenOff>>> {
        let this = &mut *self;
        this.wake.forward_to(cx.waker());
        if this.wake.take() {
            (this.drained, this.silent_until_woken) = (false, false);
        }
        if !this.drained
            && let Some(bytes) = this.poll_bytes().into_bytes()
        {
            this.spoke = true;
            return Poll::Ready(Some(Ok(Frame::data(bytes))));
        }
        if this.over {
            let Some(breaks) = &mut this.breaks else { return Poll::Ready(None) };
            std::task::ready!(breaks.poll(cx));
            this.breaks = None;
            return Poll::Ready(Some(Err(BrokenOff)));
        }
        if !this.silent_until_woken {
            if let Poll::Ready(bytes) = this.poll_keepalive() {
                return Poll::Ready(Some(Ok(Frame::data(bytes))));
            }
            this.silent_until_woken = true;
        }
        Poll::Pending
    }

    fn is_end_stream(&self) -> bool {
        self.over && self.breaks.is_none()
    }
}

impl fmt::Debug for StreamBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StreamBody").field("dialect", &self.dialect).finish_non_exhaustive()
    }
}

/// Bytes to be written together; one frame alone is passed on without a copy.
#[derive(Default)]
enum Out {
    #[default]
    Nothing,
    One(Bytes),
    Several(BytesMut),
}

impl Out {
    fn len(&self) -> usize {
        match self {
            Out::Nothing => 0,
            Out::One(bytes) => bytes.len(),
            Out::Several(bytes) => bytes.len(),
        }
    }

    fn push(&mut self, more: Bytes) {
        if more.is_empty() {
            return;
        }
        *self = match std::mem::take(self) {
            Out::Nothing => Out::One(more),
            Out::One(first) => {
                let mut all = BytesMut::with_capacity((first.len() + more.len()).max(1_024));
                all.extend_from_slice(&first);
                all.extend_from_slice(&more);
                Out::Several(all)
            }
            Out::Several(mut all) => {
                all.extend_from_slice(&more);
                Out::Several(all)
            }
        };
    }

    fn into_bytes(self) -> Option<Bytes> {
        match self {
            Out::Nothing => None,
            Out::One(bytes) => Some(bytes),
            Out::Several(bytes) => Some(bytes.freeze()),
        }
    }
}
