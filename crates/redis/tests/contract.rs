//! A server is a store.

mod common;

use std::time::Duration;

use bytes::Bytes;
use common::{KIND, Server, eventually, hear, publish, shared};
use fastrand::Rng;
use steadfast_core::{
    Spend, SpendCaps,
    shared::{AccountDraw, AccountGrant, AccountKnown, EmbeddedStore, KEPT, News, SharedState},
};
use steadfast_redis::{AwayCause, RedisConfig, RedisState};
use steadfast_testkit::shared_state;
use tokio::time::{Instant, sleep};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_keeps_the_contract() {
    let server = Server::start().await;
    shared_state::contract(async |name| shared(server.node(name))).await;
}

#[tokio::test]
async fn what_is_found_is_heard_within_milliseconds() {
    let server = Server::start().await;
    let (one, other) = (server.joined("one").await, server.joined("other").await);
    let mut listener = other.subscribe(KIND);
    let mut times = Vec::new();
    for number in 0..200 {
        let key = format!("key {number}");
        let start = Instant::now();
        publish(&one, &key);
        hear(&mut listener, &key).await;
        times.push(start.elapsed());
        // Not as one batch.
        sleep(Duration::from_millis(1)).await;
    }
    times.sort_unstable();
    println!("heard by another node: p50 {:?}, p99 {:?}", times[100], times[198]);
    assert_eq!(times.len(), 200);
}

#[tokio::test]
async fn thousands_of_facts_are_read_in_pieces() {
    let server = Server::start().await;
    let one = server.joined("one").await;
    let start = Instant::now();
    for number in 0..5_000 {
        publish(&one, &format!("key {number}"));
    }
    eventually("all are written", || one.fleet().store.waiting == 0).await;
    let count = || server.cli(&["HLEN", "{steadfast}:1:facts:rests"]);
    eventually("all are there", || count() == "5000").await;
    println!("5,000 facts written in {:?}", start.elapsed());
    let start = Instant::now();
    let late = server.joined("late").await;
    println!("and read in {:?}", start.elapsed());
    assert_eq!(late.fleet().facts.len(), 5_000);
}

#[tokio::test]
async fn a_node_that_has_nothing_to_say_costs_the_store_next_to_nothing() {
    let server = Server::start().await;
    let node = server.joined("one").await;
    let before = node.fleet().store.commands;
    let start = Instant::now();
    sleep(Duration::from_secs(3)).await;
    let commands = node.fleet().store.commands - before;
    let took = start.elapsed();
    println!("{commands} commands in {took:?}");
    assert!(commands <= took.as_secs() + 2, "{commands}");
}

#[tokio::test]
async fn everything_expires() {
    let server = Server::start().await;
    let node = server.joined("one").await;
    publish(&node, "forever");
    node.publish(KIND, "for ever and ever", News::holds(1, u64::MAX, "{}"));
    node.publish("breakers", "short", News::over(node.clock().unix_ms()));
    node.put("affinity", "key", Bytes::from_static(b"value"), Duration::MAX);
    let claim = node.claim("claim", Duration::MAX).await.unwrap().unwrap();
    assert_eq!(&*claim.key, "claim");
    eventually("all is written", || node.fleet().store.waiting == 0).await;
    eventually("all is there", || keys(&server).len() >= 10).await;
    for key in keys(&server) {
        assert!(key.starts_with("{steadfast}:1:"), "{key}");
        let left: i64 = server.cli(&["PTTL", &key]).parse().unwrap();
        assert!(left > 0, "{key} stays for {left} ms");
    }
}

fn keys(server: &Server) -> Vec<String> {
    server.cli(&["--scan"]).lines().map(str::to_owned).collect()
}

#[tokio::test]
async fn what_has_ended_is_removed() {
    let server = Server::start().await;
    let node = server.joined("one").await;
    let now_ms = node.clock().unix_ms();
    node.publish(KIND, "short", News::holds(now_ms, now_ms + 2_000, "{}"));
    node.publish(KIND, "long", News::holds(now_ms, now_ms + 600_000, "{}"));
    let count = || server.cli(&["HLEN", "{steadfast}:1:facts:rests"]);
    eventually("both are there", || count() == "2").await;
    eventually("one has ended", || count() == "1").await;
    assert_eq!(server.cli(&["ZCARD", "{steadfast}:1:ends:rests"]), "1");
    eventually("and is forgotten", || node.fleet().facts.len() == 1).await;
}

