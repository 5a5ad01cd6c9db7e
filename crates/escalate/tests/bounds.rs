//! What is not held, and how long the rest is.
#![allow(clippy::unwrap_used, reason = "tests")]

mod support;

use std::{error::Error, sync::atomic::Ordering, time::Duration};

use steadfast_core::{
    CallSpend, Deadline, Failure, Priority, Reason, Spend, SpendAccount, SpendCaps, SpendLedger,
};
use steadfast_escalate::{DecideError, EscalationDecision, EscalationEvent};
use steadfast_timeout::DeadlineLayer;
use support::*;
use tokio::time::Instant;
use tower::{ServiceBuilder, ServiceExt};

#[tokio::test(start_paused = true)]
async fn nobody_decides_and_the_caller_gets_the_same_failure_when_the_time_is_up() {
    let layer = on();
    let model = Model::new(|_, _| Err(exhausted().with_source(Failure::new(Reason::Network, "x"))));
    let start = Instant::now();
    let call = model.call(&layer, hello()).await;
    let id = only(&layer.handle()).id;
    let log = model.request(0).context.log;
    let failure = call.await.unwrap().unwrap_err();
    let took = start.elapsed();
    assert!((HOLD..HOLD + Duration::from_millis(50)).contains(&took), "{took:?}");
    let bare = exhausted();
    assert_eq!(failure.to_string(), bare.to_string());
    assert_eq!((failure.attempts(), failure.retry_after()), (bare.attempts(), bare.retry_after()));
    assert_eq!((failure.retry(), failure.http_status()), (bare.retry(), bare.http_status()));
    assert_eq!(failure.trail().len(), bare.trail().len());
    assert!(failure.source().is_some(), "even its source");
    assert_eq!(steps(&log), ["held exhausted", "expired"]);
    assert_eq!(model.calls(), 1);
    let snapshot = layer.handle().snapshot();
    assert_eq!((snapshot.expired, snapshot.held, snapshot.left), (1, 0, 0));
    let late = layer.handle().decide(id, EscalationDecision::TryAgain);
    assert_eq!(late, Err(DecideError::Over(id)));
}

#[tokio::test(start_paused = true)]
async fn a_hold_ends_a_second_before_the_deadline() {
    for (deadline, held) in
        [(120, Some(119)), (1_000, Some(300)), (2, Some(1)), (1, None), (0, None)]
    {
        let (layer, model) = (on(), Model::failing(9));
        let mut request = hello();
        let start = Instant::now();
        request.context.deadline = Some(Deadline::after(Duration::from_secs(deadline)));
        let call = model.call(&layer, request).await;
        let failure = call.await.unwrap().unwrap_err();
        assert_eq!(failure.reason(), Reason::Exhausted);
        let took = start.elapsed().as_secs();
        assert_eq!(took, held.unwrap_or(0), "a deadline of {deadline} s");
        let snapshot = layer.handle().snapshot();
        assert_eq!(snapshot.total, u64::from(held.is_some()));
        assert_eq!(snapshot.overflowed, u64::from(held.is_none()));
    }
}

#[tokio::test(start_paused = true)]
async fn inside_a_deadline_the_caller_gets_the_failure_and_not_that_of_the_deadline() {
    let model = Model::failing(9);
    let deadline = DeadlineLayer::after(Duration::from_secs(20)).unwrap();
    let stack = ServiceBuilder::new().layer(deadline).layer(on()).service(model.clone());
    let start = Instant::now();
    let failure = stack.oneshot(hello()).await.unwrap_err();
    assert_eq!((failure.reason(), failure.time_limit()), (Reason::Exhausted, None));
    assert_eq!(start.elapsed().as_secs(), 19);
}

#[tokio::test(start_paused = true)]
async fn a_held_request_keeps_nothing_of_what_its_tenant_may_spend() {
    let (acme, caps) = (SpendAccount::Tenant("acme".into()), SpendCaps::of_tokens(100, 0));
    let tokens = |tokens| Spend::new(tokens, 0);
    let model = Model::new(move |call, request| {
        let attempt = request.context.spend.as_ref().unwrap().attempt(tokens(80), Instant::now());
        match (call, attempt) {
            (0, attempt) => {
                attempt.unwrap().charge(Spend::ZERO, Instant::now());
                Err(exhausted())
            }
            (_, Ok(attempt)) => {
                attempt.charge(tokens(30), Instant::now());
                Ok("an answer")
            }
            (_, Err(_)) => Err(Failure::refused(Reason::SpendCap, "nothing is left")),
        }
    });
    for (others, answered) in [(0, true), (60, false)] {
        let (layer, ledger) = (on(), SpendLedger::default());
        model.requests.lock().clear();
        let mut request = hello();
        let own = [(acme.clone(), caps)];
        let spend = CallSpend::reserve(&ledger, own, tokens(60), Instant::now());
        request.context.spend = spend.ok();
        assert!(request.context.spend.is_some());
        let call = model.call(&layer, request).await;
        assert_eq!(ledger.totals(&acme, Instant::now()).held, Spend::ZERO, "while it is held");
        ledger.charge(&acme, tokens(others), Instant::now());
        layer.handle().decide(only(&layer.handle()).id, EscalationDecision::TryAgain).unwrap();
        let refused = call.await.unwrap().err().map(|failure| failure.reason());
        assert_eq!(refused, (!answered).then_some(Reason::SpendCap));
        let totals = ledger.totals(&acme, Instant::now());
        let spent = if answered { tokens(30) } else { tokens(others) };
        assert_eq!((totals.hour, totals.held), (spent, Spend::ZERO));
    }
}

