//! Providers that are degraded and limits that are learned, through the whole gateway and with nothing of either set.

use std::{sync::Arc, time::Duration};

use serde_json::Value;
use steadfast::sim::{Dialect, ErrorKind, Fault, FaultPlan, KeyLimits, SimProvider};
use steadfast_tests::gateway::{
    ask,
    http::{HttpRequest, Reply},
    in_process::InProcess,
    model, provider, rich_answer,
};
use tokio::{
    task::JoinSet,
    time::{Instant, advance},
};

/// Two providers and `keys`; nothing of `[health]` and of `[rate_limit]`.
fn gateway(keys: &str, sims: &[SimProvider]) -> InProcess {
    InProcess::with_settings(&format!("[server]\nauth = 'none'\n{keys}"), sims)
}

fn sim(dialect: Dialect) -> SimProvider {
    provider(dialect).respond(|_| Some(rich_answer())).build()
}

async fn call(gateway: &InProcess, agent: &str) -> Reply {
    let dialect = Dialect::OpenAi;
    let question = ask(dialect, model(dialect), false).header("x-steadfast-agent", agent);
    gateway.send(&question).await
}

fn health(gateway: &InProcess, provider: &str) -> Value {
    let status = gateway.app.gateway().status();
    let rows = status["health"].as_array().unwrap();
    let row = rows.iter().find(|row| row["provider"] == provider);
    row.unwrap_or_else(|| panic!("{provider} in {status:#}")).clone()
}

fn degraded_series(gateway: &InProcess, provider: &str) -> Option<String> {
    let series = format!("steadfast_provider_degraded{{provider=\"{provider}\"}} ");
    let gauges = gateway.app.gateway().gauges(true);
    gauges.lines().find_map(|line| line.strip_prefix(&series).map(str::to_owned))
}

/// Two agents within a minute; without cooldowns, so that nothing but its health says who is asked.
#[tokio::test(start_paused = true)]
async fn a_degraded_provider_is_asked_after_the_others_until_it_answers_again() {
    let sims = [sim(Dialect::OpenAi), sim(Dialect::Anthropic)];
    let keys = "[failover]\nchain = ['openai', 'anthropic']\n[retry]\nretries = 0\n\
                [cooldown]\nserver_error = 0\nunknown = 0\n";
    let gateway = gateway(keys, &sims);
    let asked = |n: usize| sims[n].journal().len();
    sims[0].set_faults(FaultPlan::always(Fault::Error(ErrorKind::ServerError)));
    assert_eq!(call(&gateway, "one").await.status, 200);
    assert_eq!((health(&gateway, "openai")["status"].as_str(), asked(0)), (Some("healthy"), 1));
    assert_eq!(degraded_series(&gateway, "openai").as_deref(), Some("0"));
    // Beyond a minute it is one agent still.
    advance(Duration::from_secs(61)).await;
    assert_eq!(call(&gateway, "two").await.status, 200);
    assert_eq!(health(&gateway, "openai")["status"], "healthy");
    advance(Duration::from_secs(59)).await;
    assert_eq!(call(&gateway, "one").await.status, 200);
    let known = health(&gateway, "openai");
    assert_eq!((&known["status"], &known["degradations"]), (&"degraded".into(), &1.into()));
    assert_eq!(degraded_series(&gateway, "openai").as_deref(), Some("1"));
    assert_eq!(health(&gateway, "anthropic")["status"], "healthy");

    let before = asked(0);
    for agent in ["one", "two", "three"] {
        let reply = call(&gateway, agent).await;
        assert_eq!(reply.status, 200);
        let done = reply.header("x-steadfast-recovery").unwrap();
        assert!(done.contains("failover.skipped openai") && done.contains("degraded"), "{done}");
        assert_eq!(reply.header("x-steadfast-attempts"), Some("1"));
    }
    assert_eq!(asked(0), before, "it is asked after the others");
    // The others fail: then it is asked.
    sims[1].set_faults(FaultPlan::always(Fault::Error(ErrorKind::ServerError)));
    assert_ne!(call(&gateway, "one").await.status, 200);
    assert!(asked(0) > before);
    sims[1].set_faults(FaultPlan::none());

    // An hour of silence is no evidence. Calls are: one in ten seconds, and the next as soon as that has succeeded.
    advance(Duration::from_secs(3_600)).await;
    assert_eq!(health(&gateway, "openai")["status"], "degraded");
    sims[0].set_faults(FaultPlan::none());
    let before = asked(0);
    for successes in 1..=3 {
        assert_eq!(health(&gateway, "openai")["status"], "degraded", "{successes}");
        assert_eq!(call(&gateway, "one").await.status, 200);
        assert_eq!(asked(0), before + successes);
    }
    assert_eq!(health(&gateway, "openai")["status"], "healthy");
    assert_eq!(degraded_series(&gateway, "openai").as_deref(), Some("0"));
    assert_eq!(health(&gateway, "openai")["degradations"], 1);
}

