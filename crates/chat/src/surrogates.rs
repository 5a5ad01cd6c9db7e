//! Halves of surrogate pairs in JSON.
//!
//! JSON writes a character beyond the first plane as two escapes, the halves of a surrogate pair:
//! `\ud83d\ude00`. A text that was cut between them has half of one: in a piece of a stream, whose
//! other half is in the next piece, or at the end of a text that somebody shortened. JSON's grammar
//! allows that, and most languages read it; serde_json refuses it as a string. It is nobody's
//! failure: text that is passed on keeps it, text that is read has U+FFFD for a half that stays
//! alone.
//!
//! ```
//! use steadfast_chat::surrogates::{read, repaired};
//!
//! let cut = r#"{"text":"cut \ud83d"}"#;
//! assert_eq!(repaired(cut), r#"{"text":"cut \ufffd"}"#);
//! let value: serde_json::Value = read(cut).unwrap();
//! assert_eq!(value["text"], "cut \u{fffd}");
//! ```

use std::borrow::Cow;

use serde::de::DeserializeOwned;

/// What stands for a lone half. It is as long as the half is.
const REPLACEMENT: &[u8] = br"\ufffd";

/// The bytes of `\uXXXX`.
const ESCAPE: usize = REPLACEMENT.len();

/// JSON text with U+FFFD for each half of a surrogate pair that stands alone. Nothing else changes,
/// not even the length.
pub fn repaired(json: &str) -> Cow<'_, str> {
    let mut repaired: Vec<u8> = Vec::new();
    let mut replace = |at: usize| {
        if repaired.is_empty() {
            repaired.extend_from_slice(json.as_bytes());
        }
        repaired[at..at + ESCAPE].copy_from_slice(REPLACEMENT);
    };
    let end = scan(json, &mut replace);
    // Nothing comes that could complete the last one.
    if unit(&json.as_bytes()[end..]).is_some() {
        replace(end);
    }
    match String::from_utf8(repaired) {
        Ok(repaired) if !repaired.is_empty() => Cow::Owned(repaired),
        _ => Cow::Borrowed(json),
    }
}

/// How much of a piece of JSON text is complete: all of it, or all before the escape at its end that
/// is cut, or is the first half of a surrogate pair. That is at most 11 bytes.
///
/// ```
/// use steadfast_chat::surrogates::complete;
///
/// for whole in ["", "abc", r"\n", r"\ud83d\ude00", r"\ud83d.", r"\\ud83d"] {
///     assert_eq!(complete(whole), whole.len(), "{whole}");
/// }
/// for cut in [r"a\ud83d", r"a\ud83d\", r"a\ud83d\ude", r"a\u00e", r"a\"] {
///     assert_eq!(complete(cut), 1, "{cut}");
/// }
/// ```
pub fn complete(piece: &str) -> usize {
    scan(piece, &mut |_| {})
}

/// Reads JSON in which halves of surrogate pairs may stand alone.
///
/// # Errors
///
/// When it does not have the shape of a `T`.
pub fn read<T: DeserializeOwned>(json: &str) -> Result<T, serde_json::Error> {
    serde_json::from_str(json).or_else(|error| match repaired(json) {
        Cow::Owned(repaired) => serde_json::from_str(&repaired),
        Cow::Borrowed(_) => Err(error),
    })
}

/// Calls `lone` with the position of each half that stands alone. Returns where the escape at the end
/// begins that is not complete, else the length.
fn scan(json: &str, lone: &mut impl FnMut(usize)) -> usize {
    // Few texts have one of these.
    if !json.contains("\\u") && !json.ends_with('\\') {
        return json.len();
    }
    let bytes = json.as_bytes();
    let mut at = 0;
    while let Some(found) = bytes[at..].iter().position(|byte| *byte == b'\\') {
        at += found;
        let rest = &bytes[at..];
        at += match unit(rest) {
            None if is_cut(rest) => return at,
            // Of another kind: what follows the backslash begins none.
            None => 2,
            Some(0xD800..=0xDBFF) => match &rest[ESCAPE..] {
                low if matches!(unit(low), Some(0xDC00..=0xDFFF)) => 2 * ESCAPE,
                cut if cut.is_empty() || is_cut(cut) => return at,
                _ => {
                    lone(at);
                    ESCAPE
                }
            },
            Some(0xDC00..=0xDFFF) => {
                lone(at);
                ESCAPE
            }
            Some(_) => ESCAPE,
        };
    }
    bytes.len()
}

/// The code unit of the escape at the start of `text`.
fn unit(text: &[u8]) -> Option<u16> {
    let digits = text.strip_prefix(b"\\u")?.get(..4)?;
    digits.iter().try_fold(0, |unit: u16, digit| {
        let digit = char::from(*digit).to_digit(16)?;
        Some((unit << 4) | u16::try_from(digit).ok()?)
    })
}

