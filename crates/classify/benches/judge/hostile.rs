//! Bodies made to be slow, and what they cost in instructions.

use std::{hint::black_box, process::Command};

use http::StatusCode;
use steadfast_classify::{Classifier, Evidence};

/// What a body repeats, by name: between what begins it and what ends it.
const UNITS: [(&str, &str, &str, &str); 22] = [
    ("objects", "", "{\"error\":", ""),
    ("arrays", "", "[", ""),
    ("object-arrays", "", "[{", ""),
    ("bare-keys", "", "{a:", ""),
    ("open-braces", "", "{ ", ""),
    ("commas", "{", ",", ""),
    ("spaces", "{", " ", "\"a\":1}"),
    ("quotes", "{\"message\":", "\"", "}"),
    ("apostrophes", "{'message':", "'", "}"),
    ("backslashes", "{\"message\":\"", "\\\\", "\"}"),
    ("escaped-quotes", "{\"message\":\"", "\\\"", "\"}"),
    ("escaped-objects", "{\"message\":\"", "{\\\"message\\\":\\\"", "\"}"),
    ("unfinished-escapes", "{\"message\":\"", "\\u12", "\"}"),
    ("digits", "{\"message\":\"", "7", "\"}"),
    ("numbers", "{\"message\":\"", "429 ", "\"}"),
    ("near-misses", "{\"message\":\"", "rate limi prompt is too lon ", "\"}"),
    ("phrases", "{\"message\":\"", "model not rate limit context length ", "\"}"),
    ("colons", "{\"message\":\"", "a: b: ", "\"}"),
    ("strings", "{\"errors\":[", "\"no error\",", "]}"),
    ("messages", "{\"errors\":[", "{\"message\":\"a\",\"code\":\"b_c\"},", "]}"),
    ("events", "", "data: {\"a\":1}\n\n", ""),
    ("multi-byte", "{\"message\":\"", "错误“’", "\"}"),
];

/// Sizes between which the cost of a byte has to be the same: an error is read up to 64 KiB, an
/// answer to its end.
const SIZES: [(&str, u16, usize, usize); 2] = [("error", 400, 16, 64), ("answer", 200, 128, 1_024)];

/// How much more a byte of the larger body may cost.
const TOLERANCE: f64 = 1.1;

fn body(name: &str, bytes: usize) -> String {
    let (_, start, unit, end) =
        UNITS.iter().find(|unit| unit.0 == name).copied().unwrap_or_default();
    let count = bytes.saturating_sub(start.len() + end.len()) / unit.len().max(1);
    format!("{start}{}{end}", unit.repeat(count))
}

/// Judges one body: for `valgrind` to count.
pub(crate) fn judge_once(name: &str, size: &str) {
    let classifier = Classifier::new();
    let Some((kind, kib)) = size.split_once('-') else { return };
    let status = if kind == "error" { StatusCode::BAD_REQUEST } else { StatusCode::OK };
    let body = body(name, kib.parse::<usize>().unwrap_or(0) * 1_024);
    black_box(classifier.judge(&Evidence::new(body.as_bytes()).with_status(status)));
}

/// Counts the instructions of every hostile body at two sizes; the exit code says whether a byte
/// costs the same in both.
pub(crate) fn count() -> i32 {
    let mut code = 0;
    for (kind, _, small, large) in SIZES {
        println!("{kind:<20} {small:>9} KiB {large:>9} KiB   instructions a byte");
        let Some(empty) = instructions(UNITS[0].0, &format!("{kind}-0")) else {
            println!("`valgrind --tool=callgrind` can not be run: is valgrind installed?");
            return 2;
        };
        for (name, ..) in UNITS {
            let each = |kib: usize| {
                let whole = instructions(name, &format!("{kind}-{kib}"))?;
                Some(whole.saturating_sub(empty) as f64 / (kib * 1_024) as f64)
            };
            let (Some(few), Some(many)) = (each(small), each(large)) else {
                println!("  {name:<18} could not be counted");
                return 2;
            };
            let linear = many <= few * TOLERANCE + 0.5;
            let verdict = if linear { "" } else { "  NOT LINEAR" };
            println!("  {name:<18} {few:>13.1} {many:>13.1}{verdict}");
            code |= i32::from(!linear);
        }
    }
    code
}

/// The instructions of one judgement in a process of its own.
fn instructions(name: &str, size: &str) -> Option<u64> {
    let me = std::env::current_exe().ok()?;
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg(me)
        .args(["judge-once", name, size])
        .output()
        .ok()?;
    let report = String::from_utf8_lossy(&output.stderr);
    let line = report.lines().find_map(|line| line.split_once("Collected : "))?.1;
    line.trim().parse().ok()
}
