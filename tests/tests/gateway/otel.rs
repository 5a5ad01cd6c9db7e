//! Traces of the gateway: they show what stories show, and nothing goes to a provider unasked.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use opentelemetry::{
    KeyValue, Value as Attribute,
    trace::{SpanId, SpanKind, Status},
};
use opentelemetry_sdk::{
    error::OTelSdkResult,
    metrics::SdkMeterProvider,
    trace::{SpanData, SpanExporter},
};
use parking_lot::Mutex;
use serde_json::Value;
use steadfast::{
    otel::{SpanQueuePolicy, Telemetry},
    sim::{Dialect, ErrorKind, Fault, FaultPlan, How, RateLimit, SimProvider},
};
use steadfast_tests::gateway::{
    DIALECTS, PROVIDER_KEY, Rig, ask,
    http::{HttpRequest, Reply},
    in_process::InProcess,
    model, provider, rich_answer, thread_events,
};

const CALLER: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";

/// Keeps the spans that it is given.
#[derive(Clone, Debug, Default)]
struct Spans(Arc<Mutex<Vec<SpanData>>>);

impl SpanExporter for Spans {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        self.0.lock().extend(batch);
        Ok(())
    }
}

/// The spans of one request.
struct Traced {
    request: SpanData,
    attempts: Vec<SpanData>,
}

impl Spans {
    fn telemetry(&self) -> Telemetry {
        let metrics = SdkMeterProvider::builder().build();
        Telemetry::with_exporter(self.clone(), metrics, SpanQueuePolicy::default()).unwrap()
    }

    /// The only request since it was asked last.
    async fn take(&self, telemetry: &Telemetry) -> Traced {
        telemetry.flush().await;
        let spans = std::mem::take(&mut *self.0.lock());
        let is_request = |span: &SpanData| span.span_kind == SpanKind::Server;
        let (mut requests, mut attempts): (Vec<_>, Vec<_>) =
            spans.into_iter().partition(is_request);
        assert_eq!(requests.len(), 1, "{requests:#?}");
        attempts.sort_by_key(|span| number(span, "steadfast.attempt"));
        Traced { request: requests.remove(0), attempts }
    }
}

fn attribute<'a>(of: &'a [KeyValue], name: &str) -> Option<&'a Attribute> {
    of.iter().find(|one| one.key.as_str() == name).map(|one| &one.value)
}

fn text(of: &[KeyValue], name: &str) -> Value {
    attribute(of, name).map_or(Value::Null, |value| value.as_str().into_owned().into())
}

fn number(span: &SpanData, name: &str) -> i64 {
    match attribute(&span.attributes, name) {
        Some(Attribute::I64(number)) => *number,
        other => panic!("{name} is {other:?}"),
    }
}

fn sims(first: Dialect) -> [SimProvider; 2] {
    let other = DIALECTS.into_iter().find(|other| *other != first).unwrap();
    [("first", first), ("second", other)].map(|(name, dialect)| {
        provider(dialect).with_name(name).respond(|_| Some(rich_answer())).build()
    })
}

fn gateway(sims: &[SimProvider]) -> InProcess {
    InProcess::with_settings(&format!("[server]\nauth = 'none'\nadmin_key = '{HASH}'"), sims)
}

/// The admin key, and its hash.
const ADMIN: &str = "an-admin-key";
const HASH: &str = "sha256:6060cd3705fe21fdbaa921b8e680e599e1ac10a7c36e76adacd1f15e325e8465";

async fn get(gateway: &InProcess, path: &str) -> Reply {
    gateway.send(&HttpRequest::get(path).header("x-api-key", ADMIN)).await
}

async fn story(gateway: &InProcess, reply: &Reply) -> Value {
    let id = reply.header("x-steadfast-request-id").or(reply.header("x-request-id")).unwrap();
    get(gateway, &format!("/admin/requests/{id}")).await.json()
}

