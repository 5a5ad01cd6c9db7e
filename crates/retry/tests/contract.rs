//! The contract of every layer, and the tests of tower's rules that only retries need.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

mod common;

use std::{
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use common::{exact, layer, ready};
use steadfast_core::{AtOnce, BudgetPolicy, Failure, Reason, RetryBudget};
use steadfast_retry::{RetryBackoff, RetryBackoffLayer, RetryHandle, future::ResponseFuture};
use steadfast_testkit::{
    Action, Aspect, Chat, Contract, PinnedHttp, Plain, PlainRequest, contract, fail, ms,
    plain_request, secs,
};
use tokio::sync::Semaphore;
use tokio_test::{assert_pending, assert_ready, assert_ready_err, task};
use tower::{Layer, Service, ServiceExt, service_fn};
use tower_test::mock;

contract!(
    plain,
    Contract::new(Plain, || RetryBackoffLayer::transient().at_once())
        .state(Action::answer(), |layer| layer.handle().snapshot().calls)
        .none(Aspect::Refusal, "the budget refuses retries, never a first attempt")
        .none(Aspect::Held, "a call is counted when it is made, and a retry paid when it is sent")
);

contract!(
    http,
    Contract::new(PinnedHttp, RetryBackoffLayer::default)
        .state(Action::answer(), |layer| layer.handle().snapshot().calls)
        .none(Aspect::Refusal, "the budget refuses retries, never a first attempt")
        .none(Aspect::Held, "a call is counted when it is made, and a retry paid when it is sent")
        .allocates(5, "the request is cloned for a retry, with its headers and extensions")
);

contract!(
    chat,
    Contract::new(Chat, RetryBackoffLayer::default)
        .state(Action::answer(), |layer| layer.handle().snapshot().calls)
        .none(Aspect::Refusal, "the budget refuses retries, never a first attempt")
        .none(Aspect::Held, "a call is counted when it is made, and a retry paid when it is sent")
        .allocates(
            1,
            "what is read while the first content is waited for, by whichever layer waits"
        )
);

type Mock = mock::Mock<PlainRequest, &'static str>;

fn pair() -> (RetryBackoff<Mock, AtOnce>, mock::Handle<PlainRequest, &'static str>) {
    let (inner, handle) = mock::pair();
    (layer(exact()).layer(inner), handle)
}

#[tokio::test(start_paused = true)]
async fn an_inner_service_that_fails_in_poll_ready_ends_the_call() {
    let (mut service, mut handle) = pair();
    let mut call = task::spawn(ready(&mut service).await.call(plain_request(|_| ())));
    handle.next_request().await.unwrap().1.send_error(fail(Reason::Network));
    assert_pending!(call.poll());
    handle.send_error(fail(Reason::ServerError));
    tokio::time::advance(ms(501)).await;
    let failure = assert_ready_err!(call.poll());
    assert_eq!(failure.attempts(), 1, "only one call reached the provider");
    assert_eq!(failure.waited(), ms(500));
    let again = assert_ready_err!(call.poll());
    assert!(again.message().contains("after it was ready"), "an error instead of a panic");
}

/// Holds a permit from the call to the end of its future.
#[derive(Clone)]
struct PermitService(Arc<Semaphore>);

impl Service<PlainRequest> for PermitService {
    type Response = &'static str;
    type Error = Failure;
    type Future = std::pin::Pin<Box<dyn Future<Output = Result<&'static str, Failure>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Failure>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: PlainRequest) -> Self::Future {
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
async fn dropping_the_call_frees_what_it_held_in_every_state() {
    // In the first attempt, in the sleep after it, in the second.
    // A retry that was not sent costs nothing; one that was sent and then dropped does.
    for (at, paid) in [(ms(500), 0), (ms(1_200), 0), (ms(2_000), 14)] {
        let permits = Arc::new(Semaphore::new(1));
        let budget = RetryBudget::new(BudgetPolicy { free: 0, ..BudgetPolicy::default() });
        let layer = layer(exact()).with_budget(budget.clone());
        let request = plain_request(|_| ());
        let alive = request.clones.clone();
        let call = layer.layer(PermitService(permits.clone())).oneshot(request);
        assert!(tokio::time::timeout(at, call).await.is_err());
        assert_eq!(permits.available_permits(), 1, "{at:?}");
        assert_eq!(Arc::strong_count(&alive), 1, "{at:?}: the request is gone");
        assert_eq!(budget.remaining(), 500 - paid, "{at:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_failed_attempt_is_dropped_before_the_sleep() {
    let permits = Arc::new(Semaphore::new(1));
    let mut service = layer(exact()).layer(PermitService(permits.clone()));
    let mut call = task::spawn(ready(&mut service).await.call(plain_request(|_| ())));
    assert_pending!(call.poll());
    assert_eq!(permits.available_permits(), 0);
    tokio::time::advance(ms(1_001)).await;
    assert_pending!(call.poll());
    assert_eq!(permits.available_permits(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_ready_answer_needs_one_poll_and_no_timer() {
    let mut service = layer(exact())
        .layer(service_fn(|_: PlainRequest| std::future::ready(Ok::<_, Failure>("answer"))));
    let before = tokio::time::Instant::now();
    let mut call = task::spawn(ready(&mut service).await.call(plain_request(|_| ())));
    assert_eq!(assert_ready!(call.poll()).unwrap(), "answer");
    assert_eq!(before.elapsed(), Duration::ZERO);
}

#[test]
fn a_setter_creates_new_state() {
    let layer = layer(exact());
    drop(layer.layer(service_fn(|_: PlainRequest| ready_answer())).call(plain_request(|_| ())));
    assert_eq!(layer.handle().snapshot().calls, 1);
    assert_eq!(layer.with_retries(1).handle().snapshot().calls, 0);
}

fn ready_answer() -> std::future::Ready<Result<&'static str, Failure>> {
    std::future::ready(Ok("answer"))
}

#[test]
fn auto_traits_beyond_the_contract() {
    fn all<T: Send + Sync + Clone + 'static>() {}
    fn shared<T: Send + Sync>() {}
    type Plain =
        tower::util::ServiceFn<fn(PlainRequest) -> std::future::Ready<Result<(), Failure>>>;
    all::<RetryHandle>();
    shared::<ResponseFuture<Plain, PlainRequest, AtOnce>>();
}
