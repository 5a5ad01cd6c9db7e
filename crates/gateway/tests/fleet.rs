//! The files of `dist/fleet` as they are: two gateways behind nginx with a store, all on loopback.

#![cfg(unix)]
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio, id},
    sync::atomic::{AtomicU32, Ordering::Relaxed},
};

use self::process::{PATIENCE, Running, address, chat, file, folder, http, pause, steadfast};

mod process;

const KEY: &str = "gw-live-caller-7261";
const ADMIN: &str = "gw-live-operator-5530";
const MODEL: &str = "gpt-4o";

/// A program that is killed when dropped.
struct Program(Child);

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The same of one whose output is read.
struct Killed(Running);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.child.kill();
        let _ = self.0.child.wait();
    }
}

fn program(name: &str, args: &[&str]) -> Program {
    let mut command = Command::new(name);
    command.args(args).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    match command.spawn() {
        Ok(child) => Program(child),
        Err(error) => panic!("{name} can not be started ({error}): install Debian's package of it"),
    }
}

/// Ports of this process alone: one that is chosen and let go of could be another test's by then.
fn port() -> u16 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let offset = (id() * 16 + NEXT.fetch_add(1, Relaxed)) % 9_000;
    u16::try_from(10_000 + offset).unwrap()
}

fn local(port: u16) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], port))
}

fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    for _ in 0..PATIENCE.as_millis() / 10 {
        if is_so() {
            return;
        }
        pause();
    }
    panic!("{what}: not in time");
}

fn listens(at: SocketAddr) -> bool {
    TcpStream::connect(at).is_ok()
}

fn dist(name: &str) -> String {
    let path: PathBuf = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../dist/fleet").join(name);
    std::fs::read_to_string(path).unwrap()
}

/// A file of `dist/fleet` with other addresses; each of them has to be in it.
fn adapted(name: &str, changes: &[(&str, String)]) -> String {
    changes.iter().fold(dist(name), |text, (from, to)| {
        assert!(text.contains(from), "{name} has no `{from}`");
        text.replace(from, to)
    })
}

fn get(at: SocketAddr, path: &str) -> String {
    let request = format!(
        "GET {path} HTTP/1.1\r\nhost: gateway\r\nauthorization: Bearer {ADMIN}\r\nconnection: close\r\n\r\n"
    );
    http(at, &request)
}

/// Whether a call by the balancer is answered.
fn answered(at: SocketAddr) -> bool {
    http(at, &chat(MODEL, false, KEY)).starts_with("HTTP/1.1 200")
}

/// Gateways of one configuration, once they know each other.
fn pair(config: &str, at: [SocketAddr; 2], store: u16) -> [Killed; 2] {
    pair_with(config, at, store, |_, _| {})
}

/// The same, each with a change of its command.
fn pair_with(
    config: &str,
    all: [SocketAddr; 2],
    store: u16,
    change: impl Fn(SocketAddr, &mut Command),
) -> [Killed; 2] {
    let gateways = all.map(|at| {
        let mut command = steadfast(&["serve", "--config", config, "--listen", &at.to_string()]);
        command.env("GATEWAY_KEY", KEY).env("ADMIN_KEY", ADMIN);
        command.env("OPENAI_API_KEY", "sk-simulated-1").env("ANTHROPIC_API_KEY", "sk-simulated-2");
        command.env("STATE_URL", format!("redis://127.0.0.1:{store}"));
        change(at, &mut command);
        let running = Killed(Running::start(command));
        running.0.line("serves on");
        running
    });
    for at in all {
        until("the gateways know each other", || {
            let fleet = get(at, "/admin/fleet");
            fleet.contains("\"away\":false") && fleet.matches("\"address\"").count() == 2
        });
    }
    gateways
}

