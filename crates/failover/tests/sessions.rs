//! Where a conversation stays, and whose history it has.

#![allow(clippy::unwrap_used, reason = "helpers of a test")]

mod support;

use steadfast_core::{CallContext, Reason};
use steadfast_failover::{CooldownFailoverLayer, TargetSpec};
use support::*;
use tokio::time::advance;

/// Where the calls went, and whether the history was taken for somebody else's.
fn seen(world: &World) -> Vec<(String, bool)> {
    world
        .seen()
        .into_iter()
        .map(|seen| (seen.at, seen.ask.fitted.unwrap().foreign_history))
        .collect()
}

#[tokio::test(start_paused = true)]
async fn a_session_stays_until_its_cache_is_gone() {
    let world = World::new();
    let layer = abc().at_once();
    ask(&layer, &world, Ask::session("s")).await.unwrap();
    world.set("a", fail(Reason::Network));
    assert_eq!(ask(&layer, &world, Ask::session("s")).await.unwrap(), "b");
    world.mend("a");
    advance(secs(31)).await;
    // `a` is back for everybody else; the session has its prompt cached at `b`.
    for _ in 0..3 {
        assert_eq!(ask(&layer, &world, Ask::new()).await.unwrap(), "a");
        assert_eq!(ask(&layer, &world, Ask::session("t")).await.unwrap(), "a");
        assert_eq!(ask(&layer, &world, Ask::session("s")).await.unwrap(), "b");
        advance(secs(299)).await;
    }
    advance(secs(1)).await;
    assert_eq!(ask(&layer, &world, Ask::session("s")).await.unwrap(), "a");
}

#[tokio::test(start_paused = true)]
async fn a_session_leaves_a_target_that_fails() {
    let world = World::new();
    let layer = abc().at_once();
    world.set("a", fail(Reason::Network)).set("b", fail(Reason::Network));
    assert_eq!(ask(&layer, &world, Ask::session("s")).await.unwrap(), "c");
    world.mend("a").mend("b");
    advance(secs(31)).await;
    world.set("c", fail(Reason::Network)).calls();
    assert_eq!(ask(&layer, &world, Ask::session("s")).await.unwrap(), "a");
    assert_eq!(world.calls(), ["c", "a"]);
    world.mend("c");
    advance(secs(31)).await;
    assert_eq!(ask(&layer, &world, Ask::session("s")).await.unwrap(), "a", "it has moved");
}

#[tokio::test(start_paused = true)]
async fn a_session_keeps_its_key_whatever_the_model() {
    let two_keys = TargetSpec::new("a").with_credential("1").with_credential("2");
    let layer = CooldownFailoverLayer::new(chain([two_keys])).at_once();
    let world = World::new();
    world.set("a#1", fail(Reason::RateLimit));
    let with = |model: &str| Ask { model: Some(model.to_owned()), ..Ask::session("s") };
    assert_eq!(ask(&layer, &world, with("m")).await.unwrap(), "a/m#2");
    assert_eq!(ask(&layer, &world, with("n")).await.unwrap(), "a/n#2");
}

#[tokio::test(start_paused = true)]
async fn a_downgrade_does_not_stick() {
    let spec = TargetSpec::new("a").with_downgrade("big", ["small"]);
    let layer = CooldownFailoverLayer::new(chain([spec])).with_downgrade_on_overload().at_once();
    let world = World::new();
    world.set("a/big", fail(Reason::Overloaded));
    let big = || Ask { model: Some("big".to_owned()), ..Ask::session("s") };
    assert_eq!(ask(&layer, &world, big()).await.unwrap(), "a/small");
    world.mend("a/big");
    advance(secs(121)).await;
    assert_eq!(ask(&layer, &world, big()).await.unwrap(), "a/big", "what was asked for is better");
}

