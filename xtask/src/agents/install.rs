//! The agents at their pinned versions, under `target/agents`.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

use super::Agent;
use crate::{
    program::{output, remove},
    workspace::{read, write},
};

const PINS: &str = "tests/agents/pins.txt";
const LOCKS: &str = "tests/agents/lock";

/// The versions of Python that aider's packages are made for: from the first, before the second.
const PYTHON: [(u32, u32); 2] = [(3, 10), (3, 13)];

const WAY_OUT: &str = "or set STEADFAST_SKIP_AGENTS=1 to leave the agents out";

/// A line of `pins.txt`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Pin {
    pub(super) name: String,
    pub(super) registry: String,
    pub(super) package: String,
    pub(super) version: String,
}

/// Where the programs are.
#[derive(Debug)]
pub(super) struct Installed {
    pub(super) pins: Vec<Pin>,
    work: PathBuf,
}

impl Installed {
    pub(super) fn version(&self, agent: &Agent) -> &str {
        let pin = self.pins.iter().find(|pin| pin.name == agent.name);
        pin.map_or("?", |pin| &pin.version)
    }

    /// The folder with Node.
    pub(super) fn node(&self) -> PathBuf {
        folder(&self.work, "node")
    }

    /// The `PATH` of an agent: itself, Node, and the system's shell.
    pub(super) fn path(&self, agent: &str) -> String {
        let folders = [folder(&self.work, agent), folder(&self.work, "node")];
        let folders: Vec<String> =
            folders.iter().map(|folder| folder.display().to_string()).collect();
        format!("{}:/usr/local/bin:/usr/bin:/bin", folders.join(":"))
    }
}

/// The folder with the program of this name.
fn folder(work: &Path, name: &str) -> PathBuf {
    let inside = work.join(name);
    if name == "aider" { inside.join("bin") } else { inside.join("node_modules/.bin") }
}

/// What is pinned, in the order of the file.
pub(super) fn pins(root: &Path) -> Result<Vec<Pin>, String> {
    let text = read(&root.join(PINS))?;
    let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines
        .map(|line| match line.split_whitespace().collect::<Vec<_>>()[..] {
            [name, registry @ ("npm" | "pypi"), package, version] => Ok(Pin {
                name: name.to_owned(),
                registry: registry.to_owned(),
                package: package.to_owned(),
                version: version.to_owned(),
            }),
            _ => Err(format!("{PINS}: `{line}` is not: name, npm or pypi, package, version")),
        })
        .collect()
}

/// Installs Node and the agents, where they are not there already.
pub(super) fn all(root: &Path, agents: &[Agent]) -> Result<Installed, String> {
    let installed = Installed { pins: pins(root)?, work: root.join("target/agents") };
    let needed = |pin: &&Pin| pin.name == "node" || agents.iter().any(|a| a.name == pin.name);
    for pin in installed.pins.iter().filter(needed) {
        let made = match pin.registry.as_str() {
            "npm" => npm(root, &installed, pin),
            _ => pypi(root, &installed, pin),
        };
        made.map_err(|error| format!("{error}\n(this needs the network, once), {WAY_OUT}"))?;
    }
    Ok(installed)
}

/// Whether the locks are to be written instead of read.
fn updates() -> bool {
    env::var_os("UPDATE_PINS").is_some_and(|value| value == "1")
}

fn npm(root: &Path, installed: &Installed, pin: &Pin) -> Result<(), String> {
    let (name, package, version) = (&pin.name, &pin.package, &pin.version);
    let folder = installed.work.join(name);
    let lock = root.join(LOCKS).join(format!("{name}.json"));
    let manifest = format!(
        "{{\n  \"name\": \"steadfast-agents-{name}\",\n  \"private\": true,\n  \"dependencies\": \
         {{ \"{package}\": \"{version}\" }}\n}}\n"
    );
    let npmrc = read(&root.join("tests/sdk/node/.npmrc"))?;
    let locked = if updates() { String::new() } else { read(&lock)? };
    let (stamp, wanted) = (folder.join("installed"), format!("{manifest}{npmrc}{locked}"));
    if read(&stamp).is_ok_and(|there| there == wanted) {
        return Ok(());
    }
    println!("== agents: npm install {package}@{version}");
    remove(&folder)?;
    write(&folder.join("package.json"), &manifest)?;
    write(&folder.join(".npmrc"), &npmrc)?;
    let mut command = Command::new("npm");
    command.current_dir(&folder).env("PATH", npm_path(installed));
    // `npm ci` wants a lock with every platform's optional packages, which not every registry has.
    let install = command.args(["install", "--loglevel=error"]);
    let written = folder.join("package-lock.json");
    if locked.is_empty() {
        output(install)?;
        write(&lock, &read(&written)?)?;
    } else {
        write(&written, &locked)?;
        output(install)?;
        if read(&written)? != locked {
            return Err(format!("npm installed others than those in {}", lock.display()));
        }
    }
    checked(installed, pin)?;
    write(&stamp, &format!("{manifest}{npmrc}{}", read(&lock)?))
}

