//! The command line.

use std::{
    fmt::Display,
    io::{self, Write},
    net::SocketAddr,
    num::NonZeroUsize,
    path::PathBuf,
    process::ExitCode,
};

use clap::{Args, CommandFactory, Parser, Subcommand};
use clap_complete::Shell;
use steadfast_core::Dialect;

use crate::{config::ConfigErrors, simulate::Assertion};

mod check;
mod classify;
mod compact;
mod control;
mod demo;
mod folder;
mod input;
mod letters;
mod operator;
mod print;
mod replay;
mod serve;
mod sessions;
mod sim;
mod simulate;
mod status;
mod why;

/// Why a command ends before it is done: the exit code and a sentence for standard error.
#[derive(Debug)]
struct Exit(u8, String);

impl Exit {
    /// It could not do what it is for.
    fn failed(message: impl Display) -> Self {
        Self(1, message.to_string())
    }

    /// It was called wrongly, or its configuration is wrong.
    fn usage(message: impl Display) -> Self {
        Self(2, message.to_string())
    }
}

impl From<ConfigErrors> for Exit {
    fn from(errors: ConfigErrors) -> Self {
        Self::usage(errors)
    }
}

impl From<io::Error> for Exit {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            // Whoever reads has seen enough.
            io::ErrorKind::BrokenPipe => Self(0, String::new()),
            _ => Self::failed(error),
        }
    }
}

/// Keep LLM calls running when providers, networks and models do not.
#[derive(Debug, Parser)]
#[command(
    name = "steadfast",
    version,
    about,
    after_help = "\
Examples:
  steadfast                               the demo: no keys, no configuration
  steadfast demo --once                   the demo's fixed scenario, with a table at the end
  steadfast serve                         providers from ANTHROPIC_API_KEY, OPENAI_API_KEY, GEMINI_API_KEY
  steadfast serve --config steadfast.toml
  steadfast check --config steadfast.toml
  steadfast classify errors.jsonl
  steadfast compact request.json --dialect anthropic --model claude-sonnet-4-5 > smaller.json
  steadfast replay session.json --dialect anthropic
  steadfast sim --listen 127.0.0.1:9000 --plan faults.toml
  steadfast simulate --world outage       a day of it before a provider that is down, in a minute
  steadfast status --watch                how the gateway on this machine is
  steadfast why                           the last requests of the gateway on this machine
  steadfast why 01JD2X8Q                  what became of this one
  steadfast sessions verify --dir /var/lib/agent/sessions
  steadfast dead-letters list --dir /var/lib/agent/delivery

Exit codes: 0 done, 1 failed, 2 wrong usage or configuration."
)]
pub struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Three simulated providers that misbehave, the gateway in front of them, and a load.
    Demo(DemoArgs),
    /// The gateway.
    Serve(ServeArgs),
    /// Validate a configuration and print the stack it makes, with every number.
    Check(CheckArgs),
    /// Say what provider errors mean: JSON lines in, JSON lines out.
    Classify(ClassifyArgs),
    /// Make a conversation fit its model's window: a request body in, a request body out.
    Compact(CompactArgs),
    /// Say what the safety guard makes of a recorded conversation: a line a tool call.
    Replay(ReplayArgs),
    /// Simulated providers as a server.
    Sim(SimArgs),
    /// A configuration before simulated providers that go wrong, in virtual time: what callers would notice.
    Simulate(SimulateArgs),
    /// How a running gateway is: who is well, who rests and until when, and the last requests.
    Status(StatusArgs),
    /// What became of a request at a running gateway: each attempt, what was waited for, what was done next.
    Why(WhyArgs),
    /// The conversations that `steadfast-session` keeps in a folder: read without a lock.
    Sessions(SessionsArgs),
    /// The messages that `steadfast-deliver` could not deliver, in its folder.
    DeadLetters(DeadLettersArgs),
    /// Completions for a shell, on standard output.
    Completions(CompletionsArgs),
}

/// `steadfast completions`
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  steadfast completions bash > /etc/bash_completion.d/steadfast
  steadfast completions zsh > ~/.zfunc/_steadfast
  steadfast completions fish > ~/.config/fish/completions/steadfast.fish")]
pub(crate) struct CompletionsArgs {
    /// The shell.
    pub(crate) shell: Shell,
}

