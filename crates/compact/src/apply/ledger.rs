//! Facts that summaries lose, kept by rule.
//!
//! A summary may lose a path, a number, or that something must never be done. A [`Ledger`] finds
//! such facts in the messages that are removed, without a model, and is added to the summary. It is
//! kept from one compaction to the next, so a fact survives any number of them.
//!
//! ```
//! use steadfast_compact::Ledger;
//! use steadfast_chat::Message;
//!
//! let mut ledger = Ledger::default();
//! ledger.read([&Message::user("Fix PROJ-4711 in src/main.rs. Never touch the tests.")]);
//! let text = ledger.render(4_000);
//! for fact in ["PROJ-4711", "src/main.rs", "Never touch the tests."] {
//!     assert!(text.contains(fact), "{text}");
//! }
//! ```

use std::{
    collections::{HashMap, VecDeque},
    sync::LazyLock,
};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use steadfast_chat::{Message, Part, Role, ToolCall, ToolResult};
use steadfast_core::mask;

use super::{SummaryHeader, digest::Digest, facts, render, table_lines};

/// Facts of each kind that are kept, at most: far more than a person states, and what a summary
/// has room for.
const MAX_FACTS: usize = 200;

/// Bytes of one fact, at most.
const MAX_FACT: usize = 300;

/// Bytes of a tool's result that are scanned for identifiers: most are at its beginning.
const SCANNED: usize = 4_096;

/// Arguments that name a file.
static FILE_KEYS: LazyLock<Vec<&str>> =
    LazyLock::new(|| table_lines(include_str!("../../data/file_arguments.txt")).collect());

/// Arguments that hold a command.
const COMMAND_KEYS: [&str; 4] = ["command", "cmd", "script", "code"];

/// Parts of the names of tools that change files.
static CHANGES: LazyLock<Vec<&str>> =
    LazyLock::new(|| table_lines(include_str!("../../data/changing_tools.txt")).collect());

/// Facts of one kind, oldest first, each once.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
struct FactList(VecDeque<Box<str>>);

impl FactList {
    fn add(&mut self, fact: &str) {
        let fact = clip(fact.trim(), MAX_FACT);
        if fact.is_empty() || self.0.iter().any(|known| **known == *fact) {
            return;
        }
        if self.0.len() == MAX_FACTS {
            self.0.pop_front();
        }
        self.0.push_back(fact.into());
    }

    fn remove(&mut self, fact: &str) {
        let fact = clip(fact.trim(), MAX_FACT);
        self.0.retain(|known| **known != *fact);
    }
}

/// Facts found in messages by rule. Bounded: two hundred of a kind, three hundred bytes each. With serde it is written as it is, for
/// another process to go on with.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default)]
pub struct Ledger {
    /// What is counted of the messages.
    digest: Digest,
    /// What must not be done, as the user wrote it.
    prohibitions: FactList,
    /// What is still to be done.
    todos: FactList,
    /// The model's own list of what is still to be done, the latest one.
    plan: FactList,
    /// Commands that failed, and how.
    failed: FactList,
    changed: FactList,
    read: FactList,
    /// Identifiers that the user stated.
    asked: FactList,
    /// Identifiers that the model stated.
    stated: FactList,
    /// Identifiers in tools' results.
    shown: FactList,
}

