//! `steadfast why`: what became of a request.

use std::{borrow::Cow, fmt::Write as _};

use serde_json::Value;

use super::{Exit, WhyArgs, operator::Operator, print};
use crate::escape;

pub(super) fn run(args: &WhyArgs) -> Result<(), Exit> {
    let operator = Operator::of(&args.gateway)?;
    super::runtime().block_on(async {
        let Some(id) = &args.id else {
            let all = operator.get(&format!("/admin/requests?limit={}", args.limit)).await?;
            let all = all.ok_or_else(|| Exit::failed("this gateway remembers no requests"))?;
            let shown = if args.json { all.to_string() } else { list(&all) };
            return Ok(print::result(shown.trim_end())?);
        };
        let encoded: String = form_urlencoded::byte_serialize(id.as_bytes()).collect();
        let path = format!("/admin/requests/{}", encoded.replace('+', "%20"));
        let story = operator.get(&path).await?.ok_or_else(|| {
            Exit::failed(format_args!(
                "no request `{id}` is under way or remembered; `steadfast why` lists those that are"
            ))
        })?;
        let shown = if args.json { story.to_string() } else { story_text(&story) };
        Ok(print::result(shown.trim_end())?)
    })
}

/// A text in `value`, without what a terminal would obey.
fn text<'a>(value: &'a Value, name: &str) -> Option<Cow<'a, str>> {
    value[name].as_str().map(escape::text)
}

/// What somebody sees first of a request.
fn verdict(story: &Value) -> &'static str {
    match (story["outcome"].as_str(), story["recovered"].as_bool()) {
        (Some("ok"), Some(true)) => "recovered",
        (Some("ok"), _) => "answered",
        (Some("failed"), _) => "failed",
        (Some("cancelled"), _) => "cancelled",
        _ => "under way",
    }
}

/// A line a request.
pub(super) fn list(all: &Value) -> String {
    let mut out = String::new();
    let requests = all["requests"].as_array().map_or(&[][..], Vec::as_slice);
    for story in requests {
        let number = |name: &str| story[name].as_f64().unwrap_or(0.0).round();
        let _ = writeln!(
            out,
            "{:<24}  {:<10} {:>7} ms  {:>2} asked  {:<28} {:<18} {}",
            text(story, "at").unwrap_or_default(),
            verdict(story),
            number("ms"),
            number("asked"),
            text(story, "target").or_else(|| text(story, "model")).unwrap_or_default(),
            text(story, "reason").unwrap_or_default(),
            text(story, "id").unwrap_or_default(),
        );
    }
    if requests.is_empty() {
        out.push_str("no request is remembered\n");
    }
    out
}

/// All of a story: what it was, then what happened in its order.
pub(super) fn story_text(story: &Value) -> String {
    let mut out = String::new();
    let word = |name: &str| text(story, name);
    let _ = writeln!(
        out,
        "{} \u{b7} {} \u{b7} {}",
        word("id").unwrap_or_default(),
        verdict(story),
        word("at").unwrap_or_default()
    );
    let mut line = |name: &str, value: String| {
        let _ = writeln!(out, "  {name:<10}{value}");
    };
    let stream = if story["stream"] == true { ", in pieces" } else { "" };
    let model = word("model").unwrap_or_default();
    line("asked for", format!("{model} ({}{stream})", word("dialect").unwrap_or_default()));
    let who: Vec<String> = ["tenant", "key", "agent", "session", "task", "route"]
        .iter()
        .filter_map(|name| Some(format!("{name} {}", word(name)?)))
        .collect();
    if !who.is_empty() {
        line("by", who.join(", "));
    }
    if let Some(reason) = word("reason") {
        let because = word("evidence").map(|found| format!(" ({found})")).unwrap_or_default();
        let error = word("error").map(|error| format!(": {error}")).unwrap_or_default();
        line("failed", format!("{reason}{because}{error}"));
    }
    let asked = story["asked"].as_u64().unwrap_or(0);
    let times = if asked == 1 { "once" } else { "times" };
    let asked = if asked == 1 { times.to_owned() } else { format!("{asked} {times}") };
    let first = ms(&story["first_content_ms"]);
    let first = first.map(|first| format!("first content after {first}, ")).unwrap_or_default();
    let took = ms(&story["ms"]).unwrap_or_default();
    let last = word("target").map(|target| format!(", last {target}")).unwrap_or_default();
    line("providers", format!("asked {asked}{last}; {first}over after {took}"));
    if let Some(tokens) = tokens(&story["usage"]) {
        let cost = story["micro_dollars"].as_u64().unwrap_or(0) as f64 / 1e6;
        line("tokens", format!("{tokens}; all attempts together ${cost:.4}"));
    }
    if let Some(trace) = word("trace_id") {
        line("trace", trace.into_owned());
    }
    if let Some(left_out) = word("left_out") {
        line("left out", left_out.into_owned());
    }
    out.push('\n');
    let mut events = events(story);
    events.sort_by(|one, other| one.0.total_cmp(&other.0).then(one.1.cmp(&other.1)));
    for (at, _, what) in events {
        let _ = writeln!(out, "{:>8} ms  {what}", at.round());
    }
    if let Some(dropped @ 1..) = story["steps_dropped"].as_u64() {
        let _ = writeln!(out, "             and {dropped} steps more");
    }
    out
}

