//! A session of a hundred turns, run by the real program against providers that misbehave, and killed twice.
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

use std::{
    collections::{BTreeMap, BTreeSet},
    env,
    fs::{self, File},
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    sync::Arc,
    time::Duration,
};

use axum::{
    Router,
    http::{HeaderMap, StatusCode},
    routing::post,
};
use parking_lot::Mutex;
use steadfast::{
    ChatRequest, Dialect, Message, Part, Role,
    session::{SessionScope, SessionStore},
    sim::{ContinuationMode, ErrorKind, Fault, FaultPlan, How, PlanRule, SimProvider, SimServer},
    transcript::{TranscriptRules, repair},
};
use tokio::{net::TcpListener, time::sleep};

#[path = "../src/writer.rs"]
#[allow(dead_code, unreachable_pub, reason = "the model of the example")]
mod writer;

const CHAPTERS: u32 = 25;

/// The most starts until everybody has heard. A room that takes every other post makes each second one deliver something.
const STARTS: usize = 20;

/// Every kind of failure that a session of a few minutes meets.
fn misbehaviour() -> FaultPlan {
    let every = |n, fault| PlanRule::new(fault).every(n);
    let at = |n, fault| PlanRule::new(fault).nth(n);
    FaultPlan::none()
        .rule(at(3, Fault::Error(ErrorKind::Overloaded)))
        .rule(at(9, Fault::Reset))
        .rule(at(14, Fault::HalfHeaders))
        .rule(at(20, Fault::Error(ErrorKind::BadGatewayHtml)))
        .rule(at(26, Fault::break_after(2, How::Reset)))
        .rule(at(33, Fault::Empty))
        .rule(at(41, Fault::break_after(3, How::ErrorEvent(ErrorKind::Overloaded))))
        // Less than any answer has.
        .rule(at(52, Fault::OutputLimit(8)))
        .rule(at(60, Fault::break_after(5, How::End)))
        .rule(at(67, Fault::break_after(1, How::TruncatedJson)))
        .rule(at(75, Fault::Error(ErrorKind::ContextOverflow)))
        .rule(every(31, Fault::Error(ErrorKind::ServerError)))
}

async fn provider(dialect: Dialect) -> SimServer {
    let provider = SimProvider::builder(dialect)
        .with_continuation(ContinuationMode::Faithful)
        .respond(|request| Some(writer::answer(request)))
        .build();
    SimServer::local(provider).await.unwrap()
}

struct World {
    folder: tempfile::TempDir,
    anthropic: SimServer,
    openai: SimServer,
}

impl World {
    async fn new() -> Self {
        Self {
            folder: tempfile::tempdir().unwrap(),
            anthropic: provider(Dialect::Anthropic).await,
            openai: provider(Dialect::OpenAi).await,
        }
    }

    /// A file of prompts.
    fn script(&self, prompts: &[String]) -> PathBuf {
        let script = self.folder.path().join("book.txt");
        fs::write(&script, prompts.join("\n")).unwrap();
        script
    }

    fn work(&self) -> PathBuf {
        self.folder.path().join("work")
    }

    /// The history, as the next process reads it.
    fn history(&self) -> Vec<Message> {
        let sessions = SessionStore::new(self.work().join(".agent/sessions"));
        let checks = sessions.verify().unwrap();
        assert!(checks.iter().all(|check| check.is_ok()), "{checks:?}");
        sessions.show(&SessionScope::thread("main")).unwrap().history
    }

    /// The helpers whose results the model was promised.
    fn promised(&self) -> Vec<String> {
        self.history()
            .iter()
            .flat_map(|message| message.parts().to_vec())
            .filter_map(|part| Some(part.as_tool_result()?.content.first()?.as_text()?.to_owned()))
            .filter_map(|text| {
                Some(text.split("works on it as ").nth(1)?.split('.').next()?.to_owned())
            })
            .collect()
    }

    fn asked(&self) -> usize {
        self.anthropic.provider().journal().len() + self.openai.provider().journal().len()
    }

    fn start(&self, script: &Path, extra: &[&str]) -> Child {
        let output = File::options().create(true).append(true).open(self.folder.path().join("out"));
        let output = output.unwrap();
        Command::new(env!("CARGO_BIN_EXE_example-agent"))
            .arg("--script")
            .arg(script)
            .arg("--folder")
            .arg(self.folder.path().join("work"))
            .args(extra)
            .env("ANTHROPIC_API_KEY", "sk-ant-simulated")
            .env("ANTHROPIC_BASE_URL", self.anthropic.base_url())
            .env("OPENAI_API_KEY", "sk-simulated")
            .env("OPENAI_BASE_URL", self.openai.base_url())
            .env_remove("GEMINI_API_KEY")
            .env_remove("RUST_LOG")
            .stdin(Stdio::null())
            .stdout(output.try_clone().unwrap())
            .stderr(output)
            .spawn()
            .unwrap()
    }

    fn output(&self) -> String {
        fs::read_to_string(self.folder.path().join("out")).unwrap_or_default()
    }
}

