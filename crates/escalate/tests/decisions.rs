//! What a person sees, what can be decided, and what the caller then gets.
#![allow(clippy::unwrap_used, reason = "tests")]

mod support;

use std::{num::NonZeroU32, time::Duration};

use steadfast_chat::{ChatRequest, Delta};
use steadfast_core::{CallContext, Preference, Reason, Retry, Target, Usage};
use steadfast_escalate::{DecideError, EscalationDecision, EscalationId};
use support::*;
use tokio::time::Instant;

#[tokio::test(start_paused = true)]
async fn a_person_sees_the_chain_and_what_each_wait_would_cost_and_no_prompt() {
    let (layer, model) = (on(), Model::failing(1));
    let handle = layer.handle();
    let mut request = hello().streaming();
    request.context = CallContext::recording()
        .with_tenant("acme")
        .with_agent("clerk")
        .with_task("t")
        .with_session("s");
    let start = Instant::now();
    let call = model.call(&layer, request).await;
    let held = only(&handle);
    assert_eq!(handle.get(held.id).unwrap().id, held.id);
    let who = [&held.tenant, &held.agent, &held.task, &held.session].map(Option::as_deref);
    assert_eq!(who, [Some("acme"), Some("clerk"), Some("t"), Some("s")]);
    assert_eq!((held.round, held.attempts, held.stream), (1, 5, true));
    assert_eq!((held.model.as_str(), held.reason), ("big-model", Reason::Exhausted));
    assert_eq!(held.until - held.since, HOLD);
    let chain: Vec<_> = held.chain.iter().map(ToString::to_string).collect();
    assert_eq!(chain, ["a/m: overloaded", "b/m: network", "c: skipped, auth"]);
    assert_eq!(&*held.chain[0].message, "a failed");
    let waits = |target: &steadfast_escalate::HeldTarget| {
        (target.target.to_string(), target.tried, target.wait_at(held.since))
    };
    let secs = |secs| Some(Duration::from_secs(secs));
    let expected =
        [("a/m".into(), 1, secs(20)), ("b/m".into(), 1, secs(30)), ("c".into(), 0, None)];
    assert_eq!(held.targets.iter().map(waits).collect::<Vec<_>>(), expected);
    assert_eq!(held.soonest, Some(held.since + Duration::from_secs(20)));
    assert!(held.since - start < Duration::from_secs(1));
    assert!(!held.can_reset && held.prompt.is_none());
    assert!(!format!("{held:?}").contains("rosebud"), "prompts are private");
    call.abort();
}

#[tokio::test(start_paused = true)]
async fn the_prompt_is_shown_where_the_policy_says_so() {
    let layer = with(|policy| (policy.show_prompt, policy.max_prompt_bytes) = (true, 10));
    let model = Model::failing(1);
    let call = model.call(&layer, hello()).await;
    assert_eq!(only(&layer.handle()).prompt.as_deref(), Some("is rosebud"));
    call.abort();
}

#[tokio::test(start_paused = true)]
async fn try_again_sends_the_same_request_with_the_attempts_so_far() {
    let (layer, model) = (on(), Model::failing(1));
    let mut request = hello();
    request.context.attempts = 1;
    request.context.max_attempts = NonZeroU32::new(6);
    let call = model.call(&layer, request).await;
    assert_eq!(model.alive.load(std::sync::atomic::Ordering::Relaxed), 0, "nothing is under way");
    layer.handle().decide(only(&layer.handle()).id, EscalationDecision::TryAgain).unwrap();
    let answer = call.await.unwrap().unwrap();
    assert_eq!(answer.head.attempts, 7, "one before, five that failed, and this one");
    assert_eq!(steps(&answer.head.log), ["held exhausted", "decided try_again"]);
    assert_eq!(answer.collect().await.unwrap().text(), "an answer");
    let (first, second) = (model.request(0), model.request(1));
    assert!(second.messages.same(&first.messages) && second.context.preference.is_none());
    assert_eq!(second.context.attempts, 6);
    assert_eq!(second.context.attempts_left(), 5, "as many as it came with");
    let snapshot = layer.handle().snapshot();
    assert_eq!((snapshot.held, snapshot.total, snapshot.recovered), (0, 1, 1));
}

