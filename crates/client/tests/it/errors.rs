//! Errors, as callers of each dialect get them.

use std::time::Duration;

use http::{HeaderMap, StatusCode};
use serde_json::{Value, json};
use steadfast_client::dialect::codec;
use steadfast_core::{Attempt, Dialect, Failure, Reason, Target, Upstream};

fn encoded(dialect: Dialect, failure: &Failure) -> (StatusCode, HeaderMap, Value) {
    let (status, headers, body) = codec(dialect).encode_error(failure, Some("req-7"));
    (status, headers, serde_json::from_slice(&body).unwrap())
}

#[test]
fn each_dialect_has_its_own_error_format() {
    for (reason, status, openai, anthropic, gemini) in [
        (Reason::Auth, 401, "invalid_api_key", "authentication_error", "UNAUTHENTICATED"),
        (Reason::Billing, 402, "insufficient_quota", "billing_error", "PERMISSION_DENIED"),
        (Reason::RateLimit, 429, "rate_limit_exceeded", "rate_limit_error", "RESOURCE_EXHAUSTED"),
        (Reason::Overloaded, 503, "server_is_overloaded", "overloaded_error", "UNAVAILABLE"),
        (Reason::ServerError, 502, "server_error", "api_error", "INTERNAL"),
        (Reason::Timeout, 504, "timeout", "timeout_error", "DEADLINE_EXCEEDED"),
        (Reason::ModelNotFound, 404, "model_not_found", "not_found_error", "NOT_FOUND"),
        (
            Reason::ContextOverflow,
            400,
            "context_length_exceeded",
            "invalid_request_error",
            "INVALID_ARGUMENT",
        ),
        (Reason::Format, 400, "format", "invalid_request_error", "INVALID_ARGUMENT"),
        (Reason::Network, 502, "network", "api_error", "UNAVAILABLE"),
        (Reason::Exhausted, 503, "exhausted", "api_error", "UNAVAILABLE"),
        // Final: no agent asks again after these.
        (Reason::Safety, 400, "safety", "invalid_request_error", "FAILED_PRECONDITION"),
        (Reason::SpendCap, 402, "insufficient_quota", "billing_error", "PERMISSION_DENIED"),
    ] {
        let mut failure = Failure::new(reason, "what happened");
        if matches!(reason, Reason::Auth | Reason::Billing) {
            // Otherwise it is the operator's key or bill, and a 503.
            failure = failure.with_fault(steadfast_core::FaultSide::Caller);
        }
        for dialect in Dialect::ALL {
            let (got, headers, mut body) = encoded(dialect, &failure);
            assert_eq!(got.as_u16(), status, "{reason}");
            // Before it stand the words by which clients recognise the reason; they have tests of their own.
            let message = body["error"]["message"].take();
            assert!(message.as_str().unwrap().ends_with("what happened"), "{reason}: {message}");
            body["error"]["message"] = json!("what happened");
            assert_eq!(headers["content-type"], "application/json");
            let event = codec(dialect).encode_stream_error(&failure);
            let event = std::str::from_utf8(&event).unwrap();
            assert!(event.ends_with("\n\n") && !event.contains("[DONE]"));
            let data = event.lines().find_map(|line| line.strip_prefix("data: ")).unwrap();
            let mut data: Value = serde_json::from_str(data).unwrap();
            // An event of responses is the error itself.
            let inner = match dialect {
                Dialect::Responses => &mut data,
                _ => &mut data["error"],
            };
            assert_eq!(inner["message"], message);
            inner["message"] = json!("what happened");
            match dialect {
                Dialect::Anthropic => {
                    assert_eq!(headers["request-id"], "req-7");
                    assert_eq!(
                        body,
                        json!({
                            "type": "error",
                            "error": {"type": anthropic, "message": "what happened"},
                            "request_id": "req-7",
                        })
                    );
                    assert!(event.starts_with("event: error\n"));
                    // Claude Code asks again after this type alone, where an error has no status.
                    let passes = matches!(reason, Reason::Network | Reason::Exhausted);
                    let kind = if passes { "overloaded_error" } else { anthropic };
                    assert_eq!(data["error"]["type"], kind);
                    assert_eq!(data["type"], "error");
                }
                Dialect::Gemini => {
                    assert_eq!(
                        body,
                        json!({"error": {
                            "code": status, "message": "what happened", "status": gemini,
                        }})
                    );
                    assert_eq!(data, body);
                }
                Dialect::OpenAi | Dialect::Responses => {
                    assert_eq!(headers["x-request-id"], "req-7");
                    assert_eq!(body["error"]["code"], openai);
                    assert_eq!(body["error"]["message"], "what happened");
                    assert_eq!(body["error"]["param"], Value::Null);
                    if dialect == Dialect::Responses {
                        assert!(event.starts_with("event: error\n"));
                        assert_eq!(data["type"], "error");
                        let passes = matches!(
                            reason,
                            Reason::Auth
                                | Reason::Billing
                                | Reason::RateLimit
                                | Reason::Overloaded
                                | Reason::ServerError
                                | Reason::Timeout
                                | Reason::ContextOverflow
                                | Reason::Network
                                | Reason::Exhausted
                                | Reason::SpendCap
                        );
                        let code = if passes { openai } else { "invalid_prompt" };
                        assert_eq!(data["code"], code, "{reason}");
                    } else {
                        assert_eq!(data, body);
                    }
                }
            }
        }
    }
}

