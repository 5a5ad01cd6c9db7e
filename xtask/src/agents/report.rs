//! What the runs have shown, as lines, as a table, and in `docs/clients.md`.

use std::{
    fmt::Write as _,
    path::{Path, PathBuf},
};

use super::{
    AGENTS, Agent, Cell, WAYS, Way,
    judge::{Healthy, Verdict},
    run::{self, Harness},
    task::{COLUMNS, TASK},
};
use crate::page::Page;

const PAGE: Page = Page {
    path: "docs/clients.md",
    begin: "<!-- written by: UPDATE_DOCS=1 cargo xtask agents --all -->\n",
    end: "<!-- end of what is written by agents -->\n",
    command: "cargo xtask agents --all",
};

/// How one run went.
#[derive(Debug)]
pub(super) struct Outcome {
    pub(super) cell: Cell,
    pub(super) verdict: Verdict,
    /// What the agent's other runs are compared with, if this is that run.
    pub(super) healthy: Option<Healthy>,
    /// What it asked for beside answers, and how that was answered.
    pub(super) aside: Vec<String>,
    /// Its logs, and all that passed.
    pub(super) folder: PathBuf,
}

impl Outcome {
    /// A line, and more where there is something to see.
    pub(super) fn print(&self) {
        let mut text = format!("-- {}: {}\n", self.cell.name(), self.verdict);
        if self.verdict != Verdict::Done {
            let _ = writeln!(text, "   logs are in {}", self.folder.display());
        }
        for aside in &self.aside {
            let _ = writeln!(text, "   asked beside: {aside}");
        }
        print!("{text}");
    }
}

/// Prints the table; with `whole`, also compares `docs/clients.md` or, with `UPDATE_DOCS=1`, writes it.
pub(super) fn finish(harness: &Harness, outcomes: &[Outcome], whole: bool) -> Result<(), String> {
    println!("\n{}", table(harness, outcomes));
    if whole {
        page(harness, outcomes)?;
    }
    let bad: Vec<String> = outcomes.iter().filter_map(|outcome| worse(outcome, outcomes)).collect();
    if bad.is_empty() {
        return Ok(());
    }
    Err(format!("agents: {} runs are worse than they may be:\n{}", bad.len(), bad.join("\n")))
}

/// Why a run is worse than it may be: through the gateway no agent fails, and none fares worse than without.
fn worse(outcome: &Outcome, outcomes: &[Outcome]) -> Option<String> {
    let cell = outcome.cell;
    let direct = |other: &&Outcome| other.cell == Cell { way: Way::Direct, ..cell };
    let bad = match (cell.way, &outcome.verdict) {
        // That providers fail is what the columns are for; an agent that can not do its task alone is no
        // measure of anything.
        (Way::Direct, verdict) => cell.column == TASK && *verdict != Verdict::Done,
        (_, Verdict::Failed(_)) => true,
        (_, verdict) => outcomes
            .iter()
            .find(direct)
            .is_some_and(|direct| verdict.is_worse_than(&direct.verdict)),
    };
    bad.then(|| format!("  {}: {}", cell.name(), outcome.verdict))
}

/// A row an agent, a column what happens.
fn table(harness: &Harness, outcomes: &[Outcome]) -> String {
    let word = |agent: Agent, column, way| {
        let cell = Cell { agent, column, way };
        let found = outcomes.iter().find(|outcome| outcome.cell == cell);
        found.map(|outcome| outcome.verdict.word())
    };
    let mut out = String::from("| agent | version | speaks | translated to |");
    for column in COLUMNS {
        let _ = write!(out, " {} |", column.name);
    }
    let _ = writeln!(out, "\n|---|---|---|---|{}", "---|".repeat(COLUMNS.len()));
    let present = |agent: &Agent| outcomes.iter().any(|outcome| outcome.cell.agent == *agent);
    for agent in AGENTS.into_iter().filter(present) {
        let version = harness.installed.version(&agent);
        let _ =
            write!(out, "| {} | {version} | {} | {} |", agent.title, agent.dialect, agent.other);
        for column in COLUMNS {
            let words = WAYS.map(|way| word(agent, column, way));
            let text = match words.iter().all(Option::is_none) {
                true => "\u{2013}".to_owned(),
                false => words.map(|word| word.unwrap_or("?")).join(" / "),
            };
            let _ = write!(out, " {text} |");
        }
        out.push('\n');
    }
    out
}

/// What a user sets for this agent.
pub(super) fn block(root: &Path, agent: &Agent) -> Result<String, String> {
    let text = run::script(root, agent, "http://127.0.0.1:8080", "$STEADFAST_KEY")?;
    let cut = || {
        let (_, rest) = text.split_once("# paste\n")?;
        Some(rest.split_once("# end\n")?.0.to_owned())
    };
    cut().ok_or_else(|| format!("tests/agents/{}.sh lacks `# paste` or `# end`", agent.name))
}

/// Whether two pages differ in nothing, or only in whether an agent alone recovers: some of them do so in one
/// run and not in the next.
fn same(one: &str, other: &str) -> bool {
    let alone = |text: &str| text.replace("| no / ", "| retried / ");
    alone(one) == alone(other)
}

fn page(harness: &Harness, outcomes: &[Outcome]) -> Result<(), String> {
    let mut written = format!("{}\n", table(harness, outcomes));
    for agent in AGENTS {
        let block = block(harness.root, &agent)?;
        let _ = write!(written, "### {}\n\n```sh\n{block}```\n\n", agent.title);
    }
    PAGE.keep(harness.root, &written, same)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_agent_does_alone_may_vary_and_nothing_else() {
        assert!(same("| a | no / yes / yes |", "| a | retried / yes / yes |"));
        assert!(!same("| a | no / no / yes |", "| a | no / yes / yes |"));
        assert!(!same("| a | yes / yes / yes |", "| a | retried / yes / yes |"));
    }
}
