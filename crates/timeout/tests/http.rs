//! The limits over the bodies of HTTP responses.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

mod common;

use std::{
    marker::PhantomPinned,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use common::{Timed, cut};
use http::header::{CONTENT_ENCODING, CONTENT_TYPE};
use http_body::{Body, Frame, SizeHint};
use http_body_util::{BodyExt, Full};
use steadfast_core::{Failure, Reason, TimeLimit};
use steadfast_testkit::{elapsed_ms, ms, secs};
use steadfast_timeout::{DeadlineLayer, Floor, StallBody, StallPolicy, StallTimeoutLayer};
use tokio::time::Instant;
use tower::{Layer, ServiceExt, service_fn};

pin_project_lite::pin_project! {
    /// A body that is not `Unpin`, whose size hint is 100 bytes.
    struct Chunks {
        frames: Timed<Result<Frame<Bytes>, Failure>>,
        #[pin]
        pinned: PhantomPinned,
    }
}

impl Body for Chunks {
    type Data = Bytes;
    type Error = Failure;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Failure>>> {
        self.project().frames.poll_item(cx)
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(100)
    }
}

type Chunk = (Duration, Result<Frame<Bytes>, Failure>);

fn data(after: Duration, text: &'static str) -> Chunk {
    (after, Ok(Frame::data(Bytes::from_static(text.as_bytes()))))
}

fn frames(frames: impl IntoIterator<Item = Chunk>) -> Timed<Result<Frame<Bytes>, Failure>> {
    Timed::new(frames)
}

/// Puts the limits of `policy` on a body of this kind.
async fn limited(
    policy: StallPolicy,
    kind: &'static str,
    frames: Timed<Result<Frame<Bytes>, Failure>>,
) -> Pin<Box<StallBody<Chunks>>> {
    encoded(policy, kind, "identity", frames).await
}

/// The same of a body with this content-encoding.
async fn encoded(
    policy: StallPolicy,
    kind: &'static str,
    encoding: &'static str,
    frames: Timed<Result<Frame<Bytes>, Failure>>,
) -> Pin<Box<StallBody<Chunks>>> {
    let mut body = Some(Chunks { frames, pinned: PhantomPinned });
    let provider = service_fn(move |_: http::Request<()>| {
        let reply = http::Response::builder()
            .header(CONTENT_TYPE, kind)
            .header(CONTENT_ENCODING, encoding)
            .body(body.take().unwrap());
        async move { Ok::<_, Failure>(reply.unwrap()) }
    });
    let layer = StallTimeoutLayer::new(policy).unwrap();
    Box::pin(layer.layer(provider).oneshot(http::Request::new(())).await.unwrap().into_body())
}

/// Reads to the end: the bytes, and the failure.
async fn read(body: &mut Pin<Box<StallBody<Chunks>>>) -> (String, Option<Failure>) {
    let mut received = String::new();
    while let Some(frame) = body.frame().await {
        match frame {
            Ok(frame) => {
                if let Ok(data) = frame.into_data() {
                    received += std::str::from_utf8(&data).unwrap();
                }
            }
            Err(failure) => return (received, Some(failure)),
        }
    }
    (received, None)
}

const SSE: &str = "text/event-stream; charset=utf-8";
const JSON: &str = "application/json";

#[tokio::test(start_paused = true)]
async fn data_is_content_and_comments_and_pings_of_a_stream_are_not() {
    for (kind, chunk, content) in [
        (JSON, "{", true),
        (JSON, ": not a comment\n\n", true),
        (JSON, "", false),
        (SSE, "data: {}\n\n", true),
        ("Text/Event-Stream", "data: {}\n\n", true),
        (SSE, ": keep-alive\n\n", false),
        ("Text/Event-Stream", ": keep-alive\n\n", false),
        (SSE, "event: ping\ndata: {\"type\": \"ping\"}\n\n", false),
        (SSE, ": keep-alive\n\ndata: x\n\n", true),
        (SSE, "\n", false),
    ] {
        let start = Instant::now();
        let frames = frames([data(secs(100), chunk)]).hanging();
        let mut body = limited(StallPolicy::default(), kind, frames).await;
        let (received, failure) = read(&mut body).await;
        let failure = failure.unwrap();
        assert_eq!(received, chunk, "both are passed on");
        assert_eq!(
            elapsed_ms(start),
            if content { secs(280) } else { secs(180) },
            "{kind} {chunk:?}"
        );
        assert_eq!(failure.time_limit(), Some(TimeLimit::Stall));
        assert_eq!(failure.is_delivered(), content, "{kind} {chunk:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn each_piece_of_a_compressed_stream_is_content() {
    for (encoding, content) in [("gzip", true), ("Identity", false)] {
        let start = Instant::now();
        let frames =
            frames([data(secs(100), "\u{1f}compressed"), data(secs(100), "more")]).hanging();
        let mut body = encoded(StallPolicy::default(), SSE, encoding, frames).await;
        let (_, failure) = read(&mut body).await;
        assert_eq!(failure.unwrap().is_delivered(), content, "{encoding}");
        assert_eq!(elapsed_ms(start), if content { secs(380) } else { secs(180) }, "{encoding}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_body_that_stalls_is_dropped_and_ends() {
    let frames = frames([data(secs(1), "a")]).hanging();
    let alive = frames.alive.clone();
    let mut body = limited(StallPolicy::default(), JSON, frames).await;
    assert!(!body.is_end_stream());
    assert!(read(&mut body).await.1.is_some());
    assert_eq!(Arc::strong_count(&alive), 1);
    assert!(body.is_end_stream());
    assert_eq!(body.size_hint().exact(), Some(0));
    assert!(body.frame().await.is_none());
}

#[tokio::test(start_paused = true)]
async fn an_error_of_the_body_ends_it() {
    let frames = frames([data(secs(1), "a"), (secs(1), Err(cut())), data(secs(1), "b")]);
    let mut body = limited(StallPolicy::default(), JSON, frames).await;
    let (received, failure) = read(&mut body).await;
    let failure = failure.unwrap();
    assert_eq!((received.as_str(), failure.reason()), ("a", Reason::Network));
    assert!(failure.is_delivered());
    assert!(body.frame().await.is_none());
}

#[tokio::test(start_paused = true)]
async fn trailers_arrive_and_the_size_stays_known() {
    let mut trailers = http::HeaderMap::new();
    trailers.insert("x-cost", http::HeaderValue::from_static("3"));
    let frames = frames([data(secs(1), "a"), (secs(1), Ok(Frame::trailers(trailers.clone())))]);
    let body = limited(StallPolicy::default(), JSON, frames).await;
    assert_eq!(body.size_hint().exact(), Some(100));
    let collected = body.collect().await.unwrap();
    assert_eq!(collected.trailers(), Some(&trailers));
    assert_eq!(collected.to_bytes(), "a");
}

fn floored() -> StallPolicy {
    let floor = Floor { min_chars_per_s: 1.0, window: secs(10) };
    StallPolicy { floor: Some(floor), ..StallPolicy::default() }
}

#[tokio::test(start_paused = true)]
async fn a_body_that_is_too_slow_fails_before_it_is_delivered() {
    let start = Instant::now();
    let frames = frames((0..99).map(|_| data(ms(1_500), ".")));
    let mut body = limited(floored(), JSON, frames).await;
    let (received, failure) = read(&mut body).await;
    let failure = failure.unwrap();
    assert_eq!((received.as_str(), elapsed_ms(start)), ("", ms(11_500)));
    assert_eq!(failure.time_limit(), Some(TimeLimit::Throughput));
    assert!(!failure.is_delivered());
    assert!(body.is_end_stream());
}

#[tokio::test(start_paused = true)]
async fn a_body_held_back_has_not_ended_and_counts_in_its_size() {
    let mut body = limited(floored(), JSON, frames([data(ms(1), "short")]).hanging()).await;
    {
        let mut frame = tokio_test::task::spawn(body.frame());
        assert!(frame.poll().is_pending());
        tokio::time::sleep(ms(2)).await;
        assert!(frame.poll().is_pending(), "held back");
    }
    assert!(!body.is_end_stream());
    assert_eq!(body.size_hint().exact(), Some(105));

    let mut body = limited(floored(), JSON, frames([data(ms(1), "short")])).await;
    let (received, failure) = read(&mut body).await;
    assert_eq!((received.as_str(), failure.is_none()), ("short", true));

    // Nor when the inner body has ended and a part of it is not delivered yet.
    let mut body = limited(floored(), JSON, frames([data(ms(1), "sho"), data(ms(1), "rt")])).await;
    assert_eq!(body.frame().await.unwrap().unwrap().into_data().unwrap(), "sho");
    assert!(!body.is_end_stream());
    assert_eq!(body.frame().await.unwrap().unwrap().into_data().unwrap(), "rt");
    assert!(body.is_end_stream());
}

#[tokio::test(start_paused = true)]
async fn a_deadline_works_with_another_body_type() {
    let service = DeadlineLayer::default().layer(service_fn(|_: http::Request<()>| async {
        Ok::<_, Failure>(http::Response::new(Full::new(Bytes::from_static(b"pong"))))
    }));
    let reply = service.oneshot(http::Request::new(())).await.unwrap();
    assert_eq!(reply.into_body().collect().await.unwrap().to_bytes(), "pong");
}
