//! Files that a disk, an editor or a crash damaged.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::{fs, path::Path};

use common::{memory, reopened, texts};
use steadfast_chat::Message;
use steadfast_session::{Opened, SessionStore};
use tempfile::TempDir;

/// A thread of so many turns, and its folder.
async fn thread_of(turns: usize) -> (TempDir, std::path::PathBuf) {
    let root = tempfile::tempdir_in(memory()).unwrap();
    let mut thread = reopened(root.path(), "a").await;
    for turn in 1..=turns {
        assert!(thread.end_turn(turn_of(turn)).await.saved);
    }
    let folder = root.path().join("a");
    (root, folder)
}

fn turn_of(turn: usize) -> Vec<Message> {
    vec![Message::user(format!("u{turn}")), Message::assistant(format!("a{turn}"))]
}

fn history_of(turns: impl IntoIterator<Item = usize>) -> Vec<String> {
    texts(&turns.into_iter().flat_map(turn_of).collect::<Vec<_>>())
}

/// Makes a folder what it was.
struct Snapshot(Vec<(std::path::PathBuf, Vec<u8>)>);

impl Snapshot {
    fn of(folder: &Path) -> Self {
        let files = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        Self(files.map(|path| (path.clone(), fs::read(path).unwrap())).collect())
    }

    fn restore(&self, folder: &Path) {
        fs::remove_dir_all(folder).unwrap();
        fs::create_dir(folder).unwrap();
        for (path, bytes) in &self.0 {
            fs::write(path, bytes).unwrap();
        }
    }
}

/// What is there, and that a turn can be added to it that the next process reads.
async fn opens(root: &Path, case: &str) -> (Vec<String>, steadfast_session::OpenReport) {
    let mut thread = reopened(root, "a").await;
    let history = texts(&thread.history());
    let report = thread.report().unwrap();
    let number = thread.turn();
    let saved = thread.end_turn(vec![Message::user("more")]).await;
    assert_eq!((saved.turn, saved.saved), (number + 1, true), "{case}");
    drop(thread);
    let mut expected = history.clone();
    expected.push("more".to_owned());
    let thread = reopened(root, "a").await;
    assert_eq!(texts(&thread.history()), expected, "{case}: read again");
    let again = thread.report().unwrap();
    assert!(again.how == Opened::Current && again.is_clean(), "{case}: repaired, {again:?}");
    (history, report)
}

#[tokio::test]
async fn a_log_that_is_cut_at_any_byte() {
    let (root, folder) = thread_of(3).await;
    let whole = Snapshot::of(&folder);
    let log = fs::read(folder.join("log.jsonl")).unwrap();
    for cut in 0..=log.len() {
        whole.restore(&folder);
        fs::write(folder.join("log.jsonl"), &log[..cut]).unwrap();
        let (history, report) = opens(root.path(), &format!("cut at {cut}")).await;
        assert_eq!(history, history_of(1..=3), "cut at {cut}: the context has all");
        assert_eq!((report.how, report.bad_lines), (Opened::Current, 0), "cut at {cut}");
        assert_eq!(report.torn_bytes > 0, !is_line_end(&log, cut), "cut at {cut}");

        // The same without any context, as after a crash in the first save: what the log has.
        whole.restore(&folder);
        fs::remove_file(folder.join("context.jsonl")).unwrap();
        fs::remove_file(folder.join("context.jsonl.bak")).unwrap();
        fs::write(folder.join("log.jsonl"), &log[..cut]).unwrap();
        let (history, _) = opens(root.path(), &format!("cut at {cut}, no context")).await;
        // A line without its line feed is whole.
        let lines = log[..(cut + 1).min(log.len())].iter().filter(|byte| **byte == b'\n').count();
        assert_eq!(history, history_of(1..=lines), "cut at {cut}, no context");
    }
}

/// Whether nothing of a line is left before the cut.
fn is_line_end(log: &[u8], cut: usize) -> bool {
    cut == 0 || log[cut - 1] == b'\n' || log.get(cut) == Some(&b'\n')
}

#[tokio::test]
async fn a_bit_that_flips_in_any_byte_of_the_context() {
    let (root, folder) = thread_of(2).await;
    let whole = Snapshot::of(&folder);
    let context = fs::read(folder.join("context.jsonl")).unwrap();
    let backup = fs::read(folder.join("context.jsonl.bak")).unwrap();
    for at in 0..context.len() {
        // Each bit in its turn, and the highest, which makes it no UTF-8.
        for mask in [1 << (at % 7), 0x80] {
            let case = format!("byte {at} ^ {mask:#x}");
            let mut damaged = context.clone();
            damaged[at] ^= mask;
            whole.restore(&folder);
            fs::write(folder.join("context.jsonl"), &damaged).unwrap();
            let (history, report) = opens(root.path(), &case).await;
            assert_eq!(history, history_of(1..=2), "{case}: the backup and the log");
            assert_eq!((report.how, report.aside.len()), (Opened::Backup, 1), "{case}");
            assert_eq!(fs::read(&report.aside[0]).unwrap(), damaged, "{case}: kept for people");
        }
        // Both generations: the log has every turn.
        let mut other = backup.clone();
        other[at % backup.len()] ^= 1 << (at % 7);
        let mut damaged = context.clone();
        damaged[at] ^= 1;
        whole.restore(&folder);
        fs::write(folder.join("context.jsonl"), &damaged).unwrap();
        fs::write(folder.join("context.jsonl.bak"), &other).unwrap();
        let case = format!("both, byte {at}");
        let (history, report) = opens(root.path(), &case).await;
        assert_eq!(history, history_of(1..=2), "{case}");
        assert_eq!((report.how, report.aside.len()), (Opened::Rebuilt, 2), "{case}");
    }
}

