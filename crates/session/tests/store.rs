//! Threads that are open, and threads seen from outside.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::{fs, time::Duration};

use common::{memory, reopened, texts};
use steadfast_chat::Message;
use steadfast_session::{
    PolicyError, SessionEntry, SessionError, SessionPolicy, SessionScope, SessionStore, StartReason,
};
use steadfast_testkit::CapturedEvents;

fn turn(text: &str) -> Vec<Message> {
    vec![Message::user(text), Message::assistant(format!("re: {text}"))]
}

async fn add(store: &SessionStore, thread: &str, text: &str) {
    assert!(store.open(thread).await.unwrap().end_turn(turn(text)).await.saved);
}

#[tokio::test]
async fn any_id_has_a_folder_of_its_own_inside_the_root() {
    let root = tempfile::tempdir_in(memory()).unwrap();
    let store = SessionStore::new(root.path().join("sessions"));
    let long = "slack/".repeat(100);
    let longer = format!("{long}x");
    let ids = ["", ".", "..", "../a", "/etc/passwd", "A", "a", "é", "a\0b", "%41", &long, &longer];
    for id in ids {
        add(&store, id, id).await;
    }
    assert_eq!(fs::read_dir(root.path()).unwrap().count(), 1, "nothing beside it");
    assert_eq!(fs::read_dir(store.root()).unwrap().count(), ids.len());
    let mut listed: Vec<_> =
        store.list().unwrap().into_iter().map(|summary| summary.thread).collect();
    let mut expected = ids.map(str::to_owned).to_vec();
    listed.sort_unstable();
    expected.sort_unstable();
    assert_eq!(listed, expected);
    drop(store);
    for id in ids {
        let thread = reopened(&root.path().join("sessions"), id).await;
        assert_eq!(texts(&thread.history()), texts(&turn(id)));
    }
}

#[tokio::test]
async fn the_folder_of_a_long_id_is_refused_to_another() {
    let root = tempfile::tempdir_in(memory()).unwrap();
    let store = SessionStore::new(root.path());
    let long = "x".repeat(300);
    add(&store, &long, "hi").await;
    store.close_idle().await;
    let folder = store.list().unwrap()[0].folder.clone();
    fs::write(folder.join("thread"), "another").unwrap();
    let error = store.open(&long).await.map(drop).unwrap_err();
    assert!(matches!(&error, SessionError::Foreign { .. }), "{error}");
}

#[tokio::test]
async fn as_many_are_open_as_the_policy_says_the_latest_ones() {
    let root = tempfile::tempdir_in(memory()).unwrap();
    let policy = SessionPolicy { max_open: 3, ..SessionPolicy::default() };
    let store = SessionStore::with_policy(root.path(), policy).unwrap();
    let events = CapturedEvents::default();
    let _guard = tracing::subscriber::set_default(events.clone());
    for number in 0..10 {
        add(&store, &format!("t{number}"), "hi").await;
        assert!(store.snapshot().open <= 3);
    }
    // The others are unlocked.
    let other = SessionStore::new(root.path());
    for number in 0..10 {
        let is_open = other.open(&format!("t{number}")).await.map(drop);
        assert_eq!(is_open.is_ok(), number < 7, "t{number}: {is_open:?}");
    }
    other.close_idle().await;

    // In use, they stay, and another is refused.
    let mut held = Vec::new();
    for thread in ["t1", "t2", "t3"] {
        held.push(store.open(thread).await.unwrap());
    }
    let error = store.open("t4").await.map(drop).unwrap_err();
    assert!(error.to_string().contains("`session.max_open`"), "{error}");
    held.pop();
    drop(store.open("t4").await.unwrap());
    let error =
        SessionStore::with_policy("x", SessionPolicy { keys: 0, ..SessionPolicy::default() });
    assert_eq!(error.unwrap_err(), PolicyError::Zero("keys"));
}

#[tokio::test(start_paused = true)]
async fn idle_threads_are_closed_and_unlocked() {
    let root = tempfile::tempdir_in(memory()).unwrap();
    let store = SessionStore::new(root.path());
    add(&store, "old", "hi").await;
    tokio::time::advance(Duration::from_secs(599)).await;
    add(&store, "new", "hi").await;
    assert_eq!(store.snapshot().open, 2);
    let locked = SessionStore::new(root.path()).open("old").await.map(drop).unwrap_err();
    assert!(matches!(&locked, SessionError::Locked { .. }), "{locked}");
    tokio::time::advance(Duration::from_secs(2)).await;
    add(&store, "new", "hi").await;
    common::until(|| store.snapshot().open == 1).await;
    assert_eq!(reopened(root.path(), "old").await.turn(), 1);
    add(&store, "old", "again").await;
}

