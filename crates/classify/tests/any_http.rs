//! The HTTP layer for any service, and what a user's own rules find fine.

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

mod script;

use std::{io, sync::atomic::Ordering, time::Duration};

use bytes::Bytes;
use http::{HeaderValue, Request, Response};
use http_body_util::{BodyExt, Full};
use steadfast_classify::{ClassifyLayer, Evidence, Opinion};
use steadfast_core::{Failover, Failure, FaultSide, Reason, Retry};
use tower::{BoxError, Layer, ServiceExt, service_fn};

use script::{Script, Step, call, data, drain, response};

/// Finds every body fine that contains `mark`.
fn fine_with(mark: &'static str) -> impl Fn(&Evidence<'_>) -> Opinion + Send + Sync + 'static {
    move |evidence: &Evidence<'_>| {
        if String::from_utf8_lossy(evidence.body).contains(mark) {
            Opinion::Fine
        } else {
            Opinion::None
        }
    }
}

async fn refusal(response: Response<Script>) -> Failure {
    call(&ClassifyLayer::http(), response).await.unwrap_err()
}

#[tokio::test]
async fn a_2xx_is_fine_whatever_its_body() {
    for (status, kind, text) in [
        (200, "application/json", r#"{"error":{"message":"x","code":"rate_limit_exceeded"}}"#),
        (200, "application/json", r#"{"error":"none of these"}"#),
        (200, "application/json", r#"{"choices":[{"message":{},"finish_reason":"stop"}]}"#),
        (201, "text/html; charset=utf-8", "<!DOCTYPE html><html><title>Sign in</title></html>"),
        (200, "text/event-stream", "event: error\ndata: {\"error\":\"x\"}\n\ndata: more\n\n"),
        (200, "text/event-stream", "data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\n"),
        (200, "application/x-ndjson", "{\"error\":\"x\"}\n{\"error\":\"y\"}\n"),
        (206, "text/plain", "aborted: loop detected"),
        (204, "text/plain", ""),
    ] {
        let body = Script::new([data(text)]);
        let polled = body.polled.clone();
        let answer = call(&ClassifyLayer::http(), response(status, kind, body)).await.unwrap();
        assert_eq!(polled.load(Ordering::Relaxed), 0, "not read before it is handed out: {text}");
        assert_eq!(answer.status(), status);
        let (got, end) = drain(answer.into_body()).await;
        assert_eq!(got, text);
        assert!(end.is_none(), "{text}: {end:?}");
    }
}

#[tokio::test]
async fn redirects_are_answers() {
    for status in [101, 301, 302, 304, 307, 308] {
        let answer = response(status, "text/html", Script::new([data("moved")]));
        let answer = call(&ClassifyLayer::http(), answer).await.unwrap();
        assert_eq!(answer.status(), status);
    }
}

#[tokio::test]
async fn an_error_is_what_its_status_says_and_its_body_does_not_matter() {
    let (caller, provider) = (FaultSide::Caller, FaultSide::Provider);
    for (status, text, reason, retry, fault) in [
        (400, "prompt is too long: 300000 tokens", Reason::Format, Retry::No, caller),
        (401, "", Reason::Auth, Retry::No, provider),
        (402, "", Reason::Billing, Retry::No, provider),
        (403, "insufficient_quota", Reason::Auth, Retry::No, provider),
        (404, r#"{"error":{"code":"model_not_found"}}"#, Reason::Format, Retry::No, caller),
        (408, "", Reason::Timeout, Retry::Yes, provider),
        (409, "", Reason::ServerError, Retry::Yes, provider),
        (410, "", Reason::Format, Retry::No, caller),
        (412, "", Reason::Format, Retry::No, caller),
        (418, "", Reason::Format, Retry::No, caller),
        (422, "rate limit reached", Reason::Format, Retry::No, caller),
        (429, "insufficient_quota", Reason::RateLimit, Retry::Yes, provider),
        (500, "the model does not exist", Reason::ServerError, Retry::Yes, provider),
        (502, "loop detected", Reason::ServerError, Retry::Yes, provider),
        (503, "", Reason::Overloaded, Retry::Yes, provider),
        (504, "", Reason::Timeout, Retry::Yes, provider),
        (509, "", Reason::ServerError, Retry::Yes, provider),
        (599, "", Reason::ServerError, Retry::Yes, provider),
    ] {
        let failure = refusal(response(status, "text/plain", Script::new([data(text)]))).await;
        assert_eq!(
            (failure.reason(), failure.retry(), failure.fault()),
            (reason, retry, fault),
            "{status}"
        );
        assert_eq!(failure.evidence(), format!("status:{status}"));
        assert_eq!(failure.status().unwrap().as_u16(), status);
        assert_eq!(failure.target().unwrap().provider(), "openai");
        assert_eq!(&*failure.upstream().unwrap().body, text.as_bytes(), "kept for the operator");
        assert!(failure.message().starts_with(text), "{}", failure.message());
    }
}

#[tokio::test]
async fn waits_are_read_from_the_headers() {
    for (status, name, value, wait, retry) in [
        (429, "retry-after", "7", Duration::from_secs(7), Retry::Yes),
        (503, "retry-after", "1.5", Duration::from_millis(1_500), Retry::Yes),
        (503, "retry-after-ms", "250", Duration::from_millis(250), Retry::Yes),
        (429, "retry-after", "3600", Duration::from_secs(3_600), Retry::No),
    ] {
        let mut answer = response(status, "text/plain", Script::new([]));
        answer.headers_mut().insert(name, HeaderValue::from_static(value));
        let failure = refusal(answer).await;
        assert_eq!(
            (failure.retry_after(), failure.retry()),
            (Some(wait), retry),
            "{name}: {value}"
        );
        assert_eq!(failure.failover(), Failover::NextTarget);
    }
    let body = Script::new([data("try again in 20s")]);
    let failure = refusal(response(429, "text/plain", body)).await;
    assert_eq!(failure.retry_after(), None, "a body states no wait");
}

#[tokio::test]
async fn errors_of_the_transport_are_judged_by_their_types() {
    let service = ClassifyLayer::http().layer(service_fn(|_: Request<()>| async {
        let refused = io::Error::from(io::ErrorKind::ConnectionRefused);
        Err::<Response<Full<Bytes>>, BoxError>(refused.into())
    }));
    let failure = service.oneshot(Request::new(())).await.unwrap_err();
    assert_eq!((failure.reason(), failure.evidence()), (Reason::Network, "transport:connect"));

    let reset = io::Error::from(io::ErrorKind::ConnectionReset);
    let body = Script::new([data("half"), Step::Fail(reset.into())]);
    let answer =
        call(&ClassifyLayer::http(), response(200, "application/json", body)).await.unwrap();
    let (text, end) = drain(answer.into_body()).await;
    let failure = end.unwrap();
    assert_eq!((&*text, failure.reason()), ("half", Reason::Network));
    assert!(failure.is_delivered());
}

#[tokio::test]
async fn own_rules_may_refuse_a_2xx() {
    let layer = ClassifyLayer::http().with_override(|evidence: &Evidence<'_>| {
        evidence.body.starts_with(b"{\"state\":\"busy\"").then_some(Reason::Overloaded)
    });
    for (text, reason) in [
        (r#"{"state":"busy"}"#, Some(Reason::Overloaded)),
        (r#"{"state":"done","error":"none"}"#, None),
    ] {
        let body = Script::new([data(text)]);
        let answer = call(&layer, response(200, "application/json", body)).await;
        assert_eq!(answer.err().map(|failure| failure.reason()), reason, "{text}");
    }
}

#[tokio::test]
async fn an_error_that_own_rules_find_fine_is_handed_on_whole() {
    for layer in [ClassifyLayer::http(), ClassifyLayer::llm_http()] {
        let layer = layer.with_override(fine_with("nobody of that name"));
        let other = response(404, "text/plain", Script::new([data("no such page")]));
        assert!(call(&layer, other).await.is_err(), "the default is kept");

        // More than is read of an error.
        let kib = || data(vec![b'x'; 1_024]);
        let steps = [data("nobody of that name")].into_iter().chain((0..300).map(|_| kib()));
        let answer = response(404, "text/plain", Script::new(steps));
        let answer = call(&layer, answer).await.unwrap();
        assert_eq!(answer.status(), 404);
        let (text, end) = drain(answer.into_body()).await;
        assert_eq!(text.len(), 19 + 300 * 1_024);
        assert!(end.is_none());
    }
}

#[tokio::test(start_paused = true)]
async fn a_fine_error_that_hangs_or_breaks_is_handed_on_as_it_is() {
    let layer = ClassifyLayer::http().with_override(fine_with("nobody"));
    let began = tokio::time::Instant::now();
    let hanging = response(404, "text/plain", Script::new([data("nobody"), Step::Hang]));
    let answer = call(&layer, hanging).await.unwrap();
    assert_eq!(began.elapsed(), Duration::from_secs(5), "no longer than for an error");
    let mut body = answer.into_body();
    assert_eq!(body.frame().await.unwrap().unwrap().into_data().unwrap(), "nobody");

    let reset = io::Error::from(io::ErrorKind::ConnectionReset);
    let broken = Script::new([data("nobody"), Step::Fail(reset.into())]);
    let answer = call(&layer, response(404, "text/plain", broken)).await.unwrap();
    let (text, end) = drain(answer.into_body()).await;
    let failure = end.unwrap();
    assert_eq!((&*text, failure.reason()), ("nobody", Reason::Network));
    assert!(failure.is_delivered());
}

#[tokio::test]
async fn a_success_that_own_rules_find_fine_is_one_at_an_llm_api_too() {
    let layer = ClassifyLayer::llm_http().with_override(fine_with("sign in"));
    for (kind, text) in [
        ("application/json", r#"{"error":{"message":"sign in","type":"overloaded_error"}}"#),
        ("text/html", "<!DOCTYPE html><html><title>sign in</title></html>"),
    ] {
        let refused = response(200, kind, Script::new([data(text)]));
        assert!(call(&ClassifyLayer::llm_http(), refused).await.is_err(), "{text}");
        let fine = response(200, kind, Script::new([data(text)]));
        let (got, end) = drain(call(&layer, fine).await.unwrap().into_body()).await;
        assert_eq!(got, text);
        assert!(end.is_none());
    }
}

#[tokio::test]
async fn a_stream_goes_on_behind_an_error_event_that_own_rules_find_fine() {
    let note = "data: {\"error\":{\"message\":\"just a note\"}}\n\n";
    let text = "data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\n";
    let error = "data: {\"error\":{\"message\":\"x\",\"code\":\"server_is_overloaded\"}}\n";
    let layer = || ClassifyLayer::llm_http().with_override(fine_with("just a note"));
    for size in [1, 7, 1_000] {
        let chunks = |text: &str| {
            let chunks: Vec<_> = text.as_bytes().chunks(size).map(|c| data(c.to_vec())).collect();
            response(200, "text/event-stream", Script::new(chunks))
        };
        let whole = format!("{note}{text}{note}data: [DONE]\n\n");
        let answer = call(&layer(), chunks(&whole)).await.unwrap();
        let (got, end) = drain(answer.into_body()).await;
        assert_eq!(got, whole, "{size}");
        assert!(end.is_none(), "{size}: {end:?}");

        let failed = format!("{note}{text}{error}");
        let (got, end) = drain(call(&layer(), chunks(&failed)).await.unwrap().into_body()).await;
        assert_eq!(got, failed, "{size}");
        assert_eq!(end.unwrap().reason(), Reason::Overloaded, "{size}");
    }
    // An event without a line end, at the end of the stream.
    let last = "data: {\"error\":{\"message\":\"just a note\"}}";
    let answer = response(200, "text/event-stream", Script::new([data(last)]));
    let (got, end) = drain(call(&layer(), answer).await.unwrap().into_body()).await;
    assert_eq!(got, last);
    assert!(end.is_none(), "{end:?}");
}