/// npm is the system's; the Node under it and under the scripts of packages is the pinned one, once it is
/// there.
fn npm_path(installed: &Installed) -> String {
    let own = env::var("PATH").unwrap_or_default();
    format!("{}:{own}", folder(&installed.work, "node").display())
}

fn pypi(root: &Path, installed: &Installed, pin: &Pin) -> Result<(), String> {
    let venv = installed.work.join(&pin.name);
    let lock = root.join(LOCKS).join(format!("{}.txt", pin.name));
    let wanted_package = format!("{}=={}", pin.package, pin.version);
    let locked = if updates() { String::new() } else { read(&lock)? };
    let stamp = venv.join("installed");
    if !locked.is_empty() && read(&stamp).is_ok_and(|there| there == locked) {
        return Ok(());
    }
    println!("== agents: pip install {wanted_package}");
    remove(&venv)?;
    output(Command::new(python()?).args(["-m", "venv"]).arg(&venv))?;
    let inside = venv.join("bin/python");
    let pip = ["-m", "pip", "--quiet", "--disable-pip-version-check", "--no-input"];
    let mut install = Command::new(&inside);
    install.args(pip).arg("install");
    if locked.is_empty() {
        output(install.arg(&wanted_package))?;
        write(&lock, &output(Command::new(&inside).args(pip).arg("freeze"))?)?;
    } else {
        // Without dependencies: what is not locked is not installed, and `check` misses it.
        output(install.args(["--no-deps", "-r"]).arg(&lock))?;
        output(Command::new(&inside).args(pip).arg("check"))?;
    }
    let locked = read(&lock)?;
    if !locked.lines().any(|line| line == wanted_package) {
        return Err(format!("{}: it does not have {wanted_package}", lock.display()));
    }
    checked(installed, pin)?;
    write(&stamp, &locked)
}

/// A Python that aider's packages are made for.
fn python() -> Result<String, String> {
    let [oldest, beyond] = PYTHON;
    let probe = "import sys, venv, ensurepip; print('%d.%d' % sys.version_info[:2])";
    let own = env::var("STEADFAST_PYTHON").ok();
    let names = ["python3", "python3.12", "python3.11", "python3.10"].map(str::to_owned);
    let fits = |name: &String| {
        let version = output(Command::new(name).args(["-c", probe])).unwrap_or_default();
        let mut numbers = version.trim().split('.').map_while(|number| number.parse().ok());
        let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
        (oldest..beyond).contains(&version)
    };
    own.into_iter().chain(names).find(fits).ok_or_else(|| {
        format!(
            "aider needs Python {}.{} or newer, before {}.{}, with venv; name one in \
             STEADFAST_PYTHON",
            oldest.0, oldest.1, beyond.0, beyond.1
        )
    })
}

/// What was installed is what is pinned: an agent may be there and yet another than its package says.
fn checked(installed: &Installed, pin: &Pin) -> Result<(), String> {
    let program = folder(&installed.work, &pin.name).join(&pin.name);
    let home = installed.work.join("home");
    fs::create_dir_all(&home).map_err(|error| format!("{}: {error}", home.display()))?;
    let mut command = Command::new(&program);
    command.arg("--version").env_clear();
    command.env("PATH", installed.path(&pin.name)).env("HOME", &home);
    let printed = command.output().map_err(|error| format!("{}: {error}", program.display()))?;
    // Not all of them print it on standard output.
    let found = [printed.stdout, printed.stderr].concat();
    let found = String::from_utf8_lossy(&found);
    if found.contains(&pin.version) {
        return Ok(());
    }
    Err(format!("{} {} was to be installed; it reports {}", pin.name, pin.version, found.trim()))
}
