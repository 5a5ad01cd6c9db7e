//! No space, no permission: what can not be saved is delivered, and saved later.
//!
//! Unix alone, by processes of their own: a limit of file size, another user, a small file system.
#![cfg(unix)]
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::{
    fs,
    io::{self, Write as _},
    os::unix::{fs::PermissionsExt as _, process::CommandExt as _},
    path::Path,
    process::{Command, Output},
};

use common::{child, in_shell, reopened, texts};
use steadfast_chat::{ChatRequest, Message};
use steadfast_core::{Failure, Reason};
use steadfast_session::{
    Opened, SaveError, SessionError, SessionLayer, SessionPolicy, SessionPrompt, SessionReply,
    SessionRun, SessionStore, SessionTurn,
};
use steadfast_testkit::CapturedEvents;
use tower::{Layer, ServiceExt, service_fn};

async fn ask(layer: &SessionLayer, thread: &str, text: &str) -> Result<SessionReply, Failure> {
    let agent = service_fn(|run: SessionRun| async move {
        let text = format!("answer {}", run.request.messages.len());
        Ok::<_, Failure>(SessionTurn::from(Message::assistant(text)))
    });
    layer.layer(agent).oneshot(SessionPrompt::new(thread, ChatRequest::user(text))).await
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// What a child prints at its end: a process in which no test was run succeeds as well.
const DONE: &str = "the job is done";

fn succeeds(output: &Output) {
    let (out, errors) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success() && out.contains(DONE), "{out}\n{errors}");
}

/// Says that a test proves nothing here, past the harness, which keeps the output of tests that pass to itself.
fn skipped(why: &str) {
    let _ = writeln!(io::stderr(), "skipped: {why}");
}

/// What the children do; see who starts them.
#[tokio::test]
async fn child_process() {
    let Some((job, root)) = common::job() else { return };
    match job.as_str() {
        "file limit" => no_space(&root, lift_limit).await,
        "log limit" => {
            no_space_in_the_log(&root.join("log")).await;
            no_space_for_a_replaced_history(&root.join("context")).await;
        }
        "small file system" => small_file_system(&root).await,
        "no permission" => no_permission(&root).await,
        job => panic!("no such job: {job}"),
    }
    println!("{DONE}");
}

fn lift_limit() {
    let mut limit = rustix::process::getrlimit(rustix::process::Resource::Fsize);
    limit.current = limit.maximum;
    rustix::process::setrlimit(rustix::process::Resource::Fsize, limit).unwrap();
}

fn limit_again(bytes: u64) {
    let mut limit = rustix::process::getrlimit(rustix::process::Resource::Fsize);
    limit.current = Some(bytes);
    rustix::process::setrlimit(rustix::process::Resource::Fsize, limit).unwrap();
}

/// The file system has too little space for what is asked; `make_space` changes that.
async fn no_space(root: &Path, make_space: impl FnOnce()) {
    let events = CapturedEvents::default();
    let _guard = tracing::subscriber::set_default(events.clone());
    let policy = SessionPolicy { max_open: 2, ..SessionPolicy::default() };
    let layer = SessionLayer::new(SessionStore::with_policy(root, policy).unwrap());
    assert!(ask(&layer, "a", "small").await.unwrap().saved);
    let large = "x".repeat(200_000);
    let reply = ask(&layer, "a", &large).await.unwrap();
    assert_eq!((reply.text().as_str(), reply.saved), ("answer 3", false), "delivered");
    let reply = ask(&layer, "a", "more").await.unwrap();
    assert_eq!((reply.text().as_str(), reply.saved), ("answer 5", false), "in memory");
    assert_eq!(layer.store().snapshot().unsaved, ["a".into()]);
    assert!(layer.store().attach("a", "big", large).await.is_err(), "an attachment is an error");

    // Another thread is served, and the one that is unsaved is never closed for it.
    for thread in ["b", "c", "d"] {
        assert_eq!(ask(&layer, thread, "hi").await.unwrap().text(), "answer 1");
    }
    assert_eq!(layer.store().snapshot().unsaved, ["a".into()]);
    let flushed = layer.store().flush().await;
    assert_eq!((flushed.saved, flushed.failed.len()), (0, 1));
    let (thread, error) = &flushed.failed[0];
    assert_eq!(&**thread, "a");
    let SaveError::Store(error) = error else { panic!("{error}") };
    assert!(error.is_full(), "{error:?}");
    let taken = events.take();
    let unsaved: Vec<_> =
        taken.iter().filter(|event| event.starts_with("steadfast::session::unsaved")).collect();
    assert!(unsaved.len() >= 3 && unsaved[0].contains("waiting=1"), "{unsaved:?}");

    // What is on the disk is what was acknowledged.
    assert!(layer.store().verify().unwrap().iter().all(steadfast_session::ThreadCheck::is_ok));
    make_space();
    let reply = ask(&layer, "a", "last").await.unwrap();
    assert_eq!((reply.turn, reply.saved), (4, true), "saved with the next turn");
    let late = "steadfast::session::saved_late";
    assert!(events.take().iter().any(|event| event.starts_with(late)));
    drop(layer);
    let thread = reopened(root, "a").await;
    assert_eq!(thread.history().len(), 8);
    assert_eq!(thread.report().unwrap().how, Opened::Current);
}

