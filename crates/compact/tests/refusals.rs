//! Requests that a provider refuses for their bytes, their media or their transcript: repaired and sent
//! once more. Every attempt is counted, as the simulator's journal counts them.
#![allow(clippy::unwrap_used, reason = "tests")]

mod support;

use serde_json::{Value, json};
use steadfast_chat::{ChatRequest, ChatResponse, Events, Message, Part, RawJson, Role, Tool};
use steadfast_classify::ClassifyLayer;
use steadfast_client::{
    Credential, LlmClient, Provider, Providers,
    dialect::{Route, Wire, codec},
};
use steadfast_compact::CompactionLayer;
use steadfast_core::{Dialect, Failure, Reason};
use steadfast_sim::{Answer, ErrorKind, Fault, FaultPlan, Journal, SimProvider};
use support::*;
use tower::{Layer, Service};

/// A strict provider behind the layer, which takes it for one of a large window.
fn simulated(
    window: u64,
    faults: FaultPlan,
    journal: &Journal,
) -> impl Service<
    ChatRequest,
    Response = ChatResponse<impl Events + Unpin + Send + 'static>,
    Error = Failure,
    Future: Send,
> + Clone
+ Send
+ 'static {
    let sim = SimProvider::builder(Dialect::Anthropic)
        .with_models([steadfast_sim::Model::new(MODEL, window, 8_192)])
        .with_journal(journal)
        .with_faults(faults)
        .respond(|_| Some(Answer::text("ok")))
        .build();
    let provider = Provider::new(PROVIDER, Dialect::Anthropic)
        .with_credential(Credential::new("main", "sk-anything"));
    let client = LlmClient::with_service(Providers::new([provider]).unwrap(), sim);
    let layer = CompactionLayer::rules_only().with_targets(support::window(100_000));
    layer.layer(ClassifyLayer::default().layer(client))
}

fn first(kind: ErrorKind) -> FaultPlan {
    FaultPlan::first(1, Fault::Error(kind))
}

