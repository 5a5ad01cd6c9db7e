//! A chat service: threads with a mailbox each, histories on disk, and every layer between them and the models.
//!
//! ```text
//! Actors          a mailbox a thread; whatever happens to a turn, its user gets a reply or a fixed text
//! SessionLayer    the history; a turn is on disk before its reply is sent
//! the turn        one call of a model
//! Stack           deadline, guard, resume, failover, compaction, retry, breaker .. client
//! ```
//!
//! `POST /threads/{id}/messages` puts a message into the thread's mailbox, `GET /threads/{id}/events` streams what its users are
//! sent, and `POST /threads/{id}/abort` drops the turn that runs.
//!
//! `cargo run -p example-chat-service` runs the [`scenario`]: the service in front of two simulated providers that misbehave. It ends
//! with an error if anything else happens than it prints. `cargo run -p example-chat-service -- --serve 127.0.0.1:8080` serves for
//! real, with the keys in `ANTHROPIC_API_KEY` and `OPENAI_API_KEY`, of which one is enough, and threads in `CHAT_FOLDER`. Ctrl-C and
//! SIGTERM end it in good order: what runs has 20 s, and everything is saved.

mod api;
mod scenario;

use std::{env, error::Error, future::Future, io, net::SocketAddr, path::PathBuf, time::Duration};

use serde_json::json;
use steadfast::{
    ChatRequest, ChatService, Dialect, Failure, Stack,
    client::{Credential, LlmClient, Provider, Providers},
    failover::{Chain, TargetSpec},
};
use steadfast_session::{
    FlushReport, SessionLayer, SessionPrompt, SessionReply, SessionRun, SessionStore, SessionTurn,
};
use steadfast_supervise::{Actors, PostBody, Prompt, StopReport, ThreadPost, record_panics};
use tokio::{
    net::TcpListener,
    sync::{broadcast, watch},
    task::JoinHandle,
};
use tower::{Layer, ServiceExt, service_fn};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    // The ERROR event of a turn that panics has its backtrace.
    record_panics();
    let arguments: Vec<String> = env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => scenario::run().await,
        ["--serve", address] => serve(address).await,
        _ => Err("usage: example-chat-service [--serve ADDRESS]".into()),
    }
}

/// Serves until ctrl-c or SIGTERM, with the providers whose keys are in the environment. Events go to stderr.
async fn serve(address: &str) -> Result<(), Box<dyn Error>> {
    tracing_subscriber::fmt().with_writer(io::stderr).init();
    let (mut providers, mut targets) = (Vec::new(), Vec::new());
    for (name, dialect, key, model) in [
        ("anthropic", Dialect::Anthropic, "ANTHROPIC_API_KEY", "claude-sonnet-4-5"),
        ("openai", Dialect::OpenAi, "OPENAI_API_KEY", "gpt-4o"),
    ] {
        if env::var_os(key).is_some() {
            let provider = Provider::new(name, dialect);
            providers.push(provider.with_credential(Credential::env(key)?));
            targets.push(TargetSpec::new(name).with_model("*", model));
        }
    }
    if targets.is_empty() {
        return Err(
            "set ANTHROPIC_API_KEY or OPENAI_API_KEY; without `--serve` no key is needed".into()
        );
    }
    let stack = Stack::new(Chain::new(targets)?).on_step(|step| println!("{step}"));
    let llm = stack.connect(LlmClient::new(Providers::new(providers)?))?;
    let folder = env::var_os("CHAT_FOLDER").map_or_else(|| "chat-threads".into(), PathBuf::from);
    let terminated = terminated()?;
    let mut server = Server::start(address, Chat::new(folder, llm)).await?;
    println!("serving on http://{}", server.address);
    tokio::select! {
        ctrl_c = tokio::signal::ctrl_c() => ctrl_c?,
        () = terminated => {}
    }
    let (stopped, flushed) = server.stop(Duration::from_secs(20)).await?;
    println!("{stopped:?}\n{flushed:?}");
    Ok(())
}

/// Waits for the SIGTERM by which systemd and container runtimes end a service. It is caught from the call on.
#[cfg(unix)]
fn terminated() -> io::Result<impl Future<Output = ()>> {
    let mut signals = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?;
    Ok(async move {
        signals.recv().await;
    })
}

/// There is no such signal here.
#[cfg(not(unix))]
fn terminated() -> io::Result<impl Future<Output = ()>> {
    Ok(std::future::pending())
}

/// A user's message.
struct UserMessage {
    text: String,
    /// The same for every time that it is sent.
    key: Option<String>,
}

/// What the users of a thread are sent.
#[derive(Clone)]
struct ThreadEvent {
    thread: String,
    /// `reply` or `failed`.
    name: &'static str,
    data: serde_json::Value,
}

/// The service without its HTTP side. Clones are the same service.
#[derive(Clone)]
struct Chat {
    actors: Actors<UserMessage>,
    sessions: SessionStore,
    /// What all threads are sent; who reads too slowly misses the oldest.
    events: broadcast::Sender<ThreadEvent>,
    /// Whether the last event has been sent.
    over: watch::Sender<bool>,
}

