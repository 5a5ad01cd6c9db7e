//! What OpenAI's responses have and no other dialect: custom tools, numbered events, answers that fail.

use std::{convert::Infallible, future::ready, time::Duration};

use bytes::Bytes;
use http_body_util::Full;
use serde_json::{Value, json};
use steadfast_chat::{Delta, Event, Stop, StopReason};
use steadfast_client::{
    ClientBody, Credential, LlmClient, Provider, Providers,
    dialect::{Caller, StreamEncoder, codec},
};
use steadfast_core::{Dialect, Failure, Reason};
use tower::{ServiceExt, service_fn};

use crate::fixtures::{
    body, completion, decode, encode, frames, json as parse, stream, whole_stream, write_stream,
};

const PATCH: &str = r#"{"model":"gpt-5","stream":true,"input":[{"role":"user","content":"Edit it."},{"type":"custom_tool_call","id":"ctc_1","call_id":"call_1","name":"apply_patch","input":"*** Begin\n\"x\""},{"type":"custom_tool_call_output","call_id":"call_1","output":"Done."}],"tools":[{"type":"custom","name":"apply_patch","description":"Edits.","format":{"type":"grammar","syntax":"lark","definition":"start: x"}}]}"#;

#[test]
fn a_custom_tool_is_a_function_elsewhere_and_its_calls_come_back_as_texts() {
    let request = decode(Dialect::Responses, PATCH);
    let written = parse(&encode(Dialect::Anthropic, &request));
    let tool = &written["tools"][0];
    assert_eq!(tool["input_schema"]["required"], json!(["input"]));
    let about = tool["description"].as_str().unwrap();
    assert!(about.starts_with("Edits.") && about.ends_with("start: x"), "{about}");
    let call = &written["messages"][1]["content"][0];
    assert_eq!(call["input"], json!({"input": "*** Begin\n\"x\""}));

    let answer = [
        Event::new([
            Delta::Start { id: Some("msg_1".into()), model: None },
            Delta::ToolCall { index: 0, id: "toolu_1".into(), name: "apply_patch".into() },
            Delta::Arguments { index: 0, json: r#"{"input":"a"#.into() },
        ]),
        Event::new([
            Delta::Arguments { index: 0, json: "\\nb\"}".into() },
            Delta::BlockEnd { index: 0 },
            Delta::Stop(Stop::from(StopReason::ToolUse)),
            Delta::End,
        ]),
    ];
    let caller = Caller::of(&request);
    let mut encoder = StreamEncoder::new(Dialect::Responses, &caller, Dialect::Anthropic);
    let bytes = answer.iter().map(|event| encoder.encode(event).unwrap()).collect::<Vec<_>>();
    let text = String::from_utf8(bytes.concat()).unwrap();
    let events: Vec<Value> = frames(&text).iter().map(|frame| parse(frame)).collect();
    let done = events.iter().find(|event| event["type"] == "response.output_item.done").unwrap();
    assert_eq!(done["item"]["type"], "custom_tool_call");
    assert_eq!(done["item"]["input"], "a\nb");
    assert_eq!(done["item"]["call_id"], "toolu_1");
    let whole = codec(Dialect::Responses)
        .write_answer(&completion(Dialect::Anthropic, &answer), &caller)
        .unwrap();
    let whole = parse(std::str::from_utf8(&whole).unwrap());
    assert_eq!(whole["output"][0]["input"], "a\nb");
    // Read again, it is the same call.
    let again = completion(Dialect::Responses, &whole_stream(Dialect::Responses, &text));
    let call = again.tool_calls().next().unwrap();
    assert_eq!((&*call.name, &*call.arguments), ("apply_patch", r#"{"input":"a\nb"}"#));
}

/// Whatever an item is, a stream has it in both of its events.
#[test]
fn an_item_of_an_unknown_kind_is_added_and_done_as_it_is() {
    let item = r#"{"id":"ws_1","type":"web_search_call","status":"completed"}"#;
    let body = format!(
        r#"{{"id":"resp_1","object":"response","status":"completed","model":"m","output":[{item}]}}"#
    );
    let event = codec(Dialect::Responses).decode_answer(&body.into()).unwrap();
    let text = write_stream(Dialect::Responses, Dialect::Responses, &[Event::new(event.deltas)]);
    let items: Vec<Value> =
        frames(&text).iter().map(|frame| parse(frame)["item"].clone()).collect();
    let wanted = parse(item);
    assert_eq!(items.iter().filter(|found| **found == wanted).count(), 2, "{text}");
    assert_eq!(
        whole_stream(Dialect::Responses, &text).iter().filter(|event| event.is_end()).count(),
        1
    );
}

#[test]
fn a_message_of_nothing_is_one_still() {
    let asked = r#"{"model":"m","messages":[{"role":"assistant","tool_calls":[],"content":""}]}"#;
    let written = encode(Dialect::Responses, &decode(Dialect::OpenAi, asked));
    assert_eq!(decode(Dialect::Responses, &written).messages.len(), 1, "{written}");
}

#[test]
fn a_limit_below_the_least_is_the_least_where_another_dialect_asked() {
    let asked = r#"{"model":"gpt-4o","max_tokens":3,"messages":[{"role":"user","content":"x"}]}"#;
    let written = parse(&encode(Dialect::Responses, &decode(Dialect::OpenAi, asked)));
    assert_eq!(written["max_output_tokens"], 16);
    let own = r#"{"model":"gpt-4o","max_output_tokens":3,"input":"x"}"#;
    assert_eq!(encode(Dialect::Responses, &decode(Dialect::Responses, own)), own);
}

#[tokio::test]
async fn a_provider_of_two_dialects_is_asked_in_the_callers() {
    let provider = Provider::new("p", Dialect::OpenAi).with_also(Dialect::Responses);
    let provider = provider.with_credential(Credential::new("main", "sk-x"));
    for (from, path) in [
        (Dialect::OpenAi, "/v1/chat/completions"),
        (Dialect::Responses, "/v1/responses"),
        (Dialect::Anthropic, "/v1/chat/completions"),
    ] {
        let service = service_fn(move |request: http::Request<ClientBody>| {
            assert_eq!(request.uri().path(), path, "{from}");
            assert_eq!(request.headers()["authorization"], "Bearer sk-x");
            let own =
                if path.ends_with("responses") { Dialect::Responses } else { Dialect::OpenAi };
            let response = http::Response::builder().header("content-type", "application/json");
            let body = Full::new(Bytes::from(body(own)));
            ready(Ok::<_, Infallible>(response.body(body).unwrap()))
        });
        let client = LlmClient::with_service(Providers::new([provider.clone()]).unwrap(), service);
        let asked = match from {
            Dialect::Responses => r#"{"model":"gpt-x","input":"x"}"#,
            _ => r#"{"model":"gpt-x","max_tokens":99,"messages":[{"role":"user","content":"x"}]}"#,
        };
        let answer = client.oneshot(decode(from, asked)).await.unwrap().collect().await.unwrap();
        assert_eq!(answer.tool_calls().count(), 2, "{from}");
    }
}

/// The numbers of the events in a text.
fn numbers(text: &str) -> Vec<u64> {
    frames(text).iter().map(|frame| parse(frame)["sequence_number"].as_u64().unwrap()).collect()
}

#[test]
fn what_is_written_behind_a_providers_own_events_has_their_numbers_and_items() {
    let text = stream(Dialect::Responses);
    let events = whole_stream(Dialect::Responses, &text);
    let wanted: Vec<u64> = (0..events.len() as u64).collect();
    assert_eq!(numbers(&text), wanted);
    let caller = Caller::new("gpt-x", true);
    for cut in 1..events.len() {
        let mut encoder = StreamEncoder::new(Dialect::Responses, &caller, Dialect::Responses);
        let mut out = Vec::new();
        for (at, event) in events.iter().enumerate() {
            let mut event = event.clone();
            if at >= cut {
                // As a layer makes them that goes on with the answer.
                event.frame = None;
            }
            out.extend_from_slice(&encoder.encode(&event).unwrap());
        }
        let text = String::from_utf8(out).unwrap();
        let all = numbers(&text);
        assert_eq!(all, (0..all.len() as u64).collect::<Vec<_>>(), "cut at {cut}: {text}");
        let again = completion(Dialect::Responses, &whole_stream(Dialect::Responses, &text));
        let whole = completion(Dialect::Responses, &events);
        assert_eq!(again.text(), whole.text(), "cut at {cut}: {text}");
        assert_eq!(again.parts.len(), whole.parts.len(), "cut at {cut}: {text}");
        let last = parse(frames(&text).last().unwrap());
        assert_eq!(last["type"], "response.completed", "cut at {cut}");
        let kinds: Vec<&str> = last["response"]["output"]
            .as_array()
            .unwrap()
            .iter()
            .map(|item| item["type"].as_str().unwrap())
            .collect();
        assert_eq!(kinds, ["reasoning", "message", "function_call", "function_call"], "{cut}");
    }
}

#[test]
fn a_failure_is_the_end_of_the_answer_and_has_the_next_number() {
    let text = stream(Dialect::Responses);
    let events = whole_stream(Dialect::Responses, &text);
    let caller = Caller::new("gpt-x", true);
    for cut in 0..events.len() {
        let mut encoder = StreamEncoder::new(Dialect::Responses, &caller, Dialect::Responses);
        let mut out = Vec::new();
        for event in &events[..cut] {
            out.extend_from_slice(&encoder.encode(event).unwrap());
        }
        out.extend_from_slice(&encoder.report(&Failure::new(Reason::Overloaded, "too busy")));
        let text = String::from_utf8(out).unwrap();
        let all = numbers(&text);
        assert_eq!(all, (0..all.len() as u64).collect::<Vec<_>>(), "cut at {cut}: {text}");
        let last = parse(frames(&text).last().unwrap());
        assert_eq!(last["type"], "response.failed");
        assert_eq!(last["response"]["status"], "failed");
        assert_eq!(last["response"]["error"]["code"], "server_is_overloaded");
        assert_eq!(
            last["response"]["id"],
            if cut == 0 { last["response"]["id"].clone() } else { json!("resp_1") }
        );
    }
}

/// What Codex acts on, which sees no header of a stream.
#[test]
fn a_failed_stream_says_how_long_to_wait_and_whether_to_come_back() {
    let report = |failure: &Failure| {
        let caller = Caller::new("gpt-x", true);
        let mut encoder = StreamEncoder::new(Dialect::Responses, &caller, Dialect::Anthropic);
        let text = encoder.report(failure);
        let text = std::str::from_utf8(&text).unwrap();
        parse(frames(text).last().unwrap())["response"]["error"].clone()
    };
    let limited = Failure::new(Reason::RateLimit, "slow down");
    let error = report(&limited.with_retry_after(Some(Duration::from_millis(1_500))));
    assert_eq!(error["code"], "rate_limit_exceeded");
    assert!(error["message"].as_str().unwrap().ends_with("Please try again in 1.500s."), "{error}");
    for (reason, code) in [
        (Reason::ContextOverflow, "context_length_exceeded"),
        (Reason::SpendCap, "insufficient_quota"),
        (Reason::Overloaded, "server_is_overloaded"),
        (Reason::Safety, "invalid_prompt"),
        (Reason::Network, "network"),
    ] {
        assert_eq!(report(&Failure::new(reason, "no"))["code"], code, "{reason}");
    }
}

#[test]
fn an_answer_that_was_cut_is_incomplete_in_both_directions() {
    let body = r#"{"id":"resp_1","object":"response","status":"incomplete","incomplete_details":{"reason":"max_output_tokens"},"model":"m","output":[{"type":"message","id":"m","status":"incomplete","role":"assistant","content":[{"type":"output_text","text":"hal"}]}],"usage":{"input_tokens":1,"output_tokens":2}}"#;
    let event = codec(Dialect::Responses).decode_answer(&body.into()).unwrap();
    assert_eq!(event.stop_reason(), Some(StopReason::MaxTokens));
    let from = Dialect::Anthropic;
    let cut =
        stream(from).replace("\"tool_use\",\"stop_sequence\"", "\"max_tokens\",\"stop_sequence\"");
    let written = write_stream(from, Dialect::Responses, &whole_stream(from, &cut));
    let last = parse(frames(&written).last().unwrap());
    assert_eq!(last["type"], "response.incomplete");
    assert_eq!(last["response"]["incomplete_details"]["reason"], "max_output_tokens");
    for (body, reason) in [
        (
            r#"{"id":"r","status":"failed","error":{"code":"rate_limit_exceeded","message":"Please try again in 2s"},"output":[]}"#,
            "rate_limit_exceeded",
        ),
        (r#"{"id":"r","status":"in_progress","output":[]}"#, "status of an end"),
        (r#"{"id":"r","status":"completed"}"#, "output"),
    ] {
        let failure = codec(Dialect::Responses).decode_answer(&body.into()).unwrap_err();
        let body =
            failure.upstream().map(|upstream| String::from_utf8_lossy(&upstream.body).into_owned());
        assert!(
            failure.message().contains(reason) || body.is_some_and(|body| body.contains(reason)),
            "{failure}"
        );
    }
}

#[test]
fn tools_in_a_namespace_are_tools_by_themselves_elsewhere_and_come_back_in_it() {
    let body = json!({
        "model": "m",
        "input": [
            {"role": "user", "content": "go"},
            {"type": "function_call", "call_id": "c1", "namespace": "crm", "name": "get", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c1", "output": "x"},
        ],
        "tools": [
            {"type": "function", "name": "plain", "parameters": {"type": "object"}, "strict": false},
            {"type": "namespace", "name": "crm", "description": "Customers.", "tools": [
                {"type": "function", "name": "get", "description": "Gets.", "parameters": {"type": "object"}, "strict": false},
                {"type": "custom", "name": "query"},
            ]},
        ],
    });
    let request = decode(Dialect::Responses, &body.to_string());
    let names: Vec<_> = request.tools.iter().filter_map(|tool| tool.name()).collect();
    assert_eq!(names, ["plain", "crm__get", "crm__query"]);
    assert_eq!(request.messages[1].tool_calls().next().unwrap().name, "crm__get");
    let chat = parse(&encode(Dialect::OpenAi, &request));
    assert_eq!(chat["tools"][1]["function"]["name"], "crm__get");
    assert_eq!(chat["tools"][1]["function"]["description"], "Customers.\n\nGets.");
    assert_eq!(chat["messages"][1]["tool_calls"][0]["function"]["name"], "crm__get");

    // Changed, and written anew in its own dialect.
    let mut changed = request.clone();
    changed.messages.make_mut()[1].parts_mut();
    changed.tools.make_mut().remove(0);
    let own = parse(&encode(Dialect::Responses, &changed));
    assert_eq!(own["input"][1], body["input"][1]);
    let tools = own["tools"].as_array().unwrap();
    assert_eq!((tools.len(), &tools[0]["name"]), (1, &json!("crm")), "{own}");
    assert_eq!(tools[0]["description"], "Customers.");
    assert_eq!(tools[0]["tools"][0]["name"], "get");
    assert_eq!(tools[0]["tools"][1], json!({"type": "custom", "name": "query"}));

    // Calls of another vendor's model.
    let caller = Caller::of(&request);
    let events = [
        Delta::ToolCall { index: 0, id: "c2".into(), name: "crm__get".into() },
        Delta::Arguments { index: 0, json: "{}".into() },
        Delta::BlockEnd { index: 0 },
        Delta::ToolCall { index: 1, id: "c3".into(), name: "crm__query".into() },
        Delta::Arguments { index: 1, json: r#"{"input":"all"}"#.into() },
        Delta::BlockEnd { index: 1 },
        Delta::ToolCall { index: 2, id: "c4".into(), name: "plain".into() },
        Delta::BlockEnd { index: 2 },
        Delta::Stop(Stop::from(StopReason::ToolUse)),
        Delta::End,
    ];
    let answer = completion(Dialect::Anthropic, &[Event::new(events)]);
    let whole = codec(Dialect::Responses).write_answer(&answer, &caller).unwrap();
    let whole = parse(std::str::from_utf8(&whole).unwrap());
    let made: Vec<_> = whole["output"]
        .as_array()
        .unwrap()
        .iter()
        .map(|item| (item["type"].clone(), item["namespace"].clone(), item["name"].clone()))
        .collect();
    assert_eq!(
        made,
        [
            (json!("function_call"), json!("crm"), json!("get")),
            (json!("custom_tool_call"), json!("crm"), json!("query")),
            (json!("function_call"), Value::Null, json!("plain")),
        ]
    );
    let body = whole.to_string().into();
    let read = codec(Dialect::Responses).decode_answer(&body).unwrap();
    assert!(
        read.deltas.iter().any(|delta| matches!(
            delta, Delta::ToolCall { name, .. } if name == "crm__get"
        )),
        "read again it is the same tool"
    );
}