#[tokio::test]
async fn an_older_fact_does_not_replace_a_newer_one() {
    let server = Server::start().await;
    let node = server.joined("one").await;
    publish(&node, "key");
    let field = "key\u{1f}one";
    let read = || server.cli(&["HGET", "{steadfast}:1:facts:rests", field]);
    eventually("it is there", || !read().is_empty()).await;
    let first = read();
    publish(&node, "key");
    eventually("there is a newer one", || read() != first).await;
    let newer = read();
    // As a message that is late would be written again.
    let script = std::fs::read_to_string("src/scripts/keep.lua").unwrap()
        + &std::fs::read_to_string("src/scripts/publish.lua").unwrap();
    let keys = ["kinds", "facts:rests", "ends:rests"].map(|key| format!("{{steadfast}}:1:{key}"));
    let answer = server.cli(&[
        "EVAL",
        &script,
        "3",
        &keys[0],
        &keys[1],
        &keys[2],
        "channel",
        "rests",
        field,
        "7",
        "99999999999999",
        &first,
    ]);
    assert_eq!(answer, "");
    assert_eq!(read(), newer);
}

#[tokio::test]
async fn a_prefix_has_one_fleet() {
    let server = Server::start().await;
    let blue = RedisConfig::new(server.url()).with_fleet("blue").with_node("blue");
    let green = RedisConfig::new(server.url()).with_fleet("green").with_node("green");
    let blue = RedisState::connect(blue).unwrap();
    eventually("it has joined", || !blue.is_away()).await;
    let refused = RedisState::connect(green.clone()).unwrap();
    let is_refused = |node: &RedisState| matches!(node.away(), Some(AwayCause::OtherFleet { .. }));
    eventually("it is refused", || is_refused(&refused)).await;
    publish(&refused, "found by green");
    sleep(Duration::from_millis(300)).await;
    let error = refused.fleet().store.error.unwrap_or_default();
    assert!(error.contains("\"blue\"") && error.contains("\"green\""), "{error}");
    assert!(refused.is_away());
    assert_eq!((blue.nodes(), blue.fleet().facts.len()), (1, 0), "blue knows nothing of it");

    // With a prefix of its own it is none of blue's.
    let green = RedisState::connect(green.with_prefix("green")).unwrap();
    eventually("it has joined", || !green.is_away()).await;
    publish(&green, "found by green");
    publish(&blue, "found by blue");
    eventually("both are written", || {
        blue.fleet().store.waiting + green.fleet().store.waiting == 0
    })
    .await;
    sleep(Duration::from_millis(300)).await;
    let facts = |node: &RedisState| {
        node.fleet().facts.iter().map(|row| row.key.to_string()).collect::<Vec<_>>()
    };
    assert_eq!(facts(&blue), ["found by blue"]);
    assert_eq!(facts(&green), ["found by green"]);
}

#[tokio::test]
async fn databases_are_kept_apart() {
    let server = Server::start().await;
    let node = |database: &str| {
        let url = format!("{}/{database}", server.url());
        RedisState::connect(RedisConfig::new(url).with_fleet(database)).unwrap()
    };
    let (one, other) = (node("1"), node("2"));
    eventually("both have joined", || !one.is_away() && !other.is_away()).await;
    publish(&one, "found");
    eventually("it is written", || one.fleet().store.waiting == 0).await;
    sleep(Duration::from_millis(300)).await;
    assert!(other.fleet().facts.is_empty(), "channels are the same in all databases");
}

#[tokio::test]
async fn nothing_is_left_of_a_node_that_has_gone() {
    let server = Server::start().await;
    let node = server.joined("one").await;
    let clone = node.clone();
    let listener = node.subscribe(KIND);
    let clients = || server.cli(&["CLIENT", "LIST", "TYPE", "pubsub"]).lines().count();
    assert_eq!(clients(), 1, "facts come over the connection that asks");
    assert_eq!(server.cli(&["CLIENT", "LIST", "TYPE", "normal"]).lines().count(), 1, "and `cli`'s");
    drop(node);
    sleep(Duration::from_millis(300)).await;
    assert_eq!(clients(), 1, "one has a clone");
    drop(clone);
    eventually("it has gone", || clients() == 0).await;
    assert_eq!(server.cli(&["ZCARD", "{steadfast}:1:heard"]), "0");
    drop(listener);
}

