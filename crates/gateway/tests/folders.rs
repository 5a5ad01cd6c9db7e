//! `steadfast sessions` and `steadfast dead-letters`: the binary on folders that the crates have made.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::{
    fs,
    io::{Read, Write},
    net::{SocketAddr, TcpListener},
    path::{Path, PathBuf},
    sync::mpsc,
    thread,
};

use serde_json::Value;
use steadfast_chat::Message;
use steadfast_core::{Failure, Reason};
use steadfast_deliver::{
    Announcement, DeadLetters, DeliveryFolder, DeliveryLedger, LedgerPolicy, LetterEnd, LetterList,
    LetterQueuePolicy,
};
use steadfast_session::SessionStore;
use tower::service_fn;

use self::process::{run, text};

mod process;

/// A terminal's command, and an override of the writing direction.
const HOSTILE: &str = "x\u{1b}[2J\u{202e}y";

fn new_folder(name: &str) -> PathBuf {
    let folder = process::folder(name);
    fs::remove_dir_all(&folder).unwrap();
    fs::create_dir_all(&folder).unwrap();
    folder
}

/// Runs `args` with `--dir`: the exit code, standard output and standard error, of which nothing commands a terminal.
fn on(folder: &Path, args: &[&str]) -> (i32, String, String) {
    let output = run(&[args, &["--dir", folder.to_str().unwrap()]].concat());
    let (out, errors) = (text(&output.stdout).to_owned(), text(&output.stderr).to_owned());
    let is_bad = |c: char| c != '\n' && c.is_control() || c == '\u{202e}';
    assert!(!out.contains(is_bad) && !errors.contains(is_bad), "{out:?} {errors:?}");
    (output.status.code().unwrap(), out, errors)
}

fn json(folder: &Path, args: &[&str]) -> Value {
    let (_, out, errors) = on(folder, &[args, &["--json"]].concat());
    serde_json::from_str(&out).unwrap_or_else(|error| panic!("{error}: {out:?} {errors:?}"))
}

/// Two turns in each of these threads. The store still has them open, and locked.
async fn sessions(root: &Path, threads: &[&str]) -> SessionStore {
    let store = SessionStore::new(root);
    for thread in threads {
        let mut open = store.open(thread).await.unwrap();
        for prompt in [format!("first\n{HOSTILE}"), "second".to_owned()] {
            let turn = vec![Message::user(prompt), Message::assistant("an answer")];
            assert!(open.end_turn(turn).await.saved);
        }
    }
    store
}

/// The one folder in `root` whose name begins like this.
fn thread_folder(root: &Path, start: &str) -> PathBuf {
    let mut entries = fs::read_dir(root).unwrap().map(|entry| entry.unwrap().path());
    let is_it = |path: &PathBuf| path.file_name().unwrap().to_str().unwrap().starts_with(start);
    entries.find(is_it).unwrap()
}

#[tokio::test]
async fn sessions_are_listed_and_shown_while_a_process_has_them_open() {
    let root = new_folder("sessions-list");
    let _open = sessions(&root, &["alpha-1", "alpha-2", HOSTILE]).await;

    let (code, out, _) = on(&root, &["sessions", "list"]);
    assert_eq!((code, out.lines().count()), (0, 4), "{out}");
    let line = out.lines().nth(1).unwrap();
    let cells: Vec<&str> = line.split_whitespace().collect();
    assert_eq!(cells[..4], ["alpha-1", "1", "2", "4"], "{line}");
    assert!(out.contains("x\\u{1b}[2J\\u{202e}y"), "{out}");
    let list = json(&root, &["sessions", "list"]);
    assert_eq!((&list[0]["thread"], &list[0]["turns"]), (&"alpha-1".into(), &2.into()));
    assert_eq!(list[2]["thread"], HOSTILE);

    let (code, out, _) = on(&root, &["sessions", "show", "x"]);
    assert_eq!(code, 0, "{out}");
    assert!(
        out.contains("\n    first\n    x\\u{1b}[2J\\u{202e}y\n  assistant\n    an answer\n"),
        "{out}"
    );
    assert!(out.contains("\nturn 2  "), "{out}");
    let shown = json(&root, &["sessions", "show", "alpha-2"]);
    assert_eq!(shown["history"].as_array().unwrap().len(), 4);
    assert_eq!(shown["entries"].as_array().unwrap().len(), 2);

    for (thread, part) in [("alpha", "2 threads are `alpha...`"), ("\u{1b}", "there is no thread")]
    {
        let (code, out, errors) = on(&root, &["sessions", "show", thread]);
        assert_eq!((code, &*out), (1, ""), "{errors}");
        assert!(errors.contains(part), "{errors}");
    }
}

