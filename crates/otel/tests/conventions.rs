//! What is sent has the names and types of the conventions, or is this project's own.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

mod support;

use std::{collections::BTreeMap, time::Duration};

use opentelemetry_proto::tonic::metrics::v1::metric::Data;
use steadfast::{
    ChatRequest, ChatResponse, Stack, ToolCall, ToolRequest, ToolResult,
    client::LlmClient,
    sim::{Answer, ErrorKind, Fault, FaultPlan},
};
use steadfast_core::{CallContext, Failure};
use steadfast_otel::{
    CallOutcome, CallReport, CallRole, Operation, OtelLayer, Telemetry, TelemetrySettings,
};
use steadfast_supervise::{AgentRun, WatchdogLayer};
use steadfast_tests::harness;
use steadfast_tool::ToolSpanLayer;
use tokio::time::Instant;
use tower::{Layer as _, ServiceBuilder, ServiceExt as _, service_fn};
use tracing_subscriber::layer::SubscriberExt as _;

use self::support::collector::{Collector, SeenSpan, kind, points, text};

const TABLE: &str = include_str!("conventions/genai.tsv");

/// What begins so is this project's own, and has any type.
const OWN: &str = "steadfast.";

#[derive(Default)]
struct Conventions {
    /// The type, and the values that are allowed where they are listed.
    attributes: BTreeMap<&'static str, (&'static str, Vec<&'static str>)>,
    /// The name and the kind, by operation.
    spans: BTreeMap<&'static str, (&'static str, &'static str)>,
    /// Unit, instrument and boundaries.
    metrics: BTreeMap<&'static str, (&'static str, &'static str, Vec<f64>)>,
}

impl Conventions {
    fn read() -> Self {
        let mut all = Self::default();
        for line in TABLE.lines().filter(|line| !line.starts_with('#')) {
            let mut fields = line.split('\t');
            let mut next = || fields.next().unwrap_or_default();
            let (what, name, of, by, more) = (next(), next(), next(), next(), next());
            match what {
                "attribute" => {
                    let values = by.split('|').filter(|value| !value.is_empty()).collect();
                    all.attributes.insert(name, (of, values));
                }
                "span" => {
                    all.spans.insert(by, (name, of));
                }
                "metric" => {
                    let bounds = more.split(' ').map(|bound| bound.parse().unwrap()).collect();
                    all.metrics.insert(name, (of, by, bounds));
                }
                other => panic!("{other} in the table"),
            }
        }
        all
    }

    fn check_attribute(&self, name: &str, found: &str, value: &str) {
        if name.starts_with(OWN) {
            return;
        }
        let Some((of, values)) = self.attributes.get(name) else {
            panic!("{name} is in no convention");
        };
        assert_eq!(found, *of, "{name}");
        assert!(values.is_empty() || values.contains(&value), "{name} is {value}");
    }

    fn check_span(&self, span: &SeenSpan) {
        for (name, value) in &span.attributes {
            self.check_attribute(name, span.types[name], value);
        }
        for event in &span.events {
            assert!(event.attributes.keys().all(|name| name.starts_with(OWN)), "{event:?}");
        }
        let operation = span.get("gen_ai.operation.name");
        let (name, kind) = self.spans[operation];
        let name = self.attributes.keys().fold(name.to_owned(), |name, attribute| {
            name.replace(&format!("{{{attribute}}}"), span.get(attribute))
        });
        assert_eq!(span.name, name.trim_end(), "{span:?}");
        // The request around the attempts is served, or made by this process itself.
        let is_request = span.attributes.contains_key("steadfast.attempts");
        let kinds = if is_request { &["server", "internal"][..] } else { &[kind] };
        assert!(kinds.contains(&span.kind), "{span:?}");
        if kind == "client" && !is_request {
            assert!(!span.get("gen_ai.provider.name").is_empty(), "{span:?}");
        }
    }
}

