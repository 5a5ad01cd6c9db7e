//! The spans of calls through the whole stack, as a collector gets them.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

mod support;

use std::{sync::Arc, time::Duration};

use opentelemetry_sdk::metrics::SdkMeterProvider;
use parking_lot::Mutex;
use steadfast::{
    AttemptEnd, AttemptRecord, ChatRequest, ChatResponse, ChatService, Failure, RecoveryLog, Stack,
    ToolCall, ToolRequest, ToolResult, TraceContext,
    client::{Credential, LlmClient, Provider, Providers, dialect::Wire},
    sim::{Answer, ErrorKind, Fault, FaultPlan, How, SimProvider},
};
use steadfast_otel::{OtelLayer, SpanQueuePolicy, Telemetry};
use steadfast_supervise::{AgentRun, WatchdogLayer};
use steadfast_tests::harness::{self, Net};
use steadfast_tool::{ToolErrorLayer, ToolSpanLayer};
use tokio_stream::StreamExt as _;
use tower::{Layer as _, ServiceBuilder, ServiceExt as _, service_fn};
use tracing_subscriber::layer::SubscriberExt as _;

use self::support::collector::{Collector, SeenSpan};

/// A caller's trace.
const CALLER: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

fn telemetry(collector: &Collector) -> Telemetry {
    let metrics = SdkMeterProvider::builder().build();
    Telemetry::with_exporter(collector.clone(), metrics, SpanQueuePolicy::default()).unwrap()
}

/// The default stack around `sims`, with every provider sent the ids or none.
fn stack(telemetry: &Telemetry, sims: &[SimProvider], propagates: bool) -> ChatService {
    let providers = sims.iter().map(|sim| {
        let own = Provider::new(sim.name(), sim.dialect())
            .with_base_url(harness::base_url(sim))
            .with_wire(Wire::default())
            .with_credential(Credential::new("main", "sk-0123456789abcdef"));
        if propagates { own.with_trace_context() } else { own }
    });
    let client = LlmClient::with_service(Providers::new(providers).unwrap(), Net::new(sims));
    telemetry.set_servers(client.providers().servers());
    let inner = Stack::new(harness::chain(sims)).boxed(client);
    let service = ServiceBuilder::new()
        .map_response(ChatResponse::boxed)
        .layer(OtelLayer::new(telemetry.clone()))
        .service(inner);
    ChatService::new(service)
}

fn asked(stream: bool) -> ChatRequest {
    let mut request = ChatRequest::user("hello").with_model("gpt-4o");
    request.stream = stream;
    request
}

/// What becomes of `request`: its log.
async fn ask(service: &ChatService, request: ChatRequest) -> (RecoveryLog, Result<(), Failure>) {
    let log = request.context.log.clone();
    let answer = match service.clone().oneshot(request).await {
        Ok(answer) => answer.collect().await.map(drop),
        Err(failure) => Err(failure),
    };
    (log, answer)
}

/// The span of the request, and those of its attempts.
async fn spans(telemetry: &Telemetry, collector: &Collector) -> (SeenSpan, Vec<SeenSpan>) {
    telemetry.flush().await;
    let (mut roots, attempts): (Vec<_>, Vec<_>) =
        collector.spans().into_iter().partition(|span| span.kind != "client");
    assert_eq!(roots.len(), 1, "{roots:#?}");
    (roots.remove(0), attempts)
}

/// Traces show what the log has, and nothing else.
fn check(request: &SeenSpan, attempts: &[SeenSpan], log: &RecoveryLog) {
    let steps = log.steps();
    assert_eq!(request.events.len(), steps.len(), "{log}");
    for (event, step) in request.events.iter().zip(&steps) {
        assert_eq!(event.name, format!("{}.{}", step.layer, step.action));
        assert_eq!(event.at, request.start + step.at, "{}", event.name);
        let shown = |name: &str| event.attributes.get(name).cloned();
        assert_eq!(shown("steadfast.target"), step.target.as_ref().map(ToString::to_string));
        assert_eq!(shown("steadfast.reason"), step.reason.map(|reason| reason.to_string()));
        let wait = step.wait.map(|wait| wait.as_secs_f64().to_string());
        assert_eq!(shown("steadfast.wait"), wait);
        assert_eq!(shown("steadfast.detail").as_deref(), step.detail.as_deref());
    }
    let records = log.attempt_records();
    assert_eq!(attempts.len(), records.len());
    assert_eq!(request.get("steadfast.attempts"), records.len().to_string());
    for (span, record) in attempts.iter().zip(&records) {
        check_attempt(request, span, record);
    }
}

