//! A shell as a tool.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use serde::Deserialize;
use steadfast_chat::{
    RawJson, Tool, ToolCall, ToolFailure, ToolFailureKind, ToolInvocation, ToolResult,
};
use steadfast_core::{CallContext, Deadline, Failure, RecoveryLog};
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::CancellationToken;
use tower_service::Service;

use super::{CommandEnd, CommandError, CommandOutput, CommandRunner, Script};
use crate::timeout::{ABORTED, not_made, report, timed_out};

/// A shell as a tool: a service that runs the `command` of each call.
///
/// A call has the arguments `command`, and if the model likes `timeout_ms` and `cwd`. Its result is what the
/// command wrote, and how it ended unless that was with status 0. A status other than 0 is a failed result of
/// the kind [`Exit`](ToolFailureKind::Exit). It ends shortly before the deadline of the request's context, which a
/// [`ToolTimeoutLayer`](crate::ToolTimeoutLayer) sets, so that the model gets what was written by then; one that
/// does not end by itself in time is killed at the deadline, and its output is lost. A command whose deadline is
/// over when it comes, or which has been aborted by then, is not started, with that layer or without.
///
/// ```
/// # #[cfg(unix)]
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), steadfast_core::Failure> {
/// use steadfast_chat::{Part, ToolCall, ToolRequest};
/// use steadfast_core::CallContext;
/// use steadfast_tool::ShellTool;
/// use tower::ServiceExt;
///
/// let call = ToolCall {
///     id: "1".into(),
///     name: "run_command".into(),
///     arguments: r#"{"command":"ls /nowhere"}"#.into(),
///     ..ToolCall::default()
/// };
/// let result = ShellTool::default().oneshot(ToolRequest::new(CallContext::new(), call)).await?;
/// assert!(result.is_error);
/// assert!(result.content[0].as_text().unwrap().contains("[exit status 2]"));
/// # Ok(())
/// # }
/// # #[cfg(not(unix))]
/// # fn main() {}
/// ```
#[derive(Clone, Debug, Default)]
#[must_use = "services do nothing unless called"]
pub struct ShellTool {
    runner: CommandRunner,
}

/// The arguments of a call.
#[derive(Debug, Deserialize)]
struct ShellArguments {
    command: String,
    #[serde(default)]
    timeout_ms: Option<u64>,
    #[serde(default)]
    cwd: Option<String>,
}

/// The schema of the arguments.
const SCHEMA: &str = r#"{"type":"object","properties":{"command":{"type":"string","description":"The command, for sh -c."},"timeout_ms":{"type":"integer","minimum":1,"description":"The longest time it may take, in milliseconds."},"cwd":{"type":"string","description":"The folder to run it in."}},"required":["command"],"additionalProperties":false}"#;

/// How much earlier than its deadline a command is ended, so that its result is there in time; a fourth of what
/// is left, where that is less.
const MARGIN: Duration = Duration::from_secs(1);

impl ShellTool {
    /// A tool whose commands are run by `runner`.
    pub const fn new(runner: CommandRunner) -> Self {
        Self { runner }
    }

    /// Its declaration for the model, under this name.
    pub fn declaration(name: impl Into<String>) -> Tool {
        let about = "Runs a command with sh and returns what it writes. It has no input: a command that asks for \
                     any gets none. Processes that it leaves in the background are ended with it.";
        Tool::Function {
            name: name.into(),
            description: Some(about.to_owned()),
            parameters: RawJson::parse(SCHEMA).ok(),
            strict: None,
            custom: None,
            extra: None,
            dialect: None,
        }
    }

    async fn run(
        runner: CommandRunner,
        call: ToolCall,
        log: RecoveryLog,
        deadline: Option<Deadline>,
        abort: CancellationToken,
    ) -> ToolResult {
        let aborted = abort.is_cancelled();
        if aborted || deadline.is_some_and(Deadline::is_past) {
            let (kind, text) = not_made(aborted, &call.name, &log);
            return ToolResult::failed(&call, kind, text);
        }
        let script = match script(&call, deadline, abort) {
            Ok(script) => script,
            Err(wrong) => return ToolResult::failed(&call, ToolFailureKind::Arguments, wrong),
        };
        let (began, running) = (Instant::now(), runner.run(script));
        let ended = match deadline {
            // Its own time is over earlier, but then come the grace and the last output.
            Some(deadline) => timeout_at(deadline.instant(), running).await,
            None => Ok(running.await),
        };
        let Ok(ended) = ended else {
            let elapsed = began.elapsed();
            report(false, &call.name, elapsed, &log);
            return ToolResult::failed(&call, ToolFailureKind::TimedOut, timed_out(elapsed));
        };
        match ended {
            Ok(done) => {
                if matches!(done.end, CommandEnd::TimedOut | CommandEnd::Aborted) {
                    report(done.end == CommandEnd::Aborted, &call.name, done.elapsed, &log);
                }
                result(&call, done)
            }
            Err(error @ CommandError::NoFolder(_)) => {
                ToolResult::failed(&call, ToolFailureKind::Arguments, format!("{error}."))
            }
            Err(error) => {
                let failure = ToolFailure::from(ToolFailureKind::Failed).with_tag("not_started");
                ToolResult::failed(&call, failure, format!("{error}."))
            }
        }
    }
}

impl<R: ToolInvocation> Service<R> for ShellTool {
    type Response = ToolResult;
    type Error = Failure;
    type Future = Pin<Box<dyn Future<Output = Result<ToolResult, Failure>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Failure>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: R) -> Self::Future {
        let (runner, call) = (self.runner.clone(), request.call().clone());
        let CallContext { log, deadline, .. } = request.context();
        let (log, deadline, abort) = (log.clone(), *deadline, request.abort().clone());
        Box::pin(async move { Ok(Self::run(runner, call, log, deadline, abort).await) })
    }
}