/// Milliseconds as a story has them.
fn ms(time: Duration) -> f64 {
    time.as_micros() as f64 / 1e3
}

fn since(base: SystemTime, at: SystemTime) -> f64 {
    ms(at.duration_since(base).unwrap())
}

/// Nothing that a trace shows differs from what the story shows.
fn check(traced: &Traced, story: &Value) {
    let Traced { request, attempts } = traced;
    let whole = &request.attributes;
    let trace = request.span_context.trace_id().to_string();
    assert_eq!(story["trace_id"], trace);
    assert_eq!(text(whole, "steadfast.request.id"), story["id"]);
    let model = Some(&story["model"]).filter(|model| *model != "").cloned();
    assert_eq!(text(whole, "gen_ai.request.model"), model.unwrap_or_default());
    assert_eq!(text(whole, "steadfast.route"), story["route"]);
    assert_eq!(text(whole, "steadfast.outcome"), story["outcome"]);
    assert_eq!(text(whole, "error.type"), story["reason"]);
    assert_eq!(text(whole, "steadfast.evidence"), story["evidence"]);
    let recovered = attribute(whole, "steadfast.recovered") == Some(&Attribute::Bool(true));
    assert_eq!(story["recovered"], recovered);
    assert_eq!(story["ms"], since(request.start_time, request.end_time));
    let is_failed = matches!(request.status, Status::Error { .. });
    assert_eq!(is_failed, story["outcome"] == "failed");

    let all = story["attempts"].as_array().unwrap();
    assert_eq!(attempts.len(), all.len());
    for (span, shown) in attempts.iter().zip(all) {
        assert_eq!(span.span_context.trace_id().to_string(), trace);
        assert_eq!(span.parent_span_id, request.span_context.span_id());
        assert_eq!(span.span_kind, SpanKind::Client);
        let own = &span.attributes;
        assert_eq!(shown["at_ms"], since(request.start_time, span.start_time));
        assert_eq!(shown["ms"], since(span.start_time, span.end_time));
        assert_eq!(shown["number"], number(span, "steadfast.attempt"));
        assert_eq!(shown["outcome"], text(own, "steadfast.outcome"));
        assert_eq!(shown["reason"], text(own, "error.type"));
        assert_eq!(shown["evidence"], text(own, "steadfast.evidence"));
        assert_eq!(shown["target"], text(own, "steadfast.target"));
        let tokens = attribute(own, "gen_ai.usage.output_tokens");
        let tokens = tokens.map(|_| number(span, "gen_ai.usage.output_tokens"));
        assert_eq!(shown["usage"]["output"].as_i64(), tokens);
    }
    let steps = story["steps"].as_array().unwrap();
    assert_eq!(request.events.len(), steps.len());
    for (event, step) in request.events.iter().zip(steps) {
        assert_eq!(step["step"], *event.name);
        assert_eq!(step["at_ms"], since(request.start_time, event.timestamp));
        assert_eq!(step["target"], text(&event.attributes, "steadfast.target"));
        assert_eq!(step["reason"], text(&event.attributes, "steadfast.reason"));
        assert_eq!(step["detail"], text(&event.attributes, "steadfast.detail"));
        let wait = match attribute(&event.attributes, "steadfast.wait") {
            Some(Attribute::F64(wait)) => Some(ms(Duration::from_secs_f64(*wait))),
            _ => None,
        };
        assert_eq!(step["wait_ms"].as_f64(), wait);
    }
}

