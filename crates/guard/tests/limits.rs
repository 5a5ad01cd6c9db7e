//! Each limit is exact; tasks, operators and bounds.
#![allow(clippy::unwrap_used, reason = "tests")]

mod support;

use std::time::Duration;

use steadfast_chat::ChatRequest;
use steadfast_core::{CallContext, KeyedPolicy, Reason};
use steadfast_guard::{
    Advice, GuardPolicy, GuardVerdict, Kind, SafetyGuardHandle, StopAs, StopCause, Strikes,
    ToolSpec,
};
use support::*;
use tower::{Layer, ServiceExt};

/// Different calls of one tool, each with a different result.
fn different(tool: &str, count: usize) -> Vec<Vec<ToolRun>> {
    let one = |at| {
        let arguments = format!(r#"{{"path":"f{at}.rs","about":{at}}}"#);
        tool_run(tool, &arguments, &format!("result number {at}"))
    };
    one_by_one((0..count).map(one))
}

#[test]
fn a_limit_of_a_tool_is_exact() {
    for (tool, limit) in [
        ("edit_file", 8),
        ("Edit", 8),
        ("apply_patch", 8),
        ("write_file", 8),
        ("delete_file", 3),
        ("run_command", 10),
        ("run_terminal_command", 100),
        ("web_search", 8),
        ("read_file", 20),
        ("never_heard_of", 20),
    ] {
        let policy = GuardPolicy::default();
        assert_eq!(outcome_of(&policy, &different(tool, limit)), TraceOutcome::default(), "{tool}");
        let more = outcome_of(&policy, &different(tool, limit + 5));
        assert_eq!(more.stopped, Some(limit + 1), "{tool}");
        assert!(matches!(more.cause, Some(StopCause::Tool { .. })), "{tool}");
    }
}

#[test]
fn names_of_one_tool_are_counted_together() {
    let mut rounds = different("Edit", 4);
    rounds.extend(different("str_replace", 4).into_iter().map(|mut batch| {
        batch[0].arguments = batch[0].arguments.replace("\"f", "\"g");
        batch
    }));
    rounds.push(vec![tool_run("edit_file", r#"{"path":"z"}"#, "done with it")]);
    assert_eq!(outcome_of(&GuardPolicy::default(), &rounds).stopped, Some(9));
}

#[test]
fn limits_of_calls_and_events_are_exact() {
    let policy = limited(|limits| limits.calls = Some(12));
    assert_eq!(outcome_of(&policy, &different("x", 12)), TraceOutcome::default());
    let more = outcome_of(&policy, &different("x", 15));
    assert_eq!((more.stopped, more.cause), (Some(13), Some(StopCause::Calls(12))));

    // A round is an answer, a call and a result; the next answer is one more.
    let policy = limited(|limits| limits.events = Some(13));
    let guard = SafetyGuardHandle::new(policy).unwrap();
    assert_eq!(guard.from_history(&request(&different("x", 4))), GuardVerdict::Fine);
    let GuardVerdict::Stop(stop) = guard.from_history(&request(&different("x", 5))) else {
        panic!("fifteen are more than thirteen")
    };
    assert_eq!(stop.cause, StopCause::Events(13));
}

#[test]
fn edits_of_a_file_are_counted_over_all_spellings() {
    let spellings = ["src/a.rs", "./src/a.rs", "src//a.rs", "src/x/../a.rs", "src\\\\a.rs"];
    let edits: Vec<_> = spellings
        .iter()
        .enumerate()
        .map(|(at, path)| {
            let arguments = format!(r#"{{"file_path":"{path}","new":"{at}"}}"#);
            tool_run(["Edit", "write_file"][at % 2], &arguments, "the file was changed")
        })
        .collect();
    let policy = GuardPolicy::default();
    assert_eq!(outcome_of(&policy, &one_by_one(edits[..4].to_vec())), TraceOutcome::default());
    let more = outcome_of(&policy, &one_by_one(edits.clone()));
    assert_eq!(more.stopped, Some(5));
    assert_eq!(more.cause, Some(StopCause::File { file: "src/a.rs".into(), limit: 4 }));
    let guard = SafetyGuardHandle::default();
    let GuardVerdict::Warn(advice) = guard.from_history(&named(&one_by_one(edits[..4].to_vec())))
    else {
        panic!("advice comes before the stop")
    };
    assert!(matches!(&advice, Advice::LastEdit { limit: 4, .. }), "{advice}");
}

#[tokio::test(start_paused = true)]
async fn the_limit_of_time_is_exact() {
    let guard = SafetyGuardHandle::default();
    let model = Model::default();
    let llm = guard.layer().layer(model.clone());
    let ask = || ChatRequest::user("hi").with_context(CallContext::new().with_task(TASK));
    let call = tool_run("x", "{}", "y").call("1");
    llm.clone().oneshot(ask()).await.unwrap().collect().await.unwrap();
    tokio::time::advance(Duration::from_secs(600)).await;
    llm.clone().oneshot(ask()).await.unwrap().collect().await.unwrap();
    tokio::time::advance(Duration::from_millis(1)).await;
    let failure = llm.clone().oneshot(ask()).await.unwrap_err();
    assert_eq!(failure.reason(), Reason::Safety);
    assert!(failure.message().contains("Elapsed: 10m 0s"), "{failure}");
    assert!(failure.message().contains("can raise `guard.named.time_s`"), "{failure}");
    assert!(guard.would_allow(TASK, &call).is_err());
    assert_eq!(model.calls(), 2);
    assert!(guard.extend(TASK));
    llm.oneshot(ask()).await.unwrap().collect().await.unwrap();
    assert!(guard.would_allow(TASK, &call).is_ok());
}

#[tokio::test(start_paused = true)]
async fn an_operator_resets_all_counts_together() {
    let guard = SafetyGuardHandle::default();
    assert!(!guard.extend(TASK), "there is no such task yet");
    let outcome = stateful(&guard, &different("delete_file", 9));
    assert_eq!(outcome.stopped, Some(4));
    assert_eq!(guard.stops(), 1);
    let other = tool_run("read_file", "{}", "x").call("1");
    assert!(guard.check_call(TASK, &other).is_err(), "the task is stopped, not the tool");
    guard.user_turn(TASK);
    assert!(guard.check_call(TASK, &other).is_err(), "a turn of the user lifts no limit");
    let before = guard.get(TASK).unwrap();
    assert_eq!((before.calls, before.stop.is_some()), (3, true));
    assert_eq!(before.tools, [("delete_file".into(), 3)]);
    tokio::time::advance(Duration::from_secs(100)).await;
    assert!(guard.extend(TASK));
    let now = guard.get(TASK).unwrap();
    assert_eq!((now.events, now.calls, now.elapsed, now.stop), (0, 0, Duration::ZERO, None));
    assert!(guard.check_call(TASK, &other).is_ok());
}

#[tokio::test(start_paused = true)]
async fn an_operator_resets_what_was_read_from_a_history() {
    let guard = SafetyGuardHandle::default();
    let llm = guard.layer().layer(Model::default());
    let context = || CallContext::new().with_task(TASK);
    let ask = |count| request(&different("delete_file", count)).with_context(context());
    // A task begins with its first request: calls before the user's last turn do not belong to it.
    llm.clone().oneshot(ask(3)).await.unwrap().collect().await.unwrap();
    assert_eq!(guard.get(TASK).unwrap().calls, 3);
    assert!(llm.clone().oneshot(ask(4)).await.is_err());
    assert!(guard.get(TASK).unwrap().stop.is_some());
    guard.extend(TASK);
    llm.clone().oneshot(ask(4)).await.unwrap().collect().await.unwrap();
    llm.clone().oneshot(ask(7)).await.unwrap().collect().await.unwrap();
    assert!(llm.clone().oneshot(ask(8)).await.is_err());
}

#[tokio::test(start_paused = true)]
async fn a_named_task_continues_over_the_users_turns_and_a_session_does_not() {
    let layer = SafetyGuardHandle::default().layer();
    let llm = layer.layer(Model::default());
    let mut messages = history(&different("delete_file", 2));
    let first = ChatRequest::new(messages.clone());
    messages.push(steadfast_chat::Message::user("and the others"));
    messages.extend(history(&different("delete_file", 2)).split_off(2));
    let second = ChatRequest::new(messages);
    let named = CallContext::new().with_task("t");
    let session = CallContext::new().with_session("s");
    for (context, stopped) in [(named, true), (session, false), (CallContext::new(), false)] {
        for (request, stopped) in [(&first, false), (&second, stopped)] {
            let request = request.clone().with_context(context.clone());
            let answer = llm.clone().oneshot(request).await;
            assert_eq!(answer.is_err(), stopped, "{context:?}");
        }
    }
}

/// A caller behind a gateway runs the calls that it receives, for any size of the model's batches.
#[tokio::test(start_paused = true)]
async fn a_caller_runs_exactly_what_the_limit_allows() {
    for (tool, limit) in [("web_search", 8), ("delete_file", 3), ("edit_file", 4)] {
        for size in 1..=11 {
            let mut rounds: Vec<Vec<ToolRun>> = Vec::new();
            let mut at = 0;
            let stopped = loop {
                let calls: Vec<_> = (0..size)
                    .map(|_| {
                        at += 1;
                        // Edits of one file, in two spellings.
                        let path = ["a.rs", "./a.rs"][at % 2];
                        format!(r#"{{"path":"{path}","n":{at}}}"#)
                    })
                    .collect();
                let calls: Vec<_> = calls.iter().map(|call| (tool, call.as_str())).collect();
                let model = Model::default().answers_with(calling(&calls));
                let guard = SafetyGuardHandle::new(GuardPolicy::codebuddy()).unwrap();
                let llm = guard.layer().layer(model);
                let answer = match llm.oneshot(request(&rounds)).await {
                    Ok(answer) => answer.collect().await,
                    Err(failure) => Err(failure),
                };
                let answer = match answer {
                    Ok(answer) => answer,
                    Err(failure) => break failure,
                };
                let run = |call: &steadfast_chat::ToolCall| {
                    tool_run(&call.name, &call.arguments, &format!("done: {}", call.arguments))
                };
                rounds.push(answer.tool_calls().map(run).collect());
                assert!(rounds.len() < 20, "it ends");
            };
            assert_eq!(stopped.reason(), Reason::Safety);
            let run: usize = rounds.iter().map(Vec::len).sum();
            assert_eq!(run, limit, "{tool} in batches of {size}");
        }
    }
}

#[test]
fn tasks_are_bounded() {
    let mut policy = GuardPolicy::default();
    policy.tasks = KeyedPolicy { capacity: 64, idle: Duration::from_secs(60) };
    let guard = SafetyGuardHandle::new(policy).unwrap();
    for at in 0..10_000 {
        let _ = guard.check_call(&format!("task {at}"), &tool_run("x", "{}", "y").call("1"));
    }
    assert!(guard.snapshot().len() <= 64);
}

#[test]
fn invalid_policies_are_refused() {
    assert!(GuardPolicy::default().validate().is_ok());
    // Each error names the field, and what would be valid.
    type Change = fn(&mut GuardPolicy);
    let cases: [(Change, &str, &str); 15] = [
        (
            |p| p.rules.same_result = Some(Strikes::new(3, 3)),
            "rules.same_result",
            "`same_result` warns at 3 and stops at 3",
        ),
        (|p| p.tools.push(ToolSpec::new("BASH", Kind::Other)), "tools", "`bash`"),
        (|p| p.limits.time = Some(Duration::ZERO), "limits.time", "leave it out"),
        (|p| p.rules.cycle = Some(Strikes::new(1, 5)), "rules.cycle", "at least 2"),
        (|p| p.rules.repeated_text = Some(1), "rules.repeated_text", "set 2 to 64"),
        (|p| p.rules.repeated_text = Some(65), "rules.repeated_text", "set 2 to 64"),
        (|p| p.rules.poll_factor = 0, "rules.poll_factor", "at least 1"),
        (|p| p.rules.forget_after = 0, "rules.forget_after", "at least 1"),
        (|p| p.limits.events = Some(0), "limits.events", "leave it out"),
        (|p| p.named.events = Some(0), "named.events", "leave it out"),
        (|p| p.named.time = Some(Duration::ZERO), "named.time", "leave it out"),
        (|p| p.tasks.capacity = 0, "tasks.capacity", "at least 1"),
        (|p| p.tasks.idle = Duration::ZERO, "tasks.idle", "at least 1"),
        (|p| p.tools.push(ToolSpec::default()), "tools[14].name", "has no name"),
        (|p| p.tool_mut("bash").aliases.push("Grep".into()), "tools", "`grep` stands for two"),
    ];
    for (change, field, message) in cases {
        let mut policy = GuardPolicy::default();
        change(&mut policy);
        let error = SafetyGuardHandle::new(policy).unwrap_err();
        assert_eq!(error.field(), field);
        assert!(error.to_string().contains(message), "{error}");
    }
}

#[test]
fn a_policy_is_data() {
    let strikes: Strikes = serde_json::from_str(r#"{"warn":4,"stop":8}"#).unwrap();
    assert_eq!(strikes, Strikes::new(4, 8));
    assert!(serde_json::from_str::<Strikes>(r#"{"warn":4,"stop":8,"halt":9}"#).is_err());
    for (name, kind) in [
        ("other", Kind::Other),
        ("read_only", Kind::ReadOnly),
        ("mutating", Kind::Mutating),
        ("edit", Kind::Edit),
        ("poll", Kind::Poll),
    ] {
        assert_eq!(serde_json::from_str::<Kind>(&format!("\"{name}\"")).unwrap(), kind);
    }
    assert_eq!(serde_json::from_str::<StopAs>("\"answer\"").unwrap(), StopAs::Answer);
    // A tool is found by any of its names; an unknown one is added.
    let mut policy = GuardPolicy::default();
    let known = policy.tools.len();
    policy.tool_mut("str_REPLACE").limit = Some(2);
    assert_eq!((policy.tools.len(), policy.tools[0].limit), (known, Some(2)));
    let mine = policy.tool_mut("my_shell");
    (mine.kind, mine.limit) = (Kind::Mutating, Some(1));
    mine.aliases.extend(["my_bash".to_owned(), "my_zsh".to_owned()]);
    assert_eq!(policy.tools.len(), known + 1);
    let outcome = outcome_of(&policy, &different("My_ZSH", 3));
    assert_eq!(outcome.stopped, Some(2));
    let tool = ToolSpec::new("deploy", Kind::Mutating).with_aliases(["ship", "release"]);
    assert!(["Deploy", "SHIP", "release"].iter().all(|name| tool.is_called(name)));
    assert!(!tool.is_called("rollback"));
}
