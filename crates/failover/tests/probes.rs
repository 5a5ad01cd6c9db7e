//! One call at a time probes a cooling target, and its permit is always released.

#![allow(clippy::unwrap_used, reason = "helpers of a test")]

mod support;

use steadfast_core::{Failure, Reason};
use support::*;
use tokio::time::advance;

/// A layer whose `a` cools for a minute because of an error, 40 s ago.
async fn cooling(
    providers: &Providers,
) -> steadfast_failover::CooldownFailoverLayer<steadfast_failover::OneChain, steadfast_core::AtOnce>
{
    let layer = abc().at_once();
    providers.set("a", fail(Reason::ServerError));
    send(&layer, providers, PlainRequest::new()).await.unwrap();
    advance(secs(40)).await;
    providers.calls();
    layer
}

#[tokio::test(start_paused = true)]
async fn one_call_probes_and_the_others_do_not_wait_for_it() {
    let providers = Providers::new();
    let layer = cooling(&providers).await;
    providers.set("a", after(secs(5), Action::Answer));
    let request = PlainRequest::new();
    let log = request.log();
    let mut probe = tokio_test::task::spawn(send(&layer, &providers, request));
    assert!(probe.poll().is_pending());
    assert!(layer.handle().snapshot().get(&target("a")).unwrap().probing);
    for _ in 0..20 {
        assert_eq!(send(&layer, &providers, PlainRequest::new()).await.unwrap(), "b");
    }
    advance(secs(5)).await;
    assert_eq!(probe.await.unwrap(), "a");
    assert!(log.to_string().contains("failover.probe a; failover.recovered a"), "{log}");
    assert_eq!(providers.calls().iter().filter(|at| *at == "a").count(), 1);
    assert_eq!(
        send(&layer, &providers, PlainRequest::new()).await.unwrap(),
        "a",
        "all calls use it again"
    );
}

#[tokio::test(start_paused = true)]
async fn a_failed_probe_is_answered_by_the_next_target_and_cools_again() {
    let providers = Providers::new();
    let layer = cooling(&providers).await;
    assert_eq!(send(&layer, &providers, PlainRequest::new()).await.unwrap(), "b");
    assert_eq!(providers.calls(), ["a", "b"]);
    assert_eq!(send(&layer, &providers, PlainRequest::new()).await.unwrap(), "b");
    assert_eq!(providers.calls(), ["b"], "not again at once");
    advance(secs(30)).await;
    send(&layer, &providers, PlainRequest::new()).await.unwrap();
    assert_eq!(providers.calls(), ["a", "b"]);
}

