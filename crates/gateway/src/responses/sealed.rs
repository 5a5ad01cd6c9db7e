//! What was compacted here, as an item that its caller keeps.
//!
//! Nobody but the caller has it, and it is the caller's own conversation: so it is packed, and not encrypted. A key
//! would make it unreadable after a restart, and at another gateway.

use base64::{Engine, prelude::BASE64_STANDARD};
use serde_json::json;

/// What it begins with.
const MARK: &str = "steadfast1.";

/// The `encrypted_content` of an item that stands for `text`.
pub(crate) fn seal(text: &str) -> String {
    format!("{MARK}{}", BASE64_STANDARD.encode(text))
}

/// The text that was sealed here; `None` for what is somebody else's.
pub(crate) fn open(sealed: &str) -> Option<String> {
    let bytes = BASE64_STANDARD.decode(sealed.strip_prefix(MARK)?).ok()?;
    String::from_utf8(bytes).ok()
}

/// The item that `text` is for every provider.
pub(super) fn item(text: &str) -> String {
    let content = json!([{"type": "input_text", "text": text}]);
    json!({"type": "message", "role": "user", "content": content}).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_sealed_here_opens_here_and_nothing_else_does() {
        for text in ["", "é\u{0}\n\"", &"x".repeat(100_000)] {
            assert_eq!(open(&seal(text)).as_deref(), Some(text));
        }
        for other in ["", "gAAAAAB", "steadfast1.?", "steadfast1./w==", "steadfast2.YQ=="] {
            assert_eq!(open(other), None, "{other}");
        }
    }
}
