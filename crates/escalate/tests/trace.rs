//! What is reported.
#![allow(clippy::unwrap_used, reason = "tests")]

mod support;

use std::{sync::Arc, time::Duration};

use steadfast_core::{Deadline, Reason, RecoveryLog, Target};
use steadfast_escalate::{EscalationDecision, HeldRequest};
use steadfast_testkit::CapturedEvents;
use support::*;

type Decided = Option<EscalationDecision>;

#[tokio::test(start_paused = true)]
async fn each_action_is_an_event_and_a_step() {
    let captured = CapturedEvents::default();
    let _guard = tracing::subscriber::set_default(captured.clone());
    let layer = with(|policy| policy.max_rounds = 1).with_reset(|_| true);
    let handle = layer.handle();
    let mut logs = Vec::new();
    for decision in [
        Some(EscalationDecision::ResetCooldown("a".into())),
        Some(EscalationDecision::Answer("by me".into())),
        None,
    ] {
        let model = Model::failing(usize::MAX);
        let request = hello();
        logs.push(request.context.log.clone());
        let call = model.call(&layer, request).await;
        if let Some(decision) = decision {
            handle.decide(only(&handle).id, decision).unwrap();
        }
        let _ = call.await.unwrap();
    }
    let mut late = hello();
    late.context.deadline = Some(Deadline::after(Duration::ZERO));
    logs.push(late.context.log.clone());
    let model = Model::failing(1);
    let _ = model.call(&layer, late).await.await.unwrap().unwrap_err();
    let _ = model.call(&layer, hello()).await.await.unwrap().unwrap();
    let model = Model::failing(1);
    model.call(&layer, hello()).await.abort();
    passes(Duration::from_millis(50)).await;

    let names = |line: &String| {
        let name = line.split(' ').next().unwrap();
        name.trim_start_matches("steadfast::escalate::").to_owned()
    };
    let all = captured.take();
    let found: Vec<_> = all.iter().filter(|line| line.contains("escalate")).map(names).collect();
    let expected =
        "held decided reset failed held decided answered held expired overflow held left";
    assert_eq!(found.join(" "), expected, "{all:#?}");
    assert!(all.iter().all(|line| !line.contains("rosebud")), "no prompt");
    let held = all.iter().find(|line| line.contains("::held")).unwrap();
    for field in ["round=1", "model=\"big-model\"", "reason=\"exhausted\"", "soonest_ms=20000"] {
        assert!(held.contains(field), "{field} in {held}");
    }
    let logs: Vec<_> = logs.iter().map(|log: &RecoveryLog| steps(log).join(", ")).collect();
    let expected = [
        "held exhausted, decided a reset_cooldown, reset a, failed",
        "held exhausted, answered by hand",
        "held exhausted, expired",
        "overflow deadline",
    ];
    assert_eq!(logs, expected);
}

#[tokio::test(start_paused = true)]
async fn an_operator_that_fails_is_reported_and_the_request_stays_held() {
    let captured = CapturedEvents::default();
    let _guard = tracing::subscriber::set_default(captured.clone());
    let wrong = async |_: Arc<HeldRequest>| Some(EscalationDecision::TryTarget(Target::new("z")));
    let panics = async |held: Arc<HeldRequest>| -> Decided { panic!("round {}", held.round) };
    #[expect(clippy::unimplemented, reason = "it panics before there is a future")]
    fn at_once(_: Arc<HeldRequest>) -> std::future::Ready<Decided> {
        unimplemented!("at once")
    }
    let cases = [
        (on().with_operator(wrong), "is no target of this request"),
        (on().with_operator(panics), "it panicked: round 1"),
        (on().with_operator(at_once), "at once"),
    ];
    for (layer, error) in cases {
        let model = Model::failing(1);
        let call = model.call(&layer, hello()).await;
        assert_eq!(layer.handle().snapshot().waiting, 1, "{error}");
        let lines = captured.take();
        let line = lines.iter().find(|line| line.contains("operator_failed")).unwrap();
        assert!(line.contains(error), "{line}");
        let failure = call.await.unwrap().unwrap_err();
        assert_eq!(failure.reason(), Reason::Exhausted, "when its time is up");
    }
}
