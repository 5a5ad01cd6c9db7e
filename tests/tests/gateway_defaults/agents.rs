//! Long sessions of agents through the whole gateway: healthy ones are neither stopped nor advised, and those
//! in a loop are stopped.

use serde_json::{Value, json};
use steadfast::Dialect;
use steadfast_tests::gateway::{DIALECTS, http::HttpRequest, in_process::InProcess, model, path};

use crate::sim;

/// What every advice of the guard begins with.
const MARK: &str = steadfast::guard::MARK;

/// A call of a tool, and its result.
pub(crate) type Step = (&'static str, Value, String);

/// Several calls at once.
pub(crate) type Batch = Vec<Step>;

/// A session's history, in a dialect.
pub(crate) struct Session {
    dialect: Dialect,
    turns: Vec<Value>,
    calls: usize,
}

impl Session {
    pub(crate) fn new(dialect: Dialect) -> Self {
        let user = match dialect {
            Dialect::Gemini => {
                json!({"role": "user", "parts": [{"text": "Find the bug, and fix it."}]})
            }
            _ => json!({"role": "user", "content": "Find the bug, and fix it."}),
        };
        Self { dialect, turns: vec![user], calls: 0 }
    }

    /// The model has made these calls, and their results are there.
    pub(crate) fn push(&mut self, batch: &Batch) {
        let first = self.calls;
        self.calls += batch.len();
        let ids = (first..self.calls).map(|n| format!("call_{n:06}"));
        let steps: Vec<_> = ids.zip(batch).collect();
        match self.dialect {
            Dialect::OpenAi => {
                let calls = steps.iter().map(|(id, (tool, arguments, _))| {
                    let function = json!({"name": tool, "arguments": arguments.to_string()});
                    json!({"id": id, "type": "function", "function": function})
                });
                let calls: Vec<_> = calls.collect();
                self.turns.push(json!({"role": "assistant", "content": null, "tool_calls": calls}));
                self.turns.extend(steps.iter().map(|(id, (.., result))| {
                    json!({"role": "tool", "tool_call_id": id, "content": result})
                }));
            }
            Dialect::Responses => {
                self.turns.extend(steps.iter().map(|(id, (tool, arguments, _))| {
                    json!({"type": "function_call", "call_id": id, "name": tool, "arguments": arguments.to_string()})
                }));
                self.turns.extend(steps.iter().map(|(id, (.., result))| {
                    json!({"type": "function_call_output", "call_id": id, "output": result})
                }));
            }
            Dialect::Anthropic => {
                let calls = steps.iter().map(|(id, (tool, arguments, _))| {
                    json!({"type": "tool_use", "id": id, "name": tool, "input": arguments})
                });
                let calls: Vec<_> = calls.collect();
                let results = steps.iter().map(|(id, (.., result))| {
                    json!({"type": "tool_result", "tool_use_id": id, "content": result})
                });
                let results: Vec<_> = results.collect();
                self.turns.push(json!({"role": "assistant", "content": calls}));
                self.turns.push(json!({"role": "user", "content": results}));
            }
            Dialect::Gemini => {
                let calls = steps.iter().map(|(id, (tool, arguments, _))| {
                    json!({"functionCall": {"id": id, "name": tool, "args": arguments}})
                });
                let calls: Vec<_> = calls.collect();
                let results = steps.iter().map(|(id, (tool, _, result))| {
                    json!({"functionResponse": {"id": id, "name": tool, "response": {"result": result}}})
                });
                let results: Vec<_> = results.collect();
                self.turns.push(json!({"role": "model", "parts": calls}));
                self.turns.push(json!({"role": "user", "parts": results}));
            }
        }
    }

    /// The next request of the agent.
    pub(crate) fn request(&self) -> HttpRequest {
        let tools = [
            "read_file",
            "grep",
            "edit_file",
            "write_file",
            "run_command",
            "list_files",
            "web_search",
        ];
        let schema = json!({"type": "object", "properties": {}});
        let body = match self.dialect {
            Dialect::OpenAi => {
                let tools = tools.map(|name| {
                    json!({"type": "function", "function": {"name": name, "parameters": schema}})
                });
                json!({"model": model(self.dialect), "messages": self.turns, "tools": tools})
            }
            Dialect::Responses => {
                let tools = tools.map(|name| {
                    json!({"type": "function", "name": name, "parameters": schema, "strict": false})
                });
                json!({"model": model(self.dialect), "input": self.turns, "tools": tools})
            }
            Dialect::Anthropic => {
                let tools = tools.map(|name| json!({"name": name, "input_schema": schema}));
                json!({"model": model(self.dialect), "max_tokens": 1_000, "messages": self.turns, "tools": tools})
            }
            Dialect::Gemini => {
                let tools = tools.map(|name| json!({"name": name, "parameters": schema}));
                json!({"contents": self.turns, "tools": [{"functionDeclarations": tools}]})
            }
        };
        HttpRequest::post(path(self.dialect, model(self.dialect), false), body.to_string())
            .header("anthropic-version", "2023-06-01")
    }
}

/// What became of a session.
#[derive(Debug, Default)]
struct Played {
    /// After so many of its calls it was stopped.
    stopped: Option<usize>,
    /// Requests that reached the model with advice in them.
    advised: usize,
}

/// The session, with a request after each batch of calls, or after each `every`th one.
async fn play(dialect: Dialect, named: bool, every: usize, batches: &[Batch]) -> Played {
    let sims = [sim(dialect).build()];
    let gateway = InProcess::without_file(&sims);
    let mut session = Session::new(dialect);
    for (n, batch) in batches.iter().enumerate() {
        session.push(batch);
        if n % every != 0 && n + 1 < batches.len() {
            continue;
        }
        let request = match named {
            true => session.request().header("x-steadfast-session", "one"),
            false => session.request(),
        };
        let reply = gateway.send(&request).await;
        if reply.status != 200 {
            assert_eq!(reply.header("x-steadfast-reason"), Some("safety"), "{}", reply.text());
            return Played { stopped: Some(session.calls), advised: advised(&sims[0]) };
        }
    }
    Played { stopped: None, advised: advised(&sims[0]) }
}

fn advised(sim: &steadfast::sim::SimProvider) -> usize {
    let entries = sim.journal().entries();
    entries.iter().filter(|entry| String::from_utf8_lossy(&entry.body).contains(MARK)).count()
}

/// A file's lines, which differ from file to file.
fn lines(n: usize) -> String {
    (0..20).map(|line| format!("{line}: let x{n} = {};\n", n * 31 + line)).collect()
}

/// Reads, searches, edits, and tests, as healthy agents do them.
fn varied() -> Vec<Batch> {
    let mut batches = Vec::new();
    for round in 0..60 {
        let file = format!("src/part_{}.rs", round % 23);
        batches.push(vec![(
            "grep",
            json!({"pattern": format!("fn part_{round}")}),
            format!("{file}:{round}: fn part_{round}()"),
        )]);
        batches.push(vec![("read_file", json!({"path": file, "offset": round}), lines(round))]);
        batches.push(vec![(
            "edit_file",
            json!({"path": file, "old": format!("x{round}"), "new": format!("y{round}")}),
            "The file has been updated.".to_owned(),
        )]);
        let failed = 60 - round;
        batches.push(vec![(
            "run_command",
            json!({"command": "cargo test"}),
            format!("test result: FAILED. {} passed; {failed} failed", 100 + round),
        )]);
    }
    batches
}

/// Hundreds of edits of three files, each with new text and the same result.
fn edits() -> Vec<Batch> {
    let edit = |n: usize| {
        let arguments = json!({
            "path": format!("src/{}.rs", ["a", "b", "c"][n % 3]),
            "old": format!("line {n}"),
            "new": format!("line {} of the new text", n + 1),
        });
        vec![("edit_file", arguments, "ok".to_owned())]
    };
    (0..300).map(edit).collect()
}

/// Thirty calls of one tool at once, several times.
fn parallel() -> Vec<Batch> {
    let read = |n: usize| ("read_file", json!({"path": format!("src/file_{n}.rs")}), lines(n));
    (0..5).map(|round| (0..30).map(|n| read(round * 30 + n)).collect()).collect()
}

/// A command that is asked again and again, with a result that changes.
fn polling() -> Vec<Batch> {
    let poll = |n: usize| {
        let result = format!("build 4711: running, {n} of 120 steps done");
        vec![("run_command", json!({"command": "ci status"}), result)]
    };
    (0..120).map(poll).collect()
}

#[tokio::test(start_paused = true)]
async fn long_sessions_of_healthy_agents_are_neither_stopped_nor_advised() {
    for dialect in DIALECTS {
        for session in [false, true] {
            for (name, batches) in [
                ("varied tools", varied()),
                ("edits of few files", edits()),
                ("thirty calls at once", parallel()),
                ("polling with results that change", polling()),
            ] {
                let played = play(dialect, session, batches.len().div_ceil(8), &batches).await;
                let case = format!("{name}, {dialect}, session {session}");
                assert_eq!((played.stopped, played.advised), (None, 0), "{case}");
            }
        }
    }
}

/// The same call, and what comes of it.
fn again(times: usize, step: impl Fn(usize) -> Step) -> Vec<Batch> {
    (0..times).map(|n| vec![step(n)]).collect()
}

/// A healthy beginning, and then a loop.
fn planted(healthy: Vec<Batch>, times: usize, step: impl Fn(usize) -> Step) -> Vec<Batch> {
    healthy.into_iter().take(40).chain(again(times, step)).collect()
}

#[tokio::test(start_paused = true)]
async fn planted_loops_are_stopped() {
    let same = |_: usize| ("read_file", json!({"path": "src/a.rs"}), lines(1));
    let error = |_: usize| {
        ("run_command", json!({"command": "make"}), "Error: command not found: make".to_owned())
    };
    let cycle = |n: usize| match n % 2 {
        0 => ("read_file", json!({"path": "src/a.rs"}), lines(1)),
        _ => ("read_file", json!({"path": "src/b.rs"}), lines(2)),
    };
    let elsewhere = |n: usize| ("grep", json!({"pattern": format!("thing {n}")}), lines(3));
    for dialect in DIALECTS {
        for (name, batches, most) in [
            ("the same call and result", again(12, same), 5),
            ("the same after a healthy beginning", planted(varied(), 12, same), 45),
            ("the same error", again(12, error), 8),
            ("two calls in turn", again(16, cycle), 8),
            ("two calls in turn after a healthy beginning", planted(varied(), 16, cycle), 48),
            ("the same result to different arguments", again(14, elsewhere), 8),
        ] {
            let played = play(dialect, false, 1, &batches).await;
            let case = format!("{name}, {dialect}");
            println!("{case}: {played:?}");
            assert!(played.stopped.is_some_and(|calls| calls <= most), "{case}: {played:?}");
            // Once is enough: each of these is stopped soon after its advice.
            assert!((1..=3).contains(&played.advised), "{case}: {played:?}");
        }
    }
}
