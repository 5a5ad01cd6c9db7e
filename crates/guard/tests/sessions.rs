//! Whole sessions through the layer, with its defaults: healthy ones are neither stopped nor advised, and
//! each kind of loop is stopped wherever it begins.
#![allow(clippy::unwrap_used, reason = "tests")]

mod support;

use std::collections::HashSet;

use steadfast_chat::{ChatRequest, Message, Part, StopReason, ToolRequest, ToolResult};
use steadfast_core::{Failure, Reason};
use steadfast_guard::{MARK, SafetyGuardHandle, SafetyGuardLayer};
use support::*;
use tower::{Layer, ServiceBuilder, ServiceExt, service_fn};

/// What a session came to.
#[derive(Debug, Default, PartialEq)]
struct SessionOutcome {
    /// The rounds, counted from 1, after which the model was advised, and the advice.
    advice: Vec<(usize, String)>,
    /// The round after which it was stopped, and the message.
    stopped: Option<(usize, String)>,
}

/// A session as the layer sees it that nobody named: a request after each round, with the whole history.
async fn session(rounds: &[Vec<ToolRun>]) -> SessionOutcome {
    let model = Model::default();
    let llm = SafetyGuardLayer::default().layer(model.clone());
    let all = history(rounds);
    let (mut end, mut outcome) = (2, SessionOutcome::default());
    for (at, batch) in rounds.iter().enumerate() {
        end += 1 + batch.len();
        let request = ChatRequest::new(all[..end].to_vec());
        match llm.clone().oneshot(request).await {
            Ok(answer) => drop(answer.collect().await.unwrap()),
            Err(failure) => {
                assert_eq!(failure.reason(), Reason::Safety);
                outcome.stopped = Some((at + 1, failure.message().to_owned()));
                return outcome;
            }
        }
        // Only the last one is kept: a session sends its history hundreds of times.
        let sent = model.requests.lock().pop().unwrap().messages;
        let advice = sent[end..].iter().map(Message::text);
        outcome.advice.extend(advice.map(|text| (at + 1, text)));
    }
    outcome
}

/// Work with progress, in random order, until there are `least` rounds.
fn healthy(random: &mut fastrand::Rng, least: usize) -> Vec<Vec<ToolRun>> {
    let mut rounds = Vec::new();
    let mut part = 0;
    while rounds.len() < least {
        part += 1;
        match random.u8(..9) {
            0 => rounds.extend(one_by_one(edits(part, random.usize(5..=40), random.usize(1..=3)))),
            1 => rounds.extend(builds(part, random.usize(2..=12))),
            2 => rounds.push(parallel(part, random.usize(2..=30))),
            3 => rounds.extend(polls(part, random.usize(5..=30), random.bool())),
            4 => rounds.extend(pages(part, random.usize(5..=40))),
            5 => rounds.extend(searches(part, random.usize(3..=25))),
            6 => rounds.extend(one_by_one(patches(part, random.usize(3..=20)))),
            7 => rounds.extend(shell(part, random.usize(3..=20))),
            _ => rounds.extend(varied(part, random.usize(5..=20))),
        }
    }
    rounds
}

