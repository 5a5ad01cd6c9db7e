//! `cargo xtask examples`: each folder in `examples` is a program that ends with an error when
//! anything goes otherwise than it says.

use std::{path::Path, process::Command};

use crate::{program, workspace};

/// The page that lists them.
const INDEX: &str = "README.md";

/// Runs them all.
pub(crate) fn run() -> Result<(), String> {
    let folder = workspace::root().join("examples");
    check_index(&folder)?;
    let programs = program::built("examples")?;
    for package in packages(&folder)? {
        let mut command = Command::new(programs.join(&package));
        command.current_dir(workspace::root());
        crate::run("examples", &package, &mut command)?;
    }
    Ok(())
}

fn packages(folder: &Path) -> Result<Vec<String>, String> {
    let mut packages = Vec::new();
    for example in workspace::folders(folder)? {
        let manifest = workspace::read(&example.join("Cargo.toml"))?;
        let name = workspace::value(&manifest, "package", "name");
        packages.push(name.ok_or(format!("{} has no name", example.display()))?.to_owned());
    }
    Ok(packages)
}

/// Every example has its command on the page.
fn check_index(folder: &Path) -> Result<(), String> {
    let page = workspace::read(&folder.join(INDEX))?;
    let missing: Vec<String> = packages(folder)?
        .into_iter()
        .filter(|package| !page.contains(&format!("`cargo run -p {package}`")))
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    let (page, missing) = (folder.join(INDEX), missing.join(", "));
    Err(format!("{} does not say how to run {missing}: add `cargo run -p ...`", page.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_index_lists_every_example() {
        check_index(&workspace::root().join("examples")).unwrap();
    }
}
