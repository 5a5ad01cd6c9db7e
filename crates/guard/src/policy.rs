//! The policy of the guard.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use steadfast_core::KeyedPolicy;

use crate::{
    Kind, PolicyError, StopText, TaskLimits, ToolSpec,
    data::{self, strings},
    repeat, tools,
};

/// The limits and rules of the guard. Plain fields; the defaults are in the tables of the
/// [crate's documentation](crate).
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
#[cfg_attr(feature = "serde", serde(default))]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct GuardPolicy {
    /// The limits of every task that nobody named: by default there are none.
    #[cfg_attr(feature = "serde", serde(flatten))]
    pub limits: TaskLimits,
    /// The limits of a task that its caller named
    /// ([`CallContext::task`](steadfast_core::CallContext::task)), in all its conversations together. In
    /// a configuration what is not set here is as in `[guard]`, where that sets it. 0: off.
    #[cfg_attr(feature = "serde", serde(deserialize_with = "keys::named"))]
    pub named: TaskLimits,
    /// The known tools, with their other names, kinds and limits. A tool that is not in the table is of
    /// the kind [`other`](Kind::Other). Those of a configuration are added; their names are removed from
    /// the built-in table, with its kind and limit.
    #[cfg_attr(feature = "serde", serde(deserialize_with = "tools::read"))]
    pub tools: Vec<ToolSpec>,
    /// What counts as a loop.
    #[cfg_attr(feature = "serde", serde(rename = "loops"))]
    pub rules: LoopRules,
    /// What the caller gets when a task is stopped.
    pub stop_as: StopAs,
    /// How the message of a stop is worded.
    pub stop_text: StopText,
    /// Names of arguments that are a path, so that spellings of one file are equal. Those of a
    /// configuration are added, here and in the lists below.
    #[cfg_attr(feature = "serde", serde(deserialize_with = "keys::path_fields"))]
    pub path_fields: Vec<String>,
    /// Names of arguments that are a patch, in which the files are named.
    #[cfg_attr(feature = "serde", serde(deserialize_with = "keys::patch_fields"))]
    pub patch_fields: Vec<String>,
    /// Where relative paths begin, such as `/home/me/project`: with it `/home/me/project/a.rs` and
    /// `a.rs` are one file. Empty by default.
    pub roots: Vec<String>,
    /// Names of fields in results that differ each time without being new: times and ids.
    #[cfg_attr(feature = "serde", serde(deserialize_with = "keys::volatile_fields"))]
    pub volatile_fields: Vec<String>,
    /// Prefixes of results that are failures, in dialects without a field for that. Lower case.
    #[cfg_attr(feature = "serde", serde(deserialize_with = "keys::error_prefixes"))]
    pub error_prefixes: Vec<String>,
    /// How many tasks are kept.
    pub tasks: KeyedPolicy,
}

/// When a rule advises and when it stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Strikes {
    /// The count from which on the model is advised.
    pub warn: u32,
    /// The count from which on the task is stopped, after advice.
    pub stop: u32,
}

impl Strikes {
    /// Advises at `warn`, stops at `stop`.
    pub const fn new(warn: u32, stop: u32) -> Self {
        Self { warn, stop }
    }

    pub(crate) fn times(self, factor: u32) -> Self {
        Self { warn: self.warn.saturating_mul(factor), stop: self.stop.saturating_mul(factor) }
    }
}

/// What counts as a loop. `None` turns a rule off.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
#[cfg_attr(feature = "serde", serde(default, deny_unknown_fields))]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct LoopRules {
    /// The same call with the same result. 3 and 5: twice is checking.
    #[cfg_attr(feature = "serde", serde(with = "keys::AdviseStop"))]
    pub same_result: Option<Strikes>,
    /// The same call, failing with the same error. 2 and 4: less often than a success.
    #[cfg_attr(feature = "serde", serde(with = "keys::AdviseStop"))]
    pub same_error: Option<Strikes>,
    /// Two or three calls in turn with unchanged results, in cycles. 3 and 4.
    #[cfg_attr(feature = "serde", serde(with = "keys::AdviseStop"))]
    pub cycle: Option<Strikes>,
    /// One tool with the same non-trivial result to different arguments. 5 and 8: several ways to
    /// the same answer are usual, eight are guessing.
    #[cfg_attr(feature = "serde", serde(with = "keys::AdviseStop"))]
    pub same_answer: Option<Strikes>,
    /// Stops an answer when the same piece of text, of the size of a sentence, occurs this often among the
    /// last 64. 10.
    #[cfg_attr(feature = "serde", serde(with = "steadfast_core::config::ZeroIsOff"))]
    pub repeated_text: Option<u32>,
    /// A count restarts when there were more new results than this since it last went up. 10: a call
    /// that is repeated rarely, between new results, is no loop.
    pub forget_after: u32,
    /// The factor by which a poll may find nothing new more often than other calls. 4.
    pub poll_factor: u32,
    /// How long to wait before the next poll after each that found nothing new; the last one for
    /// all further. 5, 10, 30 and 60 s.
    #[cfg_attr(feature = "serde", serde(skip))]
    pub poll_waits: Vec<Duration>,
}