impl Ledger {
    /// Finds the facts in messages, oldest first. Linear in their text; of a large tool result
    /// the first 4,096 bytes are scanned.
    pub fn read<'a>(&mut self, messages: impl IntoIterator<Item = &'a Message>) {
        let mut open: HashMap<&str, VecDeque<&ToolCall>> = HashMap::new();
        for message in messages {
            self.digest.read(message);
            for part in message.parts() {
                match part {
                    Part::Text(text) if message.role() == Role::User => self.user_text(&text.text),
                    Part::Text(text) if message.role() == Role::Assistant => {
                        self.todo_lines(&text.text);
                        facts::identifiers(&text.text, |found| self.stated.add(found));
                    }
                    Part::ToolCall(call) => {
                        self.call(call);
                        let key = if call.id.is_empty() { &call.name } else { &call.id };
                        open.entry(key).or_default().push_back(call);
                    }
                    Part::ToolResult(result) => {
                        let key = if result.id.is_empty() {
                            result.name.as_deref().unwrap_or_default()
                        } else {
                            &result.id
                        };
                        let call = open.get_mut(key).and_then(VecDeque::pop_front);
                        self.result(call, result);
                    }
                    _ => {}
                }
            }
        }
    }

    /// How many messages were read.
    pub fn messages(&self) -> u64 {
        self.digest.messages()
    }

    /// Counts, and how the user's turns began, as text of at most `room` bytes.
    pub(super) fn digest(&self, room: usize) -> String {
        self.digest.render(room)
    }

    /// As a message, its body in at most `room` bytes: what was written in half of it, or what is
    /// counted in a third, and facts in the rest.
    pub(crate) fn summary(
        &self,
        written: Option<&str>,
        room: usize,
        rng: &mut fastrand::Rng,
    ) -> Message {
        let body = match written {
            Some(written) => {
                let about = clip(written, room / 2);
                format!("{about}\n{}", self.complete(about, room - about.len()))
            }
            None => {
                let about = self.digest(room / 3);
                format!("{about}{}", self.render(room - about.len()))
            }
        };
        let header = SummaryHeader { messages: self.messages(), is_emergency: written.is_none() };
        render(&header, body.trim_end(), rng)
    }

    /// The facts as text of at most `room` bytes, the weightiest kind first; credentials masked.
    pub fn render(&self, room: usize) -> String {
        self.complete("", room)
    }

    /// Like [`render`](Self::render), only what `summary` does not have verbatim: what is to be added
    /// to it.
    pub fn complete(&self, summary: &str, room: usize) -> String {
        let mut out = String::new();
        for (heading, facts) in self.sections() {
            // The newest of a kind are likeliest to be needed when there is no room for all.
            let mut left = room.saturating_sub(out.len() + heading.len() + 2);
            let masked = facts
                .0
                .iter()
                .rev()
                .filter(|fact| !summary.contains(&***fact))
                .map(|fact| mask(fact));
            let lines = masked.map(|fact| format!("- {}\n", fact.replace('\n', " ")));
            let mut fits = |line: &String| left.checked_sub(line.len()).map(|rest| left = rest);
            let lines: Vec<_> = lines.map_while(|line| fits(&line).map(|()| line)).collect();
            if !lines.is_empty() {
                out.push_str(heading);
                out.push_str(":\n");
                out.extend(lines.into_iter().rev());
            }
        }
        out
    }

    fn sections(&self) -> [(&'static str, &FactList); 9] {
        [
            ("Prohibitions and rules the user stated", &self.prohibitions),
            ("Open to-dos", &self.todos),
            ("The assistant's plan, as it stood last", &self.plan),
            ("Files changed", &self.changed),
            ("Commands that failed", &self.failed),
            ("Identifiers and numbers the user stated", &self.asked),
            ("Files read", &self.read),
            ("Identifiers and numbers the assistant stated", &self.stated),
            ("Identifiers and numbers in tool results", &self.shown),
        ]
    }

    fn user_text(&mut self, text: &str) {
        facts::prohibitions(text, |found| self.prohibitions.add(found));
        self.todo_lines(text);
        facts::identifiers(text, |found| self.asked.add(found));
    }

    fn todo_lines(&mut self, text: &str) {
        facts::todos(text, |todo, is_done| {
            if is_done {
                self.todos.remove(todo);
            } else {
                self.todos.add(todo);
            }
        });
    }

    fn call(&mut self, call: &ToolCall) {
        let Ok(arguments) = serde_json::from_str::<Map<String, Value>>(&call.arguments) else {
            return;
        };
        let name = call.name.to_ascii_lowercase();
        if let (true, Some(Value::Array(items))) = (name.contains("todo"), arguments.get("todos")) {
            self.plan = FactList::default();
            for item in items {
                let is_done = item["status"] == "completed" || item["status"] == "cancelled";
                let text = item.as_str().or_else(|| item["content"].as_str());
                if let (Some(text), false) = (text, is_done) {
                    self.plan.add(text);
                }
            }
        }
        let changes = CHANGES.iter().any(|part| name.contains(part));
        let files = if changes { &mut self.changed } else { &mut self.read };
        for key in &*FILE_KEYS {
            if let Some(path) = arguments.get(*key).and_then(Value::as_str) {
                files.add(path);
            }
        }
        // A patch names its files in its text.
        for text in arguments.values().filter_map(Value::as_str) {
            facts::patched(text, |path| self.changed.add(path));
        }
    }

    fn result(&mut self, call: Option<&ToolCall>, result: &ToolResult) {
        let text = result.content.iter().filter_map(Part::as_text);
        let mut left = SCANNED;
        for text in text.clone() {
            let head = clip(text, left);
            left -= head.len();
            facts::identifiers(head, |found| self.shown.add(found));
        }
        if !result.is_error {
            return;
        }
        let command = |call: &ToolCall| {
            let fields = serde_json::from_str::<Map<String, Value>>(&call.arguments).ok()?;
            COMMAND_KEYS.iter().find_map(|key| fields.get(*key)?.as_str().map(str::to_owned))
        };
        let what = match call {
            Some(call) => command(call)
                .unwrap_or_else(|| format!("{} {}", call.name, clip(&call.arguments, 120))),
            None => result.name.clone().unwrap_or_default(),
        };
        let why = text.flat_map(str::lines).map(str::trim).find(|line| !line.is_empty());
        let why = clip(why.unwrap_or("no message"), 140);
        self.failed.add(&format!("{}: {why}", clip(&what, 140)));
    }
}

