//! Whatever bytes a network delivers: a verdict or none, never a panic, in linear time.

#![allow(clippy::expect_used, clippy::unwrap_used, reason = "helpers of tests are tests")]

use std::{sync::LazyLock, time::Duration};

use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use proptest::prelude::*;
use serde_json::Value;
use steadfast_classify::{Classifier, Evidence, TransportErrorKind};
use steadfast_core::{Failover, Reason, RecoveryTable, Retry};

fn judge(status: Option<u16>, headers: &HeaderMap, body: &[u8]) -> Option<Reason> {
    let mut evidence = Evidence::new(body).with_headers(headers).with_provider("zai");
    evidence.status = status.map(|status| StatusCode::from_u16(status).unwrap());
    let verdict = Classifier::default().judge(&evidence)?;
    // What is promised of every verdict.
    let failure = verdict.clone().into_failure(&RecoveryTable::default());
    assert!(!verdict.evidence.is_empty());
    assert!(failure.message().len() <= 1_200, "bounded");
    assert!(!verdict.reason.is_refusal(), "not ours to say");
    assert!(
        verdict.reason != Reason::Safety || status.is_none_or(|status| status < 300),
        "a provider's refusal forbids nothing"
    );
    if verdict.retry_after.is_some_and(|wait| wait > Duration::from_secs(60)) {
        assert_ne!(failure.retry(), Retry::Yes, "a long wait is no retry at the same target");
    }
    Some(verdict.reason)
}

fn statuses() -> impl Strategy<Value = Option<u16>> {
    prop_oneof![
        Just(None),
        Just(Some(200)),
        (100u16..=999).prop_map(Some),
        (400u16..=530).prop_map(Some)
    ]
}

static BODIES: LazyLock<Vec<Vec<u8>>> = LazyLock::new(|| {
    include_str!("data/errors.jsonl")
        .lines()
        .map(|line| {
            let row: Value = serde_json::from_str(line).unwrap();
            row["body"].as_str().unwrap().as_bytes().to_vec()
        })
        .collect()
});

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn any_bytes(status in statuses(), body in prop::collection::vec(any::<u8>(), 0..600)) {
        judge(status, &HeaderMap::new(), &body);
    }

    #[test]
    fn anything_like_json(
        status in statuses(),
        body in "(\\{|\\}|\\[|\\]|\"|'|\\\\|:|,|error|message|code|type|data: |429|null|\\\\u12|litellm\\.X: | |é){0,80}",
    ) {
        judge(status, &HeaderMap::new(), body.as_bytes());
    }

    #[test]
    fn real_payloads_cut_and_changed(
        status in statuses(),
        which in any::<prop::sample::Index>(),
        cut in any::<prop::sample::Index>(),
        at in any::<prop::sample::Index>(),
        byte in any::<u8>(),
    ) {
        let mut body = which.get(&BODIES).clone();
        let position = at.index(body.len());
        body[position] = byte;
        body.truncate(cut.index(body.len()) + 1);
        judge(status, &HeaderMap::new(), &body);
    }

    #[test]
    fn any_header_values(
        status in statuses(),
        name in prop::sample::select(vec![
            "retry-after", "retry-after-ms", "x-ratelimit-reset-requests", "x-should-retry",
            "anthropic-ratelimit-tokens-reset", "x-amzn-errortype", "content-encoding",
        ]),
        value in prop::collection::vec(32u8..=255, 0..30),
    ) {
        let Ok(value) = HeaderValue::from_bytes(&value) else { return Ok(()) };
        let mut headers = HeaderMap::new();
        headers.insert(HeaderName::from_static(name), value);
        judge(status, &headers, b"rate limit");
    }

    #[test]
    fn a_status_never_hides_in_digits(tokens in 400u32..600, id in "[0-9]{5,12}") {
        // Counts, ids, indexes and URLs with a status in them, under a 400.
        let body = format!(
            "{{\"error\":{{\"message\":\"messages.{tokens}: bad thing in item rs_{id}{tokens}a, see https://example.com/error-{tokens}-x\",\"type\":\"invalid_request_error\"}}}}"
        );
        prop_assert_eq!(judge(Some(400), &HeaderMap::new(), body.as_bytes()), Some(Reason::Format));
    }
}

#[test]
fn nesting_without_end() {
    for unit in ["{\"error\":", "[", "{\"message\":\"{", "[{\"error\":{", "{'a':"] {
        let deep = unit.repeat(20_000);
        for status in [None, Some(200), Some(500)] {
            judge(status, &HeaderMap::new(), deep.as_bytes());
        }
    }
    let mut nested = "{\"code\":\"insufficient_quota\"}".to_owned();
    for depth in 0..14 {
        nested = serde_json::json!({ "error": { "message": nested } }).to_string();
        let reason = judge(Some(400), &HeaderMap::new(), nested.as_bytes());
        if depth < 7 {
            assert_eq!(reason, Some(Reason::Billing), "unwrapped {depth} deep");
        }
        if nested.len() > 60_000 {
            break;
        }
    }
}

#[test]
fn large_bodies_cost_no_more_than_their_head() {
    // Not a benchmark: it would take minutes if anything were quadratic.
    for unit in ["model ", "{ ", "\\\"", "rate limit ", "error code: ", "429 ", "[{", "a: b: "] {
        let body = unit.repeat(1_024 * 1_024 / unit.len());
        judge(Some(400), &HeaderMap::new(), body.as_bytes());
        judge(Some(200), &HeaderMap::new(), body.as_bytes());
    }
}

