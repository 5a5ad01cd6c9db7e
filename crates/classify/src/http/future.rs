//! The HTTP service's future: waits for the head, and for as much of the body as the verdict
//! needs.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::{Buf, Bytes};
use http::{HeaderMap, Response, header, response::Parts};
use http_body::{Body, Frame};
use pin_project_lite::pin_project;
use smallvec::SmallVec;
use steadfast_core::{BoxError, Failure, Reason, Target, Upstream};
use tokio::time::Sleep;

use super::ClassifiedBody;
use crate::{Classifier, Evidence, engine::MAX_BODY, stream::Judge};

/// Read and dropped behind the evidence of an error, so that its connection is used again.
/// Anything longer is cheaper to close.
const MAX_DRAIN: usize = 64 * 1024;

/// How long an error's body may take. The status is known by then: a body that trickles must not
/// turn a 429 into a timeout.
const ERROR_BODY_TIME: Duration = Duration::from_secs(5);

/// Frames read ahead; one, nearly always, so that nothing is allocated.
pub(super) type Ahead<D> = SmallVec<[Frame<D>; 1]>;

pin_project! {
    /// Waits for an answer that is worth handing out. Dropping it drops the call.
    #[must_use = "futures do nothing unless polled"]
    pub struct ResponseFuture<F, B>
    where
        B: Body,
    {
        #[pin]
        inner: F,
        state: State<B>,
        // `None` once ready.
        judge: Option<Judge>,
    }
}

enum State<B: Body> {
    Calling,
    /// An error: its body is evidence.
    Refused {
        parts: Parts,
        body: B,
        read: Read<B>,
    },
    /// A success that may be none.
    Inspecting {
        parts: Parts,
        body: B,
        ahead: Ahead<B::Data>,
        size: usize,
    },
    Done,
}

/// What was read of an error. It is kept whole: a user's own rules may find it fine.
struct Read<B: Body> {
    ahead: Ahead<B::Data>,
    size: usize,
    /// How the body broke off.
    error: Option<BoxError>,
    /// Armed when there is something to wait for.
    timer: Option<Pin<Box<Sleep>>>,
}

impl<F, B: Body> ResponseFuture<F, B> {
    pub(super) fn new(inner: F, judge: Judge) -> Self {
        Self { inner, state: State::Calling, judge: Some(judge) }
    }
}

impl<F, B, E> Future for ResponseFuture<F, B>
where
    F: Future<Output = Result<Response<B>, E>>,
    E: Into<BoxError>,
    B: Body + Unpin,
    B::Error: Into<BoxError>,
{
    type Output = Result<Response<ClassifiedBody<B>>, Failure>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        let finished = |judge: &mut Option<Judge>| {
            judge.take().ok_or_else(|| {
                Failure::new(Reason::Unknown, "`ResponseFuture` was polled after it was ready")
            })
        };
        loop {
            match this.state {
                State::Calling => {
                    let result = ready!(this.inner.as_mut().poll(cx));
                    *this.state = State::Done;
                    let judge = finished(this.judge)?;
                    match result {
                        Ok(response) => {
                            let (parts, body) = response.into_parts();
                            match begin(parts, body, &judge.classifier) {
                                Ok(state) => {
                                    *this.state = state;
                                    *this.judge = Some(judge);
                                }
                                Err((parts, body)) => {
                                    let none = Ahead::new();
                                    return Poll::Ready(Ok(hand_out(
                                        parts, body, none, None, judge,
                                    )));
                                }
                            }
                        }
                        Err(error) => {
                            let target = judge.target.as_ref();
                            return Poll::Ready(Err(judge.classifier.error(error, target)));
                        }
                    }
                }
                State::Refused { body, read, .. } => {
                    ready!(read.poll(Pin::new(body), cx));
                    let judge = finished(this.judge)?;
                    let State::Refused { parts, body, read } =
                        std::mem::replace(this.state, State::Done)
                    else {
                        continue;
                    };
                    let evidence = head(&read.ahead);
                    return Poll::Ready(match failure(&parts, &evidence, &judge) {
                        Some(failure) => Err(failure),
                        None => {
                            let target = judge.target.as_ref();
                            let error =
                                read.error.map(|error| judge.classifier.error(error, target));
                            Ok(hand_out(parts, body, read.ahead, error, judge))
                        }
                    });
                }
                State::Inspecting { body, ahead, size, .. } => {
                    let read = ready!(read_ahead(Pin::new(body), ahead, size, cx));
                    let judge = finished(this.judge)?;
                    let State::Inspecting { parts, body, ahead, .. } =
                        std::mem::replace(this.state, State::Done)
                    else {
                        continue;
                    };
                    let target = judge.target.as_ref();
                    return Poll::Ready(match read {
                        Ok(whole) => match inspect(&parts, &ahead, whole, &judge) {
                            Some(failure) => Err(failure),
                            None => Ok(hand_out(parts, body, ahead, None, judge)),
                        },
                        Err(error) => {
                            Err(judge.classifier.error(error, target).with_status(parts.status))
                        }
                    });
                }
                State::Done => {
                    return Poll::Ready(Err(finished(&mut None)
                        .err()
                        .unwrap_or_else(|| Failure::new(Reason::Unknown, ""))));
                }
            }
        }
    }
}

