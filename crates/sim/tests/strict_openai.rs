//! What OpenAI refuses: each rule with a request that breaks it, the message, and a valid
//! variant that passes.

#![allow(clippy::unwrap_used, clippy::needless_pass_by_value)]

mod common;

use common::{PNG, post, question, request, send};
use serde_json::{Value, json};
use steadfast_sim::{Dialect, KeyLimits, Model, SimProvider};

fn provider() -> SimProvider {
    SimProvider::builder(Dialect::OpenAi)
        .with_model(Model::new("tiny", 100, 50).without_thinking())
        .build()
}

/// A request with these fields over a plain question.
fn with(fields: Value) -> Value {
    let mut body = question(Dialect::OpenAi, "hello", false);
    for (key, value) in fields.as_object().unwrap() {
        body[key] = value.clone();
    }
    body
}

fn messages(messages: Value) -> Value {
    with(json!({ "messages": messages }))
}

fn call(id: &str) -> Value {
    json!({"id": id, "type": "function", "function": {"name": "read", "arguments": "{}"}})
}

fn tool(parameters: Value) -> Value {
    json!({"type": "function", "function": {"name": "read", "parameters": parameters}})
}

fn image(url: &str) -> Value {
    json!([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]}])
}

const OVERLONG: &str = "call_5678901234567890123456789012345678901";