#[tokio::test]
async fn a_bit_that_flips_in_any_byte_of_the_log() {
    let (root, folder) = thread_of(3).await;
    let whole = Snapshot::of(&folder);
    let log = fs::read(folder.join("log.jsonl")).unwrap();
    let line_of = |at: usize| log[..at].iter().filter(|byte| **byte == b'\n').count() + 1;
    for at in 0..log.len() {
        let mut damaged = log.clone();
        damaged[at] ^= 1 << (at % 8);
        let case = format!("byte {at}");
        whole.restore(&folder);
        fs::write(folder.join("log.jsonl"), &damaged).unwrap();
        let (history, _) = opens(root.path(), &case).await;
        assert_eq!(history, history_of(1..=3), "{case}: the context has all");

        // The context is one turn old: the rest of the log is kept, and nothing else is made of it.
        whole.restore(&folder);
        fs::write(folder.join("log.jsonl"), &damaged).unwrap();
        fs::write(folder.join("context.jsonl"), b"").unwrap();
        let (history, report) = opens(root.path(), &format!("{case}, backup")).await;
        let has_last = history == history_of(1..=3);
        assert!(has_last || history == history_of(1..=2), "{case}: {history:?}");
        assert!(has_last || line_of(at) >= 2, "{case}: the last line was whole");
        assert_eq!(report.how, Opened::Backup, "{case}");

        // No context at all: every turn or none.
        whole.restore(&folder);
        fs::write(folder.join("log.jsonl"), &damaged).unwrap();
        fs::write(folder.join("context.jsonl"), b"").unwrap();
        fs::write(folder.join("context.jsonl.bak"), b"{").unwrap();
        let (history, report) = opens(root.path(), &format!("{case}, no context")).await;
        match report.how {
            Opened::Lost => assert_eq!(history, [""; 0], "{case}"),
            // The last line feed alone: a line is whole without it.
            Opened::Rebuilt => {
                assert!(at + 1 == log.len() || report.torn_bytes > 0, "{case}: {report:?}");
            }
            how => panic!("{case}: {how:?}"),
        }
    }
}

#[tokio::test]
async fn one_bad_line_costs_one_line() {
    let (root, folder) = thread_of(4).await;
    let log = fs::read_to_string(folder.join("log.jsonl")).unwrap();
    let damaged = log.replacen("u2", "U2", 1);
    fs::write(folder.join("log.jsonl"), damaged).unwrap();
    let check = SessionStore::new(root.path()).verify().unwrap().remove(0);
    assert!(!check.is_ok() && check.bad_lines == 1 && check.agrees, "{check:?}");
    assert!(!folder.join("log.jsonl.bad").exists(), "verifying changes nothing");
    let (history, report) = opens(root.path(), "a bad line").await;
    assert_eq!((history, report.bad_lines), (history_of(1..=4), 1));
    let aside = fs::read_to_string(folder.join("log.jsonl.bad")).unwrap();
    assert!(aside.contains("U2"), "{aside}");
    let check = SessionStore::new(root.path()).verify().unwrap().remove(0);
    assert!(check.is_ok() && check.set_aside == 1, "{check:?}");
}

#[tokio::test]
async fn turns_after_the_context_are_kept_around_a_missing_one() {
    let (root, folder) = thread_of(2).await;
    let old = fs::read(folder.join("context.jsonl")).unwrap();
    let mut thread = reopened(root.path(), "a").await;
    for turn in 3..=5 {
        assert!(thread.end_turn(turn_of(turn)).await.saved);
    }
    drop(thread);
    fs::write(folder.join("context.jsonl"), old).unwrap();
    let log = fs::read_to_string(folder.join("log.jsonl")).unwrap();
    fs::write(folder.join("log.jsonl"), log.replacen("u4", "xx", 1)).unwrap();
    let (history, report) = opens(root.path(), "a missing turn").await;
    assert_eq!(history, history_of([1, 2, 3, 5]));
    assert_eq!((report.missing, report.bad_lines, report.how), (1, 1, Opened::Current));
}

#[tokio::test]
async fn leftovers_go_when_the_thread_is_opened_and_are_never_read() {
    let (root, folder) = thread_of(1).await;
    fs::create_dir(folder.join("attachments")).unwrap();
    let left = [".context.jsonl.0011.tmp", "attachments/.cat.png.0011.tmp"];
    for name in left {
        fs::write(folder.join(name), "{\"half\":").unwrap();
    }
    let (history, report) = opens(root.path(), "leftovers").await;
    assert_eq!((history, report.is_clean()), (history_of([1]), true));
    for name in left {
        assert!(!folder.join(name).exists(), "{name}");
    }
}
