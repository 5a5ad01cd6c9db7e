//! How long what rests, what ends it, and what can be seen and steered.

mod support;

use steadfast_core::{Failure, Reason, Scope};
use steadfast_failover::{CooldownFailoverLayer, Status, TargetSpec};
use support::*;
use tokio::time::advance;

fn limited(wait: u64) -> Act {
    fail_with(move || Failure::new(Reason::RateLimit, "").with_retry_after(Some(secs(wait))))
}

#[tokio::test(start_paused = true)]
async fn a_rate_limit_is_over_exactly_when_the_provider_said() {
    let world = World::new();
    world.set("a", limited(90));
    let layer = abc().at_once();
    assert_eq!(ask(&layer, &world, Ask::model("m")).await.unwrap(), "b/m");
    world.mend("a");
    world.calls();
    for (wait, expected) in [(0, "b/m"), (60, "b/m"), (29, "b/m"), (1, "a/m")] {
        advance(secs(wait)).await;
        assert_eq!(ask(&layer, &world, Ask::model("m")).await.unwrap(), expected);
        assert_eq!(world.calls(), [expected], "and nobody else is bothered meanwhile");
    }
}

#[tokio::test(start_paused = true)]
async fn a_rate_limit_is_of_one_model_with_one_key() {
    let world = World::new();
    world.set("a/m#1", limited(90));
    let two_keys = TargetSpec::new("a").with_credential("1").with_credential("2");
    let layer = CooldownFailoverLayer::new(chain([two_keys])).at_once();
    assert_eq!(ask(&layer, &world, Ask::model("m")).await.unwrap(), "a/m#2");
    assert_eq!(ask(&layer, &world, Ask::model("other")).await.unwrap(), "a/other#1");
    assert_eq!(ask(&layer, &world, Ask::model("m")).await.unwrap(), "a/m#2");
}

#[tokio::test(start_paused = true)]
async fn an_operators_key_that_is_refused_is_tried_once() {
    let world = World::new();
    world.set("a#1", fail(Reason::Auth));
    let two_keys = TargetSpec::new("a").with_credential("1").with_credential("2");
    let layer = CooldownFailoverLayer::new(chain([two_keys])).at_once();
    for _ in 0..3 {
        ask(&layer, &world, Ask::model("m")).await.unwrap();
        ask(&layer, &world, Ask::model("n")).await.unwrap();
    }
    let asked = world.calls().iter().filter(|at| at.ends_with("#1")).count();
    assert_eq!(asked, 1, "it is refused for every model");
}

#[tokio::test(start_paused = true)]
async fn a_shorter_cooldown_never_overwrites_a_longer_one() {
    let world = World::new();
    let layer = abc().at_once();
    let handle = layer.handle();
    // Two calls under way together; the second comes back later and with the shorter hint.
    world.set("a", after(secs(1), limited(2)));
    let mut slow = tokio_test::task::spawn(ask(&layer, &world, Ask::model("m")));
    assert!(slow.poll().is_pending());
    world.set("a", limited(300));
    ask(&layer, &world, Ask::model("m")).await.unwrap();
    advance(secs(1)).await;
    slow.await.unwrap();
    let left =
        handle.snapshot().get(&target("a/m")).unwrap().cooling_for(tokio::time::Instant::now());
    assert_eq!(left, Some(secs(299)));
}

#[tokio::test(start_paused = true)]
async fn permanent_failures_are_tried_again_ever_more_rarely() {
    let world = World::new();
    world.set("a", fail_with(|| Failure::new(Reason::Auth, "revoked").with_permanent(true)));
    let layer = abc().tune(|policy| policy.probe_window = secs(0)).at_once();
    let mut asked_at = Vec::new();
    for hour in 0..60 {
        ask(&layer, &world, Ask::new()).await.unwrap();
        if world.calls().contains(&"a".to_owned()) {
            asked_at.push(hour);
        }
        advance(secs(3_600)).await;
    }
    assert_eq!(asked_at, [0, 1, 3, 7, 15, 31, 55], "1, 2, 4, 8, 16, 24 hours apart");
    // An operator renews the key and says so.
    world.mend("a");
    assert_eq!(layer.handle().snapshot().get(&target("a")).unwrap().status, Status::Down);
    assert!(layer.handle().reset(&target("a")));
    assert_eq!(ask(&layer, &world, Ask::new()).await.unwrap(), "a");
}

