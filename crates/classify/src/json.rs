//! One error as a line of JSON in, its verdict as a line of JSON out: what a command line and a
//! test corpus speak.

use std::borrow::Cow;

use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use steadfast_core::{Failover, RecoveryTable, Retry, time::millis};

use crate::{Classifier, Evidence, TransportErrorKind};

/// A line that could not be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// It is no JSON object of the expected shape.
    #[error(
        "not an error description: {0}; expected {{\"provider\":\"openai\",\"status\":429,\"headers\":{{}},\"body\":\"...\",\"transport\":null}}"
    )]
    Shape(#[from] serde_json::Error),
    /// The status is none.
    #[error("`{0}` is no HTTP status; expected a number from 100 to 999, or null")]
    Status(u64),
    /// A header has a name or value that HTTP does not allow.
    #[error("`{0}` is no HTTP header: its name or value has characters that are not allowed")]
    Header(String),
    /// The transport failure has an unknown name.
    #[error(
        "`{0}` is no transport failure; one of connect, dns, tls, certificate, reset, timeout, cancelled, protocol, or null"
    )]
    Transport(String),
}

#[derive(Deserialize)]
struct Line<'a> {
    #[serde(default, borrow)]
    provider: Option<Cow<'a, str>>,
    #[serde(default)]
    status: Option<u64>,
    #[serde(default)]
    headers: Option<std::collections::BTreeMap<String, Value>>,
    /// A string is the body itself; any other value is its JSON.
    #[serde(default)]
    body: Value,
    #[serde(default)]
    transport: Option<String>,
}

/// What is printed. Fine answers have a `null` reason.
#[derive(Serialize)]
struct Out<'a> {
    reason: Option<&'static str>,
    retry: bool,
    failover: bool,
    scope: Option<Value>,
    retry_after_ms: Option<u64>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    permanent: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    limit: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    requested: Option<u64>,
    evidence: &'a str,
}

/// Judges one line by the built-in rules.
///
/// ```
/// let line = r#"{"status":429,"body":{"error":{"code":"insufficient_quota"}}}"#;
/// let out = steadfast_classify::json::line(line)?;
/// assert!(out.starts_with(r#"{"reason":"billing","retry":false,"failover":true,"#));
/// # Ok::<(), steadfast_classify::json::Error>(())
/// ```
///
/// # Errors
///
/// When the line is not of the form named in [`Error::Shape`].
pub fn line(line: &str) -> Result<String, Error> {
    line_with(&Classifier::default(), line)
}

/// Judges one line by `classifier`.
///
/// # Errors
///
/// As [`line()`].
pub fn line_with(classifier: &Classifier, line: &str) -> Result<String, Error> {
    if !line.trim_start().starts_with('{') {
        return Err(Error::Shape(serde::de::Error::custom("it is no JSON object")));
    }
    let line: Line<'_> = serde_json::from_str(line)?;
    let body = match line.body {
        Value::Null => String::new(),
        Value::String(text) => text,
        other => other.to_string(),
    };
    let mut headers = HeaderMap::new();
    for (name, value) in line.headers.unwrap_or_default() {
        let values = match value {
            Value::Array(values) => values,
            other => vec![other],
        };
        for value in values {
            let text = match value {
                Value::String(text) => text,
                other => other.to_string(),
            };
            let bad = || Error::Header(name.chars().take(64).collect());
            headers.append(
                HeaderName::from_bytes(name.as_bytes()).map_err(|_| bad())?,
                HeaderValue::from_str(&text).map_err(|_| bad())?,
            );
        }
    }
    let mut evidence = Evidence::new(body.as_bytes()).with_headers(&headers);
    evidence.provider = line.provider.as_deref();
    if let Some(status) = line.status {
        let valid = u16::try_from(status).ok().and_then(|code| StatusCode::from_u16(code).ok());
        evidence.status = Some(valid.ok_or(Error::Status(status))?);
    }
    if let Some(name) = line.transport {
        let known = TransportErrorKind::from_name(&name);
        let unknown = || Error::Transport(name.chars().take(64).collect());
        evidence.transport = Some(known.ok_or_else(unknown)?);
    }
    Ok(classifier.table(|table| print(classifier, &evidence, table))?)
}

