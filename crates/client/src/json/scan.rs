//! Whether an object that comes in pieces is complete.

/// Follows the pieces of one JSON object and says when its last brace has come. It checks no
/// grammar beyond strings and nesting.
#[derive(Clone, Debug, Default)]
pub(crate) struct ObjectScan {
    depth: usize,
    in_string: bool,
    escaped: bool,
    complete: bool,
}

impl ObjectScan {
    /// Takes the next piece.
    pub(crate) fn feed(&mut self, piece: &str) {
        for byte in piece.bytes() {
            if self.in_string {
                match byte {
                    _ if self.escaped => self.escaped = false,
                    b'\\' => self.escaped = true,
                    b'"' => self.in_string = false,
                    _ => {}
                }
                continue;
            }
            match byte {
                b'"' => self.in_string = true,
                b'{' | b'[' => self.depth += 1,
                b'}' | b']' => {
                    self.depth = self.depth.saturating_sub(1);
                    self.complete |= self.depth == 0;
                }
                _ => {}
            }
        }
    }

    /// Whether the object has been closed.
    pub(crate) fn is_complete(&self) -> bool {
        self.complete
    }
}

/// How deep valid JSON nests: 0 for a scalar, 1 for a list of them.
pub(crate) fn depth(json: &str) -> usize {
    let (mut depth, mut deepest) = (0_usize, 0);
    outside_strings(json.as_bytes(), |byte| match byte {
        b'{' | b'[' => {
            depth += 1;
            deepest = deepest.max(depth);
        }
        b'}' | b']' => depth = depth.saturating_sub(1),
        _ => {}
    });
    deepest
}

/// How many values there are in a body of JSON, give or take a few, and those that are empty twice: what reading
/// it costs beside its bytes. Quick where it is mostly text; of what is not JSON the number means nothing.
pub fn values(json: &[u8]) -> usize {
    let mut values = 1;
    outside_strings(json, |byte| {
        values += usize::from(matches!(byte, b',' | b':' | b'{' | b'['));
    });
    values
}

/// Hands over every byte that is in no string.
fn outside_strings(json: &[u8], mut see: impl FnMut(u8)) {
    let mut at = 0;
    while let Some(byte) = json.get(at) {
        at += 1;
        if *byte != b'"' {
            see(*byte);
            continue;
        }
        // Most of a large body is strings: those are skipped quickly.
        while let Some(found) = memchr::memchr2(b'"', b'\\', &json[at.min(json.len())..]) {
            at += found + 1;
            if json[at - 1] == b'"' {
                break;
            }
            // What follows a backslash is no end.
            at += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn depth_is_that_of_brackets_outside_of_strings() {
        for (json, wanted) in [
            ("1", 0),
            ("[]", 1),
            (r#"{"a":[1,{"b":"}}{{[["}],"c":{}}"#, 3),
            (r#"["\\",["\"[[["]]"#, 2),
            (r#"["\"#, 1),
        ] {
            assert_eq!(depth(json), wanted, "{json}");
        }
    }

    #[test]
    fn values_are_those_outside_of_strings() {
        for (json, wanted) in [
            ("1", 1),
            ("[1,2]", 3),
            (r#"{"a":"x,y:[{","b":[]}"#, 6),
            ("[[],[]]", 5),
            (r#"["\\",",\",,"]"#, 3),
            (r#""\"#, 1),
            ("", 1),
        ] {
            assert_eq!(values(json.as_bytes()), wanted, "{json}");
        }
    }

    proptest! {
        #[test]
        fn complete_exactly_at_the_last_brace(key in "\\PC{0,8}", value in "\\PC{0,20}", cut in any::<prop::sample::Index>()) {
            let text = serde_json::json!({ key: [{ "deep": value }, 1] }).to_string();
            let cut = (0..=cut.index(text.len())).rev().find(|at| text.is_char_boundary(*at)).unwrap();
            let mut scan = ObjectScan::default();
            scan.feed(&text[..cut]);
            prop_assert!(!scan.is_complete());
            scan.feed(&text[cut..]);
            prop_assert!(scan.is_complete());
        }
    }
}
