//! `cargo xtask frameworks`: frameworks for programs that use models, unmodified, with the gateway's address.
//!
//! Each speaks one or more dialects, and for each it passes the checks of `tests/frameworks` in front of the
//! simulated providers: without the gateway, through it, and with another dialect behind it; healthy, and
//! under six faults.

mod report;

use std::{
    env, fs,
    path::{Path, PathBuf},
};

use report::Outcome;

use crate::{
    agents, program,
    scripts::{
        self,
        lines::Line,
        setup::{self, Kit, Tools},
        stage::{Between, Stage},
    },
    workspace,
};

const FOLDER: &str = "tests/frameworks";

/// A framework that speaks a dialect: a row of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Row {
    title: &'static str,
    /// Its script in `tests/frameworks`.
    script: &'static str,
    dialect: &'static str,
    /// Another vendor's dialect, which the gateway translates for it.
    other: &'static str,
    /// Whether CI has time for it.
    quick: bool,
}

const AI_SDK: Row = Row {
    title: "Vercel AI SDK",
    script: "node/ai_sdk_checks.mjs",
    dialect: "anthropic",
    other: "openai",
    quick: false,
};
const LANGCHAIN: Row = Row { title: "LangChain", script: "python/langchain_checks.py", ..AI_SDK };
const PYDANTIC_AI: Row =
    Row { title: "pydantic-ai", script: "python/pydantic_ai_checks.py", ..AI_SDK };
const OPENAI_AGENTS: Row =
    Row { title: "OpenAI Agents", script: "python/openai_agents_checks.py", ..AI_SDK };

const ROWS: [Row; 11] = [
    Row { dialect: "openai", other: "gemini", ..AI_SDK },
    Row { quick: true, ..AI_SDK },
    Row { dialect: "gemini", other: "anthropic", ..AI_SDK },
    Row { dialect: "openai", other: "anthropic", ..LANGCHAIN },
    Row { dialect: "anthropic", other: "gemini", ..LANGCHAIN },
    Row { dialect: "gemini", other: "openai", quick: true, ..LANGCHAIN },
    Row { dialect: "openai", other: "gemini", ..PYDANTIC_AI },
    Row { quick: true, ..PYDANTIC_AI },
    Row { dialect: "gemini", other: "anthropic", ..PYDANTIC_AI },
    Row { dialect: "openai", other: "anthropic", ..OPENAI_AGENTS },
    Row { dialect: "responses", other: "anthropic", quick: true, ..OPENAI_AGENTS },
];

/// What a dialect's vendor has: a model that answers, one that thinks, and one for a limit that lasts.
const MODELS: [(&str, [&str; 3]); 4] = [
    ("openai", ["gpt-4o", "gpt-5", "gpt-4o-mini"]),
    ("responses", ["gpt-4o", "gpt-5", "gpt-4o-mini"]),
    ("anthropic", ["claude-sonnet-4-5", "claude-opus-4-5", "claude-haiku-4-5"]),
    ("gemini", ["gemini-2.5-flash", "gemini-2.5-pro", "gemini-2.0-flash"]),
];

fn models(dialect: &str) -> Result<[&'static str; 3], String> {
    let found = MODELS.iter().find(|(name, _)| *name == dialect);
    found.map(|(_, models)| *models).ok_or_else(|| format!("{dialect} has no models"))
}

/// What stands between the framework and the provider.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// Nothing.
    Direct,
    /// The gateway, with a provider of the framework's own dialect.
    Gateway,
    /// The gateway, with a provider of another dialect.
    Translated,
}

const WAYS: [Way; 3] = [Way::Direct, Way::Gateway, Way::Translated];

/// One run of a script.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Cell {
    row: Row,
    way: Way,
}

impl Cell {
    fn upstream(&self) -> &'static str {
        if self.way == Way::Translated { self.row.other } else { self.row.dialect }
    }

    fn name(&self) -> String {
        let way = match self.way {
            Way::Direct => "direct".to_owned(),
            Way::Gateway => "gateway".to_owned(),
            Way::Translated => format!("to {}", self.row.other),
        };
        format!("{} {} {way}", self.row.title, self.row.dialect)
    }

    /// What CI has time for: each framework once, translated, since that is where most can go wrong.
    fn is_quick(&self) -> bool {
        self.row.quick && self.way == Way::Translated
    }

    /// All runs. Those that wait longest come first.
    fn all() -> impl Iterator<Item = Self> {
        WAYS.into_iter().flat_map(|way| ROWS.map(|row| Self { row, way }))
    }
}

