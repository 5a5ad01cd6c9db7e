//! The contract of tower: readiness, cancellation, shared state, neighbours, auto traits.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

mod common;

use std::{future::Ready, sync::Arc};

use common::{Ask, Events, Timed, ask, ms, next, reply, secs, text};
use steadfast_core::{AtOnce, ChatResponse, Failure, Reason, TimeLimit, UntilEnd};
use steadfast_timeout::{
    DeadlineLayer, DeadlineService, StallBody, StallEvents, StallTimeout, StallTimeoutLayer,
    TimeoutHandle, future::ResponseFuture,
};
use tokio_test::{assert_pending, assert_ready_ok, task};
use tower::{
    Layer, Service, ServiceBuilder, ServiceExt, buffer::BufferLayer, limit::ConcurrencyLimitLayer,
    service_fn,
};
use tower_test::mock;

type Mock = mock::Mock<Ask, &'static str>;
type Both = DeadlineService<StallTimeout<Mock, AtOnce>, AtOnce>;

fn pair() -> (Both, mock::Handle<Ask, &'static str>) {
    let (inner, handle) = mock::pair();
    let service = ServiceBuilder::new()
        .layer(DeadlineLayer::default().at_once())
        .layer(StallTimeoutLayer::default().at_once())
        .service(inner);
    (service, handle)
}

#[tokio::test(start_paused = true)]
async fn readiness_is_the_inner_services_with_a_waker() {
    let (service, mut handle) = pair();
    handle.allow(0);
    let mut service = mock::Spawn::new(service);
    assert_pending!(service.poll_ready());
    // Waiting for readiness is not limited.
    tokio::time::advance(secs(1_000)).await;
    assert_pending!(service.poll_ready());
    handle.allow(1);
    assert!(service.is_woken());
    assert_ready_ok!(service.poll_ready());
    let mut call = task::spawn(service.call(ask(|_| ())));
    assert_pending!(call.poll());
    handle.next_request().await.unwrap().1.send_response("answer");
    assert!(call.is_woken());
    assert_eq!(assert_ready_ok!(call.poll()), "answer");
}

#[tokio::test(start_paused = true)]
async fn an_inner_service_that_dies_says_so() {
    let (mut service, mut handle) = pair();
    handle.send_error(Failure::new(Reason::Network, "gone"));
    assert_eq!(service.ready().await.unwrap_err().reason(), Reason::Network);
}

#[tokio::test(start_paused = true)]
async fn readiness_is_kept_until_used_and_absent_in_a_clone() {
    let (inner, _handle) = mock::pair::<Ask, &'static str>();
    let service = ServiceBuilder::new()
        .layer(StallTimeoutLayer::default().at_once())
        .layer(ConcurrencyLimitLayer::new(1))
        .service(inner);
    let mut service = mock::Spawn::new(service);
    assert_ready_ok!(service.poll_ready());
    let mut clone = service.clone();
    assert_pending!(clone.poll_ready());
    assert_ready_ok!(service.poll_ready(), "still there");
    let mut call = task::spawn(service.call(ask(|_| ())));
    assert_pending!(call.poll());
    assert_pending!(clone.poll_ready(), "under way");
    // The limit frees the place at once, though its future is still held.
    tokio::time::advance(secs(181)).await;
    assert!(call.poll().is_ready());
    assert!(clone.is_woken());
    assert_ready_ok!(clone.poll_ready());
}

