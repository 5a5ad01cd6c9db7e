//! Peer gateways, when they are installed: LiteLLM's proxy from PyPI, Portkey's gateway from npm.

use std::{
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use crate::{
    Error, Options,
    process::{Cpu, Process, pinned},
    variant::{KEY, RunFiles, Variant},
};

const LITELLM: &str = "LiteLLM";
const PORTKEY: &str = "Portkey";

/// How long a peer may take to start: LiteLLM imports for half a minute on a busy machine.
const START_LIMIT: Duration = Duration::from_secs(90);

/// Whether a variant is so slow that it gets fewer requests.
pub(crate) fn is_slow(name: &str) -> bool {
    name == LITELLM || name == PORTKEY
}

/// Starts the peers that are installed; returns notes about the others.
pub(crate) async fn start(
    options: &Options,
    files: &RunFiles,
    upstream: SocketAddr,
    cpu: Cpu,
) -> (Vec<Variant>, Vec<String>) {
    let mut started = Vec::new();
    let mut notes = Vec::new();
    if options.quick && !options.peers {
        return (started, notes);
    }
    let folder = match folder() {
        Ok(folder) => folder,
        Err(error) => return (started, vec![format!("Peers are missing: {error}.")]),
    };
    if options.peers {
        install(&folder);
    }
    for (name, peer) in [
        (LITELLM, litellm(&folder, files, upstream, cpu).await),
        (PORTKEY, portkey(&folder, files, upstream, cpu).await),
    ] {
        match peer {
            Ok(Some(variant)) => {
                if let Some(Err(error)) = variant.process.as_ref().map(Process::freeze) {
                    notes.push(format!("{name} is awake while others are measured: {error}."));
                }
                started.push(variant);
            }
            Ok(None) => notes.push(format!("{name} is not installed; `--peers` installs it.")),
            Err(error) => notes.push(format!("{name} did not start: {error}.")),
        }
    }
    (started, notes)
}

/// `target/bench`, next to the folder of this binary's profile.
fn folder() -> Result<PathBuf, Error> {
    let exe = std::env::current_exe()?;
    let target = exe.ancestors().nth(2).ok_or("the bench is not in a target folder")?;
    Ok(target.join("bench"))
}

fn install(folder: &Path) {
    let python = folder.join("litellm");
    let node = folder.join("portkey");
    let run = |program: &Path, args: &[&str]| {
        eprintln!("peers: {} {}", program.display(), args.join(" "));
        let status = Command::new(program).args(args).stdout(std::process::Stdio::null()).status();
        status.is_ok_and(|status| status.success())
    };
    if !python.join("bin/litellm").exists() {
        let made = run(Path::new("python3"), &["-m", "venv", &python.to_string_lossy()]);
        if !made || !run(&python.join("bin/pip"), &["install", "--quiet", "litellm[proxy]"]) {
            eprintln!("peers: LiteLLM could not be installed");
        }
    }
    if !portkey_server(folder).exists() {
        let made = fs::create_dir_all(&node).is_ok();
        let prefix = node.to_string_lossy();
        let args =
            ["install", "--no-fund", "--no-audit", "--prefix", &prefix, "@portkey-ai/gateway"];
        if !made || !run(Path::new("npm"), &args) {
            eprintln!("peers: Portkey could not be installed");
        }
    }
}

fn portkey_server(folder: &Path) -> PathBuf {
    folder.join("portkey/node_modules/@portkey-ai/gateway/build/start-server.js")
}

/// An address that is free now.
fn free() -> Result<SocketAddr, Error> {
    Ok(std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?)
}

async fn litellm(
    folder: &Path,
    files: &RunFiles,
    upstream: SocketAddr,
    cpu: Cpu,
) -> Result<Option<Variant>, Error> {
    let python = folder.join("litellm/bin/python");
    let program = folder.join("litellm/bin/litellm");
    if !program.exists() {
        return Ok(None);
    }
    let config = files.file("litellm.yaml");
    fs::write(
        &config,
        format!(
            "model_list:\n  - model_name: \"*\"\n    litellm_params:\n      model: \"openai/*\"\n      \
             api_base: \"http://{upstream}/v1\"\n      api_key: \"bench-provider-key\"\n\
             litellm_settings:\n  telemetry: false\n"
        ),
    )?;
    let address = free()?;
    let mut command = pinned(cpu, python);
    command
        .arg(program)
        .arg("--config")
        .arg(&config)
        .args(["--host", "127.0.0.1", "--num_workers", "1", "--port"])
        .arg(address.port().to_string())
        .env("LITELLM_LOCAL_MODEL_COST_MAP", "True")
        // Required to start.
        .env("LITELLM_MASTER_KEY", KEY);
    eprintln!("peers: starting LiteLLM");
    let process =
        Process::listening(command, address, &files.file("litellm.log"), START_LIMIT).await?;
    Ok(Some(Variant::new(LITELLM, address, Some(process), String::new())))
}

async fn portkey(
    folder: &Path,
    files: &RunFiles,
    upstream: SocketAddr,
    cpu: Cpu,
) -> Result<Option<Variant>, Error> {
    let server = portkey_server(folder);
    if !server.exists() {
        return Ok(None);
    }
    let address = free()?;
    let mut command = pinned(cpu, "node");
    command.arg(server).arg("--headless").arg(format!("--port={}", address.port()));
    eprintln!("peers: starting Portkey");
    let process =
        Process::listening(command, address, &files.file("portkey.log"), START_LIMIT).await?;
    let headers =
        format!("x-portkey-provider: openai\r\nx-portkey-custom-host: http://{upstream}/v1\r\n");
    Ok(Some(Variant::new(PORTKEY, address, Some(process), headers)))
}
