//! Session affinity, and foreign histories.

#![allow(clippy::unwrap_used, reason = "helpers of a test")]

mod support;

use std::sync::Arc;

use steadfast_core::{CallContext, Preference, Reason};
use steadfast_failover::{CooldownFailoverLayer, TargetSpec};
use support::*;
use tokio::time::advance;

/// The targets of the calls, and whether the history counted as foreign.
fn received(providers: &Providers) -> Vec<(String, bool)> {
    providers
        .received()
        .into_iter()
        .map(|received| (received.at, received.request.fitted.unwrap().foreign_history))
        .collect()
}

#[tokio::test(start_paused = true)]
async fn a_session_keeps_its_target_until_its_cache_expires() {
    let providers = Providers::new();
    let layer = abc().at_once();
    send(&layer, &providers, PlainRequest::session("s")).await.unwrap();
    providers.set("a", fail(Reason::Network));
    assert_eq!(send(&layer, &providers, PlainRequest::session("s")).await.unwrap(), "b");
    providers.repair("a");
    advance(secs(31)).await;
    // `a` is used again by other calls; the session has its prompt cached at `b`.
    for _ in 0..3 {
        assert_eq!(send(&layer, &providers, PlainRequest::new()).await.unwrap(), "a");
        assert_eq!(send(&layer, &providers, PlainRequest::session("t")).await.unwrap(), "a");
        assert_eq!(send(&layer, &providers, PlainRequest::session("s")).await.unwrap(), "b");
        advance(secs(299)).await;
    }
    advance(secs(1)).await;
    assert_eq!(send(&layer, &providers, PlainRequest::session("s")).await.unwrap(), "a");
}

#[tokio::test(start_paused = true)]
async fn a_session_leaves_a_target_that_fails() {
    let providers = Providers::new();
    let layer = abc().at_once();
    providers.set("a", fail(Reason::Network)).set("b", fail(Reason::Network));
    assert_eq!(send(&layer, &providers, PlainRequest::session("s")).await.unwrap(), "c");
    providers.repair("a").repair("b");
    advance(secs(31)).await;
    providers.set("c", fail(Reason::Network)).calls();
    assert_eq!(send(&layer, &providers, PlainRequest::session("s")).await.unwrap(), "a");
    assert_eq!(providers.calls(), ["c", "a"]);
    providers.repair("c");
    advance(secs(31)).await;
    assert_eq!(
        send(&layer, &providers, PlainRequest::session("s")).await.unwrap(),
        "a",
        "its affinity has changed"
    );
}

#[tokio::test(start_paused = true)]
async fn a_session_keeps_its_key_for_all_models() {
    let two_keys = TargetSpec::new("a").with_credential("1").with_credential("2");
    let layer = CooldownFailoverLayer::new(chain([two_keys])).at_once();
    let providers = Providers::new();
    providers.set("a#1", fail(Reason::RateLimit));
    let with =
        |model: &str| PlainRequest { model: Some(model.to_owned()), ..PlainRequest::session("s") };
    assert_eq!(send(&layer, &providers, with("m")).await.unwrap(), "a/m#2");
    assert_eq!(send(&layer, &providers, with("n")).await.unwrap(), "a/n#2");
}

#[tokio::test(start_paused = true)]
async fn a_downgrade_does_not_stick() {
    let spec = TargetSpec::new("a").with_downgrade("big", ["small"]);
    let layer = CooldownFailoverLayer::new(chain([spec])).with_downgrade_on_overload().at_once();
    let providers = Providers::new();
    providers.set("a/big", fail(Reason::Overloaded));
    let big = || PlainRequest { model: Some("big".to_owned()), ..PlainRequest::session("s") };
    assert_eq!(send(&layer, &providers, big()).await.unwrap(), "a/small");
    providers.repair("a/big");
    advance(secs(121)).await;
    assert_eq!(
        send(&layer, &providers, big()).await.unwrap(),
        "a/big",
        "the requested model has priority"
    );
}

