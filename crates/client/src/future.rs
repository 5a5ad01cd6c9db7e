//! What a call waits for.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::{Buf, BytesMut};
use http::{HeaderMap, Response, StatusCode, response::Parts};
use http_body::Body;
use pin_project_lite::pin_project;
use steadfast_chat::ChatResponse;
use steadfast_core::{BoxError, Failure, Reason};
use tokio::time::Sleep;

use crate::{
    events::{Asked, ClientEvents},
    headers::encoding,
    transport_failure,
};

/// The longest that is waited for the rest of an error's body, once what is kept of it is there:
/// 100 ms, about what a new connection would take.
const DRAIN_TIME: Duration = Duration::from_millis(100);

/// The longest that is waited for an error's body: 5 s. Status and headers, with `retry-after`
/// among them, are known by then and are the verdict: a body that hangs must not turn them into a
/// timeout.
const ERROR_TIME: Duration = Duration::from_secs(5);

pin_project! {
    /// Waits for the head of a stream, or for the whole of an answer that is not streamed.
    /// Dropping it cancels the call.
    #[must_use = "futures do nothing unless polled"]
    pub struct ResponseFuture<F, B> {
        #[pin]
        state: State<F, B>,
    }
}

pin_project! {
    #[project = StateProj]
    enum State<F, B> {
        Refused { failure: Option<Failure> },
        Calling { #[pin] future: F, asked: Option<Asked> },
        // Boxed: it is the larger one, and rare.
        Refusal { reading: Box<Reading<B>> },
        Opening { events: Option<ClientEvents<B>> },
        Done,
    }
}

impl<F, B> ResponseFuture<F, B> {
    pub(crate) fn calling(future: F, asked: Asked) -> Self {
        Self { state: State::Calling { future, asked: Some(asked) } }
    }

    pub(crate) fn refused(failure: Failure) -> Self {
        Self { state: State::Refused { failure: Some(failure) } }
    }
}

pub(crate) fn polled_again() -> Failure {
    Failure::new(Reason::Unknown, "a response future was polled after it was ready")
}

impl<F, B, E> Future for ResponseFuture<F, B>
where
    F: Future<Output = Result<Response<B>, E>>,
    E: Into<BoxError>,
    B: Body,
    B::Error: Into<BoxError>,
{
    type Output = Result<ChatResponse<ClientEvents<B>>, Failure>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        loop {
            let done = match this.state.as_mut().project() {
                StateProj::Refused { failure } => Err(failure.take().unwrap_or_else(polled_again)),
                StateProj::Calling { future, asked } => {
                    let response = ready!(future.poll(cx));
                    match (asked.take(), response) {
                        (None, _) => Err(polled_again()),
                        (Some(asked), Err(error)) => {
                            Err(asked.locate(transport_failure(error.into()), &HeaderMap::new()))
                        }
                        (Some(asked), Ok(response)) => {
                            let next = answered(response, asked);
                            this.state.set(next);
                            continue;
                        }
                    }
                }
                StateProj::Refusal { reading } => Err(ready!(reading.poll(cx))),
                StateProj::Opening { events } => match events {
                    None => Err(polled_again()),
                    Some(waiting) => {
                        let opened = if waiting.is_declared_stream() {
                            Ok(())
                        } else {
                            ready!(waiting.poll_open(cx))
                        };
                        match (opened, events.take()) {
                            (Ok(()), Some(events)) => Ok(ChatResponse::new(events.head(), events)),
                            (Err(failure), _) => Err(failure),
                            (Ok(()), None) => Err(polled_again()),
                        }
                    }
                },
                StateProj::Done => Err(polled_again()),
            };
            this.state.set(State::Done);
            return Poll::Ready(done);
        }
    }
}

fn answered<F, B>(response: Response<B>, asked: Asked) -> State<F, B>
where
    B: Body,
    B::Error: Into<BoxError>,
{
    match started(response, asked) {
        Started::Failed(failure) => State::Refused { failure: Some(failure) },
        Started::Refusal(reading) => State::Refusal { reading },
        Started::Answer(parts, body, asked) => {
            let (status, headers) = (parts.status, parts.headers);
            let events = ClientEvents::new(body, asked, status, headers, &parts.extensions);
            State::Opening { events: Some(events) }
        }
    }
}

/// What the head of a response shows it to be.
#[expect(clippy::large_enum_variant, reason = "it is taken apart at once")]
pub(crate) enum Started<B> {
    /// Nothing that can be read.
    Failed(Failure),
    /// Its body says why.
    Refusal(Box<Reading<B>>),
    /// What was asked for, perhaps.
    Answer(Parts, B, Asked),
}

pub(crate) fn started<B: Body>(response: Response<B>, asked: Asked) -> Started<B> {
    let (parts, body) = response.into_parts();
    if let Some(encoding) = encoding(&parts.headers) {
        // What is compressed can not be read: neither as an answer nor as an error.
        let failure = if parts.status.is_success() {
            let message = format!(
                "the provider sent its answer with content-encoding `{encoding}`, though none was \
                 asked for"
            );
            Failure::new(Reason::ServerError, message).with_evidence("content-encoding")
        } else {
            asked.refusal(parts.status, &parts.headers, &bytes::Bytes::new())
        };
        return Started::Failed(asked.locate(failure, &parts.headers));
    }
    if parts.status.is_success() {
        return Started::Answer(parts, body, asked);
    }
    Started::Refusal(Box::new(Reading {
        body: Box::pin(body),
        asked,
        status: parts.status,
        headers: parts.headers,
        kept: BytesMut::new(),
        drained: 0,
        hurried: false,
        patience: None,
    }))
}

/// The body of a refusal being read: its beginning is kept, a small rest is thrown away so that the
/// connection can be used again.
pub(crate) struct Reading<B> {
    body: Pin<Box<B>>,
    asked: Asked,
    status: StatusCode,
    headers: HeaderMap,
    kept: BytesMut,
    drained: usize,
    /// Enough has been kept, and the timer is the shorter one.
    hurried: bool,
    /// Runs while the body is waited for.
    patience: Option<Pin<Box<Sleep>>>,
}

impl<B> Reading<B>
where
    B: Body,
    B::Error: Into<BoxError>,
{
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Failure> {
        let limits = self.asked.limits;
        loop {
            match self.body.as_mut().poll_frame(cx) {
                // The status is the verdict; what is missing of the body only explains it.
                Poll::Ready(None | Some(Err(_))) => break,
                Poll::Ready(Some(Ok(frame))) => {
                    let Ok(mut data) = frame.into_data() else { continue };
                    let room = limits.error.saturating_sub(self.kept.len());
                    let keep = room.min(data.remaining());
                    self.kept.extend_from_slice(&data.copy_to_bytes(keep));
                    self.drained = self.drained.saturating_add(data.remaining());
                    if self.drained > limits.drain {
                        break;
                    }
                }
                Poll::Pending => {
                    let enough = self.kept.len() >= limits.error;
                    if enough && !std::mem::replace(&mut self.hurried, true) {
                        self.patience = None;
                    }
                    let wait = if enough { DRAIN_TIME } else { ERROR_TIME };
                    let timer =
                        self.patience.get_or_insert_with(|| Box::pin(tokio::time::sleep(wait)));
                    ready!(timer.as_mut().poll(cx));
                    break;
                }
            }
        }
        let body = std::mem::take(&mut self.kept).freeze();
        let failure = self.asked.refusal(self.status, &self.headers, &body);
        Poll::Ready(self.asked.locate(failure, &self.headers))
    }
}

impl<F, B> fmt::Debug for ResponseFuture<F, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseFuture").finish_non_exhaustive()
    }
}