#[test]
fn two_gateways_behind_a_balancer_survive_each_other_and_their_store() {
    let folder = folder("fleet");
    // The ports of the simulated providers are the next free ones, as it prints them.
    let sim = Killed(Running::start(steadfast(&["sim", "--listen", "127.0.0.1:0"])));
    let openai = address(&sim.0.line("openai"));
    let anthropic = address(&sim.0.line("anthropic"));
    let (store_at, first, second, balancer) = (port(), local(port()), local(port()), local(port()));

    let store_port = store_at.to_string();
    let redis = ["--port", &store_port, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"];
    let store = program("redis-server", &redis);
    until("the store listens", || listens(local(store_at)));

    let base = |dialect: &str, url: String| {
        let line = format!("dialect = \"{dialect}\"\n");
        let with_url = format!("{line}base_url = \"{url}\"\n");
        (line, with_url)
    };
    let (openai_line, with_openai) = base("openai", format!("http://{openai}/v1"));
    let (anthropic_line, with_anthropic) = base("anthropic", format!("http://{anthropic}"));
    let config = adapted(
        "steadfast.toml",
        &[(&openai_line, with_openai), (&anthropic_line, with_anthropic)],
    );
    let config = file(&folder, "steadfast.toml", &config);
    let [one, _other] = pair(&config, [first, second], store_at);

    let nginx = adapted(
        "nginx.conf",
        &[
            ("127.0.0.1:4181", first.to_string()),
            ("127.0.0.1:4182", second.to_string()),
            ("127.0.0.1:4180", balancer.to_string()),
        ],
    );
    let pid = folder.join("nginx.pid");
    // One process, so that nothing of it is left behind when that is killed.
    let nginx = format!("daemon off;\nmaster_process off;\npid {};\n{nginx}", pid.display());
    let nginx = file(&folder, "nginx.conf", &nginx);
    let _balancer = program("nginx", &["-p", &folder.display().to_string(), "-c", &nginx]);
    until("the balancer listens", || listens(balancer));
    for _ in 0..10 {
        assert!(answered(balancer));
    }
    let stream = http(balancer, &chat(MODEL, true, KEY));
    assert!(stream.contains("data: [DONE]"), "{stream}");

    let fleet = get(first, "/admin/fleet");
    assert!(fleet.contains("\"differ_in_configuration\":false"), "{fleet}");

    // One of them is killed: the other answers, and knows that it is alone.
    drop(one);
    for _ in 0..10 {
        assert!(answered(balancer), "by the other one");
    }
    until("the dead one is gone from the fleet", || {
        get(second, "/admin/fleet").matches("\"address\"").count() == 1
    });

    // The store is killed: nothing changes for callers.
    drop(store);
    for _ in 0..10 {
        assert!(answered(balancer), "without the store");
    }
    until("it is seen that the store is away", || {
        get(second, "/admin/fleet").contains("\"away\":true")
            && get(second, "/metrics").contains("steadfast_state_away 1")
    });
    let _store = program("redis-server", &redis);
    until("the store is back", || get(second, "/admin/fleet").contains("\"away\":false"));
    assert!(answered(balancer));
}

fn post(at: SocketAddr, path: &str, body: &str) -> String {
    let request = format!(
        "POST {path} HTTP/1.1\r\nhost: gateway\r\nauthorization: Bearer {ADMIN}\r\nconnection: close\r\n\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    http(at, &request)
}

/// A provider that refuses every key, for as long as the test runs.
fn refusing() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let _ = stream.read(&mut [0; 65_536]);
            let refused =
                "HTTP/1.1 401 Unauthorized\r\nconnection: close\r\ncontent-length: 2\r\n\r\n{}";
            let _ = stream.write_all(refused.as_bytes());
        }
    });
    at
}

/// A configuration that shares, with one provider.
fn shared(provider: SocketAddr) -> String {
    format!(
        "[server]\nadmin_key = \"env:ADMIN_KEY\"\n\
         [[tenants]]\nname = \"everybody\"\nkeys = [\"env:GATEWAY_KEY\"]\n[state]\nurl = \"env:STATE_URL\"\n\
         [[providers]]\nname = \"openai\"\ndialect = \"openai\"\nbase_url = \"http://{provider}/v1\"\n\
         credentials = [\"env:OPENAI_API_KEY\"]\n",
    )
}

/// How long the key that was refused rests at `at`, in seconds.
fn rests_for(at: SocketAddr) -> Option<f64> {
    let status = get(at, "/admin/status");
    let (_, body) = status.split_once("\r\n\r\n")?;
    let status: serde_json::Value = serde_json::from_str(body).unwrap();
    let targets = status["targets"].as_array().unwrap();
    targets.iter().find_map(|target| target["cooling"]["for_s"].as_f64())
}

/// A library that moves a process's clock, as `faketime` does, which waits for ever for jemalloc to begin. Rust's programs are
/// linked by a compiler of C, so there is one.
fn clock(folder: &Path) -> PathBuf {
    let source = file(folder, "clock.c", CLOCK);
    let built = folder.join("clock.so");
    let mut compiler = Command::new("cc");
    compiler.args(["-shared", "-fPIC", "-O1", "-o"]).arg(&built).arg(source);
    assert!(compiler.status().unwrap().success());
    built
}

const CLOCK: &str = r#"
#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

int clock_gettime(clockid_t clock, struct timespec *time) {
    long failed = syscall(SYS_clock_gettime, clock, time);
    const char *ahead = getenv("AHEAD_S");
    if (!failed && clock == CLOCK_REALTIME && ahead) time->tv_sec += atol(ahead);
    return failed;
}
"#;

