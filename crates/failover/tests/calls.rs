//! How calls are made: readiness between attempts, what a call holds, and its allocations.

#![allow(clippy::unwrap_used, reason = "helpers of a test")]

mod support;

use std::{
    future::{Future, Ready, ready},
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll},
};

use steadfast_chat::{ChatRequest, ChatResponse};
use steadfast_core::{BoxError, Call, CallContext, Failure, Reason, RetryBudget};
use steadfast_failover::{
    CooldownFailover, CooldownFailoverLayer, FailoverHandle, FailoverSnapshot, WhenExhausted,
    future::ResponseFuture,
};
use support::*;
use tokio_test::{assert_pending, assert_ready, task};
use tower::{Layer, Service, ServiceBuilder, ServiceExt};

/// tower-test's service boxes its errors, like tower's own layers.
#[derive(Clone)]
struct MockError<S>(S);

impl<S: Service<PlainRequest, Error = BoxError>> Service<PlainRequest> for MockError<S> {
    type Response = S::Response;
    type Error = BoxError;
    type Future = S::Future;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.0.poll_ready(cx)
    }

    fn call(&mut self, request: PlainRequest) -> S::Future {
        self.0.call(request)
    }
}

#[tokio::test(start_paused = true)]
async fn the_next_attempt_waits_for_readiness_and_a_final_failure_does_not() {
    let (mut mock, mut handle) =
        tower_test::mock::spawn_with::<PlainRequest, String, _, _>(|mock| {
            abc().at_once().layer(MockError(mock))
        });
    handle.allow(1);
    assert_ready!(mock.poll_ready()).unwrap();
    let mut call = task::spawn(mock.call(PlainRequest::new()));
    assert_pending!(call.poll());
    let (_, respond) = handle.next_request().await.unwrap();
    respond.send_error(Failure::new(Reason::ServerError, ""));
    assert_pending!(call.poll());
    handle.allow(1);
    assert!(call.is_woken());
    assert_pending!(call.poll());
    let (request, respond) = handle.next_request().await.unwrap();
    assert_eq!(request.context.target.unwrap().provider(), "b");
    // The service is not ready, but a final failure needs no further call.
    respond.send_error(Failure::new(Reason::Format, "no"));
    let failure = assert_ready!(call.poll()).unwrap_err();
    assert_eq!(failure.reason(), Reason::Format);
}

#[tokio::test(start_paused = true)]
async fn a_service_that_breaks_between_attempts_ends_the_call() {
    let (mut mock, mut handle) =
        tower_test::mock::spawn_with::<PlainRequest, String, _, _>(|mock| {
            abc().at_once().layer(MockError(mock))
        });
    handle.allow(1);
    assert_ready!(mock.poll_ready()).unwrap();
    let mut call = task::spawn(mock.call(PlainRequest::new()));
    assert_pending!(call.poll());
    let (_, respond) = handle.next_request().await.unwrap();
    respond.send_error(Failure::new(Reason::ServerError, "first"));
    assert_pending!(call.poll());
    handle.send_error("it is closed");
    let failure = assert_ready!(call.poll()).unwrap_err();
    assert_eq!(failure.reason(), Reason::Exhausted);
    assert!(failure.message().contains("it is closed"), "{failure}");
}

