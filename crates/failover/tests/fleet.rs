//! Several layers that share what they know of targets, as the nodes of a gateway do.

#![allow(clippy::unwrap_used, reason = "helpers of a test")]

mod support;

use std::{sync::Arc, time::Duration};

use steadfast_core::{
    AtOnce, Reason,
    shared::{EmbeddedNode, EmbeddedStore, SharedState},
};
use steadfast_failover::{CooldownFailoverLayer, OneChain};
use support::*;
use tokio::time::{Instant, advance, sleep};

/// A node with its own layer, in front of the same providers.
struct Node {
    layer: CooldownFailoverLayer<OneChain, AtOnce>,
    state: EmbeddedNode,
    store: EmbeddedStore,
    providers: Providers,
}

impl Node {
    async fn ask(&self) -> String {
        send(&self.layer, &self.providers, PlainRequest::new()).await.unwrap()
    }

    async fn rest_a(&self) {
        rest(&self.layer, &self.providers, "a").await;
        heard().await;
    }

    /// How long `a` rests here.
    fn rests(&self) -> Option<Duration> {
        let snapshot = self.layer.handle().snapshot();
        snapshot.get(&target("a")).and_then(|health| health.cooling_for(Instant::now()))
    }
}

fn fleet<const N: usize>(providers: &Providers) -> [Node; N] {
    let store = EmbeddedStore::new();
    std::array::from_fn(|at| {
        let node = Node {
            layer: abc().at_once(),
            state: store.join(&format!("node {at}")),
            store: store.clone(),
            providers: providers.clone(),
        };
        assert!(node.layer.handle().share(Arc::new(node.state.clone())));
        node
    })
}

/// Until the others have heard.
async fn heard() {
    sleep(Duration::from_millis(1)).await;
}

#[tokio::test(start_paused = true)]
async fn what_one_node_has_found_is_obeyed_by_the_others() {
    let providers = Providers::new();
    let nodes: [Node; 4] = fleet(&providers);
    nodes[0].rest_a().await;
    providers.calls();
    for node in &nodes {
        assert_eq!(node.ask().await, "b");
        // In whole milliseconds, one of which has gone by.
        assert!(node.rests().is_some_and(|left| left.as_millis().abs_diff(1_999) <= 1));
        let snapshot = node.layer.handle().snapshot();
        let error = snapshot.get(&target("a")).unwrap().last_error.clone().unwrap();
        assert_eq!(error.reason, Reason::ServerError);
    }
    assert_eq!(providers.calls(), ["b"; 4], "nobody has to see it again");
    providers.repair("a");
    advance(secs(2)).await;
    // The first call of a node that could be the probe asks for it, and the next one is.
    assert_eq!(nodes[1].ask().await, "b");
    heard().await;
    assert_eq!(nodes[2].ask().await, "b");
    heard().await;
    assert_eq!(nodes[2].ask().await, "b", "another node has it");
    assert_eq!(nodes[1].ask().await, "a");
    heard().await;
    for node in &nodes {
        assert_eq!(node.rests(), None);
        assert_eq!(node.ask().await, "a", "one has seen that it is back");
    }
}

#[tokio::test(start_paused = true)]
async fn a_failed_probe_is_one_for_the_whole_fleet() {
    let providers = Providers::new();
    let nodes: [Node; 3] = fleet(&providers);
    nodes[0].rest_a().await;
    let mut probes = 0;
    let start = Instant::now();
    while start.elapsed() < secs(120) {
        sleep(Duration::from_millis(250)).await;
        for node in &nodes {
            assert_eq!(node.ask().await, "b");
            heard().await;
        }
        probes += providers.calls().iter().filter(|at| *at == "a").count();
    }
    // 2 s, longer by half each time: alone, nine probes in two minutes.
    assert!((6..=10).contains(&probes), "{probes}");
}

