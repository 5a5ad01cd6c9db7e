//! Any operations, with a crash at any write of any of them, against a model that is a few lists.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::{collections::BTreeMap, fs, path::Path};

use common::{memory, texts};
use proptest::prelude::*;
use steadfast_chat::{ChatRequest, Message};
use steadfast_core::Failure;
use steadfast_session::{
    LOST_HISTORY, Opened, SessionLayer, SessionPrompt, SessionRun, SessionScope, SessionStore,
    SessionTurn,
};
use tower::{Layer, ServiceExt, service_fn};

const THREAD: &str = "t";

#[derive(Clone, Debug)]
enum Op {
    /// A prompt with this key, of so many turns, after which it fails or ends.
    Prompt {
        key: u8,
        turns: u8,
        fails: bool,
    },
    RollOver,
    /// The history is replaced by one message.
    Shorten,
    /// The process ends, and another one starts.
    Restart,
}

/// Where a crash is in the writes of an operation, as shares of what it wrote.
#[derive(Clone, Copy, Debug)]
struct Crash {
    /// How much of what was appended to the log is there.
    log: f64,
    context: ContextWrite,
}

/// How far the save of the context came.
#[derive(Clone, Copy, Debug)]
enum ContextWrite {
    NotStarted,
    /// So much of the temporary file.
    Temporary(f64),
    /// The old one has the temporary name of a backup, too.
    Linked,
    /// The old one is the backup as well, one file with both names; the new one still has its temporary name.
    BackedUp,
    /// The same where a file has one name only.
    Moved,
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        6 => (0u8..6, 0u8..3, any::<bool>())
            .prop_map(|(key, turns, fails)| Op::Prompt { key, turns, fails }),
        1 => Just(Op::RollOver),
        1 => Just(Op::Shorten),
        1 => Just(Op::Restart),
    ]
}

fn crash() -> impl Strategy<Value = Crash> {
    let part = prop_oneof![Just(0.0), 0.0..1.0, Just(1.0)];
    let context = prop_oneof![
        Just(ContextWrite::NotStarted),
        (0.0..1.0).prop_map(ContextWrite::Temporary),
        Just(ContextWrite::Linked),
        Just(ContextWrite::BackedUp),
        Just(ContextWrite::Moved),
    ];
    (part, context).prop_map(|(log, context)| match log {
        // The context is not touched before the log is written.
        log if log < 1.0 => Crash { log, context: ContextWrite::NotStarted },
        log => Crash { log, context },
    })
}

/// What the files should be read as.
#[derive(Clone, Debug, Default, PartialEq)]
struct Model {
    session: u64,
    turn: u64,
    history: Vec<String>,
    /// By key: the answer if there is one, and the last turn of it.
    keys: BTreeMap<u8, (Option<Vec<String>>, u64, u64)>,
}

impl Model {
    fn add(&mut self, key: u8, is_first: bool, answer: &str, last: bool, sofar: &[String]) {
        self.turn += 1;
        if is_first {
            self.history.push(format!("prompt {key}"));
        }
        self.history.push(answer.to_owned());
        let whole = last.then(|| sofar.to_vec());
        self.keys.insert(key, (whole, self.session, self.turn));
    }
}

type Files = BTreeMap<&'static str, Vec<u8>>;
const NAMES: [&str; 3] = ["log.jsonl", "context.jsonl", "context.jsonl.bak"];

fn files(folder: &Path) -> Files {
    NAMES.iter().filter_map(|name| Some((*name, fs::read(folder.join(name)).ok()?))).collect()
}

