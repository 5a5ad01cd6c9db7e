//! What the runs have shown, as lines, as a table, and in `docs/clients.md`.

use std::{
    fmt::Write as _,
    path::{Path, PathBuf},
};

use super::{
    AGENTS, Agent, Cell, Other, Way,
    judge::{Healthy, Verdict},
    run::{self, Harness},
    task::{COLUMNS, TASK},
};
use crate::{page::Page, workspace::read};

const PAGE: Page = Page {
    path: "docs/clients.md",
    begin: "<!-- written by: UPDATE_DOCS=1 cargo xtask agents --all -->\n",
    end: "<!-- end of what is written by agents -->\n",
    command: "cargo xtask agents --all",
};

/// What stands below the table.
const NOTE: &str = "\
Codex asks over a WebSocket, reads the gateway's models, and compacts early by the lines of its settings that are comments here. The
simulated providers have no WebSocket and no list of models for Codex, so there is no run of the first without the gateway, and one without
what is asked of the second.
";

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

/// Prints the table, and compares the rows of which every run is there with `docs/clients.md` or, with
/// `UPDATE_DOCS=1`, writes them.
pub(super) fn finish(harness: &Harness, outcomes: &[Outcome]) -> Result<(), String> {
    let rows = rows(harness, outcomes);
    let ran: Vec<Row> = rows.iter().filter(|row| row.is_started()).cloned().collect();
    println!("\n{}", table(&ran));
    if ran.iter().any(Row::is_whole) {
        page(harness.root, &rows)?;
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
    let direct = |other: &&Outcome| other.cell == cell.direct();
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

/// A line of the table.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Row {
    /// Who, the version, what it speaks, what that is translated to, and a cell for each column.
    cells: Vec<String>,
}

impl Row {
    fn new(harness: &Harness, outcomes: &[Outcome], translated: Cell, other: Other) -> Self {
        let agent = translated.agent;
        let socket = if translated.socket { ", WebSocket" } else { "" };
        let title = format!("{}{socket}", agent.title);
        let version = harness.installed.version(&agent).to_owned();
        let mut cells = vec![title, version, agent.dialect.to_owned(), other.dialect.to_owned()];
        let all: Vec<Cell> = Cell::all(agent).collect();
        let word = |cell: Cell| match outcomes.iter().find(|outcome| outcome.cell == cell) {
            Some(outcome) => outcome.verdict.word(),
            None if all.contains(&cell) => UNKNOWN,
            None => NONE,
        };
        cells.extend(COLUMNS.map(|column| {
            let ways = [Way::Direct, Way::Gateway, translated.way];
            let words = ways.map(|way| word(Cell { column, way, ..translated }));
            if words == [NONE; 3] { NONE.to_owned() } else { words.join(" / ") }
        }));
        Self { cells }
    }

    /// The row of a line that was written before.
    fn read(line: &str) -> Self {
        let inside = line.trim().trim_start_matches('|').trim_end_matches('|');
        Self { cells: inside.split('|').map(|cell| cell.trim().to_owned()).collect() }
    }

    /// Whether both are about the same, of whatever version.
    fn is_of(&self, other: &Self) -> bool {
        let key = |row: &Self| [0, 2, 3].map(|at| row.cells.get(at).cloned());
        key(self) == key(other)
    }

    /// What is known of each run that belongs to it.
    fn words(&self) -> impl Iterator<Item = &str> {
        let words = self.cells.iter().skip(4).flat_map(|cell| cell.split(" / "));
        words.filter(|word| *word != NONE)
    }

    /// Whether one of its runs is in it.
    fn is_started(&self) -> bool {
        self.words().any(|word| word != UNKNOWN)
    }

    /// Whether all of its runs are in it.
    fn is_whole(&self) -> bool {
        self.words().all(|word| word != UNKNOWN)
    }
}

/// In a cell: there is no such run.
const NONE: &str = "\u{2013}";

/// In a cell: the run was not asked for.
const UNKNOWN: &str = "?";

/// A row for each agent and each dialect that it is translated to, and over a WebSocket.
fn rows(harness: &Harness, outcomes: &[Outcome]) -> Vec<Row> {
    let cells = AGENTS.into_iter().flat_map(Cell::all).filter(|cell| cell.column == TASK);
    let translated = cells.filter_map(|cell| match cell.way {
        Way::Translated(other) => Some((cell, other)),
        _ => None,
    });
    translated.map(|(cell, other)| Row::new(harness, outcomes, cell, other)).collect()
}

fn table(rows: &[Row]) -> String {
    let mut out = String::from("| agent | version | speaks | translated to |");
    for column in COLUMNS {
        let _ = write!(out, " {} |", column.name);
    }
    let _ = writeln!(out, "\n|---|---|---|---|{}", "---|".repeat(COLUMNS.len()));
    for row in rows {
        let _ = writeln!(out, "| {} |", row.cells.join(" | "));
    }
    out
}

/// What a user sets for this agent.
pub(super) fn block(root: &Path, agent: &Agent) -> Result<String, String> {
    let text = run::script(root, agent, &[], "http://127.0.0.1:8080", "$STEADFAST_KEY")?;
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

fn page(root: &Path, rows: &[Row]) -> Result<(), String> {
    let text = read(&root.join(PAGE.path))?;
    let there = text.split_once(PAGE.begin).and_then(|(_, rest)| rest.split_once(PAGE.end));
    let there = there.map_or("", |(there, _)| there);
    let mut written = format!("{}\n{NOTE}\n", table(&merged(there, rows)));
    for agent in AGENTS {
        let block = block(root, &agent)?;
        let _ = write!(written, "### {}\n\n```sh\n{block}```\n\n", agent.title);
    }
    PAGE.keep(root, &written, same)
}

/// The rows of the page: of those that are not whole, what is `there`.
fn merged(there: &str, rows: &[Row]) -> Vec<Row> {
    let there: Vec<Row> =
        there.lines().filter(|line| line.starts_with("| ")).map(Row::read).collect();
    let kept = |row: &Row| match row.is_whole() {
        true => Some(row.clone()),
        false => there.iter().find(|old| old.is_of(row)).cloned(),
    };
    rows.iter().filter_map(kept).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_that_were_not_run_are_kept() {
        let row = |line: &str| Row::read(line);
        let there = "| agent | version | speaks | translated to | task |\n|---|---|---|---|---|\n\
                     | a | 1 | x | y | yes / no / no |\n| b | 1 | x | y | yes / yes / yes |\n\
                     | c | 1 | x | y | yes / yes / yes |\n";
        let rows = [
            row("| a | 2 | x | y | yes / yes / yes |"),
            row("| a | 2 | x | z | \u{2013} / yes / yes |"),
            row("| b | 2 | x | y | no / ? / ? |"),
            row("| b | 2 | x | z | ? / ? / ? |"),
        ];
        assert!(rows[2].is_started() && !rows[3].is_started());
        let wanted = [rows[0].clone(), rows[1].clone(), row("| b | 1 | x | y | yes / yes / yes |")];
        assert_eq!(merged(there, &rows), wanted);
    }

    #[test]
    fn what_an_agent_does_alone_may_vary_and_nothing_else() {
        assert!(same("| a | no / yes / yes |", "| a | retried / yes / yes |"));
        assert!(!same("| a | no / no / yes |", "| a | no / yes / yes |"));
        assert!(!same("| a | yes / yes / yes |", "| a | retried / yes / yes |"));
    }
}