/// Runs what `words` name: with `--all` everything, without words what CI has time for.
pub(crate) fn run(words: &[String]) -> Result<(), String> {
    if env::var_os("STEADFAST_SKIP_FRAMEWORKS").is_some_and(|value| value == "1") {
        println!("== frameworks: skipped, STEADFAST_SKIP_FRAMEWORKS is 1");
        return Ok(());
    }
    let all = words.iter().any(|word| word == "--all");
    let words: Vec<&String> = words.iter().filter(|word| *word != "--all").collect();
    let chosen: Vec<Cell> = Cell::all()
        .filter(|cell| words.iter().all(|word| cell.name().contains(word.as_str())))
        .filter(|cell| all || !words.is_empty() || cell.is_quick())
        .collect();
    if chosen.is_empty() {
        let words: Vec<&str> = words.into_iter().map(String::as_str).collect();
        return Err(format!("no framework and dialect is called `{}`", words.join(" ")));
    }

    let root = workspace::root();
    let work = root.join("target/frameworks");
    let built = program::gateway("frameworks")?;
    let node = agents::node(root)?;
    let tools = setup::tools(Kit {
        task: "frameworks",
        skip: "STEADFAST_SKIP_FRAMEWORKS",
        root,
        pinned: FOLDER,
        work: work.clone(),
        node: Some(node),
    })?;
    // A copy: whoever builds meanwhile would replace it between two runs.
    let binary = work.join("steadfast");
    let _ = fs::remove_file(&binary);
    fs::copy(&built, &binary).map_err(|error| format!("{}: {error}", binary.display()))?;
    let harness = Harness { root, work, binary, tools };

    println!("== frameworks: {} runs", chosen.len());
    let run = |cell| Outcome { cell, lines: harness.run_one(cell) };
    let outcomes = scripts::run_all(&chosen, WAITING, run, Outcome::print);
    report::finish(root, &outcomes, all && words.is_empty())
}

/// How many runs a core can have: they mostly wait, for pauses between attempts and for silent streams.
const WAITING: usize = 3;

/// What every run needs.
struct Harness {
    root: &'static Path,
    work: PathBuf,
    binary: PathBuf,
    tools: Tools,
}

impl Harness {
    /// One script from its start to its end; what went wrong around it is a failed check.
    fn run_one(&self, cell: Cell) -> Vec<Line> {
        self.lines(cell).unwrap_or_else(|message| vec![Line::broken(message)])
    }

    fn lines(&self, cell: Cell) -> Result<Vec<Line>, String> {
        let folder = self.work.join("runs").join(cell.name().replace(' ', "-"));
        let models_asked = models(cell.row.dialect)?;
        let [fast, smart, limited] = models_asked;
        let upstream = cell.upstream();
        let named = match cell.way {
            Way::Translated => {
                let there = models_asked.into_iter().zip(models(upstream)?);
                let map: Vec<_> =
                    there.map(|(asked, sent)| format!("{asked:?} = {sent:?}")).collect();
                format!("{{ {} }}", map.join(", "))
            }
            _ => "{}".to_owned(),
        };
        let template = &self.root.join(FOLDER).join("steadfast.toml");
        let between = match cell.way {
            Way::Direct => Between::Nothing,
            _ => Between::Gateway { template, models: &named },
        };
        let stage = Stage::set(&self.binary, &folder, upstream, between)?;
        let mut script = self.tools.script(cell.row.script);
        script.envs(stage.environment());
        script.envs([
            ("FRAMEWORK_DIALECT", cell.row.dialect),
            ("FRAMEWORK_FAST", fast),
            ("FRAMEWORK_SMART", smart),
            ("FRAMEWORK_LIMITED", limited),
            ("FRAMEWORK_WAY", if cell.way == Way::Direct { "direct" } else { "gateway" }),
            // OpenAI's framework sends traces to the vendor, LangChain to its own.
            ("OPENAI_AGENTS_DISABLE_TRACING", "1"),
            ("LANGSMITH_TRACING", "false"),
        ]);
        let mut lines = scripts::run(script, &folder)?;
        lines.extend(report::missing(&lines).into_iter().map(Line::broken));
        Ok(lines)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_has_models_and_a_block_to_paste() {
        for row in ROWS {
            let block = report::block(workspace::root(), &row).unwrap();
            assert!(block.contains("http://127.0.0.1:8080"), "{block}");
            assert!(block.contains("STEADFAST_KEY"), "{block}");
            assert!(!block.contains("GATEWAY"), "{block}");
            assert_ne!(row.dialect, row.other);
            assert!(models(row.dialect).is_ok() && models(row.other).is_ok());
        }
    }

    #[test]
    fn ci_runs_each_framework_once() {
        let mut scripts: Vec<_> =
            Cell::all().filter(Cell::is_quick).map(|cell| cell.row.script).collect();
        scripts.sort_unstable();
        let mut all: Vec<_> = ROWS.iter().map(|row| row.script).collect();
        all.sort_unstable();
        all.dedup();
        assert_eq!(scripts, all);
    }
}
