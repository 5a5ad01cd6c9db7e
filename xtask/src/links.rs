//! A part of `cargo xtask docs`: a file that a page names is there.

use std::path::{Path, PathBuf};

use crate::{words, workspace};

/// Where pages are, from the root.
const PAGES: [&str; 8] = [
    "README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "docs",
    "crates",
    "examples",
    "bench",
];

/// The page that names source files by the end of their paths.
const BY_NAME: &str = "docs/architecture.md";

/// Checks the links of every page, and the files that the architecture names.
pub(crate) fn run() -> Result<(), String> {
    let root = workspace::root();
    let mut files = Vec::new();
    for path in PAGES {
        words::collect(&root.join(path), &mut files)?;
    }
    let (pages, sources): (Vec<_>, Vec<_>) =
        files.iter().partition(|file| file.extension().is_some_and(|extension| extension == "md"));
    let mut missing = Vec::new();
    for page in &pages {
        let text = workspace::read(page)?;
        let folder = page.parent().unwrap_or(root);
        let broken = links(&text).filter(|link| !folder.join(link).exists());
        missing.extend(broken.map(|link| format!("{}: there is no {link}", page.display())));
    }
    let text = workspace::read(&root.join(BY_NAME))?;
    let unknown = source_files(&text).filter(|name| !is_a_source(name, &sources));
    missing.extend(unknown.map(|name| format!("{BY_NAME}: no source file ends in {name}")));
    println!("== docs: {} pages, {} files missing", pages.len(), missing.len());
    if missing.is_empty() { Ok(()) } else { Err(missing.join("\n")) }
}

/// The files that a page links, without what they say of a place in the file.
fn links(page: &str) -> impl Iterator<Item = &str> {
    let targets = page.split("](").skip(1).filter_map(|rest| rest.split_once(')'));
    targets.filter_map(|(target, _)| {
        let file = target.split('#').next().unwrap_or_default();
        (!file.is_empty() && !file.contains(':') && !file.contains(' ')).then_some(file)
    })
}

/// The names in code quotes that are a Rust file's. Of `dialect/<name>/a.rs` it is the end.
fn source_files(page: &str) -> impl Iterator<Item = &str> {
    let quoted = page.split('`').skip(1).step_by(2);
    let names = quoted.filter(|name| name.ends_with(".rs") && !name.contains(char::is_whitespace));
    names.map(|name| name.rsplit_once(">/").map_or(name, |(_, end)| end))
}

fn is_a_source(name: &str, sources: &[&PathBuf]) -> bool {
    sources.iter().any(|source| source.ends_with(Path::new(name)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_is_a_file_of_ours() {
        let page = "[a](a.md#part) and [b](https://b.example) and [c](#here), ![d](e/f.png)";
        assert_eq!(links(page).collect::<Vec<_>>(), ["a.md", "e/f.png"]);
    }

    #[test]
    fn a_source_file_is_named_by_the_end_of_its_path() {
        let named: Vec<_> = source_files("`retry/src/lib.rs`, `Call`, `x/<name>/b.rs`").collect();
        assert_eq!(named, ["retry/src/lib.rs", "b.rs"]);
        let source = PathBuf::from("/x/crates/retry/src/lib.rs");
        assert!(is_a_source("retry/src/lib.rs", &[&source]));
        assert!(!is_a_source("try/src/lib.rs", &[&source]), "whole names only");
        assert!(!is_a_source("b.rs", &[&source]));
    }
}
