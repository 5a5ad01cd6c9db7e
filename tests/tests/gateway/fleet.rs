//! Several gateways that share what they know, with nothing else set.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use serde_json::{Value, json};
use steadfast::{
    shared::{EmbeddedNode, EmbeddedStore, SharedState},
    sim::{Dialect, ErrorKind, Fault, FaultPlan, SimProvider},
};
use steadfast_tests::gateway::{
    http::{HttpRequest, Reply},
    in_process::InProcess,
    model, provider, question, rich_answer,
};
use tokio::time::{Instant, sleep};

/// The admin key, and its hash.
const ADMIN: &str = "an-admin-key";
const HASH: &str = "sha256:6060cd3705fe21fdbaa921b8e680e599e1ac10a7c36e76adacd1f15e325e8465";

/// Gateways before the same providers.
struct Fleet {
    sims: [SimProvider; 2],
    gateways: Vec<InProcess>,
    nodes: Vec<EmbeddedNode>,
    store: EmbeddedStore,
}

impl Fleet {
    fn new(size: usize) -> Self {
        Self::with_settings(size, "")
    }

    fn with_settings(size: usize, more: &str) -> Self {
        let sims = [Dialect::OpenAi, Dialect::Anthropic]
            .map(|dialect| provider(dialect).respond(|_| Some(rich_answer())).build());
        let store = EmbeddedStore::new();
        let nodes: Vec<_> = (0..size).map(|at| store.join(&format!("node-{at}"))).collect();
        let keys = format!(
            "[server]\nauth = 'none'\nadmin_key = '{HASH}'\n[failover]\nchain = ['openai', 'anthropic']\n{more}"
        );
        let gateways = nodes.iter().enumerate().map(|(at, node)| {
            let gateway = InProcess::with_settings(&keys, &sims);
            gateway.app.share(Arc::new(node.clone()), format!("127.0.0.1:{}", 7_000 + at));
            gateway
        });
        Self { gateways: gateways.collect(), sims, nodes, store }
    }

    /// Asks each gateway in turn, once in `every`, for `lasts`. How often the first provider was asked meanwhile.
    async fn run(&self, lasts: Duration, every: Duration) -> usize {
        let before = self.asked();
        let start = Instant::now();
        while start.elapsed() < lasts {
            for gateway in &self.gateways {
                let reply = call(gateway).await;
                assert_eq!(reply.status, 200, "{:?}", reply.header("x-steadfast-recovery"));
                sleep(every / self.gateways.len() as u32).await;
            }
        }
        self.asked() - before
    }

    fn asked(&self) -> usize {
        self.sims[0].journal().len()
    }

    fn set_faults(&self, faults: FaultPlan) {
        self.sims[0].set_faults(faults);
    }
}

/// A call of its own session and text: what fails for one caller alone rests for that one alone.
async fn call(gateway: &InProcess) -> Reply {
    static CALLS: AtomicUsize = AtomicUsize::new(0);
    let number = CALLS.fetch_add(1, Ordering::Relaxed).to_string();
    let (dialect, model) = (Dialect::OpenAi, model(Dialect::OpenAi));
    let mut question = question(dialect, model, false);
    question["messages"] = json!([{ "role": "user", "content": number }]);
    let asked = HttpRequest::post("/v1/chat/completions", question.to_string());
    gateway.send(&asked.header("x-steadfast-session", &number)).await
}

async fn fleet(gateway: &InProcess) -> Value {
    admin(gateway, "/admin/fleet").await
}

async fn admin(gateway: &InProcess, path: &str) -> Value {
    let asked = HttpRequest::get(path).header("authorization", &format!("Bearer {ADMIN}"));
    let reply = gateway.send(&asked).await;
    assert_eq!(reply.status, 200);
    serde_json::from_slice(&reply.body).unwrap()
}