#[tokio::test(start_paused = true)]
async fn dropping_a_call_or_an_answer_drops_what_is_under_it() {
    let events = Timed::new([(secs(0), text("a"))]).hanging();
    let alive = events.alive.clone();
    let mut events = Some(events);
    let service = service_fn(move |_: Ask| {
        let reply = reply(events.take().unwrap());
        async move {
            tokio::time::sleep(secs(1)).await;
            Ok::<_, Failure>(reply)
        }
    });
    let layers =
        ServiceBuilder::new().layer(DeadlineLayer::default()).layer(StallTimeoutLayer::default());
    let mut answer = layers.service(service).oneshot(ask(|_| ())).await.unwrap();
    assert!(next(&mut answer).await.unwrap().is_ok());
    assert_eq!(Arc::strong_count(&alive), 2);
    drop(answer);
    assert_eq!(Arc::strong_count(&alive), 1);

    let held = alive.clone();
    let hanging = service_fn(move |_: Ask| {
        let held = held.clone();
        async move {
            std::future::pending::<()>().await;
            drop(held);
            Ok::<_, Failure>(())
        }
    });
    let mut service = StallTimeoutLayer::default().at_once().layer(hanging);
    let mut call = task::spawn(service.ready().await.unwrap().call(ask(|_| ())));
    assert_pending!(call.poll());
    assert_eq!(Arc::strong_count(&alive), 3);
    drop(call);
    assert_eq!(Arc::strong_count(&alive), 2, "the service's and ours");
}

#[tokio::test(start_paused = true)]
async fn works_with_a_concurrency_limit_and_a_buffer_on_either_side() {
    let slow = || {
        service_fn(|_: Ask| async {
            tokio::time::sleep(ms(10)).await;
            Ok::<_, Failure>("answer")
        })
    };
    let layers = || {
        ServiceBuilder::new()
            .layer(DeadlineLayer::default().at_once())
            .layer(StallTimeoutLayer::default().at_once())
    };
    let around = ServiceBuilder::new()
        .layer(BufferLayer::new(4))
        .layer(ConcurrencyLimitLayer::new(2))
        .service(layers().service(slow()));
    let inside =
        layers().layer(ConcurrencyLimitLayer::new(1)).layer(BufferLayer::new(1)).service(slow());
    let mut calls = tokio::task::JoinSet::new();
    for _ in 0..20 {
        let (around, inside) = (around.clone(), inside.clone());
        calls.spawn(async move { around.oneshot(ask(|_| ())).await.map_err(Failure::from) });
        calls.spawn(inside.oneshot(ask(|_| ())));
    }
    let all = tokio::time::timeout(secs(60), calls.join_all()).await.expect("nobody is stuck");
    assert_eq!(all.len(), 40);
    for answer in all {
        assert_eq!(answer.unwrap(), "answer");
    }
}

#[tokio::test(start_paused = true)]
async fn state_is_shared_by_every_service_of_a_layer() {
    let layer = StallTimeoutLayer::default().at_once();
    let hanging = || service_fn(|_: Ask| std::future::pending::<Result<(), Failure>>());
    assert!(layer.layer(hanging()).oneshot(ask(|_| ())).await.is_err());
    let service = layer.clone().layer(hanging());
    assert!(service.clone().oneshot(ask(|_| ())).await.is_err());
    assert_eq!(service.handle().snapshot().count(TimeLimit::Stall), 2);
    assert_eq!(layer.handle().snapshot().count(TimeLimit::Stall), 2);
    let other = layer.with_stall(secs(1)).unwrap();
    assert_eq!(other.handle().snapshot().count(TimeLimit::Stall), 0);
}

#[test]
fn auto_traits() {
    fn all<T: Send + Sync + Clone + 'static>() {}
    fn send<T: Send + Sync>() {}
    fn unpin<T: Unpin>() {}
    type Future = ResponseFuture<Ready<Result<ChatResponse<Events>, Failure>>, UntilEnd>;
    all::<StallTimeoutLayer>();
    all::<DeadlineLayer<AtOnce>>();
    all::<Both>();
    all::<TimeoutHandle>();
    send::<Future>();
    unpin::<StallEvents<Events>>();
    send::<StallEvents<Events>>();
    send::<StallBody<http_body_util::Full<bytes::Bytes>>>();
    unpin::<StallBody<http_body_util::Full<bytes::Bytes>>>();
}
