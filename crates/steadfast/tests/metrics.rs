//! What a recorder of the `metrics` crate is given.
#![cfg(all(feature = "metrics", feature = "stack"))]
#![allow(clippy::unwrap_used, reason = "tests")]

use std::{
    collections::BTreeMap,
    sync::{Arc, atomic::AtomicU32},
    time::Duration,
};

use metrics::{
    Counter, CounterFn, Gauge, Histogram, HistogramFn, Key, KeyName, Metadata, Recorder,
    SharedString, Unit,
};
use parking_lot::Mutex;
use steadfast::{
    Call, CallContext, Failure, Reason, RecoveryLog, Target, WithContext,
    breaker::CircuitBreakerLayer,
    failover::{Chain, CooldownFailoverLayer},
    metrics::CallMetricsLayer,
    retry::RetryBackoffLayer,
};
use tower::{Service, ServiceBuilder, ServiceExt, service_fn};

/// All values of all metrics, by name and labels.
#[derive(Clone, Default)]
struct Recorded {
    values: Arc<Mutex<BTreeMap<String, Vec<f64>>>>,
    described: Arc<Mutex<Vec<String>>>,
}

struct One(Recorded, String);

impl CounterFn for One {
    fn increment(&self, value: u64) {
        self.record(f64::from(u32::try_from(value).unwrap()));
    }

    fn absolute(&self, _: u64) {}
}

impl HistogramFn for One {
    fn record(&self, value: f64) {
        self.0.values.lock().entry(self.1.clone()).or_default().push(value);
    }
}

impl Recorded {
    fn one(&self, key: &Key) -> Arc<One> {
        let labels: Vec<_> =
            key.labels().map(|one| format!("{}={}", one.key(), one.value())).collect();
        Arc::new(One(self.clone(), format!("{}{{{}}}", key.name(), labels.join(","))))
    }

    fn sum(&self, name: &str) -> f64 {
        self.values.lock().get(name).map_or(0.0, |values| values.iter().sum())
    }
}

impl Recorder for Recorded {
    fn describe_counter(&self, name: KeyName, _: Option<Unit>, _: SharedString) {
        self.described.lock().push(name.as_str().to_owned());
    }

    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn describe_histogram(&self, name: KeyName, _: Option<Unit>, _: SharedString) {
        self.described.lock().push(name.as_str().to_owned());
    }

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        Counter::from_arc(self.one(key))
    }

    fn register_gauge(&self, _: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::noop()
    }

    fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::from_arc(self.one(key))
    }
}

type Request = WithContext<&'static str>;

/// The first target refuses the key, the second is overloaded once.
async fn provider(request: Request) -> Result<u32, Failure> {
    static ASKED: AtomicU32 = AtomicU32::new(0);
    request.context().log.count_attempt();
    tokio::time::sleep(Duration::from_millis(100)).await;
    let target = request.context().target.as_ref().map_or("", Target::provider);
    match (target, ASKED.fetch_add(1, std::sync::atomic::Ordering::Relaxed)) {
        ("first", _) => Err(Failure::new(Reason::Auth, "no")),
        (_, 1) => Err(Failure::new(Reason::ServerError, "not now")),
        (_, asked) => Ok(asked),
    }
}

#[tokio::test(start_paused = true)]
async fn calls_attempts_steps_and_waits_are_recorded() {
    let recorded = Recorded::default();
    let _guard = metrics::set_default_local_recorder(&recorded);
    let mut service = ServiceBuilder::new()
        .layer(CallMetricsLayer::new().at_once())
        .layer(CooldownFailoverLayer::new(Chain::new(["first", "second"]).unwrap()).at_once())
        .layer(RetryBackoffLayer::transient().at_once())
        .layer(CircuitBreakerLayer::default().at_once())
        .service(service_fn(provider));
    // A caller's model is no label.
    let context = CallContext::new()
        .with_tenant("acme")
        .with_target(Target::new("x").with_model("secret-model"));
    let request = Request::new("any").with_context(context);
    service.ready().await.unwrap().call(request.clone()).await.unwrap();
    drop(service.ready().await.unwrap().call(request));

    assert_eq!(recorded.sum("steadfast_calls_total{outcome=success,reason=}"), 1.0);
    assert_eq!(recorded.sum("steadfast_calls_total{outcome=cancelled,reason=}"), 1.0);
    assert_eq!(recorded.sum("steadfast_attempts_total{outcome=success}"), 3.0);
    assert_eq!(recorded.sum("steadfast_call_attempts{}"), 3.0);
    let retried = "layer=retry,action=retried";
    let steps = format!("steadfast_steps_total{{{retried},provider=second,reason=server_error}}");
    assert_eq!(recorded.sum(&steps), 1.0);
    let wait = recorded.sum(&format!("steadfast_wait_seconds{{{retried},reason=server_error}}"));
    assert!((0.5..=0.625).contains(&wait), "{wait}");
    let switched = "layer=failover,action=switched,provider=second,reason=auth";
    assert_eq!(recorded.sum(&format!("steadfast_steps_total{{{switched}}}")), 1.0);
    let took = recorded.sum("steadfast_call_seconds{outcome=success}");
    assert!((took - 0.3 - wait).abs() < 0.01, "{took}");
    assert_eq!(recorded.sum("steadfast_first_content_seconds{}"), 0.0);

    let values = recorded.values.lock();
    assert!(values.keys().all(|name| !name.contains("secret-model") && !name.contains("acme")));
    // Each of them is described, and in the table of the documentation.
    let documentation = include_str!("../src/metrics.rs");
    for name in values.keys() {
        let (name, _) = name.split_once('{').unwrap();
        assert!(recorded.described.lock().iter().any(|one| one == name), "{name}");
        assert!(documentation.contains(&format!("| `{name}` |")), "{name}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_failure_is_counted_with_its_reason_and_the_callers_log_is_kept() {
    let recorded = Recorded::default();
    let _guard = metrics::set_default_local_recorder(&recorded);
    let service = ServiceBuilder::new().layer(CallMetricsLayer::default().at_once()).service(
        service_fn(async |request: Request| {
            request.context().log.record(|| steadfast::Step::new("test", "done"));
            Err::<u32, _>(Failure::new(Reason::Billing, "no credit"))
        }),
    );
    let log = RecoveryLog::enabled();
    let context = CallContext::new().with_log(log.clone());
    let request = Request::new("any").with_context(context);
    assert!(service.oneshot(request).await.is_err());
    assert_eq!(log.to_string(), "test.done");
    // Reported as it is reported to callers.
    assert_eq!(recorded.sum("steadfast_calls_total{outcome=failure,reason=exhausted}"), 1.0);
    assert_eq!(recorded.sum("steadfast_attempts_total{outcome=failure}"), 1.0);
    assert_eq!(
        recorded.sum("steadfast_steps_total{layer=test,action=done,provider=,reason=}"),
        1.0
    );
}
