//! `cargo xtask browser`: the dashboard in a real Chromium, in front of simulated providers.
//!
//! The page that is checked in is the one that its sources build to; an outage is watched there from red to green, every
//! action is pressed, and axe has nothing against it. `STEADFAST_GATEWAY` is a binary that is built already.

use std::{
    env,
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use crate::{
    agents,
    fleet::STORE,
    program::{self, output},
    tool,
    workspace::{self, read, write},
};

const PAGE: &str = "crates/gateway/web";
const CHECKS: &str = "tests/browser";

/// Where the pictures of the documentation are.
const PICTURES: &str = "docs/pictures";

/// The files of a page that is built.
const BUILT: [&str; 3] = ["index.html", "app.js", "app.css"];

pub(crate) fn run(arguments: &[String]) -> Result<(), String> {
    let root = workspace::root();
    let path = tools(root)?;
    let work = root.join("target/browser");
    fs::create_dir_all(&work).map_err(|error| format!("{}: {error}", work.display()))?;
    built(root, &work, &path)?;
    let checks = installed(&root.join(CHECKS), &work.join("checks"), &path)?;
    let (script, last) = match arguments {
        [] => ("main.mjs", None),
        [pictures] if pictures == "--pictures" => ("main.mjs", Some(root.join(PICTURES))),
        [load] if load == "--load" => ("load.mjs", None),
        [soak] if soak == "--soak" => ("soak.mjs", None),
        [soak, minutes] if soak == "--soak" => ("soak.mjs", Some(minutes.into())),
        _ => {
            let help = "`browser` takes `--pictures`, `--load`, `--soak [minutes]` or nothing";
            return Err(help.to_owned());
        }
    };
    // What is measured is what users run.
    let binary = match env::var_os("STEADFAST_GATEWAY") {
        Some(binary) => binary.into(),
        None if script == "main.mjs" => program::gateway("browser")?,
        None => released()?,
    };
    let mut node = Command::new("node");
    node.arg(checks.join(script)).arg(binary).arg(work.join("run")).args(last).env("PATH", &path);
    crate::run("browser", &format!("node {CHECKS}/{script}"), &mut node)
}

fn released() -> Result<PathBuf, String> {
    let scope = ["build", "--release", "--locked", "-p", "steadfast-gateway"];
    crate::cargo("browser", &scope, &[])?;
    Ok(crate::target().join("release/steadfast"))
}

/// Node, npm and Chromium: the path with them.
fn tools(root: &'static Path) -> Result<OsString, String> {
    tool::debian("chromium", "chromium")?;
    tool::debian(STORE.0, STORE.1)?;
    let node = agents::node(root)?;
    let path = env::var_os("PATH").unwrap_or_default();
    let folders = std::iter::once(node).chain(env::split_paths(&path));
    env::join_paths(folders).map_err(|error| error.to_string())
}

/// The page that is checked in is what its sources build to, and their types are right.
fn built(root: &Path, work: &Path, path: &OsString) -> Result<(), String> {
    let page = installed(&root.join(PAGE), &work.join("page"), path)?;
    for script in ["check", "build"] {
        println!("== browser: npm run {script}");
        let mut npm = Command::new("npm");
        output(npm.args(["run", "--silent", script]).env("PATH", path).current_dir(&page))?;
    }
    let own = root.join(PAGE).join("dist");
    for name in BUILT {
        if read(&own.join(name))? != read(&page.join("dist").join(name))? {
            let help = "run `npm ci && npm run build` there, and check in what that writes";
            return Err(format!("{PAGE}/dist/{name} is not what its sources build to; {help}"));
        }
    }
    Ok(())
}

/// A copy of the folder `from` at `to`, with the packages that its lock file names. The sources stay as they are.
fn installed(from: &Path, to: &Path, path: &OsString) -> Result<PathBuf, String> {
    copy(from, to)?;
    println!("== browser: npm ci ({})", to.display());
    let mut npm = Command::new("npm");
    let args = ["ci", "--ignore-scripts", "--loglevel=error"];
    output(npm.args(args).env("PATH", path).current_dir(to))?;
    Ok(to.to_owned())
}

/// Copies a folder, without what npm has installed and a build has written.
fn copy(from: &Path, to: &Path) -> Result<(), String> {
    let wrong = |path: &Path, error: std::io::Error| format!("{}: {error}", path.display());
    fs::create_dir_all(to).map_err(|error| wrong(to, error))?;
    for entry in fs::read_dir(from).map_err(|error| wrong(from, error))? {
        let entry = entry.map_err(|error| wrong(from, error))?;
        let (path, name) = (entry.path(), entry.file_name());
        if name == "node_modules" || name == "dist" {
            continue;
        }
        if path.is_dir() {
            copy(&path, &to.join(name))?;
        } else {
            write(&to.join(name), &read(&path)?)?;
        }
    }
    Ok(())
}
