//! Removes secrets from messages, and bounds their length.

/// Longest message kept, in bytes. Provider errors worth reading are a few hundred bytes; the
/// rest is an echo of the request or an HTML page.
pub const MAX_MESSAGE: usize = 1_024;

/// What replaces a secret.
pub const MASK: &str = "[redacted]";

/// Prefixes of credentials that providers and relays are known to echo.
const PREFIXES: [&str; 14] = [
    "sk-", "sk_", "gsk_", "xai-", "AIza", "ya29.", "hf_", "r8_", "pplx-", "nvapi-", "ghp_", "gho_",
    "AKIA", "eyJ",
];

/// Characters after a prefix from which on it is a secret: shorter ones are names such as `sk-learn`.
const MIN_SECRET: usize = 16;

/// `text` without credentials, on one line, cut at [`MAX_MESSAGE`] bytes on a character boundary.
///
/// It masks tokens with a known credential prefix, what follows `Bearer`, and the values of `key=`,
/// `api_key=` and `x-api-key:`.
pub fn redact(text: &str) -> Box<str> {
    let mut out = String::with_capacity(text.len().min(MAX_MESSAGE));
    let mut rest = text.trim();
    // A secret may extend over the cut, so the cut is made on the output.
    while !rest.is_empty() && out.len() < MAX_MESSAGE {
        let end = rest.find(|c: char| !is_token(c)).unwrap_or(rest.len());
        if end == 0 {
            let mut chars = rest.chars();
            let Some(c) = chars.next() else { break };
            if c.is_whitespace() || c.is_control() {
                if !out.is_empty() && !out.ends_with(' ') {
                    out.push(' ');
                }
            } else {
                out.push(c);
            }
            rest = chars.as_str();
            continue;
        }
        let (token, tail) = rest.split_at(end);
        if is_secret(token) || (token.len() >= 8 && follows_label(&out)) {
            out.push_str(MASK);
        } else {
            out.push_str(token);
        }
        rest = tail;
    }
    // A control character at the end has become a space.
    out.truncate(out.trim_end().len());
    if out.len() > MAX_MESSAGE {
        let mut cut = MAX_MESSAGE;
        while !out.is_char_boundary(cut) {
            cut -= 1;
        }
        out.truncate(cut);
        out.push('…');
    } else if !rest.is_empty() {
        out.push('…');
    }
    out.into_boxed_str()
}

/// `text` in full, with its lines and white space, with credentials masked as [`redact`] does: for
/// texts that are sent on, such as a summary of a conversation.
pub fn mask(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while !rest.is_empty() {
        let end = rest.find(|c: char| !is_token(c)).unwrap_or(rest.len());
        let (token, tail) = rest.split_at(end);
        if is_secret(token) || (token.len() >= 8 && follows_label(&out)) {
            out.push_str(MASK);
        } else {
            out.push_str(token);
        }
        let next = tail.find(is_token).unwrap_or(tail.len());
        out.push_str(&tail[..next]);
        rest = &tail[next..];
    }
    out
}

fn is_token(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '*' | '+' | '~')
}

fn is_secret(token: &str) -> bool {
    PREFIXES.iter().any(|prefix| {
        token
            .strip_prefix(prefix)
            .is_some_and(|rest| rest.len() >= MIN_SECRET || (rest.contains('*') && rest.len() >= 4))
    })
}

/// Whether the end of `written` is the label of a credential.
fn follows_label(written: &str) -> bool {
    let label = written.trim_end_matches([' ', ':', '=', '"', '\'']);
    if label.len() == written.len() {
        return false;
    }
    ["bearer", "x-api-key", "api_key", "apikey", "x-goog-api-key", "?key", "&key", "authorization"]
        .iter()
        .any(|known| {
            label.len() >= known.len()
                && label.is_char_boundary(label.len() - known.len())
                && label[label.len() - known.len()..].eq_ignore_ascii_case(known)
        })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn secrets_are_masked_and_words_kept() {
        for (text, expected) in [
            (
                "Incorrect API key provided: sk-proj-abcdefghijklmnop1234. Find yours",
                "Incorrect API key provided: [redacted] Find yours",
            ),
            ("Incorrect API key: sk-ab***********xyz", "Incorrect API key: [redacted]"),
            ("Authorization: Bearer abcdef0123456789", "Authorization: Bearer [redacted]"),
            ("GET /v1beta/models?key=abcdefgh12345", "GET /v1beta/models?key=[redacted]"),
            ("uses sk-learn and the bearer of news", "uses sk-learn and the bearer of news"),
            ("a\n\n  b", "a b"),
            ("a \u{0}", "a"),
        ] {
            assert_eq!(&*redact(text), expected);
        }
    }

    #[test]
    fn masking_keeps_the_shape_of_a_text() {
        let text =
            "  key: sk-proj-abcdefghijklmnop1234\n\n\tAuthorization: Bearer abcdef0123456789\n";
        let masked = "  key: [redacted]\n\n\tAuthorization: Bearer [redacted]\n";
        assert_eq!(mask(text), masked);
        assert_eq!(mask(masked), masked);
        let long = "plain words é 日本 ".repeat(200);
        assert_eq!(mask(&long), long);
    }

    proptest! {
        #[test]
        fn never_panics_never_grows(text in "\\PC{0,3000}") {
            prop_assert!(redact(&text).len() <= MAX_MESSAGE + MASK.len() + '…'.len_utf8());
        }

        #[test]
        fn once_is_enough(text in "(\\PC|\\pC|Bearer |key=|sk-abcdefghijklmnop| ){0,1200}") {
            let once = redact(&text);
            prop_assert_eq!(redact(&once), once);
        }

        #[test]
        fn a_key_never_survives(before in "[ -~]{0,40}", key in "[a-zA-Z0-9]{20,60}", pad in 0usize..1100) {
            let secret = format!("sk-{key}");
            let text = format!("{}{before} {secret} after", "x ".repeat(pad / 2));
            prop_assert!(!redact(&text).contains(&secret));
        }
    }
}
