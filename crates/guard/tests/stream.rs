//! Streamed answers: stops inside them, calls beyond a limit, advice in requests.
#![allow(clippy::unwrap_used, reason = "tests")]

mod support;

use std::time::Duration;

use steadfast_chat::{
    ChatRequest, Completion, Delta, Part, Role, StopReason, ToolRequest, ToolResult,
    transcript::{TranscriptRules, validate},
};
use steadfast_core::{CallContext, Dialect, Failure, Reason, RecoveryLog};
use steadfast_guard::{GuardPolicy, MARK, SafetyGuardHandle, StopAs};
use support::*;
use tokio_stream::StreamExt;
use tower::{Layer, ServiceBuilder, ServiceExt, service_fn};

fn answering() -> GuardPolicy {
    let mut policy = GuardPolicy::codebuddy();
    policy.stop_as = StopAs::Answer;
    policy
}

async fn ask(
    policy: GuardPolicy,
    model: &Model,
    request: ChatRequest,
) -> Result<Completion, Failure> {
    let guard = SafetyGuardHandle::new(policy).unwrap();
    guard.layer().layer(model.clone()).oneshot(request).await?.collect().await
}

/// Every delta of an answer, in order; panics when the answer is not well-formed.
async fn deltas(policy: GuardPolicy, model: &Model, request: ChatRequest) -> Vec<Delta> {
    let guard = SafetyGuardHandle::new(policy).unwrap();
    let mut answer = guard.layer().layer(model.clone()).oneshot(request).await.unwrap();
    let mut all = Vec::new();
    while let Some(event) = answer.next().await {
        all.extend(event.unwrap().deltas);
    }
    well_formed(&all);
    all
}

/// Blocks begin in order, are ended once, and nothing comes after the end.
fn well_formed(all: &[Delta]) {
    let mut next = 0;
    let mut ended = Vec::new();
    for delta in all {
        match delta {
            Delta::Text { index, .. } | Delta::ToolCall { index, .. } => {
                assert!(*index <= next && !ended.contains(index), "{delta:?} in {all:?}");
                next = next.max(index + 1);
            }
            Delta::BlockEnd { index } => {
                assert!(*index < next && !ended.contains(index), "{delta:?} in {all:?}");
                ended.push(*index);
            }
            _ => {}
        }
    }
    assert_eq!(ended.len(), next as usize, "all blocks ended: {all:?}");
    assert!(matches!(all[..], [.., Delta::Stop(_), Delta::End]), "{all:?}");
    assert_eq!(all.iter().filter(|delta| matches!(delta, Delta::End)).count(), 1);
}

