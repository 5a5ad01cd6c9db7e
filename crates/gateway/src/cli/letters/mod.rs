//! `steadfast dead-letters`: messages that could not be delivered.

use std::{path::Path, sync::Arc};

use serde_json::Value;
use steadfast_deliver::{DeadLetter, DeliverError, LetterDrain, LetterList, OfflineLetters};

use super::{DeadLettersCommand, DrainArgs, Exit, FolderArgs, folder, print};
use crate::escape;

mod send;

pub(super) fn run(command: &DeadLettersCommand) -> Result<(), Exit> {
    match command {
        DeadLettersCommand::List(args) => list(args),
        DeadLettersCommand::Show { key, folder } => show(key, folder),
        DeadLettersCommand::Drain(args) => drain(args),
        DeadLettersCommand::Drop { keys, folder } => discard(keys, folder),
        DeadLettersCommand::Export { dir } => export(dir),
    }
}

fn read(dir: &Path) -> Result<LetterList, Exit> {
    folder::check(dir)?;
    let list = LetterList::read(dir).map_err(|error| failed(dir, &error))?;
    let bad = list.repair.bad_lines;
    if bad > 0 {
        print::report(format_args!(
            "{}: {bad} lines can not be read; the next service that delivers from it sets them aside",
            folder::name(dir)
        ));
    }
    Ok(list)
}

fn list(args: &FolderArgs) -> Result<(), Exit> {
    let list = read(&args.dir)?;
    let letters: Vec<&DeadLetter> = list.waiting.iter().chain(&list.ended).collect();
    if args.json {
        return print_letters(&letters);
    }
    if letters.is_empty() {
        print::report(format_args!("{}: there are no dead letters", folder::name(&args.dir)));
        return Ok(());
    }
    print_rows(&letters)
}

fn show(key: &str, args: &FolderArgs) -> Result<(), Exit> {
    let list = read(&args.dir)?;
    let letter = find(&list, key)?;
    if args.json {
        return folder::print_json(letter);
    }
    let mut out = String::new();
    let mut line = |name: &str, value: &str| {
        out.push_str(&format!("{name:<12} {}\n", escape::text(value)));
    };
    line("key", &letter.key);
    line("state", letter.state());
    line("destination", &letter.destination);
    line("session", &letter.session);
    line("kind", letter.kind.as_str());
    if let Some(tenant) = &letter.tenant {
        line("tenant", tenant);
    }
    line("made", &folder::time(letter.created_ms));
    line("kept", &folder::time(letter.kept_ms));
    match letter.ended_ms {
        Some(at) => line("ended", &folder::time(at)),
        None => {
            line("next", &folder::time(letter.next_ms));
            line("expires", &folder::time(letter.expires_ms));
        }
    }
    line("retries used", &letter.attempts.to_string());
    line("error", &letter.error);
    out.push('\n');
    folder::push_text(&mut out, "    ", &letter.text);
    Ok(print::result(out.trim_end())?)
}

fn export(dir: &Path) -> Result<(), Exit> {
    let list = read(dir)?;
    for letter in list.waiting.iter().chain(&list.ended) {
        let line = serde_json::to_string(letter).map_err(Exit::failed)?;
        print::result(escape::json(&line))?;
    }
    Ok(())
}

fn discard(keys: &[String], args: &FolderArgs) -> Result<(), Exit> {
    let list = read(&args.dir)?;
    // All of them, before the first is dropped.
    for key in keys {
        let letter = find(&list, key)?;
        if !letter.is_waiting() {
            let (key, state) = (escape::text(key), letter.state());
            return Err(Exit::failed(format_args!("the letter `{key}` has ended: {state}")));
        }
    }
    let mut letters = OfflineLetters::open(&args.dir).map_err(|error| failed(&args.dir, &error))?;
    for key in keys {
        letters.discard(key).map_err(|error| failed(&args.dir, &error))?;
    }
    drop(letters);
    print_after(args, keys.iter().map(String::as_str))
}

