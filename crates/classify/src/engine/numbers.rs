//! Numbers as providers write them.

/// The whole number at the start of `text`, with commas or underscores between groups of digits,
/// and the bytes it took.
pub(crate) fn count(text: &str) -> Option<(u64, usize)> {
    let bytes = text.as_bytes();
    let mut value: u64 = 0;
    let mut at = 0;
    while let Some(&byte) = bytes.get(at) {
        match byte {
            b'0'..=b'9' => {
                value = value.checked_mul(10)?.checked_add(u64::from(byte - b'0'))?;
            }
            b',' | b'_' if at > 0 && is_group(&bytes[at + 1..]) => {}
            _ => break,
        }
        at += 1;
    }
    (at > 0).then_some((value, at))
}

/// Exactly three digits follow, then something else.
fn is_group(rest: &[u8]) -> bool {
    rest.len() >= 3
        && rest[..3].iter().all(u8::is_ascii_digit)
        && !rest.get(3).is_some_and(u8::is_ascii_digit)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn counts() {
        for (text, expected) in [
            ("128000 tokens", Some((128_000, 6))),
            ("80,000 input", Some((80_000, 6))),
            ("1_000_000", Some((1_000_000, 9))),
            ("12, then", Some((12, 2))),
            ("12,3456", Some((12, 2))),
            ("99999999999999999999999", None),
            ("x", None),
        ] {
            assert_eq!(count(text), expected, "{text}");
        }
    }

    proptest! {
        #[test]
        fn nothing_panics(text in "\\PC{0,60}") {
            count(&text);
        }
    }
}