/// The script and the table of the embedded store are two writings of the same rules.
#[tokio::test]
async fn accounts_are_granted_as_by_the_embedded_store() {
    let server = Server::start().await;
    let store = EmbeddedStore::new();
    let mut nodes = Vec::new();
    for name in ["one", "two", "three"] {
        nodes.push((server.joined(name).await, store.join(name)));
    }
    let mut rng = Rng::with_seed(7);
    // Of each node: the number of its last draw, spent, and granted by either.
    let mut known = [(0, Spend::ZERO, [AccountGrant::default(); 2]); 3];
    for round in 0..400 {
        let at = rng.usize(..3);
        let (number, spent, grants) = &mut known[at];
        assert_eq!(grants[0].granted, grants[1].granted, "round {round}");
        let granted = grants[0].granted;
        let part = |rng: &mut Rng, of: u64| rng.u64(0..=of);
        let used = granted.minus(*spent);
        *spent = spent.plus(Spend::new(part(&mut rng, used.tokens), part(&mut rng, used.cost)));
        let mut caps = SpendCaps::of_tokens(50_000, 80_000);
        caps.month.cost = 9_000;
        let mut draw = AccountDraw::new("acme", caps);
        // Now and then one comes twice.
        *number += u64::from(rng.u32(..10) > 0);
        (draw.number, draw.spent, draw.granted) = (*number, *spent, granted);
        draw.needed = spent.plus(Spend::new(part(&mut rng, 900), part(&mut rng, 90)));
        draw.wanted = draw.needed.plus(Spend::new(part(&mut rng, 5_000), part(&mut rng, 400)));
        draw.reset = rng.u32(..150) == 0;
        let mut sent = [draw.clone(), draw];
        for (draw, grant) in sent.iter_mut().zip(&*grants) {
            if draw.number > 1 {
                draw.known = AccountKnown::of(grant, *spent);
            }
        }
        let [by_server, embedded] = sent;
        let by_server = nodes[at].0.draw(vec![by_server]).await.unwrap();
        let embedded = nodes[at].1.draw(vec![embedded]).await.unwrap();
        let what = |grant: &AccountGrant| {
            let short = grant.short.map(|short| (short.window, short.is_cost, short.missing));
            (grant.granted, grant.totals, short, grant.short.map(|short| short.frees_in.is_some()))
        };
        assert_eq!(what(&by_server[0]), what(&embedded[0]), "round {round}");
        *grants = [by_server[0], embedded[0]];
    }
    assert!(known.iter().any(|(_, spent, _)| spent.cost > 1_000));
}

/// A node that has been killed may have spent what it had been granted: it keeps that for as long as a call may take, and then it
/// counts as spent, once.
#[tokio::test]
async fn what_a_silent_node_was_granted_is_kept_and_then_counts_as_spent() {
    let server = Server::start().await;
    let (silent, other) = (server.joined("silent").await, server.joined("other").await);
    let draw = async |node: &RedisState, number, spent, granted, needed| {
        let mut draw = AccountDraw::new("acme", SpendCaps::of_tokens(1_000, 0));
        (draw.number, draw.spent) = (number, Spend::new(spent, 0));
        (draw.granted, draw.needed) = (Spend::new(granted, 0), Spend::new(needed, 0));
        let grant = node.draw(vec![draw]).await.unwrap()[0];
        (grant.granted.tokens, grant.totals.hour.tokens, grant.totals.held.tokens)
    };
    assert_eq!(draw(&silent, 1, 0, 0, 600).await, (600, 0, 600));
    // As if it had last drawn a while ago.
    let (key, field) = ("{steadfast}:1:spenders:acme", format!("{} 0", silent.node()));
    let age = |age: Duration| {
        let heard = other.clock().unix_ms() - u64::try_from(age.as_millis()).unwrap();
        server.cli(&["HSET", key, &field, &format!("1 0 0 600 0 {heard}")]);
    };
    let margin = Duration::from_secs(10);
    age(KEPT - margin);
    assert_eq!(draw(&other, 1, 0, 0, 0).await, (0, 0, 600));
    assert_eq!(draw(&silent, 2, 250, 600, 600).await, (600, 250, 350), "it is back");
    age(KEPT + margin);
    for number in 2..4 {
        assert_eq!(draw(&other, number, 0, 0, 0).await, (0, 850, 0), "once");
    }
}
