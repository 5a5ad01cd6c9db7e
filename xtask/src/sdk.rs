//! `cargo xtask sdk`: the vendors' own SDKs, unmodified, against the gateway.
//!
//! Five SDKs, each in front of a provider of each dialect: fifteen runs of the scripts in
//! `tests/sdk`, each with a gateway and simulated providers of its own.

mod report;
mod setup;
mod stage;

use std::{
    env,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::{
        atomic::{AtomicUsize, Ordering},
        mpsc,
    },
    thread,
};

use report::{Line, Outcome};
use stage::Stage;

/// An SDK, in the order of the table's columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Sdk {
    /// Its package.
    name: &'static str,
    /// Where the package comes from.
    from: &'static str,
    /// Its script in `tests/sdk`.
    script: &'static str,
}

const SDKS: [Sdk; 5] = [
    Sdk { name: "openai", from: "PyPI", script: "python/openai_sdk.py" },
    Sdk { name: "anthropic", from: "PyPI", script: "python/anthropic_sdk.py" },
    Sdk { name: "google-genai", from: "PyPI", script: "python/genai_sdk.py" },
    Sdk { name: "openai", from: "npm", script: "node/openai_sdk.mjs" },
    Sdk { name: "@anthropic-ai/sdk", from: "npm", script: "node/anthropic_sdk.mjs" },
];

/// A provider's dialect, and what it calls the callers' models: one that answers, one that thinks,
/// two kept for rate limits (they rest when they were limited), one that is not there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Upstream {
    dialect: &'static str,
    models: &'static str,
}

const UPSTREAMS: [Upstream; 3] = [
    Upstream {
        dialect: "openai",
        models: r#"{ fast = "gpt-4o", smart = "gpt-5", limited = "gpt-4o-mini", brief = "gpt-4.1-mini", missing = "no-such-model" }"#,
    },
    Upstream {
        dialect: "anthropic",
        models: r#"{ fast = "claude-sonnet-4-5", smart = "claude-opus-4-5", limited = "claude-haiku-4-5", brief = "claude-sonnet-4", missing = "no-such-model" }"#,
    },
    Upstream {
        dialect: "gemini",
        models: r#"{ fast = "gemini-2.5-flash", smart = "gemini-3.1-pro-preview", limited = "gemini-2.5-pro", brief = "gemini-2.0-flash", missing = "no-such-model" }"#,
    },
];

/// One SDK in front of one provider.
#[derive(Clone, Copy, Debug)]
struct Combination {
    sdk: Sdk,
    upstream: Upstream,
}

impl Combination {
    fn name(&self) -> String {
        format!("{} ({}) -> {}", self.sdk.name, self.sdk.from, self.upstream.dialect)
    }
}

/// Runs every combination whose name has all of `words` in it.
pub(crate) fn run(words: &[String]) -> Result<(), String> {
    if env::var_os("STEADFAST_SKIP_SDKS").is_some_and(|value| value == "1") {
        println!("== sdk: skipped, STEADFAST_SKIP_SDKS is 1");
        return Ok(());
    }
    let all = SDKS
        .into_iter()
        .flat_map(|sdk| UPSTREAMS.into_iter().map(move |upstream| Combination { sdk, upstream }));
    let chosen: Vec<_> =
        all.filter(|one| words.iter().all(|word| one.name().contains(word.as_str()))).collect();
    if chosen.is_empty() {
        return Err(format!("no SDK and provider is called `{}`", words.join(" ")));
    }

    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let root = root.canonicalize().map_err(|error| format!("{}: {error}", root.display()))?;
    let work = root.join("target/sdk");
    let binary = build()?;
    let tools = setup::tools(&root.join("tests/sdk"), &work)?;
    let harness = Harness { root, work, binary, tools };

    println!("== sdk: {} runs", chosen.len());
    let outcomes = harness.run_all(&chosen);
    let whole = chosen.len() == SDKS.len() * UPSTREAMS.len();
    report::finish(&harness.root, &outcomes, whole)
}

/// Builds the gateway; where its binary is.
fn build() -> Result<PathBuf, String> {
    println!("== sdk: cargo build -p steadfast-gateway");
    let cargo = env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
    let output = Command::new(cargo)
        .args(["build", "--locked", "-p", "steadfast-gateway", "--bin", "steadfast"])
        .arg("--message-format=json-render-diagnostics")
        .stderr(Stdio::inherit())
        .output()
        .map_err(|error| format!("can not start cargo: {error}"))?;
    let text = String::from_utf8_lossy(&output.stdout);
    // A path with a character that JSON escapes is not worth a JSON parser.
    let mut made = text.lines().filter_map(|line| {
        let (_, rest) = line.split_once(r#""executable":""#)?;
        rest.split_once('"').map(|(path, _)| path)
    });
    match made.next_back() {
        Some(path) if output.status.success() => Ok(path.into()),
        _ => Err(format!("the gateway can not be built ({})", output.status)),
    }
}

/// What every run needs.
struct Harness {
    root: PathBuf,
    work: PathBuf,
    binary: PathBuf,
    tools: setup::Tools,
}

impl Harness {
    /// Runs all, some at a time, and prints each when it is over; in the order asked for.
    fn run_all(&self, chosen: &[Combination]) -> Vec<Outcome> {
        let next = AtomicUsize::new(0);
        let (send, over) = mpsc::channel();
        let workers = thread::available_parallelism().map_or(2, usize::from).clamp(2, 8);
        let mut done: Vec<_> = thread::scope(|scope| {
            for _ in 0..workers {
                let (send, next) = (send.clone(), &next);
                scope.spawn(move || {
                    while let Some((at, one)) = {
                        let at = next.fetch_add(1, Ordering::Relaxed);
                        chosen.get(at).map(|one| (at, *one))
                    } {
                        let _ = send.send((at, Outcome { of: one, lines: self.run_one(one) }));
                    }
                });
            }
            drop(send);
            over.iter().inspect(|(_, outcome): &(usize, Outcome)| outcome.print()).collect()
        });
        done.sort_by_key(|(at, _)| *at);
        done.into_iter().map(|(_, outcome)| outcome).collect()
    }

    /// One script from its start to its end; what went wrong around it is a failed check.
    fn run_one(&self, one: Combination) -> Vec<Line> {
        let name = format!("{}-{}", one.sdk.script.replace(['/', '.'], "-"), one.upstream.dialect);
        let folder = self.work.join("runs").join(name);
        let run = || {
            let stage = Stage::set(&self.binary, &self.root, &folder, &one.upstream)?;
            let output = self
                .tools
                .script(&one.sdk)
                .envs(stage.environment())
                .stdin(Stdio::null())
                .output()
                .map_err(|error| format!("the script can not be started: {error}"))?;
            let mut lines = report::read(&String::from_utf8_lossy(&output.stdout));
            let failed = lines.iter().any(|line| matches!(line, Line::Fail { .. }));
            if failed || !output.status.success() {
                let text = String::from_utf8_lossy(&output.stderr);
                let text: Vec<_> = text.lines().rev().take(8).collect();
                let text: Vec<_> = text.into_iter().rev().collect();
                if !failed {
                    lines.push(Line::broken(format!("{}: {}", output.status, text.join(" | "))));
                }
                lines.push(Line::Note(format!("logs are in {}", folder.display())));
            }
            lines.extend(report::missing(&lines).into_iter().map(Line::broken));
            Ok(lines)
        };
        run().unwrap_or_else(|message: String| vec![Line::broken(message)])
    }
}
