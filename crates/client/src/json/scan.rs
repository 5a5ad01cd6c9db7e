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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

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
