//! A stop as the callers of each dialect receive it: the text, a regular end, or the error event.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

mod support;

use std::time::Duration;

use serde_json::Value;
use steadfast_chat::{ChatRequest, ChatResponse, Completion, Delta, Event, Head, StopReason};
use steadfast_client::dialect::{Caller, StreamDecoder, StreamEncoder, codec};
use steadfast_core::{CallContext, Dialect, Failure, Reason, Retry, Usage};
use steadfast_guard::{GuardPolicy, SafetyGuardHandle, StopAs};
use support::*;
use tokio_stream::StreamExt;
use tower::{Layer, ServiceExt, service_fn};

/// Where the task is stopped.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Case {
    /// Before the model is called.
    Request,
    /// In the text of an answer, which repeats itself.
    Repeats,
    /// In the thinking of an answer, by the limit of time.
    Late,
    /// At its first call, beyond the limit.
    Call,
    /// At its second call, beyond the limit: the first is made.
    SecondCall,
    /// At its edit of a file, when the file is known.
    Edit,
}

const CASES: [Case; 6] =
    [Case::Request, Case::Repeats, Case::Late, Case::Call, Case::SecondCall, Case::Edit];

const SENTENCE: &str = "I will now look at the file again. ";

impl Case {
    /// The history of the task.
    fn request(self) -> ChatRequest {
        let rounds = match self {
            Case::Request => vec![tool_run("read_file", r#"{"path":"a"}"#, "unchanged"); 5],
            Case::Repeats | Case::Late => Vec::new(),
            Case::Call | Case::SecondCall => {
                let many = if self == Case::Call { 3 } else { 2 };
                let delete =
                    |at| tool_run("delete_file", &format!(r#"{{"path":"f{at}"}}"#), "it is gone");
                (0..many).map(delete).collect()
            }
            Case::Edit => {
                let edit = |at| {
                    tool_run("edit_file", &format!(r#"{{"path":"a","n":{at}}}"#), "it is edited")
                };
                (0..4).map(edit).collect()
            }
        };
        let mut request = request(&one_by_one(rounds)).with_model("m");
        if self == Case::Late {
            request.context = CallContext::new().with_task(TASK);
        }
        request
    }

    /// The model's answer.
    fn answer(self) -> Vec<Delta> {
        let mut all = vec![start(), Delta::Usage(Usage::new(10, 1))];
        let calls: &[_] = match self {
            Case::Request | Case::Repeats => {
                all.extend((0..20).map(|_| text(0, SENTENCE)));
                &[]
            }
            Case::Late => {
                all.extend((0..9).map(|_| Delta::Thinking { index: 0, text: "hm, ".into() }));
                &[]
            }
            Case::Call => &[("delete_file", r#"{"path":"x"}"#)],
            Case::SecondCall => {
                &[("delete_file", r#"{"path":"x"}"#), ("delete_file", r#"{"path":"y"}"#)]
            }
            Case::Edit => &[("edit_file", r#"{"path":"./a","n":9}"#)],
        };
        if !calls.is_empty() {
            all.extend([text(0, "Now then."), Delta::BlockEnd { index: 0 }]);
        }
        for (index, (name, arguments)) in (1_u32..).zip(calls) {
            all.push(Delta::ToolCall { index, id: format!("call_{index}"), name: (*name).into() });
            all.push(Delta::Arguments { index, json: (*arguments).into() });
            all.push(Delta::BlockEnd { index });
        }
        if calls.is_empty() {
            all.push(Delta::BlockEnd { index: 0 });
        }
        all.push(Delta::Usage(Usage::new(10, 30)));
        all.extend(end(if calls.is_empty() { StopReason::EndTurn } else { StopReason::ToolUse }));
        all
    }

    /// The message of the stop.
    fn message(self) -> String {
        let (what, counts, key) = match self {
            Case::Request => (
                "the agent goes in circles: the same call of `read_file` returned the same result 5 \
                 times",
                "Events processed: 15 | Tool calls: 5",
                "`guard.loops.same_result`",
            ),
            Case::Repeats => (
                "the answer goes in circles: the same text came 10 times",
                "Events processed: 1 | Tool calls: 0",
                "`guard.loops.repeated_text`",
            ),
            Case::Late => (
                "the task has used its time of 10m 0s",
                "Events processed: 1 | Tool calls: 0 | Elapsed: 13m 20s",
                "`guard.time_s`",
            ),
            Case::Call => (
                "the task has used its 3 calls of `delete_file`",
                "Events processed: 10 | Tool calls: 3",
                "the `limit` of `delete_file` in `guard.tools`",
            ),
            Case::SecondCall => (
                "the task has used its 3 calls of `delete_file`",
                "Events processed: 8 | Tool calls: 3",
                "the `limit` of `delete_file` in `guard.tools`",
            ),
            Case::Edit => (
                "the task has used its 4 edits of `a`",
                "Events processed: 14 | Tool calls: 5",
                "`guard.edits_per_file`",
            ),
        };
        format!(
            "Safety limit reached: {what}.\n{counts}\nPlease review the work so far before going on; \
             an operator can raise {key}."
        )
    }

    /// Calls of the answer that are let through.
    fn passed(self) -> usize {
        usize::from(self == Case::SecondCall)
    }
}

/// The events of the model's answer as a provider of `dialect` streams them: each with its frame.
fn provider(dialect: Dialect, deltas: Vec<Delta>) -> Vec<Event> {
    let mut request = ChatRequest::user("go").with_model("m");
    request.params.stream_usage = Some(true);
    let mut encoder = StreamEncoder::new(dialect, &Caller::of(&request), dialect);
    let mut decoder = StreamDecoder::new(dialect);
    for delta in deltas {
        decoder.push(encoder.encode(&Event::new([delta])).unwrap());
    }
    std::iter::from_fn(|| decoder.next_event().or_else(|| decoder.finish()))
        .map(Result::unwrap)
        .collect()
}

type Reply = Result<(Head, Vec<Result<Event, Failure>>), Failure>;

/// What the guard returns.
async fn ask(case: Case, stop_as: StopAs, source: Dialect, stream: bool) -> Reply {
    let mut policy = GuardPolicy::codebuddy();
    policy.stop_as = stop_as;
    let guard = SafetyGuardHandle::new(policy).unwrap();
    let shown = match stream {
        true => provider(source, case.answer()),
        false => vec![Event::new(case.answer())],
    };
    let model = service_fn(move |_: ChatRequest| {
        let shown = shown.clone();
        async move {
            let mut head = Head::new(source);
            head.stream = stream;
            let events = tokio_stream::iter(shown).then(move |event| async move {
                // Dialects differ in what they have around the content.
                if case == Case::Late && !event.deltas.is_empty() {
                    tokio::time::sleep(Duration::from_secs(200)).await;
                }
                Ok::<_, Failure>(event)
            });
            Ok::<_, Failure>(ChatResponse::new(head, Box::pin(events)))
        }
    });
    let mut request = case.request();
    request.stream = stream;
    let reply = guard.layer().layer(model).oneshot(request).await?;
    let (head, mut events) = reply.into_parts();
    let mut all = Vec::new();
    while let Some(event) = events.next().await {
        all.push(event);
    }
    Ok((head, all))
}

/// The data of each frame of a stream, with its event's name where it has one.
fn frames(bytes: &[u8]) -> Vec<(Option<String>, String)> {
    let text = std::str::from_utf8(bytes).unwrap().replace("\r\n", "\n");
    assert!(text.ends_with("\n\n"), "the last frame is complete: {text:?}");
    let frame = |frame: &str| {
        let field = |name: &str| {
            let mut lines = frame.lines().filter_map(|line| line.strip_prefix(name));
            lines.next().map(|value| value.trim().to_owned())
        };
        field("data:").map(|data| (field("event:"), data))
    };
    text.split("\n\n").filter_map(frame).collect()
}

fn json(data: &str) -> Value {
    serde_json::from_str(data).unwrap_or_else(|error| panic!("{error}: {data}"))
}

/// Asserts that a stream has exactly one end, as its dialect requires, for `reason`.
fn ends_well(dialect: Dialect, bytes: &[u8], reason: StopReason, case: &str) {
    let tools = reason == StopReason::ToolUse;
    let mut frames = frames(bytes);
    match dialect {
        Dialect::Anthropic => {
            let names: Vec<_> = frames.iter().map(|(name, _)| name.clone().unwrap()).collect();
            let count = |wanted: &str| names.iter().filter(|name| *name == wanted).count();
            for (_, data) in &frames {
                assert!(json(data)["type"].is_string());
            }
            assert_eq!(names[0], "message_start", "{case}");
            assert_eq!(names[names.len() - 2..], ["message_delta", "message_stop"], "{case}");
            for once in ["message_start", "message_delta", "message_stop"] {
                assert_eq!(count(once), 1, "{case}: {names:?}");
            }
            let mut open = None;
            let mut next = 0;
            for (name, data) in &frames {
                let index = json(data)["index"].as_u64();
                match name.as_deref().unwrap() {
                    "content_block_start" => {
                        assert_eq!((open, index), (None, Some(next)), "{case}: {names:?}");
                        (open, next) = (index, next + 1);
                    }
                    "content_block_delta" => assert_eq!(index, open, "{case}: {names:?}"),
                    "content_block_stop" => assert_eq!(index, open.take(), "{case}: {names:?}"),
                    _ => {}
                }
            }
            assert_eq!(open, None, "{case}: every block is ended");
            let delta = json(&frames[frames.len() - 2].1);
            let wanted = if tools { "tool_use" } else { "end_turn" };
            assert_eq!(delta["delta"]["stop_reason"], wanted, "{case}");
            assert!(delta["usage"]["output_tokens"].is_u64(), "{case}: {delta}");
        }
        Dialect::Gemini => {
            let chunks: Vec<_> = frames.iter().map(|(_, data)| json(data)).collect();
            let reasons: Vec<_> =
                chunks.iter().map(|chunk| &chunk["candidates"][0]["finishReason"]).collect();
            assert_eq!(*reasons[reasons.len() - 1], "STOP", "{case}: {reasons:?}");
            assert_eq!(reasons.iter().filter(|reason| !reason.is_null()).count(), 1, "{case}");
        }
        Dialect::Responses => {
            let events: Vec<_> = frames.iter().map(|(_, data)| json(data)).collect();
            let ends = events.iter().filter(|event| event["response"]["usage"].is_object());
            assert_eq!(ends.count(), 1, "{case}");
            let last = events.last().unwrap();
            assert_eq!(last["type"], "response.completed", "{case}");
            let output = last["response"]["output"].as_array().unwrap();
            assert_eq!(output.iter().any(|item| item["type"] == "function_call"), tools, "{case}");
            let numbers = events.iter().map(|event| event["sequence_number"].as_u64());
            assert!(numbers.eq((0..events.len() as u64).map(Some)), "{case}");
        }
        Dialect::OpenAi => {
            assert_eq!(frames.pop().unwrap().1, "[DONE]", "{case}");
            let chunks: Vec<_> = frames.iter().map(|(_, data)| json(data)).collect();
            assert!(chunks.iter().all(|chunk| chunk["object"] == "chat.completion.chunk"));
            let reasons: Vec<_> =
                chunks.iter().map(|chunk| &chunk["choices"][0]["finish_reason"]).collect();
            let shown: Vec<_> = reasons.iter().filter(|reason| !reason.is_null()).collect();
            assert_eq!(shown.len(), 1, "{case}: {reasons:?}");
            assert_eq!(**shown[0], if tools { "tool_calls" } else { "stop" }, "{case}");
        }
    }
}

fn all() -> impl Iterator<Item = (Case, Dialect, Dialect)> {
    let pairs = || Dialect::ALL.into_iter().flat_map(|one| Dialect::ALL.map(|other| (one, other)));
    CASES.into_iter().flat_map(move |case| pairs().map(move |(one, other)| (case, one, other)))
}

#[tokio::test(start_paused = true)]
async fn a_stop_that_answers_ends_the_stream_as_the_dialect_does() {
    for (case, source, dialect) in all() {
        let name = format!("{case:?} from {source} for {dialect}");
        let (head, events) = ask(case, StopAs::Answer, source, true).await.unwrap();
        let caller = Caller::of(&case.request());
        let mut encoder = StreamEncoder::new(dialect, &caller, head.dialect);
        let mut bytes = Vec::new();
        for event in &events {
            bytes.extend(encoder.encode(event.as_ref().unwrap()).unwrap());
        }
        let reason = if case.passed() > 0 { StopReason::ToolUse } else { StopReason::EndTurn };
        ends_well(dialect, &bytes, reason, &name);
        // A decoder of the dialect reads an answer with the message.
        let mut decoder = StreamDecoder::new(dialect);
        decoder.push(bytes.into());
        let mut answer = Completion::new(Head::new(dialect));
        while let Some(event) = decoder.next_event().or_else(|| decoder.finish()) {
            answer.push(&event.unwrap());
        }
        assert!(answer.ended, "{name}");
        assert!(answer.text().ends_with(&case.message()), "{name}: {}", answer.text());
        assert_eq!(answer.tool_calls().count(), case.passed(), "{name}");
        let before = answer.text().len() - case.message().len();
        match case {
            Case::Request | Case::Late => assert_eq!(before, 0, "{name}: no other text"),
            Case::Repeats => {
                assert_eq!(answer.text()[..before].trim_end(), SENTENCE.repeat(10).trim_end());
            }
            _ => assert_eq!(answer.text()[..before].trim_end(), "Now then.", "{name}"),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_stop_that_answers_is_a_complete_answer_without_streaming() {
    for (case, source, dialect) in all() {
        let name = format!("{case:?} from {source} for {dialect}");
        let (head, events) = ask(case, StopAs::Answer, source, false).await.unwrap();
        assert_eq!(events.len(), 1, "{name}: in one piece");
        let mut answer = Completion::new(head);
        answer.push(events[0].as_ref().unwrap());
        if case == Case::Late {
            // It came in one piece, and so in time.
            assert_eq!((answer.ended, answer.text().as_str()), (true, ""), "{name}");
            continue;
        }
        let body = codec(dialect).encode_answer(&answer, &Caller::of(&case.request())).unwrap();
        let body = json(std::str::from_utf8(&body).unwrap());
        let tools = case.passed() > 0;
        let (reason, wanted) = match dialect {
            Dialect::Anthropic => {
                (&body["stop_reason"], if tools { "tool_use" } else { "end_turn" })
            }
            Dialect::Gemini => (&body["candidates"][0]["finishReason"], "STOP"),
            Dialect::Responses => (&body["status"], "completed"),
            Dialect::OpenAi => {
                let wanted = if tools { "tool_calls" } else { "stop" };
                (&body["choices"][0]["finish_reason"], wanted)
            }
        };
        assert_eq!(reason, wanted, "{name}");
        assert!(body.to_string().contains("Please review the work so far"), "{name}: {body}");
        assert!(answer.text().ends_with(&case.message()), "{name}: {}", answer.text());
    }
}

#[tokio::test(start_paused = true)]
async fn a_stop_that_fails_is_an_error_of_the_dialect() {
    for (case, source, dialect) in all() {
        let name = format!("{case:?} from {source} for {dialect}");
        let one_line = case.message().replace('\n', " ");
        let codec = codec(dialect);
        let (head, events) = match ask(case, StopAs::Failure, source, true).await {
            Ok(reply) => reply,
            Err(failure) => {
                assert_eq!(case, Case::Request);
                let (_, headers, body) = codec.encode_error(&failure, None);
                assert_eq!(headers["x-should-retry"], "false", "{name}: no SDK retries it");
                let body = json(std::str::from_utf8(&body).unwrap());
                assert!(
                    body["error"]["message"].as_str().unwrap().starts_with(&one_line),
                    "{body}"
                );
                continue;
            }
        };
        let caller = Caller::of(&case.request());
        let mut encoder = StreamEncoder::new(dialect, &caller, head.dialect);
        let (mut bytes, mut failures) = (Vec::new(), Vec::new());
        for event in events {
            assert!(failures.is_empty(), "{name}: nothing comes after it");
            match event {
                Ok(event) => bytes.extend(encoder.encode(&event).unwrap()),
                Err(failure) => {
                    bytes.extend(encoder.report(&failure));
                    failures.push(failure);
                }
            }
        }
        // One call was let through: the answer has it, and the reason why the other is missing.
        if case.passed() > 0 {
            assert!(failures.is_empty(), "{name}");
            ends_well(dialect, &bytes, StopReason::ToolUse, &name);
            continue;
        }
        let [failure] = &failures[..] else { panic!("{name}: {failures:?}") };
        assert_eq!((failure.reason(), failure.retry()), (Reason::Safety, Retry::Forbidden));
        assert!(failure.is_delivered(), "{name}: content had been delivered");
        let all = frames(&bytes);
        let (event, data) = all.last().unwrap();
        let error = json(data);
        let of_error = match dialect {
            Dialect::Responses => &error["response"],
            _ => &error,
        };
        let message = of_error["error"]["message"].as_str().unwrap();
        assert!(message.contains(&one_line), "{name}: {error}");
        if dialect == Dialect::Responses {
            assert_eq!(
                of_error["error"]["code"], "invalid_prompt",
                "{name}: Codex asks again after others"
            );
        }
        if dialect == Dialect::Anthropic {
            assert_eq!(event.as_deref(), Some("error"), "{name}");
            assert_eq!(error["type"], "error", "{name}");
        }
        // There is no regular end before it.
        let before = &all[..all.len() - 1];
        let ends = ["response.completed", "response.incomplete"];
        let signs = ["[DONE]", "message_stop", "finishReason\":\"", "finish_reason\":\""];
        for sign in signs.into_iter().chain(ends) {
            assert!(!before.iter().any(|(_, data)| data.contains(sign)), "{name}: {before:?}");
        }
        let mut decoder = StreamDecoder::new(dialect);
        decoder.push(bytes.into());
        let mut read = Vec::new();
        while let Some(event) = decoder.next_event().or_else(|| decoder.finish()) {
            read.push(event);
        }
        assert_eq!(read.iter().filter(|event| event.is_err()).count(), 1, "{name}");
        assert!(read.last().unwrap().is_err(), "{name}");
    }
}
