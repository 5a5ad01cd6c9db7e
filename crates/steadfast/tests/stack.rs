//! Each setting of a stack has its effect.
#![cfg(feature = "stack")]
#![allow(clippy::unwrap_used, reason = "tests")]

mod support;

use std::{future::pending, time::Duration};

use http::{HeaderMap, StatusCode};
use steadfast::{
    CallContext, ChatRequest, ChatResponse, Delta, Event, Failure, Message, Part, Reason,
    RecoveryTable, Retry, Role, Stack, StopReason, Target, ToolCall, Upstream,
    breaker::{BreakerPolicy, CircuitBreakerLayer},
    classify::{ClassifyLayer, Evidence, Verdict},
    compact::{CompactionLayer, TargetFacts, TokenLimits},
    failover::Chain,
    guard::{GuardPolicy, SafetyGuardLayer},
    recover::{ContinuationLayer, StreamResumeLayer},
    retry::RetryBackoffLayer,
    timeout::{DeadlineLayer, StallTimeoutLayer},
};
use support::*;
use tower::{ServiceExt, service_fn};

/// What came of a call: the steps, and the answer's text or the failure's reason.
async fn outcome(
    stack: Stack,
    script: Script,
    request: ChatRequest,
) -> (String, Result<String, Reason>) {
    let context = CallContext::recording();
    let log = context.log.clone();
    let call = async {
        let answer = stack.boxed(Client::of(script)).oneshot(request.with_context(context)).await?;
        Ok::<_, Failure>(answer.collect().await?.text())
    };
    let answer = call.await.map_err(|failure| failure.reason());
    (log.to_string(), answer)
}

fn refused() -> Script {
    let status = StatusCode::SERVICE_UNAVAILABLE;
    vec![Err(Failure::from_upstream(Upstream::response(status, HeaderMap::new(), "")))]
}

fn broken() -> Script {
    vec![Ok(vec![say(TEXT), Err(Failure::new(Reason::Network, "reset"))])]
}

fn cut() -> Script {
    let stop = Event::new([Delta::Stop(StopReason::MaxTokens.into()), Delta::End]);
    vec![Ok(vec![say(TEXT), Ok(stop)])]
}

fn long() -> ChatRequest {
    let talk = (0..200).flat_map(|at| {
        let text = format!("{at} {}", "and a few words more ".repeat(20));
        [Message::user(text.clone()), Message::assistant(text)]
    });
    let mut request = question();
    let messages: Vec<_> = talk.chain([Message::user("What is it?")]).collect();
    request.messages = messages.into();
    request
}

fn small() -> CompactionLayer {
    CompactionLayer::rules_only()
        .with_targets(|_| TargetFacts::default().with_limits(TokenLimits::new(8_192)))
}

/// An agent that has called two tools.
fn working() -> ChatRequest {
    let mut messages = vec![Message::user("Find the answer.")];
    for id in ["one", "two"] {
        let call = ToolCall {
            id: id.into(),
            name: id.into(),
            arguments: "{}".into(),
            ..ToolCall::default()
        };
        messages.push(Message::new(Role::Assistant, vec![Part::ToolCall(call)]));
        messages.push(Message::new(Role::User, vec![Part::tool_result(id, "nothing")]));
    }
    ChatRequest::new(messages).with_model("any")
}

/// Stops whoever has made more than one call.
fn strict() -> SafetyGuardLayer {
    let mut policy = GuardPolicy::default();
    policy.limits.calls = Some(1);
    SafetyGuardLayer::new(policy).unwrap()
}

struct Case {
    name: &'static str,
    script: fn() -> Script,
    request: fn() -> ChatRequest,
    /// A step that there is with the first setting, and not with the second.
    step: &'static str,
    with: fn(Stack) -> Stack,
    without: fn(Stack) -> Stack,
}

