//! How long a judgement takes: `cargo bench -p steadfast-classify`.
//!
//! Prints nanoseconds and allocations for typical error bodies, for the payloads of the test
//! corpus, for an answer and for one event of a stream, and nanoseconds a byte for bodies of
//! growing size, which have to be the same. Names behind `--` choose rows.
//!
//! `-- instructions` counts instead of timing (with `valgrind`, which has to be installed): how
//! many instructions a byte of a hostile body costs, at two sizes. It fails when the larger one
//! costs more for each byte, on a machine however busy.

mod corpus;
mod event;
mod hostile;

use std::hint::black_box;

use allocation_counter::measure;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use steadfast_classify::{Classifier, Evidence};
use tokio::time::Instant;

/// Typical bodies: name, status, body.
const TYPICAL: [(&str, u16, &str); 8] = [
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

fn main() {
    let names: Vec<String> = std::env::args().skip(1).filter(|name| name != "--bench").collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    match names[..] {
        ["instructions"] => std::process::exit(hostile::count()),
        ["judge-once", name, size] => hostile::judge_once(name, size),
        _ => {
            let chosen = |row: &str| names.is_empty() || names.contains(&row);
            if chosen("typical") {
                typical();
            }
            if chosen("corpus") {
                corpus::run();
            }
            if chosen("event") {
                event::run();
            }
            if chosen("size") {
                sizes();
            }
        }
    }
}

fn typical() {
    let classifier = Classifier::new();
    for (name, status, body) in TYPICAL {
        let status = StatusCode::from_u16(status).unwrap_or_default();
        let evidence = Evidence::new(body.as_bytes()).with_status(status);
        let nanos = time(&classifier, &evidence);
        let allocations = allocations(&classifier, &evidence);
        println!("{name:<22} {:>5} bytes {nanos:>8.0} ns {allocations:>3} allocations", body.len());
        if name == "openai rate limit" {
            headers();
        }
    }
}

/// As an OpenAI 429 has them.
const HEADERS: [(&str, &str); 20] = [
    ("date", "Sat, 21 Nov 2026 13:58:09 GMT"),
    ("content-type", "application/json; charset=utf-8"),
    ("content-length", "294"),
    ("vary", "Origin"),
    ("x-ratelimit-limit-requests", "10000"),
    ("x-ratelimit-limit-tokens", "30000"),
    ("x-ratelimit-remaining-requests", "9999"),
    ("x-ratelimit-remaining-tokens", "0"),
    ("x-ratelimit-reset-requests", "8.64s"),
    ("x-ratelimit-reset-tokens", "9.816s"),
    ("x-request-id", "req_0b1c7d9a2f3e4d5c6b7a8990a1b2c3d4"),
    ("openai-organization", "org-x"),
    ("openai-processing-ms", "3"),
    ("openai-version", "2020-10-01"),
    ("strict-transport-security", "max-age=31536000; includeSubDomains; preload"),
    ("cf-cache-status", "DYNAMIC"),
    ("x-content-type-options", "nosniff"),
    ("server", "cloudflare"),
    ("cf-ray", "9a1b2c3d4e5f6a7b-FRA"),
    ("alt-svc", "h3=\":443\"; ma=86400"),
];

/// A body with the headers that came with it.
fn headers() {
    let classifier = Classifier::new();
    let headers = HEADERS
        .into_iter()
        .map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)));
    let headers: HeaderMap = headers.collect();
    let (_, status, body) = TYPICAL[2];
    let status = StatusCode::from_u16(status).unwrap_or_default();
    let evidence = Evidence::new(body.as_bytes()).with_status(status).with_headers(&headers);
    println!("  with its headers     {:>18.0} ns", time(&classifier, &evidence));
}

fn sizes() {
    let classifier = Classifier::new();
    for kib in [1, 4, 16, 64] {
        let filler =
            "the model said many things about limits and tokens. ".repeat(kib * 1_024 / 52);
        let error =
            format!(r#"{{"error":{{"message":"{filler}","type":"invalid_request_error"}}}}"#);
        per_byte(&classifier, "an error", kib, 400, &error);
    }
    for kib in [1, 16, 256, 1_024] {
        let filler =
            "the model said many things about limits and tokens. ".repeat(kib * 1_024 / 52);
        let answer = format!(
            r#"{{"choices":[{{"message":{{"content":"{filler}"}},"finish_reason":"stop"}}]}}"#
        );
        per_byte(&classifier, "an answer", kib, 200, &answer);
    }
}

fn per_byte(classifier: &Classifier, what: &str, kib: usize, status: u16, body: &str) {
    let status = StatusCode::from_u16(status).unwrap_or_default();
    let nanos = time(classifier, &Evidence::new(body.as_bytes()).with_status(status));
    let each = nanos / body.len() as f64;
    println!("{what:<10} of {kib:>4} KiB     {nanos:>14.0} ns {each:>6.2} ns/byte");
}

/// The best of many short runs: what others on the machine add is not the code's.
fn time(classifier: &Classifier, evidence: &Evidence<'_>) -> f64 {
    let mut best = f64::INFINITY;
    let runs = (30_000 / (evidence.body.len() + 1_000)).max(1);
    let rounds = (4_000_000 / (runs * (evidence.body.len() + 1_000))).clamp(5, 200);
    for _ in 0..rounds {
        let began = Instant::now();
        for _ in 0..runs {
            black_box(classifier.judge(black_box(evidence)));
        }
        best = best.min(began.elapsed().as_nanos() as f64 / runs as f64);
    }
    best
}

fn allocations(classifier: &Classifier, evidence: &Evidence<'_>) -> u64 {
    measure(|| {
        black_box(classifier.judge(evidence));
    })
    .count_total
}
