//! The simulator's token counter: simple, exact and the same for every dialect.
//!
//! Input is counted from the request's JSON ([`count_tokens`]); output is counted in the pieces
//! in which an answer is streamed ([`pieces`]), so an output limit of *n* is *n* content events.

use serde_json::Value;

/// Tokens of a message, a tool or a content entry beyond its text.
pub const OVERHEAD: usize = 4;
/// Tokens of an image, whatever its size.
pub const IMAGE: usize = 1_000;
/// The most characters of a piece of output, white space in front included.
pub const PIECE: usize = 8;

/// Fields that contain no prompt text: names, ids, cache marks and signatures.
const FREE: &[&str] = &[
    "type",
    "role",
    "id",
    "tool_use_id",
    "tool_call_id",
    "cache_control",
    "signature",
    "thoughtSignature",
    "thought_signature",
    "media_type",
    "mimeType",
    "mime_type",
    "detail",
];

/// Fields whose value is a document of the caller's: counted as its compact JSON.
const DOCUMENTS: &[&str] = &[
    "input",
    "args",
    "response",
    "parameters",
    "parametersJsonSchema",
    "input_schema",
    "json_schema",
    "responseSchema",
];

/// Input tokens of a request body of any dialect.
///
/// Of `messages`, `contents`, `system`, `systemInstruction` (also in snake case) and `tools`:
/// four bytes of text are a token, rounded up for each text; each message or tool costs 4 more,
/// an image costs 1,000 whatever its size, tool inputs and schemas count as their compact JSON.
/// Roles, ids, cache marks and signatures are not counted.
///
/// ```
/// let body = serde_json::json!({"messages": [{"role": "user", "content": "12345678"}]});
/// assert_eq!(steadfast_sim::count_tokens(&body), 4 + 2);
/// ```
#[must_use]
pub fn count_tokens(body: &Value) -> usize {
    const COUNTED: [&str; 8] = [
        "messages",
        "contents",
        "system",
        "systemInstruction",
        "system_instruction",
        "input",
        "instructions",
        "tools",
    ];
    COUNTED
        .iter()
        .filter_map(|key| body.get(key))
        .map(|part| match part {
            Value::Array(entries) => {
                entries.iter().map(|entry| OVERHEAD + count(entry)).sum::<usize>()
            }
            other => OVERHEAD + count(other),
        })
        .sum()
}

fn count(value: &Value) -> usize {
    match value {
        Value::Null => 0,
        Value::Bool(_) | Value::Number(_) => 1,
        Value::String(text) => of_bytes(text.len()),
        Value::Array(entries) => entries.iter().map(count).sum(),
        Value::Object(fields) if is_image(value) => {
            // A caption beside an image is counted too.
            IMAGE + fields.get("text").map_or(0, count)
        }
        Value::Object(fields) => fields
            .iter()
            .filter(|(key, _)| !FREE.contains(&key.as_str()))
            .map(|(key, inner)| {
                if DOCUMENTS.contains(&key.as_str()) && inner.is_object() {
                    of_bytes(inner.to_string().len())
                } else {
                    count(inner)
                }
            })
            .sum(),
    }
}

/// Tokens of a text of so many bytes.
#[must_use]
pub fn of_bytes(bytes: usize) -> usize {
    bytes.div_ceil(4)
}

fn is_image(value: &Value) -> bool {
    ["image_url", "inlineData", "inline_data", "fileData", "file_data"]
        .iter()
        .any(|key| value.get(key).is_some())
        || (value.get("type").and_then(Value::as_str) == Some("image")
            && value.get("source").is_some())
}

/// Cuts a text into the pieces it is streamed in: white space and what follows it up to the
/// next white space, at most [`PIECE`] characters. Concatenated they are the text.
///
/// ```
/// let pieces: Vec<_> = steadfast_sim::tokens::pieces("to be, or not").collect();
/// assert_eq!(pieces, ["to", " be,", " or", " not"]);
/// ```
pub fn pieces(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let mut inside = false;
        let end = rest
            .char_indices()
            .enumerate()
            .find(|(n, (_, c))| {
                let boundary = inside && c.is_whitespace();
                inside |= !c.is_whitespace();
                boundary || *n == PIECE
            })
            .map_or(rest.len(), |(_, (at, _))| at);
        let (piece, tail) = rest.split_at(end);
        rest = tail;
        Some(piece)
    })
}

/// Output tokens of a text: the number of its pieces.
#[must_use]
pub fn count_output(text: &str) -> usize {
    pieces(text).count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn pieces_are_the_text_and_never_too_long() {
        for text in [
            "",
            " ",
            "a",
            "to be or not to be",
            "日本語のとても長い文章です",
            "x\n\n\n\n\n\n\n\n\n\ny",
            "🦀 🦀",
        ] {
            assert_eq!(pieces(text).collect::<String>(), text);
            assert!(pieces(text).all(|p| !p.is_empty() && p.chars().count() <= PIECE));
        }
    }

    #[test]
    fn each_part_counts_as_documented() {
        let cases = [
            (json!({}), 0),
            (json!({"messages": []}), 0),
            (json!({"model": "a-very-long-model-name"}), 0),
            (json!({"system": "12345"}), 4 + 2),
            (json!({"system": [{"type": "text", "text": "1234"}]}), 4 + 1),
            (
                json!({"messages": [{"role": "user", "content": [
                    {"type": "image", "source": {"type": "base64", "data": "AAAAAAAAAAAAAAAA"}}
                ]}]}),
                4 + 1_000,
            ),
            (
                json!({"messages": [{"role": "assistant", "content": [
                    {"type": "tool_use", "id": "toolu_1", "name": "read", "input": {"a": 1}}
                ]}]}),
                4 + 1 + 2,
            ),
            (
                json!({"contents": [{"role": "user", "parts": [{"text": "ab"}, {"text": "cd"}]}]}),
                4 + 2,
            ),
            (
                json!({"contents": [{"parts": [{"inlineData": {"mimeType": "image/png", "data": "AA"}}]}]}),
                1_004,
            ),
        ];
        for (body, tokens) in cases {
            assert_eq!(count_tokens(&body), tokens, "{body}");
        }
    }
}
