//! `steadfast sessions`: the conversations in a folder, read without a lock beside the process that writes them.

use std::fmt::Write as _;

use serde_json::{Value, json};
use steadfast_chat::{Message, Part};
use steadfast_session::{SessionEntry, SessionScope, SessionStore, SessionTranscript, ThreadCheck};

use super::{Exit, FolderArgs, SessionsCommand, folder, print};
use crate::escape;

pub(super) fn run(command: &SessionsCommand) -> Result<(), Exit> {
    match command {
        SessionsCommand::List(args) => list(args),
        SessionsCommand::Show { thread, folder } => show(thread, folder),
        SessionsCommand::Verify(args) => verify(args),
    }
}

fn store(args: &FolderArgs) -> Result<SessionStore, Exit> {
    folder::check(&args.dir)?;
    Ok(SessionStore::new(&args.dir))
}

fn list(args: &FolderArgs) -> Result<(), Exit> {
    let threads = store(args)?.list().map_err(|error| {
        let Exit(code, message) = folder::failed(&error);
        Exit(code, format!("{message}; `steadfast sessions verify` names every thread like that"))
    })?;
    if args.json {
        return folder::print_json(&threads);
    }
    if threads.is_empty() {
        print::report(format_args!("{}: there are no threads", folder::name(&args.dir)));
        return Ok(());
    }
    let mut rows = vec![["THREAD", "SESSION", "TURNS", "MESSAGES", "LAST"].map(str::to_owned)];
    rows.extend(threads.into_iter().map(|one| {
        let last = one.last.unwrap_or_else(|| "-".to_owned());
        let [session, turns] = [one.session, one.turns].map(|number| number.to_string());
        [one.thread, session, turns, one.messages.to_string(), last]
    }));
    folder::print_rows(&rows)
}

fn show(thread: &str, args: &FolderArgs) -> Result<(), Exit> {
    let found = store(args)?.show(&SessionScope::prefix(thread));
    let found = found.map_err(|error| folder::failed(&error))?;
    if args.json {
        return folder::print_json(&found);
    }
    Ok(print::result(transcript(&found).trim_end())?)
}

/// Every turn of the log. Nothing of a message is at the beginning of a line.
fn transcript(found: &SessionTranscript) -> String {
    let mut out = format!(
        "thread {}: session {} is live, with {} messages\n",
        escape::text(&found.thread),
        found.session,
        found.history.len()
    );
    for entry in &found.entries {
        // Writing to a string does not fail.
        let _ = match entry {
            SessionEntry::Turn(turn) => {
                let key = turn.key.as_ref().map(|key| format!("  key {}", escape::text(key)));
                let (number, at) = (turn.turn, escape::text(&turn.at));
                writeln!(out, "turn {number}  {at}{}", key.unwrap_or_default())
            }
            SessionEntry::Started(start) => {
                let at = escape::text(&start.at);
                writeln!(out, "session {} starts  {at}", start.session)
            }
            _ => Ok(()),
        };
        if let SessionEntry::Turn(turn) = entry {
            turn.messages.iter().for_each(|message| push_message(&mut out, message));
        }
    }
    out
}

fn push_message(out: &mut String, message: &Message) {
    out.push_str("  ");
    out.push_str(message.role().as_str());
    out.push('\n');
    for part in message.parts() {
        match part {
            Part::Text(text) => folder::push_text(out, "    ", &text.text),
            Part::ToolCall(call) => {
                let text = format!("[calls {}] {}", call.name, call.arguments);
                folder::push_text(out, "    ", &text);
            }
            Part::ToolResult(result) => {
                out.push_str(if result.is_error { "    [error]\n" } else { "    [result]\n" });
                let texts = result.content.iter().filter_map(Part::as_text);
                texts.for_each(|text| folder::push_text(out, "    ", text));
            }
            Part::Thinking(_) | Part::Redacted { .. } => out.push_str("    [thinking]\n"),
            Part::Media(_) => out.push_str("    [media]\n"),
            Part::Opaque(block) => {
                folder::push_text(out, "    ", &format!("[{}]", block.kind));
            }
            _ => out.push_str("    [other]\n"),
        }
    }
}

fn verify(args: &FolderArgs) -> Result<(), Exit> {
    let checks = store(args)?.verify().map_err(|error| folder::failed(&error))?;
    if args.json {
        folder::print_json(&checks.iter().map(as_json).collect::<Result<Vec<_>, _>>()?)?;
    } else if checks.is_empty() {
        print::report(format_args!("{}: there are no threads", folder::name(&args.dir)));
    } else {
        let rows: Vec<_> = checks.iter().map(row).collect();
        folder::print_rows(&rows)?;
    }
    match checks.iter().filter(|check| !check.is_ok()).count() {
        0 => Ok(()),
        damaged => Err(Exit::failed(format_args!("{damaged} of {} threads damaged", checks.len()))),
    }
}

fn as_json(check: &ThreadCheck) -> Result<Value, Exit> {
    let mut value = serde_json::to_value(check).map_err(Exit::failed)?;
    value["ok"] = json!(check.is_ok());
    Ok(value)
}

/// A thread, whether it is all right, and whatever is not as after a clean end.
fn row(check: &ThreadCheck) -> [String; 4] {
    let state = if check.is_ok() { "ok" } else { "damaged" };
    let mut notes: Vec<String> = check.error.iter().cloned().collect();
    let counts = [
        (check.bad_lines, "bad lines"),
        (check.damaged as u64, "damaged files"),
        (check.missing, "turns missing"),
        (check.torn_bytes, "bytes of an append that is under way or was interrupted"),
        (check.log_ahead, "turns not in the context yet"),
        (check.context_ahead, "turns not at the end of the log"),
        (check.set_aside as u64, "files set aside before"),
    ];
    let found = counts.iter().filter(|(count, _)| *count > 0);
    notes.extend(found.map(|(count, what)| format!("{count} {what}")));
    if check.error.is_none() {
        if !check.agrees {
            notes.push("context and log differ".to_owned());
        }
        if !check.is_ok() {
            notes.push(format!("opens as {}", check.opens));
        }
    }
    [state.to_owned(), check.thread.clone(), format!("{} turns", check.turns), notes.join(", ")]
}
