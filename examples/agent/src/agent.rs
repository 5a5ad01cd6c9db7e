//! The agent, put together: a mailbox, a history, the loop, and everything that the loop stands on.

use std::{
    collections::HashMap,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use http::Uri;
use parking_lot::Mutex;
use steadfast::{
    ChatRequest, ChatService, Failure, FaultSide, Handles, OnStepLayer, Reason,
    deliver::ParentTurn,
    session::{PromptParts, SessionLayer, SessionPrompt, SessionReply, SessionRun, SessionStore},
    supervise::{
        Actors, GhostPolicy, GhostSweep, PostBody, Prompt, RunRegistry, Sweeping, ThreadKey,
        ThreadPost, record_panics,
    },
};
use tokio::sync::oneshot;
use tower::{Layer, ServiceExt, service_fn, util::BoxCloneSyncService};

use crate::{
    announce::{Announcing, Parent},
    helpers::Helpers,
    screen::Screen,
    tools::{self, declarations},
    turns::{Limits, Run, TurnLoop},
};

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Where its state is in the folder that it works in: conversations, letters, the registry, the log.
pub(crate) const STATE: &str = ".agent";

const INSTRUCTIONS: &str = "You are a careful assistant who works in one folder, with tools. Do what is asked, check that it worked, \
                            then say in a sentence or two what you did.";

/// What an agent is made of.
pub(crate) struct Settings {
    /// Where it works. Its state is in [`STATE`] there.
    pub(crate) folder: PathBuf,
    /// The conversation.
    pub(crate) thread: String,
    /// What a run may do.
    pub(crate) limits: Limits,
    /// Where announcements go; without it, to the conversation.
    pub(crate) room: Option<Uri>,
}

/// What the user, or the agent itself, says to it.
pub(crate) struct UserMessage {
    text: String,
    /// The same whenever it is sent again.
    key: Option<String>,
}

/// What comes of a prompt.
pub(crate) enum Outcome {
    /// An answer.
    Reply(Box<SessionReply>),
    /// A fixed text in its place; sent again with its key, it goes on where it was.
    Failed(String),
    /// Its user has aborted it.
    Aborted,
}

/// A running agent.
pub(crate) struct Agent {
    actors: Actors<UserMessage>,
    thread: ThreadKey,
    waiting: Waiting,
    sessions: SessionStore,
    runs: RunRegistry,
    _sweeping: Sweeping,
    announcing: Announcing,
    parent: Parent,
    helpers: Helpers,
}

/// Who waits for which prompt.
type Waiting = Arc<Mutex<HashMap<u64, oneshot::Sender<Outcome>>>>;

impl Agent {
    /// Starts it in its folder, with what an earlier process left there.
    pub(crate) async fn start(
        settings: Settings,
        (llm, handles): (ChatService, Handles),
        screen: Screen,
    ) -> Result<Self, BoxError> {
        // The ERROR event of a turn that panics has its backtrace.
        record_panics();
        let Settings { folder, thread, limits, room } = settings;
        let folder = folder.canonicalize()?;
        let state = folder.join(STATE);

        let parent = Parent::default();
        let (letters, health) = (state.join("announcements"), &handles.health);
        let announcing =
            Announcing::open(&letters, room, parent.clone(), health, screen.clone()).await?;

        let notices = announcing.clone();
        let runs = RunRegistry::open(state.join("runs")).await?;
        let runs = runs.with_notices(move |notice| {
            let notices = notices.clone();
            async move { notices.notice(notice).await }
        });
        // The folder is locked: what an earlier process was running does not run any more.
        let ghosts = GhostPolicy { orphans_at_once: true, ..GhostPolicy::default() };
        let sweeping = GhostSweep::new(runs.clone(), ghosts)?.spawn();

        let shown = screen.clone();
        let steps = OnStepLayer::new(move |step| shown.step(step));
        let tools = |helpers| tools::service(&folder, &handles.guard, steps.clone(), helpers);
        let turns = TurnLoop { llm, tools: tools(None)?, limits, screen: screen.clone() };
        let helpers = Helpers::new(turns.clone(), runs.clone(), announcing.clone());
        let turns = TurnLoop { tools: tools(Some(helpers.clone()))?, ..turns };

        let sessions = SessionStore::new(state.join("sessions"));
        let history = SessionLayer::new(sessions.clone()).with_prompt(instructions(&folder));
        let waiting = Waiting::default();
        let actors = Actors::new(
            service_fn(move |prompt| answer(history.clone(), turns.clone(), prompt)),
            sink(waiting.clone(), screen),
        );
        let thread = ThreadKey::new(thread);
        announces_by(&parent, &actors, &thread, &waiting);
        Ok(Self {
            actors,
            thread,
            waiting,
            sessions,
            runs,
            _sweeping: sweeping,
            announcing,
            parent,
            helpers,
        })
    }

    /// Says something, and waits for what comes of it.
    pub(crate) async fn ask(&self, text: &str, key: Option<String>) -> Result<Outcome, Failure> {
        let message = UserMessage { text: text.to_owned(), key };
        ask(&self.actors, &self.thread, &self.waiting, message).await
    }

    /// Says something while it works: it is heard before the next turn. What comes too late for that is a prompt of its own, and what comes
    /// of that is on the screen.
    pub(crate) fn steer(&self, text: &str) {
        let message = UserMessage { text: text.to_owned(), key: None };
        if let Err(error) = self.actors.steer(self.thread.clone(), message) {
            tracing::warn!(target: "agent", %error, "nothing more is heard");
        }
    }

    /// Drops what it works on. Whether it was working.
    pub(crate) fn abort(&self) -> bool {
        let aborted = self.actors.abort(&self.thread);
        if let Some(id) = aborted {
            self.waiting.lock().remove(&id);
        }
        aborted.is_some()
    }

    /// How many helpers work in the background.
    pub(crate) fn in_the_background(&self) -> usize {
        self.helpers.in_the_background()
    }

    /// Waits for its helpers.
    pub(crate) async fn helpers_done(&self) {
        self.helpers.done().await;
    }

    /// Ends in good order: what runs has `limit` to end, everything that has to be is on the disk, and the folder is free. How many
    /// announcements are left for the next start.
    pub(crate) async fn stop(self, limit: Duration) -> usize {
        // Whoever announces something now goes another way, and no circle is left.
        self.parent.set(None);
        self.actors.shutdown(limit).await;
        self.runs.close(limit).await;
        self.helpers.stop().await;
        self.announcing.close().await;
        let flushed = self.sessions.flush().await;
        for (thread, error) in flushed.failed {
            tracing::error!(target: "agent", ?thread, %error, "a conversation could not be saved");
        }
        self.sessions.close_idle().await;
        self.announcing.waiting()
    }
}

/// What the model reads first: ours, then the user's own rules, as they are now.
fn instructions(folder: &Path) -> PromptParts {
    PromptParts::new().text(INSTRUCTIONS).file("Rules of this folder", folder.join("AGENTS.md"))
}

/// One prompt: the history around the loop.
async fn answer(
    history: SessionLayer,
    turns: TurnLoop,
    prompt: Prompt<UserMessage>,
) -> Result<SessionReply, Failure> {
    let Prompt { input, thread, steering, context, .. } = prompt;
    let request =
        ChatRequest::user(input.text).with_tools(declarations(false)).with_context(context);
    let name = input.key.clone().unwrap_or_default();
    let mut prompt = SessionPrompt::new(thread.thread(), request);
    prompt.key = input.key.map(Into::into);
    let steering = Arc::new(steering);
    let agent = service_fn(move |run: SessionRun| {
        let (turns, steering, name) = (turns.clone(), steering.clone(), name.clone());
        async move {
            let heard = || steering.try_next().map(|message| message.text);
            let SessionRun { request, turns: kept, .. } = run;
            turns.run(Run { name, request, turns: Some(kept), heard: &heard }).await
        }
    });
    history.layer(agent).oneshot(prompt).await
}

/// Gives what comes of a prompt to whoever waits for it. For one that was heard too late, nobody does.
fn sink(
    waiting: Waiting,
    screen: Screen,
) -> impl Fn(ThreadPost<SessionReply>) -> std::future::Ready<Result<(), Failure>> + Send + Sync + 'static
{
    move |post| {
        let outcome = match post.body {
            PostBody::Reply(reply) => Outcome::Reply(Box::new(reply)),
            PostBody::Failed(failure) => Outcome::Failed(failure.to_string()),
            _ => Outcome::Aborted,
        };
        let waits = waiting.lock().remove(&post.prompt);
        match (waits, outcome) {
            (Some(waits), outcome) => {
                let _ = waits.send(outcome);
            }
            (None, Outcome::Failed(text)) => screen.line(text),
            // Its text was shown as it came.
            (None, _) => screen.line(""),
        }
        std::future::ready(Ok(()))
    }
}

async fn ask(
    actors: &Actors<UserMessage>,
    thread: &ThreadKey,
    waiting: &Waiting,
    message: UserMessage,
) -> Result<Outcome, Failure> {
    let (sender, outcome) = oneshot::channel();
    {
        // Nobody can answer before somebody waits.
        let mut waiting = waiting.lock();
        let id = actors.send(thread.clone(), message).map_err(|error| {
            Failure::refused(Reason::Budget, error.to_string()).with_fault(FaultSide::Local)
        })?;
        waiting.insert(id, sender);
    }
    Ok(outcome.await.unwrap_or(Outcome::Aborted))
}

/// Announcements are made by a turn of the conversation.
fn announces_by(
    parent: &Parent,
    actors: &Actors<UserMessage>,
    thread: &ThreadKey,
    waiting: &Waiting,
) {
    let (actors, thread, waiting) = (actors.clone(), thread.clone(), waiting.clone());
    let service = service_fn(move |turn: ParentTurn| {
        let (actors, thread, waiting) = (actors.clone(), thread.clone(), waiting.clone());
        async move {
            let texts: Vec<&str> = turn.texts().collect();
            let text = format!(
                "[Not from the user.] Say this to the user, in a sentence or two of your own:\n\n{}",
                texts.join("\n\n")
            );
            match ask(&actors, &thread, &waiting, UserMessage { text, key: None }).await? {
                Outcome::Reply(_) => Ok(()),
                Outcome::Failed(text) => Err(Failure::new(Reason::Unknown, text)),
                Outcome::Aborted => Err(Failure::new(Reason::Cancelled, "the turn was aborted")),
            }
        }
    });
    parent.set(Some(BoxCloneSyncService::new(service)));
}