#[tokio::test(start_paused = true)]
async fn what_no_person_can_change_is_passed_on_at_once() {
    for reason in [
        Reason::Safety,
        Reason::Cancelled,
        Reason::Budget,
        Reason::ContextOverflow,
        Reason::Format,
        Reason::PayloadTooLarge,
        Reason::ContentFilter,
        Reason::Unsupported,
    ] {
        let (layer, model) = (on(), Model::new(move |_, _| Err(Failure::new(reason, ""))));
        let call = model.call(&layer, hello()).await;
        assert!(call.is_finished(), "{reason}");
        assert_eq!(call.await.unwrap().unwrap_err().reason(), reason);
        let snapshot = layer.handle().snapshot();
        assert_eq!((snapshot.total, snapshot.overflowed), (0, 0), "{reason}");
    }
    let (layer, model) = (on(), Model::failing(9));
    let mut title = hello();
    title.context.priority = Priority::Background;
    assert!(model.call(&layer, title).await.is_finished(), "nobody waits for a title");
}

#[tokio::test(start_paused = true)]
async fn no_more_are_held_than_may_be() {
    let layer = with(|policy| (policy.max_held, policy.max_held_bytes) = (3, 100));
    let (handle, model) = (layer.handle(), Model::failing(usize::MAX));
    let sized = |bytes| {
        let mut request = hello();
        request.context.held_bytes = bytes;
        request
    };
    let mut calls = Vec::new();
    for bytes in [40, 50] {
        calls.push(model.call(&layer, sized(bytes)).await);
    }
    let large = model.call(&layer, sized(11)).await;
    assert!(large.is_finished(), "their memory is used up");
    calls.push(model.call(&layer, sized(10)).await);
    let one_more = model.call(&layer, sized(0)).await;
    assert!(one_more.is_finished(), "three are held");
    assert_eq!(one_more.await.unwrap().unwrap_err().to_string(), exhausted().to_string());
    let snapshot = handle.snapshot();
    assert_eq!((snapshot.held, snapshot.held_bytes, snapshot.overflowed), (3, 100, 2));
    assert!(calls.iter().all(|call| !call.is_finished()));
    // One whose attempt is under way counts; one that is over does not.
    handle.decide(handle.held()[0].id, EscalationDecision::TryAgain).unwrap();
    tokio::task::yield_now().await;
    assert_eq!((handle.snapshot().waiting, handle.snapshot().held), (2, 3));
    passes(Duration::from_millis(50)).await;
    handle.decide(handle.held()[0].id, EscalationDecision::Refuse).unwrap();
    passes(Duration::from_millis(50)).await;
    let next = model.call(&layer, sized(10)).await;
    assert!(!next.is_finished(), "there is room again");
}

#[tokio::test(start_paused = true)]
async fn a_caller_that_goes_away_takes_its_request_with_it_at_once() {
    let (layer, model) = (on(), Model::failing(1));
    let handle = layer.handle();
    let mut events = handle.subscribe();
    let call = model.call(&layer, hello()).await;
    let id = only(&handle).id;
    call.abort();
    assert!(call.await.unwrap_err().is_cancelled());
    assert!(handle.held().is_empty());
    assert_eq!(handle.decide(id, EscalationDecision::TryAgain), Err(DecideError::Over(id)));
    assert!(matches!(events.try_recv(), Ok(EscalationEvent::Held(held)) if held.id == id));
    assert!(matches!(events.try_recv(), Ok(EscalationEvent::Left { id: left }) if left == id));
    assert!(events.try_recv().is_err());
    assert_eq!((handle.snapshot().held, handle.snapshot().left), (0, 1));
}

#[tokio::test(start_paused = true)]
async fn a_call_dropped_at_any_point_leaves_nothing() {
    // Polls until the call is over: it fails, is held, is decided, waits for readiness, and is answered.
    let mut most = 0;
    for polls in 0.. {
        let (layer, model) = (on(), Model::failing(2));
        let handle = layer.handle();
        let service = tower::Layer::layer(&layer, model.clone());
        let mut call = tokio_test::task::spawn(tower::ServiceExt::oneshot(service, hello()));
        let mut over = false;
        for _ in 0..polls {
            if call.poll().is_ready() {
                over = true;
                break;
            }
            for held in handle.held() {
                handle.decide(held.id, EscalationDecision::TryAgain).unwrap();
            }
            passes(Duration::from_millis(5)).await;
        }
        drop(call);
        let snapshot = handle.snapshot();
        assert_eq!((snapshot.held, snapshot.held_bytes, snapshot.waiting), (0, 0, 0), "{polls}");
        assert_eq!(model.alive.load(Ordering::Relaxed), 0, "after {polls} polls");
        if over {
            most = polls;
            break;
        }
    }
    assert!(most > 8, "every wait was seen: {most}");
}

#[tokio::test(start_paused = true)]
async fn an_attempt_that_outlasts_the_time_is_still_answered() {
    let layer = with(|policy| policy.hold = Duration::from_secs(1));
    let model = Model::failing(1);
    let call = model.call(&layer, hello()).await;
    passes(Duration::from_millis(945)).await;
    layer.handle().decide(only(&layer.handle()).id, EscalationDecision::TryAgain).unwrap();
    passes(Duration::from_secs(1)).await;
    let _ = call.await.unwrap().unwrap();
    // One that fails then is not held again.
    let model = Model::failing(2);
    let call = model.call(&layer, hello()).await;
    passes(Duration::from_millis(955)).await;
    layer.handle().decide(only(&layer.handle()).id, EscalationDecision::TryAgain).unwrap();
    passes(Duration::from_millis(50)).await;
    let failure = call.await.unwrap().unwrap_err();
    assert_eq!((failure.attempts(), model.calls()), (10, 2));
}
