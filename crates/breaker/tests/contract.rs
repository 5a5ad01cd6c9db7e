//! The contract of every layer.
#![allow(clippy::unwrap_used, reason = "tests")]

use steadfast_breaker::{BreakerHandle, BreakerPolicy, CircuitBreakerLayer};
use steadfast_core::{Reason, Target};
use steadfast_testkit::{Action, Aspect, Chat, Contract, PinnedHttp, Plain, contract, secs};

/// The target of the testkit's requests.
fn key() -> Option<Target> {
    Some(Target::new("probe"))
}

fn isolate(handle: &BreakerHandle) {
    handle.isolate(&key());
}

fn calls(handle: &BreakerHandle) -> u64 {
    handle.get(&key()).map_or(0, |breaker| breaker.circuit.calls)
}

/// Probes and lone calls under way.
fn under_way(handle: &BreakerHandle) -> u64 {
    handle.get(&key()).map_or(0, |breaker| u64::from(breaker.circuit.probes + breaker.circuit.lone))
}

contract!(
    plain,
    Contract::new(Plain, || CircuitBreakerLayer::default().at_once())
        .refuses(|layer, _| isolate(&layer.handle()))
        .state(Action::answer(), |layer| calls(&layer.handle()))
        .held(|layer| under_way(&layer.handle()))
);

contract!(
    http,
    Contract::new(PinnedHttp, CircuitBreakerLayer::default)
        .refuses(|layer, _| isolate(&layer.handle()))
        .state(Action::answer(), |layer| calls(&layer.handle()))
        .held(|layer| under_way(&layer.handle()))
);

contract!(
    chat,
    Contract::new(Chat, CircuitBreakerLayer::default)
        .refuses(|layer, _| isolate(&layer.handle()))
        .state(Action::answer(), |layer| calls(&layer.handle()))
        .held(|layer| under_way(&layer.handle()))
);

/// Half open: every call is a probe, one at a time.
fn half_open() -> CircuitBreakerLayer {
    let policy = BreakerPolicy { lone: None, ..BreakerPolicy::default() };
    let layer = CircuitBreakerLayer::new(policy).unwrap();
    layer.handle().trip(&key(), Reason::Overloaded, secs(30));
    layer
}

contract!(
    half_open_http,
    Contract::new(PinnedHttp, half_open)
        .after(secs(31))
        .may_refuse_crowds()
        .refuses(|layer, _| isolate(&layer.handle()))
        .none(Aspect::State, "each new layer starts with a tripped breaker")
        .held(|layer| under_way(&layer.handle()))
);
