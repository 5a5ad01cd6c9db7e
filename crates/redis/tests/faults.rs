//! What can become of a store, none of which a call is to notice.

mod common;

use std::{collections::HashSet, time::Duration};

use bytes::Bytes;
use common::{KIND, PATIENCE, Server, eventually, hear, network::Network, publish};
use steadfast_core::shared::{News, SharedState, StoreAway};
use steadfast_redis::{AwayCause, RedisConfig, RedisState};
use steadfast_testkit::CapturedEvents;
use tokio::time::{Instant, sleep, timeout};

/// What is to be 2 s, on a machine that has other things to do.
const CAUGHT_UP: Duration = Duration::from_secs(8);

#[tokio::test]
async fn a_store_that_is_frozen_is_not_waited_for() {
    let events = CapturedEvents::default();
    let _guard = tracing::subscriber::set_default(events.clone());
    let server = Server::start().await;
    let (one, other) = (server.joined("one").await, server.joined("other").await);
    eventually("they know each other", || one.nodes() == 2 && other.nodes() == 2).await;
    let mut listener = other.subscribe(KIND);
    server.signal("-STOP");
    let frozen = Instant::now();

    // Before it is known to be away, and then.
    for round in 0..2 {
        let start = Instant::now();
        for number in 0..1_000 {
            publish(&one, &format!("key {number}"));
            one.put("affinity", "key", Bytes::from_static(b"value"), PATIENCE);
            let _ = (one.clock(), one.is_away(), one.nodes());
        }
        let took = start.elapsed();
        println!("1,000 publishes in round {round}: {took:?}");
        assert!(took < Duration::from_secs(2), "{took:?}");
        let start = Instant::now();
        assert_eq!(one.get("affinity", "key").await, Err(StoreAway));
        let took = start.elapsed();
        println!("a value in round {round}: {took:?}");
        assert!(took < Duration::from_secs(1), "{took:?}");
        let noticed = eventually("it is away", || one.is_away() && other.is_away()).await;
        println!("known to be away after {noticed:?}");
    }
    assert_eq!(one.claim("claim", PATIENCE).await, Err(StoreAway));
    assert_eq!(one.nodes(), 2, "as many as there were");
    assert!(one.dropped() >= 1_000);

    sleep(Duration::from_secs(3).saturating_sub(frozen.elapsed())).await;
    server.signal("-CONT");
    let back = Instant::now();
    let mut left: HashSet<_> = (0..1_000).map(|number| format!("key {number}")).collect();
    while !left.is_empty() {
        let next = timeout(PATIENCE, listener.next()).await;
        let (key, known) = next.unwrap_or_else(|_| panic!("{left:?} are not heard of"));
        assert!(known.fact.is_some());
        left.remove(&*key);
    }
    let took = back.elapsed();
    println!("all heard {took:?} after it went on");
    assert!(took < CAUGHT_UP, "{took:?}");
    eventually("both are back", || !one.is_away() && !other.is_away()).await;

    let events = events.take();
    let of_one = |name: &str| -> Vec<_> {
        let is_one = |event: &&String| event.starts_with(name) && event.contains("\"one\"");
        events.iter().filter(is_one).collect()
    };
    let (away, back) = (of_one("steadfast::state::away"), of_one("steadfast::state::back"));
    // One each; a machine that stands still may have had another outage.
    let outages = usize::try_from(one.fleet().store.outages).unwrap();
    assert!(outages >= 1);
    assert_eq!((away.len(), back.len()), (outages, outages), "{events:?}");
    assert!(away.iter().any(|event| event.contains("within 500 ms")), "{away:?}");
    assert!(back.iter().any(|event| event.contains("waited=1000")), "{back:?}");
}

#[tokio::test]
async fn a_store_that_was_restarted_empty_is_filled_again() {
    let mut server = Server::start().await;
    let (one, other) = (server.joined("one").await, server.joined("other").await);
    publish(&one, "found by one");
    publish(&other, "found by other");
    let mut heard = other.subscribe(KIND);
    hear(&mut heard, "found by one").await;
    let first = one.claim("claim", PATIENCE).await.unwrap().unwrap();
    server.kill();
    eventually("it is away", || one.is_away() && other.is_away()).await;
    publish(&one, "found meanwhile");
    server.restart().await;
    let start = Instant::now();
    hear(&mut heard, "found meanwhile").await;
    let count = || server.cli(&["HLEN", "{steadfast}:1:facts:rests"]);
    eventually("all is there again", || count() == "3").await;
    println!("published again after {:?}", start.elapsed());
    assert!(start.elapsed() < CAUGHT_UP);
    eventually("both are known", || one.nodes() == 2 && other.nodes() == 2).await;
    let next = other.claim("claim", PATIENCE).await.unwrap().unwrap();
    assert!(next.token > first.token, "tokens grow all the same");

    // A node that comes later knows all of it.
    let late = server.joined("late").await;
    assert_eq!(late.fleet().facts.len(), 3);
}

