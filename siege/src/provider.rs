//! The providers behind the gateway: simulated ones that are well, and one that writes whatever bytes a check wants.

use std::{collections::HashMap, net::SocketAddr, sync::Arc, time::Duration};

use parking_lot::Mutex;
use steadfast_sim::{Dialect, FaultPlan, Journal, SimProvider, SimServer};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    time::sleep,
};

use crate::check::Failed;

/// The gateway's key at providers. It begins like no vendor's, so that only its value is known.
pub(crate) const KEY: &str = "quiet-harbour/4471+lantern\"north";

/// All of them.
#[derive(Debug)]
pub(crate) struct Providers {
    /// One that is well.
    pub(crate) good: SimServer,
    /// One that fails as a check wants.
    pub(crate) faulty: SimServer,
    /// Whatever bytes a check wants.
    pub(crate) raw: Raw,
    /// More that fail, each in its own way.
    pub(crate) more: Vec<SimServer>,
}

impl Providers {
    /// Starts them, and those that a category has beside them.
    pub(crate) async fn start(simulated: Vec<SimProvider>) -> Result<Self, Failed> {
        let mut more = Vec::new();
        for sim in simulated {
            more.push(SimServer::local(sim).await?);
        }
        let built = |name: &str| {
            SimProvider::builder(Dialect::OpenAi)
                .with_name(name)
                .with_journal(&Journal::keeping(4096))
                .build()
        };
        let raw = Raw::default();
        // Ten seconds of an event each 50 ms, which cost next to nothing.
        let pieces = (0..200).flat_map(|n| {
            [Part::Bytes(text_event(&format!("piece {n} of it, "))), Part::PauseMs(50)]
        });
        let mut slow = vec![Part::Bytes(stream_head())];
        slow.extend(pieces);
        slow.push(Part::Bytes(stream_end()));
        raw.serve("slow", slow);
        Ok(Self {
            good: SimServer::local(built("good")).await?,
            faulty: SimServer::local(built("faulty")).await?,
            raw,
            more,
        })
    }

    /// `faulty` fails by this plan from now on.
    pub(crate) fn fail(&self, plan: FaultPlan) {
        self.faulty.provider().set_faults(plan);
    }

    /// `[[providers]]` for these, and a route for each by the model's name: `gpt-4o` is the good one's,
    /// `faulty-*` the other's, `raw-NAME` what the raw one has under the name, `raw-slow` always.
    pub(crate) fn config(&self, raw: &[&str]) -> String {
        let mut text = String::new();
        let sims = [(&self.good, "gpt-*"), (&self.faulty, "faulty-*")];
        for (sim, models) in sims {
            let name = sim.provider().name();
            text += &section(name, "openai", &sim.base_url(), "models = { \"*\" = \"gpt-4o\" }");
            if name != "good" {
                text += &route(name, models);
            }
        }
        for name in raw.iter().chain(&["slow"]) {
            text += &section(name, "openai", &self.raw.base_url(name), "");
            text += &route(name, &format!("raw-{name}"));
        }
        format!("{text}[failover]\nchain = [\"good\"]\n")
    }

    /// The ports that they listen on.
    pub(crate) fn ports(&self) -> Vec<u16> {
        let own = [&self.good, &self.faulty].map(|sim| sim.addr().port());
        let more = self.more.iter().map(|sim| sim.addr().port()).collect();
        [own.to_vec(), self.raw.ports(), more].concat()
    }
}

/// `[[providers]]` of one, with [`KEY`] from the environment.
pub(crate) fn section(name: &str, dialect: &str, base_url: &str, lines: &str) -> String {
    format!(
        "[[providers]]\nname = \"{name}\"\ndialect = \"{dialect}\"\nbase_url = \"{base_url}\"\n\
         credentials = [\"env:SIEGE_PROVIDER\"]\n{lines}\n"
    )
}

/// The route of `models` to one provider.
pub(crate) fn route(name: &str, models: &str) -> String {
    format!("[routes.{name}]\nmodels = [\"{models}\"]\nchain = [\"{name}\"]\n")
}