/// What an answer's head asks for, or the answer back when there is nothing to inspect.
fn begin<B: Body>(parts: Parts, body: B, classifier: &Classifier) -> Result<State<B>, (Parts, B)> {
    if classifier.refuses(parts.status) {
        let read = Read { ahead: Ahead::new(), size: 0, error: None, timer: None };
        return Ok(State::Refused { parts, body, read });
    }
    if !parts.status.is_success() || !classifier.reads_answers() {
        return Err((parts, body));
    }
    // Encoded bodies can not be read, event streams are not held back, and a body that is known
    // to be long is no error.
    let small = body.size_hint().lower() <= MAX_BODY as u64;
    let readable = is_identity(&parts.headers) && !is(&parts.headers, "text/event-stream");
    let telling = is(&parts.headers, "application/json")
        || is(&parts.headers, "text/html")
        || is(&parts.headers, "application/problem+json");
    if small && readable && telling && !body.is_end_stream() {
        Ok(State::Inspecting { parts, body, ahead: Ahead::new(), size: 0 })
    } else {
        Err((parts, body))
    }
}

/// Whether the content type is `kind`, parameters aside.
pub(super) fn is(headers: &HeaderMap, kind: &str) -> bool {
    headers
        .get(header::CONTENT_TYPE)
        .and_then(|value| value.to_str().ok())
        .and_then(|value| value.split(';').next())
        .is_some_and(|essence| essence.trim().eq_ignore_ascii_case(kind))
}

pub(super) fn is_identity(headers: &HeaderMap) -> bool {
    headers.get(header::CONTENT_ENCODING).is_none_or(|value| value == "identity")
}

fn hand_out<B: Body>(
    parts: Parts,
    body: B,
    ahead: Ahead<B::Data>,
    error: Option<Failure>,
    judge: Judge,
) -> Response<ClassifiedBody<B>> {
    let events =
        is(&parts.headers, "text/event-stream") || is(&parts.headers, "application/x-ndjson");
    let events = events
        && judge.classifier.is_llm()
        && parts.status.is_success()
        && is_identity(&parts.headers);
    Response::from_parts(parts, ClassifiedBody::new(body, ahead, error, judge, events))
}

impl<B> Read<B>
where
    B: Body,
    B::Error: Into<BoxError>,
{
    /// Ready when the body has been read as far as it will be.
    fn poll(&mut self, mut body: Pin<&mut B>, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            match body.as_mut().poll_frame(cx) {
                Poll::Ready(Some(Ok(frame))) => {
                    self.size += frame.data_ref().map_or(0, Buf::remaining);
                    self.ahead.push(frame);
                    if self.size > MAX_BODY + MAX_DRAIN {
                        return Poll::Ready(());
                    }
                }
                // A body that breaks off is evidence as far as it came.
                Poll::Ready(Some(Err(error))) => {
                    self.error = Some(error.into());
                    return Poll::Ready(());
                }
                Poll::Ready(None) => return Poll::Ready(()),
                Poll::Pending => {
                    let timer = self
                        .timer
                        .get_or_insert_with(|| Box::pin(tokio::time::sleep(ERROR_BODY_TIME)));
                    return timer.as_mut().poll(cx);
                }
            }
        }
    }
}