const CASES: &[Case] = &[
    Case {
        name: "retry",
        script: refused,
        request: question,
        step: "retry.retried",
        with: |stack| stack,
        without: |stack| stack.with_retry(RetryBackoffLayer::in_stack().with_retries(0)),
    },
    Case {
        name: "resume",
        script: broken,
        request: question,
        step: "recover.resumed",
        with: |stack| stack.with_resume(StreamResumeLayer::default()),
        without: Stack::without_resume,
    },
    Case {
        name: "continuation",
        script: cut,
        request: question,
        step: "recover.",
        with: |stack| stack.with_continuation(ContinuationLayer::default()),
        without: Stack::without_continuation,
    },
    Case {
        name: "compaction",
        script: Vec::new,
        request: long,
        step: "compact.compacted",
        with: |stack| stack.with_compaction(small()),
        without: |stack| stack.with_compaction(small()).without_compaction(),
    },
    Case {
        name: "guard",
        script: Vec::new,
        request: working,
        step: "guard.stopped",
        with: |stack| stack.with_guard(strict()),
        without: |stack| stack.with_guard(strict()).without_guard(),
    },
    Case {
        name: "classify",
        script: refused,
        request: question,
        step: "failover.switched second/any auth",
        with: |stack| {
            let own = |_: &Evidence<'_>| Some(Verdict::new(Reason::Auth, "own"));
            stack.with_classify(ClassifyLayer::default().with_override(own))
        },
        without: |stack| stack,
    },
    Case {
        name: "table",
        script: refused,
        request: question,
        step: "retry.retried",
        with: |stack| stack,
        without: |stack| {
            let table = RecoveryTable::default();
            stack.with_table(table.with_rule(Reason::Overloaded, |rule| rule.retry = Retry::No))
        },
    },
    Case {
        name: "deadline",
        script: refused,
        request: question,
        step: "retry.gave_up",
        with: |stack| {
            stack.with_deadline(DeadlineLayer::after(Duration::from_millis(100)).unwrap())
        },
        without: |stack| stack,
    },
];

#[tokio::test(start_paused = true)]
async fn a_setting_has_its_effect() {
    for Case { name, script, request, step, with, without } in CASES {
        let (log, _) = outcome(with(stack()), script(), request()).await;
        assert!(log.contains(step), "{name}: {log}");
        let (log, _) = outcome(without(stack()), script(), request()).await;
        assert!(!log.contains(step), "{name}: {log}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_break_is_the_callers_without_resumes() {
    let (_, answer) = outcome(stack(), broken(), question()).await;
    assert_eq!(answer, Ok(format!("{TEXT}That is all.")));
    let (_, answer) = outcome(stack().without_resume(), broken(), question()).await;
    assert_eq!(answer, Err(Reason::Network));
}

/// What came of its stream is what its caller gets, where there is nobody else.
#[tokio::test(start_paused = true)]
async fn a_lone_target_that_is_not_to_be_asked_again_is_not_asked_to_resume() {
    let alone = || Stack::new(Chain::new(["only"]).unwrap());
    let failed = |retry| {
        let failure = Failure::new(Reason::ServerError, "as written").with_retry(retry);
        vec![Ok(vec![say(TEXT), Err(failure)])]
    };
    let whole = Ok(format!("{TEXT}That is all."));
    for (stack, retry, expected) in [
        (alone(), Retry::Yes, whole.clone()),
        (alone(), Retry::No, Err(Reason::ServerError)),
        (stack(), Retry::No, whole),
    ] {
        let (log, answer) = outcome(stack, failed(retry), question()).await;
        assert_eq!(answer, expected, "{retry:?}: {log}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_hang_ends_when_the_stall_limit_says() {
    for seconds in [5, 50] {
        let limit = Duration::from_secs(seconds);
        let stall = StallTimeoutLayer::default().with_stall(limit).unwrap();
        let stack = stack().with_stall(stall);
        let hang = service_fn(|_: ChatRequest| pending::<Result<ChatResponse, Failure>>());
        let handles = stack.handles();
        let asking = tokio::spawn(stack.boxed(hang).oneshot(question()));
        tokio::time::sleep(limit - Duration::from_millis(10)).await;
        assert!(handles.stall.snapshot().fired.is_empty(), "{seconds}");
        tokio::time::sleep(Duration::from_millis(20)).await;
        assert!(!handles.stall.snapshot().fired.is_empty(), "{seconds}");
        asking.abort();
    }
}

#[tokio::test(start_paused = true)]
async fn a_breaker_of_ones_own_goes_by_its_own_policy() {
    let policy = BreakerPolicy { dead: None, ..BreakerPolicy::default() };
    let own = stack().with_breaker(CircuitBreakerLayer::new(policy).unwrap());
    assert_eq!(own.handles().breaker.policy().dead, None);
    // A breaker that refuses is moved on from without a wait.
    let target = Target::new("first").with_model("any");
    own.handles().breaker.trip(&Some(target), Reason::Overloaded, Duration::from_secs(600));
    let started = tokio::time::Instant::now();
    let (log, answer) = outcome(own, Vec::new(), question()).await;
    assert!(log.contains("breaker.refused first/any"), "{log}");
    assert!(answer.is_ok() && started.elapsed().is_zero(), "{log}");
}
