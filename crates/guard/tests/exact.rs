//! Every limit at every size, with and without a tool layer; queries change nothing; memory and cost
//! are bounded.
#![allow(clippy::unwrap_used, reason = "tests")]

mod support;

use std::sync::Arc;

use allocation_counter::measure;
use parking_lot::Mutex;
use steadfast_chat::{ChatRequest, Message, Part, Role, ToolRequest, ToolResult};
use steadfast_core::{CallContext, Failure};
use steadfast_guard::{GuardPolicy, GuardVerdict, SafetyGuardHandle};
use support::*;
use tower::{Layer, ServiceBuilder, ServiceExt, service_fn};

/// Where calls are counted.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Setup {
    /// In the layer around the tools.
    ToolLayer,
    /// In the layer around the model, from the history of a named task.
    NamedTask,
    /// The same, without a task.
    Unnamed,
}

/// What an agent was allowed until it was stopped.
#[derive(Debug, Default, PartialEq)]
struct Allowed {
    answers: usize,
    calls: usize,
    results: usize,
}

/// An agent whose model calls `tool` with different arguments, `batch` calls at a time, until the guard
/// stops it.
async fn agent(policy: GuardPolicy, setup: Setup, batch: usize, tool: &'static str) -> Allowed {
    let guard = SafetyGuardHandle::new(policy).unwrap();
    let runs = Arc::new(Mutex::new(0));
    let tools = {
        let runs = runs.clone();
        let run = service_fn(move |request: ToolRequest| {
            *runs.lock() += 1;
            let content = vec![Part::text(format!("done: {}", request.call.arguments))];
            let result = ToolResult { id: request.call.id, content, ..ToolResult::default() };
            async move { Ok::<_, Failure>(result) }
        });
        match setup {
            Setup::ToolLayer => tower::util::BoxCloneService::new(
                ServiceBuilder::new().layer(guard.tool_layer()).service(run),
            ),
            _ => tower::util::BoxCloneService::new(run),
        }
    };
    let (mut messages, mut allowed, mut at) = (vec![Message::user("do it")], Allowed::default(), 0);
    loop {
        let calls: Vec<_> = (0..batch)
            .map(|_| {
                at += 1;
                // Four spellings of one file, for the tools that edit one.
                let path = ["a/b", "./a/b", "a//b", "a/c/../b"][at % 4];
                format!(r#"{{"path":"{path}","n":{at}}}"#)
            })
            .collect();
        let calls: Vec<_> = calls.iter().map(|call| (tool, call.as_str())).collect();
        let mut request = ChatRequest::new(messages.clone());
        if setup != Setup::Unnamed {
            request.context = CallContext::new().with_task(TASK);
        }
        let model = Model::default().answers_with(calling(&calls));
        let answer = guard.layer().layer(model).oneshot(request).await.ok();
        allowed.answers += usize::from(answer.is_some());
        let answer = match answer {
            Some(answer) => answer.collect().await.ok(),
            None => None,
        };
        let Some(answer) = answer else {
            allowed.calls = *runs.lock();
            allowed.results = allowed.calls;
            return allowed;
        };
        let calls: Vec<_> = answer.tool_calls().cloned().collect();
        let parts = calls.iter().cloned().map(Part::ToolCall).collect();
        messages.push(Message::new(Role::Assistant, parts));
        for mut call in calls {
            call.id = format!("{}-{}", messages.len(), call.id);
            let result = tools.clone().oneshot(tool_request(TASK, call)).await.unwrap();
            let result = ToolResult { id: result.id.split_once('-').unwrap().1.into(), ..result };
            messages.push(Message::new(Role::Tool, vec![Part::ToolResult(result)]));
        }
        assert!(messages.len() < 500, "it ends");
    }
}

const SETUPS: [Setup; 3] = [Setup::ToolLayer, Setup::NamedTask, Setup::Unnamed];

#[tokio::test(start_paused = true)]
async fn every_limit_of_calls_lets_exactly_n_through() {
    for n in 1..=12_u32 {
        for setup in SETUPS {
            for batch in [1, 2, 5] {
                let case = format!("{n}, {setup:?}, {batch} at a time");
                let all = limited(|limits| limits.calls = Some(n.into()));
                assert_eq!(agent(all, setup, batch, "x").await.calls, n as usize, "calls: {case}");
                let one = limited(|limits| limits.per_tool = Some(n));
                assert_eq!(agent(one, setup, batch, "x").await.calls, n as usize, "tool: {case}");
                let mut own = without_limits();
                own.tool_mut("grep").limit = Some(n);
                let calls = agent(own, setup, batch, "Grep_Search").await.calls;
                assert_eq!(calls, n as usize, "the limit of a tool, by another name: {case}");
                let file = limited(|limits| limits.edits_per_file = Some(n));
                let calls = agent(file, setup, batch, "Edit").await.calls;
                assert_eq!(calls, n as usize, "a file: {case}");
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_limit_of_events_lets_exactly_n_through_and_every_call_has_its_result() {
    for n in 1..=30_u64 {
        for setup in SETUPS {
            let policy = limited(|limits| limits.events = Some(n));
            let Allowed { answers, calls, results } = agent(policy, setup, 1, "x").await;
            let events = (answers + calls + results) as u64;
            // A call that is the last event has its result too.
            let last_is_call = n % 3 == 2;
            assert_eq!(events, n + u64::from(last_is_call), "{n}, {setup:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_limit_of_zero_allows_no_call() {
    for setup in SETUPS {
        for policy in [limited(|limits| limits.calls = Some(0)), {
            let mut policy = without_limits();
            policy.tool_mut("x").limit = Some(0);
            policy
        }] {
            assert_eq!(agent(policy, setup, 2, "x").await.calls, 0, "{setup:?}");
        }
    }
}

/// The limits of named tasks, each reached by a task that reaches no other; the preset has them for
/// everybody.
#[tokio::test(start_paused = true)]
async fn the_limits_of_named_tasks_are_as_documented() {
    assert_eq!(GuardPolicy::codebuddy().limits, GuardPolicy::default().named);
    let guard = SafetyGuardHandle::default();
    let call = |at: usize| {
        tool_run(&format!("tool_{}", at / 20), &format!(r#"{{"n":{at}}}"#), "").call("")
    };
    for at in 0..400 {
        assert!(guard.check_call(TASK, &call(at)).is_ok(), "{at}");
    }
    assert!(guard.check_call(TASK, &call(400)).is_err());
    assert_eq!(guard.get(TASK).unwrap().calls, 400);

    let mut policy = GuardPolicy::default();
    (policy.named.calls, policy.named.per_tool) = (None, None);
    let guard = SafetyGuardHandle::new(policy).unwrap();
    for at in 0..2_000 {
        assert!(guard.check_call(TASK, &call(at)).is_ok(), "{at}");
    }
    let stop = guard.check_call(TASK, &call(2_000)).unwrap_err();
    assert!(stop.message().contains("its 2,000 events."), "{stop}");
}

#[tokio::test(start_paused = true)]
async fn a_repeated_request_changes_nothing() {
    let same = tool_run("read_file", r#"{"path":"a"}"#, "unchanged");
    let contexts = [
        CallContext::new(),
        CallContext::new().with_task(TASK),
        CallContext::new().with_session(TASK).with_tenant("acme"),
    ];
    for context in contexts {
        for rounds in 0..=6 {
            let guard = SafetyGuardHandle::default();
            let model = Model::default();
            let llm = guard.layer().layer(model.clone());
            let request =
                request(&one_by_one(vec![same.clone(); rounds])).with_context(context.clone());
            let mut seen = Vec::new();
            for _ in 0..4 {
                let answer = match llm.clone().oneshot(request.clone()).await {
                    Ok(answer) => answer.collect().await.map(|answer| answer.text()),
                    Err(failure) => Err(failure),
                };
                let reported = model.requests.lock().pop().map(|request| request.messages.len());
                seen.push((
                    answer.map_err(|failure| failure.message().to_owned()),
                    reported,
                    guard.snapshot(),
                    guard.from_history(&request),
                ));
            }
            assert!(seen.windows(2).all(|two| two[0] == two[1]), "{context:?} {rounds}: {seen:#?}");
            assert_eq!(seen[0].0.is_err(), rounds >= 5, "{context:?} {rounds}");
            assert_eq!(matches!(seen[0].3, GuardVerdict::Warn(_)), (3..5).contains(&rounds));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn tasks_of_two_tenants_with_one_name_are_different() {
    let guard = SafetyGuardHandle::default();
    let llm = guard.layer().layer(Model::default());
    let ask = |tenant: &str, count| {
        let delete = |at| tool_run("delete_file", &format!(r#"{{"path":"{at}"}}"#), "it is gone");
        let context = CallContext::new().with_tenant(tenant).with_task(TASK);
        request(&one_by_one((0..count).map(delete))).with_context(context)
    };
    assert!(llm.clone().oneshot(ask("acme", 4)).await.is_err());
    assert!(llm.clone().oneshot(ask("other", 3)).await.is_ok());
    let stopped = |tenant| guard.get((tenant, TASK)).unwrap().stop.is_some();
    assert_eq!((stopped("acme"), stopped("other")), (true, false));
    assert!(!guard.extend(TASK), "there is no such task without a tenant");
    assert!(!guard.extend(("third", TASK)));
    assert!(guard.extend(("acme", TASK)));
    assert!(llm.oneshot(ask("acme", 4)).await.is_ok());
    let tenants: Vec<_> = guard.snapshot().into_iter().map(|task| task.tenant.unwrap()).collect();
    assert_eq!(tenants.len(), 2);

    // The same in the tool layer.
    let guard = SafetyGuardHandle::default();
    for at in 0..4 {
        let call = tool_run("delete_file", &format!(r#"{{"path":"{at}"}}"#), "").call("x");
        assert_eq!(guard.check_call(("acme", TASK), &call).is_ok(), at < 3);
    }
    assert!(guard.check_call(("other", TASK), &tool_run("ls", "{}", "").call("x")).is_ok());
}

/// The allocations of a call, and the memory of its task, do not grow with the number of calls.
#[test]
fn a_hundred_thousand_calls_later_a_call_allocates_no_more() {
    // Counts of files, names and everything else are kept.
    let policy = limited(|limits| limits.edits_per_file = Some(u32::MAX));
    let guard = SafetyGuardHandle::new(policy).unwrap();
    let call = |at: u32| {
        let path = format!("src/{at:07}/{}.rs", at % 97);
        let tool = ["edit_file", "read_file", "bash", "unheard_of"][at as usize % 4];
        let tool = if at.is_multiple_of(5) { format!("{tool}_{at:07}") } else { tool.to_owned() };
        let shown = format!("{path} has {at:07} lines, and this is what is in the first of them");
        tool_run(&tool, &format!(r#"{{"path":"{path}","n":{at:07}}}"#), &shown)
    };
    let work = |calls: std::ops::Range<u32>| {
        let calls: Vec<_> = calls.map(call).map(|run| (run.call("x"), run.result("x"))).collect();
        measure(|| {
            for (call, result) in &calls {
                guard.answered(TASK);
                guard.check_call(TASK, call).unwrap();
                assert_eq!(guard.observe_result(TASK, call, result), GuardVerdict::Fine);
            }
        })
    };
    let first = work(0..10_000);
    assert!(first.bytes_current < 512 * 1024, "a task keeps {} bytes", first.bytes_current);
    let early = work(10_000..20_000);
    for from in (20_000..90_000).step_by(10_000) {
        work(from..from + 10_000);
    }
    let late = work(90_000..100_000);
    assert!(
        late.bytes_current.unsigned_abs() < 4_096,
        "it keeps no more memory, apart from the lengths of names: {late:?}"
    );
    assert!(late.count_total.abs_diff(early.count_total) < 100, "{early:?}, {late:?}");
    assert!(late.bytes_total.abs_diff(early.bytes_total) < 100_000, "{early:?}, {late:?}");
    assert_eq!(guard.get(TASK).unwrap().events, 300_000);
}
