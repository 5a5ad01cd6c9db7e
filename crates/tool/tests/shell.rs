//! The shell as a tool: what the model reads of each end, inside the other layers.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "tests")]

mod support;

use std::time::Duration;

use steadfast_chat::{Tool, ToolCall, ToolFailureKind, ToolRequest, ToolResult};
use steadfast_core::{CallContext, Deadline};
use steadfast_tool::{
    CommandPolicy, CommandRunner, ShellTool, ToolBreakerLayer, ToolErrorLayer, ToolTimeoutLayer,
};
use support::*;
use tokio::time::Instant;
use tower::{ServiceBuilder, ServiceExt};

fn request(arguments: &str) -> ToolRequest {
    let call = ToolCall {
        id: "1".into(),
        name: "run_command".into(),
        arguments: arguments.into(),
        ..ToolCall::default()
    };
    ToolRequest::new(CallContext::new(), call)
}

fn text(result: &ToolResult) -> &str {
    assert_eq!((result.id.as_str(), result.name.as_deref()), ("1", Some("run_command")));
    result.content[0].as_text().unwrap()
}

async fn run(tool: &ShellTool, arguments: &str) -> ToolResult {
    tool.clone().oneshot(request(arguments)).await.unwrap()
}

#[tokio::test]
async fn the_model_reads_what_was_written_and_how_it_ended() {
    use ToolFailureKind::{Arguments, Exit, Killed, TimedOut};
    let shell = ShellTool::default();
    for (arguments, kind, begins, ends) in [
        (r#"{"command":"echo hello"}"#, None, "hello\n", "hello\n"),
        (r#"{"command":"true"}"#, None, "[no output]", ""),
        (r#"{"command":"echo no; exit 3"}"#, Some(Exit), "no\n", "[exit status 3]"),
        (r#"{"command":"printf no; false"}"#, Some(Exit), "no\n", "[exit status 1]"),
        (r#"{"command":"kill $$"}"#, Some(Exit), "", "[ended by signal 15]"),
        (
            r#"{"command":"kill -9 $$"}"#,
            Some(Killed),
            "[killed (signal 9): most likely it used too much memory",
            "",
        ),
        (
            r#"{"command":"exit 137"}"#,
            Some(Killed),
            "[killed (exit status 137): most likely it used too much memory",
            "",
        ),
        (
            r#"{"command":"echo a; sleep 100","timeout_ms":3000}"#,
            Some(TimedOut),
            "a\n[The call was stopped",
            "]",
        ),
        (r#"{"command":"pwd","cwd":"/usr/bin"}"#, None, "/usr/bin\n", ""),
        (
            r#"{"command":"pwd","cwd":"/nowhere"}"#,
            Some(Arguments),
            "there is no folder `/nowhere`",
            ".",
        ),
        (
            "{}",
            Some(Arguments),
            "The arguments can not be used: missing field `command`",
            "a text.",
        ),
        ("ls", Some(Arguments), "The arguments can not be used", "a text."),
    ] {
        let result = run(&shell, arguments).await;
        assert_eq!(result.failure_kind(), kind, "{arguments}: {}", text(&result));
        let text = text(&result);
        assert!(text.starts_with(begins) && text.ends_with(ends), "{arguments}: {text}");
    }
    let Tool::Function { parameters: Some(schema), .. } = ShellTool::declaration("run_command")
    else {
        panic!("it has a schema");
    };
    assert!(schema.get().contains("timeout_ms"));
}

#[tokio::test]
async fn a_shell_that_can_not_be_started_is_blocked_after_two_calls() {
    let policy = CommandPolicy { shell: "/nowhere/sh".into(), ..CommandPolicy::default() };
    let breaker = ToolBreakerLayer::default();
    let tool = ServiceBuilder::new()
        .layer(breaker.clone())
        .service(ShellTool::new(CommandRunner::new(policy).unwrap()));
    let mut kinds = Vec::new();
    for at in 0..3 {
        let arguments = format!(r#"{{"command":"echo {at}"}}"#);
        kinds
            .push(tool.clone().oneshot(request(&arguments)).await.unwrap().failure_kind().unwrap());
    }
    use ToolFailureKind::{Failed, Refused};
    assert_eq!(kinds, [Failed, Failed, Refused]);
}

/// There may be no layer that sees to it.
#[tokio::test]
async fn a_call_that_comes_too_late_starts_no_command() {
    let (shell, arguments) = (ShellTool::default(), r#"{"command":"echo started"}"#);
    for aborted in [false, true] {
        let mut request = request(arguments);
        request.context = CallContext::recording();
        match aborted {
            true => request.abort.cancel(),
            false => request.context.deadline = Some(Deadline::after(Duration::ZERO)),
        }
        let log = request.context.log.clone();
        let result = shell.clone().oneshot(request).await.unwrap();
        let (kind, end, step) = match aborted {
            true => {
                (ToolFailureKind::Aborted, "it has had no effect.", "tool.aborted 0ms run_command")
            }
            false => (
                ToolFailureKind::Refused,
                "the time for the whole task is over.",
                "tool.refused run_command deadline",
            ),
        };
        assert_eq!(result.failure_kind(), Some(kind));
        assert!(text(&result).ends_with(end), "{}", text(&result));
        assert_eq!(log.to_string(), step);
    }
}

#[tokio::test]
async fn a_command_is_killed_at_the_deadline_of_its_call() {
    let (token, grace) = (token(), Duration::from_secs(60));
    let shell = ShellTool::new(runner(|policy| policy.grace = grace));
    let arguments = format!(r#"{{"command":"trap '' TERM; sleep {token}"}}"#);
    let mut request = request(&arguments);
    request.context = CallContext::recording();
    request.context.deadline = Some(Deadline::after(Duration::from_secs(2)));
    let (began, log) = (Instant::now(), request.context.log.clone());
    let result = shell.oneshot(request).await.unwrap();
    assert!(began.elapsed() < grace / 2, "it had its grace beyond the deadline");
    assert_eq!(result.failure_kind(), Some(ToolFailureKind::TimedOut));
    assert!(text(&result).starts_with("The call was stopped"), "{}", text(&result));
    assert!(log.to_string().starts_with("tool.timed_out timeout "), "{log}");
    assert!(becomes(Duration::from_secs(10), || alive(&token).is_empty()).await);
}

/// Under the layer's limit the command ends by itself, a moment earlier: the output is not lost.
#[tokio::test]
async fn a_limit_of_the_layer_keeps_the_output() {
    // Enough to begin and to end in; on a busy machine, with more time.
    for seconds in [2, 8, 32] {
        let token = token();
        let tool = ServiceBuilder::new()
            .layer(ToolBreakerLayer::default())
            .layer(ToolErrorLayer::default())
            .layer(ToolTimeoutLayer::after(Duration::from_secs(seconds)).unwrap())
            .service(ShellTool::default());
        let arguments =
            format!(r#"{{"command":"echo half way; setsid sleep {token} & sleep {token}"}}"#);
        let mut request = request(&arguments);
        request.context = CallContext::recording();
        let log = request.context.log.clone();
        let result = tool.oneshot(request).await.unwrap();
        assert_eq!(result.failure_kind(), Some(ToolFailureKind::TimedOut));
        assert!(result.failure.as_ref().unwrap().user_text().is_some());
        assert!(log.to_string().starts_with("tool.timed_out timeout "), "{log}");
        // The layer did not have to end it, too.
        if text(&result).starts_with("half way\n[") && !log.to_string().contains(';') {
            assert!(alive(&token).is_empty());
            return;
        }
    }
    panic!("its output was lost each time");
}
