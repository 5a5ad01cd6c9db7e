//! Tool calls of an agent: limits, errors, a breaker, what they may touch, and commands that end whole.
//!
//! A tool is a `tower::Service` whose request is a [`ToolInvocation`](steadfast_chat::ToolInvocation), such as
//! [`ToolRequest`](steadfast_chat::ToolRequest), and whose response is a
//! [`ToolResult`](steadfast_chat::ToolResult). The layers around it make sure that the model always gets a result
//! that it can work with, and that the agent's loop goes on.
//!
//! | layer | what it does | by default |
//! |---|---|---|
//! | [`ToolSpanLayer`] | a `tracing` span for each call, by OpenTelemetry's conventions | |
//! | [`ToolPolicyLayer`] | refuses a call that names a file, a host or a size that it may not | allows everything |
//! | [`ToolBreakerLayer`] | blocks a call or a tool that keeps failing in one task | 3 of one call, 5 of a tool, 2 of one tag; 60 s |
//! | [`ToolErrorLayer`] | makes an error or a panic a failed result | |
//! | [`ToolTimeoutLayer`] | ends a call that takes too long, or that is aborted | 120 s |
//!
//! [`ShellTool`] is a tool that is ready to use: it runs commands by a [`CommandRunner`], which ends all of their
//! processes, also those that have left the command's group and session.
//!
//! ```
//! use std::time::Duration;
//! use steadfast_chat::{ToolCall, ToolFailureKind, ToolRequest, ToolResult};
//! use steadfast_core::{CallContext, Failure};
//! use steadfast_tool::{ToolBreakerLayer, ToolErrorLayer, ToolTimeoutLayer};
//! use tower::{ServiceBuilder, ServiceExt, service_fn};
//!
//! # #[tokio::main(flavor = "current_thread", start_paused = true)]
//! # async fn main() -> Result<(), Failure> {
//! let tools = ServiceBuilder::new()
//!     .layer(ToolBreakerLayer::default())
//!     .layer(ToolErrorLayer::default())
//!     .layer(ToolTimeoutLayer::default())
//!     .service(service_fn(|request: ToolRequest| async move {
//!         match request.call.name.as_str() {
//!             "hang" => std::future::pending().await,
//!             "panic" => panic!("a bug"),
//!             _ => Ok::<_, Failure>(ToolResult::of(&request.call, "done")),
//!         }
//!     }));
//! let run = |tool: &str| {
//!     let call = ToolCall { id: "1".into(), name: tool.into(), ..ToolCall::default() };
//!     tools.clone().oneshot(ToolRequest::new(CallContext::new(), call))
//! };
//!
//! assert!(!run("work").await?.is_error);
//! assert_eq!(run("panic").await?.failure_kind(), Some(ToolFailureKind::Panicked));
//! for _ in 0..3 {
//!     assert_eq!(run("hang").await?.failure_kind(), Some(ToolFailureKind::TimedOut));
//! }
//! // The fourth is not made: it would hang for two minutes once more.
//! assert_eq!(run("hang").await?.failure_kind(), Some(ToolFailureKind::Refused));
//! # Ok(())
//! # }
//! ```
//!
//! # Where to put these layers
//!
//! ```text
//! ToolSpans           what is refused is in the trace, too
//! ToolGuard           (steadfast-guard) loops and limits of the task: its stop is final
//! ToolPolicy          a call that is not allowed costs nothing, and counts for nothing
//! ToolBreaker         judges each call by its result
//! ToolErrors          errors and panics become results
//! ToolTimeout         120 s
//! the tool
//! ```
//!
//! **Wrong:** `ToolTimeout` outside `ToolBreaker`. When the limit is reached, the call of the breaker is dropped,
//! which counts as cancelled and neither way. A tool that hangs on every call then never opens it, and the agent
//! waits two minutes for each of them.
//!
//! # What counts as a failure
//!
//! A result that is an error says how it failed by its [`ToolFailure`](steadfast_chat::ToolFailure), which is never
//! sent to the model: [`ToolResult::failed`](steadfast_chat::ToolResult::failed) makes one. Wrong arguments, and
//! commands that ran and ended with a status, say nothing of the tool and do not count; an error without such a
//! mark counts. A tag names a cause for which other arguments do not help, such as `not_started`.
//!
//! # Streaming and cancellation
//!
//! A result is a value: there is no stream. Dropping a call's future ends the call at every await: the inner
//! future is dropped, a breaker's permit is released and counts neither way, and a command's processes end.

#![cfg_attr(docsrs, feature(doc_cfg))]

mod access;
mod breaker;
mod called;
mod caught;
#[cfg(unix)]
mod command;
mod error;
mod span;
mod timeout;

/// The futures of the services.
pub mod future {
    pub use crate::{
        access::ToolPolicyFuture, breaker::ToolBreakerFuture, caught::ToolErrorFuture,
        span::ToolSpanFuture, timeout::ToolTimeoutFuture,
    };
}

#[cfg(unix)]
pub use self::command::{
    CommandEnd, CommandError, CommandOutput, CommandPolicy, CommandRunner, Script, ShellTool,
};
pub use self::{
    access::{AccessPolicy, AccessProfile, ToolArguments, ToolPolicy, ToolPolicyLayer},
    breaker::{
        ToolBreaker, ToolBreakerHandle, ToolBreakerLayer, ToolBreakerPolicy, ToolCircuitSnapshot,
    },
    caught::{ToolErrorLayer, ToolErrorSnapshot, ToolErrors},
    error::PolicyError,
    span::{ToolSpanLayer, ToolSpans},
    timeout::{
        ToolTimeout, ToolTimeoutHandle, ToolTimeoutLayer, ToolTimeoutPolicy, ToolTimeoutSnapshot,
    },
};