#[tokio::test]
async fn a_second_process_is_refused_and_a_dropped_store_unlocks() {
    let root = tempfile::tempdir_in(memory()).unwrap();
    let store = SessionStore::new(root.path());
    add(&store, "a", "hi").await;
    let error = SessionStore::new(root.path()).open("a").await.map(drop).unwrap_err();
    assert!(error.to_string().contains("another process has thread `a` open"), "{error}");
    // Reading needs no lock.
    let other = SessionStore::new(root.path());
    assert!(other.verify().unwrap()[0].is_ok());
    assert_eq!(other.show(&SessionScope::prefix("a")).unwrap().history.len(), 2);
    drop(store);
    assert_eq!(reopened(root.path(), "a").await.turn(), 1);
}

#[tokio::test]
async fn list_and_show() {
    let root = tempfile::tempdir_in(memory()).unwrap();
    let store = SessionStore::new(root.path().join("none"));
    assert!(store.list().unwrap().is_empty() && store.verify().unwrap().is_empty());
    let store = SessionStore::new(root.path());
    add(&store, "slack/1", "one").await;
    add(&store, "slack/1", "two").await;
    assert_eq!(store.roll_over(&SessionScope::thread("slack/1")).await.unwrap(), 2);
    add(&store, "slack/1", "three").await;
    add(&store, "irc", "hi").await;
    fs::write(root.path().join("notes.txt"), "not a thread").unwrap();
    fs::create_dir(root.path().join("Not A Thread")).unwrap();
    let list = store.list().unwrap();
    let listed: Vec<_> = list
        .iter()
        .map(|one| (one.thread.as_str(), one.session, one.turns, one.messages))
        .collect();
    assert_eq!(listed, [("irc", 1, 1, 2), ("slack/1", 2, 3, 2)]);
    assert!(list[0].last.as_ref().unwrap().ends_with('Z'));
    let shown = store.show(&SessionScope::prefix("sl")).unwrap();
    assert_eq!(texts(&shown.history), ["three", "re: three"]);
    let entries: Vec<_> = shown
        .entries
        .iter()
        .map(|entry| match entry {
            SessionEntry::Turn(turn) => (turn.turn, turn.session, turn.messages[0].text()),
            SessionEntry::Started(start) => {
                assert_eq!(start.why, StartReason::RolledOver);
                (start.after, start.session, "started".to_owned())
            }
            entry => panic!("{entry:?}"),
        })
        .collect();
    let entry = |turn, session, text: &str| (turn, session, text.to_owned());
    assert_eq!(
        entries,
        [entry(1, 1, "one"), entry(2, 1, "two"), entry(2, 2, "started"), entry(3, 2, "three")],
    );
    let error = store.show(&SessionScope::thread("slack/1").in_session(1)).unwrap_err();
    assert!(error.to_string().contains("session 2 is"), "{error}");
}

#[tokio::test]
async fn a_thread_whose_id_is_lost_is_reported_by_its_folder() {
    let root = tempfile::tempdir_in(memory()).unwrap();
    let store = SessionStore::new(root.path());
    let thread = "long/".repeat(100);
    add(&store, &thread, "one").await;
    drop(store);
    let folder = fs::read_dir(root.path()).unwrap().next().unwrap().unwrap().path();
    let store = SessionStore::new(root.path());
    assert!(store.verify().unwrap()[0].is_ok());
    fs::remove_file(folder.join("thread")).unwrap();
    let checks = store.verify().unwrap();
    assert_eq!(checks.len(), 1);
    assert!(!checks[0].is_ok() && checks[0].error.as_ref().unwrap().contains("its id"));
    assert_eq!(checks[0].thread, folder.file_name().unwrap().to_str().unwrap());
    // Whoever knows the id has everything.
    add(&store, &thread, "two").await;
    assert!(store.verify().unwrap()[0].is_ok());
}