/// Everything that can be sent is sent once: answers, failures, streams, embeddings, tools, runs.
#[tokio::test(flavor = "current_thread")]
async fn names_and_types_are_the_conventions() {
    let (collector, address) = Collector::grpc().await;
    let settings = TelemetrySettings::from_env_or(Some(&address), Some("grpc")).unwrap().unwrap();
    let telemetry = Telemetry::start(&settings).unwrap();
    let subscriber = tracing_subscriber::registry().with(telemetry.tracing_layer());
    let guard = tracing::subscriber::set_default(subscriber);

    let sims =
        harness::trio(|_, sim| sim.respond(|_| Some(Answer::thinking("hm").then_text("Hello!"))));
    sims[0].set_faults(FaultPlan::always(Fault::Error(ErrorKind::Auth)));
    let client: LlmClient<_> = harness::client(&sims);
    telemetry.set_servers(client.providers().servers());
    let service = ServiceBuilder::new()
        .map_response(ChatResponse::boxed)
        .layer(OtelLayer::new(telemetry.clone()))
        .service(Stack::new(harness::chain(&sims)).boxed(client));
    let ask = async |stream, model: &str| {
        let mut request = ChatRequest::user("hello").with_model(model);
        request.stream = stream;
        let context = std::mem::take(&mut request.context);
        let context = context.with_tenant("t").with_key("k").with_agent("a");
        request.context = context.with_task("x").with_session("s");
        match service.clone().oneshot(request).await {
            Ok(answer) => answer.collect().await.map(drop),
            Err(failure) => Err(failure),
        }
    };
    ask(false, "gpt-4o").await.unwrap();
    ask(true, "gpt-4o").await.unwrap();
    for sim in &sims {
        sim.set_faults(FaultPlan::always(Fault::Error(ErrorKind::Auth)));
    }
    assert!(ask(true, "gpt-4o").await.is_err());

    let tool = ToolSpanLayer::new().layer(service_fn(async |request: ToolRequest| {
        match request.call.id.as_str() {
            "" => Err(Failure::new(steadfast_core::Reason::Timeout, "late")),
            _ => Ok(ToolResult::of(&request.call, "done")),
        }
    }));
    for id in ["call_1", ""] {
        let call = ToolCall { id: id.into(), name: "search".into(), ..ToolCall::default() };
        let _ = tool.clone().oneshot(ToolRequest::new(CallContext::new(), call)).await;
    }
    let agent = WatchdogLayer::default().layer(service_fn(async |run: AgentRun<bool>| {
        if run.input { Ok(()) } else { Err(Failure::new(steadfast_core::Reason::Timeout, "late")) }
    }));
    for is_good in [true, false] {
        let mut run = AgentRun::new(is_good);
        if is_good {
            run.context =
                run.context.with_agent("keeper").with_tenant("t").with_task("x").with_session("s");
        }
        let _ = agent.clone().oneshot(run).await;
    }
    // As a gateway reports it.
    let started = Instant::now();
    let span = telemetry.begin(CallRole::Serving, Operation::Embeddings, None, started, None);
    let mut report = CallReport::new(started, &[], &[], CallOutcome::Cancelled);
    (report.operation, report.model) = (Operation::Embeddings, "text-embedding-3-small");
    (report.route, report.request_id) = (Some("default"), Some("req_1"));
    (report.micro_dollars, report.steps_dropped) = (Some(12), 3);
    span.end(&report);
    drop(guard);
    telemetry.shutdown(Duration::from_secs(5)).await;

    let conventions = Conventions::read();
    let spans = collector.spans();
    for span in &spans {
        conventions.check_span(span);
    }
    for (name, metric) in collector.metrics() {
        let (instrument, _, attributes) = points(&metric);
        for attribute in &attributes {
            conventions.check_attribute(&attribute.key, kind(attribute), &text(attribute));
        }
        if name.starts_with(OWN) {
            continue;
        }
        let (unit, of, bounds) = &conventions.metrics[&*name];
        assert_eq!((&*metric.unit, instrument), (*unit, *of), "{name}");
        let Some(Data::Histogram(histogram)) = &metric.data else { panic!("{name}") };
        assert_eq!(histogram.data_points[0].explicit_bounds, *bounds, "{name}");
    }
    // And the other way round: what the table has is sent, so that no row of it is left behind.
    let sent = |name: &str| spans.iter().any(|span| span.attributes.contains_key(name));
    let of_metrics = ["gen_ai.token.type"];
    let of_others = [
        "gen_ai.usage.cache_read.input_tokens",
        "gen_ai.usage.cache_creation.input_tokens",
        "gen_ai.usage.reasoning.output_tokens",
    ];
    for name in conventions.attributes.keys() {
        let is_elsewhere = of_metrics.contains(name) || of_others.contains(name);
        assert!(is_elsewhere || sent(name), "{name} is never sent");
    }
    let metrics = collector.metrics();
    for name in conventions.metrics.keys() {
        assert!(metrics.contains_key(*name), "{name}: {:?}", metrics.keys());
    }
}
