//! A terminal agent on the whole stack: tools in a folder, a conversation that survives a kill, helpers, announcements.
//!
//! ```text
//! Actors              a mailbox; whatever happens to a prompt, its user gets an answer or a fixed text
//! SessionLayer        the history; each turn is on the disk when it has ended
//! the loop            a model's answer, its tools, the next answer; one transition a turn in the log
//!   tools             guard, policy, breaker, errors, timeout .. files and commands of the folder
//!   helpers           under a watchdog, in a registry; results are announced, or are dead letters
//! Stack               deadline, guard, resume, failover, compaction, retry, breaker .. client
//! ```
//!
//! * `cargo run -p example-agent` runs the [`scenario`]: a novel is written while its providers, its chat room and its own process
//!   fail. It ends with an error if anything else happens than it prints.
//! * `cargo run -p example-agent -- --chat` is for you: with `ANTHROPIC_API_KEY`, `OPENAI_API_KEY` or `GEMINI_API_KEY` a real model
//!   works in the current folder; without any a simulated one. Ctrl-C drops what it works on; what you type meanwhile is heard before
//!   its next turn; an empty line ends it when it is done.
//! * `cargo run -p example-agent -- --script FILE` runs the prompts in a file, one a line. Killed at any moment and run again, it goes
//!   on where it was.
//! * `cargo run -p example-agent -- "a prompt"` runs one.

mod agent;
mod announce;
mod budget;
mod helpers;
#[cfg(test)]
mod loop_tests;
mod models;
mod scenario;
mod screen;
mod tools;
mod transition;
mod turns;
mod writer;

use std::{
    error::Error,
    fs::{self, File},
    io::{BufRead as _, BufReader, stdin},
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

use clap::Parser;
use http::Uri;
use steadfast::tool::{CommandPolicy, CommandRunner};
use tokio::sync::mpsc;
use tracing_subscriber::{EnvFilter, fmt as log_to};

use crate::{
    agent::{Agent, Outcome, STATE, Settings},
    models::Simulated,
    screen::Screen,
    turns::Limits,
};

type BoxError = Box<dyn Error + Send + Sync>;

/// A terminal agent whose work survives its providers, its tools and its own end.
#[derive(Debug, Parser)]
struct Options {
    /// A prompt to run. Without it, and without --chat and --script, the scenario is run
    prompt: Option<String>,
    /// Talk with it
    #[arg(long, conflicts_with_all = ["prompt", "script"])]
    chat: bool,
    /// Run the prompts of this file, one a line; run again after a kill, go on
    #[arg(long, conflicts_with = "prompt")]
    script: Option<PathBuf>,
    /// Where it works; what it remembers is in .agent there
    #[arg(long, default_value = ".")]
    folder: PathBuf,
    /// The conversation
    #[arg(long, default_value = "main")]
    thread: String,
    /// The output tokens that a prompt is worth: a model that is done before 90 % of them is asked to go on
    #[arg(long, value_name = "TOKENS")]
    token_budget: Option<u64>,
    /// The most turns of a prompt
    #[arg(long, value_name = "TURNS", default_value_t = 100)]
    most_turns: u32,
    /// A command that has to succeed before the agent may be done
    #[arg(long, value_name = "COMMAND")]
    check: Option<String>,
    /// Post announcements to this URL instead of making them in the conversation
    #[arg(long, value_name = "URL")]
    announce: Option<Uri>,
}

/// How long what runs has to end when the program ends.
const END: Duration = Duration::from_secs(10);

/// How often a prompt of a script is sent that fails, and how long after the failure.
const SENDS: usize = 10;
const PAUSE: Duration = Duration::from_secs(2);

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    let options = Options::parse();
    if options.prompt.is_none() && options.script.is_none() && !options.chat {
        return scenario::run().await;
    }
    fs::create_dir_all(&options.folder)?;
    log_into(&options.folder.join(STATE))?;
    let screen = Screen::new();
    let simulated;
    let models = match models::real(&screen)? {
        Some(models) => models,
        None => {
            screen.aside("no key in the environment: the model is simulated");
            simulated = Simulated::start().await?;
            simulated.stack(&screen)?
        }
    };
    let agent = Agent::start(settings(&options)?, models, screen.clone()).await?;
    let ended = match (&options.prompt, &options.script) {
        (Some(prompt), _) => one(&agent, &screen, prompt, None).await,
        (None, Some(script)) => run_script(&agent, &screen, script).await,
        (None, None) => chat(&agent, &screen, typed()).await,
    };
    if agent.in_the_background() > 0 {
        screen.aside("waiting for helpers; Ctrl-C leaves them");
        tokio::select! {
            () = agent.helpers_done() => {}
            _ = tokio::signal::ctrl_c() => {}
        }
    }
    let letters = agent.stop(END).await;
    if letters > 0 {
        screen.aside(format_args!(
            "{letters} announcements wait, and are delivered with the next start"
        ));
    }
    ended
}

