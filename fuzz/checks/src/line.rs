//! A line of JSON as `steadfast classify` reads it.

use serde_json::Value;
use steadfast_classify::json;

/// * A line that can not be read is refused with a message.
/// * Else the answer is one line of JSON with a known reason, the same each time.
/// * A body as JSON is classified as the same body as text.
pub fn run(data: &[u8]) {
    let Ok(line) = std::str::from_utf8(data) else { return };
    let out = match json::line(line) {
        Ok(out) => out,
        Err(error) => {
            let error = error.to_string();
            assert!(error.len() > 20 && error.len() <= 2 * line.len() + 512, "{error}");
            return;
        }
    };
    assert!(!out.contains('\n'));
    let value: Value = serde_json::from_str(&out).expect("JSON");
    for field in ["reason", "retry", "failover", "retry_after_ms", "evidence"] {
        assert!(value.get(field).is_some(), "{field} is missing in {out}");
    }
    match &value["reason"] {
        Value::Null => assert!(value["retry"] == false && value["evidence"] == "fine"),
        reason => {
            let reason = reason.as_str().expect("a word");
            assert!(reason.parse::<steadfast_core::Reason>().is_ok(), "{reason}");
        }
    }
    if value["retry_after_ms"].is_null() {
        assert_eq!(json::line(line).expect("as before"), out, "the same each time");
    }
    // Fields that are not read may be invalid in ways that no `Value` can be.
    let Ok(mut input) = serde_json::from_str::<Value>(line) else { return };
    let body = &input["body"];
    if body.is_object() || body.is_array() {
        input["body"] = body.to_string().into();
        let other = json::line(&input.to_string()).expect("a string is a body");
        if value["retry_after_ms"].is_null() {
            assert_eq!(other, out, "text and JSON are judged alike");
        }
    }
}
