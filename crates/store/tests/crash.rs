//! A writer that is killed at any instant, and one whose disk is full or whose descriptors are used up: what it was given an
//! acknowledgement for is there.

#![cfg(unix)]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "helpers of tests are tests")]

use std::{
    env, fs,
    fs::File,
    io::{BufRead, BufReader, Read},
    os::unix::{
        fs::{MetadataExt as _, PermissionsExt as _, chown},
        process::CommandExt as _,
    },
    path::Path,
    process::{Child, ChildStdout, Command, Stdio},
    time::Duration,
};

use steadfast_store::{AppendLog, Document, FolderLock, Loaded, StoreError, remove_leftovers};

/// How often the writer is killed: `STEADFAST_KILLS`, or so many.
const KILLS: u64 = 40;

const FOLDER: &str = "STEADFAST_STORE_FOLDER";

type Log = AppendLog<String>;

fn value(number: u64) -> String {
    // Of very different lengths, so that writes end anywhere in a page.
    format!("{number}:{}", "x".repeat((number * 7919 % 5000) as usize))
}

fn records(log: &Path) -> (Log, Vec<u64>) {
    let mut numbers = Vec::new();
    let (log, _) = Log::open(log, |record| {
        let number = record.value.split(':').next().unwrap().parse().unwrap();
        assert_eq!(record.value, value(number));
        assert_eq!(record.ordinal, number);
        numbers.push(number);
    })
    .unwrap();
    (log, numbers)
}

/// Says this to the test that has started this process.
fn say(line: &str) {
    // The test harness writes before the first of our lines, without a line feed.
    println!("\n{line}");
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
    say("opens");
    let mut saved = match document.load().unwrap() {
        Loaded::Missing => Vec::new(),
        Loaded::Current(values) | Loaded::Backup { values, .. } => values,
        damaged => panic!("{damaged:?}"),
    };
    let (mut log, numbers) = records(&folder.join("log.jsonl"));
    for number in numbers.len() as u64 + 1.. {
        match log.append(&value(number)) {
            Ok(ordinal) => say(&format!("log {ordinal}")),
            Err(error) => {
                assert!(error.is_full(), "{error}");
                say("full");
                return;
            }
        }
        if number % 5 == 0 {
            saved.push(value(number));
            document.save(&saved).unwrap();
            say(&format!("document {}", saved.len()));
        }
    }
}

/// Replaces a log of three by one of two, while something is so that a part of it fails, and appends to it afterwards.
fn replace_while(hinder: impl FnOnce(&mut Log, &dyn Fn(&mut Log) -> Result<(), StoreError>)) {
    let folder = env::var_os(FOLDER).expect("is started by the other tests");
    let (mut log, _) = records(&Path::new(&folder).join("log.jsonl"));
    log.append_all(&[value(1), value(2), value(3)]).unwrap();
    hinder(&mut log, &|log| {
        let kept = [1, 3].map(|number| (number, value(number)));
        log.rewrite(kept.iter().map(|(ordinal, value)| (*ordinal, value)))
    });
    assert_eq!(log.append(&value(4)).unwrap(), 4);
    say("appended");
}

/// With one descriptor, for the new file.
#[test]
#[ignore = "the other tests of this file start it"]
fn replace_without_descriptors() {
    replace_while(|log, replace| {
        let mut taken: Vec<_> = std::iter::from_fn(|| File::open("/dev/null").ok()).collect();
        taken.pop();
        replace(log).unwrap();
    });
}

/// In a folder that can be written to and not opened. What is in the new file is acknowledged when its name lasts.
#[test]
#[ignore = "the other tests of this file start it"]
fn replace_in_a_folder_that_can_not_be_opened() {
    let rights = |mode| {
        let folder = env::var_os(FOLDER).unwrap();
        fs::set_permissions(folder, fs::Permissions::from_mode(mode)).unwrap();
    };
    replace_while(|log, replace| {
        rights(0o300);
        assert!(replace(log).unwrap_err().is_denied());
        assert!(log.append(&value(4)).unwrap_err().is_denied());
        rights(0o700);
    });
}

fn writer(folder: &Path, shell: &str) -> Child {
    let binary = env::current_exe().unwrap();
    child("write_until_killed", &binary, folder, shell).spawn().unwrap()
}