#[tokio::test]
async fn every_rule() {
    let png = format!("data:image/png;base64,{PNG}");
    let u = || json!({"role": "user", "content": "go"});
    let calls = |ids: &[&str]| {
        json!({"role": "assistant", "content": null,
               "tool_calls": ids.iter().map(|id| call(id)).collect::<Vec<_>>()})
    };
    let result = |id: &str| json!({"role": "tool", "tool_call_id": id, "content": "ok"});
    let object = json!({"type": "object", "properties": {}});
    // (rule, broken, status, words, param, code, repaired)
    let table: Vec<(&str, Value, u16, &str, Value, Value, Value)> = vec![
        (
            "no messages",
            with(json!({"messages": null})),
            400,
            "Missing required parameter: 'messages'.",
            json!("messages"),
            json!("missing_required_parameter"),
            messages(json!([u()])),
        ),
        (
            "messages no list",
            messages(json!("hi")),
            400,
            "Invalid type for 'messages': expected an array of objects, but got a string instead.",
            json!("messages"),
            json!("invalid_type"),
            messages(json!([u()])),
        ),
        (
            "no message",
            messages(json!([])),
            400,
            "Invalid 'messages': empty array. Expected an array with minimum length 1, but got an empty array instead.",
            json!("messages"),
            json!("empty_array"),
            messages(json!([u()])),
        ),
        (
            "no role",
            messages(json!([{"content": "x"}])),
            400,
            "Missing required parameter: 'messages[0].role'.",
            json!("messages[0].role"),
            json!("missing_required_parameter"),
            messages(json!([u()])),
        ),
        (
            "strange role",
            messages(json!([{"role": "model", "content": "x"}])),
            400,
            "Invalid value: 'model'. Supported values are: 'system', 'assistant', 'user', 'function', 'tool', and 'developer'.",
            json!("messages[0].role"),
            json!("invalid_value"),
            messages(json!([u()])),
        ),
        (
            "no content",
            messages(json!([{"role": "user"}])),
            400,
            "Invalid value for 'content': expected a string, got null.",
            json!("messages.[0].content"),
            Value::Null,
            messages(json!([u()])),
        ),
        (
            "silent assistant",
            messages(json!([u(), {"role": "assistant", "content": null}, u()])),
            400,
            "Invalid value for 'content': expected a string, got null.",
            json!("messages.[1].content"),
            Value::Null,
            messages(json!([u(), {"role": "assistant", "content": ""}, u()])),
        ),
        (
            "wrong content",
            messages(json!([{"role": "user", "content": 3}])),
            400,
            "Invalid type for 'messages[0].content': expected one of a string or array of objects, but got an integer instead.",
            json!("messages[0].content"),
            json!("invalid_type"),
            messages(json!([u()])),
        ),
        (
            "S9 no parts",
            messages(json!([{"role": "user", "content": []}])),
            400,
            "Invalid 'messages[0].content': empty array. Expected an array with minimum length 1, but got an empty array instead.",
            json!("messages[0].content"),
            json!("empty_array"),
            messages(json!([{"role": "user", "content": [{"type": "text", "text": "x"}]}])),
        ),
        (
            "strange part",
            messages(json!([{"role": "user", "content": [{"type": "image"}]}])),
            400,
            "Invalid value: 'image'. Supported values are: 'text', 'image_url', 'input_audio', 'refusal', 'audio', and 'file'.",
            json!("messages[0].content[0].type"),
            json!("invalid_value"),
            messages(image(&png)),
        ),
        (
            "S3 unanswered, then a user",
            messages(json!([u(), calls(&["a", "b"]), result("a"), u()])),
            400,
            "An assistant message with 'tool_calls' must be followed by tool messages responding to each 'tool_call_id'. The following tool_call_ids did not have response messages: b",
            json!("messages.[2].role"),
            Value::Null,
            messages(json!([u(), calls(&["a", "b"]), result("b"), result("a"), u()])),
        ),
        (
            "S3 unanswered at the end",
            messages(json!([u(), calls(&["a"])])),
            400,
            "An assistant message with 'tool_calls' must be followed by tool messages responding to each 'tool_call_id'. The following tool_call_ids did not have response messages: a",
            json!("messages.[1].role"),
            Value::Null,
            messages(json!([u(), calls(&["a"]), result("a")])),
        ),
        (
            "S4 orphan",
            messages(json!([u(), result("a")])),
            400,
            "Invalid parameter: messages with role 'tool' must be a response to a preceeding message with 'tool_calls'.",
            json!("messages.[1].role"),
            Value::Null,
            messages(json!([u(), calls(&["a"]), result("a")])),
        ),
        (
            "S4 foreign id",
            messages(json!([u(), calls(&["a"]), result("x")])),
            400,
            "Invalid parameter: 'tool_call_id' of 'x' not found in 'tool_calls' of previous message.",
            json!("messages.[2].tool_call_id"),
            Value::Null,
            messages(json!([u(), calls(&["a"]), result("a")])),
        ),
        (
            "S5 twice",
            messages(json!([u(), calls(&["a"]), result("a"), result("a")])),
            400,
            "Invalid parameter: messages with role 'tool' must be a response to a preceeding message with 'tool_calls'.",
            json!("messages.[3].role"),
            Value::Null,
            messages(json!([u(), calls(&["a"]), result("a")])),
        ),
        (
            "result without id",
            messages(json!([u(), calls(&["a"]), {"role": "tool", "content": "x"}])),
            400,
            "Missing parameter 'tool_call_id': messages with role 'tool' must have a 'tool_call_id'.",
            json!("messages.[2].tool_call_id"),
            Value::Null,
            messages(json!([u(), calls(&["a"]), result("a")])),
        ),
        (
            "S8 overlong id",
            messages(json!([u(), calls(&[OVERLONG]), result(OVERLONG)])),
            400,
            "Invalid 'messages[1].tool_calls[0].id': string too long. Expected a string with maximum length 40, but got a string with length 42 instead.",
            json!("messages[1].tool_calls[0].id"),
            json!("string_above_max_length"),
            messages(json!([u(), calls(&[&OVERLONG[..40]]), result(&OVERLONG[..40])])),
        ),
        (
            "no calls",
            messages(json!([u(), {"role": "assistant", "content": "x", "tool_calls": []}, u()])),
            400,
            "Invalid 'messages[1].tool_calls': empty array. Expected an array with minimum length 1, but got an empty array instead.",
            json!("messages[1].tool_calls"),
            json!("empty_array"),
            messages(json!([u(), {"role": "assistant", "content": "x"}, u()])),
        ),
        (
            "arguments no string",
            messages(json!([u(), {"role": "assistant", "tool_calls": [
            {"id": "a", "type": "function", "function": {"name": "read", "arguments": {}}}]}, result("a")])),
            400,
            "Invalid type for 'messages[1].tool_calls[0].function.arguments': expected a string, but got an object instead.",
            json!("messages[1].tool_calls[0].function.arguments"),
            json!("invalid_type"),
            messages(json!([u(), calls(&["a"]), result("a")])),
        ),
        (
            "bad function name",
            messages(json!([u(), {"role": "assistant", "tool_calls": [
            {"id": "a", "type": "function", "function": {"name": "a.b", "arguments": "{}"}}]}, result("a")])),
            400,
            "Invalid 'messages[1].tool_calls[0].function.name': string does not match pattern. Expected a string that matches the pattern '^[a-zA-Z0-9_-]+$'.",
            json!("messages[1].tool_calls[0].function.name"),
            json!("invalid_value"),
            messages(json!([u(), calls(&["a"]), result("a")])),
        ),
        (
            "S13 no vision",
            with(json!({"model": "gpt-3.5-turbo", "messages": image(&png)})),
            400,
            "Invalid content type. image_url is only supported by certain models.",
            json!("messages.[0].content.[0].type"),
            Value::Null,
            with(json!({"model": "gpt-4o-mini", "messages": image(&png)})),
        ),
        (
            "S13 base64",
            messages(image("data:image/png;base64,!!!")),
            400,
            "Invalid base64 image_url.",
            Value::Null,
            json!("invalid_base64"),
            messages(image(&png)),
        ),
        (
            "S13 media type",
            messages(image(&format!("data:image/bmp;base64,{PNG}"))),
            400,
            "You uploaded an unsupported image. Please make sure your image has of one the following formats: ['png', 'jpeg', 'gif', 'webp'].",
            Value::Null,
            json!("invalid_image_format"),
            messages(image("https://example.com/a.png")),
        ),
        (
            "image of the system",
            messages(
                json!([{"role": "system", "content": [{"type": "image_url", "image_url": {"url": png}}]}]),
            ),
            400,
            "Invalid 'messages[0]'. Image URLs are only allowed for messages with role 'user', but this message with role 'system' contains an image URL.",
            json!("messages[0]"),
            json!("invalid_value"),
            messages(image(&png)),
        ),
        (
            "no tools",
            with(json!({"tools": []})),
            400,
            "Invalid 'tools': empty array. Expected an array with minimum length 1, but got an empty array instead.",
            json!("tools"),
            json!("empty_array"),
            with(json!({"tools": [tool(object.clone())]})),
        ),
        (
            "schema no object",
            with(json!({"tools": [tool(json!({"type": "string"}))]})),
            400,
            "Invalid schema for function 'read': schema must be a JSON Schema of 'type: \"object\"', got 'type: \"string\"'.",
            json!("tools[0].function.parameters"),
            json!("invalid_function_parameters"),
            with(json!({"tools": [tool(object.clone())]})),
        ),
        (
            "schema without type",
            with(json!({"tools": [tool(json!({}))]})),
            400,
            "Invalid schema for function 'read': schema must be a JSON Schema of 'type: \"object\"', got 'type: \"None\"'.",
            json!("tools[0].function.parameters"),
            json!("invalid_function_parameters"),
            with(json!({"tools": [{"type": "function", "function": {"name": "read"}}]})),
        ),
        (
            "tool without name",
            with(json!({"tools": [{"type": "function", "function": {}}]})),
            400,
            "Missing required parameter: 'tools[0].function.name'.",
            json!("tools[0].function.name"),
            json!("missing_required_parameter"),
            with(json!({"tools": [tool(object.clone())]})),
        ),
        (
            "choice without tools",
            with(json!({"tool_choice": "auto"})),
            400,
            "Invalid value for 'tool_choice': 'tool_choice' is only allowed when 'tools' are specified.",
            json!("tool_choice"),
            Value::Null,
            with(json!({"tool_choice": "auto", "tools": [tool(object.clone())]})),
        ),
        (
            "choice of no tool",
            with(json!({"tools": [tool(object.clone())],
            "tool_choice": {"type": "function", "function": {"name": "write"}}})),
            400,
            "Invalid value for 'tool_choice': no function named 'write' was specified in the 'tools' parameter.",
            json!("tool_choice"),
            Value::Null,
            with(json!({"tools": [tool(object.clone())],
            "tool_choice": {"type": "function", "function": {"name": "read"}}})),
        ),
        (
            "stream no boolean",
            with(json!({"stream": "yes"})),
            400,
            "Invalid type for 'stream': expected a boolean, but got a string instead.",
            json!("stream"),
            json!("invalid_type"),
            with(json!({"stream": true})),
        ),
        (
            "options without stream",
            with(json!({"stream_options": {"include_usage": true}})),
            400,
            "The 'stream_options' parameter is only allowed when 'stream' is enabled.",
            json!("stream_options"),
            Value::Null,
            with(json!({"stream": true, "stream_options": {"include_usage": true}})),
        ),
        (
            "max_tokens zero",
            with(json!({"max_tokens": 0})),
            400,
            "Invalid 'max_tokens': integer below minimum value. Expected a value >= 1, but got 0 instead.",
            json!("max_tokens"),
            json!("integer_below_min_value"),
            with(json!({"max_tokens": 1})),
        ),
        (
            "max_tokens no number",
            with(json!({"max_tokens": "9"})),
            400,
            "Invalid type for 'max_tokens': expected an integer, but got a string instead.",
            json!("max_tokens"),
            json!("invalid_type"),
            with(json!({"max_tokens": 9})),
        ),
        (
            "both limits",
            with(json!({"max_tokens": 9, "max_completion_tokens": 9})),
            400,
            "Setting 'max_tokens' and 'max_completion_tokens' at the same time is not supported.",
            Value::Null,
            json!("invalid_parameter_combination"),
            with(json!({"max_completion_tokens": 9})),
        ),
        (
            "output limit",
            with(json!({"max_tokens": 16_385})),
            400,
            "max_tokens is too large: 16385. This model supports at most 16384 completion tokens, whereas you provided 16385.",
            json!("max_tokens"),
            json!("invalid_value"),
            with(json!({"max_tokens": 16_384})),
        ),
        (
            "reasoning limit",
            with(json!({"model": "gpt-5", "max_tokens": 9})),
            400,
            "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead.",
            json!("max_tokens"),
            json!("unsupported_parameter"),
            with(json!({"model": "gpt-5", "max_completion_tokens": 9})),
        ),
        (
            "reasoning temperature",
            with(json!({"model": "o3", "temperature": 0.5})),
            400,
            "Unsupported value: 'temperature' does not support 0.5 with this model. Only the default (1) value is supported.",
            json!("temperature"),
            json!("unsupported_value"),
            with(json!({"model": "o3", "temperature": 1})),
        ),
        (
            "an effort of another model",
            with(json!({"model": "o3", "reasoning_effort": "minimal"})),
            400,
            "Unsupported value: 'reasoning_effort' does not support 'minimal' with this model. Supported values are: 'low', 'medium', 'high'.",
            json!("reasoning_effort"),
            json!("unsupported_value"),
            with(json!({"model": "gpt-5", "reasoning_effort": "minimal"})),
        ),
        (
            "an effort of a model that does not reason",
            with(json!({"reasoning_effort": "low"})),
            400,
            "Unsupported parameter: 'reasoning_effort' is not supported with this model.",
            json!("reasoning_effort"),
            json!("unsupported_parameter"),
            with(json!({"model": "gpt-5.6", "reasoning_effort": "low"})),
        ),
        (
            "tools beside an effort",
            with(
                json!({"model": "gpt-5.4", "reasoning_effort": "low", "tools": [tool(object.clone())]}),
            ),
            400,
            "Function tools with reasoning_effort are not supported for gpt-5.4 in /v1/chat/completions. To use function tools, use /v1/responses or set reasoning_effort to 'none'.",
            json!("reasoning_effort"),
            Value::Null,
            with(json!({"model": "gpt-5.4", "tools": [tool(object.clone())]})),
        ),
        (
            "tools beside the effort that is the default",
            with(json!({"model": "gpt-5.6", "tools": [tool(object.clone())]})),
            400,
            "Function tools with reasoning_effort are not supported for gpt-5.6 in /v1/chat/completions. To use function tools, use /v1/responses or set reasoning_effort to 'none'.",
            json!("reasoning_effort"),
            Value::Null,
            with(
                json!({"model": "gpt-5.6", "reasoning_effort": "none", "tools": [tool(object.clone())]}),
            ),
        ),
        (
            "temperature too low",
            with(json!({"temperature": -1})),
            400,
            "Invalid 'temperature': decimal below minimum value. Expected a value >= 0, but got -1 instead.",
            json!("temperature"),
            json!("decimal_below_min_value"),
            with(json!({"temperature": 0})),
        ),
        (
            "temperature too high",
            with(json!({"temperature": 2.5})),
            400,
            "Invalid 'temperature': decimal above maximum value. Expected a value <= 2, but got 2.5 instead.",
            json!("temperature"),
            json!("decimal_above_max_value"),
            with(json!({"temperature": 2})),
        ),
        (
            "no model",
            with(json!({"model": null})),
            400,
            "you must provide a model parameter",
            Value::Null,
            Value::Null,
            with(json!({})),
        ),
        (
            "unknown model",
            with(json!({"model": "gpt-9"})),
            404,
            "The model `gpt-9` does not exist or you do not have access to it.",
            Value::Null,
            json!("model_not_found"),
            with(json!({})),
        ),
        // 4 for the message, 97 for 388 bytes: one above the window of 100.
        (
            "S14 window",
            with(
                json!({"model": "tiny", "messages": [{"role": "user", "content": "x".repeat(388)}]}),
            ),
            400,
            "This model's maximum context length is 100 tokens. However, your messages resulted in 101 tokens. Please reduce the length of the messages.",
            json!("messages"),
            json!("context_length_exceeded"),
            with(
                json!({"model": "tiny", "messages": [{"role": "user", "content": "x".repeat(384)}]}),
            ),
        ),
        (
            "S14 window with output",
            with(
                json!({"model": "tiny", "max_tokens": 50, "messages": [{"role": "user", "content": "x".repeat(188)}]}),
            ),
            400,
            "This model's maximum context length is 100 tokens. However, you requested 101 tokens (51 in the messages, 50 in the completion). Please reduce the length of the messages or completion.",
            json!("messages"),
            json!("context_length_exceeded"),
            with(
                json!({"model": "tiny", "max_tokens": 49, "messages": [{"role": "user", "content": "x".repeat(188)}]}),
            ),
        ),
    ];
    let provider = provider();
    for (rule, broken, status, words, param, code, repaired) in table {
        let read = post(&provider, &broken).await;
        assert_eq!(read.status, status, "{rule}: {}", read.text());
        let expected = json!({"error": {
            "message": words, "type": "invalid_request_error", "param": param, "code": code,
        }});
        assert_eq!(read.json(), expected, "{rule}");
        let entry = provider.journal().last().unwrap();
        assert_eq!(entry.refused.as_deref(), Some(words));
        let read = post(&provider, &repaired).await;
        assert_eq!(read.status, 200, "{rule}, repaired: {}", read.text());
    }
}

