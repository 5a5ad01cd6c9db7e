//! The payloads of the test corpus: what providers, relays and SDKs really send.

use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use serde::Deserialize;
use serde_json::{Map, Value};
use steadfast_classify::{Classifier, Evidence, TransportErrorKind};

/// Every file of the corpus.
const FILES: [&str; 13] = [
    include_str!("../../tests/data/errors.jsonl"),
    include_str!("../../tests/data/added.jsonl"),
    include_str!("../../tests/data/collected_01.jsonl"),
    include_str!("../../tests/data/collected_02.jsonl"),
    include_str!("../../tests/data/collected_03.jsonl"),
    include_str!("../../tests/data/collected_04.jsonl"),
    include_str!("../../tests/data/collected_05.jsonl"),
    include_str!("../../tests/data/collected_06.jsonl"),
    include_str!("../../tests/data/collected_07.jsonl"),
    include_str!("../../tests/data/collected_08.jsonl"),
    include_str!("../../tests/data/collected_09.jsonl"),
    include_str!("../../tests/data/collected_10.jsonl"),
    include_str!("../../tests/data/collected_11.jsonl"),
];

#[derive(Deserialize)]
struct Row {
    id: String,
    provider: String,
    status: Option<u16>,
    #[serde(default)]
    headers: Map<String, Value>,
    body: Value,
    transport: Option<String>,
    label: String,
}

struct Timed {
    nanos: f64,
    allocations: u64,
    bytes: usize,
    row: Row,
}

/// Times every payload and prints what the typical and the slowest ones take.
pub(crate) fn run() {
    let classifier = Classifier::new();
    let rows = FILES.iter().flat_map(|lines| lines.lines()).filter(|line| !line.trim().is_empty());
    let mut timed: Vec<Timed> = rows
        .filter_map(|line| serde_json::from_str(line).ok())
        .map(|row: Row| one(&classifier, row))
        .collect();
    timed.sort_by(|a, b| a.nanos.total_cmp(&b.nanos));
    let under = timed.iter().filter(|timed| timed.nanos < 2_000.0).count();
    println!("corpus                 {:>5} bodies, {under} of them under 2,000 ns", timed.len());
    for (name, share) in [("median", 0.5), ("p95", 0.95), ("p99", 0.99), ("worst", 1.0)] {
        let at = ((timed.len() as f64 * share).ceil() as usize).saturating_sub(1);
        let Some(Timed { nanos, allocations, bytes, row }) = timed.get(at) else { continue };
        println!(
            "  {name:<20} {bytes:>5} bytes {nanos:>8.0} ns {allocations:>3} allocations  {} ({})",
            row.id, row.label,
        );
    }
    let mut allocations: Vec<u64> = timed.iter().map(|timed| timed.allocations).collect();
    allocations.sort_unstable();
    println!("  allocations: median {}", allocations[allocations.len() / 2]);
    if std::env::var_os("SLOWEST").is_some() {
        for Timed { nanos, bytes, row, .. } in timed.iter().rev().take(30) {
            println!("{nanos:>8.0} ns {bytes:>5} bytes {}\n    {}", row.id, row.body);
        }
    }
}

fn one(classifier: &Classifier, row: Row) -> Timed {
    let body = match &row.body {
        Value::String(text) => text.clone(),
        Value::Null => String::new(),
        other => other.to_string(),
    };
    let mut headers = HeaderMap::new();
    for (name, value) in &row.headers {
        let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        if let (Ok(name), Ok(value)) =
            (HeaderName::from_bytes(name.as_bytes()), HeaderValue::from_str(&text))
        {
            headers.append(name, value);
        }
    }
    let mut evidence =
        Evidence::new(body.as_bytes()).with_headers(&headers).with_provider(&row.provider);
    evidence.status = row.status.and_then(|status| StatusCode::from_u16(status).ok());
    evidence.transport = row.transport.as_deref().and_then(TransportErrorKind::from_name);
    Timed {
        nanos: crate::time(classifier, &evidence),
        allocations: crate::allocations(classifier, &evidence),
        bytes: body.len(),
        row,
    }
}
