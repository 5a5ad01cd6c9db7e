//! The parts of a result that change without being new: ids, times, temporary paths.

use crate::data::{ID_PREFIXES, TEMPORARY_PATHS, TIME_UNITS};

/// Reads `text` and passes its stable parts to `sink`: white space becomes one space, and each volatile
/// word one mark.
pub(crate) fn stable(text: &str, mut sink: impl FnMut(&str)) {
    let bytes = text.as_bytes();
    let mut at = 0;
    while at < bytes.len() {
        if let Some(end) = temporary(text, at) {
            sink("\u{1}");
            at = end;
        } else if is_word(bytes, at) {
            let end = word_end(bytes, at);
            let word = &text[at..end];
            sink(if is_volatile(word, &text[end..]) { "\u{1}" } else { word });
            at = end;
        } else if bytes[at].is_ascii_whitespace() {
            while bytes.get(at).is_some_and(u8::is_ascii_whitespace) {
                at += 1;
            }
            sink(" ");
        } else {
            // ASCII: every other byte is part of a word.
            sink(&text[at..=at]);
            at += 1;
        }
    }
}

fn is_word(bytes: &[u8], at: usize) -> bool {
    let byte = bytes[at];
    byte.is_ascii_alphanumeric() || byte == b'_' || !byte.is_ascii()
}

/// The end of the word that begins at `at`. Punctuation joins words only between two of a kind (`3.5`,
/// `12:30:05`, `req-9f`).
fn word_end(bytes: &[u8], at: usize) -> usize {
    let mut end = at + 1;
    while end < bytes.len() {
        let joins = match bytes[end] {
            b'.' | b'-' => end + 1 < bytes.len() && is_word(bytes, end + 1),
            b':' | b'+' => {
                bytes[end - 1].is_ascii_digit()
                    && bytes.get(end + 1).is_some_and(u8::is_ascii_digit)
            }
            _ => is_word(bytes, end),
        };
        if !joins {
            break;
        }
        end += 1;
    }
    end
}

/// The end of the temporary path that begins at `at`.
fn temporary(text: &str, at: usize) -> Option<usize> {
    let bytes = text.as_bytes();
    let is_slash = bytes[at] == b'/';
    // The colon of a drive is a part of the path.
    let drive = || bytes[at].is_ascii_alphabetic() && bytes.get(at + 1..at + 3) == Some(b":\\");
    if !(is_slash || drive()) || at > 0 && is_word(bytes, at - 1) {
        return None;
    }
    if is_slash {
        let known = TEMPORARY_PATHS.iter().any(|path| text[at..].starts_with(*path));
        return known.then(|| path_end(text, at));
    }
    let end = path_end(text, at + 3);
    text[at..end].contains("\\Temp\\").then_some(end)
}

/// The end of a path from `at` on: the first character that no path has.
fn path_end(text: &str, at: usize) -> usize {
    let ends =
        |c: char| c.is_whitespace() || matches!(c, '"' | '\'' | '`' | ',' | ';' | ')' | '>' | ':');
    text[at..].find(ends).map_or(text.len(), |end| at + end)
}

/// The first word of `text`, after white space.
fn next_word(text: &str) -> &str {
    let rest = text.trim_ascii_start();
    let rest = if rest.len() < text.len() { rest } else { "" };
    let end = rest.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(rest.len());
    &rest[..end]
}

/// Whether `word` is an id or a time; `rest` is what comes after it.
pub(crate) fn is_volatile(word: &str, rest: &str) -> bool {
    if word.len() > 128 || !word.bytes().any(|byte| byte.is_ascii_digit()) {
        return false;
    }
    is_uuid(word)
        || is_date(word)
        || is_clock(word)
        || is_duration(word)
        || is_epoch(word)
        || is_hex(word)
        || is_prefixed(word)
        || is_random(word)
        || (is_number(word) && TIME_UNITS.contains(&next_word(rest)))
}

fn is_number(word: &str) -> bool {
    word.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.')
}

/// Whether `text` has the digits (`9`), hexadecimal digits (`f`) and other characters of `shape`.
fn has_shape(text: Option<&str>, shape: &str) -> bool {
    text.is_some_and(|text| {
        let mut pairs = text.bytes().zip(shape.bytes());
        text.len() == shape.len()
            && pairs.all(|(byte, shape)| match shape {
                b'9' => byte.is_ascii_digit(),
                b'f' => byte.is_ascii_hexdigit(),
                other => byte == other,
            })
    })
}

fn is_uuid(word: &str) -> bool {
    has_shape(Some(word), "ffffffff-ffff-ffff-ffff-ffffffffffff")
}

/// `2026-11-21`, also followed by a time.
fn is_date(word: &str) -> bool {
    has_shape(word.get(..10), "9999-99-99") && matches!(word.as_bytes().get(10), None | Some(b'T'))
}