/// None of them is known to a node before it joins.
const KINDS: [&str; 24] = [
    "a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l", "m", "n", "o", "p", "q", "r", "s",
    "t", "u", "v", "w", "x",
];

#[tokio::test]
async fn what_is_found_while_a_node_joins_is_known_to_it() {
    let server = Server::start().await;
    let one = server.joined("one").await;
    // Each of its steps takes 100 ms.
    let network = Network::to(server.port).await;
    network.set_delay(Duration::from_millis(50));
    let url = format!("redis://127.0.0.1:{}", network.port);
    let late = RedisState::connect(RedisConfig::new(url).with_node("late")).unwrap();
    for kind in KINDS {
        let now_ms = one.clock().unix_ms();
        one.publish(kind, "key", News::holds(now_ms, now_ms + 600_000, "{}"));
        sleep(Duration::from_millis(30)).await;
    }
    eventually("all of it", || late.fleet().facts.len() == KINDS.len()).await;
}

#[tokio::test]
async fn a_store_that_has_lost_its_data_without_a_word_is_filled_again() {
    let server = Server::start().await;
    let node = server.joined("one").await;
    publish(&node, "found");
    let count = || server.cli(&["HLEN", "{steadfast}:1:facts:rests"]);
    eventually("it is there", || count() == "1").await;
    server.cli(&["FLUSHALL"]);
    eventually("it is there again", || count() == "1").await;
    assert_eq!(node.fleet().store.outages, 0);
}

/// The store refuses what is needed, with a cause, until it does not any more.
async fn refuses(
    server: &Server,
    node: &RedisState,
    refuse: impl FnOnce(),
    is_cause: impl Fn(&AwayCause) -> bool,
    accept: impl FnOnce(),
) {
    let other = server.joined("other").await;
    let mut listener = other.subscribe(KIND);
    refuse();
    eventually("it is away", || node.away().is_some_and(|cause| is_cause(&cause))).await;
    println!("{}", node.away().map(|cause| cause.to_string()).unwrap_or_default());
    publish(node, "found meanwhile");
    assert_eq!(node.get("affinity", "key").await, Err(StoreAway));
    accept();
    let start = Instant::now();
    hear(&mut listener, "found meanwhile").await;
    println!("heard {:?} after the return", start.elapsed());
    assert!(start.elapsed() < CAUGHT_UP);
}

#[tokio::test]
async fn a_store_that_has_become_a_replica_is_away() {
    let server = Server::start().await;
    let node = server.joined("one").await;
    let refuse = || _ = server.cli(&["REPLICAOF", "127.0.0.1", "1"]);
    let is_cause = |cause: &AwayCause| matches!(cause, AwayCause::ReadOnly(_));
    let accept = || _ = server.cli(&["REPLICAOF", "NO", "ONE"]);
    refuses(&server, &node, refuse, is_cause, accept).await;
}

#[tokio::test]
async fn a_store_that_is_full_is_away() {
    let server = Server::start().await;
    let node = server.joined("one").await;
    let refuse = || _ = server.cli(&["CONFIG", "SET", "maxmemory", "1"]);
    let is_cause = |cause: &AwayCause| matches!(cause, AwayCause::Full(_));
    let accept = || _ = server.cli(&["CONFIG", "SET", "maxmemory", "0"]);
    refuses(&server, &node, refuse, is_cause, accept).await;
}