async fn ended(child: &mut Child) -> ExitStatus {
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status;
        }
        sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hundred_turns_and_two_kills() {
    let world = World::new().await;
    world.anthropic.provider().set_faults(misbehaviour());
    let prompts: Vec<String> = std::iter::once("Begin the book.".to_owned())
        .chain((1..=CHAPTERS).map(|number| format!("Write chapter {number}.")))
        .collect();
    let script = world.script(&prompts);

    // Killed while a model answers or a tool runs: whatever it is at that moment.
    const KILLS: [usize; 2] = [37, 80];
    for kill_at in KILLS {
        let mut agent = world.start(&script, &[]);
        while world.asked() < kill_at {
            assert!(agent.try_wait().unwrap().is_none(), "it ended early: {}", world.output());
            sleep(Duration::from_millis(1)).await;
        }
        agent.kill().unwrap();
        assert!(!ended(&mut agent).await.success());
    }
    let status = ended(&mut world.start(&script, &[])).await;
    assert!(status.success(), "{}", world.output());

    // The work is done, and the files are right.
    let work = world.work();
    for number in 1..=CHAPTERS {
        let text = fs::read_to_string(work.join(writer::path(number))).unwrap();
        assert_eq!(text, writer::chapter(number));
    }
    assert_eq!(fs::read_to_string(work.join("index.md")).unwrap(), writer::index(CHAPTERS));
    let mut left: Vec<_> =
        fs::read_dir(&work).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    left.sort();
    assert_eq!(left, [".agent", "chapters", "index.md"]);

    // No turn is lost, none is there twice, and the history is one that every provider takes.
    let history = world.history();
    let asked: Vec<String> = history
        .iter()
        .filter(|message| message.role() == Role::User)
        .map(|message| message.text())
        .collect();
    assert_eq!(asked, prompts);
    let calls: Vec<&str> = history
        .iter()
        .flat_map(|message| message.parts())
        .filter_map(Part::as_tool_call)
        .map(|call| call.id.as_str())
        .collect();
    assert_eq!(calls.len(), calls.iter().collect::<BTreeSet<_>>().len(), "ids are unique");
    let turns = history.iter().filter(|message| message.role() == Role::Assistant).count();
    assert!(turns >= 100, "{turns} turns");
    // The work on each prompt is there whole; an edit that a killed process had made is read instead of made again.
    let mut reads = 0;
    let starts = history.iter().enumerate().filter(|(_, message)| message.role() == Role::User);
    for (number, (at, _)) in starts.enumerate() {
        let work = history[at + 1..].iter().take_while(|message| message.role() != Role::User);
        let work: Vec<_> = work.collect();
        let calls = work.iter().flat_map(|message| message.parts()).filter_map(Part::as_tool_call);
        let mut calls: Vec<_> = calls.map(|call| call.name.as_str()).collect();
        if calls.pop_if(|last| *last == "read_file").is_some() {
            reads += 1;
        }
        let (wanted, answer) = match number {
            0 => (vec!["write_file"], "The book has an index, and nothing in it yet.".to_owned()),
            _ => (
                vec!["write_file", "run_command", "edit_file"],
                format!("Chapter {number} is written, in 122 words, and the index has it."),
            ),
        };
        assert_eq!((calls, work.last().unwrap().text()), (wanted, answer), "prompt {number}");
    }
    assert!(reads <= KILLS.len(), "{reads}");
    for dialect in [Dialect::Anthropic, Dialect::OpenAi, Dialect::Gemini] {
        // With the next prompt, as it would be sent.
        let next = history.iter().cloned().chain([Message::user("And now?")]).collect::<Vec<_>>();
        let mut request = ChatRequest::new(next);
        let mut rules = TranscriptRules::for_dialect(dialect);
        (rules.tools_declared, rules.window) = (false, None);
        let repairs = repair(&mut request, &rules);
        assert!(repairs.is_empty(), "{dialect}: {repairs:?}");
    }

    // The log has one transition a turn: those of a run are numbered, and another run begins only after the last turn of one,
    // or after a kill.
    let log = fs::read_to_string(work.join(".agent/agent.log")).unwrap();
    let mut ends: BTreeMap<&str, usize> = BTreeMap::new();
    let (mut completed, mut interrupted) = (BTreeSet::new(), 0);
    let mut before = ("", 0, "completed");
    for line in log.lines().filter(|line| line.contains(" agent: ") && line.contains("transition="))
    {
        let field = |name: &str| line.split(name).nth(1).unwrap().split(['"', ' ']).next().unwrap();
        let turn = field(" turn=").parse::<u32>().unwrap();
        let (run, transition) = (field(" run=\""), field(" transition=\""));
        let goes_on = before.2 != "completed";
        if turn == 1 {
            interrupted += usize::from(goes_on);
        } else {
            assert!(goes_on && (run, turn) == (before.0, before.1 + 1), "{before:?} {line}");
        }
        *ends.entry(transition).or_default() += 1;
        if transition == "completed" {
            completed.insert(run);
        }
        before = (run, turn, transition);
    }
    println!("{ends:?} after {} requests", world.asked());
    assert!(interrupted <= KILLS.len(), "{interrupted}");
    let keys: Vec<_> = (1..=prompts.len()).map(|line| format!("book.txt:{line}")).collect();
    assert_eq!(completed, keys.iter().map(String::as_str).collect());
    // One that a kill came to before it was on the disk is completed once more.
    let times = prompts.len()..=prompts.len() + KILLS.len();
    assert!(times.contains(&ends["completed"]), "{ends:?}");
    assert!(ends["next_turn"] >= 75, "{ends:?}");
    assert!(ends.contains_key("output_continued"), "{ends:?}");
    let faults: Vec<_> = world
        .anthropic
        .provider()
        .journal()
        .entries()
        .into_iter()
        .filter_map(|one| one.fault)
        .collect();
    for rule in misbehaviour().rules {
        assert!(faults.contains(&rule.fault), "it never happened: {:?}", rule.fault);
    }
    let unseen = ["model_error", "prompt_too_long", "most_turns", "limit_blocked"];
    assert!(unseen.iter().all(|name| !ends.contains_key(name)), "{ends:?}\n{}", world.output());
}