fn check_attempt(request: &SeenSpan, span: &SeenSpan, record: &AttemptRecord) {
    let target = record.target.as_ref().unwrap();
    assert_eq!((&span.trace, &span.parent), (&request.trace, &request.id));
    assert_eq!(span.name, format!("chat {}", target.model().unwrap()));
    assert_eq!(span.id, record.span.unwrap().to_string());
    assert_eq!(span.start, request.start + record.at);
    assert_eq!(span.end - span.start, record.took.unwrap());
    assert_eq!(span.get("steadfast.attempt"), record.number.to_string());
    assert_eq!(span.get("steadfast.target"), target.to_string());
    assert_eq!(span.get("server.address"), target.provider());
    assert_eq!(span.get("server.port"), "80");
    let number = |count: Option<u64>| count.map(|count| count.to_string()).unwrap_or_default();
    assert_eq!(span.get("gen_ai.usage.input_tokens"), number(record.usage.input));
    assert_eq!(span.get("gen_ai.usage.output_tokens"), number(record.usage.output));
    let (outcome, error) = match &record.end {
        AttemptEnd::Answered => ("answered", ""),
        AttemptEnd::Failed { reason, .. } => ("failed", reason.as_str()),
        _ => ("dropped", ""),
    };
    assert_eq!((span.get("steadfast.outcome"), span.get("error.type")), (outcome, error));
    assert_eq!(span.is_error, outcome == "failed");
}

