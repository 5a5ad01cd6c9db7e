//! A stop is final: no layer makes the call again.
#![allow(clippy::unwrap_used, reason = "tests")]

mod support;

use std::sync::{
    Arc,
    atomic::{AtomicU32, Ordering},
};

use steadfast_core::{CallContext, ChatRequest, Failover, Reason, Retry};
use steadfast_failover::{Chain, CooldownFailoverLayer};
use steadfast_guard::SafetyGuardLayer;
use steadfast_retry::RetryBackoffLayer;
use support::*;
use tower::{Layer, ServiceBuilder, ServiceExt, layer::layer_fn, util::MapRequest};

/// Four calls, of three that are allowed.
fn too_many() -> ChatRequest {
    let calls = (0..4).map(|at| did("delete_file", &format!(r#"{{"path":"{at}"}}"#), "it is gone"));
    request(&one_by_one(calls)).with_context(CallContext::recording())
}

#[tokio::test(start_paused = true)]
async fn a_stop_is_not_retried_nor_failed_over_whatever_the_order() {
    let chain = || Chain::new(["one", "two", "three"]).unwrap();
    let asked = Arc::new(AtomicU32::new(0));
    let counting = {
        let asked = asked.clone();
        layer_fn(move |inner| {
            let asked = asked.clone();
            MapRequest::new(inner, move |request: ChatRequest| {
                asked.fetch_add(1, Ordering::Relaxed);
                request
            })
        })
    };
    let model = Model::default();

    let outside = ServiceBuilder::new()
        .layer(SafetyGuardLayer::default())
        .layer(CooldownFailoverLayer::new(chain()))
        .layer(RetryBackoffLayer::transient())
        .service(model.clone());
    let failure = outside.oneshot(too_many()).await.unwrap_err();
    assert_eq!((failure.reason(), failure.retry()), (Reason::Safety, Retry::Forbidden));
    assert_eq!(failure.failover(), Failover::Forbidden);

    // In the wrong place it is final all the same.
    let inside = ServiceBuilder::new()
        .layer(CooldownFailoverLayer::new(chain()))
        .layer(RetryBackoffLayer::transient())
        .layer(counting)
        .layer(SafetyGuardLayer::default())
        .service(model.clone());
    let failure = inside.oneshot(too_many()).await.unwrap_err();
    assert_eq!(failure.reason(), Reason::Safety);
    assert_eq!(asked.load(Ordering::Relaxed), 1, "one target, one attempt");
    assert_eq!(model.times(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_stop_inside_an_answer_is_not_retried_either() {
    // Nothing has been delivered yet when the first event is a call beyond the limit.
    let calls = || calling(&[("delete_file", "{}")]);
    let model = Model::whole().says(calls()).says(calls()).says(calls());
    let service = ServiceBuilder::new()
        .layer(CooldownFailoverLayer::new(Chain::new(["one", "two"]).unwrap()))
        .layer(RetryBackoffLayer::transient())
        .layer(SafetyGuardLayer::default())
        .service(model.clone());
    let three = (0..3).map(|at| did("delete_file", &format!(r#"{{"path":"{at}"}}"#), "it is gone"));
    let failure = match service.oneshot(request(&one_by_one(three))).await {
        Ok(answer) => answer.collect().await.unwrap_err(),
        Err(failure) => failure,
    };
    assert_eq!((failure.reason(), model.times()), (Reason::Safety, 1));
    // Nobody softens it.
    let softened = failure.with_retry(Retry::Yes).with_reason(Reason::Overloaded);
    assert_eq!((softened.retry(), softened.failover()), (Retry::Forbidden, Failover::Forbidden));
    let _ = SafetyGuardLayer::default().layer(model);
}
