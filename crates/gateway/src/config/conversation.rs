//! The keys of what understands the conversation: guard, continuation, resume.

use std::fmt;

use serde::Deserialize;
use steadfast::guard::{Kind, StopAs, Strikes};

/// `[guard]`. A limit of 0 is none.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[non_exhaustive]
pub struct GuardConfig {
    /// Whether tasks are watched at all.
    pub enabled: bool,
    /// What the caller gets of a stop: `failure`, or `answer`, which is a last message of the model.
    pub stop_as: StopAs,
    /// Answers, calls of tools and results of them a task may have.
    pub events: Option<u64>,
    /// Calls of tools a task may have.
    pub calls: Option<u64>,
    /// How long a task may take, in seconds.
    pub time_s: Option<u64>,
    /// Calls of one tool a task may have, where `tools` and the built-in table say nothing else.
    pub per_tool: Option<u32>,
    /// Edits of one file a task may make.
    pub edits_per_file: Option<u32>,
    /// Tools by name. One of the built-in table is replaced, any other added.
    pub tools: Vec<ToolConfig>,
    /// When going in circles is advised on, and when stopped.
    pub loops: LoopsConfig,
    /// Directories that relative paths begin in.
    pub roots: Vec<String>,
    /// More names of arguments that are a path.
    pub path_fields: Vec<String>,
    /// More names of fields in results that say nothing new by being different.
    pub volatile_fields: Vec<String>,
    /// More beginnings of results that are failures; in lower case.
    pub error_prefixes: Vec<String>,
    /// How many tasks are remembered.
    pub tasks: Option<usize>,
}

impl Default for GuardConfig {
    fn default() -> Self {
        Self {
            enabled: true,
            stop_as: StopAs::default(),
            events: None,
            calls: None,
            time_s: None,
            per_tool: None,
            edits_per_file: None,
            tools: Vec::new(),
            loops: LoopsConfig::default(),
            roots: Vec::new(),
            path_fields: Vec::new(),
            volatile_fields: Vec::new(),
            error_prefixes: Vec::new(),
            tasks: None,
        }
    }
}

/// One of `[[guard.tools]]`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct ToolConfig {
    /// Its name.
    pub name: String,
    /// What else it is called.
    #[serde(default)]
    pub aliases: Vec<String>,
    /// What it does to the world.
    #[serde(default)]
    pub kind: Kind,
    /// How often a task may call it. Without it as often as `per_tool` says.
    pub limit: Option<u32>,
}

/// `[guard.loops]`: `[ADVISE, STOP]`, or `[]` for neither.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[non_exhaustive]
pub struct LoopsConfig {
    /// The same call with the same result.
    pub same_result: Option<Rule>,
    /// The same call, failing with the same error.
    pub same_error: Option<Rule>,
    /// Two or three calls in turn with unchanged results, in cycles.
    pub cycle: Option<Rule>,
    /// One tool with the same result to different arguments.
    pub same_answer: Option<Rule>,
    /// The same piece of text close together, so often. 0: never mind.
    pub repeated_text: Option<u32>,
    /// How much more often a poll may find nothing new.
    pub poll_factor: Option<u32>,
}

/// When a rule advises and when it stops; `None` for a rule that is off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "Vec<u32>")]
pub struct Rule(pub Option<Strikes>);

impl TryFrom<Vec<u32>> for Rule {
    type Error = String;

    fn try_from(given: Vec<u32>) -> Result<Self, String> {
        match given.as_slice() {
            [] => Ok(Self(None)),
            [advise, stop] => Ok(Self(Some(Strikes::new(*advise, *stop)))),
            _ => {
                Err("expected [ADVISE, STOP], such as [3, 5], or [] to switch the rule off".into())
            }
        }
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(Strikes { warn, stop }) => write!(f, "[{warn}, {stop}]"),
            None => f.write_str("[]"),
        }
    }
}

/// `[continuation]`
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[non_exhaustive]
pub struct ContinuationConfig {
    /// Whether answers that are cut off are continued.
    pub enabled: bool,
    /// How often one answer is continued, at most.
    pub continuations: Option<u32>,
    /// What the output limit is raised to, once, in tokens; 0: never.
    pub escalate_to: Option<u64>,
    /// Requests for fewer tokens than this are left alone.
    pub least: Option<u64>,
    /// Whether streams too are held back until it is known why they stopped.
    pub withhold: bool,
}

impl Default for ContinuationConfig {
    fn default() -> Self {
        let (continuations, escalate_to, least) = (None, None, None);
        Self { enabled: true, continuations, escalate_to, least, withhold: false }
    }
}

/// `[resume]`
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[non_exhaustive]
pub struct ResumeConfig {
    /// Whether streams that break after content are gone on with.
    pub enabled: bool,
    /// How often one answer is resumed, at most.
    pub resumes: Option<u32>,
}

impl Default for ResumeConfig {
    fn default() -> Self {
        Self { enabled: true, resumes: None }
    }
}

/// `[compaction]`. Shares are of the model's window.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[non_exhaustive]
pub struct CompactionConfig {
    /// Whether conversations are kept inside their model's window.
    pub enabled: bool,
    /// Who summarises. Without one, older messages become markers and lists of facts.
    pub summariser: Option<SummariserConfig>,
    /// The share from which on the answer says that the window is filling.
    pub warn_at: Option<f64>,
    /// The share from which on the conversation is compacted.
    pub compact_at: Option<f64>,
    /// The share it is compacted to.
    pub target: Option<f64>,
    /// The most recent messages that are never touched.
    pub keep_recent: Option<usize>,
    /// Whether a conversation is compacted in the background, for its next turn.
    pub deferred: bool,
    /// Tokens that the summaries of one tenant may use in an hour; 0: as many as it takes.
    pub spend_hour: Option<u64>,
    /// The same in a day.
    pub spend_day: Option<u64>,
}

impl Default for CompactionConfig {
    fn default() -> Self {
        Self {
            enabled: true,
            summariser: None,
            warn_at: None,
            compact_at: None,
            target: None,
            keep_recent: None,
            deferred: false,
            spend_hour: None,
            spend_day: None,
        }
    }
}

/// `[compaction.summariser]`
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct SummariserConfig {
    /// One of the providers.
    pub provider: String,
    /// The model it is asked for: a small one will do.
    pub model: String,
}
