//! What the runs have shown, as lines, as a table, and in `docs/clients.md`.

use std::{fmt::Write as _, path::Path};

use super::{Cell, FOLDER, ROWS, Row, WAYS, Way};
use crate::{
    page::Page,
    scripts::lines::{self, Line},
    workspace::read,
};

/// The columns of the table. Every script prints something of each. From the last healthy one on, providers
/// fail.
const HEALTHY: [&str; 7] =
    ["chat", "stream", "tools", "structured output", "image", "thinking", "errors"];
const FAULTS: [&str; 6] =
    ["overloaded", "rate limit", "cut in text", "cut in a call", "stall", "error event"];

fn columns() -> impl Iterator<Item = &'static str> {
    HEALTHY.into_iter().chain(FAULTS)
}

const PAGE: Page = Page {
    path: "docs/clients.md",
    begin: "<!-- written by: UPDATE_DOCS=1 cargo xtask frameworks --all -->\n",
    end: "<!-- end of what is written by frameworks -->\n",
    command: "cargo xtask frameworks --all",
};

/// What the lines lack: a column that no line names, or the version.
pub(super) fn missing(lines: &[Line]) -> Vec<String> {
    let named = |column: &str| lines.iter().any(|line| line.feature() == Some(column));
    let mut missing: Vec<String> = columns()
        .filter(|column| !named(column))
        .map(|column| format!("the script prints nothing of `{column}`"))
        .collect();
    if lines::version(lines) == "?" {
        missing.push("the script does not print the framework's version".to_owned());
    }
    missing
}

/// From good to bad.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Verdict {
    /// All checks held.
    Yes,
    /// They held, but the framework met the failure and asked again.
    Retried,
    /// One did not.
    No,
}

/// How one run went.
pub(super) struct Outcome {
    pub(super) cell: Cell,
    pub(super) lines: Vec<Line>,
}

impl Outcome {
    /// A line for each check.
    pub(super) fn print(&self) {
        let mut text = format!("-- {}\n", self.cell.name());
        lines::show(&mut text, &self.lines);
        print!("{text}");
    }

    /// The worst of a column; `None` if nothing of it was checked.
    fn verdict(&self, column: &str) -> Option<Verdict> {
        let own = self.lines.iter().filter(|line| line.feature() == Some(column));
        own.filter_map(|line| match line {
            Line::Ok { .. } => Some(Verdict::Yes),
            Line::Again { .. } => Some(Verdict::Retried),
            Line::Fail { .. } => Some(Verdict::No),
            _ => None,
        })
        .max()
    }

    /// What is worse than it may be: through the gateway everything works and no failure is seen. Without it
    /// frameworks may see failures, since that is what those columns are for; one that can not do the rest
    /// alone is no measure of anything.
    fn bad(&self) -> impl Iterator<Item = String> {
        let direct = self.cell.way == Way::Direct;
        // Alone, some of them wait as long as a provider's hint says.
        let fails_alone = |column: &&str| FAULTS.contains(column) || *column == "errors";
        let checked = columns().filter(move |column| !(direct && fails_alone(column)));
        let run = self.lines.iter().filter_map(|line| match line {
            Line::Fail { feature, why, .. } if feature == "run" => Some(why.clone()),
            _ => None,
        });
        checked
            .filter(|column| self.verdict(column) > Some(Verdict::Yes))
            .map(str::to_owned)
            .chain(run)
            .map(|what| format!("  {}: {what}", self.cell.name()))
    }
}

/// Prints the table; with `whole`, also compares `docs/clients.md` or, with `UPDATE_DOCS=1`, writes it.
pub(super) fn finish(root: &Path, outcomes: &[Outcome], whole: bool) -> Result<(), String> {
    let table = table(outcomes);
    println!("\n{table}");
    let bad: Vec<String> = outcomes.iter().flat_map(Outcome::bad).collect();
    if !bad.is_empty() {
        return Err(format!("frameworks: worse than it may be:\n{}", bad.join("\n")));
    }
    if whole { page(root, table) } else { Ok(()) }
}

