//! Providers that are degraded: in which order targets are asked, and how it is seen that they are well again.

mod support;

use allocation_counter::measure;
use steadfast_core::{DegradedProviders, Failure, Reason};
use steadfast_failover::{CooldownFailoverLayer, WhenExhausted};
use support::*;
use tokio::time::{Instant, advance};

/// Three providers, those in `names` degraded.
fn degraded(names: &[&str]) -> (CooldownFailoverLayer, DegradedProviders) {
    let degraded = DegradedProviders::default();
    for name in names {
        degraded.insert(name, Instant::now(), secs(10));
    }
    (abc().with_health(degraded.clone()), degraded)
}

fn skipping(names: &[&str]) -> (CooldownFailoverLayer, DegradedProviders) {
    let (layer, degraded) = degraded(names);
    (layer.tune(|policy| policy.skip_degraded = true), degraded)
}

#[tokio::test(start_paused = true)]
async fn degraded_targets_come_after_the_others_in_their_order() {
    let providers = Providers::new();
    providers.set_all(&["a", "b", "c"], &fail(Reason::Format));
    for (names, first) in
        [(&[][..], "a"), (&["a"], "b"), (&["a", "b"], "c"), (&["b"], "a"), (&["a", "b", "c"], "a")]
    {
        for (layer, _) in [degraded(names), skipping(names)] {
            let request = PlainRequest::new();
            let _ = send(&layer.at_once(), &providers, request).await.unwrap_err();
            assert_eq!(providers.calls(), [first], "{names:?}");
        }
    }
    // Once around all of them.
    providers.set_all(&["a", "b", "c"], &fail(Reason::Network));
    for (layer, _) in [degraded(&["a", "b"]), skipping(&["a", "b"])] {
        let layer = layer.with_when_exhausted(WhenExhausted::Fail).at_once();
        let _ = send(&layer, &providers, PlainRequest::new()).await.unwrap_err();
        assert_eq!(providers.calls(), ["c", "a", "b"], "nobody is refused");
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_degraded_is_asked_before_what_cools_unless_it_is_skipped() {
    let providers = Providers::new();
    for (skip, expected) in [(false, "a"), (true, "b")] {
        let (layer, known) = degraded(&[]);
        let layer = layer.tune(|policy| policy.skip_degraded = skip).at_once();
        // Two callers each, so that it cools.
        for name in ["b", "c"] {
            providers.set_all(&["a", "b", "c"], &fail(Reason::Format));
            providers.set(name, fail(Reason::ServerError));
            for other in ["a", "b", "c"] {
                if other != name {
                    known.insert(other, Instant::now(), secs(600));
                }
            }
            for _ in 0..2 {
                let _ = send(&layer, &providers, PlainRequest::new()).await;
            }
            ["a", "b", "c"].iter().for_each(|name| known.remove(name));
        }
        providers.set_all(&["a", "b", "c"], &fail(Reason::Format));
        providers.calls();
        known.insert("a", Instant::now(), secs(600));
        let _ = send(&layer, &providers, PlainRequest::new()).await.unwrap_err();
        assert_eq!(providers.calls(), [expected], "skip: {skip}");
        // A lone target is asked, whatever is known of it.
        let lone = CooldownFailoverLayer::new(chain(["a"])).with_health(known);
        let lone = lone.tune(|policy| policy.skip_degraded = skip).at_once();
        let _ = send(&lone, &providers, PlainRequest::new()).await.unwrap_err();
        assert_eq!(providers.calls(), ["a"]);
    }
}

#[tokio::test(start_paused = true)]
async fn that_a_target_was_passed_over_is_recorded_and_reported() {
    let providers = Providers::new();
    let (layer, _) = degraded(&["a", "c"]);
    let layer = layer.with_when_exhausted(WhenExhausted::Fail).at_once();
    let request = PlainRequest::new();
    let log = request.log();
    assert_eq!(send(&layer, &providers, request).await.unwrap(), "b");
    assert_eq!(log.to_string(), "failover.skipped a degraded");
    // What was passed over and asked later is not passed over.
    providers.set_all(&["a", "b", "c"], &fail(Reason::Network));
    let failure: Failure = send(&layer, &providers, PlainRequest::new()).await.unwrap_err();
    let trail: Vec<_> = failure.trail().iter().map(|tried| (tried.skipped, tried.reason)).collect();
    assert_eq!(trail, [(false, Reason::Network); 3]);
    // One that ends the call leaves the others as they are.
    providers.set("b", fail(Reason::Format));
    let failure: Failure = send(&layer, &providers, PlainRequest::new()).await.unwrap_err();
    assert_eq!(failure.reason(), Reason::Format);
    let skipped = &failure.trail()[0];
    assert!(skipped.skipped && skipped.message.contains("degraded"), "{skipped:?}");
}

#[tokio::test(start_paused = true)]
async fn one_call_in_ten_seconds_sees_whether_it_is_well_again() {
    for skip in [false, true] {
        let providers = Providers::new();
        let (layer, known) = degraded(&["a"]);
        let layer = layer.tune(|policy| policy.skip_degraded = skip).at_once();
        let call = async || {
            let request = PlainRequest::new();
            let log = request.log();
            (send(&layer, &providers, request).await.unwrap(), log.to_string())
        };
        assert_eq!(call().await.0, "b");
        advance(secs(10)).await;
        assert_eq!(call().await, ("a".into(), "failover.probe a".into()));
        assert_eq!(call().await.0, "b", "one is enough");
        providers.set("a", fail(Reason::Network));
        advance(secs(10)).await;
        assert_eq!(call().await.0, "b", "its caller has an answer, too");
        assert_eq!(providers.calls()[3..], ["a", "b"]);
        known.remove("a");
        providers.repair("a");
        assert_eq!(call().await.0, "a", "it is well again");
    }
}

#[tokio::test(start_paused = true)]
async fn while_it_is_another_processs_turn_a_call_goes_where_it_would_have_gone() {
    let providers = Providers::new();
    let (layer, known) = degraded(&["a", "b"]);
    let (layer, turn) = (layer.at_once(), Instant::now() + secs(15));
    known.set_turns(move |_, now| now >= turn);
    advance(secs(10)).await;
    for _ in 0..5 {
        assert_eq!(send(&layer, &providers, PlainRequest::new()).await.unwrap(), "c");
        advance(secs(1)).await;
    }
    assert_eq!(send(&layer, &providers, PlainRequest::new()).await.unwrap(), "a");
}

#[tokio::test(start_paused = true)]
async fn a_probe_that_hangs_does_not_hold_its_caller() {
    let providers = Providers::new();
    let (layer, _) = degraded(&["a"]);
    let layer = layer.at_once();
    providers.set("a", Action::Hang);
    advance(secs(10)).await;
    let start = Instant::now();
    assert_eq!(send(&layer, &providers, PlainRequest::new()).await.unwrap(), "b");
    assert_eq!(providers.times(start), [("a".into(), 0), ("b".into(), 5_000)]);
    assert_eq!(providers.dropped(), ["a"]);
}

#[tokio::test(start_paused = true)]
async fn of_calls_at_once_one_is_the_probe() {
    let providers = Providers::new();
    let (layer, _) = degraded(&["a"]);
    let layer = layer.at_once();
    providers.set_all(&["a", "b"], &after(secs(1), Action::Answer));
    advance(secs(10)).await;
    let calls = (0..5).map(|_| send(&layer, &providers, PlainRequest::new()));
    let answers: Vec<_> = futures_util::future::join_all(calls).await;
    let at_a = answers.iter().filter(|answer| answer.as_ref().unwrap() == "a").count();
    assert_eq!((at_a, answers.len()), (1, 5));
}

#[tokio::test(start_paused = true)]
async fn a_session_leaves_a_degraded_target() {
    let providers = Providers::new();
    let (layer, known) = degraded(&["a"]);
    let layer = layer.at_once();
    assert_eq!(send(&layer, &providers, PlainRequest::session("s")).await.unwrap(), "b");
    known.remove("a");
    assert_eq!(
        send(&layer, &providers, PlainRequest::session("s")).await.unwrap(),
        "b",
        "it stays"
    );
    known.insert("b", Instant::now(), secs(10));
    assert_eq!(send(&layer, &providers, PlainRequest::session("s")).await.unwrap(), "a");
}

#[tokio::test(start_paused = true)]
async fn nobody_degraded_costs_nothing() {
    let providers = Providers::new();
    let (layer, known) = degraded(&["a"]);
    known.remove("a");
    let plain = abc().at_once();
    let allocations = |layer: &CooldownFailoverLayer<_, steadfast_core::AtOnce>| {
        let service = tower::Layer::layer(layer, providers.client());
        let run = || {
            let request = PlainRequest::default();
            let mut task =
                tokio_test::task::spawn(tower::ServiceExt::oneshot(service.clone(), request));
            assert!(task.poll().is_ready());
        };
        run();
        measure(run).count_total
    };
    assert_eq!(allocations(&layer.at_once()), allocations(&plain));
}