#[test]
fn hints_and_whether_to_retry_are_passed_on() {
    let wait = Failure::new(Reason::RateLimit, "slow down")
        .with_retry_after(Some(Duration::from_nanos(1_499_000_001)));
    let (_, headers, _) = encoded(Dialect::OpenAi, &wait);
    assert_eq!(
        (&headers["retry-after"], &headers["retry-after-ms"]),
        (&"2".parse().unwrap(), &"1500".parse().unwrap())
    );
    assert!(!headers.contains_key("x-should-retry"));
    let never = wait.with_retry_after(Some(Duration::MAX));
    let (_, headers, _) = encoded(Dialect::OpenAi, &never);
    assert_eq!(headers["retry-after"], u64::MAX.to_string());
    let (_, headers, _) = encoded(Dialect::Anthropic, &Failure::new(Reason::Safety, "stop"));
    assert_eq!(headers["x-should-retry"], "false");
}

#[test]
fn the_callers_own_fault_has_the_providers_error_message() {
    let text = r#"{"error": {"message":"messages: too odd","type":"invalid_request_error","x":1}}"#;
    let upstream = |status: u16| {
        Upstream::response(StatusCode::from_u16(status).unwrap(), HeaderMap::new(), text)
            .with_dialect(Dialect::OpenAi)
    };
    let failure = Failure::from_upstream(upstream(422));
    let (status, _, body) = codec(Dialect::OpenAi).encode_error(&failure, None);
    assert_eq!((status.as_u16(), &body[..]), (422, text.as_bytes()));

    let (status, _, body) = encoded(Dialect::Anthropic, &failure);
    assert_eq!(status.as_u16(), 422);
    assert_eq!(body["error"]["message"], "messages: too odd", "in the caller's dialect");

    // The operator's key is not reported to the caller.
    let failure = Failure::from_upstream(upstream(401));
    let (status, _, body) = encoded(Dialect::OpenAi, &failure);
    assert_eq!((status.as_u16(), &body["error"]["code"]), (503, &"exhausted".into()));

    // An HTML page is no error of any dialect.
    let page = Upstream::response(StatusCode::BAD_REQUEST, HeaderMap::new(), "<html>sk-1</html>")
        .with_dialect(Dialect::OpenAi);
    let (_, _, body) = encoded(Dialect::OpenAi, &Failure::from_upstream(page));
    assert!(!body.to_string().contains("html"), "{body}");
}

#[test]
fn what_was_tried_is_reported_without_secrets() {
    let tried = [("a", Reason::RateLimit), ("b", Reason::Timeout)].map(|(name, reason)| {
        let failure = Failure::new(reason, "x").with_target(Target::new(name).with_model("m"));
        Attempt::from_failure(&failure)
    });
    let failure =
        Failure::new(Reason::Exhausted, "all targets failed, key sk-aaaaaaaaaaaaaaaaaaaaaa")
            .with_trail(tried.into());
    for dialect in Dialect::ALL {
        let (_, _, body) = encoded(dialect, &failure);
        let message = body["error"]["message"].as_str().unwrap();
        assert!(
            message.contains("a/m: rate_limit") && message.contains("b/m: timeout"),
            "{message}"
        );
        assert!(!message.contains("aaaa"), "{message}");
    }
}

