//! The contract of every layer.
#![allow(clippy::unwrap_used, reason = "tests")]

mod support;

use opentelemetry_sdk::metrics::SdkMeterProvider;
use steadfast_otel::{OtelLayer, SpanQueuePolicy, Telemetry};
use steadfast_testkit::{Action, Aspect, Chat, Contract, Http, Plain, contract};

use self::support::Nowhere;

/// Traces, and exports to nobody.
fn on() -> OtelLayer {
    let policy = SpanQueuePolicy::default();
    let metrics = SdkMeterProvider::builder().build();
    OtelLayer::new(Telemetry::with_exporter(Nowhere, metrics, policy).unwrap())
}

/// Spans that calls have made, sent or not.
fn spans<T>(layer: &OtelLayer<T>) -> u64 {
    let counts = layer.telemetry().unwrap().snapshot();
    counts.waiting + counts.sent + counts.dropped
}

/// Of a call without attempts.
const ALLOCATIONS: u64 = 60;

contract!(
    plain,
    Contract::new(Plain, || on().at_once())
        .none(Aspect::Refusal, "every call is sent")
        .none(Aspect::Held, "a call holds its own span alone")
        .state(Action::answer(), spans)
        .allocates(ALLOCATIONS, "a span, its context, a log, and what is sent of them")
);

contract!(
    http,
    Contract::new(Http, on)
        .none(Aspect::Refusal, "every call is sent")
        .none(Aspect::Held, "a call holds its own span alone")
        .state(Action::answer(), spans)
        .allocates(ALLOCATIONS, "a span, its context, a log, and what is sent of them")
);

contract!(
    chat,
    Contract::new(Chat, on)
        .none(Aspect::Refusal, "every call is sent")
        .none(Aspect::Held, "a call holds its own span alone")
        .state(Action::answer(), spans)
        .allocates(ALLOCATIONS, "a span, its context, a log, and what is sent of them")
);

// Switched off it costs nothing: not an allocation.
contract!(
    off,
    Contract::new(Chat, OtelLayer::off)
        .none(Aspect::Refusal, "every call is sent")
        .none(Aspect::State, "nothing is traced")
        .none(Aspect::Held, "nothing is traced")
);