fn drain(args: &DrainArgs) -> Result<(), Exit> {
    let dir = &args.folder.dir;
    let address = args.url.as_deref().map(send::address).transpose()?;
    let which = match (&args.key, &args.destination) {
        (Some(key), _) => LetterDrain::Key(Arc::from(key.as_str())),
        (None, Some(destination)) => LetterDrain::Destination(Arc::from(destination.as_str())),
        (None, None) => LetterDrain::All,
    };
    let list = read(dir)?;
    let wanted: Vec<&DeadLetter> = match &which {
        LetterDrain::All => list.waiting.iter().collect(),
        LetterDrain::Destination(name) => {
            list.waiting.iter().filter(|letter| letter.destination == *name).collect()
        }
        LetterDrain::Key(key) => vec![find(&list, key)?],
    };
    // Nothing is locked or made in a folder that has nothing to do.
    if !wanted.is_empty() {
        let mut letters = OfflineLetters::open(dir).map_err(|error| failed(dir, &error))?;
        let due = letters.drain(&which).map_err(|error| failed(dir, &error))?;
        if let (0, LetterDrain::Key(key)) = (due, &which) {
            let key = escape::text(key);
            return Err(Exit::failed(format_args!("the letter `{key}` was delivered")));
        }
    }
    if let (Some(address), false) = (address, wanted.is_empty()) {
        let sent = super::runtime().block_on(send::all(dir, address));
        if !sent.map_err(|error| failed(dir, &error))? {
            return Err(Exit::failed(format_args!(
                "{}: not all of what was done could be written, so that some letters may be sent again",
                folder::name(dir)
            )));
        }
    }
    print_after(&args.folder, wanted.iter().map(|letter| &*letter.key))?;
    if args.url.is_none() {
        return Ok(());
    }
    let after = LetterList::read(dir).map_err(|error| failed(dir, &error))?;
    let is_left = |letter: &&&DeadLetter| {
        let letter = after.get(&letter.key);
        letter.is_none_or(|letter| letter.state() != "delivered")
    };
    match wanted.iter().filter(is_left).count() {
        0 => Ok(()),
        left => Err(Exit::failed(format_args!("{left} of {} letters not delivered", wanted.len()))),
    }
}

fn find<'l>(list: &'l LetterList, key: &str) -> Result<&'l DeadLetter, Exit> {
    list.get(key).ok_or_else(|| {
        Exit::failed(format_args!(
            "there is no dead letter `{}`; `steadfast dead-letters list` has all",
            escape::text(key)
        ))
    })
}

/// Prints the letters of these keys as they are now.
fn print_after<'k>(args: &FolderArgs, keys: impl Iterator<Item = &'k str>) -> Result<(), Exit> {
    let list = LetterList::read(&args.dir).map_err(|error| failed(&args.dir, &error))?;
    let letters: Vec<&DeadLetter> = keys.filter_map(|key| list.get(key)).collect();
    if args.json {
        print_letters(&letters)
    } else if letters.is_empty() {
        print::report(format_args!("{}: no such letter waits", folder::name(&args.dir)));
        Ok(())
    } else {
        print_rows(&letters)
    }
}

/// Without the texts, which are somebody's messages: `show` has them.
fn print_letters(letters: &[&DeadLetter]) -> Result<(), Exit> {
    let mut values = serde_json::to_value(letters).map_err(Exit::failed)?;
    for value in values.as_array_mut().into_iter().flatten() {
        if let Value::Object(letter) = value {
            letter.remove("text");
        }
    }
    folder::print_json(&values)
}

fn print_rows(letters: &[&DeadLetter]) -> Result<(), Exit> {
    let names = ["STATE", "KEY", "DESTINATION", "KIND", "KEPT", "RETRIES", "ERROR"];
    let mut rows = vec![names.map(str::to_owned)];
    rows.extend(letters.iter().map(|letter| {
        [
            letter.state().to_owned(),
            letter.key.to_string(),
            letter.destination.to_string(),
            letter.kind.as_str().to_owned(),
            folder::time(letter.kept_ms),
            letter.attempts.to_string(),
            letter.error.to_string(),
        ]
    }));
    folder::print_rows(&rows)
}

fn failed(dir: &Path, error: &DeliverError) -> Exit {
    if let DeliverError::Locked(_) = error {
        return Exit::failed(format_args!(
            "{}: a service delivers from this folder; stop it first, or have it do this itself \
             (`DeadLetters::drain`, `discard`)",
            folder::name(dir)
        ));
    }
    folder::failed(error)
}
