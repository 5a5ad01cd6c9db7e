//! Counters and histograms of what the layers do, for any recorder of the `metrics` crate: a
//! Prometheus exporter, statsd and so on.
//!
//! [`CallMetricsLayer`] goes around everything else, a [`Stack`](crate::Stack) or single layers:
//!
//! ```
//! use steadfast::{CallContext, Failure, WithContext, metrics::CallMetricsLayer};
//! use tower::{ServiceBuilder, ServiceExt, service_fn};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Failure> {
//! let service = ServiceBuilder::new()
//!     .layer(CallMetricsLayer::new().at_once())
//!     // Here go the layers.
//!     .service(service_fn(async |_: WithContext<&str>| Ok::<_, Failure>("forty-two")));
//! assert_eq!(service.oneshot("what is it?".into()).await?, "forty-two");
//! # Ok(())
//! # }
//! ```
//!
//! | metric | kind | unit | labels | what |
//! |---|---|---|---|---|
//! | `steadfast_calls_total` | counter | | `outcome`, `reason` | calls, counted when their answer has ended |
//! | `steadfast_call_seconds` | histogram | seconds | `outcome` | from the call to the end of its answer |
//! | `steadfast_first_content_seconds` | histogram | seconds | | from the call to the first content of its answer |
//! | `steadfast_attempts_total` | counter | | `outcome` | how often a provider was asked, whichever layer asked, by the outcome of the call |
//! | `steadfast_call_attempts` | histogram | | | how often a provider was asked for one call |
//! | `steadfast_steps_total` | counter | | `layer`, `action`, `provider`, `reason` | what the layers did: each step of `docs/events.md` |
//! | `steadfast_wait_seconds` | histogram | seconds | `layer`, `action`, `reason` | how long a step waited, or the rest that it began |
//!
//! Retries are the steps with `layer="retry", action="retried"`, failovers `layer="failover"` with `switched` or
//! `downgraded`, refusals `layer="breaker", action="refused"`, `layer="failover", action="skipped"` and
//! `layer="guard", action="stopped"`; [events and steps](https://github.com/steadfast-rs/steadfast/blob/main/docs/events.md)
//! has all of them. Attempts are counted by `LlmClient` and by the HTTP classifiers; a service of your own calls
//! [`count_attempt`](steadfast_core::RecoveryLog::count_attempt).
//!
//! `outcome` is `success`, `failure` or `cancelled`; `reason` is the name of a [`Reason`](crate::Reason), or
//! empty. `provider` is the provider of the step's target, without model and credential. So nothing that a caller
//! chooses, such as a model's name, is a label, unless the program makes targets of it.

