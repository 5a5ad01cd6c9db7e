//! The HTTP layer for LLM APIs, driven by hand around simple services.

#![allow(clippy::expect_used, clippy::unwrap_used, reason = "helpers of tests are tests")]

mod script;

use std::{
    convert::Infallible,
    pin::Pin,
    sync::{Arc, atomic::Ordering},
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode};
use http_body::Body;
use http_body_util::{BodyExt, Full};
use steadfast_classify::{ClassifyLayer, http::ClassifiedBody};
use steadfast_core::{Failure, Reason, Retry};
use tokio_test::{assert_pending, assert_ready, assert_ready_err, task};
use tower::{BoxError, Layer, Service, ServiceExt, service_fn};

use script::{Script, Step, data, drain, response};

async fn call(response: Response<Script>) -> Result<Response<ClassifiedBody<Script>>, Failure> {
    script::call(&ClassifyLayer::llm_http(), response).await
}

#[tokio::test]
async fn a_refusal_becomes_a_failure_with_its_evidence() {
    let mut refused = response(
        429,
        "application/json",
        Script::new([data(r#"{"error":{"code":"rate_limit_"#), data(r#"exceeded"}}"#)]),
    );
    refused.headers_mut().insert("retry-after-ms", HeaderValue::from_static("1500"));
    refused.headers_mut().insert("x-request-id", HeaderValue::from_static("req_1"));
    let failure = call(refused).await.unwrap_err();
    assert_eq!(
        (failure.reason(), failure.evidence()),
        (Reason::RateLimit, "code:rate_limit_exceeded")
    );
    assert_eq!(failure.retry_after(), Some(Duration::from_millis(1_500)));
    assert_eq!(failure.request_id(), Some("req_1"));
    assert_eq!(failure.target().unwrap().provider(), "openai");
    assert_eq!(failure.upstream().unwrap().body.len(), 40);
}

#[tokio::test]
async fn an_error_body_is_read_to_its_end_so_that_the_connection_lives_but_not_for_ever() {
    let kib = || data(vec![b' '; 1_024]);
    let small = Script::new((0..100).map(|_| kib()));
    let polled = small.polled.clone();
    let failure = call(response(500, "text/plain", small)).await.unwrap_err();
    assert_eq!(failure.upstream().unwrap().body.len(), 64 * 1_024, "evidence is bounded");
    assert_eq!(polled.load(Ordering::Relaxed), 101, "drained to the end");

    let endless = Script::new((0..1_000).map(|_| kib()));
    let polled = endless.polled.clone();
    let failure = call(response(500, "text/plain", endless)).await.unwrap_err();
    assert_eq!(failure.reason(), Reason::ServerError);
    assert_eq!(polled.load(Ordering::Relaxed), 129, "64 KiB kept, 64 KiB drained, then dropped");
}

#[tokio::test(start_paused = true)]
async fn an_error_body_that_hangs_or_breaks_does_not_hide_the_status() {
    let began = tokio::time::Instant::now();
    let hanging = Script::new([data("{\"error\":{\"type\":\"over"), Step::Hang]);
    let failure = call(response(529, "application/json", hanging)).await.unwrap_err();
    assert_eq!(failure.reason(), Reason::Overloaded);
    assert_eq!(began.elapsed(), Duration::from_secs(5));

    let broken = Script::new([Step::Fail("reset".into())]);
    let failure = call(response(401, "application/json", broken)).await.unwrap_err();
    assert_eq!((failure.reason(), failure.evidence()), (Reason::Auth, "status:401"));
}

#[tokio::test]
async fn an_error_object_in_a_success_is_found_before_the_answer_is_handed_out() {
    let text = r#"{"error":{"message":"Overloaded","type":"overloaded_error"}}"#;
    for cut in [0, 5, text.len() - 1] {
        let body = Script::new([data(&text[..cut]), data(&text[cut..])]);
        let failure =
            call(response(200, "application/json; charset=utf-8", body)).await.unwrap_err();
        assert_eq!(failure.reason(), Reason::Overloaded);
        assert_eq!(failure.status(), Some(StatusCode::OK));
    }
    let page = Script::new([data("<!DOCTYPE html><html><title>Sign in</title></html>")]);
    let failure = call(response(200, "text/html", page)).await.unwrap_err();
    assert_eq!((failure.reason(), failure.retry()), (Reason::Unknown, Retry::No));
}

#[tokio::test]
async fn good_answers_keep_every_byte_and_their_size() {
    let text = r#"{"id":"1","choices":[{"message":{"content":"an \"error\": null"},"finish_reason":"stop"}]}"#;
    for cut in [0, 9, text.len()] {
        let mut body = Script::new([data(&text[..cut]), data(&text[cut..])]);
        body.size = None;
        let response = call(response(200, "application/json", body)).await.unwrap();
        assert_eq!(
            response.body().size_hint().lower(),
            text.len() as u64,
            "what was read ahead counts"
        );
        assert!(!response.body().is_end_stream());
        let (got, end) = drain(response.into_body()).await;
        assert_eq!(got, text);
        assert!(end.is_none());
    }
    let truncated = r#"{"choices":[{"message":{"content":"half"},"finish_reason":"length"}]}"#;
    let body = Script::new([data(truncated)]);
    let (got, end) =
        drain(call(response(200, "application/json", body)).await.unwrap().into_body()).await;
    assert_eq!(got, truncated, "a cut-off answer is an answer");
    assert!(end.is_none());
}

#[tokio::test]
async fn long_answers_are_not_held_back() {
    let mut big = Script::new([data(vec![b'['; 70_000]), Step::Hang]);
    big.size = Some(10_000_000);
    let polled = big.polled.clone();
    call(response(200, "application/json", big)).await.unwrap();
    assert_eq!(polled.load(Ordering::Relaxed), 0, "known to be long");

    let unknown = Script::new([data(vec![b'['; 70_000]), Step::Hang]);
    call(response(200, "application/json", unknown)).await.unwrap();
}

#[tokio::test]
async fn a_stream_in_an_array_is_not_held_back() {
    let body = Script::new([data("[{\"candidates\":[]}"), Step::Hang]);
    let answer = call(response(200, "application/json", body)).await.unwrap();
    let mut body = answer.into_body();
    assert_eq!(body.frame().await.unwrap().unwrap().into_data().unwrap(), "[{\"candidates\":[]}");
}

#[tokio::test]
async fn an_error_event_that_is_no_json_is_one_too() {
    let body = Script::new([data("event: error\ndata: it broke\n\n")]);
    let answer = call(response(200, "text/event-stream", body)).await.unwrap();
    let failure = drain(answer.into_body()).await.1.unwrap();
    assert_eq!((failure.reason(), failure.message()), (Reason::Unknown, "it broke"));
}

#[tokio::test]
async fn sizes_and_trailers_are_kept() {
    let mut trailers = HeaderMap::new();
    trailers.insert("x-sum", HeaderValue::from_static("7"));
    let mut body = Script::new([data("abc"), Step::Trailers(trailers.clone())]);
    body.size = Some(3);
    let response = call(response(200, "application/octet-stream", body)).await.unwrap();
    assert_eq!(response.body().size_hint().exact(), Some(3));
    let collected = response.into_body().collect().await.unwrap();
    assert_eq!(collected.trailers(), Some(&trailers));
    assert_eq!(collected.to_bytes(), "abc");

    // The same when it was read ahead.
    let body = Script::new([data("{\"data\":1}"), Step::Trailers(trailers.clone())]);
    let response = call(crate::response(200, "application/json", body)).await.unwrap();
    assert_eq!(response.into_body().collect().await.unwrap().trailers(), Some(&trailers));
}

#[tokio::test]
async fn an_error_event_is_handed_on_and_then_ends_the_body() {
    let first = "data: {\"choices\":[{\"delta\":{\"content\":\"hel\"}}]}\n\n";
    let error = "data: {\"error\":{\"message\":\"x\",\"code\":\"server_error\"}}\n\n";
    let body = Script::new([data(first), data(error), data("data: more\n\n")]);
    let answer = call(response(200, "text/event-stream", body)).await.unwrap();
    let (text, end) = drain(answer.into_body()).await;
    let failure = end.unwrap();
    assert_eq!(text, format!("{first}{error}"), "the bytes are handed on");
    assert_eq!(failure.reason(), Reason::ServerError);
    assert!(failure.is_delivered());
    assert_eq!(failure.target().unwrap().provider(), "openai");
}

#[tokio::test]
async fn an_error_between_the_events_ends_the_body() {
    let first = "data: {\"choices\":[{\"delta\":{\"content\":\"hel\"}}]}\n\n";
    let error = "{\"error\":{\"message\":\"x\",\"code\":\"server_is_overloaded\"}}";
    for (kind, first) in
        [("text/event-stream", first), ("application/x-ndjson", "{\"done\":false}\n")]
    {
        let body = Script::new([data(first), data(error)]);
        let answer = call(response(200, kind, body)).await.unwrap();
        let (text, end) = drain(answer.into_body()).await;
        assert_eq!(text, format!("{first}{error}"), "the bytes are handed on");
        let failure = end.unwrap();
        assert_eq!(
            (failure.reason(), failure.evidence()),
            (Reason::Overloaded, "code:server_is_overloaded")
        );
        assert!(failure.is_delivered());
    }
}

#[tokio::test]
async fn an_error_envelope_in_a_success_is_found() {
    for (text, reason) in [
        (r#"{"errors":[{"code":"insufficient_quota"}]}"#, Reason::Billing),
        (
            r#"{"Response":{"Error":{"Code":"RequestLimitExceeded","Message":"x"}}}"#,
            Reason::RateLimit,
        ),
        (r#"{"error":"the server is overloaded"}"#, Reason::Overloaded),
    ] {
        let body = Script::new([data(text)]);
        let failure = call(response(200, "application/json", body)).await.unwrap_err();
        assert_eq!(failure.reason(), reason, "{text}");
    }
}

#[tokio::test]
async fn a_stream_without_its_terminal_event_ends_in_a_failure() {
    let start = "event: message_start\ndata: {\"type\":\"message_start\"}\n\n";
    let end = "event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n";
    let cut = call(response(200, "text/event-stream", Script::new([data(start)]))).await.unwrap();
    assert!(!cut.body().is_end_stream());
    let (text, failure) = drain(cut.into_body()).await;
    assert_eq!(text, start);
    assert_eq!(failure.unwrap().evidence(), "no terminal event");

    let body = Script::new([data(start), data(end)]);
    let whole = call(response(200, "text/event-stream", body)).await.unwrap();
    assert!(drain(whole.into_body()).await.1.is_none());

    let body = Script::new([data("data: a clock that ticks\n\n")]);
    let other = call(response(200, "text/event-stream", body)).await.unwrap();
    assert!(drain(other.into_body()).await.1.is_none(), "not one of ours");
}

#[tokio::test]
async fn a_body_that_breaks_is_judged_by_its_error() {
    let reset = std::io::Error::from(std::io::ErrorKind::ConnectionReset);
    let body = Script::new([data("data: {\"choices\":[]}\n\n"), Step::Fail(reset.into())]);
    let answer = call(response(200, "text/event-stream", body)).await.unwrap();
    let failure = drain(answer.into_body()).await.1.unwrap();
    assert_eq!((failure.reason(), failure.evidence()), (Reason::Network, "transport:reset"));
    assert!(failure.is_delivered());

    let reset = std::io::Error::from(std::io::ErrorKind::ConnectionReset);
    let body = Script::new([Step::Fail(reset.into())]);
    let failure = call(response(200, "application/json", body)).await.unwrap_err();
    assert_eq!(failure.reason(), Reason::Network, "before the answer was handed out");
}

#[tokio::test]
async fn other_statuses() {
    for status in [304, 101] {
        let answer = call(response(status, "text/plain", Script::new([data("x")]))).await.unwrap();
        assert_eq!(answer.status().as_u16(), status);
    }
    let mut moved = response(302, "text/html", Script::new([]));
    moved.headers_mut().insert("location", HeaderValue::from_static("https://login.example"));
    let failure = call(moved).await.unwrap_err();
    assert_eq!((failure.reason(), failure.evidence()), (Reason::Unknown, "status:302"));
    assert!(failure.message().contains("https://login.example"), "{}", failure.message());
}

#[tokio::test]
async fn compressed_bodies_are_judged_by_their_status() {
    let mut packed = response(503, "application/json", Script::new([data("insufficient_quota")]));
    packed.headers_mut().insert("content-encoding", HeaderValue::from_static("gzip"));
    let failure = call(packed).await.unwrap_err();
    assert_eq!((failure.reason(), failure.evidence()), (Reason::Overloaded, "status:503"));
}

#[tokio::test]
async fn errors_of_the_connection() {
    let service = ClassifyLayer::llm_http().layer(service_fn(|_: Request<()>| async {
        Err::<Response<Full<Bytes>>, BoxError>(
            std::io::Error::from(std::io::ErrorKind::ConnectionRefused).into(),
        )
    }));
    let failure = service.oneshot(Request::new(())).await.unwrap_err();
    assert_eq!((failure.reason(), failure.evidence()), (Reason::Network, "transport:connect"));
    assert_eq!(failure.retry(), Retry::Yes);

    // A number of Windows that the standard library has no kind for.
    let service = ClassifyLayer::llm_http().layer(service_fn(|_: Request<()>| async {
        Err::<Response<Full<Bytes>>, BoxError>(std::io::Error::from_raw_os_error(11_001).into())
    }));
    let failure = service.oneshot(Request::new(())).await.unwrap_err();
    assert_eq!((failure.reason(), failure.evidence()), (Reason::Network, "transport:dns"));
}

#[tokio::test(start_paused = true)]
async fn dropping_the_future_drops_the_call_and_its_body() {
    let held = Arc::new(());
    let guard = held.clone();
    let mut service = ClassifyLayer::llm_http().layer(service_fn(move |_: Request<()>| {
        let guard = guard.clone();
        async move {
            let _guard = guard;
            std::future::pending::<Result<Response<Full<Bytes>>, BoxError>>().await
        }
    }));
    let mut future = task::spawn(service.ready().await.unwrap().call(Request::new(())));
    assert_pending!(future.poll());
    assert_eq!(Arc::strong_count(&held), 3, "the service's and the call's");
    drop(future);
    assert_eq!(Arc::strong_count(&held), 2, "the service's alone");

    let body = Script::new([Step::Hang]);
    let polled = body.polled.clone();
    let mut future = task::spawn(call(response(500, "text/plain", body)));
    assert_pending!(future.poll());
    drop(future);
    assert_eq!(Arc::strong_count(&polled), 1, "the body is gone");
}

#[tokio::test(start_paused = true)]
async fn readiness_and_errors_are_the_inner_services() {
    let (inner, mut handle) = tower_test::mock::pair::<Request<()>, Response<Full<Bytes>>>();
    let mut service = task::spawn(ClassifyLayer::llm_http().layer(inner));
    handle.allow(0);
    assert_pending!(service.enter(|cx, mut service| service.poll_ready(cx)));
    handle.allow(1);
    assert_ready!(service.enter(|cx, mut service| service.poll_ready(cx))).unwrap();
    let mut future = task::spawn(service.call(Request::new(())));
    assert_pending!(future.poll());
    handle.next_request().await.unwrap().1.send_error("connection reset by peer");
    assert_eq!(assert_ready_err!(future.poll()).reason(), Reason::Network);
}

#[test]
fn a_success_allocates_nothing() {
    let counted = allocation_counter::measure(|| drop(std::hint::black_box(Box::new(1))));
    assert_eq!(counted.count_total, 1, "allocations are counted at all");

    let json = Bytes::from_static(
        br#"{"choices":[{"message":{"content":"hello"},"finish_reason":"stop"}],"usage":{"prompt_tokens":3}}"#,
    );
    let events = Bytes::from_static(
        b"data: {\"choices\":[{\"delta\":{\"content\":\"hi\"},\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n",
    );
    for (kind, bytes) in [("application/json", json), ("text/event-stream", events)] {
        let mut service = ClassifyLayer::llm_http().layer(service_fn(
            |request: Request<Response<Full<Bytes>>>| {
                std::future::ready(Ok::<_, Infallible>(request.into_body()))
            },
        ));
        let mut cx = Context::from_waker(std::task::Waker::noop());
        let inner = Response::builder().header("content-type", kind).body(Full::new(bytes.clone()));
        let mut request = Some(Request::new(inner.unwrap()));
        let info = allocation_counter::measure(|| {
            let mut future = std::pin::pin!(service.call(request.take().unwrap()));
            let Poll::Ready(Ok(response)) = future.as_mut().poll(&mut cx) else {
                panic!("ready at once")
            };
            let mut body = response.into_body();
            let Poll::Ready(Some(Ok(frame))) = Pin::new(&mut body).poll_frame(&mut cx) else {
                panic!("one frame")
            };
            assert_eq!(frame.data_ref(), Some(&bytes));
            assert!(matches!(Pin::new(&mut body).poll_frame(&mut cx), Poll::Ready(None)));
        });
        assert_eq!(info.count_total, 0, "{kind}");
    }
}
