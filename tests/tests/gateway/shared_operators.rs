//! Operators of several gateways: what is held at any node, and what its folders have, is seen and decided at every other.

use std::{sync::Arc, time::Duration};

use serde_json::{Value, json};
use steadfast::{
    Failure, Reason,
    deliver::{
        Announcement, DeadLetters, DeliveryFolder, DeliveryLedger, LedgerPolicy, LetterQueuePolicy,
    },
    shared::{EmbeddedNode, EmbeddedStore, News, SharedState as _},
    sim::{Dialect, ErrorKind, Fault, FaultPlan, SimProvider},
};
use steadfast_tests::gateway::{
    DIALECTS, Rig, ask,
    http::{HttpRequest, Reply, poll_until, within},
    in_process::InProcess,
    model, provider, rich_answer,
};
use tokio::{
    task::JoinHandle,
    time::{Instant, sleep},
};

/// The admin key, and its hash.
const ADMIN: &str = "an-admin-key";
const HASH: &str = "sha256:6060cd3705fe21fdbaa921b8e680e599e1ac10a7c36e76adacd1f15e325e8465";

const MOMENT: Duration = Duration::from_millis(20);

/// Gateways that hold what fails, before a provider that is dead.
struct Fleet {
    sim: SimProvider,
    gateways: Vec<Option<Arc<InProcess>>>,
    nodes: Vec<Option<EmbeddedNode>>,
    store: EmbeddedStore,
}

impl Fleet {
    fn new(size: usize, more: &str) -> Self {
        Self::with(&vec![more; size])
    }

    /// Each with more lines in its file.
    fn with(more: &[impl AsRef<str>]) -> Self {
        let sim = provider(Dialect::OpenAi).respond(|_| Some(rich_answer())).build();
        sim.set_faults(FaultPlan::always(Fault::Error(ErrorKind::Auth)));
        let store = EmbeddedStore::new();
        let (mut gateways, mut nodes) = (Vec::new(), Vec::new());
        for (at, more) in more.iter().enumerate() {
            let node = store.join(&format!("node-{at}"));
            let text = format!(
                "[server]\nauth = 'none'\nadmin_key = '{HASH}'\n[escalation]\nenabled = true\n{}",
                more.as_ref()
            );
            let gateway = InProcess::with_settings(&text, std::slice::from_ref(&sim));
            gateway.app.share(Arc::new(node.clone()), "127.0.0.1:7000");
            gateways.push(Some(Arc::new(gateway)));
            nodes.push(Some(node));
        }
        Self { sim, gateways, nodes, store }
    }

    fn at(&self, node: usize) -> &Arc<InProcess> {
        self.gateways[node].as_ref().unwrap()
    }

    fn node(&self, node: usize) -> &EmbeddedNode {
        self.nodes[node].as_ref().unwrap()
    }

    /// A call by this node, which holds it; its id.
    async fn hold(&self, node: usize) -> (JoinHandle<Reply>, String) {
        let before = self.list(node).await["escalations"].as_array().unwrap().len();
        let gateway = self.at(node).clone();
        let question = ask(Dialect::OpenAi, "gpt-4o", false);
        let call = tokio::spawn(async move { gateway.send(&question).await });
        sleep(MOMENT).await;
        let all = self.list(node).await;
        let all = all["escalations"].as_array().unwrap();
        assert_eq!(all.len(), before + 1, "{all:?}");
        (call, all.last().unwrap()["id"].as_str().unwrap().to_owned())
    }

    async fn get(&self, node: usize, path: &str) -> Reply {
        self.at(node).send(&HttpRequest::get(path).header("authorization", &bearer())).await
    }

    async fn post(&self, node: usize, path: &str, body: &Value) -> (u16, String) {
        let asked = HttpRequest::post(path, body.to_string()).header("authorization", &bearer());
        let reply = self.at(node).send(&asked).await;
        (reply.status, reply.text().to_owned())
    }

    async fn list(&self, node: usize) -> Value {
        self.get(node, "/admin/escalations").await.json()
    }

    /// The nodes and ids of what is held, as this node sees it.
    async fn held(&self, node: usize) -> Vec<(String, String)> {
        let all = self.list(node).await;
        let text = |part: &Value| part.as_str().unwrap().to_owned();
        let held = all["escalations"].as_array().unwrap().iter();
        held.map(|held| (text(&held["node"]), text(&held["id"]))).collect()
    }