/// `17:28:17`, also with a fraction. Not `12:34`, which is as often a line and a column.
fn is_clock(word: &str) -> bool {
    ["99:99:99", "9:99:99"].iter().any(|shape| {
        has_shape(word.get(..shape.len()), shape)
            && word[shape.len()..].bytes().all(|b| b.is_ascii_digit() || matches!(b, b'.' | b'Z'))
    })
}

/// `12ms`, `3.42s`, `7m23s`.
fn is_duration(word: &str) -> bool {
    let Some(unit) = ["ns", "us", "µs", "ms", "s", "min"].iter().find(|unit| {
        word.strip_suffix(**unit).is_some_and(|rest| rest.ends_with(|c: char| c.is_ascii_digit()))
    }) else {
        return false;
    };
    let rest = &word[..word.len() - unit.len()];
    rest.bytes().all(|byte| byte.is_ascii_digit() || matches!(byte, b'.' | b'h' | b'm'))
}

/// Seconds or milliseconds since 1970, from 2001 to 2033.
fn is_epoch(word: &str) -> bool {
    let whole = word.split('.').next().unwrap_or(word);
    is_number(word) && whole.starts_with('1') && matches!(whole.len(), 10 | 13)
}

/// Eight or more hexadecimal digits, letters among them, or an address.
fn is_hex(word: &str) -> bool {
    if let Some(address) = word.strip_prefix("0x") {
        return address.len() >= 4 && address.bytes().all(|byte| byte.is_ascii_hexdigit());
    }
    word.len() >= 8
        && word.bytes().all(|byte| byte.is_ascii_hexdigit())
        && word.bytes().any(|byte| byte.is_ascii_alphabetic())
}

/// `req_01H8xyz`.
fn is_prefixed(word: &str) -> bool {
    let Some((prefix, id)) = word.split_once(['_', '-']) else { return false };
    id.len() >= 6
        && id.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-'))
        && ID_PREFIXES.iter().any(|known| prefix.eq_ignore_ascii_case(known))
}

/// Twenty or more letters of both cases and digits without a break.
fn is_random(word: &str) -> bool {
    word.len() >= 20
        && word.bytes().all(|byte| byte.is_ascii_alphanumeric())
        && word.bytes().any(|byte| byte.is_ascii_uppercase())
        && word.bytes().any(|byte| byte.is_ascii_lowercase())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(text: &str) -> String {
        let mut out = String::new();
        stable(text, |piece| out.push_str(piece));
        out
    }

    #[test]
    fn volatile_words_are_a_mark() {
        for (text, wanted) in [
            ("Sat Nov 21 17:28:17 UTC", "Sat Nov 21 \u{1} UTC"),
            ("at 2026-11-21T17:28:17.123Z.", "at \u{1}."),
            ("at 2026-11-21T17:28:17+01:00", "at \u{1}"),
            ("1764000000 and 1764000000123", "\u{1} and \u{1}"),
            ("id 123e4567-e89b-12d3-a456-426614174000", "id \u{1}"),
            ("request req_01H8xyz took 3.42s", "request \u{1} took \u{1}"),
            ("finished in 42 seconds", "finished in \u{1} seconds"),
            ("wrote /tmp/x-81/out.txt, done", "wrote \u{1}, done"),
            ("wrote C:\\Users\\me\\Temp\\a1.txt now", "wrote \u{1} now"),
            ("at 0x7ffe12ab: commit 9f8e7d6c5b", "at \u{1}: commit \u{1}"),
            ("a   b\n\tc", "a b c"),
        ] {
            assert_eq!(read(text), wanted);
        }
    }

    #[test]
    fn possible_progress_is_kept() {
        for text in [
            "42 of 400 done, 12%",
            "src/a.rs:12:34: error[E0308]",
            "page 2",
            "file_12345678",
            "test_chapter10 ok",
            "/home/me/tmp/a.txt",
            "version 1.2.3",
            "1234567890123456 bytes",
            "ä ö 漢字 3 é",
            "http://a.b/c?d=1",
        ] {
            assert_eq!(read(text), text);
        }
    }

    proptest! {
        /// Any text is read to its end.
        #[test]
        fn any_text_is_read(
            pieces in prop::collection::vec(
                prop_oneof![
                    "\\PC{0,4}",
                    prop::sample::select(vec![
                        "C:\\", "\\Temp\\", "/tmp/", ":", ":\\", "é", "µs", "12", "17:28:17", "2026-11-21",
                        "-", ".", " ", "\n", "deadbeef1", "0x12ab", "req_", "T", "seconds", "1764000000",
                    ])
                    .prop_map(str::to_owned),
                ],
                0..12,
            )
        ) {
            let text = pieces.concat();
            prop_assert!(read(&text).len() <= text.len(), "a mark is shorter than what it replaces");
        }
    }

    #[test]
    fn long_and_strange_text_takes_no_stack() {
        for text in ["C:\\:\\", ":", "/tmp/", "1:", "é", "a-"] {
            let long = text.repeat(100_000);
            assert!(read(&long).len() <= long.len());
        }
    }
}
