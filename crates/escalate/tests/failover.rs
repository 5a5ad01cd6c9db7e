//! Around failover: a target that was chosen, a cooldown that was ended, another model.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::{collections::HashSet, sync::Arc, time::Duration};

use futures_util::stream::{Iter, iter};
use parking_lot::Mutex;
use steadfast_chat::{ChatRequest, ChatResponse, Delta, Event, Head, StopReason};
use steadfast_core::{Dialect, Failure, Reason, Target};
use steadfast_escalate::{EscalationDecision, EscalationHandle, EscalationLayer, EscalationPolicy};
use steadfast_failover::{Chain, CooldownFailoverLayer, ModelMap, TargetSpec};
use tower::{ServiceBuilder, ServiceExt, service_fn, util::BoxCloneService};

type Events = Iter<std::vec::IntoIter<Result<Event, Failure>>>;

/// Three providers, of which those in `dead` refuse their key, and what they were asked for.
#[derive(Clone, Default)]
struct Providers {
    dead: Arc<Mutex<HashSet<&'static str>>>,
    asked: Arc<Mutex<Vec<String>>>,
}

impl Providers {
    fn new(dead: impl IntoIterator<Item = &'static str>) -> Self {
        Self { dead: Arc::new(Mutex::new(dead.into_iter().collect())), asked: Arc::default() }
    }

    fn answer(&self, request: &ChatRequest) -> Result<ChatResponse<Events>, Failure> {
        let target = request.context.target.clone().unwrap();
        self.asked.lock().push(target.to_string());
        if self.dead.lock().contains(target.provider()) && target.model() != Some("alive") {
            return Err(Failure::new(Reason::Auth, "a refused key"));
        }
        let events = vec![
            Ok(Event::new([Delta::Text { index: 0, text: target.to_string() }])),
            Ok(Event::new([Delta::Stop(StopReason::EndTurn.into()), Delta::End])),
        ];
        Ok(ChatResponse::new(Head::new(Dialect::OpenAi), iter(events)))
    }

    fn asked(&self) -> String {
        std::mem::take(&mut *self.asked.lock()).join(" ")
    }
}

type Stack = BoxCloneService<ChatRequest, ChatResponse, Failure>;

fn stack(providers: &Providers) -> (Stack, EscalationHandle) {
    let mut spec = TargetSpec::new("b");
    spec.models = ModelMap::new([("big", "b-big")]);
    let chain = Chain::new([TargetSpec::new("a"), spec, TargetSpec::new("c")]).unwrap();
    let failover = CooldownFailoverLayer::new(chain);
    let health = failover.handle();
    let layer = EscalationLayer::new(EscalationPolicy::default()).unwrap();
    let layer = layer.with_reset(move |target| health.reset(target));
    let (handle, providers) = (layer.handle(), providers.clone());
    let inner = service_fn(move |request: ChatRequest| {
        let answer = providers.answer(&request);
        async move { answer }
    });
    let stack = ServiceBuilder::new().layer(layer).layer(failover).service(inner);
    (BoxCloneService::new(stack.map_response(ChatResponse::boxed)), handle)
}

async fn decide(
    stack: &Stack,
    handle: &EscalationHandle,
    decision: EscalationDecision,
) -> Result<String, Failure> {
    let call = tokio::spawn(stack.clone().oneshot(ChatRequest::user("hi").with_model("big")));
    while handle.held().is_empty() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    handle.decide(handle.held()[0].id, decision).unwrap();
    let answer = call.await.unwrap()?;
    Ok(answer.collect().await?.text())
}

#[tokio::test(start_paused = true)]
async fn a_target_that_rests_is_asked_when_a_person_chooses_it() {
    let providers = Providers::new(["a", "b", "c"]);
    let (stack, handle) = stack(&providers);
    let call = tokio::spawn(stack.clone().oneshot(ChatRequest::user("hi").with_model("big")));
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(providers.asked(), "a/big b/b-big c/big");
    let held = handle.held().remove(0);
    let waits: Vec<_> = held
        .targets
        .iter()
        .map(|target| (target.target.to_string(), target.wait_at(held.since)))
        .collect();
    let ten_minutes = Some(Duration::from_secs(600));
    let expected = ["a/big", "b/b-big", "c/big"].map(|name| (name.to_owned(), ten_minutes));
    assert_eq!(waits, expected, "a refused key rests for ten minutes");
    // Another one in the meantime is refused unasked, and held too.
    let other = tokio::spawn(stack.clone().oneshot(ChatRequest::user("hi").with_model("big")));
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!((providers.asked().as_str(), handle.held().len()), ("", 2));
    // The key of b has been renewed, and nobody has reset it.
    providers.dead.lock().remove("b");
    handle.decide(held.id, EscalationDecision::TryTarget(Target::new("b"))).unwrap();
    let answer = call.await.unwrap().unwrap().collect().await.unwrap();
    assert_eq!((answer.text().as_str(), providers.asked().as_str()), ("b/b-big", "b/b-big"));
    let log = answer.head.log.to_string();
    assert!(log.contains("escalate.decided b try_target"), "{log}");
    assert_eq!(answer.head.log.attempts(), 0, "no client counts here");
    other.abort();
}

#[tokio::test(start_paused = true)]
async fn a_chosen_target_that_fails_brings_no_other_into_play() {
    let providers = Providers::new(["a", "b", "c"]);
    let (stack, handle) = stack(&providers);
    let call = tokio::spawn(stack.clone().oneshot(ChatRequest::user("hi").with_model("big")));
    tokio::time::sleep(Duration::from_millis(100)).await;
    providers.asked();
    for round in 1..=3 {
        let held = handle.held().remove(0);
        assert_eq!((held.round, held.targets.len()), (round, 3), "all are still there to choose");
        handle.decide(held.id, EscalationDecision::TryTarget(Target::new("c"))).unwrap();
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert_eq!(providers.asked(), "c/big");
    }
    let failure = call.await.unwrap().unwrap_err();
    assert_eq!((failure.reason(), failure.attempts()), (Reason::Auth, 6));
    assert_eq!(failure.trail().len(), 6);
    assert_eq!(
        failure.outward_reason(),
        Reason::Exhausted,
        "the operator's key is no affair of callers"
    );
}

#[tokio::test(start_paused = true)]
async fn a_cooldown_that_is_ended_is_ended_for_all() {
    let providers = Providers::new(["a", "b", "c"]);
    let (stack, handle) = stack(&providers);
    let call = tokio::spawn(stack.clone().oneshot(ChatRequest::user("hi").with_model("big")));
    tokio::time::sleep(Duration::from_millis(100)).await;
    call.abort();
    assert!(call.await.unwrap_err().is_cancelled());
    providers.dead.lock().clear();
    providers.asked();
    let answer = decide(&stack, &handle, EscalationDecision::ResetCooldown(Target::new("a"))).await;
    assert_eq!((answer.unwrap().as_str(), providers.asked().as_str()), ("a/big", "a/big"));
    let answer = stack.oneshot(ChatRequest::user("hi").with_model("big")).await.unwrap();
    assert_eq!(answer.collect().await.unwrap().text(), "a/big", "nobody is asked about it");
}

#[tokio::test(start_paused = true)]
async fn another_model_is_asked_for() {
    let providers = Providers::new(["a", "b", "c"]);
    let (stack, handle) = stack(&providers);
    let answer = decide(&stack, &handle, EscalationDecision::TryModel("alive".into())).await;
    // Their keys rest, for that model too.
    let failure = answer.unwrap_err();
    assert_eq!(failure.attempts(), 3);
}