#[tokio::test]
async fn keys_json_and_paths() {
    let provider = SimProvider::builder(Dialect::OpenAi).keys([common::KEY]).build();
    let body = question(Dialect::OpenAi, "x", false).to_string();
    let path = "/v1/chat/completions";
    let good = || request(Dialect::OpenAi, path, body.clone());
    assert_eq!(send(&provider, good()).await.unwrap().status, 200);

    let mut none = good();
    none.headers_mut().remove("authorization");
    let read = send(&provider, none).await.unwrap();
    assert_eq!(read.status, 401);
    assert!(read.error_message().starts_with("You didn't provide an API key."));
    let mut wrong = good();
    wrong.headers_mut().insert("authorization", "Bearer sk-wrong-0123456789".parse().unwrap());
    let read = send(&provider, wrong).await.unwrap();
    assert_eq!((read.status, &read.json()["error"]["code"]), (401, &json!("invalid_api_key")));
    assert_eq!(
        read.error_message(),
        "Incorrect API key provided: sk-wrong*******6789. You can find your API key at \
         https://platform.openai.com/account/api-keys."
    );
    let mut empty = good();
    empty.headers_mut().insert("authorization", "Bearer ".parse().unwrap());
    assert_eq!(send(&provider, empty).await.unwrap().status, 401);

    for broken in ["{", "", "[]", "\"x\"", "nope"] {
        let read = send(&provider, request(Dialect::OpenAi, path, broken)).await.unwrap();
        assert_eq!(read.status, 400);
        assert!(
            read.error_message().starts_with("We could not parse the JSON body of your request.")
        );
    }
    let read =
        send(&provider, request(Dialect::OpenAi, "/v1/nothing", body.clone())).await.unwrap();
    assert_eq!(
        (read.status, read.error_message().as_str()),
        (404, "Invalid URL (POST /v1/nothing)")
    );
}

