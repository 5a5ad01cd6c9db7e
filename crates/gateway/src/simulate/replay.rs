//! Calls as they came: from a log of the gateway's, or from a table.

use std::{
    fmt,
    path::Path,
    time::{Duration, SystemTime},
};

use serde_json::Value;

/// One call of a recording.
#[derive(Clone, Debug, PartialEq)]
pub struct Recorded {
    /// Since the first one.
    pub at: Duration,
    /// The model that was asked for, where it is known.
    pub model: Option<String>,
    /// Tokens of the request, where they are known.
    pub input: Option<u64>,
    /// Tokens of the answer, where they are known.
    pub output: Option<u64>,
    /// Whether the answer came in pieces.
    pub stream: bool,
}

/// Why a recording can not be read: the file, the line, and what is wrong there.
#[derive(Debug)]
pub struct ReplayError(String);

impl fmt::Display for ReplayError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for ReplayError {}

/// The columns of a table.
const COLUMNS: [&str; 5] = ["at", "model", "input_tokens", "output_tokens", "stream"];

/// Reads the recording in `file`, the first call first.
///
/// # Errors
///
/// When it can not be read, or has no call in it. Lines of a log that are about something else are passed over.
pub fn read_recording(file: &Path) -> Result<Vec<Recorded>, ReplayError> {
    let name = file.display();
    let text = std::fs::read_to_string(file)
        .map_err(|error| ReplayError(format!("{name} can not be read: {error}")))?;
    parse(&text).map_err(|why| ReplayError(format!("{name}: {why}")))
}

fn parse(text: &str) -> Result<Vec<Recorded>, String> {
    let is_log = text.trim_start().starts_with('{');
    let mut calls = if is_log { of_log(text) } else { of_table(text)? };
    calls.sort_by(|one, other| one.0.total_cmp(&other.0));
    let Some(&(first, _)) = calls.first() else {
        return Err(format!(
            "there is no call in it; a log has lines with `steadfast::gateway::request`, a table begins with {}",
            COLUMNS.join(",")
        ));
    };
    let since = |at: f64| Duration::try_from_secs_f64(at - first).unwrap_or_default();
    Ok(calls.into_iter().map(|(at, call)| Recorded { at: since(at), ..call }).collect())
}

/// Calls of a log: when each began, in seconds since 1970.
fn of_log(text: &str) -> Vec<(f64, Recorded)> {
    let lines = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let call = |line: Value| {
        // The fields stand beside the message, or in an object of their own.
        let get = |name: &str| match &line[name] {
            Value::Null => &line["fields"][name],
            value => value,
        };
        let ms = get("ms").as_f64()?;
        let model = get("model").as_str()?.to_owned();
        get("outcome").as_str()?;
        let at = seconds(get("timestamp").as_str()?)? - ms / 1e3;
        let call = Recorded {
            at: Duration::ZERO,
            model: Some(model).filter(|model| !model.is_empty()),
            input: get("input_tokens").as_u64(),
            output: get("output_tokens").as_u64(),
            stream: get("stream").as_bool().unwrap_or(false),
        };
        Some((at, call))
    };
    lines.filter_map(call).collect()
}

/// Seconds since 1970, or since anything else where it is a plain number.
fn seconds(text: &str) -> Option<f64> {
    if let Ok(number) = text.parse::<f64>() {
        return number.is_finite().then_some(number);
    }
    let at = humantime::parse_rfc3339_weak(text).ok()?;
    Some(at.duration_since(SystemTime::UNIX_EPOCH).ok()?.as_secs_f64())
}

/// Calls of a table with a head.
fn of_table(text: &str) -> Result<Vec<(f64, Recorded)>, String> {
    let mut lines = (1..).zip(text.lines()).filter(|(_, line)| !line.trim().is_empty());
    let Some((_, head)) = lines.next() else { return Ok(Vec::new()) };
    let head: Vec<&str> = head.split(',').map(str::trim).collect();
    if let Some(unknown) = head.iter().find(|name| !COLUMNS.contains(name)) {
        return Err(format!(
            "line 1: there is no column `{unknown}`; there are {}",
            COLUMNS.join(", ")
        ));
    }
    if !head.contains(&"at") {
        return Err(
            "line 1: the column `at` is missing: seconds, or times like 2026-11-27T10:00:00Z"
                .to_owned(),
        );
    }
    let mut calls = Vec::new();
    for (number, line) in lines {
        let values: Vec<&str> = line.split(',').map(str::trim).collect();
        let get = |name: &str| {
            let at = head.iter().position(|column| *column == name)?;
            values.get(at).copied().filter(|value| !value.is_empty())
        };
        let wrong =
            |name: &str| format!("line {number}: `{}` is no {name}", get(name).unwrap_or(""));
        let count =
            |name: &str| get(name).map(|value| value.parse().map_err(|_| wrong(name))).transpose();
        let at = get("at").and_then(seconds).ok_or_else(|| wrong("at"))?;
        let stream = match get("stream") {
            Some("true" | "1") => true,
            None | Some("false" | "0") => false,
            Some(_) => return Err(wrong("stream")),
        };
        let call = Recorded {
            at: Duration::ZERO,
            model: get("model").map(str::to_owned),
            input: count("input_tokens")?,
            output: count("output_tokens")?,
            stream,
        };
        calls.push((at, call));
    }
    Ok(calls)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_is_read_by_when_calls_began() {
        let log = r#"
{"timestamp":"2026-11-27T10:00:05.500Z","level":"INFO","message":"a request is over","model":"gpt-4o","stream":true,"outcome":"ok","ms":1500,"input_tokens":100,"output_tokens":20}
{"timestamp":"2026-11-27T10:00:05Z","level":"WARN","message":"something else"}
no json
{"timestamp":"2026-11-27T10:00:06Z","fields":{"message":"a request is over","model":"claude","stream":false,"outcome":"failed","ms":3000}}
"#;
        let calls = parse(log).unwrap();
        assert_eq!(calls.len(), 2);
        assert_eq!((calls[0].model.as_deref(), calls[0].at), (Some("claude"), Duration::ZERO));
        assert_eq!(calls[1].at, Duration::from_secs(1));
        assert_eq!((calls[1].input, calls[1].output, calls[1].stream), (Some(100), Some(20), true));
    }

    #[test]
    fn a_table_is_read_and_what_is_wrong_in_it_named() {
        let calls = parse("at,model,output_tokens,stream\n5,gpt-4o,30,true\n3.5,,,\n").unwrap();
        assert_eq!(calls[0].model, None);
        assert_eq!((calls[1].at, calls[1].output), (Duration::from_millis(1_500), Some(30)));
        for (text, part) in [
            ("", "no call in it"),
            ("at,model\n", "no call in it"),
            ("time\n1", "no column `time`"),
            ("model\nx", "`at` is missing"),
            ("at\nsoon", "line 2: `soon` is no at"),
            ("at,input_tokens\n1,many", "line 2: `many` is no input_tokens"),
            ("at,stream\n1,perhaps", "line 2: `perhaps` is no stream"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(part), "{text}: {error}");
        }
    }
}