/// Twenty minutes of a dead provider, asked by four gateways as often as by one that has all of their calls.
#[tokio::test(start_paused = true)]
async fn a_dead_provider_is_asked_by_a_fleet_about_as_often_as_by_one() {
    let mut asked = Vec::new();
    for size in [1, 4] {
        let fleet = Fleet::new(size);
        fleet.set_faults(FaultPlan::always(Fault::Error(ErrorKind::ServerError)));
        let every = Duration::from_secs(size as u64);
        asked.push(fleet.run(Duration::from_secs(1_200), every).await);
        fleet.set_faults(FaultPlan::none());
        // One sees that it is back, and so all do.
        fleet.run(Duration::from_secs(200), every).await;
        let before = fleet.asked();
        for gateway in &fleet.gateways {
            call(gateway).await;
        }
        assert_eq!(fleet.asked() - before, size);
    }
    let [alone, together] = asked[..] else { unreachable!("two fleets") };
    assert!(together <= alone + alone / 2, "{together} times by four, {alone} times by one");
}

#[tokio::test(start_paused = true)]
async fn gateways_that_lose_their_store_answer_as_before() {
    let fleet = Fleet::new(3);
    fleet.set_faults(FaultPlan::always(Fault::Error(ErrorKind::Overloaded)));
    fleet.run(Duration::from_secs(60), Duration::from_secs(1)).await;
    fleet.store.set_away(true);
    // All calls are answered, by the other one.
    fleet.run(Duration::from_secs(600), Duration::from_secs(1)).await;
    fleet.set_faults(FaultPlan::none());
    fleet.run(Duration::from_secs(600), Duration::from_secs(1)).await;
    fleet.store.set_away(false);
    fleet.run(Duration::from_secs(60), Duration::from_secs(1)).await;
    let before = fleet.asked();
    for gateway in &fleet.gateways {
        call(gateway).await;
    }
    assert_eq!(fleet.asked() - before, 3, "nobody takes an old rest for a new one");
}

#[tokio::test(start_paused = true)]
async fn operators_see_the_nodes_and_what_each_has_found() {
    let fleet = Fleet::new(2);
    fleet.set_faults(FaultPlan::always(Fault::Error(ErrorKind::Auth)));
    call(&fleet.gateways[0]).await;
    sleep(Duration::from_millis(1)).await;
    let seen = self::fleet(&fleet.gateways[1]).await;
    assert_eq!((&seen["shared"], &seen["node"]), (&true.into(), &"node-1".into()));
    let nodes = seen["nodes"].as_array().unwrap();
    let addresses: Vec<_> = nodes.iter().map(|node| node["address"].as_str().unwrap()).collect();
    assert_eq!(addresses, ["127.0.0.1:7000", "127.0.0.1:7001"]);
    assert_eq!(seen["differ_in_configuration"], false);
    assert_eq!(seen["store"]["away"], false);
    let facts = seen["facts"].as_array().unwrap();
    let rest = facts.iter().find(|fact| fact["kind"] == "rests").unwrap();
    assert!(rest["key"].as_str().unwrap().starts_with("openai"), "{rest}");
    assert!(rest["for_s"].as_f64().unwrap() > 60.0);
    assert_eq!((&rest["by"][0]["node"], &rest["by"][0]["holds"]), (&"node-0".into(), &true.into()));
    let metrics = fleet.gateways[0].send(&HttpRequest::get("/metrics")).await;
    let metrics = String::from_utf8(metrics.body).unwrap();
    for line in
        ["steadfast_fleet_nodes 2", "steadfast_state_away 0", "steadfast_state_outages_total 0"]
    {
        assert!(metrics.contains(&format!("\n{line}\n")), "{line} in {metrics}");
    }
    fleet.nodes[1].set_away(true);
    let seen = self::fleet(&fleet.gateways[1]).await;
    assert_eq!((&seen["store"]["away"], &seen["store"]["outages"]), (&true.into(), &1.into()));
    let keys = format!("[server]\nauth = 'none'\nadmin_key = '{HASH}'\n");
    let alone = InProcess::with_settings(&keys, &fleet.sims);
    assert_eq!(self::fleet(&alone).await["shared"], false);
}