#[tokio::test]
async fn verify_says_which_thread_is_damaged() {
    let root = new_folder("sessions-verify");
    drop(sessions(&root, &["good", "torn", "line", HOSTILE]).await);
    let append = |thread: &str, bytes: &[u8]| {
        let log = thread_folder(&root, thread).join("log.jsonl");
        fs::OpenOptions::new().append(true).open(log).unwrap().write_all(bytes).unwrap();
    };
    append("torn", b"{\"n\":3,\"crc");
    let (code, out, errors) = on(&root, &["sessions", "verify"]);
    assert_eq!(code, 0, "an append that was interrupted is no damage: {out} {errors}");
    let torn = out.lines().find(|line| line.contains("torn")).unwrap();
    assert!(torn.starts_with("ok ") && torn.contains("11 bytes of an append"), "{torn}");

    append("line", b"\x1b[2J no line of ours\n");
    fs::write(thread_folder(&root, "x").join("context.jsonl"), "no context\n").unwrap();
    let (code, out, errors) = on(&root, &["sessions", "verify"]);
    assert_eq!((code, out.lines().count()), (1, 4), "{out} {errors}");
    assert!(errors.contains("2 of 4 threads damaged"), "{errors}");
    for (thread, starts, part) in [
        ("good", "ok ", "2 turns"),
        ("torn", "ok ", "2 turns"),
        ("line", "damaged ", "1 bad lines"),
        ("x\\u{1b}", "damaged ", "1 damaged files"),
    ] {
        let line = out.lines().find(|line| line.contains(thread)).unwrap();
        assert!(line.starts_with(starts) && line.contains(part), "{line}");
    }
    let checks = json(&root, &["sessions", "verify"]);
    let ok: Vec<_> =
        checks.as_array().unwrap().iter().map(|one| one["ok"].as_bool().unwrap()).collect();
    assert_eq!(ok, [true, false, true, false], "by id: good, line, torn, x");
    let after = on(&root, &["sessions", "verify"]).1;
    assert_eq!(after, out, "nothing was changed");
}

#[cfg(unix)]
#[tokio::test]
async fn a_thread_that_can_not_be_read_is_named() {
    let root = new_folder("sessions-unreadable");
    drop(sessions(&root, &["good", "wrong"]).await);
    let log = thread_folder(&root, "wrong").join("log.jsonl");
    fs::remove_file(&log).unwrap();
    fs::create_dir(&log).unwrap();
    for args in [&["sessions", "list"][..], &["sessions", "show", "wrong"]] {
        let (code, out, errors) = on(&root, args);
        assert_eq!((code, &*out), (1, ""), "{errors}");
        assert!(errors.contains("`wrong`") && errors.contains("log.jsonl"), "{errors}");
    }
    let (code, out, _) = on(&root, &["sessions", "verify"]);
    assert_eq!(code, 1, "{out}");
    assert!(out.lines().any(|line| line.starts_with("damaged  wrong")), "{out}");
    assert!(out.lines().any(|line| line.starts_with("ok       good")), "{out}");
}

#[test]
fn a_folder_has_to_exist_and_may_be_empty() {
    let folder = new_folder("folders-empty");
    let missing = folder.join("not-here");
    let file = folder.join("file");
    fs::write(&file, "").unwrap();
    let empty = folder.join("empty");
    fs::create_dir(&empty).unwrap();
    for args in [
        &["sessions", "list"][..],
        &["sessions", "verify"],
        &["dead-letters", "list"],
        &["dead-letters", "drain"],
        &["dead-letters", "drain", "--url", "http://127.0.0.1:1/"],
    ] {
        let (code, out, errors) = on(&empty, args);
        assert_eq!((code, &*out), (0, ""), "{args:?}: {errors}");
        assert!(errors.contains("/empty: "), "{args:?}: {errors}");
        if args.len() == 2 {
            assert_eq!(json(&empty, args), serde_json::json!([]), "{args:?}");
        }
        for wrong in [&missing, &file] {
            let (code, out, errors) = on(wrong, args);
            assert_eq!((code, &*out), (2, ""), "{args:?}: {errors}");
            assert!(errors.contains(wrong.to_str().unwrap()), "{args:?}: {errors}");
        }
    }
    let (code, _, errors) = on(&empty, &["dead-letters", "drop", "a"]);
    assert_eq!(code, 1);
    assert!(errors.contains("there is no dead letter `a`"), "{errors}");
    assert!(!missing.exists(), "it is not made");
    assert_eq!(fs::read_dir(&empty).unwrap().count(), 0, "nothing is made in it");
}

