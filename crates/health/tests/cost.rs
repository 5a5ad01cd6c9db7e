//! What a call allocates.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::{
    future::ready,
    pin::pin,
    task::{Context, Poll, Waker},
};

use allocation_counter::measure;
use steadfast_core::{Failure, Reason};
use steadfast_health::{HealthStatus, ProviderHealthLayer};
use steadfast_testkit::{PlainRequest, plain_request};
use tower::{Layer, Service, service_fn};

/// Drives one call to its end.
fn call<S: Service<PlainRequest>>(service: &mut S, request: PlainRequest) {
    let mut context = Context::from_waker(Waker::noop());
    let mut future = pin!(service.call(request));
    assert!(matches!(future.as_mut().poll(&mut context), Poll::Ready(_)));
}

#[test]
fn a_call_that_succeeds_allocates_nothing() {
    let layer = ProviderHealthLayer::default().at_once();
    let mut service =
        layer.layer(service_fn(|_: PlainRequest| ready(Ok::<_, Failure>("answered"))));
    let request = |agent: Option<u64>| {
        plain_request(|context| {
            context.target = Some("openai".into());
            context.identity_mut().agent = agent.map(|agent| agent.to_string().into());
        })
    };
    // What is kept of the provider.
    let first = request(None);
    assert!(measure(|| call(&mut service, first)).count_total > 0, "the counter works");
    // More agents than are remembered, each for the first time.
    for agent in 0..200 {
        for agent in [None, Some(agent)] {
            let request = request(agent);
            assert_eq!(measure(|| call(&mut service, request)).count_total, 0, "{agent:?}");
        }
    }
    // Nor while others are degraded, or it is degraded itself.
    let failure = Failure::new(Reason::Network, "refused");
    layer.handle().probed("anthropic", Err(&failure));
    layer.handle().force("anthropic", HealthStatus::Degraded);
    layer.handle().force("openai", HealthStatus::Degraded);
    let request = request(Some(7));
    assert_eq!(measure(|| call(&mut service, request)).count_total, 0);
    let degraded = layer.degraded();
    assert_eq!(measure(|| assert!(degraded.contains("openai"))).count_total, 0);
}