#[test]
fn a_limit_of_file_size_is_a_full_disk() {
    let folder = tempfile::tempdir().unwrap();
    // The soft limit alone, in blocks of 512 bytes or 1 KiB; the signal that goes with it is ignored, as services do.
    let output =
        in_shell("file limit", folder.path(), "trap '' XFSZ; ulimit -S -f 64;").output().unwrap();
    succeeds(&output);
}

#[test]
fn what_the_log_or_the_context_alone_has_no_space_for() {
    let folder = tempfile::tempdir().unwrap();
    let output = in_shell("log limit", folder.path(), "trap '' XFSZ;").output().unwrap();
    succeeds(&output);
}

/// The context is saved and the log is not: a crash would lose the prompt's key, so it is not saved.
async fn no_space_in_the_log(root: &Path) {
    let layer = SessionLayer::new(SessionStore::new(root));
    limit_again(32 << 10);
    let shorten = service_fn(|_: SessionRun| async {
        let answer = Message::assistant("x".repeat(10_000));
        let history = vec![Message::user("short")];
        Ok::<_, Failure>(SessionTurn::from(answer).with_history(history))
    });
    let ask = |layer: &SessionLayer, key: usize| {
        let prompt = SessionPrompt::new("a", ChatRequest::user("go on"));
        layer.layer(shorten).oneshot(prompt.with_key(key.to_string()))
    };
    let mut turns = 1;
    while ask(&layer, turns).await.unwrap().saved {
        turns += 1;
    }
    assert!(turns > 1);
    let check = layer.store().verify().unwrap().remove(0);
    assert_eq!((check.context_ahead, check.torn_bytes), (1, 0), "the context was saved: {check:?}");
    assert_eq!(layer.store().snapshot().unsaved, ["a".into()]);
    layer.store().close_idle().await;
    assert_eq!(layer.store().snapshot().open, 1, "it is not closed");
    lift_limit();
    assert_eq!(layer.store().flush().await.saved, 1);
    assert!(layer.store().snapshot().unsaved.is_empty());
    drop(layer);
    let reply = ask(&SessionLayer::new(SessionStore::new(root)), turns).await.unwrap();
    assert!(reply.replayed && reply.saved, "nothing is run again");
}

/// The log has nothing to save, and the context can not be.
async fn no_space_for_a_replaced_history(root: &Path) {
    let store = SessionStore::new(root);
    let mut thread = store.open("a").await.unwrap();
    assert!(thread.end_turn(vec![Message::user("hi")]).await.saved);
    limit_again(32 << 10);
    let large = vec![Message::user("x".repeat(100_000))];
    assert!(!thread.replace_history(large.clone()).await.saved);
    assert!(!thread.end_turn(vec![Message::user("more")]).await.saved, "nor what comes after it");
    drop(thread);
    assert_eq!(store.snapshot().unsaved, ["a".into()]);
    store.close_idle().await;
    assert_eq!(store.open("a").await.unwrap().history().len(), 2, "it is not closed");
    lift_limit();
    assert_eq!(store.flush().await.saved, 1);
    drop(store);
    let thread = reopened(root, "a").await;
    assert!(thread.history()[..1] == large[..] && thread.history().len() == 2);
}

