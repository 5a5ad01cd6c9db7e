//! The exact bytes of messages.

#![allow(clippy::unwrap_used, clippy::needless_pass_by_value)]

mod common;

use common::{events, post, question};
use serde_json::{Value, json};
use steadfast_sim::{Answer, Block, Dialect, SimProvider, Stop, Usage};

fn provider(answer: Answer) -> SimProvider {
    SimProvider::builder(Dialect::Anthropic).with_script([answer]).build()
}

fn usage(input: u64, output: u64) -> Value {
    json!({
        "input_tokens": input, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 0,
        "cache_creation": {"ephemeral_5m_input_tokens": 0, "ephemeral_1h_input_tokens": 0},
        "output_tokens": output, "service_tier": "standard",
    })
}

#[tokio::test]
async fn a_whole_answer() {
    let odd = r#"{ "b":1.0, "a" : [1e5] }"#;
    let answer = Answer::thinking("hm")
        .then_text("Hi there")
        .then_tool_call("read", odd)
        .extra("x_new", true);
    let provider = provider(answer);
    let read = post(&provider, &question(Dialect::Anthropic, "hello", false)).await;
    assert_eq!(read.header("content-type"), Some("application/json"));
    assert!(read.header("request-id").unwrap().starts_with("req_011C"));
    let sent = provider.journal().last().unwrap().sent.unwrap();
    let body = read.json();
    let id = body["id"].as_str().unwrap();
    assert!(id.starts_with("msg_01") && id.len() == 28, "{id}");
    let call = &sent.tool_calls[0];
    assert!(call.id.starts_with("toolu_01") && call.id.len() == 30, "{}", call.id);
    assert_eq!(call.arguments, odd);
    let expected = json!({
        "model": "claude-sonnet-4-5", "id": id, "type": "message", "role": "assistant",
        "content": [
            {"type": "thinking", "thinking": "hm", "signature": sent.signatures[0]},
            {"type": "text", "text": "Hi there"},
            {"type": "tool_use", "id": call.id, "name": "read", "input": "RAW"},
        ],
        "stop_reason": "tool_use", "stop_sequence": null,
        // In pieces: `hm`; `Hi`, ` there`; `{`, ` "b":1.0`, `,`, ` "a"`, ` :`, ` [1e5]`, ` }`.
        "usage": usage(6, 1 + 2 + 7),
        "x_new": true,
    });
    assert_eq!(read.text(), expected.to_string().replace("\"RAW\"", odd));
}

#[tokio::test]
async fn a_stream_event_by_event() {
    let answer = Answer::thinking("so so")
        .then(Block::RedactedThinking("secret".into()))
        .then_text("Hi 日本")
        .then_tool_call("read", r#"{"path":"a.txt"}"#);
    let provider = provider(answer);
    let read = post(&provider, &question(Dialect::Anthropic, "hello", true)).await;
    assert_eq!(read.header("content-type"), Some("text/event-stream; charset=utf-8"));
    let sent = provider.journal().last().unwrap().sent.unwrap();
    let id = events(&read.text())[0]["message"]["id"].clone();
    let event =
        |data: Value| format!("event: {}\ndata: {data}\n\n", data["type"].as_str().unwrap());
    let start = |index: usize, block: Value| {
        event(json!({"type": "content_block_start", "index": index, "content_block": block}))
    };
    let delta = |index: usize, delta: Value| {
        event(json!({"type": "content_block_delta", "index": index, "delta": delta}))
    };
    let stop = |index: usize| event(json!({"type": "content_block_stop", "index": index}));
    let json_delta =
        |text: &str| delta(3, json!({"type": "input_json_delta", "partial_json": text}));
    let expected = [
        event(json!({"type": "message_start", "message": {
            "model": "claude-sonnet-4-5", "id": id, "type": "message", "role": "assistant",
            "content": [], "stop_reason": null, "stop_sequence": null, "usage": usage(6, 1),
        }})),
        start(0, json!({"type": "thinking", "thinking": "", "signature": ""})),
        event(json!({"type": "ping"})),
        delta(0, json!({"type": "thinking_delta", "thinking": "so"})),
        delta(0, json!({"type": "thinking_delta", "thinking": " so"})),
        delta(0, json!({"type": "signature_delta", "signature": sent.signatures[0]})),
        stop(0),
        start(1, json!({"type": "redacted_thinking", "data": sent.signatures[1]})),
        stop(1),
        start(2, json!({"type": "text", "text": ""})),
        delta(2, json!({"type": "text_delta", "text": "Hi"})),
        delta(2, json!({"type": "text_delta", "text": " 日本"})),
        stop(2),
        start(
            3,
            json!({
                "type": "tool_use", "id": sent.tool_calls[0].id, "name": "read", "input": {},
            }),
        ),
        json_delta(""),
        json_delta("{\"path\":"),
        json_delta("\"a.txt\"}"),
        stop(3),
        event(json!({
            "type": "message_delta",
            "delta": {"stop_reason": "tool_use", "stop_sequence": null},
            "usage": {
                "input_tokens": 6, "cache_creation_input_tokens": 0,
                "cache_read_input_tokens": 0, "output_tokens": 7,
            },
        })),
        event(json!({"type": "message_stop"})),
    ];
    let chunks: Vec<&str> =
        read.chunks.iter().map(|chunk| std::str::from_utf8(chunk).unwrap()).collect();
    assert_eq!(chunks, expected);
}

#[tokio::test]
async fn unknown_fields_are_in_every_event_and_in_the_message() {
    let provider = provider(Answer::text("a b").extra("x_new", 7));
    let read = post(&provider, &question(Dialect::Anthropic, "x", true)).await;
    let events = events(&read.text());
    assert!(events.iter().all(|event| event["x_new"] == 7));
    assert_eq!(events[0]["message"]["x_new"], 7);
}

#[tokio::test]
async fn stop_reasons_and_fixed_usage() {
    let fixed = Usage { input: 10, output: 20, cache_read: 5, cache_write: 3, reasoning: 0 };
    for (stop, word, sequence) in [
        (Stop::EndTurn, "end_turn", Value::Null),
        (Stop::ToolUse, "tool_use", Value::Null),
        (Stop::MaxTokens, "max_tokens", Value::Null),
        (Stop::StopSequence("END".into()), "stop_sequence", json!("END")),
        (Stop::Refusal, "refusal", Value::Null),
        (Stop::Raw("pause_turn".into()), "pause_turn", Value::Null),
    ] {
        let provider = provider(Answer::text("a").stop(stop).usage(fixed));
        let body = post(&provider, &question(Dialect::Anthropic, "x", false)).await.json();
        assert_eq!(body["stop_reason"], word);
        assert_eq!(body["stop_sequence"], sequence);
        assert_eq!(body["usage"]["input_tokens"], 10);
        assert_eq!(body["usage"]["cache_read_input_tokens"], 5);
        assert_eq!(body["usage"]["cache_creation_input_tokens"], 3);
        assert_eq!(body["usage"]["output_tokens"], 20);
    }
}
