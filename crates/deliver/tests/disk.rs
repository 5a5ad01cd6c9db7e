//! No space, no permission: what can not be written is delivered, and written later.
//!
//! Unix alone, by processes of their own: another user, a small file system. A limit of file size is in `crash.rs`.
#![cfg(unix)]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

mod common;

use std::{
    env, fs,
    os::unix::fs::PermissionsExt as _,
    path::Path,
    process::{Command, Output},
    time::Duration,
};

use common::{Channel, Mode, down, keys, message, open_with, until};
use steadfast_deliver::{
    DeadLetters, DeliverError, DeliveryFolder, DeliveryLedger, LedgerPolicy, LetterDrain,
    LetterList, LetterQueuePolicy,
};

/// For the child that is another user: the folder.
const FOLDER: &str = "STEADFAST_DELIVER_FOLDER";

fn rights(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

fn succeeds(output: &Output) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{}\n{}", text(&output.stdout), text(&output.stderr));
}

async fn opened(folder: &Path, channel: &Channel) -> (DeadLetters, DeliveryLedger) {
    let retry = Duration::from_millis(20);
    let locked = DeliveryFolder::open(folder).await.unwrap();
    let policy = LedgerPolicy { disk_retry: retry, ..LedgerPolicy::default() };
    let ledger = DeliveryLedger::open(&locked, policy).await.unwrap();
    let policy = LetterQueuePolicy { disk_retry: retry, ended: 20, ..LetterQueuePolicy::default() };
    let letters = DeadLetters::open(&locked, policy, ledger.clone(), channel.clone()).await;
    (letters.unwrap(), ledger)
}

fn waiting(folder: &Path) -> usize {
    LetterList::read(folder).unwrap().waiting.len()
}

/// A mounted file system, unmounted when it is dropped.
struct Mounted<'a>(&'a Path);

impl Drop for Mounted<'_> {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.0).status();
    }
}

#[tokio::test]
async fn a_file_system_that_is_full() {
    let root = tempfile::tempdir().unwrap();
    let mount = Command::new("mount")
        .args(["-t", "tmpfs", "-o", "size=256k", "tmpfs"])
        .arg(root.path())
        .output();
    if !mount.is_ok_and(|output| output.status.success()) {
        println!("skipped: this user can not mount a tmpfs");
        return;
    }
    let mounted = Mounted(root.path());
    let (folder, filler) = (root.path().join("delivery"), root.path().join("filler"));
    let channel = Channel::default();
    channel.set("down", Mode::Down);
    let (letters, ledger) = opened(&folder, &channel).await;
    assert!(letters.keep(&message("before", "down"), &down()).await.unwrap());
    assert!(fs::write(&filler, vec![0; 1 << 20]).is_err(), "full");

    let mut on_disk = 0;
    for number in 0..200 {
        let kept = letters.keep(&message(&number.to_string(), "down"), &down()).await.unwrap();
        on_disk += usize::from(kept);
        ledger.record(&format!("delivered {number}").into());
    }
    assert_eq!((letters.snapshot().waiting, waiting(&folder)), (201, 1 + on_disk));
    assert!(on_disk < 200, "it was full");
    // Delivering needs no disk.
    letters.keep(&message("well", "up"), &down()).await.unwrap();
    letters.drain(&LetterDrain::Destination("up".into()));
    until(|| !channel.sent().is_empty()).await;
    fs::remove_file(&filler).unwrap();
    until(|| waiting(&folder) == 201).await;
    assert!(letters.close().await && ledger.close().await);
    drop((letters, ledger));

    // Full for ever: closing says so, and what was acknowledged is there.
    let (letters, ledger) = opened(&folder, &channel).await;
    let known = ledger.snapshot().delivered;
    assert!(known >= 201 && ledger.delivered("delivered 199").is_some(), "{known}");
    assert_eq!(keys(&letters.list()).len(), 201);
    assert!(fs::write(&filler, vec![0; 1 << 20]).is_err(), "full");
    let large = message("large", &"x".repeat(100_000));
    assert!(!letters.keep(&large, &down()).await.unwrap());
    ledger.record(&"y".repeat(100_000).into());
    assert_eq!((letters.close().await, letters.close().await), (false, false));
    assert_eq!((ledger.close().await, ledger.close().await), (false, false));
    assert_eq!(waiting(&folder), 201);
    drop(mounted);
}

