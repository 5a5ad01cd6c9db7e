//! Routes: requests go by chains and limits of their own, by model, tenant and agent, and know the same of
//! their targets.

use std::time::Duration;

use serde_json::Value;
use steadfast::sim::{
    Answer, Dialect, ErrorKind, Fault, FaultPlan, Latency, RateLimit, SimProvider,
};
use steadfast_tests::gateway::{Rig, RigBuilder, ask, http::HttpRequest, provider};

const MODEL: &str = "gpt-4o";

fn named(name: &str) -> SimProvider {
    let name = name.to_owned();
    let answer = Answer::text(format!("says {name}"));
    provider(Dialect::OpenAi).with_name(name).respond(move |_| Some(answer.clone())).build()
}

fn three() -> RigBuilder {
    Rig::builder().provider(named("a")).provider(named("b")).provider(named("c"))
}

fn question(model: &str) -> HttpRequest {
    ask(Dialect::OpenAi, model, false)
}

/// Which provider answered.
async fn answered(rig: &Rig, request: HttpRequest) -> String {
    let before = rig.asked();
    let reply = request.send(rig.addr).await;
    assert_eq!(reply.status, 200, "{}", reply.text());
    rig.assert_attempts(&reply, before, "one of a row");
    let target = reply.header("x-steadfast-target").unwrap();
    target.split('/').next().unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_first_route_in_the_file_that_takes_a_request_has_it() {
    let builder = three();
    let (acme, other) = (builder.secret("acme", "k-acme-1"), builder.secret("other", "k-other-1"));
    let rig = builder
        .server("")
        .config(&format!(
            "[[tenants]]\nname = 'acme'\nkeys = ['{acme}']\n\
             [[tenants]]\nname = 'other'\nkeys = ['{other}']\n\
             [aliases]\nfast = 'gpt-4o-mini'\n\
             [routes.zulu]\nagents = ['coder*']\nchain = ['c']\n\
             [routes.mini]\nmodels = ['gpt-4o-mini']\nchain = ['b', 'a']\n\
             [routes.acme]\ntenants = ['acme']\nmodels = ['gpt-*']\nchain = ['c', 'a']\n"
        ))
        .start()
        .await;
    let as_ = |key: &str, model| question(model).header("authorization", &format!("Bearer {key}"));
    for (request, expected) in [
        (as_("k-other-1", MODEL), "a"),
        (as_("k-acme-1", MODEL), "c"),
        (as_("k-acme-1", "gpt-4o-mini"), "b"),
        (as_("k-other-1", "fast"), "b"),
        (as_("k-other-1", "gpt-4o-mini").header("x-steadfast-agent", "coder-7"), "c"),
        (as_("k-acme-1", MODEL).header("x-steadfast-agent", "writer"), "c"),
        (as_("k-other-1", MODEL).header("x-steadfast-agent", "writer"), "a"),
    ] {
        assert_eq!(answered(&rig, request.clone()).await, expected, "{request:?}");
    }
    let metrics = HttpRequest::get("/metrics").send(rig.addr).await;
    for line in [
        "steadfast_route_requests_total{route=\"zulu\",outcome=\"ok\"} 1",
        "steadfast_route_requests_total{route=\"mini\",outcome=\"ok\"} 2",
        "steadfast_route_requests_total{route=\"acme\",outcome=\"ok\"} 2",
        "steadfast_route_requests_total{route=\"default\",outcome=\"ok\"} 2",
    ] {
        assert!(metrics.text().contains(line), "{line} in {}", metrics.text());
    }
    rig.assert_all_attempts("over all routes").await;
    let status = rig.app.gateway().status();
    let names: Vec<_> =
        status["routes"].as_array().unwrap().iter().map(|route| route["name"].clone()).collect();
    assert_eq!(names, ["zulu", "mini", "acme", "default"], "the order of the file");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_alias_stands_for_a_model_and_the_answer_names_the_model() {
    for dialect in [Dialect::OpenAi, Dialect::Anthropic] {
        let rig = three().config("[aliases]\nfast = 'gpt-4o-mini'\n").start().await;
        for stream in [false, true] {
            let reply = ask(dialect, "fast", stream).send(rig.addr).await;
            assert_eq!(reply.status, 200, "{}", reply.text());
            assert!(reply.text().contains("\"gpt-4o-mini\""), "{}", reply.text());
            assert!(!reply.text().contains("\"fast\""), "{}", reply.text());
            assert_eq!(rig.last().model, "gpt-4o-mini");
            assert!(!rig.last().json.unwrap().to_string().contains("fast"));
        }
        let listed = HttpRequest::get("/v1/models").send(rig.addr).await;
        assert!(listed.text().contains("\"fast\"") && listed.text().contains("gpt-4o-mini"));
        assert_eq!(HttpRequest::get("/v1/models/fast").send(rig.addr).await.status, 200);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_provider_that_is_down_on_one_route_rests_for_the_other() {
    let down = Fault::rate_limit(RateLimit::after("3600"));
    let rig =
        three().config("[routes.mini]\nmodels = ['mini']\nchain = ['a', 'c']\n").start().await;
    rig.sims[0].provider().set_faults(FaultPlan::always(down));
    for _ in 0..3 {
        assert_eq!(answered(&rig, question(MODEL)).await, "b");
    }
    let asked = rig.seen().len();
    assert_eq!(asked, 2, "two callers' failures, then it cools");
    let mapped = rig.config.replace("name = \"a\"", "models = { mini = 'gpt-4o' }\nname = \"a\"");
    let mapped = mapped.replace("name = \"c\"", "models = { mini = 'gpt-4o' }\nname = \"c\"");
    rig.rewrite(&mapped);
    let reloaded = HttpRequest::post("/admin/reload", "").send(rig.addr).await;
    assert_eq!(reloaded.status, 200, "{}", reloaded.text());
    for _ in 0..3 {
        assert_eq!(answered(&rig, question("mini")).await, "c");
    }
    assert_eq!(rig.seen().len(), asked, "the other route does not ask it at all");
    rig.assert_all_attempts("with one that cools").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_route_has_limits_of_its_own() {
    let latency = Latency { headers: Duration::from_millis(700), ..Latency::default() };
    let slow = provider(Dialect::OpenAi)
        .with_name("slow")
        .respond(|_| Some(Answer::text("late")))
        .with_latency(latency)
        .build();
    let rig = Rig::builder()
        .provider(slow)
        .config(
            "[routes.quick]\nagents = ['quick']\ntimeout = { pipeline_ms = 150 }\n\
             [routes.once]\nagents = ['once']\n[routes.once.failover]\nwhen_exhausted = 'fail'\n\
             [routes.once.retry]\nretries = 0\n",
        )
        .start()
        .await;
    let reply = question(MODEL).header("x-steadfast-agent", "quick").send(rig.addr).await;
    assert_eq!(reply.status, 504, "{}", reply.text());
    assert_eq!(question(MODEL).send(rig.addr).await.status, 200, "nobody else has that limit");

    let before = rig.seen().len();
    rig.sims[0].provider().set_faults(FaultPlan::always(Fault::Error(ErrorKind::ServerError)));
    let reply = question(MODEL).header("x-steadfast-agent", "once").send(rig.addr).await;
    assert_eq!(reply.status, 502, "{}", reply.text());
    assert_eq!(rig.seen().len() - before, 1, "asked once");
    rig.assert_attempts(&reply, before, "asked once");
    rig.assert_all_attempts("with one that is cut off by a limit").await;
    let _: Value = reply.json();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn equal_providers_share_the_calls_and_sessions_do_not_move() {
    let rig = Rig::builder()
        .provider_with(named("a"), "weight = 3")
        .provider(named("b"))
        .provider(named("c"))
        .config("[failover]\nchain = [['a', 'b'], 'c']\nbalance = 'weight'\n")
        .start()
        .await;
    for _ in 0..200 {
        answered(&rig, question(MODEL)).await;
    }
    let counts: Vec<_> = rig.sims.iter().map(|sim| sim.provider().journal().len()).collect();
    assert!((120..180).contains(&counts[0]) && counts[2] == 0, "{counts:?}");
    assert_eq!(counts[0] + counts[1], 200);
    for session in 0..8 {
        let turn = || question(MODEL).header("x-steadfast-session", &format!("s{session}"));
        let first = answered(&rig, turn()).await;
        for _ in 0..5 {
            assert_eq!(answered(&rig, turn()).await, first);
        }
    }
    // The other one takes over what its equal can not, before the next in the chain.
    rig.sims[0].provider().set_faults(FaultPlan::always(Fault::Error(ErrorKind::Auth)));
    for _ in 0..10 {
        assert_eq!(answered(&rig, question(MODEL)).await, "b");
    }
    rig.assert_all_attempts("shared").await;
}
