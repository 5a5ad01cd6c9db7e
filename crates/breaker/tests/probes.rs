//! A probe's permit is always released, and only an answer of its generation decides.
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

mod support;

use std::{panic::AssertUnwindSafe, pin::Pin, task::Context};

use http::{Request, Response};
use http_body_util::BodyExt;
use steadfast_breaker::{BreakerHandle, BreakerSnapshot, CircuitBreaker, CircuitBreakerLayer};
use steadfast_core::circuit::CircuitState;
use steadfast_core::{Call, Failure, Reason, Target};
use support::*;
use tokio_test::{assert_pending, assert_ready_err, assert_ready_ok, task};
use tower::{Layer, Service, ServiceExt, service_fn, util::ServiceFn};

/// A request with the server's script.
type ScriptedRequest = Request<fn() -> Result<Script, Failure>>;

fn request(script: fn() -> Result<Script, Failure>) -> ScriptedRequest {
    let mut request = Request::new(script);
    request.context_mut().target = Some(openai());
    request.context_mut().alternatives = 1;
    request
}

fn fine() -> Result<Script, Failure> {
    Ok(Script::new([Some(Ok("fine")), None]))
}

fn endless() -> Result<Script, Failure> {
    Ok(Script::new([Some(Ok("fine"))]))
}

fn breaks() -> Result<Script, Failure> {
    Ok(Script::new([Some(Ok("fi")), Some(Err(network()))]))
}

fn hangs() -> Result<Script, Failure> {
    Err(Failure::new(Reason::Unknown, "hang"))
}

fn panics() -> Result<Script, Failure> {
    panic!("inner future")
}

fn callers_fault() -> Result<Script, Failure> {
    Err(Failure::new(Reason::Format, "bad request"))
}

type ScriptedResponse = Response<Script>;

type BoxResponse = Pin<Box<dyn Future<Output = Result<ScriptedResponse, Failure>> + Send>>;

type Breaker = CircuitBreaker<ServiceFn<fn(ScriptedRequest) -> BoxResponse>, Option<Target>>;

fn serve(request: ScriptedRequest) -> BoxResponse {
    Box::pin(async move {
        let answer = request.into_body()();
        if matches!(&answer, Err(failure) if failure.message() == "hang") {
            std::future::pending::<()>().await;
        }
        answer.map(Response::new)
    })
}

/// An open breaker, at the time when a probe may be made.
async fn open_breaker() -> (BreakerHandle, Breaker) {
    let layer = CircuitBreakerLayer::new(strict()).unwrap();
    let mut service = layer.layer(service_fn(serve as fn(ScriptedRequest) -> BoxResponse));
    let response = service.ready().await.unwrap().call(request(breaks)).await.unwrap();
    assert!(response.into_body().collect().await.is_err());
    let handle = layer.handle();
    assert_eq!(snapshot(&handle).circuit.state, CircuitState::Open);
    tokio::time::advance(secs(15)).await;
    (handle, service)
}

fn snapshot(handle: &BreakerHandle) -> BreakerSnapshot<Option<Target>> {
    handle.get(&Some(openai())).unwrap()
}

/// The next call is a probe, and closes the breaker.
macro_rules! assert_recovers {
    ($handle:expr, $service:expr) => {{
        assert_eq!(
            (snapshot(&$handle).circuit.state, snapshot(&$handle).circuit.probes),
            (CircuitState::HalfOpen, 0)
        );
        let response = $service.ready().await.unwrap().call(request(fine)).await.unwrap();
        response.into_body().collect().await.unwrap();
        assert_eq!(snapshot(&$handle).circuit.state, CircuitState::Closed);
    }};
}

#[tokio::test(start_paused = true)]
async fn a_probe_dropped_before_it_was_polled() {
    let (handle, mut service) = open_breaker().await;
    let future = service.ready().await.unwrap().call(request(fine));
    assert_eq!(snapshot(&handle).circuit.probes, 1);
    drop(future);
    assert_recovers!(handle, service);
}

