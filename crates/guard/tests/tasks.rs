//! Who has limits: by default a named task, over all its conversations, and nobody else.
#![allow(clippy::unwrap_used, reason = "tests")]

mod support;

use std::time::Duration;

use steadfast_chat::{ChatRequest, Message, Part, Role};
use steadfast_core::CallContext;
use steadfast_guard::{GuardPolicy, Kind, SafetyGuard, SafetyGuardHandle};
use support::*;
use tower::{Layer, ServiceExt};

/// A conversation with `calls` reads of files in `folder`, each in an answer of its own. Every
/// conversation has the same ids.
fn conversation(first: &str, folder: &str, calls: usize) -> Vec<Message> {
    let mut messages = vec![Message::system("be brief"), Message::user(first)];
    for at in 0..calls {
        messages.extend(round(&format!("call_{at}"), folder, at));
    }
    messages
}

fn round(id: &str, folder: &str, at: usize) -> [Message; 2] {
    let arguments = format!(r#"{{"path":"{folder}/{at}.rs"}}"#);
    let call = tool_run("read_file", &arguments, "").call(id);
    let result = tool_run("", "", &format!("file {at} of {folder}")).result(id);
    [
        Message::new(Role::Assistant, vec![Part::ToolCall(call)]),
        Message::new(Role::Tool, vec![Part::ToolResult(result)]),
    ]
}

fn task() -> CallContext {
    CallContext::new().with_task(TASK)
}

fn session() -> CallContext {
    CallContext::new().with_session("session")
}

fn guarded(guard: &SafetyGuardHandle) -> SafetyGuard<Model> {
    guard.layer().layer(Model::default())
}

/// Sends a request and reads its answer: the message of the stop, if it is stopped.
async fn ask(
    llm: &SafetyGuard<Model>,
    messages: &[Message],
    context: CallContext,
) -> Result<(), String> {
    let request = ChatRequest::new(messages.to_vec()).with_context(context);
    let answer = match llm.clone().oneshot(request).await {
        Ok(answer) => answer.collect().await,
        Err(failure) => Err(failure),
    };
    answer.map(drop).map_err(|failure| failure.message().to_owned())
}

/// A call that deletes, with a new result.
fn delete(at: usize) -> ToolRun {
    tool_run("delete_file", &format!(r#"{{"path":"{at}"}}"#), &format!("{at} is gone"))
}

/// An edit with new text, of one of two files.
fn edit(at: usize) -> ToolRun {
    let arguments = format!(r#"{{"path":"src/{}.rs","new_string":"text {at}"}}"#, at % 2);
    tool_run("Edit", &arguments, "The file has been updated.")
}

#[tokio::test(start_paused = true)]
async fn only_a_named_task_has_limits_by_default() {
    let read = |at| {
        let arguments = format!(r#"{{"path":"log.txt","offset":{at}}}"#);
        tool_run("read_file", &arguments, &format!("line {at} of the log"))
    };
    let any = |at| {
        let result = format!("result number {at}");
        tool_run(&format!("tool_{}", at / 20), &format!(r#"{{"n":{at}}}"#), &result)
    };
    let deletions: Vec<_> = (0..4).map(delete).collect();
    let edits = (0..5).map(|at| edit(2 * at)).collect();
    for (calls, key) in [
        (deletions, "can raise the `limit` of `delete_file` in `guard.tools`"),
        (edits, "can raise `guard.named.edits_per_file`"),
        ((0..21).map(read).collect(), "can raise `guard.named.per_tool`"),
        ((0..401).map(any).collect(), "can raise `guard.named.calls`"),
    ] {
        let messages = history(&one_by_one(calls));
        for context in [CallContext::new(), session(), task()] {
            let is_named = context.task().is_some();
            let guard = SafetyGuardHandle::default();
            let asked = ask(&guarded(&guard), &messages, context).await;
            match is_named {
                true => assert!(asked.unwrap_err().contains(key), "{key}"),
                false => assert_eq!(asked, Ok(()), "{key}"),
            }
        }
    }
    // Hours later.
    for context in [session(), task()] {
        let guard = SafetyGuardHandle::default();
        let llm = guarded(&guard);
        let messages = conversation("read it", "src", 1);
        assert_eq!(ask(&llm, &messages, context.clone()).await, Ok(()));
        tokio::time::advance(Duration::from_secs(7_200)).await;
        let asked = ask(&llm, &messages, context.clone()).await;
        assert_eq!(asked.is_err(), context.task().is_some(), "{asked:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_limit_for_everybody_is_in_force_without_a_name() {
    let mut calls = GuardPolicy::default();
    calls.limits.calls = Some(3);
    let mut per_tool = GuardPolicy::default();
    per_tool.limits.per_tool = Some(9);
    let mut tool = GuardPolicy::default();
    let own = tool.tool_mut("remove_file");
    (own.kind, own.limit) = (Kind::Mutating, Some(3));
    for (policy, key) in [
        (calls, "can raise `guard.calls`"),
        // Where calls of one tool are limited, the built-in tools have their usual limits.
        (per_tool, "can raise the `limit` of `delete_file` in `guard.tools`"),
        (tool, "can raise the `limit` of `delete_file` in `guard.tools`"),
        (GuardPolicy::codebuddy(), "can raise the `limit` of `delete_file` in `guard.tools`"),
    ] {
        for context in [CallContext::new(), session()] {
            let guard = SafetyGuardHandle::new(policy.clone()).unwrap();
            let llm = guarded(&guard);
            let three = history(&one_by_one((0..3).map(delete)));
            assert_eq!(ask(&llm, &three, context.clone()).await, Ok(()), "{key}");
            let four = history(&one_by_one((0..4).map(delete)));
            let stopped = ask(&llm, &four, context.clone()).await.unwrap_err();
            assert!(stopped.contains(key), "{stopped}");
            // Only what has a state has a clock.
            assert_eq!(stopped.contains("Elapsed"), context.session().is_some(), "{stopped}");
        }
    }
}

/// Also when each is sent again with every request, and again because an answer got lost.
#[tokio::test(start_paused = true)]
async fn the_conversations_of_a_named_task_add_up() {
    let guard = SafetyGuardHandle::new(limited(|limits| limits.calls = Some(10))).unwrap();
    let llm = guarded(&guard);
    let calls = || guard.get(TASK).unwrap().calls;
    // Different only in what the user wrote.
    let one = conversation("read the code", "src", 7);
    let other = conversation("read it critically", "src", 7);
    let upto = |calls: usize| 2 + 2 * calls;
    for n in 1..=5 {
        for (messages, total) in [(&one, 2 * n - 1), (&other, 2 * n)] {
            for _ in 0..3 {
                assert_eq!(ask(&llm, &messages[..upto(n)], task()).await, Ok(()), "{n}");
                assert_eq!(calls(), total as u64);
            }
        }
    }
    let stopped = ask(&llm, &one[..upto(6)], task()).await.unwrap_err();
    assert!(stopped.contains("its 10 tool calls."), "{stopped}");
    let stopped = ask(&llm, &other[..upto(5)], task()).await.unwrap_err();
    assert!(stopped.contains("its 10 tool calls."), "the task is stopped: {stopped}");
    assert_eq!(ask(&llm, &other, session()).await, Ok(()), "another task");
    // Everything so far is forgotten, in both conversations.
    assert!(guard.extend(TASK));
    assert_eq!(ask(&llm, &one[..upto(6)], task()).await, Ok(()));
    assert_eq!(calls(), 0);
    assert_eq!(ask(&llm, &other[..upto(7)], task()).await, Ok(()));
    assert_eq!(calls(), 2);
}

#[tokio::test(start_paused = true)]
async fn edits_of_one_file_add_up_over_conversations() {
    let guard = SafetyGuardHandle::default();
    let llm = guarded(&guard);
    let edits = |first: &str, from: usize, count: usize| {
        let edit = |at: usize| {
            let arguments = format!(r#"{{"path":"./a.rs","new_string":"{at}"}}"#);
            tool_run("edit_file", &arguments, "The file has been updated.")
        };
        let mut messages = history(&one_by_one((from..from + count).map(edit)));
        messages[1] = Message::user(first);
        messages
    };
    assert_eq!(ask(&llm, &edits("write it", 0, 2), task()).await, Ok(()));
    assert_eq!(ask(&llm, &edits("repair it", 2, 2), task()).await, Ok(()));
    let stopped = ask(&llm, &edits("shorten it", 4, 1), task()).await.unwrap_err();
    assert!(stopped.contains("its 4 edits of `a.rs`"), "{stopped}");
}

/// Two conversations with the same beginning have it in common.
#[tokio::test(start_paused = true)]
async fn a_call_counts_once_in_conversations_that_branch() {
    let guard = SafetyGuardHandle::new(without_limits()).unwrap();
    let llm = guarded(&guard);
    let trunk = conversation("read the code", "src", 3);
    for (branch, total) in [("one", 5), ("other", 7)] {
        let mut messages = trunk.clone();
        messages.extend((0..2).flat_map(|at| round(&format!("{branch}_{at}"), branch, at)));
        for _ in 0..2 {
            assert_eq!(ask(&llm, &messages, task()).await, Ok(()));
            assert_eq!(guard.get(TASK).unwrap().calls, total, "{branch}");
        }
    }
}

/// A client that removes what is old from its history is not charged again for what it keeps.
#[tokio::test(start_paused = true)]
async fn a_shortened_conversation_is_not_counted_again() {
    let guard = SafetyGuardHandle::new(without_limits()).unwrap();
    let llm = guarded(&guard);
    let whole = conversation("read the code", "src", 20);
    assert_eq!(ask(&llm, &whole, task()).await, Ok(()));
    let mut short = whole[..2].to_vec();
    short.extend_from_slice(&whole[22..]);
    short.extend(round("new", "src", 20));
    assert_eq!(ask(&llm, &short, task()).await, Ok(()));
    assert_eq!(guard.get(TASK).unwrap().calls, 21);

    // Nor one that replaces even the user's first words, when its session is known.
    let context = || task().with_session("session").with_tenant("acme");
    assert_eq!(ask(&llm, &whole, context()).await, Ok(()));
    short[1] = Message::user("Summary: much was read.");
    assert_eq!(ask(&llm, &short, context()).await, Ok(()));
    assert_eq!(guard.get(("acme", TASK)).unwrap().calls, 21);
}

/// Where calls have no ids, each is counted as often as it was made.
#[tokio::test(start_paused = true)]
async fn equal_calls_without_ids_are_counted_each() {
    let guard = SafetyGuardHandle::new(without_limits()).unwrap();
    let llm = guarded(&guard);
    for calls in 1..=3 {
        let mut messages = conversation("is it done?", "", 0);
        messages.extend((0..calls).flat_map(|_| round("", "src", 0)));
        for _ in 0..2 {
            assert_eq!(ask(&llm, &messages, task()).await, Ok(()));
            let snapshot = guard.get(TASK).unwrap();
            // An answer, a call and a result.
            assert_eq!((snapshot.calls, snapshot.events), (calls, 3 * calls));
        }
    }
}

/// What a conversation had before the task began is not the task's, and a task is stopped only by what is.
#[tokio::test(start_paused = true)]
async fn a_task_begins_with_its_first_request() {
    let guard = SafetyGuardHandle::new(limited(|limits| limits.calls = Some(3))).unwrap();
    let llm = guarded(&guard);
    let mut messages = conversation("read the code", "src", 9);
    messages.push(Message::assistant("It is fine."));
    messages.push(Message::user("now the tests"));
    for calls in 0..=4 {
        let asked = ask(&llm, &messages, task()).await;
        assert_eq!(asked.is_err(), calls == 4, "{asked:?}");
        assert_eq!(guard.get(TASK).unwrap().calls, calls.min(3));
        messages.extend(round(&format!("test_{calls}"), "tests", calls as usize));
    }
}

/// The calls of an answer are counted with those of the other conversations.
#[tokio::test(start_paused = true)]
async fn the_calls_of_an_answer_are_allowed_up_to_the_limit_of_all_conversations() {
    let guard = SafetyGuardHandle::new(limited(|limits| limits.calls = Some(10))).unwrap();
    assert_eq!(ask(&guarded(&guard), &conversation("one", "src", 9), task()).await, Ok(()));
    let calls = [("read_file", "{}"); 3];
    let llm = guard.layer().layer(Model::default().answers_with(calling(&calls)));
    let request = ChatRequest::user("other").with_context(task());
    let answer = llm.oneshot(request).await.unwrap().collect().await.unwrap();
    assert_eq!(answer.tool_calls().count(), 1);
    assert!(answer.text().contains("its 10 tool calls."), "{}", answer.text());
}

/// A recording is judged as a named task, or without any counting.
#[tokio::test(start_paused = true)]
async fn a_recording_is_replayed_as_a_named_task() {
    let recorded = request(&one_by_one((0..40).map(edit)));
    let verdicts = |policy: GuardPolicy| {
        let guard = SafetyGuardHandle::new(policy).unwrap();
        let replayed = guard.replay(&recorded);
        replayed.iter().position(|call| call.verdict.as_str() == "stop")
    };
    assert_eq!(verdicts(GuardPolicy::default()), Some(8));
    assert_eq!(verdicts(GuardPolicy::codebuddy()), Some(8));
    assert_eq!(verdicts(GuardPolicy::default().loops_only()), None);
}

#[tokio::test(start_paused = true)]
async fn a_stop_outlives_the_guard_that_made_it() {
    let old = SafetyGuardHandle::default();
    let messages = history(&one_by_one((0..4).map(delete)));
    ask(&guarded(&old), &messages, task()).await.unwrap_err();
    let mut policy = GuardPolicy::default();
    policy.named.calls = None;
    let new = SafetyGuardHandle::new(policy).unwrap().sharing(&old);
    assert_eq!((new.stops(), new.snapshot().len()), (1, 1));
    ask(&guarded(&new), &messages[..1], task()).await.unwrap_err();
    assert!(new.extend(TASK), "by either handle");
    assert_eq!(ask(&guarded(&old), &messages[..1], task()).await, Ok(()));
    // What has been counted is recognised: it is not counted again by the other.
    let calls = || old.get(TASK).unwrap().calls;
    let read = conversation("go", "src", 3);
    ask(&guarded(&old), &read, task()).await.unwrap();
    let counted = calls();
    ask(&guarded(&new), &read, task()).await.unwrap();
    assert_eq!((counted, calls()), (3, 3));
    let fresh = SafetyGuardHandle::default();
    assert_eq!(ask(&guarded(&fresh), &messages[..1], task()).await, Ok(()));
}
