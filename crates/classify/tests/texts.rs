//! What is made of texts, names and envelopes, one mechanism at a time.

#![allow(clippy::expect_used, reason = "helpers of tests are tests")]

use serde_json::{Value, json};

fn verdict(status: Option<u16>, body: &str) -> Value {
    let input = json!({
        "provider": "proxy", "status": status, "headers": {}, "body": body, "transport": null,
    });
    let out = steadfast_classify::json::line(&input.to_string()).expect("a verdict");
    serde_json::from_str(&out).expect("JSON")
}

#[track_caller]
fn assert_verdict(status: Option<u16>, body: &str, reason: &str, retry: bool) {
    let verdict = verdict(status, body);
    assert_eq!(
        (verdict["reason"].as_str(), verdict["retry"].as_bool()),
        (Some(reason), Some(retry)),
        "{body}: {}",
        verdict["evidence"]
    );
}

#[test]
fn a_stated_wait_is_a_limit_whatever_it_is_called() {
    assert_verdict(None, "Hold your horses, please try again in 20s.", "rate_limit", true);
    assert_verdict(None, "Hold your horses.", "unknown", false);
    assert_verdict(Some(400), "Hold your horses, please try again in 20s.", "format", false);
}

#[test]
fn bare_texts_of_other_systems_are_known() {
    let known: [(&str, &[&str]); 4] = [
        (
            "safety",
            &[
                "loop detected",
                "Loop detected",
                "Error: loop detected",
                "Infinite loop detected in agent",
                "same file edited 5 times",
                "Agent stopped: safety limit reached",
                "Safety limit exceeded: too many tool calls, try again in 20s",
                "loop_detected",
            ],
        ),
        (
            "cancelled",
            &[
                "abort",
                "aborted",
                "Request aborted.",
                "AbortError: signal is aborted without reason",
                "user cancel",
                "User cancelled the request after a timeout",
                "user canceled",
                "Error: user abort",
                "user_cancelled",
            ],
        ),
        ("auth", &["authentication", "Authentication error", "Error: authentication"]),
        ("billing", &["billing", "Billing error", "Please check your billing"]),
    ];
    for (reason, texts) in known {
        for text in texts {
            assert_verdict(None, text, reason, false);
            let json = json!({ "error": { "message": text } }).to_string();
            assert_verdict(None, &json, reason, false);
            assert_verdict(Some(200), &json, reason, false);
        }
    }
    for text in ["at capacity", "Model at capacity", "We're at capacity, please try again later"] {
        assert_verdict(None, text, "overloaded", true);
    }
}

#[test]
fn a_bare_text_that_says_more_begins_with_it() {
    let more = "The assistant went round and round over the same few files for most of the afternoon, \
        and each time it came back with what it had before; nothing is gained by going on, so that \
        somebody should read the work before it goes on tomorrow.";
    assert_verdict(None, &format!("Loop detected. {more}"), "safety", false);
    assert_verdict(None, &format!("AgentError: safety limit reached. {more}"), "safety", false);
    assert_verdict(None, &format!("Aborted. {more}"), "cancelled", false);
    for text in ["loop detected", "user cancelled", "aborted", "billing", "authentication"] {
        assert_verdict(None, &format!("{more} {text}"), "unknown", false);
        assert_verdict(None, &format!("{more} {text} {more}"), "unknown", false);
    }
}

