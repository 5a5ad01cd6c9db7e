//! The tables of `data`: tools, and lists of names.

use std::sync::LazyLock;

use crate::{Kind, ToolSpec};

const TOOLS: &str = include_str!("../data/tools.txt");
const NAMES: &str = include_str!("../data/names.txt");

/// Lists in which names are looked up.
pub(crate) static TRIVIAL_RESULTS: LazyLock<Vec<&str>> = LazyLock::new(|| list("trivial_results"));
pub(crate) static OUTPUT_FRAMES: LazyLock<Vec<&str>> = LazyLock::new(|| list("output_frames"));
pub(crate) static TEMPORARY_PATHS: LazyLock<Vec<&str>> = LazyLock::new(|| list("temporary_paths"));
pub(crate) static ID_PREFIXES: LazyLock<Vec<&str>> = LazyLock::new(|| list("id_prefixes"));
pub(crate) static AUTOMATIC_MESSAGES: LazyLock<Vec<&str>> =
    LazyLock::new(|| list("automatic_messages"));
pub(crate) static TIME_UNITS: LazyLock<Vec<&str>> = LazyLock::new(|| list("time_units"));

fn lines(text: &'static str) -> impl Iterator<Item = &'static str> {
    text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'))
}

/// The entries of a list of `data/names.txt`; a test reads all of them.
pub(crate) fn list(name: &str) -> Vec<&'static str> {
    let unquoted = |line: &'static str| {
        line.strip_prefix('"').and_then(|line| line.strip_suffix('"')).unwrap_or(line)
    };
    lines(NAMES)
        .skip_while(|line| line.strip_prefix("== ") != Some(name))
        .skip(1)
        .take_while(|line| !line.starts_with("== "))
        .map(unquoted)
        .collect()
}

pub(crate) fn strings(name: &str) -> Vec<String> {
    list(name).into_iter().map(str::to_owned).collect()
}

/// The tools of `data/tools.txt`.
pub(crate) fn tools() -> Vec<ToolSpec> {
    lines(TOOLS).filter_map(tool).collect()
}

fn tool(line: &str) -> Option<ToolSpec> {
    let mut fields = line.split_whitespace();
    let mut tool = ToolSpec::new(fields.next()?, Kind::named(fields.next()?)?);
    tool.usual = match fields.next()? {
        "-" => None,
        limit => Some(limit.parse().ok()?),
    };
    Some(tool.with_aliases(fields))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_is_read() {
        for line in lines(TOOLS) {
            assert!(tool(line).is_some(), "{line}");
        }
        let names: Vec<_> = lines(NAMES).filter_map(|line| line.strip_prefix("== ")).collect();
        let entries: usize = names.iter().map(|name| list(name).len()).sum();
        assert_eq!(
            entries + names.len(),
            lines(NAMES).count(),
            "every list has a name, and none is there twice"
        );
        for name in names {
            let list = list(name);
            let mut once = list.clone();
            once.sort_unstable();
            once.dedup();
            assert!(
                !list.is_empty() && once.len() == list.len(),
                "{name}: empty, or an entry twice"
            );
            let lower = list.iter().all(|entry| entry.to_lowercase() == **entry);
            assert!(lower, "{name}: in lower case");
        }
    }
}