#[tokio::test(start_paused = true)]
async fn a_success_says_nothing_of_anybody_else() {
    let world = World::new();
    world.set("a", fail(Reason::ServerError)).set("b/m", fail(Reason::Overloaded));
    let layer = abc().at_once();
    let handle = layer.handle();
    ask(&layer, &world, Ask::model("m")).await.unwrap();
    // `b` answers for another model, `c` for this one: neither `a` nor `b/m` is any better for it.
    ask(&layer, &world, Ask::model("n")).await.unwrap();
    let snapshot = handle.snapshot();
    let cooling: Vec<_> = snapshot.cooling().map(|health| health.target.to_string()).collect();
    assert_eq!(cooling, ["a", "b/m"]);
    assert!(snapshot.get(&target("b")).unwrap().last_success.is_some());
    assert!(snapshot.get(&target("b/m")).unwrap().last_success.is_none());
}

#[tokio::test(start_paused = true)]
async fn the_snapshot_says_what_happened() {
    let world = World::new();
    world.set("a", fail(Reason::ServerError));
    let layer = abc().at_once();
    let handle = layer.handle();
    assert!(handle.snapshot().targets().is_empty());
    for (round, status) in [(1, Status::Degraded), (2, Status::Degraded), (3, Status::Down)] {
        ask(&layer, &world, Ask::new()).await.unwrap();
        let snapshot = handle.snapshot();
        let a = snapshot.get(&target("a")).unwrap();
        assert_eq!((a.status, a.consecutive, a.errors), (status, round, u64::from(round)));
        assert_eq!(a.scope, Scope::Provider);
        let last = a.last_error.as_ref().unwrap();
        assert_eq!((last.reason, &*last.message), (Reason::ServerError, "server_error it is"));
        assert_eq!(a.cooling_for(snapshot.at()), Some(secs(60)));
        assert_eq!(a.cooling.unwrap().reason, Reason::ServerError);
        advance(secs(61)).await;
    }
    world.mend("a");
    ask(&layer, &world, Ask::new()).await.unwrap();
    let snapshot = handle.snapshot();
    let a = snapshot.get(&target("a")).unwrap();
    assert_eq!((a.status, a.consecutive, a.errors), (Status::Healthy, 0, 3));
    assert_eq!(a.last_success, Some(tokio::time::Instant::now()));
    assert!(a.cooling.is_none() && !a.probing);
}

#[tokio::test(start_paused = true)]
async fn whoever_watches_is_told() {
    let world = World::new();
    let layer = abc().at_once();
    let mut watch = layer.handle().watch();
    watch.mark_unchanged();
    ask(&layer, &world, Ask::new()).await.unwrap();
    assert!(!watch.has_changed().unwrap(), "a success of the healthy is no news");
    world.set("a", fail(Reason::Network));
    ask(&layer, &world, Ask::new()).await.unwrap();
    assert!(watch.has_changed().unwrap());
    assert!(watch.borrow_and_update().get(&target("a")).unwrap().cooling.is_some());
    world.mend("a");
    advance(secs(31)).await;
    ask(&layer, &world, Ask::new()).await.unwrap();
    assert!(watch.has_changed().unwrap());
    assert_eq!(watch.borrow_and_update().get(&target("a")).unwrap().status, Status::Healthy);
}

