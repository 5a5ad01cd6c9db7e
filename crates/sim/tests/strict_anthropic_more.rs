//! What Anthropic refuses about thinking, prefills, headers, keys and rates.

#![allow(clippy::unwrap_used, clippy::needless_pass_by_value)]

mod common;

use common::anthropic::{A, messages, result, text, tool, u, user, with};
use common::{post, question, request, send};
use serde_json::{Value, json};
use steadfast_sim::{Answer, KeyLimits, SimProvider};

/// A provider, and the content of an answer of it that thought and called twice.
async fn thought() -> (SimProvider, Value) {
    let provider = SimProvider::builder(A)
        .with_script([Answer::thinking("hm, two files")
            .then_tool_call("read", r#"{"n":1}"#)
            .then_tool_call("read", r#"{"n":2}"#)])
        .build();
    let mut body = question(A, "go", false);
    body["tools"] = json!([tool()]);
    let answer = post(&provider, &body).await.json();
    (provider, answer["content"].clone())
}

fn looped(content: &Value, thinking: bool) -> Value {
    let results: Vec<Value> = content
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|block| block["id"].as_str())
        .map(result)
        .collect();
    let mut body =
        messages(json!([u(), {"role": "assistant", "content": content}, user(json!(results))]));
    if thinking {
        body["thinking"] = json!({"type": "enabled", "budget_tokens": 1024});
    }
    body
}

#[tokio::test]
async fn s11_thinking_comes_back_as_it_was_or_not_at_all() {
    let (provider, content) = thought().await;
    for thinking in [false, true] {
        let read = post(&provider, &looped(&content, thinking)).await;
        assert_eq!(read.status, 200, "{}", read.text());
    }
    // Another text under the same signature.
    let mut modified = content.clone();
    modified[0]["thinking"] = json!("hm, three files");
    let read = post(&provider, &looped(&modified, true)).await;
    assert_eq!(
        read.error_message(),
        "messages.1.content.0: Invalid `signature` in `thinking` block"
    );
    // A signature of another provider.
    let (other, _) = (
        SimProvider::builder(A)
            .with_seed(1)
            .with_script([Answer::thinking("hm, two files").then_text("x")])
            .build(),
        (),
    );
    let foreign = post(&other, &question(A, "go", false)).await.json()["content"][0].clone();
    let mut mixed = content.clone();
    mixed[0] = foreign;
    let read = post(&provider, &looped(&mixed, true)).await;
    assert_eq!(
        read.error_message(),
        "messages.1.content.0: Invalid `signature` in `thinking` block"
    );
    // Moved after a call.
    let mut moved = content.clone();
    moved.as_array_mut().unwrap().swap(0, 1);
    let read = post(&provider, &looped(&moved, true)).await;
    assert!(read.error_message().starts_with("messages.1.content.0.type: Expected `thinking` or `redacted_thinking`, but found `tool_use`."), "{}", read.error_message());
    // Dropped whole.
    let mut dropped = content.clone();
    dropped.as_array_mut().unwrap().remove(0);
    for thinking in [false, true] {
        let read = post(&provider, &looped(&dropped, thinking)).await;
        assert_eq!(read.status, 200, "{}", read.text());
    }
    // At the end of a message.
    let ends =
        messages(json!([u(), {"role": "assistant", "content": [text("x"), content[0]]}, u()]));
    let read = post(&provider, &ends).await;
    assert_eq!(
        read.error_message(),
        "messages.1: The final block in an assistant message cannot be `thinking`."
    );
    // Marked.
    let mut marked = content.clone();
    marked[0]["cache_control"] = json!({"type": "ephemeral"});
    let read = post(&provider, &looped(&marked, true)).await;
    assert_eq!(
        read.error_message(),
        "messages.1.content.0.thinking.cache_control: Extra inputs are not permitted"
    );
    // Without its signature.
    let mut unsigned = content.clone();
    unsigned[0].as_object_mut().unwrap().remove("signature");
    let read = post(&provider, &looped(&unsigned, true)).await;
    assert_eq!(read.error_message(), "messages.1.content.0.thinking.signature: Field required");
}

#[tokio::test]
async fn s11_half_a_loop_of_thinking_is_a_modified_one() {
    let (provider, first) = thought().await;
    provider.script([Answer::thinking("and another").then_tool_call("read", "{}")]);
    let step = looped(&first, true);
    let second = post(&provider, &step).await.json()["content"].clone();
    let continued = |first: &Value, second: &Value| {
        let mut body = looped(first, true);
        let list = body["messages"].as_array_mut().unwrap();
        list.push(json!({"role": "assistant", "content": second}));
        list.push(user(json!([result(
            second.as_array().unwrap().last().unwrap()["id"].as_str().unwrap()
        )])));
        body
    };
    let without = |content: &Value| {
        let mut content = content.clone();
        content.as_array_mut().unwrap().remove(0);
        content
    };
    assert_eq!(post(&provider, &continued(&first, &second)).await.status, 200);
    assert_eq!(post(&provider, &continued(&without(&first), &without(&second))).await.status, 200);
    for (broken, at) in
        [(continued(&without(&first), &second), 1), (continued(&first, &without(&second)), 3)]
    {
        let read = post(&provider, &broken).await;
        assert_eq!(
            read.error_message(),
            format!(
                "messages.{at}.content.0: `thinking` or `redacted_thinking` blocks in the latest \
                 assistant message cannot be modified. These blocks must remain as they were in \
                 the original response."
            )
        );
    }
    // A closed loop is not checked.
    let mut closed = continued(&without(&first), &second);
    let list = closed["messages"].as_array_mut().unwrap();
    list.push(json!({"role": "assistant", "content": "done"}));
    list.push(u());
    assert_eq!(post(&provider, &closed).await.status, 200);
}

#[tokio::test]
async fn s10_never_a_prefill_with_thinking() {
    let provider = SimProvider::new(A);
    let mut body = messages(json!([u(), {"role": "assistant", "content": "So"}]));
    assert_eq!(post(&provider, &body).await.status, 200);
    body["thinking"] = json!({"type": "enabled", "budget_tokens": 1024});
    let read = post(&provider, &body).await;
    assert!(read.error_message().starts_with(
        "messages.1.content.0.type: Expected `thinking` or `redacted_thinking`, but found `text`."
    ));
}

#[tokio::test]
async fn headers_keys_json_models_and_paths() {
    let provider = SimProvider::builder(A).keys([common::KEY]).build();
    let body = question(A, "x", false).to_string();
    let good = || request(A, "/v1/messages", body.clone());
    assert_eq!(send(&provider, good()).await.unwrap().status, 200);
    let without = async |name: &str| {
        let mut request = good();
        request.headers_mut().remove(name);
        send(&provider, request).await.unwrap()
    };
    let read = without("x-api-key").await;
    assert_eq!((read.status, read.error_message().as_str()), (401, "x-api-key header is required"));
    assert_eq!(read.json()["error"]["type"], "authentication_error");
    let mut hello = request(A, "/api/hello", "");
    *hello.method_mut() = http::Method::GET;
    hello.headers_mut().clear();
    assert_eq!(send(&provider, hello).await.unwrap().json()["message"], "hello", "without a key");
    let read = without("anthropic-version").await;
    assert_eq!(
        (read.status, read.error_message().as_str()),
        (400, "anthropic-version: header is required")
    );
    let mut request_ = good();
    request_.headers_mut().insert("anthropic-version", "2099-01-01".parse().unwrap());
    let read = send(&provider, request_).await.unwrap();
    assert_eq!(read.error_message(), "anthropic-version: \"2099-01-01\" is not a valid version");
    let mut request_ = good();
    request_.headers_mut().insert("x-api-key", "wrong".parse().unwrap());
    let read = send(&provider, request_).await.unwrap();
    assert_eq!((read.status, read.error_message().as_str()), (401, "invalid x-api-key"));
    let mut request_ = good();
    request_.headers_mut().remove("x-api-key");
    request_
        .headers_mut()
        .insert("authorization", format!("Bearer {}", common::KEY).parse().unwrap());
    assert_eq!(send(&provider, request_).await.unwrap().status, 200);

    let read = send(&provider, request(A, "/v1/messages", "{")).await.unwrap();
    assert_eq!(read.status, 400);
    assert!(
        read.error_message().starts_with("The request body is not valid JSON: "),
        "{}",
        read.error_message()
    );
    let read = post(&provider, &with(json!({"model": "claude-9"}))).await;
    assert_eq!((read.status, read.error_message().as_str()), (404, "model: claude-9"));
    assert_eq!(read.json()["error"]["type"], "not_found_error");
    let read = send(&provider, request(A, "/v1/nothing", body.clone())).await.unwrap();
    assert_eq!((read.status, read.error_message().as_str()), (404, "Not Found"));

    let strict = SimProvider::builder(A).with_refuse_unknown(true).build();
    let unknown = with(json!({"frobnicate": 1}));
    assert_eq!(post(&provider, &unknown).await.status, 200);
    assert_eq!(
        post(&strict, &unknown).await.error_message(),
        "frobnicate: Extra inputs are not permitted"
    );
}

#[tokio::test(start_paused = true)]
async fn limits_have_the_providers_headers_and_message() {
    let epoch = std::time::UNIX_EPOCH + std::time::Duration::from_secs(1_793_862_489);
    let provider = SimProvider::builder(A)
        .with_epoch(epoch)
        .with_limits(KeyLimits { requests: Some(2), tokens: None })
        .build();
    let read = post(&provider, &with(json!({}))).await;
    assert_eq!(read.header("anthropic-ratelimit-requests-limit"), Some("2"));
    assert_eq!(read.header("anthropic-ratelimit-requests-remaining"), Some("1"));
    assert_eq!(read.header("anthropic-ratelimit-requests-reset"), Some("2026-11-05T07:08:39Z"));
    post(&provider, &with(json!({}))).await;
    let read = post(&provider, &with(json!({}))).await;
    assert_eq!((read.status, read.header("retry-after")), (429, Some("30")));
    assert_eq!(read.json()["error"]["type"], "rate_limit_error");
    assert!(read.error_message().starts_with(
        "This request would exceed your organization's rate limit of 2 requests per minute"
    ));
}
