//! What operators see of single requests, through the whole gateway, and that it is what the log, the metrics and the
//! callers see.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;
use serde_json::{Value, json};
use steadfast::sim::{
    Answer, Dialect, ErrorKind, Fault, FaultPlan, How, RateLimit, SimProvider, SimProviderBuilder,
};
use steadfast_tests::gateway::{
    DIALECTS, ask,
    http::{HttpRequest, Reply},
    in_process::InProcess,
    model, provider, rich_answer, thread_events,
};
use tokio_stream::StreamExt as _;

use crate::dashboard;

/// The admin key, and its hash.
const ADMIN: &str = "an-admin-key";
const HASH: &str = "sha256:6060cd3705fe21fdbaa921b8e680e599e1ac10a7c36e76adacd1f15e325e8465";

/// Text that no story has.
const SECRET: &str = "the lighthouse keeper's diary";

fn gateway(sims: &[SimProvider]) -> InProcess {
    InProcess::with_settings(&format!("[server]\nauth = 'none'\nadmin_key = '{HASH}'"), sims)
}

fn sim(dialect: Dialect) -> SimProviderBuilder {
    provider(dialect).respond(|_| Some(rich_answer()))
}

async fn get(gateway: &InProcess, path: &str) -> Reply {
    gateway.send(&HttpRequest::get(path).header("x-api-key", ADMIN)).await
}

async fn story(gateway: &InProcess, reply: &Reply) -> Value {
    let id = reply.header("x-steadfast-request-id").or(reply.header("x-request-id")).unwrap();
    let reply = get(gateway, &format!("/admin/requests/{id}")).await;
    assert_eq!(reply.status, 200, "{}", reply.text());
    reply.json()
}

#[tokio::test(start_paused = true)]
async fn a_story_has_each_attempt_and_what_was_done_between_them() {
    for stream in [false, true] {
        let sims = [sim(Dialect::OpenAi).build(), sim(Dialect::Anthropic).build()];
        let gateway = gateway(&sims);
        sims[0].set_faults(FaultPlan::always(Fault::Error(ErrorKind::ServerError)));
        let asked = ask(Dialect::OpenAi, "gpt-4o", stream).header("x-steadfast-agent", "keeper");
        let reply = gateway.send(&asked).await;
        assert_eq!(reply.status, 200);
        let story = story(&gateway, &reply).await;
        assert_eq!(
            (&story["outcome"], &story["recovered"]),
            (&json!("ok"), &json!(true)),
            "{story}"
        );
        assert_eq!((&story["agent"], &story["model"]), (&json!("keeper"), &json!("gpt-4o")));
        assert_eq!((&story["stream"], &story["route"]), (&json!(stream), &json!("default")));
        let attempts = story["attempts"].as_array().unwrap();
        assert_eq!(story["asked"], attempts.len());
        let (last, failed) = attempts.split_last().unwrap();
        assert!(!failed.is_empty());
        for attempt in failed {
            assert_eq!(attempt["outcome"], "failed");
            assert_eq!(attempt["reason"], "server_error");
            assert!(attempt["target"].as_str().unwrap().starts_with("openai/"), "{attempt}");
            assert!(attempt["evidence"].is_string() && attempt["ms"].is_number(), "{attempt}");
        }
        assert_eq!(last["outcome"], "answered");
        assert_eq!(last["target"], story["target"]);
        assert_eq!(last["usage"], story["usage"]);
        assert!(last["bytes"].as_u64().unwrap() > 100 && last["first_content_ms"].is_number());
        // Each waits for what the step before it says.
        let steps = story["steps"].as_array().unwrap();
        let waited: f64 = steps
            .iter()
            .filter_map(|step| {
                (step["step"] == "retry.retried").then(|| step["wait_ms"].as_f64()).flatten()
            })
            .sum();
        assert!(last["at_ms"].as_f64().unwrap() >= waited, "{story:#}");
        assert!(story["micro_dollars"].as_u64().unwrap() > 0);
    }
}

