//! The gateway on a real socket in front of simulated providers on real sockets, with a hand-written
//! client and hand-written parsers: nothing here uses the code under test.

#![allow(clippy::unwrap_used, clippy::expect_used)]

pub mod http;
pub mod http2;
pub mod in_process;
pub mod over_sockets;
pub mod thread_events;
pub mod wire_answer;

use std::{
    io,
    net::SocketAddr,
    path::PathBuf,
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

use serde_json::{Value, json};
use steadfast::sim::{Answer, Block, Dialect, Entry, SimProvider, SimProviderBuilder, SimServer};
use steadfast_gateway::{
    config::Source,
    server::{App, serve},
    stack::Gateway,
};
use tokio::{net::TcpSocket, sync::oneshot, task::JoinHandle};

pub use crate::harness::turns_key;

use self::http::HttpRequest;

/// The dialects.
pub const DIALECTS: [Dialect; Dialect::ALL.len()] = Dialect::ALL;

/// The gateway's credential at providers.
pub const PROVIDER_KEY: &str = "sk-provider-secret-5309";

/// Every pair of a caller's and a provider's dialect.
pub fn pairs() -> impl Iterator<Item = (Dialect, Dialect)> {
    DIALECTS.into_iter().flat_map(|caller| DIALECTS.map(|provider| (caller, provider)))
}

/// A model that the simulator of `dialect` serves.
pub const fn model(dialect: Dialect) -> &'static str {
    match dialect {
        Dialect::OpenAi | Dialect::Responses => "gpt-4o",
        Dialect::Anthropic => "claude-sonnet-4-5",
        Dialect::Gemini => "gemini-2.5-pro",
    }
}

/// A provider of `dialect`, named like it, that accepts only [`PROVIDER_KEY`].
pub fn provider(dialect: Dialect) -> SimProviderBuilder {
    SimProvider::builder(dialect).keys([PROVIDER_KEY])
}

/// A tool call with a fixed id, the same in every dialect.
pub fn call(id: &str, name: &str, arguments: &str) -> Block {
    Block::ToolCall { id: Some(id.into()), name: name.into(), arguments: arguments.into() }
}