/// A part of what the raw provider does with a request.
#[derive(Clone)]
pub(crate) enum Part {
    Bytes(Vec<u8>),
    /// The same bytes many times.
    Repeat(Vec<u8>, usize),
    /// The same bytes until nobody takes them.
    Endless(Vec<u8>),
    /// Bytes made of their number, until nobody takes them: text that does not repeat itself, which the guard ends.
    Numbered(fn(usize) -> Vec<u8>),
    /// Bytes made of the request: its head and its body.
    Echo(fn(&str, &[u8]) -> Vec<u8>),
    PauseMs(u64),
    /// Nothing more; the connection stays open until the other side ends it.
    Hang,
    Reset,
    /// The connection goes on with the next request; else it is closed after the last part.
    Keep,
}

/// A provider of raw bytes, by the first part of the path. Each name has a port of its own, so that no connection of
/// one is used for another.
#[derive(Clone, Default)]
pub(crate) struct Raw {
    state: Arc<State>,
}

#[derive(Default)]
struct State {
    scripts: Mutex<HashMap<String, Arc<Vec<Part>>>>,
    asked: Mutex<HashMap<String, usize>>,
    open: Mutex<HashMap<String, usize>>,
    addrs: Mutex<HashMap<String, SocketAddr>>,
}

impl std::fmt::Debug for Raw {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Raw").finish_non_exhaustive()
    }
}

impl Raw {
    /// The base URL of what is under `name`.
    pub(crate) fn base_url(&self, name: &str) -> String {
        // A name that nobody serves is refused by the system.
        let addr = self.state.addrs.lock().get(name).copied();
        let addr = addr.unwrap_or_else(|| SocketAddr::from(([127, 0, 0, 1], 9)));
        format!("http://{addr}/{name}/v1")
    }

    /// Requests under `name` are answered so.
    pub(crate) fn serve(&self, name: impl Into<String>, parts: Vec<Part>) {
        let name = name.into();
        self.state.scripts.lock().insert(name.clone(), Arc::new(parts));
        if let Ok((listener, addr)) = listen() {
            self.state.addrs.lock().insert(name, addr);
            tokio::spawn(accept(listener, self.state.clone()));
        }
    }

    /// The ports that it listens on.
    fn ports(&self) -> Vec<u16> {
        self.state.addrs.lock().values().map(SocketAddr::port).collect()
    }

    /// How `name` is answered.
    pub(crate) fn script(&self, name: &str) -> Vec<Part> {
        self.state.scripts.lock().get(name).map_or_else(Vec::new, |parts| parts.to_vec())
    }

    /// How often `name` was asked.
    pub(crate) fn asked(&self, name: &str) -> usize {
        self.state.asked.lock().get(name).copied().unwrap_or(0)
    }

    /// How many of its answers are under way.
    pub(crate) fn open(&self, name: &str) -> usize {
        self.state.open.lock().get(name).copied().unwrap_or(0)
    }
}

/// A port of this machine, and its address.
pub(crate) fn listen() -> std::io::Result<(TcpListener, SocketAddr)> {
    let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
    listener.set_nonblocking(true)?;
    let addr = listener.local_addr()?;
    Ok((TcpListener::from_std(listener)?, addr))
}

async fn accept(listener: TcpListener, state: Arc<State>) {
    while let Ok((stream, _)) = listener.accept().await {
        let state = state.clone();
        // Whatever ends a connection is the check's to see at the other side.
        tokio::spawn(async move { serve(stream, &state).await });
    }
}

async fn serve(mut stream: TcpStream, state: &State) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let mut buffer = Vec::new();
    loop {
        let end = loop {
            if let Some(at) = buffer.windows(4).position(|four| four == b"\r\n\r\n") {
                break at + 4;
            }
            if stream.read_buf(&mut buffer).await? == 0 {
                return Ok(());
            }
        };
        let head: Vec<u8> = buffer.drain(..end).collect();
        let head = String::from_utf8_lossy(&head).into_owned();
        let length = head.lines().find_map(|line| {
            let (name, value) = line.split_once(':')?;
            name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse().ok())?
        });
        let length: usize = length.unwrap_or(0);
        while buffer.len() < length {
            if stream.read_buf(&mut buffer).await? == 0 {
                return Ok(());
            }
        }
        let body: Vec<u8> = buffer.drain(..length).collect();
        let name = head.split('/').nth(1).unwrap_or_default().to_owned();
        *state.asked.lock().entry(name.clone()).or_default() += 1;
        let script = state.scripts.lock().get(&name).cloned().unwrap_or_default();
        *state.open.lock().entry(name.clone()).or_default() += 1;
        let goes_on = play(&mut stream, &script, &head, &body).await;
        *state.open.lock().entry(name).or_default() -= 1;
        if !goes_on? {
            return stream.shutdown().await;
        }
    }
}

