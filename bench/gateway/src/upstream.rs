//! The provider: it answers at once, with an answer that depends on the requested model.
//!
//! `bench-whole` is one JSON answer of about a kilobyte. `bench-stream-N-GAP-BURST` is a stream of
//! N events of about 200 bytes, BURST of them together in one write every GAP milliseconds; a gap
//! of 0 sends as fast as the connection accepts them. Each event is a separate HTTP chunk, as
//! vendors send them.

use std::{
    collections::VecDeque,
    convert::Infallible,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderValue, Request, Response, StatusCode, header};
use http_body::{Body, Frame};
use http_body_util::{BodyExt, Either, Full};
use hyper::body::Incoming;
use tokio::time::{Instant, Sleep};

use crate::{Error, responses, serve, wire};

type Answer = Either<Full<Bytes>, Events>;

/// Serves until killed.
pub(crate) fn run() -> Result<(), Error> {
    let chat = Bytes::from(wire::answer());
    let response = Bytes::from(responses::answer());
    serve::run(move |request: Request<Incoming>| {
        let is_response = request.uri().path().ends_with("/responses");
        let whole = if is_response { response.clone() } else { chat.clone() };
        answer(request, whole, is_response)
    })
}

async fn answer(request: Request<Incoming>, whole: Bytes, is_response: bool) -> Response<Answer> {
    let body = match request.into_body().collect().await {
        Ok(body) => body.to_bytes(),
        Err(_) => Bytes::new(),
    };
    let Some(model) = wire::model(&body) else {
        let mut response = Response::new(Either::Left(Full::new(Bytes::from_static(b"no model"))));
        *response.status_mut() = StatusCode::BAD_REQUEST;
        return response;
    };
    let (body, content_type) = match wire::Stream::parse(model) {
        Some(stream) => {
            (Either::Right(Events::new(stream, is_response)), "text/event-stream; charset=utf-8")
        }
        None => (Either::Left(Full::new(whole)), "application/json"),
    };
    let mut response = Response::new(body);
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert("x-request-id", HeaderValue::from_static("req_0123456789abcdef"));
    headers.insert("openai-processing-ms", HeaderValue::from_static("1"));
    headers.insert("openai-version", HeaderValue::from_static("2020-10-01"));
    headers.insert("x-ratelimit-remaining-requests", HeaderValue::from_static("9999"));
    headers.insert("x-ratelimit-remaining-tokens", HeaderValue::from_static("149999"));
    response
}

/// The events of one stream.
struct Events {
    /// Content events still to come.
    left: u32,
    /// Those that have come.
    sent: u32,
    /// What comes before those.
    first: Option<Bytes>,
    /// What follows those.
    tail: VecDeque<Bytes>,
    is_response: bool,
    pace: Option<Pace>,
}

struct Pace {
    gap: Duration,
    burst: u32,
    /// Left of this burst.
    left: u32,
    timer: Pin<Box<Sleep>>,
}

impl Events {
    fn new(stream: wire::Stream, is_response: bool) -> Self {
        let pace = (!stream.gap.is_zero()).then(|| {
            // Streams start out of phase.
            let begin = stream.gap.mul_f64(fastrand::f64());
            let timer = Box::pin(tokio::time::sleep(begin));
            Pace { gap: stream.gap, burst: stream.burst, left: 0, timer }
        });
        let (first, tail) = if is_response {
            (responses::first(), responses::tail(stream.events).into())
        } else {
            (Bytes::from_static(wire::FIRST), wire::TAIL.map(Bytes::from_static).into())
        };
        Self { left: stream.events, sent: 0, first: Some(first), tail, is_response, pace }
    }
}

impl Body for Events {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let this = &mut *self;
        if let Some(first) = this.first.take() {
            return Poll::Ready(Some(Ok(Frame::data(first))));
        }
        if this.left == 0 {
            return Poll::Ready(this.tail.pop_front().map(|bytes| Ok(Frame::data(bytes))));
        }
        if let Some(pace) = &mut this.pace {
            if pace.left == 0 {
                ready!(pace.timer.as_mut().poll(cx));
                let next = pace.timer.deadline() + pace.gap;
                pace.timer.as_mut().reset(next.max(Instant::now()));
                pace.left = pace.burst;
            }
            pace.left -= 1;
        }
        this.left -= 1;
        this.sent += 1;
        let event =
            if this.is_response { responses::event(this.sent - 1) } else { wire::event(this.left) };
        Poll::Ready(Some(Ok(Frame::data(event))))
    }
}
