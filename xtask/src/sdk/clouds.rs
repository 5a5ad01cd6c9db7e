//! The SDKs' own clients for Azure, Vertex AI and Bedrock, in front of the simulated platforms.
//!
//! No gateway stands between: what an SDK sends is what a simulator has to accept, and by it what the gateway has
//! to send. All scripts share the simulators of the example `clouds`, which keep nothing of a request.

use std::{env, fmt::Write as _, fs, path::Path};

use super::report::{self, Notes};
use crate::{
    page::Page,
    program::Program,
    scripts::{
        self,
        lines::{self, Line},
        setup::Tools,
    },
};

/// An SDK, and its script in `tests/sdk`. All are from PyPI.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sdk {
    name: &'static str,
    script: &'static str,
}

const OPENAI: Sdk = Sdk { name: "openai", script: "python/openai_clouds.py" };
const ANTHROPIC: Sdk = Sdk { name: "anthropic", script: "python/anthropic_clouds.py" };
const GENAI: Sdk = Sdk { name: "google-genai", script: "python/genai_clouds.py" };
const BOTO3: Sdk = Sdk { name: "boto3", script: "python/boto3_clouds.py" };

const SDKS: [Sdk; 4] = [OPENAI, ANTHROPIC, GENAI, BOTO3];

impl Sdk {
    fn name(self) -> String {
        format!("{} (PyPI) -> clouds", self.name)
    }
}

/// A row of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Row {
    sdk: Sdk,
    /// What the script calls it.
    id: &'static str,
    platform: &'static str,
    client: &'static str,
}

impl Row {
    const fn new(sdk: Sdk, id: &'static str, platform: &'static str, client: &'static str) -> Self {
        Self { sdk, id, platform, client }
    }

    /// What the script calls one of its cells.
    fn feature(self, column: &str) -> String {
        format!("{}: {column}", self.id)
    }
}

const ROWS: [Row; 13] = [
    Row::new(OPENAI, "azure chat", "Azure", "`OpenAI`, chat"),
    Row::new(OPENAI, "azure responses", "Azure", "`OpenAI`, responses"),
    Row::new(OPENAI, "azure by version chat", "Azure, `api_version`", "`AzureOpenAI`, chat"),
    Row::new(
        OPENAI,
        "azure by version responses",
        "Azure, `api_version`",
        "`AzureOpenAI`, responses",
    ),
    Row::new(OPENAI, "vertex chat", "Vertex AI", "`OpenAI`, chat"),
    Row::new(OPENAI, "vertex responses", "Vertex AI", "`OpenAI(provider=vertex())`, responses"),
    Row::new(OPENAI, "bedrock chat", "Bedrock", "`OpenAI(provider=bedrock())`, chat"),
    Row::new(OPENAI, "bedrock responses", "Bedrock", "`OpenAI(provider=bedrock())`, responses"),
    Row::new(ANTHROPIC, "azure", "Azure", "`AnthropicFoundry`"),
    Row::new(ANTHROPIC, "vertex", "Vertex AI", "`AnthropicVertex`"),
    Row::new(ANTHROPIC, "bedrock", "Bedrock", "`AnthropicBedrock`"),
    Row::new(GENAI, "vertex", "Vertex AI", "`Client(vertexai=True)`"),
    Row::new(BOTO3, "bedrock", "Bedrock", "`bedrock-runtime`"),
];

/// The column in which every credential is tried.
const WHOLE: &str = "whole";

const COLUMNS: [&str; 4] = [WHOLE, "stream", "token counting", "wrong credential"];

const PAGE: Page = Page {
    path: "docs/sdks.md",
    begin: "<!-- of the clouds, written by: UPDATE_DOCS=1 cargo xtask sdk -->\n",
    end: "<!-- end of what is written of the clouds -->\n",
    command: "cargo xtask sdk",
};

/// The SDKs with all of `words` in the names of their runs.
pub(super) fn chosen(words: &[String]) -> Vec<Sdk> {
    let named = |sdk: &Sdk| words.iter().all(|word| sdk.name().contains(word.as_str()));
    SDKS.into_iter().filter(named).collect()
}

/// How one script went.
pub(super) struct Outcome {
    sdk: Sdk,
    lines: Vec<Line>,
}

impl Outcome {
    fn print(&self) {
        let mut text = format!("-- {}\n", self.sdk.name());
        lines::show(&mut text, &self.lines);
        print!("{text}");
    }
}