#[tokio::test(start_paused = true)]
async fn requests_are_listed_and_filtered_and_have_no_word_of_a_conversation() {
    let only = provider(Dialect::OpenAi).respond(|_| Some(Answer::text(SECRET))).build();
    let gateway = gateway(std::slice::from_ref(&only));
    let question = |model: &str| {
        let body = json!({"model": model, "messages": [{"role": "user", "content": SECRET}]});
        HttpRequest::post("/v1/chat/completions", body.to_string())
    };
    assert_eq!(gateway.send(&question("one")).await.status, 200);
    only.set_faults(FaultPlan::always(Fault::Error(ErrorKind::Auth)));
    assert_ne!(gateway.send(&question("two")).await.status, 200);
    // What is wrong with a request is not quoted.
    let wrong = format!(r#"{{"model":"three","messages":"{SECRET}"}}"#);
    assert_eq!(gateway.send(&HttpRequest::post("/v1/chat/completions", wrong)).await.status, 400);

    let list = get(&gateway, "/admin/requests").await;
    assert!(!list.text().contains("lighthouse"), "{}", list.text());
    let list = list.json();
    assert_eq!((&list["running"], &list["remembered"]), (&json!(0), &json!(3)));
    let listed = |query: &str| {
        let (gateway, query) = (&gateway, query.to_owned());
        async move {
            let reply = get(gateway, &format!("/admin/requests?{query}")).await;
            assert_eq!(reply.status, 200, "{}", reply.text());
            let all = reply.json();
            let all = all["requests"].as_array().unwrap();
            all.iter().map(|one| one["model"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
        }
    };
    for (query, wanted) in [
        ("", &["", "two", "one"][..]),
        ("limit=1", &[""]),
        ("outcome=ok", &["one"]),
        ("outcome=failed", &["", "two"]),
        ("outcome=recovered", &[]),
        ("reason=auth", &["two"]),
        ("reason=format", &[""]),
        ("model=one", &["one"]),
        ("target=openai", &["two", "one"]),
        ("target=gemini", &[]),
        ("tenant=nobody", &[]),
    ] {
        assert_eq!(listed(query).await, wanted, "{query}");
    }
    let lately = &list["last_5_min"];
    assert_eq!((&lately["ok"], &lately["failed"]), (&json!(1), &json!(2)), "{lately}");
    assert!(lately["micro_dollars"].as_u64().unwrap() > 0, "{lately}");
    let timeline = get(&gateway, "/admin/timeline?span=6h").await.json();
    let [interval] = &timeline["intervals"].as_array().unwrap()[..] else { panic!("{timeline}") };
    for name in ["ok", "failed", "input_tokens", "micro_dollars", "steps"] {
        assert_eq!(interval[name], lately[name], "{name}");
    }
    let wrong = get(&gateway, "/admin/timeline?span=7d").await;
    assert_eq!((wrong.status, wrong.text().contains("24h")), (400, true));
    let two = &list["requests"][1];
    let whole = get(&gateway, &format!("/admin/requests/{}", two["id"].as_str().unwrap())).await;
    assert!(!whole.text().contains("lighthouse"), "{}", whole.text());
    assert_eq!(whole.json()["attempts"][0]["reason"], "auth");
    let wrong = get(&gateway, "/admin/requests?outcome=odd").await;
    assert_eq!((wrong.status, wrong.text().contains("recovered")), (400, true));
    assert_eq!(get(&gateway, "/admin/requests/none").await.status, 404);
}

#[tokio::test(start_paused = true)]
async fn a_request_under_way_is_in_the_list_with_what_is_known_so_far() {
    let late = FaultPlan::always(Fault::first_token_after_ms(20_000));
    let slow = sim(Dialect::OpenAi).with_faults(late).build();
    let gateway = Arc::new(gateway(std::slice::from_ref(&slow)));
    let call = {
        let gateway = gateway.clone();
        tokio::spawn(async move { gateway.send(&ask(Dialect::OpenAi, "gpt-4o", true)).await })
    };
    tokio::time::sleep(Duration::from_secs(5)).await;
    let list = get(&gateway, "/admin/requests?outcome=running").await.json();
    let running = &list["requests"][0];
    assert_eq!((&list["running"], &running["outcome"]), (&json!(1), &json!("running")));
    assert_eq!(running["ms"], 5_000.0);
    let id = running["id"].as_str().unwrap();
    let whole = get(&gateway, &format!("/admin/requests/{id}")).await.json();
    let attempt = &whole["attempts"][0];
    assert_eq!((&attempt["outcome"], &attempt["ms"]), (&json!("underway"), &Value::Null));
    let reply = call.await.unwrap();
    assert_eq!(story(&gateway, &reply).await["outcome"], "ok");
    assert_eq!(get(&gateway, "/admin/requests").await.json()["running"], 0);
}

#[tokio::test]
async fn operators_alone_read_them() {
    let gateway = gateway(&[sim(Dialect::OpenAi).build()]);
    for path in ["/admin/requests", "/admin/requests/x", "/admin/timeline"] {
        assert_eq!(gateway.send(&HttpRequest::get(path)).await.status, 401, "{path}");
    }
    assert_eq!(get(&gateway, "/admin/requests").await.status, 200);
}

/// How often each step was counted, by this page of metrics.
pub(crate) fn counted(metrics: &str) -> BTreeMap<String, u64> {
    let rows = metrics.lines().filter_map(|line| {
        let (labels, times) = line.strip_prefix("steadfast_steps_total{")?.split_once("} ")?;
        let value = |name: &str| {
            let (_, rest) = labels.split_once(&format!("{name}=\""))?;
            Some(rest.split_once('"')?.0.to_owned())
        };
        Some((format!("{}.{}", value("layer")?, value("action")?), times.parse::<u64>().ok()?))
    });
    rows.fold(BTreeMap::new(), |mut all, (step, times)| {
        *all.entry(step).or_default() += times;
        all
    })
}

/// The timeline and the dashboard have these steps, and the requests whose stories have them.
async fn charted(gateway: &InProcess, steps: &BTreeMap<String, u64>) {
    let timeline = get(gateway, "/admin/timeline?span=15m").await.json();
    let mut charted: BTreeMap<String, u64> = BTreeMap::new();
    for interval in timeline["intervals"].as_array().unwrap() {
        for (step, times) in interval["steps"].as_object().unwrap() {
            *charted.entry(step.clone()).or_default() += times.as_u64().unwrap();
        }
    }
    assert_eq!(charted, *steps);
    let asked = HttpRequest::get("/dashboard/feed").header("x-api-key", ADMIN);
    let frame = dashboard::data(&dashboard::feed(gateway, &asked).await.next().await.unwrap());
    // Of the newest alone: some calls here take longer than five minutes.
    for (step, times) in frame["last_5_min"]["steps"].as_object().unwrap() {
        assert!(times.as_u64() <= steps.get(step).copied(), "{step}");
    }
    assert_eq!(frame["requests"], get(gateway, "/admin/requests").await.json()["requests"]);
}

/// A step that a story, the header, the metrics, the log, the timeline or the dashboard has and another has not is a
/// fault.
#[tokio::test(start_paused = true)]
async fn stories_headers_metrics_the_log_and_the_dashboard_have_the_same_steps() {
    let names = Arc::<Mutex<BTreeSet<String>>>::default();
    thread_events::listen({
        let names = names.clone();
        move |event| {
            names.lock().insert(event.metadata().name().to_owned());
        }
    });
    let plans = [
        FaultPlan::always(Fault::Error(ErrorKind::Overloaded)),
        FaultPlan::always(Fault::Error(ErrorKind::Auth)),
        FaultPlan::always(Fault::rate_limit(RateLimit::default())),
        FaultPlan::always(Fault::Reset),
        FaultPlan::always(Fault::break_after(6, How::Close)),
        FaultPlan::always(Fault::break_after(6, How::Stall)),
        FaultPlan::none(),
    ];
    let mut seen: BTreeMap<String, u64> = BTreeMap::new();
    for dialect in DIALECTS {
        for plan in &plans {
            let other = DIALECTS.into_iter().find(|other| *other != dialect).unwrap();
            let sims =
                [sim(dialect).with_name("first").build(), sim(other).with_name("second").build()];
            let gateway = gateway(&sims);
            sims[0].set_faults(plan.clone());
            let mut reported: BTreeMap<String, u64> = BTreeMap::new();
            for stream in [false, true] {
                let reply = gateway.send(&ask(dialect, model(dialect), stream)).await;
                let story = story(&gateway, &reply).await;
                let steps = story["steps"].as_array().unwrap();
                for step in steps {
                    *reported.entry(step["step"].as_str().unwrap().to_owned()).or_default() += 1;
                }
                // What was done after the head of an answer is not in it.
                let header = reply.header("x-steadfast-recovery").unwrap_or_default();
                let header: Vec<_> = header.split("; ").filter(|step| !step.is_empty()).collect();
                for (shown, step) in header.iter().zip(steps) {
                    assert!(
                        shown.starts_with(step["step"].as_str().unwrap()),
                        "{header:?}: {story:#}"
                    );
                }
                assert!(stream || header.len() == steps.len(), "{header:?}: {story:#}");
                assert_eq!(story["asked"], story["attempts"].as_array().unwrap().len());
            }
            let metrics = get(&gateway, "/metrics").await;
            assert_eq!(counted(metrics.text()), reported, "{dialect} {plan:?}");
            charted(&gateway, &reported).await;
            for (step, times) in reported {
                *seen.entry(step).or_default() += times;
            }
        }
    }
    let logged = names.lock();
    // What they report is reported by others: by the head of an answer, and by the hedge.
    let unsaid = ["failover.notice", "failover.outrun"];
    for step in seen.keys().filter(|step| !unsaid.contains(&step.as_str())) {
        let (layer, action) = step.split_once('.').unwrap();
        let event = format!("steadfast::{layer}::{action}");
        assert!(logged.contains(&event), "{step} is in no event; there are {logged:?}");
    }
    for step in ["retry.retried", "failover.switched", "recover.resumed", "timeout.fired"] {
        assert!(seen.contains_key(step), "{step}: {:?}", seen.keys());
    }
}
