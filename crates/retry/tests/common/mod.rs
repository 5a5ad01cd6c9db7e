//! A scripted provider.

#![allow(
    dead_code,
    unreachable_pub,
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "tests; each file uses its part"
)]

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use steadfast_core::{
    BoxError, Failure, Jitter, LeaseEnd, Observer, Permit, PermitKind, Reason, RecoveryLog, Routed,
};
use steadfast_retry::{RetryBackoff, RetryBackoffLayer, RetryPolicy};
use steadfast_testkit::{PlainRequest, elapsed_ms, fail};
use tokio::time::Instant;
use tower::{Layer, Service, ServiceExt};
use tower_test::mock::{self, Mock};

pub fn hint(reason: Reason, wait: Duration) -> Failure {
    fail(reason).with_retry_after(Some(wait))
}

/// A breaker's refusal of a call that is out of turn.
pub fn turn(wait: Duration) -> Failure {
    Failure::refused(Reason::CircuitOpen, "out of turn").with_retry_after(Some(wait))
}

/// What a failover would know of its target.
#[derive(Debug, Default)]
pub struct Health {
    /// The failed attempts that were reported, in order.
    pub failed: Mutex<Vec<Reason>>,
    /// It rests from the second failure on.
    pub fragile: AtomicBool,
}

impl Observer for Health {
    fn attempt_failed(&self, _: Permit, failure: &Failure, _: &RecoveryLog) {
        assert!(!failure.is_recorded(), "reported once");
        self.failed.lock().push(failure.reason());
    }

    fn rests(&self, _: Permit) -> bool {
        self.fragile.load(Ordering::Relaxed) && self.failed.lock().len() > 1
    }

    fn ended(&self, _: LeaseEnd<'_>) {}
}

/// For the context of a call that a failover has routed, and what that failover would know.
pub fn routed() -> (Routed, Arc<Health>) {
    routed_as(PermitKind::Ordinary)
}

/// The same, for a call with a permit of this kind.
pub fn routed_as(kind: PermitKind) -> (Routed, Arc<Health>) {
    let health = Arc::new(Health::default());
    (Routed::new(health.clone(), Permit::new(kind, 1)), health)
}

/// The default policy without jitter, so that waits are exact.
pub fn exact() -> RetryPolicy {
    let policy = RetryPolicy::transient();
    RetryPolicy { backoff: policy.backoff.with_jitter(Jitter::None).unwrap(), ..policy }
}

pub fn layer(policy: RetryPolicy) -> RetryBackoffLayer<steadfast_core::AtOnce> {
    RetryBackoffLayer::new(policy).unwrap().at_once()
}

/// What happened when a request was sent to a scripted provider.
#[derive(Debug)]
pub struct ScriptRun {
    /// When each attempt arrived, since the call.
    pub arrivals: Vec<Duration>,
    /// The requests as they arrived.
    pub requests: Vec<PlainRequest>,
    /// When the call ended.
    pub ended: Duration,
    pub answer: Result<&'static str, Failure>,
    /// Steps of the script that were not reached.
    pub unused: usize,
}

type Inner = Mock<PlainRequest, &'static str>;

/// Sends `request` through `layer` to a provider that answers by `script`, in order.
pub async fn run_script(
    layer: &RetryBackoffLayer<steadfast_core::AtOnce>,
    request: PlainRequest,
    script: impl IntoIterator<Item = Result<&'static str, Failure>>,
) -> ScriptRun {
    let (inner, mut handle) = mock::pair();
    let service: RetryBackoff<Inner, _> = layer.layer(inner);
    let mut script: Vec<_> = script.into_iter().collect();
    script.reverse();
    let start = Instant::now();
    let provider = tokio::spawn(async move {
        let (mut arrivals, mut requests) = (Vec::new(), Vec::new());
        while let Some((request, reply)) = handle.next_request().await {
            arrivals.push(elapsed_ms(start));
            requests.push(request);
            match script.pop().expect("no attempt beyond the script") {
                Ok(answer) => reply.send_response(answer),
                Err(failure) => reply.send_error(failure),
            }
        }
        (arrivals, requests, script.len())
    });
    let answer = service.oneshot(request).await;
    let ended = elapsed_ms(start);
    let (arrivals, requests, unused) = provider.await.unwrap();
    ScriptRun { arrivals, requests, ended, answer, unused }
}

/// A service that is ready.
pub async fn ready<S, Req>(service: &mut S) -> &mut S
where
    S: Service<Req>,
    S::Error: Into<BoxError>,
{
    service.ready().await.map_err(Into::into).unwrap()
}