fn tools() -> Vec<Tool> {
    vec![Tool::function("read_file", "reads", RawJson::parse(r#"{"type":"object"}"#).unwrap())]
}

fn call(id: &str) -> Message {
    Message::new(Role::Assistant, vec![Part::tool_call(id, "read_file", "{}")])
}

/// Calls with results of so many characters, and a last question.
fn session_of_results(size: usize) -> Vec<Message> {
    let mut list = vec![Message::user("read them")];
    for number in 0..4 {
        let id = format!("c{number}");
        list.push(call(&id));
        list.push(Message::new(Role::User, vec![Part::tool_result(&id, "x".repeat(size))]));
    }
    list.push(Message::assistant("All are read."));
    list.push(Message::user("and now?"));
    list
}

/// A question about a picture.
fn picture(base64: &str) -> Vec<Message> {
    vec![Message::new(
        Role::User,
        vec![Part::text("what is this?"), Part::image("image/png", base64)],
    )]
}

/// A call that was never answered.
fn interrupted() -> Vec<Message> {
    vec![Message::user("read it"), call("c1"), Message::user("stop, do something else")]
}

#[tokio::test(start_paused = true)]
async fn what_can_be_repaired_is_sent_once_more_and_both_are_counted() {
    for (case, window, faults, list, sent) in [
        ("tokens", 6_000, FaultPlan::none(), talk(120, 20), "[Summary of"),
        (
            "bytes",
            1_000_000,
            first(ErrorKind::PayloadTooLarge),
            session_of_results(5_000),
            "[Old result removed to save space: 5,000 characters.",
        ),
        (
            "a broken image",
            1_000_000,
            FaultPlan::none(),
            picture("no base64"),
            "[image omitted: the provider refused it]",
        ),
        (
            "a broken transcript",
            1_000_000,
            FaultPlan::none(),
            interrupted(),
            "No result: the call was interrupted",
        ),
    ] {
        let journal = Journal::new();
        let service = simulated(window, faults, &journal);
        let context = session("s");
        let asked = request(list, context.clone()).with_tools(tools()).with_max_output(500);
        let answer =
            ask(&service, asked).await.unwrap_or_else(|failure| panic!("{case}: {failure}"));
        assert_eq!(answer.text(), "ok", "{case}");
        assert_eq!((journal.len(), answer.head.attempts), (2, 2), "{case}");
        let bodies = journal.entries().into_iter().map(|entry| entry.json.unwrap().to_string());
        let has_it: Vec<bool> = bodies.map(|body| body.contains(sent)).collect();
        assert_eq!(has_it, [false, true], "{case}");
        assert!(!context.log.is_empty(), "{case}: the recovery log says so");
    }
}

#[tokio::test(start_paused = true)]
async fn a_second_refusal_is_passed_on_as_it_is() {
    for (kind, list, reason, attempts) in [
        (ErrorKind::PayloadTooLarge, session_of_results(5_000), Reason::PayloadTooLarge, 2),
        (ErrorKind::Format, interrupted(), Reason::Format, 2),
        // Nothing is wrong with these.
        (ErrorKind::PayloadTooLarge, vec![Message::user("hi")], Reason::PayloadTooLarge, 1),
        (ErrorKind::Format, session_of_results(10), Reason::Format, 1),
        (ErrorKind::ContentFilter, session_of_results(5_000), Reason::ContentFilter, 1),
    ] {
        let journal = Journal::new();
        let service = simulated(1_000_000, FaultPlan::always(Fault::Error(kind)), &journal);
        let asked = request(list, session("s")).with_tools(tools()).with_max_output(500);
        let failure = ask(&service, asked).await.unwrap_err();
        assert_eq!((failure.reason(), journal.len()), (reason, attempts), "{failure}");
        assert_eq!(failure.attempts() as usize, attempts, "{failure}");
    }
}

#[tokio::test(start_paused = true)]
async fn no_attempts_are_made_beyond_those_that_are_left() {
    let journal = Journal::new();
    let service = simulated(1_000_000, first(ErrorKind::PayloadTooLarge), &journal);
    let mut context = session("s");
    context.max_attempts = std::num::NonZeroU32::new(1);
    let asked = request(session_of_results(5_000), context).with_tools(tools());
    let failure = ask(&service, asked.with_max_output(500)).await.unwrap_err();
    assert_eq!((failure.reason(), journal.len()), (Reason::PayloadTooLarge, 1));
}

#[tokio::test(start_paused = true)]
async fn what_is_too_large_without_results_and_media_is_compacted() {
    let journal = Journal::new();
    let service = simulated(1_000_000, first(ErrorKind::PayloadTooLarge), &journal);
    let asked = request(talk(120, 20), session("s")).with_max_output(500);
    let answer = ask(&service, asked).await.unwrap();
    assert_eq!((journal.len(), answer.head.attempts), (2, 2));
    assert_eq!(notice(&answer).reports.len(), 1);
    let sizes: Vec<_> = journal.entries().iter().map(|entry| entry.body.len()).collect();
    assert!(sizes[1] < sizes[0] * 9 / 10, "{sizes:?}");
}

#[tokio::test(start_paused = true)]
async fn a_compacted_request_keeps_its_notice_when_an_image_is_refused() {
    let model = Model::at_once(|number, _| match number {
        0 => Err(Failure::new(Reason::Format, "Could not process image")),
        _ => Ok(say("ok")),
    });
    let layer = CompactionLayer::rules_only().with_targets(window(8_192)).with_seed(7);
    let mut list = talk(120, 20);
    list.pop();
    list.extend(picture("AAAA"));
    let context = session("s");
    let asked = request(list.clone(), context.clone());
    let answer = ask(&stacked(&layer, &model), asked).await.unwrap();
    assert_eq!((model.calls(), answer.head.attempts), (2, 2));
    let compacted = notice(&answer).compacted.unwrap();
    assert_eq!(compacted.messages[..], model.last().messages[..], "as it was sent");
    let last = compacted.messages.len() - 1;
    assert_eq!(compacted.origin(last), None, "something in it became a marker");
    assert_eq!(compacted.origin(last - 1), Some(list.len() - 2));
    let found = layer.handle().snapshot();
    assert_eq!((found.counts.repaired, found.conversations[0].compactions), (1, 1));
    assert_eq!(found.conversations[0].throws, 0, "the compaction is not to blame");
    assert!(context.log.to_string().contains("compact.repaired"), "{}", context.log);
}

#[tokio::test(start_paused = true)]
async fn messages_that_a_compaction_does_not_touch_are_sent_as_they_came() {
    let mut messages = vec![json!({ "role": "user", "content": "Begin." })];
    for number in 0..80 {
        let answer = format!("answer {number}: {}", "all is well ".repeat(25));
        messages.push(json!({ "role": "assistant", "content": answer }));
        messages.push(json!({ "role": "user", "content": format!("question {number}") }));
    }
    messages.push(json!({ "role": "assistant", "content": [
        { "type": "tool_use", "id": "c1", "name": "read_file", "input": {} },
    ] }));
    messages.push(json!({ "role": "user", "content": [
        { "type": "tool_result", "tool_use_id": "c1", "content": "", "is_error": false },
    ] }));
    messages.push(json!({ "role": "assistant", "content": "It is empty." }));
    messages.push(json!({ "role": "user", "content": "and now?" }));
    let body = json!({
        "model": MODEL,
        "max_tokens": 500,
        "tools": [{ "name": "read_file", "input_schema": { "type": "object" } }],
        "messages": messages,
    });
    let codec = codec(Dialect::Anthropic);
    let body = body.to_string();
    let asked = codec.decode_request(&body.into(), Route::default()).unwrap();

    let model = Model::fine();
    let layer = CompactionLayer::rules_only().with_targets(window(8_192));
    let answer = ask(&stacked(&layer, &model), asked.with_context(session("s"))).await.unwrap();
    assert_eq!(notice(&answer).reports[0].repaired, 0);
    let sent = codec.encode_request(&model.last(), &Wire::default()).unwrap();
    let sent: Value = serde_json::from_slice(&sent).unwrap();
    let sent = sent["messages"].as_array().unwrap();
    assert!(sent.len() < messages.len());
    assert_eq!(sent[sent.len() - 4..], messages[messages.len() - 4..]);
}