#[tokio::test(start_paused = true)]
async fn a_history_is_foreign_to_a_target_that_did_not_write_all_of_it() {
    let providers = Providers::new();
    let layer = abc().at_once();
    send(&layer, &providers, PlainRequest::session("s")).await.unwrap();
    send(&layer, &providers, PlainRequest::session("s")).await.unwrap();
    assert_eq!(received(&providers), [("a".to_owned(), false), ("a".to_owned(), false)]);
    providers.set("a", fail(Reason::Network));
    send(&layer, &providers, PlainRequest::session("s")).await.unwrap();
    assert_eq!(received(&providers), [("a".to_owned(), false), ("b".to_owned(), true)]);
    // From here on both `a` and `b` have written parts: it is foreign to both.
    send(&layer, &providers, PlainRequest::session("s")).await.unwrap();
    assert_eq!(received(&providers), [("b".to_owned(), true)]);
    providers.repair("a");
    advance(secs(301)).await;
    send(&layer, &providers, PlainRequest::session("s")).await.unwrap();
    assert_eq!(received(&providers), [("a".to_owned(), true)]);
    // A conversation that `b` began is not foreign to it.
    layer.handle().cool(&target("a"), secs(60));
    send(&layer, &providers, PlainRequest::session("t")).await.unwrap();
    send(&layer, &providers, PlainRequest::session("t")).await.unwrap();
    assert_eq!(received(&providers)[1], ("b".to_owned(), false));
}

#[tokio::test(start_paused = true)]
async fn a_history_is_foreign_to_another_model() {
    let providers = Providers::new();
    let layer = abc().at_once();
    for model in ["m", "m", "n"] {
        let request = PlainRequest { model: Some(model.to_owned()), ..PlainRequest::session("s") };
        send(&layer, &providers, request).await.unwrap();
    }
    let foreign: Vec<_> = received(&providers).into_iter().map(|(_, foreign)| foreign).collect();
    assert_eq!(foreign, [false, false, true]);
}

#[tokio::test(start_paused = true)]
async fn tenants_do_not_share_sessions() {
    let providers = Providers::new();
    let layer = abc().at_once();
    let of = |tenant: &str| {
        let context = CallContext::recording().with_tenant(tenant).with_session("s");
        PlainRequest { context, ..PlainRequest::new() }
    };
    providers.set("a", fail(Reason::Network));
    send(&layer, &providers, of("acme")).await.unwrap();
    providers.repair("a");
    advance(secs(31)).await;
    assert_eq!(send(&layer, &providers, of("umbrella")).await.unwrap(), "a");
    assert_eq!(send(&layer, &providers, of("acme")).await.unwrap(), "b");
}

#[tokio::test(start_paused = true)]
async fn sessions_can_be_switched_off_and_removed_and_are_bounded() {
    let providers = Providers::new();
    let off = abc().with_sticky(secs(0)).at_once();
    send(&off, &providers, PlainRequest::session("s")).await.unwrap();
    assert_eq!(off.handle().sessions(), 0);

    let layer = abc().tune(|policy| policy.sessions = 80).at_once();
    providers.set("a", fail(Reason::Network));
    send(&layer, &providers, PlainRequest::session("s")).await.unwrap();
    providers.repair("a");
    advance(secs(31)).await;
    assert!(layer.handle().forget_session(None, "s"));
    assert_eq!(send(&layer, &providers, PlainRequest::session("s")).await.unwrap(), "a");
    for n in 0..500 {
        send(&layer, &providers, PlainRequest::session(&n.to_string())).await.unwrap();
    }
    assert!(layer.handle().sessions() <= 80);
}

#[tokio::test(start_paused = true)]
async fn a_session_leaves_a_target_that_was_removed_from_the_chain() {
    let providers = Providers::new();
    let layer = abc().at_once();
    providers.set("a", fail(Reason::Network));
    assert_eq!(send(&layer, &providers, PlainRequest::session("s")).await.unwrap(), "b");
    layer.handle().replace_chain(chain(["c", "d"]));
    assert_eq!(send(&layer, &providers, PlainRequest::session("s")).await.unwrap(), "c");
    let foreign = providers.received().pop().unwrap().request.fitted.unwrap().foreign_history;
    assert!(foreign, "its history is still foreign");
}

