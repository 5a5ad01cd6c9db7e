//! What is made of texts and names that no table has, one mechanism at a time.

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
fn says(status: Option<u16>, body: &str, reason: &str, retry: bool) {
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
    says(None, "Hold your horses, please try again in 20s.", "rate_limit", true);
    says(None, "Hold your horses.", "unknown", false);
    says(Some(400), "Hold your horses, please try again in 20s.", "format", false);
}

#[test]
fn a_window_that_opens_soon_is_waited_for() {
    says(None, "All accounts are used up (reset after 3s)", "rate_limit", true);
    says(None, "All accounts are used up (reset after 4h12m)", "rate_limit", false);
    // A relay says so of everything.
    says(Some(400), "Thought signature is not valid (reset after 30s)", "format", false);
}

#[test]
fn unknown_names_are_taken_apart_where_nothing_else_is_known() {
    says(None, "EngineTimeoutError: x", "timeout", true);
    says(
        Some(500),
        r#"{"error":{"code":"upstream_quota_exceeded","message":"x"}}"#,
        "rate_limit",
        true,
    );
    // A server calls it the caller's fault: its own trouble does not count.
    says(Some(400), r#"{"error":{"code":"no_db_connection","message":"x"}}"#, "format", false);
}

#[test]
fn the_status_behind_a_relays_own_counts() {
    says(Some(502), "HTTP 502: upstream: API error 410: Gone", "model_not_found", false);
    says(Some(502), "HTTP 502: upstream answered nothing in 410 words", "server_error", true);
}

#[test]
fn credentials_that_could_not_be_checked_are_not_wrong() {
    says(None, "Credentials validation failed with status code 401", "auth", false);
    says(None, "Credentials validation failed with status code 503", "overloaded", true);
}

#[test]
fn typeset_quotes_are_quotes() {
    says(
        None,
        "{“error”：{“code”：“context_length_exceeded”，“message”：“x”}}",
        "context_overflow",
        false,
    );
}
