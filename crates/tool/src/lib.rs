//! Tool calls.

#![cfg_attr(docsrs, feature(doc_cfg))]

mod access;
mod breaker;
mod called;
mod caught;
#[cfg(unix)]
mod command;
mod error;
mod timeout;

/// The futures of the services.
pub mod future {
    pub use crate::{
        access::ToolPolicyFuture, breaker::ToolBreakerFuture, caught::ToolErrorFuture,
        timeout::ToolTimeoutFuture,
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
    timeout::{
        ToolTimeout, ToolTimeoutHandle, ToolTimeoutLayer, ToolTimeoutPolicy, ToolTimeoutSnapshot,
    },
};
