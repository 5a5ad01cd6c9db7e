//! A provider's refusal: `status(3 digits) provider|headers||body`, one header a line.

use std::time::{Duration, UNIX_EPOCH};

use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use steadfast_classify::{Classifier, Evidence, Verdict};
use steadfast_core::{Failure, RecoveryTable, Retry, Upstream};

use crate::{content::check_failure, input::Input};

/// `name: value`, one a line; other lines are ignored.
pub(crate) fn headers(text: &[u8]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for line in text.split(|byte| *byte == b'\n').take(64) {
        let Some(colon) = line.iter().position(|byte| *byte == b':') else { continue };
        let name = HeaderName::from_bytes(line[..colon].trim_ascii());
        let value = HeaderValue::from_bytes(line[colon + 1..].trim_ascii());
        if let (Ok(name), Ok(value)) = (name, value) {
            headers.append(name, value);
        }
    }
    headers
}

/// Asserts what holds for every verdict.
pub(crate) fn sane(verdict: &Verdict, table: &RecoveryTable) -> Failure {
    assert!(!verdict.evidence.is_empty());
    assert!(!verdict.reason.is_refusal(), "not ours to say");
    let failure = verdict.clone().into_failure(table);
    if let Some(wait) = verdict.retry_after {
        assert!(wait <= Duration::from_secs(11 * 365 * 86_400), "{wait:?} is no wait");
        if wait > Duration::from_secs(60) {
            assert_ne!(failure.retry(), Retry::Yes, "a long wait is no retry in place");
        }
    }
    failure
}

/// * A verdict or none, the same each time, of bounded size.
/// * Every failure made of it can be written in each dialect.
/// * The body beyond its first 64 KiB changes nothing.
pub fn run(data: &[u8]) {
    let mut input = Input(data);
    let digits = [input.byte(), input.byte(), input.byte()];
    let code = digits.iter().fold(0_u16, |code, digit| code * 10 + u16::from(digit % 10));
    let provider = input.split(b"|");
    let headers = headers(input.split(b"||"));
    let body = input.rest();
    let provider = String::from_utf8_lossy(provider);

    let mut evidence = Evidence::new(&body)
        .with_headers(&headers)
        .with_provider(&provider)
        .with_now(UNIX_EPOCH + Duration::from_secs(1_795_269_489));
    evidence.status = StatusCode::from_u16(code).ok();
    let classifier = Classifier::default();
    let verdict = classifier.judge(&evidence);
    assert_eq!(
        verdict.as_ref().map(|verdict| format!("{verdict:?}")),
        classifier.judge(&evidence).map(|verdict| format!("{verdict:?}")),
        "the same each time"
    );
    if let Some(verdict) = &verdict {
        let _ = sane(verdict, &RecoveryTable::default());
    }

    // As a client reports it.
    if let Some(status) = evidence.status.filter(|status| status.as_u16() >= 400) {
        let upstream = Upstream::response(status, headers.clone(), body.clone());
        let judged = classifier.failure(Failure::from_upstream(upstream), None);
        check_failure(&judged);
        assert_eq!(judged.status(), Some(status));
    }
}