/// Builds the simulators and runs the scripts, with the logs in `work`.
pub(super) fn run(chosen: &[Sdk], tools: &Tools, work: &Path) -> Result<Vec<Outcome>, String> {
    if chosen.is_empty() {
        return Ok(Vec::new());
    }
    // With the features of the shared build: only the example is compiled.
    let scope = ["build", "--workspace", "--all-features", "--example", "clouds", "--locked"];
    crate::cargo("sdk", &scope, &[])?;
    let simulators = &crate::target().join("debug/examples/clouds");
    let folder = &work.join("runs/clouds");
    fs::create_dir_all(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let log = &folder.join("clouds.log");
    let (_simulators, mut platforms) = Program::start(Program::kept(simulators), log, "ready")?;
    platforms.pop();
    let platforms = platforms.join("\n");
    let run = |sdk: Sdk| {
        let mut script = tools.script(sdk.script);
        // No account and no settings of this machine.
        for (name, _) in env::vars_os() {
            let vendor = ["AWS_", "AZURE_", "CLOUD_ML_"];
            let text = name.to_string_lossy().to_ascii_uppercase();
            if vendor.iter().any(|prefix| text.starts_with(prefix)) {
                script.env_remove(&name);
            }
        }
        script.env("AWS_CONFIG_FILE", "/dev/null").env("AWS_SHARED_CREDENTIALS_FILE", "/dev/null");
        script.env("SDK_CLOUDS", &platforms);
        let lines = scripts::run(script, folder).map(|mut lines| {
            lines.extend(missing(sdk, &lines).into_iter().map(Line::broken));
            lines
        });
        let lines = lines.unwrap_or_else(|message| vec![Line::broken(message)]);
        Outcome { sdk, lines }
    };
    Ok(scripts::run_all(chosen, 1, run, Outcome::print))
}

/// What the lines of a script lack.
fn missing(sdk: Sdk, lines: &[Line]) -> Vec<String> {
    let rows = ROWS.into_iter().filter(|row| row.sdk == sdk);
    let features: Vec<_> = rows.flat_map(|row| COLUMNS.map(|column| row.feature(column))).collect();
    report::missing_of(&features, lines)
}

/// Prints the table; how many checks failed.
pub(super) fn print(outcomes: &[Outcome]) -> usize {
    println!("\n{}", table(outcomes));
    outcomes.iter().map(|outcome| report::failed(&outcome.lines)).sum()
}

/// Compares `docs/sdks.md` or, with `UPDATE_DOCS=1`, writes it.
pub(super) fn keep(root: &Path, outcomes: &[Outcome]) -> Result<(), String> {
    PAGE.keep(root, &table(outcomes), |one, other| one == other)
}

/// Whether all of them ran.
pub(super) fn is_whole(chosen: &[Sdk]) -> bool {
    chosen.len() == SDKS.len()
}

fn table(outcomes: &[Outcome]) -> String {
    let mut notes = Notes::default();
    let mut out = format!("| SDK | platform | client | credentials | {} |\n", COLUMNS.join(" | "));
    out.push_str(&"|---".repeat(4 + COLUMNS.len()));
    out.push_str("|\n");
    for row in ROWS {
        let Some(outcome) = outcomes.iter().find(|outcome| outcome.sdk == row.sdk) else {
            continue;
        };
        let lines = &outcome.lines;
        let (name, version) = (row.sdk.name, lines::version(lines));
        let credentials = credentials(lines, &row.feature(WHOLE)).join(", ");
        let Row { platform, client, .. } = row;
        let _ = write!(out, "| `{name}` {version} | {platform} | {client} | {credentials} |");
        for column in COLUMNS {
            let feature = row.feature(column);
            let reasons = report::reasons(lines, &feature);
            let _ = match report::works(lines, &feature) {
                Some(false) => write!(out, " no"),
                None => write!(out, " \u{2013}"),
                // What has a note does not work in every way.
                Some(true) if reasons.is_empty() => write!(out, " yes"),
                Some(true) => write!(out, " partly"),
            };
            for why in reasons {
                let at = notes.number(format!("`{name}`, {platform}, {column}"), why);
                let _ = write!(out, " [{at}]");
            }
            out.push_str(" |");
        }
        out.push('\n');
    }
    notes.write(&mut out);
    out
}

/// The kinds of credentials with which `feature` was tried.
fn credentials<'a>(lines: &'a [Line], feature: &str) -> Vec<&'a str> {
    let tried = lines.iter().filter_map(|line| match line {
        Line::Ok { feature: of, check } | Line::Fail { feature: of, check, .. }
            if of == feature =>
        {
            Some(check.as_str())
        }
        _ => None,
    });
    tried.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scripts::lines::read;

    #[test]
    fn a_row_says_what_each_credential_could_do() {
        let text = "version\t9\nok\tbedrock: whole\taccess key\nok\tbedrock: whole\tsession token\n\
                    fail\tbedrock: stream\taccess key\twhy\nnone\tbedrock: token counting\t\tnot there";
        let lines = read(text);
        let missing = missing(BOTO3, &lines);
        assert_eq!(missing, ["the script says nothing of `bedrock: wrong credential`"]);
        let table = table(&[Outcome { sdk: BOTO3, lines }]);
        let row = table.lines().nth(2).unwrap();
        let cells = "access key, session token | yes | no | \u{2013} [1] | \u{2013} |";
        assert_eq!(row, format!("| `boto3` 9 | Bedrock | `bedrock-runtime` | {cells}"));
        assert!(
            table.ends_with("\n\n1. `boto3`, Bedrock, token counting: not there.\n"),
            "{table}"
        );
    }

    #[test]
    fn every_sdk_has_a_row() {
        assert!(SDKS.into_iter().all(|sdk| ROWS.iter().any(|row| row.sdk == sdk)));
        assert!(chosen(&["boto3".to_owned()]) == [BOTO3] && is_whole(&chosen(&[])));
    }
}