/// The files as a crash would have left them in the middle of one save that made `after` of `before`.
fn interrupted(before: &Files, after: &Files, crash: Crash, folder: &Path) -> Files {
    let mut left = before.clone();
    let (old, new) = (before.get(NAMES[0]).map_or(0, Vec::len), &after[NAMES[0]]);
    let part = |of: usize, share: f64| (of as f64 * share) as usize;
    let log = &new[..old + part(new.len() - old, crash.log)];
    left.insert(NAMES[0], log.to_vec());
    let temporary = |bytes: &[u8]| fs::write(folder.join(".context.jsonl.00.tmp"), bytes).unwrap();
    let Some(context) = after.get(NAMES[1]) else { return left };
    match crash.context {
        ContextWrite::NotStarted => {}
        ContextWrite::Temporary(share) => temporary(&context[..part(context.len(), share)]),
        ContextWrite::Linked | ContextWrite::BackedUp | ContextWrite::Moved => {
            temporary(context);
            let is_backed_up = !matches!(crash.context, ContextWrite::Linked);
            if let Some(old) = left.get(NAMES[1]).cloned().filter(|_| is_backed_up) {
                left.insert(NAMES[2], old);
            }
            if matches!(crash.context, ContextWrite::Moved) {
                left.remove(NAMES[1]);
            }
        }
    }
    left
}

/// Makes these the files of the folder; of equal contexts one file with both names, as a save leaves them.
fn restore(folder: &Path, files: &Files, context: ContextWrite) {
    let at = |name: &str| folder.join(name);
    for name in NAMES {
        let _ = fs::remove_file(at(name));
        if let Some(bytes) = files.get(name) {
            fs::write(at(name), bytes).unwrap();
        }
    }
    if !at(NAMES[1]).exists() {
        return;
    }
    match context {
        ContextWrite::BackedUp => {
            fs::remove_file(at(NAMES[2])).unwrap();
            fs::hard_link(at(NAMES[1]), at(NAMES[2])).unwrap();
        }
        ContextWrite::Linked => {
            fs::hard_link(at(NAMES[1]), at(".context.jsonl.bak.00.tmp")).unwrap();
        }
        _ => {}
    }
}

struct World {
    root: tempfile::TempDir,
    layer: SessionLayer,
    model: Model,
}

impl World {
    fn new() -> Self {
        let root = tempfile::tempdir_in(memory()).unwrap();
        let layer = SessionLayer::new(SessionStore::new(root.path()));
        Self { root, layer, model: Model { session: 1, ..Model::default() } }
    }

    async fn restart(&mut self) {
        self.layer = SessionLayer::new(SessionStore::new("nowhere"));
        self.layer = SessionLayer::new(SessionStore::new(self.root.path()));
        let thread = self.layer.store().open(THREAD).await.unwrap();
        let report = thread.report().unwrap();
        assert!(!matches!(report.how, Opened::Lost | Opened::Backup), "{report:?}");
        assert_eq!((report.bad_lines, report.missing), (0, 0), "{report:?}");
    }

    async fn prompt(&mut self, key: u8, turns: u8, fails: bool) {
        let service = service_fn(move |run: SessionRun| async move {
            for turn in 0..turns {
                let message = Message::assistant(format!("step {turn}"));
                assert!(run.turns.end_turn(message).await?.saved);
            }
            match fails {
                true => Err(Failure::new(steadfast_core::Reason::Network, "gone")),
                false => Ok(SessionTurn::from(Message::assistant("end"))),
            }
        });
        let prompt = SessionPrompt::new(THREAD, ChatRequest::user(format!("prompt {key}")));
        let reply = self.layer.layer(service).oneshot(prompt.with_key(key.to_string())).await;
        let model = &mut self.model;
        let mut is_first = true;
        match model.keys.get(&key) {
            Some((Some(answer), ..)) => {
                let reply = reply.unwrap();
                assert!(reply.replayed && reply.saved);
                assert_eq!(&texts(&reply.messages), answer);
                return;
            }
            Some((None, session, turn)) => {
                is_first = false;
                if (*session, *turn) != (model.session, model.turn) {
                    assert!(reply.unwrap_err().message().contains("under a new key"));
                    return;
                }
            }
            None => {}
        }
        // What a replay will be answered with: all turns of the key, those of runs before included.
        let mut sofar = match is_first {
            true => Vec::new(),
            false => {
                let start = model.history.iter().rposition(|text| *text == format!("prompt {key}"));
                start.map_or(Vec::new(), |start| model.history[start + 1..].to_vec())
            }
        };
        for turn in 0..turns {
            sofar.push(format!("step {turn}"));
            model.add(key, is_first && turn == 0, &sofar[sofar.len() - 1], false, &sofar);
        }
        if !fails {
            sofar.push("end".to_owned());
            model.add(key, is_first && turns == 0, "end", true, &sofar);
        }
        assert_eq!(reply.is_err(), fails);
    }

