//! `cargo xtask agents`: real coding agents, unmodified, with the gateway's address and nothing else changed.
//!
//! Each does a small task with its own tools in a scratch repository, in front of the simulated providers:
//! without the gateway, through it, and with another dialect behind it, Codex with each and over a WebSocket too;
//! healthy, under six faults, and for a hundred calls. `tests/agents` has the versions, a script for each agent, and
//! the gateway's configuration.

mod install;
mod judge;
mod report;
mod run;
mod setting;
mod socket;
mod tap;
mod task;

use std::{
    env, fs,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
        mpsc,
    },
    thread,
};

use judge::Healthy;
use report::Outcome;
use run::Harness;
use setting::Setting;
use task::Column;

use crate::{program, workspace};

/// A dialect that is not the agent's, which the gateway translates for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Other {
    dialect: &'static str,
    /// What that vendor has for the models that the agent asks for.
    models: &'static str,
}

/// An agent, in the order of the table's rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Agent {
    /// Its name in `tests/agents/pins.txt`; its script there is `NAME.sh`.
    name: &'static str,
    title: &'static str,
    /// What it speaks.
    dialect: &'static str,
    /// What it is translated to: a row of the table each.
    others: &'static [Other],
    /// Whether it edits by tools; otherwise by blocks in the model's text, and it makes no calls.
    tools: bool,
    /// Whether its script has settings as comments: for a WebSocket, compaction and a list of models.
    settings: bool,
}

