//! Each limit, exactly; tasks, operators and bounds.
#![allow(clippy::unwrap_used, reason = "tests")]

mod support;

use std::time::Duration;

use steadfast_chat::ChatRequest;
use steadfast_core::{CallContext, KeyedPolicy, Reason};
use steadfast_guard::{
    Advice, GuardPolicy, Kind, SafetyGuard, StopAs, StopCause, Strikes, ToolSpec, Verdict,
};
use support::*;
use tower::{Layer, ServiceExt};

/// Different calls of one tool, each with a result of its own.
fn different(tool: &str, count: usize) -> Vec<Vec<Did>> {
    let one = |at| {
        let arguments = format!(r#"{{"path":"f{at}.rs","about":{at}}}"#);
        did(tool, &arguments, &format!("result number {at}"))
    };
    one_by_one((0..count).map(one))
}

#[test]
fn n_of_a_tool_pass_and_not_one_more() {
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
        assert_eq!(fate(&policy, &different(tool, limit)), Fate::default(), "{tool}");
        let more = fate(&policy, &different(tool, limit + 5));
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
    rounds.push(vec![did("edit_file", r#"{"path":"z"}"#, "done with it")]);
    assert_eq!(fate(&GuardPolicy::default(), &rounds).stopped, Some(9));
}

#[test]
fn n_calls_and_n_events_pass_and_not_one_more() {
    let mut policy = roomy();
    policy.limits.calls = Some(12);
    assert_eq!(fate(&policy, &different("x", 12)), Fate::default());
    let more = fate(&policy, &different("x", 15));
    assert_eq!((more.stopped, more.cause), (Some(13), Some(StopCause::Calls(12))));

    // A round is an answer, a call and a result; the next answer is one more.
    policy = roomy();
    policy.limits.events = Some(13);
    let guard = SafetyGuard::new(policy).unwrap();
    assert_eq!(guard.from_history(&request(&different("x", 4))), Verdict::Fine);
    let Verdict::Stop(stop) = guard.from_history(&request(&different("x", 5))) else {
        panic!("fifteen are more than thirteen")
    };
    assert_eq!(stop.cause, StopCause::Events(13));
}

#[test]
fn four_edits_of_a_file_pass_under_whatever_name() {
    let spellings = ["src/a.rs", "./src/a.rs", "src//a.rs", "src/x/../a.rs", "src\\\\a.rs"];
    let edits: Vec<_> = spellings
        .iter()
        .enumerate()
        .map(|(at, path)| {
            let arguments = format!(r#"{{"file_path":"{path}","new":"{at}"}}"#);
            did(["Edit", "write_file"][at % 2], &arguments, "the file was changed")
        })
        .collect();
    let policy = GuardPolicy::default();
    assert_eq!(fate(&policy, &one_by_one(edits[..4].to_vec())), Fate::default());
    let more = fate(&policy, &one_by_one(edits.clone()));
    assert_eq!(more.stopped, Some(5));
    assert_eq!(more.cause, Some(StopCause::File { file: "src/a.rs".into(), limit: 4 }));
    let guard = SafetyGuard::default();
    let Verdict::Warn(advice) = guard.from_history(&request(&one_by_one(edits[..4].to_vec())))
    else {
        panic!("advice comes before the stop")
    };
    assert!(matches!(&advice, Advice::LastEdit { limit: 4, .. }), "{advice}");
}

#[tokio::test(start_paused = true)]
async fn ten_minutes_pass_and_not_a_moment_more() {
    let guard = SafetyGuard::default();
    let model = Model::default();
    let llm = guard.layer().layer(model.clone());
    let ask = || ChatRequest::user("hi").with_context(CallContext::new().with_task(TASK));
    let call = did("x", "{}", "y").call("1");
    llm.clone().oneshot(ask()).await.unwrap().collect().await.unwrap();
    tokio::time::advance(Duration::from_secs(600)).await;
    llm.clone().oneshot(ask()).await.unwrap().collect().await.unwrap();
    tokio::time::advance(Duration::from_millis(1)).await;
    let failure = llm.clone().oneshot(ask()).await.unwrap_err();
    assert_eq!(failure.reason(), Reason::Safety);
    assert!(failure.message().contains("Elapsed: 10m 0s"), "{failure}");
    assert!(guard.would_allow(TASK, &call).is_err());
    assert_eq!(model.times(), 2);
    assert!(guard.extend(TASK));
    llm.oneshot(ask()).await.unwrap().collect().await.unwrap();
    assert!(guard.would_allow(TASK, &call).is_ok());
}

#[tokio::test(start_paused = true)]
async fn an_operator_lifts_everything_together() {
    let guard = SafetyGuard::default();
    assert!(!guard.extend(TASK), "nobody knows it yet");
    let fate = stateful(&guard, &different("delete_file", 9));
    assert_eq!(fate.stopped, Some(4));
    assert_eq!(guard.stops(), 1);
    let other = did("read_file", "{}", "x").call("1");
    assert!(guard.check_call(TASK, &other).is_err(), "the task is stopped, not the tool");
    guard.user_turn(TASK);
    assert!(guard.check_call(TASK, &other).is_err(), "a word of the user lifts no limit");
    let was = guard.get(TASK).unwrap();
    assert_eq!((was.calls, was.stop.is_some()), (3, true));
    assert_eq!(was.tools, [("delete_file".into(), 3)]);
    tokio::time::advance(Duration::from_secs(100)).await;
    assert!(guard.extend(TASK));
    let now = guard.get(TASK).unwrap();
    assert_eq!((now.events, now.calls, now.elapsed, now.stop), (0, 0, Duration::ZERO, None));
    assert!(guard.check_call(TASK, &other).is_ok());
}

#[tokio::test(start_paused = true)]
async fn an_operator_lifts_what_was_read_out_of_a_history() {
    let guard = SafetyGuard::default();
    let llm = guard.layer().layer(Model::default());
    let context = || CallContext::new().with_task(TASK);
    let ask = |count| request(&different("delete_file", count)).with_context(context());
    // The first request of a task begins it: what came before the user's last turn is not its.
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
async fn a_named_task_goes_on_over_the_users_turns_and_a_session_does_not() {
    let layer = SafetyGuard::default().layer();
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

/// A caller behind a gateway runs what it gets, whatever the size of the model's batches.
#[tokio::test(start_paused = true)]
async fn a_caller_runs_exactly_what_the_limit_allows() {
    for (tool, limit) in [("web_search", 8), ("delete_file", 3), ("edit_file", 4)] {
        for size in 1..=11 {
            let mut rounds: Vec<Vec<Did>> = Vec::new();
            let mut at = 0;
            let stopped = loop {
                let calls: Vec<_> = (0..size)
                    .map(|_| {
                        at += 1;
                        // Edits are of one file, under two spellings.
                        let path = ["a.rs", "./a.rs"][at % 2];
                        format!(r#"{{"path":"{path}","n":{at}}}"#)
                    })
                    .collect();
                let calls: Vec<_> = calls.iter().map(|call| (tool, call.as_str())).collect();
                let model = Model::default().says(calling(&calls));
                let llm = SafetyGuard::default().layer().layer(model);
                let answer = match llm.oneshot(request(&rounds)).await {
                    Ok(answer) => answer.collect().await,
                    Err(failure) => Err(failure),
                };
                let answer = match answer {
                    Ok(answer) => answer,
                    Err(failure) => break failure,
                };
                let run = |call: &steadfast_chat::ToolCall| {
                    did(&call.name, &call.arguments, &format!("done: {}", call.arguments))
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
    let guard = SafetyGuard::new(policy).unwrap();
    for at in 0..10_000 {
        let _ = guard.check_call(&format!("task {at}"), &did("x", "{}", "y").call("1"));
    }
    assert!(guard.snapshot().len() <= 64);
}

#[test]
fn policies_that_make_no_sense_are_refused() {
    let mut policy = GuardPolicy::default();
    policy.rules.same_result = Some(Strikes::new(3, 3));
    let error = SafetyGuard::new(policy).unwrap_err().to_string();
    assert!(error.contains("`same_result` warns at 3 and stops at 3"), "{error}");
    let mut policy = GuardPolicy::default();
    let twice = ToolSpec::new("BASH", Kind::Other);
    policy.tools.push(twice);
    assert!(SafetyGuard::new(policy).unwrap_err().to_string().contains("`bash`"));
    let mut policy = GuardPolicy::default();
    policy.limits.time = Some(Duration::ZERO);
    assert!(SafetyGuard::new(policy).is_err());
    assert!(GuardPolicy::default().validate().is_ok());
    // Each names the field that is meant, and says what would be right.
    type Change = fn(&mut GuardPolicy);
    let cases: [(Change, &str, &str); 10] = [
        (|p| p.rules.cycle = Some(Strikes::new(1, 5)), "rules.cycle", "at least 2"),
        (|p| p.rules.repeated_text = Some(1), "rules.repeated_text", "set 2 to 64"),
        (|p| p.rules.repeated_text = Some(65), "rules.repeated_text", "set 2 to 64"),
        (|p| p.rules.poll_factor = 0, "rules.poll_factor", "at least 1"),
        (|p| p.rules.forget_after = 0, "rules.forget_after", "at least 1"),
        (|p| p.limits.events = Some(0), "limits.events", "leave it out"),
        (|p| p.tasks.capacity = 0, "tasks.capacity", "at least 1"),
        (|p| p.tasks.idle = Duration::ZERO, "tasks.idle", "at least 1"),
        (|p| p.tools.push(ToolSpec::default()), "tools[14].name", "has no name"),
        (|p| p.tool_mut("bash").aliases.push("Grep".into()), "tools", "`grep` stands for two"),
    ];
    for (change, field, says) in cases {
        let mut policy = GuardPolicy::default();
        change(&mut policy);
        let error = SafetyGuard::new(policy).unwrap_err();
        assert_eq!(error.field(), field);
        assert!(error.to_string().contains(says), "{error}");
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
    // A tool is found by any of its names; one that is not known yet is added.
    let mut policy = GuardPolicy::default();
    let known = policy.tools.len();
    policy.tool_mut("str_REPLACE").limit = Some(2);
    assert_eq!((policy.tools.len(), policy.tools[0].limit), (known, Some(2)));
    let mine = policy.tool_mut("my_shell");
    (mine.kind, mine.limit) = (Kind::Mutating, Some(1));
    mine.aliases.extend(["my_bash".to_owned(), "my_zsh".to_owned()]);
    assert_eq!(policy.tools.len(), known + 1);
    let fate = fate(&policy, &different("My_ZSH", 3));
    assert_eq!(fate.stopped, Some(2));
}
