//! The configuration is read again while requests are under way: none of them notices, and what is known
//! of what stays is kept.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use serde_json::Value;
use steadfast::{
    Failure, Reason, Target, ToolCall,
    sim::{
        Dialect, Fault, FaultPlan, KeyLimits, Latency, RateLimit, SimProvider, Summaries,
        SummaryReply,
    },
};
use steadfast_tests::gateway::{
    DIALECTS, PROVIDER_KEY, Rig, ask,
    http::{HttpRequest, Reply, within},
    model, provider, rich_answer,
};

async fn reload(rig: &Rig) -> Reply {
    HttpRequest::post("/admin/reload", "").send(rig.addr).await
}

async fn status(rig: &Rig) -> Value {
    HttpRequest::get("/admin/status").send(rig.addr).await.json()
}

/// A provider that answers so slowly that a stream lasts over several reloads.
fn slow(dialect: Dialect) -> SimProvider {
    let latency = Latency { per_token: Duration::from_millis(3), ..Latency::default() };
    provider(dialect).respond(|_| Some(rich_answer())).with_latency(latency).build()
}

/// So many reloads, with other numbers each time, under a load of streams and whole answers.
async fn reloads_under_load(times: usize) {
    let limited = Fault::rate_limit(RateLimit::after("3600"));
    let cooling = provider(Dialect::OpenAi).with_faults(FaultPlan::always(limited)).build();
    let rig = Rig::builder()
        .config("[failover]\nchain = ['openai', 'anthropic']\n[guard.named]\ncalls = 1\n")
        .provider(cooling)
        .provider_with(slow(Dialect::Anthropic), "models = { '*' = 'claude-sonnet-4-5' }")
        .start()
        .await;
    let rig = Arc::new(rig);
    let question = |stream| ask(Dialect::Anthropic, model(Dialect::Anthropic), stream);

    // One provider cools for an hour, and a task is stopped.
    for caller in ["Who is it?", "Where is it?", "When is it?"] {
        let asks = String::from_utf8(question(false).sent().to_vec()).unwrap();
        let asks = question(false).body(asks.replace("What is it?", caller));
        assert_eq!(asks.send(rig.addr).await.status, 200);
    }
    let asked = rig.sims[0].provider().journal().len();
    assert_eq!(asked, 2);
    let guard = rig.app.gateway().handles().guard.clone();
    let call = ToolCall { name: "ls".into(), ..ToolCall::default() };
    while guard.check_call("stopped", &call).is_ok() {}

    let (done, answered) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let load: Vec<_> = (0..8)
        .map(|n| {
            let (rig, done, answered) = (rig.clone(), done.clone(), answered.clone());
            let question = question(n % 2 == 0);
            tokio::spawn(async move {
                while !done.load(Ordering::Relaxed) {
                    let reply = question.send(rig.addr).await;
                    assert_eq!(reply.status, 200, "{}", reply.text());
                    assert!(reply.clean, "cut: {}", reply.text());
                    let last = if n % 2 == 0 { "message_stop" } else { "stop_reason" };
                    assert!(reply.text().contains(last), "{}", reply.text());
                    answered.fetch_add(1, Ordering::Relaxed);
                }
            })
        })
        .collect();
    for n in 0..times {
        let numbers =
            format!("[retry]\nretries = {}\n[breaker]\nfailures = {}\n", n % 4, 3 + n % 5);
        rig.rewrite(&format!("{}{numbers}", rig.config));
        let reply = reload(&rig).await;
        assert_eq!((reply.status, reply.text()), (200, "reloaded\n"));
    }
    done.store(true, Ordering::Relaxed);
    for task in load {
        task.await.unwrap();
    }
    assert!(answered.load(Ordering::Relaxed) >= 8);

    assert_eq!(rig.sims[0].provider().journal().len(), asked, "it cools all the time");
    let stopped = question(false).header("x-steadfast-task", "stopped");
    let served = rig.sims[1].provider().journal().len();
    assert!(stopped.send(rig.addr).await.text().contains("guard"), "what is stopped is stopped");
    assert_eq!(rig.sims[1].provider().journal().len(), served);
    rig.assert_all_attempts("one count, whatever is reloaded").await;
    let status = status(&rig).await;
    assert_eq!(status["reload"]["times"], times);
    assert_eq!(status["reload"]["last_error"], Value::Null);
    let cooling = status["targets"]
        .as_array()
        .unwrap()
        .iter()
        .any(|target| target["cooling"]["for_s"].as_f64().is_some_and(|left| left > 60.0));
    assert!(cooling, "{status:#}");
    let retries = status["retry"]["calls"].as_u64().unwrap();
    assert!(retries as usize > answered.load(Ordering::Relaxed), "one count of all calls");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reloads_under_load_are_not_noticed() {
    let times = std::env::var("STEADFAST_RELOADS").map_or(200, |times| times.parse().unwrap());
    reloads_under_load(times).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wrong_file_changes_nothing_and_is_answered_as_check_answers_it() {
    let rig = Rig::of(slow(Dialect::OpenAi)).await;
    for (wrong, expected) in [
        ("[retry]\nretries = 'many'\n", "retry.retries: invalid type: string"),
        ("[retry]\nretrys = 2\n", "retry.retrys: unknown field `retrys`"),
        ("[retry]\nbase_ms = 0\n", "retry.base_ms: backoff base is zero"),
        ("[failover]\nchain = ['nobody']\n", "failover.chain[0]: there is no provider `nobody`"),
        (
            "[[providers]]\nname='b'\ndialect='openai'\ncredentials=['file:/nowhere/key']\n",
            "/nowhere",
        ),
        ("[", "steadfast.toml:"),
    ] {
        rig.rewrite(&format!("{}{wrong}", rig.config));
        let reply = reload(&rig).await;
        assert_eq!(reply.status, 400, "{wrong}");
        assert!(reply.text().contains(expected), "{expected} in {}", reply.text());
        let shown = &status(&rig).await["reload"]["last_error"];
        assert!(shown.as_str().unwrap().contains(expected), "{shown}");
        let reply = ask(Dialect::OpenAi, model(Dialect::OpenAi), false).send(rig.addr).await;
        assert_eq!(reply.status, 200);
    }
    rig.rewrite(&rig.config);
    assert_eq!(reload(&rig).await.status, 200);
    let shown = &status(&rig).await["reload"];
    assert_eq!((&shown["times"], &shown["failed"]), (&1.into(), &6.into()));
    assert_eq!(shown["last_error"], Value::Null);
    let metrics = HttpRequest::get("/metrics").send(rig.addr).await;
    for line in ["steadfast_reloads_total{outcome=\"ok\"} 1", "{outcome=\"failed\"} 6"] {
        assert!(metrics.text().contains(line), "{line}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_takes_a_restart_is_named_and_left() {
    let rig = Rig::of(slow(Dialect::OpenAi)).await;
    let moved =
        rig.config.replace("[server]\n", "[server]\nlisten = '0.0.0.0:1'\nshutdown_s = 7\n");
    rig.rewrite(&moved);
    let reply = reload(&rig).await;
    // Also that everybody could reach the new address without a key is no matter as long as it is not used.
    assert_eq!(reply.status, 200, "{}", reply.text());
    let expected = "reloaded\nserver.listen takes a restart and is left as it was\n\
                    server.shutdown_s takes a restart and is left as it was\n";
    assert_eq!(reply.text(), expected);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_rotate_and_a_renewed_one_is_not_held_to_what_the_old_one_did() {
    let builder = Rig::builder();
    let acme = builder.secret("acme", "gw-first");
    let admin = builder.secret("admin", "admin-first");
    let rig = builder
        .server(&format!("admin_key = '{admin}'"))
        .config(&format!("[[tenants]]\nname = 'acme'\nkeys = ['{acme}']\n"))
        .provider(provider(Dialect::OpenAi).respond(|_| Some(rich_answer())).build())
        .start()
        .await;
    let asked = async |key: &str| {
        let question = ask(Dialect::OpenAi, model(Dialect::OpenAi), false);
        question.header("authorization", &format!("Bearer {key}")).send(rig.addr).await
    };
    let reloaded = async |key: &str| {
        let request = HttpRequest::post("/admin/reload", "").header("x-api-key", key);
        request.send(rig.addr).await.status
    };
    assert_eq!(asked("gw-first").await.status, 200);
    rig.rotate("acme", "gw-second");
    rig.rotate("admin", "admin-second");
    assert_eq!(asked("gw-first").await.status, 200, "until it is read again");
    assert_eq!(reloaded("admin-second").await, 401);
    assert_eq!(reloaded("admin-first").await, 200);
    assert_eq!(asked("gw-first").await.status, 401);
    assert_eq!(asked("gw-second").await.status, 200);
    assert_eq!(reloaded("admin-first").await, 401);

    // The provider's own key: one that is refused cools for an hour, the renewed one is used at once.
    rig.rotate("provider", "sk-revoked");
    assert_eq!(reloaded("admin-second").await, 200);
    for _ in 0..3 {
        assert_ne!(asked("gw-second").await.status, 200);
    }
    let handles = rig.app.gateway().handles().clone();
    let key = Target::new("openai").with_credential("provider");
    assert!(handles.failover.snapshot().get(&key).unwrap().cooling.is_some());
    assert_eq!(reloaded("admin-second").await, 200);
    assert!(handles.failover.snapshot().get(&key).unwrap().cooling.is_some(), "it is the same key");
    rig.rotate("provider", PROVIDER_KEY);
    assert_eq!(reloaded("admin-second").await, 200);
    let before = rig.asked();
    let reply = asked("gw-second").await;
    assert_eq!(reply.status, 200, "{}", reply.text());
    rig.assert_attempts(&reply, before, "the renewed key");
    rig.assert_all_attempts("keys that are refused").await;
}

/// What was learned of limits and of health, of the providers and keys that are the same as before.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn limits_and_health_are_kept_of_what_stays() {
    let limits = KeyLimits { requests: Some(600), ..KeyLimits::default() };
    let limited = |dialect| provider(dialect).with_limits(limits).build();
    let rig = Rig::builder()
        .config("[failover]\nown_vendor_first = true\n")
        .provider(limited(Dialect::OpenAi))
        .provider_with(limited(Dialect::Anthropic), "prefill = false")
        .start()
        .await;
    // Both are asked, and both are degraded.
    let learn = async || {
        let handles = rig.app.gateway().handles().clone();
        for asked in DIALECTS[..2].iter().map(|dialect| ask(*dialect, model(*dialect), false)) {
            assert_eq!(asked.send(rig.addr).await.status, 200);
        }
        let down = Failure::new(Reason::ServerError, "down");
        for name in ["openai", "anthropic"].repeat(3) {
            handles.health.probed(name, Err(&down));
        }
    };
    let known = async || {
        let status = status(&rig).await;
        let rows = |section: &str| status[section].as_array().unwrap().clone();
        let quotas =
            rows("rate_limits").into_iter().filter(|row| row["quotas"][0]["learned"] == true);
        let quotas: Vec<_> = quotas.map(|row| row["target"].to_string()).collect();
        let degraded = rows("health").into_iter().filter(|row| row["status"] == "degraded");
        let degraded: Vec<_> = degraded.map(|row| row["provider"].to_string()).collect();
        let starts = |name: &str| {
            let start = format!("\"{name}");
            let quotas = quotas.iter().filter(|target| target.starts_with(&start)).count();
            (quotas, degraded.iter().filter(|provider| provider.starts_with(&start)).count())
        };
        (starts("openai"), starts("anthropic"))
    };
    learn().await;
    let all = ((1, 1), (1, 1));
    assert_eq!(known().await, all);
    rig.rewrite(&format!("{}[retry]\nretries = 1\n", rig.config));
    assert_eq!(reload(&rig).await.status, 200);
    assert_eq!(known().await, all, "nothing of them has changed");
    let moved = rig.config.replace("prefill =", "headers = { x-team = 'two' }\nprefill =");
    rig.rewrite(&moved);
    assert_eq!(reload(&rig).await.status, 200);
    assert_eq!(known().await, ((1, 1), (0, 0)), "another team of it may have other limits");
    rig.rotate("provider", "sk-renewed-key-4711");
    assert_eq!(reload(&rig).await.status, 200);
    assert_eq!(known().await, ((0, 0), (0, 0)), "so may another key");
    rig.rotate("provider", PROVIDER_KEY);
    assert_eq!(reload(&rig).await.status, 200);
    learn().await;
    assert_eq!(known().await, all);
    let (server, rest) = rig.config.split_once("[[providers]]").unwrap();
    let (openai, _) = rest.split_once("[[providers]]").unwrap();
    rig.rewrite(&format!("{server}[[providers]]{openai}"));
    assert_eq!(reload(&rig).await.status, 200);
    assert_eq!(known().await, ((1, 1), (0, 0)), "one is gone");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_goes_on_while_its_provider_leaves_the_file() {
    for dialect in DIALECTS {
        let rig = Rig::builder()
            .provider(slow(dialect))
            .provider_with(
                provider(dialect).with_name("other").respond(|_| Some(rich_answer())).build(),
                "",
            )
            .start()
            .await;
        let stream = ask(dialect, model(dialect), true).open(rig.addr).await;
        assert_eq!(stream.status, 200);
        let (server, rest) = rig.config.split_once("[[providers]]").unwrap();
        let (_, other) = rest.split_once("[[providers]]").unwrap();
        rig.rewrite(&format!("{server}[[providers]]{other}"));
        assert_eq!(reload(&rig).await.status, 200);
        let health = status(&rig).await["targets"].to_string();
        assert!(!health.contains(&format!("\"{dialect}")), "{health}");
        assert_eq!(ask(dialect, model(dialect), false).send(rig.addr).await.status, 200);
        assert_eq!(rig.sims[1].provider().journal().len(), 1, "asked instead");
        let reply = within(stream.rest()).await;
        assert!(reply.clean, "{dialect}: cut");
        assert_eq!(rig.seen().len(), 1, "it needed no second call");
        rig.assert_all_attempts(dialect.as_str()).await;
    }
}

/// A key of the summariser that was refused is not held against the renewed one either.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_summarisers_key_rotates_too() {
    let dialect = Dialect::OpenAi;
    let summaries = Summaries::to("You keep the record").then(SummaryReply::Good);
    let rig = Rig::builder()
        .config("[compaction.summariser]\nprovider = 'openai'\nmodel = 'gpt-4o-mini'\n")
        .provider_with(provider(dialect).with_summaries(summaries).build(), "window = 12_000")
        .start()
        .await;
    // A conversation of its own, which outgrows the window.
    let summarised = async |session: &str| {
        let message = |at: usize| {
            let role = if at.is_multiple_of(2) { "user" } else { "assistant" };
            serde_json::json!({"role": role, "content": format!("{session} {at}: {}", "and so on ".repeat(100))})
        };
        let messages: Vec<_> = (0..101).map(message).collect();
        let body = serde_json::json!({"model": "gpt-4o", "max_tokens": 500, "messages": messages});
        let question = ask(dialect, model(dialect), false).body(body.to_string());
        let reply = question.header("x-steadfast-session", session).send(rig.addr).await;
        let is_summary = |entry: &&steadfast::sim::Entry| entry.model == "gpt-4o-mini";
        (reply.status, rig.seen().iter().filter(is_summary).count())
    };
    // Before it has ever worked, or it would be believed refused on a second caller's word only.
    rig.rotate("provider", "sk-revoked");
    assert_eq!(reload(&rig).await.status, 200);
    let (status, refused) = summarised("one").await;
    assert!(status != 200 && refused > 0, "{status}, {refused} asked");
    rig.rotate("provider", PROVIDER_KEY);
    assert_eq!(reload(&rig).await.status, 200);
    let (status, renewed) = summarised("two").await;
    assert!(status == 200 && renewed > refused, "{status}, {refused}, {renewed}");
}