/// The first 64 KiB of what was read.
fn head<D: Buf>(ahead: &Ahead<D>) -> Vec<u8> {
    let mut head = Vec::new();
    for data in ahead.iter().filter_map(Frame::data_ref) {
        super::body::slices(data, |slice| {
            let kept = slice.len().min(MAX_BODY - head.len());
            head.extend_from_slice(&slice[..kept]);
        });
    }
    head
}

/// The failure that an answer is, by its head and what was read of its body.
fn failure(parts: &Parts, body: &[u8], judge: &Judge) -> Option<Failure> {
    let mut evidence = Evidence::new(body).with_status(parts.status).with_headers(&parts.headers);
    evidence.provider = judge.target.as_ref().map(Target::provider);
    let verdict = judge.classifier.judge(&evidence).filter(|verdict| !verdict.is_stop())?;
    let body = Bytes::copy_from_slice(body);
    let upstream = Upstream::response(parts.status, parts.headers.clone(), body);
    let failure = Failure::from_upstream(upstream);
    Some(judge.classifier.finish(verdict, failure, judge.target.as_ref()))
}

/// Reads ahead until the body ends (`true`), or shows that it is no error (`false`): it is too
/// long, or an array, which is how Gemini streams without events.
fn read_ahead<B: Body>(
    mut body: Pin<&mut B>,
    ahead: &mut Ahead<B::Data>,
    size: &mut usize,
    cx: &mut Context<'_>,
) -> Poll<Result<bool, B::Error>> {
    loop {
        match ready!(body.as_mut().poll_frame(cx)) {
            Some(Ok(frame)) => {
                let array = *size == 0
                    && frame.data_ref().is_some_and(|data| data.chunk().first() == Some(&b'['));
                *size += frame.data_ref().map_or(0, Buf::remaining);
                ahead.push(frame);
                if body.is_end_stream() {
                    return Poll::Ready(Ok(true));
                }
                if array || *size > MAX_BODY {
                    return Poll::Ready(Ok(false));
                }
            }
            Some(Err(error)) => return Poll::Ready(Err(error)),
            None => return Poll::Ready(Ok(true)),
        }
    }
}

/// Judges a success by what was read.
fn inspect<D: Buf>(parts: &Parts, ahead: &Ahead<D>, whole: bool, judge: &Judge) -> Option<Failure> {
    let mut data = ahead.iter().filter_map(Frame::data_ref);
    let first = data.next()?;
    let joined: Vec<u8>;
    // One piece is judged where it lies; several are copied together.
    let body = if first.chunk().len() == first.remaining() && data.next().is_none() {
        first.chunk()
    } else {
        joined = join(ahead)?;
        &joined
    };
    // Of a longer one only a web page can be recognised.
    if !whole && !is(&parts.headers, "text/html") {
        return None;
    }
    failure(parts, body, judge)
}

/// The data of all frames, or `None` when a buffer does not show all of itself.
fn join<D: Buf>(ahead: &Ahead<D>) -> Option<Vec<u8>> {
    let mut joined = Vec::new();
    for data in ahead.iter().filter_map(Frame::data_ref) {
        let seen = super::body::slices(data, |slice| joined.extend_from_slice(slice));
        if !seen {
            return None;
        }
    }
    Some(joined)
}

impl<F, B: Body> fmt::Debug for ResponseFuture<F, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match &self.state {
            State::Calling => "calling",
            State::Refused { .. } => "reading an error",
            State::Inspecting { .. } => "inspecting a success",
            State::Done => "done",
        };
        f.debug_struct("ResponseFuture").field("state", &state).finish_non_exhaustive()
    }
}
