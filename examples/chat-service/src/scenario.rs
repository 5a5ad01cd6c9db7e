//! The service on a port, in front of two simulated providers that misbehave, and its user. Each part is a test as well.

use std::{error::Error, fmt::Display, fs, path::PathBuf, time::Duration};

use axum::{
    body::{Body, Bytes},
    http::{Request, StatusCode, header},
};
use http_body_util::BodyExt;
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};
use serde_json::{Value, json};
use steadfast::{
    Backoff, ChatService, Dialect, Stack,
    client::{Credential, LlmClient, Provider, Providers},
    failover::{Chain, CooldownFailoverLayer, TargetSpec},
    retry::RetryBackoffLayer,
    sim::{Answer, ErrorKind, Fault, FaultPlan, How, PlanRule, SimProvider, SimRequest, SimServer},
};

use crate::{Chat, Server};

type Done = Result<(), Box<dyn Error>>;

const ANSWER: &str = "It is forty-two, as it has been ever since somebody asked.";
const UNREACHABLE: &str =
    "The model provider can't be reached right now. Please try again in a moment.";

/// All of it, one after the other.
pub(crate) async fn run() -> Done {
    let mut world = World::start().await?;
    failures_that_nobody_sees(&mut world).await?;
    no_provider_is_left(&mut world).await?;
    restart(&mut world).await?;
    idempotency(&mut world).await?;
    full_mailbox(&mut world).await?;
    shutdown(world).await
}

/// A 529, a stream that breaks, and a provider that is gone: three good replies.
async fn failures_that_nobody_sees(world: &mut World) -> Done {
    let rule = |n, fault| PlanRule::new(fault).nth(n);
    let plan = FaultPlan::none()
        .rule(rule(1, Fault::Error(ErrorKind::Overloaded)))
        .rule(rule(3, Fault::break_after(4, How::Reset)));
    world.anthropic.provider().set_faults(plan);
    let mut alice = world.listen("alice").await?;
    world.ask(&mut alice, "A 529?").await?.is_reply(ANSWER)?;
    check(world.statuses() == [529, 200], "it was retried")?;
    world.ask(&mut alice, "A stream that breaks after four events?").await?.is_reply(ANSWER)?;
    check(world.statuses().len() >= 4, "the broken stream was resumed")?;
    world.anthropic.provider().set_faults(FaultPlan::always(Fault::Reset));
    world.ask(&mut alice, "A provider that is gone?").await?.is_reply(ANSWER)?;
    check(!world.openai.provider().journal().is_empty(), "the other provider was asked")
}

/// Both are gone: one of the fixed texts. The next message is answered, and the failed one is not in the history.
async fn no_provider_is_left(world: &mut World) -> Done {
    let mut alice = world.listen("alice").await?;
    world.all_fail(FaultPlan::always(Fault::Reset));
    let event = world.ask(&mut alice, "Both of them?").await?;
    event.is("failed", "kind", "provider")?;
    event.is("failed", "text", UNREACHABLE)?;
    world.all_fail(FaultPlan::none());
    world.ask(&mut alice, "And now?").await?.is_reply(ANSWER)?;
    check(!world.last_history().contains("Both of them?"), "what failed is not in the history")
}

/// The server ends while a turn runs, and another one goes on in the same folder.
async fn restart(world: &mut World) -> Done {
    let mut alice = world.listen("alice").await?;
    world.ask(&mut alice, "Remember the number 7.").await?.is_reply(ANSWER)?;
    let asked = world.requests();
    world.all_fail(FaultPlan::first(1, Fault::first_token_after_ms(300)));
    world.send("alice", "A restart while this is answered?", None).await?;
    world.asked_beyond(asked).await;
    world.restart().await?;
    alice.next().await?.is_reply(ANSWER)?;
    check(alice.next().await.is_err(), "the stream of events has ended")?;

    let mut alice = world.listen("alice").await?;
    world.ask(&mut alice, "Which number was it?").await?.is_reply("It was 7.")?;
    let history = world.last_history();
    println!("  the model got: {history}");
    let turns = ["Remember the number 7.", ANSWER, "A restart while this is answered?", ANSWER];
    let expected = [&turns[..], &["Which number was it?"]].concat().join(" | ");
    check(history.ends_with(&expected), "the model got the whole history")
}

