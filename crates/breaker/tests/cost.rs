//! The allocations of the breaker.
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
use steadfast_core::{Failure, Reason};
use steadfast_testkit::plain_request;
use support::*;
use tower::{Layer, Service};

/// Ready, and answers at once.
#[derive(Clone)]
struct ReadyService;

impl Service<PlainRequest> for ReadyService {
    type Response = http::Response<http_body_util::Empty<bytes::Bytes>>;
    type Error = Failure;
    type Future = Ready<Result<Self::Response, Failure>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Failure>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: PlainRequest) -> Self::Future {
        ready(Ok(http::Response::default()))
    }
}

/// Drives one call to its end.
fn call<S: Service<PlainRequest, Error = Failure>>(
    service: &mut S,
    request: PlainRequest,
) -> Result<(), Failure> {
    let mut context = Context::from_waker(Waker::noop());
    assert!(service.poll_ready(&mut context).is_ready());
    let mut future = pin!(service.call(request));
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
            let request = || plain_request(|context| context.target.clone_from(&target));
            let mut service = plain.layer(ReadyService);
            // The first call with a key allocates its breaker.
            call(&mut service, request()).unwrap();
            // The service itself, clones of it, and new services.
            let calls: Vec<_> = (0..100)
                .map(|_| (plain.layer(ReadyService), [request(), request(), request()]))
                .collect();
            let counted = measure(|| {
                for (mut new, [first, second, third]) in calls {
                    call(&mut service, first).unwrap();
                    call(&mut service.clone(), second).unwrap();
                    call(&mut new, third).unwrap();
                }
            });
            assert_eq!(counted.count_total, 0);
            let mut service = layer.layer(ReadyService);
            let request = request();
            let counted = measure(|| call(&mut service, request).unwrap());
            assert_eq!(counted.count_total, 0);
        }
    }
}

#[test]
fn a_refusal_allocates_only_its_failure() {
    let layer = CircuitBreakerLayer::new(strict()).unwrap().at_once();
    layer.handle().trip(&Some(openai()), Reason::Overloaded, secs(1_000));
    let mut service = layer.layer(ReadyService);
    let request = plain_request(|context| context.target = Some(openai()));
    let mut refused = None;
    let counted = measure(|| refused = Some(service.call(request)));
    assert_eq!(counted.count_total, 0, "none before the failure is made");
    let mut context = Context::from_waker(Waker::noop());
    let mut refused = pin!(refused.unwrap());
    let counted = measure(|| assert!(refused.as_mut().poll(&mut context).is_ready()));
    assert!(counted.count_total <= 1, "one box, for the failure: {}", counted.count_total);
}