use std::{
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use ::metrics::{Unit, counter, describe_counter, describe_histogram, histogram};
use steadfast_core::{
    AtOnce, Call, Failure, IntoFailure, Lease, LeaseEnd, Leased, Observer, OnStepLayer, Outcome,
    Permit, PermitKind, Step, Track, UntilEnd, inner_service,
};
use tokio::time::Instant;
use tower_layer::Layer;
use tower_service::Service;

const CALLS: &str = "steadfast_calls_total";
const CALL_SECONDS: &str = "steadfast_call_seconds";
const FIRST_CONTENT_SECONDS: &str = "steadfast_first_content_seconds";
const ATTEMPTS: &str = "steadfast_attempts_total";
const CALL_ATTEMPTS: &str = "steadfast_call_attempts";
const STEPS: &str = "steadfast_steps_total";
const WAIT_SECONDS: &str = "steadfast_wait_seconds";

/// Counts and measures calls, and the steps of the layers inside it. See the [module](self).
///
/// `T` decides when a reply is over: at the end of its body or stream ([`UntilEnd`]), or at once
/// ([`AtOnce`]).
#[derive(Clone, Debug)]
#[must_use = "a layer does nothing until it wraps a service"]
pub struct CallMetricsLayer<T = UntilEnd> {
    steps: OnStepLayer,
    track: T,
}

impl CallMetricsLayer {
    /// Describes the metrics to the recorder, which should be installed before.
    pub fn new() -> Self {
        describe_counter!(CALLS, "Calls by how their answers ended");
        describe_histogram!(CALL_SECONDS, Unit::Seconds, "Time until the answer ended");
        describe_histogram!(FIRST_CONTENT_SECONDS, Unit::Seconds, "Time until the first content");
        describe_counter!(ATTEMPTS, "How often a provider was asked");
        describe_histogram!(CALL_ATTEMPTS, "How often a provider was asked for one call");
        describe_counter!(STEPS, "What the layers did");
        describe_histogram!(WAIT_SECONDS, Unit::Seconds, "How long a step waited");
        Self { steps: OnStepLayer::new(record), track: UntilEnd }
    }

    /// For replies that are plain values, over as soon as they are there.
    pub fn at_once(self) -> CallMetricsLayer<AtOnce> {
        self.with_track(AtOnce)
    }
}

impl<T> CallMetricsLayer<T> {
    /// With another [`Track`], which decides when a reply is over.
    pub fn with_track<U>(self, track: U) -> CallMetricsLayer<U> {
        CallMetricsLayer { steps: self.steps, track }
    }
}

impl Default for CallMetricsLayer {
    fn default() -> Self {
        Self::new()
    }
}

fn record(step: &Step) {
    let Step { layer, action, .. } = *step;
    let reason = step.reason.map_or("", |reason| reason.as_str());
    let provider = step.target.as_ref().map_or("", |target| target.provider()).to_owned();
    counter!(STEPS, "layer" => layer, "action" => action, "provider" => provider, "reason" => reason)
        .increment(1);
    if let Some(wait) = step.wait {
        histogram!(WAIT_SECONDS, "layer" => layer, "action" => action, "reason" => reason)
            .record(wait);
    }
}

impl<S, T: Clone> Layer<S> for CallMetricsLayer<T> {
    type Service = CallMetrics<S, T>;

    fn layer(&self, inner: S) -> Self::Service {
        CallMetrics { inner, layer: self.clone() }
    }
}

/// Counts and measures the calls of the inner service; see [`CallMetricsLayer`].
#[derive(Clone, Debug)]
#[must_use = "services do nothing unless called"]
pub struct CallMetrics<S, T = UntilEnd> {
    inner: S,
    layer: CallMetricsLayer<T>,
}

inner_service!(CallMetrics<S, T>);

impl<S, Req, T> Service<Req> for CallMetrics<S, T>
where
    S: Service<Req>,
    S::Error: IntoFailure,
    Req: Call,
    T: Track<S::Response> + Clone,
{
    type Response = T::Tracked;
    type Error = Failure;
    type Future = Leased<S::Future, T>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Failure>> {
        self.inner.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, mut request: Req) -> Self::Future {
        self.layer.steps.observe(&mut request);
        let began = Instant::now();
        let permit = Permit::new(PermitKind::Ordinary, 0);
        let lease = Lease::new(Arc::new(Began(began)), permit, request.context().log.clone());
        let lease = lease.observing_content(began);
        Leased::new(self.inner.call(request), lease, self.layer.track.clone())
    }
}

/// When a call began.
struct Began(Instant);

impl Observer for Began {
    fn first_content(
        &self,
        _: Permit,
        _: Instant,
        after: Duration,
        _: &steadfast_core::RecoveryLog,
    ) {
        histogram!(FIRST_CONTENT_SECONDS).record(after);
    }

    fn ended(&self, end: LeaseEnd<'_>) {
        let (outcome, reason, attempts) = match end.outcome {
            Outcome::Success => ("success", "", 0),
            Outcome::Failure(failure) => {
                ("failure", failure.outward_reason().as_str(), failure.attempts())
            }
            _ => ("cancelled", "", 0),
        };
        let attempts = end.log.attempts().max(attempts);
        counter!(CALLS, "outcome" => outcome, "reason" => reason).increment(1);
        counter!(ATTEMPTS, "outcome" => outcome).increment(u64::from(attempts));
        histogram!(CALL_ATTEMPTS).record(attempts);
        histogram!(CALL_SECONDS, "outcome" => outcome).record(self.0.elapsed());
    }
}
