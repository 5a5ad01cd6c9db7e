//! Processes that are killed, files that are cut, disks that are full.

#![cfg(unix)]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

mod common;

use std::{
    collections::BTreeMap,
    env,
    fs::{self, File},
    io::{BufRead, BufReader, Write},
    path::Path,
    process::{Child, Command, Stdio},
    sync::Arc,
    time::Duration,
};

use common::{Channel, Mode, down, ends, keys, ledger, message, open, open_with, until};
use steadfast_core::Failure;
use steadfast_deliver::{
    Announcement, DeadLetters, DeliveryFolder, DeliveryLedger, LedgerPolicy, LetterDrain,
    LetterEnd, LetterList, LetterQueuePolicy, SendOnceLayer,
};
use tower::{Layer, service_fn};

/// For the child: what it does, and in which folder.
const ROLE: &str = "STEADFAST_DELIVER_CHILD";

/// Runs this test binary's `child` in another process.
fn start(role: &str, folder: &Path, ignoring_file_size: bool) -> Child {
    let program = env::current_exe().unwrap();
    let mut command = if ignoring_file_size {
        // A write beyond the limit is then an error instead of a signal. What is ignored stays so in the program.
        let mut shell = Command::new("sh");
        shell.args(["-c", "trap '' XFSZ; exec \"$0\" \"$@\""]).arg(program);
        shell
    } else {
        Command::new(program)
    };
    command
        .args(["--exact", "child", "--nocapture", "--test-threads=1"])
        .env(ROLE, format!("{role} {}", folder.display()))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    command.spawn().unwrap()
}

/// What the other processes do; nothing, when it is called as a test.
#[test]
fn child() {
    let Ok(role) = env::var(ROLE) else { return };
    let (role, folder) = role.split_once(' ').unwrap();
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.unwrap().block_on(async {
        match role {
            "writes" => writes(Path::new(folder)).await,
            "delivers" => delivers(Path::new(folder)).await,
            "fills" => fills(Path::new(folder)).await,
            _ => panic!("there is no role {role}"),
        }
    });
}

fn report(line: &str) {
    let mut out = std::io::stdout().lock();
    writeln!(out, "\nREPORT {line}").unwrap();
    out.flush().unwrap();
}

/// Letters for ever, from eight tasks; each is reported when it is on the disk. Two of three are dropped again, so that the file is shortened now and then.
async fn writes(folder: &Path) {
    let channel = Channel::default();
    channel.set_all(Mode::Down);
    // None is tried, however long the test takes: one that is being sent at a kill would end, and be forgotten as the dropped ones are.
    let policy = LetterQueuePolicy {
        letters: 100_000,
        bytes: 1 << 30,
        ended: 20,
        base: Duration::from_secs(12 * 3_600),
        cap: Duration::from_secs(12 * 3_600),
        max_age: Duration::from_secs(24 * 3_600),
        ..LetterQueuePolicy::default()
    };
    let letters = open_with(folder, policy, ledger(), channel).await;
    report("open");
    let mut tasks = Vec::new();
    for task in 0..8 {
        let letters = letters.clone();
        let run = std::process::id();
        tasks.push(tokio::spawn(async move {
            for number in 0.. {
                let key = format!("{run}-{task}-{number}");
                assert!(
                    letters
                        .keep(&message(&key, &format!("channel {task}")), &down())
                        .await
                        .unwrap()
                );
                report(&key);
                if number % 3 != 0 {
                    letters.discard(&key).unwrap();
                }
            }
        }));
    }
    for task in tasks {
        task.await.unwrap();
    }
}

#[test]
fn killed_at_any_instant_each_acknowledged_letter_is_there_once() {
    let kills = env::var("STEADFAST_KILLS").map_or(40, |kills| kills.parse().unwrap());
    let folder = tempfile::tempdir().unwrap();
    let mut acknowledged = Vec::new();
    let mut torn = 0;
    for kill in 0..kills {
        acknowledged.extend(killed(start("writes", folder.path(), false), fastrand::usize(0..40)));

        let list = LetterList::read(folder.path()).unwrap();
        torn += usize::from(list.repair.torn_bytes > 0);
        assert_eq!(list.repair.bad_lines, 0, "kill {kill}: {:?}", list.repair);
        let mut count = BTreeMap::<&str, u32>::new();
        for letter in list.waiting.iter().chain(&list.ended) {
            *count.entry(&letter.key).or_default() += 1;
            assert_eq!(letter.kind.as_str(), "announcement");
        }
        for key in &acknowledged {
            let number: u64 = key.rsplit('-').next().unwrap().parse().unwrap();
            let found = count.get(&**key).copied().unwrap_or(0);
            // Those that were dropped by hand are forgotten after twenty others.
            let expected = if !number.is_multiple_of(3) { found.min(1) } else { 1 };
            assert_eq!(found, expected, "kill {kill}: {key}");
        }
    }
    println!("{kills} kills, {} acknowledged letters, {torn} torn ends", acknowledged.len());
    // Twenty a kill are asked for, on average.
    assert!(acknowledged.len() as u64 >= 5 * kills, "{} letters", acknowledged.len());
}