#[tokio::test(start_paused = true)]
async fn an_operator_forces_and_resets() {
    let world = World::new();
    let layer = abc().at_once();
    let handle = layer.handle();
    handle.cool(&target("a"), secs(600));
    handle.cool(&target("b/m"), secs(600));
    assert_eq!(ask(&layer, &world, Ask::model("m")).await.unwrap(), "c/m");
    assert_eq!(ask(&layer, &world, Ask::model("n")).await.unwrap(), "b/n");
    advance(secs(590)).await;
    assert_eq!(ask(&layer, &world, Ask::model("m")).await.unwrap(), "c/m", "no probe is sent");
    assert!(handle.reset(&target("a")));
    assert!(!handle.reset(&target("nobody")));
    assert_eq!(ask(&layer, &world, Ask::model("m")).await.unwrap(), "a/m");
    handle.cool(&target("a"), secs(600));
    handle.reset_all();
    assert_eq!(ask(&layer, &world, Ask::model("m")).await.unwrap(), "a/m");
    assert_eq!(handle.snapshot().cooling().count(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_new_chain_drops_what_is_gone_resets_what_changed_and_keeps_the_rest() {
    let specs = || {
        [
            TargetSpec::new("gone"),
            TargetSpec::new("changed").with_window(1_000),
            TargetSpec::new("kept").with_credential("old").with_credential("stays"),
            TargetSpec::new("same"),
        ]
    };
    let world = World::new();
    for bad in ["gone", "changed", "same"] {
        world.set(bad, fail(Reason::ServerError));
    }
    world.set("kept", fail(Reason::Auth));
    let layer = CooldownFailoverLayer::new(chain(specs())).at_once();
    let handle = layer.handle();
    drop(ask(&layer, &world, Ask::new()).await.unwrap_err());
    let cooling = || -> Vec<String> {
        handle.snapshot().cooling().map(|health| health.target.to_string()).collect()
    };
    assert_eq!(cooling(), ["changed", "gone", "kept#old", "kept#stays", "same"]);

    // A call that is under way goes on, and what it learns of what is gone is forgotten with it.
    world.set("gone", after(secs(5), fail(Reason::ServerError)));
    handle.reset(&target("gone"));
    let mut under_way = tokio_test::task::spawn(ask(&layer, &world, Ask::new()));
    assert!(under_way.poll().is_pending());

    let [_, changed, kept, same] = specs();
    let mut renewed = kept;
    renewed.credentials = vec!["new".to_owned(), "stays".to_owned()];
    let next = chain([same, renewed, changed.with_window(2_000), TargetSpec::new("added")]);
    handle.replace_chain(next.clone());
    assert_eq!(handle.chain(), next);
    assert_eq!(cooling(), ["kept#stays", "same"]);

    advance(secs(5)).await;
    drop(under_way.await.unwrap_err());
    assert!(handle.snapshot().get(&target("gone")).is_none());
    world.calls();
    assert_eq!(ask(&layer, &world, Ask::new()).await.unwrap(), "added");
    assert_eq!(world.calls(), ["kept#new", "changed", "added"]);
}

#[tokio::test(start_paused = true)]
async fn chains_are_replaced_by_name() {
    let layer = abc()
        .with_chain("other", chain(["x"]))
        .with_chain_for(|ask: &Ask, _: &steadfast_core::Needs| ask.model.as_ref().map(|_| "other"))
        .at_once();
    let (world, handle) = (World::new(), layer.handle());
    assert_eq!(ask(&layer, &world, Ask::model("m")).await.unwrap(), "x/m");
    handle.replace_named("other", chain(["y"]));
    assert_eq!(ask(&layer, &world, Ask::model("m")).await.unwrap(), "y/m");
    assert_eq!(ask(&layer, &world, Ask::new()).await.unwrap(), "a");
    handle.replace_named("third", chain(["z"]));
    let names: Vec<_> = handle.chains().into_iter().map(|(name, _)| name.to_string()).collect();
    assert_eq!(names, ["", "other", "third"]);
}

#[tokio::test(start_paused = true)]
async fn a_flood_of_model_names_is_bounded_and_forgets_no_cooldown_of_a_provider() {
    let world = World::new();
    world.set("a", fail(Reason::Auth));
    let layer = abc().at_once();
    ask(&layer, &world, Ask::model("m")).await.unwrap();
    for n in 0..6_000 {
        ask(&layer, &world, Ask::model(&format!("made-up-{n}"))).await.unwrap();
    }
    assert!(layer.handle().snapshot().targets().len() <= 4_096);
    assert!(world.calls().iter().filter(|at| at.starts_with('a')).count() == 1);
}

#[tokio::test(start_paused = true)]
async fn a_target_whose_breaker_is_open_is_not_asked_until_the_breaker_lets_it() {
    let world = World::new();
    let layer = abc().at_once();
    world.set(
        "a",
        fail_with(|| Failure::refused(Reason::CircuitOpen, "").with_retry_after(Some(secs(20)))),
    );
    assert_eq!(ask(&layer, &world, Ask::new()).await.unwrap(), "b");
    assert_eq!(world.calls(), ["a", "b"]);
    assert_eq!(ask(&layer, &world, Ask::new()).await.unwrap(), "b");
    assert_eq!(world.calls(), ["b"], "skipped, not refused once more");
    let health = layer.handle().snapshot();
    let health = health.get(&target("a")).unwrap();
    assert_eq!((health.errors, health.consecutive), (0, 0), "it is no failure of the target's");
    advance(secs(20)).await;
    world.mend("a").calls();
    assert_eq!(ask(&layer, &world, Ask::new()).await.unwrap(), "a");
}