#[test]
fn errors_of_invalid_requests_have_the_position() {
    for (dialect, body, wanted) in [
        (Dialect::OpenAi, "", "is not valid JSON"),
        (Dialect::OpenAi, "[]", "the request body is a list, but has to be an object"),
        (Dialect::OpenAi, r#"{"model":"m"}"#, "messages: is missing"),
        (Dialect::OpenAi, r#"{"messages":[]}"#, "model: is missing"),
        (
            Dialect::OpenAi,
            r#"{"model":"m","messages":{}}"#,
            "messages: is an object, but has to be a list",
        ),
        (
            Dialect::OpenAi,
            r#"{"model":"m","messages":["x"]}"#,
            "messages[0]: is a string, but has to be an object",
        ),
        (
            Dialect::OpenAi,
            r#"{"model":"m","messages":[{"role":"bot"}]}"#,
            "messages[0].role: `bot` is no role; one of system",
        ),
        (
            Dialect::OpenAi,
            r#"{"model":"m","messages":[{"role":"user","content":[{"type":7}]}]}"#,
            "messages[0].content[0].type: is a number",
        ),
        (
            Dialect::OpenAi,
            r#"{"model":"m","messages":[{"role":"user","content":[{"type":"image_url","image_url":{}}]}]}"#,
            "messages[0].content[0].image_url.url: is missing",
        ),
        (
            Dialect::OpenAi,
            r#"{"model":"m","messages":[{"role":"assistant","tool_calls":[{"id":"a","function":{}}]}]}"#,
            "messages[0].tool_calls[0].function.name: is missing",
        ),
        (
            Dialect::OpenAi,
            r#"{"model":"m","messages":[{"role":"tool","content":"x"}]}"#,
            "messages[0].tool_call_id: is missing",
        ),
        (
            Dialect::OpenAi,
            r#"{"model":"m","messages":[],"max_tokens":-1}"#,
            "max_tokens: is a number, but has to be a whole number, not negative",
        ),
        (
            Dialect::OpenAi,
            r#"{"model":"m","messages":[],"stream":"yes"}"#,
            "stream: is a string, but has to be true or false",
        ),
        (Dialect::OpenAi, r#"{"model":"m","messages":[],"stop":[1]}"#, "stop[0]: is a number"),
        (
            Dialect::OpenAi,
            r#"{"model":"m","messages":[],"tools":[{"type":"function"}]}"#,
            "tools[0].function: is missing",
        ),
        (
            Dialect::OpenAi,
            r#"{"model":"m","messages":[],"tool_choice":"all"}"#,
            "tool_choice: `all` is no choice; one of auto",
        ),
        (
            Dialect::Anthropic,
            r#"{"model":"m","messages":[{"role":"user"}]}"#,
            "messages[0].content: is missing",
        ),
        (
            Dialect::Anthropic,
            r#"{"model":"m","messages":[{"role":"user","content":[{"type":"tool_use","id":"x","name":"f","input":"{}"}]}]}"#,
            "messages[0].content[0].input: is a string, but has to be an object",
        ),
        (
            Dialect::Anthropic,
            r#"{"model":"m","messages":[{"role":"user","content":[{"type":"image","source":{"type":"base64"}}]}]}"#,
            "messages[0].content[0].source.media_type: is missing",
        ),
        (Dialect::Anthropic, r#"{"model":"m","messages":[],"system":7}"#, "system: is a number"),
        (
            Dialect::Anthropic,
            r#"{"model":"m","messages":[],"thinking":{"type":"enabled"}}"#,
            "thinking.budget_tokens: is missing",
        ),
        (
            Dialect::Anthropic,
            r#"{"model":"m","messages":[],"tool_choice":{"type":"all"}}"#,
            "tool_choice.type: `all` is no choice",
        ),
        (Dialect::Gemini, r#"{"contents":{}}"#, "contents: is an object, but has to be a list"),
        (
            Dialect::Gemini,
            r#"{"contents":[{"role":"bot"}]}"#,
            "contents[0].role: `bot` is no role; one of user, model",
        ),
        (
            Dialect::Gemini,
            r#"{"contents":[{"parts":[{}]}]}"#,
            "contents[0].parts[0]: has no content",
        ),
        (
            Dialect::Gemini,
            r#"{"contents":[{"parts":[{"inline_data":{}}]}]}"#,
            "contents[0].parts[0].inline_data.mimeType: is missing",
        ),
        (
            Dialect::Gemini,
            r#"{"contents":[],"generationConfig":{"topK":"many"}}"#,
            "generationConfig.topK: is a string",
        ),
        (
            Dialect::Gemini,
            r#"{"contents":[],"tools":[{"functionDeclarations":[{"description":"x"}]}]}"#,
            "tools[0].functionDeclarations[0].name: is missing",
        ),
    ] {
        let body = bytes::Bytes::copy_from_slice(body.as_bytes());
        let error =
            codec(dialect).decode_request(&body, crate::fixtures::route(dialect)).unwrap_err();
        assert!(error.to_string().contains(wanted), "{dialect}: {error}, wanted {wanted}");
        let (status, _, answer) = encoded(dialect, &Failure::from(error));
        assert_eq!(status, StatusCode::BAD_REQUEST);
        assert!(answer["error"]["message"].as_str().unwrap().contains(wanted));
    }
}
