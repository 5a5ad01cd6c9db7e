//! The exact bytes of `GenerateContentResponse`.

#![allow(clippy::unwrap_used, clippy::needless_pass_by_value)]

mod common;

use common::{events, model, path, post, question, request, send};
use serde_json::{Value, json};
use steadfast_sim::{Answer, Dialect, LineEnd, SimProvider, Stop, Usage};

const G: Dialect = Dialect::Gemini;

fn provider(answer: Answer) -> SimProvider {
    SimProvider::builder(G).with_script([answer]).build()
}

fn answer() -> Answer {
    Answer::thinking("so so")
        .then_text("Hi 日本")
        .then_tool_call("read", r#"{ "path":"a", "n":1.0 }"#)
}

/// The chunks of `answer()`, as JSON texts.
fn chunks(id: &Value, signature: &str) -> Vec<String> {
    let chunk = |part: Value, candidates: u64, thoughts: u64, finish: Option<&str>| {
        let mut candidate = json!({"content": {"parts": [part], "role": "model"}, "index": 0});
        if let Some(finish) = finish {
            candidate["finishReason"] = json!(finish);
        }
        let mut usage = json!({"promptTokenCount": 6});
        if candidates > 0 {
            usage["candidatesTokenCount"] = json!(candidates);
        }
        usage["totalTokenCount"] = json!(6 + candidates + thoughts);
        usage["promptTokensDetails"] = json!([{"modality": "TEXT", "tokenCount": 6}]);
        usage["thoughtsTokenCount"] = json!(thoughts);
        json!({
            "candidates": [candidate], "usageMetadata": usage,
            "modelVersion": "gemini-2.5-pro", "responseId": id,
        })
        .to_string()
        .replace("\"RAW\"", r#"{ "path":"a", "n":1.0 }"#)
    };
    let call = json!({
        "functionCall": {"name": "read", "args": "RAW"}, "thoughtSignature": signature,
    });
    vec![
        chunk(json!({"text": "so", "thought": true}), 0, 1, None),
        chunk(json!({"text": " so", "thought": true}), 0, 2, None),
        chunk(json!({"text": "Hi"}), 1, 2, None),
        chunk(json!({"text": " 日本"}), 2, 2, None),
        // The call is 5 pieces: `{`, ` "path":`, `"a",`, ` "n":1.0`, ` }`.
        chunk(call, 2 + 5, 2, None),
        chunk(json!({"text": ""}), 2 + 5, 2, Some("STOP")),
    ]
}

#[tokio::test]
async fn a_stream_of_events_in_both_line_ends() {
    for (line_end, end) in [(LineEnd::Crlf, "\r\n\r\n"), (LineEnd::Lf, "\n\n")] {
        let provider =
            SimProvider::builder(G).with_line_end(line_end).with_script([answer()]).build();
        let path = path(G, model(G), true);
        let body = question(G, "hello", true).to_string();
        let read = send(&provider, request(G, &path, body)).await.unwrap();
        assert_eq!(read.header("content-type"), Some("text/event-stream"));
        let sent = provider.journal().last().unwrap().sent.unwrap();
        let id = events(&read.text())[0]["responseId"].clone();
        let expected: Vec<String> = chunks(&id, &sent.signatures[0])
            .into_iter()
            .map(|chunk| format!("data: {chunk}{end}"))
            .collect();
        let got: Vec<&str> =
            read.chunks.iter().map(|chunk| std::str::from_utf8(chunk).unwrap()).collect();
        assert_eq!(got, expected);
        assert_eq!(sent.tool_calls[0].arguments, r#"{ "path":"a", "n":1.0 }"#);
    }
}

#[tokio::test]
async fn without_alt_sse_the_stream_is_a_json_array() {
    let provider = provider(answer());
    let path = "/v1beta/models/gemini-2.5-pro:streamGenerateContent";
    let read =
        send(&provider, request(G, path, question(G, "hello", true).to_string())).await.unwrap();
    assert_eq!(read.header("content-type"), Some("application/json; charset=UTF-8"));
    let sent = provider.journal().last().unwrap().sent.unwrap();
    let id = &read.json()[0]["responseId"];
    let expected = format!("[{}]", chunks(id, &sent.signatures[0]).join(",\r\n"));
    assert_eq!(read.text(), expected);
}

#[tokio::test]
async fn a_whole_answer() {
    let provider = provider(answer().extra("xNew", "y"));
    let read = post(&provider, &question(G, "hello", false)).await;
    assert_eq!(read.header("content-type"), Some("application/json; charset=UTF-8"));
    let sent = provider.journal().last().unwrap().sent.unwrap();
    let id = read.json()["responseId"].clone();
    assert_eq!(id.as_str().unwrap().len(), 22);
    let expected = json!({
        "candidates": [{
            "content": {
                "parts": [
                    {"text": "so so", "thought": true},
                    {"text": "Hi 日本"},
                    {"functionCall": {"name": "read", "args": "RAW"},
                     "thoughtSignature": sent.signatures[0]},
                ],
                "role": "model",
            },
            "finishReason": "STOP", "index": 0,
        }],
        "usageMetadata": {
            "promptTokenCount": 6, "candidatesTokenCount": 7, "totalTokenCount": 15,
            "promptTokensDetails": [{"modality": "TEXT", "tokenCount": 6}],
            "thoughtsTokenCount": 2,
        },
        "modelVersion": "gemini-2.5-pro", "responseId": id, "xNew": "y",
    });
    assert_eq!(read.text(), expected.to_string().replace("\"RAW\"", r#"{ "path":"a", "n":1.0 }"#));
}

#[tokio::test]
async fn stop_reasons_fixed_usage_and_no_content_at_all() {
    let fixed = Usage { input: 10, output: 20, cache_read: 5, cache_write: 0, reasoning: 7 };
    for (stop, word) in [
        (Stop::EndTurn, "STOP"),
        (Stop::ToolUse, "STOP"),
        (Stop::MaxTokens, "MAX_TOKENS"),
        (Stop::Refusal, "SAFETY"),
        (Stop::Raw("RECITATION".into()), "RECITATION"),
    ] {
        let provider = provider(Answer::default().stop(stop).usage(fixed));
        let body = post(&provider, &question(G, "x", false)).await.json();
        assert_eq!(body["candidates"], json!([{"finishReason": word, "index": 0}]),);
        assert_eq!(body["usageMetadata"]["promptTokenCount"], 15);
        assert_eq!(body["usageMetadata"]["cachedContentTokenCount"], 5);
        assert_eq!(body["usageMetadata"]["candidatesTokenCount"], 13);
        assert_eq!(body["usageMetadata"]["thoughtsTokenCount"], 7);
        assert_eq!(body["usageMetadata"]["totalTokenCount"], 35);
    }
}

#[tokio::test]
async fn only_the_first_call_of_an_answer_is_signed() {
    let provider = provider(Answer::tool_call("a", "{}").then_tool_call("b", "{}"));
    let body = post(&provider, &question(G, "x", false)).await.json();
    let parts = &body["candidates"][0]["content"]["parts"];
    assert!(parts[0]["thoughtSignature"].is_string());
    assert_eq!(parts[1], json!({"functionCall": {"name": "b", "args": {}}}));
}