    async fn decide(&self, node: usize, id: &str, decision: &Value) -> (u16, String) {
        self.post(node, &format!("/admin/escalations/{id}"), decision).await
    }

    /// The node is gone, with all calls that it had.
    fn kill(&mut self, node: usize, calls: &[&JoinHandle<Reply>]) {
        calls.iter().for_each(|call| call.abort());
        self.gateways[node] = None;
        self.nodes[node] = None;
    }
}

fn bearer() -> String {
    format!("Bearer {ADMIN}")
}

fn answer(text: &str) -> Value {
    json!({ "decision": "answer", "text": text })
}

fn refuse() -> Value {
    json!({ "decision": "refuse" })
}

#[tokio::test(start_paused = true)]
async fn what_one_node_holds_is_seen_and_decided_at_another() {
    let fleet = Fleet::new(3, "");
    let (first, one) = fleet.hold(0).await;
    sleep(Duration::from_secs(2)).await;
    let (second, two) = fleet.hold(1).await;
    let all = [("node-0".to_owned(), one.clone()), ("node-1".to_owned(), two.clone())];
    for node in 0..3 {
        assert_eq!(fleet.held(node).await, all, "seen by {node}");
    }
    // It is the same as at its own node, but for whose it is.
    sleep(Duration::from_secs(10)).await;
    let (mut own, mut seen) = (fleet.list(0).await, fleet.list(2).await);
    assert_eq!((&own["store_away"], &seen["node"]), (&json!(false), &json!("node-2")));
    let seen = seen["escalations"][0].as_object_mut().unwrap();
    assert_eq!(seen.remove("node_heard"), Some(json!(true)));
    assert_eq!(own["escalations"][0].as_object_mut().unwrap(), seen);
    assert_eq!(seen["prompt"], Value::Null);

    let decided = fleet.decide(2, &one, &answer("We call you back.")).await;
    assert_eq!(decided, (200, "decided\n".to_owned()));
    let reply = first.await.unwrap();
    assert_eq!(reply.status, 200);
    assert!(reply.text().contains("We call you back."), "{}", reply.text());
    assert!(reply.header("x-steadfast-recovery").unwrap().contains("escalate.answered"));
    assert_eq!(fleet.held(2).await, all[1..]);

    // A decision that is not possible changes nothing; its reason comes from there.
    let wrong = json!({ "decision": "try_target", "target": "nobody" });
    let (status, text) = fleet.decide(0, &two, &wrong).await;
    assert_eq!((status, text.contains("no target of this request")), (400, true), "{text}");
    let (status, _) = fleet.decide(0, &two, &json!({ "decision": "sing" })).await;
    assert_eq!(status, 400);
    // It fails again, and is held again.
    assert_eq!(fleet.decide(0, &two, &json!({ "decision": "try_again" })).await.0, 200);
    sleep(MOMENT).await;
    assert_eq!(fleet.list(2).await["escalations"][0]["round"], 2);
    fleet.sim.set_faults(FaultPlan::none());
    let target = json!({ "decision": "try_target", "target": "openai" });
    assert_eq!(fleet.decide(2, &two, &target).await.0, 200);
    assert_eq!(second.await.unwrap().status, 200);
    for node in 0..3 {
        assert!(fleet.held(node).await.is_empty());
        for id in [&one, &two] {
            let (status, text) = fleet.decide(node, id, &refuse()).await;
            assert_eq!((status, text.contains("not held any more")), (409, true), "{text}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn of_two_operators_at_two_nodes_one_decides() {
    for at in [(0, 1), (1, 0), (1, 2), (2, 1)] {
        let fleet = Fleet::new(3, "");
        let (call, id) = fleet.hold(0).await;
        let (yes, no) = (answer("yes"), answer("no"));
        let (one, other) =
            tokio::join!(fleet.decide(at.0, &id, &yes), fleet.decide(at.1, &id, &no));
        let mut statuses = [one.0, other.0];
        statuses.sort_unstable();
        assert_eq!(statuses, [200, 409], "{one:?}, {other:?}");
        let text = if one.0 == 200 { "yes" } else { "no" };
        let reply = call.await.unwrap();
        assert!(reply.text().contains(&format!("\"{text}\"")), "{text}: {}", reply.text());
    }
}

#[tokio::test(start_paused = true)]
async fn a_decision_that_arrives_twice_is_done_once() {
    let fleet = Fleet::new(1, "");
    let (call, id) = fleet.hold(0).await;
    // As a node passes it on.
    let other = fleet.store.join("other");
    let decide = async |key: &str, token: u64, round: u64, decision: Value| {
        let now_ms = other.clock().unix_ms();
        let order = json!({
            "token": token, "by": "other", "node": "node-0", "action": "escalation.decide", "subject": id,
            "body": { "round": round, "decision": decision },
        });
        let news = News::holds(now_ms, now_ms + 5_000, order.to_string());
        other.publish("orders", key, news);
        sleep(MOMENT).await;
        let facts = other.fleet().facts;
        let answer = facts.iter().find(|row| *row.kind == *"answers" && *row.key == *key)?;
        serde_json::from_str::<Value>(&answer.fact.value).unwrap()["status"].as_u64()
    };
    let round = async || fleet.list(0).await["escalations"][0]["round"].clone();
    let again = || json!({ "decision": "try_again" });
    assert_eq!(decide("a", 7, 1, again()).await, Some(200));
    assert_eq!(round().await, 2, "it has failed again");
    assert_eq!(decide("b", 7, 1, again()).await, None, "the same");
    assert_eq!(decide("c", 6, 1, again()).await, Some(409), "an older one");
    assert_eq!(decide("d", 8, 1, again()).await, Some(409), "of another round");
    assert_eq!(round().await, 2);
    assert_eq!(decide("e", 9, 2, refuse()).await, Some(200));
    assert_eq!(call.await.unwrap().status, 503);
    assert_eq!(decide("f", 10, 2, refuse()).await, Some(409), "it is over");
}

#[tokio::test(start_paused = true)]
async fn a_node_that_dies_takes_its_callers_with_it_and_operators_see_that() {
    let mut fleet = Fleet::new(2, "");
    let (call, id) = fleet.hold(0).await;
    fleet.kill(0, &[&call]);
    sleep(MOMENT).await;
    let all = fleet.list(1).await;
    // Nothing has been heard of its end: it may as well be cut off.
    let held = &all["escalations"][0];
    assert_eq!((&held["node"], &held["node_heard"]), (&json!("node-0"), &json!(false)));
    let (status, text) = fleet.decide(1, &id, &refuse()).await;
    assert_eq!((status, text.contains("`node-0` is not heard of")), (503, true), "{text}");
    // It is shown until its hold would have ended.
    sleep(Duration::from_secs(300)).await;
    assert!(fleet.held(1).await.is_empty());
    assert_eq!(fleet.decide(1, &id, &refuse()).await.0, 409);
}

#[tokio::test(start_paused = true)]
async fn nodes_without_their_store_show_and_decide_their_own() {
    let fleet = Fleet::new(2, "");
    let (call, id) = fleet.hold(0).await;
    fleet.store.set_away(true);
    let all = fleet.list(1).await;
    assert_eq!((&all["store_away"], &all["escalations"]), (&json!(true), &json!([])));
    let start = Instant::now();
    let (status, text) = fleet.decide(1, &id, &refuse()).await;
    assert_eq!((status, text.contains("can not be reached")), (503, true), "{text}");
    let (status, _) = fleet.decide(1, "5f3a9c01-17", &refuse()).await;
    assert_eq!(status, 503, "nobody knows");
    assert!(start.elapsed() < MOMENT, "and nobody waits");
    assert_eq!(fleet.list(0).await["store_away"], true);
    assert_eq!(fleet.held(0).await.len(), 1);
    assert_eq!(fleet.decide(0, &id, &refuse()).await.0, 200);
    assert_eq!(call.await.unwrap().status, 503);
    // What was held meanwhile is seen when the store is back, and what is over is not.
    let (call, second) = fleet.hold(0).await;
    fleet.store.set_away(false);
    assert_eq!(fleet.held(1).await, [("node-0".to_owned(), second.clone())]);
    // The holding node alone is cut off: it is heard of no more, and may be asked itself.
    fleet.node(0).set_away(true);
    let (status, text) = fleet.decide(1, &second, &refuse()).await;
    assert_eq!((status, text.contains("`node-0` is not heard of")), (503, true), "{text}");
    assert_eq!(fleet.list(1).await["escalations"][0]["node_heard"], false);
    fleet.node(0).set_away(false);
    assert_eq!(fleet.decide(1, &second, &refuse()).await.0, 200);
    assert_eq!(call.await.unwrap().status, 503);
}

#[tokio::test(start_paused = true)]
async fn what_nobody_has_is_not_found_and_operators_alone_ask() {
    let fleet = Fleet::new(2, "");
    let (_call, id) = fleet.hold(0).await;
    for unknown in ["5f3a9c01-17", "nonsense"] {
        assert_eq!(fleet.decide(1, unknown, &refuse()).await.0, 404, "{unknown}");
    }
    let path = format!("/admin/escalations/{id}");
    let asked = HttpRequest::post(path, refuse().to_string());
    assert_eq!(fleet.at(1).send(&asked).await.status, 401);
    let (status, text) = fleet.decide(1, &id, &answer(&"x".repeat(20_000))).await;
    assert_eq!((status, text.contains("`node-0`")), (413, true), "{text}");
    assert_eq!(fleet.decide(0, &id, &answer(&"x".repeat(20_000))).await.0, 200, "there it is not");
}

#[tokio::test(start_paused = true)]
async fn a_call_that_is_large_to_show_is_shown_without_what_is_too_much() {
    let fleet = Fleet::new(2, "show_prompt = true\nmax_prompt_bytes = 40000\n");
    let mut body: Value =
        serde_json::from_slice(ask(Dialect::OpenAi, "gpt-4o", false).sent()).unwrap();
    body["messages"] = json!([{ "role": "user", "content": "word ".repeat(8_000) }]);
    let question = HttpRequest::post("/v1/chat/completions", body.to_string());
    let gateway = fleet.at(0).clone();
    let call = tokio::spawn(async move { gateway.send(&question).await });
    sleep(MOMENT).await;
    let (own, seen) = (fleet.list(0).await, fleet.list(1).await);
    let (own, seen) = (&own["escalations"][0], &seen["escalations"][0]);
    assert!(own["prompt"].as_str().unwrap().len() > 39_000);
    assert_eq!((&seen["prompt"], &seen["shortened"]), (&Value::Null, &json!(true)));
    assert_eq!((&seen["chain"], &seen["id"]), (&own["chain"], &own["id"]));
    let facts = fleet.node(1).fleet().facts;
    assert!(facts.iter().all(|row| row.fact.value.len() <= 16 * 1_024));
    assert_eq!(fleet.decide(1, seen["id"].as_str().unwrap(), &refuse()).await.0, 200);
    assert_eq!(call.await.unwrap().status, 503);
}

/// A folder with dead letters of these keys.
async fn letters(keys: &[&str]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let down = || Failure::new(Reason::ServerError, "the channel is down");
    let deliveries = DeliveryFolder::open(folder.path()).await.unwrap();
    let ledger = DeliveryLedger::in_memory(LedgerPolicy::default()).unwrap();
    let channel = tower::service_fn(move |_: Announcement| async move { Err::<(), _>(down()) });
    let policy = LetterQueuePolicy::default();
    let queue = DeadLetters::open(&deliveries, policy, ledger, channel).await.unwrap();
    for key in keys {
        let message = Announcement::new(*key, "room:ops", "what nobody else may read");
        assert!(queue.keep(&message, &down()).await.unwrap());
    }
    assert!(queue.close().await);
    folder
}

#[tokio::test]
async fn letters_and_runs_of_all_nodes_are_seen_and_made_due_at_any() {
    let (first, second) = (letters(&["a-1", "a-2"]).await, letters(&["b-1"]).await);
    let observe = |folder: &tempfile::TempDir| {
        let path = folder.path().display();
        format!("[observe]\nletters = '{path}'\nruns = '{path}'\n")
    };
    let fleet = Fleet::with(&[observe(&first), observe(&second), String::new()]);
    let seen = async |node| {
        let letters = fleet.get(node, "/admin/letters").await;
        if letters.status == 200 { letters.json() } else { Value::Null }
    };
    poll_until("all letters are seen", || async {
        let (one, third) = (seen(0).await, seen(2).await);
        one["waiting"] == 3 && third["waiting"] == 3
    })
    .await;
    let all = seen(2).await;
    let mut of_nodes: Vec<_> = all["letters"].as_array().unwrap().iter().collect();
    of_nodes.sort_by_key(|letter| letter["key"].as_str());
    let of_nodes: Vec<_> = of_nodes.iter().map(|one| (&one["key"], &one["node"])).collect();
    let text = |text: &str| json!(text);
    let (a, b) = (text("node-0"), text("node-1"));
    let keys = ["a-1", "a-2", "b-1"].map(text);
    assert_eq!(of_nodes, [(&keys[0], &a), (&keys[1], &a), (&keys[2], &b)]);
    assert_eq!(all["nodes"][0], json!({ "node": "node-0", "waiting": 2, "shown": 2 }));
    assert!(!all.to_string().contains("nobody else"), "{all}");
    let runs = fleet.get(2, "/admin/runs").await.json();
    assert_eq!((&runs["known"], runs["nodes"].as_array().map(Vec::len)), (&json!(0), Some(2)));

    let drain = async |node, query: &str| {
        fleet.post(node, &format!("/admin/letters/drain{query}"), &Value::Null).await
    };
    let is = |status: u16, text: &str| (status, format!("{text}\n"));
    assert_eq!(drain(2, "?key=a-2").await, is(200, "1 letter is due"));
    assert_eq!(drain(0, "?key=b-1").await, is(200, "1 letter is due"));
    assert_eq!(drain(1, "?key=b-1").await, is(200, "1 letter is due"), "its own");
    assert_eq!(drain(0, "?node=node-1").await, is(200, "1 letter is due"));
    assert_eq!(drain(2, "").await, is(200, "node-0: 2 letters are due\nnode-1: 1 letter is due"));
    let (status, text) = drain(2, "?key=c-1").await;
    assert_eq!((status, text.contains("no node has shown")), (404, true), "{text}");
    assert_eq!(drain(2, "?key=c-1&node=node-0").await, is(200, "0 letters are due"));
    assert_eq!(drain(0, "?node=node-9").await.0, 404);
    // Somebody delivers from it.
    let _locked = DeliveryFolder::open(first.path()).await.unwrap();
    let (status, text) = drain(2, "?key=a-1").await;
    assert_eq!((status, text.contains("a service delivers")), (409, true), "{text}");

    fleet.store.set_away(true);
    let own = seen(0).await;
    assert_eq!((&own["waiting"], &own["store_away"]), (&json!(2), &json!(true)));
    assert_eq!(seen(2).await["waiting"], 0);
    assert_eq!(drain(2, "?key=a-1").await.0, 503);
    assert_eq!(drain(1, "").await, is(200, "1 letter is due"));
}

/// The same over sockets, as an operator has it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_operator_decides_at_another_gateway_over_sockets() {
    let store = EmbeddedStore::new();
    let mut rigs = Vec::new();
    for name in ["one", "two"] {
        let builder = DIALECTS.into_iter().fold(
            Rig::builder().config("[escalation]\nenabled = true\n"),
            |builder, dialect| {
                let faults = FaultPlan::always(Fault::Error(ErrorKind::Auth));
                let models = format!("models = {{ \"*\" = \"{}\" }}", model(dialect));
                builder.provider_with(provider(dialect).with_faults(faults).build(), &models)
            },
        );
        let rig = builder.start().await;
        rig.app.share(Arc::new(store.join(name)), rig.addr.to_string());
        rigs.push(rig);
    }
    let [one, two] = &rigs[..] else { unreachable!("two gateways") };
    let at = one.addr;
    let call =
        tokio::spawn(
            async move { ask(Dialect::Anthropic, "claude-sonnet-4-5", true).send(at).await },
        );
    let held = async || {
        let all = HttpRequest::get("/admin/escalations").send(two.addr).await.json();
        all["escalations"].as_array().unwrap().clone()
    };
    poll_until("it is seen", || async { held().await.len() == 1 }).await;
    let shown = held().await.remove(0);
    assert_eq!((&shown["node"], &shown["stream"]), (&json!("one"), &json!(true)));
    let path = format!("/admin/escalations/{}", shown["id"].as_str().unwrap());
    let decide = || HttpRequest::post(&path, answer("Later.").to_string());
    let decided = decide().send(two.addr).await;
    assert_eq!((decided.status, decided.text()), (200, "decided\n"));
    let reply = within(call).await.unwrap();
    assert!(reply.text().contains("Later."), "{}", reply.text());
    poll_until("it is over", || async { held().await.is_empty() }).await;
    for rig in &rigs {
        assert_eq!(decide().send(rig.addr).await.status, 409);
    }
}