/// Plays a script; whether the connection goes on.
async fn play(
    stream: &mut TcpStream,
    script: &[Part],
    head: &str,
    body: &[u8],
) -> std::io::Result<bool> {
    for part in script {
        match part {
            Part::Bytes(bytes) => stream.write_all(bytes).await?,
            Part::Echo(made) => stream.write_all(&made(head, body)).await?,
            Part::Repeat(bytes, times) => repeat(stream, bytes, Some(*times)).await?,
            Part::Endless(bytes) => repeat(stream, bytes, None).await?,
            Part::Numbered(made) => {
                for n in 0.. {
                    stream.write_all(&made(n)).await?;
                }
            }
            Part::PauseMs(ms) => sleep(Duration::from_millis(*ms)).await,
            Part::Hang => {
                let mut rest = [0; 256];
                while stream.read(&mut rest).await? > 0 {}
                return Ok(false);
            }
            Part::Reset => {
                socket2::SockRef::from(&*stream).set_linger(Some(Duration::ZERO))?;
                return Err(std::io::ErrorKind::ConnectionReset.into());
            }
            Part::Keep => return Ok(true),
        }
    }
    Ok(false)
}

/// Writes `bytes` so many times, many at once, or for ever.
async fn repeat(stream: &mut TcpStream, bytes: &[u8], times: Option<usize>) -> std::io::Result<()> {
    let each = (64 * 1024 / bytes.len().max(1)).max(1);
    let many = bytes.repeat(each);
    let mut left = times;
    loop {
        match &mut left {
            Some(0) => return Ok(()),
            Some(n) if *n < each => {
                return stream.write_all(&bytes.repeat(*n)).await;
            }
            Some(n) => *n -= each,
            None => {}
        }
        stream.write_all(&many).await?;
    }
}

/// A whole response with this status, these headers (a line end each) and this body.
pub(crate) fn response(status: &str, headers: &str, body: &str) -> Vec<u8> {
    let length = body.len();
    format!(
        "HTTP/1.1 {status}\r\ncontent-type: application/json\r\n{headers}content-length: {length}\r\n\r\n{body}"
    )
    .into_bytes()
}

/// The body of a whole answer.
pub(crate) fn answer(text: &str) -> String {
    serde_json::json!({
        "id": "c1", "object": "chat.completion", "created": 1, "model": "m",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
    })
    .to_string()
}

/// The head of a stream.
pub(crate) fn stream_head() -> Vec<u8> {
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
        .to_vec()
}

/// A chunk of a body.
pub(crate) fn chunk(bytes: impl AsRef<[u8]>) -> Vec<u8> {
    let bytes = bytes.as_ref();
    [format!("{:x}\r\n", bytes.len()).as_bytes(), bytes, b"\r\n"].concat()
}

/// An event of a stream, as a chunk of its own.
pub(crate) fn event(data: &str) -> Vec<u8> {
    chunk(format!("data: {data}\n\n"))
}

/// An event with this change.
pub(crate) fn delta(delta: &serde_json::Value) -> Vec<u8> {
    event(
        &serde_json::json!({
            "id": "c1", "object": "chat.completion.chunk", "created": 1, "model": "m",
            "choices": [{"index": 0, "delta": delta, "finish_reason": null}],
        })
        .to_string(),
    )
}

/// An event with this text.
pub(crate) fn text_event(text: &str) -> Vec<u8> {
    delta(&serde_json::json!({"content": text}))
}

/// The proper end of a stream.
pub(crate) fn stream_end() -> Vec<u8> {
    let finish = event(
        r#"{"id":"c1","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}"#,
    );
    [finish, event("[DONE]"), b"0\r\n\r\n".to_vec()].concat()
}
