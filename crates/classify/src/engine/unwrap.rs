//! From bytes to [`Facts`]: finds the structures in a text, and the texts in the structures.
//!
//! Relays and SDKs each wrap an error once more: as JSON inside a JSON
//! string, as the `repr` of a dict behind `Error code: 429 - `, behind an exception's name, as
//! lines of an event stream. The two functions that matter call each other: [`read`] takes a
//! text apart into prose and structures, [`structure`] hands the strings of a structure back to
//! it, at most [`MAX_NEST`] deep.

use std::borrow::Cow;

use super::{
    facts::{Facts, Field, Rank},
    keys::{Key, Meaning, Section},
    numbers, parameter, prose, vendors,
    walk::{Item, Raw, Walk, unescape},
};

/// Strings unwrapped inside each other. Seen in practice: four.
pub(crate) const MAX_NEST: u8 = 8;

/// Objects within one document whose fields are read.
const MAX_DEPTH: usize = 24;

/// Reads a text: its structures into facts, its prose as texts. `keep` makes the text outlive
/// the call: borrowed where it is part of the body, owned where it was unescaped.
pub(crate) fn read<'a, 't>(
    facts: &mut Facts<'a>,
    text: &'t str,
    nest: u8,
    keep: fn(&'t str) -> Cow<'a, str>,
) {
    let rank = Rank { nest, depth: 0 };
    let trimmed = text.trim_start();
    if prose::is_html(trimmed) {
        prose::html(facts, rank, trimmed, keep);
        return;
    }
    let (mut from, mut first, mut last) = (0, None, 0);
    while let Some((start, quotes)) = find_structure(text, from) {
        let before = facts.gained();
        let end = match quotes {
            Quotes::Bare => start + structure(facts, &text[start..], nest, keep),
            Quotes::Escaped | Quotes::Typeset => {
                if nest < MAX_NEST {
                    let inner = match quotes {
                        Quotes::Typeset => ascii_punctuation(&text[start..]),
                        _ => unescape(&text[start..]),
                    };
                    structures_of(facts, &inner, nest + 1);
                }
                text.len()
            }
        };
        // A structure without anything of an error in it is part of the prose.
        if facts.gained() > before {
            first.get_or_insert(start);
            last = end;
        }
        from = end;
    }
    match first {
        None => prose::read(facts, rank, text, keep),
        Some(first) => {
            prose::read(facts, rank, &text[..first], keep);
            prose::read(facts, rank, &text[last..], keep);
        }
    }
}

/// The structures of an unescaped text; its prose was read outside.
fn structures_of(facts: &mut Facts<'_>, text: &str, nest: u8) {
    let mut from = 0;
    while let Some((start, quotes)) = find_structure(text, from) {
        if quotes != Quotes::Bare {
            return;
        }
        from = start + structure(facts, &text[start..], nest, owned);
    }
}

/// Keeps an unescaped text.
fn owned<'a>(text: &str) -> Cow<'a, str> {
    Cow::Owned(text.to_owned())
}

/// How the quotes of a structure are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Quotes {
    Bare,
    /// `{\"error\": ...}`: a JSON string's content.
    Escaped,
    /// `{“error”：...}`: what an editor or a chat made of it.
    Typeset,
}

/// With the punctuation that JSON has for the one that typesetting made of it.
fn ascii_punctuation(text: &str) -> String {
    text.chars()
        .map(|c| match c {
            '“' | '”' | '＂' => '"',
            '‘' | '’' => '\'',
            '：' => ':',
            '，' => ',',
            '｛' => '{',
            '｝' => '}',
            c => c,
        })
        .collect()
}

