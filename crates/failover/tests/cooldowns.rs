//! Cooldowns: their length and scope, what ends them, snapshots and the handle.

mod support;

use steadfast_core::{Failure, Reason, Scope};
use steadfast_failover::{CooldownFailoverLayer, Status, TargetSpec};
use support::*;
use tokio::time::advance;

#[tokio::test(start_paused = true)]
async fn a_rate_limit_cools_one_model_with_one_key() {
    let providers = Providers::new();
    providers.set("a/m#1", limited(90));
    let two_keys = TargetSpec::new("a").with_credential("1").with_credential("2");
    let layer = CooldownFailoverLayer::new(chain([two_keys])).at_once();
    for _ in 0..2 {
        assert_eq!(send(&layer, &providers, PlainRequest::model("m")).await.unwrap(), "a/m#2");
        assert_eq!(providers.calls(), ["a/m#1", "a/m#2"]);
    }
    assert_eq!(send(&layer, &providers, PlainRequest::model("other")).await.unwrap(), "a/other#1");
    providers.calls();
    assert_eq!(send(&layer, &providers, PlainRequest::model("m")).await.unwrap(), "a/m#2");
    assert_eq!(providers.calls(), ["a/m#2"]);
}

#[tokio::test(start_paused = true)]
async fn a_refused_key_is_tried_once() {
    let providers = Providers::new();
    providers.set("a#1", fail(Reason::Auth));
    let two_keys = TargetSpec::new("a").with_credential("1").with_credential("2");
    let layer = CooldownFailoverLayer::new(chain([two_keys])).at_once();
    for _ in 0..3 {
        send(&layer, &providers, PlainRequest::model("m")).await.unwrap();
        send(&layer, &providers, PlainRequest::model("n")).await.unwrap();
    }
    let calls = providers.calls().iter().filter(|at| at.ends_with("#1")).count();
    assert_eq!(calls, 1, "it is refused for every model");
}

#[tokio::test(start_paused = true)]
async fn a_shorter_cooldown_never_overwrites_a_longer_one() {
    let providers = Providers::new();
    let layer = abc().at_once();
    let handle = layer.handle();
    let left =
        || handle.snapshot().get(&target("a/m")).unwrap().cooling_for(tokio::time::Instant::now());
    let model = || PlainRequest::model("m");
    // Concurrent calls; the first one ends last, with the shorter hint.
    providers.set("a", after(secs(1), limited(2)));
    let mut slow = tokio_test::task::spawn(send(&layer, &providers, model()));
    assert!(slow.poll().is_pending());
    providers.set("a", limited(300));
    for _ in 0..2 {
        send(&layer, &providers, model()).await.unwrap();
    }
    assert_eq!(left(), Some(secs(300)));
    advance(secs(1)).await;
    slow.await.unwrap();
    assert_eq!(left(), Some(secs(299)));
    // One that is asked in its rest, because nobody else answers, may only lengthen that.
    for (hint, rest) in [(2, 299), (400, 400), (300, 400)] {
        providers.set("a", limited(hint)).set_all(&["b", "c"], &fail(Reason::Format));
        layer.handle().cool(&target("b"), secs(1_000));
        layer.handle().cool(&target("c"), secs(1_000));
        let mut asked = tokio_test::task::spawn(send(&layer, &providers, model()));
        let _ = asked.poll();
        assert_eq!(left(), Some(secs(rest)), "{hint}");
    }
}

#[tokio::test(start_paused = true)]
async fn permanent_failures_are_retried_with_growing_cooldowns() {
    let providers = Providers::new();
    providers.set("a", fail_with(|| Failure::new(Reason::Auth, "revoked").with_permanent(true)));
    let layer = abc().tune(|policy| policy.probe_window = secs(0)).at_once();
    let mut called_at = Vec::new();
    for hour in 0..60 {
        send(&layer, &providers, PlainRequest::new()).await.unwrap();
        if providers.calls().contains(&"a".to_owned()) {
            called_at.push(hour);
        }
        advance(secs(3_600)).await;
    }
    assert_eq!(called_at, [0, 1, 3, 7, 15, 31, 55], "1, 2, 4, 8, 16, 24 hours apart");
    // An operator renews the key and resets the target.
    providers.repair("a");
    assert_eq!(layer.handle().snapshot().get(&target("a")).unwrap().status, Status::Down);
    assert!(layer.handle().reset(&target("a")));
    assert_eq!(send(&layer, &providers, PlainRequest::new()).await.unwrap(), "a");
}

