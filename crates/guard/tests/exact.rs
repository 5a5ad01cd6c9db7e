//! Every limit at every size, in both readings; asking changes nothing; memory and cost are bounded.
#![allow(clippy::unwrap_used, reason = "tests")]

mod support;

use std::sync::Arc;

use allocation_counter::measure;
use parking_lot::Mutex;
use steadfast_chat::{ChatRequest, Message, Part, Role, ToolResult};
use steadfast_core::{CallContext, Failure};
use steadfast_guard::{GuardPolicy, SafetyGuard, TaskCall, Verdict};
use support::*;
use tower::{Layer, ServiceBuilder, ServiceExt, service_fn};

/// Who sees the calls.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Seen {
    /// The layer around the tools.
    ByHand,
    /// The layer around the model, in the history of a named task.
    Named,
    /// The same, of no task.
    Unnamed,
}

/// What an agent got out of its model and tools until it was stopped.
#[derive(Debug, Default, PartialEq)]
struct Got {
    answers: usize,
    calls: usize,
    results: usize,
}

/// An agent whose model calls `tool` with ever other arguments, `batch` calls at a time, until the
/// guard ends it.
async fn agent(policy: GuardPolicy, seen: Seen, batch: usize, tool: &'static str) -> Got {
    let guard = SafetyGuard::new(policy).unwrap();
    let ran = Arc::new(Mutex::new(0));
    let tools = {
        let ran = ran.clone();
        let run = service_fn(move |request: TaskCall| {
            *ran.lock() += 1;
            let content = vec![Part::text(format!("done: {}", request.call.arguments))];
            let result = ToolResult { id: request.call.id, content, ..ToolResult::default() };
            async move { Ok::<_, Failure>(result) }
        });
        match seen {
            Seen::ByHand => tower::util::BoxCloneService::new(
                ServiceBuilder::new().layer(guard.tool_layer()).service(run),
            ),
            _ => tower::util::BoxCloneService::new(run),
        }
    };
    let (mut messages, mut got, mut at) = (vec![Message::user("do it")], Got::default(), 0);
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
        if seen != Seen::Unnamed {
            request.context = CallContext::new().with_task(TASK);
        }
        let model = Model::default().says(calling(&calls));
        let began = guard.layer().layer(model).oneshot(request).await.ok();
        got.answers += usize::from(began.is_some());
        let answer = match began {
            Some(answer) => answer.collect().await.ok(),
            None => None,
        };
        let Some(answer) = answer else {
            got.calls = *ran.lock();
            got.results = got.calls;
            return got;
        };
        let calls: Vec<_> = answer.tool_calls().cloned().collect();
        let parts = calls.iter().cloned().map(Part::ToolCall).collect();
        messages.push(Message::new(Role::Assistant, parts));
        for mut call in calls {
            call.id = format!("{}-{}", messages.len(), call.id);
            let result = tools.clone().oneshot(TaskCall::new(TASK, call)).await.unwrap();
            let result = ToolResult { id: result.id.split_once('-').unwrap().1.into(), ..result };
            messages.push(Message::new(Role::Tool, vec![Part::ToolResult(result)]));
        }
        assert!(messages.len() < 500, "it ends");
    }
}

const WAYS: [Seen; 3] = [Seen::ByHand, Seen::Named, Seen::Unnamed];