#[tokio::test(start_paused = true)]
async fn a_reset_by_an_operator_holds_for_all_and_so_does_a_cooldown() {
    let providers = Providers::new();
    let nodes: [Node; 2] = fleet(&providers);
    nodes[0].layer.handle().cool(&target("a"), secs(600));
    heard().await;
    assert_eq!(nodes[1].ask().await, "b");
    assert!(nodes[1].layer.handle().reset(&target("a")));
    heard().await;
    for node in &nodes {
        assert_eq!(node.ask().await, "a");
    }
    // It is not forgotten that it was reset: what a node found before comes to nothing.
    nodes[1].layer.handle().cool(&target("a"), secs(60));
    heard().await;
    assert!(nodes[0].rests().is_some_and(|left| left > secs(59)));
}

#[tokio::test(start_paused = true)]
async fn a_node_that_is_cut_off_goes_on_alone_and_catches_up() {
    let providers = Providers::new();
    let nodes: [Node; 3] = fleet(&providers);
    nodes[2].state.set_away(true);
    nodes[0].rest_a().await;
    assert_eq!(nodes[2].rests(), None);
    // It finds out by itself, and something else, too.
    nodes[2].layer.handle().cool(&target("b"), secs(100));
    nodes[2].state.set_away(false);
    heard().await;
    assert!(nodes.iter().all(|node| node.rests().is_some()));
    let cools = |node: &Node| node.layer.handle().snapshot().cooling().count();
    assert_eq!(nodes.each_ref().map(cools), [2, 2, 2]);
}

/// How often a target that stays dead is asked in ten minutes, by nodes without their store that ask once a second each.
async fn probes_without_store<const N: usize>() -> usize {
    let providers = Providers::new();
    let nodes: [Node; N] = fleet(&providers);
    nodes[0].rest_a().await;
    nodes[0].store.set_away(true);
    let start = Instant::now();
    while start.elapsed() < secs(600) {
        sleep(secs(1)).await;
        for node in &nodes {
            node.ask().await;
        }
    }
    providers.calls().iter().filter(|at| *at == "a").count()
}

#[tokio::test(start_paused = true)]
async fn nodes_without_their_store_probe_hardly_more_often_than_one_would() {
    let (alone, eight) = (probes_without_store::<1>().await, probes_without_store::<8>().await);
    // Eight that do not divide their times make eight times as many. Each has to find by itself how long it rests.
    assert!((alone / 2..=alone * 3).contains(&eight), "{eight} by eight, {alone} by one");
}

#[tokio::test(start_paused = true)]
async fn only_what_is_called_the_same_is_the_same() {
    let store = EmbeddedStore::new();
    let providers = Providers::new();
    let node = |name: &str, key: &'static str| {
        let layer = abc().at_once();
        let state = Arc::new(store.join(name));
        let shared = layer.handle().share_named(state, move |target| {
            (target.provider() != "c").then(|| format!("{target} {key}"))
        });
        assert!(shared && !layer.handle().share(Arc::new(store.join("again"))), "once");
        layer
    };
    let (one, same, other) = (node("1", "key"), node("2", "key"), node("3", "another key"));
    for name in ["a", "c"] {
        one.handle().cool(&target(name), secs(60));
    }
    heard().await;
    let cools = |layer: &CooldownFailoverLayer<OneChain, AtOnce>| {
        let snapshot = layer.handle().snapshot();
        snapshot.cooling().map(|health| health.target.to_string()).collect::<Vec<_>>()
    };
    assert_eq!(cools(&one), ["a", "c"]);
    assert_eq!(cools(&same), ["a"]);
    assert_eq!(cools(&other), [""; 0]);
    assert_eq!(send(&other, &providers, PlainRequest::new()).await.unwrap(), "a");
}

#[tokio::test(start_paused = true)]
async fn nothing_is_held_by_a_layer_that_is_gone() {
    let store = EmbeddedStore::new();
    let stays = store.join("stays");
    let layer = abc();
    layer.handle().share(Arc::new(store.join("goes")));
    assert_eq!(stays.nodes(), 2);
    drop(layer);
    heard().await;
    assert_eq!(stays.nodes(), 1);
}
