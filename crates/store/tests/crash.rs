//! A writer that is killed at any instant, and one whose disk is full: what it was given an acknowledgement for is there.

#![cfg(unix)]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "helpers of tests are tests")]

use std::{
    env, fs,
    io::{BufRead, BufReader, Write},
    path::Path,
    process::{Child, Command, Stdio},
    time::Duration,
};

use steadfast_store::{AppendLog, Document, FolderLock, Loaded, remove_leftovers};

/// How often the writer is killed: `STEADFAST_KILLS`, or so many.
const KILLS: u64 = 40;

const FOLDER: &str = "STEADFAST_STORE_FOLDER";

fn value(number: u64) -> String {
    // Of very different lengths, so that writes end anywhere in a page.
    format!("{number}:{}", "x".repeat((number * 7919 % 5000) as usize))
}

fn records(log: &Path) -> (AppendLog<String>, Vec<u64>) {
    let mut numbers = Vec::new();
    let (log, _) = AppendLog::<String>::open(log, |record| {
        let number = record.value.split(':').next().unwrap().parse().unwrap();
        assert_eq!(record.value, value(number));
        assert_eq!(record.ordinal, number);
        numbers.push(number);
    })
    .unwrap();
    (log, numbers)
}

/// The writer: a process of its own, which `writer` below starts.
#[test]
#[ignore = "the other tests of this file start it"]
fn write_until_killed() {
    let folder = env::var_os(FOLDER).expect("is started by the other tests");
    let folder = Path::new(&folder);
    let _lock = FolderLock::acquire(folder).unwrap();
    remove_leftovers(folder).unwrap();
    let document = Document::new(folder.join("document.jsonl"));
    let mut saved = match document.load().unwrap() {
        Loaded::Missing => Vec::new(),
        Loaded::Current(values) | Loaded::Backup { values, .. } => values,
        damaged => panic!("{damaged:?}"),
    };
    let (mut log, numbers) = records(&folder.join("log.jsonl"));
    let mut out = std::io::stdout();
    for number in numbers.len() as u64 + 1.. {
        match log.append(&value(number)) {
            Ok(ordinal) => writeln!(out, "\nlog {ordinal}").unwrap(),
            Err(error) => {
                assert!(error.is_full(), "{error}");
                writeln!(out, "\nfull").unwrap();
                return;
            }
        }
        if number % 5 == 0 {
            saved.push(value(number));
            document.save(&saved).unwrap();
            writeln!(out, "\ndocument {}", saved.len()).unwrap();
        }
    }
}

fn writer(folder: &Path, shell: &str) -> Child {
    Command::new("sh")
        .args([
            "-c",
            &format!("{shell} exec \"$0\" --ignored --exact write_until_killed --nocapture"),
        ])
        .arg(env::current_exe().unwrap())
        .env(FOLDER, folder)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

/// The acknowledgements that the writer has printed: the last of the log and of the document, and whether its disk was full.
fn acknowledged(child: &mut Child) -> (u64, usize, bool) {
    let (mut log, mut document, mut full) = (0, 0, false);
    for line in BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok) {
        match line.split_once(' ') {
            Some(("log", ordinal)) => log = ordinal.parse().unwrap(),
            Some(("document", saved)) => document = saved.parse().unwrap(),
            _ => full |= line == "full",
        }
    }
    (log, document, full)
}

#[test]
#[expect(clippy::disallowed_methods, reason = "a process is killed after real time")]
fn killed_at_any_instant() {
    let kills = env::var("STEADFAST_KILLS").map_or(KILLS, |kills| kills.parse().unwrap());
    let folder = tempfile::tempdir().unwrap();
    let (mut log, mut document) = (0, 0);
    for kill in 0..kills {
        let mut child = writer(folder.path(), "");
        std::thread::sleep(Duration::from_micros(10_000 + kill * 7919 % 30_000));
        child.kill().unwrap();
        let (acknowledged_log, acknowledged_document, full) = acknowledged(&mut child);
        child.wait().unwrap();
        assert!(!full);
        // A process that is gone holds no lock.
        let lock = FolderLock::acquire(folder.path()).unwrap();
        let numbers = records(&folder.path().join("log.jsonl")).1;
        assert_eq!(numbers, (1..=numbers.len() as u64).collect::<Vec<_>>());
        log = log.max(acknowledged_log);
        assert!(numbers.len() as u64 >= log, "{} of {log} after kill {kill}", numbers.len());
        document = document.max(acknowledged_document);
        let saved = Document::<String>::new(folder.path().join("document.jsonl")).load().unwrap();
        match saved {
            Loaded::Current(values) => assert!(values.len() >= document, "kill {kill}"),
            // Killed between the two renames: of a save that nobody was given a result of.
            Loaded::Backup { values, aside: None } => {
                assert!(values.len() >= document, "kill {kill}");
            }
            Loaded::Missing => assert_eq!(document, 0, "kill {kill}"),
            damaged => panic!("{damaged:?} after kill {kill}"),
        }
        drop(lock);
    }
    assert!(log > kills, "{log} records in {kills} kills: the writer hardly wrote");
    assert!(document > 0);
}

/// The limit of a file's size is the full disk that needs no mount.
#[test]
fn a_full_disk_leaves_the_log_as_it_was() {
    let folder = tempfile::tempdir().unwrap();
    // Blocks of 512 bytes in every `sh` of POSIX, of 1,024 in some.
    let mut child = writer(folder.path(), "trap '' XFSZ; ulimit -f 64;");
    let (log, _, full) = acknowledged(&mut child);
    child.wait().unwrap();
    assert!(full && log > 2, "{log} {full}");
    let path = folder.path().join("log.jsonl");
    let size = fs::metadata(&path).unwrap().len();
    // Nothing of the record that did not fit is left, and the log goes on once there is space.
    let (mut again, numbers) = records(&path);
    assert_eq!((numbers.len() as u64, again.len()), (log, size));
    assert_eq!(again.append(&value(log + 1)).unwrap(), log + 1);
}
