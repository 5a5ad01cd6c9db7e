//! One call at a time sees whether a target is back, and its place is always given back.

#![allow(clippy::unwrap_used, reason = "helpers of a test")]

mod support;

use steadfast_core::{Failure, Reason};
use support::*;
use tokio::time::advance;

/// A layer whose `a` rests for a minute because of an error, 40 s ago.
async fn resting(
    world: &World,
) -> steadfast_failover::CooldownFailoverLayer<steadfast_failover::OneChain, steadfast_core::AtOnce>
{
    let layer = abc().at_once();
    world.set("a", fail(Reason::ServerError));
    ask(&layer, world, Ask::new()).await.unwrap();
    advance(secs(40)).await;
    world.calls();
    layer
}

#[tokio::test(start_paused = true)]
async fn one_call_goes_ahead_and_the_others_do_not_wait_for_it() {
    let world = World::new();
    let layer = resting(&world).await;
    world.set("a", after(secs(5), Act::Answer));
    let request = Ask::new();
    let log = request.log();
    let mut probe = tokio_test::task::spawn(ask(&layer, &world, request));
    assert!(probe.poll().is_pending());
    assert!(layer.handle().snapshot().get(&target("a")).unwrap().probing);
    for _ in 0..20 {
        assert_eq!(ask(&layer, &world, Ask::new()).await.unwrap(), "b");
    }
    advance(secs(5)).await;
    assert_eq!(probe.await.unwrap(), "a");
    assert!(log.to_string().contains("failover.probe a; failover.recovered a"), "{log}");
    assert_eq!(world.calls().iter().filter(|at| *at == "a").count(), 1);
    assert_eq!(ask(&layer, &world, Ask::new()).await.unwrap(), "a", "everybody is back");
}

#[tokio::test(start_paused = true)]
async fn a_failed_probe_is_answered_by_the_next_target_and_rests_again() {
    let world = World::new();
    let layer = resting(&world).await;
    assert_eq!(ask(&layer, &world, Ask::new()).await.unwrap(), "b");
    assert_eq!(world.calls(), ["a", "b"]);
    assert_eq!(ask(&layer, &world, Ask::new()).await.unwrap(), "b");
    assert_eq!(world.calls(), ["b"], "not again at once");
    advance(secs(30)).await;
    ask(&layer, &world, Ask::new()).await.unwrap();
    assert_eq!(world.calls(), ["a", "b"]);
}

