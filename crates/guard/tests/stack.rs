//! A stop is final: no layer makes the call again.
#![allow(clippy::unwrap_used, reason = "tests")]

mod support;

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use steadfast_breaker::CircuitBreakerLayer;
use steadfast_chat::{ChatRequest, ChatResponse, Delta, Event, Events, StopReason};
use steadfast_classify::ClassifyLayer;
use steadfast_core::{CallContext, Failover, Failure, Reason, RecoveryLog, Retry};
use steadfast_failover::{Chain, CooldownFailoverLayer};
use steadfast_guard::{GuardPolicy, SafetyGuardHandle, SafetyGuardLayer, StopAs};
use steadfast_recover::{ContinuationLayer, StreamResumeLayer};
use steadfast_retry::RetryBackoffLayer;
use steadfast_timeout::{DeadlineLayer, StallTimeoutLayer};
use support::*;
use tokio_stream::StreamExt;
use tower::{
    Layer, Service, ServiceBuilder, ServiceExt,
    layer::layer_fn,
    util::{BoxCloneService, MapRequest},
};

/// Four calls, where three are allowed.
fn too_many() -> ChatRequest {
    let calls =
        (0..4).map(|at| tool_run("delete_file", &format!(r#"{{"path":"{at}"}}"#), "it is gone"));
    request(&one_by_one(calls)).with_context(CallContext::recording().with_task(TASK))
}

#[tokio::test(start_paused = true)]
async fn a_stop_is_neither_retried_nor_failed_over_in_any_order() {
    let chain = || Chain::new(["one", "two", "three"]).unwrap();
    let calls = Arc::new(AtomicU32::new(0));
    let counting = {
        let calls = calls.clone();
        layer_fn(move |inner| {
            let calls = calls.clone();
            MapRequest::new(inner, move |request: ChatRequest| {
                calls.fetch_add(1, Ordering::Relaxed);
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

    // It is final in any position.
    let inside = ServiceBuilder::new()
        .layer(CooldownFailoverLayer::new(chain()))
        .layer(RetryBackoffLayer::transient())
        .layer(counting)
        .layer(SafetyGuardLayer::default())
        .service(model.clone());
    let failure = inside.oneshot(too_many()).await.unwrap_err();
    assert_eq!(failure.reason(), Reason::Safety);
    assert_eq!(calls.load(Ordering::Relaxed), 1, "one target, one attempt");
    assert_eq!(model.calls(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_stop_inside_an_answer_is_not_retried_either() {
    // Nothing has been delivered yet when the first event is a call beyond the limit.
    let calls = || calling(&[("delete_file", "{}")]);
    let model = Model::whole().answers_with(calls()).answers_with(calls()).answers_with(calls());
    let service = ServiceBuilder::new()
        .layer(CooldownFailoverLayer::new(Chain::new(["one", "two"]).unwrap()))
        .layer(RetryBackoffLayer::transient())
        .layer(SafetyGuardLayer::default())
        .service(model.clone());
    let three =
        (0..3).map(|at| tool_run("delete_file", &format!(r#"{{"path":"{at}"}}"#), "it is gone"));
    let failure = match service.oneshot(named(&one_by_one(three))).await {
        Ok(answer) => answer.collect().await.unwrap_err(),
        Err(failure) => failure,
    };
    assert_eq!((failure.reason(), model.calls()), (Reason::Safety, 1));
    // It can not be overridden.
    let overridden = failure.with_retry(Retry::Yes).with_reason(Reason::Overloaded);
    assert_eq!(
        (overridden.retry(), overridden.failover()),
        (Retry::Forbidden, Failover::Forbidden)
    );
    let _ = SafetyGuardLayer::default().layer(model);
}

type Whole = BoxCloneService<ChatRequest, Vec<Result<Event, Failure>>, Failure>;

/// The whole stack in its order, or with the guard in the worst position: innermost.
fn stack(guard: &SafetyGuardHandle, model: &Model, worst: bool) -> Whole {
    let chain = || CooldownFailoverLayer::new(Chain::new(["one", "two", "three"]).unwrap());
    macro_rules! around {
        ($inner:expr) => {
            ServiceBuilder::new()
                .layer(ContinuationLayer::default().with_withhold(true))
                .layer(StreamResumeLayer::default())
                .layer(chain())
                .layer(RetryBackoffLayer::transient())
                .layer(CircuitBreakerLayer::default())
                .layer(StallTimeoutLayer::default())
                .layer(ClassifyLayer::default())
                .service($inner)
        };
    }
    let deadline = DeadlineLayer::default();
    match worst {
        true => whole(deadline.layer(around!(guard.layer().layer(model.clone())))),
        false => whole(deadline.layer(guard.layer().layer(around!(model.clone())))),
    }
}

/// Reads each answer to its end, or its failure.
fn whole<S, E>(service: S) -> Whole
where
    S: Service<ChatRequest, Response = ChatResponse<E>, Error = Failure> + Clone + Send + 'static,
    S::Future: Send,
    E: Events + Unpin + Send + 'static,
{
    let read = |mut answer: ChatResponse<E>| async move {
        let mut all = Vec::new();
        while let Some(event) = answer.next().await {
            all.push(event);
        }
        Ok(all)
    };
    BoxCloneService::new(service.and_then(read))
}

/// Asserts that `events` end with the stop, once: as a failure or as an answer.
fn assert_stopped(events: &[Result<Event, Failure>], stop_as: StopAs, case: &str) {
    let failures: Vec<_> = events.iter().filter_map(|event| event.as_ref().err()).collect();
    if stop_as == StopAs::Failure {
        assert_eq!(failures.len(), 1, "{case}");
        assert!(events.last().unwrap().is_err(), "{case}: nothing comes after it");
        assert_eq!(failures[0].reason(), Reason::Safety, "{case}");
        assert_eq!(failures[0].retry(), Retry::Forbidden, "{case}");
        assert_eq!(failures[0].failover(), Failover::Forbidden, "{case}");
        return;
    }
    assert!(failures.is_empty(), "{case}: {failures:?}");
    let deltas = || events.iter().flatten().flat_map(|event| &event.deltas);
    let text: String = deltas()
        .filter_map(|delta| match delta {
            Delta::Text { text, .. } => Some(text.as_str()),
            _ => None,
        })
        .collect();
    assert_eq!(text.matches("Safety limit reached").count(), 1, "{case}: {text}");
    assert_eq!(deltas().filter(|delta| matches!(delta, Delta::End)).count(), 1, "{case}");
}

/// Every stop ends its request: no layer retries, continues or fails over, no target is blamed, and the
/// next request is served.
#[tokio::test(start_paused = true)]
async fn a_stop_is_final_in_the_whole_stack() {
    let sentence = "I will now look at the file again. ";
    let repeats = || {
        let mut all = vec![start()];
        all.extend((0..20).map(|_| text(0, sentence)));
        all.push(Delta::BlockEnd { index: 0 });
        all.extend(end(StopReason::EndTurn));
        all
    };
    let three =
        || (0..3).map(|at| tool_run("delete_file", &format!(r#"{{"path":"{at}"}}"#), "it is gone"));
    let at_its_limit = || request(&one_by_one(three()));
    let call = || calling(&[("delete_file", "{}")]);
    for (what, sent, events, times) in [
        ("refused", too_many(), Vec::new(), 0),
        ("after content", ChatRequest::user("hi"), repeats(), 1),
        ("before content", at_its_limit(), call(), 1),
    ] {
        for stop_as in [StopAs::Failure, StopAs::Answer] {
            for (worst, stream) in [(false, true), (false, false), (true, true), (true, false)] {
                let case = format!("{what}, {stop_as:?}, worst: {worst}, stream: {stream}");
                let mut policy = GuardPolicy::default();
                policy.stop_as = stop_as;
                let guard = SafetyGuardHandle::new(policy).unwrap();
                let mut model = Model { whole: !stream, ..Model::default() };
                // More answers than any layer might ask for.
                for _ in 0..40 {
                    model = model.answers_with(events.clone());
                }
                let llm = stack(&guard, &model, worst);
                let log = RecoveryLog::enabled();
                let context = CallContext::new().with_task(TASK).with_log(log.clone());
                let mut request = sent.clone().with_context(context);
                request.stream = stream;
                let before = tokio::time::Instant::now();
                let answer = llm.clone().oneshot(request).await;
                assert_eq!(before.elapsed(), Duration::ZERO, "{case}: no wait");
                assert_eq!(model.calls(), times, "{case}: no further attempt");
                assert_eq!(guard.stops(), 1, "{case}");
                let events = match answer {
                    Ok(events) => events,
                    Err(failure) => vec![Err(failure)],
                };
                assert_stopped(&events, stop_as, &case);
                let steps: Vec<_> =
                    log.steps().iter().map(|step| (step.layer, step.action)).collect();
                let others: Vec<_> = steps
                    .iter()
                    .filter(|(layer, _)| ["retry", "recover", "breaker"].contains(layer))
                    // The log shows that a stop is not resumed.
                    .filter(|step| **step != ("recover", "not_resumed"))
                    .collect();
                assert!(others.is_empty(), "{case}: {steps:?}");
                // No target is cooling, no circuit is open.
                model.answers.lock().clear();
                for _ in 0..3 {
                    let mut next = ChatRequest::user("and now?");
                    next.stream = stream;
                    let events = llm.clone().oneshot(next).await.unwrap();
                    assert!(events.iter().all(Result::is_ok), "{case}: {events:?}");
                    let target = model.last().context.target.unwrap();
                    assert_eq!(target.provider(), "one", "{case}");
                }
                assert_eq!(model.calls(), times + 3, "{case}");
            }
        }
    }
}
