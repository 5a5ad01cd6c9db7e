//! A process that is killed with `kill -9` at any instant, again and again, in the same folder.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::{
    collections::HashMap,
    env, fs,
    io::{BufRead, BufReader, Write as _},
    path::Path,
    process::Stdio,
    sync::mpsc,
    thread,
    time::Duration,
};

use steadfast_chat::{ChatRequest, Message, Part, Role};
use steadfast_core::Failure;
use steadfast_session::{
    Opened, SessionEntry, SessionError, SessionLayer, SessionPolicy, SessionPrompt, SessionRun,
    SessionScope, SessionStore, SessionTurn,
};
use tower::{Layer, ServiceExt, service_fn};

const THREADS: [&str; 3] = ["slack/C42", "irc", "x.y"];

/// Writes turns until it is killed, and says after each what was acknowledged: thread, turn and text.
#[tokio::test]
async fn child_process() {
    let Some((job, root)) = common::job() else { return };
    // Fewer than there are threads, so that threads are closed and opened again, too.
    let policy = SessionPolicy { max_open: 2, ..SessionPolicy::default() };
    let store = SessionStore::with_policy(root, policy).unwrap();
    let layer = SessionLayer::new(store.clone());
    let mut random = fastrand::Rng::with_seed(job.parse().unwrap());
    let say = |line: String| {
        let mut out = std::io::stdout();
        writeln!(out, "{line}").and_then(|()| out.flush()).unwrap();
    };
    for number in 0.. {
        let thread = THREADS[random.usize(..THREADS.len())];
        let text = format!("{job}-{number}");
        if random.u8(..8) == 0 {
            let session = store.roll_over(&SessionScope::thread(thread)).await;
            // There may be no such thread so far.
            assert!(matches!(session, Ok(_) | Err(SessionError::Scope(_))), "{session:?}");
        }
        if random.u8(..6) == 0 {
            store.attach(thread, &text, text.repeat(500)).await.unwrap();
            say(format!("file {text}"));
        }
        let steps = random.usize(..3);
        let filler = "x".repeat(random.usize(..3_000));
        let agent_text = text.clone();
        let agent = service_fn(move |run: SessionRun| {
            let (text, filler) = (agent_text.clone(), filler.clone());
            async move {
                for step in 0..steps {
                    let id = format!("{text}.{step}");
                    let call = Message::new(Role::Assistant, vec![Part::tool_call(&id, "t", "{}")]);
                    let result = Message::tool(&id, &filler);
                    let saved = run.turns.end_turn(vec![call, result]).await?;
                    assert!(saved.saved);
                    say(format!("turn {} {} {text}", run.thread, saved.turn));
                }
                Ok::<_, Failure>(SessionTurn::from(Message::assistant(text)))
            }
        });
        let request = ChatRequest::user(text.as_str());
        let prompt = SessionPrompt::new(thread, request).with_key(text.as_str());
        let reply = layer.layer(agent).oneshot(prompt).await.unwrap();
        assert!(reply.saved);
        say(format!("turn {thread} {} {text}", reply.turn));
    }
}

#[tokio::test]
async fn every_acknowledged_turn_is_there_once_after_each_kill() {
    let kills = env::var("STEADFAST_KILLS").map_or(40, |kills| kills.parse().unwrap());
    let (mut killed, mut turns, mut attachments) = (0, 0, 0);
    while killed < kills {
        // Not one folder for all: what has grown large takes long to check.
        let round = kills.min(killed + 20);
        let (more, files) = round_of_kills(killed..round).await;
        (killed, turns, attachments) = (round, turns + more, attachments + files);
    }
    assert!(turns > kills, "{turns} turns in {kills} runs prove little");
    println!("{kills} kills, {turns} acknowledged turns, {attachments} attachments");
}