const AGENTS: [Agent; 7] = [
    Agent {
        name: "claude",
        title: "Claude Code",
        dialect: "anthropic",
        others: &[Other {
            dialect: "openai",
            models: r#"{ "claude-opus-5-5" = "gpt-5.4", "claude-haiku-4-5-20251001" = "gpt-5-mini" }"#,
        }],
        tools: true,
        settings: false,
    },
    Agent {
        name: "codex",
        title: "Codex",
        dialect: "responses",
        others: &[
            Other { dialect: "anthropic", models: r#"{ "gpt-5.4" = "claude-sonnet-4-6" }"# },
            Other { dialect: "openai", models: r#"{ "gpt-5.4" = "gpt-5.4" }"# },
            Other { dialect: "gemini", models: r#"{ "gpt-5.4" = "gemini-3.1-pro-preview" }"# },
        ],
        tools: true,
        settings: true,
    },
    Agent {
        name: "gemini",
        title: "Gemini CLI",
        dialect: "gemini",
        others: &[Other {
            dialect: "anthropic",
            models: r#"{ "gemini-3.8-flash" = "claude-sonnet-4-6", "gemini-3.5-flash-lite" = "claude-haiku-4-5", "gemini-3-flash-preview" = "claude-haiku-4-5" }"#,
        }],
        tools: true,
        settings: false,
    },
    Agent {
        name: "opencode",
        title: "opencode",
        dialect: "anthropic",
        others: &[Other {
            dialect: "gemini",
            models: r#"{ "claude-sonnet-4-6" = "gemini-3.1-pro-preview", "claude-haiku-4-5-20251001" = "gemini-2.5-flash" }"#,
        }],
        tools: true,
        settings: false,
    },
    Agent {
        name: "pi",
        title: "pi",
        dialect: "anthropic",
        others: &[Other { dialect: "openai", models: r#"{ "claude-sonnet-4-6" = "gpt-5.4" }"# }],
        tools: true,
        settings: false,
    },
    Agent {
        name: "qwen",
        title: "Qwen Code",
        dialect: "openai",
        others: &[Other { dialect: "anthropic", models: r#"{ "gpt-4.1" = "claude-sonnet-4-6" }"# }],
        tools: true,
        settings: false,
    },
    Agent {
        name: "aider",
        title: "aider",
        dialect: "openai",
        others: &[Other {
            dialect: "gemini",
            models: r#"{ "gpt-4.1" = "gemini-3.1-pro-preview", "gpt-4.1-mini" = "gemini-2.5-flash" }"#,
        }],
        tools: false,
        settings: false,
    },
];

/// What stands between the agent and the provider.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// Nothing.
    Direct,
    /// The gateway, with a provider of the agent's own dialect.
    Gateway,
    /// The gateway, with a provider of another dialect.
    Translated(Other),
}

/// One run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Cell {
    agent: Agent,
    column: Column,
    way: Way,
    /// Over a WebSocket.
    socket: bool,
}

impl Cell {
    fn name(&self) -> String {
        let way = match self.way {
            Way::Direct => "direct",
            Way::Gateway => "gateway",
            Way::Translated(other) => other.dialect,
        };
        let socket = if self.socket { " websocket" } else { "" };
        format!("{}{socket} {} {way}", self.agent.name, self.column.name)
    }

    /// What the provider speaks.
    fn upstream(&self) -> &'static str {
        match self.way {
            Way::Translated(other) => other.dialect,
            _ => self.agent.dialect,
        }
    }

    /// The run that this one is compared with.
    fn base(&self) -> Self {
        let column = if self.column.is_healthy() { self.column } else { task::TASK };
        Self { column, ..self.direct() }
    }

    /// What of its agent's script is set.
    fn settings(&self) -> impl Iterator<Item = Setting> {
        self.socket.then_some(Setting::Socket).into_iter().chain(self.column.setting)
    }

    /// The same without the gateway. That is never over a WebSocket, which the simulated providers do not have.
    fn direct(&self) -> Self {
        Self { way: Way::Direct, socket: false, ..*self }
    }

    /// The runs of an agent: each column each way, and over a WebSocket through the gateway in its own dialect and
    /// translated to the first other.
    fn all(agent: Agent) -> impl Iterator<Item = Self> {
        let columns = task::COLUMNS.into_iter().filter(move |column| {
            (agent.tools || !column.calls) && (agent.settings || column.setting.is_none())
        });
        columns.flat_map(move |column| {
            let translated = agent.others.iter().map(|other| Way::Translated(*other));
            let ways = [Way::Direct, Way::Gateway].into_iter().chain(translated);
            let over_socket = ways.clone().skip(1).take(if agent.settings { 2 } else { 0 });
            let ways = ways.map(|way| (way, false)).chain(over_socket.map(|way| (way, true)));
            ways.map(move |(way, socket)| Self { agent, column, way, socket })
        })
    }

    /// What CI has time for.
    fn is_quick(&self) -> bool {
        ["claude", "qwen"].contains(&self.agent.name)
            && match self.way {
                Way::Translated(_) => self.column == task::TASK,
                _ => ["task", "cut in text"].contains(&self.column.name),
            }
    }
}

/// Runs what `words` name: with `--all` everything, without words what CI has time for.
pub(crate) fn run(words: &[String]) -> Result<(), String> {
    if env::var_os("STEADFAST_SKIP_AGENTS").is_some_and(|value| value == "1") {
        println!("== agents: skipped, STEADFAST_SKIP_AGENTS is 1");
        return Ok(());
    }
    let all = words.iter().any(|word| word == "--all");
    let words: Vec<&String> = words.iter().filter(|word| *word != "--all").collect();
    let chosen: Vec<Cell> = AGENTS
        .into_iter()
        .flat_map(Cell::all)
        .filter(|cell| words.iter().all(|word| cell.name().contains(word.as_str())))
        .filter(|cell| all || !words.is_empty() || cell.is_quick())
        .collect();
    if chosen.is_empty() {
        let words: Vec<&str> = words.into_iter().map(String::as_str).collect();
        return Err(format!("no agent and column is called `{}`", words.join(" ")));
    }
    let mut agents: Vec<Agent> = chosen.iter().map(|cell| cell.agent).collect();
    agents.dedup();

    let root = workspace::root();
    let binary = program::gateway("agents")?;
    let installed = install::all(root, &agents)?;
    // A copy: whoever builds meanwhile would replace it between two runs.
    let kept = root.join("target/agents/steadfast");
    let _ = fs::remove_file(&kept);
    fs::copy(&binary, &kept).map_err(|error| format!("{}: {error}", kept.display()))?;
    let harness = Harness { root, binary: kept, installed };

    // What an agent does when nothing is wrong is what its other runs are compared with.
    let first: Vec<Cell> = agents
        .into_iter()
        .flat_map(Cell::all)
        .filter(|cell| chosen.iter().any(|other| other.base() == *cell))
        .collect();
    let rest: Vec<Cell> = chosen.into_iter().filter(|cell| !first.contains(cell)).collect();
    println!("== agents: {} runs", first.len() + rest.len());
    let mut outcomes = run_all(&harness, &first, &[]);
    let healthy: Vec<(Cell, Healthy)> = outcomes
        .iter()
        .filter_map(|outcome| Some((outcome.cell, outcome.healthy.clone()?)))
        .collect();
    outcomes.extend(run_all(&harness, &rest, &healthy));
    report::finish(&harness, &outcomes)
}

/// The pinned Node, installed; the folder with its program.
pub(crate) fn node(root: &'static Path) -> Result<PathBuf, String> {
    Ok(install::all(root, &[])?.node())
}

/// Runs all, some at a time, and prints each when it is over; in the order asked for.
fn run_all(harness: &Harness, cells: &[Cell], healthy: &[(Cell, Healthy)]) -> Vec<Outcome> {
    let (waiting, working): (Vec<_>, Vec<_>) =
        cells.iter().copied().enumerate().partition(|(_, cell)| cell.column.waits);
    let cores = thread::available_parallelism().map_or(2, usize::from);
    let (send, over) = mpsc::channel();
    let mut done: Vec<(usize, Outcome)> = thread::scope(|scope| {
        // Those that mostly wait for minutes wait together, beside the others.
        for (cells, workers) in [(waiting, usize::MAX), (working, cores)] {
            let queue = Arc::new((AtomicUsize::new(0), cells));
            for _ in 0..workers.min(queue.1.len()) {
                let (send, queue) = (send.clone(), queue.clone());
                scope.spawn(move || {
                    while let Some((at, cell)) =
                        queue.1.get(queue.0.fetch_add(1, Ordering::Relaxed))
                    {
                        let known = healthy.iter().find(|(base, _)| *base == cell.base());
                        let outcome = harness.run(*cell, known.map(|(_, healthy)| healthy));
                        let _ = send.send((*at, outcome));
                    }
                });
            }
        }
        drop(send);
        over.iter().inspect(|(_, outcome)| outcome.print()).collect()
    });
    done.sort_by_key(|(at, _)| *at);
    done.into_iter().map(|(_, outcome)| outcome).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_agent_is_pinned_and_has_a_script_with_a_block_to_paste() {
        let root = workspace::root();
        let pins = install::pins(root).unwrap();
        for agent in AGENTS {
            assert!(pins.iter().any(|pin| pin.name == agent.name), "{}", agent.name);
            let block = report::block(root, &agent).unwrap();
            assert!(block.contains("http://127.0.0.1:8080"), "{block}");
            assert!(agent.others.iter().all(|other| other.dialect != agent.dialect));
            let script =
                |settings: &[Setting]| run::script(root, &agent, settings, "", "").unwrap();
            for setting in [Setting::Socket, Setting::Summary, Setting::Compaction, Setting::Models]
            {
                let set = script(&[setting]) != script(&[]);
                assert_eq!(set, agent.settings, "{} {setting:?}", agent.name);
            }
        }
    }

    #[test]
    fn what_ci_runs_is_there_and_little() {
        let quick = AGENTS.into_iter().flat_map(Cell::all).filter(Cell::is_quick);
        assert_eq!(quick.count(), 2 * (3 + 2));
        let aider = AGENTS.into_iter().find(|agent| !agent.tools).unwrap();
        assert!(Cell::all(aider).all(|cell| cell.column.name != "cut in a call"));
    }

    #[test]
    fn codex_is_run_before_every_provider_and_over_a_socket_in_every_column() {
        let codex = AGENTS.into_iter().find(|agent| agent.name == "codex").unwrap();
        let task = Cell::all(codex).filter(|cell| cell.column == task::TASK);
        let names: Vec<_> = task.map(|cell| cell.name()).collect();
        let ways = ["direct", "gateway", "anthropic", "openai", "gemini"];
        let plain = ways.iter().map(|way| format!("codex task {way}"));
        let socket = ways[1..3].iter().map(|way| format!("codex websocket task {way}"));
        assert_eq!(names, plain.chain(socket).collect::<Vec<_>>());
        assert_eq!(Cell::all(codex).count(), names.len() * task::COLUMNS.len());
        assert!(Cell::all(codex).all(|cell| !cell.base().socket && cell.base().way == Way::Direct));
    }
}
