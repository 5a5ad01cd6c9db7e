//! What the scripts print, as lines, as a table, and in `docs/sdks.md`.

use std::{collections::BTreeMap, fmt::Write as _, path::Path};

use super::{Combination, SDKS, Sdk, UPSTREAMS};
use crate::{
    page::Page,
    scripts::lines::{self, Line},
};

/// The rows of the table. Every script says something of each.
const FEATURES: [&str; 25] = [
    "chat",
    "stream",
    "tools",
    "parallel tools",
    "images",
    "thinking",
    "structured output",
    "streaming helpers",
    "conversations",
    "background",
    "websocket",
    "async",
    "models",
    "token counting",
    "embeddings",
    "errors: 400",
    "errors: 401",
    "errors: 404",
    "errors: 429",
    "errors: 5xx",
    "errors in a stream",
    "broken streams",
    "cut answers",
    "SDK retries",
    "cancellation",
];

const PAGE: Page = Page {
    path: "docs/sdks.md",
    begin: "<!-- written by: UPDATE_DOCS=1 cargo xtask sdk -->\n",
    end: "<!-- end of what is written -->\n",
    command: "cargo xtask sdk",
};

/// What the lines lack.
pub(super) fn missing(lines: &[Line]) -> Vec<String> {
    missing_of(&FEATURES, lines)
}

/// What the lines lack: a feature that no line names, or the version.
pub(super) fn missing_of(features: &[impl AsRef<str>], lines: &[Line]) -> Vec<String> {
    let features: Vec<_> = features.iter().map(AsRef::as_ref).collect();
    let says = |wanted: &str| lines.iter().any(|line| line.feature() == Some(wanted));
    let mut missing: Vec<_> = features
        .iter()
        .filter(|feature| !says(feature))
        .map(|feature| format!("the script says nothing of `{feature}`"))
        .collect();
    if !lines.iter().any(|line| matches!(line, Line::Version(_))) {
        missing.push("the script does not say the SDK's version".to_owned());
    }
    let unknown = lines.iter().filter_map(|line| match line {
        Line::Ok { feature, .. } | Line::None { feature, .. }
            if !features.contains(&feature.as_str()) =>
        {
            Some(format!("`{feature}` is not in the table"))
        }
        _ => None,
    });
    missing.extend(unknown);
    missing
}

/// How many checks failed.
pub(super) fn failed(lines: &[Line]) -> usize {
    lines.iter().filter(|line| matches!(line, Line::Fail { .. })).count()
}

/// Whether a feature works: `None` when the lines name nothing but its absence.
pub(super) fn works(lines: &[Line], wanted: &str) -> Option<bool> {
    let mut works = None;
    for line in lines {
        match line {
            Line::Ok { feature, .. } if feature == wanted => works = works.or(Some(true)),
            Line::Fail { feature, .. } if feature == wanted => works = Some(false),
            _ => {}
        }
    }
    works
}

/// Why a feature is not there, or not in every way.
pub(super) fn reasons<'a>(lines: impl IntoIterator<Item = &'a Line>, wanted: &str) -> Vec<&'a str> {
    let mut reasons = Vec::new();
    for line in lines {
        if let Line::None { feature, why } = line
            && feature == wanted
            && !reasons.contains(&why.as_str())
        {
            reasons.push(why.as_str());
        }
    }
    reasons
}

/// What stands below a table, numbered in the order in which the table comes to it.
#[derive(Debug, Default)]
pub(super) struct Notes(Vec<(String, String)>);

impl Notes {
    /// The number of a note about `of`.
    pub(super) fn number(&mut self, of: String, why: &str) -> usize {
        let note = (of, why.to_owned());
        let at = self.0.iter().position(|one| *one == note).unwrap_or_else(|| {
            self.0.push(note);
            self.0.len() - 1
        });
        at + 1
    }

    pub(super) fn write(&self, out: &mut String) {
        if !self.0.is_empty() {
            out.push('\n');
        }
        for (n, (of, why)) in self.0.iter().enumerate() {
            let _ = writeln!(out, "{}. {of}: {why}.", n + 1);
        }
    }
}

/// How one run went.
pub(super) struct Outcome {
    pub(super) of: Combination,
    pub(super) lines: Vec<Line>,
}

impl Outcome {
    /// A line for each check.
    pub(super) fn print(&self) {
        let mut text = format!("-- {}\n", self.of.name());
        lines::show(&mut text, &self.lines);
        print!("{text}");
    }
}

/// Prints the table; how many checks failed.
pub(super) fn print(outcomes: &[Outcome]) -> usize {
    println!("\n{}", table(outcomes));
    outcomes.iter().map(|outcome| failed(&outcome.lines)).sum()
}