#[tokio::test(start_paused = true)]
async fn a_call_may_prefer_a_target_or_any_other_while_that_is_well() {
    let layer = abc().at_once();
    let prefers = |preference| {
        let mut request = PlainRequest::session("s");
        request.context.preference = Some(Arc::new(preference));
        request
    };
    let (favours, avoids) = (Preference::For(target("b")), Preference::Against(target("a")));
    let sent = async |providers: &Providers, request: PlainRequest| {
        send(&layer, providers, request).await.unwrap()
    };
    let providers = Providers::new();
    assert_eq!(sent(&providers, PlainRequest::session("s")).await, "a", "where the session is");
    assert_eq!(sent(&providers, prefers(favours.clone())).await, "b");
    assert_eq!(sent(&providers, prefers(avoids.clone())).await, "b");
    // What is avoided is the last of those that are well, and is asked before one that rests.
    providers.set("b", fail(Reason::Network)).set("c", fail(Reason::Network));
    assert_eq!(sent(&providers, prefers(avoids.clone())).await, "a");
    assert_eq!(sent(&providers, prefers(avoids.clone())).await, "a");
    providers.repair("b").repair("c").calls();
    assert_eq!(sent(&providers, prefers(avoids)).await, "a");
    assert_eq!(sent(&providers, prefers(favours)).await, "a", "a resting one is not preferred");
}

#[tokio::test(start_paused = true)]
async fn what_has_failed_an_answer_for_good_is_not_asked_whoever_else_fails() {
    let layer = abc().at_once();
    let without = |failed: &[&str]| {
        let mut request = PlainRequest::session("s");
        let failed = failed.iter().map(|name| target(name)).collect();
        request.context.preference = Some(Arc::new(Preference::Except(failed)));
        request
    };
    let providers = Providers::new();
    assert_eq!(send(&layer, &providers, PlainRequest::session("s")).await.unwrap(), "a");
    providers.calls();
    assert_eq!(send(&layer, &providers, without(&["a"])).await.unwrap(), "b");
    assert_eq!(send(&layer, &providers, without(&["a", "b"])).await.unwrap(), "c");
    providers.set_all(&["b", "c"], &fail(Reason::Network));
    drop(send(&layer, &providers, without(&["a"])).await.unwrap_err());
    assert!(!providers.calls().contains(&"a".to_owned()));
    // Not when nobody else is left, either.
    let failure = send(&layer, &providers, without(&["a", "b", "c"])).await.unwrap_err();
    assert_eq!((failure.reason(), failure.attempts()), (Reason::Cooling, 0));
    assert!(providers.calls().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_target_that_a_person_has_chosen_is_asked_alone_and_though_it_cools() {
    let layer = abc().at_once();
    let demands = |chosen: &str| {
        let mut request = PlainRequest::session("s");
        request.context.preference = Some(Arc::new(Preference::Only(target(chosen))));
        request
    };
    let providers = Providers::new();
    assert_eq!(send(&layer, &providers, demands("c")).await.unwrap(), "c");
    layer.handle().cool(&target("b"), secs(600));
    providers.calls();
    assert_eq!(send(&layer, &providers, demands("b")).await.unwrap(), "b", "although it cools");
    assert_eq!(providers.calls(), ["b"]);
    // A refused key is final, and no other target is asked.
    providers.set("b", fail(Reason::Auth));
    let failure = send(&layer, &providers, demands("b")).await.unwrap_err();
    assert_eq!((failure.reason(), failure.attempts()), (Reason::Auth, 1));
    assert_eq!(providers.calls(), ["b"]);
    // Nothing stands in for what is not in the chain.
    let failure = send(&layer, &providers, demands("z")).await.unwrap_err();
    assert_eq!((failure.reason(), failure.attempts()), (Reason::Cooling, 0));
    assert!(providers.calls().is_empty());
}
