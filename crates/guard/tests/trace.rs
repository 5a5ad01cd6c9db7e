//! What is traced. Alone in its file: a callsite that another test reaches first, without a
//! subscriber, may stay disabled.
#![allow(clippy::unwrap_used, reason = "tests")]

mod support;

use std::time::Duration;

use steadfast_core::{CallContext, RecoveryLog};
use steadfast_guard::{GuardPolicy, SafetyGuardHandle};
use steadfast_testkit::CapturedEvents;
use support::*;
use tower::{Layer, ServiceExt};

#[tokio::test(start_paused = true)]
async fn every_action_is_traced_once_by_its_name() {
    let captured = CapturedEvents::default();
    let _guard = tracing::subscriber::set_default(captured.clone());
    let guard = SafetyGuardHandle::new(GuardPolicy::default()).unwrap();
    let same = tool_run("read_file", r#"{"path":"a"}"#, "unchanged");
    let log = RecoveryLog::enabled();
    let ask = |times| {
        let context = CallContext::new().with_tenant("acme").with_task(TASK).with_log(log.clone());
        request(&one_by_one(vec![same.clone(); times])).with_context(context)
    };
    let repeated: Vec<_> = (0..20).map(|_| text(0, "Let me look at it once more. ")).collect();
    let model = Model::default().answers_with(text_answer("fine")).answers_with(repeated);
    let llm = guard.layer().layer(model);
    for times in [2, 3] {
        let answer = llm.clone().oneshot(ask(times)).await.unwrap().collect().await;
        assert_eq!(answer.is_ok(), times == 2, "the second answer repeats itself");
    }
    tokio::time::advance(Duration::from_millis(1_500)).await;
    assert!(llm.clone().oneshot(ask(5)).await.is_err());
    assert!(guard.extend(("acme", TASK)));
    let lines = captured.take();
    let wanted = [
        "steadfast::guard::advised tenant=\"acme\" task=\"task\" about=\"same_result\" count=3",
        "steadfast::guard::stopped tenant=\"acme\" task=\"task\" cause=\"repeated_text\" events=10 \
         calls=3 elapsed_ms=0 inside=true",
        "steadfast::guard::stopped tenant=\"acme\" task=\"task\" cause=\"same_result\" events=15 \
         calls=5 elapsed_ms=1500 inside=false",
        "steadfast::guard::extended tenant=\"acme\" task=\"task\" events=15 calls=5",
    ];
    assert_eq!(lines, wanted);
    let steps: Vec<_> = log.steps().iter().map(|step| (step.layer, step.action)).collect();
    assert_eq!(steps, [("guard", "advised"), ("guard", "stopped"), ("guard", "stopped")]);
}
