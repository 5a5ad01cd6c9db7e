//! What everything costs, into `docs/performance.md`: the tables of a whole run. A run that is
//! shorter or leaves parts out only prints.

use std::{fs, path::Path, process::Command};

/// Where the tables go: between two marks each, what is around them is written by hand.
const PAGE: &str = "docs/performance.md";

/// The benches: the mark, the binary, what it is given.
const BENCHES: [(&str, &str); 2] =
    [("layers", "steadfast-bench-layers"), ("gateway", "steadfast-bench-gateway")];

/// The options of a bench that measure less than the page shows.
const PARTIAL: [&str; 2] = ["--quick", "--only"];

/// Builds the benches once, runs them, prints the tables and puts them into the page. `rest` goes
/// to the benches: `--quick` is a few minutes, `--only PART,...` a part of the gateway's tables;
/// with either the page stays as it is. `--peers` installs peer gateways beside ours. With `layers`
/// or `gateway` among it, that one alone.
pub(crate) fn run(rest: &[String]) -> Result<(), String> {
    let (named, options): (Vec<_>, Vec<_>) =
        rest.iter().partition(|word| BENCHES.iter().any(|(mark, _)| mark == word));
    let mut build = vec!["build", "--release", "--locked", "-p", "steadfast-gateway"];
    for (_, package) in BENCHES {
        build.extend(["-p", package]);
    }
    crate::cargo("bench", &build, &[])?;
    let built = crate::target().join("release");
    let publishes = is_published(rest);
    // Before anything is written.
    let commit = commit();
    for (mark, binary) in BENCHES {
        if !named.is_empty() && !named.iter().any(|name| *name == mark) {
            continue;
        }
        // Only the gateway has peers that are processes of their own.
        let options = options.iter().filter(|word| mark == "gateway" || word.as_str() != "--peers");
        eprintln!("bench: {mark}");
        let output = Command::new(built.join(binary))
            .args(options)
            .stderr(std::process::Stdio::inherit())
            .output()
            .map_err(|error| format!("{binary}: {error}"))?;
        if !output.status.success() {
            return Err(format!("{binary} failed: {}", output.status));
        }
        let tables = String::from_utf8(output.stdout).map_err(|error| error.to_string())?;
        println!("{tables}");
        if publishes {
            write(mark, &format!("{}\n\n{}", circumstances(&commit), tables.trim()))?;
        }
    }
    if !publishes {
        println!("bench: {PAGE} is unchanged, because of {}", PARTIAL.join(" or "));
    }
    Ok(())
}

/// Whether the tables of a run with these arguments are those of the page.
fn is_published(arguments: &[String]) -> bool {
    !arguments.iter().any(|word| PARTIAL.contains(&word.as_str()))
}

/// Puts `text` between the marks of `mark`.
fn write(mark: &str, text: &str) -> Result<(), String> {
    let page = fs::read_to_string(PAGE).map_err(|error| format!("{PAGE}: {error}"))?;
    let (begin, end) = (format!("<!-- bench:{mark} -->\n"), format!("<!-- /bench:{mark} -->"));
    let (before, rest) =
        page.split_once(&begin).ok_or(format!("{PAGE} has no line `{}`", begin.trim()))?;
    let (_, after) = rest.split_once(&end).ok_or(format!("{PAGE} has no `{end}`"))?;
    fs::write(PAGE, format!("{before}{begin}\n{text}\n\n{end}{after}"))
        .map_err(|error| format!("{PAGE}: {error}"))
}

/// What `program` prints; `None` when that is nothing.
fn output(program: &str, args: &[&str]) -> Option<String> {
    let output = Command::new(program).args(args).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?.trim().to_owned();
    (output.status.success() && !text.is_empty()).then_some(text)
}

fn unknown() -> String {
    "unknown".to_owned()
}

/// Of what.
fn commit() -> String {
    let mut commit = output("git", &["rev-parse", "--short", "HEAD"]).unwrap_or_else(unknown);
    if Path::new(".git").exists() && output("git", &["status", "--porcelain"]).is_some() {
        commit.push_str(" and changes");
    }
    commit
}

/// On what, of what, when.
fn circumstances(commit: &str) -> String {
    let cpu = fs::read_to_string("/proc/cpuinfo").ok().and_then(|info| {
        let line = info.lines().find(|line| line.starts_with("model name"))?;
        Some(line.split_once(':')?.1.trim().to_owned())
    });
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    format!(
        "Commit {commit}; {} ({cores} cores seen); {}; {}; load {}.",
        cpu.unwrap_or_else(unknown),
        output("uname", &["-s"]).unwrap_or_else(unknown),
        output("rustc", &["--version"]).unwrap_or_else(unknown),
        load.split(' ').next().unwrap_or("unknown"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_whole_run_is_published() {
        let published = |line: &str| {
            is_published(&line.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
        };
        assert!(published("") && published("layers") && published("gateway --peers"));
        assert!(!published("--quick") && !published("gateway --quick"));
        assert!(!published("gateway --only memory --peers"));
    }
}
