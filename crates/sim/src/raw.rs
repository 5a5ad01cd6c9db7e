//! JSON documents with parts that must be sent byte for byte.

use serde_json::Value;

/// Keeps raw JSON out of a [`Value`] and puts it back when the document is written.
#[derive(Debug)]
pub(crate) struct Raw {
    nonce: String,
    parts: Vec<String>,
}

impl Raw {
    /// `nonce` must occur in no text of the document.
    pub(crate) fn new(nonce: String) -> Self {
        Self { nonce, parts: Vec::new() }
    }

    /// A placeholder for `json`.
    pub(crate) fn put(&mut self, json: &str) -> Value {
        self.parts.push(json.to_owned());
        Value::String(format!("{}:{}:", self.nonce, self.parts.len() - 1))
    }

    /// The document as compact JSON.
    pub(crate) fn write(&self, document: &Value) -> String {
        let mut text = document.to_string();
        for (n, part) in self.parts.iter().enumerate() {
            let stand_in = format!("\"{}:{n}:\"", self.nonce);
            if let Some(at) = text.find(&stand_in) {
                text.replace_range(at..at + stand_in.len(), part);
            }
        }
        text
    }
}

/// The arguments if they are a JSON object, else `{}`.
pub(crate) fn object_or_empty(arguments: &str) -> &str {
    match serde_json::from_str::<serde_json::Map<String, Value>>(arguments) {
        Ok(_) => arguments,
        Err(_) => "{}",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn raw_parts_keep_their_bytes() {
        let mut raw = Raw::new("n0nce".into());
        let (a, b) = (raw.put("{\"x\": 1.0,  \"x\": 1e5}"), raw.put("{}"));
        let text = raw.write(&json!({"a": a, "b": [b], "c": "n0nce"}));
        assert_eq!(text, "{\"a\":{\"x\": 1.0,  \"x\": 1e5},\"b\":[{}],\"c\":\"n0nce\"}");
    }
}
