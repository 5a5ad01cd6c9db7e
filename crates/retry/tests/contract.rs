//! The contract of tower: readiness, cancellation, shared state, neighbours, auto traits.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

mod common;

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use common::{Ask, ask, exact, fail, layer, ms, ready, secs};
use steadfast_core::{AtOnce, Failure, Reason, RetryBudget};
use steadfast_retry::{RetryBackoff, RetryBackoffLayer, RetryHandle, future::ResponseFuture};
use tokio::sync::Semaphore;
use tokio_test::{assert_pending, assert_ready, assert_ready_err, assert_ready_ok, task};
use tower::{
    Layer, Service, ServiceBuilder, ServiceExt, buffer::BufferLayer, limit::ConcurrencyLimitLayer,
    service_fn,
};
use tower_test::mock;

type Mock = mock::Mock<Ask, &'static str>;

fn pair() -> (RetryBackoff<Mock, AtOnce>, mock::Handle<Ask, &'static str>) {
    let (inner, handle) = mock::pair();
    (layer(exact()).layer(inner), handle)
}

#[tokio::test(start_paused = true)]
async fn readiness_is_the_inner_services() {
    let (service, mut handle) = pair();
    handle.allow(0);
    let mut service = mock::Spawn::new(service);
    assert_pending!(service.poll_ready());
    handle.allow(1);
    assert!(service.is_woken());
    assert_ready_ok!(service.poll_ready());
}

#[tokio::test(start_paused = true)]
async fn readiness_is_kept_until_used_and_absent_in_a_clone() {
    let (inner, mut handle) = mock::pair::<Ask, &'static str>();
    let service = ServiceBuilder::new()
        .layer(layer(exact()))
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
    handle.next_request().await.unwrap().1.send_response("answer");
    assert_ready_ok!(call.poll());
    drop(call);
    assert!(clone.is_woken());
    assert_ready_ok!(clone.poll_ready());
    assert_pending!(service.poll_ready(), "taken by the clone");
}

/// The mock panics when it is called without having been polled ready, so that passing is proof.
#[tokio::test(start_paused = true)]
async fn every_retry_waits_until_the_inner_service_is_ready() {
    let (mut service, mut handle) = pair();
    handle.allow(1);
    let mut call = task::spawn(ready(&mut service).await.call(ask(|_| ())));
    assert_pending!(call.poll());
    handle.next_request().await.unwrap().1.send_error(fail(Reason::Network));
    assert_pending!(call.poll());
    tokio::time::advance(ms(501)).await;
    assert!(call.is_woken());
    assert_pending!(call.poll(), "not ready, so not called");
    assert!(tokio_test::task::spawn(handle.next_request()).poll().is_pending());
    handle.allow(1);
    assert!(call.is_woken(), "a waker on every `Pending`");
    assert_pending!(call.poll());
    handle.next_request().await.unwrap().1.send_response("answer");
    assert_eq!(assert_ready_ok!(call.poll()), "answer");
}

#[tokio::test(start_paused = true)]
async fn an_inner_service_that_dies_ends_the_call() {
    let (mut service, mut handle) = pair();
    let mut call = task::spawn(ready(&mut service).await.call(ask(|_| ())));
    handle.next_request().await.unwrap().1.send_error(fail(Reason::Network));
    assert_pending!(call.poll());
    handle.send_error(fail(Reason::ServerError));
    tokio::time::advance(ms(501)).await;
    let failure = assert_ready_err!(call.poll());
    assert_eq!(failure.attempts(), 1, "only one was asked");
    let again = assert_ready_err!(call.poll());
    assert!(again.message().contains("after it was ready"), "says so instead of panicking");
}

#[tokio::test(start_paused = true)]
async fn a_service_called_again_and_again_stays_sound() {
    let layer = layer(exact());
    let calls = Arc::new(AtomicUsize::new(0));
    let count = calls.clone();
    let inner = service_fn(move |_: Ask| {
        let number = count.fetch_add(1, Ordering::Relaxed);
        async move { if number.is_multiple_of(2) { Err(fail(Reason::Network)) } else { Ok("answer") } }
    });
    let mut service = layer.layer(inner);
    for _ in 0..50 {
        assert_eq!(ready(&mut service).await.call(ask(|_| ())).await.unwrap(), "answer");
    }
    assert_eq!(calls.load(Ordering::Relaxed), 100);
}

#[tokio::test(start_paused = true)]
async fn state_is_shared_by_every_service_of_a_layer() {
    let layer = layer(exact());
    let inner = || service_fn(|_: Ask| async { Ok::<_, Failure>("answer") });
    layer.layer(inner()).oneshot(ask(|_| ())).await.unwrap();
    layer.clone().layer(inner()).oneshot(ask(|_| ())).await.unwrap();
    let service = layer.layer(inner());
    service.clone().oneshot(ask(|_| ())).await.unwrap();
    assert_eq!(service.handle().snapshot().calls, 3);
    assert_eq!(layer.handle().snapshot().calls, 3);
    assert_eq!(layer.with_retries(1).handle().snapshot().calls, 0, "another layer, another state");
}

