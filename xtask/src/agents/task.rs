//! The task that an agent is given, what the simulated model does for it, and the faults on the way.

use std::{fmt::Write as _, fs, path::Path};

use super::setting::Setting;

/// What the user asks for. The simulated model knows its task by this.
pub(super) const PROMPT: &str = "Bring the keeper's log up to date.";

/// What is in the repository before.
pub(super) const LOG: &str = "night 1: fog\nnight 2: rain\n";
const LOG_AFTER: &str = "night 1: fog\nnight 2: rain\nnight 3: clear\n";
const INDEX_AFTER: &str = "nights: 3\n";
/// What the command of the task makes of the two.
pub(super) const COMMAND: &str = "cat log.txt index.txt > copy.txt";

/// The text before the call that the faults meet. A word is a piece of the stream, being shorter than the
/// simulator's eight characters: a fault is so many words in.
const BROKEN_STEP: &str = "The last one is not there yet, so I add it now.";
/// Inside of it.
const WORDS: usize = 5;

/// How many commands the long session has.
const LONG: usize = 100;

/// How many one has that is compacted.
const COMPACTED: usize = 24;

/// What asks for a summary: Codex, and the gateway on behalf of whoever asks it for a compaction.
const SUMMARISED_BY: [&str; 2] =
    ["CONTEXT CHECKPOINT COMPACTION", "You keep the record of a conversation"];

/// A column of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Column {
    pub(super) name: &'static str,
    fault: Option<Fault>,
    /// Whether it is about calls of tools.
    pub(super) calls: bool,
    /// Whether a run of it is mostly waiting.
    pub(super) waits: bool,
    /// How many seconds a run may take.
    pub(super) limit_s: u64,
    /// What of the agent's script is set for it.
    pub(super) setting: Option<Setting>,
    /// How many commands it has in place of the task; 0 for the task.
    commands: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    Overloaded,
    RateLimit,
    CutText,
    CutCall,
    Stall,
    ErrorEvent,
}

const fn column(name: &'static str, fault: Option<Fault>) -> Column {
    Column { name, fault, calls: false, waits: false, limit_s: 150, setting: None, commands: 0 }
}

pub(super) const TASK: Column = column("task", None);

pub(super) const COLUMNS: [Column; 11] = [
    TASK,
    column("overloaded", Some(Fault::Overloaded)),
    column("rate limit", Some(Fault::RateLimit)),
    column("cut in text", Some(Fault::CutText)),
    Column { calls: true, ..column("cut in a call", Some(Fault::CutCall)) },
    // The longest patience of an agent that was seen is five and a half minutes, the gateway's three.
    Column { waits: true, limit_s: 400, ..column("stall", Some(Fault::Stall)) },
    column("error event", Some(Fault::ErrorEvent)),
    Column { calls: true, limit_s: 300, commands: LONG, ..column("100 calls", None) },
    compacted("summary", Setting::Summary),
    compacted("compaction", Setting::Compaction),
    Column { calls: true, setting: Some(Setting::Models), ..column("models", None) },
];

/// A session that is compacted in its middle.
const fn compacted(name: &'static str, by: Setting) -> Column {
    Column {
        calls: true,
        limit_s: 200,
        setting: Some(by),
        commands: COMPACTED,
        ..column(name, None)
    }
}

impl Column {
    /// Whether nothing fails in it: its run without the gateway is what others are compared with.
    pub(super) fn is_healthy(&self) -> bool {
        self.fault.is_none()
    }

    /// How many answers of the model the task takes.
    pub(super) fn answers(&self) -> usize {
        if self.commands > 0 { self.commands + 1 } else { 5 }
    }

    /// The task of the simulated model, as `steadfast sim --task` reads it.
    pub(super) fn task(&self, repository: &Path) -> String {
        let mut text = format!(
            "root = {:?}\ncontains = {PROMPT:?}\nsummarised_by = {SUMMARISED_BY:?}\n",
            repository.display().to_string()
        );
        let mut step = |says: &str, call: String| {
            let _ = write!(text, "\n[[steps]]\ntext = {says:?}\n");
            if !call.is_empty() {
                let _ = writeln!(text, "call = {{ {call} }}");
            }
        };
        if self.commands > 0 {
            // Enough to fill a window, where that is what it is about.
            let more = if self.setting.is_some() { "; seq 1000 1400" } else { "" };
            for n in 1..=self.commands {
                let command = format!("echo 'hour {n}' >> hours.txt{more}");
                step(&format!("Hour {n}."), format!("run = {{ command = {command:?} }}"));
            }
            step("All of the hours are there.", String::new());
            return text;
        }
        step("First I read the log as it is.", "read = { path = \"log.txt\" }".to_owned());
        let (old, new) = ("night 2: rain\n", "night 2: rain\nnight 3: clear\n");
        step(BROKEN_STEP, format!("edit = {{ path = \"log.txt\", old = {old:?}, new = {new:?} }}"));
        // A call with nothing before it.
        step("", format!("write = {{ path = \"index.txt\", content = {INDEX_AFTER:?} }}"));
        step("At last the copy, by a command.", format!("run = {{ command = {COMMAND:?} }}"));
        step("The log, its index and the copy are up to date.", String::new());
        text
    }

