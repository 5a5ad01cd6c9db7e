//! The provider: it answers at once, with an answer that depends on the requested model.
//!
//! `bench-whole` is one JSON answer of about a kilobyte. `bench-stream-N-GAP-BURST` is a stream of
//! N events of about 200 bytes, BURST of them together in one write every GAP milliseconds; a gap
//! of 0 sends as fast as the connection accepts them. Each event is a separate HTTP chunk, as
//! vendors send them.

use std::{
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

use crate::{Error, serve, wire};

type Answer = Either<Full<Bytes>, Events>;

/// Serves until killed.
pub(crate) fn run() -> Result<(), Error> {
    let whole = Bytes::from(wire::answer());
    serve::run(move |request| answer(request, whole.clone()))
}

async fn answer(request: Request<Incoming>, whole: Bytes) -> Response<Answer> {
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
        Some(stream) => (Either::Right(Events::new(stream)), "text/event-stream; charset=utf-8"),
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
    /// What follows those.
    tail: std::slice::Iter<'static, &'static [u8]>,
    first: bool,
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
    fn new(stream: wire::Stream) -> Self {
        let pace = (!stream.gap.is_zero()).then(|| {
            // Streams start out of phase.
            let begin = stream.gap.mul_f64(fastrand::f64());
            let timer = Box::pin(tokio::time::sleep(begin));
            Pace { gap: stream.gap, burst: stream.burst, left: 0, timer }
        });
        Self { left: stream.events, tail: wire::TAIL.iter(), first: true, pace }
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
        if std::mem::take(&mut this.first) {
            return Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(wire::FIRST)))));
        }
        if this.left == 0 {
            let next = this.tail.next().map(|bytes| Ok(Frame::data(Bytes::from_static(bytes))));
            return Poll::Ready(next);
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
        Poll::Ready(Some(Ok(Frame::data(wire::event(this.left)))))
    }
}