#[tokio::test(start_paused = true)]
async fn traces_show_what_stories_show() {
    let plans = [
        FaultPlan::always(Fault::Error(ErrorKind::Overloaded)),
        FaultPlan::always(Fault::Error(ErrorKind::Auth)),
        FaultPlan::always(Fault::rate_limit(RateLimit::default())),
        FaultPlan::always(Fault::Reset),
        FaultPlan::always(Fault::break_after(6, How::Close)),
        FaultPlan::always(Fault::break_after(6, How::Stall)),
        FaultPlan::none(),
    ];
    let mut seen = std::collections::BTreeSet::new();
    for dialect in DIALECTS {
        for plan in &plans {
            for is_everybody in [false, true] {
                let sims = sims(dialect);
                sims[0].set_faults(plan.clone());
                if is_everybody {
                    sims[1].set_faults(plan.clone());
                }
                let (gateway, spans) = (gateway(&sims), Spans::default());
                let telemetry = spans.telemetry();
                gateway.app.trace(telemetry.clone());
                for stream in [false, true] {
                    let asked = ask(dialect, model(dialect), stream).header("traceparent", CALLER);
                    let reply = gateway.send(&asked).await;
                    let traced = spans.take(&telemetry).await;
                    check(&traced, &story(&gateway, &reply).await);
                    assert_eq!(traced.request.span_context.trace_id().to_string(), TRACE);
                    assert_eq!(
                        traced.request.parent_span_id,
                        SpanId::from_hex("00f067aa0ba902b7").unwrap()
                    );
                    seen.extend(traced.request.events.iter().map(|event| event.name.to_string()));
                    assert!(!format!("{:?}", traced.request).contains("lighthouse"));
                }
            }
        }
    }
    for step in ["retry.retried", "failover.switched", "recover.resumed", "timeout.fired"] {
        assert!(seen.contains(step), "{step}: {seen:?}");
    }
}

/// The value of the field `trace_id`.
#[derive(Default)]
struct TraceOf(Option<String>);