    /// The faults on the way, each as how many results of tools it waits for, how often it comes, and what it is: they
    /// meet the step after the first call, or the only one, and pass. The cut in a call also meets the step after
    /// that, which is a call alone.
    fn faults(&self, dialect: &str, tools: bool) -> Vec<(usize, usize, String)> {
        let Some(fault) = self.fault else { return Vec::new() };
        let breaks = |after: usize, how: &str| {
            format!("{{ break = {{ after_events = {after}, how = {how} }} }}")
        };
        // Gemini sends a call in one piece: half of it, then.
        let in_call = |text: usize| match dialect {
            "gemini" => breaks(text, r#""truncated_json""#),
            _ => breaks(text + 3, r#""close""#),
        };
        let first = usize::from(tools);
        match fault {
            Fault::Overloaded => vec![(first, 2, r#"{ error = "overloaded" }"#.to_owned())],
            Fault::RateLimit => {
                let hints = r#"{ retry_after = "2", retry_info = "2s" }"#;
                vec![(first, 1, format!("{{ error = {{ rate_limit = {hints} }} }}"))]
            }
            Fault::CutText => vec![(first, 1, breaks(WORDS, r#""close""#))],
            Fault::CutCall => {
                let words = BROKEN_STEP.split(' ').count();
                vec![(1, 1, in_call(words)), (2, 1, in_call(0))]
            }
            Fault::Stall => vec![(first, 1, breaks(WORDS, r#""stall""#))],
            Fault::ErrorEvent => {
                vec![(first, 1, breaks(WORDS, r#"{ error_event = "overloaded" }"#))]
            }
        }
    }

    /// How many answers fail.
    pub(super) fn failures(&self, dialect: &str, tools: bool) -> usize {
        self.faults(dialect, tools).iter().map(|(_, times, _)| times).sum()
    }

    /// The plan of the provider of `dialect`, as `steadfast sim --plan` reads it.
    pub(super) fn plan(&self, dialect: &str, tools: bool) -> String {
        if self.is_healthy() {
            return "rules = []\n".to_owned();
        }
        let faults = self.faults(dialect, tools);
        faults.into_iter().fold(String::new(), |mut plan, (results, times, fault)| {
            let _ = write!(
                plan,
                "[[rules]]\nprovider = {dialect:?}\ntool_results = {results}\ntimes = {times}\n\
                 stream = true\nfault = {fault}\n\n"
            );
            plan
        })
    }

    /// What is not as it should be in the repository afterwards; `None` if the task is done.
    pub(super) fn undone(&self, repository: &Path) -> Option<String> {
        let hours: String = (1..=self.commands).fold(String::new(), |mut text, n| {
            let _ = writeln!(text, "hour {n}");
            text
        });
        let copy = [LOG_AFTER, INDEX_AFTER].concat();
        let files: &[(&str, &str)] = match self.commands > 0 {
            true => &[("hours.txt", &hours)],
            false => &[("log.txt", LOG_AFTER), ("index.txt", INDEX_AFTER), ("copy.txt", &copy)],
        };
        files.iter().find_map(|(name, wanted)| match fs::read_to_string(repository.join(name)) {
            Ok(found) if found == **wanted => None,
            Ok(found) if self.commands > 0 => {
                Some(format!("{name} has {} lines", found.lines().count()))
            }
            Ok(found) => Some(format!("{name} is {found:?}")),
            Err(_) => Some(format!("{name} is not there")),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_the_step_that_breaks_are_pieces_of_the_stream() {
        assert!(BROKEN_STEP.split(' ').all(|word| word.len() <= 7), "a longer one is two pieces");
        assert!(WORDS < BROKEN_STEP.split(' ').count());
    }

    #[test]
    fn names_of_columns_do_not_contain_each_other() {
        for (at, column) in COLUMNS.iter().enumerate() {
            let others = COLUMNS.iter().enumerate().filter(|(other, _)| *other != at);
            assert!(others.into_iter().all(|(_, other)| !other.name.contains(column.name)));
        }
    }
}