/// `steadfast demo`
#[derive(Debug, Default, Args)]
#[command(after_help = "\
Examples:
  steadfast demo                                   until Ctrl-C, faults by chance
  steadfast demo --once                            the fixed scenario, then a table
  steadfast demo --once --requests 1000 --seed 7
  steadfast demo --once --json | jq .failures")]
pub(crate) struct DemoArgs {
    /// Run the fixed scenario once, print what each layer did, and exit 0 only if every request
    /// was answered.
    #[arg(long)]
    pub(crate) once: bool,
    /// Requests of the fixed scenario.
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(crate) requests: u32,
    /// Seed of the simulated providers and of the load.
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    /// Print the outcome as JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

/// `steadfast serve`
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  OPENAI_API_KEY=... ANTHROPIC_API_KEY=... steadfast serve
  steadfast serve --config steadfast.toml --listen 127.0.0.1:9090
  RUST_LOG=steadfast=debug steadfast serve --config steadfast.toml

SIGTERM and Ctrl-C let answers in progress end first.")]
pub(crate) struct ServeArgs {
    /// The configuration file. Without it, providers are found from the environment.
    #[arg(long, short, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// The address to listen on, instead of the configured one.
    #[arg(long, value_name = "ADDR")]
    pub(crate) listen: Option<SocketAddr>,
}

/// `steadfast check`
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  steadfast check --config steadfast.toml
  steadfast check --config steadfast.toml --json | jq .worst_attempts
  steadfast check --config steadfast.toml --fetch
  steadfast check --schema > steadfast.schema.json

What is wrong is written to standard error as file:line:column: key: what, a line each.")]
pub(crate) struct CheckArgs {
    /// The configuration file.
    #[arg(long, short, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Print the resolved stack as JSON.
    #[arg(long)]
    pub(crate) json: bool,
    /// Fetch each credential of a cloud, such as `aws:default`, once: 20 s at most. No provider is asked for anything.
    #[arg(long)]
    pub(crate) fetch: bool,
    /// Print the JSON schema of the file, for editors, and nothing else.
    #[arg(long, conflicts_with_all = ["config", "json", "fetch"])]
    pub(crate) schema: bool,
}

/// `steadfast classify`
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  steadfast classify errors.jsonl
  echo '{\"provider\":\"openai\",\"status\":429,\"body\":{\"error\":{\"code\":\"insufficient_quota\"}}}' | steadfast classify

A line that can not be read gives a line with an `error`, and exit code 1 at the end.")]
pub(crate) struct ClassifyArgs {
    /// JSON lines `{"provider","status","headers","body","transport"}`; standard input when left
    /// out.
    pub(crate) file: Option<PathBuf>,
}

/// `steadfast compact`
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  steadfast compact request.json --dialect anthropic --model claude-sonnet-4-5 > smaller.json
  steadfast compact request.json --dialect openai --model house-model --window 32000
  steadfast compact --dialect gemini --model gemini-2.5-flash --target 20000 < request.json

Asks no model: older results and arguments become markers, then older messages a list of facts. What was
done is written to standard error. A body that fits is passed on byte for byte.")]
pub(crate) struct CompactArgs {
    /// The request body; standard input when left out.
    pub(crate) file: Option<PathBuf>,
    /// What it is written in: openai, anthropic or gemini.
    #[arg(long, value_name = "DIALECT")]
    pub(crate) dialect: Dialect,
    /// The model it is for; the body's own when left out.
    #[arg(long, value_name = "MODEL")]
    pub(crate) model: Option<String>,
    /// The model's window in tokens, where it is not known or is to be another.
    #[arg(long, value_name = "TOKENS")]
    pub(crate) window: Option<u64>,
    /// Input tokens to come down to, however large the window is.
    #[arg(long, value_name = "TOKENS")]
    pub(crate) target: Option<u64>,
}

/// `steadfast replay`
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  steadfast replay session.json --dialect anthropic
  steadfast replay session.json --dialect openai --loops-only | jq 'select(.verdict != \"ok\")'
  steadfast replay session.json --dialect gemini --config steadfast.toml

A line a call: {\"n\":3,\"tool\":\"ls\",\"verdict\":\"advise\",\"rule\":\"same_result\"}; verdicts are ok, advise
and stop. The recording is judged as a named task, with the limits of [guard.named]. Time is not counted:
a recording has none.")]
pub(crate) struct ReplayArgs {
    /// A request body with the conversation in it; standard input when left out.
    pub(crate) file: Option<PathBuf>,
    /// What it is written in: openai, anthropic or gemini.
    #[arg(long, value_name = "DIALECT")]
    pub(crate) dialect: Dialect,
    /// Judge going in circles alone: nothing is counted, as by default for whoever names no task.
    #[arg(long)]
    pub(crate) loops_only: bool,
    /// A configuration file, for its [guard].
    #[arg(long, short, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
}

/// `steadfast sim`
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  steadfast sim
  steadfast sim --listen 127.0.0.1:0 --seed 7
  steadfast sim --plan faults.toml                 [[rules]] fault = { error = \"overloaded\" }, every = 5
  steadfast sim --task task.toml                   [[steps]] call = { run = { command = \"ls\" } }
  steadfast sim --control 127.0.0.1:9009           then, from a test:
    curl 127.0.0.1:9009/openai/journal
    curl -X PUT 127.0.0.1:9009/openai/script -d '[{\"blocks\": [{\"text\": \"Hello!\"}]}]'
    curl -X PUT 127.0.0.1:9009/openai/faults -d '{\"rules\": [{\"nth\": 1, \"fault\": \"reset\"}]}'
    curl -X PUT 127.0.0.1:9009/openai/task -d '{\"root\": \"/w\", \"contains\": \"Do it\", \"steps\": [{\"text\": \"Done.\"}]}'
    curl -X PUT 127.0.0.1:9009/openai/summaries -d '{\"contains\": \"You keep the record\", \"answers\": [\"empty\", \"good\"]}'")]
pub(crate) struct SimArgs {
    /// The address to listen on. Each dialect gets the next port.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:9000")]
    pub(crate) listen: SocketAddr,
    /// The plan of faults, TOML or JSON.
    #[arg(long, value_name = "FILE")]
    pub(crate) plan: Option<PathBuf>,
    /// A task, TOML or JSON: what the model does, step by step, with the tools that a client declares.
    #[arg(long, value_name = "FILE")]
    pub(crate) task: Option<PathBuf>,
    /// Seed of what the providers say.
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    /// Where tests read what the providers saw, and set what they answer and what breaks.
    /// For a loopback address: who reaches it reads every request.
    #[arg(long, value_name = "ADDR")]
    pub(crate) control: Option<SocketAddr>,
}

/// `steadfast simulate`
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  steadfast simulate --world outage
  steadfast simulate --config steadfast.toml --world monday --html monday.html
  steadfast simulate --config steadfast.toml --world throttle --hours 1 \\
      --assert 'answered >= 99.9%' --assert 'p99_added <= 2s'
  steadfast simulate --world brownout --hours 2 --vary retry.retries=0..5
  steadfast simulate --replay access.log --world slow.toml

Worlds: outage, brownout, throttle, slow, monday, or a file. Without a configuration it is that of `serve` with the keys
of Anthropic, OpenAI and Google. No key is read and nobody is asked. The same seed gives the same output.

Figures for --assert: answered, lost, recovered (in %), p50_first, p95_first, p99_first, max_first (until the first
content), p50_added, p95_added, p99_added, max_added (of that what was waited for and tried before), attempts (a call),
cost (in $), cache_lost (tokens). Exit code 1 when one does not hold.")]
pub(crate) struct SimulateArgs {
    /// The configuration file.
    #[arg(long, short, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// What happens: outage, brownout, throttle, slow, monday, or a file.
    #[arg(long, short, value_name = "WORLD", default_value = "outage")]
    pub(crate) world: String,
    /// How long calls come.
    #[arg(long, default_value_t = 24.0, value_name = "HOURS")]
    pub(crate) hours: f64,
    /// Calls a second, in the mean.
    #[arg(long, default_value_t = 50.0, value_name = "CALLS")]
    pub(crate) rate: f64,
    /// Seed of everything that is chance.
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    /// Calls as they came: a log of the gateway's in JSON, or a CSV with the columns `at`, `model`, `input_tokens`,
    /// `output_tokens`, `stream`. In place of --hours and --rate.
    #[arg(long, value_name = "FILE")]
    pub(crate) replay: Option<PathBuf>,
    /// What has to hold, such as 'answered >= 99.9%'.
    #[arg(long = "assert", value_name = "FIGURE BOUND")]
    pub(crate) asserts: Vec<Assertion>,
    /// Runs it with each value of a key of the configuration: `KEY=A,B,C` or `KEY=FROM..TO`.
    #[arg(long, value_name = "KEY=VALUES", conflicts_with_all = ["asserts", "html", "svg"])]
    pub(crate) vary: Option<String>,
    /// Writes a page with pictures, which needs nothing else.
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,
    /// Writes the pictures.
    #[arg(long, value_name = "FILE")]
    pub(crate) svg: Option<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

/// A running gateway.
#[derive(Debug, Args)]
pub(crate) struct GatewayArgs {
    /// Where it is, `http://127.0.0.1:8080` unless a configuration is given.
    #[arg(long, value_name = "URL")]
    pub(crate) url: Option<String>,
    /// Its configuration file, for its address and its admin key. STEADFAST_ADMIN_KEY comes before that.
    #[arg(long, short, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
}

/// `steadfast status`
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  steadfast status
  steadfast status --watch --config steadfast.toml
  steadfast status --json | jq '.status.targets[] | select(.cooling)'
  STEADFAST_ADMIN_KEY=... steadfast status --url https://llm.example.com")]
pub(crate) struct StatusArgs {
    /// Show it again and again, until Ctrl-C.
    #[arg(long, short, conflicts_with = "json")]
    pub(crate) watch: bool,
    /// How often, in seconds.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=3_600))]
    pub(crate) every: u32,
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) gateway: GatewayArgs,
}

/// `steadfast why`
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  steadfast why                                    the last 20 requests, those under way first
  steadfast why 0199f2c41b                         what became of this one
  steadfast why 0199f2c41b --json | jq .attempts
  STEADFAST_ADMIN_KEY=... steadfast why --url https://llm.example.com

The id is in `x-steadfast-request-id` of every answer, and in the log. No prompts, no answers.")]
pub(crate) struct WhyArgs {
    /// The request's id. Without one the last requests are listed.
    pub(crate) id: Option<String>,
    /// How many are listed.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub(crate) limit: u32,
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) gateway: GatewayArgs,
}

/// A folder of files, and how what is in it is printed.
#[derive(Debug, Args)]
pub(crate) struct FolderArgs {
    /// The folder.
    #[arg(long, value_name = "FOLDER")]
    pub(crate) dir: PathBuf,
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

/// `steadfast sessions`
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  steadfast sessions list --dir /var/lib/agent/sessions
  steadfast sessions show slack/C42 --dir /var/lib/agent/sessions
  steadfast sessions verify --dir /var/lib/agent/sessions --json | jq '.[] | select(.ok | not)'

Nothing is locked or changed: it may run beside the process that writes.")]
pub(crate) struct SessionsArgs {
    #[command(subcommand)]
    pub(crate) command: SessionsCommand,
}

/// What is done with conversations.
#[derive(Debug, Subcommand)]
pub(crate) enum SessionsCommand {
    /// Every thread: its live session, its turns, its messages, and when it was last added to.
    List(FolderArgs),
    /// Every turn of a thread. With `--json` also the history that its model is given.
    Show {
        /// The id of the thread, or how the id of only one begins.
        thread: String,
        #[command(flatten)]
        folder: FolderArgs,
    },
    /// Whether every file can be read, no turn is missing, and context and log agree: a line a thread.
    /// Exits 1 when something is damaged.
    Verify(FolderArgs),
}

/// `steadfast dead-letters`
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  steadfast dead-letters list --dir /var/lib/agent/delivery
  steadfast dead-letters show task-7/done --dir /var/lib/agent/delivery
  steadfast dead-letters drain --key task-7/done --dir /var/lib/agent/delivery
  steadfast dead-letters drain --url https://hooks.example/in --dir /var/lib/agent/delivery
  steadfast dead-letters drop task-7/done --dir /var/lib/agent/delivery
  steadfast dead-letters export --dir /var/lib/agent/delivery | jq 'select(.end == \"unclear\")'

`list`, `show` and `export` lock nothing. `drain` and `drop` need the folder for themselves: not while a service
delivers from it.")]
pub(crate) struct DeadLettersArgs {
    #[command(subcommand)]
    pub(crate) command: DeadLettersCommand,
}

/// What is done with dead letters.
#[derive(Debug, Subcommand)]
pub(crate) enum DeadLettersCommand {
    /// Those that wait and the last that have ended, without their texts.
    List(FolderArgs),
    /// One letter, with its text.
    Show {
        /// Its key.
        key: String,
        #[command(flatten)]
        folder: FolderArgs,
    },
    /// Make letters due now, with all their retries and their full time. Without --url, the service that
    /// delivers from the folder sends them when it starts.
    #[command(after_help = "\
With --url each letter is sent as POST, with the content type application/json, its key as the header
Idempotency-Key, and the body
  {\"key\",\"session\",\"destination\",\"kind\",\"tenant\",\"text\",\"created_ms\"}
2xx: it is delivered, and no service sends it again. 400, 413, 422: it is refused, and ends. Another
status, or no connection: it waits, and so do the others of its destination. The connection breaks, or
nothing comes within 30 s: it may have been sent, and ends as `unclear`; the others of its destination
wait.")]
    Drain(DrainArgs),
    /// Drop letters that wait: each ends in the record `discarded`.
    Drop {
        /// Their keys.
        #[arg(required = true, value_name = "KEY")]
        keys: Vec<String>,
        #[command(flatten)]
        folder: FolderArgs,
    },
    /// All letters with their texts, those that wait first: JSON, one a line.
    Export {
        /// The folder.
        #[arg(long, value_name = "FOLDER")]
        dir: PathBuf,
    },
}

/// `steadfast dead-letters drain`
#[derive(Debug, Args)]
pub(crate) struct DrainArgs {
    /// The letter of this key alone, also when it has ended without being delivered.
    #[arg(long, value_name = "KEY", conflicts_with = "destination")]
    pub(crate) key: Option<String>,
    /// The letters to this destination alone.
    #[arg(long, value_name = "NAME")]
    pub(crate) destination: Option<String>,
    /// Send all that wait to this address now.
    #[arg(long, value_name = "URL", conflicts_with_all = ["key", "destination"])]
    pub(crate) url: Option<String>,
    #[command(flatten)]
    pub(crate) folder: FolderArgs,
}

/// Runs what the command line says.
pub fn run() -> ExitCode {
    let cli = Cli::parse();
    let done = match cli.command.unwrap_or_else(|| {
        Command::Demo(DemoArgs { requests: 200, seed: 1, ..DemoArgs::default() })
    }) {
        Command::Demo(args) => demo::run(&args),
        Command::Serve(args) => serve::run(&args),
        Command::Check(args) => check::run(&args),
        Command::Classify(args) => classify::run(&args),
        Command::Compact(args) => compact::run(&args),
        Command::Replay(args) => replay::run(&args),
        Command::Sim(args) => sim::run(&args),
        Command::Simulate(args) => simulate::run(&args),
        Command::Status(args) => status::run(&args),
        Command::Why(args) => why::run(&args),
        Command::Sessions(args) => sessions::run(&args.command),
        Command::DeadLetters(args) => letters::run(&args.command),
        Command::Completions(args) => {
            let mut script = Vec::new();
            clap_complete::generate(args.shell, &mut Cli::command(), "steadfast", &mut script);
            io::stdout().lock().write_all(&script).map_err(Exit::from)
        }
    };
    let Err(Exit(code, message)) = done else { return ExitCode::SUCCESS };
    if !message.is_empty() {
        print::report(format_args!("steadfast: {message}"));
    }
    ExitCode::from(code)
}

/// The runtime of a command. On one core there is nobody to share the work with: tokio's other
/// scheduler takes the tasks in their order, and what several of them write leaves together.
#[expect(clippy::expect_used, reason = "the message says why it can not happen")]
pub(crate) fn runtime() -> tokio::runtime::Runtime {
    let cores = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
    let mut builder = if cores == 1 {
        tokio::runtime::Builder::new_current_thread()
    } else {
        tokio::runtime::Builder::new_multi_thread()
    };
    builder
        .enable_all()
        .build()
        .expect("a runtime needs only threads and file descriptors, without which nothing works")
}

/// Ready when the process is asked to stop: Ctrl-C, or a polite kill.
pub(crate) async fn stop_signal() {
    #[cfg(unix)]
    {
        use tokio::signal::unix::{SignalKind, signal};
        if let Ok(mut terminate) = signal(SignalKind::terminate()) {
            tokio::select! {
                _ = tokio::signal::ctrl_c() => {}
                _ = terminate.recv() => {}
            }
            return;
        }
    }
    let _ = tokio::signal::ctrl_c().await;
}