/// Edits of a few files, each with new text and the same result.
fn edits(part: usize, count: usize, files: usize) -> Vec<ToolRun> {
    let edit = |at: usize| {
        let file = at % files;
        let tool = ["Edit", "write_file", "apply_diff"][at % 3];
        let arguments =
            format!(r#"{{"file_path":"src/{part}/{file}.rs","new_string":"let x = {at};"}}"#);
        tool_run(tool, &arguments, "The file has been updated successfully.")
    };
    (0..count).map(edit).collect()
}

/// The same failing build, with an edit after each.
fn builds(part: usize, count: usize) -> Vec<Vec<ToolRun>> {
    let build = |result: &str| tool_run("bash", r#"{"command":"cargo build"}"#, result);
    let mut calls = Vec::new();
    for edit in edits(part, count, 1) {
        calls.extend([build("error[E0308]: mismatched types").failing(), edit]);
    }
    calls.push(build("    Finished `dev` profile in 3.1s"));
    one_by_one(calls)
}

/// Calls of one tool in one turn.
fn parallel(part: usize, count: usize) -> Vec<ToolRun> {
    let read = |at| {
        let arguments = format!(r#"{{"path":"dir{part}/f{at}.rs"}}"#);
        tool_run("Read", &arguments, &format!("the text of file {at} in {part}"))
    };
    (0..count).map(read).collect()
}

/// Waiting for a job that makes progress, with or without sleeping in between.
fn polls(part: usize, count: usize, sleeps: bool) -> Vec<Vec<ToolRun>> {
    let mut calls = Vec::new();
    for at in 0..count {
        if sleeps {
            calls.push(tool_run("sleep", r#"{"seconds":30}"#, "slept for 30 seconds"));
        }
        let result = format!("tests: {at} of {count} passed");
        calls.push(tool_run("job_status", &format!(r#"{{"id":{part}}}"#), &result));
    }
    one_by_one(calls)
}

fn pages(part: usize, count: usize) -> Vec<Vec<ToolRun>> {
    one_by_one((0..count).map(|at| {
        let arguments = format!(r#"{{"path":"log{part}.txt","offset":{}}}"#, at * 200);
        tool_run("read_file", &arguments, &format!("lines of page {at} of {part}"))
    }))
}

/// Searches that find nothing.
fn searches(part: usize, count: usize) -> Vec<Vec<ToolRun>> {
    one_by_one((0..count).map(|at| {
        let arguments = format!(r#"{{"pattern":"word_{part}_{at}"}}"#);
        tool_run("Grep", &arguments, ["No files found", "No matches found"][part % 2])
    }))
}

/// Patches of one file, by a shell.
fn patches(part: usize, count: usize) -> Vec<ToolRun> {
    let patch = |at| {
        let patch = format!(
            r"*** Begin Patch\n*** Update File: src/{part}.rs\n+let x = {at};\n*** End Patch"
        );
        let arguments = format!(r#"{{"command":["bash","-lc","apply_patch <<'EOF'\n{patch}"]}}"#);
        let result = format!(
            "Exit code: 0\nWall time: 0.1 seconds\nOutput:\nSuccess. Updated the following files:\nM \
             src/{part}.rs\n"
        );
        tool_run("shell", &arguments, &result)
    };
    (0..count).map(patch).collect()
}

/// Commands of a shell without output.
fn shell(part: usize, count: usize) -> Vec<Vec<ToolRun>> {
    one_by_one((0..count).map(|at| {
        let arguments = format!(r#"{{"command":["bash","-lc","mkdir -p out/{part}/{at}"]}}"#);
        tool_run("shell", &arguments, "Exit code: 0\nWall time: 0.1 seconds\nOutput:\n")
    }))
}

fn varied(part: usize, count: usize) -> Vec<Vec<ToolRun>> {
    one_by_one((0..count).map(|at| {
        let tool = format!("tool_{}", at % 7);
        let arguments = format!(r#"{{"about":"part {part}","n":{at}}}"#);
        tool_run(&tool, &arguments, &format!("{tool} found {at} things in part {part}"))
    }))
}

#[tokio::test(start_paused = true)]
async fn healthy_sessions_are_neither_stopped_nor_advised() {
    for seed in 0..12 {
        let rounds = healthy(&mut fastrand::Rng::with_seed(seed), 150);
        assert_eq!(session(&rounds).await, SessionOutcome::default(), "seed {seed}");
    }
}

/// Each kind of work alone and for long.
#[tokio::test(start_paused = true)]
async fn long_work_of_one_kind_is_neither_stopped_nor_advised() {
    for (what, rounds) in [
        ("edits of one file", one_by_one(edits(1, 300, 1))),
        ("edits of three files", one_by_one(edits(1, 300, 3))),
        ("patches by a shell", one_by_one(patches(1, 200))),
        ("polls", polls(1, 150, false)),
        ("polls with sleep", polls(1, 100, true)),
        ("builds", builds(1, 100)),
        ("pages", pages(1, 200)),
        ("searches", searches(1, 200)),
        ("a shell", shell(1, 200)),
        ("varied tools", varied(1, 300)),
        ("thirty calls at once", (0..20).map(|part| parallel(part, 30)).collect()),
    ] {
        assert_eq!(session(&rounds).await, SessionOutcome::default(), "{what}");
    }
}

/// Calls of one answer were made before the model saw any advice, so more of it says nothing new.
#[tokio::test(start_paused = true)]
async fn a_parallel_batch_is_advised_once() {
    let tests = |count| {
        let test = |at| {
            let arguments = format!(r#"{{"name":"suite::case_{at}"}}"#);
            tool_run("run_test", &arguments, "test result: ok. 1 passed")
        };
        (0..count).map(test).collect::<Vec<_>>()
    };
    let mut rounds = vec![tests(30)];
    rounds.extend(healthy(&mut fastrand::Rng::with_seed(7), 40));
    let outcome = session(&rounds).await;
    assert_eq!(outcome.stopped, None);
    let [(1, advice)] = &outcome.advice[..] else { panic!("{outcome:?}") };
    assert_eq!(advice.matches(MARK).count(), 1, "{advice}");

    // The same where the tools run in this process.
    let guard = SafetyGuardHandle::new(without_limits()).unwrap();
    let tools = ServiceBuilder::new().layer(guard.tool_layer()).service(service_fn(
        |request: ToolRequest| async move {
            let (id, content) = (request.call.id, vec![Part::text("test result: ok. 1 passed")]);
            Ok::<_, Failure>(ToolResult { id, content, ..ToolResult::default() })
        },
    ));
    guard.answered(TASK);
    let mut advised = 0;
    for run in tests(30) {
        let request = tool_request(TASK, run.call("x"));
        let result = tools.clone().oneshot(request).await.unwrap();
        let texts = result.content.iter().filter_map(Part::as_text);
        advised += texts.filter(|text| text.starts_with(MARK)).count();
    }
    assert_eq!(advised, 1);
}

/// A loop of each rule, after healthy work of any length: the rounds within which it is stopped, and
/// what the message names.
fn planted() -> Vec<(&'static str, Vec<ToolRun>, usize, &'static str)> {
    let read = tool_run("read_file", r#"{"path":"the/loop.rs"}"#, "fn the_loop() {}");
    let list = tool_run("list_dir", r#"{"path":"the"}"#, "loop.rs  others.rs");
    let grep = tool_run("grep", r#"{"pattern":"loop"}"#, "the/loop.rs:1: fn the_loop() {}");
    let build = tool_run("bash", r#"{"command":"make the-loop"}"#, "error: no rule to make target");
    let edit = tool_run(
        "Edit",
        r#"{"path":"the/loop.rs","new_string":"always the same"}"#,
        "The file has been updated.",
    );
    let job = tool_run("job_status", r#"{"id":"the loop"}"#, "still running, no output");
    let guess = |at| {
        let arguments = format!(r#"{{"name":"n{at}"}}"#);
        tool_run("look_up_customer", &arguments, "there is no such customer")
    };
    let same = |run: &ToolRun, count: usize| vec![run.clone(); count];
    let in_turn =
        |runs: &[&ToolRun]| (0..30).map(|at| runs[at % runs.len()].clone()).collect::<Vec<_>>();
    vec![
        ("the same call", same(&read, 9), 5, "guard.loops.same_result"),
        ("the same edit", same(&edit, 9), 5, "guard.loops.same_result"),
        ("polls", same(&job, 30), 20, "guard.loops.same_result"),
        ("the same error", same(&build.failing(), 9), 4, "guard.loops.same_error"),
        ("two in turn", in_turn(&[&read, &list]), 8, "guard.loops.cycle"),
        ("three in turn", in_turn(&[&read, &list, &grep]), 12, "guard.loops.cycle"),
        ("one answer", (0..12).map(guess).collect(), 8, "guard.loops.same_answer"),
    ]
}

#[tokio::test(start_paused = true)]
async fn each_planted_loop_is_advised_and_then_stopped() {
    for seed in 0..6 {
        for (what, calls, within, key) in planted() {
            let mut random = fastrand::Rng::with_seed(seed);
            let mut rounds = match seed {
                0 => Vec::new(),
                _ => healthy(&mut random, 40),
            };
            let before = rounds.len();
            rounds.extend(one_by_one(calls));
            let outcome = session(&rounds).await;
            let (stopped, message) = outcome.stopped.unwrap();
            assert_eq!(stopped, before + within, "{what}, seed {seed}: {message}");
            assert!(message.contains("goes in circles"), "{what}: {message}");
            assert!(message.contains(key), "{what}: {message}");
            // The model was advised only in the loop, and each time about something else or more of it.
            let rounds: Vec<_> = outcome.advice.iter().map(|(round, _)| *round).collect();
            assert!(!rounds.is_empty() && rounds[0] > before, "{what}, seed {seed}: {rounds:?}");
            let loops =
                outcome.advice.iter().filter(|(_, text)| text.contains("Nothing has changed"));
            let loops: Vec<_> = loops.map(|(_, text)| text).collect();
            let different: HashSet<_> = loops.iter().collect();
            assert_eq!(different.len(), loops.len(), "{what}: {loops:?}");
        }
    }
}

/// The fifth rule: the same sentence again and again, in one answer.
#[tokio::test(start_paused = true)]
async fn an_answer_that_repeats_itself_is_stopped() {
    let mut random = fastrand::Rng::with_seed(3);
    for _ in 0..8 {
        let sentence = format!("Now I shall read file {} once more. ", random.u32(..));
        let mut deltas = vec![start()];
        deltas.extend((0..random.usize(0..40)).map(|at| text(0, &format!("This is point {at}. "))));
        deltas.extend((0..20).map(|_| text(0, &sentence)));
        deltas.extend(end(StopReason::EndTurn));
        let llm = SafetyGuardLayer::default().layer(Model::default().answers_with(deltas));
        let answer = llm.oneshot(ChatRequest::user("go on").streaming()).await.unwrap();
        let failure = answer.collect().await.unwrap_err();
        assert_eq!(failure.reason(), Reason::Safety);
        assert!(failure.message().contains("the same text came 10 times"), "{failure}");
        assert!(failure.message().contains("`guard.loops.repeated_text`"), "{failure}");
    }
}