/// Thinking, text, and two calls at once; several content events of each.
pub fn rich_answer() -> Answer {
    Answer::thinking("Let me think about that, step by step.")
        .then_text("Two lookups, then: na\u{ef}ve \u{65e5}\u{672c} \u{1f980} \r\n and more to say.")
        .then(call(
            "call_a1",
            "look_up",
            r#"{"q": "caf\u00e9",  "n": 1.50, "deep": {"a": [1,2 ,3]}}"#,
        ))
        .then(call("call_b2", "look_up", r#"{"q":"\ud83e\udd80","n":2}"#))
        .in_chunks_of(6)
}

/// The body of a question to `model` in `dialect`. It declares tools, since answers may call them.
pub fn question(dialect: Dialect, model: &str, stream: bool) -> Value {
    let schema = json!({"type": "object", "properties": {"q": {"type": "string"}}});
    match dialect {
        Dialect::OpenAi => {
            let mut body = json!({
                "model": model,
                "messages": [{"role": "user", "content": "What is it?"}],
                "max_tokens": 8000,
                "tools": [{"type": "function", "function": {
                    "name": "look_up", "description": "Looks up.", "parameters": schema,
                }}],
            });
            if stream {
                body["stream"] = json!(true);
                body["stream_options"] = json!({"include_usage": true});
            }
            body
        }
        Dialect::Anthropic => {
            let mut body = json!({
                "model": model,
                "max_tokens": 8000,
                "messages": [{"role": "user", "content": "What is it?"}],
                "tools": [{"name": "look_up", "description": "Looks up.", "input_schema": schema}],
            });
            if stream {
                body["stream"] = json!(true);
            }
            body
        }
        Dialect::Responses => {
            let mut body = json!({
                "model": model,
                "input": [{"role": "user", "content": "What is it?"}],
                "max_output_tokens": 8000,
                "tools": [{
                    "type": "function", "name": "look_up", "description": "Looks up.",
                    "parameters": schema, "strict": false,
                }],
            });
            if stream {
                body["stream"] = json!(true);
            }
            body
        }
        Dialect::Gemini => json!({
            "contents": [{"role": "user", "parts": [{"text": "What is it?"}]}],
            "generationConfig": {"maxOutputTokens": 8000},
            "tools": [{"functionDeclarations": [{
                "name": "look_up", "description": "Looks up.", "parameters": schema,
            }]}],
        }),
    }
}

/// The path of `dialect`; Gemini's contains the model and the form.
pub fn path(dialect: Dialect, model: &str, stream: bool) -> String {
    match (dialect, stream) {
        (Dialect::OpenAi, _) => "/v1/chat/completions".into(),
        (Dialect::Anthropic, _) => "/v1/messages".into(),
        (Dialect::Responses, _) => "/v1/responses".into(),
        (Dialect::Gemini, true) => {
            format!("/v1beta/models/{model}:streamGenerateContent?alt=sse")
        }
        (Dialect::Gemini, false) => format!("/v1beta/models/{model}:generateContent"),
    }
}

/// A question to `model` in `dialect`.
pub fn ask(dialect: Dialect, model: &str, stream: bool) -> HttpRequest {
    let ask = HttpRequest::post(
        path(dialect, model, stream),
        question(dialect, model, stream).to_string(),
    );
    match dialect {
        Dialect::Anthropic => ask.header("anthropic-version", "2023-06-01"),
        _ => ask,
    }
}

/// Configures a [`Rig`].
#[derive(Debug)]
pub struct RigBuilder {
    secrets: Secrets,
    top: String,
    server: String,
    rest: String,
    send_buffer: Option<u32>,
    providers: Vec<(SimProvider, Option<String>, String)>,
}

impl RigBuilder {
    /// Writes a secret to a file; returns the reference to it for a configuration.
    pub fn secret(&self, name: &str, value: &str) -> String {
        self.secrets.put(name, value)
    }

    /// Lines before all sections.
    pub fn top(mut self, lines: &str) -> Self {
        lines.clone_into(&mut self.top);
        self
    }

    /// Lines of `[server]`, instead of `auth = "none"`.
    pub fn server(mut self, lines: &str) -> Self {
        lines.clone_into(&mut self.server);
        self
    }

    /// Everything besides `[server]` and `[[providers]]`.
    pub fn config(mut self, text: &str) -> Self {
        text.clone_into(&mut self.rest);
        self
    }

    /// The system's buffer for what each connection sends, in bytes.
    pub fn send_buffer(mut self, bytes: u32) -> Self {
        self.send_buffer = Some(bytes);
        self
    }

    /// One more provider.
    pub fn provider(self, provider: SimProvider) -> Self {
        self.provider_with(provider, "")
    }

    /// One more provider, with more lines for its section.
    pub fn provider_with(mut self, provider: SimProvider, lines: &str) -> Self {
        self.providers.push((provider, None, lines.to_owned()));
        self
    }

    /// One more provider, with this credential instead of [`PROVIDER_KEY`].
    pub fn provider_by(mut self, provider: SimProvider, credential: &str, lines: &str) -> Self {
        self.providers.push((provider, Some(credential.to_owned()), lines.to_owned()));
        self
    }

    /// Starts the gateway.
    pub async fn start(self) -> Rig {
        let key = self.secret("provider", PROVIDER_KEY);
        let mut text = format!("{}\n[server]\n{}\n{}\n", self.top, self.server, self.rest);
        let mut sims = Vec::new();
        for (provider, credential, lines) in self.providers {
            let key = credential.as_ref().unwrap_or(&key);
            let sim = SimServer::local(provider).await.unwrap();
            let provider = sim.provider();
            text += &format!(
                "[[providers]]\nname = \"{}\"\ndialect = \"{}\"\nbase_url = \"{}\"\n\
                 credentials = [\"{key}\"]\n{lines}\n",
                provider.name(),
                provider.dialect(),
                sim.base_url(),
            );
            sims.push(sim);
        }
        let file = self.secrets.0.join("steadfast.toml");
        std::fs::write(&file, &text).unwrap();
        let source = Source::file(&file).unwrap();
        let config = source.parse().unwrap();
        config.validate(&source).unwrap();
        let gateway = Gateway::connect(&config, &source).unwrap();
        let app = App::new(&config, &source, gateway).unwrap();
        let socket = TcpSocket::new_v4().unwrap();
        if let Some(bytes) = self.send_buffer {
            socket.set_send_buffer_size(bytes).unwrap();
        }
        socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let listener = socket.listen(1_024).unwrap();
        let addr = listener.local_addr().unwrap();
        let (stop, stopped) = oneshot::channel::<()>();
        let (router, limits) = (app.router(), app.connection_limits());
        let draining = app.clone();
        let server = tokio::spawn(async move {
            let stopped = async move {
                let _ = stopped.await;
                draining.drain();
            };
            serve(listener, router, limits, stopped, Duration::from_secs(10)).await
        });
        Rig { addr, app, sims, config: text, stop: Some(stop), server, secrets: self.secrets }
    }
}

/// A running gateway and the providers behind it.
#[derive(Debug)]
pub struct Rig {
    /// Where the gateway listens.
    pub addr: SocketAddr,
    /// The gateway.
    pub app: App,
    /// The providers, in their order.
    pub sims: Vec<SimServer>,
    /// The text of its configuration.
    pub config: String,
    stop: Option<oneshot::Sender<()>>,
    server: JoinHandle<io::Result<usize>>,
    secrets: Secrets,
}

impl Rig {
    /// A builder with `auth = "none"` and without providers.
    pub fn builder() -> RigBuilder {
        RigBuilder {
            secrets: Secrets::new(),
            top: String::new(),
            server: "auth = \"none\"".into(),
            rest: String::new(),
            send_buffer: None,
            providers: Vec::new(),
        }
    }

    /// An open gateway in front of one provider.
    pub async fn of(provider: SimProvider) -> Self {
        Self::builder().provider(provider).start().await
    }

    /// The requests that the first provider received.
    pub fn seen(&self) -> Vec<Entry> {
        self.sims[0].provider().journal().entries()
    }

    /// The newest request that the first provider received.
    pub fn last(&self) -> Entry {
        self.sims[0].provider().journal().last().expect("the provider received no request")
    }

    /// Writes another configuration into its file, for the next reload.
    pub fn rewrite(&self, config: &str) {
        std::fs::write(self.secrets.0.join("steadfast.toml"), config).unwrap();
    }

    /// Writes another secret into the file that [`RigBuilder::secret`] made.
    pub fn rotate(&self, name: &str, value: &str) {
        self.secrets.put(name, value);
    }

    /// How often the providers have been asked.
    pub fn asked(&self) -> usize {
        self.sims.iter().map(|sim| sim.provider().journal().len()).sum()
    }

    /// Asserts that the header of `reply`, the only one since the providers had been asked `before` times,
    /// has the attempts that they received: where nothing is asked after the head.
    pub fn assert_attempts(&self, reply: &http::Reply, before: usize, case: &str) {
        let known = reply.header("x-steadfast-attempts").map(str::to_owned);
        assert_eq!(known, Some((self.asked() - before).to_string()), "{case}: attempts");
    }

    /// Waits until no request is under way, and asserts that all of them together have the attempts that the
    /// providers received, however the requests ended: in the metric and the status. For providers that write
    /// no summaries.
    pub async fn assert_all_attempts(&self, case: &str) {
        let metrics = self.app.metrics();
        let idle = || async { self.app.in_flight() == 0 };
        http::poll_until("no request is in flight", idle).await;
        assert_eq!(usize::try_from(metrics.attempts()), Ok(self.asked()), "{case}: all attempts");
    }

    /// Starts a graceful shutdown.
    pub fn begin_stop(&mut self) {
        let _ = self.stop.take().expect("it was stopped before").send(());
    }

    /// Waits until it has stopped; returns how many connections it had to close.
    pub async fn stopped(self) -> usize {
        http::within(self.server).await.unwrap().unwrap()
    }
}

/// A folder for secrets, removed on drop.
#[derive(Debug)]
struct Secrets(PathBuf);

impl Secrets {
    fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!(
            "steadfast-tests-{}-{}",
            std::process::id(),
            NEXT.fetch_add(1, Ordering::Relaxed)
        );
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&folder).unwrap();
        Self(folder)
    }

    fn put(&self, name: &str, value: &str) -> String {
        let path = self.0.join(format!("{name}.key"));
        std::fs::write(&path, value).unwrap();
        format!("file:{}", path.display())
    }
}

impl Drop for Secrets {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
