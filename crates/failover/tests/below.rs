//! What the layers below get, and what they report.

#![allow(clippy::unwrap_used, reason = "helpers of a test")]

mod support;

use std::{
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

use steadfast_core::{Call, CallContext, Failure, Reason, TimeLimit};
use steadfast_failover::{CooldownFailoverLayer, TargetSpec};
use support::*;
use tokio::time::{Instant, advance};
use tower::{Layer, ServiceExt};

fn of<T>(received: Vec<Received>, what: impl Fn(&CallContext) -> T) -> Vec<(String, T)> {
    let one = |received: Received| (received.at.clone(), what(received.request.context()));
    received.into_iter().map(one).collect()
}

fn at<T>(name: &str, value: T) -> (String, T) {
    (name.to_owned(), value)
}

#[tokio::test(start_paused = true)]
async fn alternatives_are_the_others_that_could_serve_the_call_in_any_state() {
    let alternatives = |providers: &Providers| of(providers.received(), |one| one.alternatives);
    let (layer, providers) = (abc().at_once(), Providers::new());
    send(&layer, &providers, PlainRequest::new()).await.unwrap();
    assert_eq!(alternatives(&providers), [at("a", 2)]);
    // Those that rest or have failed the call are some.
    rest(&layer, &providers, "a").await;
    providers.set("b", fail(Reason::ServerError));
    send(&layer, &providers, PlainRequest::new()).await.unwrap();
    assert_eq!(alternatives(&providers), [at("b", 2), at("c", 2)]);
    // Those that refuse, that have failed the call for good, or can not serve it, are none.
    layer.handle().reset_all();
    let hang = || Failure::new(Reason::Timeout, "").with_time_limit(TimeLimit::Stall);
    providers.set("a", fail_with(hang)).set("b", fail(Reason::Auth));
    send(&layer, &providers, PlainRequest::new()).await.unwrap();
    assert_eq!(alternatives(&providers), [at("a", 2), at("b", 1), at("c", 0)]);
    providers.repair("a");
    layer.handle().reset(&target("a"));
    send(&layer, &providers, PlainRequest::new()).await.unwrap();
    assert_eq!(alternatives(&providers), [at("a", 1)], "`b` refuses");
    let blind = TargetSpec::new("b").with_vision(false);
    let layer = CooldownFailoverLayer::new(chain([TargetSpec::new("a"), blind])).at_once();
    let mut image = PlainRequest::new();
    image.needs.vision = true;
    send(&layer, &providers, image).await.unwrap();
    assert_eq!(alternatives(&providers), [at("a", 0)]);
}

#[tokio::test(start_paused = true)]
async fn keys_are_alternatives_and_smaller_models_when_they_may_stand_in() {
    let spec = TargetSpec::new("a")
        .with_credential("1")
        .with_credential("2")
        .with_downgrade("big", ["small"]);
    let layer = CooldownFailoverLayer::new(chain([spec])).at_once();
    let providers = Providers::new();
    providers.set("a/big", fail(Reason::ModelNotFound));
    for expected in [
        &[at("a/big#1", 1), at("a/small#1", 1)][..],
        // Known from before.
        &[at("a/small#1", 1)],
    ] {
        send(&layer, &providers, PlainRequest::model("big")).await.unwrap();
        assert_eq!(of(providers.received(), |one| one.alternatives), expected);
    }
}

#[tokio::test(start_paused = true)]
async fn patience_is_what_is_left_of_half_a_minute_or_of_a_minute_alone() {
    let patience =
        |providers: &Providers| of(providers.received(), |one| one.patience.unwrap().as_millis());
    let slow = || Failure::new(Reason::Unknown, "").with_waited(Duration::from_millis(8_000));
    let (layer, providers) = (abc().at_once(), Providers::new());
    providers.set("a", fail_with(slow));
    send(&layer, &providers, PlainRequest::new()).await.unwrap();
    assert_eq!(patience(&providers), [at("a", 30_000), at("b", 22_000)]);
    let alone = CooldownFailoverLayer::new(chain(["a"])).at_once();
    drop(send(&alone, &providers, PlainRequest::new()).await.unwrap_err());
    assert_eq!(patience(&providers), [at("a", 60_000)]);
    // Our own waits count too.
    providers.set("a", limited(20));
    let mut call = tokio_test::task::spawn(send(&alone, &providers, PlainRequest::new()));
    assert!(call.poll().is_pending());
    providers.repair("a");
    call.await.unwrap();
    assert_eq!(patience(&providers), [at("a", 60_000), at("a", 40_000)]);
}

#[tokio::test(start_paused = true)]
async fn a_call_with_less_patience_does_not_wait_for_longer() {
    let (layer, providers) = (CooldownFailoverLayer::new(chain(["a"])).at_once(), Providers::new());
    for (own, attempts) in [(19, 1), (25, 2)] {
        providers.set("a", limited(20));
        let mut request = PlainRequest::new();
        request.context.patience = Some(Duration::from_secs(own));
        let began = Instant::now();
        let failure = send(&layer, &providers, request).await.unwrap_err();
        assert_eq!(failure.reason(), Reason::RateLimit, "{own} s");
        let waited = Duration::from_secs(20 * (attempts - 1));
        assert_eq!(began.elapsed(), waited, "{own} s");
        let given = of(providers.received(), |one| one.patience.unwrap().as_secs());
        let expected = [at("a", own), at("a", own.saturating_sub(20))];
        assert_eq!(given, expected[..attempts as usize], "{own} s");
        layer.handle().reset_all();
    }
}

#[tokio::test(start_paused = true)]
async fn repeats_are_how_often_the_call_has_asked_this_target() {
    let repeats = |providers: &Providers| {
        of(providers.received(), |one| one.routed.as_ref().unwrap().repeats)
    };
    let providers = Providers::new();
    let layer = CooldownFailoverLayer::new(chain(["a", "b"])).at_once();
    let thrice = || Failure::new(Reason::ServerError, "").with_attempts(3);
    providers.set("a", fail_with(thrice)).set("b", fail(Reason::ServerError));
    drop(send(&layer, &providers, PlainRequest::new()).await.unwrap_err());
    let expected = [at("a", 0), at("b", 0), at("a", 3), at("b", 1), at("a", 6), at("b", 2)];
    assert_eq!(repeats(&providers)[..5], expected[..5]);
    // A refusal of ours has asked nobody.
    let refused = || Failure::refused(Reason::CircuitOpen, "").with_retry_after(Some(secs(1)));
    providers.repair("b").set("b", fail(Reason::Unsupported)).set("a", fail_with(refused));
    layer.handle().reset_all();
    drop(send(&layer, &providers, PlainRequest::new()).await.unwrap_err());
    let repeats = repeats(&providers);
    assert!(repeats.len() > 3 && repeats.iter().all(|(_, repeats)| *repeats == 0), "{repeats:?}");
}

#[tokio::test(start_paused = true)]
async fn all_attempts_of_a_call_have_one_witness() {
    let providers = Providers::new();
    providers.set("a", fail(Reason::ServerError));
    let layer = abc().at_once();
    send(&layer, &providers, PlainRequest::prompt(1)).await.unwrap();
    send(&layer, &providers, PlainRequest::prompt(2)).await.unwrap();
    let witnesses = of(providers.received(), |one| one.witness);
    let [first, second, other, ..] = &witnesses[..] else { panic!("three attempts") };
    assert!(first.1.is_known() && first.1.is_same(second.1) && !first.1.is_same(other.1));
    // One that is known from outside is kept.
    let mut request = PlainRequest::prompt(3);
    request.context.witness = first.1;
    send(&layer, &providers, request).await.unwrap();
    assert_eq!(of(providers.received(), |one| one.witness)[0].1, first.1);
}

#[tokio::test(start_paused = true)]
async fn reported_attempts_are_known_even_when_the_last_word_is_a_refusal() {
    let (layer, providers) = (abc().at_once(), Providers::new());
    let refusal =
        fail_with(|| Failure::refused(Reason::CircuitOpen, "").with_retry_after(Some(secs(1))));
    let reasons = vec![Reason::ServerError, Reason::Network];
    providers.set("a", Action::Attempts(reasons, Some(Box::new(refusal))));
    assert_eq!(send(&layer, &providers, PlainRequest::new()).await.unwrap(), "b");
    let snapshot = layer.handle().snapshot();
    let a = snapshot.get(&target("a")).unwrap();
    let last = a.last_error.as_ref().unwrap();
    assert_eq!((a.errors, a.consecutive, last.reason), (2, 2, Reason::Network));
    assert_eq!(&*last.message, "network it is");
}

#[tokio::test(start_paused = true)]
async fn attempts_of_one_call_are_one_failure_of_its_row_and_are_counted_once() {
    let (layer, providers) = (abc().at_once(), Providers::new());
    providers.set("a", Action::Attempts(vec![Reason::ServerError; 2], None));
    let a = || layer.handle().snapshot().get(&target("a")).unwrap().clone();
    assert_eq!(send(&layer, &providers, PlainRequest::new()).await.unwrap(), "b");
    assert_eq!((a().errors, a().cooling), (2, None));
    assert_eq!(send(&layer, &providers, PlainRequest::new()).await.unwrap(), "b");
    assert_eq!((a().errors, a().cooling.is_some()), (4, true));
    // Each goes to the record of what it speaks for, whatever the last one was.
    layer.handle().reset_all();
    let reasons = vec![Reason::Overloaded, Reason::ServerError, Reason::RateLimit];
    providers.set("a", Action::Attempts(reasons, None));
    send(&layer, &providers, PlainRequest::model("m")).await.unwrap();
    let snapshot = layer.handle().snapshot();
    let errors = |name: &str| snapshot.get(&target(name)).unwrap().errors;
    assert_eq!((errors("a"), errors("a/m")), (1, 2));
}

#[tokio::test(start_paused = true)]
async fn the_layer_below_learns_at_once_that_its_target_rests() {
    let layer = abc().at_once();
    let rested = AtomicU32::new(0);
    let probes = AtomicU32::new(0);
    let client = tower::service_fn(|request: PlainRequest| {
        let context = request.context;
        let routed = context.routed.clone().unwrap();
        probes.fetch_add(u32::from(routed.is_probe()), Ordering::Relaxed);
        let result = if context.target.unwrap().provider() == "a" {
            let failure = routed.failed(Failure::new(Reason::ServerError, ""), &context.log);
            rested.fetch_add(u32::from(routed.rests()), Ordering::Relaxed);
            Err(failure)
        } else {
            Ok("answer")
        };
        std::future::ready(result)
    });
    let call = async || layer.layer(client).oneshot(PlainRequest::new()).await.unwrap();
    call().await;
    assert_eq!(rested.load(Ordering::Relaxed), 0, "after one failure it does not");
    call().await;
    assert_eq!((rested.load(Ordering::Relaxed), probes.load(Ordering::Relaxed)), (1, 0));
    advance(secs(1)).await;
    call().await;
    assert_eq!(probes.load(Ordering::Relaxed), 1);
}
