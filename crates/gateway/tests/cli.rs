//! The command line: the binary, its output and its exit codes.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    path::Path,
    process::{Output, Stdio},
    thread,
};

use serde_json::Value;

use self::process::{
    FALLBACK_MODEL, PATIENCE, Running, address, chat, file, finish, folder, http, pause, run,
    steadfast, text,
};

mod process;

/// Secrets that must not be printed.
const PROVIDER_KEY: &str = "sk-live-provider-8265";
const GATEWAY_KEY: &str = "gw-live-caller-1934";

#[test]
fn help_shows_examples() {
    for command in [
        &[][..],
        &["demo"],
        &["serve"],
        &["check"],
        &["classify"],
        &["sim"],
        &["sessions"],
        &["dead-letters"],
        &["completions"],
    ] {
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

/// A provider that answers each request with the next of `answers`: with the key it was sent, as it stands in JSON, in
/// the place of `KEY`.
fn echoing(answers: Vec<String>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap();
    thread::spawn(move || {
        for answer in answers {
            let mut reader = BufReader::new(listener.accept().unwrap().0);
            let (mut key, mut length) = (String::new(), 0);
            loop {
                let mut line = Vec::new();
                reader.read_until(b'\n', &mut line).unwrap();
                let line = String::from_utf8(line).unwrap();
                let Some((name, value)) = line.trim_end().split_once(": ") else {
                    if line.trim_end().is_empty() {
                        break;
                    }
                    continue;
                };
                match &*name.to_ascii_lowercase() {
                    "authorization" => key = value.trim_start_matches("Bearer ").to_owned(),
                    "content-length" => length = value.parse().unwrap(),
                    _ => {}
                }
            }
            reader.read_exact(&mut vec![0; length]).unwrap();
            let key = key.replace('\\', "\\\\").replace('"', "\\\"");
            let answer = answer.replace("KEY", &key);
            reader.into_inner().write_all(answer.as_bytes()).unwrap();
        }
    });
    at
}

/// A whole answer with this body.
fn answer(status: &str, kind: &str, body: &str) -> String {
    format!(
        "HTTP/1.1 {status}\r\ncontent-type: {kind}\r\nx-request-id: id-KEY\r\nconnection: close\r\n\r\n{body}"
    )
}

#[test]
fn the_log_shows_no_secret_no_prompt_and_no_answer() {
    // No vendor's keys are like these.
    let (key, caller) = ("quoth \"the\\raven/\u{e9}", "the caller's own key");
    let (prompt, written) = ("a-canary-in-the-prompt", "a-canary-in-the-answer");
    let error = r#"{"error":{"message":"the key KEY is odd","type":"server_error","param":null,"code":null}}"#;
    let whole = format!(
        "{{\"id\":\"c\",\"object\":\"chat.completion\",\"created\":1,\"model\":\"gpt-4o\",\"choices\":[{{\
         \"index\":0,\"finish_reason\":\"stop\",\"message\":{{\"role\":\"assistant\",\"content\":\
         \"{written}\"}}}}]}}"
    );
    let piece = format!(
        "{{\"id\":\"c\",\"object\":\"chat.completion.chunk\",\"created\":1,\"model\":\"gpt-4o\",\"choices\":\
         [{{\"index\":0,\"delta\":{{\"role\":\"assistant\",\"content\":\"{written}\"}}}}]}}"
    );
    let stream = format!("data: {piece}\n\ndata: {error}\n\n");
    let folder = folder("secrets");
    let file_of_key = file(&folder, "provider.key", key);
    for libraries in [false, true] {
        let provider = echoing(vec![
            answer("200 OK", "application/json", &whole),
            answer("200 OK", "text/event-stream", &stream),
            answer("400 Bad Request", "application/json", error),
            answer("500 Internal Server Error", "application/json", error),
            answer("401 Unauthorized", "application/json", error),
        ]);
        let config = format!(
            "[server]\nlisten = \"127.0.0.1:0\"\nauth = \"none\"\n[log]\nlibraries = {libraries}\n[retry]\n\
             retries = 0\n[failover]\nattempts = 1\n[resume]\nenabled = false\n[[providers]]\nname = \"main\"\n\
             dialect = \"openai\"\nbase_url = \"http://{provider}/v1\"\ncredentials = [\"file:{file_of_key}\"]\n"
        );
        let path = file(&folder, "serve.toml", &config);
        let mut command = steadfast(&["serve", "--config", &path]);
        command.env("RUST_LOG", "trace");
        let gateway = Running::start(command);
        let at = address(&gateway.line("steadfast serves on"));
        let mut answers = String::new();
        for stream in [false, true, false, false, false] {
            let asks = chat("gpt-4o", stream, caller).replace("host: gateway", "host: localhost");
            // Of the same length.
            let length =
                format!("content-length: {}", asks.split("\r\n\r\n").nth(1).unwrap().len());
            let longer = asks.replace("\"hi\"", &format!("\"{prompt}\""));
            let now = format!("content-length: {}", longer.split("\r\n\r\n").nth(1).unwrap().len());
            answers += &http(at, &longer.replace(&length, &now));
        }
        for path in ["/admin/status", "/metrics"] {
            let get =
                format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n");
            answers += &http(at, &get);
        }
        gateway.terminate();
        let output = finish(gateway);
        let log = text(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{log}");
        assert_eq!(answers.matches(written).count(), 2, "{answers}");
        assert!(answers.matches("the key [redacted] is odd").count() >= 4, "{answers}");
        assert!(log.matches("the key [redacted] is odd").count() >= 3, "{log}");
        for hidden in ["quoth", "raven", caller] {
            assert!(!answers.contains(hidden), "{hidden} in {answers}");
            assert!(!log.contains(hidden), "{hidden} in {log}");
        }
        for canary in [prompt, written] {
            assert!(!log.contains(canary), "{canary} in {log}");
        }
        let of_libraries = [" hyper", " h2::", " rustls"].iter().any(|name| log.contains(name));
        assert_eq!(of_libraries, libraries, "{log}");
    }
}

#[test]
fn a_short_secret_is_refused_at_its_key() {
    let folder = folder("short");
    let key = file(&folder, "provider.key", "hush\n");
    let config = format!(
        "[server]\nauth = \"none\"\n[[providers]]\nname = \"main\"\ndialect = \"openai\"\n\
         credentials = [\"file:{key}\"]\n"
    );
    let path = file(&folder, "serve.toml", &config);
    let output = run(&["serve", "--config", &path]);
    let errors = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{errors}");
    let expected = format!(
        ":6:16: providers[0].credentials[0]: file:{key} has 4 bytes; a secret has 8 at least"
    );
    assert!(errors.contains(&expected) && !errors.contains("hush"), "{errors}");
}

#[test]
fn an_address_in_use_is_reported() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
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