/// Holds a permit from call to the end of its future.
#[derive(Clone)]
struct Holds(Arc<Semaphore>);

impl Service<Ask> for Holds {
    type Response = &'static str;
    type Error = Failure;
    type Future = std::pin::Pin<Box<dyn Future<Output = Result<&'static str, Failure>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Failure>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Ask) -> Self::Future {
        let permit = self.0.clone().try_acquire_owned().expect("a permit is free");
        Box::pin(async move {
            if request.context.attempts == 1 {
                std::future::pending::<()>().await;
            }
            tokio::time::sleep(secs(1)).await;
            drop(permit);
            Err(fail(Reason::ServerError))
        })
    }
}

#[tokio::test(start_paused = true)]
async fn dropping_the_call_frees_whatever_it_held_wherever_it_stands() {
    // In the first attempt, in the sleep after it, in the second.
    // A retry that was not sent costs nothing; one that was sent and given up on does.
    for (at, paid) in [(ms(500), 0), (ms(1_200), 0), (ms(2_000), 14)] {
        let permits = Arc::new(Semaphore::new(1));
        let budget = RetryBudget::default();
        let layer = layer(exact()).with_budget(budget.clone());
        let request = ask(|_| ());
        let alive = request.clones.clone();
        let call = layer.layer(Holds(permits.clone())).oneshot(request);
        assert!(tokio::time::timeout(at, call).await.is_err());
        assert_eq!(permits.available_permits(), 1, "{at:?}");
        assert_eq!(Arc::strong_count(&alive), 1, "{at:?}: the request is gone");
        assert_eq!(budget.remaining(), 500 - paid, "{at:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_failed_attempt_lets_go_before_the_sleep() {
    let permits = Arc::new(Semaphore::new(1));
    let mut service = layer(exact()).layer(Holds(permits.clone()));
    let mut call = task::spawn(ready(&mut service).await.call(ask(|_| ())));
    assert_pending!(call.poll());
    assert_eq!(permits.available_permits(), 0);
    tokio::time::advance(ms(1_001)).await;
    assert_pending!(call.poll());
    assert_eq!(permits.available_permits(), 1);
}

#[tokio::test(start_paused = true)]
async fn works_with_a_concurrency_limit_and_a_buffer_on_either_side() {
    let flaky = || {
        let calls = Arc::new(AtomicUsize::new(0));
        service_fn(move |_: Ask| {
            let number = calls.fetch_add(1, Ordering::Relaxed);
            async move {
                tokio::time::sleep(ms(10)).await;
                if number.is_multiple_of(3) { Err(fail(Reason::Network)) } else { Ok("answer") }
            }
        })
    };
    let around = ServiceBuilder::new()
        .layer(BufferLayer::new(4))
        .layer(ConcurrencyLimitLayer::new(2))
        .layer(layer(exact()))
        .service(flaky());
    let inside = ServiceBuilder::new()
        .layer(layer(exact()))
        .layer(ConcurrencyLimitLayer::new(1))
        .layer(BufferLayer::new(1))
        .service(flaky());
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
async fn a_retry_behind_a_limit_of_one_does_not_lock_itself_out() {
    let (inner, mut handle) = mock::pair::<Ask, &'static str>();
    let service = ServiceBuilder::new()
        .layer(layer(exact()))
        .layer(ConcurrencyLimitLayer::new(1))
        .service(inner);
    let call = tokio::spawn(service.oneshot(ask(|_| ())));
    handle.next_request().await.unwrap().1.send_error(fail(Reason::Network));
    handle.next_request().await.unwrap().1.send_response("answer");
    let answer = tokio::time::timeout(secs(9), call).await.expect("not stuck");
    assert_eq!(answer.unwrap().unwrap(), "answer");
}

#[tokio::test(start_paused = true)]
async fn a_ready_answer_needs_one_poll_and_no_timer() {
    let mut service =
        layer(exact()).layer(service_fn(|_: Ask| std::future::ready(Ok::<_, Failure>("answer"))));
    let before = tokio::time::Instant::now();
    let mut call = task::spawn(ready(&mut service).await.call(ask(|_| ())));
    assert_eq!(assert_ready!(call.poll()).unwrap(), "answer");
    assert_eq!(before.elapsed(), Duration::ZERO);
}

#[test]
fn auto_traits() {
    fn all<T: Send + Sync + Clone + 'static>() {}
    fn sendable<T: Send + Sync>() {}
    all::<RetryBackoffLayer>();
    all::<RetryBackoffLayer<AtOnce>>();
    all::<RetryBackoff<Mock, AtOnce>>();
    all::<RetryHandle>();
    sendable::<ResponseFuture<Plain, Ask, AtOnce>>();
}

/// A service whose future is `Send` and `Sync`.
type Plain = tower::util::ServiceFn<fn(Ask) -> std::future::Ready<Result<&'static str, Failure>>>;