#[tokio::test]
async fn a_store_with_another_password_is_away() {
    let server = Server::start().await;
    let node = server.joined("one").await;
    let refuse = || {
        server.cli(&["CONFIG", "SET", "requirepass", "hunter2"]);
        for clients in ["normal", "pubsub"] {
            server.cli(&["-a", "hunter2", "CLIENT", "KILL", "TYPE", clients]);
        }
    };
    let is_cause = |cause: &AwayCause| matches!(cause, AwayCause::Unauthorized(_));
    let accept = || _ = server.cli(&["-a", "hunter2", "CONFIG", "SET", "requirepass", ""]);
    refuses(&server, &node, refuse, is_cause, accept).await;

    // With a password that is wrong.
    server.cli(&["CONFIG", "SET", "requirepass", "hunter2"]);
    let url = format!("redis://:swordfish@127.0.0.1:{}", server.port);
    let wrong = RedisState::connect(RedisConfig::new(url)).unwrap();
    eventually("it is refused", || matches!(wrong.away(), Some(AwayCause::Unauthorized(_)))).await;
    let shown = format!("{wrong:?} {:?}", wrong.fleet());
    assert!(!shown.contains("swordfish"), "{shown}");
}

#[tokio::test]
async fn a_node_that_starts_without_the_store_joins_when_it_comes() {
    let mut server = Server::start().await;
    server.kill();
    let node = server.node("one");
    assert!(node.is_away(), "and nothing was waited for");
    assert_eq!(node.nodes(), 1);
    publish(&node, "found before");
    assert_eq!(node.get("affinity", "key").await, Err(StoreAway));
    eventually("it is known why", || matches!(node.away(), Some(AwayCause::Unreachable(_)))).await;
    server.restart().await;
    let other = server.joined("other").await;
    hear(&mut other.subscribe(KIND), "found before").await;
}

#[tokio::test]
async fn a_node_that_is_cut_off_goes_on_by_what_it_knows() {
    let server = Server::start().await;
    let network = Network::to(server.port).await;
    let url = format!("redis://127.0.0.1:{}", network.port);
    let one = RedisState::connect(RedisConfig::new(url).with_node("one")).unwrap();
    let other = server.joined("other").await;
    eventually("they know each other", || one.nodes() == 2 && other.nodes() == 2).await;
    let mut heard = [one.subscribe(KIND), other.subscribe(KIND)];
    network.set_cut(true);
    eventually("it is away for one", || one.is_away()).await;
    publish(&one, "found by one");
    publish(&other, "found by other");
    eventually("it has no part in it", || other.nodes() == 1).await;
    assert!(!other.is_away());
    assert_eq!((one.nodes(), other.fleet().facts.len()), (2, 1));
    network.set_cut(false);
    let start = Instant::now();
    hear(&mut heard[0], "found by other").await;
    hear(&mut heard[1], "found by one").await;
    println!("both heard {:?} after", start.elapsed());
    assert!(start.elapsed() < CAUGHT_UP);
    eventually("it is back", || other.nodes() == 2 && one.nodes() == 2).await;
}

#[tokio::test]
async fn a_store_that_is_slow_is_heard_and_not_waited_for() {
    let server = Server::start().await;
    let network = Network::to(server.port).await;
    network.set_delay(Duration::from_millis(60));
    let url = format!("redis://127.0.0.1:{}", network.port);
    let one = RedisState::connect(RedisConfig::new(url).with_node("one")).unwrap();
    let other = server.joined("other").await;
    eventually("it has joined", || !one.is_away()).await;
    let mut listener = other.subscribe(KIND);
    publish(&one, "found");
    hear(&mut listener, "found").await;
    let start = Instant::now();
    assert_eq!(one.get("affinity", "key").await, Err(StoreAway));
    assert!(start.elapsed() < Duration::from_secs(1), "{:?}", start.elapsed());
    assert!(one.claim("claim", PATIENCE).await.is_ok(), "that is worth a wait");
    // The way there takes as long as the way back.
    let apart = one.clock().unix_ms().abs_diff(other.clock().unix_ms());
    println!("the clocks are {apart} ms apart");
    assert!(apart <= 60, "{apart} ms");
    assert!(!one.is_away());
}

#[tokio::test]
async fn a_node_that_was_killed_leaves_the_fleet() {
    let server = Server::start().await;
    let node = server.joined("one").await;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let killed = {
        let _guard = runtime.enter();
        server.node("killed")
    };
    eventually("it has joined", || node.nodes() == 2).await;
    publish(&killed, "found");
    eventually("it is heard", || node.fleet().facts.len() == 1).await;
    // Its task ends without a word.
    runtime.shutdown_background();
    let took = eventually("it has left", || node.nodes() == 1).await;
    println!("a killed node was left out after {took:?}");
    assert!(took > Duration::from_secs(5), "it had no time to say so");
    assert_eq!(node.fleet().nodes.len(), 1);
    assert_eq!(node.fleet().facts.len(), 1, "what it has found still holds");
}