impl tracing::field::Visit for TraceOf {
    fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn std::fmt::Debug) {
        if field.name() == "trace_id" {
            self.0 = Some(format!("{value:?}"));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn the_trace_is_in_the_log_and_an_example_in_the_metrics() {
    let sims = sims(Dialect::OpenAi);
    let (gateway, spans) = (gateway(&sims), Spans::default());
    let asked = ask(Dialect::OpenAi, "gpt-4o", false);
    let lines = Arc::<Mutex<Vec<String>>>::default();
    thread_events::listen({
        let lines = lines.clone();
        move |event| {
            let mut trace = TraceOf::default();
            event.record(&mut trace);
            lines.lock().extend(trace.0);
        }
    });
    // Nothing is traced yet, whatever a caller sends.
    let reply = gateway.send(&asked.clone().header("traceparent", CALLER)).await;
    assert_eq!(story(&gateway, &reply).await["trace_id"], Value::Null);
    assert!(lines.lock().is_empty());
    assert!(!get(&gateway, "/metrics").await.text().contains("trace_id"));

    let telemetry = spans.telemetry();
    gateway.app.trace(telemetry.clone());
    gateway.send(&asked.clone().header("traceparent", CALLER)).await;
    assert_eq!(*lines.lock(), [TRACE]);
    telemetry.flush().await;
    let metrics = get(&gateway, "/metrics").await;
    let example = format!("# {{trace_id=\"{TRACE}\"}}");
    let shown = metrics.text().lines().filter(|line| line.contains(&example)).count();
    assert_eq!(shown, 2, "of the head, and of the end: {}", metrics.text());
    assert!(metrics.text().contains("\nsteadfast_spans_sent_total 2\n"), "{}", metrics.text());
    assert!(metrics.text().contains("\nsteadfast_spans_dropped_total 0\n"));
    spans.take(&telemetry).await;

    // What is no trace context begins a trace of its own.
    for wrong in ["", "x", &CALLER.replace("00-", "ff-"), &CALLER.to_uppercase()] {
        let reply = gateway.send(&asked.clone().header("traceparent", wrong)).await;
        let traced = spans.take(&telemetry).await;
        assert_eq!(traced.request.parent_span_id, SpanId::INVALID);
        check(&traced, &story(&gateway, &reply).await);
    }
    // Whoever has decided not to record a trace has decided.
    let unsampled = CALLER.replace("-01", "-00");
    let reply = gateway.send(&asked.clone().header("traceparent", &unsampled)).await;
    telemetry.flush().await;
    assert!(spans.0.lock().is_empty());
    assert_eq!(story(&gateway, &reply).await["trace_id"], TRACE);
    // What is refused at the door is a trace, too.
    let refused = gateway.send(&HttpRequest::post("/v1/chat/completions", "{")).await;
    assert_eq!(refused.status, 400);
    let traced = spans.take(&telemetry).await;
    assert_eq!((&*traced.request.name, traced.attempts.len()), ("chat", 0));
    check(&traced, &story(&gateway, &refused).await);
}

#[tokio::test(start_paused = true)]
async fn no_secret_is_exported() {
    let sims = sims(Dialect::OpenAi);
    let (gateway, spans) = (gateway(&sims), Spans::default());
    let telemetry = spans.telemetry();
    gateway.app.trace(telemetry.clone());
    let own = "a-key-of-the-caller-0123456789";
    let asked = ask(Dialect::OpenAi, &format!("x-{PROVIDER_KEY}"), false)
        .header("authorization", &format!("Bearer {own}"))
        .header("x-steadfast-agent", own)
        .header("x-steadfast-task", PROVIDER_KEY);
    gateway.send(&asked).await;
    let Traced { request, attempts } = spans.take(&telemetry).await;
    let all = format!("{request:?} {attempts:?}");
    assert!(!all.contains(own) && !all.contains(PROVIDER_KEY), "{all}");
    assert!(all.contains("[redacted]"), "{all}");
}

#[tokio::test]
async fn embeddings_are_traced_as_such() {
    let rig = Rig::of(provider(Dialect::OpenAi).build()).await;
    let spans = Spans::default();
    let telemetry = spans.telemetry();
    rig.app.trace(telemetry.clone());
    let body = r#"{"model":"text-embedding-3-small","input":["a"]}"#;
    let reply = HttpRequest::post("/v1/embeddings", body).send(rig.addr).await;
    assert_eq!(reply.status, 200, "{}", reply.text());
    let Traced { request, attempts } = spans.take(&telemetry).await;
    assert_eq!(request.name, "embeddings text-embedding-3-small");
    assert_eq!(attempts[0].name, "embeddings text-embedding-3-small");
    assert_eq!(text(&attempts[0].attributes, "server.address"), "127.0.0.1");
}

#[tokio::test]
async fn providers_are_sent_a_trace_context_only_when_the_configuration_says_so() {
    for (config, own, is_sent) in [
        ("", "", false),
        ("", "propagate = true", true),
        ("[otel]\npropagate = true", "", true),
        ("[otel]\npropagate = true", "propagate = false", false),
    ] {
        let sim = provider(Dialect::OpenAi).build();
        let rig = Rig::builder().config(config).provider_with(sim, own).start().await;
        let spans = Spans::default();
        let telemetry = spans.telemetry();
        let asked = ask(Dialect::OpenAi, "gpt-4o", true).header("traceparent", CALLER);
        let asked = asked.header("tracestate", "vendor=x");
        // Untraced, it goes nowhere either.
        asked.send(rig.addr).await;
        assert_eq!(rig.last().header("traceparent"), None, "{config}");
        rig.app.trace(telemetry.clone());
        asked.send(rig.addr).await;
        let sent = rig.last();
        if !is_sent {
            assert_eq!((sent.header("traceparent"), sent.header("tracestate")), (None, None));
            continue;
        }
        let traced = spans.take(&telemetry).await;
        let attempt = &traced.attempts[0].span_context;
        let right = format!("00-{TRACE}-{}-01", attempt.span_id());
        assert_eq!(sent.header("traceparent"), Some(&*right), "{config}");
        assert_eq!(sent.header("tracestate"), Some("vendor=x"));
    }
}
