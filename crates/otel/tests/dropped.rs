//! What is logged of spans that were dropped.
#![allow(clippy::unwrap_used, reason = "tests")]

mod support;

use std::{sync::Arc, time::Duration};

use opentelemetry_sdk::metrics::SdkMeterProvider;
use parking_lot::Mutex;
use steadfast_otel::{CallOutcome, CallReport, CallRole, Operation, SpanQueuePolicy, Telemetry};
use tokio::time::Instant;
use tracing::{
    Event, Subscriber,
    field::{Field, Visit},
};
use tracing_subscriber::{
    Layer,
    layer::{Context, SubscriberExt as _},
};

use self::support::Silent;

/// The numbers of spans in the events that say so.
#[derive(Clone, Default)]
struct Reported(Arc<Mutex<Vec<u64>>>);

impl<S: Subscriber> Layer<S> for Reported {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        if event.metadata().name() == "steadfast::otel::dropped" {
            event.record(&mut &*self);
        }
    }
}

impl Visit for &Reported {
    fn record_u64(&mut self, field: &Field, value: u64) {
        assert_eq!(field.name(), "spans");
        self.0.lock().push(value);
    }

    fn record_debug(&mut self, _: &Field, _: &dyn std::fmt::Debug) {}
}

#[tokio::test(start_paused = true)]
async fn a_collector_that_is_gone_is_logged_once_a_minute() {
    let reported = Reported::default();
    let subscriber = tracing_subscriber::registry().with(reported.clone());
    let _guard = tracing::subscriber::set_default(subscriber);
    let policy = SpanQueuePolicy::default();
    let metrics = SdkMeterProvider::builder().build();
    let telemetry = Telemetry::with_exporter(Silent, metrics, policy).unwrap();
    for _ in 0..30 {
        let now = Instant::now();
        let span = telemetry.begin(CallRole::Serving, Operation::Chat, None, now, None);
        span.end(&CallReport::new(now, &[], &[], CallOutcome::Answered));
        tokio::time::sleep(Duration::from_secs(10)).await;
    }
    let dropped = telemetry.snapshot().dropped;
    let reported = reported.0.lock().clone();
    assert!((4..=5).contains(&reported.len()), "in five minutes: {reported:?}");
    let sum: u64 = reported.iter().sum();
    assert!(sum <= dropped && sum + 10 >= dropped, "{reported:?} of {dropped}");
}