#[test]
fn a_file_system_that_is_full() {
    let folder = tempfile::tempdir().unwrap();
    // In mounts of its own, which end with it; who is not root becomes that of a namespace.
    let mount = r#"
        how=-m
        unshare $how true 2>/dev/null || how=-rm
        unshare $how true || { echo no mount; exit; }
        exec unshare $how sh -c '
            mount -t tmpfs -o size=8m tmpfs "$STEADFAST_SESSION_FOLDER" || { echo no mount; exit; }
            exec "$@"
        ' sh "$@";
    "#;
    let output = in_shell("small file system", folder.path(), mount).output().unwrap();
    if text(&output.stdout).contains("no mount") {
        skipped(&format!("this user can not mount a tmpfs: {}", text(&output.stderr).trim()));
    } else {
        succeeds(&output);
    }
}

/// In a file system of 8 MiB.
async fn small_file_system(folder: &Path) {
    let filler = folder.join("filler");
    fs::write(&filler, vec![0; (8 << 20) - (128 << 10)]).unwrap();
    no_space(folder, || fs::remove_file(&filler).unwrap()).await;
    // Full from the beginning: a new thread has no folder, and is served.
    assert!(fs::write(&filler, vec![0; 16 << 20]).is_err());
    let layer = SessionLayer::new(SessionStore::new(folder));
    let reply = ask(&layer, "new", &"y".repeat(10_000)).await.unwrap();
    assert_eq!((reply.text().as_str(), reply.saved), ("answer 1", false));
    let reply = ask(&layer, "a", &"y".repeat(10_000)).await.unwrap();
    assert_eq!((reply.text().as_str(), reply.saved), ("answer 9", false), "its history was read");
    fs::remove_file(filler).unwrap();
    let flushed = layer.store().flush().await;
    assert_eq!((flushed.saved, flushed.failed.len()), (2, 0), "{flushed:?}");
    drop(layer);
    assert_eq!(reopened(folder, "new").await.history().len(), 2);
}

#[test]
fn without_permission() {
    let folder = tempfile::tempdir().unwrap();
    let rights = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode));
    rights(folder.path(), 0o755).unwrap();
    let root = folder.path().join("sessions");
    fs::create_dir(&root).unwrap();
    rights(&root, 0o777).unwrap();
    if !rustix::process::getuid().is_root() {
        succeeds(&child("no permission", &root).output().unwrap());
        return;
    }
    // Root may do anything, so another user is asked. It has to be able to run this binary.
    std::os::unix::fs::chown(&root, Some(65534), Some(65534)).unwrap();
    let binary = folder.path().join("test");
    fs::copy(std::env::current_exe().unwrap(), &binary).unwrap();
    let output = Command::new(&binary)
        .args(["child_process", "--exact", "--nocapture"])
        .env(common::JOB, "no permission")
        .env(common::FOLDER, &root)
        .uid(65534)
        .gid(65534)
        .output();
    match output {
        Ok(output) => succeeds(&output),
        Err(error) => skipped(&format!("this root can not be another user: {error}")),
    }
}

