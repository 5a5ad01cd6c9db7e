//! Collectors over sockets, and those that are slow or gone.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

mod support;

use std::time::Duration;

use opentelemetry_sdk::metrics::SdkMeterProvider;
use steadfast_core::{
    AttemptsLayer, Call as _, CallContext, Failure, Reason, Step, Target, WithContext,
};
use steadfast_otel::{OtelLayer, SpanQueuePolicy, Telemetry, TelemetrySettings};
use tokio::{net::TcpListener, time::Instant};
use tower::{ServiceBuilder, ServiceExt as _, service_fn};
use tracing_subscriber::layer::SubscriberExt as _;

use self::support::{
    Silent,
    collector::{Collector, SeenSpan, points},
};

/// A call that is made again once.
async fn call(telemetry: &Telemetry) {
    let service = ServiceBuilder::new().layer(OtelLayer::new(telemetry.clone()).at_once()).service(
        service_fn(async |request: WithContext<&'static str>| {
            let asked = ServiceBuilder::new().layer(AttemptsLayer::new().at_once()).service(
                service_fn(async |request: WithContext<&'static str>| match request.into_inner() {
                    "fail" => {
                        Err(Failure::new(Reason::Overloaded, "no").with_evidence("status:503"))
                    }
                    text => Ok(text),
                }),
            );
            let _ = asked.clone().oneshot(request.clone().map(|_| "fail")).await;
            let log = &request.context().log;
            log.record(|| Step::new("retry", "retried").with_reason(Reason::Overloaded));
            asked.oneshot(request).await
        }),
    );
    let context = CallContext::new().with_target(Target::new("openai").with_model("gpt-4o"));
    let request = WithContext::new("hello").with_context(context);
    assert_eq!(service.oneshot(request).await.unwrap(), "hello");
}

fn check(spans: &[SeenSpan]) {
    let [request, first, second] = spans else { panic!("{spans:#?}") };
    assert_eq!((&*request.name, request.kind), ("chat gpt-4o", "internal"));
    assert_eq!(request.events.len(), 1);
    for attempt in [first, second] {
        assert_eq!((&attempt.parent, attempt.kind), (&request.id, "client"));
    }
    assert!(first.is_error && first.get("steadfast.evidence") == "status:503");
    assert!(!second.is_error && second.get("steadfast.outcome") == "answered");
}

fn settings(endpoint: &str, protocol: &str) -> TelemetrySettings {
    TelemetrySettings::from_env_or(Some(endpoint), Some(protocol)).unwrap().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn traces_and_metrics_arrive_over_both_protocols() {
    for protocol in ["grpc", "http/protobuf"] {
        let (collector, address) = match protocol {
            "grpc" => Collector::grpc().await,
            _ => Collector::http().await,
        };
        let telemetry = Telemetry::start(&settings(&address, protocol)).unwrap();
        assert!(telemetry.destinations().all(|to| to.contains(protocol)));
        call(&telemetry).await;
        telemetry.shutdown(Duration::from_secs(5)).await;
        check(&collector.spans());
        assert_eq!(collector.resource()["service.name"], "steadfast", "{protocol}");
        let counts = telemetry.snapshot();
        assert_eq!((counts.sent, counts.dropped, counts.waiting), (3, 0, 0));

        let metrics = collector.metrics();
        let (kind, all, _) = points(&metrics["gen_ai.client.operation.duration"]);
        assert_eq!(
            (kind, all.len()),
            ("histogram", 2),
            "an attempt that failed, and one that did not"
        );
        let failed = all.iter().find(|point| point.contains_key("error.type")).unwrap();
        assert_eq!(failed["error.type"], "overloaded");
        assert_eq!(failed["gen_ai.provider.name"], "openai");
        let (_, requests, _) = points(&metrics["steadfast.request.duration"]);
        assert_eq!(requests[0]["steadfast.recovered"], "true");
        let (kind, steps, _) = points(&metrics["steadfast.steps"]);
        assert_eq!((kind, &*steps[0]["steadfast.step"]), ("counter", "retry.retried"));
        // After that nothing is exported, and calls go on.
        call(&telemetry).await;
    }
}

/// What sends has spans of its own, which would be sent as well, and so on.
#[tokio::test]
async fn an_export_makes_no_spans() {
    for protocol in ["grpc", "http/protobuf"] {
        let (collector, address) = match protocol {
            "grpc" => Collector::grpc().await,
            _ => Collector::http().await,
        };
        let telemetry = Telemetry::start(&settings(&address, protocol)).unwrap();
        let subscriber = tracing_subscriber::registry().with(telemetry.tracing_layer());
        let _guard = tracing::subscriber::set_default(subscriber);
        tracing::info_span!("an application's").in_scope(|| ());
        for _ in 0..3 {
            call(&telemetry).await;
            telemetry.flush().await;
        }
        let spans = collector.spans();
        let names: Vec<_> = spans.iter().map(|span| &*span.name).collect();
        assert_eq!(spans.len(), 1 + 3 * 3, "{names:?}");
        telemetry.shutdown(Duration::from_secs(5)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_collector_that_never_answers_delays_no_call_and_takes_bounded_memory() {
    let policy = SpanQueuePolicy::default();
    let metrics = SdkMeterProvider::builder().build();
    let telemetry = Telemetry::with_exporter(Silent, metrics, policy).unwrap();
    let started = Instant::now();
    let most = policy.capacity + policy.batch;
    for _ in 0..most {
        call(&telemetry).await;
        tokio::task::yield_now().await;
    }
    assert_eq!(started.elapsed(), Duration::ZERO, "no call has waited");
    let counts = telemetry.snapshot();
    assert!(counts.waiting <= most as u64, "{counts:?}");
    assert_eq!(counts.waiting + counts.dropped, 3 * most as u64, "{counts:?}");
    // What was being sent is given up, and the next is tried.
    tokio::time::sleep(policy.timeout * 2).await;
    let later = telemetry.snapshot();
    assert!(later.dropped >= counts.dropped + policy.batch as u64, "{later:?}");
    assert_eq!(later.sent, 0);
    let stopping = Instant::now();
    telemetry.shutdown(Duration::from_secs(5)).await;
    assert_eq!(stopping.elapsed(), Duration::from_secs(5));
}

/// The real exporter, to a port where nobody listens, and to one where somebody accepts and says nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_collector_that_is_gone_or_silent_is_given_up_by_the_exporter() {
    let gone = {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        listener.local_addr().unwrap()
    };
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = silent.local_addr().unwrap();
    tokio::spawn(async move {
        let mut held = Vec::new();
        while let Ok((connection, _)) = silent.accept().await {
            held.push(connection);
        }
    });
    for (address, protocol) in
        [(gone, "grpc"), (gone, "http/protobuf"), (address, "grpc"), (address, "http/protobuf")]
    {
        let mut settings = settings(&format!("http://{address}"), protocol);
        settings.metrics = None;
        settings.queue.timeout = Duration::from_millis(200);
        let telemetry = Telemetry::start(&settings).unwrap();
        call(&telemetry).await;
        telemetry.flush().await;
        let counts = telemetry.snapshot();
        assert_eq!((counts.sent, counts.dropped), (0, 3), "{protocol} to {address}");
    }
}