#[tokio::test]
async fn verify_reports_each_kind_of_damage_and_changes_nothing() {
    let root = tempfile::tempdir_in(memory()).unwrap();
    let store = SessionStore::new(root.path());
    for thread in ["backup", "clean", "forged", "lost", "rebuilt", "torn", "unreadable"] {
        for text in ["one", "two", "three"] {
            add(&store, thread, text).await;
        }
    }
    drop(store);
    let path = |thread: &str, name: &str| root.path().join(thread).join(name);
    let edit = |thread: &str, name: &str, edit: &dyn Fn(String) -> String| {
        let text = fs::read_to_string(path(thread, name)).unwrap();
        fs::write(path(thread, name), edit(text)).unwrap();
    };
    edit("backup", "context.jsonl", &|text| text.replacen("two", "TWO", 1));
    edit("lost", "context.jsonl", &|text| text.replacen("two", "TWO", 1));
    edit("lost", "context.jsonl.bak", &|text| text.replacen("two", "TWO", 1));
    edit("lost", "log.jsonl", &|text| text.replacen("two", "TWO", 1));
    edit("rebuilt", "context.jsonl", &|text| text.replacen("two", "TWO", 1));
    edit("rebuilt", "context.jsonl.bak", &|text| text.replacen("two", "TWO", 1));
    edit("torn", "log.jsonl", &|text| format!("{text}{{\"n\":4"));
    fs::remove_file(path("unreadable", "log.jsonl")).unwrap();
    fs::create_dir(path("unreadable", "log.jsonl")).unwrap();
    // A context whose checksums are right, of another history.
    let other = SessionStore::new(root.path().join("elsewhere"));
    for text in ["one", "2", "three"] {
        add(&other, "forged", text).await;
    }
    drop(other);
    let forged = root.path().join("elsewhere/forged/context.jsonl");
    fs::rename(forged, path("forged", "context.jsonl")).unwrap();
    fs::remove_dir_all(root.path().join("elsewhere")).unwrap();

    let names = || {
        let mut names: Vec<_> = ["backup", "lost", "torn"]
            .iter()
            .flat_map(|thread| fs::read_dir(root.path().join(thread)).unwrap())
            .map(|entry| entry.unwrap())
            .map(|entry| (entry.path(), entry.metadata().unwrap().len()))
            .collect();
        names.sort();
        names
    };
    let before = names();
    let checks = SessionStore::new(root.path()).verify().unwrap();
    assert_eq!(names(), before);
    let found: Vec<_> = checks
        .iter()
        .map(|one| (one.thread.as_str(), one.is_ok(), one.opens, one.bad_lines, one.agrees))
        .collect();
    assert_eq!(
        found,
        [
            ("backup", false, "backup", 0, true),
            ("clean", true, "current", 0, true),
            ("forged", false, "current", 0, false),
            ("lost", false, "lost", 1, true),
            ("rebuilt", false, "rebuilt", 0, true),
            ("torn", true, "current", 0, true),
            ("unreadable", false, "", 0, false),
        ],
    );
    assert_eq!((checks[5].torn_bytes, checks[1].turns, checks[4].damaged), (6, 3, 2));
    assert!(checks[6].error.as_ref().unwrap().contains("log.jsonl"));
}

#[tokio::test]
async fn an_attachment_is_whole_and_stays_in_its_folder() {
    let root = tempfile::tempdir_in(memory()).unwrap();
    let store = SessionStore::new(root.path());
    let path = store.attach("a", "../../cat.png", *b"meow").await.unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"meow");
    assert!(path.starts_with(root.path().join("a/attachments")), "{path:?}");
    assert_eq!(path, store.attach("a", "../../cat.png", *b"purr").await.unwrap());
    assert_eq!(fs::read(&path).unwrap(), b"purr");
    assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1, "nothing left");
}

#[tokio::test]
async fn a_history_of_every_kind_of_part_is_read_as_it_was() {
    use steadfast_chat::{Part, RawJson, Role};
    use steadfast_core::Dialect;

    let root = tempfile::tempdir_in(memory()).unwrap();
    let raw = r#"{"role":"user",  "content":"\ud83d", "cache_control":{"x":1.10}}"#;
    let read = Message::from_wire(
        Dialect::Anthropic,
        Role::User,
        vec![Part::text("\u{fffd}"), Part::image("image/png", "AAAA")],
        serde_json::from_str(r#"{"cache_control":{"z":1,"a":[null]}}"#).unwrap(),
        RawJson::parse(raw).unwrap(),
    );
    let call = Message::new(Role::Assistant, vec![Part::tool_call("c", "t", "{\"cut")]);
    let messages = vec![read, call, Message::tool("c", "line\nline\u{2028}\0")];
    let mut thread = reopened(root.path(), "a").await;
    assert!(thread.end_turn(messages.clone()).await.saved);
    drop(thread);
    let thread = reopened(root.path(), "a").await;
    assert_eq!(thread.history()[..], messages[..]);
    assert_eq!(thread.history()[0].raw(Dialect::Anthropic).unwrap().get(), raw);
}
