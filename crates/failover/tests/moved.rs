//! Conversations that are moved at one node and go on at another.

#![allow(clippy::unwrap_used, reason = "helpers of a test")]

mod support;

use std::{sync::Arc, time::Duration};

use steadfast_core::{
    AtOnce, CallContext, Preference, Reason, Target,
    shared::{EmbeddedStore, SharedState},
};
use steadfast_failover::{CooldownFailoverLayer, OneChain, TargetSpec};
use steadfast_testkit::SharedNode;
use support::*;
use tokio::time::{Instant, advance, sleep};
use tower::{Layer, ServiceExt};

/// A node with its own layer, in front of the same providers.
struct Node {
    layer: CooldownFailoverLayer<OneChain, AtOnce>,
    state: Arc<SharedNode>,
    providers: Providers,
}

impl Node {
    async fn send(&self, request: PlainRequest) -> String {
        send(&self.layer, &self.providers, request).await.unwrap()
    }

    async fn turn(&self, session: &str) -> String {
        self.send(PlainRequest::session(session)).await
    }

    fn gets(&self) -> usize {
        self.state.take_reads()
    }

    fn puts(&self) -> usize {
        self.state.take_writes()
    }

    /// Whether the history of the last call counted as foreign.
    fn foreign(&self) -> bool {
        self.providers.received().pop().unwrap().request.fitted.unwrap().foreign_history
    }
}

fn node(store: &EmbeddedStore, name: &str, providers: &Providers) -> Node {
    let layer = abc().at_once();
    let state = Arc::new(SharedNode::new(store.join(name)));
    assert!(layer.handle().share(state.clone()));
    Node { layer, state, providers: providers.clone() }
}

fn two() -> (Node, Node, EmbeddedStore) {
    let (store, providers) = (EmbeddedStore::new(), Providers::new());
    (node(&store, "one", &providers), node(&store, "other", &providers), store)
}

/// Until the others have heard.
async fn heard() {
    sleep(Duration::from_millis(1)).await;
}

/// Has `session` answered by `b` at `node`, while `a` fails it once.
async fn move_to_b(node: &Node, request: PlainRequest) {
    node.providers.set("a", fail(Reason::Network));
    assert_eq!(node.send(request).await, "b");
    node.providers.repair("a").calls();
    heard().await;
}

#[tokio::test(start_paused = true)]
async fn a_conversation_that_was_moved_goes_on_there_at_another_node() {
    let (one, other, _) = two();
    move_to_b(&one, PlainRequest::session("s")).await;
    assert_eq!(other.turn("s").await, "b");
    assert_eq!((other.gets(), other.turn("s").await.as_str(), other.gets()), (1, "b", 0), "known");
    assert_eq!(other.turn("t").await, "a", "another conversation");
    assert_eq!((other.gets(), other.turn("t").await.as_str(), other.gets()), (1, "a", 0));
}

#[tokio::test(start_paused = true)]
async fn its_history_is_as_foreign_there() {
    let (one, other, _) = two();
    assert_eq!(one.turn("s").await, "a");
    move_to_b(&one, PlainRequest::session("s")).await;
    assert_eq!(other.turn("s").await, "b");
    assert!(other.foreign(), "both have written parts of it");
    move_to_b(&one, PlainRequest::session("t")).await;
    assert_eq!(other.turn("t").await, "b");
    assert!(!other.foreign(), "it has written all of it");
}

#[tokio::test(start_paused = true)]
async fn what_a_node_knew_before_others_moved_any_is_read_again() {
    let (one, other, _) = two();
    for node in [&one, &other] {
        assert_eq!(node.turn("s").await, "a");
    }
    advance(secs(10)).await;
    move_to_b(&one, PlainRequest::session("s")).await;
    assert_eq!(other.turn("s").await, "b");
    assert_eq!((other.gets(), other.turn("s").await.as_str(), other.gets()), (1, "b", 0));
}

#[tokio::test(start_paused = true)]
async fn one_without_a_name_is_recognised_by_how_it_begins() {
    let (one, other, store) = two();
    let turn = |text, first| PlainRequest { begins: Some((text, first)), ..PlainRequest::new() };
    move_to_b(&one, turn("fix the tests", true)).await;
    assert_eq!(other.send(turn("fix the tests", true)).await, "a", "this one only begins");
    assert_eq!(other.gets(), 0);
    assert_eq!(other.send(turn("fix the tests", false)).await, "b");
    assert_eq!(other.gets(), 1);
    for _ in 0..5 {
        assert_eq!(other.send(turn("write a poem", false)).await, "a");
    }
    assert_eq!(other.gets(), 1, "nobody has moved it, and others are asked once");
    let of_acme = CallContext::recording().with_tenant("acme");
    let of_acme = PlainRequest { context: of_acme, ..turn("fix the tests", false) };
    assert_eq!(other.send(of_acme).await, "a", "another tenant's");
    // The next one that begins so and is answered as ever: it is over for all that begin so.
    assert_eq!(one.send(turn("fix the tests", true)).await, "a");
    let late = node(&store, "late", &one.providers);
    heard().await;
    assert_eq!(late.send(turn("fix the tests", false)).await, "a");
    assert_eq!(late.gets(), 1);
}