impl Chat {
    /// With the threads in `folder`.
    fn new(folder: impl Into<PathBuf>, llm: ChatService) -> Self {
        let sessions = SessionStore::new(folder);
        let agent = service_fn(move |run| turn(llm.clone(), run));
        let turns = SessionLayer::new(sessions.clone()).layer(agent).map_request(session_prompt);
        let events = broadcast::Sender::new(256);
        let sender = events.clone();
        let actors = Actors::new(turns, move |post| {
            // Nobody listens: who comes later sends the message again, with its key, and gets the same answer.
            let _ = sender.send(event(&post));
            async { Ok(()) }
        });
        Self { actors, sessions, events, over: watch::Sender::new(false) }
    }

    /// Ends what runs within `limit`, and saves what could not be saved before. The folder is free then.
    async fn stop(&self, limit: Duration) -> (StopReport, FlushReport) {
        let stopped = self.actors.shutdown(limit).await;
        self.over.send_replace(true);
        let flushed = self.sessions.flush().await;
        self.sessions.close_idle().await;
        (stopped, flushed)
    }
}

/// The context goes along: the prompt's 600 s are the deadline of all its calls, and its thread is their session.
fn session_prompt(prompt: Prompt<UserMessage>) -> SessionPrompt {
    let UserMessage { text, key } = prompt.input;
    let request = ChatRequest::user(text).with_context(prompt.context);
    let session = SessionPrompt::new(prompt.thread.thread(), request);
    match key {
        Some(key) => session.with_key(key),
        None => session,
    }
}

/// A turn: the whole history goes to a model, and its answer is added to it. An agent with tools calls the model again with their
/// results, and reports each such turn with `run.turns`; its user is sent the `ToolFailure::user_text` of a result at once, and a
/// failure with the evidence `TOOL_TIMEOUT` where no answer follows. `examples/agent` does both.
async fn turn(llm: ChatService, run: SessionRun) -> Result<SessionTurn, Failure> {
    // As a stream, because silence of a provider is noticed there long before the deadline.
    let answer = llm.oneshot(run.request.streaming()).await?.collect().await?;
    SessionTurn::from_answer(answer)
}

/// A reply, or one of the fixed texts, in which nothing of an error is.
fn event(post: &ThreadPost<SessionReply>) -> ThreadEvent {
    let (prompt, thread) = (post.prompt, post.thread.thread().to_owned());
    let (name, data) = match &post.body {
        PostBody::Reply(reply) => {
            let text = reply.to_string();
            let (saved, replayed) = (reply.saved, reply.replayed);
            let data =
                json!({"prompt": prompt, "text": text, "saved": saved, "replayed": replayed});
            ("reply", data)
        }
        PostBody::Failed(failure) => {
            let (kind, text) = (failure.as_str(), failure.to_string());
            ("failed", json!({"prompt": prompt, "kind": kind, "text": text}))
        }
        _ => ("unknown", json!({"prompt": prompt})),
    };
    ThreadEvent { thread, name, data }
}

/// The service on a port.
struct Server {
    address: SocketAddr,
    chat: Chat,
    serving: JoinHandle<io::Result<()>>,
}

impl Server {
    async fn start(address: &str, chat: Chat) -> io::Result<Self> {
        let listener = TcpListener::bind(address).await?;
        let address = listener.local_addr()?;
        let router = api::router(chat.clone());
        let serving = axum::serve(listener, router).with_graceful_shutdown(ended(&chat));
        let serving = tokio::spawn(serving.into_future());
        Ok(Self { address, chat, serving })
    }

    /// Ends in good order: turns end within `limit` and their users hear of it, then connections end.
    async fn stop(&mut self, limit: Duration) -> Result<(StopReport, FlushReport), Box<dyn Error>> {
        let report = self.chat.stop(limit).await;
        (&mut self.serving).await??;
        Ok(report)
    }
}

/// Waits for the last event.
fn ended(chat: &Chat) -> impl Future<Output = ()> + Send + use<> {
    let mut over = chat.over.subscribe();
    async move {
        let _ = over.wait_for(|over| *over).await;
    }
}

#[cfg(test)]
mod tests {
    use steadfast::{ChatResponse, Reason, ToolCall, ToolFailureKind, ToolResult};
    use steadfast_supervise::TOOL_TIMEOUT;

    use super::*;

    /// Nothing of the error reaches its user, and what a tool's result has for a user is the same.
    #[tokio::test]
    async fn a_turn_that_fails_by_a_tool_has_the_text_of_that() -> Result<(), Box<dyn Error>> {
        let failing = service_fn(|_: ChatRequest| async {
            let failure = Failure::new(Reason::Timeout, "`sleep 1000` was not over");
            Err::<ChatResponse, _>(failure.with_evidence(TOOL_TIMEOUT))
        });
        let folder = tempfile::tempdir()?;
        let chat = Chat::new(folder.path(), ChatService::new(failing));
        let mut events = chat.events.subscribe();
        let text = "Run it.".to_owned();
        let prompt = chat.actors.send("alice", UserMessage { text, key: None })?;
        let event = events.recv().await?;
        let result = ToolResult::failed(&ToolCall::default(), ToolFailureKind::TimedOut, "");
        let text = result.failure.and_then(|failure| failure.user_text());
        let data = json!({"prompt": prompt, "kind": "tool_timeout", "text": text});
        assert_eq!((event.name, event.data), ("failed", data));
        let (_, flushed) = chat.stop(Duration::from_secs(5)).await;
        assert!(flushed.failed.is_empty());
        Ok(())
    }
}
