//! The deadline layer over the future and over the whole answer.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

mod common;

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use common::{Timed, end, next, read, reply, text};
use steadfast_core::{Call, Deadline, Failure, FaultSide, Reason, Retry, TimeLimit};
use steadfast_testkit::{PlainRequest, elapsed_ms, plain_request, secs};
use steadfast_timeout::{DeadlineLayer, DeadlinePolicy, StallTimeoutLayer};
use tokio::time::Instant;
use tower::{Layer, Service, ServiceBuilder, ServiceExt, service_fn};

fn ten() -> DeadlineLayer {
    DeadlineLayer::after(secs(10)).unwrap()
}

#[tokio::test(start_paused = true)]
async fn the_earlier_deadline_applies() {
    let provider = || {
        service_fn(|request: PlainRequest| async move {
            Ok::<_, Failure>(request.context.deadline.unwrap().remaining())
        })
    };
    let layer = DeadlineLayer::default().at_once();
    for (callers, expected) in
        [(None, secs(600)), (Some(secs(30)), secs(30)), (Some(secs(900)), secs(600))]
    {
        let request = plain_request(|context| context.deadline = callers.map(Deadline::after));
        assert_eq!(layer.layer(provider()).oneshot(request).await.unwrap(), expected);
    }
    // Nested: the earlier one again.
    let both = ServiceBuilder::new()
        .layer(ten().at_once())
        .layer(DeadlineLayer::default().at_once())
        .service(provider());
    assert_eq!(both.oneshot(plain_request(|_| ())).await.unwrap(), secs(10));
}

#[tokio::test(start_paused = true)]
async fn it_ends_a_call_that_hangs() {
    let layer = ten();
    let provider = service_fn(|_: PlainRequest| async {
        std::future::pending::<()>().await;
        Ok::<_, Failure>(reply(Timed::new([])))
    });
    let start = Instant::now();
    let failure = layer.layer(provider).oneshot(plain_request(|_| ())).await.unwrap_err();
    assert_eq!(elapsed_ms(start), secs(10));
    assert_eq!(
        (failure.reason(), failure.time_limit()),
        (Reason::Timeout, Some(TimeLimit::Pipeline))
    );
    assert_eq!((failure.retry(), failure.fault()), (Retry::Forbidden, FaultSide::Local));
    assert_eq!(
        failure.message(),
        "execution:aborted: limit pipeline of 10s, set by `timeout.pipeline_ms`, fired after 10s; no content \
         had been delivered"
    );
    assert_eq!(failure.user_message(), Reason::Timeout.user_message());
    assert_eq!(layer.handle().snapshot().count(TimeLimit::Pipeline), 1);
}

#[tokio::test(start_paused = true)]
async fn it_runs_over_the_whole_answer_however_steadily_it_comes() {
    let events = Timed::new((0..100).map(|_| (secs(3), text("."))));
    let alive = events.alive.clone();
    let mut events = Some(events);
    let provider = service_fn(move |_: PlainRequest| {
        let reply = reply(events.take().unwrap());
        async move {
            tokio::time::sleep(secs(2)).await;
            Ok::<_, Failure>(reply)
        }
    });
    let start = Instant::now();
    let mut answer = ten().layer(provider).oneshot(plain_request(|_| ())).await.unwrap();
    let (received, failure) = read(&mut answer).await;
    assert_eq!((received.as_str(), elapsed_ms(start)), ("..", secs(10)));
    assert!(failure.unwrap().is_delivered());
    assert_eq!(Arc::strong_count(&alive), 1, "dropped");
    assert!(next(&mut answer).await.is_none(), "fused");
}

#[tokio::test(start_paused = true)]
async fn it_runs_from_the_call_even_when_the_head_was_there_at_once() {
    for (callers, knob) in
        [(None, "`timeout.pipeline_ms`"), (Some(secs(10)), "the caller's deadline")]
    {
        let mut events =
            Some(Timed::new([(secs(0), text("a")), (secs(30), text("b")), (secs(0), end())]));
        let provider = service_fn(move |_: PlainRequest| {
            std::future::ready(Ok::<_, Failure>(reply(events.take().unwrap())))
        });
        let start = Instant::now();
        let request = plain_request(|context| context.deadline = callers.map(Deadline::after));
        let mut answer = ten().layer(provider).oneshot(request).await.unwrap();
        assert!(next(&mut answer).await.unwrap().is_ok());
        tokio::time::sleep(secs(4)).await;
        let failure = read(&mut answer).await.1.unwrap();
        assert_eq!(elapsed_ms(start), secs(10));
        assert!(failure.message().contains("fired after 10s"), "{failure}");
        assert!(failure.message().contains(knob), "{failure}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_after_its_deadline_is_not_made() {
    let calls = Arc::new(AtomicUsize::new(0));
    let count = calls.clone();
    let mut service = ten().at_once().layer(service_fn(move |_: PlainRequest| {
        count.fetch_add(1, Ordering::Relaxed);
        async { Ok::<_, Failure>(()) }
    }));
    let request = plain_request(|context| context.deadline = Some(Deadline::after(Duration::ZERO)));
    let failure = service.ready().await.unwrap().call(request).await.unwrap_err();
    assert_eq!((failure.attempts(), failure.time_limit()), (0, Some(TimeLimit::Pipeline)));
    assert_eq!(calls.load(Ordering::Relaxed), 0);
    service.ready().await.unwrap().call(plain_request(|_| ())).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn an_inner_stall_limit_fires_with_the_same_failure() {
    let service = ServiceBuilder::new()
        .layer(ten().at_once())
        .layer(StallTimeoutLayer::default().at_once())
        .service(service_fn(|_: PlainRequest| std::future::pending::<Result<(), Failure>>()));
    let failure = service.oneshot(plain_request(|_| ())).await.unwrap_err();
    assert_eq!(failure.time_limit(), Some(TimeLimit::Pipeline));
    assert_eq!(failure.retry(), Retry::Forbidden);
}

#[tokio::test(start_paused = true)]
async fn http_requests_have_a_deadline_too() {
    let layer = ten().at_once();
    let provider = service_fn(|request: http::Request<()>| async move {
        Ok::<_, Failure>(request.context().deadline.is_some())
    });
    assert!(layer.layer(provider).oneshot(http::Request::new(())).await.unwrap());
}

#[tokio::test(start_paused = true)]
async fn limits_too_long_to_represent_are_none() {
    let layer = DeadlineLayer::new(DeadlinePolicy { pipeline: Duration::MAX }).unwrap().at_once();
    let provider = service_fn(|_: PlainRequest| async { Ok::<_, Failure>(()) });
    layer.layer(provider).oneshot(plain_request(|_| ())).await.unwrap();
    assert!(DeadlineLayer::after(Duration::ZERO).is_err());
}