/// A cap of ten calls or so is one for the fleet, and each gateway shows what all have spent.
#[tokio::test(start_paused = true)]
async fn a_cap_holds_for_the_fleet() {
    for caps in ["share", "strict"] {
        let more = format!("[spend_limit]\ntokens_hour = 40000\n[state]\ncaps = '{caps}'\n");
        let fleet = Fleet::with_settings(3, &more);
        let mut answered = 0;
        for at in 0..9_000 {
            if at == 30 {
                let leased = self::fleet(&fleet.gateways[0]).await["leases"]["spend"].clone();
                assert_eq!(leased[0]["account"], "calls without a tenant", "{leased}");
                assert!(leased[0]["granted"]["tokens"].as_u64() > Some(0), "{leased}");
            }
            let reply = call(&fleet.gateways[at % 3]).await;
            match reply.status {
                200 => answered += 1,
                status => {
                    let text = String::from_utf8_lossy(&reply.body).into_owned();
                    assert!(status == 402 && text.contains("the cap of"), "{status} {text}");
                    break;
                }
            }
            sleep(Duration::from_millis(100)).await;
        }
        sleep(Duration::from_secs(10)).await;
        let spend = [0, 1, 2].map(|at| admin(&fleet.gateways[at], "/admin/spend"));
        let spend = futures_util::future::join_all(spend).await;
        let spent = |spend: &Value| spend["accounts"][0]["hour"]["tokens"].as_u64();
        assert!(spent(&spend[0]).is_some(), "{}", spend[0]);
        assert!(spend.iter().all(|one| spent(one) == spent(&spend[0])), "{spend:?}");
        let (spent, most) = (spent(&spend[0]).unwrap(), 10_000);
        assert!(spent <= 40_000 && spent + 2 * most > 40_000, "{caps}: {answered}, {spent}");
    }
}

/// A conversation of the Responses API: each of its turns at another gateway.
#[tokio::test(start_paused = true)]
async fn a_response_of_one_gateway_is_gone_on_from_at_another() {
    let fleet = Fleet::new(3);
    let mut previous = None;
    for (turn, gateway) in fleet.gateways.iter().cycle().take(7).enumerate() {
        let mut body = json!({"model": model(Dialect::OpenAi), "input": format!("turn {turn}")});
        if let Some(previous) = &previous {
            body["previous_response_id"] = Value::clone(previous);
        }
        let asked = HttpRequest::post("/v1/responses", body.to_string());
        let reply = gateway.send(&asked).await;
        let answer: Value = serde_json::from_slice(&reply.body).unwrap();
        assert_eq!(reply.status, 200, "{answer}");
        previous = Some(answer["id"].clone());
        sleep(Duration::from_millis(1)).await;
    }
    let sent = fleet.sims[0].journal().entries().pop().unwrap().json.unwrap().to_string();
    for turn in 0..7 {
        assert!(sent.contains(&format!("turn {turn}")), "{turn} in {sent}");
    }
}

/// What is moved by failover stays there, at whichever gateway it goes on; and a fleet in which nothing happens asks the store
/// for nothing.
#[tokio::test(start_paused = true)]
async fn a_conversation_goes_on_where_one_gateway_has_moved_it() {
    let fleet = Fleet::new(2);
    let turn = async |gateway: &InProcess, session: &str| {
        let (dialect, model) = (Dialect::OpenAi, model(Dialect::OpenAi));
        let mut question = question(dialect, model, false);
        question["messages"] = json!([
            { "role": "user", "content": session }, { "role": "assistant", "content": "Yes." },
            { "role": "user", "content": "Go on." },
        ]);
        let asked = HttpRequest::post("/v1/chat/completions", question.to_string());
        let reply = gateway.send(&asked.header("x-steadfast-session", session)).await;
        assert_eq!(reply.status, 200);
        sleep(Duration::from_millis(1)).await;
    };
    let commands = || fleet.nodes.iter().map(|node| node.fleet().store.commands).sum::<u64>();
    let before = commands();
    for at in 0..100 {
        turn(&fleet.gateways[at % 2], &at.to_string()).await;
    }
    assert_eq!(commands(), before);
    fleet.set_faults(FaultPlan::always(Fault::Error(ErrorKind::Overloaded)));
    turn(&fleet.gateways[0], "moved").await;
    fleet.set_faults(FaultPlan::none());
    sleep(Duration::from_secs(150)).await;
    let asked = || fleet.sims.each_ref().map(|sim| sim.journal().len());
    let (before, here) = (asked(), fleet.sims.len());
    turn(&fleet.gateways[1], "moved").await;
    turn(&fleet.gateways[1], "another").await;
    assert_eq!((asked()[0] - before[0], asked()[1] - before[1], here), (1, 1, 2));
}