#[tokio::test(start_paused = true)]
async fn a_probe_dropped_while_it_waits() {
    let (handle, mut service) = open_breaker().await;
    let mut future = task::spawn(service.ready().await.unwrap().call(request(hangs)));
    assert_pending!(future.poll());
    // Other calls are refused meanwhile, with the time to wait.
    let mut other = task::spawn(service.ready().await.unwrap().call(request(fine)));
    let failure = assert_ready_err!(other.poll());
    assert_eq!((failure.reason(), failure.retry_after()), (Reason::CircuitOpen, Some(secs(15))));
    drop(future);
    assert_recovers!(handle, service);
}

#[tokio::test(start_paused = true)]
async fn a_probe_dropped_with_its_response_unread() {
    let (handle, mut service) = open_breaker().await;
    let response = service.ready().await.unwrap().call(request(endless)).await.unwrap();
    assert_eq!(
        (snapshot(&handle).circuit.state, snapshot(&handle).circuit.probes),
        (CircuitState::HalfOpen, 1),
        "no verdict yet"
    );
    drop(response);
    assert_recovers!(handle, service);
}

#[tokio::test(start_paused = true)]
async fn a_probe_dropped_half_way_through_its_body() {
    let (handle, mut service) = open_breaker().await;
    let response = service.ready().await.unwrap().call(request(endless)).await.unwrap();
    let mut body = response.into_body();
    body.frame().await.unwrap().unwrap();
    drop(body);
    assert_recovers!(handle, service);
}

#[tokio::test(start_paused = true)]
async fn a_probe_that_fails_by_the_callers_fault() {
    let (handle, mut service) = open_breaker().await;
    let failure = service.ready().await.unwrap().call(request(callers_fault)).await.unwrap_err();
    assert_eq!(failure.reason(), Reason::Format);
    assert_recovers!(handle, service);
}

#[tokio::test(start_paused = true)]
async fn a_probe_whose_body_breaks_reopens_for_twice_as_long() {
    let (handle, mut service) = open_breaker().await;
    let response = service.ready().await.unwrap().call(request(breaks)).await.unwrap();
    assert!(response.into_body().collect().await.is_err());
    let now = tokio::time::Instant::now();
    assert_eq!(
        (snapshot(&handle).circuit.state, snapshot(&handle).circuit.remaining(now)),
        (CircuitState::Open, secs(60))
    );
    assert_eq!(snapshot(&handle).circuit.failed_probes, 1);
}