/// Compares `docs/sdks.md` or, with `UPDATE_DOCS=1`, writes it.
pub(super) fn keep(root: &Path, outcomes: &[Outcome]) -> Result<(), String> {
    PAGE.keep(root, &table(outcomes), |one, other| one == other)
}

/// A row a feature, a column an SDK, and what the SDKs can not do.
fn table(outcomes: &[Outcome]) -> String {
    let runs = |sdk: Sdk| outcomes.iter().filter(move |outcome| outcome.of.sdk == sdk);
    let columns: Vec<Sdk> = SDKS.into_iter().filter(|sdk| runs(*sdk).next().is_some()).collect();
    let mut notes = Notes::default();
    let mut out = String::from("| |");
    for sdk in &columns {
        let version = runs(*sdk).next().map_or("?", |run| lines::version(&run.lines));
        let _ = write!(out, " `{}` {version} ({}) |", sdk.name, sdk.from);
    }
    out.push_str("\n|---|");
    out.push_str(&"---|".repeat(columns.len()));
    out.push('\n');
    for feature in FEATURES {
        let _ = write!(out, "| {feature} |");
        for sdk in &columns {
            let mut by: BTreeMap<Option<bool>, Vec<&str>> = BTreeMap::new();
            for run in runs(*sdk) {
                by.entry(works(&run.lines, feature)).or_default().push(run.of.upstream.dialect);
            }
            let working = by.get(&Some(true)).map_or(0, Vec::len);
            let cell = match (working, by.len()) {
                (0, _) if by.contains_key(&Some(false)) => "no".to_owned(),
                (0, _) => "\u{2013}".to_owned(),
                (_, 1) => "yes".to_owned(),
                _ => format!("{} only", by[&Some(true)].join(", ")),
            };
            let own = reasons(runs(*sdk).flat_map(|run| &run.lines), feature);
            // What has a note does not work in every way.
            let partly = working > 0 && by.len() == 1 && !own.is_empty();
            let _ = write!(out, " {}", if partly { "partly" } else { cell.as_str() });
            for why in own {
                let at = notes.number(format!("`{}` ({}), {feature}", sdk.name, sdk.from), why);
                let _ = write!(out, " [{at}]");
            }
            out.push_str(" |");
        }
        out.push('\n');
    }
    let providers: Vec<_> = UPSTREAMS.iter().map(|upstream| upstream.dialect).collect();
    let _ = write!(out, "\n\"yes\": in front of each provider ({}).\n", providers.join(", "));
    notes.write(&mut out);
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scripts::lines::read;

    #[test]
    fn lines_are_read_and_what_is_missing_is_named() {
        let lines = read("version\t1.2\nok\tchat\ta\nfail\ttools\tb\twhy\nnone\tmodels\t\tno\nhm");
        assert_eq!(lines[0], Line::Version("1.2".into()));
        assert_eq!(
            lines[2],
            Line::Fail { feature: "tools".into(), check: "b".into(), why: "why".into() }
        );
        assert_eq!(lines[4], Line::Note("hm".into()));
        let missing = missing(&lines);
        assert_eq!(missing.len(), FEATURES.len() - 3);
        assert!(missing.iter().all(|what| !what.contains("`chat`")), "{missing:?}");
    }

    #[test]
    fn a_cell_is_a_yes_only_when_every_provider_says_so() {
        let outcome = |upstream: usize, lines: &str| Outcome {
            of: Combination { sdk: SDKS[0], upstream: UPSTREAMS[upstream] },
            lines: read(lines),
        };
        let fine = "version\t9\nok\tchat\tx\nok\ttools\tx\nnone\timages\t\tit has none";
        let row = |outcomes: &[Outcome], feature: &str| {
            let start = format!("| {feature} |");
            table(outcomes).lines().find(|line| line.starts_with(&start)).unwrap().to_owned()
        };
        let same = [outcome(0, fine), outcome(1, fine)];
        assert_eq!(row(&same, "chat"), "| chat | yes |");
        assert_eq!(row(&same, "images"), "| images | \u{2013} [1] |");
        let partly = [outcome(0, "ok\tchat\tx\nnone\tchat\t\tnot always")];
        assert_eq!(row(&partly, "chat"), "| chat | partly [1] |");
        let one = [outcome(0, fine), outcome(1, "fail\tchat\tx\ty\nok\tchat\tz")];
        assert_eq!(row(&one, "chat"), "| chat | openai only |");
        let none = [outcome(0, "fail\tchat\tx\ty\nok\tchat\tz")];
        assert_eq!(row(&none, "chat"), "| chat | no |");
    }
}