#[test]
fn typed_transport_errors_decide_before_any_text() {
    for (transport, reason) in [
        (TransportErrorKind::Connect, Reason::Network),
        (TransportErrorKind::Dns, Reason::Network),
        (TransportErrorKind::Reset, Reason::Network),
        (TransportErrorKind::Tls, Reason::Network),
        (TransportErrorKind::Timeout, Reason::Timeout),
        (TransportErrorKind::Cancelled, Reason::Cancelled),
    ] {
        let evidence = Evidence::new(b"429 rate limit").with_transport(transport);
        assert_eq!(Classifier::default().judge(&evidence).unwrap().reason, reason);
    }
    let certificate = Evidence::new(b"").with_transport(TransportErrorKind::Certificate);
    let verdict = Classifier::default().judge(&certificate).unwrap();
    assert_eq!(verdict.retry, Some(Retry::No), "a certificate does not become valid by itself");
    for (text, retry) in [
        ("[SSL: CERTIFICATE_VERIFY_FAILED] x", Some(Retry::No)),
        ("received fatal alert: UnknownIssuer", Some(Retry::No)),
        ("received fatal alert: bad certificate status response", None),
        ("received fatal alert: InternalError", None),
    ] {
        let evidence = Evidence::new(text.as_bytes()).with_transport(TransportErrorKind::Tls);
        assert_eq!(Classifier::default().judge(&evidence).unwrap().retry, retry, "{text}");
    }
}

#[test]
fn the_providers_own_word_on_retries_is_obeyed() {
    let judge = |value: &'static str, status: u16, body: &str| {
        let mut headers = HeaderMap::new();
        headers.insert("x-should-retry", HeaderValue::from_static(value));
        let evidence = Evidence::new(body.as_bytes())
            .with_headers(&headers)
            .with_status(StatusCode::from_u16(status).unwrap());
        let verdict = Classifier::default().judge(&evidence).unwrap();
        (verdict.retry, verdict.evidence.into_owned())
    };
    assert_eq!(
        judge("false", 503, ""),
        (Some(Retry::No), "status:503, header:x-should-retry".into())
    );
    assert_eq!(judge("true", 400, "").0, Some(Retry::Yes));
    assert_eq!(judge("perhaps", 503, ""), (None, "status:503".into()));
}

#[test]
fn a_relays_own_refusal_stands_against_what_it_quotes() {
    let quoted = r#"{"error":{"message":"{\"error\":{\"message\":\"Overloaded\",\"code\":503}}"}}"#;
    for (status, reason) in [
        (401, Reason::Auth),
        (402, Reason::Billing),
        (403, Reason::Auth),
        (500, Reason::Overloaded),
        (429, Reason::Overloaded),
    ] {
        assert_eq!(
            judge(Some(status), &HeaderMap::new(), quoted.as_bytes()),
            Some(reason),
            "{status}"
        );
    }
}

#[test]
fn credit_in_use_is_a_wait_and_credit_spent_is_a_bill() {
    let table = RecoveryTable::default();
    let body = br#"{"error":{"code":402,"message":"Too much credit in flight","metadata":{"limit_source":"openrouter_in_flight_budget"}}}"#;
    let mut headers = HeaderMap::new();
    headers.insert("retry-after", HeaderValue::from_static("3"));
    let evidence =
        Evidence::new(body).with_status(StatusCode::PAYMENT_REQUIRED).with_headers(&headers);
    let verdict = Classifier::default().judge(&evidence).unwrap();
    assert_eq!((verdict.reason, verdict.retry(&table)), (Reason::RateLimit, Retry::Yes));
    assert_eq!(verdict.retry_after, Some(Duration::from_secs(3)));

    let evidence = Evidence::new(body).with_status(StatusCode::PAYMENT_REQUIRED);
    let verdict = Classifier::default().judge(&evidence).unwrap();
    assert_eq!((verdict.reason, verdict.retry(&table)), (Reason::Billing, Retry::No));
}

#[test]
fn rules_of_one_vendor_allow_another() {
    let body = br#"{"error":{"message":"function call `x` is missing a `thought_signature`"}}"#;
    let evidence = Evidence::new(body).with_status(StatusCode::BAD_REQUEST);
    let verdict = Classifier::default().judge(&evidence).unwrap();
    assert_eq!((verdict.reason, verdict.failover), (Reason::Format, Some(Failover::NextTarget)));
}

#[test]
fn a_wait_of_hours_is_kept_as_a_hint() {
    let body = "Please try again in 7m12s";
    let evidence = Evidence::new(body.as_bytes()).with_status(StatusCode::TOO_MANY_REQUESTS);
    let verdict = Classifier::default().judge(&evidence).unwrap();
    assert_eq!(verdict.retry_after, Some(Duration::from_secs(432)));
    assert_eq!(verdict.retry, Some(Retry::No));
}

#[test]
fn a_body_of_control_characters_is_reported_as_an_empty_one() {
    let upstream = steadfast_core::Upstream::response(
        StatusCode::BAD_GATEWAY,
        HeaderMap::new(),
        &b"\0\0\x01\n"[..],
    );
    let failure = steadfast_core::Failure::from_upstream(upstream);
    let judged = Classifier::default().failure(failure, None);
    assert_eq!(judged.message(), "HTTP 502 with an empty body");
}