#[tokio::test(start_paused = true)]
async fn every_way_out_frees_the_place() {
    let ways: [(&str, Act); 4] = [
        ("dropped", Act::Hang),
        ("the caller's mistake", fail(Reason::Format)),
        ("our own refusal", fail(Reason::CircuitOpen)),
        ("cancelled", fail(Reason::Cancelled)),
    ];
    for (way, act) in ways {
        let world = World::new();
        let layer = resting(&world).await;
        world.set("a", act);
        let mut probe = tokio_test::task::spawn(ask(&layer, &world, Ask::new()));
        let _ = probe.poll();
        drop(probe);
        assert!(!layer.handle().snapshot().get(&target("a")).unwrap().probing, "{way}");
        world.mend("a").calls();
        assert_eq!(ask(&layer, &world, Ask::new()).await.unwrap(), "a", "{way}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_that_does_not_fit_frees_the_place() {
    let world = World::new();
    let layer = resting(&world).await;
    world.mend("a");
    let unfit = Ask { unfit_for: Some("a"), ..Ask::new() };
    assert_eq!(ask(&layer, &world, unfit).await.unwrap(), "b");
    assert_eq!(ask(&layer, &world, Ask::new()).await.unwrap(), "a");
}

#[tokio::test(start_paused = true)]
async fn a_panicking_probe_frees_the_place_and_counts() {
    let world = World::new();
    let layer = resting(&world).await;
    world.set("a", fail_with(|| panic!("the client has a bug")));
    let (task_layer, task_world) = (layer.clone(), world.clone());
    let died = tokio::spawn(async move { ask(&task_layer, &task_world, Ask::new()).await }).await;
    assert!(died.unwrap_err().is_panic());
    let snapshot = layer.handle().snapshot();
    let a = snapshot.get(&target("a")).unwrap();
    assert!(!a.probing);
    assert_eq!(a.errors, 2);
}

#[tokio::test(start_paused = true)]
async fn a_probe_that_hangs_for_ever_does_not_lock_the_others_out() {
    let world = World::new();
    let layer = abc().at_once();
    world.set("a", fail(Reason::ModelNotFound));
    ask(&layer, &world, Ask::model("m")).await.unwrap();
    advance(secs(3_600 - 20)).await;
    world.set("a", Act::Hang);
    let mut lost = tokio_test::task::spawn(ask(&layer, &world, Ask::model("m")));
    assert!(lost.poll().is_pending());
    assert_eq!(ask(&layer, &world, Ask::model("m")).await.unwrap(), "b/m");
    world.mend("a");
    advance(secs(180)).await;
    assert_eq!(ask(&layer, &world, Ask::model("m")).await.unwrap(), "a/m");
    drop(lost);
    assert_eq!(
        ask(&layer, &world, Ask::model("m")).await.unwrap(),
        "a/m",
        "and its end is no news"
    );
}

#[tokio::test(start_paused = true)]
async fn what_was_under_way_before_the_failure_decides_nothing() {
    let world = World::new();
    let layer = abc().at_once();
    world.set("a", after(secs(10), Act::Answer));
    let mut early = tokio_test::task::spawn(ask(&layer, &world, Ask::new()));
    assert!(early.poll().is_pending());
    world.set("a", fail(Reason::ServerError));
    ask(&layer, &world, Ask::new()).await.unwrap();
    advance(secs(10)).await;
    assert_eq!(early.await.unwrap(), "a", "its own answer is good");
    assert_eq!(ask(&layer, &world, Ask::new()).await.unwrap(), "b", "the others still keep away");

    // And the other way round: a late failure does not spoil a recovery.
    world.set("a", Act::Answer);
    advance(secs(60)).await;
    world.set("a", after(secs(10), fail(Reason::ServerError)));
    let mut late = tokio_test::task::spawn(ask(&layer, &world, Ask::new()));
    assert!(late.poll().is_pending());
    world.set("a", fail(Reason::ServerError));
    ask(&layer, &world, Ask::new()).await.unwrap();
    advance(secs(5)).await;
    layer.handle().reset(&target("a"));
    world.mend("a");
    advance(secs(5)).await;
    assert_eq!(late.await.unwrap(), "b");
    assert_eq!(ask(&layer, &world, Ask::new()).await.unwrap(), "a");
}

#[tokio::test(start_paused = true)]
async fn nothing_is_probed_while_a_provider_asked_for_time() {
    let world = World::new();
    let layer = abc().at_once();
    world.set(
        "a",
        fail_with(|| Failure::new(Reason::Overloaded, "").with_retry_after(Some(secs(60)))),
    );
    ask(&layer, &world, Ask::new()).await.unwrap();
    world.mend("a").calls();
    advance(secs(59)).await;
    ask(&layer, &world, Ask::new()).await.unwrap();
    assert_eq!(world.calls(), ["b"]);
}

#[tokio::test(start_paused = true)]
async fn probes_race_from_many_threads_and_one_wins() {
    let world = World::new();
    let layer = resting(&world).await;
    world.set("a", Act::Hang);
    let mut calls: Vec<_> = (0..50)
        .map(|_| {
            let (layer, world) = (layer.clone(), world.clone());
            tokio::spawn(async move { ask(&layer, &world, Ask::new()).await })
        })
        .collect();
    let mut answered = 0;
    for call in &mut calls {
        answered += usize::from(tokio::time::timeout(secs(1), call).await.is_ok());
    }
    assert_eq!(answered, 49);
    assert_eq!(world.calls().iter().filter(|at| *at == "a").count(), 1);
    calls.iter().for_each(tokio::task::JoinHandle::abort);
}
