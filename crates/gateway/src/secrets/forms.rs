//! The ways in which a secret may be written.

use std::{collections::BTreeSet, fmt::Write};

use base64::{Engine, engine::general_purpose::STANDARD_NO_PAD};

use crate::escape;

/// What writers of JSON write as `\uXXXX` besides what they must: nothing; what means something in
/// HTML, as Go does; that and more, as .NET does.
const UNICODE: [&str; 3] = ["", "<>&", "\"&'+<>`"];

/// What writers of addresses leave as it is besides letters and digits: nothing; RFC 3986; a form;
/// JavaScript's `encodeURIComponent` and `encodeURI`; Python's `quote`.
const UNESCAPED: [&[u8]; 6] =
    [b"", b"-._~", b"*-._", b"-_.!~*'()", b"-_.!~*'();,/?:@&=+$#", b"_.-~/"];

/// Every form of `secret`: as it is, in JSON and in JSON within JSON, as Rust shows it, in an address,
/// and in base64.
pub(super) fn of(secret: &[u8]) -> BTreeSet<Vec<u8>> {
    let mut forms = BTreeSet::from([secret.to_vec()]);
    if let Ok(text) = std::str::from_utf8(secret) {
        forms.extend(json(text).into_iter().map(String::into_bytes));
        let shown = format!("{text:?}");
        forms.insert(shown[1..shown.len() - 1].into());
        forms.insert(escape::text(text).into_owned().into());
        forms.insert(escape::ascii(text).into_owned().into());
        forms.insert(escape::text(&shown[1..shown.len() - 1]).into_owned().into());
    }
    percent(secret, &mut forms);
    base64(secret, &mut forms);
    forms
}

fn json(text: &str) -> BTreeSet<String> {
    let mut forms = BTreeSet::new();
    for unicode in UNICODE {
        for [slash, ascii, upper] in switches() {
            forms.insert(json_string(text, &JsonStyle { unicode, slash, ascii, upper }));
        }
    }
    let plain = JsonStyle::default();
    let nested: Vec<_> = forms.iter().map(|form| json_string(form, &plain)).collect();
    forms.extend(nested);
    forms
}

/// Every setting of three switches.
fn switches() -> impl Iterator<Item = [bool; 3]> {
    (0..8u8).map(|bits| [1, 2, 4].map(|bit| bits & bit != 0))
}

/// How somebody writes JSON.
#[derive(Clone, Copy, Default)]
struct JsonStyle {
    /// Written as `\uXXXX` without need.
    unicode: &'static str,
    /// Whether `/` becomes `\/`.
    slash: bool,
    /// Whether what is not ASCII becomes `\uXXXX`.
    ascii: bool,
    /// Whether hexadecimal digits are in upper case.
    upper: bool,
}

/// What stands between the quotes.
fn json_string(text: &str, style: &JsonStyle) -> String {
    let mut out = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        match c {
            c if style.unicode.contains(c) => unicode(c, style.upper, &mut out),
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            '/' if style.slash => out.push_str("\\/"),
            c if c < ' ' || (style.ascii && !c.is_ascii()) => unicode(c, style.upper, &mut out),
            c => out.push(c),
        }
    }
    out
}

fn unicode(c: char, upper: bool, out: &mut String) {
    for unit in c.encode_utf16(&mut [0; 2]) {
        // Writing to a string does not fail.
        let _ = if upper { write!(out, "\\u{unit:04X}") } else { write!(out, "\\u{unit:04x}") };
    }
}

fn percent(secret: &[u8], forms: &mut BTreeSet<Vec<u8>>) {
    for unescaped in UNESCAPED {
        for (upper, plus) in [(false, false), (false, true), (true, false), (true, true)] {
            let mut out = String::with_capacity(secret.len() + 16);
            for byte in secret {
                let _ = match byte {
                    b' ' if plus => out.write_char('+'),
                    byte if byte.is_ascii_alphanumeric() || unescaped.contains(byte) => {
                        out.write_char(char::from(*byte))
                    }
                    byte if upper => write!(out, "%{byte:02X}"),
                    byte => write!(out, "%{byte:02x}"),
                };
            }
            forms.insert(out.into());
        }
    }
}