/// A message is sent again, as clients do that got no answer, also after a restart.
async fn idempotency(world: &mut World) -> Done {
    let mut carol = world.listen("carol").await?;
    world.send("carol", "Once.", Some("m-1")).await?;
    carol.next().await?.is_reply(ANSWER)?;
    let asked = world.requests();
    world.restart().await?;
    let mut carol = world.listen("carol").await?;
    world.send("carol", "Once.", Some("m-1")).await?;
    let event = carol.next().await?;
    event.is_reply(ANSWER)?;
    check(event.data["replayed"] == true, "it is the same answer")?;
    check(world.requests() == asked, "no model was asked")?;
    world.ask(&mut carol, "Twice?").await?.is_reply(ANSWER)?;
    check(world.last_history() == format!("Once. | {ANSWER} | Twice?"), "it was added once")
}

/// A turn hangs until messages are refused, and goes on after an abort.
async fn full_mailbox(world: &mut World) -> Done {
    let mut bob = world.listen("bob").await?;
    let asked = world.requests();
    world.all_fail(FaultPlan::first(1, Fault::Hang));
    world.send("bob", "Does this hang?", None).await?;
    world.asked_beyond(asked).await;
    for n in 1..=20 {
        world.send("bob", &format!("Message {n}"), None).await?;
    }
    let (status, body) =
        world.post("/threads/bob/messages", &json!({"text": "Too many?"}), None).await?;
    println!("bob: Too many?\n  {status} {body}");
    check(status == StatusCode::TOO_MANY_REQUESTS, "a full mailbox is a 429")?;
    check(body["error"]["type"] == "full", "the body has the kind")?;
    let message = "20 messages of this thread wait already; wait for an answer, or abort what runs, then send it again";
    check(body["error"]["message"] == message, "the body says what to do")?;

    let (status, body) = world.post("/threads/bob/abort", &json!({}), None).await?;
    println!("bob: abort\n  {status} {body}");
    check(body["aborted"].is_u64(), "the turn was aborted")?;
    for _ in 1..=20 {
        bob.next().await?.is_reply(ANSWER)?;
    }
    check(
        !world.last_history().contains("Does this hang?"),
        "the aborted turn is not in the history",
    )
}

/// A turn that does not end in time is dropped, and its user informed.
async fn shutdown(mut world: World) -> Done {
    let mut dave = world.listen("dave").await?;
    let asked = world.requests();
    world.all_fail(FaultPlan::first(1, Fault::Hang));
    world.send("dave", "Does this hang, too?", None).await?;
    world.asked_beyond(asked).await;
    let sessions = world.server.chat.sessions.clone();
    let (stopped, flushed) = world.server.stop(Duration::from_millis(50)).await?;
    println!("stop\n  {stopped:?}\n  {flushed:?}");
    check(stopped.cut == 1 && flushed.failed.is_empty(), "one turn was cut, everything is saved")?;
    let text = "Something went wrong (restart). Please send your message again.";
    dave.next().await?.is("failed", "text", text)?;
    for check_of in sessions.verify()? {
        check(check_of.is_ok(), &format!("{check_of:?}"))?;
    }
    Ok(())
}

/// A folder of the system's temporary one, gone with its world.
struct Folder(PathBuf);