fn looping(times: usize) -> ChatRequest {
    let same = tool_run("read_file", r#"{"path":"a"}"#, "unchanged");
    request(&one_by_one(vec![same; times]))
}

#[tokio::test(start_paused = true)]
async fn a_stopped_task_makes_no_call() {
    let model = Model::default();
    let failure = ask(GuardPolicy::default(), &model, looping(5)).await.unwrap_err();
    assert_eq!(failure.reason(), Reason::Safety);
    assert_eq!(failure.attempts(), 0);
    assert_eq!(
        failure.message().lines().next().unwrap().split(" Events").next().unwrap(),
        "Safety limit reached: the agent goes in circles: the same call of `read_file` returned the \
         same result 5 times."
    );
    let log = RecoveryLog::enabled();
    let request = looping(5).with_context(CallContext::new().with_log(log.clone())).streaming();
    let all = deltas(answering(), &model, request).await;
    let Delta::Text { text, .. } = &all[1] else { panic!("{all:?}") };
    let lines: Vec<_> = text.lines().collect();
    assert_eq!(lines[1], "Events processed: 15 | Tool calls: 5", "there is no clock");
    assert!(lines[2].ends_with("an operator can raise `guard.loops.same_result`."), "{text}");
    assert_eq!(log.to_string(), "guard.stopped safety same_result");
    let whole = ask(answering(), &model, looping(5)).await.unwrap();
    assert_eq!(whole.stop.unwrap().reason, StopReason::EndTurn);
    assert_eq!(model.calls(), 0);
}

#[tokio::test(start_paused = true)]
async fn advice_is_the_last_message_and_valid_in_every_dialect() {
    for dialect in [Dialect::OpenAi, Dialect::Anthropic, Dialect::Gemini] {
        let rules = TranscriptRules::for_dialect(dialect);
        for times in [3, 4] {
            let model = Model::default();
            let mut sent = looping(times);
            let tools = steadfast_chat::RawJson::parse(r#"{"type":"object"}"#).unwrap();
            sent.tools = vec![steadfast_chat::Tool::function("read_file", "reads", tools)].into();
            assert!(steadfast_chat::transcript::repair(&mut sent, &rules).unrepaired.is_empty());
            ask(GuardPolicy::default(), &model, sent.clone()).await.unwrap();
            let got = model.last();
            assert_eq!(got.messages.len(), sent.messages.len() + 1);
            for (one, other) in sent.messages.iter().zip(&got.messages) {
                assert!(one.same(other), "the prefix is untouched");
            }
            let note = got.messages.last().unwrap();
            assert_eq!(note.role(), Role::User);
            assert!(note.text().starts_with(MARK), "{}", note.text());
            assert!(note.text().contains(&format!("{times} times")), "{}", note.text());
            assert!(validate(&got, &rules).is_ok(), "{dialect:?}: {:?}", validate(&got, &rules));
        }
    }
    let model = Model::default();
    let short = looping(2);
    ask(GuardPolicy::default(), &model, short.clone()).await.unwrap();
    assert!(model.last().messages.same(&short.messages), "not even copied");
}

#[tokio::test(start_paused = true)]
async fn repeated_text_ends_an_answer() {
    let sentence = "I will now look at the file again. ";
    let pieces = |times: usize| {
        let mut all = vec![start()];
        all.extend((0..times).map(|_| text(0, sentence)));
        all.push(Delta::BlockEnd { index: 0 });
        all.extend(end(StopReason::EndTurn));
        all
    };
    let user = || ChatRequest::user("hi").streaming();
    let nine = Model::default().answers_with(pieces(9));
    assert_eq!(
        ask(GuardPolicy::default(), &nine, user()).await.unwrap().text(),
        sentence.repeat(9)
    );
    let ten = Model::default().answers_with(pieces(500));
    let failure = ask(GuardPolicy::default(), &ten, user()).await.unwrap_err();
    assert_eq!((failure.reason(), failure.is_delivered()), (Reason::Safety, true));

    for model in [Model::default(), Model::whole()] {
        let whole = model.whole;
        let mut shown = pieces(500);
        if whole {
            // A whole answer is one event, and one piece of text.
            shown = text_answer(&sentence.repeat(500));
        }
        let all = deltas(answering(), &model.answers_with(shown), user()).await;
        let shown: String = all
            .iter()
            .filter_map(|delta| match delta {
                Delta::Text { text, .. } => Some(text.as_str()),
                _ => None,
            })
            .collect();
        assert_eq!(shown.matches(sentence).count(), if whole { 500 } else { 10 });
        assert!(shown.contains("the same text came"), "{}", &shown[shown.len() - 200..]);
    }
}

#[tokio::test(start_paused = true)]
async fn calls_beyond_a_limit_are_replaced_by_text() {
    let before = different("delete_file", 2);
    let three = [("delete_file", r#"{"path":"x"}"#); 3];
    for model in [Model::default(), Model::whole()] {
        let model = model.answers_with(calling(&three)).answers_with(calling(&three));
        for policy in [GuardPolicy::codebuddy(), answering()] {
            let all = deltas(policy, &model, request(&before)).await;
            let mut answer = Completion::new(steadfast_chat::Head::new(Dialect::OpenAi));
            all.iter().for_each(|delta| answer.apply(delta));
            assert_eq!(answer.tool_calls().count(), 1, "the third, and no more");
            assert_eq!(answer.parts.len(), 3);
            assert!(answer.parts[1].as_text().unwrap().contains("its 3 calls of `delete_file`"));
            assert_eq!(answer.parts[2], Part::text("`delete_file` was not called either."));
            assert_eq!(answer.stop.unwrap().reason, StopReason::ToolUse);
        }
    }
}

fn different(tool: &str, count: usize) -> Vec<Vec<ToolRun>> {
    let one =
        |at| tool_run(tool, &format!(r#"{{"path":"f{at}"}}"#), &format!("result number {at}"));
    one_by_one((0..count).map(one))
}

#[tokio::test(start_paused = true)]
async fn an_answer_without_an_allowed_call_is_a_stop() {
    let before = different("delete_file", 3);
    let mut shown = vec![start(), text(0, "Now the last one."), Delta::BlockEnd { index: 0 }];
    shown.push(Delta::ToolCall { index: 1, id: "x".into(), name: "delete_file".into() });
    shown.push(Delta::Arguments { index: 1, json: "{}".into() });
    shown.push(Delta::BlockEnd { index: 1 });
    shown.extend(end(StopReason::ToolUse));
    for model in [Model::default(), Model::whole()] {
        let model = model.answers_with(shown.clone()).answers_with(shown.clone());
        let failure = ask(GuardPolicy::codebuddy(), &model, request(&before)).await.unwrap_err();
        assert_eq!(failure.reason(), Reason::Safety);
        let all = deltas(answering(), &model, request(&before)).await;
        assert!(!all.iter().any(|delta| matches!(delta, Delta::ToolCall { .. })));
        let ends =
            all.iter().any(|d| matches!(d, Delta::Stop(s) if s.reason == StopReason::EndTurn));
        assert!(ends, "{all:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_edit_is_checked_when_its_file_is_known() {
    let edit = |at: usize, path: &str| {
        tool_run("edit_file", &format!(r#"{{"path":"{path}","n":{at}}}"#), "the file was edited")
    };
    let before = one_by_one((0..3).map(|at| edit(at, "a.rs")));
    let batch = [
        ("edit_file", r#"{"path":"b.rs"}"#),
        ("edit_file", r#"{"path":"./a.rs"}"#),
        ("edit_file", r#"{"path":"x/../a.rs"}"#),
    ];
    for model in [Model::default(), Model::whole()] {
        let model = model.answers_with(calling(&batch));
        let all = deltas(GuardPolicy::codebuddy(), &model, request(&before)).await;
        let mut answer = Completion::new(steadfast_chat::Head::new(Dialect::OpenAi));
        all.iter().for_each(|delta| answer.apply(delta));
        let calls: Vec<_> = answer.tool_calls().map(|call| call.arguments.as_str()).collect();
        assert_eq!(calls, [batch[0].1, batch[1].1], "the fourth edit of a.rs and no fifth");
        assert!(answer.text().contains("its 4 edits of `a.rs`"));
    }
    // An allowed edit that was held back is unchanged.
    let model = Model::default().answers_with(calling(&batch[..1]));
    let mut before = before;
    before.push(vec![edit(3, "a.rs")]);
    let all = deltas(GuardPolicy::codebuddy(), &model, request(&before)).await;
    assert_eq!(all, calling(&batch[..1]));
}

#[tokio::test(start_paused = true)]
async fn time_ends_an_answer_but_not_one_with_a_call() {
    let slowly = |all: Vec<Delta>| {
        service_fn(move |_: ChatRequest| {
            let all = all.clone();
            async move {
                let mut head = steadfast_chat::Head::new(Dialect::OpenAi);
                head.stream = true;
                let events = tokio_stream::iter(all).then(|delta| async move {
                    tokio::time::sleep(Duration::from_secs(200)).await;
                    Ok::<_, Failure>(steadfast_chat::Event::new([delta]))
                });
                Ok::<_, Failure>(steadfast_chat::ChatResponse::new(head, Box::pin(events)))
            }
        })
    };
    let ask = || ChatRequest::user("hi").with_context(CallContext::new().with_task(TASK));
    let pieces: Vec<_> = std::iter::once(start())
        .chain((0..9).map(|at| text(0, &format!("Piece {at}. "))))
        .collect();
    for policy in [GuardPolicy::default(), answering()] {
        let fails = policy.stop_as == StopAs::Failure;
        let guard = SafetyGuardHandle::new(policy).unwrap();
        let llm = guard.layer().layer(slowly(pieces.clone()));
        let answer = llm.oneshot(ask()).await.unwrap().collect().await;
        match answer {
            Ok(answer) => {
                assert!(!fails && answer.ended);
                assert!(
                    answer.text().starts_with("Piece 0. Piece 1. \n\nSafety limit"),
                    "{answer:?}"
                );
                assert!(answer.text().contains("Elapsed: 13m 20s"), "{}", answer.text());
            }
            Err(failure) => assert!(fails && failure.reason() == Reason::Safety),
        }
        // The call is complete, and the next request is stopped.
        let guard = SafetyGuardHandle::new(guard.policy().clone()).unwrap();
        let llm = guard.layer().layer(slowly(calling(&[("x", "{}")])));
        let answer = llm.clone().oneshot(ask()).await.unwrap().collect().await.unwrap();
        assert_eq!(answer.tool_calls().count(), 1);
        assert_eq!(llm.oneshot(ask()).await.is_err(), fails);
    }
}

/// An agent in one process: both layers, a batch beyond the limit, and the stop after it.
#[tokio::test(start_paused = true)]
async fn the_tool_layer_answers_every_call() {
    let guard = SafetyGuardHandle::default();
    let tools = ServiceBuilder::new().layer(guard.tool_layer()).service(service_fn(
        |request: ToolRequest| async move {
            let (id, content) = (request.call.id, vec![Part::text("unchanged")]);
            Ok::<_, Failure>(ToolResult { id, content, ..ToolResult::default() })
        },
    ));
    let model = Model::default();
    let llm = guard.layer().layer(model.clone());
    let context = || CallContext::new().with_task(TASK);
    let ask = || ChatRequest::user("hi").with_context(context());
    llm.clone().oneshot(ask()).await.unwrap().collect().await.unwrap();
    let mut results = Vec::new();
    for at in 0..5 {
        let call =
            tool_run("delete_file", &format!(r#"{{"path":"{at}"}}"#), "").call(&at.to_string());
        let request = tool_request(TASK, call);
        results.push(tools.clone().oneshot(request).await.unwrap());
    }
    let failed: Vec<_> = results.iter().map(|result| result.is_error).collect();
    assert_eq!(failed, [false, false, false, true, true]);
    assert_eq!(results[4].id, "4");
    assert!(results[3].content[0].as_text().unwrap().starts_with(MARK));
    let failure = llm.clone().oneshot(looping(1).with_context(context())).await.unwrap_err();
    assert!(failure.message().contains("Tool calls: 3"), "{failure}");
    assert_eq!((model.calls(), guard.stops()), (1, 1 + 1));

    // Advice is a part of the result.
    let list = || tool_request("other", tool_run("ls", "{}", "").call("1"));
    let mut last = String::new();
    for _ in 0..3 {
        guard.answered("other");
        let result = tools.clone().oneshot(list()).await.unwrap();
        last = result.content.iter().filter_map(Part::as_text).collect();
    }
    assert!(last.contains(MARK) && last.contains("3 times"), "{last}");
}