#[test]
#[cfg(target_os = "linux")]
fn clocks_that_are_twenty_minutes_apart_make_no_difference() {
    let folder = folder("fleet-clocks");
    let (store_at, first, second) = (port(), local(port()), local(port()));
    let store_port = store_at.to_string();
    let redis = ["--port", &store_port, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"];
    let _store = program("redis-server", &redis);
    until("the store listens", || listens(local(store_at)));
    let config = file(&folder, "steadfast.toml", &shared(refusing()));
    let clock = clock(&folder);
    let nodes = pair_with(&config, [first, second], store_at, |at, command| {
        command.env("LD_PRELOAD", &clock);
        command.env("AHEAD_S", if at == first { "-600" } else { "600" });
    });
    // It is their clocks, and not this test, that are apart.
    let date = |at: SocketAddr| {
        let head = get(at, "/admin/status");
        let (_, date) = head.split_once("date: ").unwrap();
        httpdate::parse_http_date(date.split_once("\r\n").unwrap().0).unwrap()
    };
    let apart = date(second).duration_since(date(first)).unwrap().as_secs();
    assert!((1_190..1_210).contains(&apart), "{apart} s");

    for (one, other) in [(first, second), (second, first)] {
        let failed = http(one, &chat(MODEL, false, KEY));
        assert!(failed.starts_with("HTTP/1.1 50"), "{failed}");
        until("the other one knows that it rests", || rests_for(other).is_some());
        let [here, there] = [one, other].map(|at| rests_for(at).unwrap());
        assert!((here - there).abs() < 2.0, "it rests for {here} s and for {there} s");
        let refused = http(other, &chat(MODEL, false, KEY));
        assert!(refused.starts_with("HTTP/1.1 50"), "{refused}");
        let reset = post(other, "/admin/targets/reset?target=openai%23OPENAI_API_KEY", "");
        assert!(reset.starts_with("HTTP/1.1 200"), "{reset}");
        until("it rests nowhere", || rests_for(one).is_none() && rests_for(other).is_none());
    }
    for at in [first, second] {
        let fleet = get(at, "/admin/fleet");
        assert_eq!(fleet.matches("\"address\"").count(), 2, "{fleet}");
    }
    drop(nodes);
}

#[test]
fn what_one_process_holds_is_decided_at_another_by_a_real_store() {
    let folder = folder("fleet-held");
    let (store_at, first, second) = (port(), local(port()), local(port()));
    let store_port = store_at.to_string();
    let redis = ["--port", &store_port, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"];
    let store = program("redis-server", &redis);
    until("the store listens", || listens(local(store_at)));
    let provider = refusing();
    let config = format!("{}[escalation]\nenabled = true\n", shared(provider));
    let config = file(&folder, "steadfast.toml", &config);
    let [one, _other] = pair(&config, [first, second], store_at);
    let call = || std::thread::spawn(move || http(first, &chat(MODEL, false, KEY)));
    let held = || {
        let mut id = String::new();
        until("it is seen at the other one", || {
            let list = get(second, "/admin/escalations");
            let found = list.split_once("\"id\":\"").and_then(|(_, rest)| rest.split_once('"'));
            found.map(|(found, _)| found.clone_into(&mut id)).is_some()
        });
        format!("/admin/escalations/{id}")
    };
    let answer = "{\"decision\":\"answer\",\"text\":\"We call you back.\"}";
    let waiting = call();
    let path = held();
    let decided = post(second, &path, answer);
    assert!(decided.starts_with("HTTP/1.1 200"), "{decided}");
    let reply = waiting.join().unwrap();
    assert!(reply.contains("We call you back."), "{reply}");
    assert!(post(second, &path, answer).starts_with("HTTP/1.1 409"));
    until("it is over", || get(second, "/admin/escalations").contains("\"escalations\":[]"));

    // The one that holds it is frozen: whoever decides is not left to wait, and nothing happens later.
    let waiting = call();
    let path = held();
    one.0.signal("-STOP");
    let decided = post(second, &path, answer);
    assert!(decided.starts_with("HTTP/1.1 504"), "{decided}");
    one.0.signal("-CONT");
    until("it is heard of again", || {
        get(second, "/admin/escalations").contains("\"node_heard\":true")
    });
    assert!(!waiting.is_finished(), "it is held as before");
    let mut decided = String::new();
    until("it is decided", || {
        decided = post(second, &path, answer);
        !decided.starts_with("HTTP/1.1 50")
    });
    assert!(decided.starts_with("HTTP/1.1 200"), "{decided}");
    assert!(waiting.join().unwrap().contains("We call you back."));
    until("it is over", || get(second, "/admin/escalations").contains("\"escalations\":[]"));

    // Without the store each has its own.
    let waiting = call();
    let path = held();
    drop(store);
    until("it is seen that the store is away", || {
        get(second, "/admin/escalations").contains("\"store_away\":true")
    });
    let decided = post(second, &path, answer);
    assert!(decided.starts_with("HTTP/1.1 503"), "{decided}");
    assert!(post(first, &path, answer).starts_with("HTTP/1.1 200"));
    assert!(waiting.join().unwrap().contains("We call you back."));
}
