//! A model that does a task with the client's own tools.
//!
//! Agents differ in their tools, not in what the tools do: a [`Task`] says what to do at each step, and
//! the provider finds the tool for it among those that the request declares, by the names in
//! `data/tools.toml`, and fills its schema.

mod tools;

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::answer::Answer;
use crate::continuation::ContinuationMode;
use crate::request::{SimRequest, any_text, has_text};

/// A task: what the model does, a step a turn.
///
/// Which step is next is read from the request alone: as many as it has results of tools. So a request
/// that is repeated gets the same step again, and another provider that is given the same task takes
/// over where the first one was. A request that asks for a summary gets one that says how many steps are
/// done, and those that have it instead of the results go on from there.
///
/// A request is of the task if it [contains](Self::contains) its text and either declares tools or
/// describes `SEARCH/REPLACE` blocks, by which an agent without tools edits files: that one gets all
/// edits in one answer. Whatever else an agent asks beside its work (a title, say) declares no tools and gets an
/// answer that is generated.
///
/// ```
/// use steadfast_sim::{Dialect, SimProvider, Task};
///
/// let task = Task::from_toml(r#"
///     root = "/tmp/scratch"
///     contains = "Bring the log up to date"
///
///     [[steps]]
///     text = "First, what is there."
///     call = { read = { path = "log.txt" } }
///
///     [[steps]]
///     call = { edit = { path = "log.txt", old = "night 1", new = "night 2" } }
///
///     [[steps]]
///     call = { run = { command = "wc -l log.txt" } }
///
///     [[steps]]
///     text = "It is up to date."
/// "#).unwrap();
/// let provider = SimProvider::builder(Dialect::Anthropic).with_task(task).build();
/// # drop(provider);
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Task {
    /// The folder that the paths of the steps are in: many tools want them absolute.
    pub root: String,
    /// A request is of the task if its system prompt or a message contains this text.
    pub contains: String,
    /// Texts of which a request has one that asks for a summary of the conversation. One that ends with OpenAI's
    /// `compaction_trigger` asks for one without.
    #[serde(default)]
    pub summarised_by: Vec<String>,
    /// The steps, in order. After the last one it is repeated.
    pub steps: Vec<TaskStep>,
}

/// One turn of the model.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TaskStep {
    /// What it writes, before its call if there is one.
    pub text: String,
    /// What it does; a step without it ends the turn.
    pub call: Option<TaskCall>,
}

/// What a step does, whatever the client's tool for it is called. Paths are relative to the task's root.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
#[non_exhaustive]
pub enum TaskCall {
    /// Reads a file.
    Read {
        /// The file.
        path: String,
    },
    /// Makes a file or replaces all of it.
    Write {
        /// The file.
        path: String,
        /// All that is in it.
        content: String,
    },
    /// Replaces a piece of a file.
    Edit {
        /// The file.
        path: String,
        /// What is there.
        old: String,
        /// What is to be there.
        new: String,
    },
    /// Runs a command in a shell.
    Run {
        /// The command.
        command: String,
    },
}

/// What stands in a summary before the number of steps that are done.
const DONE: &str = "Steps done: ";

/// A task that can not be read: where it is wrong, and what would be right.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskError {
    message: String,
}

/// Whether `request` has a summary that a task has written.
pub(crate) fn has_summary(request: &SimRequest) -> bool {
    request.compacted.contains(DONE) || has_text(&request.body, DONE)
}

impl Task {
    /// Reads a task from TOML.
    ///
    /// # Errors
    ///
    /// Names the line, the key and what is allowed there.
    pub fn from_toml(text: &str) -> Result<Self, TaskError> {
        let task: Self = toml::from_str(text)
            .map_err(|error| TaskError { message: error.to_string().trim_end().to_owned() })?;
        task.checked()
    }

    /// Reads a task from JSON.
    ///
    /// # Errors
    ///
    /// Names the line, the key and what is allowed there.
    pub fn from_json(text: &str) -> Result<Self, TaskError> {
        let task: Self =
            serde_json::from_str(text).map_err(|error| TaskError { message: error.to_string() })?;
        task.checked()
    }

    fn checked(self) -> Result<Self, TaskError> {
        let message = if self.contains.is_empty() {
            "contains is empty; it must name a text that only this task's requests have"
        } else if self.steps.is_empty() {
            "there are no steps; give at least one with a text"
        } else {
            return Ok(self);
        };
        Err(TaskError { message: message.to_owned() })
    }

