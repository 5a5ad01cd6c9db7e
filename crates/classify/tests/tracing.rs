//! What a subscriber sees.

#![allow(clippy::expect_used, clippy::unwrap_used, reason = "helpers of tests are tests")]

use std::{io, sync::Arc};

use http::{HeaderMap, StatusCode};
use parking_lot::Mutex;
use steadfast_classify::Classifier;
use steadfast_core::{Failure, Reason, Target, Upstream};

#[derive(Clone, Default)]
struct Sink(Arc<Mutex<Vec<u8>>>);

impl io::Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().extend_from_slice(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn one_event_a_judgement_and_none_for_what_was_judged_before() {
    let sink = Sink::default();
    let writer = sink.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(tracing::Level::DEBUG)
        .with_ansi(false)
        .with_writer(move || writer.clone())
        .finish();
    tracing::subscriber::with_default(subscriber, || {
        let classifier = Classifier::new();
        let upstream = Upstream::response(
            StatusCode::UNAUTHORIZED,
            HeaderMap::new(),
            r#"{"error":{"message":"bad key sk-aaaaaaaaaaaaaaaaaaaaaaaa"}}"#,
        );
        let target = Target::new("openai");
        let judged = classifier.failure(Failure::from_upstream(upstream), Some(&target));
        assert_eq!(judged.reason(), Reason::Auth);
        let ours = classifier.failure(Failure::new(Reason::Timeout, "stalled"), Some(&target));
        assert_eq!(ours.reason(), Reason::Timeout);
    });
    let text = String::from_utf8(sink.0.lock().clone()).unwrap();
    assert_eq!(text.lines().count(), 1, "{text}");
    for part in [
        "steadfast::classify",
        "reason=\"auth\"",
        "evidence=\"status:401\"",
        "status=401",
        "target=openai",
    ] {
        assert!(text.contains(part), "{part} is missing in {text}");
    }
    assert!(!text.contains("sk-aaaa"), "no secret: {text}");
}
