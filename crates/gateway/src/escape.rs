//! How texts that others wrote are shown: a provider's message, the name of a caller's task.
//!
//! What is not seen, or makes a text look like another one, is shown as its number: a terminal obeys
//! control characters, and an override of the writing direction makes `cod.exe` of `exe.doc`.

use std::{borrow::Cow, fmt::Write};

/// Whether `c` is shown as its number.
fn is_hidden(c: char) -> bool {
    matches!(c,
        // Control characters, ESC among them, which begins a terminal's commands.
        '\0'..='\u{1f}' | '\u{7f}'..='\u{9f}'
        // Marks and overrides of the writing direction.
        | '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
        // Without width, and so without trace.
        | '\u{ad}' | '\u{180e}' | '\u{200b}'..='\u{200d}' | '\u{2060}'..='\u{2065}' | '\u{206a}'..='\u{206f}'
        | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}'
        // Ends of lines.
        | '\u{2028}' | '\u{2029}')
}

/// `text` with `\u{202e}` for what can not be seen.
pub(crate) fn text(text: &str) -> Cow<'_, str> {
    replaced(text, is_hidden, |out, c| write!(out, "{}", c.escape_default()))
}

/// The same in ASCII, for headers.
pub(crate) fn ascii(text: &str) -> Cow<'_, str> {
    let is_shown = |c: char| !c.is_ascii() || is_hidden(c);
    replaced(text, is_shown, |out, c| write!(out, "{}", c.escape_default()))
}

/// A text of JSON, with the same meaning, in which such characters are escaped as JSON does it.
pub(crate) fn json(text: &str) -> Cow<'_, str> {
    // Outside of its strings JSON has line ends and tabs.
    let is_inside = |c: char| !matches!(c, '\n' | '\r' | '\t') && is_hidden(c);
    replaced(text, is_inside, |out, c| {
        c.encode_utf16(&mut [0; 2]).iter().try_for_each(|unit| write!(out, "\\u{unit:04x}"))
    })
}

/// A label's value of Prometheus' text format.
pub(crate) fn label(value: &str) -> String {
    text(value).replace('\\', "\\\\").replace('"', "\\\"")
}

fn replaced(
    text: &str,
    is_hidden: impl Fn(char) -> bool,
    show: impl Fn(&mut String, char) -> std::fmt::Result,
) -> Cow<'_, str> {
    let is_plain = |byte| matches!(byte, b' '..=b'~');
    if text.bytes().all(is_plain) || !text.contains(&is_hidden) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        if is_hidden(c) {
            // Writing to a string does not fail.
            let _ = show(&mut out, c);
        } else {
            out.push(c);
        }
    }
    Cow::Owned(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_can_not_be_seen_is_shown_as_its_number() {
        for (given, shown, in_json) in [
            ("plain", "plain", "plain"),
            ("a \"b\" \\c", "a \"b\" \\c", "a \"b\" \\c"),
            (
                "caf\u{e9} \u{6f22}\u{5b57} \u{1f600}",
                "caf\u{e9} \u{6f22}\u{5b57} \u{1f600}",
                "caf\u{e9} \u{6f22}\u{5b57} \u{1f600}",
            ),
            ("\u{1b}[31mred", "\\u{1b}[31mred", "\\u001b[31mred"),
            ("\u{9b}31m", "\\u{9b}31m", "\\u009b31m"),
            ("a\u{7f}\u{0}", "a\\u{7f}\\u{0}", "a\\u007f\\u0000"),
            ("exe\u{202e}cod", "exe\\u{202e}cod", "exe\\u202ecod"),
            ("\u{2066}a\u{2069}", "\\u{2066}a\\u{2069}", "\\u2066a\\u2069"),
            ("\u{200e}\u{200f}\u{61c}", "\\u{200e}\\u{200f}\\u{61c}", "\\u200e\\u200f\\u061c"),
            ("pay\u{200b}pal", "pay\\u{200b}pal", "pay\\u200bpal"),
            (
                "\u{200c}\u{200d}\u{2060}\u{feff}",
                "\\u{200c}\\u{200d}\\u{2060}\\u{feff}",
                "\\u200c\\u200d\\u2060\\ufeff",
            ),
            ("a\u{2028}b\u{2029}", "a\\u{2028}b\\u{2029}", "a\\u2028b\\u2029"),
            ("tag\u{e0041}", "tag\\u{e0041}", "tag\\udb40\\udc41"),
        ] {
            assert_eq!(text(given), shown, "{given:?}");
            assert_eq!(json(given), in_json, "{given:?}");
            assert!(ascii(given).bytes().all(|byte| matches!(byte, b' '..=b'~')), "{given:?}");
        }
        assert_eq!(text("a\r\nb\tc"), "a\\r\\nb\\tc");
        assert_eq!(ascii("caf\u{e9}"), "caf\\u{e9}");
        assert_eq!(label("a\"b\\c\n\u{202e}"), "a\\\"b\\\\c\\\\n\\\\u{202e}");
    }

    #[test]
    fn escaped_json_means_the_same() {
        let given = serde_json::json!({ "a\u{202e}": ["\u{200b}x\ny", "\u{e0041}", "\u{2028}"] });
        for text in [given.to_string(), format!("{given:#}")] {
            let shown = json(&text);
            assert!(!shown.contains(['\u{202e}', '\u{200b}', '\u{2028}', '\u{e0041}']), "{shown}");
            assert_eq!(serde_json::from_str::<serde_json::Value>(&shown).unwrap(), given);
        }
    }
}