/// This binary again, to run one of the tests above after these commands of a shell.
fn child(test: &str, binary: &Path, folder: &Path, shell: &str) -> Command {
    let mut command = Command::new("sh");
    command
        .args(["-c", &format!("{shell} exec \"$0\" --ignored --exact {test} --nocapture")])
        .arg(binary)
        .env(FOLDER, folder)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

/// What a child prints.
fn output(child: &mut Child) -> BufReader<ChildStdout> {
    BufReader::new(child.stdout.take().unwrap())
}

/// The acknowledgements that the writer has printed: the last of the log and of the document, and whether its disk was full.
fn acknowledged(output: impl BufRead) -> (u64, usize, bool) {
    let (mut log, mut document, mut full) = (0, 0, false);
    for line in output.lines().map_while(Result::ok) {
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
    let path = folder.path().join("log.jsonl");
    let (mut log, mut document, mut bad_lines) = (0, 0, 0);
    for kill in 0..kills {
        // Every other writer has something to set aside, and is killed about when it does that.
        let damaged = kill % 2 == 1;
        if damaged {
            bad_lines += 1;
            let bytes = fs::read(&path).unwrap();
            fs::write(&path, [b"bad ", kill.to_string().as_bytes(), b"\n", &bytes].concat())
                .unwrap();
        }
        let mut child = writer(folder.path(), "");
        let mut output = output(&mut child);
        // However busy the machine is: it has come so far.
        let awaited = if damaged { "opens" } else { "log" };
        let mut line = String::new();
        while !line.starts_with(awaited) {
            line.clear();
            assert_ne!(output.read_line(&mut line).unwrap(), 0, "the writer has ended");
        }
        let micros = kill * 7919 % if damaged { 3_000 } else { 30_000 };
        std::thread::sleep(Duration::from_micros(micros));
        child.kill().unwrap();
        let (acknowledged_log, acknowledged_document, full) =
            acknowledged(line.as_bytes().chain(output));
        child.wait().unwrap();
        assert!(!full);
        // A process that is gone holds no lock.
        let lock = FolderLock::acquire(folder.path()).unwrap();
        let numbers = records(&path).1;
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
    // Twice, where the kill was between the two: it is set aside before it is removed.
    let aside = fs::read_to_string(folder.path().join("log.jsonl.bad")).unwrap();
    let mut aside: Vec<_> = aside.lines().filter(|line| line.starts_with("bad ")).collect();
    aside.sort_unstable();
    aside.dedup();
    assert_eq!(aside.len(), bad_lines);
    assert!(Log::read(&path, |_| ()).unwrap().is_clean());
}

/// What is appended after a log was replaced is in the new file, whatever failed after its rename.
fn goes_on_in_the_new_file(mut child: Command, folder: &Path) {
    let output = child.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("\nappended\n"), "{text}{errors}");
    let mut read = Vec::new();
    let log = folder.join("log.jsonl");
    let repair = Log::read(&log, |record| read.push((record.ordinal, record.value))).unwrap();
    assert!(repair.is_clean());
    assert_eq!(read, [1, 3, 4].map(|number| (number, value(number))));
}

#[test]
fn a_log_replaced_without_descriptors() {
    let folder = tempfile::tempdir().unwrap();
    let binary = env::current_exe().unwrap();
    let test = "replace_without_descriptors";
    let child = child(test, &binary, folder.path(), "ulimit -S -n 32;");
    goes_on_in_the_new_file(child, folder.path());
}

#[test]
fn a_log_replaced_in_a_folder_that_can_not_be_opened() {
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let (binary, logs) = (folder.path().join("test"), folder.path().join("logs"));
    fs::copy(env::current_exe().unwrap(), &binary).unwrap();
    fs::create_dir(&logs).unwrap();
    let mut child = child("replace_in_a_folder_that_can_not_be_opened", &binary, &logs, "");
    // Root may open any folder, so another user is asked.
    if fs::metadata(&logs).unwrap().uid() == 0 {
        chown(&logs, Some(65_534), Some(65_534)).unwrap();
        child.uid(65_534).gid(65_534);
    }
    goes_on_in_the_new_file(child, &logs);
}

/// The limit of a file's size is the full disk that needs no mount.
#[test]
fn a_full_disk_leaves_the_log_as_it_was() {
    let folder = tempfile::tempdir().unwrap();
    // Blocks of 512 bytes in every `sh` of POSIX, of 1,024 in some.
    let mut child = writer(folder.path(), "trap '' XFSZ; ulimit -f 64;");
    let (log, _, full) = acknowledged(output(&mut child));
    child.wait().unwrap();
    assert!(full && log > 2, "{log} {full}");
    let path = folder.path().join("log.jsonl");
    let size = fs::metadata(&path).unwrap().len();
    // Nothing of the record that did not fit is left, and the log goes on once there is space.
    let (mut again, numbers) = records(&path);
    assert_eq!((numbers.len() as u64, again.len()), (log, size));
    assert_eq!(again.append(&value(log + 1)).unwrap(), log + 1);
}