/// A row a framework and dialect, a column what is checked.
fn table(outcomes: &[Outcome]) -> String {
    let mut out = String::from("| framework | version | speaks | translated to |");
    for column in columns() {
        let _ = write!(out, " {column} |");
    }
    let _ = writeln!(out, "\n|---|---|---|---|{}", "---|".repeat(columns().count()));
    for row in ROWS {
        let runs: Vec<Option<&Outcome>> = WAYS
            .into_iter()
            .map(|way| outcomes.iter().find(|outcome| outcome.cell == Cell { row, way }))
            .collect();
        let Some(some) = runs.iter().flatten().next() else { continue };
        let version = lines::version(&some.lines);
        let _ = write!(out, "| {} | {version} | {} | {} |", row.title, row.dialect, row.other);
        for column in columns() {
            let words = runs.iter().map(|run| match run.and_then(|run| run.verdict(column)) {
                Some(Verdict::Yes) => "yes",
                Some(Verdict::Retried) => "retried",
                Some(Verdict::No) => "no",
                None if run.is_some() => "\u{2013}",
                None => "?",
            });
            let _ = write!(out, " {} |", words.collect::<Vec<_>>().join(" / "));
        }
        out.push('\n');
    }
    out
}

/// What a user writes for this row: what the script has between its marks, with an address and a key.
pub(super) fn block(root: &Path, row: &Row) -> Result<String, String> {
    let text = read(&root.join(FOLDER).join(row.script))?;
    let node = row.script.starts_with("node/");
    let mark = format!("{} paste: {}\n", if node { "//" } else { "#" }, row.dialect);
    let (_, rest) =
        text.split_once(&mark).ok_or_else(|| format!("{} lacks {mark:?}", row.script))?;
    let ends = ["// paste", "// end", "# paste", "# end"];
    let block: Vec<&str> =
        rest.lines().take_while(|line| !ends.iter().any(|end| line.starts_with(end))).collect();
    let (quoted, key) = match node {
        true => ("`${GATEWAY}", "process.env.STEADFAST_KEY"),
        false => ("f\"{GATEWAY}", "os.environ[\"STEADFAST_KEY\"]"),
    };
    let quote = if node { '\'' } else { '"' };
    let address = "http://127.0.0.1:8080";
    let block = block
        .join("\n")
        .replace(quoted, &format!("{quote}{address}"))
        .replace('`', "'")
        .replace("GATEWAY", &format!("{quote}{address}{quote}"))
        .replace("KEY", key);
    let before = if node { "" } else { "import os\n\n" };
    Ok(format!("{before}{}\n", block.trim()))
}

/// Whether two pages differ in nothing, or only in whether a framework alone recovers.
fn same(one: &str, other: &str) -> bool {
    let alone = |text: &str| text.replace("| no / ", "| retried / ");
    alone(one) == alone(other)
}

fn page(root: &Path, table: String) -> Result<(), String> {
    let mut written = table + "\n";
    let mut before = "";
    for row in ROWS {
        if row.title != before {
            let _ = write!(written, "### {}\n\n", row.title);
            before = row.title;
        }
        let language = if row.script.starts_with("node/") { "js" } else { "python" };
        let _ = write!(written, "```{language}\n{}```\n\n", block(root, &row)?);
    }
    PAGE.keep(root, &written, same)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(way: Way, lines: &str) -> Outcome {
        Outcome { cell: Cell { row: ROWS[0], way }, lines: lines::read(lines) }
    }

    #[test]
    fn a_cell_is_the_worst_of_its_checks_in_each_way() {
        let fine = "version\t9\nok\ttools\tx\nok\ttools\ty\nok\tstall\tx";
        let seen = "version\t9\nok\ttools\tx\nfail\ttools\ty\tz\nagain\tstall\tx\ty";
        let outcomes = [outcome(Way::Direct, seen), outcome(Way::Gateway, fine)];
        let table = table(&outcomes);
        assert!(table.contains("| no / yes / ? |"), "{table}");
        assert!(table.contains("| retried / yes / ? |"), "{table}");
    }

    #[test]
    fn a_failure_that_is_seen_is_bad_only_through_the_gateway() {
        let seen = "version\t9\nagain\tstall\tx\ty\nfail\tcut in text\tx\ty";
        assert_eq!(outcome(Way::Direct, seen).bad().count(), 0);
        assert_eq!(outcome(Way::Gateway, seen).bad().count(), 2);
        let broken = "version\t9\nfail\tchat\tx\ty";
        assert_eq!(outcome(Way::Direct, broken).bad().count(), 1);
        assert_eq!(missing(&lines::read(broken)).len(), columns().count() - 1);
    }
}