#[tokio::test(start_paused = true)]
async fn every_end_of_a_probe_releases_its_permit() {
    let ends: [(&str, Action); 4] = [
        ("dropped", Action::Hang),
        ("the caller's mistake", fail(Reason::Format)),
        ("our own refusal", fail(Reason::CircuitOpen)),
        ("cancelled", fail(Reason::Cancelled)),
    ];
    for (end, action) in ends {
        let providers = Providers::new();
        let layer = cooling(&providers).await;
        providers.set("a", action);
        let mut probe = tokio_test::task::spawn(send(&layer, &providers, PlainRequest::new()));
        let _ = probe.poll();
        drop(probe);
        assert!(!layer.handle().snapshot().get(&target("a")).unwrap().probing, "{end}");
        providers.repair("a").calls();
        assert_eq!(send(&layer, &providers, PlainRequest::new()).await.unwrap(), "a", "{end}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_that_does_not_fit_releases_the_permit() {
    let providers = Providers::new();
    let layer = cooling(&providers).await;
    providers.repair("a");
    let unfit = PlainRequest { unfit_for: Some("a"), ..PlainRequest::new() };
    assert_eq!(send(&layer, &providers, unfit).await.unwrap(), "b");
    assert_eq!(send(&layer, &providers, PlainRequest::new()).await.unwrap(), "a");
}

#[tokio::test(start_paused = true)]
async fn a_panicking_probe_releases_the_permit_and_counts() {
    let providers = Providers::new();
    let layer = cooling(&providers).await;
    providers.set("a", fail_with(|| panic!("the client has a bug")));
    let (task_layer, task_providers) = (layer.clone(), providers.clone());
    let joined =
        tokio::spawn(async move { send(&task_layer, &task_providers, PlainRequest::new()).await })
            .await;
    assert!(joined.unwrap_err().is_panic());
    let snapshot = layer.handle().snapshot();
    let a = snapshot.get(&target("a")).unwrap();
    assert!(!a.probing);
    assert_eq!(a.errors, 2);
}

#[tokio::test(start_paused = true)]
async fn a_probe_that_hangs_for_ever_does_not_block_later_probes() {
    let providers = Providers::new();
    let layer = abc().at_once();
    providers.set("a", fail(Reason::ModelNotFound));
    send(&layer, &providers, PlainRequest::model("m")).await.unwrap();
    advance(secs(3_600 - 20)).await;
    providers.set("a", Action::Hang);
    let mut lost = tokio_test::task::spawn(send(&layer, &providers, PlainRequest::model("m")));
    assert!(lost.poll().is_pending());
    assert_eq!(send(&layer, &providers, PlainRequest::model("m")).await.unwrap(), "b/m");
    providers.repair("a");
    advance(secs(180)).await;
    assert_eq!(send(&layer, &providers, PlainRequest::model("m")).await.unwrap(), "a/m");
    drop(lost);
    assert_eq!(
        send(&layer, &providers, PlainRequest::model("m")).await.unwrap(),
        "a/m",
        "its end changes nothing"
    );
}

#[tokio::test(start_paused = true)]
async fn calls_from_before_a_failure_decide_nothing() {
    let providers = Providers::new();
    let layer = abc().at_once();
    providers.set("a", after(secs(10), Action::Answer));
    let mut early = tokio_test::task::spawn(send(&layer, &providers, PlainRequest::new()));
    assert!(early.poll().is_pending());
    providers.set("a", fail(Reason::ServerError));
    send(&layer, &providers, PlainRequest::new()).await.unwrap();
    advance(secs(10)).await;
    assert_eq!(early.await.unwrap(), "a", "its answer is returned");
    assert_eq!(
        send(&layer, &providers, PlainRequest::new()).await.unwrap(),
        "b",
        "but does not end the cooldown"
    );

    // And a late failure does not undo a recovery.
    providers.set("a", Action::Answer);
    advance(secs(60)).await;
    providers.set("a", after(secs(10), fail(Reason::ServerError)));
    let mut late = tokio_test::task::spawn(send(&layer, &providers, PlainRequest::new()));
    assert!(late.poll().is_pending());
    providers.set("a", fail(Reason::ServerError));
    send(&layer, &providers, PlainRequest::new()).await.unwrap();
    advance(secs(5)).await;
    layer.handle().reset(&target("a"));
    providers.repair("a");
    advance(secs(5)).await;
    assert_eq!(late.await.unwrap(), "b");
    assert_eq!(send(&layer, &providers, PlainRequest::new()).await.unwrap(), "a");
}

#[tokio::test(start_paused = true)]
async fn a_hint_is_waited_for_without_probes() {
    let providers = Providers::new();
    let layer = abc().at_once();
    providers.set(
        "a",
        fail_with(|| Failure::new(Reason::Overloaded, "").with_retry_after(Some(secs(60)))),
    );
    send(&layer, &providers, PlainRequest::new()).await.unwrap();
    providers.repair("a").calls();
    advance(secs(59)).await;
    send(&layer, &providers, PlainRequest::new()).await.unwrap();
    assert_eq!(providers.calls(), ["b"]);
}

#[tokio::test(start_paused = true)]
async fn of_many_concurrent_calls_one_is_the_probe() {
    let providers = Providers::new();
    let layer = cooling(&providers).await;
    providers.set("a", Action::Hang);
    let mut calls: Vec<_> = (0..50)
        .map(|_| {
            let (layer, providers) = (layer.clone(), providers.clone());
            tokio::spawn(async move { send(&layer, &providers, PlainRequest::new()).await })
        })
        .collect();
    let mut answered = 0;
    for call in &mut calls {
        answered += usize::from(tokio::time::timeout(secs(1), call).await.is_ok());
    }
    assert_eq!(answered, 49);
    assert_eq!(providers.calls().iter().filter(|at| *at == "a").count(), 1);
    calls.iter().for_each(tokio::task::JoinHandle::abort);
}
