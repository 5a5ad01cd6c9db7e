//! The state file: what rests before a restart rests after it, and no file keeps the gateway from serving.

#![cfg(unix)]
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::{
    fs,
    net::SocketAddr,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Output,
    thread,
    time::Duration,
};

use serde_json::Value;
use tokio::time::Instant;

use self::process::{
    PATIENCE, Running, address, chat, file, finish, folder, http, pause, steadfast, text, wait,
};

mod process;

const PROVIDER_KEY: &str = "sk-live-provider-8265";

/// How long the dead provider rests.
const REST: Duration = Duration::from_secs(6);

/// Simulated providers: OpenAI's refuses its key, Anthropic's answers.
#[derive(Clone, Copy)]
struct Providers {
    openai: SocketAddr,
    anthropic: SocketAddr,
    control: SocketAddr,
}

impl Providers {
    fn start(folder: &Path) -> (Running, Self) {
        file(folder, "provider.key", PROVIDER_KEY);
        let plan = "[[rules]]\nprovider = \"openai\"\nfault = { error = \"auth\" }\n";
        let plan = file(folder, "plan.toml", plan);
        let args = ["sim", "--listen", "127.0.0.1:0", "--control", "127.0.0.1:0", "--plan", &plan];
        let sim = Running::start(steadfast(&args));
        let openai = address(&sim.line("openai"));
        let anthropic = address(&sim.line("anthropic"));
        let control = address(&sim.line("control"));
        (sim, Self { openai, anthropic, control })
    }

    /// How often the dead provider was asked.
    fn asked(&self) -> usize {
        let request = "GET /openai/journal HTTP/1.1\r\nhost: sim\r\nconnection: close\r\n\r\n";
        let answer = http(self.control, request);
        let (_, body) = answer.split_once("\r\n\r\n").unwrap();
        serde_json::from_str::<Value>(body).unwrap().as_array().unwrap().len()
    }

    /// A gateway's configuration with `state` as its state file, and `rest` seconds of rest for a refused key.
    fn config(&self, folder: &Path, state: &Path, rest: u64) -> String {
        let Self { openai, anthropic, .. } = self;
        let (key, state) = (folder.join("provider.key").display().to_string(), state.display());
        format!(
            "[server]\nauth = \"none\"\nlisten = \"127.0.0.1:0\"\nstate_file = \"{state}\"\n\
             [[providers]]\nname = \"dead\"\ndialect = \"openai\"\nbase_url = \"http://{openai}/v1\"\n\
             credentials = [\"file:{key}\"]\n\
             [[providers]]\nname = \"good\"\ndialect = \"anthropic\"\nbase_url = \"http://{anthropic}\"\n\
             models = {{ \"*\" = \"claude-sonnet-4-5\" }}\ncredentials = [\"file:{key}\"]\n\
             [failover]\nprobe_window_s = 0\n[cooldown]\nauth = {rest}\n"
        )
    }
}

/// `steadfast serve`, and its address.
fn serve(config: &str) -> (Running, SocketAddr) {
    let running = Running::start(steadfast(&["serve", "--config", config]));
    let at = address(&running.line("serves on"));
    (running, at)
}

fn ask(at: SocketAddr) {
    let answer =
        http(at, &chat("gpt-4o", false, "none").replace("host: gateway", "host: 127.0.0.1"));
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
}

fn stop(running: Running) -> Output {
    running.terminate();
    let output = finish(running);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    output
}

/// How often the state file was written, or could not be.
fn tries(at: SocketAddr, outcome: &str) -> u64 {
    let metrics = http(at, "GET /metrics HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n\r\n");
    let name = format!("steadfast_state_saves_total{{outcome=\"{outcome}\"}} ");
    let tries = metrics.lines().find_map(|line| line.strip_prefix(&name));
    tries.map_or(0, |tries| tries.parse().unwrap())
}

/// Waits until `done`.
fn until(what: &str, mut done: impl FnMut() -> bool) {
    for _ in 0..PATIENCE.as_millis() / 10 {
        if done() {
            return;
        }
        pause();
    }
    panic!("{what} does not happen");
}

/// What was set aside of the state file at `path`.
fn set_aside(path: &Path) -> Vec<PathBuf> {
    let bad = format!("{}.bad-", path.file_name().unwrap().to_str().unwrap());
    let all = fs::read_dir(path.parent().unwrap()).unwrap().map(|entry| entry.unwrap().path());
    all.filter(|path| path.file_name().unwrap().to_str().unwrap().starts_with(&bad)).collect()
}

#[test]
fn a_rest_is_held_over_a_polite_restart_and_over_a_kill() {
    thread::scope(|scope| {
        for signal in ["-TERM", "-KILL"] {
            scope.spawn(move || held_over(signal));
        }
    });
}