/// Whether `text` is the beginning of an escape and ends within it.
fn is_cut(text: &[u8]) -> bool {
    match text {
        [b'\\'] => true,
        [b'\\', b'u', digits @ ..] => digits.len() < 4 && digits.iter().all(u8::is_ascii_hexdigit),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::Value;

    use super::*;

    #[test]
    fn what_stands_alone_is_replaced_and_nothing_else() {
        for (json, wanted) in [
            (r#""""#, r#""""#),
            (r#""a\n\u00e9\"""#, r#""a\n\u00e9\"""#),
            (r#""\ud83d\ude00""#, r#""\ud83d\ude00""#),
            (r#""\uD83D\uDE00""#, r#""\uD83D\uDE00""#),
            (r#""\ud83d""#, r#""\ufffd""#),
            (r#""\ude00""#, r#""\ufffd""#),
            (r#""\ude00\ud83d""#, r#""\ufffd\ufffd""#),
            (r#""\ud83d\ud83d\ude00""#, r#""\ufffd\ud83d\ude00""#),
            (r#""\ud83d\n\ude00""#, r#""\ufffd\n\ufffd""#),
            (r#""\ud83dude00""#, r#""\ufffdude00""#),
            // A backslash, and then letters.
            (r#""\\ud83d""#, r#""\\ud83d""#),
            (r#""\\\ud83d""#, r#""\\\ufffd""#),
            (r#"{"\ud83d":["\ude00"]}"#, r#"{"\ufffd":["\ufffd"]}"#),
            // Text that has been cut itself.
            (r"\ud83d", r"\ufffd"),
            (r"\ud83d\ud", r"\ufffd\ud"),
            (r"\ud83", r"\ud83"),
            ("é\\", "é\\"),
            ("\\é", "\\é"),
        ] {
            assert_eq!(repaired(json), wanted, "{json}");
        }
        assert!(matches!(repaired(r#""\ud83d\ude00 é""#), Cow::Borrowed(_)));
    }

    #[test]
    fn what_is_no_json_stays_an_error() {
        for json in ["", "{", r#""\ud83d"#, r#""\q""#, r#"{"a":}"#] {
            assert!(read::<Value>(json).is_err(), "{json}");
        }
        assert!(read::<u64>(r#""\ud83d""#).is_err());
    }

    /// Pieces of JSON strings, halves among them.
    fn inside() -> impl Strategy<Value = String> {
        let piece = prop::sample::select(vec![
            r"\ud83d", r"\ude00", r"\uD83D", r"\n", r"\\", r"\u00e9", "u", "d83d", "é", "x",
        ]);
        prop::collection::vec(piece, 0..12).prop_map(|pieces| pieces.concat())
    }

    proptest! {
        #[test]
        fn any_string_can_be_read(inside in inside()) {
            let json = format!("\"{inside}\"");
            let repaired = repaired(&json);
            prop_assert_eq!(repaired.len(), json.len());
            let strict = serde_json::from_str::<String>(&json);
            let read = read::<String>(&json).unwrap();
            // Decoded as UTF-16, which has halves.
            let units: Vec<u16> = {
                let mut units = Vec::new();
                let mut rest = &*inside;
                while let Some(first) = rest.chars().next() {
                    let used = match (unit(rest.as_bytes()), rest.as_bytes()) {
                        (Some(unit), _) => {
                            units.push(unit);
                            6
                        }
                        (None, [b'\\', b'n', ..]) => {
                            units.push(10);
                            2
                        }
                        (None, [b'\\', ..]) => {
                            units.push(u16::from(b'\\'));
                            2
                        }
                        _ => {
                            units.extend(first.encode_utf16(&mut [0; 2]).iter());
                            first.len_utf8()
                        }
                    };
                    rest = &rest[used..];
                }
                units
            };
            prop_assert_eq!(&read, &String::from_utf16_lossy(&units));
            if let Ok(strict) = strict {
                prop_assert_eq!(read, strict);
            }
        }

        #[test]
        fn a_text_may_be_cut_anywhere(inside in inside(), cut in any::<prop::sample::Index>()) {
            let cut = (0..=cut.index(inside.len() + 1)).rev().find(|at| inside.is_char_boundary(*at));
            let (first, second) = inside.split_at(cut.unwrap());
            let end = complete(first);
            prop_assert!(first.len() - end <= 11);
            let both = repaired(&first[..end]).into_owned() + &repaired(&format!("{}{second}", &first[end..]));
            prop_assert_eq!(both, repaired(&inside));
        }

        #[test]
        fn any_text_is_bounded(text in "(\\\\|u|d|8|é|\"){0,30}") {
            prop_assert_eq!(repaired(&text).len(), text.len());
            prop_assert!(complete(&text) <= text.len());
        }
    }
}