    /// The model's next turn, if `request` is of this task.
    ///
    /// It may be [continued](crate::continuation), faithfully.
    #[must_use]
    pub fn answer(&self, request: &SimRequest) -> Option<Answer> {
        if !has_text(&request.body, &self.contains) {
            return None;
        }
        let asks = |text: &String| has_text(&request.body, text);
        let answer = if request.asks_for_compaction || self.summarised_by.iter().any(asks) {
            Answer::text(format!("{DONE}{}. The task: {}", self.done(request), self.contains))
        } else if !request.tools.is_empty() {
            self.turn(request)
        } else if has_text(&request.body, "SEARCH/REPLACE") {
            self.blocks()
        } else {
            return None;
        };
        Some(answer.continuation(ContinuationMode::Faithful))
    }

    fn turn(&self, request: &SimRequest) -> Answer {
        let Some(step) = self.steps.get(self.done(request)).or(self.steps.last()) else {
            return Answer::default();
        };
        let mut answer = Answer::default();
        if !step.text.is_empty() {
            answer = answer.then_text(step.text.as_str());
        }
        match &step.call {
            None => answer,
            Some(call) => match tools::call(call, &self.root, &request.tools) {
                Some((name, arguments)) => answer.then_tool_call(name, arguments),
                None => answer.then_text(format!("There is no tool to {}.", call.verb())),
            },
        }
    }

    /// How many steps are done: by the last summary and the results of tools since, or, where a conversation is
    /// shown as text, by what the model says at each step.
    fn done(&self, request: &SimRequest) -> usize {
        let summarised = |text: &str| {
            let after = text.rsplit_once(DONE).map_or("", |(_, after)| after);
            after.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
        };
        let mut done = summarised(&request.compacted).unwrap_or(0);
        let mut shown = 0;
        any_text(&request.body, &mut |text| {
            done = done.max(summarised(text).unwrap_or(0));
            let uttered = |step: &TaskStep| !step.text.is_empty() && text.contains(&step.text);
            shown = shown.max(self.steps.iter().rposition(uttered).map_or(0, |at| at + 1));
            false
        });
        if request.tools.is_empty() { done.max(shown) } else { done + request.tool_results }
    }

    /// All edits at once, as text.
    fn blocks(&self) -> Answer {
        let mut text = String::new();
        for step in &self.steps {
            let edit = step.call.as_ref().and_then(TaskCall::block);
            for piece in [Some(step.text.clone()), edit].into_iter().flatten() {
                if !text.is_empty() && !piece.is_empty() {
                    text.push_str("\n\n");
                }
                text.push_str(&piece);
            }
        }
        Answer::text(text)
    }
}

impl TaskCall {
    fn verb(&self) -> &'static str {
        match self {
            Self::Read { .. } => "read",
            Self::Write { .. } => "write",
            Self::Edit { .. } => "edit",
            Self::Run { .. } => "run",
        }
    }

    /// The names and values of its arguments, as `data/tools.toml` names them.
    fn arguments(&self, root: &str) -> Vec<(&'static str, String)> {
        let at = |path: &str| format!("{}/{path}", root.trim_end_matches('/'));
        match self {
            Self::Read { path } => vec![("path", at(path))],
            Self::Write { path, content } => {
                vec![("path", at(path)), ("content", content.clone())]
            }
            Self::Edit { path, old, new } => {
                vec![("path", at(path)), ("old", old.clone()), ("new", new.clone())]
            }
            Self::Run { command } => vec![("command", command.clone())],
        }
    }

    /// What it writes as a patch in Codex's form, of whole lines.
    fn patch(&self) -> Option<String> {
        let lines = |sign: char, text: &str| -> String {
            text.lines().map(|line| format!("{sign}{line}\n")).collect()
        };
        let change = match self {
            Self::Write { path, content } => {
                format!("*** Add File: {path}\n{}", lines('+', content))
            }
            Self::Edit { path, old, new } => {
                format!("*** Update File: {path}\n@@\n{}{}", lines('-', old), lines('+', new))
            }
            Self::Read { .. } | Self::Run { .. } => return None,
        };
        Some(format!("*** Begin Patch\n{change}*** End Patch"))
    }

    /// What it reads, as a command.
    fn by_command(&self) -> Option<Self> {
        match self {
            Self::Read { path } => Some(Self::Run { command: format!("cat {path}") }),
            _ => None,
        }
    }

    /// An edit as a block of text.
    fn block(&self) -> Option<String> {
        let line = |text: &str| match text {
            "" => String::new(),
            text => format!("{}\n", text.trim_end_matches('\n')),
        };
        let (path, old, new) = match self {
            Self::Write { path, content } => (path, "", content.as_str()),
            Self::Edit { path, old, new } => (path, old.as_str(), new.as_str()),
            Self::Read { .. } | Self::Run { .. } => return None,
        };
        Some(format!(
            "{path}\n```\n<<<<<<< SEARCH\n{}=======\n{}>>>>>>> REPLACE\n```",
            line(old),
            line(new)
        ))
    }
}

impl fmt::Display for TaskError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "task: {}", self.message)
    }
}

impl std::error::Error for TaskError {}
