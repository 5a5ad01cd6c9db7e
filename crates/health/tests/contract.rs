//! The contract of every layer.
#![allow(clippy::unwrap_used, reason = "tests")]

use steadfast_health::{HealthStatus, ProviderHealthLayer};
use steadfast_testkit::{Action, Aspect, Chat, Contract, PinnedHttp, Plain, contract};

/// Successes of the testkit's provider.
fn calls<T>(layer: &ProviderHealthLayer<T>) -> u64 {
    layer.handle().snapshot().providers.iter().map(|provider| provider.calls).sum()
}

/// Calls without content.
fn under_way<T>(layer: &ProviderHealthLayer<T>) -> u64 {
    layer.handle().snapshot().providers.iter().map(|provider| provider.under_way).sum()
}

contract!(
    plain,
    Contract::new(Plain, || ProviderHealthLayer::default().at_once())
        .none(Aspect::Refusal, "every call is sent")
        .state(Action::answer(), calls)
        .held(under_way)
);

contract!(
    http,
    Contract::new(PinnedHttp, ProviderHealthLayer::default)
        .none(Aspect::Refusal, "every call is sent")
        .state(Action::answer(), calls)
        .held(under_way)
);

contract!(
    chat,
    Contract::new(Chat, ProviderHealthLayer::default)
        .none(Aspect::Refusal, "every call is sent")
        .state(Action::answer(), calls)
        .held(under_way)
);

/// Every call decides.
fn degraded() -> ProviderHealthLayer {
    let layer = ProviderHealthLayer::default();
    layer.handle().force("probe", HealthStatus::Degraded);
    layer
}

contract!(
    degraded_http,
    Contract::new(PinnedHttp, degraded)
        .none(Aspect::Refusal, "a degraded provider is not refused")
        .state(Action::answer(), calls)
        .held(under_way)
);

contract!(
    off,
    Contract::new(Chat, ProviderHealthLayer::off)
        .none(Aspect::Refusal, "every call is sent")
        .none(Aspect::State, "nothing is observed")
        .none(Aspect::Held, "nothing is observed")
);
