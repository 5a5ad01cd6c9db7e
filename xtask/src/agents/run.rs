//! One run: a provider, a gateway or none, an agent in a repository of its own.

use std::{
    fs::{self, File},
    os::unix::process::CommandExt as _,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    sync::mpsc,
    thread,
    time::Duration,
};

use super::{
    Agent, Cell, Way,
    install::Installed,
    judge::{Facts, Healthy, Verdict},
    report::Outcome,
    setting::Setting,
    tap::Tap,
    task::{COMMAND, LOG, PROMPT},
};
use crate::{
    program::{Program, output, remove},
    workspace::{read, write},
};

/// The keys of a run. They open nothing.
const TENANT_KEY: &str = "agents-tests-tenant";
const PROVIDER_KEY: &str = "agents-tests-provider";

/// What the answer to a request for a summary or a compaction has, and no other.
const COMPACTED: [&str; 2] = ["Steps done: ", r#""type":"compaction""#];

/// What every run needs.
#[derive(Debug)]
pub(super) struct Harness {
    pub(super) root: &'static Path,
    pub(super) binary: PathBuf,
    pub(super) installed: Installed,
}

/// The script of an agent, with what it is to be given and these settings.
pub(super) fn script(
    root: &Path,
    agent: &Agent,
    settings: &[Setting],
    gateway: &str,
    key: &str,
) -> Result<String, String> {
    let path = root.join("tests/agents").join(format!("{}.sh", agent.name));
    let text = read(&path)?.replace("{gateway}", gateway).replace("{key}", key);
    Ok(settings.iter().fold(text, |text, setting| setting.set(&text)))
}

impl Harness {
    /// One run from its start to its end; what went wrong around it is a failure.
    pub(super) fn run(&self, cell: Cell, healthy: Option<&Healthy>) -> Outcome {
        let folder = self.root.join("target/agents/runs").join(cell.name().replace(' ', "-"));
        match self.facts(cell, &folder) {
            Err(why) => Outcome {
                cell,
                verdict: Verdict::Failed(why),
                healthy: None,
                aside: Vec::new(),
                folder,
            },
            Ok(facts) => {
                let own = healthy.is_none().then(|| facts.healthy());
                Outcome {
                    cell,
                    verdict: facts.verdict(healthy, cell.column.answers()),
                    healthy: own,
                    aside: facts.aside().into_iter().collect(),
                    folder,
                }
            }
        }
    }

    fn facts(&self, cell: Cell, folder: &Path) -> Result<Facts, String> {
        let (agent, column) = (cell.agent, cell.column);
        let dialect = cell.upstream();
        remove(folder)?;
        let repository = folder.join("repository");
        for inside in ["repository", "home", "tmp", "connections"] {
            let path = folder.join(inside);
            fs::create_dir_all(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        }
        commit(&repository, &folder.join("home"))?;

        let (task, plan) = (folder.join("task.toml"), folder.join("plan.toml"));
        write(&task, &column.task(&repository))?;
        write(&plan, &column.plan(dialect, agent.tools))?;
        let mut sim = Program::kept(&self.binary);
        sim.args(["sim", "--listen", "127.0.0.1:0"]).arg("--task").arg(&task);
        sim.arg("--plan").arg(&plan);
        let (_sim, lines) = Program::start(sim, &folder.join("sim.log"), "any key is accepted")?;
        let provider = lines
            .iter()
            .find_map(|line| line.strip_prefix(dialect).map(str::trim))
            .ok_or_else(|| format!("`steadfast sim` did not print where its {dialect} is"))?;

        let (gateway, upstream) = match cell.way {
            Way::Direct => (None, provider.trim_end_matches("/v1").to_owned()),
            _ => {
                let (program, address) = self.gateway(cell, provider, folder)?;
                (Some(program), address)
            }
        };
        let upstream = upstream.trim_start_matches("http://");
        let tap = Tap::start(upstream, &folder.join("connections"))?;

        let settings: Vec<Setting> = cell.settings().collect();
        let text = script(self.root, &agent, &settings, &tap.base_url(), TENANT_KEY)?;
        let script = folder.join("agent.sh");
        write(&script, &text)?;
        let printed = folder.join("output.txt");
        let log = File::create(&printed).map_err(|e| format!("{}: {e}", printed.display()))?;
        let errors = log.try_clone().map_err(|e| format!("{}: {e}", printed.display()))?;
        let mut command = Command::new("sh");
        command
            .arg(&script)
            .current_dir(&repository)
            .env_clear()
            .env("PATH", self.installed.path(agent.name))
            .env("HOME", folder.join("home"))
            .env("TMPDIR", folder.join("tmp"))
            .env("LANG", "C.UTF-8")
            .env("NO_COLOR", "1")
            .env("PROMPT", PROMPT)
            .env("COMMAND", COMMAND)
            .stdin(Stdio::null())
            .stdout(log)
            .stderr(errors)
            .process_group(0);
        let child = command.spawn().map_err(|error| format!("can not start `sh`: {error}"))?;
        let status = wait(child, Duration::from_secs(column.limit_s));
        let missing = match gateway {
            None => 0,
            Some(gateway) => {
                // Its log is whole when it has ended.
                drop(gateway);
                let log = read(&folder.join("gateway.log"))?;
                column.failures(dialect, agent.tools).saturating_sub(asked_again(&log))
            }
        };
        let output = fs::read(&printed).map_err(|e| format!("{}: {e}", printed.display()))?;
        Ok(Facts {
            exit: status.and_then(|status| status.code()),
            // The folder has the names of faults.
            output: String::from_utf8_lossy(&output).replace(&folder.display().to_string(), "."),
            exchanges: tap.exchanges()?,
            socket: cell.socket,
            setting: column.setting,
            compactions: tap.answers_with(&COMPACTED),
            missing,
            undone: column.undone(&repository),
        })
    }

    /// A gateway in front of `provider`; it and its address.
    fn gateway(
        &self,
        cell: Cell,
        provider: &str,
        folder: &Path,
    ) -> Result<(Program, String), String> {
        let models = match cell.way {
            Way::Translated(other) => format!("models = {}", other.models),
            _ => String::new(),
        };
        let config = folder.join("steadfast.toml");
        let text = read(&self.root.join("tests/agents/steadfast.toml"))?
            .replace("{models}", &models)
            .replace("{upstream}", cell.upstream())
            .replace("{base_url}", provider);
        write(&config, &text)?;
        let mut gateway = Program::kept(&self.binary);
        gateway
            .args(["serve", "--config"])
            .arg(&config)
            .env("AGENTS_TENANT_KEY", TENANT_KEY)
            .env("AGENTS_PROVIDER_KEY", PROVIDER_KEY)
            .env("NO_COLOR", "1");
        let log = folder.join("gateway.log");
        let (program, lines) = Program::start(gateway, &log, "steadfast serves on")?;
        let address = lines
            .last()
            .and_then(|line| line.strip_prefix("steadfast serves on "))
            .ok_or("`steadfast serve` did not print where it serves")?;
        Ok((program, address.trim().to_owned()))
    }
}

/// How often the gateway asked again, by its log.
fn asked_again(log: &str) -> usize {
    let attempts =
        log.lines().filter(|line| line.contains(" a request is over ")).filter_map(|line| {
            let (_, rest) = line.split_once(" attempts=")?;
            rest.split(' ').next()?.parse::<usize>().ok()
        });
    attempts.map(|attempts| attempts.saturating_sub(1)).sum()
}

/// A repository with the files of the task, and in `home` who commits.
fn commit(repository: &Path, home: &Path) -> Result<(), String> {
    write(&home.join(".gitconfig"), "[user]\n\tname = Keeper\n\temail = keeper@example.com\n")?;
    write(&repository.join("log.txt"), LOG)?;
    for arguments in [&["init", "--quiet"][..], &["add", "--all"], &["commit", "-qm", "Begin"]] {
        output(Command::new("git").args(arguments).current_dir(repository).env("HOME", home))?;
    }
    Ok(())
}

/// Waits for the end, at most so long; then, and in any case for what it left running, kills its group.
fn wait(mut child: Child, limit: Duration) -> Option<ExitStatus> {
    let group = format!("-{}", child.id());
    let (send, over) = mpsc::channel();
    thread::spawn(move || send.send(child.wait()));
    let status = over.recv_timeout(limit);
    let mut kill = Command::new("kill");
    let _ = kill.args(["-KILL", "--", &group]).stderr(Stdio::null()).status();
    if status.is_err() {
        let _ = over.recv();
    }
    status.ok()?.ok()
}