impl LoopRules {
    /// Nothing counts as a loop.
    pub fn off() -> Self {
        Self {
            same_result: None,
            same_error: None,
            cycle: None,
            same_answer: None,
            repeated_text: None,
            ..Self::default()
        }
    }
}

impl Default for LoopRules {
    fn default() -> Self {
        Self {
            same_result: Some(Strikes::new(3, 5)),
            same_error: Some(Strikes::new(2, 4)),
            cycle: Some(Strikes::new(3, 4)),
            same_answer: Some(Strikes::new(5, 8)),
            repeated_text: Some(10),
            forget_after: 10,
            poll_factor: 4,
            poll_waits: [5, 10, 30, 60].map(Duration::from_secs).to_vec(),
        }
    }
}

/// What the caller gets when a task is stopped. In configuration `failure` or `answer`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum StopAs {
    /// A failure with the reason [`safety`](steadfast_core::Reason::Safety), which no layer retries.
    #[default]
    Failure,
    /// The model's last message, which says that the task was stopped, with a regular end: for callers
    /// that show answers but no failures.
    Answer,
}

impl Default for GuardPolicy {
    fn default() -> Self {
        Self {
            limits: TaskLimits::default(),
            named: TaskLimits::codebuddy(),
            tools: data::tools(),
            rules: LoopRules::default(),
            stop_as: StopAs::default(),
            stop_text: StopText::default(),
            path_fields: strings("path_fields"),
            patch_fields: strings("patch_fields"),
            roots: Vec::new(),
            volatile_fields: strings("volatile_fields"),
            error_prefixes: strings("error_prefixes"),
            tasks: KeyedPolicy::default(),
        }
    }
}

impl GuardPolicy {
    /// The preset `codebuddy`: the limits that by default only a named task has are everybody's. A task
    /// that nobody named is what happens since the user's last turn.
    pub fn codebuddy() -> Self {
        Self { limits: TaskLimits::codebuddy(), ..Self::default() }
    }

    /// No limits and no rules.
    pub fn off() -> Self {
        let rules = LoopRules::off();
        Self { tools: Vec::new(), rules, ..Self::default() }.loops_only()
    }

    /// Loop detection only: nobody has a limit that counts, not even a named task.
    #[must_use]
    pub fn loops_only(mut self) -> Self {
        (self.limits, self.named) = (TaskLimits::default(), TaskLimits::default());
        for tool in &mut self.tools {
            tool.limit = None;
        }
        self
    }

    /// The tool of that name, or of that alias, to be changed; a new one of [`Kind::Other`] when it
    /// is not in the table yet.
    ///
    /// ```
    /// use steadfast_guard::{GuardPolicy, Kind};
    ///
    /// let mut policy = GuardPolicy::default();
    /// policy.tool_mut("bash").limit = Some(50); // run_terminal_command, for everybody
    /// let deploy = policy.tool_mut("deploy");
    /// (deploy.kind, deploy.limit) = (Kind::Mutating, Some(1));
    /// assert!(policy.validate().is_ok());
    /// ```
    pub fn tool_mut(&mut self, name: &str) -> &mut ToolSpec {
        let at = self.tools.iter().position(|tool| tool.is_called(name)).unwrap_or_else(|| {
            self.tools.push(ToolSpec::new(name, Kind::Other));
            self.tools.len() - 1
        });
        &mut self.tools[at]
    }

