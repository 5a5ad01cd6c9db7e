//! The provider: it answers at once, with an answer that depends on the requested model.
//!
//! `bench-whole` is one JSON answer of about a kilobyte. `bench-stream-N-GAP-BURST` is a stream of
//! N events of about 200 bytes, BURST of them together in one write every GAP milliseconds; a gap
//! of 0 sends as fast as the connection accepts them. Each event is a separate HTTP chunk, as
//! vendors send them. `bench-refused` is a key that is refused, and `bench-limited` a model of which so many requests a
//! minute are taken, and no more.

use std::{
    collections::VecDeque,
    convert::Infallible,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderValue, Request, Response, StatusCode, header};
use http_body::{Body, Frame};
use http_body_util::{BodyExt, Either, Full};
use hyper::body::Incoming;
use parking_lot::Mutex;
use tokio::time::{Instant, Sleep};

use crate::{Error, responses, serve, wire};

type Answer = Either<Full<Bytes>, Events>;

/// The model for which the key is refused.
pub(crate) const REFUSED: &str = "bench-refused";

/// The model that is limited, to so many requests a minute: all at once, and then at the rate.
pub(crate) const LIMITED: &str = "bench-limited";
pub(crate) const LIMITED_A_MINUTE: u64 = 600;

/// Where the counts of that are.
pub(crate) const STATISTICS: &str = "/statistics";

/// How long an answer of it takes.
const LIMITED_TAKES: Duration = Duration::from_millis(200);

/// A strict limit, and what was taken and refused by it.
#[derive(Debug)]
struct Limit {
    left: f64,
    at: Instant,
    taken: u64,
    refused: u64,
}

impl Limit {
    fn new() -> Self {
        Self { left: LIMITED_A_MINUTE as f64, at: Instant::now(), taken: 0, refused: 0 }
    }

    /// Whether one more is taken, and what is left.
    fn take(&mut self) -> (bool, u64) {
        let now = Instant::now();
        let refilled = (now - self.at).as_secs_f64() * LIMITED_A_MINUTE as f64 / 60.0;
        self.left = (self.left + refilled).min(LIMITED_A_MINUTE as f64);
        self.at = now;
        let takes = self.left >= 1.0;
        if takes {
            (self.left, self.taken) = (self.left - 1.0, self.taken + 1);
        } else {
            self.refused += 1;
        }
        (takes, self.left as u64)
    }

    /// How long until all may be taken again.
    fn reset(&self) -> String {
        let missing = LIMITED_A_MINUTE as f64 - self.left;
        format!("{:.3}s", missing * 60.0 / LIMITED_A_MINUTE as f64)
    }

    fn json(&self) -> String {
        format!("{{\"taken\":{},\"refused\":{}}}", self.taken, self.refused)
    }
}

/// The answer to a request for the model that is limited.
async fn limited(limit: &Mutex<Limit>, whole: Bytes) -> Response<Answer> {
    let ((takes, left), reset) = {
        let mut limit = limit.lock();
        (limit.take(), limit.reset())
    };
    let mut response = if takes {
        tokio::time::sleep(LIMITED_TAKES).await;
        json(StatusCode::OK, whole)
    } else {
        let text = r#"{"error":{"message":"Rate limit reached","type":"requests","code":"rate_limit_exceeded"}}"#;
        json(StatusCode::TOO_MANY_REQUESTS, text.into())
    };
    let headers = response.headers_mut();
    headers.insert("x-ratelimit-limit-requests", LIMITED_A_MINUTE.into());
    headers.insert("x-ratelimit-remaining-requests", left.into());
    if let Ok(reset) = HeaderValue::try_from(reset) {
        headers.insert("x-ratelimit-reset-requests", reset);
    }
    response
}

fn json(status: StatusCode, body: Bytes) -> Response<Answer> {
    let mut response = Response::new(Either::Left(Full::new(body)));
    *response.status_mut() = status;
    let content_type = HeaderValue::from_static("application/json");
    response.headers_mut().insert(header::CONTENT_TYPE, content_type);
    response
}

/// Serves until killed.
pub(crate) fn run() -> Result<(), Error> {
    let chat = Bytes::from(wire::answer());
    let response = Bytes::from(responses::answer());
    let limit = Arc::new(Mutex::new(Limit::new()));
    serve::run(move |request: Request<Incoming>| {
        let is_response = request.uri().path().ends_with("/responses");
        let whole = if is_response { response.clone() } else { chat.clone() };
        answer(request, whole, is_response, limit.clone())
    })
}

async fn answer(
    request: Request<Incoming>,
    whole: Bytes,
    is_response: bool,
    limit: Arc<Mutex<Limit>>,
) -> Response<Answer> {
    if request.uri().path() == STATISTICS {
        let counts = limit.lock().json();
        return json(StatusCode::OK, counts.into());
    }
    let body = match request.into_body().collect().await {
        Ok(body) => body.to_bytes(),
        Err(_) => Bytes::new(),
    };
    let Some(model) = wire::model(&body) else {
        let mut response = Response::new(Either::Left(Full::new(Bytes::from_static(b"no model"))));
        *response.status_mut() = StatusCode::BAD_REQUEST;
        return response;
    };
    match model {
        LIMITED => return limited(&limit, whole).await,
        REFUSED => {
            let text = r#"{"error":{"message":"Incorrect API key provided","type":"invalid_request_error","code":"invalid_api_key"}}"#;
            return json(StatusCode::UNAUTHORIZED, text.into());
        }
        _ => {}
    }
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
