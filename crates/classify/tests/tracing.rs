//! What a subscriber sees.

use http::{HeaderMap, StatusCode};
use steadfast_classify::Classifier;
use steadfast_core::{Failure, Reason, Target, Upstream};
use steadfast_testkit::CapturedEvents;

#[test]
fn one_event_a_judgement_and_none_for_what_was_judged_before() {
    let captured = CapturedEvents::default();
    let _guard = tracing::subscriber::set_default(captured.clone());
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
    // All its fields: the failure's message is none of them, and so no secret is.
    assert_eq!(
        captured.take(),
        ["steadfast::classify::classified reason=\"auth\" evidence=\"status:401\" status=401 \
          retry=No target=openai"]
    );
}
