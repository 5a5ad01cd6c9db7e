//! What a call pays for the breaker, in allocations.
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

mod support;

use std::{
    future::{Ready, ready},
    pin::pin,
    task::{Context, Poll, Waker},
};

use allocation_counter::measure;
use steadfast_breaker::CircuitBreakerLayer;
use steadfast_core::circuit::SlowPolicy;
use steadfast_core::{CallContext, Failure, Reason};
use support::*;
use tower::{Layer, Service};

/// Ready, and answers at once.
#[derive(Clone)]
struct Free;

impl Service<Ask> for Free {
    type Response = http::Response<http_body_util::Empty<bytes::Bytes>>;
    type Error = Failure;
    type Future = Ready<Result<Self::Response, Failure>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Failure>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Ask) -> Self::Future {
        ready(Ok(http::Response::default()))
    }
}

/// Drives one call to its end.
fn call<S: Service<Ask, Error = Failure>>(service: &mut S, ask: Ask) -> Result<(), Failure> {
    let mut context = Context::from_waker(Waker::noop());
    assert!(service.poll_ready(&mut context).is_ready());
    let mut future = pin!(service.call(ask));
    match future.as_mut().poll(&mut context) {
        Poll::Ready(result) => result.map(drop),
        Poll::Pending => unreachable!("it answers at once"),
    }
}

#[test]
fn a_call_that_passes_allocates_nothing() {
    let slow = Some(SlowPolicy { after: secs(1), rate: 0.5 });
    for policy in [strict(), steadfast_breaker::BreakerPolicy { slow, ..strict() }] {
        let layer = CircuitBreakerLayer::new(policy).unwrap();
        let plain = layer.clone().at_once();
        for target in [Some(openai()), None] {
            let ask = || {
                let mut context = CallContext::new();
                context.target.clone_from(&target);
                Ask("?", context)
            };
            let mut service = plain.layer(Free);
            // Once, when it meets a key for the second time, it makes a counter of its own.
            call(&mut service, ask()).unwrap();
            call(&mut service, ask()).unwrap();
            // The service itself, clones of it, and services that have not seen the key yet.
            let mut fresh: Vec<_> = (0..100).map(|_| plain.layer(Free)).collect();
            let counted = measure(|| {
                for fresh in &mut fresh {
                    call(&mut service, ask()).unwrap();
                    call(&mut service.clone(), ask()).unwrap();
                    call(fresh, ask()).unwrap();
                }
            });
            assert_eq!(counted.count_total, 0);
            let mut service = layer.layer(Free);
            call(&mut service, ask()).unwrap();
            call(&mut service, ask()).unwrap();
            let counted = measure(|| call(&mut service, ask()).unwrap());
            assert_eq!(counted.count_total, 0);
        }
    }
}

#[test]
fn a_refusal_allocates_only_its_failure() {
    let layer = CircuitBreakerLayer::new(strict()).unwrap().at_once();
    layer.handle().trip(&Some(openai()), Reason::Overloaded, secs(1_000));
    let mut service = layer.layer(Free);
    let ask = || Ask("?", CallContext::new().with_target(openai()));
    let _ = call(&mut service, ask()).unwrap_err();
    let _ = call(&mut service, ask()).unwrap_err();
    let question = ask();
    let mut refused = None;
    let counted = measure(|| refused = Some(service.call(question)));
    assert_eq!(counted.count_total, 0, "until it is a failure");
    let mut context = Context::from_waker(Waker::noop());
    let mut refused = pin!(refused.unwrap());
    let counted = measure(|| assert!(refused.as_mut().poll(&mut context).is_ready()));
    assert_eq!(counted.count_total, 1, "the failure");
}
