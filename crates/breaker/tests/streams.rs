//! The outcome counts when the answer ends, not at its head.
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

mod support;

use http::{Request, Response};
use http_body_util::{BodyExt, Empty, Full};
use steadfast_breaker::{BreakerHandle, BreakerPolicy, CircuitBreakerLayer};
use steadfast_chat::{ChatRequest, ChatResponse, Delta, Event, EventStream, Head};
use steadfast_core::circuit::CircuitState;
use steadfast_core::{Call, Dialect, Failure, Reason, Target};
use support::*;
use tower::{Layer, Service, ServiceExt, service_fn};

fn request(target: &Target) -> Request<()> {
    let mut request = Request::new(());
    request.context_mut().target = Some(target.clone());
    request.context_mut().alternatives = 1;
    request
}

fn state(handle: &BreakerHandle) -> (CircuitState, u64, u64) {
    let snapshot = handle.get(&Some(openai())).unwrap();
    (snapshot.circuit.state, snapshot.circuit.calls, snapshot.circuit.failures)
}

/// A breaker around a server that answers with this body, and one answer.
async fn answer(
    script: fn() -> Script,
) -> (BreakerHandle, Response<impl http_body::Body<Data = bytes::Bytes, Error = Failure> + Unpin>) {
    let layer = CircuitBreakerLayer::new(strict()).unwrap();
    let mut service = layer.layer(service_fn(move |_: Request<()>| async move {
        Ok::<_, Failure>(Response::new(script()))
    }));
    let response = service.ready().await.unwrap().call(request(&openai())).await.unwrap();
    (layer.handle(), response)
}

#[tokio::test(start_paused = true)]
async fn a_200_whose_body_breaks_is_a_failure() {
    let (handle, response) =
        answer(|| Script::new([Some(Ok("a")), Some(Err(network())), Some(Ok("b")), None])).await;
    assert_eq!(state(&handle), (CircuitState::Closed, 0, 0), "no verdict at the head");
    let mut body = response.into_body();
    assert_eq!(body.frame().await.unwrap().unwrap().into_data().unwrap(), "a");
    assert_eq!(state(&handle), (CircuitState::Closed, 0, 0), "nor half way");
    let failure = body.frame().await.unwrap().unwrap_err();
    assert_eq!(failure.reason(), Reason::Network, "the same failure reaches the caller");
    assert_eq!(state(&handle), (CircuitState::Open, 1, 1));
    assert!(body.frame().await.is_none(), "after its first error it has ended");
}

#[tokio::test(start_paused = true)]
async fn a_body_read_to_its_end_is_a_success() {
    let (handle, response) = answer(|| Script::new([Some(Ok("a")), Some(Ok("b")), None])).await;
    assert_eq!(response.into_body().collect().await.unwrap().to_bytes(), "ab");
    assert_eq!(state(&handle), (CircuitState::Closed, 1, 0));
}

/// One in two streams is refused at once, the others last: what is known first is not all there is.
#[tokio::test(start_paused = true)]
async fn streams_under_way_break_a_row_of_failures() {
    let policy = BreakerPolicy { failure_rate: None, ..BreakerPolicy::default() };
    let layer = CircuitBreakerLayer::new(policy).unwrap();
    let handle = layer.handle();
    let service = layer.layer(service_fn(|request: Request<bool>| async move {
        match request.into_body() {
            true => Ok(Response::new(Full::<bytes::Bytes>::from("abc"))),
            false => Err(network()),
        }
    }));
    let call = |well| service.clone().oneshot(request(&openai()).map(|()| well));
    let mut streams = Vec::new();
    for _ in 0..20 {
        streams.push(call(true).await.unwrap());
        assert!(call(false).await.is_err());
    }
    assert_eq!(state(&handle), (CircuitState::Closed, 20, 20));
    for stream in streams {
        stream.into_body().collect().await.unwrap();
    }
    for _ in 0..5 {
        assert!(call(false).await.is_err());
    }
    assert_eq!(state(&handle).0, CircuitState::Open, "five in a row");
}