fn print(
    classifier: &Classifier,
    evidence: &Evidence<'_>,
    table: &RecoveryTable,
) -> Result<String, serde_json::Error> {
    let Some(verdict) = classifier.judge(evidence) else {
        return serde_json::to_string(&Out {
            reason: None,
            retry: false,
            failover: false,
            scope: None,
            retry_after_ms: None,
            permanent: false,
            limit: None,
            requested: None,
            evidence: "fine",
        });
    };
    let failover = verdict.failover(table);
    serde_json::to_string(&Out {
        reason: Some(verdict.reason.as_str()),
        retry: verdict.retry(table) == Retry::Yes,
        failover: !matches!(failover, Failover::Never | Failover::Forbidden),
        scope: Some(serde_json::to_value(verdict.scope(table))?),
        retry_after_ms: verdict.retry_after.map(millis),
        permanent: verdict.permanent,
        limit: verdict.window.and_then(|window| window.limit),
        requested: verdict.window.and_then(|window| window.requested),
        evidence: &verdict.evidence,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn out(text: &str) -> Value {
        serde_json::from_str(&line(text).unwrap()).unwrap()
    }

    #[test]
    fn bodies_are_text_or_json() {
        let text = out(r#"{"status":503,"body":"{\"error\":\"x\"}"}"#);
        let json = out(r#"{"status":503,"body":{"error":"x"}}"#);
        assert_eq!(text, json);
        assert_eq!(text["reason"], "overloaded");
        assert_eq!(text["retry"], true);
        assert_eq!(text["scope"], "model");
    }

    #[test]
    fn waits_are_milliseconds() {
        let out = out(r#"{"status":429,"headers":{"Retry-After":2}}"#);
        assert_eq!(out["retry_after_ms"], 2_000);
    }

    #[test]
    fn a_fine_answer_has_no_reason() {
        let out = out(
            r#"{"status":200,"body":{"choices":[{"message":{"content":"hi"},"finish_reason":"stop"}]}}"#,
        );
        assert_eq!(out["reason"], Value::Null);
        assert_eq!(out["retry"], false);
    }

    #[test]
    fn mistakes_are_named() {
        for (text, part) in [
            ("[]", "expected {\"provider\""),
            ("{\"status\":70000}", "`70000` is no HTTP status"),
            ("{\"headers\":{\"a b\":\"c\"}}", "`a b` is no HTTP header"),
            ("{\"transport\":\"pigeon\"}", "`pigeon` is no transport failure"),
        ] {
            let error = line(text).unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        }
    }

    #[test]
    fn a_wait_is_believed_for_an_hour_and_a_days_quota_for_a_day() {
        const ENDLESS: &str = "1000000000000000000";
        let daily = "Rate limit reached for gpt-4o on requests per day (RPD): Limit 200, Used 200.";
        let body =
            |message: &str| serde_json::json!({ "error": { "message": message } }).to_string();
        let (hour, day) = (3_600_000, 86_400_000);
        for (status, wait, message, expected) in [
            (429, "5", "slow down", 5_000),
            (429, ENDLESS, "slow down", hour),
            (429, "7200", "slow down", hour),
            (503, "7200", "down", hour),
            (500, ENDLESS, "down", hour),
            (401, ENDLESS, "invalid api key", hour),
            (429, "7200", daily, 7_200_000),
            (429, ENDLESS, daily, day),
            (402, "7200", "insufficient credits", 7_200_000),
            (402, ENDLESS, "insufficient credits", day),
        ] {
            let asked = serde_json::json!({
                "status": status,
                "headers": { "retry-after": wait },
                "body": body(message),
            });
            let out = out(&asked.to_string());
            assert_eq!(out["retry_after_ms"], expected, "{asked}: {out}");
        }
    }
}