#[tokio::test(start_paused = true)]
async fn a_success_does_not_end_other_cooldowns() {
    let providers = Providers::new();
    providers.set("a", fail(Reason::ServerError)).set("b/m", fail(Reason::Overloaded));
    let layer = abc().at_once();
    let handle = layer.handle();
    for _ in 0..2 {
        send(&layer, &providers, PlainRequest::model("m")).await.unwrap();
    }
    // `b` answers for another model, `c` for this one: `a` and `b/m` are still cooling.
    send(&layer, &providers, PlainRequest::model("n")).await.unwrap();
    let snapshot = handle.snapshot();
    let cooling: Vec<_> = snapshot.cooling().map(|health| health.target.to_string()).collect();
    assert_eq!(cooling, ["a", "b/m"]);
    assert!(snapshot.get(&target("b")).unwrap().last_success.is_some());
    assert!(snapshot.get(&target("b/m")).unwrap().last_success.is_none());
}

#[tokio::test(start_paused = true)]
async fn the_snapshot_has_the_state_of_each_target() {
    let providers = Providers::new();
    providers.set("a", fail(Reason::ServerError));
    let layer = abc().at_once();
    let handle = layer.handle();
    assert!(handle.snapshot().targets().is_empty());
    for (round, status, rest) in [
        (1, Status::Degraded, None),
        (2, Status::Degraded, Some(secs(2))),
        (3, Status::Down, Some(secs(3))),
    ] {
        send(&layer, &providers, PlainRequest::new()).await.unwrap();
        let snapshot = handle.snapshot();
        let a = snapshot.get(&target("a")).unwrap();
        assert_eq!((a.status, a.consecutive, a.errors), (status, round, u64::from(round)));
        assert_eq!(a.scope, Scope::Provider);
        let last = a.last_error.as_ref().unwrap();
        assert_eq!((last.reason, &*last.message), (Reason::ServerError, "server_error it is"));
        assert_eq!(a.cooling_for(snapshot.at()), rest);
        assert_eq!(a.cooling.map(|cooldown| cooldown.reason), rest.map(|_| Reason::ServerError));
        advance(secs(3)).await;
    }
    providers.repair("a");
    send(&layer, &providers, PlainRequest::new()).await.unwrap();
    let snapshot = handle.snapshot();
    let a = snapshot.get(&target("a")).unwrap();
    assert_eq!((a.status, a.consecutive, a.errors), (Status::Healthy, 0, 3));
    assert_eq!(a.last_success, Some(tokio::time::Instant::now()));
    assert!(a.cooling.is_none() && !a.probing);
}

#[tokio::test(start_paused = true)]
async fn watchers_are_notified_of_changes() {
    let providers = Providers::new();
    let layer = abc().at_once();
    let mut watch = layer.handle().watch();
    watch.mark_unchanged();
    send(&layer, &providers, PlainRequest::new()).await.unwrap();
    assert!(!watch.has_changed().unwrap(), "a success of a healthy target is no change");
    providers.set("a", fail(Reason::Network));
    for (status, cools) in [(Status::Degraded, false), (Status::Degraded, true)] {
        send(&layer, &providers, PlainRequest::new()).await.unwrap();
        assert!(watch.has_changed().unwrap());
        let snapshot = watch.borrow_and_update();
        let a = snapshot.get(&target("a")).unwrap();
        assert_eq!((a.status, a.cooling.is_some()), (status, cools));
    }
    providers.repair("a");
    advance(secs(2)).await;
    send(&layer, &providers, PlainRequest::new()).await.unwrap();
    assert!(watch.has_changed().unwrap());
    assert_eq!(watch.borrow_and_update().get(&target("a")).unwrap().status, Status::Healthy);
}

