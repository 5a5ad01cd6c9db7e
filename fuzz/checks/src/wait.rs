//! Retry delays: lines of headers, `||`, a body.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use http::{HeaderMap, StatusCode};
use steadfast_classify::{Classifier, Evidence};
use steadfast_client::dialect::codec;
use steadfast_core::{Dialect, RecoveryTable};

use crate::{
    error_body::{headers, sane},
    input::Input,
};

fn now() -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(1_795_269_489)
}

fn wait(headers: &HeaderMap, body: &[u8]) -> Option<Duration> {
    let evidence = Evidence::new(body)
        .with_status(StatusCode::TOO_MANY_REQUESTS)
        .with_headers(headers)
        .with_now(now());
    let verdict = Classifier::default().judge(&evidence).expect("a 429 is an error");
    sane(&verdict, &RecoveryTable::default()).retry_after()
}

/// * A wait is bounded, and can be added to any time.
/// * The headers that a caller gets are read back as that wait or a little more: never less.
pub fn run(data: &[u8]) {
    let mut input = Input(data);
    let headers = headers(input.split(b"||"));
    let body = input.rest();
    let evidence = Evidence::new(&body)
        .with_status(StatusCode::TOO_MANY_REQUESTS)
        .with_headers(&headers)
        .with_now(now());
    let verdict = Classifier::default().judge(&evidence).expect("a 429 is an error");
    let failure = sane(&verdict, &RecoveryTable::default());
    let Some(wait) = failure.retry_after() else { return };
    assert!(now().checked_add(wait).is_some());

    for dialect in Dialect::ALL {
        let (_, headers_sent, _) = codec(dialect).encode_error(&failure, None);
        let seconds =
            headers_sent["retry-after"].to_str().expect("digits").parse().expect("a number");
        let seconds = Duration::from_secs(seconds);
        assert!(seconds >= wait && seconds < wait + Duration::from_secs(1), "{wait:?} {seconds:?}");
        let read = self::wait(&headers_sent, b"").unwrap_or_default();
        // It is read as `f64` seconds, which at ten years are exact to about 60 ns.
        let close =
            read <= wait + Duration::from_secs(1) && read + Duration::from_micros(1) >= wait;
        assert!(close, "{wait:?} was sent as {headers_sent:?} and read as {read:?}");
    }
}
