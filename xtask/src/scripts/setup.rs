//! Python, Node and the pinned packages.

use std::{
    env,
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use crate::{
    program::{output, remove},
    workspace::{read, write},
};

/// The oldest Python the pinned packages need no others on.
const PYTHON: (u32, u32) = (3, 11);
/// The oldest Node that scripts are run on here.
const NODE: u32 = 20;

/// Where the modules are that all scripts share, in `python` and `node`.
const SHARED: &str = "tests/sdk";

/// What is to be installed.
#[derive(Clone, Debug)]
pub(crate) struct Kit {
    /// The task, for messages.
    pub(crate) task: &'static str,
    /// The variable that leaves the task out.
    pub(crate) skip: &'static str,
    pub(crate) root: &'static Path,
    /// The folder with the scripts and what is pinned, in `python` and `node`, from the root.
    pub(crate) pinned: &'static str,
    /// Where it is installed.
    pub(crate) work: PathBuf,
    /// The folder with the program `node`; the system's, if there is none.
    pub(crate) node: Option<PathBuf>,
}

impl Kit {
    fn way_out(&self) -> String {
        format!("or set {}=1 to leave this out", self.skip)
    }

    /// The `PATH` with Node in it.
    fn path(&self) -> OsString {
        let own = env::var_os("PATH").unwrap_or_default();
        let folders = self.node.clone().into_iter().chain(env::split_paths(&own));
        env::join_paths(folders).unwrap_or(own)
    }

    fn program(&self, name: &str) -> Command {
        let mut command = Command::new(name);
        command.env("PATH", self.path());
        command
    }
}

/// What scripts are run with.
#[derive(Debug)]
pub(crate) struct Tools {
    kit: Kit,
    python: PathBuf,
    node: PathBuf,
}

impl Tools {
    /// The command that runs a script, which is named from where the pinned are.
    pub(crate) fn script(&self, script: &str) -> Command {
        let mut command;
        if let Some(script) = script.strip_prefix("node/") {
            command = self.kit.program("node");
            command.arg(self.node.join(script));
        } else {
            command = Command::new(&self.python);
            command.arg(self.kit.root.join(self.kit.pinned).join(script));
            command.env("PYTHONPATH", self.kit.root.join(SHARED).join("python"));
            command.env("PYTHONDONTWRITEBYTECODE", "1").env("PYTHONUTF8", "1");
        }
        // The base URL is all that is changed: nothing of this machine's accounts or proxies.
        for (name, _) in env::vars_os() {
            let text = name.to_string_lossy().to_ascii_uppercase();
            let vendor = ["OPENAI_", "ANTHROPIC_", "GOOGLE_", "GEMINI_"];
            if vendor.iter().any(|prefix| text.starts_with(prefix)) || text.ends_with("_PROXY") {
                command.env_remove(&name);
            }
        }
        command
    }
}

/// Installs what is pinned, unless it is there already.
pub(crate) fn tools(kit: Kit) -> Result<Tools, String> {
    let python = python(&kit)?;
    let node = packages(&kit)?;
    Ok(Tools { kit, python, node })
}

fn python(kit: &Kit) -> Result<PathBuf, String> {
    let venv = &kit.work.join("python");
    let (major, minor) = PYTHON;
    let probe = "import sys, venv, ensurepip; print('%d.%d' % sys.version_info[:2])";
    let mut found = Vec::new();
    let candidates = env::var("STEADFAST_PYTHON").ok();
    let candidates =
        candidates.into_iter().chain(["python3".to_owned(), "python".to_owned()]).find(|name| {
            let version = output(Command::new(name).args(["-c", probe])).ok();
            let new_enough = version.as_deref().is_some_and(|version| {
                let mut numbers = version.trim().split('.').map_while(|n| n.parse::<u32>().ok());
                (numbers.next(), numbers.next()) >= (Some(major), Some(minor))
            });
            found.extend(version.map(|version| format!("{name} {}", version.trim())));
            new_enough
        });
    let Some(name) = candidates else {
        let found = match found.is_empty() {
            true => "none with its modules venv and ensurepip was found".to_owned(),
            false => format!("found {}", found.join(", ")),
        };
        return Err(format!(
            "`{}` needs Python {major}.{minor} or newer with venv; {found}. Install it \
             (Debian, Ubuntu: apt install python3 python3-venv; macOS: brew install python), name \
             one in STEADFAST_PYTHON, {}",
            kit.task,
            kit.way_out()
        ));
    };
    let requirements = kit.root.join(kit.pinned).join("python/requirements.txt");
    let version = output(Command::new(&name).args(["-c", "import sys; print(sys.version)"]))?;
    let wanted = version + &read(&requirements)?;
    let (inside, stamp) = (venv.join("bin/python"), venv.join("installed"));
    if read(&stamp).is_ok_and(|there| there == wanted) {
        return Ok(inside);
    }
    println!("== {}: pip install -r {}", kit.task, requirements.display());
    remove(venv)?;
    output(Command::new(&name).args(["-m", "venv"]).arg(venv))?;
    // Without dependencies: what is not pinned is not installed, and `check` misses it.
    output(
        Command::new(&inside)
            .args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input"])
            .args(["--no-deps", "-r"])
            .arg(&requirements),
    )
    .map_err(|error| format!("{error}\n(this needs the network, once), {}", kit.way_out()))?;
    output(Command::new(&inside).args(["-m", "pip", "check", "--disable-pip-version-check"]))?;
    write(&stamp, &wanted)?;
    Ok(inside)
}

/// Node's packages, and beside them the scripts: Node looks for packages from where a script is.
fn packages(kit: &Kit) -> Result<PathBuf, String> {
    let (pinned, work) = (kit.root.join(kit.pinned).join("node"), kit.work.join("node"));
    let version = output(kit.program("node").arg("--version")).unwrap_or_default();
    let major = version.trim().trim_start_matches('v').split('.').next().unwrap_or_default();
    if major.parse::<u32>().unwrap_or(0) < NODE {
        let found = if version.is_empty() { "none".to_owned() } else { version.trim().to_owned() };
        return Err(format!(
            "`{}` needs Node {NODE} or newer; found {found}. Install it (https://nodejs.org; macOS: \
             brew install node), {}",
            kit.task,
            kit.way_out()
        ));
    }
    if output(kit.program("npm").arg("--version")).is_err() {
        return Err(format!(
            "`{}` needs npm, which comes with Node (Debian, Ubuntu: apt install npm), {}",
            kit.task,
            kit.way_out()
        ));
    }
    let mut wanted = version;
    let shared = kit.root.join(SHARED).join("node");
    let files = [
        ("package.json", read(&pinned.join("package.json"))?),
        ("package-lock.json", read(&pinned.join("package-lock.json"))?),
        (".npmrc", read(&shared.join(".npmrc"))?),
    ];
    for (_, text) in &files {
        wanted += text;
    }
    let stamp = work.join("installed");
    if !read(&stamp).is_ok_and(|there| there == wanted) {
        println!("== {}: npm ci", kit.task);
        remove(&work)?;
        for (name, text) in &files {
            write(&work.join(name), text)?;
        }
        output(kit.program("npm").args(["ci", "--loglevel=error"]).current_dir(&work)).map_err(
            |error| format!("{error}\n(this needs the network, once), {}", kit.way_out()),
        )?;
        write(&stamp, &wanted)?;
    }
    scripts(&shared, &work)?;
    scripts(&pinned, &work)?;
    Ok(work)
}

fn scripts(pinned: &Path, work: &Path) -> Result<(), String> {
    let failed = |error| format!("{}: {error}", pinned.display());
    for entry in fs::read_dir(pinned).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        if let (Some("mjs"), Some(name)) =
            (path.extension().and_then(|e| e.to_str()), path.file_name())
        {
            write(&work.join(name), &read(&path)?)?;
        }
    }
    Ok(())
}
