//! The command line: the binary, its output and its exit codes.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpStream},
    path::{Path, PathBuf},
    process::{Child, ChildStdout, Command, ExitStatus, Output, Stdio},
    sync::mpsc,
    thread,
    time::Duration,
};

use serde_json::Value;

/// Longer than any command here takes on a busy machine: one that takes longer hangs.
const PATIENCE: Duration = Duration::from_secs(60);

/// Secrets that must not be printed.
const PROVIDER_KEY: &str = "sk-live-provider-8265";
const GATEWAY_KEY: &str = "gw-live-caller-1934";

/// The model that stands in for an overloaded one, in the preset `claude-code`.
const FALLBACK_MODEL: &str = "FALLBACK_MODEL_ID";

/// The binary, without the environment variables of the test run.
fn steadfast(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_steadfast"));
    command.args(args);
    for name in
        ["ANTHROPIC_API_KEY", "OPENAI_API_KEY", "GEMINI_API_KEY", FALLBACK_MODEL, "RUST_LOG"]
    {
        command.env_remove(name);
    }
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Runs it to its end.
fn run(args: &[&str]) -> Output {
    finish(Running::start(steadfast(args)))
}

fn finish(running: Running) -> Output {
    let Running { mut child, lines, errors } = running;
    let status = wait(&mut child);
    let stdout = lines.iter().fold(String::new(), |all, line| all + &line + "\n").into_bytes();
    Output { status, stdout, stderr: errors.join().unwrap() }
}

fn wait(child: &mut Child) -> ExitStatus {
    // The standard library has no wait with a timeout.
    for _ in 0..PATIENCE.as_millis() / 10 {
        if let Some(status) = child.try_wait().unwrap() {
            return status;
        }
        pause();
    }
    let _ = child.kill();
    panic!("it hangs");
}

#[allow(clippy::disallowed_methods, reason = "no executor here that could be blocked")]
fn pause() {
    thread::sleep(Duration::from_millis(10));
}

/// A command that runs until it is stopped.
struct Running {
    child: Child,
    lines: mpsc::Receiver<String>,
    errors: thread::JoinHandle<Vec<u8>>,
}

impl Running {
    fn start(mut command: Command) -> Self {
        let mut child = command.spawn().unwrap();
        let (stdout, mut stderr) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
        let (send, lines) = mpsc::channel();
        thread::spawn(move || read(stdout, &send));
        let errors = thread::spawn(move || {
            let mut all = Vec::new();
            stderr.read_to_end(&mut all).unwrap();
            all
        });
        Self { child, lines, errors }
    }

    /// The next line of its output that has `part` in it.
    fn line(&self, part: &str) -> String {
        loop {
            let line = self.lines.recv_timeout(PATIENCE).unwrap_or_else(|_| panic!("no `{part}`"));
            if line.contains(part) {
                return line;
            }
        }
    }

    /// Asks it to stop, as an orchestrator does.
    fn terminate(&self) {
        self.signal("-TERM");
    }

    fn signal(&self, signal: &str) {
        let status =
            Command::new("/bin/kill").args([signal, &self.child.id().to_string()]).status();
        assert!(status.unwrap().success());
    }
}

fn read(stdout: ChildStdout, lines: &mpsc::Sender<String>) {
    for line in BufReader::new(stdout).lines() {
        if lines.send(line.unwrap()).is_err() {
            return;
        }
    }
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

/// A folder for this test.
fn folder(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

fn file(folder: &Path, name: &str, text: &str) -> String {
    let path = folder.join(name);
    std::fs::write(&path, text).unwrap();
    path.display().to_string()
}

/// The address in a line such as `steadfast serves on http://127.0.0.1:1234`.
fn address(line: &str) -> SocketAddr {
    let (_, rest) = line.split_once("http://").unwrap();
    rest.split(['/', ' ']).next().unwrap().parse().unwrap()
}

/// Sends an HTTP request, and reads until the server closes.
fn http(at: SocketAddr, request: &str) -> String {
    let mut stream = TcpStream::connect(at).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

fn chat(model: &str, stream: bool, key: &str) -> String {
    let body = format!(
        "{{\"model\":\"{model}\",\"stream\":{stream},\"messages\":[{{\"role\":\"user\",\"content\":\"hi\"}}]}}"
    );
    format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: gateway\r\nauthorization: Bearer {key}\r\n\
         content-type: application/json\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
}

#[test]
fn help_shows_examples() {
    for command in
        [&[][..], &["demo"], &["serve"], &["check"], &["classify"], &["sim"], &["completions"]]
    {
        let args = [command, &["--help"]].concat();
        let output = run(&args);
        let help = text(&output.stdout);
        assert_eq!(output.status.code(), Some(0), "{command:?}");
        assert!(help.contains("Examples:"), "{command:?}: {help}");
        let line = format!("steadfast {}", command.join(" "));
        let (_, examples) = help.split_once("Examples:").unwrap();
        assert!(examples.contains(line.trim_end()), "{command:?}: {examples}");
    }
    assert!(text(&run(&["--version"]).stdout).starts_with("steadfast "));
}

#[test]
fn wrong_usage_has_another_exit_code_than_failure() {
    for args in [&["dance"][..], &["serve", "--port", "1"], &["demo", "--once", "--requests", "0"]]
    {
        let output = run(args);
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert!(output.stdout.is_empty() && !output.stderr.is_empty(), "{args:?}");
    }
}

fn good(folder: &Path) -> String {
    let key = file(folder, "provider.key", PROVIDER_KEY);
    format!(
        "[server]\nauth = \"none\"\n\n[[providers]]\nname = \"main\"\ndialect = \"openai\"\n\
         credentials = [\"file:{key}\"]\n\n[retry]\nretries = 4\n"
    )
}

#[test]
fn check_prints_what_a_valid_file_means() {
    let folder = folder("check-good");
    let path = file(&folder, "good.toml", &good(&folder));
    let output = run(&["check", "--config", &path]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let report = text(&output.stdout);
    let retries = report.lines().find(|line| line.contains("retry.retries")).unwrap();
    assert!(retries.contains(" 4 ") && retries.trim_end().ends_with("file"), "{retries}");
    assert!(report.lines().any(|line| line.trim_end().ends_with("default")), "{report}");
    assert!(
        report.contains("at most 75 times (5 for a call, and 15 calls"),
        "one attempt and four retries, three goes at each of five pieces: {report}"
    );
    assert!(!report.contains(PROVIDER_KEY));

    let output = run(&["check", "--json", "--config", &path]);
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["worst_attempts"], 75);
    assert_eq!((&report["attempts_a_call"], &report["worst_calls"]), (&5.into(), &15.into()));
    let lines = report["lines"].as_array().unwrap();
    let retries = lines.iter().find(|line| line["key"] == "retry.retries").unwrap();
    assert_eq!((&retries["value"], &retries["from"]), (&"4".into(), &"file".into()));
}

#[test]
fn check_shows_the_fallback_model_of_the_environment() {
    let folder = folder("check-fallback");
    let check = |top: &str, more: &str, model: Option<&str>| {
        let path = file(&folder, "fallback.toml", &format!("{top}{}{more}", good(&folder)));
        let mut command = steadfast(&["check", "--json", "--config", &path]);
        if let Some(model) = model {
            command.env(FALLBACK_MODEL, model);
        }
        let output = finish(Running::start(command));
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        let lines = report["lines"].as_array().unwrap();
        let of = |line: &&Value| {
            let key = line["key"].as_str().unwrap();
            key == "failover.downgrades" || key.starts_with("failover.downgrades.")
        };
        let all: Vec<_> = lines.iter().filter(of).collect();
        assert_eq!(all.len(), 1, "{all:?}");
        ["key", "value", "from"].map(|field| all[0][field].as_str().unwrap().to_owned())
    };
    let preset = "preset = \"claude-code\"\n";
    let own = "[failover]\ndowngrades = { \"*\" = [\"own-model\"] }\n";
    let (all, one) = ("failover.downgrades", "failover.downgrades.*");
    for (top, more, model, shown) in [
        (preset, "", Some("haiku"), [one, "haiku", "environment"]),
        (preset, "", None, [all, "none", "default"]),
        (preset, "", Some(""), [all, "none", "default"]),
        (preset, own, Some("haiku"), [one, "own-model", "file"]),
        ("", "", Some("haiku"), [all, "none", "default"]),
    ] {
        assert_eq!(check(top, more, model), shown, "{top:?}, {more:?}, {model:?}");
    }
}

#[test]
fn check_prints_errors_with_their_position() {
    let folder = folder("check-wrong");
    let good = good(&folder);
    let cases = [
        ("broken.toml", "[server\nauth = 1".to_owned(), "1:8", ""),
        ("unknown.toml", good.replace("retries = 4", "retrys = 4"), "10:1", "retry.retrys: "),
        ("type.toml", good.replace("retries = 4", "retries = \"4\""), "10:11", "retry.retries: "),
        (
            "inline.toml",
            good.replace("file:", "sk-inline-secret-"),
            "7:16",
            "providers[0].credentials[0]: ",
        ),
        (
            "unset.toml",
            good.replace(
                "credentials = [\"file:",
                "credentials = [\"env:STEADFAST_TEST_NOT_SET\", \"file:",
            ),
            "7:16",
            "providers[0].credentials[0]: the environment variable STEADFAST_TEST_NOT_SET is not set",
        ),
        ("dialect.toml", good.replace("\"openai\"", "\"cobol\""), "6:11", "providers[0].dialect: "),
    ];
    for (name, content, position, key) in cases {
        let path = file(&folder, name, &content);
        for args in [&["check", "--config", &path][..], &["check", "--json", "--config", &path]] {
            let output = run(args);
            let errors = text(&output.stderr);
            assert_eq!(output.status.code(), Some(2), "{name}: {errors}");
            assert!(output.stdout.is_empty(), "{name}");
            assert!(errors.contains(&format!("{path}:{position}: {key}")), "{name}: {errors}");
            assert!(!errors.contains(PROVIDER_KEY) && !errors.contains("sk-inline"), "{errors}");
        }
    }
    let output = run(&["check", "--config", "/nonexistent/steadfast.toml"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("/nonexistent/steadfast.toml: can not be read"));
}

#[test]
fn without_providers_the_variables_are_named() {
    for command in ["serve", "check"] {
        let output = run(&[command]);
        let errors = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{command}: {errors}");
        for name in ["ANTHROPIC_API_KEY", "OPENAI_API_KEY", "GEMINI_API_KEY", "--config"] {
            assert!(errors.contains(name), "{command}: {name} in {errors}");
        }
    }
    // It does not start without a provider.
    let folder = folder("serve-open");
    let path = file(&folder, "open.toml", &good(&folder));
    let output = run(&["serve", "--config", &path, "--listen", "0.0.0.0:0"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("server.auth"), "{}", text(&output.stderr));
}

#[test]
fn classify_answers_every_line() {
    let lines = concat!(
        r#"{"provider":"openai","status":429,"headers":{"retry-after":"7"},"body":{"error":{"message":"Rate limit reached","code":"rate_limit_exceeded"}}}"#,
        "\n",
        r#"{"provider":"anthropic","status":529,"body":"{\"type\":\"error\",\"error\":{\"type\":\"overloaded_error\",\"message\":\"Overloaded\"}}"}"#,
        "\n",
        r#"{"status":401,"body":"no"}"#,
        "\n",
        r#"{"transport":"reset"}"#,
    );
    let path = file(&folder("classify"), "errors.jsonl", lines);
    let by_file = run(&["classify", &path]);
    assert_eq!(by_file.status.code(), Some(0), "{}", text(&by_file.stderr));
    let verdicts: Vec<Value> =
        text(&by_file.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let reasons: Vec<_> = verdicts.iter().map(|verdict| verdict["reason"].clone()).collect();
    assert_eq!(reasons, ["rate_limit", "overloaded", "auth", "network"]);
    assert_eq!(verdicts[0]["retry_after_ms"], 7_000);

    let by_stdin = piped(lines.as_bytes());
    assert_eq!(by_stdin.status.code(), Some(0));
    assert_eq!(by_stdin.stdout, by_file.stdout);

    // Lines that are none do not stop it, and are answered in order.
    let bad = [
        lines.lines().next().unwrap().as_bytes(),
        b"nonsense",
        b"{\"status\":\"\xff\"}",
        b"{\"transport\":\"gremlins\"}",
        lines.lines().nth(1).unwrap().as_bytes(),
    ]
    .join(&b'\n');
    let output = piped(&bad);
    assert_eq!(output.status.code(), Some(1));
    let answers: Vec<Value> =
        text(&output.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(answers.len(), 5);
    for (n, answer) in answers.iter().enumerate() {
        assert_eq!(answer["error"].is_string(), (1..=3).contains(&n), "{n}: {answer}");
    }
    let errors = text(&output.stderr);
    assert!(errors.contains("standard input:2: ") && errors.contains("standard input:4: "));

    let missing = run(&["classify", "/nonexistent/errors.jsonl"]);
    assert_eq!(missing.status.code(), Some(2));
    assert!(text(&missing.stderr).contains("/nonexistent/errors.jsonl"));
}

fn piped(input: &[u8]) -> Output {
    let mut command = steadfast(&["classify"]);
    command.stdin(Stdio::piped());
    let mut running = Running::start(command);
    running.child.stdin.take().unwrap().write_all(input).unwrap();
    finish(running)
}

#[test]
fn sim_serves_three_dialects_until_it_is_stopped() {
    let plan = "[[rules]]\nprovider = \"openai\"\nnth = 2\nfault = { error = \"overloaded\" }\n";
    let path = file(&folder("sim"), "plan.toml", plan);
    let sim = Running::start(steadfast(&["sim", "--listen", "127.0.0.1:0", "--plan", &path]));
    let openai = address(&sim.line("openai"));
    let others = [address(&sim.line("anthropic")), address(&sim.line("gemini"))];
    assert!(http(openai, &chat("gpt-4o", false, "any")).starts_with("HTTP/1.1 200 "));
    assert!(http(openai, &chat("gpt-4o", false, "any")).starts_with("HTTP/1.1 503 "), "the plan");
    for other in others {
        let answer = http(other, "GET /nowhere HTTP/1.1\r\nhost: sim\r\nconnection: close\r\n\r\n");
        assert!(answer.starts_with("HTTP/1.1 4"), "{answer}");
    }
    sim.terminate();
    assert_eq!(finish(sim).status.code(), Some(0));
    assert!(TcpStream::connect(openai).is_err(), "the port is free");

    let path = file(&folder("sim"), "wrong.toml", "[[rules]]\nfault = \"dance\"\n");
    let output = run(&["sim", "--listen", "127.0.0.1:0", "--plan", &path]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains(&path), "{}", text(&output.stderr));
}

#[test]
fn serve_answers_until_it_is_stopped() {
    // Pieces come slowly, so that an answer is in progress when it is stopped.
    let plan = "[[rules]]\nstream = true\nfault = { drip = { bytes = 40, every_ms = 10 } }\n";
    let folder = folder("serve");
    let path = file(&folder, "plan.toml", plan);
    let sim = Running::start(steadfast(&["sim", "--listen", "127.0.0.1:0", "--plan", &path]));
    let provider = address(&sim.line("openai"));

    let (key, caller) =
        (file(&folder, "provider.key", PROVIDER_KEY), file(&folder, "caller.key", GATEWAY_KEY));
    let config = format!(
        "[server]\nlisten = \"127.0.0.1:0\"\n[[tenants]]\nname = \"acme\"\nkeys = [\"file:{caller}\"]\n\
         [[providers]]\nname = \"main\"\ndialect = \"openai\"\nbase_url = \"http://{provider}/v1\"\n\
         credentials = [\"file:{key}\"]\n"
    );
    let path = file(&folder, "serve.toml", &config);
    let mut command = steadfast(&["serve", "--config", &path]);
    command.env("RUST_LOG", "trace");
    let gateway = Running::start(command);
    let at = address(&gateway.line("steadfast serves on"));
    assert!(gateway.line("/admin/*").contains("`server.admin_key` is not set"));
    assert!(gateway.line("chain").contains("main"));

    let answer = http(at, &chat("gpt-4o", false, GATEWAY_KEY));
    assert!(answer.starts_with("HTTP/1.1 200 ") && answer.contains("x-steadfast-target"));
    let refused = http(at, &chat("gpt-4o", false, "gw-wrong-key-6021"));
    assert!(refused.starts_with("HTTP/1.1 401 "), "{refused}");
    let unknown = http(at, &chat("no-such-model", true, GATEWAY_KEY));
    assert!(unknown.starts_with("HTTP/1.1 404 "), "{unknown}");

    let mut stream = TcpStream::connect(at).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(chat("gpt-4o", true, GATEWAY_KEY).as_bytes()).unwrap();
    let mut head = [0; 15];
    stream.read_exact(&mut head).unwrap();
    assert_eq!(&head, b"HTTP/1.1 200 OK");
    gateway.terminate();
    let mut rest = String::new();
    stream.read_to_string(&mut rest).unwrap();
    assert!(rest.contains("data: [DONE]"), "the answer in progress ends well: {rest}");

    let output = finish(gateway);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert!(TcpStream::connect(at).is_err());
    let log = text(&output.stderr);
    assert!(log.contains("stopping") && log.contains("gpt-4o"), "{log}");
    let over: Vec<_> = log.lines().filter(|line| line.contains("a request is over")).collect();
    assert_eq!(over.len(), 4, "one line a request: {over:#?}");
    let acme = over.iter().filter(|line| line.contains("acme")).count();
    assert_eq!(acme, 3, "those with a key have a tenant: {over:#?}");
    for secret in [PROVIDER_KEY, GATEWAY_KEY, "gw-wrong-key-6021"] {
        assert!(!log.contains(secret), "{secret} is in the log");
        for text in [&answer, &refused, &unknown, &rest] {
            assert!(!text.contains(secret), "{secret} is in {text}");
        }
    }
    sim.terminate();
    assert_eq!(finish(sim).status.code(), Some(0));
}

#[test]
fn an_address_in_use_is_reported() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let at = taken.local_addr().unwrap().to_string();
    let folder = folder("taken");
    let path = file(&folder, "good.toml", &good(&folder));
    for args in [&["serve", "--config", &path, "--listen", &at][..], &["sim", "--listen", &at]] {
        let output = run(args);
        assert_eq!(output.status.code(), Some(1), "{args:?}");
        let errors = text(&output.stderr);
        assert!(errors.contains(&format!("can not listen on {at}")), "{errors}");
    }
}

#[test]
fn the_demo_answers_every_request_and_prints_a_table() {
    let output = run(&["demo", "--once", "--requests", "40"]);
    let report = text(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{report}");
    assert!(report.contains("40 of 40 requests answered"), "{report}");
    for head in ["what it did wrong", "what it did", "because of", "times"] {
        assert!(report.contains(head), "{head} in {report}");
    }
    assert!(report.lines().any(|line| line.starts_with("retry ")), "{report}");
    assert!(report.lines().any(|line| line.starts_with("failover ")), "{report}");
    assert!(!report.contains("NOT ANSWERED"), "{report}");
}

#[test]
fn the_demo_as_json() {
    let output = run(&["demo", "--once", "--requests", "40", "--json"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stdout));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&report["asked"], &report["answered"]), (&40.into(), &40.into()));
    assert_eq!(report["exact"], report["compared"]);
    assert_eq!(report["failures"], serde_json::json!([]));
    assert!(report["steps"].as_array().is_some_and(|steps| !steps.is_empty()));
    assert!(report["wrongs"].as_array().is_some_and(|wrongs| !wrongs.is_empty()));
}

#[test]
fn completions_know_the_commands() {
    for shell in ["bash", "zsh", "fish"] {
        let output = run(&["completions", shell]);
        assert_eq!(output.status.code(), Some(0), "{shell}");
        let script = text(&output.stdout);
        assert!(script.contains("classify") && script.contains("once"), "{shell}: {script}");
    }
    assert_eq!(run(&["completions", "abacus"]).status.code(), Some(2));
}

/// A conversation of an agent that makes the same call `times` times.
fn circling(times: usize) -> String {
    let mut messages = vec![serde_json::json!({"role": "user", "content": "Find it."})];
    for n in 0..times {
        let id = format!("call_{n}");
        messages.push(serde_json::json!({"role": "assistant", "content": null, "tool_calls": [{
            "id": id, "type": "function",
            "function": {"name": "ls", "arguments": "{\"path\": \"src\"}"},
        }]}));
        let files = "lib.rs  main.rs  a long list of other files";
        messages.push(serde_json::json!({"role": "tool", "tool_call_id": id, "content": files}));
    }
    serde_json::json!({"model": "gpt-4o", "messages": messages}).to_string()
}

#[test]
fn replay_prints_the_guards_verdict_on_each_call() {
    let folder = folder("replay");
    let path = file(&folder, "session.json", &circling(6));
    let output = run(&["replay", &path, "--dialect", "openai"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let lines: Vec<Value> =
        text(&output.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let verdicts: Vec<_> = lines.iter().map(|line| line["verdict"].as_str().unwrap()).collect();
    assert_eq!(verdicts, ["ok", "ok", "advise", "advise", "stop", "stop"]);
    assert_eq!(lines[2]["rule"], "same_result");
    assert_eq!(
        (&lines[0]["n"], &lines[0]["tool"], &lines[0]["rule"]),
        (&1.into(), &"ls".into(), &Value::Null)
    );

    let config =
        "[guard]\nper_tool = 1\n[guard.loops]\nsame_result = []\n[server]\nauth = \"none\"\n";
    let config = file(&folder, "guard.toml", config);
    let counted = run(&["replay", &path, "--dialect", "openai", "--config", &config]);
    let lines = text(&counted.stdout);
    assert!(lines.lines().nth(1).unwrap().contains(r#""verdict":"stop""#), "{lines}");
    let uncounted = ["replay", &path, "--dialect", "openai", "--config", &config, "--loops-only"];
    assert!(!text(&run(&uncounted).stdout).contains("stop"));

    let output = run(&["replay", &path, "--dialect", "anthropic"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        text(&output.stderr)
            .contains("session.json: is no request body of the dialect `anthropic`")
    );
    assert_eq!(run(&["replay", &path]).status.code(), Some(2), "the dialect has to be given");
    assert_eq!(run(&["replay", "/nowhere.json", "--dialect", "openai"]).status.code(), Some(2));
}

#[test]
fn compact_makes_a_body_fit_and_does_not_change_one_that_fits() {
    let folder = folder("compact");
    let small = circling(2);
    let path = file(&folder, "small.json", &small);
    let output = run(&["compact", &path, "--dialect", "openai"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert_eq!(text(&output.stdout).trim_end(), small, "byte for byte");
    assert!(text(&output.stderr).starts_with("nothing to do: "));

    let path = file(&folder, "large.json", &circling(200));
    let asked = ["compact", &path, "--dialect", "openai", "--model", "house", "--window", "4000"];
    let output = run(&asked);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let body: Value = serde_json::from_slice(&output.stdout).unwrap();
    let messages = body["messages"].as_array().unwrap();
    assert!(messages.len() < 100, "{} messages", messages.len());
    assert_eq!(
        messages.iter().filter(|m| m["content"] == "Find it.").count(),
        1,
        "the user's task is kept"
    );
    assert!(
        text(&output.stderr).contains(" input tokens came down to "),
        "{}",
        text(&output.stderr)
    );

    let unknown = run(&["compact", &path, "--dialect", "openai", "--model", "house"]);
    assert_eq!(unknown.status.code(), Some(2));
    assert!(text(&unknown.stderr).contains("say it with --window TOKENS"));
    let none =
        run(&["compact", &path, "--dialect", "openai", "--model", "house", "--window", "60"]);
    assert_eq!((none.status.code(), none.stdout.len()), (Some(1), 0), "{}", text(&none.stderr));
    assert!(text(&none.stderr).contains("can not be made to fit"), "{}", text(&none.stderr));
    let target = run(&["compact", &path, "--dialect", "openai", "--target", "2000"]);
    assert_eq!(target.status.code(), Some(0), "{}", text(&target.stderr));
    let absurd = run(&["compact", &path, "--dialect", "openai", "--target", "0"]);
    assert_eq!(absurd.status.code(), Some(2));
}

#[test]
fn a_hangup_reads_the_file_again() {
    let folder = folder("serve-hangup");
    let before = good(&folder);
    let path = file(&folder, "steadfast.toml", &before);
    let running =
        Running::start(steadfast(&["serve", "--config", &path, "--listen", "127.0.0.1:0"]));
    let at = address(&running.line("serves on"));
    let models =
        || http(at, &format!("GET /v1/models HTTP/1.1\r\nhost: {at}\r\nconnection: close\r\n\r\n"));
    assert!(!models().contains("swift"));
    // A file that is wrong changes nothing, and does not end it.
    file(&folder, "steadfast.toml", "providers = 7\n");
    running.signal("-HUP");
    file(&folder, "steadfast.toml", &format!("[aliases]\nswift = \"gpt-4o\"\n{before}"));
    running.signal("-HUP");
    for n in 0.. {
        if models().contains("swift") {
            break;
        }
        assert!(n < PATIENCE.as_millis() / 10, "it goes by the old file");
        pause();
    }
    running.terminate();
    let output = finish(running);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
}
