//! `cargo xtask deny`: what the dependencies are, as `deny.toml` allows.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
    time::SystemTime,
};

use crate::{tool::Tool, workspace};

const CARGO_DENY: Tool = Tool { name: "cargo-deny", version: "0.20.2" };

/// Where cargo-deny looks for advisories: `db-path` of deny.toml, and the name that it gives the
/// database of its default address.
const DATABASE: &str = "target/advisories/advisory-db-3157b0e258782691";

/// Checks bans, licences and sources, which need no network, and advisories where there are any.
pub(crate) fn run() -> Result<(), String> {
    check(&["--locked", "check", "bans", "licenses", "sources"])?;
    let Some(database) = env::var_os("ADVISORY_DB") else {
        println!(
            "deny: advisories were not checked; set ADVISORY_DB to a clone of https://github.com/rustsec/advisory-db"
        );
        return Ok(());
    };
    let database = PathBuf::from(database);
    println!("== deny: advisories of {}, {}", database.display(), date(&database)?);
    install(&database, &workspace::root().join(DATABASE))?;
    check(&["--locked", "--offline", "check", "advisories"])
}

fn check(args: &[&str]) -> Result<(), String> {
    let mut command = Command::new(CARGO_DENY.path()?);
    command.args(args).current_dir(workspace::root());
    crate::run("deny", &format!("cargo deny {}", args.join(" ")), &mut command)
}

/// Copies the advisories to where cargo-deny reads them without fetching anything.
fn install(database: &Path, to: &Path) -> Result<(), String> {
    if to.exists() {
        fs::remove_dir_all(to)
            .map_err(|error| format!("can not remove {}: {error}", to.display()))?;
    }
    for file in files(&database.join("crates"))? {
        let name = file.strip_prefix(database).unwrap_or(&file);
        workspace::write(&to.join(name), &workspace::read(&file)?)?;
    }
    // Its time is taken for that of the last fetch.
    workspace::write(&to.join(".git/FETCH_HEAD"), "")
}

/// How old the database is: its last commit, or its newest file where it is no clone.
fn date(database: &Path) -> Result<String, String> {
    if database.join(".git").exists() {
        let mut log = Command::new("git");
        log.arg("-C").arg(database).args(["log", "-1", "--format=%cs"]);
        if let Some(output) = log.output().ok().filter(|output| output.status.success()) {
            return Ok(format!("last commit {}", String::from_utf8_lossy(&output.stdout).trim()));
        }
    }
    let modified = |file: &PathBuf| fs::metadata(file).and_then(|file| file.modified()).ok();
    let newest: Option<SystemTime> =
        files(&database.join("crates"))?.iter().filter_map(modified).max();
    let age = newest.and_then(|newest| newest.elapsed().ok());
    let age = age.ok_or_else(|| format!("ADVISORY_DB: {} is empty", database.display()))?;
    Ok(format!("newest file {} days old", age.as_secs() / 86_400))
}

/// Every file in `folder` and its folders.
fn files(folder: &Path) -> Result<Vec<PathBuf>, String> {
    let entries = fs::read_dir(folder).map_err(|error| {
        format!("ADVISORY_DB is no clone of rustsec/advisory-db: {}: {error}", folder.display())
    })?;
    let mut found = Vec::new();
    for path in entries.filter_map(|entry| Some(entry.ok()?.path())) {
        if path.is_dir() {
            found.extend(files(&path)?);
        } else {
            found.push(path);
        }
    }
    Ok(found)
}