/// What happens goes to a file, so that the terminal is the conversation's. `RUST_LOG` selects.
fn log_into(folder: &Path) -> Result<(), BoxError> {
    fs::create_dir_all(folder)?;
    let file = File::options().create(true).append(true).open(folder.join("agent.log"))?;
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    log_to().with_env_filter(filter).with_ansi(false).with_writer(file).init();
    Ok(())
}

fn settings(options: &Options) -> Result<Settings, BoxError> {
    let folder = options.folder.canonicalize()?;
    let commands = CommandPolicy { dir: Some(folder.clone()), ..CommandPolicy::default() };
    let runner = CommandRunner::new(commands)?;
    Ok(Settings {
        folder,
        thread: options.thread.clone(),
        limits: Limits {
            most_turns: options.most_turns,
            token_budget: options.token_budget,
            check: options.check.clone().map(|command| (runner, command)),
        },
        room: options.announce.clone(),
    })
}

/// One prompt, and Ctrl-C.
async fn one(
    agent: &Agent,
    screen: &Screen,
    text: &str,
    key: Option<String>,
) -> Result<(), BoxError> {
    match ask(agent, screen, text, key).await? {
        Outcome::Reply(_) => Ok(()),
        Outcome::Failed(text) => Err(text.into()),
        Outcome::Aborted => Err("aborted".into()),
    }
}

async fn ask(
    agent: &Agent,
    screen: &Screen,
    text: &str,
    key: Option<String>,
) -> Result<Outcome, BoxError> {
    let asked = agent.ask(text, key);
    let mut asked = std::pin::pin!(asked);
    let outcome = loop {
        tokio::select! {
            outcome = &mut asked => break outcome?,
            _ = tokio::signal::ctrl_c() => { agent.abort(); }
        }
    };
    match &outcome {
        Outcome::Reply(reply) => {
            // The text was shown as it came, unless it came earlier.
            let seen = if reply.replayed { reply.text() } else { String::new() };
            screen.line(seen);
            if !reply.saved {
                screen.aside("! not on the disk yet; it is saved with the next turn");
            }
        }
        Outcome::Failed(text) => screen.line(text),
        Outcome::Aborted => screen.line("aborted"),
    }
    Ok(outcome)
}

/// The key of a prompt is its line, so a prompt that has been answered is not run again, and one that was interrupted goes on.
async fn run_script(agent: &Agent, screen: &Screen, script: &Path) -> Result<(), BoxError> {
    let text = fs::read_to_string(script)?;
    let name = script.file_name().unwrap_or_default().to_string_lossy();
    for (number, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let (key, mut sends) = (format!("{name}:{}", number + 1), 0);
        screen.line(format_args!("> {line}"));
        loop {
            sends += 1;
            match ask(agent, screen, line, Some(key.clone())).await? {
                Outcome::Reply(_) => break,
                Outcome::Failed(_) if sends < SENDS => tokio::time::sleep(PAUSE).await,
                Outcome::Failed(text) => return Err(format!("{key}: {text}").into()),
                Outcome::Aborted => return Err(format!("{key}: aborted").into()),
            }
        }
    }
    Ok(())
}

/// Lines of the terminal are prompts; those that come while it works are heard before its next turn.
async fn chat(
    agent: &Agent,
    screen: &Screen,
    mut lines: mpsc::Receiver<String>,
) -> Result<(), BoxError> {
    screen
        .line("Say something. Ctrl-C drops what it works on, an empty line ends when it is done.");
    loop {
        let line = tokio::select! {
            line = lines.recv() => line,
            _ = tokio::signal::ctrl_c() => None,
        };
        let Some(line) = line.filter(|line| !line.trim().is_empty()) else { return Ok(()) };
        let asked = ask(agent, screen, &line, None);
        let mut asked = std::pin::pin!(asked);
        loop {
            tokio::select! {
                outcome = &mut asked => {
                    outcome?;
                    break;
                }
                Some(line) = lines.recv() => if !line.trim().is_empty() { agent.steer(&line) },
            }
        }
    }
}

/// What is typed, line by line. On a thread of its own, which nobody has to wait for.
fn typed() -> mpsc::Receiver<String> {
    let (sender, lines) = mpsc::channel(16);
    thread::spawn(move || {
        for line in BufReader::new(stdin()).lines() {
            let Ok(line) = line else { return };
            if sender.blocking_send(line).is_err() {
                return;
            }
        }
    });
    lines
}
