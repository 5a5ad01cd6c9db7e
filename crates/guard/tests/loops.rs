//! Loops are advised and then stopped; healthy sessions are not.
#![allow(clippy::unwrap_used, reason = "tests")]

mod support;

use proptest::prelude::*;
use steadfast_chat::{Message, Role};
use steadfast_guard::{Advice, GuardPolicy, GuardVerdict, LoopRule, SafetyGuardHandle};
use support::*;

fn cycle(calls: &[ToolRun], times: usize) -> Vec<Vec<ToolRun>> {
    one_by_one(calls.iter().cloned().cycle().take(calls.len() * times))
}

#[test]
fn loops_are_advised_then_stopped() {
    let read = tool_run("read_file", r#"{"path":"src/a.rs"}"#, "fn main() {}");
    let list = tool_run("list_dir", r#"{"path":"src"}"#, "a.rs b.rs c.rs");
    let grep = tool_run("grep", r#"{"pattern":"x"}"#, "a.rs:1: let x = 1;");
    let build = tool_run("run_command", r#"{"command":"make"}"#, "error: no rule to make target");
    let job = tool_run("job_status", r#"{"id":7}"#, "still running, no output");
    let spelled: Vec<_> =
        ["src/a.rs", "./src/a.rs", "src//a.rs", "src/b/../a.rs", "\\\"src/a.rs\\\""]
            .iter()
            .map(|path| tool_run("Read", &format!(r#"{{"path":"{path}"}}"#), "fn main() {}"))
            .collect();
    let clock: Vec<_> = (0..9)
        .map(|at| {
            tool_run(
                "now",
                "{}",
                &format!("it is 2026-11-21T17:28:{at:02}Z, request req_01ab{at}x"),
            )
        })
        .collect();
    let guesses: Vec<_> = (0..9)
        .map(|at| {
            tool_run("lookup", &format!(r#"{{"name":"n{at}"}}"#), "there is no such customer")
        })
        .collect();
    for (what, rounds, advised, stopped, rule) in [
        ("the same call", cycle(std::slice::from_ref(&read), 9), 3, 5, LoopRule::SameResult),
        ("a failing call", cycle(&[build.failing()], 9), 2, 4, LoopRule::SameError),
        ("ping-pong", cycle(&[read.clone(), list.clone()], 9), 5, 8, LoopRule::Cycle),
        ("three in turn", cycle(&[read, list, grep], 9), 7, 12, LoopRule::Cycle),
        ("other arguments", one_by_one(guesses), 5, 8, LoopRule::SameAnswer),
        ("several spellings", one_by_one(spelled), 3, 5, LoopRule::SameResult),
        ("a clock", one_by_one(clock), 3, 5, LoopRule::SameResult),
        ("polls", cycle(&[job], 20), 12, 20, LoopRule::SameResult),
    ] {
        let outcome = outcome_of(&GuardPolicy::default(), &rounds);
        assert_eq!((outcome.advised, outcome.stopped), (Some(advised), Some(stopped)), "{what}");
        assert_eq!(outcome.rule(), Some(rule), "{what}");
    }
}

#[test]
fn healthy_sessions_are_never_stopped() {
    let build = tool_run("bash", r#"{"command":"make"}"#, "error: expected `;` in line 7");
    let work: Vec<_> = (0..30)
        .flat_map(|at| {
            let edit = format!(r#"{{"path":"src/f{at}.rs","new":"{at}"}}"#);
            [build.clone().failing(), tool_run("edit_file", &edit, "the file was edited")]
        })
        .collect();
    let paging: Vec<_> = (0..100)
        .map(|at| {
            let page = format!(r#"{{"path":"log.txt","offset":{}}}"#, at * 100);
            tool_run("read_file", &page, &format!("line {at} of the log"))
        })
        .collect();
    let polls: Vec<_> = (0..100)
        .map(|at| tool_run("job_status", r#"{"id":7}"#, &format!("{} % done at 17:00:00", at / 2)))
        .collect();
    let empty: Vec<_> = (0..40)
        .map(|at| tool_run("grep", &format!(r#"{{"pattern":"p{at}"}}"#), "No matches found"))
        .collect();
    let shell: Vec<_> = (0..30)
        .flat_map(|at| {
            let edit = format!(r#"{{"command":"sed -i {at}d a.rs"}}"#);
            [build.clone().failing(), tool_run("bash", &edit, "")]
        })
        .collect();
    for (what, calls) in
        [("shell", shell), ("work", work), ("paging", paging), ("polls", polls), ("empty", empty)]
    {
        let outcome = outcome_of(&without_limits(), &one_by_one(calls));
        assert_eq!((outcome.stopped, outcome.cause), (None, None), "{what}");
    }
}

/// Four hundred calls, with the limits of a named task.
#[test]
fn a_long_varied_session_is_never_stopped() {
    let mut rounds = Vec::new();
    for at in 0..400 {
        let tool = match at % 25 {
            0 => "bash".to_owned(),
            n => format!("tool_{n}"),
        };
        let arguments = format!(r#"{{"about":"part {}"}}"#, at / 3);
        let result = format!("{tool} found {} things in part {}", at % 7, at / 3);
        rounds.push(vec![tool_run(&tool, &arguments, &result)]);
    }
    let guard = SafetyGuardHandle::default();
    assert_eq!(stateful(&guard, &rounds), TraceOutcome::default());
    for round in (1..=400).step_by(21) {
        let verdict = guard.from_history(&request(&rounds[..round]));
        assert!(matches!(verdict, GuardVerdict::Fine), "round {round}: {verdict:?}");
    }
}

#[test]
fn only_the_most_important_advice_is_given() {
    let poll = |at: usize| {
        tool_run("job_status", &format!(r#"{{"id":{at}}}"#), "still running, no output")
    };
    let same = tool_run("read_file", r#"{"path":"a"}"#, "unchanged");
    let batch: Vec<_> =
        std::iter::once(same.clone()).chain((0..6).map(poll)).chain([same]).collect();
    let guard = SafetyGuardHandle::default();
    assert!(matches!(
        guard.from_history(&request(&vec![batch; 2])),
        // The model has not seen it yet when the fourth call was made.
        GuardVerdict::Warn(Advice::Loop { rule: LoopRule::SameResult, count: 3, .. })
    ));
}

#[test]
fn a_batch_of_any_length_is_only_advised() {
    let same = tool_run("read_file", r#"{"path":"a"}"#, "unchanged");
    let mut rounds = vec![vec![same.clone(); 12]];
    let policy = GuardPolicy::default();
    let once = outcome_of(&policy, &rounds);
    assert_eq!((once.advised, once.stopped), (Some(1), None));
    rounds.push(vec![same]);
    assert_eq!(outcome_of(&policy, &rounds).stopped, Some(2), "new evidence after the advice");
}

#[test]
fn messages_of_the_guard_are_neither_progress_nor_repetition() {
    let guard = SafetyGuardHandle::new(without_limits()).unwrap();
    let same = tool_run("read_file", r#"{"path":"a"}"#, "unchanged");
    let guards = tool_run("other", "{}", "[safety guard] wait a little");
    let mut rounds = Vec::new();
    for _ in 0..40 {
        rounds.push(vec![guards.clone()]);
    }
    assert_eq!(outcome_of(guard.policy(), &rounds), TraceOutcome::default());
    let mixed = cycle(&[same, guards], 9);
    assert_eq!(outcome_of(guard.policy(), &mixed).stopped, Some(9), "the fifth of the same");
}

#[test]
fn a_turn_of_the_user_restarts_the_counts_and_advice_does_not() {
    let guard = SafetyGuardHandle::default();
    let same = tool_run("read_file", r#"{"path":"a"}"#, "unchanged");
    let mut messages = history(&cycle(std::slice::from_ref(&same), 4));
    let more = || history(&cycle(std::slice::from_ref(&same), 1)).split_off(2);
    messages.push(Message::user("[safety guard] nothing has changed"));
    messages.extend(more());
    let stopped = guard.from_history(&steadfast_chat::ChatRequest::new(messages.clone()));
    assert!(matches!(stopped, GuardVerdict::Stop(_)), "{stopped:?}");
    messages.push(Message::user("go on"));
    messages.extend(more());
    let verdict = guard.from_history(&steadfast_chat::ChatRequest::new(messages));
    assert_eq!(verdict, GuardVerdict::Fine);

    assert!(stateful(&guard, &cycle(std::slice::from_ref(&same), 9)).stopped.is_some());
    guard.user_turn(TASK);
    assert!(guard.check_call(TASK, &same.call("x")).is_ok());
}

/// With a search for each result among all calls, this would take minutes.
#[test]
fn a_batch_of_many_calls_is_advised_or_with_limits_stopped() {
    const MANY: usize = 50_000;
    let same = tool_run("read_file", r#"{"path":"a"}"#, "unchanged");
    let mut messages = vec![Message::user("do it")];
    let ids: Vec<_> = (0..MANY).map(|at| format!("call_{at:09}")).collect();
    let calls = ids.iter().map(|id| steadfast_chat::Part::ToolCall(same.call(id)));
    messages.push(Message::new(Role::Assistant, calls.collect()));
    for id in ids.iter().rev() {
        let result = steadfast_chat::Part::ToolResult(same.result(id));
        messages.push(Message::new(Role::Tool, vec![result]));
    }
    let request = steadfast_chat::ChatRequest::new(messages);
    let guard = SafetyGuardHandle::new(GuardPolicy::codebuddy()).unwrap();
    assert!(matches!(guard.from_history(&request), GuardVerdict::Stop(stop) if stop.calls == 20));
    let guard = SafetyGuardHandle::default();
    assert!(
        matches!(guard.from_history(&request), GuardVerdict::Warn(_)),
        "a batch is only advised"
    );
}

#[test]
fn results_in_messages_of_the_user_and_without_ids_are_read_too() {
    let guard = SafetyGuardHandle::default();
    let same = tool_run("read_file", r#"{"path":"a"}"#, "unchanged");
    let mut messages = vec![Message::user("do it")];
    for _ in 0..5 {
        let call = steadfast_chat::Part::ToolCall(same.call(""));
        messages.push(Message::new(Role::Assistant, vec![call]));
        let result = steadfast_chat::Part::ToolResult(same.result(""));
        messages.push(Message::new(Role::User, vec![result]));
    }
    let verdict = guard.from_history(&steadfast_chat::ChatRequest::new(messages));
    assert!(matches!(verdict, GuardVerdict::Stop(_)), "{verdict:?}");
}

/// Calls from a small set, so that they repeat.
fn trace() -> impl Strategy<Value = Vec<Vec<ToolRun>>> {
    let kinds = ["read_file", "edit_file", "job_status", "lookup"];
    let one = (0..4_usize, 0..3_u8, 0..3_u8, any::<bool>()).prop_map(
        move |(tool, arg, result, failed)| {
            let arguments = format!(r#"{{"path":"f{arg}","b":{{"x":1,"y":[1,2]}},"n":{arg}}}"#);
            let shown =
                format!(r#"{{"shown":"something like {result}","took":7,"at":"10:00:00"}}"#);
            ToolRun { failed: failed && result == 0, ..tool_run(kinds[tool], &arguments, &shown) }
        },
    );
    prop::collection::vec(prop::collection::vec(one, 1..3), 1..30)
}

/// The same trace with insignificant changes.
fn disguised(rounds: &[Vec<ToolRun>]) -> Vec<Vec<ToolRun>> {
    let mut at = 0;
    let mut change = |run: &ToolRun| {
        at += 1;
        let mut other = run.clone();
        let path = run.arguments.split('"').nth(3).unwrap();
        let n = run.arguments.rsplit(':').next().unwrap().trim_end_matches('}');
        other.arguments = format!(r#"{{ "n":{n},"b":{{"y":[1,2],"x":1}},"path":"./x/../{path}"}}"#);
        let shown = run.result.split('"').nth(3).unwrap();
        other.result =
            format!(r#"{{"at":"1{}:0{}:00","took":{at},"shown":"{shown}"}}"#, at % 10, at % 7,);
        other
    };
    rounds.iter().map(|batch| batch.iter().map(&mut change).collect()).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn both_setups_agree_and_insignificant_changes_do_not_matter(rounds in trace()) {
        let loops = outcome_of(&without_limits(), &rounds);
        let strict = outcome_of(&GuardPolicy::default(), &rounds);
        prop_assert!(strict.stopped.unwrap_or(usize::MAX) <= loops.stopped.unwrap_or(usize::MAX));
        prop_assert_eq!(outcome_of(&without_limits(), &disguised(&rounds)), loops);
    }

    #[test]
    fn queries_change_nothing(rounds in trace()) {
        let (queried, other) = (SafetyGuardHandle::default(), SafetyGuardHandle::default());
        for batch in &rounds {
            for guard in [&queried, &other] {
                guard.answered(TASK);
            }
            for run in batch {
                let call = run.call("x");
                let before = queried.get(TASK);
                let allowed = queried.would_allow(TASK, &call).is_ok();
                prop_assert_eq!(allowed, queried.would_allow(TASK, &call).is_ok());
                prop_assert_eq!(before.map(|s| (s.events, s.calls)), queried.get(TASK).map(|s| (s.events, s.calls)));
                let checks = [&queried, &other].map(|guard| guard.check_call(TASK, &call));
                prop_assert_eq!(checks[0].is_ok(), allowed);
                let causes = checks.map(|check| check.map_err(|stop| stop.cause));
                prop_assert_eq!(&causes[0], &causes[1]);
                let result = run.result("x");
                let verdicts = [&queried, &other].map(|guard| guard.observe_result(TASK, &call, &result));
                prop_assert_eq!(
                    std::mem::discriminant(&verdicts[0]),
                    std::mem::discriminant(&verdicts[1])
                );
                let _ = queried.from_history(&request(&rounds));
            }
        }
    }
}