/// Kills a process a moment after it has acknowledged so many letters; all that it has acknowledged.
fn killed(mut writer: Child, letters: usize) -> Vec<String> {
    let lines = BufReader::new(writer.stdout.take().unwrap()).lines();
    let mut reports = lines
        .map_while(Result::ok)
        .filter_map(|line| line.strip_prefix("REPORT ").map(str::to_owned));
    assert_eq!(reports.next().as_deref(), Some("open"));
    let mut acknowledged: Vec<_> = reports.by_ref().take(letters).collect();
    assert_eq!(acknowledged.len(), letters, "it ended by itself");
    let moment = Duration::from_micros(fastrand::u64(0..5_000));
    let killer = std::thread::spawn(move || {
        std::thread::park_timeout(moment);
        writer.kill().unwrap();
        writer.wait().unwrap();
    });
    acknowledged.extend(reports);
    killer.join().unwrap();
    acknowledged
}

/// Letters for ever, each reported when it is on the disk, while they are delivered: to a file of the keys that people have read.
async fn delivers(folder: &Path) {
    let letters = delivering(folder).await;
    report("open");
    for number in 0.. {
        let key = format!("{}-{number}", std::process::id());
        letters.keep(&message(&key, &format!("channel {}", number % 5)), &down()).await.unwrap();
        report(&key);
        // By its key: what outlives its attempt is not joined by another.
        letters.drain(&LetterDrain::Key(key.into()));
    }
}

async fn delivering(folder: &Path) -> DeadLetters {
    let read =
        Arc::new(File::options().append(true).create(true).open(folder.join("read")).unwrap());
    let channel = service_fn(move |message: Announcement| {
        let sent = (&*read).write_all(format!("{}\n", message.key).as_bytes());
        // One in three outlives its attempt.
        let outlives = message.key.as_bytes().last().is_some_and(|digit| digit % 3 == 0);
        let takes = Duration::from_micros(if outlives { 8_000 } else { 200 });
        async move {
            sent.unwrap();
            tokio::time::sleep(takes).await;
            Ok::<_, Failure>(())
        }
    });
    let locked = DeliveryFolder::open(folder.join("state")).await.unwrap();
    let ledger = DeliveryLedger::open(&locked, LedgerPolicy::default()).await.unwrap();
    let channel = SendOnceLayer::new(ledger.clone()).layer(channel);
    let policy = LetterQueuePolicy {
        ended: 100_000,
        attempt_timeout: Duration::from_millis(3),
        ..LetterQueuePolicy::default()
    };
    DeadLetters::open(&locked, policy, ledger, channel).await.unwrap()
}

#[test]
fn killed_while_they_are_delivered_letters_are_read_once_or_end_in_a_record() {
    let kills = env::var("STEADFAST_KILLS").map_or(20, |kills| kills.parse().unwrap());
    let folder = tempfile::tempdir().unwrap();
    let mut acknowledged = Vec::new();
    for _ in 0..kills {
        let writer = start("delivers", folder.path(), false);
        acknowledged.extend(killed(writer, fastrand::usize(0..40)));
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let list = runtime.block_on(async {
        let letters = delivering(folder.path()).await;
        until(|| {
            letters.drain(&LetterDrain::All);
            letters.snapshot().waiting == 0
        })
        .await;
        assert!(letters.close().await);
        letters.list()
    });
    let read = fs::read_to_string(folder.path().join("read")).unwrap();
    let mut count = BTreeMap::<&str, u64>::new();
    for key in read.lines() {
        *count.entry(key).or_default() += 1;
    }
    let twice: Vec<_> = count.iter().filter(|(_, count)| **count > 1).collect();
    assert!(twice.is_empty(), "read twice: {twice:?}");
    let unclear = |key: &str| {
        list.ended.iter().any(|one| &*one.key == key && one.end == Some(LetterEnd::Unclear))
    };
    for key in &acknowledged {
        assert!(count.contains_key(&**key) || unclear(key), "{key} is neither read nor recorded");
    }
    println!("{kills} kills, {} acknowledged letters, {} read", acknowledged.len(), count.len());
    assert!(acknowledged.len() as u64 >= 5 * kills, "{} letters", acknowledged.len());
    // At most those that were being sent at a kill are not known to be read: one a destination.
    assert!(count.len() as u64 + 5 * kills >= acknowledged.len() as u64);
}

#[tokio::test]
async fn a_file_cut_at_every_byte_has_the_letters_before_the_cut() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("dead-letters.jsonl");
    let channel = Channel::default();
    channel.set_all(Mode::Down);
    let letters = open(folder.path(), &channel).await;
    for key in ["a", "b", "c"] {
        letters.keep(&message(key, "x"), &down()).await.unwrap();
    }
    letters.discard("b").unwrap();
    assert!(letters.close().await);
    drop(letters);
    let whole = fs::read(&file).unwrap();
    for length in 0..=whole.len() {
        fs::write(&file, &whole[..length]).unwrap();
        // A record of which the line feed alone is missing is whole.
        let lines = whole[..length].split(|byte| *byte == b'\n');
        let records = lines.filter(|line| line.ends_with(b"}}")).count();
        let expected = [&[][..], &["a"], &["a", "b"], &["a", "b", "c"], &["a", "c"]][records];
        let read = LetterList::read(folder.path()).unwrap();
        assert_eq!(keys(&read), expected, "cut at {length}");
        if length % 7 == 0 {
            let letters = open(folder.path(), &channel).await;
            assert_eq!(keys(&letters.list()), expected, "opened after a cut at {length}");
            letters.keep(&message("new", "x"), &down()).await.unwrap();
            assert!(letters.close().await);
            drop(letters);
            let read = LetterList::read(folder.path()).unwrap();
            assert_eq!((keys(&read).len(), read.repair.is_clean()), (expected.len() + 1, true));
        }
    }
}

