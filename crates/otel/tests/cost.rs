//! What a call costs that nobody traces: nothing more. And one that somebody does.
#![allow(clippy::unwrap_used, reason = "tests")]

mod support;

use allocation_counter::measure;
use opentelemetry_sdk::metrics::SdkMeterProvider;
use steadfast::{ChatRequest, ChatResponse, ChatService, Stack, sim::Answer};
use steadfast_otel::{OtelLayer, SpanQueuePolicy, Telemetry};
use steadfast_tests::harness;
use tokio::runtime::{Builder, Runtime};
use tower::{ServiceBuilder, ServiceExt as _};

use self::support::Nowhere;

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_time().start_paused(true).build().unwrap()
}

/// The default stack; `layer` around it, if any.
fn service(layer: Option<OtelLayer>) -> ChatService {
    let sims = harness::trio(|_, sim| sim.respond(|_| Some(Answer::text("Hello!"))));
    let inner = Stack::new(harness::chain(&sims)).boxed(harness::client(&sims));
    match layer {
        None => {
            ChatService::new(ServiceBuilder::new().map_response(ChatResponse::boxed).service(inner))
        }
        Some(layer) => ChatService::new(
            ServiceBuilder::new().map_response(ChatResponse::boxed).layer(layer).service(inner),
        ),
    }
}

/// The allocations of a call, once everything is warm.
fn allocations(runtime: &Runtime, service: &ChatService) -> u64 {
    let call = async || {
        let request = ChatRequest::user("hello").with_model("gpt-4o");
        service.clone().oneshot(request).await.unwrap().collect().await.unwrap();
    };
    runtime.block_on(async {
        for _ in 0..50 {
            call().await;
        }
    });
    // The least of several: tables grow now and then.
    (0..20).map(|_| measure(|| runtime.block_on(call())).count_total).min().unwrap()
}

#[test]
fn a_call_that_nobody_traces_takes_no_allocation_more() {
    let runtime = runtime();
    let plain = allocations(&runtime, &service(None));
    assert_eq!(allocations(&runtime, &service(Some(OtelLayer::off()))), plain);

    let layer = runtime.block_on(async {
        let metrics = SdkMeterProvider::builder().build();
        let telemetry = Telemetry::with_exporter(Nowhere, metrics, SpanQueuePolicy::default());
        OtelLayer::new(telemetry.unwrap())
    });
    let traced = allocations(&runtime, &service(Some(layer)));
    println!("{plain} allocations of a call, {traced} of one that is traced");
    assert!(traced < plain + 150, "{traced} in place of {plain}");
}
