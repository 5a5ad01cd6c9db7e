//! How long a judgement takes: `cargo bench -p steadfast-classify`.
//!
//! Prints nanoseconds for typical error bodies and answers, and for bodies of growing size, whose
//! time per byte has to stay the same.

use std::hint::black_box;

use http::StatusCode;
use steadfast_classify::{Classifier, Evidence};
use tokio::time::Instant;

fn main() {
    let classifier = Classifier::new();
    let cases: [(&str, u16, &str); 8] = [
        (
            "anthropic overloaded",
            529,
            r#"{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"},"request_id":"req_011CSURy8kJA4QAXZjsnBj5N"}"#,
        ),
        (
            "openai quota",
            429,
            r#"{"error":{"message":"You exceeded your current quota, please check your plan and billing details. For more information on this error, read the docs: https://platform.openai.com/docs/guides/error-codes/api-errors.","type":"insufficient_quota","param":null,"code":"insufficient_quota"}}"#,
        ),
        (
            "openai rate limit",
            429,
            r#"{"error":{"message":"Rate limit reached for gpt-4 in organization org-x on tokens per min (TPM): Limit 10000, Used 8554, Requested 3082. Please try again in 9.816s. Visit https://platform.openai.com/account/rate-limits to learn more.","type":"tokens","param":null,"code":"rate_limit_exceeded"}}"#,
        ),
        (
            "anthropic overflow",
            400,
            r#"{"type":"error","error":{"type":"invalid_request_error","message":"prompt is too long: 213462 tokens > 200000 maximum"}}"#,
        ),
        (
            "gemini quota",
            429,
            r#"{"error":{"code":429,"message":"You exceeded your current quota, please check your plan.","status":"RESOURCE_EXHAUSTED","details":[{"@type":"type.googleapis.com/google.rpc.QuotaFailure","violations":[{"quotaId":"GenerateRequestsPerMinutePerProjectPerModel-FreeTier"}]},{"@type":"type.googleapis.com/google.rpc.RetryInfo","retryDelay":"34.4s"}]}}"#,
        ),
        (
            "nested",
            400,
            r#"{"error":{"message":"Provider returned error","code":400,"metadata":{"raw":"{\"error\":{\"type\":\"invalid_request_error\",\"message\":\"Model 'moonshotai/kimi-k2.6' supports at most 1 image per prompt.\"}}","provider_name":"Crucible"}}}"#,
        ),
        ("no body", 503, ""),
        (
            "success",
            200,
            r#"{"id":"chatcmpl-1","object":"chat.completion","choices":[{"index":0,"message":{"role":"assistant","content":"Hello! How can I help you today? I can write, explain, translate and more."},"finish_reason":"stop"}],"usage":{"prompt_tokens":9,"completion_tokens":12}}"#,
        ),
    ];
    for (name, status, body) in cases {
        let nanos = time(&classifier, status, body);
        println!("{name:<22} {:>5} bytes {nanos:>8.0} ns", body.len());
    }
    for kib in [1, 4, 16, 64] {
        let filler =
            "the model said many things about limits and tokens. ".repeat(kib * 1_024 / 52);
        let body =
            format!(r#"{{"error":{{"message":"{filler}","type":"invalid_request_error"}}}}"#);
        let nanos = time(&classifier, 400, &body);
        println!(
            "{kib:>3} KiB of message      {nanos:>12.0} ns {:>6.2} ns/byte",
            nanos / body.len() as f64
        );
    }
}

fn time(classifier: &Classifier, status: u16, body: &str) -> f64 {
    let status = StatusCode::from_u16(status).unwrap_or_default();
    let evidence = Evidence::new(body.as_bytes()).with_status(status);
    let mut best = f64::INFINITY;
    for _ in 0..20 {
        let runs = 2_000_000 / (body.len() + 1_000);
        let began = Instant::now();
        for _ in 0..runs {
            black_box(classifier.judge(black_box(&evidence)));
        }
        best = best.min(began.elapsed().as_nanos() as f64 / runs as f64);
    }
    best
}