fn held_over(signal: &str) {
    let folder = folder(&format!("restart{signal}"));
    let state = folder.join("state.json");
    let _ = fs::remove_file(&state);
    let (sim, providers) = Providers::start(&folder);
    let config =
        file(&folder, "steadfast.toml", &providers.config(&folder, &state, REST.as_secs()));

    let (mut running, at) = serve(&config);
    let failed = Instant::now();
    ask(at);
    assert_eq!(providers.asked(), 1);
    if signal == "-KILL" {
        until("a save", || {
            fs::read_to_string(&state).is_ok_and(|text| text.contains("\"dead\",\"cred"))
        });
    }
    running.signal(signal);
    let status = wait(&mut running.child);
    assert_eq!(status.code(), (signal == "-TERM").then_some(0));
    let saved = fs::read_to_string(&state).unwrap();
    assert!(!saved.contains(PROVIDER_KEY), "{saved}");
    assert_eq!(fs::metadata(&state).unwrap().permissions().mode() & 0o777, 0o600);

    let (running, at) = serve(&config);
    let mut held = 0;
    while failed.elapsed() + Duration::from_secs(1) < REST {
        ask(at);
        assert_eq!(providers.asked(), 1, "{signal}: it is asked in its rest");
        held += 1;
    }
    assert!(held > 0, "{signal}: the restart took too long to see anything");
    until("the end of the rest", || {
        ask(at);
        providers.asked() > 1
    });
    let rested = failed.elapsed();
    assert!(rested >= REST, "{signal}: it was asked after {rested:?}");
    let errors = stop(running);
    let errors = text(&errors.stderr);
    assert!(errors.contains("cooldowns=1 "), "{errors}");
    assert_eq!(set_aside(&state).len(), 0);
    sim.terminate();
}

/// What callers without a tenant have spent, by `/admin/spend`.
fn spent(at: SocketAddr) -> Value {
    let request = "GET /admin/spend HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n\r\n";
    let answer = http(at, request);
    let (_, body) = answer.split_once("\r\n\r\n").unwrap();
    let mut spend: Value = serde_json::from_str(body).unwrap();
    spend["accounts"][0].take()
}

/// A cap holds over a restart, however the gateway ends.
#[test]
fn what_was_spent_is_spent_after_a_polite_restart_and_after_a_kill() {
    thread::scope(|scope| {
        for signal in ["-TERM", "-KILL"] {
            scope.spawn(move || spent_over(signal));
        }
    });
}

fn spent_over(signal: &str) {
    let folder = folder(&format!("restart-spend{signal}"));
    let state = folder.join("state.json");
    let _ = fs::remove_file(&state);
    let (sim, providers) = Providers::start(&folder);
    let config = |limits: &str| {
        let config = providers.config(&folder, &state, 600);
        file(&folder, "steadfast.toml", &format!("{config}[spend_limit]\n{limits}\n"))
    };
    let (mut running, at) = serve(&config("record = true"));
    for _ in 0..3 {
        ask(at);
    }
    let before = spent(at);
    let tokens = before["hour"]["tokens"].as_u64().unwrap();
    assert!(tokens > 0 && before["held"]["tokens"] == 0, "{before}");
    if signal == "-KILL" {
        // The next save after the calls has them all.
        let saves = tries(at, "ok");
        until("a save", || {
            let saved = fs::read_to_string(&state).unwrap_or_default();
            let saved: Value = serde_json::from_str(&saved).unwrap_or_default();
            saved["spend"][0]["month"][0][1] == tokens || tries(at, "ok") > saves + 1
        });
    }
    running.signal(signal);
    wait(&mut running.child);

    // All that is left of it is too little for another call.
    let (running, at) =
        serve(&config(&format!("tokens_day = {}\nassumed_output = 10", tokens + 1)));
    assert_eq!(spent(at), before, "{signal}");
    let answer =
        http(at, &chat("gpt-4o", false, "none").replace("host: gateway", "host: 127.0.0.1"));
    assert!(answer.starts_with("HTTP/1.1 402 ") && answer.contains("tokens of a day"), "{answer}");
    let output = stop(running);
    assert!(text(&output.stderr).contains("accounts=1 "), "{}", text(&output.stderr));
    sim.terminate();
}