#[tokio::test(start_paused = true)]
async fn a_history_is_foreign_to_whoever_did_not_write_all_of_it() {
    let world = World::new();
    let layer = abc().at_once();
    ask(&layer, &world, Ask::session("s")).await.unwrap();
    ask(&layer, &world, Ask::session("s")).await.unwrap();
    assert_eq!(seen(&world), [("a".to_owned(), false), ("a".to_owned(), false)]);
    world.set("a", fail(Reason::Network));
    ask(&layer, &world, Ask::session("s")).await.unwrap();
    assert_eq!(seen(&world), [("a".to_owned(), false), ("b".to_owned(), true)]);
    // From here on parts of it are `a`'s and parts `b`'s: neither reads it all.
    ask(&layer, &world, Ask::session("s")).await.unwrap();
    assert_eq!(seen(&world), [("b".to_owned(), true)]);
    world.mend("a");
    advance(secs(301)).await;
    ask(&layer, &world, Ask::session("s")).await.unwrap();
    assert_eq!(seen(&world), [("a".to_owned(), true)]);
    // A conversation that `b` began is `b`'s own.
    layer.handle().cool(&target("a"), secs(60));
    ask(&layer, &world, Ask::session("t")).await.unwrap();
    ask(&layer, &world, Ask::session("t")).await.unwrap();
    assert_eq!(seen(&world)[1], ("b".to_owned(), false));
}

#[tokio::test(start_paused = true)]
async fn another_model_is_another_author() {
    let world = World::new();
    let layer = abc().at_once();
    for model in ["m", "m", "n"] {
        let request = Ask { model: Some(model.to_owned()), ..Ask::session("s") };
        ask(&layer, &world, request).await.unwrap();
    }
    let foreign: Vec<_> = seen(&world).into_iter().map(|(_, foreign)| foreign).collect();
    assert_eq!(foreign, [false, false, true]);
}

#[tokio::test(start_paused = true)]
async fn tenants_do_not_share_sessions() {
    let world = World::new();
    let layer = abc().at_once();
    let of = |tenant: &str| {
        let context = CallContext::recording().with_tenant(tenant).with_session("s");
        Ask { context, ..Ask::new() }
    };
    world.set("a", fail(Reason::Network));
    ask(&layer, &world, of("acme")).await.unwrap();
    world.mend("a");
    advance(secs(31)).await;
    assert_eq!(ask(&layer, &world, of("umbrella")).await.unwrap(), "a");
    assert_eq!(ask(&layer, &world, of("acme")).await.unwrap(), "b");
}

#[tokio::test(start_paused = true)]
async fn sessions_can_be_turned_off_forgotten_and_are_bounded() {
    let world = World::new();
    let off = abc().with_sticky(secs(0)).at_once();
    ask(&off, &world, Ask::session("s")).await.unwrap();
    assert_eq!(off.handle().sessions(), 0);

    let layer = abc().tune(|policy| policy.sessions = 80).at_once();
    world.set("a", fail(Reason::Network));
    ask(&layer, &world, Ask::session("s")).await.unwrap();
    world.mend("a");
    advance(secs(31)).await;
    assert!(layer.handle().forget_session(None, "s"));
    assert_eq!(ask(&layer, &world, Ask::session("s")).await.unwrap(), "a");
    for n in 0..500 {
        ask(&layer, &world, Ask::session(&n.to_string())).await.unwrap();
    }
    assert!(layer.handle().sessions() <= 80);
}

#[tokio::test(start_paused = true)]
async fn a_session_is_not_held_where_the_chain_no_longer_goes() {
    let world = World::new();
    let layer = abc().at_once();
    world.set("a", fail(Reason::Network));
    assert_eq!(ask(&layer, &world, Ask::session("s")).await.unwrap(), "b");
    layer.handle().replace_chain(chain(["c", "d"]));
    assert_eq!(ask(&layer, &world, Ask::session("s")).await.unwrap(), "c");
    let foreign = world.seen().pop().unwrap().ask.fitted.unwrap().foreign_history;
    assert!(foreign, "and its history is still somebody else's");
}
