//! The allocations of the layers: none where nothing is known or configured.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::{
    future::{Ready, ready},
    pin::pin,
    task::{Context, Poll, Waker},
};

use allocation_counter::measure;
use http::{HeaderMap, HeaderValue};
use steadfast_core::{Failure, Target};
use steadfast_limit::{RateLimitLayer, SpendLimitLayer};
use steadfast_testkit::{PlainRequest, plain_request};
use tower::{Layer, Service};

/// Ready, and answers at once, the first call with these headers.
#[derive(Clone)]
struct ReadyService(HeaderMap);

impl Service<PlainRequest> for ReadyService {
    type Response = http::Response<http_body_util::Empty<bytes::Bytes>>;
    type Error = Failure;
    type Future = Ready<Result<Self::Response, Failure>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Failure>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: PlainRequest) -> Self::Future {
        let mut response = http::Response::default();
        std::mem::swap(response.headers_mut(), &mut self.0);
        ready(Ok(response))
    }
}

/// Drives one call to its end.
fn call<S: Service<PlainRequest, Error = Failure>>(service: &mut S, request: PlainRequest) {
    let mut context = Context::from_waker(Waker::noop());
    assert!(service.poll_ready(&mut context).is_ready());
    let mut future = pin!(service.call(request));
    assert!(matches!(future.as_mut().poll(&mut context), Poll::Ready(Ok(_))), "it answers at once");
}

fn request() -> PlainRequest {
    plain_request(|context| context.target = Some(Target::new("openai").with_model("gpt-4o")))
}

#[tokio::test(start_paused = true)]
async fn without_anything_known_a_call_allocates_nothing() {
    let (rate, spend) = (RateLimitLayer::default(), SpendLimitLayer::default());
    let mut service = spend.layer(rate.layer(spend.meter().layer(ReadyService(HeaderMap::new()))));
    // The first call of a target allocates its state.
    call(&mut service, request());
    let requests: Vec<_> = (0..100).map(|_| request()).collect();
    let counted = measure(|| {
        for request in requests {
            call(&mut service, request);
        }
    });
    assert_eq!(counted.count_total, 0);
}

#[tokio::test(start_paused = true)]
async fn neither_does_one_whose_limits_are_learned() {
    let layer = RateLimitLayer::default();
    let mut headers = HeaderMap::new();
    for (name, value) in [
        ("x-ratelimit-limit-requests", "1000"),
        ("x-ratelimit-remaining-requests", "900"),
        ("x-ratelimit-reset-requests", "6s"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    let mut service = layer.layer(ReadyService(headers.clone()));
    call(&mut service, request());
    assert_eq!(layer.handle().snapshot()[0].quotas[0].available, 900);
    for (name, value) in [
        ("anthropic-ratelimit-requests-limit", "1000"),
        ("anthropic-ratelimit-requests-remaining", "900"),
        ("anthropic-ratelimit-requests-reset", "2026-11-21T13:58:39Z"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    let mut service = layer.layer(ReadyService(headers));
    let one = request();
    let counted = measure(|| call(&mut service, one));
    assert_eq!(counted.count_total, 0);
}
