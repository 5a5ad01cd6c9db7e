//! The policy of commands.

use std::{collections::BTreeMap, path::PathBuf, time::Duration};

use crate::PolicyError;

/// How commands are run and ended, for a [`CommandRunner`](crate::CommandRunner).
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
#[cfg_attr(feature = "serde", serde(default, deny_unknown_fields))]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub struct CommandPolicy {
    /// The shell, called as `SHELL -c COMMAND`, with its whole path. `/bin/sh`.
    pub shell: PathBuf,
    /// The folder that commands run in. By default that of this process.
    pub dir: Option<PathBuf>,
    /// Variables that commands get from this process, by name; a name that ends with `*` is every one that begins
    /// so. By default those that programs need to run (`PATH`, `HOME`, `LANG` and the like), and no other: an
    /// agent's keys are in its environment.
    pub inherit: Vec<String>,
    /// Further variables.
    pub env: BTreeMap<String, String>,
    /// The longest time of a command, unless its call has less. 120 s, as
    /// [`ToolTimeoutPolicy::timeout`](crate::ToolTimeoutPolicy::timeout).
    #[cfg_attr(
        feature = "serde",
        serde(rename = "timeout_ms", with = "steadfast_core::config::Millis")
    )]
    pub timeout: Duration,
    /// How long its processes have from SIGTERM to SIGKILL when it is ended. 500 ms: enough to remove a lock
    /// or a temporary file. One that is dropped gets SIGKILL at once.
    #[cfg_attr(
        feature = "serde",
        serde(rename = "grace_ms", with = "steadfast_core::config::Millis")
    )]
    pub grace: Duration,
    /// How long its output is read after the command itself has ended, while a process in the background holds
    /// it open. 1 s.
    #[cfg_attr(
        feature = "serde",
        serde(rename = "drain_ms", with = "steadfast_core::config::Millis")
    )]
    pub drain: Duration,
    /// How much of the output is kept, in bytes: half of its beginning, half of its end. 32 KiB, about 8,000
    /// tokens: an agent's window holds many of these.
    pub max_output_bytes: usize,
    /// What a command leaves running in the background may go on when it has ended. Off by default: nobody
    /// would end it. When the command is ended by a limit, an abort or a drop it ends in any case.
    pub keep_background: bool,
    /// Makes this process the parent of processes whose own parent has gone (`PR_SET_CHILD_SUBREAPER`, Linux), so
    /// that those of a command are reaped here, for where the init process does not reap. Off by default: it is a
    /// setting of the whole process, and orphans of commands that somebody else has started are then reaped by
    /// nobody.
    pub subreaper: bool,
    /// A folder of cgroup v2 that this process may create groups in, such as one that systemd has delegated.
    /// Each command then runs in a group of its own, and no process leaves that. The group is removed with its
    /// last process, or by the next command after it. Off by default.
    pub cgroup: Option<PathBuf>,
}

/// What programs need to run.
const INHERIT: [&str; 15] = [
    "PATH",
    "HOME",
    "USER",
    "LOGNAME",
    "SHELL",
    "LANG",
    "LANGUAGE",
    "LC_*",
    "TZ",
    "TERM",
    "TMPDIR",
    "TMP",
    "TEMP",
    "CARGO_HOME",
    "RUSTUP_HOME",
];

impl Default for CommandPolicy {
    fn default() -> Self {
        Self {
            shell: "/bin/sh".into(),
            dir: None,
            inherit: INHERIT.map(str::to_owned).to_vec(),
            env: BTreeMap::new(),
            timeout: Duration::from_secs(120),
            grace: Duration::from_millis(500),
            drain: Duration::from_secs(1),
            max_output_bytes: 32 * 1_024,
            keep_background: false,
            subreaper: false,
            cgroup: None,
        }
    }
}

impl CommandPolicy {
    /// Checks the policy.
    ///
    /// # Errors
    ///
    /// The first invalid value, and what would be valid.
    pub fn validate(&self) -> Result<(), PolicyError> {
        if self.timeout.is_zero() {
            return Err(PolicyError::Zero("timeout", ""));
        }
        if self.max_output_bytes == 0 {
            return Err(PolicyError::Zero("max_output_bytes", ""));
        }
        Ok(())
    }

    /// Whether commands get the variable of that name from this process.
    pub(super) fn inherits(&self, name: &str) -> bool {
        self.inherit.iter().any(|known| match known.strip_suffix('*') {
            Some(begins) => name.starts_with(begins),
            None => name == known,
        })
    }
}
