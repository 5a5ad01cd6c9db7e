//! Where a call would go, asked without making one.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::time::Duration;

use steadfast_chat::ChatRequest;
use steadfast_core::{Dialect, Target};
use steadfast_failover::{Chain, CooldownFailoverLayer, TargetSpec};

#[tokio::test(start_paused = true)]
async fn it_is_the_first_that_is_well_and_nothing_is_noted_for_the_question() {
    let first = TargetSpec::new("a").with_model("m", "sent").with_credential("k");
    let spare = TargetSpec::new("b").with_dialect(Dialect::Gemini);
    let other = Chain::new(["c"]).unwrap();
    let layer = CooldownFailoverLayer::new(Chain::new([first, spare]).unwrap());
    let handle = layer.with_chain("other", other).handle();
    let request = ChatRequest::user("hi").with_model("m");

    let next = handle.next_target(None, &request);
    assert_eq!(next.profile.target.to_string(), "a/sent#k");
    assert!(next.is_well);
    assert_eq!(handle.next_target(Some("other"), &request).profile.target.to_string(), "c/m");

    handle.cool(&Target::new("a"), Duration::from_secs(60));
    let next = handle.next_target(None, &request);
    assert_eq!((next.profile.target.provider(), next.is_well), ("b", true));
    assert_eq!(next.profile.dialect, Some(Dialect::Gemini));
    handle.cool(&Target::new("b"), Duration::from_secs(60));
    assert!(!handle.next_target(None, &request).is_well);

    tokio::time::advance(Duration::from_secs(61)).await;
    let before = format!("{:?}", handle.snapshot().targets());
    for _ in 0..9 {
        // The first call there is a probe, which a question does not take.
        handle.next_target(None, &request);
    }
    assert_eq!(format!("{:?}", handle.snapshot().targets()), before);
}