/// A chat room: what was posted there, by key.
#[derive(Default)]
struct Room {
    posts: usize,
    taken: BTreeMap<String, usize>,
}

impl Room {
    /// One that takes every other post.
    async fn flapping() -> (Arc<Mutex<Self>>, String) {
        Self::that(|post| post % 2 == 0).await
    }

    /// One that takes these posts, numbered from 1.
    async fn that(
        takes: impl Fn(usize) -> bool + Clone + Send + Sync + 'static,
    ) -> (Arc<Mutex<Self>>, String) {
        let room = Arc::new(Mutex::new(Self::default()));
        let shared = room.clone();
        let take = move |headers: HeaderMap| async move {
            let mut room = shared.lock();
            room.posts += 1;
            if !takes(room.posts) {
                return StatusCode::SERVICE_UNAVAILABLE;
            }
            let key = headers["idempotency-key"].to_str().unwrap().to_owned();
            *room.taken.entry(key).or_default() += 1;
            StatusCode::OK
        };
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/", listener.local_addr().unwrap());
        let router = Router::new().route("/", post(take));
        tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        (room, url)
    }
}

/// The keys of the result and of the notice of a run.
fn ways(run: &str) -> [String; 2] {
    ["result", "run-notice"].map(|kind| format!("{kind}:{run}"))
}

/// Whoever was promised a result has it, or a notice that there will be none.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_promise_of_a_result_is_kept_through_kills() {
    let kills = env::var("STEADFAST_KILLS").map_or(4, |kills| kills.parse().unwrap());
    let world = World::new().await;
    let (room, url) = Room::flapping().await;
    let ask = |number| format!("Ask a helper, in the background, how long the book is. ({number})");
    let prompts: Vec<String> = ["Begin the book.".to_owned(), "Write chapter 1.".to_owned()]
        .into_iter()
        .chain((0..2 + kills).map(ask))
        .collect();
    let script = world.script(&prompts);

    // Later and later, from the start of the process to the end of its work.
    for kill in 0..kills {
        let mut agent = world.start(&script, &["--announce", &url]);
        sleep(Duration::from_millis(60 + 97 * (kill as u64 % 12))).await;
        agent.kill().unwrap();
        ended(&mut agent).await;
    }
    // A start delivers what it can until its script is done, and keeps the rest for the next one.
    let mut promised = Vec::new();
    for _ in 0..STARTS {
        let status = ended(&mut world.start(&script, &["--announce", &url])).await;
        assert!(status.success(), "{}", world.output());
        promised = world.promised();
        let taken = &room.lock().taken;
        if promised.iter().all(|run| ways(run).iter().any(|key| taken.contains_key(key))) {
            break;
        }
    }
    assert_eq!(promised.len(), 2 + kills, "{}", world.output());
    let taken = room.lock().taken.clone();
    let (mut results, mut notices, mut both) = (0, 0, 0);
    for run in &promised {
        let [result, notice] = ways(run).map(|key| taken.contains_key(&key));
        assert!(result || notice, "nobody heard of {run}: {taken:?}\n{}", world.output());
        results += usize::from(result);
        notices += usize::from(notice);
        both += usize::from(result && notice);
    }
    println!("{results} results, {notices} notices, {both} of them for one run; {taken:?}");
    assert!(results >= 2, "those that nobody interrupted");
    // A post that nobody recorded is made again with its key, which the room knows.
    assert!(taken.values().sum::<usize>() <= taken.len() + kills, "{taken:?}");
    assert!(both <= kills);
}

/// The helper ends after the script, and its letter is made while the agent stops.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn announcements_that_wait_are_counted_when_all_of_them_are_there() {
    let world = World::new().await;
    let (room, url) = Room::that(|_| false).await;
    let prompts = ["Begin the book.", "Ask a helper, in the background, how long the book is. (1)"];
    let script = world.script(&prompts.map(str::to_owned));
    let status = ended(&mut world.start(&script, &["--announce", &url])).await;
    assert!(status.success(), "{}", world.output());
    assert!(world.output().contains("1 announcements wait"), "{}", world.output());
    assert!(room.lock().posts > 0 && room.lock().taken.is_empty());
}