#[tokio::test(start_paused = true)]
async fn a_success_counts_when_its_answer_has_ended() {
    for (another, left) in [(false, 1), (true, 2)] {
        let layer = CircuitBreakerLayer::new(strict()).unwrap();
        let handle = layer.handle();
        let mut service = layer.layer(service_fn(|_: Request<()>| async {
            Ok::<_, Failure>(Response::new(Full::<bytes::Bytes>::from("abc")))
        }));
        let response = service.ready().await.unwrap().call(request(&openai())).await.unwrap();
        tokio::time::advance(secs(50)).await;
        if another {
            let other = service.ready().await.unwrap().call(request(&openai())).await.unwrap();
            other.into_body().collect().await.unwrap();
        }
        response.into_body().collect().await.unwrap();
        assert_eq!(state(&handle), (CircuitState::Closed, 1 + u64::from(another), 0));
        // The window is a minute.
        tokio::time::advance(secs(11)).await;
        assert_eq!(state(&handle), (CircuitState::Closed, left, 0), "another call: {another}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_body_dropped_half_way_does_not_count() {
    let (handle, response) = answer(|| Script::new([Some(Ok("a"))])).await;
    let mut body = response.into_body();
    body.frame().await.unwrap().unwrap();
    drop(body);
    assert_eq!(state(&handle), (CircuitState::Closed, 0, 0));
}

#[tokio::test(start_paused = true)]
async fn bodies_that_are_not_polled_to_their_end_count_too() {
    let layer = CircuitBreakerLayer::new(strict()).unwrap();
    let handle = layer.handle();
    let mut empty = layer.layer(service_fn(|_: Request<()>| async {
        Ok::<_, Failure>(Response::new(Empty::<bytes::Bytes>::new()))
    }));
    // Empty from the start: a server does not poll it.
    let response = empty.ready().await.unwrap().call(request(&openai())).await.unwrap();
    assert_eq!(state(&handle), (CircuitState::Closed, 1, 0));
    drop(response);
    assert_eq!(state(&handle), (CircuitState::Closed, 1, 0), "once");
    // Of known length: a reader stops at the last byte.
    let mut full = layer.layer(service_fn(|_: Request<()>| async {
        Ok::<_, Failure>(Response::new(Full::<bytes::Bytes>::from("abc")))
    }));
    let response = full.ready().await.unwrap().call(request(&openai())).await.unwrap();
    let mut body = response.into_body();
    body.frame().await.unwrap().unwrap();
    drop(body);
    assert_eq!(state(&handle), (CircuitState::Closed, 2, 0));
}

#[tokio::test(start_paused = true)]
async fn a_stream_of_events_that_breaks_is_a_failure() {
    let layer = CircuitBreakerLayer::new(strict()).unwrap();
    let handle = layer.handle();
    let mut service = layer.layer(service_fn(|request: ChatRequest| async move {
        let breaks = request.context().tenant() == Some("breaks");
        let text = Event::new([Delta::Text { index: 0, text: "Hel".into() }]);
        let last = if breaks {
            Err(Failure::new(Reason::Overloaded, "overloaded_error"))
        } else {
            Ok(Event::new([Delta::End]))
        };
        let events: EventStream = Box::pin(futures_stream(vec![Ok(text), last]));
        Ok::<_, Failure>(ChatResponse::new(Head::new(Dialect::Anthropic), events))
    }));
    let chat = |tenant: &str| {
        let mut request = ChatRequest::user("hello");
        *request.context_mut() =
            steadfast_core::CallContext::new().with_target(openai()).with_tenant(tenant);
        request
    };
    let _ = service.ready().await.unwrap().call(chat("succeeds")).await.unwrap().collect().await;
    assert_eq!(state(&handle), (CircuitState::Closed, 1, 0));
    let response = service.ready().await.unwrap().call(chat("breaks")).await.unwrap();
    let failure = response.collect().await.unwrap_err();
    assert_eq!(failure.reason(), Reason::Overloaded);
    assert_eq!(state(&handle), (CircuitState::Closed, 2, 1));
}

fn futures_stream<T: Send + 'static>(items: Vec<T>) -> impl futures_core::Stream<Item = T> + Send {
    struct Items<T>(std::vec::IntoIter<T>);
    impl<T> Unpin for Items<T> {}
    impl<T> futures_core::Stream for Items<T> {
        type Item = T;
        fn poll_next(
            mut self: std::pin::Pin<&mut Self>,
            _: &mut std::task::Context<'_>,
        ) -> std::task::Poll<Option<T>> {
            std::task::Poll::Ready(self.0.next())
        }
    }
    Items(items.into_iter())
}
