//! A gateway and simulated providers, running.

use std::{
    fs::{self, File},
    io::{BufRead, BufReader},
    path::Path,
    process::{Child, Command, Stdio},
    sync::mpsc::{self, RecvTimeoutError},
    thread,
    time::Duration,
};

use super::Upstream;

/// How long a program may take to say where it listens: far longer than the milliseconds it needs,
/// for a machine that is busy with something else.
const PATIENCE: Duration = Duration::from_secs(30);

/// The keys of a run. They open nothing.
const TENANT_KEY: &str = "sdk-tests-tenant";
const PROVIDER_KEY: &str = "sdk-tests-provider";

/// Starts the program in its arguments, and ends it when standard input is closed: however the one
/// who started this ends, a kill included, nothing is left running.
const KEEPER: &str = r#""$@" </dev/null & child=$!
trap '' INT TERM HUP
exec >/dev/null 2>&1
cat >/dev/null
kill "$child"
wait "$child""#;

/// What one script runs against. It is taken down when dropped.
pub(super) struct Stage {
    gateway: String,
    control: String,
    dialect: &'static str,
    _programs: [Program; 2],
}

impl Stage {
    /// Starts the providers and the gateway in front of `upstream`, with their logs in `folder`.
    pub(super) fn set(
        binary: &Path,
        root: &Path,
        folder: &Path,
        upstream: &Upstream,
    ) -> Result<Self, String> {
        let dialect = upstream.dialect;
        let failed = |path: &Path, error| format!("{}: {error}", path.display());
        fs::create_dir_all(folder).map_err(|error| failed(folder, error))?;

        let mut sim = Command::new("sh");
        sim.args(["-c", KEEPER, "sh"]).arg(binary).args([
            "sim",
            "--listen",
            "127.0.0.1:0",
            "--control",
            "127.0.0.1:0",
        ]);
        let (sim, lines) = Program::start(sim, &folder.join("sim.log"), "any key is accepted")?;
        let address = |name: &str| {
            lines
                .iter()
                .find_map(|line| line.strip_prefix(name).map(|rest| rest.trim().to_owned()))
                .ok_or_else(|| format!("`steadfast sim` did not say where its {name} is"))
        };
        let (provider, control) = (address(dialect)?, address("control")?);

        let template = root.join("tests/sdk/steadfast.toml");
        let text = fs::read_to_string(&template).map_err(|error| failed(&template, error))?;
        let config = folder.join("steadfast.toml");
        let text = text
            .replace("{models}", upstream.models)
            .replace("{upstream}", dialect)
            .replace("{base_url}", &provider);
        fs::write(&config, text).map_err(|error| failed(&config, error))?;

        let mut gateway = Command::new("sh");
        gateway
            .args(["-c", KEEPER, "sh"])
            .arg(binary)
            .args(["serve", "--config"])
            .arg(&config)
            .env("SDK_TENANT_KEY", TENANT_KEY)
            .env("SDK_PROVIDER_KEY", PROVIDER_KEY)
            .env("NO_COLOR", "1");
        let log = folder.join("gateway.log");
        let (program, lines) = Program::start(gateway, &log, "steadfast serves on")?;
        let gateway = lines
            .last()
            .and_then(|line| line.strip_prefix("steadfast serves on "))
            .map(|address| address.trim().to_owned())
            .ok_or("`steadfast serve` did not say where it serves")?;
        let control = format!("{control}/{dialect}");
        Ok(Self { gateway, control, dialect, _programs: [program, sim] })
    }

    /// What the script has to know.
    pub(super) fn environment(&self) -> [(&'static str, &str); 4] {
        [
            ("SDK_GATEWAY", &self.gateway),
            ("SDK_CONTROL", &self.control),
            ("SDK_UPSTREAM", self.dialect),
            ("SDK_KEY", TENANT_KEY),
        ]
    }
}

/// A program under its keeper. It is stopped when dropped.
struct Program(Child);

impl Program {
    /// Starts it, and waits for the line of its output that begins with `ready`; what it printed up to
    /// there.
    fn start(
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