    /// Checks the policy.
    ///
    /// # Errors
    ///
    /// The first invalid value.
    pub fn validate(&self) -> Result<(), PolicyError> {
        let rules = &self.rules;
        let strikes = [
            ("same_result", rules.same_result),
            ("same_error", rules.same_error),
            ("cycle", rules.cycle),
            ("same_answer", rules.same_answer),
        ];
        for (rule, strikes) in strikes {
            if let Some(Strikes { warn, stop }) = strikes
                && (warn < 2 || stop <= warn)
            {
                return Err(PolicyError::Strikes { rule, warn, stop });
            }
        }
        // Once is no repetition, and only so many are kept.
        let (least, most) = (2, repeat::RING);
        if let Some(value) = rules.repeated_text
            && !(least..=most).contains(&value)
        {
            let field = "rules.repeated_text";
            return Err(PolicyError::Range { field, value, least, most });
        }
        let off = ", or leave it out for no limit";
        for (field, zero, off) in [
            ("rules.poll_factor", rules.poll_factor == 0, ""),
            ("rules.forget_after", rules.forget_after == 0, ""),
            ("limits.events", self.limits.events == Some(0), off),
            ("limits.time", self.limits.time == Some(Duration::ZERO), off),
            ("named.events", self.named.events == Some(0), off),
            ("named.time", self.named.time == Some(Duration::ZERO), off),
            ("tasks.capacity", self.tasks.capacity == 0, ""),
            ("tasks.idle", self.tasks.idle.is_zero(), ""),
        ] {
            if zero {
                return Err(PolicyError::Zero(field, off));
            }
        }
        tools::index(&self.tools).map(drop)
    }
}

/// The policy in a configuration.
#[cfg(feature = "serde")]
mod keys {
    use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};
    use serde_json::{Map, Value};

    use super::{GuardPolicy, Strikes, TaskLimits};

    /// The limits of named tasks: those that are not written keep their defaults.
    pub(super) fn named<'de, D>(deserializer: D) -> Result<TaskLimits, D::Error>
    where
        D: Deserializer<'de>,
    {
        let mut limits = serde_json::to_value(TaskLimits::codebuddy()).map_err(D::Error::custom)?;
        let written = Map::<String, Value>::deserialize(deserializer)?;
        if let Value::Object(limits) = &mut limits {
            limits.extend(written);
        }
        TaskLimits::deserialize(limits).map_err(D::Error::custom)
    }

    /// `[ADVISE, STOP]`, or `[]` for a rule that is off.
    pub(super) struct AdviseStop;

    impl AdviseStop {
        pub(super) fn serialize<S: Serializer>(
            rule: &Option<Strikes>,
            serializer: S,
        ) -> Result<S::Ok, S::Error> {
            let numbers = rule.map(|Strikes { warn, stop }| [warn, stop]);
            numbers.as_ref().map_or(&[][..], |numbers| numbers).serialize(serializer)
        }

        pub(super) fn deserialize<'de, D: Deserializer<'de>>(
            deserializer: D,
        ) -> Result<Option<Strikes>, D::Error> {
            match Vec::deserialize(deserializer)?[..] {
                [] => Ok(None),
                [warn, stop] => Ok(Some(Strikes { warn, stop })),
                _ => Err(D::Error::custom(
                    "expected [ADVISE, STOP], such as [3, 5], or [] to switch the rule off",
                )),
            }
        }
    }

    #[cfg(feature = "schemars")]
    impl schemars::JsonSchema for AdviseStop {
        fn schema_name() -> std::borrow::Cow<'static, str> {
            "AdviseStop".into()
        }

        fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
            schemars::json_schema!({ "type": "array", "items": { "type": "integer" }, "maxItems": 2 })
        }
    }

    /// The strings of a configuration, after those that are built in.
    macro_rules! more {
        ($($list:ident),*) => {$(
            pub(super) fn $list<'de, D>(deserializer: D) -> Result<Vec<String>, D::Error>
            where
                D: Deserializer<'de>,
            {
                let mut all = GuardPolicy::default().$list;
                for more in Vec::<String>::deserialize(deserializer)? {
                    if !all.contains(&more) {
                        all.push(more);
                    }
                }
                Ok(all)
            }
        )*};
    }

    more!(path_fields, patch_fields, volatile_fields, error_prefixes);
}
