//! Texts that others wrote, and what in them must not reach a terminal or a page as it is.

/// Whether `c` moves a cursor, turns the writing direction, ends a line, or has no width.
pub(crate) fn is_hidden(c: char) -> bool {
    c.is_control()
        || matches!(c,
            '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
}

/// `text` with a dot for each of them.
pub(crate) fn shown(text: &str) -> String {
    text.chars().map(|c| if is_hidden(c) { '\u{b7}' } else { c }).collect()
}