#[tokio::test]
async fn lines_that_were_changed_are_set_aside() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("dead-letters.jsonl");
    let channel = Channel::default();
    channel.set_all(Mode::Down);
    let letters = open(folder.path(), &channel).await;
    for key in ["a", "b", "c"] {
        letters.keep(&message(key, "x"), &down()).await.unwrap();
    }
    letters.close().await;
    drop(letters);
    let text = fs::read_to_string(&file).unwrap().replace("the text of b", "the text of B");
    fs::write(&file, text).unwrap();
    let letters = open(folder.path(), &channel).await;
    assert_eq!(keys(&letters.list()), ["a", "c"]);
    let aside = fs::read_to_string(folder.path().join("dead-letters.jsonl.bad")).unwrap();
    assert!(aside.contains("the text of B"));
    letters.close().await;
}

/// Writes letters until the disk takes no more, goes on delivering, and writes all of them when there is space.
async fn fills(folder: &Path) {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

    let before = getrlimit(Resource::Fsize);
    let limited = Rlimit { current: Some(4_096), maximum: before.maximum };
    let channel = Channel::default();
    channel.set("down", Mode::Down);
    let policy =
        LetterQueuePolicy { disk_retry: Duration::from_millis(50), ..LetterQueuePolicy::default() };
    let letters = open_with(folder, policy, ledger(), channel.clone()).await;
    setrlimit(Resource::Fsize, limited).unwrap();
    let mut on_disk = 0;
    for number in 0..40 {
        let kept = letters.keep(&message(&format!("{number}"), "down"), &down()).await.unwrap();
        on_disk += u32::from(kept);
    }
    let listed = LetterList::read(folder).unwrap().waiting.len();
    report(&format!("kept {} on disk {on_disk} listed {listed}", letters.snapshot().waiting));
    // Delivering needs no disk.
    letters.keep(&message("well", "up"), &down()).await.unwrap();
    letters.drain(&LetterDrain::Destination("up".into()));
    until(|| !channel.sent().is_empty()).await;
    report("delivered");
    setrlimit(Resource::Fsize, before).unwrap();
    until(|| LetterList::read(folder).unwrap().waiting.len() == 40).await;
    report("written");
    assert!(letters.close().await);
}

#[test]
fn a_full_disk_keeps_letters_in_memory_until_there_is_space() {
    let folder = tempfile::tempdir().unwrap();
    let mut filler = start("fills", folder.path(), true);
    let lines = BufReader::new(filler.stdout.take().unwrap()).lines().map_while(Result::ok);
    let reports: Vec<String> =
        lines.filter_map(|line| line.strip_prefix("REPORT ").map(str::to_owned)).collect();
    assert!(filler.wait().unwrap().success(), "{reports:?}");
    let numbers: Vec<u32> = reports[0].split(' ').filter_map(|word| word.parse().ok()).collect();
    let [kept, on_disk, listed] = numbers[..] else { panic!("{reports:?}") };
    assert_eq!((kept, on_disk), (40, listed), "what was acknowledged is on the disk");
    assert!((1..40).contains(&on_disk), "the limit was reached: {reports:?}");
    assert_eq!(reports[1..], ["delivered", "written"]);
    let list = LetterList::read(folder.path()).unwrap();
    let expected: Vec<String> = (0..40).map(|number| number.to_string()).collect();
    assert_eq!(keys(&list), expected);
    assert_eq!((ends(&list), list.repair.is_clean()), (vec!["well delivered".to_owned()], true));
}
