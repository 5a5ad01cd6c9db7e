//! A part of `cargo xtask lint`: a public type's name is one type in the workspace.

use std::collections::BTreeMap;

use crate::{words, workspace};

/// Names that stand for one role in each crate, or for the same idea twice: the simulator has its
/// own usage and stops, so that it does not share a mistake with what it tests.
const SHARED: [&str; 4] = ["PolicyError", "ResponseFuture", "Stop", "Usage"];

/// Compares the types of all crates.
pub(crate) fn run() -> Result<(), String> {
    let root = workspace::root();
    let mut files = Vec::new();
    words::collect(&root.join("crates"), &mut files)?;
    let mut declared: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for file in files.iter().filter(|file| file.iter().any(|part| part == "src")) {
        for name in types(&workspace::read(file)?).filter(|name| !SHARED.contains(name)) {
            declared.entry(name.to_owned()).or_default().push(file.display().to_string());
        }
    }
    println!("== names: {} public types", declared.len());
    let twice = declared.iter().filter(|(_, files)| files.len() > 1);
    let twice: Vec<_> = twice
        .map(|(name, files)| format!("`{name}` is several types: {}", files.join(", ")))
        .collect();
    if twice.is_empty() { Ok(()) } else { Err(twice.join("\n")) }
}

/// The public types of a source file, outside of modules in it: those at the beginning of a line,
/// and those indented once in a `pin_project!` that is at the beginning of a line.
fn types(source: &str) -> impl Iterator<Item = &str> {
    let kinds = ["pub struct ", "pub enum ", "pub trait ", "pub type "];
    let mut pinned = false;
    source.lines().filter_map(move |line| {
        if line.starts_with(['p', '}']) {
            pinned = line.ends_with("pin_project! {");
        }
        let line = if pinned { line.strip_prefix("    ").unwrap_or(line) } else { line };
        let rest = kinds.iter().find_map(|kind| line.strip_prefix(kind))?;
        rest.split(|c: char| !c.is_alphanumeric()).next()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn public_types_are_found() {
        let source = "pub struct A<T>(T);\nstruct B;\npub(crate) enum C {}\npub trait D: E {\n    pub struct F;\n";
        assert_eq!(types(source).collect::<Vec<_>>(), ["A", "D"]);
        let source = "\
            pin_project! {\n    /// A.\n    pub struct A<T> {\n        x: T,\n    }\n}\n\
            mod b {\n    pub struct B;\n}\npin_project_lite::pin_project! {\n    pub struct C {\n";
        assert_eq!(types(source).collect::<Vec<_>>(), ["A", "C"]);
    }
}
