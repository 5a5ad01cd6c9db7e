//! The nearest layers of tower and of tower-resilience, around the same services.

use std::{future, time::Duration};

use steadfast_core::Failure;
use tower::{
    Layer, ServiceBuilder,
    limit::ConcurrencyLimitLayer,
    load_shed::LoadShedLayer,
    retry::{Policy, RetryLayer},
    timeout::TimeoutLayer,
};
use tower_resilience_bulkhead::BulkheadLayer;
use tower_resilience_circuitbreaker::{CircuitBreakerLayer, DefaultClassifier};
use tower_resilience_fallback::FallbackLayer;
use tower_resilience_timelimiter::{FixedTimeout, TimeLimiterLayer};

use crate::{
    drive::{Case, case, refusal},
    ours,
    subject::{Answers, BareRequest, Busy, EveryOther, Number},
};

const MINUTE: Duration = Duration::from_secs(60);
const PROVEN: &str = "the settings are valid";

/// Tower leaves the policy to its user: this one retries whatever fails, ten times.
#[derive(Clone, Debug)]
struct Tries(u32);

impl<R, E> Policy<BareRequest, R, E> for Tries {
    type Future = future::Ready<()>;

    fn retry(&mut self, _: &mut BareRequest, result: &mut Result<R, E>) -> Option<Self::Future> {
        if result.is_ok() || self.0 == 0 {
            return None;
        }
        self.0 -= 1;
        Some(future::ready(()))
    }

    fn clone_request(&mut self, ask: &BareRequest) -> Option<BareRequest> {
        Some(ask.clone())
    }
}

fn tower_retry() -> RetryLayer<Tries> {
    RetryLayer::new(Tries(10))
}

/// More than are ever in flight at once.
fn limit() -> ConcurrencyLimitLayer {
    ConcurrencyLimitLayer::new(1_000)
}

/// Tower's layers around a service that answers with a stream of `pieces`.
pub(crate) fn tower_answers(pieces: u32) -> Vec<Case> {
    let inner = Answers { pieces };
    let ask = ours::ask;
    let all = ServiceBuilder::new()
        .layer(tower_retry())
        .layer(TimeoutLayer::new(MINUTE))
        .layer(limit())
        .layer(LoadShedLayer::new());
    vec![
        case("retry", tower_retry().layer(inner), ask()),
        case("timeout", TimeoutLayer::new(MINUTE).layer(inner), ask()),
        case("limit", limit().layer(inner), ask()),
        case("shed", LoadShedLayer::new().layer(inner), ask()),
        case("four", all.service(inner), ask()),
    ]
}

/// Tower's layers around a service that answers with a number.
pub(crate) fn tower_numbers() -> Vec<Case> {
    let ask = ours::ask;
    let all = ServiceBuilder::new()
        .layer(tower_retry())
        .layer(TimeoutLayer::new(MINUTE))
        .layer(limit())
        .layer(LoadShedLayer::new());
    vec![
        case("retry", tower_retry().layer(Number), ask()),
        case("timeout", TimeoutLayer::new(MINUTE).layer(Number), ask()),
        case("limit", limit().layer(Number), ask()),
        case("shed", LoadShedLayer::new().layer(Number), ask()),
        case("four", all.service(Number), ask()),
    ]
}

pub(crate) fn tower_refused() -> Case {
    refusal("shed", LoadShedLayer::new().layer(Busy), ours::ask())
}

pub(crate) fn tower_retried() -> Case {
    case("retry", tower_retry().layer(EveryOther::default()), ours::ask())
}

fn breaker() -> CircuitBreakerLayer<DefaultClassifier> {
    CircuitBreakerLayer::builder().failure_rate_threshold(0.5).build().expect(PROVEN)
}

fn limiter() -> TimeLimiterLayer<FixedTimeout> {
    TimeLimiterLayer::builder().timeout_duration(MINUTE).cancel_running_future(true).build()
}

fn bulkhead() -> BulkheadLayer {
    BulkheadLayer::builder().max_concurrent_calls(1_000).build().expect(PROVEN)
}

/// Without a wait between attempts.
fn retry<R, E>() -> tower_resilience_retry::RetryLayer<BareRequest, R, E>
where
    R: Send + 'static,
    E: Send + 'static,
{
    tower_resilience_retry::RetryLayer::builder()
        .max_attempts(10)
        .fixed_backoff(Duration::ZERO)
        .build()
}

/// One macro for both kinds of reply: the layers name the reply's type and the error's.
macro_rules! resilience {
    ($inner:expr, $reply:ty) => {{
        let inner = $inner;
        let ask = ours::ask;
        type Inner = Failure;
        let fallback = FallbackLayer::<BareRequest, $reply, Inner>::tower_service(inner);
        let all = ServiceBuilder::new()
            .layer(retry::<$reply, _>())
            .layer(breaker())
            .layer(limiter())
            .layer(bulkhead())
            .layer(FallbackLayer::<BareRequest, $reply, Inner>::tower_service(inner));
        vec![
            case("retry", retry::<$reply, Inner>().layer(inner), ask()),
            case("breaker", breaker().layer(inner), ask()),
            case("time limiter", limiter().layer(inner), ask()),
            case("fallback", fallback.layer(inner), ask()),
            case("bulkhead", bulkhead().layer(inner), ask()),
            case("five", all.service(inner), ask()),
        ]
    }};
}

/// Those of tower-resilience around a service that answers with a stream of `pieces`.
pub(crate) fn resilience_answers(pieces: u32) -> Vec<Case> {
    resilience!(Answers { pieces }, steadfast_chat::ChatResponse<crate::subject::Pieces>)
}

/// Those of tower-resilience around a service that answers with a number.
pub(crate) fn resilience_numbers() -> Vec<Case> {
    resilience!(Number, u64)
}

pub(crate) fn resilience_refused(runtime: &tokio::runtime::Runtime) -> Case {
    let service = breaker().layer(Number);
    runtime.block_on(service.force_open());
    refusal("breaker", service, ours::ask())
}

/// A fallback that is a number.
pub(crate) fn resilience_failed_over() -> Case {
    let layer = FallbackLayer::<BareRequest, u64, Failure>::tower_service(Number);
    case("fallback", layer.layer(EveryOther::default()), ours::ask())
}

/// One layer shared by so many threads.
pub(crate) fn resilience_shared(threads: usize) -> Vec<Case> {
    let layer = breaker();
    let service = layer.layer(Number);
    (0..threads).map(|_| case("breaker", service.clone(), ours::ask())).collect()
}