#[test]
fn a_bare_text_is_none_beside_a_status_a_code_or_what_broke() {
    for (text, reason, retry) in [
        ("HTTP 508 Loop Detected", "server_error", true),
        (
            r#"{"error":{"message":"loop detected","code":"rate_limit_exceeded"}}"#,
            "rate_limit",
            true,
        ),
        (r#"{"error":{"message":"aborted","type":"server_error"}}"#, "server_error", true),
        // gRPC's: a conflict, at the server.
        ("ABORTED", "server_error", true),
        ("too many redirects: redirect loop detected", "unknown", false),
        ("('Connection aborted.', RemoteDisconnected('closed'))", "network", true),
        ("The operation was aborted due to timeout", "timeout", true),
        ("stream aborted by the server", "unknown", false),
        ("Aborting after 3 failed attempts", "unknown", false),
        ("Authentication service timed out", "timeout", true),
        ("billing service unavailable", "overloaded", true),
    ] {
        assert_verdict(None, text, reason, retry);
    }
    for text in ["loop detected", "safety limit", "user cancelled", "aborted", "billing"] {
        assert_verdict(Some(500), text, "server_error", true);
        assert_verdict(Some(400), text, "format", false);
    }
}

#[test]
fn statuses_that_nobody_documents_are_tried_again_and_elsewhere() {
    for status in 500..=599 {
        // The method or the version: never there.
        if matches!(status, 501 | 505) {
            continue;
        }
        for body in ["", "oops", r#"{"error":{"message":"oops","type":"invalid_request_error"}}"#] {
            // Of a relay's 500 and 502 the body decides.
            if matches!(status, 500 | 502) && !body.is_empty() {
                continue;
            }
            let verdict = verdict(Some(status), body);
            let reason = match status {
                503 | 529 => "overloaded",
                504 | 524 => "timeout",
                _ => "server_error",
            };
            assert_eq!(verdict["reason"], reason, "{status} {body}");
            assert!(verdict["retry"] == true && verdict["failover"] == true, "{status} {body}");
        }
    }
    for (status, body, reason) in [
        (408, "", "timeout"),
        (408, r#"{"error":{"message":"x","type":"invalid_request_error"}}"#, "timeout"),
        (409, "", "server_error"),
        (
            409,
            r#"{"type":"error","error":{"type":"conflict_error","message":"x"}}"#,
            "server_error",
        ),
        (409, r#"{"error":{"message":"x","type":"invalid_request_error"}}"#, "server_error"),
        (425, "", "server_error"),
    ] {
        let verdict = verdict(Some(status), body);
        assert_eq!(verdict["reason"], reason, "{status} {body}");
        assert!(verdict["retry"] == true && verdict["failover"] == true, "{status} {body}");
    }
}

#[test]
fn a_window_that_opens_soon_is_waited_for() {
    assert_verdict(None, "All accounts are used up (reset after 3s)", "rate_limit", true);
    assert_verdict(None, "All accounts are used up (reset after 4h12m)", "rate_limit", false);
    // A relay says so of everything.
    assert_verdict(Some(400), "Thought signature is not valid (reset after 30s)", "format", false);
}

#[test]
fn unknown_names_are_taken_apart_where_nothing_else_is_known() {
    assert_verdict(None, "EngineTimeoutError: x", "timeout", true);
    assert_verdict(
        Some(500),
        r#"{"error":{"code":"upstream_quota_exceeded","message":"x"}}"#,
        "rate_limit",
        true,
    );
    // A server calls it the caller's fault: a failure of its own does not count.
    assert_verdict(
        Some(400),
        r#"{"error":{"code":"no_db_connection","message":"x"}}"#,
        "format",
        false,
    );
}

#[test]
fn the_status_behind_a_relays_own_counts() {
    assert_verdict(Some(502), "HTTP 502: upstream: API error 410: Gone", "model_not_found", false);
    assert_verdict(
        Some(502),
        "HTTP 502: upstream answered nothing in 410 words",
        "server_error",
        true,
    );
}

#[test]
fn credentials_that_could_not_be_checked_are_not_wrong() {
    assert_verdict(None, "Credentials validation failed with status code 401", "auth", false);
    assert_verdict(None, "Credentials validation failed with status code 503", "overloaded", true);
}

#[test]
fn typeset_quotes_are_quotes() {
    assert_verdict(
        None,
        "{“error”：{“code”：“context_length_exceeded”，“message”：“x”}}",
        "context_overflow",
        false,
    );
}

#[test]
fn white_space_within_a_phrase_does_not_matter() {
    for text in
        ["prompt is too long", "Prompt  is\ttoo\r\n   long", "prompt\u{a0}is\u{3000}too long"]
    {
        assert_verdict(None, text, "context_overflow", false);
        let json = json!({ "error": { "message": text } }).to_string();
        assert_verdict(Some(400), &json, "context_overflow", false);
    }
}

#[test]
fn numbers_are_whole() {
    for (text, reason, retry) in [
        ("request failed with status code 429", "rate_limit", true),
        ("request failed with status code 4290", "unknown", false),
        ("request failed with status code 429a", "unknown", false),
        ("request failed: item 1429", "unknown", false),
        ("x (os error 10054)", "network", true),
        ("x (os error 100540)", "unknown", false),
        ("come back, your 5-hour limit is over", "rate_limit", false),
        ("come back, the 2.5-hour limit is over", "unknown", false),
    ] {
        assert_verdict(None, text, reason, retry);
    }
}

#[test]
fn the_wording_of_a_throttle_is_no_overflow() {
    for text in [
        "too many tokens per minute",
        "too many tokens per min",
        "You exceeded the token limit: 30000 tokens per min",
        "the input token count is above 4000 tokens per minute",
        "maximum context size of the rate limit was reached",
    ] {
        assert_verdict(None, text, "rate_limit", true);
    }
    assert_verdict(Some(400), "too many tokens per minute", "rate_limit", true);
    assert_verdict(Some(413), "input is too long: tokens per minute", "rate_limit", true);
    assert_verdict(Some(400), "too many tokens", "context_overflow", false);
}

#[test]
fn envelopes_are_read_whatever_the_status_is() {
    for (body, reason, retry) in [
        // Arrays of errors, as of JSON:API.
        (json!({"errors":[{"code":"insufficient_quota","title":"x"}]}), "billing", false),
        (json!({"errors":[{"status":"429","detail":"x"}]}), "rate_limit", true),
        (json!({"errors":["the server is overloaded"]}), "overloaded", true),
        // A string.
        (json!({"error":"insufficient balance"}), "billing", false),
        (json!({"error":"rate_limit_exceeded"}), "rate_limit", true),
        (json!({"error":"{\"code\":\"context_length_exceeded\"}"}), "context_overflow", false),
        // Tencent's.
        (
            json!({"Response":{"Error":{"Code":"AuthFailure","Message":"x"},"RequestId":"y"}}),
            "auth",
            false,
        ),
        (json!({"Response":{"Error":{"Code":"LimitExceeded","Message":"x"}}}), "rate_limit", true),
        // Flat ones.
        (json!({"Code":"Throttling","Message":"x"}), "rate_limit", true),
        (json!({"status":"error","message":"the server is overloaded"}), "overloaded", true),
        (json!({"success":false,"message":"the server is overloaded"}), "overloaded", true),
    ] {
        let body = body.to_string();
        assert_verdict(Some(200), &body, reason, retry);
        assert_verdict(None, &body, reason, retry);
    }
    assert_eq!(
        verdict(Some(200), r#"{"errors":[{"code":"insufficient_quota"}]}"#)["evidence"],
        "code:insufficient_quota"
    );
}

#[test]
fn answers_that_only_resemble_an_envelope_are_fine() {
    for body in [
        r#"{"choices":[{"message":{"content":"x"},"finish_reason":"stop"}],"error":null}"#,
        r#"{"choices":[{"message":{"content":"x"},"finish_reason":"stop"}],"error":""}"#,
        r#"{"choices":[{"message":{"content":"x"},"finish_reason":"stop"}],"errors":[]}"#,
        r#"{"choices":[{"message":{"content":"x"},"finish_reason":"stop"}],"errors":[{"code":"x"}]}"#,
        r#"{"errors":[],"success":true,"result":{"errors":[{"code":1}]}}"#,
        r#"{"Response":{"RequestId":"x","Choices":[]}}"#,
        r#"{"Code":"Success","Message":"x","Output":{}}"#,
        r#"{"data":{"errors":["x"]},"code":0,"message":"ok"}"#,
    ] {
        assert_eq!(verdict(Some(200), body)["reason"], Value::Null, "{body}");
    }
}

#[test]
fn an_error_at_the_end_of_a_stream_is_read_without_its_event() {
    let first = "data: {\"choices\":[{\"delta\":{\"content\":\"a\"},\"finish_reason\":null}]}\n\n";
    for end in [
        "data: {\"error\":{\"code\":\"server_is_overloaded\"}}\n\n",
        "data: {\"error\":\"the server is overloaded\"}",
        "{\"error\":{\"code\":\"server_is_overloaded\"}}",
        "{\n  \"error\": {\n    \"code\": \"server_is_overloaded\"\n  }\n}\n\ndata: [DONE]\n\n",
        "data: {\"code\":\"server_is_overloaded\",\"message\":\"x\"}\n\n",
    ] {
        assert_verdict(Some(200), &format!("{first}{end}"), "overloaded", true);
    }
}

/// All that OpenAI's SDKs know (`ResponseError.code`), and what Codex's backend has besides.
#[test]
fn codes_of_a_response_that_failed_are_read() {
    for (code, reason, retry) in [
        ("server_error", "server_error", true),
        ("rate_limit_exceeded", "rate_limit", true),
        ("invalid_prompt", "content_filter", false),
        ("data_residency_mismatch", "unsupported", false),
        ("bio_policy", "content_filter", false),
        ("cyber_policy", "content_filter", false),
        ("misalignment_policy_violation", "content_filter", false),
        ("vector_store_timeout", "timeout", true),
        ("invalid_image", "format", false),
        ("invalid_image_format", "format", false),
        ("invalid_base64_image", "format", false),
        ("invalid_image_url", "format", false),
        ("image_too_large", "payload_too_large", false),
        ("image_too_small", "format", false),
        ("image_parse_error", "format", false),
        ("image_content_policy_violation", "content_filter", false),
        ("invalid_image_mode", "format", false),
        ("image_file_too_large", "payload_too_large", false),
        ("unsupported_image_media_type", "unsupported", false),
        ("empty_image_file", "format", false),
        ("failed_to_download_image", "format", true),
        ("image_file_not_found", "format", false),
        ("context_length_exceeded", "context_overflow", false),
        ("insufficient_quota", "billing", false),
        ("usage_not_included", "billing", false),
        ("server_is_overloaded", "overloaded", true),
        ("slow_down", "overloaded", true),
    ] {
        let error = format!(r#"{{"code":"{code}","message":"no"}}"#);
        assert_verdict(Some(200), &format!(r#"{{"error":{error}}}"#), reason, retry);
        let event = format!(
            "event: response.failed\ndata: {{\"type\":\"response.failed\",\"response\":{{\"status\":\
             \"failed\",\"error\":{error}}},\"sequence_number\":9}}\n\n"
        );
        assert_verdict(Some(200), &event, reason, retry);
    }
}

#[test]
fn socket_errors_of_windows_go_by_number() {
    for (number, name, reason) in [
        (10_051, "WSAENETUNREACH", "network"),
        (10_054, "WSAECONNRESET", "network"),
        (10_060, "WSAETIMEDOUT", "timeout"),
        (10_061, "WSAECONNREFUSED", "network"),
        (10_065, "WSAEHOSTUNREACH", "network"),
        (11_001, "WSAHOST_NOT_FOUND", "network"),
    ] {
        for text in [
            format!("Der Vorgang schlug fehl. (os error {number})"),
            format!("[WinError {number}] 操作失败"),
            format!("[Errno {number}] x"),
            format!("read failed: {name}"),
        ] {
            assert_verdict(None, &text, reason, true);
        }
        let code = json!({ "code": name }).to_string();
        assert_verdict(None, &code, reason, true);
        // A server that answered says more than its own connection.
        assert_verdict(Some(400), &format!("os error {number}"), "format", false);
    }
}