/// Kills so many processes, one after the other, and counts the turns and attachments that were acknowledged.
async fn round_of_kills(kills: std::ops::Range<usize>) -> (usize, usize) {
    // A kill is no loss of power: what was written is there, on whatever file system. So on the fastest.
    let folder = tempfile::tempdir_in(common::memory()).unwrap();
    let mut random = fastrand::Rng::with_seed(kills.start as u64);
    // By thread: the texts of acknowledged turns.
    let mut acknowledged: HashMap<String, HashMap<u64, String>> = HashMap::new();
    let mut files = Vec::new();
    for kill in kills {
        let mut process =
            common::child(&kill.to_string(), folder.path()).stdout(Stdio::piped()).spawn().unwrap();
        let output = BufReader::new(process.stdout.take().unwrap());
        let (acknowledges, acknowledged_one) = mpsc::channel();
        let reader = thread::spawn(move || {
            let mut lines = Vec::new();
            for line in output.lines().map_while(Result::ok) {
                if line.contains("turn ") {
                    let _ = acknowledges.send(());
                }
                lines.push(line);
            }
            lines
        });
        // From before the first file, or from the first acknowledgement, which a busy machine may take long for, to some fifty turns
        // later.
        if kill % 4 != 0 {
            acknowledged_one.recv().unwrap();
        }
        tokio::time::sleep(Duration::from_micros(random.u64(..60_000))).await;
        process.kill().unwrap();
        process.wait().unwrap();
        for line in reader.join().unwrap() {
            assert!(!line.contains("panicked"), "{line}");
            // The test harness writes before the first of our lines, without a line feed.
            if let Some((_, name)) = line.split_once("file ") {
                files.push(name.to_owned());
            }
            let Some((_, line)) = line.split_once("turn ") else { continue };
            let mut words = line.split(' ');
            let (Some(thread), Some(turn), Some(text)) = (words.next(), words.next(), words.next())
            else {
                continue;
            };
            let turns = acknowledged.entry(thread.to_owned()).or_default();
            let twice = turns.insert(turn.parse().unwrap(), text.to_owned());
            assert_eq!(twice, None, "turn {turn} of {thread} was given to two prompts");
        }
        check(folder.path(), &acknowledged, &files).await;
    }
    (acknowledged.values().map(HashMap::len).sum(), files.len())
}

async fn check(
    root: &Path,
    acknowledged: &HashMap<String, HashMap<u64, String>>,
    files: &[String],
) {
    let store = SessionStore::new(root);
    for check in store.verify().unwrap() {
        assert!(check.is_ok() && check.agrees, "before it is repaired: {check:?}");
        assert!(check.log_ahead <= 1 && check.context_ahead == 0, "{check:?}");
    }
    let list = store.list().unwrap();
    for (thread, turns) in acknowledged {
        let open = store.open(thread).await.unwrap();
        let report = open.report().unwrap();
        assert_eq!((report.bad_lines, report.missing), (0, 0), "{report:?}");
        assert!(!matches!(report.how, Opened::Lost | Opened::New), "{report:?}");
        let shown = store.show(&SessionScope::thread(thread)).unwrap();
        let logged: Vec<_> = shown
            .entries
            .iter()
            .filter_map(|entry| match entry {
                SessionEntry::Turn(turn) => Some(turn),
                _ => None,
            })
            .collect();
        let numbers: Vec<u64> = logged.iter().map(|turn| turn.turn).collect();
        assert_eq!(numbers, (1..=numbers.len() as u64).collect::<Vec<_>>(), "each once");
        for (turn, text) in turns {
            let logged = logged[*turn as usize - 1];
            assert_eq!(logged.key.as_deref(), Some(text.as_str()), "turn {turn} of {thread}");
        }
        let live = logged.iter().filter(|turn| turn.session == open.session());
        let messages: Vec<_> = live.flat_map(|turn| turn.messages.iter().cloned()).collect();
        assert!(open.history()[..] == messages[..], "the history of {thread} is its turns");
        let folder = list.iter().find(|summary| summary.thread == *thread).unwrap().folder.clone();
        let entries = fs::read_dir(folder).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let left: Vec<_> = names.filter(|name| name.ends_with(".tmp")).collect();
        assert_eq!(left, [""; 0], "leftovers");
    }
    for text in files {
        let is_there = list.iter().any(|summary| {
            let path = summary.folder.join("attachments").join(text);
            fs::read(path).is_ok_and(|bytes| bytes == text.repeat(500).as_bytes())
        });
        assert!(is_there, "the attachment {text}");
    }
}