/// Where the next object, or array of objects, begins, and how its quotes are written.
fn find_structure(text: &str, from: usize) -> Option<(usize, Quotes)> {
    let bytes = text.as_bytes();
    let skip = |mut at: usize| {
        // `\n` written out between tokens counts as space.
        loop {
            match bytes.get(at) {
                Some(b' ' | b'\n' | b'\r' | b'\t' | b',') => at += 1,
                Some(b'\\') if matches!(bytes.get(at + 1), Some(b'n' | b'r' | b't')) => at += 2,
                _ => return at,
            }
        }
    };
    let mut at = from;
    loop {
        at += memchr::memchr2(b'{', b'[', bytes.get(at..)?)?;
        let next = skip(at + 1);
        match (bytes[at], bytes.get(next)) {
            (b'{', Some(b'"' | b'\'')) => return Some((at, Quotes::Bare)),
            (b'{' | b'[', Some(b'\\'))
                if matches!(bytes.get(next + 1), Some(b'"' | b'\'' | b'\\')) =>
            {
                return Some((at, Quotes::Escaped));
            }
            (b'[', Some(b'{')) => return Some((at, Quotes::Bare)),
            (b'{', Some(0xE2 | 0xEF))
                if text.get(next..).is_some_and(|rest| rest.starts_with(['“', '”', '＂'])) =>
            {
                return Some((at, Quotes::Typeset));
            }
            // A bare key, as JavaScript prints objects.
            (b'{', Some(byte)) if byte.is_ascii_alphabetic() => {
                let word = bytes[next..]
                    .iter()
                    .take(40)
                    .position(|b| !b.is_ascii_alphanumeric() && *b != b'_');
                if word.is_some_and(|end| bytes[next + end] == b':') {
                    return Some((at, Quotes::Bare));
                }
            }
            _ => {}
        }
        at += 1;
    }
}

