//! The state of a stack outlives it.
#![cfg(feature = "stack")]
#![allow(clippy::unwrap_used, reason = "tests")]

use steadfast::{
    CallContext, ChatRequest, ChatResponse, Failure, Reason, RetryBudget, Stack, failover::Chain,
    retry::RetryBackoffLayer,
};
use tower::{ServiceExt, service_fn};

async fn fails(_: ChatRequest) -> Result<ChatResponse, Failure> {
    Err(Failure::new(Reason::ServerError, "down"))
}

fn stack(names: &[&str]) -> Stack {
    Stack::new(Chain::new(names.iter().copied()).unwrap())
}

#[tokio::test(start_paused = true)]
async fn a_new_stack_knows_what_the_old_one_knew() {
    let old = stack(&["a", "b"]).with_budget(RetryBudget::default());
    let ask = |stack: &Stack| {
        let context = CallContext::recording().with_session("s");
        let request = ChatRequest::user("hi").with_model("m").with_context(context);
        stack.boxed(service_fn(fails)).oneshot(request)
    };
    let _failed = ask(&old).await.unwrap_err();
    let seen = |stack: &Stack| {
        let handles = stack.handles();
        let retry = handles.retry.snapshot();
        let mut health: Vec<_> = handles
            .failover
            .snapshot()
            .targets()
            .iter()
            .map(|one| (one.target.to_string(), one.errors, one.consecutive))
            .collect();
        health.sort();
        (retry.calls, retry.retries, retry.budget, handles.breaker.snapshot().len(), health)
    };
    let before = seen(&old);
    assert!(before.2 < Some(500) && before.3 > 0 && before.4.iter().any(|one| one.1 > 0));

    let new = stack(&["b", "c"])
        .with_retry(RetryBackoffLayer::in_stack().with_retries(7))
        .sharing(&old.handles());
    assert_eq!(seen(&new), before);
    let _failed = ask(&new).await.unwrap_err();
    assert_eq!(seen(&new), seen(&old), "one state");
    assert!(seen(&old).4.iter().any(|one| one.0.starts_with('c')));
}