#[tokio::test(start_paused = true)]
async fn tenants_are_kept_apart() {
    let (one, other, _) = two();
    let of = |tenant: &str, session: &str| {
        let context = CallContext::recording().with_tenant(tenant).with_session(session);
        PlainRequest { context, ..PlainRequest::new() }
    };
    move_to_b(&one, of("acme", "s")).await;
    for (tenant, session, at) in [("umbrella", "s", "a"), ("acm", "es", "a"), ("acme", "s", "b")] {
        assert_eq!(other.send(of(tenant, session)).await, at, "{tenant} {session}");
    }
    assert_eq!(other.turn("s").await, "a");
}

#[tokio::test(start_paused = true)]
async fn a_provider_of_the_same_name_that_is_another_one_is_not_taken_for_the_same() {
    let (store, providers) = (EmbeddedStore::new(), Providers::new());
    let node = |name: &str, key: &'static str| {
        let layer = abc().at_once();
        let state = Arc::new(SharedNode::new(store.join(name)));
        let name = move |target: &Target| Some(format!("{target} {key}"));
        assert!(layer.handle().share_named(state.clone(), name));
        Node { layer, state, providers: providers.clone() }
    };
    let (one, same, other) = (node("1", "key"), node("2", "key"), node("3", "another key"));
    move_to_b(&one, PlainRequest::session("s")).await;
    assert_eq!((other.turn("s").await.as_str(), other.gets()), ("a", 1));
    assert_eq!((same.turn("s").await.as_str(), same.gets()), ("b", 1));
}

#[tokio::test(start_paused = true)]
async fn it_holds_for_its_time_and_is_put_again_in_quarters_of_it() {
    let (one, other, _) = two();
    move_to_b(&one, PlainRequest::session("s")).await;
    assert_eq!(one.puts(), 1);
    for _ in 0..30 {
        advance(secs(10)).await;
        assert_eq!(one.turn("s").await, "b");
    }
    assert!((3..=4).contains(&one.puts()), "every 75 s");
    // It was put 60 s ago at most: so much sooner its time is over for a node that only reads it.
    advance(secs(220)).await;
    heard().await;
    assert_eq!(other.turn("s").await, "b");
    let (one, other, _) = two();
    move_to_b(&one, PlainRequest::session("s")).await;
    advance(secs(300)).await;
    assert_eq!(other.turn("s").await, "a", "its cache is gone");
}

