//! A store that is more than one server.

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

mod common;

use std::time::Duration;

use common::{KIND, Server, client, eventually, hear, publish, shared};
use steadfast_core::shared::SharedState;
use steadfast_redis::{RedisConfig, RedisState};
use steadfast_testkit::shared_state;
use tokio::time::{Instant, sleep};

#[tokio::test]
async fn a_master_is_found_and_its_successor() {
    let mut master = Server::start().await;
    let replica = Server::start().await;
    replica.cli(&["REPLICAOF", "127.0.0.1", &master.port.to_string()]);
    let folder = tempfile::tempdir().unwrap();
    let sentinel = Server::start_sentinel(folder.path(), master.port).await;
    eventually("the replica is known", || {
        sentinel.cli(&["SENTINEL", "replicas", "mymaster"]).contains(&replica.port.to_string())
            && replica.cli(&["INFO", "replication"]).contains("master_link_status:up")
    })
    .await;

    // One that is not there is passed over.
    let url = format!("redis-sentinel://127.0.0.1:1,127.0.0.1:{}/mymaster", sentinel.port);
    let node = |name: &str| RedisState::connect(RedisConfig::new(&url).with_node(name)).unwrap();
    let (one, other) = (node("one"), node("other"));
    eventually("both have joined", || one.nodes() == 2 && other.nodes() == 2).await;
    let mut listener = other.subscribe(KIND);
    publish(&one, "found");
    hear(&mut listener, "found").await;

    master.kill();
    let start = Instant::now();
    eventually("it is away", || one.is_away() && other.is_away()).await;
    publish(&one, "found meanwhile");
    hear(&mut listener, "found meanwhile").await;
    println!("heard over the successor {:?} after the master's end", start.elapsed());
    let facts = || replica.cli(&["HLEN", "{steadfast}:1:facts:rests"]);
    eventually("all is there", || facts() == "2").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_keeps_the_contract_and_is_found_again() {
    let servers = cluster().await;
    let node = |name: &str| cluster_node(&servers, name);
    shared_state::contract(async |name| shared(node(name))).await;

    let (one, other) = (node("one"), node("other"));
    eventually("both have joined", || one.nodes() == 2 && other.nodes() == 2).await;
    let mut listener = other.subscribe(KIND);
    for server in &servers {
        server.signal("-STOP");
    }
    eventually("it is away", || one.is_away() && other.is_away()).await;
    publish(&one, "found meanwhile");
    sleep(Duration::from_secs(1)).await;
    for server in &servers {
        server.signal("-CONT");
    }
    let start = Instant::now();
    hear(&mut listener, "found meanwhile").await;
    println!("heard {:?} after the cluster went on", start.elapsed());
    // Of all its nodes but one, the prefix has none.
    let with_keys = servers.iter().filter(|server| server.cli(&["DBSIZE"]) != "0").count();
    assert_eq!(with_keys, 1);
}

#[tokio::test]
async fn a_node_of_a_cluster_is_killed_and_restarted() {
    let mut servers = cluster().await;
    let (one, other) = (cluster_node(&servers, "one"), cluster_node(&servers, "other"));
    eventually("both have joined", || one.nodes() == 2 && other.nodes() == 2).await;
    let mut listener = other.subscribe(KIND);
    // Each in turn: that which has the keys, and that over which facts are announced.
    for (number, server) in servers.iter_mut().enumerate() {
        let before = format!("found before {number}");
        publish(&one, &before);
        hear(&mut listener, &before).await;
        server.kill();
        sleep(Duration::from_millis(300)).await;
        let meanwhile = format!("found while {number} is gone");
        publish(&one, &meanwhile);
        server.restart().await;
        let start = Instant::now();
        hear(&mut listener, &meanwhile).await;
        println!("heard {:?} after the restart", start.elapsed());
        eventually("all is there", || {
            one.fleet().store.waiting == 0 && !one.is_away() && !other.is_away()
        })
        .await;
    }
    let late = cluster_node(&servers, "late");
    eventually("it has joined", || !late.is_away()).await;
    assert_eq!(late.fleet().facts.len(), 2 * servers.len());
}

#[tokio::test]
async fn a_slot_moves_to_another_node_of_the_cluster() {
    let servers = cluster().await;
    let (one, other) = (cluster_node(&servers, "one"), cluster_node(&servers, "other"));
    eventually("both have joined", || one.nodes() == 2 && other.nodes() == 2).await;
    let mut listener = other.subscribe(KIND);
    publish(&one, "found before");
    hear(&mut listener, "found before").await;
    let claim = one.claim("claim", Duration::from_secs(600)).await.unwrap().unwrap();

    let slot = servers[0].cli(&["CLUSTER", "KEYSLOT", "{steadfast}"]);
    let has_keys = |server: &&Server| server.cli(&["CLUSTER", "COUNTKEYSINSLOT", &slot]) != "0";
    let from = servers.iter().find(has_keys).unwrap();
    let to = servers.iter().find(|server| server.port != from.port).unwrap();
    let (from_id, to_id) = (from.cli(&["CLUSTER", "MYID"]), to.cli(&["CLUSTER", "MYID"]));
    assert_eq!(to.cli(&["CLUSTER", "SETSLOT", &slot, "IMPORTING", &from_id]), "OK");
    assert_eq!(from.cli(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", &to_id]), "OK");
    // Half is here and half is there.
    publish(&one, "found meanwhile");
    let port = to.port.to_string();
    loop {
        let keys = from.cli(&["CLUSTER", "GETKEYSINSLOT", &slot, "2"]);
        let keys: Vec<_> = keys.lines().collect();
        if keys.is_empty() {
            break;
        }
        let migrate = ["MIGRATE", "127.0.0.1", &port, "", "0", "5000", "KEYS"];
        from.cli(&[&migrate[..], &keys].concat());
        sleep(Duration::from_millis(50)).await;
    }
    for server in [to, from] {
        assert_eq!(server.cli(&["CLUSTER", "SETSLOT", &slot, "NODE", &to_id]), "OK");
    }
    hear(&mut listener, "found meanwhile").await;
    publish(&one, "found after");
    hear(&mut listener, "found after").await;
    eventually("both are there", || !one.is_away() && !other.is_away()).await;
    let next = other.claim("claim", Duration::from_secs(600)).await;
    assert_eq!(next, Ok(None), "the claim has moved, too: {claim:?}");
}

/// A cluster of three, none of which has a replica.
async fn cluster() -> Vec<Server> {
    let mut servers = Vec::new();
    for _ in 0..3 {
        servers.push(Server::start_in_cluster().await);
    }
    let addresses = addresses(&servers);
    let create = client()
        .args(["--cluster", "create"])
        .args(&addresses)
        .arg("--cluster-yes")
        .output()
        .unwrap();
    assert!(create.status.success(), "{}", String::from_utf8_lossy(&create.stdout));
    eventually("all agree", || {
        servers.iter().all(|server| {
            let info = server.cli(&["CLUSTER", "INFO"]);
            info.contains("cluster_state:ok") && info.contains("cluster_known_nodes:3")
        })
    })
    .await;
    servers
}

fn addresses(servers: &[Server]) -> Vec<String> {
    servers.iter().map(|server| format!("127.0.0.1:{}", server.port)).collect()
}

fn cluster_node(servers: &[Server], name: &str) -> RedisState {
    let url = format!("redis-cluster://{}", addresses(servers).join(","));
    RedisState::connect(RedisConfig::new(url).with_node(name)).unwrap()
}