/// A provider of 60 requests a minute and 20 callers: the limit is known from the first answer's headers on, shown,
/// and calls wait for their turn instead of being refused.
#[tokio::test(start_paused = true)]
async fn limits_are_learned_and_calls_kept_below_them() {
    for dialect in [Dialect::OpenAi, Dialect::Anthropic] {
        let limits = KeyLimits { requests: Some(60), ..KeyLimits::default() };
        let sim = provider(dialect).respond(|_| Some(rich_answer())).with_limits(limits).build();
        let gateway = Arc::new(gateway("", std::slice::from_ref(&sim)));
        let question = || ask(dialect, model(dialect), false);
        assert_eq!(gateway.send(&question()).await.status, 200);
        let status = gateway.app.gateway().status();
        let quota = &status["rate_limits"][0]["quotas"][0];
        assert_eq!(
            (&quota["of"], &quota["limit"], &quota["learned"]),
            (&"requests".into(), &60.into(), &true.into()),
            "{dialect}: {status:#}"
        );
        let target = format!("{}/{}#KEY", sim.name(), model(dialect));
        let series = format!("steadfast_rate_limit{{target=\"{target}\",of=\"requests\"}} 60\n");
        let gauges = gateway.app.gateway().gauges(true);
        assert!(gauges.contains(&series), "{dialect}: {gauges}");

        let began = Instant::now();
        let mut callers = JoinSet::new();
        for _ in 0..20 {
            let (gateway, question) = (gateway.clone(), question());
            callers.spawn(async move {
                let mut answered = 0;
                for _ in 0..12 {
                    answered += usize::from(gateway.send(&question).await.status == 200);
                }
                answered
            });
        }
        let answered: usize = callers.join_all().await.iter().sum();
        let took = began.elapsed();
        assert_eq!(answered, 240, "{dialect}: everybody is answered");
        // A minute's worth is there at once, and the other 181 come at one a second.
        assert!((175..=215).contains(&took.as_secs()), "{dialect}: {took:?}");
        let status = gateway.app.gateway().status();
        let known = &status["rate_limits"][0];
        let refused = sim.journal().len() - 241;
        assert!(refused <= 2, "{dialect}: {refused} of 240 were refused: {known:#}");
        assert!(known["waited"].as_u64().unwrap() > 100, "{dialect}: {known:#}");
        assert_eq!(known["waiting"], 0);
    }
}

/// The page and the metrics of a gateway that was asked for nothing.
#[tokio::test(start_paused = true)]
async fn an_idle_gateway_knows_nothing() {
    let gateway = gateway("", &[sim(Dialect::OpenAi)]);
    let status = gateway.app.gateway().status();
    assert_eq!(
        (&status["health"], &status["rate_limits"]),
        (&Value::Array(vec![]), &Value::Array(vec![]))
    );
    let metrics = gateway.send(&HttpRequest::get("/metrics")).await;
    assert_eq!(metrics.status, 200);
    for gauge in ["provider_degraded", "rate_limit", "rate_limit_waiting", "breaker_open"] {
        let text = metrics.text();
        assert!(text.contains(&format!("# TYPE steadfast_{gauge} gauge\n")), "{gauge}: {text}");
        assert!(!text.contains(&format!("steadfast_{gauge}{{")), "{gauge}: {text}");
    }
}