/// Letters of these keys and destinations, which wait for their first retry.
async fn letters(dir: &Path, letters: &[(&str, &str)]) -> DeadLetters {
    let folder = DeliveryFolder::open(dir).await.unwrap();
    let ledger = DeliveryLedger::in_memory(LedgerPolicy::default()).unwrap();
    let channel = service_fn(async |_: Announcement| Err::<(), _>(down()));
    let queue =
        DeadLetters::open(&folder, LetterQueuePolicy::default(), ledger, channel).await.unwrap();
    for (key, destination) in letters {
        let message = Announcement::new(*key, *destination, format!("the text\nof {key}"));
        assert!(queue.keep(&message, &down()).await.unwrap());
    }
    queue
}

fn down() -> Failure {
    Failure::new(Reason::ServerError, format!("no {HOSTILE}"))
}

#[tokio::test]
async fn letters_are_read_beside_a_service_and_dropped_without_one() {
    let dir = new_folder("letters-drop");
    let queue = letters(&dir, &[("a", "room"), (HOSTILE, HOSTILE), ("c", "room")]).await;

    let (code, out, _) = on(&dir, &["dead-letters", "list"]);
    assert_eq!((code, out.lines().count()), (0, 4), "{out}");
    assert!(out.lines().nth(1).unwrap().starts_with("waiting  a "), "{out}");
    assert!(out.contains("  x\\u{1b}[2J\\u{202e}y  "), "{out}");
    assert!(!out.contains("the text"), "{out}");
    let list = json(&dir, &["dead-letters", "list"]);
    assert_eq!((&list[1]["key"], &list[1]["text"]), (&HOSTILE.into(), &Value::Null));
    let (code, out, _) = on(&dir, &["dead-letters", "show", HOSTILE]);
    assert_eq!(code, 0);
    assert!(out.contains("\n    the text\n    of x\\u{1b}[2J\\u{202e}y"), "{out}");
    assert_eq!(json(&dir, &["dead-letters", "show", "a"])["text"], "the text\nof a");
    let (code, out, _) = on(&dir, &["dead-letters", "export"]);
    let exported: Vec<Value> =
        out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let texts: Vec<_> = exported.iter().map(|letter| letter["text"].as_str().unwrap()).collect();
    let hostile = format!("the text\nof {HOSTILE}");
    assert_eq!((code, texts), (0, vec!["the text\nof a", &*hostile, "the text\nof c"]));
    assert_eq!(exported[1]["key"], HOSTILE);

    for args in [&["drop", "a"][..], &["drain"], &["drain", "--url", "http://127.0.0.1:1/"]] {
        let (code, out, errors) = on(&dir, &[&["dead-letters"], args].concat());
        assert_eq!((code, &*out), (1, ""), "{errors}");
        assert!(errors.contains("a service delivers from this folder; stop it first"), "{errors}");
    }
    assert!(queue.close().await);
    drop(queue);

    let (code, _, errors) = on(&dir, &["dead-letters", "drop", "a", "z"]);
    assert_eq!(code, 1);
    assert!(errors.contains("there is no dead letter `z`"), "{errors}");
    assert_eq!(LetterList::read(&dir).unwrap().waiting.len(), 3, "none of them was dropped");
    let (code, out, errors) = on(&dir, &["dead-letters", "drop", "a", HOSTILE]);
    assert_eq!((code, out.matches("discarded").count()), (0, 2), "{out} {errors}");
    let (code, _, errors) = on(&dir, &["dead-letters", "drop", "a"]);
    assert_eq!(code, 1);
    assert!(errors.contains("the letter `a` has ended: discarded"), "{errors}");
    // By its key one that has ended waits again.
    let (code, out, errors) = on(&dir, &["dead-letters", "drain", "--key", "a"]);
    assert_eq!(code, 0, "{errors}");
    assert!(out.lines().nth(1).unwrap().starts_with("waiting  a "), "{out}");
    let (code, out, errors) = on(&dir, &["dead-letters", "drain", "--destination", "nowhere"]);
    assert_eq!((code, &*out), (0, ""), "{errors}");
}

#[tokio::test]
async fn a_torn_line_of_the_letters_is_reported_and_the_others_are_listed() {
    let dir = new_folder("letters-torn");
    let queue = letters(&dir, &[("a", "room")]).await;
    assert!(queue.close().await);
    drop(queue);
    let path = dir.join("dead-letters.jsonl");
    let mut file = fs::OpenOptions::new().append(true).open(path).unwrap();
    file.write_all(b"\x1b[2J nothing of ours\n{\"n\":9").unwrap();
    let (code, out, errors) = on(&dir, &["dead-letters", "list"]);
    assert_eq!((code, out.lines().count()), (0, 2), "{out}");
    assert!(errors.contains("1 lines can not be read"), "{errors}");
}