/// As a user whose permissions count.
async fn no_permission(root: &Path) {
    let rights = |name: &str, mode| {
        fs::set_permissions(root.join(name), fs::Permissions::from_mode(mode)).unwrap();
    };
    let layer = || SessionLayer::new(SessionStore::new(root));
    assert!(ask(&layer(), "a", "one").await.unwrap().saved);

    // May not be read: an error, whichever file it is, and nothing is set aside.
    for name in ["a", "a/context.jsonl", "a/log.jsonl"] {
        rights(name, 0o000);
        let failure = ask(&layer(), "a", "two").await.unwrap_err();
        assert_eq!(failure.reason(), Reason::Unknown);
        assert!(failure.message().contains("history of thread `a` can not be read"), "{name}");
        let error = SessionStore::new(root).open("a").await.map(drop).unwrap_err();
        let SessionError::Unreadable { source, .. } = &error else { panic!("{error}") };
        assert!(source.is_denied(), "{source:?}");
        rights(name, if name == "a" { 0o700 } else { 0o600 });
    }
    let layer = layer();
    let reply = ask(&layer, "a", "two").await.unwrap();
    assert_eq!((reply.text().as_str(), reply.saved), ("answer 3", true));
    drop(layer);

    // May not be written to: read, delivered, and saved when it may.
    for (folder, file) in [(0o500, 0o400), (0o500, 0o600)] {
        let store = SessionStore::new(root);
        let before = reopened(root, "a").await.history().len();
        rights("a/log.jsonl", file);
        rights("a/context.jsonl", file);
        rights("a/.lock", file);
        rights("a", folder);
        let layer = SessionLayer::new(store);
        let reply = ask(&layer, "a", "more").await.unwrap();
        assert_eq!(reply.messages.len(), 1, "delivered");
        // With a log that may be written to a turn is safe.
        assert_eq!(reply.saved, file == 0o600, "{file:o}");
        let reply = ask(&layer, "a", "more").await.unwrap();
        assert_eq!(reply.text(), format!("answer {}", before + 3), "it is in the history");
        rights("a", 0o700);
        for name in ["a/log.jsonl", "a/context.jsonl", "a/.lock"] {
            rights(name, 0o600);
        }
        let flushed = layer.store().flush().await;
        assert_eq!((flushed.saved, flushed.failed.len()), (1, 0), "{flushed:?}");
        drop(layer);
        assert_eq!(reopened(root, "a").await.history().len(), before + 4);
    }

    // A new thread in a folder that may not be written to.
    let layer = SessionLayer::new(SessionStore::new(root.join("deep")));
    fs::set_permissions(root, fs::Permissions::from_mode(0o500)).unwrap();
    assert!(!ask(&layer, "new", "one").await.unwrap().saved);
    fs::set_permissions(root, fs::Permissions::from_mode(0o700)).unwrap();
    assert!(ask(&layer, "new", "two").await.unwrap().saved);
    drop(layer);
    let deep = root.join("deep");
    assert_eq!(texts(&reopened(&deep, "new").await.history()).len(), 4);

    // A thread that could not be locked, and that another process writes to: neither history is written over.
    let layer = SessionLayer::new(SessionStore::new(&deep));
    rights("deep", 0o500);
    assert!(!ask(&layer, "both", "mine").await.unwrap().saved);
    rights("deep", 0o700);
    assert!(
        ask(&SessionLayer::new(SessionStore::new(&deep)), "both", "theirs").await.unwrap().saved
    );
    let flushed = layer.store().flush().await;
    assert!(matches!(flushed.failed[..], [(_, SaveError::Changed { .. })]), "{flushed:?}");
    let reply = ask(&layer, "both", "mine").await.unwrap();
    assert_eq!((reply.text().as_str(), reply.saved), ("answer 3", false), "delivered");
    drop(layer);
    assert_eq!(texts(&reopened(&deep, "both").await.history()), ["theirs", "answer 1"]);
}

#[tokio::test]
async fn a_file_where_the_folder_was_is_an_error() {
    let root = tempfile::tempdir().unwrap();
    fs::write(root.path().join("a"), "no folder").unwrap();
    let layer = SessionLayer::new(SessionStore::new(root.path()));
    let failure = ask(&layer, "a", "one").await.unwrap_err();
    assert!(failure.message().contains("can not be read"), "{}", failure.message());
    fs::create_dir(root.path().join("b")).unwrap();
    fs::create_dir(root.path().join("b/context.jsonl")).unwrap();
    assert!(ask(&layer, "b", "one").await.is_err(), "a folder where the context was");
    assert_eq!(layer.store().snapshot().unsaved.len(), 0);
}