/// What the child does; nothing, when it is called as a test.
#[tokio::test]
async fn child_process() {
    let Some(folder) = env::var_os(FOLDER) else { return };
    no_permission(Path::new(&folder)).await;
}

#[test]
fn without_permission() {
    let root = tempfile::tempdir().unwrap();
    rights(root.path(), 0o755);
    let folder = root.path().join("delivery");
    fs::create_dir(&folder).unwrap();
    let arguments = ["child_process", "--exact", "--nocapture"];
    if !rustix::process::getuid().is_root() {
        let mut child = Command::new(env::current_exe().unwrap());
        succeeds(&child.args(arguments).env(FOLDER, &folder).output().unwrap());
        return;
    }
    // Root may do anything, so another user is asked. It has to be able to run this binary.
    std::os::unix::fs::chown(&folder, Some(65534), Some(65534)).unwrap();
    let binary = root.path().join("test");
    fs::copy(env::current_exe().unwrap(), &binary).unwrap();
    let as_nobody = |program: &str| {
        let mut command = Command::new("setpriv");
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups", program]);
        command
    };
    if !as_nobody("true").output().is_ok_and(|output| output.status.success()) {
        println!("skipped: this is root, and there is no `setpriv` to be another user");
        return;
    }
    let mut child = as_nobody(binary.to_str().unwrap());
    succeeds(&child.args(arguments).env(FOLDER, &folder).output().unwrap());
}

/// As a user whose permissions count.
async fn no_permission(folder: &Path) {
    let channel = Channel::default();
    channel.set_all(Mode::Down);
    let (letters, ledger) = opened(folder, &channel).await;
    letters.keep(&message("a", "x"), &down()).await.unwrap();
    ledger.record(&"b".into());
    assert!(letters.close().await && ledger.close().await);
    drop((letters, ledger));

    // May not be read: an error, whichever it is, and nothing is set aside or made anew.
    for (name, readable) in [("dead-letters.jsonl", 0o600), ("ledger.jsonl", 0o600), (".", 0o700)] {
        let path = if name == "." { folder.to_owned() } else { folder.join(name) };
        rights(&path, 0o000);
        let error = match DeliveryFolder::open(folder).await {
            Err(error) => error,
            Ok(locked) if name == "ledger.jsonl" => {
                DeliveryLedger::open(&locked, LedgerPolicy::default()).await.unwrap_err()
            }
            Ok(locked) => {
                let policy = LetterQueuePolicy::default();
                let opened = DeadLetters::open(&locked, policy, common::ledger(), channel.clone());
                opened.await.unwrap_err()
            }
        };
        let DeliverError::Store(error) = error else { panic!("{name}: {error}") };
        assert!(error.is_denied(), "{name}: {error}");
        rights(&path, readable);
    }

    // The folder may not be written to: the files are, and are shortened when it may.
    let (letters, ledger) = opened(folder, &channel).await;
    assert_eq!((keys(&letters.list()), ledger.snapshot().delivered), (vec!["a"], 1));
    rights(folder, 0o500);
    for number in 0..200 {
        let key = number.to_string();
        assert!(letters.keep(&message(&key, "x"), &down()).await.unwrap(), "on the disk");
        letters.discard(&key).unwrap();
    }
    assert!(letters.keep(&message("last", "x"), &down()).await.unwrap());
    let lines = || fs::read_to_string(folder.join("dead-letters.jsonl")).unwrap().lines().count();
    assert!(lines() > 400, "{}", lines());
    rights(folder, 0o700);
    assert!(letters.keep(&message("more", "x"), &down()).await.unwrap());
    assert!(letters.close().await && ledger.close().await);
    assert!(lines() < 110, "{}", lines());
    assert_eq!(keys(&LetterList::read(folder).unwrap()), ["a", "last", "more"]);
    drop((letters, ledger));
    // Nothing is acknowledged that the next start does not have.
    let letters = open_with(folder, LetterQueuePolicy::default(), common::ledger(), channel).await;
    assert_eq!(keys(&letters.list()), ["a", "last", "more"]);
}
