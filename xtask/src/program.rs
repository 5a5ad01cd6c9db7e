//! Programs that a task runs: to their end, or beside it for as long as it needs them.

use std::{
    fs::{self, File},
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::mpsc::{self, RecvTimeoutError},
    thread,
    time::Duration,
};

/// How long a program may take to say where it listens: far longer than the milliseconds it needs,
/// for a machine that is busy with something else.
const PATIENCE: Duration = Duration::from_secs(30);

/// Starts the program in its arguments, and ends it when standard input is closed: however the one
/// who started this ends, a kill included, nothing is left running.
const KEEPER: &str = r#""$@" </dev/null & child=$!
trap '' INT TERM HUP
exec >/dev/null 2>&1
cat >/dev/null
kill "$child"
wait "$child""#;

/// A program under its keeper. It is stopped when dropped.
#[derive(Debug)]
pub(crate) struct Program(Child);

impl Program {
    /// The command of a program that ends with the one who started it.
    pub(crate) fn kept(program: &Path) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", KEEPER, "sh"]).arg(program);
        command
    }

    /// Starts it, and waits for the line of its output that begins with `ready`; what it printed up to
    /// there.
    pub(crate) fn start(
        mut command: Command,
        log: &Path,
        ready: &'static str,
    ) -> Result<(Self, Vec<String>), String> {
        let errors = File::create(log).map_err(|error| format!("{}: {error}", log.display()))?;
        let child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(errors)
            .spawn()
            .map_err(|error| format!("can not start a shell (`sh`): {error}"))?;
        let mut program = Self(child);
        let (send, received) = mpsc::channel();
        if let Some(stdout) = program.0.stdout.take() {
            // It reads on to the end, so that the program never waits for a reader.
            thread::spawn(move || {
                for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                    let _ = send.send(line);
                }
            });
        }
        let mut lines = Vec::new();
        loop {
            match received.recv_timeout(PATIENCE) {
                Ok(line) => {
                    let over = line.starts_with(ready);
                    lines.push(line);
                    if over {
                        return Ok((program, lines));
                    }
                }
                Err(why) => {
                    let why = match why {
                        RecvTimeoutError::Timeout => format!("was not ready after {PATIENCE:?}"),
                        RecvTimeoutError::Disconnected => "ended at once".to_owned(),
                    };
                    let errors = fs::read_to_string(log).unwrap_or_default();
                    return Err(format!("the program {why}: {}", errors.trim()));
                }
            }
        }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

/// Builds what `cargo test` builds, the programs of the workspace among it, so that all steps of a run share one
/// build; the folder of the programs.
pub(crate) fn built(step: &str) -> Result<PathBuf, String> {
    let scope = ["build", "--workspace", "--all-features", "--bins", "--tests", "--locked"];
    crate::cargo(step, &scope, &[])?;
    Ok(crate::target().join("debug"))
}

/// Builds the gateway; where its binary is.
pub(crate) fn gateway(step: &str) -> Result<PathBuf, String> {
    Ok(built(step)?.join("steadfast"))
}

/// What a command says on its standard output; why it failed, when it did.
pub(crate) fn output(command: &mut Command) -> Result<String, String> {
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

/// Removes a folder, if it is there.
pub(crate) fn remove(folder: &Path) -> Result<(), String> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(format!("{}: {error}", folder.display()))
        }
        _ => Ok(()),
    }
}