/// What happened: when, what comes first of the same moment, and a line.
fn events(story: &Value) -> Vec<(f64, u8, String)> {
    let mut events = Vec::new();
    for attempt in story["attempts"].as_array().into_iter().flatten() {
        let at = attempt["at_ms"].as_f64().unwrap_or(0.0);
        let number = attempt["number"].as_u64().unwrap_or(0);
        let target = text(attempt, "target").unwrap_or(Cow::Borrowed("the provider"));
        events.push((at, 1, format!("attempt {number}: asks {target}")));
        if let Some(first) = attempt["first_content_ms"].as_f64() {
            events.push((at + first, 2, format!("attempt {number}: first content")));
        }
        let Some(took) = attempt["ms"].as_f64() else { continue };
        let how = match attempt["outcome"].as_str() {
            Some("answered") => "answered whole".to_owned(),
            Some("failed") => {
                let reason = text(attempt, "reason").unwrap_or_default();
                let because = text(attempt, "evidence").map(|found| format!(" ({found})"));
                format!("FAILED, {reason}{}", because.unwrap_or_default())
            }
            _ => "not waited for any longer".to_owned(),
        };
        let bytes = match attempt["bytes"].as_u64() {
            Some(bytes @ 1..) => format!(", {bytes} bytes"),
            _ => String::new(),
        };
        let tokens = tokens(&attempt["usage"]).map(|tokens| format!(", {tokens}"));
        let tokens = tokens.unwrap_or_default();
        events.push((at + took, 3, format!("attempt {number}: {how}{bytes}{tokens}")));
    }
    for step in story["steps"].as_array().into_iter().flatten() {
        let at = step["at_ms"].as_f64().unwrap_or(0.0);
        let mut what = text(step, "step").unwrap_or_default().into_owned();
        for name in ["target", "reason"] {
            if let Some(value) = text(step, name) {
                let _ = write!(what, " {value}");
            }
        }
        if let Some(wait) = ms(&step["wait_ms"]) {
            let _ = write!(what, ", {wait}");
        }
        if let Some(detail) = text(step, "detail") {
            let _ = write!(what, ", {detail}");
        }
        events.push((at, 4, what));
    }
    events
}

fn ms(value: &Value) -> Option<String> {
    let ms = value.as_f64()?;
    Some(match ms {
        10_000.0.. => format!("{:.1} s", ms / 1e3),
        10.0.. => format!("{ms:.0} ms"),
        _ => format!("{} ms", (ms * 10.0).round() / 10.0),
    })
}

fn tokens(usage: &Value) -> Option<String> {
    let count = |name: &str| usage[name].as_u64();
    let (input, output) = (count("input"), count("output"));
    input.or(output)?;
    let cached = match count("cache_read") {
        Some(read @ 1..) => format!(" ({read} of a cache)"),
        _ => String::new(),
    };
    let (input, output) = (input.unwrap_or(0), output.unwrap_or(0));
    Some(format!("{input} in{cached}, {output} out"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_story_is_shown_in_its_order_and_without_control_characters() {
        let story = json!({
            "id": "r1", "at": "2026-11-27T10:00:00.000Z", "dialect": "openai", "model": "gpt\u{1b}[31m",
            "stream": true, "outcome": "ok", "recovered": true, "tenant": "team", "asked": 2,
            "target": "b/m", "ms": 12_345, "first_content_ms": 700,
            "usage": {"input": 10, "output": 5, "cache_read": 4}, "micro_dollars": 1_500,
            "attempts": [
                {"number": 1, "target": "a/m", "at_ms": 0, "ms": 120, "outcome": "failed",
                 "reason": "overloaded", "evidence": "status:503", "bytes": 0},
                {"number": 2, "target": "b/m", "at_ms": 620, "first_content_ms": 80, "ms": 300,
                 "outcome": "answered", "bytes": 900, "usage": {"input": 10, "output": 5}},
            ],
            "steps": [{"at_ms": 120, "step": "retry.retried", "target": "a/m", "reason": "overloaded", "wait_ms": 500}],
            "steps_dropped": 0,
        });
        let shown = story_text(&story);
        assert!(!shown.contains('\u{1b}'), "{shown}");
        let timeline: Vec<&str> = shown.split("\n\n").nth(1).unwrap().lines().collect();
        assert_eq!(
            timeline,
            [
                "       0 ms  attempt 1: asks a/m",
                "     120 ms  attempt 1: FAILED, overloaded (status:503)",
                "     120 ms  retry.retried a/m overloaded, 500 ms",
                "     620 ms  attempt 2: asks b/m",
                "     700 ms  attempt 2: first content",
                "     920 ms  attempt 2: answered whole, 900 bytes, 10 in, 5 out",
            ]
        );
        for part in [
            "r1 \u{b7} recovered",
            "asked 2 times, last b/m",
            "12.3 s",
            "(4 of a cache)",
            "$0.0015",
        ] {
            assert!(shown.contains(part), "{part}: {shown}");
        }
        assert!(list(&json!({"requests": [story]})).contains("recovered"));
        assert!(list(&json!({"requests": []})).contains("no request"));
    }
}
