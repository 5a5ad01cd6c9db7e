//! Commands: run, and ended with all of their processes.

mod cgroup;
mod janitor;
mod output;
mod policy;
#[cfg(target_os = "linux")]
mod proc;
mod runner;
mod shell;
mod tree;

pub use self::{
    policy::CommandPolicy,
    runner::{CommandEnd, CommandError, CommandOutput, CommandRunner, Script},
    shell::ShellTool,
};
