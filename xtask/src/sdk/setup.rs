//! Python, Node and the pinned packages.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

use super::Sdk;

/// The oldest Python the pinned packages need no others on.
const PYTHON: (u32, u32) = (3, 11);
/// The oldest Node the SDKs are run on here.
const NODE: u32 = 20;

const WAY_OUT: &str = "or set STEADFAST_SKIP_SDKS=1 to leave the SDKs out";

/// What scripts are run with.
pub(super) struct Tools {
    python: PathBuf,
    scripts: PathBuf,
    node: PathBuf,
}

impl Tools {
    /// The command that runs the script of `sdk`.
    pub(super) fn script(&self, sdk: &Sdk) -> Command {
        let mut command;
        if let Some(script) = sdk.script.strip_prefix("node/") {
            command = Command::new("node");
            command.arg(self.node.join(script));
        } else {
            command = Command::new(&self.python);
            command.arg(self.scripts.join(sdk.script));
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

/// Installs what is pinned in `pinned` under `work`, unless it is there already.
pub(super) fn tools(pinned: &Path, work: &Path) -> Result<Tools, String> {
    fs::create_dir_all(work).map_err(|error| format!("{}: {error}", work.display()))?;
    let python = python(&pinned.join("python"), &work.join("python"))?;
    let node = work.join("node");
    packages(&pinned.join("node"), &node)?;
    Ok(Tools { python, scripts: pinned.to_owned(), node })
}

fn python(pinned: &Path, venv: &Path) -> Result<PathBuf, String> {
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
            "the SDK tests need Python {major}.{minor} or newer with venv; {found}. Install it \
             (Debian, Ubuntu: apt install python3 python3-venv; macOS: brew install python), name \
             one in STEADFAST_PYTHON, {WAY_OUT}"
        ));
    };
    let requirements = pinned.join("requirements.txt");
    let version = output(Command::new(&name).args(["-c", "import sys; print(sys.version)"]))?;
    let wanted = version + &read(&requirements)?;
    let (inside, stamp) = (venv.join("bin/python"), venv.join("installed"));
    if read(&stamp).is_ok_and(|there| there == wanted) {
        return Ok(inside);
    }
    println!("== sdk: pip install -r {}", requirements.display());
    remove(venv)?;
    output(Command::new(&name).args(["-m", "venv"]).arg(venv))?;
    // Without dependencies: what is not pinned is not installed, and `check` misses it.
    output(
        Command::new(&inside)
            .args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input"])
            .args(["--no-deps", "-r"])
            .arg(&requirements),
    )
    .map_err(|error| format!("{error}\n(this needs the network, once), {WAY_OUT}"))?;
    output(Command::new(&inside).args(["-m", "pip", "check", "--disable-pip-version-check"]))?;
    write(&stamp, &wanted)?;
    Ok(inside)
}

/// Node's packages, and beside them the scripts: Node looks for packages from where a script is.
fn packages(pinned: &Path, work: &Path) -> Result<(), String> {
    let version = output(Command::new("node").arg("--version")).unwrap_or_default();
    let major = version.trim().trim_start_matches('v').split('.').next().unwrap_or_default();
    if major.parse::<u32>().unwrap_or(0) < NODE {
        let found = if version.is_empty() { "none".to_owned() } else { version.trim().to_owned() };
        return Err(format!(
            "the SDK tests need Node {NODE} or newer; found {found}. Install it \
             (https://nodejs.org; macOS: brew install node), {WAY_OUT}"
        ));
    }
    if output(Command::new("npm").arg("--version")).is_err() {
        return Err(format!(
            "the SDK tests need npm, which comes with Node (Debian, Ubuntu: apt install npm), \
             {WAY_OUT}"
        ));
    }
    let mut wanted = version;
    for name in ["package.json", "package-lock.json", ".npmrc"] {
        wanted += &read(&pinned.join(name))?;
    }
    let stamp = work.join("installed");
    if read(&stamp).is_ok_and(|there| there == wanted) {
        return scripts(pinned, work);
    }
    println!("== sdk: npm ci");
    remove(work)?;
    fs::create_dir_all(work).map_err(|error| format!("{}: {error}", work.display()))?;
    for name in ["package.json", "package-lock.json", ".npmrc"] {
        write(&work.join(name), &read(&pinned.join(name))?)?;
    }
    output(Command::new("npm").args(["ci", "--loglevel=error"]).current_dir(work))
        .map_err(|error| format!("{error}\n(this needs the network, once), {WAY_OUT}"))?;
    write(&stamp, &wanted)?;
    scripts(pinned, work)
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

/// What a command says on its standard output; why it failed, when it did.
fn output(command: &mut Command) -> Result<String, String> {
    let shown = format!("{command:?}").replace('"', "");
    let output = command.output().map_err(|error| format!("{shown}: {error}"))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text);
    let last: Vec<_> = text.lines().rev().take(10).collect();
    let last: Vec<_> = last.into_iter().rev().collect();
    Err(format!("{shown} failed ({}):\n{}", output.status, last.join("\n")))
}

fn read(path: &Path) -> Result<String, String> {
    fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))
}

fn write(path: &Path, text: &str) -> Result<(), String> {
    fs::write(path, text).map_err(|error| format!("{}: {error}", path.display()))
}

fn remove(folder: &Path) -> Result<(), String> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(format!("{}: {error}", folder.display()))
        }
        _ => Ok(()),
    }
}
