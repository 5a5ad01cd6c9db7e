//! The limits of tasks, and the keys of a configuration that set them.

use std::time::Duration;

use crate::{GuardPolicy, LoopRule, StopCause};

/// The limits of a task. A limit of n allows exactly n; `None`, the default, is no limit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
#[cfg_attr(feature = "serde", serde(default, deny_unknown_fields))]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct TaskLimits {
    /// Events: an answer of the model, a call of a tool, a result of one. Of a named task 2,000: five
    /// for each of the 400 calls, where three are usual.
    #[cfg_attr(feature = "serde", serde(with = "steadfast_core::config::ZeroIsOff"))]
    pub events: Option<u64>,
    /// Calls of tools. Of a named task 400.
    #[cfg_attr(feature = "serde", serde(with = "steadfast_core::config::ZeroIsOff"))]
    pub calls: Option<u64>,
    /// From the task's first request on. Of a named task 10 minutes: after that a person should check.
    #[cfg_attr(
        feature = "serde",
        serde(rename = "time_s", with = "steadfast_core::config::Seconds")
    )]
    pub time: Option<Duration>,
    /// Calls of one tool. Of a named task 20; some built-in tools have another number in its place, which
    /// is in force only where this is, and a tool with a limit in `tools` has that one everywhere.
    #[cfg_attr(feature = "serde", serde(with = "steadfast_core::config::ZeroIsOff"))]
    pub per_tool: Option<u32>,
    /// Edits of one file. Of a named task 4: the edit after that is often the one that undoes the
    /// first.
    #[cfg_attr(feature = "serde", serde(with = "steadfast_core::config::ZeroIsOff"))]
    pub edits_per_file: Option<u32>,
}

impl TaskLimits {
    /// The numbers of the preset [`codebuddy`](GuardPolicy::codebuddy), which are also the default for
    /// named tasks.
    pub const fn codebuddy() -> Self {
        Self {
            events: Some(2_000),
            calls: Some(400),
            time: Some(Duration::from_secs(600)),
            per_tool: Some(20),
            edits_per_file: Some(4),
        }
    }
}

impl GuardPolicy {
    /// The limits of a task that its caller `named`, or of one that nobody did.
    pub(crate) const fn limits_of(&self, named: bool) -> &TaskLimits {
        if named { &self.named } else { &self.limits }
    }

    /// The key of a configuration that raises what stopped a task.
    pub(crate) fn key(&self, named: bool, cause: &StopCause) -> &'static str {
        let (all, own) = (&self.limits, &self.named);
        // The limit of a named task that is equal follows the key that is for everybody.
        let key = |differs: bool, all: &'static str, own: &'static str| {
            if named && differs { own } else { all }
        };
        match cause {
            StopCause::Events(_) => {
                key(own.events != all.events, "guard.events", "guard.named.events")
            }
            StopCause::Calls(_) => key(own.calls != all.calls, "guard.calls", "guard.named.calls"),
            StopCause::Time(_) => key(own.time != all.time, "guard.time_s", "guard.named.time_s"),
            StopCause::Tool { tool, .. } if self.has_own_limit(tool) => "guard.tools",
            StopCause::Tool { .. } => {
                key(own.per_tool != all.per_tool, "guard.per_tool", "guard.named.per_tool")
            }
            StopCause::File { .. } => key(
                own.edits_per_file != all.edits_per_file,
                "guard.edits_per_file",
                "guard.named.edits_per_file",
            ),
            StopCause::Loop { rule, .. } => match rule {
                LoopRule::SameResult => "guard.loops.same_result",
                LoopRule::SameError => "guard.loops.same_error",
                LoopRule::Cycle => "guard.loops.cycle",
                LoopRule::SameAnswer => "guard.loops.same_answer",
                LoopRule::RepeatedText => "guard.loops.repeated_text",
            },
        }
    }

    /// Whether the limit of a tool is another than that of any tool.
    fn has_own_limit(&self, tool: &str) -> bool {
        self.tools.iter().any(|spec| spec.name == tool && spec.limits().is_own())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_key_is_the_one_in_force() {
        let tool = |tool: &str| StopCause::Tool { tool: tool.into(), limit: 1 };
        let file = StopCause::File { file: "a.rs".into(), limit: 4 };
        let cycle = StopCause::Loop { rule: LoopRule::Cycle, tool: "ls".into(), count: 4 };
        let default = GuardPolicy::default();
        let codebuddy = GuardPolicy::codebuddy();
        let mut own = GuardPolicy::default();
        (own.limits.calls, own.named.calls) = (Some(9), Some(5));
        own.tool_mut("ls").limit = Some(1);
        for (policy, named, cause, wanted) in [
            (&default, true, StopCause::Events(2_000), "guard.named.events"),
            (&default, true, StopCause::Calls(400), "guard.named.calls"),
            (&default, true, StopCause::Time(Duration::from_secs(600)), "guard.named.time_s"),
            (&default, true, tool("list_dir"), "guard.named.per_tool"),
            (&default, true, tool("never_heard_of"), "guard.named.per_tool"),
            (&default, true, tool("delete_file"), "guard.tools"),
            (&default, true, file.clone(), "guard.named.edits_per_file"),
            (&default, true, cycle.clone(), "guard.loops.cycle"),
            (&default, false, cycle, "guard.loops.cycle"),
            (&codebuddy, false, StopCause::Events(2_000), "guard.events"),
            (&codebuddy, true, StopCause::Calls(400), "guard.calls"),
            (&codebuddy, false, tool("never_heard_of"), "guard.per_tool"),
            (&codebuddy, false, tool("web_search"), "guard.tools"),
            (&codebuddy, false, file, "guard.edits_per_file"),
            (&own, true, StopCause::Calls(5), "guard.named.calls"),
            (&own, false, StopCause::Calls(9), "guard.calls"),
            (&own, false, tool("list_dir"), "guard.tools"),
        ] {
            assert_eq!(policy.key(named, &cause), wanted, "{named} {cause:?}");
        }
    }
}