#[tokio::test(start_paused = true)]
async fn every_limit_of_calls_lets_exactly_n_through() {
    for n in 1..=12_u32 {
        for seen in WAYS {
            for batch in [1, 2, 5] {
                let case = format!("{n}, {seen:?}, {batch} at a time");
                let mut all = roomy();
                all.limits.calls = Some(n.into());
                assert_eq!(agent(all, seen, batch, "x").await.calls, n as usize, "calls: {case}");
                let mut one = roomy();
                one.limits.per_tool = Some(n);
                assert_eq!(agent(one, seen, batch, "x").await.calls, n as usize, "tool: {case}");
                let mut own = roomy();
                own.tool_mut("grep").limit = Some(n);
                let calls = agent(own, seen, batch, "Grep_Search").await.calls;
                assert_eq!(calls, n as usize, "a tool's own, by another name: {case}");
                let mut file = roomy();
                file.limits.edits_per_file = Some(n);
                let calls = agent(file, seen, batch, "Edit").await.calls;
                assert_eq!(calls, n as usize, "a file: {case}");
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_limit_of_events_lets_exactly_n_through_and_every_call_has_its_result() {
    for n in 1..=30_u64 {
        for seen in WAYS {
            let mut policy = roomy();
            policy.limits.events = Some(n);
            let Got { answers, calls, results } = agent(policy, seen, 1, "x").await;
            let events = (answers + calls + results) as u64;
            // A call that is the last of them has its result all the same.
            let last_is_call = n % 3 == 2;
            assert_eq!(events, n + u64::from(last_is_call), "{n}, {seen:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn no_calls_at_all_can_be_had_too() {
    for seen in WAYS {
        for policy in [
            {
                let mut policy = roomy();
                policy.limits.calls = Some(0);
                policy
            },
            {
                let mut policy = roomy();
                policy.tool_mut("x").limit = Some(0);
                policy
            },
        ] {
            assert_eq!(agent(policy, seen, 2, "x").await.calls, 0, "{seen:?}");
        }
    }
}

/// The defaults, one after the other, as a task that does nothing else reaches them.
#[tokio::test(start_paused = true)]
async fn the_defaults_are_what_the_table_says() {
    let guard = SafetyGuard::default();
    let call =
        |at: usize| did(&format!("tool_{}", at / 20), &format!(r#"{{"n":{at}}}"#), "").call("");
    for at in 0..400 {
        assert!(guard.check_call(TASK, &call(at)).is_ok(), "{at}");
    }
    assert!(guard.check_call(TASK, &call(400)).is_err());
    assert_eq!(guard.get(TASK).unwrap().calls, 400);

    let mut policy = GuardPolicy::default();
    (policy.limits.calls, policy.limits.per_tool) = (None, None);
    let guard = SafetyGuard::new(policy).unwrap();
    for at in 0..2_000 {
        assert!(guard.check_call(TASK, &call(at)).is_ok(), "{at}");
    }
    let stop = guard.check_call(TASK, &call(2_000)).unwrap_err();
    assert!(stop.message().contains("its 2,000 events."), "{stop}");
}

#[tokio::test(start_paused = true)]
async fn asking_again_changes_nothing() {
    let same = did("read_file", r#"{"path":"a"}"#, "the same as ever");
    let contexts = [
        CallContext::new(),
        CallContext::new().with_task(TASK),
        CallContext::new().with_session(TASK).with_tenant("acme"),
    ];
    for context in contexts {
        for rounds in 0..=6 {
            let guard = SafetyGuard::default();
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
                let reported = model.asked.lock().pop().map(|asked| asked.messages.len());
                seen.push((
                    answer.map_err(|failure| failure.message().to_owned()),
                    reported,
                    guard.snapshot(),
                    guard.from_history(&request),
                ));
            }
            assert!(seen.windows(2).all(|two| two[0] == two[1]), "{context:?} {rounds}: {seen:#?}");
            assert_eq!(seen[0].0.is_err(), rounds >= 5, "{context:?} {rounds}");
            assert_eq!(matches!(seen[0].3, Verdict::Warn(_)), (3..5).contains(&rounds));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn tenants_tasks_of_one_name_are_two() {
    let guard = SafetyGuard::default();
    let llm = guard.layer().layer(Model::default());
    let ask = |tenant: &str, count| {
        let delete = |at| did("delete_file", &format!(r#"{{"path":"{at}"}}"#), "it is gone");
        let context = CallContext::new().with_tenant(tenant).with_task(TASK);
        request(&one_by_one((0..count).map(delete))).with_context(context)
    };
    assert!(llm.clone().oneshot(ask("acme", 4)).await.is_err());
    assert!(llm.clone().oneshot(ask("other", 3)).await.is_ok());
    let stopped = |tenant| guard.get((tenant, TASK)).unwrap().stop.is_some();
    assert_eq!((stopped("acme"), stopped("other")), (true, false));
    assert!(!guard.extend(TASK), "nobody's task of that name");
    assert!(!guard.extend(("third", TASK)));
    assert!(guard.extend(("acme", TASK)));
    assert!(llm.oneshot(ask("acme", 4)).await.is_ok());
    let tenants: Vec<_> = guard.snapshot().into_iter().map(|task| task.tenant.unwrap()).collect();
    assert_eq!(tenants.len(), 2);

    // The tool half the same.
    let by_hand = SafetyGuard::default();
    for at in 0..4 {
        let call = did("delete_file", &format!(r#"{{"path":"{at}"}}"#), "").call("x");
        assert_eq!(by_hand.check_call(("acme", TASK), &call).is_ok(), at < 3);
    }
    assert!(by_hand.check_call(("other", TASK), &did("ls", "{}", "").call("x")).is_ok());
}

/// A call costs the same and keeps as much, however many there were before: by counting what is
/// allocated.
#[test]
fn a_hundred_thousand_calls_later_nothing_costs_more() {
    let mut policy = roomy();
    policy.limits.time = None;
    // Counts of files, names and everything else are kept.
    policy.limits.edits_per_file = Some(u32::MAX);
    let guard = SafetyGuard::new(policy).unwrap();
    let call = |at: u32| {
        let path = format!("src/{at:07}/{}.rs", at % 97);
        let tool = ["edit_file", "read_file", "bash", "unheard_of"][at as usize % 4];
        let tool = if at.is_multiple_of(5) { format!("{tool}_{at:07}") } else { tool.to_owned() };
        let shown = format!("{path} has {at:07} lines, and this is what is in the first of them");
        did(&tool, &format!(r#"{{"path":"{path}","n":{at:07}}}"#), &shown)
    };
    let work = |calls: std::ops::Range<u32>| {
        let calls: Vec<_> = calls.map(call).map(|did| (did.call("x"), did.result("x"))).collect();
        measure(|| {
            for (call, result) in &calls {
                guard.answered(TASK);
                guard.check_call(TASK, call).unwrap();
                assert_eq!(guard.observe_result(TASK, call, result), Verdict::Fine);
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
        "it keeps no more, but for the lengths of names: {late:?}"
    );
    assert!(late.count_total.abs_diff(early.count_total) < 100, "{early:?}, {late:?}");
    assert!(late.bytes_total.abs_diff(early.bytes_total) < 100_000, "{early:?}, {late:?}");
    assert_eq!(guard.get(TASK).unwrap().events, 300_000);
}