/// The first `most` bytes of a text, on a character border.
pub(crate) fn clip(text: &str, most: usize) -> &str {
    if text.len() <= most {
        return text;
    }
    let mut end = most;
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair(name: &str, arguments: &str, result: &str, is_error: bool) -> [Message; 2] {
        let answer = ToolResult {
            id: "1".into(),
            content: vec![Part::text(result)],
            is_error,
            ..ToolResult::default()
        };
        [
            Message::new(Role::Assistant, vec![Part::tool_call("1", name, arguments)]),
            Message::new(Role::Tool, vec![Part::ToolResult(answer)]),
        ]
    }

    fn of(messages: &[Message]) -> Ledger {
        let mut ledger = Ledger::default();
        ledger.read(messages);
        ledger
    }

    fn list(facts: &FactList) -> Vec<&str> {
        facts.0.iter().map(|fact| &**fact).collect()
    }

    #[test]
    fn files_are_sorted_by_what_is_done_to_them() {
        let mut messages = Vec::new();
        messages.extend(pair("read_file", r#"{"path":"a.rs"}"#, "", false));
        messages.extend(pair("Edit", r#"{"file_path":"b.rs","old":"x"}"#, "", false));
        messages.extend(pair("write_file", r#"{"path":"c.rs"}"#, "", false));
        messages.extend(pair(
            "apply_patch",
            r#"{"input":"*** Begin Patch\n*** Update File: d.rs\n+x\n*** Add File: e.rs\n"}"#,
            "",
            false,
        ));
        let ledger = of(&messages);
        assert_eq!(list(&ledger.read), ["a.rs"]);
        assert_eq!(list(&ledger.changed), ["b.rs", "c.rs", "d.rs", "e.rs"]);
    }

    #[test]
    fn failures_keep_the_command_and_the_first_line() {
        let run = |arguments, result| of(&pair("run", arguments, result, true));
        let ledger = run(r#"{"command":"cargo test"}"#, "\nerror[E0308]: mismatched\nmore");
        assert_eq!(list(&ledger.failed), ["cargo test: error[E0308]: mismatched"]);
        let ledger = run("not json", "");
        assert_eq!(list(&ledger.failed), ["run not json: no message"]);
        assert!(of(&pair("run", r#"{"command":"ls"}"#, "fine", false)).failed.0.is_empty());
    }

    #[test]
    fn calls_without_ids_are_matched_by_name() {
        let call = |n| {
            Message::new(
                Role::Assistant,
                vec![Part::tool_call("", "run", format!("{{\"cmd\":\"c{n}\"}}"))],
            )
        };
        let failed = ToolResult {
            name: Some("run".into()),
            content: vec![Part::text("no")],
            is_error: true,
            ..ToolResult::default()
        };
        let answer = || Message::new(Role::User, vec![Part::ToolResult(failed.clone())]);
        let ledger = of(&[call(1), answer(), call(2), answer()]);
        assert_eq!(list(&ledger.failed), ["c1: no", "c2: no"]);
    }

    #[test]
    fn to_dos_are_open_until_they_are_done() {
        let ledger = of(&[
            Message::user("- [ ] write docs\n- [ ] run tests\nTODO: ask Bob"),
            Message::assistant("- [x] write docs"),
        ]);
        assert_eq!(list(&ledger.todos), ["run tests", "ask Bob"]);
        let plan = r#"{"todos":[{"content":"one","status":"completed"},{"content":"two","status":"pending"},"three"]}"#;
        let mut messages = pair("TodoWrite", r#"{"todos":["old"]}"#, "", false).to_vec();
        messages.extend(pair("TodoWrite", plan, "", false));
        assert_eq!(list(&of(&messages).plan), ["two", "three"]);
    }

    #[test]
    fn only_the_user_forbids() {
        let ledger = of(&[
            Message::assistant("Never mind."),
            Message::tool("1", "never trust me"),
            Message::user("Please don’t push to main. It is fine to commit.\nDo not use unwrap"),
        ]);
        assert_eq!(list(&ledger.prohibitions), ["Please don’t push to main.", "Do not use unwrap"]);
    }

    #[test]
    fn only_what_a_summary_lacks_completes_it() {
        let ledger = of(&[Message::user("Port 8443 and host db-7.internal. Never use port 8080.")]);
        let added = ledger.complete("The port is 8443. Never use port 8080.", 2_000);
        assert_eq!(added, "Identifiers and numbers the user stated:\n- db-7.internal\n");
        assert_eq!(ledger.complete(&ledger.render(2_000), 2_000), "");
    }

    #[test]
    fn memory_and_room_are_bounded_and_secrets_masked() {
        let mut ledger = Ledger::default();
        for number in 0..3 * MAX_FACTS {
            ledger.read([&Message::user(format!("id-{number:06} {}", "a/".repeat(900)))]);
        }
        assert!(ledger.asked.0.len() == MAX_FACTS);
        assert!(ledger.asked.0.iter().all(|fact| fact.len() <= MAX_FACT));
        for room in [0, 1, 50, 500, 5_000] {
            assert!(ledger.render(room).len() <= room);
        }
        let ledger = of(&[Message::user("Never print sk-proj-abcdefghijklmnop1234.")]);
        let text = ledger.render(1_000);
        assert!(!text.contains("abcdefghijklmnop") && text.contains("Never print"), "{text}");
    }
}