#[tokio::test(start_paused = true)]
async fn a_panic_in_the_future_is_a_failure_before_the_future_is_dropped() {
    let (handle, mut service) = open_breaker().await;
    let mut future = Box::pin(service.ready().await.unwrap().call(request(panics)));
    let polled = std::panic::catch_unwind(AssertUnwindSafe(|| {
        let mut context = Context::from_waker(std::task::Waker::noop());
        future.as_mut().poll(&mut context)
    }));
    assert!(polled.is_err());
    assert_eq!(snapshot(&handle).circuit.state, CircuitState::Open, "counted during the panic");
    assert_eq!(snapshot(&handle).circuit.last_reason, Some(Reason::Unknown));
    drop(future);
    assert_eq!((snapshot(&handle).circuit.failed_probes, snapshot(&handle).circuit.probes), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn a_panic_in_a_spawned_task_is_a_failure() {
    let (handle, mut service) = open_breaker().await;
    let future = service.ready().await.unwrap().call(request(panics));
    assert!(tokio::spawn(future).await.unwrap_err().is_panic());
    assert_eq!(
        (snapshot(&handle).circuit.state, snapshot(&handle).circuit.failed_probes),
        (CircuitState::Open, 1)
    );
}

#[tokio::test(start_paused = true)]
async fn a_panic_in_call_is_a_failure() {
    #[derive(Clone)]
    struct Panics;
    impl Service<ScriptedRequest> for Panics {
        type Response = ScriptedResponse;
        type Error = Failure;
        type Future = std::future::Ready<Result<ScriptedResponse, Failure>>;
        fn poll_ready(&mut self, _: &mut Context<'_>) -> std::task::Poll<Result<(), Failure>> {
            std::task::Poll::Ready(Ok(()))
        }
        fn call(&mut self, _: ScriptedRequest) -> Self::Future {
            panic!("inner service")
        }
    }
    let layer = CircuitBreakerLayer::new(strict()).unwrap();
    let mut service = layer.layer(Panics);
    assert!(std::panic::catch_unwind(AssertUnwindSafe(|| service.call(request(fine)))).is_err());
    assert_eq!(snapshot(&layer.handle()).circuit.state, CircuitState::Open);
}

#[tokio::test(start_paused = true)]
async fn a_probe_that_never_ends_does_not_block_later_probes() {
    let (handle, mut service) = open_breaker().await;
    // Leaked: it is never dropped.
    std::mem::forget(service.ready().await.unwrap().call(request(fine)));
    tokio::time::advance(secs(599)).await;
    let failure = service.ready().await.unwrap().call(request(fine)).await.unwrap_err();
    assert_eq!(failure.retry_after(), Some(secs(1)));
    tokio::time::advance(secs(1)).await;
    assert_recovers!(handle, service);
}

#[tokio::test(start_paused = true)]
async fn a_probe_that_was_given_up_decides_nothing() {
    let (handle, mut service) = open_breaker().await;
    let lost = service.ready().await.unwrap().call(request(breaks)).await.unwrap();
    tokio::time::advance(secs(600)).await;
    assert_recovers!(handle, service);
    assert!(lost.into_body().collect().await.is_err());
    assert_eq!(snapshot(&handle).circuit.state, CircuitState::Closed);
}

#[tokio::test(start_paused = true)]
async fn answers_from_before_the_opening_decide_nothing() {
    let layer = CircuitBreakerLayer::new(strict()).unwrap();
    let handle = layer.handle();
    let mut service = layer.layer(service_fn(serve));
    let mut call = async |does| service.ready().await.unwrap().call(request(does)).await.unwrap();
    let (success, failure) = (call(fine).await, call(breaks).await);
    let opening = call(breaks).await;
    assert!(opening.into_body().collect().await.is_err());
    tokio::time::advance(secs(15)).await;
    let probe = call(endless).await;
    let before = snapshot(&handle);
    assert_eq!((before.circuit.state, before.circuit.generation), (CircuitState::HalfOpen, 1));
    success.into_body().collect().await.unwrap();
    assert_eq!(snapshot(&handle), before);
    assert!(failure.into_body().collect().await.is_err());
    assert_eq!(snapshot(&handle), before);
    drop(probe);
}

/// The wrong order: with the timeout outside, a hang is a cancellation, and trips nothing.
#[tokio::test(start_paused = true)]
async fn a_hang_counts_when_the_timeout_is_inside() {
    let breaker = || CircuitBreakerLayer::new(strict()).unwrap();
    let layer = breaker();
    let outside = tower::timeout::TimeoutLayer::new(secs(5)).layer(layer.layer(service_fn(serve)));
    assert!(outside.oneshot(request(hangs)).await.is_err());
    assert_eq!(snapshot(&layer.handle()).circuit.state, CircuitState::Closed);

    let layer = breaker();
    let timeout = tower::timeout::TimeoutLayer::new(secs(5));
    let inside = layer.layer(timeout.layer(service_fn(serve)));
    assert!(inside.oneshot(request(hangs)).await.is_err());
    assert_eq!(snapshot(&layer.handle()).circuit.state, CircuitState::Open);
}

#[tokio::test(start_paused = true)]
async fn a_refusal_polled_again_fails() {
    let (_, mut service) = open_breaker().await;
    let mut probe = task::spawn(service.ready().await.unwrap().call(request(fine)));
    let mut refused = task::spawn(service.ready().await.unwrap().call(request(fine)));
    assert_eq!(assert_ready_err!(refused.poll()).reason(), Reason::CircuitOpen);
    let failure = assert_ready_err!(refused.poll());
    assert!(failure.message().contains("polled after it was ready"), "{failure}");
    drop(assert_ready_ok!(probe.poll()));
}