#[tokio::test(start_paused = true)]
async fn one_that_is_back_is_back_for_all() {
    let (one, other, store) = two();
    let keyed = |node: &str| {
        let providers = one.providers.clone();
        let two_keys = TargetSpec::new("a").with_credential("1").with_credential("2");
        let layer = CooldownFailoverLayer::new(chain([two_keys])).at_once();
        let state = Arc::new(SharedNode::new(store.join(node)));
        assert!(layer.handle().share(state.clone()));
        Node { layer, state, providers }
    };
    let (first, second, third) = (keyed("1"), keyed("2"), keyed("3"));
    first.providers.set("a#1", fail(Reason::RateLimit));
    assert_eq!(first.turn("s").await, "a#2");
    first.providers.repair("a#1");
    heard().await;
    assert_eq!(second.turn("s").await, "a#2", "the key that has its cache");
    first.providers.set("a#2", fail(Reason::RateLimit));
    assert_eq!(first.turn("s").await, "a#1");
    first.providers.repair("a#2");
    heard().await;
    assert_eq!(third.turn("s").await, "a#1");
    assert_eq!((first.turn("s").await.as_str(), first.puts()), ("a#1", 2), "and no more than that");
    assert_eq!(other.gets() + one.gets(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_session_that_an_operator_forgets_is_forgotten_by_the_store_too() {
    let (one, other, _) = two();
    move_to_b(&one, PlainRequest::session("s")).await;
    move_to_b(&other, PlainRequest::session("another")).await;
    assert!(one.layer.handle().forget_session(None, "s"));
    assert_eq!(one.turn("s").await, "a");
    assert_eq!(other.turn("s").await, "a");
}

#[tokio::test(start_paused = true)]
async fn nothing_is_asked_while_nobody_has_moved_one() {
    let (one, other, _) = two();
    for n in 0..1_000 {
        let node = if n % 2 == 0 { &one } else { &other };
        assert_eq!(node.turn(&format!("{}", n % 50)).await, "a");
    }
    assert_eq!((one.gets(), one.puts(), other.gets(), other.puts()), (0, 0, 0, 0));
    let commands: u64 = [&one, &other].map(|node| node.state.fleet().store.commands).iter().sum();
    assert_eq!(commands, 0);
}

#[tokio::test(start_paused = true)]
async fn a_busy_fleet_hardly_asks_the_store_for_those_that_were_moved() {
    for seed in 0..4 {
        let (one, other, _) = two();
        let mut random = fastrand::Rng::with_seed(seed);
        // One in fifty conversations is moved, and all go on for an hour, each turn at either node.
        move_to_b(&one, PlainRequest::session("0")).await;
        let commands = || [&one, &other].map(|node| node.state.fleet().store.commands).iter().sum();
        let (before, mut calls): (u64, u64) = (commands(), 0);
        for _ in 0..180 {
            for n in 0..50 {
                let node = if random.bool() { &one } else { &other };
                let at = node.turn(&n.to_string()).await;
                assert_eq!(at, if n == 0 { "b" } else { "a" });
                calls += 1;
            }
            sleep(secs(20)).await;
        }
        let commands = commands() - before;
        assert!(commands * 1_000 < 20 * calls, "{commands} for {calls} calls, seed {seed}");
        // Each conversation is read once by each node: none seemed to have been moved anew.
        let reads = [one.gets(), other.gets()];
        assert!(reads.iter().all(|reads| *reads <= 50), "{reads:?}, seed {seed}");
    }
}

#[tokio::test(start_paused = true)]
async fn while_the_store_is_away_nothing_waits_and_nothing_is_asked() {
    let (one, other, store) = two();
    move_to_b(&one, PlainRequest::session("s")).await;
    store.set_away(true);
    let start = Instant::now();
    assert_eq!((other.turn("s").await.as_str(), other.gets()), ("a", 0));
    assert_eq!(one.turn("s").await, "b");
    assert_eq!(start.elapsed(), Duration::ZERO);
    store.set_away(false);
    heard().await;
    move_to_b(&one, PlainRequest::session("t")).await;
    assert_eq!(other.turn("t").await, "b");
}

#[tokio::test(start_paused = true)]
async fn a_store_that_loses_everything_has_it_again_when_it_is_put_again() {
    let (one, other, store) = two();
    move_to_b(&one, PlainRequest::session("s")).await;
    store.lose();
    heard().await;
    assert_eq!(other.turn("s").await, "a", "then without");
    advance(secs(75)).await;
    assert_eq!(one.turn("s").await, "b");
    heard().await;
    let late = node(&store, "late", &one.providers);
    heard().await;
    assert_eq!(late.turn("s").await, "b");
}

#[tokio::test(start_paused = true)]
async fn a_read_that_does_not_answer_has_20_ms() {
    let (one, other, _) = two();
    move_to_b(&one, PlainRequest::session("s")).await;
    other.state.set_frozen(true);
    let start = Instant::now();
    assert_eq!(other.turn("s").await, "a");
    assert!((20..=21).contains(&start.elapsed().as_millis()), "{:?}", start.elapsed());
    assert_eq!(other.gets(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_call_that_is_dropped_while_it_reads_leaves_nothing_behind() {
    let (one, other, _) = two();
    move_to_b(&one, PlainRequest::session("s")).await;
    other.state.set_frozen(true);
    {
        let service = other.layer.layer(other.providers.client());
        let mut call = tokio_test::task::spawn(service.oneshot(PlainRequest::session("s")));
        assert!(call.poll().is_pending());
        assert_eq!(other.gets(), 1, "it reads");
    }
    assert_eq!((other.providers.calls(), other.providers.in_flight()), (vec![], 0));
    assert_eq!(other.layer.handle().sessions(), 0);
    let snapshot = other.layer.handle().snapshot();
    assert!(snapshot.targets().iter().all(|health| health.in_flight == 0));
    other.state.set_frozen(false);
    assert_eq!((other.turn("s").await.as_str(), other.gets()), ("b", 1), "it is read again");
}

#[tokio::test(start_paused = true)]
async fn a_call_whose_target_is_chosen_reads_nothing() {
    let (one, other, _) = two();
    move_to_b(&one, PlainRequest::session("s")).await;
    let mut request = PlainRequest::session("s");
    request.context.preference = Some(Arc::new(Preference::Only(target("c"))));
    assert_eq!((other.send(request).await.as_str(), other.gets()), ("c", 0));
}

#[tokio::test(start_paused = true)]
async fn a_service_is_not_called_with_readiness_of_before_the_read() {
    // The client of these tests panics when it is called without having been polled ready.
    let (one, other, _) = two();
    move_to_b(&one, PlainRequest::session("s")).await;
    let mut service = other.layer.layer(other.providers.client());
    for _ in 0..2 {
        let call = tower::Service::call(service.ready().await.unwrap(), PlainRequest::session("s"));
        assert_eq!(call.await.unwrap(), "b");
    }
}