#[tokio::test(start_paused = true)]
async fn a_call_dropped_at_any_poll_releases_everything() {
    // A probe, a hedge of it and one more target, dropped after each poll in turn; then probes of all,
    // hedges, pauses and further rounds.
    let answers = after(secs(1), Action::Answer);
    let fails = after(secs(7), fail(Reason::Network));
    for (rested, last) in [(&["a"][..], answers), (&["a", "b", "c"], fails)] {
        let mut done = false;
        for polls in 0.. {
            let providers = Providers::new();
            let layer = abc().at_once();
            for name in rested {
                rest(&layer, &providers, name).await;
            }
            tokio::time::advance(secs(2)).await;
            providers.set("a", after(secs(6), fail(Reason::Overloaded)));
            providers.set("b", after(secs(4), fail(Reason::Network)));
            providers.set("c", last.clone());
            let mut call = task::spawn(send(&layer, &providers, PlainRequest::new()));
            for _ in 0..polls {
                done = call.poll().is_ready();
                tokio::time::advance(secs(1)).await;
            }
            drop(call);
            assert_eq!(providers.in_flight(), 0, "after {polls} polls");
            let snapshot = layer.handle().snapshot();
            assert!(snapshot.targets().iter().all(|health| !health.probing), "after {polls} polls");
            if done {
                break;
            }
            assert!(polls < 200, "it ends");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn health_is_shared_by_all_services_of_a_layer_and_its_clones() {
    let providers = Providers::new();
    let layer = abc().at_once();
    let clone = layer.clone();
    rest(&layer, &providers, "a").await;
    send(&clone, &providers, PlainRequest::new()).await.unwrap();
    send(&layer, &providers, PlainRequest::new()).await.unwrap();
    assert_eq!(providers.calls(), ["b", "b"]);
    let fresh = abc().at_once();
    send(&fresh, &providers, PlainRequest::new()).await.unwrap();
    assert_eq!(providers.calls(), ["a", "b"], "another layer has separate state");
}

#[tokio::test(start_paused = true)]
async fn a_call_that_waits_for_a_target_holds_no_inner_permit() {
    let providers = Providers::new();
    let layer = abc().with_when_exhausted(WhenExhausted::Wait(secs(60))).at_once();
    for name in ["a", "b", "c"] {
        layer.handle().cool(&target(name), secs(30));
    }
    let limited = ServiceBuilder::new().concurrency_limit(1).service(providers.client());
    let mut service = layer.layer(limited.clone());
    service.ready().await.unwrap();
    let mut waiting = task::spawn(service.call(PlainRequest::new()));
    assert_pending!(waiting.poll());
    drop(service);
    let mut other = task::spawn(limited.ready_oneshot());
    assert!(other.poll().is_ready(), "the permit is free meanwhile");
    drop(other);
    assert_eq!(waiting.await.unwrap(), "a");
}

#[test]
fn auto_traits_follow_the_parts() {
    fn assert<T: Send + Sync + 'static>() {}
    fn assert_send<T: Send>() {}
    assert::<CooldownFailoverLayer>();
    assert::<FailoverHandle>();
    assert::<FailoverSnapshot>();
    type Chat = tower::util::BoxCloneSyncService<ChatRequest, ChatResponse, Failure>;
    assert::<CooldownFailover<Chat>>();
    assert_send::<ResponseFuture<Chat, ChatRequest, steadfast_core::UntilEnd>>();
}

/// A service that is always ready and answers at once.
#[derive(Clone)]
struct Instant(Arc<AtomicUsize>);

impl Service<PlainRequest> for Instant {
    type Response = usize;
    type Error = Failure;
    type Future = Ready<Result<usize, Failure>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Failure>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: PlainRequest) -> Self::Future {
        drop(request);
        ready(Ok(self.0.fetch_add(1, Ordering::Relaxed)))
    }
}

#[tokio::test(start_paused = true)]
async fn a_future_polled_after_its_end_fails() {
    let layer = abc().at_once();
    let mut call = pin!(layer.layer(Instant(Arc::default())).call(PlainRequest::new()));
    assert_eq!(call.as_mut().await.unwrap(), 0);
    let failure = call.await.unwrap_err();
    assert!(failure.message().contains("after it was over"), "{failure}");
}

/// Allocations of a call, with a disabled log.
fn allocations<L>(layer: &L, make: impl Fn() -> PlainRequest) -> u64
where
    L: Layer<Instant>,
    L::Service: Service<PlainRequest, Response = usize, Error = Failure>,
{
    let mut service = layer.layer(Instant(Arc::default()));
    let mut call = move || {
        let mut service = task::spawn(&mut service);
        assert_ready!(service.enter(|cx, mut service| service.poll_ready(cx))).unwrap();
        let request = make();
        let counted = allocation_counter::measure(|| {
            let future = pin!(service.call(request));
            let mut cx = Context::from_waker(std::task::Waker::noop());
            assert!(future.poll(&mut cx).is_ready());
        });
        counted.count_total
    };
    // The first call allocates what all share.
    call();
    call()
}

#[tokio::test(start_paused = true)]
async fn a_successful_first_attempt_allocates_nothing() {
    let layer = abc().with_budget(RetryBudget::default()).at_once();
    assert_eq!(allocations(&layer, PlainRequest::default), 0);
    let session = CallContext::new().with_session("s");
    let with_session = || PlainRequest { context: session.clone(), ..PlainRequest::default() };
    assert_eq!(allocations(&layer, with_session), 0);
    layer.handle().cool(&target("a"), secs(60));
    let skipping = allocations(&layer, PlainRequest::default);
    assert!(skipping <= 1, "one box for the history of a call that skips a target: {skipping}");
}

/// A request that counts how often it is cloned.
struct Counted(Arc<AtomicUsize>, CallContext);

impl Clone for Counted {
    fn clone(&self) -> Self {
        self.0.fetch_add(1, Ordering::Relaxed);
        Self(self.0.clone(), self.1.clone())
    }
}

impl Call for Counted {
    fn context(&self) -> &CallContext {
        &self.1
    }

    fn context_mut(&mut self) -> &mut CallContext {
        &mut self.1
    }
}

#[tokio::test(start_paused = true)]
async fn the_last_attempt_moves_the_request() {
    for (names, clones) in [(vec!["a"], 0), (vec!["a", "b"], 1), (vec!["a", "b", "c"], 2)] {
        let counter = Arc::new(AtomicUsize::new(0));
        let client = tower::service_fn(|_: Counted| {
            ready(Err::<(), _>(Failure::new(Reason::ServerError, "")))
        });
        // Where a target may be asked again, none is the last.
        let layer = CooldownFailoverLayer::new(chain(names))
            .with_when_exhausted(WhenExhausted::Fail)
            .at_once();
        let request = Counted(counter.clone(), CallContext::new());
        drop(layer.layer(client).oneshot(request).await.unwrap_err());
        assert_eq!(counter.load(Ordering::Relaxed), clones);
    }
}
