//! The simulated model: it writes a novel, as a model with these tools would.
//!
//! It has no memory. What it answers follows from the prompt and from the results that came since, so it goes on where an agent was
//! killed, as a real one does.

use serde_json::{Value, json};
use steadfast::sim::{Answer, ContinuationMode, SimRequest};

/// What the model answers; for a request that asks for the rest of an answer, the rest of it.
pub(crate) fn answer(request: &SimRequest) -> Answer {
    let Some((prompt, results)) = conversation(&request.body) else { return Answer::text(ABOUT) };
    let can_write = request.tools.iter().any(|(name, _)| name == "write_file");
    let whole = if can_write { prompt.answer(&results) } else { help(&results) };
    let whole = whole.continuation(ContinuationMode::Faithful);
    whole.continue_for(request).unwrap_or(whole)
}

const ABOUT: &str = "I am a simulated model, and I write books. Say `Begin the book`, `Write chapter 1`, `Ask a helper how long the book \
                     is`, or the last one with `in the background`. With a provider's key in the environment, a real model is here.";

/// What the user wants.
#[derive(Clone, Copy, Debug)]
enum Prompt<'a> {
    Begin,
    Write(u32),
    AskHelper { background: bool },
    Help,
    Announce(&'a str),
    Fix,
    GoOn,
    About,
}

impl<'a> Prompt<'a> {
    /// What a text asks for; `None`: it is somebody else's, such as a layer's that asks for the rest of an answer.
    fn of(text: &'a str) -> Option<Self> {
        let number = || text.split(|c: char| !c.is_ascii_digit()).find_map(|n| n.parse().ok());
        Some(match text {
            _ if text.starts_with("[Not from the user.]") => {
                Self::Announce(text.lines().last().unwrap_or_default())
            }
            _ if text.starts_with("The check ") => Self::Fix,
            _ if text.starts_with("You have used ") => Self::GoOn,
            _ if text.contains("egin the book") => Self::Begin,
            _ if text.contains("helper") => {
                Self::AskHelper { background: text.contains("background") }
            }
            _ if text.contains("How many chapters") => Self::Help,
            _ if text.contains("can you do") => Self::About,
            _ if text.contains("rite chapter") => Self::Write(number()?),
            _ => return None,
        })
    }

    fn answer(self, results: &[String]) -> Answer {
        match self {
            Self::Begin => begin(results),
            Self::Write(number) => write(number, results),
            Self::AskHelper { background } => ask_helper(results, background),
            Self::Help => help(results),
            Self::Announce(text) => Answer::text(format!("News: {text}")),
            Self::Fix => fix(results),
            Self::About => Answer::text(ABOUT),
            Self::GoOn => Answer::text("I went over it again, and have nothing to add."),
        }
    }
}

/// The chapter that everybody can check.
pub(crate) fn chapter(number: u32) -> String {
    const WORDS: [&str; 16] = [
        "the", "river", "was", "older", "than", "its", "bridge", "and", "knew", "every", "stone",
        "by", "name", "before", "rain", "came",
    ];
    let mut text = format!("Chapter {number}\n\n");
    let mut at = number as usize;
    for word in 0..120 {
        at = (at * 7 + word * 3 + 5) % WORDS.len();
        text.push_str(WORDS[at]);
        text.push(if word % 12 == 11 { '\n' } else { ' ' });
    }
    text
}

/// Where chapter `number` is.
pub(crate) fn path(number: u32) -> String {
    format!("chapters/{number:03}.txt")
}

/// The index, up to chapter `number`.
pub(crate) fn index(number: u32) -> String {
    let entries: String = (1..=number).map(entry).collect();
    format!("# The book\n\n{entries}{}\n", next(number + 1))
}

fn entry(number: u32) -> String {
    format!("{number}. [Chapter {number}]({})\n", path(number))
}

fn next(number: u32) -> String {
    format!("<!-- chapter {number} -->")
}

fn call(text: &str, tool: &str, arguments: &Value) -> Answer {
    Answer::text(text).then_tool_call(tool, arguments.to_string())
}

fn begin(results: &[String]) -> Answer {
    match results {
        [] => call(
            "I begin with the index.",
            "write_file",
            &json!({"path": "index.md", "content": index(0)}),
        ),
        _ => Answer::text("The book has an index, and nothing in it yet."),
    }
}

fn write(number: u32, results: &[String]) -> Answer {
    let path = path(number);
    match results {
        [] => call(
            "I write the chapter first.",
            "write_file",
            &json!({"path": path, "content": chapter(number)}),
        ),
        [_] => call(
            "Then I count its words.",
            "run_command",
            &json!({"command": format!("wc -w < {path}")}),
        ),
        [_, _] => {
            let (old, new) = (next(number), format!("{}{}", entry(number), next(number + 1)));
            let arguments = json!({"path": "index.md", "old_string": old, "new_string": new});
            call("It goes into the index.", "edit_file", &arguments)
        }
        // It was changed before an earlier process was killed.
        [_, _, edited] if edited.contains("occurs 0 times") => {
            call("It may be there already.", "read_file", &json!({"path": "index.md"}))
        }
        [_, words, rest @ ..] => {
            let is_there = match rest {
                [_, index] => index.contains(&entry(number)),
                _ => true,
            };
            let words = words.trim();
            Answer::text(match is_there {
                true => {
                    format!("Chapter {number} is written, in {words} words, and the index has it.")
                }
                false => format!("Chapter {number} is written, but the index has no place for it."),
            })
        }
    }
}

fn ask_helper(results: &[String], background: bool) -> Answer {
    match results {
        [] => call(
            "A helper can find that out.",
            "delegate",
            &json!({"task": "How many chapters are in the folder `chapters`?", "background": background}),
        ),
        [result, ..] if background => Answer::text(result.as_str()),
        [result, ..] => Answer::text(format!("The helper says: {result}")),
    }
}

/// A helper's answers.
fn help(results: &[String]) -> Answer {
    match results {
        [] => call("I count them.", "list_files", &json!({"path": "chapters"})),
        [files, ..] => {
            let chapters = files.lines().filter(|file| file.ends_with(".txt")).count();
            Answer::text(format!("The book has {chapters} chapters."))
        }
    }
}

/// What a failed check asks for.
fn fix(results: &[String]) -> Answer {
    match results {
        [] => call("I mark it as checked.", "run_command", &json!({"command": "touch checked"})),
        _ => Answer::text("Now it is checked."),
    }
}

/// The user's last prompt and the results since, in both dialects that are simulated.
fn conversation(body: &Value) -> Option<(Prompt<'_>, Vec<String>)> {
    let mut prompt = None;
    let mut results = Vec::new();
    for message in body["messages"].as_array()? {
        if message["role"] == "tool" {
            results.push(joined(&message["content"]));
        }
        if message["role"] != "user" {
            continue;
        }
        let content = &message["content"];
        let blocks = content.as_array().map_or(std::slice::from_ref(content), Vec::as_slice);
        for block in blocks {
            if block["type"] == "tool_result" {
                results.push(joined(&block["content"]));
            }
            let text = block.as_str().or_else(|| block["text"].as_str());
            if let Some(wanted) = text.and_then(Prompt::of) {
                prompt = Some(wanted);
                results.clear();
            }
        }
    }
    Some((prompt?, results))
}

/// A text, whether it is one or a list of parts.
fn joined(content: &Value) -> String {
    match content {
        Value::String(text) => text.clone(),
        Value::Array(parts) => parts.iter().filter_map(|part| part["text"].as_str()).collect(),
        _ => String::new(),
    }
}
