//! Answers with a status of success: what in them is a failure, and whose.

#![allow(clippy::expect_used, clippy::unwrap_used, reason = "helpers of tests are tests")]

use http::StatusCode;
use steadfast_classify::{Classifier, Evidence, Verdict};
use steadfast_core::{Failure, FaultSide, Reason, RecoveryTable, Retry, Scope, Target, Upstream};

fn judge(body: &str) -> Option<Verdict> {
    let evidence = Evidence::new(body.as_bytes()).with_status(StatusCode::OK);
    Classifier::default().judge(&evidence)
}

/// Bodies and streams that ended as they should.
const ANSWERS: [&str; 13] = [
    // Nothing in them.
    r#"{"choices":[{"message":{"role":"assistant","content":null},"finish_reason":"stop"}]}"#,
    r#"{"choices":[{"message":{"role":"assistant","content":""},"finish_reason":"stop"}]}"#,
    r#"{"type":"message","content":[],"stop_reason":"end_turn"}"#,
    r#"{"candidates":[{"content":{"role":"model"},"finishReason":"STOP"}]}"#,
    "data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n",
    "event: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"end_turn\"}}\n\nevent: message_stop\ndata: {\"type\":\"message_stop\"}\n\n",
    "data: {\"candidates\":[{\"finishReason\":\"STOP\"}]}\n\n",
    // A reason nobody knows, a refusal, and a half of a character.
    r#"{"choices":[{"message":{"content":"a"},"finish_reason":"tired"}]}"#,
    r#"{"type":"message","content":[],"stop_reason":"tired"}"#,
    r#"{"candidates":[{"content":{"parts":[]},"finishReason":"TIRED"}]}"#,
    r#"{"choices":[{"message":{"content":null,"refusal":"No."},"finish_reason":"stop"}]}"#,
    r#"{"choices":[{"message":{"content":"\ud83d"},"finish_reason":"stop"}]}"#,
    // Calls are an answer, whatever Google calls the end.
    r#"{"candidates":[{"content":{"parts":[{"functionCall":{"name":"f","args":{}}}]},"finishReason":"OTHER"}]}"#,
];

#[test]
fn an_answer_is_an_answer() {
    for body in ANSWERS {
        assert_eq!(judge(body), None, "{body}");
    }
}

#[test]
fn a_refusal_is_handed_on_by_who_hands_on_answers() {
    for body in [
        r#"{"type":"message","content":[],"stop_reason":"refusal"}"#,
        r#"{"choices":[{"message":{"content":""},"finish_reason":"content_filter"}]}"#,
        r#"{"candidates":[{"finishReason":"SAFETY"}]}"#,
        r#"{"candidates":[{"content":{"parts":[{"text":"a"}]},"finishReason":"SAFETY"}]}"#,
        r#"{"promptFeedback":{"blockReason":"PROHIBITED_CONTENT"}}"#,
        r#"{"promptFeedback":{"blockReason":"OTHER"}}"#,
        r#"{"promptFeedback":{"blockReason":"TIRED"}}"#,
    ] {
        let verdict = judge(body).expect(body);
        assert_eq!(verdict.reason, Reason::ContentFilter, "{body}");
        assert!(verdict.is_stop(), "{body}");
    }
}

#[test]
fn what_the_model_wrote_wrong_is_not_the_callers_fault() {
    for body in [
        r#"{"candidates":[{"content":{},"finishReason":"MALFORMED_FUNCTION_CALL"}]}"#,
        r#"{"candidates":[{"finishReason":"UNEXPECTED_TOOL_CALL"}]}"#,
        "data: {\"candidates\":[{\"finishReason\":\"MALFORMED_RESPONSE\"}]}\n\n",
    ] {
        let failure = judge(body).expect(body).into_failure(&RecoveryTable::default());
        assert_eq!(failure.reason(), Reason::ServerError, "{body}");
        assert_eq!((failure.fault(), failure.retry()), (FaultSide::Model, Retry::Yes), "{body}");
        assert_eq!(failure.scope(), Scope::Request, "the target is fine");

        // The same when a client found it.
        let upstream = Upstream::event(body.as_bytes());
        let failure = Failure::from_upstream(upstream).with_reason(Reason::ServerError);
        let judged = Classifier::default().failure(failure, Some(&Target::new("gemini")));
        assert_eq!((judged.reason(), judged.scope()), (Reason::ServerError, Scope::Request));
    }
}