/// A receiver that answers by the destination in the body; the requests that it got.
fn receiver() -> (SocketAddr, mpsc::Receiver<(String, Value)>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (at, (send, got)) = (listener.local_addr().unwrap(), mpsc::channel());
    thread::spawn(move || {
        for stream in listener.incoming() {
            let (mut stream, mut request) = (stream.unwrap(), Vec::new());
            let (head, body) = loop {
                let mut bytes = [0; 4096];
                let read = stream.read(&mut bytes).unwrap();
                assert!(read > 0);
                request.extend_from_slice(&bytes[..read]);
                let text = String::from_utf8(request.clone()).unwrap();
                let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
                if let Ok(body) = serde_json::from_str::<Value>(body) {
                    break (head.to_lowercase(), body);
                }
            };
            let status = match body["destination"].as_str().unwrap() {
                "up" => "200 OK",
                "down" => "503 Service Unavailable",
                "strict" => "400 Bad Request",
                "elsewhere" => "404 Not Found",
                _ => "",
            };
            let _ = send.send((head, body));
            // Without an answer nobody knows.
            if !status.is_empty() {
                let answer =
                    format!("HTTP/1.1 {status}\r\nconnection: close\r\ncontent-length: 0\r\n\r\n");
                stream.write_all(answer.as_bytes()).unwrap();
            }
        }
    });
    (at, got)
}

#[tokio::test]
async fn letters_are_sent_to_an_address_once() {
    let dir = new_folder("letters-url");
    let keys = [
        ("a", "up"),
        (HOSTILE, "up"),
        ("b", "down"),
        ("c", "down"),
        ("d", "strict"),
        ("e", "breaks"),
        ("f", "elsewhere"),
    ];
    let queue = letters(&dir, &keys).await;
    assert!(queue.close().await);
    drop(queue);
    let (at, got) = receiver();
    let url = format!("http://{at}/in");

    let (code, out, errors) = on(&dir, &["dead-letters", "drain", "--url", &url]);
    assert_eq!(code, 1, "{out} {errors}");
    assert!(errors.contains("5 of 7 letters not delivered"), "{errors}");
    let ends: Vec<_> = out.lines().skip(1).map(|line| line.split("  ").next().unwrap()).collect();
    assert_eq!(
        ends,
        ["delivered", "delivered", "waiting", "waiting", "refused", "unclear", "waiting"],
        "{out}"
    );
    let requests: Vec<(String, Value)> = got.try_iter().collect();
    assert_eq!(requests.len(), 6, "of those to `down` one was sent");
    let (head, body) = requests.iter().find(|(_, body)| body["key"] == HOSTILE).unwrap();
    assert!(head.starts_with("post /in http/1.1"), "{head}");
    assert!(head.contains("\r\nidempotency-key: x\\u{1b}[2j\\u{202e}y"), "{head}");
    assert!(head.contains("\r\ncontent-type: application/json"), "{head}");
    assert_eq!(body["text"], format!("the text\nof {HOSTILE}"));
    assert_eq!((&body["session"], &body["kind"]), (&"up".into(), &"announcement".into()));
    assert!(body["created_ms"].as_u64().is_some_and(|ms| ms > 1_000_000_000_000));

    // No service sends them again.
    let folder = DeliveryFolder::open(&dir).await.unwrap();
    let ledger = DeliveryLedger::open(&folder, LedgerPolicy::default()).await.unwrap();
    assert!(ledger.delivered("a").is_some() && ledger.delivered("e").is_none());
    ledger.close().await;
    drop((ledger, folder));
    let list = LetterList::read(&dir).unwrap();
    assert_eq!(list.get("a").unwrap().end, Some(LetterEnd::Delivered));
    let (code, _, errors) = on(&dir, &["dead-letters", "drain", "--key", "a"]);
    assert_eq!(code, 1);
    assert!(errors.contains("the letter `a` was delivered"), "{errors}");
}

#[tokio::test]
async fn more_letters_are_sent_than_are_kept_for_people() {
    let dir = new_folder("letters-many");
    let keys: Vec<String> = (0..300).map(|number| format!("letter {number}")).collect();
    let wanted: Vec<_> = keys.iter().map(|key| (&**key, "up")).collect();
    let queue = letters(&dir, &wanted).await;
    assert!(queue.close().await);
    drop(queue);
    let (at, got) = receiver();
    let url = format!("http://{at}/in");
    let (code, out, errors) = on(&dir, &["dead-letters", "drain", "--url", &url]);
    assert_eq!((code, &*errors, got.try_iter().count()), (0, "", 300));
    assert_eq!(out.lines().filter(|line| line.starts_with("delivered  ")).count(), 300);
}

#[test]
fn an_address_has_to_be_one_and_is_not_repeated() {
    let dir = new_folder("letters-address");
    for url in
        ["hooks.example/secret", "ftp://hooks.example/secret", "https://me:secret@hooks.example/"]
    {
        let (code, _, errors) = on(&dir, &["dead-letters", "drain", "--url", url]);
        assert_eq!(code, 2, "{errors}");
        assert!(errors.contains("--url is no address") && !errors.contains("secret"), "{errors}");
    }
}