/// What to run; what is wrong with the call, if anything.
fn script(
    call: &ToolCall,
    deadline: Option<Deadline>,
    abort: CancellationToken,
) -> Result<Script, String> {
    let arguments = serde_json::from_str::<ShellArguments>(&call.arguments);
    let arguments = arguments.map_err(|error| {
        format!(
            "The arguments can not be used: {error}. They are an object with `command`, a text."
        )
    })?;
    let mut script = Script::new(arguments.command).aborted_by(abort);
    if let Some(dir) = arguments.cwd.filter(|dir| !dir.is_empty()) {
        script = script.in_dir(dir);
    }
    let asked = arguments.timeout_ms.filter(|ms| *ms > 0).map(Duration::from_millis);
    let left = deadline.map(Deadline::remaining);
    let left = left.map(|left| left.saturating_sub(MARGIN.min(left / 4)));
    if let Some(time) = asked.into_iter().chain(left).min() {
        script = script.within(time);
    }
    Ok(script)
}

/// What the model reads.
fn result(call: &ToolCall, done: CommandOutput) -> ToolResult {
    let note = match done.end {
        CommandEnd::Exited(0) => None,
        end if end.is_killed() => {
            let code = if end == CommandEnd::Exited(137) { "exit status 137" } else { "signal 9" };
            let text = format!(
                "[killed ({code}): most likely it used too much memory. Run it with less: a smaller input, fewer \
                 jobs at once, a part at a time.]"
            );
            Some((ToolFailureKind::Killed, text))
        }
        CommandEnd::Exited(code) => Some((ToolFailureKind::Exit, format!("[exit status {code}]"))),
        CommandEnd::Signalled(signal) => {
            Some((ToolFailureKind::Exit, format!("[ended by signal {signal}]")))
        }
        CommandEnd::TimedOut => {
            Some((ToolFailureKind::TimedOut, format!("[{}]", timed_out(done.elapsed))))
        }
        CommandEnd::Aborted => Some((ToolFailureKind::Aborted, format!("[{ABORTED}]"))),
    };
    let mut text = done.output;
    let mut add = |line: &str| {
        if !text.is_empty() && !text.ends_with('\n') {
            text.push('\n');
        }
        text.push_str(line);
    };
    if done.leftovers > 0 {
        add(&format!("[{} processes that it left in the background were ended]", done.leftovers));
    }
    if done.survivors > 0 {
        add(&format!(
            "[{} of its processes could not be ended and are still running]",
            done.survivors
        ));
    }
    match note {
        Some((kind, note)) => {
            add(&note);
            ToolResult::failed(call, kind, text)
        }
        None if text.is_empty() => ToolResult::of(call, "[no output]"),
        None => ToolResult::of(call, text),
    }
}