#[tokio::test(start_paused = true)]
async fn an_operator_cools_and_resets() {
    let providers = Providers::new();
    let layer = abc().at_once();
    let handle = layer.handle();
    handle.cool(&target("a"), secs(600));
    handle.cool(&target("b/m"), secs(600));
    assert_eq!(send(&layer, &providers, PlainRequest::model("m")).await.unwrap(), "c/m");
    assert_eq!(send(&layer, &providers, PlainRequest::model("n")).await.unwrap(), "b/n");
    advance(secs(590)).await;
    assert_eq!(
        send(&layer, &providers, PlainRequest::model("m")).await.unwrap(),
        "c/m",
        "no probe is sent"
    );
    assert!(handle.reset(&target("a")));
    assert!(!handle.reset(&target("unknown")));
    assert_eq!(send(&layer, &providers, PlainRequest::model("m")).await.unwrap(), "a/m");
    handle.cool(&target("a"), secs(600));
    handle.reset_all();
    assert_eq!(send(&layer, &providers, PlainRequest::model("m")).await.unwrap(), "a/m");
    assert_eq!(handle.snapshot().cooling().count(), 0);
}

#[tokio::test(start_paused = true)]
async fn what_an_operator_takes_out_is_not_asked_until_it_is_put_back() {
    let providers = Providers::new();
    let layer = abc().at_once();
    let handle = layer.handle();
    assert!(handle.take_out(&target("a")) && !handle.take_out(&target("a")));
    assert!(handle.snapshot().get(&target("a")).unwrap().out);
    // Longer than anything rests, and with nobody else: nothing is tried out either.
    advance(secs(7 * 24 * 3_600)).await;
    assert_eq!(send(&layer, &providers, PlainRequest::new()).await.unwrap(), "b");
    handle.take_out(&target("b"));
    handle.take_out(&target("c"));
    providers.calls();
    let failure = send(&layer, &providers, PlainRequest::new()).await.unwrap_err();
    assert!(providers.calls().is_empty());
    assert_eq!((failure.reason(), failure.retry_after()), (Reason::Exhausted, None), "{failure}");
    assert!(failure.to_string().contains("taken out by an operator"), "{failure}");
    assert!(handle.put_back(&target("b")) && !handle.put_back(&target("b")));
    assert!(!handle.put_back(&target("unknown")));
    assert_eq!(send(&layer, &providers, PlainRequest::new()).await.unwrap(), "b");
    // To forget what happened to it puts it back as well.
    assert!(handle.reset(&target("a")));
    assert_eq!(send(&layer, &providers, PlainRequest::new()).await.unwrap(), "a");
    assert_eq!(handle.snapshot().cooling().count(), 1);
}

#[tokio::test(start_paused = true)]
async fn what_happens_to_it_while_it_is_out_is_known_when_it_is_put_back() {
    let providers = Providers::new();
    let layer = abc().at_once();
    let handle = layer.handle();
    handle.cool(&target("a"), secs(600));
    handle.take_out(&target("a"));
    handle.put_back(&target("a"));
    assert_eq!(send(&layer, &providers, PlainRequest::new()).await.unwrap(), "b");
    assert!(handle.snapshot().get(&target("a")).unwrap().cooling.is_some());
}

#[tokio::test(start_paused = true)]
async fn a_new_chain_drops_removed_targets_resets_changed_ones_and_keeps_the_rest() {
    let specs = || {
        [
            TargetSpec::new("removed"),
            TargetSpec::new("changed").with_window(1_000),
            TargetSpec::new("kept").with_credential("old").with_credential("unchanged"),
            TargetSpec::new("same"),
        ]
    };
    let providers = Providers::new();
    for bad in ["removed", "changed", "same"] {
        providers.set(bad, fail(Reason::ServerError));
    }
    providers.set("kept", fail(Reason::Auth));
    let layer = CooldownFailoverLayer::new(chain(specs())).at_once();
    let handle = layer.handle();
    // Two callers: the failures of one would be its own.
    for _ in 0..2 {
        drop(send(&layer, &providers, PlainRequest::new()).await.unwrap_err());
    }
    let cooling = || -> Vec<String> {
        handle.snapshot().cooling().map(|health| health.target.to_string()).collect()
    };
    assert_eq!(cooling(), ["changed", "kept#old", "kept#unchanged", "removed", "same"]);

    // A call that is under way continues, and its outcome for a removed target is ignored.
    providers.set("removed", after(secs(5), fail(Reason::ServerError)));
    handle.reset(&target("removed"));
    let mut under_way = tokio_test::task::spawn(send(&layer, &providers, PlainRequest::new()));
    assert!(under_way.poll().is_pending());

    let [_, changed, kept, same] = specs();
    let mut renewed = kept;
    renewed.credentials = vec!["new".to_owned(), "unchanged".to_owned()];
    let next = chain([same, renewed, changed.with_window(2_000), TargetSpec::new("added")]);
    handle.replace_chain(next.clone());
    assert_eq!(handle.chain(), next);
    assert_eq!(cooling(), ["kept#unchanged", "same"]);

    advance(secs(5)).await;
    drop(under_way.await.unwrap_err());
    assert!(handle.snapshot().get(&target("removed")).is_none());
    providers.calls();
    assert_eq!(send(&layer, &providers, PlainRequest::new()).await.unwrap(), "added");
    assert_eq!(providers.calls(), ["same", "kept#new", "changed", "added"], "a probe of `same`");
}

