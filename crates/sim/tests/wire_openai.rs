//! The exact bytes of chat completions.

#![allow(clippy::unwrap_used, clippy::needless_pass_by_value)]

mod common;

use common::{events, post, question};
use serde_json::{Value, json};
use steadfast_sim::{Answer, Block, Dialect, SimProvider, Stop, Usage};

fn provider(answer: Answer) -> SimProvider {
    SimProvider::builder(Dialect::OpenAi).with_script([answer]).build()
}

fn usage(prompt: u64, completion: u64) -> Value {
    json!({
        "prompt_tokens": prompt, "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": 0, "audio_tokens": 0},
        "completion_tokens_details": {
            "reasoning_tokens": 0, "audio_tokens": 0,
            "accepted_prediction_tokens": 0, "rejected_prediction_tokens": 0,
        },
    })
}

#[tokio::test]
async fn a_whole_answer() {
    let provider = provider(Answer::text("Hi there").extra("x_new", json!({"a": 1})));
    let read = post(&provider, &question(Dialect::OpenAi, "hello", false)).await;
    assert_eq!(read.status, 200);
    assert_eq!(read.header("content-type"), Some("application/json"));
    assert!(read.header("x-request-id").unwrap().starts_with("req_"));
    let body = read.json();
    let id = body["id"].as_str().unwrap();
    assert!(id.starts_with("chatcmpl-") && id.len() == 9 + 29, "{id}");
    let print = body["system_fingerprint"].as_str().unwrap();
    assert!(print.starts_with("fp_") && print.len() == 13, "{print}");
    let expected = json!({
        "id": id, "object": "chat.completion", "created": 1_760_000_001, "model": "gpt-4o",
        "choices": [{
            "index": 0,
            "message": {
                "role": "assistant", "content": "Hi there", "refusal": null, "annotations": [],
            },
            "logprobs": null, "finish_reason": "stop",
        }],
        // "hello" is 2 tokens and its message 4; "Hi there" streams in 2 pieces.
        "usage": usage(6, 2),
        "service_tier": "default", "system_fingerprint": print,
        "x_new": {"a": 1},
    });
    assert_eq!(read.text(), expected.to_string());
}

#[tokio::test]
async fn whole_tool_calls_keep_the_bytes_of_their_arguments() {
    let odd = "{ \"path\" : \"a\\u0062\",\n \"n\": 1.0e2 }";
    let answer = Answer::tool_call("read", odd).then(Block::ToolCall {
        id: Some("call_mine".into()),
        name: "stop".into(),
        arguments: String::new(),
    });
    let read = post(&provider(answer), &question(Dialect::OpenAi, "x", false)).await;
    let body = read.json();
    let message = &body["choices"][0]["message"];
    let first = message["tool_calls"][0]["id"].as_str().unwrap();
    assert!(first.starts_with("call_") && first.len() == 29, "{first}");
    assert_eq!(message["content"], Value::Null);
    assert_eq!(
        message["tool_calls"],
        json!([
            {"id": first, "type": "function", "function": {"name": "read", "arguments": odd}},
            {"id": "call_mine", "type": "function", "function": {"name": "stop", "arguments": ""}},
        ])
    );
    assert_eq!(body["choices"][0]["finish_reason"], "tool_calls");
}