/// Walks one structure; returns the bytes it took.
fn structure<'a, 't>(
    facts: &mut Facts<'a>,
    text: &'t str,
    nest: u8,
    keep: fn(&'t str) -> Cow<'a, str>,
) -> usize {
    // By depth.
    let mut sections = [Section::Error; MAX_DEPTH];
    let mut walk = Walk::new(text);
    while let Some(item) = walk.next() {
        let depth = walk.depth();
        let here = match depth {
            0 => Section::Error,
            depth => sections.get(depth - 1).copied().unwrap_or_default(),
        };
        let rank = Rank { nest, depth: u8::try_from(depth).unwrap_or(u8::MAX) };
        match item {
            Item::Open { key, .. } => {
                let section = match depth {
                    0 | 1 => Section::Error,
                    _ => sections
                        .get(depth - 2)
                        .map_or(Section::Ignored, |outer| Key::of(key).section_in(*outer)),
                };
                if let Some(slot) = sections.get_mut(depth.saturating_sub(1)) {
                    *slot = section;
                }
                // An empty one says nothing; what is in it is noted when it is met.
                if key.eq_ignore_ascii_case("error") && section == Section::Error {
                    facts.is_error = true;
                }
            }
            Item::Close if depth == 0 => break,
            Item::Close => {}
            Item::Text { key, text } => string(facts, here, rank, key, text, keep),
            Item::Word { key, word } => bare(facts, here, rank, key, word),
        }
    }
    walk.position()
}

fn string<'a, 't>(
    facts: &mut Facts<'a>,
    section: Section,
    rank: Rank,
    name: &str,
    raw: Raw<'t>,
    keep: fn(&'t str) -> Cow<'a, str>,
) {
    if raw.is_empty() {
        return;
    }
    let key = Key::of(name);
    let own = |text: Cow<'t, str>| match text {
        Cow::Borrowed(text) => keep(text),
        Cow::Owned(text) => Cow::Owned(text),
    };
    let meaning = match section {
        Section::Ignored => return,
        Section::Headers => return header(facts, rank, key, &raw.text()),
        Section::Delay if key.text == Meaning::Seconds => return delay(facts, &raw.text()),
        Section::Delay => return,
        Section::Answer if key.text != Meaning::Stop => return,
        _ => key.text,
    };
    match meaning {
        Meaning::Stop => facts.stopped = true,
        Meaning::Code => {
            let code = raw.text();
            if !facts.code(rank, Field::Code, &code) {
                status(facts, rank, &code);
            }
        }
        Meaning::Type if name.trim_start().starts_with('@') => type_url(facts, &raw.text()),
        Meaning::Type => {
            facts.code(rank, Field::Type, &raw.text());
        }
        Meaning::Status => {
            let text = raw.text();
            if !facts.code(rank, Field::Status, &text) {
                status(facts, rank, &text);
            }
        }
        Meaning::Reason => {
            let text = raw.text();
            let known = facts.code(rank, Field::Reason, &text);
            if !known && !status(facts, rank, &text) && text.contains(' ') {
                nested(facts, rank, text, own);
            }
        }
        Meaning::StatusOnly => {
            status(facts, rank, &raw.text());
        }
        Meaning::Error => {
            facts.is_error = true;
            let text = raw.text();
            // `{"error":"invalid_grant","error_description":"..."}`
            if !facts.code(rank, Field::Code, &text) {
                nested(facts, rank, text, own);
            }
        }
        Meaning::Message => nested(facts, rank, raw.text(), own),
        Meaning::Quota => quota(facts, &raw.text()),
        Meaning::Wait => delay(facts, &raw.text()),
        Meaning::Reset => {
            if let Ok(at) = raw.text().parse::<f64>() {
                facts.reset_at = Some(at);
            } else {
                facts.reset_date = Some(own(raw.text()));
            }
        }
        // Of several the first: a list of faults begins with the one that is met first.
        Meaning::Parameter => {
            facts.parameter = facts.parameter.or_else(|| parameter::stated(&raw.text()));
        }
        Meaning::RequestId => {
            facts.request_id.get_or_insert_with(|| own(raw.text()));
        }
        _ => {}
    }
}

/// A bare value: a number, `true`, `null`.
fn bare(facts: &mut Facts<'_>, section: Section, rank: Rank, name: &str, word: &str) {
    if matches!(word, "null" | "None" | "undefined") {
        return;
    }
    let key = Key::of(name);
    let meaning = match section {
        Section::Ignored | Section::Answer => return,
        Section::Headers => return header(facts, rank, key, word),
        Section::Delay if key.number == Meaning::Seconds => return delay(facts, word),
        Section::Delay => return,
        _ => key.number,
    };
    match meaning {
        Meaning::Code => {
            let stated = status(facts, rank, word);
            if !stated && word != "0" {
                facts.code(rank, Field::Code, word);
            }
        }
        Meaning::StatusOnly => {
            status(facts, rank, word);
        }
        Meaning::Success => facts.is_error |= word.eq_ignore_ascii_case("false"),
        Meaning::Requested => facts.window.requested = number(word),
        Meaning::Limit => facts.window.limit = number(word),
        Meaning::Wait => delay(facts, word),
        Meaning::WaitMillis => {
            if let Ok(ms) = word.parse::<f64>() {
                facts.wait = facts.wait.or_else(|| steadfast_core::hint::seconds(ms / 1_000.0));
            }
        }
        Meaning::Reset => facts.reset_at = word.parse().ok().or(facts.reset_at),
        _ => {}
    }
}

fn number(word: &str) -> Option<u64> {
    numbers::count(word).map(|(value, _)| value)
}

fn status(facts: &mut Facts<'_>, rank: Rank, text: &str) -> bool {
    let digits = text.len() == 3 && text.bytes().all(|b| b.is_ascii_digit());
    digits && text.parse().is_ok_and(|value| facts.status(rank, value))
}

fn delay(facts: &mut Facts<'_>, text: &str) {
    let wait = steadfast_core::hint::duration(text, Some(std::time::Duration::from_secs(1)));
    facts.wait = facts.wait.or(wait.filter(|wait| !wait.is_zero()));
}

/// A header quoted in the body, as OpenRouter quotes its own.
fn header(facts: &mut Facts<'_>, rank: Rank, key: Key, value: &str) {
    match key.header {
        Meaning::Wait => delay(facts, value),
        Meaning::Reset => facts.reset_at = value.parse().ok().or(facts.reset_at),
        Meaning::Exception => {
            facts.code(rank, Field::Header, value);
        }
        _ => {}
    }
}

/// Google's details carry their type's URL; other URLs are no types.
fn type_url(facts: &mut Facts<'_>, url: &str) {
    if url.contains("googleapis.com") {
        facts.vendor(vendors::GOOGLE);
    }
}

/// `GenerateRequestsPerDayPerProjectPerModel` and `..._per_model_per_day`.
fn quota(facts: &mut Facts<'_>, text: &str) {
    facts.vendor(vendors::GOOGLE);
    let quota = text.to_ascii_lowercase().replace('_', "");
    let has = |part| quota.contains(part);
    facts.quota.per_day |= has("perday") || has("daily") || has("permonth");
    facts.quota.per_minute |= has("perminute");
}

/// A string that may hold another error.
fn nested<'a, 't>(
    facts: &mut Facts<'a>,
    rank: Rank,
    text: Cow<'t, str>,
    own: impl FnOnce(Cow<'t, str>) -> Cow<'a, str>,
) {
    let wraps = find_structure(&text, 0).is_some() || prose::is_html(text.trim_start());
    if wraps && rank.nest < MAX_NEST {
        read(facts, &text, rank.nest + 1, owned);
    } else {
        prose::codes(facts, rank, &text);
        let text = own(text);
        facts.text(rank, text);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::engine::codes::Weight;

    fn facts(text: &str) -> Facts<'_> {
        Facts::collect(&crate::Evidence::new(b""), text)
    }

    fn inner(text: &str) -> String {
        facts(text).texts.first().map_or_else(String::new, |text| text.text.clone().into_owned())
    }

    #[test]
    fn the_innermost_message_comes_first() {
        for text in [
            r#"{"error":{"message":"deep down"}}"#,
            r#"[{"error":{"message":"deep down"}}]"#,
            r#"{"error":{"message":"{\"error\":{\"message\":\"deep down\"}}","code":400}}"#,
            r#"{"error":{"message":"Provider returned error","metadata":{"raw":"{\"message\":\"deep down\"}"}}}"#,
            "Error code: 400 - {'error': {'message': 'deep down'}}",
            "litellm.BadRequestError: XException - b'{\"error\":{\"message\":\"deep down\"}}'",
            r#"prefix {\"error\":{\"message\":\"deep down\"}}"#,
            r#"{"detail":[{"type":"missing","loc":["body"],"msg":"deep down"}]}"#,
            r#"{"error":"deep down"}"#,
            "\"deep down\"",
            "{ error: { message: 'deep down' } }",
            "failed: {“error”：{“code”:“1”，“message”:“deep down”｝｝",
        ] {
            assert_eq!(inner(text).trim().trim_matches('"'), "deep down", "{text}");
        }
    }

    #[test]
    fn nesting_ends() {
        let mut text = r#"{"error":{"code":"insufficient_quota"}}"#.to_owned();
        for _ in 0..20 {
            text = serde_json::json!({ "error": { "message": text } }).to_string();
            if text.len() > 200_000 {
                break;
            }
        }
        // Does not matter what is found, only that it comes back.
        facts(&text);
    }

    #[test]
    fn echoes_and_histories_do_not_count() {
        let found = facts(
            r#"{"error":{"code":"context_length_exceeded","message":"x",
               "metadata":{"previous_errors":[{"code":429,"message":"rate limit"}],
               "request":{"type":"invalid_api_key"}}},"headers":{"code":"401"}}"#,
        );
        assert_eq!(found.hits.len(), 1);
        assert_eq!(found.status, None);
        assert_eq!(
            found.best(Weight::Final).map(|hit| hit.code.name),
            Some("context_length_exceeded")
        );
    }

    #[test]
    fn waits_and_windows_in_fields() {
        let found = facts(
            r#"{"error":{"details":[{"@type":"type.googleapis.com/google.rpc.RetryInfo","retryDelay":"34.4s"}],"n_ctx":256,"n_prompt_tokens":1407}}"#,
        );
        assert_eq!(found.wait, Some(std::time::Duration::from_millis(34_400)));
        assert_eq!(found.window.limit, Some(256));
        assert_eq!(found.window.requested, Some(1_407));
        assert_eq!(found.vendors.as_slice(), ["google"]);
    }

    proptest! {
        #[test]
        fn any_text_is_read(text in "[\\PC\n]{0,300}") {
            facts(&text);
        }

        #[test]
        fn brackets_in_any_order_are_read(text in "[\\[\\]{}\"'\\\\:, a-c]{0,300}") {
            facts(&text);
        }
    }
}