    async fn apply(&mut self, op: &Op) {
        match op {
            Op::Prompt { key, turns, fails } => self.prompt(*key, *turns, *fails).await,
            Op::RollOver => {
                let session =
                    self.layer.store().roll_over(&SessionScope::thread(THREAD)).await.unwrap();
                self.model.session += 1;
                assert_eq!(session, self.model.session);
                self.model.history.clear();
            }
            Op::Shorten => {
                // A run that was interrupted goes on after the summary, whose log has all.
                let mut thread = self.layer.store().open(THREAD).await.unwrap();
                assert!(thread.replace_history(vec![Message::user("short")]).await.saved);
                self.model.history = vec!["short".to_owned()];
                let interrupted =
                    |(_, entry): &(&u8, &mut (Option<_>, u64, u64))| entry.0.is_none();
                for (_, entry) in self.model.keys.iter_mut().filter(interrupted) {
                    // Not asked for again in this test: its answer would be that of two histories.
                    entry.1 = 0;
                }
                drop(thread);
            }
            Op::Restart => self.restart().await,
        }
    }

    async fn check(&self) {
        let thread = self.layer.store().open(THREAD).await.unwrap();
        assert_eq!(texts(&thread.history()), self.model.history);
        assert_eq!((thread.session(), thread.turn()), (self.model.session, self.model.turn));
        assert_ne!(thread.notice(), Some(LOST_HISTORY));
        let names = fs::read_dir(self.root.path().join(THREAD)).unwrap();
        let names = names.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let left: Vec<_> = names.filter(|name| name.ends_with(".tmp")).collect();
        assert_eq!(left, [""; 0], "temporary files of saves before, and of those that were killed");
    }
}

fn run(future: impl Future<Output = ()>) {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    /// A crash in the middle of a save leaves the state before it or the one after it, whole, and the thread can go on.
    #[test]
    fn a_crash_at_any_write_leaves_what_was_before_or_after_it(
        steps in proptest::collection::vec((op(), proptest::option::of(crash())), 1..12),
    ) {
        run(async {
            let mut world = World::new();
            let folder = world.root.path().join(THREAD);
            drop(world.layer.store().open(THREAD).await.unwrap());
            for (op, crash) in steps {
                // A crash is in one save, so of an operation with several it is in that of its first turn.
                let op = match (op, crash) {
                    (Op::Shorten, _) if world.model.keys.values().any(|key| key.0.is_none()) => continue,
                    (Op::Prompt { key, turns, fails }, Some(_)) => {
                        Op::Prompt { key, turns: u8::from(fails).min(turns), fails }
                    }
                    (op, _) => op,
                };
                let (before, model) = (files(&folder), world.model.clone());
                world.apply(&op).await;
                world.check().await;
                let Some(crash) = crash else { continue };
                let after = files(&folder);
                if after == before {
                    continue;
                }
                world.layer = SessionLayer::new(SessionStore::new("nowhere"));
                let left = interrupted(&before, &after, crash, &folder);
                restore(&folder, &left, crash.context);
                // A shortened history is in the context alone; of anything else the line in the log decides. A whole line is there
                // even without its line feed.
                let log = after[NAMES[0]].len() - left[NAMES[0]].len();
                let is_done = match op {
                    Op::Shorten => false,
                    _ => log <= 1,
                };
                if !is_done {
                    world.model = model;
                }
                world.restart().await;
                world.check().await;
            }
        });
    }
}