impl Folder {
    /// No two worlds of a machine have the same port at the same time.
    fn for_port(port: u16) -> Self {
        Self(std::env::temp_dir().join(format!("chat-service-{port}")))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// The service, its providers, and an HTTP client.
struct World {
    folder: Folder,
    anthropic: SimServer,
    openai: SimServer,
    server: Server,
    http: Client<HttpConnector, Body>,
}

impl World {
    async fn start() -> Result<Self, Box<dyn Error>> {
        let simulated = |dialect| {
            let provider = SimProvider::builder(dialect);
            SimServer::local(provider.respond(answer).build())
        };
        let anthropic = simulated(Dialect::Anthropic).await?;
        let openai = simulated(Dialect::OpenAi).await?;
        let folder = Folder::for_port(anthropic.addr().port());
        let chat = Chat::new(&folder.0, llm(&anthropic, &openai)?);
        let server = Server::start("127.0.0.1:0", chat).await?;
        let http = Client::builder(TokioExecutor::new()).build_http();
        Ok(Self { folder, anthropic, openai, server, http })
    }

    /// Stops the server in good order, and starts another one in the same folder.
    async fn restart(&mut self) -> Done {
        let (stopped, flushed) = self.server.stop(Duration::from_secs(10)).await?;
        println!("restart\n  {stopped:?}\n  {flushed:?}");
        let chat = Chat::new(&self.folder.0, llm(&self.anthropic, &self.openai)?);
        self.server = Server::start("127.0.0.1:0", chat).await?;
        check(stopped.cut == 0 && flushed.failed.is_empty(), "nothing was cut or lost")
    }

    fn all_fail(&self, plan: FaultPlan) {
        self.anthropic.provider().set_faults(plan.clone());
        self.openai.provider().set_faults(plan);
    }

    /// How often providers were called.
    fn requests(&self) -> usize {
        self.anthropic.provider().journal().len() + self.openai.provider().journal().len()
    }

    /// Waits until they have been called more often than that.
    async fn asked_beyond(&self, requests: usize) {
        let (one, two) = (self.anthropic.provider().journal(), self.openai.provider().journal());
        while self.requests() <= requests {
            tokio::select! {
                _ = one.wait_for(one.len() + 1) => {}
                _ = two.wait_for(two.len() + 1) => {}
            }
        }
    }

    /// The answers of the first provider.
    fn statuses(&self) -> Vec<u16> {
        let entries = self.anthropic.provider().journal().entries();
        entries.iter().filter_map(|entry| entry.status).collect()
    }

    /// What the latest call of a model had in it.
    fn last_history(&self) -> String {
        let last = [&self.anthropic, &self.openai].map(|server| server.provider().journal().last());
        let last = last.into_iter().flatten().max_by_key(|entry| entry.at);
        let messages = last.and_then(|entry| entry.json).map(|json| json["messages"].clone());
        let messages = messages.as_ref().and_then(Value::as_array).cloned().unwrap_or_default();
        messages.iter().map(text_of).collect::<Vec<_>>().join(" | ")
    }

    /// Sends a message, and waits for what comes of it.
    async fn ask(&self, user: &mut Listener, text: &str) -> Result<ServerEvent, Box<dyn Error>> {
        let prompt = self.send(&user.thread, text, None).await?;
        let event = user.next().await?;
        check(event.data["prompt"] == prompt, "the event is that of the message")?;
        Ok(event)
    }

    async fn send(
        &self,
        thread: &str,
        text: &str,
        key: Option<&str>,
    ) -> Result<u64, Box<dyn Error>> {
        println!("{thread}: {text}");
        let path = format!("/threads/{thread}/messages");
        let (status, body) = self.post(&path, &json!({"text": text}), key).await?;
        check(status == StatusCode::ACCEPTED, &format!("it is taken: {status} {body}"))?;
        body["prompt"].as_u64().ok_or_else(|| "no prompt".into())
    }

    async fn post(
        &self,
        path: &str,
        body: &Value,
        key: Option<&str>,
    ) -> Result<(StatusCode, Value), Box<dyn Error>> {
        let mut request = Request::post(format!("http://{}{path}", self.server.address))
            .header(header::CONTENT_TYPE, "application/json");
        if let Some(key) = key {
            request = request.header("idempotency-key", key);
        }
        let response = self.http.request(request.body(body.to_string().into())?).await?;
        let status = response.status();
        let body = response.into_body().collect().await?.to_bytes();
        Ok((status, serde_json::from_slice(&body)?))
    }

    async fn listen(&self, thread: &str) -> Result<Listener, Box<dyn Error>> {
        let url = format!("http://{}/threads/{thread}/events", self.server.address);
        let response = self.http.request(Request::get(url).body(Body::empty())?).await?;
        let body = Body::new(response.into_body());
        Ok(Listener { thread: thread.to_owned(), body, unread: String::new() })
    }
}

/// A user who reads the events of a thread.
struct Listener {
    thread: String,
    body: Body,
    unread: String,
}

impl Listener {
    /// The next event. An error when the stream has ended, or nothing comes.
    async fn next(&mut self) -> Result<ServerEvent, Box<dyn Error>> {
        let event = tokio::time::timeout(Duration::from_secs(30), self.read()).await;
        let event = event.map_err(|_| "no event came")??;
        println!("  {} {}", event.name, event.data);
        Ok(event)
    }

    async fn read(&mut self) -> Result<ServerEvent, Box<dyn Error>> {
        loop {
            if let Some((frame, rest)) = self.unread.split_once("\n\n") {
                let field = |name| frame.lines().find_map(|line| line.strip_prefix(name));
                let event = field("event: ").zip(field("data: "));
                let event = event.map(|(name, data)| (name.to_owned(), serde_json::from_str(data)));
                self.unread = rest.to_owned();
                let Some((name, data)) = event else { continue };
                return Ok(ServerEvent { name, data: data? });
            }
            let frame = self.body.frame().await.ok_or("the stream has ended")??;
            let bytes: Bytes = frame.into_data().unwrap_or_default();
            self.unread.push_str(std::str::from_utf8(&bytes)?);
        }
    }
}

struct ServerEvent {
    name: String,
    data: Value,
}

impl ServerEvent {
    fn is(&self, name: &str, field: &str, value: &str) -> Done {
        let Self { name: seen, data } = self;
        check(seen == name && data[field] == value, &format!("`{value}`, and not {seen} {data}"))
    }

    /// A reply that is on disk.
    fn is_reply(&self, text: &str) -> Done {
        self.is("reply", "text", text)?;
        check(self.data["saved"] == true, "the turn is on disk")
    }
}

/// The whole stack around a client of both providers, with short waits for the example.
fn llm(anthropic: &SimServer, openai: &SimServer) -> Result<ChatService, Box<dyn Error>> {
    let provider = |name: &str, dialect, server: &SimServer| {
        Provider::new(name, dialect)
            .with_base_url(server.base_url())
            .with_credential(Credential::new("main", "any"))
    };
    let providers = Providers::new([
        provider("anthropic", Dialect::Anthropic, anthropic),
        provider("openai", Dialect::OpenAi, openai),
    ])?;
    let chain = Chain::new([
        TargetSpec::new("anthropic").with_model("*", "claude-sonnet-4-5"),
        TargetSpec::new("openai").with_model("*", "gpt-4o"),
    ])?;
    // The defaults are half a minute of waits in all when every target has failed, and 500 ms doubling to 10 s for each.
    let failover = CooldownFailoverLayer::new(chain)
        .tune(|policy| policy.patience.with_spare = Duration::from_millis(100));
    let backoff = Backoff::new(Duration::from_millis(20), Duration::from_millis(100))?;
    let stack = Stack::around(failover)
        .with_retry(RetryBackoffLayer::in_stack().with_backoff(backoff)?)
        .on_step(|step| println!("    {step}"));
    Ok(stack.connect(LlmClient::new(providers))?)
}

/// What the simulated models answer.
fn answer(request: &SimRequest) -> Option<Answer> {
    let knows = request.body.to_string().contains("Remember the number 7.");
    let asks = request.last_user == "Which number was it?";
    Some(Answer::text(if asks && knows { "It was 7." } else { ANSWER }))
}

/// The text of a message in either dialect.
fn text_of(message: &Value) -> String {
    match &message["content"] {
        Value::String(text) => text.clone(),
        parts => parts[0]["text"].as_str().unwrap_or_default().to_owned(),
    }
}

fn check(holds: bool, what: &(impl Display + ?Sized)) -> Done {
    if holds { Ok(()) } else { Err(format!("this should hold: {what}").into()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn users_do_not_see_failures_that_are_recovered() -> Done {
        failures_that_nobody_sees(&mut World::start().await?).await
    }

    #[tokio::test]
    async fn a_turn_that_fails_has_a_fixed_text_and_the_next_message_an_answer() -> Done {
        no_provider_is_left(&mut World::start().await?).await
    }

    #[tokio::test]
    async fn a_restart_keeps_the_history_and_the_turn_that_runs() -> Done {
        restart(&mut World::start().await?).await
    }

    #[tokio::test]
    async fn a_message_that_is_sent_again_is_added_once() -> Done {
        idempotency(&mut World::start().await?).await
    }

    #[tokio::test]
    async fn a_full_mailbox_refuses_and_an_abort_frees_it() -> Done {
        full_mailbox(&mut World::start().await?).await
    }

    #[tokio::test]
    async fn a_stop_in_good_order_leaves_nobody_waiting() -> Done {
        shutdown(World::start().await?).await
    }
}
