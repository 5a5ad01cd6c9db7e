//! The stack with a person at its end.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::{sync::Arc, time::Duration};

use parking_lot::Mutex;
use steadfast::{
    ChatRequest, ChatResponse, Delta, Dialect, Event, EventStream, Failure, Head, Reason, Retry,
    Stack, StopReason, Target,
    escalate::{EscalationDecision, EscalationLayer, EscalationPolicy, HeldRequest},
    failover::Chain,
    guard::{GuardPolicy, SafetyGuardLayer},
};
use tokio::time::Instant;
use tower::{ServiceExt, service_fn, util::BoxCloneSyncService};

/// Refuses the keys of all providers but those that are alive, and notes who is asked.
fn client(alive: &'static [&'static str]) -> (steadfast::ChatService, Arc<Mutex<Vec<String>>>) {
    let asked = Arc::<Mutex<Vec<String>>>::default();
    let seen = asked.clone();
    let service = service_fn(move |request: ChatRequest| {
        let provider = request.context.target.unwrap().provider().to_owned();
        seen.lock().push(provider.clone());
        async move {
            if !alive.contains(&&*provider) {
                return Err(Failure::new(Reason::Auth, "refused"));
            }
            let text = Delta::Text { index: 0, text: provider };
            let end = [text, Delta::Stop(StopReason::EndTurn.into()), Delta::End];
            let events = Box::pin(tokio_stream::iter([Ok(Event::new(end))])) as EventStream;
            Ok(ChatResponse::new(Head::new(Dialect::OpenAi), events))
        }
    });
    (BoxCloneSyncService::new(service), asked)
}

fn stack() -> Stack {
    Stack::new(Chain::new(["a", "b", "c"]).unwrap())
}

#[tokio::test(start_paused = true)]
async fn by_default_nobody_is_asked() {
    let (client, _) = client(&[]);
    let stack = stack();
    let start = Instant::now();
    let failure = stack.boxed(client).oneshot(ChatRequest::user("hi")).await.unwrap_err();
    assert_eq!(failure.outward_reason(), Reason::Exhausted);
    assert_eq!((start.elapsed(), stack.handles().escalation.snapshot().total), (Duration::ZERO, 0));
}

/// Chooses the second target each time, whose key was refused, so that it rests.
async fn choose_b(held: Arc<HeldRequest>) -> Option<EscalationDecision> {
    assert_eq!(held.targets.len(), 3);
    Some(EscalationDecision::TryTarget(Target::new("b")))
}

fn asking() -> EscalationLayer {
    EscalationLayer::new(EscalationPolicy::default()).unwrap().with_operator(choose_b)
}

#[tokio::test(start_paused = true)]
async fn a_person_is_asked_when_all_have_failed() {
    let (client, asked) = client(&[]);
    let stack = stack().with_escalation(asking());
    let handles = stack.handles();
    let request = ChatRequest::user("hi");
    let log = request.context.log.clone();
    let failure = stack.boxed(client).oneshot(request).await.unwrap_err();
    assert_eq!(asked.lock().join(" "), "a b c b b b", "three rounds, of what was chosen alone");
    assert_eq!((failure.attempts(), handles.escalation.snapshot().total), (6, 1));
    let log = log.to_string();
    assert_eq!(log.matches("escalate.decided b try_target").count(), 3, "{log}");
    assert!(log.ends_with("escalate.failed"), "{log}");
}

#[tokio::test(start_paused = true)]
async fn the_guard_checks_what_a_person_tries_and_its_stop_is_final() {
    let (client, asked) = client(&[]);
    let mut policy = GuardPolicy::default();
    policy.named.time = Some(Duration::from_secs(90));
    let guard = SafetyGuardLayer::new(policy).unwrap();
    let slow = EscalationLayer::new(EscalationPolicy::default()).unwrap();
    let slow = slow.with_operator(async |held: Arc<HeldRequest>| {
        tokio::time::sleep(Duration::from_secs(60)).await;
        choose_b(held).await
    });
    let stack = stack().with_guard(guard).with_escalation(slow);
    let handles = stack.handles();
    let mut request = ChatRequest::user("hi");
    request.context = request.context.with_task("t");
    let failure = stack.boxed(client).oneshot(request).await.unwrap_err();
    assert_eq!((failure.reason(), failure.retry()), (Reason::Safety, Retry::Forbidden));
    assert_eq!(asked.lock().join(" "), "a b c b", "the second decision comes after 120 s");
    assert_eq!(handles.escalation.snapshot().held, 0);
}

#[tokio::test(start_paused = true)]
async fn a_stack_with_new_settings_goes_on_with_what_is_held() {
    let policy = EscalationPolicy::default();
    let old = stack().with_escalation(EscalationLayer::new(policy).unwrap());
    let handles = old.handles();
    let new = stack().with_escalation(EscalationLayer::new(policy).unwrap()).sharing(&handles);
    let (client, _) = client(&[]);
    let call = tokio::spawn(old.boxed(client).oneshot(ChatRequest::user("hi")));
    tokio::time::sleep(Duration::from_millis(10)).await;
    let held = new.handles().escalation.held().remove(0);
    new.handles().escalation.decide(held.id, EscalationDecision::Refuse).unwrap();
    assert!(call.await.unwrap().is_err());
}
