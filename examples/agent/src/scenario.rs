//! A novel is written, while the providers, the chat room and the process itself fail.

use std::{
    collections::BTreeMap,
    error::Error,
    fs,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use axum::{
    Router,
    http::{HeaderMap, StatusCode},
    routing::post,
};
use http::Uri;
use parking_lot::Mutex;
use steadfast::{
    sim::{ErrorKind, Fault, FaultPlan, How, PlanRule},
    tool::{CommandPolicy, CommandRunner},
};
use tokio::{net::TcpListener, time::sleep};

use crate::{
    agent::{Agent, Outcome, STATE, Settings},
    log_into,
    models::Simulated,
    screen::Screen,
    turns::Limits,
    writer,
};

type BoxError = Box<dyn Error + Send + Sync>;

/// All of it, one after the other.
pub(crate) async fn run() -> Result<(), BoxError> {
    let world = World::start().await?;
    let agent = world.agent(|_| {}).await?;
    failures_that_nobody_sees(&world, &agent).await?;
    answers_that_are_cut(&world, &agent).await?;
    a_helper(&world, &agent).await?;
    agent.stop(Duration::from_secs(5)).await;
    a_result_that_nobody_takes(&world).await?;
    work_that_is_checked(&world).await?;
    a_token_budget(&world).await
}

/// A 529, a stream that breaks, a connection that is reset: the chapter is written.
async fn failures_that_nobody_sees(world: &World, agent: &Agent) -> Result<(), BoxError> {
    world.part("a provider that is overloaded, resets connections and breaks streams");
    let rule = |n, fault| PlanRule::new(fault).nth(n);
    let plan = FaultPlan::none()
        .rule(rule(1, Fault::Error(ErrorKind::Overloaded)))
        .rule(rule(3, Fault::Reset))
        .rule(rule(7, Fault::break_after(4, How::Reset)));
    world.models.misbehave(plan);
    world.say(agent, "Begin the book.").await?;
    let reply = world.say(agent, "Write chapter 1.").await?;
    check(reply.contains("Chapter 1 is written, in 122 words"), &reply)?;
    world.has_chapters(1)?;
    check(world.models.asked() > 8, "some were asked twice")
}

/// Answers that stop at their limit, in the middle of a file: the file is whole.
async fn answers_that_are_cut(world: &World, agent: &Agent) -> Result<(), BoxError> {
    world.part("answers that are cut off in the middle of a file");
    world.models.misbehave(FaultPlan::none().rule(PlanRule::new(Fault::OutputLimit(40)).nth(1)));
    world.say(agent, "Write chapter 2.").await?;
    world.has_chapters(2)?;
    check(world.transitions("output_continued")? == 1, "the model went on where it was cut")
}

/// A sub-agent that the agent waits for.
async fn a_helper(world: &World, agent: &Agent) -> Result<(), BoxError> {
    world.part("a helper, which only reads");
    let reply = world.say(agent, "Ask a helper how long the book is.").await?;
    check(reply.contains("The book has 2 chapters."), &reply)
}

/// A helper in the background; the room is down, and the process ends: the room has the result once.
async fn a_result_that_nobody_takes(world: &World) -> Result<(), BoxError> {
    world.part("a result for a chat room that is down, and an agent that ends meanwhile");
    world.room.lock().is_down = true;
    let with_room = |settings: &mut Settings| settings.room = Some(world.room_uri.clone());
    let agent = world.agent(with_room).await?;
    let ask = "Ask a helper, in the background, how long the book is.";
    let reply = world.say(&agent, ask).await?;
    check(reply.contains("works on it as"), &reply)?;
    while world.room.lock().refused == 0 {
        sleep(Duration::from_millis(10)).await;
    }
    // Its announcement is being retried: it becomes a letter.
    agent.stop(Duration::ZERO).await;
    world.room.lock().is_down = false;
    let agent = world.agent(with_room).await?;
    while world.room.lock().taken.is_empty() {
        sleep(Duration::from_millis(10)).await;
    }
    agent.stop(Duration::from_secs(5)).await;
    let taken = world.room.lock().taken.clone();
    println!("  the room has: {taken:?}");
    let text = "The book has 2 chapters.";
    check(
        taken.len() == 1
            && taken.values().all(|(text_of, times)| text_of.contains(text) && *times == 1),
        "once",
    )
}

/// A check that fails until the agent has done something about it.
async fn work_that_is_checked(world: &World) -> Result<(), BoxError> {
    world.part("work that has to pass a check");
    let commands = CommandPolicy { dir: Some(world.folder.0.clone()), ..CommandPolicy::default() };
    let runner = CommandRunner::new(commands)?;
    let agent = world.agent(|settings| {
        settings.limits.check = Some((runner, "test -e checked".to_owned()));
    });
    let agent = agent.await?;
    world.say(&agent, "Write chapter 3.").await?;
    agent.stop(Duration::from_secs(5)).await;
    world.has_chapters(3)?;
    check(world.transitions("stop_hook_blocked")? == 1, "it was blocked once")?;
    check(world.folder.0.join("checked").exists(), "and did something about it")
}

/// A prompt that is worth more than the model thinks.
async fn a_token_budget(world: &World) -> Result<(), BoxError> {
    world.part("a token budget: the model goes on until it has nothing more to say");
    let agent = world.agent(|settings| settings.limits.token_budget = Some(100_000)).await?;
    world.say(&agent, "What can you do?").await?;
    agent.stop(Duration::from_secs(5)).await;
    check(world.transitions("token_budget_continued")? == 3, "asked three times, as little came")
}

/// Simulated providers, a chat room and a folder.
struct World {
    folder: Folder,
    models: Simulated,
    room: Arc<Mutex<Room>>,
    room_uri: Uri,
    screen: Screen,
}

/// What a chat room was sent.
#[derive(Default)]
struct Room {
    is_down: bool,
    refused: usize,
    /// Text and how often it came, by key.
    taken: BTreeMap<String, (String, usize)>,
}

impl World {
    async fn start() -> Result<Self, BoxError> {
        let models = Simulated::start().await?;
        let folder = Folder::for_port(models.anthropic.addr().port())?;
        log_into(&folder.0.join(STATE))?;
        let room = Arc::new(Mutex::new(Room::default()));
        let taking = room.clone();
        let take = move |headers: HeaderMap, text: String| async move {
            let mut room = taking.lock();
            if room.is_down {
                room.refused += 1;
                return StatusCode::SERVICE_UNAVAILABLE;
            }
            let key = headers.get("idempotency-key").and_then(|key| key.to_str().ok());
            let taken = room.taken.entry(key.unwrap_or_default().to_owned()).or_default();
            *taken = (text, taken.1 + 1);
            StatusCode::OK
        };
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let room_uri = format!("http://{}/announcements", listener.local_addr()?).parse()?;
        let router = Router::new().route("/announcements", post(take));
        tokio::spawn(async move { axum::serve(listener, router).await });
        Ok(Self { folder, models, room, room_uri, screen: Screen::new() })
    }

    async fn agent(&self, set: impl FnOnce(&mut Settings)) -> Result<Agent, BoxError> {
        let mut settings = Settings {
            folder: self.folder.0.clone(),
            thread: "main".to_owned(),
            limits: Limits { most_turns: 100, token_budget: None, check: None },
            room: None,
        };
        set(&mut settings);
        Agent::start(settings, self.models.stack(&self.screen)?, self.screen.clone()).await
    }

    fn part(&self, what: &str) {
        self.models.misbehave(FaultPlan::none());
        self.screen.line(format_args!("\n{what}"));
    }

    async fn say(&self, agent: &Agent, text: &str) -> Result<String, BoxError> {
        self.screen.line(format_args!("> {text}"));
        match agent.ask(text, None).await? {
            Outcome::Reply(reply) => {
                self.screen.line("");
                check(reply.saved, "it is on the disk")?;
                Ok(reply.text())
            }
            Outcome::Failed(text) => Err(text.into()),
            Outcome::Aborted => Err("aborted".into()),
        }
    }

    fn has_chapters(&self, count: u32) -> Result<(), BoxError> {
        for number in 1..=count {
            let text = fs::read_to_string(self.folder.0.join(writer::path(number)))?;
            check(text == writer::chapter(number), "the chapter is whole")?;
        }
        let index = fs::read_to_string(self.folder.0.join("index.md"))?;
        check(index == writer::index(count), &index)
    }

    /// How often the log has a transition.
    fn transitions(&self, name: &str) -> Result<usize, BoxError> {
        let log = fs::read_to_string(self.folder.0.join(STATE).join("agent.log"))?;
        Ok(log.matches(&format!("transition=\"{name}\"")).count())
    }
}

/// A folder of the system's temporary one, gone with its world.
struct Folder(PathBuf);

impl Folder {
    /// No two worlds of a machine have the same port at the same time.
    fn for_port(port: u16) -> Result<Self, BoxError> {
        let folder: &Path = &std::env::temp_dir().join(format!("steadfast-agent-{port}"));
        fs::create_dir_all(folder)?;
        Ok(Self(folder.canonicalize()?))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn check(holds: bool, what: &str) -> Result<(), BoxError> {
    if holds { Ok(()) } else { Err(format!("this should hold: {what}").into()) }
}