#[tokio::test]
async fn a_stream_frame_by_frame() {
    let answer = Answer::text("Hi 日本")
        .then_tool_call("read", r#"{"path":"a.txt"}"#)
        .then_tool_call("list", "{}");
    let provider = provider(answer);
    let mut body = question(Dialect::OpenAi, "hello", true);
    body["stream_options"] = json!({"include_usage": true});
    let read = post(&provider, &body).await;
    assert_eq!(read.header("content-type"), Some("text/event-stream; charset=utf-8"));
    let sent = provider.journal().last().unwrap().sent.unwrap();
    let first = &events(&read.text())[0];
    let (id, print) = (&first["id"], &first["system_fingerprint"]);
    let chunk = |choices: Value, usage: Value| {
        let chunk = json!({
            "id": id, "object": "chat.completion.chunk", "created": 1_760_000_001,
            "model": "gpt-4o", "service_tier": "default", "system_fingerprint": print,
            "choices": choices, "usage": usage,
        });
        format!("data: {chunk}\n\n")
    };
    let delta = |delta: Value| {
        let choices = json!([{
            "index": 0, "delta": delta, "logprobs": null, "finish_reason": null,
        }]);
        chunk(choices, Value::Null)
    };
    let opening = |n: usize, name: &str| {
        delta(json!({"tool_calls": [{
            "index": n, "id": sent.tool_calls[n].id, "type": "function",
            "function": {"name": name, "arguments": ""},
        }]}))
    };
    let fragment = |n: usize, text: &str| {
        delta(json!({"tool_calls": [{"index": n, "function": {"arguments": text}}]}))
    };
    let expected = [
        delta(json!({"role": "assistant", "content": "", "refusal": null})),
        delta(json!({"content": "Hi"})),
        delta(json!({"content": " 日本"})),
        opening(0, "read"),
        fragment(0, "{\"path\":"),
        fragment(0, "\"a.txt\"}"),
        opening(1, "list"),
        fragment(1, "{}"),
        chunk(
            json!([{"index": 0, "delta": {}, "logprobs": null, "finish_reason": "tool_calls"}]),
            Value::Null,
        ),
        chunk(json!([]), usage(6, 5)),
        "data: [DONE]\n\n".to_owned(),
    ];
    let chunks: Vec<&str> =
        read.chunks.iter().map(|chunk| std::str::from_utf8(chunk).unwrap()).collect();
    assert_eq!(chunks, expected);
}

#[tokio::test]
async fn without_include_usage_there_is_no_usage_at_all() {
    let read = post(&provider(Answer::text("a")), &question(Dialect::OpenAi, "hello", true)).await;
    assert!(!read.text().contains("usage"));
    assert!(read.text().ends_with("data: [DONE]\n\n"));
}

#[tokio::test]
async fn a_stream_that_only_calls_tools_begins_without_content() {
    let read =
        post(&provider(Answer::tool_call("t", "{}")), &question(Dialect::OpenAi, "x", true)).await;
    let first = &events(&read.text())[0]["choices"][0]["delta"];
    assert_eq!(*first, json!({"role": "assistant", "content": null, "refusal": null}));
}

#[tokio::test]
async fn stop_reasons_and_fixed_usage() {
    let fixed = Usage { input: 10, output: 20, cache_read: 5, cache_write: 0, reasoning: 7 };
    for (stop, word) in [
        (Stop::EndTurn, "stop"),
        (Stop::ToolUse, "tool_calls"),
        (Stop::MaxTokens, "length"),
        (Stop::StopSequence("x".into()), "stop"),
        (Stop::Refusal, "content_filter"),
        (Stop::Raw("network_error".into()), "network_error"),
    ] {
        let provider = provider(Answer::text("a").stop(stop).usage(fixed));
        let body = post(&provider, &question(Dialect::OpenAi, "x", false)).await.json();
        assert_eq!(body["choices"][0]["finish_reason"], word);
        assert_eq!(body["usage"]["prompt_tokens"], 15);
        assert_eq!(body["usage"]["prompt_tokens_details"]["cached_tokens"], 5);
        assert_eq!(body["usage"]["completion_tokens"], 20);
        assert_eq!(body["usage"]["completion_tokens_details"]["reasoning_tokens"], 7);
        assert_eq!(body["usage"]["total_tokens"], 35);
        assert_eq!(provider.journal().last().unwrap().sent.unwrap().usage, fixed);
    }
}

#[tokio::test]
async fn scripted_thinking_goes_out_as_reasoning_content() {
    let answer = Answer::thinking("hm hm").then_text("ok");
    let provider = provider(answer.clone());
    provider.script([answer]);
    let whole = post(&provider, &question(Dialect::OpenAi, "x", false)).await.json();
    assert_eq!(whole["choices"][0]["message"]["reasoning_content"], "hm hm");
    let stream = post(&provider, &question(Dialect::OpenAi, "x", true)).await;
    let thought: String = events(&stream.text())
        .iter()
        .filter_map(|e| e["choices"][0]["delta"]["reasoning_content"].as_str())
        .collect();
    assert_eq!(thought, "hm hm");
}
