//! The variants under test: what is between the load and the upstream.

use std::{
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    process::Command,
    rc::Rc,
    time::Duration,
};

use crate::{
    Error, Options, peers,
    process::{Cpu, Process, pinned},
    responses, wire,
};

/// The callers' key.
pub(crate) const KEY: &str = "sk-bench-caller-0123456789abcdef";

/// One variant.
pub(crate) struct Variant {
    /// Its name in the report.
    pub(crate) name: &'static str,
    /// Where it listens.
    pub(crate) address: SocketAddr,
    /// Its process; none for the upstream itself.
    pub(crate) process: Option<Process>,
    /// Header lines that it needs.
    headers: String,
    /// It is asked by OpenAI's Responses API.
    by_responses: bool,
}

impl Variant {
    /// One with these header lines, each with its line end.
    pub(crate) fn new(
        name: &'static str,
        address: SocketAddr,
        process: Option<Process>,
        headers: String,
    ) -> Self {
        Self { name, address, process, headers, by_responses: false }
    }

    /// Asked by OpenAI's Responses API, under this name.
    pub(crate) fn by_responses(self, name: &'static str) -> Self {
        Self { name, by_responses: true, ..self }
    }

    /// How many events the whole of `stream` has.
    pub(crate) fn events(&self, stream: &wire::Stream) -> u64 {
        match self.by_responses {
            true => u64::from(stream.events) + responses::AROUND,
            false => stream.all(),
        }
    }

    /// A request for a whole answer.
    pub(crate) fn whole(&self) -> Rc<[u8]> {
        self.request(&self.body(wire::WHOLE, false))
    }

    /// A request for a stream.
    pub(crate) fn stream(&self, stream: wire::Stream) -> Rc<[u8]> {
        self.request(&self.body(&stream.to_string(), true))
    }

    /// A request for a short stream, which takes long enough to overlap with others.
    pub(crate) fn first(&self) -> Rc<[u8]> {
        self.stream(wire::Stream { events: 2, gap: Duration::from_millis(50), burst: 1 })
    }

    /// Runs `what` with this variant. Peers are only running while they are measured.
    pub(crate) async fn awake<R>(
        &self,
        what: impl Future<Output = Result<R, Error>>,
    ) -> Result<R, Error> {
        let process = self.process.as_ref().filter(|_| peers::is_slow(self.name));
        process.map_or(Ok(()), Process::wake)?;
        let done = what.await;
        process.map_or(Ok(()), Process::freeze)?;
        done
    }

    fn body(&self, model: &str, stream: bool) -> String {
        match self.by_responses {
            true => responses::request(model, stream),
            false => wire::request(model, stream),
        }
    }

    fn request(&self, body: &str) -> Rc<[u8]> {
        let path = if self.by_responses { "responses" } else { "chat/completions" };
        let text = format!(
            "POST /v1/{path} HTTP/1.1\r\nhost: {}\r\nauthorization: Bearer {KEY}\r\n\
             content-type: application/json\r\naccept: application/json\r\nuser-agent: bench/1.0\r\n\
             x-stainless-lang: python\r\n{}content-length: {}\r\n\r\n{body}",
            self.address,
            self.headers,
            body.len(),
        );
        text.into_bytes().into()
    }
}

/// The temporary files of this run.
pub(crate) struct RunFiles {
    folder: PathBuf,
}

impl RunFiles {
    /// A new folder among the temporary files.
    pub(crate) fn new() -> Result<Self, Error> {
        let folder = std::env::temp_dir().join(format!("steadfast-bench-{}", std::process::id()));
        fs::create_dir_all(&folder)?;
        Ok(Self { folder })
    }

    /// The file `name` in it.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }
}

impl Drop for RunFiles {
    fn drop(&mut self) {
        // A temporary folder that can not be removed does no harm.
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// The upstream.
pub(crate) fn upstream(files: &RunFiles, cpu: Cpu) -> Result<Variant, Error> {
    let mut command = pinned(cpu, std::env::current_exe()?);
    command.arg("upstream");
    let (process, address) = Process::serving(command, &files.file("upstream.log"))?;
    Ok(Variant::new("direct", address, Some(process), String::new()))
}

/// The minimal proxy, by `command`, which may wrap it.
pub(crate) fn proxy(
    files: &RunFiles,
    upstream: SocketAddr,
    wrap: impl FnOnce(&std::path::Path) -> Command,
) -> Result<Variant, Error> {
    let mut command = wrap(&std::env::current_exe()?);
    command.args(["proxy", &upstream.to_string()]);
    let (process, address) = Process::serving(command, &files.file("proxy.log"))?;
    Ok(Variant::new("minimal proxy", address, Some(process), String::new()))
}

/// The gateway with a usual configuration: one provider, one tenant with a key, everything else at
/// its default, with logs and metrics.
pub(crate) fn gateway(
    files: &RunFiles,
    options: &Options,
    upstream: SocketAddr,
    wrap: impl FnOnce(&std::path::Path) -> Command,
) -> Result<Variant, Error> {
    let kept = (files.file("steadfast.toml"), files.file("steadfast.log"));
    serving(&options.gateway, kept, upstream, "", wrap)
}

/// Where a gateway shares what it knows; nowhere by default.
#[derive(Clone, Debug, Default)]
pub(crate) struct State {
    pub(crate) url: String,
}

/// The same gateway as one of several, with its configuration and its log in these files.
pub(crate) fn node(
    binary: &Path,
    files: (PathBuf, PathBuf),
    upstream: SocketAddr,
    State { url }: &State,
    wrap: impl FnOnce(&Path) -> Command,
) -> Result<Variant, Error> {
    let state = match url.as_str() {
        "" => String::new(),
        url => format!("[state]\nurl = \"{url}\"\n"),
    };
    serving(binary, files, upstream, &state, wrap)
}

/// A gateway before `upstream` with these further sections of its configuration.
fn serving(
    binary: &Path,
    (config, log): (PathBuf, PathBuf),
    upstream: SocketAddr,
    sections: &str,
    wrap: impl FnOnce(&Path) -> Command,
) -> Result<Variant, Error> {
    fs::write(
        &config,
        format!(
            "[server]\nlisten = \"127.0.0.1:0\"\n\n[[tenants]]\nname = \"bench\"\nkeys = \
             [\"env:BENCH_CALLER_KEY\"]\n\n[[providers]]\nname = \"upstream\"\ndialect = \
             \"openai\"\nalso = \"responses\"\nbase_url = \"http://{upstream}/v1\"\ncredentials = \
             [\"env:BENCH_PROVIDER_KEY\"]\n\n{sections}"
        ),
    )?;
    if !binary.exists() {
        return Err(format!(
            "there is no gateway at {}; build it with `cargo build --release -p \
             steadfast-gateway`, or name it with --gateway",
            binary.display()
        )
        .into());
    }
    let mut command = wrap(binary);
    command
        .args(["serve", "--config"])
        .arg(&config)
        .env("BENCH_CALLER_KEY", KEY)
        .env("BENCH_PROVIDER_KEY", "bench-provider-key")
        .env_remove("RUST_LOG");
    let (process, address) = Process::serving(command, &log)?;
    Ok(Variant::new("steadfast", address, Some(process), String::new()))
}

/// The command that runs a program pinned.
pub(crate) fn on(cpu: Cpu) -> impl FnOnce(&std::path::Path) -> Command {
    move |program| pinned(cpu, program)
}
