//! The real loop, and the real agent, with a model that is scripted: each transition, and what stands around tools and prompts.

use std::{
    collections::BTreeSet,
    fs,
    future::pending,
    io::{self, Write},
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;
use serde_json::json;
use steadfast::{
    Call, CallContext, ChatRequest, ChatResponse, ChatService, Deadline, Dialect, Failure, Message,
    Part, Reason, Role, Stack, ToolCall, ToolFailureKind, ToolRequest, ToolResult,
    client::{Credential, LlmClient, Provider, Providers},
    failover::{Chain, TargetSpec},
    recover::{ContinuationLayer, ContinuationPolicy},
    session::SessionTurn,
    sim::{
        Answer, ContinuationMode, ErrorKind, Fault, FaultPlan, RawResponse, SimProvider,
        WindowOverride,
    },
    supervise::TurnFailure,
    tool::{CommandPolicy, CommandRunner, ToolTimeoutLayer},
};
use steadfast_testkit::CapturedEvents;
use tokio::{sync::mpsc, time::timeout};
use tower::{Layer as _, ServiceExt, service_fn};

use crate::{
    agent::{Agent, Outcome, Settings},
    chat, models,
    screen::Screen,
    tools::{HELPER, ToolService, declarations},
    transition::Transition,
    turns::{Limits, Run, TurnLoop},
};

const LIMITS: Limits = Limits { most_turns: 100, token_budget: None, check: None };

fn scripted(answers: impl IntoIterator<Item = Answer>, faults: FaultPlan) -> SimProvider {
    SimProvider::builder(Dialect::Anthropic).with_script(answers).with_faults(faults).build()
}

fn stack() -> Stack {
    let target = TargetSpec::new("anthropic").with_model("*", "claude-sonnet-4-5");
    models::around(Chain::new([target]).unwrap()).unwrap()
}

fn over(sim: &SimProvider, stack: &Stack) -> ChatService {
    let provider = Provider::new("anthropic", Dialect::Anthropic)
        .with_credential(Credential::new("simulated", "sk-simulated"));
    let client = LlmClient::with_service(Providers::new([provider]).unwrap(), sim.clone());
    stack.connect(client).unwrap()
}

fn model(answers: impl IntoIterator<Item = Answer>, faults: FaultPlan) -> ChatService {
    over(&scripted(answers, faults), &stack())
}

fn silent() -> Screen {
    Screen::on(io::sink(), false)
}

fn tools() -> ToolService {
    let done = |request: ToolRequest| async move { Ok(ToolResult::of(&request.call, "done")) };
    ToolService::new(service_fn(done))
}

fn the_loop(llm: ChatService) -> TurnLoop {
    TurnLoop { llm, tools: tools(), limits: LIMITS, screen: silent() }
}

fn works(number: u32) -> Answer {
    Answer::tool_call("list_files", json!({"path": format!("part-{number}")}).to_string())
}

fn done() -> Answer {
    Answer::text("Done.")
}

fn prompt() -> ChatRequest {
    ChatRequest::user("Do it.").with_tools(declarations(false))
}

async fn run(turns: &TurnLoop, request: ChatRequest) -> Result<SessionTurn, Failure> {
    turns.run(Run { name: "a".to_owned(), request, turns: None, heard: &|| None }).await
}

/// The transitions in the log, whose turns are numbered from 1, each once.
async fn logged(turns: &TurnLoop, request: ChatRequest) -> Vec<String> {
    let events = CapturedEvents::default();
    let guard = tracing::subscriber::set_default(events.clone());
    // Longer than a run waits between retries; one that hangs is dropped.
    let _ = timeout(Duration::from_secs(3_000), run(turns, request)).await;
    drop(guard);
    let mut transitions = Vec::new();
    for line in events.take().iter().filter(|line| line.contains(" transition=")) {
        let number = format!(r#" run="a" turn={} "#, transitions.len() + 1);
        assert!(line.contains(&number), "{number} in {line}");
        transitions.push(line.split("transition=\"").nth(1).unwrap().replace('"', ""));
    }
    transitions
}

/// A conversation in which a tool had much to show.
fn large_results() -> ChatRequest {
    let mut messages = vec![Message::user("Read everything.")];
    for number in 0..10 {
        let call = ToolCall {
            id: format!("call_{number}"),
            name: "read_file".to_owned(),
            arguments: format!(r#"{{"path":"{number}"}}"#),
            ..ToolCall::default()
        };
        let words = if number < 6 { 8_000 } else { 10 };
        let result = ToolResult::of(&call, format!("file {number}: {}", "river ".repeat(words)));
        messages.push(Message::new(Role::Assistant, vec![Part::ToolCall(call)]));
        messages.push(Message::new(Role::Tool, vec![Part::ToolResult(result)]));
    }
    ChatRequest::new(messages).with_tools(declarations(false))
}

/// A conversation of much text.
fn long_talk() -> ChatRequest {
    let text = |number: usize| format!("{number}: {}", "bridge ".repeat(1_500));
    let messages = (0..31).map(|number| match number % 2 {
        0 => Message::user(text(number)),
        _ => Message::assistant(text(number)),
    });
    ChatRequest::new(messages.collect::<Vec<_>>())
}

fn with_image() -> ChatRequest {
    let image = Part::image("image/png", "iVBORw0KGgo=");
    ChatRequest::new(vec![Message::new(Role::User, vec![Part::text("What is this?"), image])])
}

fn image_refused() -> FaultPlan {
    let body = r#"{"type":"error","error":{"type":"invalid_request_error","message":"messages.0.content.1.image.source.base64: Could not process image"}}"#;
    let body = body.to_owned();
    FaultPlan::always(Fault::Status(RawResponse { status: 400, headers: [].into(), body }))
}

fn window(tokens: u64) -> FaultPlan {
    FaultPlan::always(Fault::Window(WindowOverride { tokens, overflow: None }))
}

fn words(count: usize) -> Answer {
    Answer::text("water ".repeat(count)).continuation(ContinuationMode::Faithful)
}

/// A run, and the transitions that it is to have.
struct Row {
    /// The provider, where each of its requests is a turn.
    sim: Option<SimProvider>,
    turns: TurnLoop,
    request: ChatRequest,
    wanted: Vec<&'static str>,
}

fn row<const N: usize>(
    answers: impl IntoIterator<Item = Answer>,
    faults: FaultPlan,
    request: ChatRequest,
    wanted: [&'static str; N],
) -> Row {
    let sim = scripted(answers, faults);
    let turns = the_loop(over(&sim, &stack()));
    Row { sim: Some(sim), turns, request, wanted: wanted.to_vec() }
}

impl Row {
    fn with(mut self, change: impl FnOnce(&mut TurnLoop)) -> Self {
        change(&mut self.turns);
        self
    }

    /// Holds answers back until their end is known, and gives them little room at first.
    fn escalating(mut self) -> Self {
        let policy =
            ContinuationPolicy { first_limit: 20, withhold: true, ..ContinuationPolicy::default() };
        let stack = stack().with_continuation(ContinuationLayer::new(policy).unwrap());
        self.turns.llm = over(self.sim.as_ref().unwrap(), &stack);
        self
    }
}

#[tokio::test(start_paused = true)]
async fn each_transition_is_made_and_logged_once_a_turn() {
    let none = FaultPlan::none;
    let always = FaultPlan::always;
    let error = |kind| always(Fault::Error(kind));
    let retried = row([], error(ErrorKind::ServerError), prompt(), ["model_error"]);
    let capped = service_fn(|_: ChatRequest| async {
        Err::<ChatResponse, _>(Failure::refused(Reason::SpendCap, "no money is left"))
    });
    let hangs = service_fn(|_: ChatRequest| pending::<Result<ChatResponse, Failure>>());
    let hanging_tool = service_fn(|_: ToolRequest| pending::<Result<ToolResult, Failure>>());
    let table = [
        row(
            [works(1), works(2), done()],
            none(),
            prompt(),
            ["next_turn", "next_turn", "completed"],
        ),
        row((0..9).map(works), none(), prompt(), ["next_turn", "next_turn", "most_turns"])
            .with(|turns| turns.limits.most_turns = 3),
        row([], error(ErrorKind::ContextOverflow), prompt(), ["prompt_too_long"]),
        Row { sim: None, ..retried },
        row([], image_refused(), with_image(), ["compaction_drained", "image_error"]),
        Row { sim: None, ..row([], none(), prompt(), ["limit_blocked"]) }
            .with(|turns| turns.llm = ChatService::new(capped)),
        Row { sim: None, ..row([], none(), prompt(), ["streaming_aborted"]) }
            .with(|turns| turns.llm = ChatService::new(hangs)),
        row([works(1)], none(), prompt(), ["tools_aborted"])
            .with(|turns| turns.tools = ToolService::new(hanging_tool)),
        row([done()], window(30_000), large_results(), ["compaction_drained", "completed"]),
        row([done()], window(30_000), long_talk(), ["reactive_compaction", "completed"]),
        // One attempt: what does not fit then is too long.
        row(
            [],
            error(ErrorKind::ContextOverflow),
            long_talk(),
            ["reactive_compaction", "prompt_too_long"],
        ),
        row([words(100)], none(), prompt(), ["output_escalated", "completed"]).escalating(),
        row(
            [words(30)],
            always(Fault::OutputLimit(20)),
            prompt(),
            ["output_continued", "completed"],
        ),
        // Three of them are the most.
        row(
            [words(500)],
            always(Fault::OutputLimit(20)),
            prompt(),
            ["output_continued", "output_continued", "output_continued", "completed"],
        ),
        // Going on brings little, three times.
        row(
            (0..9).map(|_| done()),
            none(),
            prompt(),
            [
                "token_budget_continued",
                "token_budget_continued",
                "token_budget_continued",
                "completed",
            ],
        )
        .with(|turns| turns.limits.token_budget = Some(10_000)),
    ];
    let mut seen = BTreeSet::new();
    for (number, Row { sim, turns, request, wanted }) in table.into_iter().enumerate() {
        assert_eq!(logged(&turns, request).await, wanted, "row {number}");
        if let Some(sim) = sim {
            assert_eq!(sim.journal().len(), wanted.len(), "row {number}: a request is a turn");
        }
        seen.extend(wanted);
    }
    seen.extend(STOP_HOOK);
    let all: BTreeSet<_> = Transition::ALL.iter().map(|one| one.as_str()).collect();
    assert_eq!(seen, all);
}

const STOP_HOOK: [&str; 2] = ["stop_hook_blocked", "stop_hook_prevented"];

/// With real commands, so in real time.
#[tokio::test]
async fn a_check_blocks_once_and_then_ends_the_run() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("checked");
    let checked = |command: &str, answers: Vec<Answer>, dir| {
        let commands = CommandPolicy { dir: Some(dir), ..CommandPolicy::default() };
        let check = Some((CommandRunner::new(commands).unwrap(), command.to_owned()));
        let limits = Limits { check, ..LIMITS };
        let write = {
            let file = file.clone();
            service_fn(move |request: ToolRequest| {
                fs::write(&file, "").unwrap();
                async move { Ok::<_, Failure>(ToolResult::of(&request.call, "done")) }
            })
        };
        let llm = model(answers, FaultPlan::none());
        TurnLoop { limits, tools: ToolService::new(write), ..the_loop(llm) }
    };
    let work = folder.path().to_owned();
    let repaired = checked("test -e checked", vec![done(), works(1), done()], work.clone());
    assert_eq!(logged(&repaired, prompt()).await, [STOP_HOOK[0], "next_turn", "completed"]);
    let stubborn = checked("false", vec![done(), done()], work.clone());
    assert_eq!(logged(&stubborn, prompt()).await, STOP_HOOK);
    let broken = checked("true", vec![done()], work.join("nowhere"));
    assert_eq!(logged(&broken, prompt()).await, [STOP_HOOK[1]]);
}

/// Its user is asked whether it should be tried again, and does not read that no provider can be reached.
#[tokio::test(start_paused = true)]
async fn a_run_that_ends_with_the_timeout_of_a_tool_is_that_for_its_user() {
    let hangs = service_fn(|_: ToolRequest| pending::<Result<ToolResult, Failure>>());
    let hangs = ToolTimeoutLayer::default().layer(hangs);
    let shown = Shown::default();
    let turns = TurnLoop {
        tools: ToolService::new(hangs),
        screen: Screen::on(shown.clone(), false),
        ..the_loop(model([works(1), done()], FaultPlan::none()))
    };
    let deadline = Deadline::after(Duration::from_secs(60));
    let request = prompt().with_context(CallContext::new().with_deadline(deadline));
    let failure = run(&turns, request).await.unwrap_err();
    let text = TurnFailure::of(&failure).to_string();
    assert_eq!(TurnFailure::of(&failure), TurnFailure::ToolTimeout);
    // The same text as the one of the tool's result, which is shown at once.
    let failed = ToolResult::failed(&ToolCall::default(), ToolFailureKind::TimedOut, "");
    assert_eq!(failed.failure.unwrap().user_text(), Some(&*text));
    assert!(shown.text().contains(&text), "{}", shown.text());
    // With time left the model goes on.
    assert!(run(&turns, prompt()).await.is_ok());
}

/// What a screen shows.
#[derive(Clone, Default)]
struct Shown(Arc<Mutex<Vec<u8>>>);

impl Shown {
    fn text(&self) -> String {
        String::from_utf8(self.0.lock().clone()).unwrap()
    }
}

impl Write for Shown {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

async fn agent(folder: &tempfile::TempDir, llm: ChatService, screen: Screen) -> Agent {
    let settings = Settings {
        folder: folder.path().to_owned(),
        thread: "main".to_owned(),
        limits: LIMITS,
        room: None,
    };
    Agent::start(settings, (llm, stack().handles()), screen).await.unwrap()
}

/// The texts of all results that the model has read.
fn results(sim: &SimProvider) -> Vec<String> {
    let last = sim.journal().last().unwrap().json.unwrap();
    let messages = last["messages"].as_array().unwrap().clone();
    let blocks = messages.iter().filter_map(|message| message["content"].as_array()).flatten();
    let results = blocks.filter(|block| block["type"] == "tool_result");
    results.map(|block| block["content"].to_string()).collect()
}

#[tokio::test]
async fn the_agents_own_state_is_not_for_its_tools() {
    let folder = tempfile::tempdir().unwrap();
    let call = |tool: &str, path: &str| {
        let arguments = json!({"path": path, "content": "x", "old_string": "a", "new_string": "b"});
        Answer::tool_call(tool, arguments.to_string())
    };
    let sim = scripted(
        [
            call("read_file", ".agent/runs"),
            call("list_files", "./.agent"),
            call("write_file", ".agent/sessions/main"),
            call("edit_file", "chapters/../.agent/x"),
            call("write_file", "notes"),
            done(),
        ],
        FaultPlan::none(),
    );
    let agent = agent(&folder, over(&sim, &stack()), silent()).await;
    assert!(matches!(agent.ask("Look.", None).await.unwrap(), Outcome::Reply(_)));
    let results = results(&sim);
    assert_eq!(results.len(), 5, "{results:?}");
    for refused in &results[..4] {
        assert!(refused.contains("is not for its tools"), "{refused}");
    }
    assert_eq!(fs::read_to_string(folder.path().join("notes")).unwrap(), "x");
    agent.stop(Duration::from_secs(5)).await;
}

/// A helper that panics is a result, and one that never succeeds is not started for ever.
#[tokio::test]
async fn a_helper_is_a_tool_like_any_other() {
    let folder = tempfile::tempdir().unwrap();
    let delegate = |number: u32| {
        Answer::tool_call("delegate", json!({"task": format!("task {number}")}).to_string())
    };
    let sim = scripted((0..6).map(delegate).chain([done()]), FaultPlan::none());
    let llm = over(&sim, &stack());
    let panics = service_fn(move |request: ChatRequest| {
        assert_ne!(request.context().agent(), Some(HELPER), "a bug");
        llm.clone().oneshot(request)
    });
    let agent = agent(&folder, ChatService::new(panics), silent()).await;
    assert!(matches!(agent.ask("Have it done.", None).await.unwrap(), Outcome::Reply(_)));
    let results = results(&sim);
    assert_eq!(results.len(), 6, "{results:?}");
    assert!(results[..5].iter().all(|text| text.contains("an error of its own")), "{results:?}");
    assert!(results[5].contains("`delegate` was not called"), "{results:?}");
    agent.stop(Duration::from_secs(5)).await;
}

/// Its user reads a fixed text, and whoever is to find the bug where it is.
#[tokio::test]
async fn a_turn_that_panics_is_in_the_log_with_its_backtrace() {
    let folder = tempfile::tempdir().unwrap();
    let panics = service_fn(|request: ChatRequest| async move {
        assert!(request.messages.is_empty(), "a bug");
        Err::<ChatResponse, _>(Failure::new(Reason::Unknown, "nothing was asked"))
    });
    let events = CapturedEvents::default();
    let _guard = tracing::subscriber::set_default(events.clone());
    let agent = agent(&folder, ChatService::new(panics), silent()).await;
    let outcome = agent.ask("Do it.", None).await.unwrap();
    assert!(matches!(outcome, Outcome::Failed(text) if text.contains("(panic)")));
    let events = events.take();
    let failed = events.iter().find(|event| event.contains("supervise::turn_failed")).unwrap();
    assert!(failed.contains("panic: a bug, at ") && failed.contains("backtrace="), "{failed}");
    agent.stop(Duration::from_secs(5)).await;
}

/// What is typed too late to be heard is a prompt of its own, and nobody waits for what comes of it but its user.
#[tokio::test]
async fn a_failure_of_what_was_heard_too_late_is_shown() {
    let folder = tempfile::tempdir().unwrap();
    let fails = service_fn(|_: ChatRequest| async {
        Err::<ChatResponse, _>(Failure::new(Reason::Overloaded, "busy"))
    });
    let shown = Shown::default();
    let screen = Screen::on(shown.clone(), false);
    let agent = agent(&folder, ChatService::new(fails), screen).await;
    agent.steer("And this, too.");
    let text = TurnFailure::Provider.to_string();
    let is_shown = async {
        while !shown.text().contains(&text) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    assert!(timeout(Duration::from_secs(60), is_shown).await.is_ok(), "{}", shown.text());
    agent.stop(Duration::from_secs(5)).await;
}

#[tokio::test]
async fn an_empty_line_is_no_message() {
    let folder = tempfile::tempdir().unwrap();
    let sim = scripted([done(), done()], FaultPlan::none());
    let (sender, lines) = mpsc::channel(2);
    let llm = {
        let (llm, sender) = (over(&sim, &stack()), sender.clone());
        service_fn(move |request: ChatRequest| {
            let (llm, sender) = (llm.clone(), sender.clone());
            async move {
                // Both lines have been read.
                while sender.capacity() < 2 {
                    tokio::task::yield_now().await;
                }
                llm.oneshot(request).await
            }
        })
    };
    let agent = agent(&folder, ChatService::new(llm), silent()).await;
    sender.send("Do it.".to_owned()).await.unwrap();
    sender.send("  ".to_owned()).await.unwrap();
    let ends = async {
        loop {
            tokio::time::sleep(Duration::from_millis(5)).await;
            if !sim.journal().is_empty() {
                sender.send(String::new()).await.unwrap();
            }
        }
    };
    let screen = silent();
    tokio::select! {
        ended = chat(&agent, &screen, lines) => ended.unwrap(),
        () = ends => {}
        () = tokio::time::sleep(Duration::from_secs(60)) => panic!("it did not end"),
    }
    agent.stop(Duration::from_secs(5)).await;
    assert_eq!(sim.journal().len(), 1, "one message");
}

/// Whatever a prompt is in when its time is over, that is what its user reads.
#[tokio::test(start_paused = true)]
async fn a_prompt_whose_time_is_over_inside_a_helper_took_too_long() {
    let folder = tempfile::tempdir().unwrap();
    let delegate = Answer::tool_call("delegate", json!({"task": "Read it."}).to_string());
    let sim = scripted([delegate, done()], FaultPlan::none());
    let llm = over(&sim, &stack());
    let hangs = service_fn(move |request: ChatRequest| {
        let (llm, is_helper) = (llm.clone(), request.context().agent() == Some(HELPER));
        async move {
            match is_helper {
                true => pending().await,
                false => llm.oneshot(request).await,
            }
        }
    });
    let agent = agent(&folder, ChatService::new(hangs), silent()).await;
    match agent.ask("Have it read.", None).await.unwrap() {
        Outcome::Failed(text) => assert_eq!(text, TurnFailure::Pipeline.to_string()),
        Outcome::Reply(reply) => panic!("{reply}"),
        Outcome::Aborted => panic!("nobody aborted it"),
    }
    agent.stop(Duration::from_secs(5)).await;
}
