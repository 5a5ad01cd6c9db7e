//! Planted loops are advised and then stopped; healthy sessions never are.
#![allow(clippy::unwrap_used, reason = "tests")]

mod support;

use proptest::prelude::*;
use steadfast_chat::{Message, Role};
use steadfast_guard::{Advice, GuardPolicy, LoopRule, SafetyGuard, Verdict};
use support::*;

fn cycle(calls: &[Did], times: usize) -> Vec<Vec<Did>> {
    one_by_one(calls.iter().cloned().cycle().take(calls.len() * times))
}

#[test]
fn planted_loops_are_advised_then_stopped() {
    let read = did("read_file", r#"{"path":"src/a.rs"}"#, "fn main() {}");
    let list = did("list_dir", r#"{"path":"src"}"#, "a.rs b.rs c.rs");
    let grep = did("grep", r#"{"pattern":"x"}"#, "a.rs:1: let x = 1;");
    let build = did("run_command", r#"{"command":"make"}"#, "error: no rule to make target");
    let job = did("job_status", r#"{"id":7}"#, "still running, no output");
    let spelled: Vec<_> =
        ["src/a.rs", "./src/a.rs", "src//a.rs", "src/b/../a.rs", "\\\"src/a.rs\\\""]
            .iter()
            .map(|path| did("Read", &format!(r#"{{"path":"{path}"}}"#), "fn main() {}"))
            .collect();
    let clock: Vec<_> = (0..9)
        .map(|at| {
            did("now", "{}", &format!("it is 2026-11-21T17:28:{at:02}Z, request req_01ab{at}x"))
        })
        .collect();
    let guesses: Vec<_> = (0..9)
        .map(|at| did("lookup", &format!(r#"{{"name":"n{at}"}}"#), "there is no such customer"))
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
        let fate = fate(&GuardPolicy::default(), &rounds);
        assert_eq!((fate.advised, fate.stopped), (Some(advised), Some(stopped)), "{what}");
        assert_eq!(fate.rule(), Some(rule), "{what}");
    }
}

#[test]
fn healthy_sessions_are_never_stopped() {
    let build = did("bash", r#"{"command":"make"}"#, "error: expected `;` in line 7");
    let work: Vec<_> = (0..30)
        .flat_map(|at| {
            let edit = format!(r#"{{"path":"src/f{at}.rs","new":"{at}"}}"#);
            [build.clone().failing(), did("edit_file", &edit, "the file was edited")]
        })
        .collect();
    let paging: Vec<_> = (0..100)
        .map(|at| {
            let page = format!(r#"{{"path":"log.txt","offset":{}}}"#, at * 100);
            did("read_file", &page, &format!("line {at} of the log"))
        })
        .collect();
    let polls: Vec<_> = (0..100)
        .map(|at| did("job_status", r#"{"id":7}"#, &format!("{} % done at 17:00:00", at / 2)))
        .collect();
    let empty: Vec<_> = (0..40)
        .map(|at| did("grep", &format!(r#"{{"pattern":"p{at}"}}"#), "No matches found"))
        .collect();
    let shell: Vec<_> = (0..30)
        .flat_map(|at| {
            let edit = format!(r#"{{"command":"sed -i {at}d a.rs"}}"#);
            [build.clone().failing(), did("bash", &edit, "")]
        })
        .collect();
    for (what, calls) in
        [("shell", shell), ("work", work), ("paging", paging), ("polls", polls), ("empty", empty)]
    {
        let fate = fate(&roomy(), &one_by_one(calls));
        assert_eq!((fate.stopped, fate.cause), (None, None), "{what}");
    }
}

/// Four hundred calls, with the limits as they are.
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
        rounds.push(vec![did(&tool, &arguments, &result)]);
    }
    let guard = SafetyGuard::default();
    assert_eq!(stateful(&guard, &rounds), Fate::default());
    for round in (1..=400).step_by(21) {
        let verdict = guard.from_history(&request(&rounds[..round]));
        assert!(matches!(verdict, Verdict::Fine), "round {round}: {verdict:?}");
    }
}

#[test]
fn of_many_things_to_say_the_gravest_is_said() {
    let poll =
        |at: usize| did("job_status", &format!(r#"{{"id":{at}}}"#), "still running, no output");
    let same = did("read_file", r#"{"path":"a"}"#, "the same as ever");
    let batch: Vec<_> =
        std::iter::once(same.clone()).chain((0..6).map(poll)).chain([same]).collect();
    let guard = SafetyGuard::default();
    assert!(matches!(
        guard.from_history(&request(&vec![batch; 2])),
        Verdict::Warn(Advice::Loop { rule: LoopRule::SameResult, count: 4, .. })
    ));
}

#[test]
fn a_batch_is_only_advised_however_long() {
    let same = did("read_file", r#"{"path":"a"}"#, "the same as ever");
    let mut rounds = vec![vec![same.clone(); 12]];
    let policy = GuardPolicy::default();
    let once = fate(&policy, &rounds);
    assert_eq!((once.advised, once.stopped), (Some(1), None));
    rounds.push(vec![same]);
    assert_eq!(fate(&policy, &rounds).stopped, Some(2), "new evidence after the advice");
}

#[test]
fn the_guards_own_answers_are_neither_progress_nor_repetition() {
    let guard = SafetyGuard::new(roomy()).unwrap();
    let same = did("read_file", r#"{"path":"a"}"#, "the same as ever");
    let ours = did("other", "{}", "[safety guard] wait a little");
    let mut rounds = Vec::new();
    for _ in 0..40 {
        rounds.push(vec![ours.clone()]);
    }
    assert_eq!(fate(guard.policy(), &rounds), Fate::default());
    let mixed = cycle(&[same, ours], 9);
    assert_eq!(fate(guard.policy(), &mixed).stopped, Some(9), "the fifth of the same");
}

#[test]
fn a_turn_of_the_user_begins_anew_and_a_note_of_the_guard_does_not() {
    let guard = SafetyGuard::default();
    let same = did("read_file", r#"{"path":"a"}"#, "the same as ever");
    let mut messages = history(&cycle(std::slice::from_ref(&same), 4));
    let more = || history(&cycle(std::slice::from_ref(&same), 1)).split_off(2);
    messages.push(Message::user("[safety guard] nothing has changed"));
    messages.extend(more());
    let stopped = guard.from_history(&steadfast_chat::ChatRequest::new(messages.clone()));
    assert!(matches!(stopped, Verdict::Stop(_)), "{stopped:?}");
    messages.push(Message::user("go on"));
    messages.extend(more());
    let verdict = guard.from_history(&steadfast_chat::ChatRequest::new(messages));
    assert_eq!(verdict, Verdict::Fine);

    assert!(stateful(&guard, &cycle(std::slice::from_ref(&same), 9)).stopped.is_some());
    guard.user_turn(TASK);
    assert!(guard.check_call(TASK, &same.call("x")).is_ok());
}

/// Were each result looked for among all calls, this would take minutes.
#[test]
fn as_many_calls_as_fit_into_a_request_are_read_at_once() {
    const MANY: usize = 50_000;
    let same = did("read_file", r#"{"path":"a"}"#, "the same as ever");
    let mut messages = vec![Message::user("do it")];
    let ids: Vec<_> = (0..MANY).map(|at| format!("call_{at:09}")).collect();
    let calls = ids.iter().map(|id| steadfast_chat::Part::ToolCall(same.call(id)));
    messages.push(Message::new(Role::Assistant, calls.collect()));
    for id in ids.iter().rev() {
        let result = steadfast_chat::Part::ToolResult(same.result(id));
        messages.push(Message::new(Role::Tool, vec![result]));
    }
    let request = steadfast_chat::ChatRequest::new(messages);
    let guard = SafetyGuard::default();
    assert!(matches!(guard.from_history(&request), Verdict::Stop(stop) if stop.calls == 20));
    let guard = SafetyGuard::new(roomy()).unwrap();
    assert!(matches!(guard.from_history(&request), Verdict::Warn(_)), "a batch is only advised");
}

#[test]
fn results_in_messages_of_the_user_and_without_ids_are_read_too() {
    let guard = SafetyGuard::default();
    let same = did("read_file", r#"{"path":"a"}"#, "the same as ever");
    let mut messages = vec![Message::user("do it")];
    for _ in 0..5 {
        let call = steadfast_chat::Part::ToolCall(same.call(""));
        messages.push(Message::new(Role::Assistant, vec![call]));
        let result = steadfast_chat::Part::ToolResult(same.result(""));
        messages.push(Message::new(Role::User, vec![result]));
    }
    let verdict = guard.from_history(&steadfast_chat::ChatRequest::new(messages));
    assert!(matches!(verdict, Verdict::Stop(_)), "{verdict:?}");
}

/// Calls out of a small world, so that they come again.
fn trace() -> impl Strategy<Value = Vec<Vec<Did>>> {
    let kinds = ["read_file", "edit_file", "job_status", "lookup"];
    let one = (0..4_usize, 0..3_u8, 0..3_u8, any::<bool>()).prop_map(
        move |(tool, arg, result, failed)| {
            let arguments = format!(r#"{{"path":"f{arg}","b":{{"x":1,"y":[1,2]}},"n":{arg}}}"#);
            let shown =
                format!(r#"{{"shown":"something like {result}","took":7,"at":"10:00:00"}}"#);
            Did { failed: failed && result == 0, ..did(kinds[tool], &arguments, &shown) }
        },
    );
    prop::collection::vec(prop::collection::vec(one, 1..3), 1..30)
}

/// The same trace with what does not matter changed.
fn disguised(rounds: &[Vec<Did>]) -> Vec<Vec<Did>> {
    let mut at = 0;
    let mut change = |did: &Did| {
        at += 1;
        let mut other = did.clone();
        let path = did.arguments.split('"').nth(3).unwrap();
        let n = did.arguments.rsplit(':').next().unwrap().trim_end_matches('}');
        other.arguments = format!(r#"{{ "n":{n},"b":{{"y":[1,2],"x":1}},"path":"./x/../{path}"}}"#);
        let shown = did.result.split('"').nth(3).unwrap();
        other.result =
            format!(r#"{{"at":"1{}:0{}:00","took":{at},"shown":"{shown}"}}"#, at % 10, at % 7,);
        other
    };
    rounds.iter().map(|batch| batch.iter().map(&mut change).collect()).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn both_readings_agree_and_disguise_changes_nothing(rounds in trace()) {
        let usual = fate(&roomy(), &rounds);
        let strict = fate(&GuardPolicy::default(), &rounds);
        prop_assert!(strict.stopped.unwrap_or(usize::MAX) <= usual.stopped.unwrap_or(usize::MAX));
        prop_assert_eq!(fate(&roomy(), &disguised(&rounds)), usual);
    }

    #[test]
    fn asking_changes_nothing(rounds in trace()) {
        let (asked, quiet) = (SafetyGuard::default(), SafetyGuard::default());
        for batch in &rounds {
            for guard in [&asked, &quiet] {
                guard.answered(TASK);
            }
            for did in batch {
                let call = did.call("x");
                let before = asked.get(TASK);
                let looks = asked.would_allow(TASK, &call).is_ok();
                prop_assert_eq!(looks, asked.would_allow(TASK, &call).is_ok());
                prop_assert_eq!(before.map(|s| (s.events, s.calls)), asked.get(TASK).map(|s| (s.events, s.calls)));
                let (one, other) = (asked.check_call(TASK, &call), quiet.check_call(TASK, &call));
                prop_assert_eq!(one.is_ok(), looks);
                prop_assert_eq!(one.map_err(|s| s.cause), other.map_err(|s| s.cause));
                let result = did.result("x");
                let verdicts = [&asked, &quiet].map(|guard| guard.observe_result(TASK, &call, &result));
                prop_assert_eq!(
                    std::mem::discriminant(&verdicts[0]),
                    std::mem::discriminant(&verdicts[1])
                );
                let _ = asked.from_history(&request(&rounds));
            }
        }
    }
}
