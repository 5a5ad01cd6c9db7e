//! What is known of targets and sessions, shared by layers of different settings.

mod support;

use std::num::NonZeroU32;

use steadfast_core::{Failure, Reason};
use steadfast_failover::{CooldownFailoverLayer, Status, WhenExhausted};
use support::*;
use tokio::time::Instant;

#[tokio::test(start_paused = true)]
async fn what_cools_for_one_layer_cools_for_the_other() {
    let providers = Providers::new();
    let base = abc().at_once();
    let other = CooldownFailoverLayer::new(chain(["a", "d"]))
        .with_when_exhausted(WhenExhausted::Fail)
        .at_once()
        .sharing(&base.handle());
    providers.set("a", limited(90));
    for _ in 0..2 {
        send(&base, &providers, PlainRequest::new()).await.unwrap();
    }
    providers.calls();
    assert_eq!(send(&other, &providers, PlainRequest::new()).await.unwrap(), "d");
    assert_eq!(providers.calls(), ["d"], "it is not asked again");
    let shown = other.handle().snapshot();
    assert!(shown.get(&target("a")).unwrap().cooling_for(Instant::now()) > Some(secs(80)));

    // Each goes by its own rules of a call.
    providers.set("d", fail(Reason::ServerError));
    let failure = send(&other, &providers, PlainRequest::new()).await.unwrap_err();
    assert_eq!((failure.attempts(), providers.calls().len()), (1, 1), "it does not go round");
}

#[tokio::test(start_paused = true)]
async fn targets_go_by_the_policy_that_shared_them_last_and_cool_as_they_did() {
    let providers = Providers::new();
    let old = abc().at_once();
    providers.set("a", limited(90));
    for _ in 0..2 {
        send(&old, &providers, PlainRequest::new()).await.unwrap();
    }
    providers.set("b", fail(Reason::ServerError));
    send(&old, &providers, PlainRequest::new()).await.unwrap();
    let status = |layer: &CooldownFailoverLayer<_, _>, name| {
        let snapshot = layer.handle().snapshot();
        let health = snapshot.get(&target(name)).unwrap();
        (health.status, health.cooling_for(Instant::now()))
    };
    assert_eq!(status(&old, "b"), (Status::Degraded, None), "one failure is an accident");
    let new = abc()
        .tune(|policy| (policy.rest_after, policy.first_rest) = (1, Some(secs(7))))
        .with_down_after(NonZeroU32::MIN)
        .at_once()
        .sharing(&old.handle());
    assert_eq!(status(&new, "a").1, Some(secs(90)), "it cools as it did");
    assert_eq!(status(&new, "b").0, Status::Down, "one failure counts now");
    // The calls of the old layer go by it too.
    assert_eq!(send(&old, &providers, PlainRequest::new()).await.unwrap(), "c");
    assert_eq!(status(&old, "b").1, Some(secs(7)));
}

#[tokio::test(start_paused = true)]
async fn a_session_stays_where_it_is() {
    let providers = Providers::new();
    let old = abc().at_once();
    providers.set("a", fail(Reason::ServerError));
    assert_eq!(send(&old, &providers, PlainRequest::session("s")).await.unwrap(), "b");
    providers.repair("a");
    let new = abc().at_once().sharing(&old.handle());
    assert_eq!(send(&new, &providers, PlainRequest::session("s")).await.unwrap(), "b");
    assert_eq!(send(&new, &providers, PlainRequest::session("t")).await.unwrap(), "a");
    let fresh = abc().at_once();
    assert_eq!(send(&fresh, &providers, PlainRequest::session("s")).await.unwrap(), "a");
}

#[tokio::test(start_paused = true)]
async fn what_is_configured_no_more_is_dropped_on_request() {
    let providers = Providers::new();
    let layer = abc().at_once();
    for name in ["a", "b"] {
        providers.set(name, fail_with(|| Failure::new(Reason::Auth, "no such key")));
    }
    send(&layer, &providers, PlainRequest::new()).await.unwrap();
    layer.handle().retain(|target| target.provider() != "a");
    let known: Vec<_> =
        layer.handle().snapshot().targets().iter().map(|it| it.target.to_string()).collect();
    assert!(known.iter().any(|name| name == "b") && !known.iter().any(|name| name == "a"));
}

#[tokio::test(start_paused = true)]
async fn replacing_a_chain_keeps_what_only_others_use() {
    let providers = Providers::new();
    let base = abc().at_once();
    let other = CooldownFailoverLayer::new(chain(["d", "e"])).at_once().sharing(&base.handle());
    providers.set("d", limited(90));
    for _ in 0..2 {
        send(&other, &providers, PlainRequest::new()).await.unwrap();
    }
    base.handle().replace_chain(chain(["a", "b"]));
    providers.calls();
    assert_eq!(send(&other, &providers, PlainRequest::new()).await.unwrap(), "e");
    assert_eq!(providers.calls(), ["e"]);
}
