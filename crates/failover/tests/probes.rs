//! One call at a time probes a cooling target, and its permit is always released.

#![allow(clippy::unwrap_used, reason = "helpers of a test")]

mod support;

use std::time::Duration;

use steadfast_core::{AtOnce, BudgetPolicy, Failure, Reason, RetryBudget, TimeLimit};
use steadfast_failover::{CooldownFailoverLayer, OneChain};
use support::*;
use tokio::time::{Instant, advance};

type Failover = CooldownFailoverLayer<OneChain, AtOnce>;

/// A layer whose `a` rests for 2 s because of errors, 1 s ago: a probe is due.
async fn cooling(providers: &Providers) -> Failover {
    due(abc(), providers).await
}

async fn due(layer: CooldownFailoverLayer, providers: &Providers) -> Failover {
    let layer = layer.at_once();
    rest(&layer, providers, "a").await;
    advance(secs(1)).await;
    layer
}

/// How long `a` still rests.
fn left(layer: &Failover) -> Option<Duration> {
    layer.handle().snapshot().get(&target("a")).unwrap().cooling_for(Instant::now())
}

#[tokio::test(start_paused = true)]
async fn one_call_probes_and_the_others_do_not_wait_for_it() {
    let providers = Providers::new();
    let layer = cooling(&providers).await;
    providers.set("a", after(secs(4), Action::Answer));
    let request = PlainRequest::new();
    let log = request.log();
    let mut probe = tokio_test::task::spawn(send(&layer, &providers, request));
    assert!(probe.poll().is_pending());
    assert!(layer.handle().snapshot().get(&target("a")).unwrap().probing);
    for _ in 0..20 {
        assert_eq!(send(&layer, &providers, PlainRequest::new()).await.unwrap(), "b");
    }
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
    advance(Duration::from_millis(1_500)).await;
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
    assert_eq!(a.errors, 3);
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
async fn calls_from_before_a_change_decide_nothing() {
    let providers = Providers::new();
    let layer = abc().at_once();
    let start = |action| {
        providers.set("a", action);
        let mut call = tokio_test::task::spawn(send(&layer, &providers, PlainRequest::new()));
        assert!(call.poll().is_pending());
        call
    };
    let early = start(after(Duration::from_millis(500), Action::Answer));
    rest(&layer, &providers, "a").await;
    assert_eq!(early.await.unwrap(), "a", "its answer is returned");
    assert_eq!(left(&layer), Some(Duration::from_millis(1_500)), "but does not end the rest");

    // And a late failure does not undo a recovery.
    providers.repair("a");
    advance(secs(1)).await;
    assert_eq!(send(&layer, &providers, PlainRequest::new()).await.unwrap(), "a");
    let late = start(after(secs(10), fail(Reason::ServerError)));
    rest(&layer, &providers, "a").await;
    layer.handle().reset(&target("a"));
    assert_eq!(late.await.unwrap(), "b");
    providers.set("a", fail(Reason::ServerError));
    assert_eq!(send(&layer, &providers, PlainRequest::new()).await.unwrap(), "b");
    assert_eq!(left(&layer), None, "it is of no row");
}

#[tokio::test(start_paused = true)]
async fn after_five_seconds_without_content_the_next_target_is_asked_beside_a_probe() {
    let providers = Providers::new();
    let layer = cooling(&providers).await;
    providers.set("a", Action::Hang).set("b", after(secs(1), Action::Answer));
    let (start, request) = (Instant::now(), PlainRequest::new());
    let log = request.log();
    assert_eq!(send(&layer, &providers, request).await.unwrap(), "b");
    let at = |name: &str, ms| (name.to_owned(), ms);
    assert_eq!(providers.times(start), [at("a", 0), at("b", 5_000)]);
    assert_eq!((start.elapsed(), providers.dropped()), (secs(6), vec!["a".to_owned()]));
    assert!(log.to_string().contains("failover.hedged b 5000ms; failover.outrun a"), "{log}");
    let snapshot = layer.handle().snapshot();
    let a = snapshot.get(&target("a")).unwrap();
    assert_eq!((a.probing, a.errors), (false, 2), "to be slow is no failure");
    assert!(a.cooling.is_some(), "nor a success");
    // The probe may still win, and a failure of it is not waited out.
    for (action, other, answer, total) in [
        (after(secs(6), Action::Answer), 9, "a", 6),
        (after(secs(3), fail(Reason::Network)), 1, "b", 4),
    ] {
        let layer = cooling(&providers).await;
        providers.set("a", action).set("b", after(secs(other), Action::Answer));
        let start = Instant::now();
        assert_eq!(send(&layer, &providers, PlainRequest::new()).await.unwrap(), answer);
        assert_eq!(start.elapsed(), secs(total));
    }
}

#[tokio::test(start_paused = true)]
async fn when_the_target_beside_a_probe_fails_the_next_one_is_asked_at_once() {
    let providers = Providers::new();
    let layer = cooling(&providers).await;
    providers.set("a", Action::Hang).set("b", after(secs(1), fail(Reason::ServerError)));
    let (start, request) = (Instant::now(), PlainRequest::new());
    let log = request.log();
    assert_eq!(send(&layer, &providers, request).await.unwrap(), "c");
    assert_eq!((start.elapsed(), providers.in_flight()), (secs(6), 0));
    assert!(
        log.to_string().ends_with(
            "failover.hedged b 5000ms; failover.switched c server_error; failover.outrun a"
        ),
        "{log}"
    );
}

/// A provider that hangs does not cost caller after caller the time of a probe.
#[tokio::test(start_paused = true)]
async fn a_target_that_hung_and_is_silent_again_has_failed_its_probe() {
    let providers = Providers::new();
    let layer = abc().at_once();
    let hang = || Failure::new(Reason::Timeout, "silent").with_time_limit(TimeLimit::FirstContent);
    providers.set("a", after(secs(30), fail_with(hang)));
    for _ in 0..2 {
        assert_eq!(send(&layer, &providers, PlainRequest::new()).await.unwrap(), "b");
    }
    providers.set("a", Action::Hang).calls();
    let start = Instant::now();
    let mut cost = Vec::new();
    while start.elapsed() < secs(600) {
        let call = Instant::now();
        assert_eq!(send(&layer, &providers, PlainRequest::new()).await.unwrap(), "b");
        cost.extend((!call.elapsed().is_zero()).then(|| call.elapsed()));
        advance(secs(1)).await;
    }
    assert!(cost.iter().all(|cost| *cost == secs(5)), "{cost:?}");
    // As often as its rest ends, which is soon as long as it is 15 s.
    assert!((20..40).contains(&cost.len()), "{} callers paid", cost.len());
    let a = layer.handle().snapshot().get(&target("a")).unwrap().clone();
    assert_eq!(a.errors, 2 + cost.len() as u64);
    assert!(a.last_error.unwrap().message.contains("no content in 5000 ms"));
    providers.repair("a");
    advance(secs(60)).await;
    assert_eq!(send(&layer, &providers, PlainRequest::new()).await.unwrap(), "a");
}

/// One whose first content takes longer than that comes back all the same.
#[tokio::test(start_paused = true)]
async fn after_a_probe_that_was_outrun_the_next_one_has_more_time() {
    let providers = Providers::new();
    let layer = cooling(&providers).await;
    providers.set("a", after(secs(15), Action::Answer)).set("b", after(secs(1), Action::Answer));
    let mut took = Vec::new();
    let rests = || layer.handle().snapshot().get(&target("a")).unwrap().cooling.is_some();
    while rests() {
        let start = Instant::now();
        send(&layer, &providers, PlainRequest::new()).await.unwrap();
        took.push(start.elapsed());
    }
    assert_eq!(took, [secs(6), secs(11), secs(15)]);
    assert_eq!(layer.handle().snapshot().get(&target("a")).unwrap().errors, 2);

    // What is known of its time is forgotten with its rest.
    providers.set("a", fail(Reason::ServerError)).repair("b");
    rest(&layer, &providers, "a").await;
    advance(secs(2)).await;
    providers.set("a", Action::Hang);
    let start = Instant::now();
    assert_eq!(send(&layer, &providers, PlainRequest::new()).await.unwrap(), "b");
    assert_eq!(start.elapsed(), secs(5));
}

#[tokio::test(start_paused = true)]
async fn beside_a_probe_is_asked_what_would_be_asked_next_and_it_costs_nothing() {
    // All rest: the next one is a probe itself.
    let providers = Providers::new();
    let budget = RetryBudget::new(BudgetPolicy { capacity: 0, ..BudgetPolicy::default() });
    let layer = abc().with_budget(budget).at_once();
    for name in ["a", "b", "c"] {
        rest(&layer, &providers, name).await;
    }
    advance(secs(2)).await;
    providers.set("a", Action::Hang).repair("b");
    assert_eq!(send(&layer, &providers, PlainRequest::new()).await.unwrap(), "b");
    assert_eq!(providers.calls(), ["a", "b"]);
    let snapshot = layer.handle().snapshot();
    assert!(snapshot.targets().iter().all(|health| !health.probing));
    assert!(snapshot.get(&target("b")).unwrap().cooling.is_none());

    // Nobody is beside the only one.
    let alone = due(CooldownFailoverLayer::new(chain(["a"])), &providers).await;
    providers.set("a", after(secs(9), Action::Answer)).calls();
    assert_eq!(send(&alone, &providers, PlainRequest::new()).await.unwrap(), "a");
    assert_eq!(providers.calls(), ["a"]);
}

#[tokio::test(start_paused = true)]
async fn a_probe_whose_attempts_were_reported_has_failed() {
    let providers = Providers::new();
    let layer = cooling(&providers).await;
    // As the retry layer reports it: the failure of the call is that of its last attempt.
    let attempts = Action::Attempts(vec![Reason::ServerError, Reason::Network], None);
    providers.set("a", attempts);
    assert_eq!(send(&layer, &providers, PlainRequest::new()).await.unwrap(), "b");
    assert_eq!(left(&layer), Some(secs(3)), "the rest has grown");
    let snapshot = layer.handle().snapshot();
    let a = snapshot.get(&target("a")).unwrap();
    assert_eq!((a.errors, a.consecutive, a.probing), (4, 4, false), "each attempt once");
    assert_eq!(send(&layer, &providers, PlainRequest::new()).await.unwrap(), "b");
    assert_eq!(providers.calls(), ["a", "b", "b"], "nobody probes at once");

    // One that answers after all has recovered.
    advance(secs(2)).await;
    let recovers = Action::Attempts(vec![Reason::ServerError], Some(Box::new(Action::Answer)));
    providers.set("a", recovers);
    assert_eq!(send(&layer, &providers, PlainRequest::new()).await.unwrap(), "a");
    assert_eq!(left(&layer), None);
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