#[tokio::test]
async fn unknown_parameters_are_refused_when_configured() {
    let body = with(json!({"frobnicate": 1}));
    let tolerant = provider();
    assert_eq!(post(&tolerant, &body).await.status, 200);
    assert_eq!(tolerant.journal().last().unwrap().json.unwrap()["frobnicate"], 1);
    let strict = SimProvider::builder(Dialect::OpenAi).with_refuse_unknown(true).build();
    let read = post(&strict, &body).await;
    assert_eq!(read.error_message(), "Unknown parameter: 'frobnicate'.");
    assert_eq!(read.json()["error"]["code"], "unknown_parameter");
    assert_eq!(post(&strict, &with(json!({"seed": 1}))).await.status, 200);
}

#[tokio::test(start_paused = true)]
async fn limits_have_the_providers_headers_and_message() {
    let provider = SimProvider::builder(Dialect::OpenAi)
        .with_limits(KeyLimits { requests: Some(3), tokens: Some(6_000) })
        .build();
    let body = with(json!({"max_tokens": 1}));
    let read = post(&provider, &body).await;
    assert_eq!(read.status, 200);
    assert_eq!(read.header("x-ratelimit-limit-requests"), Some("3"));
    assert_eq!(read.header("x-ratelimit-remaining-requests"), Some("2"));
    assert_eq!(read.header("x-ratelimit-reset-requests"), Some("20s"));
    assert_eq!(read.header("x-ratelimit-limit-tokens"), Some("6000"));
    // 6 in, 1 out.
    assert_eq!(read.header("x-ratelimit-remaining-tokens"), Some("5993"));
    assert_eq!(read.header("x-ratelimit-reset-tokens"), Some("70ms"));
    post(&provider, &body).await;
    post(&provider, &body).await;
    let read = post(&provider, &body).await;
    assert_eq!(read.status, 429);
    assert_eq!(read.header("retry-after"), Some("20"));
    assert_eq!(read.header("retry-after-ms"), Some("20000"));
    assert_eq!(read.json()["error"]["code"], "rate_limit_exceeded");
    assert_eq!(read.json()["error"]["type"], "requests");
    assert_eq!(
        read.error_message(),
        "Rate limit reached for gpt-4o in organization org-sim on requests per min (RPM): Limit 3, \
         Used 3, Requested 1. Please try again in 20s. Visit \
         https://platform.openai.com/account/rate-limits to learn more."
    );
    tokio::time::advance(std::time::Duration::from_secs(20)).await;
    let long = messages(json!([{"role": "user", "content": "x".repeat(4 * 6_000)}]));
    let read = post(&provider, &long).await;
    assert_eq!((read.status, read.header("retry-after")), (429, None));
    assert!(
        read.error_message().starts_with("Request too large for gpt-4o"),
        "{}",
        read.error_message()
    );
    assert!(read.error_message().contains("Limit 6000, Requested 6004"));
}
