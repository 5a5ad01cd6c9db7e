//! The folder of a thread.

use std::fmt::Write as _;

use sha2::{Digest as _, Sha256};

/// File systems take names of 255 bytes; this leaves room.
const MAX_NAME: usize = 200;
/// What a long name begins with, for people.
const LONG_PREFIX: usize = 96;
/// In no short name: there, `%` is always followed by two digits.
const LONG_MARK: &str = "%%";

/// The name of a thread's folder. No two threads have the same, whatever the file system makes of case, and none is `.`, `..` or has a
/// separator: all but `a-z 0-9 _ -` is escaped. An id that would be too long is its beginning and its SHA-256.
pub(crate) fn folder_name(thread: &str) -> String {
    if thread.is_empty() {
        return "%".to_owned();
    }
    let mut name = String::with_capacity(thread.len());
    for byte in thread.bytes() {
        match byte {
            b'a'..=b'z' | b'0'..=b'9' | b'_' | b'-' => name.push(char::from(byte)),
            _ => push_hex(&mut name, "%", byte),
        }
    }
    if name.len() <= MAX_NAME {
        return name;
    }
    // Not in the middle of an escape, so that what follows is the only mark.
    let end = (LONG_PREFIX - 2..=LONG_PREFIX)
        .find(|end| !name[end.saturating_sub(2)..*end].contains('%'))
        .unwrap_or(0);
    name.truncate(end);
    name.push_str(LONG_MARK);
    for byte in Sha256::digest(thread.as_bytes()) {
        push_hex(&mut name, "", byte);
    }
    name
}

fn push_hex(name: &mut String, before: &str, byte: u8) {
    // Writing to a string does not fail.
    let _ = write!(name, "{before}{byte:02x}");
}

/// What a folder's name says of its thread.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Named {
    /// Its id.
    Thread(String),
    /// The id is in a file.
    Long,
    /// It is no thread's.
    Other,
}

/// Whose folder this is.
pub(crate) fn thread_of(name: &str) -> Named {
    if name.contains(LONG_MARK) {
        return Named::Long;
    }
    let decoded = match name {
        "%" => Some(String::new()),
        _ => decode(name),
    };
    match decoded {
        Some(thread) if folder_name(&thread) == name => Named::Thread(thread),
        _ => Named::Other,
    }
}

fn decode(name: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(name.len());
    let mut rest = name.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        rest = after;
        if *first == b'%' {
            let (digits, after) = rest.split_at_checked(2)?;
            bytes.push(u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?);
            rest = after;
        } else {
            bytes.push(*first);
        }
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn names_are_safe() {
        for (thread, name) in [
            ("", "%"),
            ("a-b_9", "a-b_9"),
            ("..", "%2e%2e"),
            ("../x", "%2e%2e%2fx"),
            ("A", "%41"),
            ("%41", "%2541"),
            ("é", "%c3%a9"),
            ("a\0\n", "a%00%0a"),
            (".lock", "%2elock"),
        ] {
            assert_eq!(folder_name(thread), name);
            assert_eq!(thread_of(name), Named::Thread(thread.to_owned()));
        }
        for name in ["A", "%4", "%zz", "%61", "x.y", "%ff"] {
            assert_eq!(thread_of(name), Named::Other, "{name}");
        }
    }

    #[test]
    fn long_ids_have_names_of_their_own() {
        for of in ["x", "/", "é", "x/"] {
            let (one, two) = (of.repeat(300), format!("{}y", of.repeat(299)));
            let (first, second) = (folder_name(&one), folder_name(&two));
            assert_ne!(first, second);
            for name in [first, second] {
                assert!(name.len() <= MAX_NAME, "{name}");
                assert_eq!(thread_of(&name), Named::Long);
                assert_eq!(name.matches(LONG_MARK).count(), 1, "{name}");
            }
        }
    }

    proptest! {
        #[test]
        fn every_id_has_one_name_and_every_name_one_id(
            one in "[a-c/A.%]{0,5}|\\PC{0,90}",
            two in "[a-c/A.%]{0,5}|\\PC{0,90}",
        ) {
            let name = folder_name(&one);
            prop_assert_eq!(one == two, name == folder_name(&two));
            prop_assert!(!name.contains(['/', '\\', '.', '\0']) && !name.is_empty());
            prop_assert_eq!(name.to_lowercase(), name.as_str(), "the case of a file system");
            match thread_of(&name) {
                Named::Thread(thread) => prop_assert_eq!(thread, one),
                named => prop_assert_eq!(named, Named::Long),
            }
        }
    }
}