/// Base64 of something in which the secret stands: of each way in which it can be aligned, the
/// digits that depend on nothing else.
fn base64(secret: &[u8], forms: &mut BTreeSet<Vec<u8>>) {
    for before in 0..3 {
        let mut padded = vec![0; before];
        padded.extend_from_slice(secret);
        let digits = STANDARD_NO_PAD.encode(&padded).into_bytes();
        let (first, end) = ((before * 8).div_ceil(6), padded.len() * 8 / 6);
        let own = digits[first..end].to_vec();
        let url = own.iter().map(|digit| match digit {
            b'+' => b'-',
            b'/' => b'_',
            other => *other,
        });
        forms.insert(url.collect());
        forms.insert(own);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_has_the_forms_of_every_writer() {
        let secret = "a\"b/c\\d\u{e9}\u{1f980} +<";
        let forms = of(secret.as_bytes());
        for expected in [
            "a\"b/c\\d\u{e9}\u{1f980} +<",
            // serde_json, JavaScript
            r#"a\"b/c\\dé🦀 +<"#,
            // PHP
            r#"a\"b\/c\\d\u00e9\ud83e\udd80 +<"#,
            // Python
            r#"a\"b/c\\d\u00e9\ud83e\udd80 +<"#,
            // Go
            r#"a\"b/c\\dé🦀 +\u003c"#,
            // .NET
            r"a\u0022b/c\\d\u00E9\uD83E\uDD80 \u002B\u003C",
            // A provider's error in a relay's
            r#"a\\\"b/c\\\\dé🦀 +<"#,
            r#"a\\\"b/c\\\\d\\u00e9\\ud83e\\udd80 +<"#,
            // RFC 3986, a form, JavaScript, Python
            "a%22b%2Fc%5Cd%C3%A9%F0%9F%A6%80%20%2B%3C",
            "a%22b%2fc%5cd%c3%a9%f0%9f%a6%80%20%2b%3c",
            "a%22b%2Fc%5Cd%C3%A9%F0%9F%A6%80+%2B%3C",
            "a%22b/c%5Cd%C3%A9%F0%9F%A6%80%20+%3C",
            "a%22b/c%5Cd%C3%A9%F0%9F%A6%80%20%2B%3C",
        ] {
            assert!(forms.contains(expected.as_bytes()), "{expected}");
        }
    }

    #[test]
    fn what_needs_no_escape_has_few_forms() {
        let forms = of(b"sk-proj-0123456789_abc");
        let plain = forms.iter().filter(|form| form.starts_with(b"sk")).count();
        assert!(plain <= 5 && forms.len() <= 14, "{}", forms.len());
    }

    #[test]
    fn base64_is_found_wherever_the_secret_stands_in_it() {
        let forms = of(b"key:?>secret~");
        for before in ["", "u", "us", "use", "user:", "a longer text: "] {
            for after in ["", "\n", "!!", " and more"] {
                let text = format!("{before}key:?>secret~{after}");
                let standard = STANDARD_NO_PAD.encode(&text);
                let url = standard.replace('+', "-").replace('/', "_");
                for encoded in [standard, url] {
                    let found = |form: &Vec<u8>| {
                        let form = std::str::from_utf8(form).unwrap();
                        // Of 13 bytes hardly more than a digit at each end depends on others.
                        form.len() >= 15 && encoded.contains(form)
                    };
                    assert!(forms.iter().any(found), "{text:?}: {encoded}");
                }
            }
        }
    }

    #[test]
    fn bytes_that_are_no_text_have_forms_too() {
        let forms = of(b"secret\xff\xfe!");
        assert!(forms.contains(&b"secret%FF%FE%21"[..]) && forms.contains(&b"secret\xff\xfe!"[..]));
    }
}