#[tokio::test(start_paused = true)]
async fn a_target_or_a_model_is_tried_in_the_next_attempt_alone() {
    let (layer, model) = (on(), Model::failing(3));
    let handle = layer.handle();
    let call = model.call(&layer, hello()).await;
    let id = only(&handle).id;
    let target = Target::new("b");
    handle.decide(id, EscalationDecision::TryTarget(target.clone())).unwrap();
    passes(Duration::from_millis(50)).await;
    handle.decide(id, EscalationDecision::TryModel("small-model".into())).unwrap();
    passes(Duration::from_millis(50)).await;
    handle.decide(id, EscalationDecision::TryAgain).unwrap();
    let answer = call.await.unwrap().unwrap();
    assert_eq!(
        steps(&answer.head.log),
        [
            "held exhausted",
            "decided b try_target",
            "held exhausted",
            "decided try_model",
            "held exhausted",
            "decided try_again"
        ]
    );
    let seen = |call| {
        let request = model.request(call);
        (request.model.to_string(), request.context.preference.map(|it| (*it).clone()))
    };
    assert_eq!(seen(1), ("big-model".into(), Some(Preference::Only(target))));
    assert_eq!(seen(2), ("small-model".into(), None));
    assert_eq!(seen(3), ("big-model".into(), None));
}

#[tokio::test(start_paused = true)]
async fn an_answer_by_hand_is_a_regular_answer() {
    for stream in [false, true] {
        let (layer, model) = (on(), Model::failing(1));
        let mut request = hello();
        request.stream = stream;
        let call = model.call(&layer, request).await;
        let text = "We call you back.".to_owned();
        let id = only(&layer.handle()).id;
        layer.handle().decide(id, EscalationDecision::Answer(text.clone())).unwrap();
        let answer = call.await.unwrap().unwrap();
        assert_eq!((answer.head.stream, answer.head.attempts), (stream, 5));
        assert_eq!(steps(answer.recovery()), ["held exhausted", "answered by hand"]);
        let (head, events) = answer.into_parts();
        let events: Vec<_> = futures_util::StreamExt::collect(events).await;
        let events: Vec<_> = events.into_iter().map(Result::unwrap).collect();
        assert_eq!(events.len(), if stream { 6 } else { 1 }, "a whole answer is one event");
        assert!(events.last().unwrap().is_end(), "it ends properly");
        let mut completion = steadfast_chat::Completion::new(head);
        events.iter().for_each(|event| completion.push(event));
        assert_eq!((completion.text(), completion.usage), (text, Usage::new(0, 0)));
        assert_eq!(completion.model.as_deref(), Some("big-model"));
        assert_eq!(model.calls(), 1, "no provider is called for it");
        let starts = |delta: &Delta| matches!(delta, Delta::Start { .. });
        assert!(events[0].deltas.iter().any(starts));
    }
}