#[test]
fn a_bad_file_is_set_aside_and_the_gateway_serves() {
    let folder = folder("restart-bad");
    let state = folder.join("good.json");
    let (sim, providers) = Providers::start(&folder);
    let config = file(&folder, "good.toml", &providers.config(&folder, &state, 600));
    let (running, at) = serve(&config);
    ask(at);
    stop(running);
    let good = fs::read(&state).unwrap();
    assert!(good.len() > 300, "{}", text(&good));

    let mut files: Vec<_> =
        (0..good.len() - 1).step_by(100).map(|length| good[..length].to_vec()).collect();
    files.extend([b"{\"a\": [1, 2]}".to_vec(), b"\"text\"".to_vec(), vec![0xff; 5_000]]);
    files.push(text(&good).replace("\"version\":1", "\"version\":9").into_bytes());
    let asked = providers.asked();
    thread::scope(|scope| {
        for (n, bytes) in files.iter().enumerate() {
            let folder = &folder;
            scope.spawn(move || {
                let state = folder.join(format!("{n}.json"));
                set_aside(&state).iter().for_each(|old| fs::remove_file(old).unwrap());
                fs::write(&state, bytes).unwrap();
                let config = providers.config(folder, &state, 600);
                let (running, at) = serve(&file(folder, &format!("{n}.toml"), &config));
                ask(at);
                let output = stop(running);
                let errors = text(&output.stderr);
                assert_eq!(errors.matches("the state file can not be read").count(), 1, "{errors}");
                let aside = set_aside(&state);
                assert_eq!(aside.len(), 1, "{n}");
                assert_eq!(&fs::read(&aside[0]).unwrap(), bytes, "{n}");
                let mut now: Value = serde_json::from_slice(&fs::read(&state).unwrap()).unwrap();
                let cooldowns = now["stack"]["cooldowns"].take();
                assert_eq!(
                    cooldowns[0]["target"]["provider"], "dead",
                    "{n}: it is found out again"
                );
            });
        }
    });
    assert_eq!(providers.asked(), asked + files.len());
    // The whole file is still good.
    let (running, at) = serve(&config);
    ask(at);
    assert_eq!(providers.asked(), asked + files.len());
    stop(running);
    sim.terminate();
}

#[test]
fn a_file_that_can_not_be_written_disturbs_nobody() {
    let folder = folder("restart-unwritable");
    let (sim, providers) = Providers::start(&folder);
    thread::scope(|scope| {
        // Not even root can write there; there is none; it is a folder; and a device, which is left alone.
        for (n, state) in ["/proc/state.json", "/nowhere/state.json", "/proc", "/dev/null"]
            .into_iter()
            .enumerate()
        {
            let folder = &folder;
            scope.spawn(move || {
                let config = providers.config(folder, Path::new(state), 600);
                let config = file(folder, &format!("{n}.toml"), &config);
                let (running, at) = serve(&config);
                ask(at);
                until("another try", || tries(at, "failed") > 1);
                assert_eq!(tries(at, "ok"), 0, "{state}");
                ask(at);
                let output = stop(running);
                let errors = text(&output.stderr);
                let times = errors.matches("the state file can not be written").count();
                assert_eq!(times, 1, "{state}: {errors}");
            });
        }
    });
    sim.terminate();
}

#[test]
fn check_refuses_a_path_that_no_file_can_have() {
    let folder = folder("restart-check");
    let (sim, providers) = Providers::start(&folder);
    let check = |state: &str| {
        let config = file(&folder, "check.toml", &providers.config(&folder, Path::new(state), 600));
        finish(Running::start(steadfast(&["check", "--config", &config])))
    };
    for (state, part) in [
        ("/nowhere/state.json", "the folder /nowhere can not be used"),
        ("/proc", "is a folder"),
        ("/dev/null", "is no ordinary file"),
        ("", "must be the path of a file"),
        ("/", "must be the path of a file"),
    ] {
        let output = check(state);
        let errors = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{state}: {errors}");
        assert!(errors.contains("check.toml:4:14: server.state_file: "), "{errors}");
        assert!(errors.contains(part), "{state}: {errors}");
    }
    let output = check(&folder.join("state.json").display().to_string());
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    sim.terminate();
}

#[test]
fn a_reload_keeps_the_file_and_names_a_change_of_it() {
    let folder = folder("restart-reload");
    let (state, other) = (folder.join("state.json"), folder.join("other.json"));
    let _ = (fs::remove_file(&state), fs::remove_file(&other));
    let (sim, providers) = Providers::start(&folder);
    let config = file(&folder, "steadfast.toml", &providers.config(&folder, &state, 600));
    let (running, at) = serve(&config);
    file(&folder, "steadfast.toml", &providers.config(&folder, &other, 600));
    let reload = "POST /admin/reload HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\ncontent-length: 0\r\n\r\n";
    let answer = http(at, reload);
    assert!(answer.contains("server.state_file takes a restart"), "{answer}");
    until("a save", || tries(at, "ok") > 0);
    ask(at);
    // Written when it starts and when it has changed, and not again.
    until("another save", || tries(at, "ok") > 1);
    assert_eq!((tries(at, "ok"), tries(at, "failed")), (2, 0));
    stop(running);
    assert!(fs::read_to_string(&state).unwrap().contains("\"dead\",\"cred") && !other.exists());
    sim.terminate();
}