#[tokio::test(start_paused = true)]
async fn a_failover_is_a_request_with_each_attempt_beneath_it() {
    for stream in [false, true] {
        let collector = Collector::default();
        let telemetry = telemetry(&collector);
        let sims = harness::trio(|_, sim| sim.respond(|_| Some(Answer::text("Hello!"))));
        sims[0].set_faults(FaultPlan::always(Fault::Error(ErrorKind::ServerError)));
        let service = stack(&telemetry, &sims, false);
        let mut request = asked(stream);
        request.context =
            request.context.with_tenant("acme").with_agent("keeper").with_session("s");
        let (log, answer) = ask(&service, request).await;
        answer.unwrap();
        let (request, attempts) = spans(&telemetry, &collector).await;
        check(&request, &attempts, &log);
        assert!(attempts.len() >= 2 && !request.events.is_empty());

        assert_eq!((&*request.name, request.kind), ("chat gpt-4o", "internal"));
        assert_eq!(request.parent, "");
        assert!(!request.is_error);
        for (name, value) in [
            ("gen_ai.operation.name", "chat"),
            ("gen_ai.request.model", "gpt-4o"),
            ("gen_ai.provider.name", "openai"),
            ("gen_ai.response.model", "gpt-4o"),
            ("gen_ai.conversation.id", "s"),
            ("gen_ai.agent.name", "keeper"),
            ("steadfast.tenant", "acme"),
            ("steadfast.outcome", "ok"),
            ("steadfast.recovered", "true"),
        ] {
            assert_eq!(request.get(name), value, "{name}: {request:#?}");
        }
        let last = attempts.last().unwrap();
        assert_eq!(last.get("gen_ai.provider.name"), "openai");
        assert_eq!(last.get("gen_ai.response.finish_reasons"), "1");
        assert_eq!(last.get("gen_ai.response.id"), request.get("gen_ai.response.id"));
        assert!(!last.get("gen_ai.response.id").is_empty());
        assert_eq!(last.get("gen_ai.request.stream"), if stream { "true" } else { "" });
        assert_eq!(last.attributes.contains_key("gen_ai.response.time_to_first_chunk"), stream);
        assert_eq!(
            request.get("steadfast.usage.output_tokens"),
            last.get("gen_ai.usage.output_tokens")
        );
        assert_eq!(attempts[0].get("gen_ai.provider.name"), "anthropic");
    }
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_is_resumed_is_one_request() {
    let collector = Collector::default();
    let telemetry = telemetry(&collector);
    let text = "one two three four five six seven eight nine ten eleven twelve";
    let sims = harness::trio(|_, sim| sim.respond(move |_| Some(Answer::text(text))));
    sims[0].set_faults(FaultPlan::first(1, Fault::break_after(6, How::Close)));
    let (log, answer) = ask(&stack(&telemetry, &sims, false), asked(true)).await;
    answer.unwrap();
    let (request, attempts) = spans(&telemetry, &collector).await;
    check(&request, &attempts, &log);
    let names: Vec<_> = request.events.iter().map(|event| &*event.name).collect();
    assert!(names.contains(&"recover.resumed"), "{names:?}");
    assert_eq!(attempts.len(), 2);
    assert!(attempts[0].is_error && !attempts[1].is_error);
    assert_eq!(request.get("steadfast.recovered"), "true");
}

#[tokio::test(start_paused = true)]
async fn what_fails_and_what_is_broken_off_is_traced_too() {
    let collector = Collector::default();
    let telemetry = telemetry(&collector);
    let sims =
        harness::trio(|_, sim| sim.with_faults(FaultPlan::always(Fault::Error(ErrorKind::Auth))));
    let (log, answer) = ask(&stack(&telemetry, &sims, false), asked(false)).await;
    let failure = answer.unwrap_err();
    let (request, attempts) = spans(&telemetry, &collector).await;
    check(&request, &attempts, &log);
    assert!(request.is_error);
    assert_eq!(request.get("error.type"), failure.reason().as_str());
    assert_eq!(request.get("steadfast.evidence"), failure.evidence());

    for is_early in [false, true] {
        let collector = Collector::default();
        let telemetry = self::telemetry(&collector);
        // Before its first content, and in the middle.
        let fault = match is_early {
            true => Fault::first_token_after_ms(20_000),
            false => Fault::break_after(6, How::Stall),
        };
        let sims = harness::trio(|_, sim| {
            sim.respond(|_| Some(Answer::text("a long answer ".repeat(20))))
        });
        sims[0].set_faults(FaultPlan::always(fault));
        let service = stack(&telemetry, &sims, false);
        let request = asked(true);
        let log = request.context.log.clone();
        let limit = Duration::from_secs(3);
        let gone = tokio::time::timeout(limit, async {
            let mut answer = service.oneshot(request).await.unwrap();
            while answer.next().await.is_some() {}
        });
        assert!(gone.await.is_err());
        let (request, attempts) = spans(&telemetry, &collector).await;
        check(&request, &attempts, &log);
        assert_eq!(request.end - request.start, limit);
        assert_eq!(request.get("steadfast.outcome"), "cancelled");
        assert_eq!(attempts[0].get("steadfast.outcome"), "dropped");
        assert!(!request.is_error && !attempts[0].is_error);
    }
}

/// The trace contexts that a provider was sent.
fn sent(sim: &SimProvider) -> Vec<Option<TraceContext>> {
    let entries = sim.journal().entries();
    entries
        .iter()
        .map(|entry| TraceContext::parse(entry.header("traceparent")?, entry.header("tracestate")))
        .collect()
}

#[tokio::test(start_paused = true)]
async fn a_callers_trace_goes_on_and_providers_are_sent_it_only_when_they_are_to_be() {
    for propagates in [false, true] {
        for is_sampled in [false, true] {
            let collector = Collector::default();
            let telemetry = telemetry(&collector);
            let sims = harness::trio(|_, sim| sim);
            sims[0].set_faults(FaultPlan::first(1, Fault::Error(ErrorKind::Auth)));
            let parent = if is_sampled { CALLER.to_owned() } else { CALLER.replace("-01", "-00") };
            let caller = TraceContext::parse(&parent, Some("vendor=x")).unwrap();
            let mut request = asked(false);
            request.context.trace = Some(Arc::new(caller.clone()));
            let (log, answer) = ask(&stack(&telemetry, &sims, propagates), request).await;
            answer.unwrap();
            telemetry.flush().await;
            let spans = collector.spans();
            assert_eq!(spans.len(), if is_sampled { 3 } else { 0 }, "{spans:#?}");
            if is_sampled {
                let (request, attempts) = self::spans(&telemetry, &collector).await;
                check(&request, &attempts, &log);
                assert_eq!(request.trace, caller.trace_id().to_string());
                assert_eq!(request.parent, caller.span_id().to_string());
                assert_eq!(request.state, "vendor=x");
            }
            let sent: Vec<_> = [&sims[0], &sims[1]].into_iter().flat_map(sent).collect();
            let records = log.attempt_records();
            assert_eq!(sent.len(), records.len());
            for (sent, record) in sent.iter().zip(&records) {
                let Some(sent) = sent else {
                    assert!(!propagates);
                    continue;
                };
                assert!(propagates);
                assert_eq!(sent.trace_id(), caller.trace_id());
                assert_eq!(Some(sent.span_id()), record.span);
                assert_eq!((sent.is_sampled(), sent.state()), (is_sampled, Some("vendor=x")));
            }
            if !propagates {
                for sim in &sims {
                    for entry in sim.journal().entries() {
                        let has = |name: &str| entry.header(name).is_some();
                        assert!(!has("traceparent") && !has("tracestate"));
                    }
                }
            }
        }
    }
}

/// An agent's run, the tool that it calls, and what the tool asks a model, are one trace.
#[tokio::test(start_paused = true)]
async fn agents_tools_and_calls_are_one_trace() {
    let collector = Collector::default();
    let telemetry = telemetry(&collector);
    let subscriber = tracing_subscriber::registry().with(telemetry.tracing_layer());
    let _guard = tracing::subscriber::set_default(subscriber);
    let sims = harness::trio(|_, sim| sim);
    let llm = stack(&telemetry, &sims, false);
    let made = Arc::new(Mutex::new(Vec::new()));

    let tool = {
        let (llm, made) = (llm.clone(), made.clone());
        ServiceBuilder::new().layer(ToolSpanLayer::new()).layer(ToolErrorLayer::new()).service(
            service_fn(move |request: ToolRequest| {
                let (llm, made) = (llm.clone(), made.clone());
                async move {
                    if request.call.name == "broken" {
                        panic!("a bug");
                    }
                    let (log, answer) = ask(&llm, asked(false)).await;
                    made.lock().push(log);
                    answer.map(|()| ToolResult::of(&request.call, "a secret result"))
                }
            }),
        )
    };
    let agent = WatchdogLayer::default().layer(service_fn(move |run: AgentRun<ChatService>| {
        let tool = tool.clone();
        async move {
            ask(&run.input, asked(true)).await.1?;
            for name in ["search", "broken"] {
                let call =
                    ToolCall { id: "call_1".into(), name: name.into(), ..ToolCall::default() };
                tool.clone().oneshot(ToolRequest::new(run.context.clone(), call)).await?;
            }
            Ok::<_, Failure>(())
        }
    }));
    let mut run = AgentRun::new(llm.clone());
    run.context = run.context.with_agent("keeper");
    agent.oneshot(run).await.unwrap();
    telemetry.flush().await;

    let spans = collector.spans();
    let one = |name: &str, parent: &str| {
        let found: Vec<_> = spans
            .iter()
            .filter(|span| span.name == name && span.parent == parent && span.kind != "client")
            .collect();
        assert_eq!(found.len(), 1, "{name} beneath {parent}: {spans:#?}");
        found[0]
    };
    let run = one("invoke_agent keeper", "");
    one("chat gpt-4o", &run.id);
    let search = one("execute_tool search", &run.id);
    one("chat gpt-4o", &search.id);
    let broken = one("execute_tool broken", &run.id);
    assert!(spans.iter().all(|span| span.trace == run.trace));
    assert_eq!(spans.len(), 3 + 2 * 2);
    assert_eq!(search.kind, "internal");
    assert_eq!(search.get("gen_ai.tool.call.id"), "call_1");
    assert!(!search.is_error && search.get("error.type").is_empty());
    assert!(broken.is_error && broken.get("error.type") == "panicked");
    let all = format!("{spans:?}");
    assert!(!all.contains("secret") && !all.contains("hello"), "no content is exported");
}