#[tokio::test(start_paused = true)]
async fn chains_are_replaced_by_name() {
    let layer = abc()
        .with_chain("other", chain(["x"]))
        .with_chain_for(|request: &PlainRequest, _: &steadfast_core::Needs| {
            request.model.as_ref().map(|_| "other")
        })
        .at_once();
    let (providers, handle) = (Providers::new(), layer.handle());
    assert_eq!(send(&layer, &providers, PlainRequest::model("m")).await.unwrap(), "x/m");
    handle.replace_named("other", chain(["y"]));
    assert_eq!(send(&layer, &providers, PlainRequest::model("m")).await.unwrap(), "y/m");
    assert_eq!(send(&layer, &providers, PlainRequest::new()).await.unwrap(), "a");
    handle.replace_named("third", chain(["z"]));
    let names: Vec<_> = handle.chains().into_iter().map(|(name, _)| name.to_string()).collect();
    assert_eq!(names, ["", "other", "third"]);
}

#[tokio::test(start_paused = true)]
async fn state_is_bounded_with_many_model_names_and_keeps_cooldowns_of_providers() {
    let providers = Providers::new();
    providers.set("a", fail(Reason::Auth));
    let layer = abc().at_once();
    send(&layer, &providers, PlainRequest::model("m")).await.unwrap();
    providers.calls();
    for n in 0..6_000 {
        send(&layer, &providers, PlainRequest::model(&format!("made-up-{n}"))).await.unwrap();
        // Not kept: a request holds the records of the targets it may go to.
        assert!(providers.calls().iter().all(|at| at.starts_with('b')), "{n}");
    }
    assert!(layer.handle().snapshot().targets().len() <= 4_096);
}

#[tokio::test(start_paused = true)]
async fn a_target_with_an_open_breaker_is_skipped_until_it_may_be_called() {
    let providers = Providers::new();
    let layer = abc().at_once();
    providers.set(
        "a",
        fail_with(|| Failure::refused(Reason::CircuitOpen, "").with_retry_after(Some(secs(20)))),
    );
    assert_eq!(send(&layer, &providers, PlainRequest::new()).await.unwrap(), "b");
    assert_eq!(providers.calls(), ["a", "b"]);
    assert_eq!(send(&layer, &providers, PlainRequest::new()).await.unwrap(), "b");
    assert_eq!(providers.calls(), ["b"], "skipped, without another refusal");
    let health = layer.handle().snapshot();
    let health = health.get(&target("a")).unwrap();
    assert_eq!(
        (health.errors, health.consecutive),
        (0, 0),
        "a refusal is no failure of the target"
    );
    advance(secs(20)).await;
    providers.repair("a").calls();
    assert_eq!(send(&layer, &providers, PlainRequest::new()).await.unwrap(), "a");
}

/// Callers can ask for any number of models that do not exist.
#[tokio::test(start_paused = true)]
async fn invented_models_evict_nothing_of_one_that_answers() {
    let providers = Providers::new();
    let two = [TargetSpec::new("a"), TargetSpec::new("b")];
    let layer = CooldownFailoverLayer::new(chain(two)).at_once();
    let send = async |model: &str| send(&layer, &providers, PlainRequest::model(model)).await;
    assert_eq!(send("m").await.unwrap(), "a/m");
    providers.set("a/m", limited(3_000));
    for _ in 0..2 {
        assert_eq!(send("m").await.unwrap(), "b/m");
    }
    providers.set("a", fail(Reason::ModelNotFound)).set("b", fail(Reason::ModelNotFound));
    providers.set("b/m", Action::Answer);
    advance(secs(60)).await;
    for n in 0..5_000 {
        assert!(send(&format!("invented-{n}")).await.is_err());
    }
    providers.calls();
    assert_eq!(send("m").await.unwrap(), "b/m");
    assert_eq!(providers.calls(), ["b/m"], "it still rests");
}
