//! The layers of this project with their defaults, each alone and together.

use std::time::Duration;

use steadfast_breaker::CircuitBreakerLayer;
use steadfast_classify::ClassifyLayer;
use steadfast_core::{Call, Failure, Jitter, Reason, RecoveryTable, Target};
use steadfast_failover::{Chain, CooldownFailoverLayer};
use steadfast_retry::{RetryBackoffLayer, RetryPolicy};
use steadfast_timeout::{DeadlineLayer, StallTimeoutLayer};
use tower::{Layer, Service, ServiceBuilder};

use crate::{
    drive::{Case, Use, case, refusal},
    subject::{Answers, BareRequest, EveryOther, Number},
};

const PROVEN: &str = "the chain is not empty";

/// A request with a target, as most have.
pub(crate) fn ask() -> BareRequest {
    let mut ask = BareRequest::default();
    ask.context_mut().target = Some(target());
    ask
}

fn target() -> Target {
    Target::new("openai").with_model("gpt-4o")
}

pub(crate) fn failover() -> CooldownFailoverLayer {
    CooldownFailoverLayer::new(Chain::new(["openai", "anthropic"]).expect(PROVEN))
}

/// Around a service that answers with a stream of `pieces`, recorded at its end.
pub(crate) fn answers(pieces: u32) -> Vec<Case> {
    let inner = Answers { pieces };
    let five = || {
        ServiceBuilder::new()
            .layer(failover())
            .layer(RetryBackoffLayer::transient())
            .layer(CircuitBreakerLayer::default())
            .layer(StallTimeoutLayer::default())
            .layer(ClassifyLayer::default())
            .service(inner)
    };
    vec![
        case("classify", ClassifyLayer::default().layer(inner), ask()),
        case("retry", RetryBackoffLayer::transient().layer(inner), ask()),
        case("breaker", CircuitBreakerLayer::default().layer(inner), ask()),
        case("failover", failover().layer(inner), ask()),
        case("stall timeout", StallTimeoutLayer::default().layer(inner), ask()),
        case("deadline", DeadlineLayer::default().layer(inner), ask()),
        case("five", five(), ask()),
        case("five and the deadline", DeadlineLayer::default().layer(five()), ask()),
    ]
}

/// Around a service that answers with a stream of one piece, recorded at its head.
pub(crate) fn heads() -> Vec<Case> {
    at_once(Answers { pieces: 1 })
}

/// Each layer around `inner`, recording the outcome at once.
fn at_once<S>(inner: S) -> Vec<Case>
where
    S: Service<BareRequest, Error = Failure, Future: Send> + Copy + Send + Sync + 'static,
    S::Response: Use + Send,
{
    vec![
        case("retry", RetryBackoffLayer::transient().at_once().layer(inner), ask()),
        case("breaker", CircuitBreakerLayer::default().at_once().layer(inner), ask()),
        case("failover", failover().at_once().layer(inner), ask()),
        case("stall timeout", StallTimeoutLayer::default().at_once().layer(inner), ask()),
        case("deadline", DeadlineLayer::default().at_once().layer(inner), ask()),
    ]
}

/// Around a service that answers with a number, recorded at once.
pub(crate) fn numbers() -> Vec<Case> {
    let four = ServiceBuilder::new()
        .layer(failover().at_once())
        .layer(RetryBackoffLayer::transient().at_once())
        .layer(CircuitBreakerLayer::default().at_once())
        .layer(StallTimeoutLayer::default().at_once())
        .service(Number);
    let mut cases = at_once(Number);
    cases.push(case("four", four, ask()));
    cases
}

/// A breaker that is open.
pub(crate) fn refused() -> Case {
    let layer = CircuitBreakerLayer::default().at_once();
    let hour = Duration::from_secs(3_600);
    layer.handle().trip(&Some(target()), Reason::Overloaded, hour);
    let mut ask = ask();
    ask.context.alternatives = 1;
    refusal("breaker", layer.layer(Number), ask)
}

/// The first attempt fails, the second one answers; no wait between them.
pub(crate) fn retried() -> Case {
    // Waits below one nanosecond, so that no timer is measured.
    let nano = Duration::from_nanos(1);
    let policy = RetryPolicy::transient()
        .with_delays(nano, nano, Jitter::Full)
        .expect("a nanosecond is above zero");
    let layer = RetryBackoffLayer::new(policy).expect("it was valid").at_once();
    case("retry", layer.layer(EveryOther::default()), ask())
}

/// The first target fails, the second one answers; nothing cools.
pub(crate) fn failed_over() -> Case {
    let table = RecoveryTable::default().with_cooldown(Reason::ServerError, Duration::ZERO);
    let layer = failover().with_table(table).at_once();
    case("failover", layer.layer(EveryOther::default()), ask())
}

/// The cases of several threads: they share one layer, with a service each, on `keys` targets.
pub(crate) fn shared(name: &'static str, threads: usize, keys: usize) -> Vec<Case> {
    let breaker = CircuitBreakerLayer::default().at_once();
    let retry = RetryBackoffLayer::transient().at_once();
    let failover = failover().at_once();
    let stall = StallTimeoutLayer::default().at_once();
    (0..threads)
        .map(|thread| {
            let mut ask = BareRequest::default();
            let key = thread % keys;
            // Requests with equal targets have separate values of them.
            ask.context_mut().target = Some(Target::new("openai").with_model(format!("m{key}")));
            match name {
                "bare" => case("bare", Number, ask),
                "breaker" => case("breaker", breaker.layer(Number), ask),
                "retry" => case("retry", retry.layer(Number), ask),
                "failover" => case("failover", failover.layer(Number), ask),
                _ => {
                    let four = ServiceBuilder::new()
                        .layer(failover.clone())
                        .layer(retry.clone())
                        .layer(breaker.clone())
                        .layer(stall.clone())
                        .service(Number);
                    case("four", four, ask)
                }
            }
        })
        .collect()
}