#[tokio::test(start_paused = true)]
async fn a_refusal_is_the_failure_at_once_and_final_for_clients() {
    let (layer, model) = (on(), Model::new(|_, _| Err(exhausted().with_retry(Retry::Yes))));
    let call = model.call(&layer, hello()).await;
    let start = Instant::now();
    layer.handle().decide(only(&layer.handle()).id, EscalationDecision::Refuse).unwrap();
    let failure = call.await.unwrap().unwrap_err();
    assert_eq!(start.elapsed(), Duration::ZERO);
    assert_eq!((failure.reason(), failure.attempts()), (Reason::Exhausted, 5));
    assert_eq!((failure.trail().len(), failure.retry()), (3, Retry::No));
    assert_eq!(model.calls(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_decision_that_is_not_possible_leaves_the_request_held() {
    let (layer, model) = (on(), Model::failing(1));
    let handle = layer.handle();
    let call = model.call(&layer, hello()).await;
    let id = only(&handle).id;
    let other: EscalationId = "00000000-1".parse().unwrap();
    let text = id.to_string();
    let (instance, number) = text.split_once('-').unwrap();
    let later: EscalationId =
        format!("{instance}-{}", number.parse::<u64>().unwrap() + 1).parse().unwrap();
    let try_target = |target: Target| EscalationDecision::TryTarget(target);
    let (z, a) = (Target::new("z"), Target::new("a"));
    for (id, decision, error) in [
        (other, EscalationDecision::TryAgain, DecideError::Unknown(other)),
        (later, EscalationDecision::TryAgain, DecideError::Unknown(later)),
        (id, try_target(z.clone()), DecideError::UnknownTarget(z)),
        (id, try_target(a.with_model("n")), DecideError::UnknownTarget(a.with_model("n"))),
        (id, EscalationDecision::ResetCooldown(a.clone()), DecideError::CanNotReset(a.clone())),
        (id, EscalationDecision::TryModel("".into()), DecideError::InvalidModel),
        (id, EscalationDecision::Answer(String::new()), DecideError::InvalidAnswer),
    ] {
        assert_eq!(handle.decide(id, decision.clone()), Err(error), "{decision:?}");
        assert_eq!(handle.held().len(), 1);
    }
    // The first who decides has decided.
    handle.decide(id, try_target(a)).unwrap();
    assert_eq!(handle.decide(id, EscalationDecision::Refuse), Err(DecideError::AlreadyDecided(id)));
    assert!(handle.held().is_empty() && handle.get(id).is_none());
    assert_eq!(handle.snapshot().held, 1, "its attempt is under way");
    let _ = call.await.unwrap().unwrap();
    assert_eq!(handle.decide(id, EscalationDecision::Refuse), Err(DecideError::Over(id)));
}

#[tokio::test(start_paused = true)]
async fn a_cooldown_is_ended_by_the_closure_before_the_next_attempt() {
    let resets = std::sync::Arc::new(parking_lot::Mutex::new(Vec::new()));
    let seen = resets.clone();
    let model = Model::failing(2);
    let calls = model.clone();
    let layer = on().with_reset(move |target| {
        seen.lock().push((target.to_string(), calls.calls()));
        assert_ne!(target.provider(), "b", "it panics, and the call goes on");
        true
    });
    let handle = layer.handle();
    let call = model.call(&layer, hello()).await;
    assert!(only(&handle).can_reset);
    for provider in ["b", "a"] {
        let target = Target::new(provider);
        handle.decide(only(&handle).id, EscalationDecision::ResetCooldown(target)).unwrap();
        passes(Duration::from_millis(50)).await;
    }
    let answer = call.await.unwrap().unwrap();
    assert_eq!(*resets.lock(), [("b".into(), 1), ("a".into(), 2)]);
    assert!(steps(answer.recovery()).contains(&"reset a".into()));
}

#[tokio::test(start_paused = true)]
async fn an_attempt_that_fails_is_held_again_with_the_whole_chain() {
    let (layer, model) = (on(), Model::failing(9));
    let handle = layer.handle();
    let call = model.call(&layer, ChatRequest::user("hi")).await;
    let first = only(&handle);
    passes(Duration::from_secs(15)).await;
    handle.decide(first.id, EscalationDecision::TryAgain).unwrap();
    passes(Duration::from_millis(50)).await;
    let second = only(&handle);
    assert_eq!((second.id, second.round, second.attempts), (first.id, 2, 10));
    assert_eq!((second.since, second.until), (first.since, first.until), "within the same time");
    assert_eq!((second.chain.len(), second.targets.len()), (6, 3));
    assert_eq!(second.targets[0].tried, 2);
    assert_eq!(second.chain[0].retry_after.map(|wait| wait.as_secs()), Some(4), "of 20 s, 15 ago");
    for _ in 0..2 {
        handle.decide(first.id, EscalationDecision::TryAgain).unwrap();
        passes(Duration::from_millis(50)).await;
    }
    let failure = call.await.unwrap().unwrap_err();
    assert_eq!((failure.attempts(), failure.trail().len()), (20, 12));
    assert_eq!(model.calls(), 4, "three rounds");
    let snapshot = handle.snapshot();
    assert_eq!((snapshot.held, snapshot.total, snapshot.expired), (0, 1, 0));
}

#[tokio::test(start_paused = true)]
async fn what_a_chosen_model_holds_against_the_request_is_held_again() {
    let model = Model::new(|call, _| match call {
        0 => Err(exhausted()),
        1 => Err(steadfast_core::Failure::new(Reason::ContextOverflow, "too long: rosebud")),
        _ => Ok("an answer"),
    });
    let layer = on();
    let handle = layer.handle();
    let call = model.call(&layer, hello()).await;
    let id = only(&handle).id;
    handle.decide(id, EscalationDecision::TryModel("tiny".into())).unwrap();
    passes(Duration::from_millis(50)).await;
    let held = only(&handle);
    assert_eq!((held.round, held.reason), (2, Reason::ContextOverflow));
    assert!(!format!("{held:?}").contains("rosebud"), "it may quote the prompt");
    handle.decide(id, EscalationDecision::TryAgain).unwrap();
    let _ = call.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_stop_of_the_guard_after_a_decision_is_final() {
    let model = Model::new(|call, _| match call {
        0 => Err(exhausted()),
        _ => Err(steadfast_core::Failure::new(Reason::Safety, "loop")),
    });
    let layer = on();
    let call = model.call(&layer, hello()).await;
    layer.handle().decide(only(&layer.handle()).id, EscalationDecision::TryAgain).unwrap();
    let failure = call.await.unwrap().unwrap_err();
    assert_eq!((failure.reason(), failure.retry()), (Reason::Safety, Retry::Forbidden));
}
