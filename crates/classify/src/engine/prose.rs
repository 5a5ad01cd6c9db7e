//! What prose states: statuses at anchored positions, names of exceptions, titles of web pages.

use std::{borrow::Cow, sync::LazyLock};

use http::StatusCode;
use memchr::memmem::Finder;

use super::{
    facts::{Facts, Field, Rank},
    numbers,
    table::{Table, TableError, built_in, table},
};

const FILE: Table = table!("prose.txt");

/// How far from the start of a text an anchored status is searched for: SDKs put it in front.
const ANCHOR_REACH: usize = 400;

/// How prose states statuses and codes.
#[derive(Debug, Default)]
struct Anchors {
    /// Behind such a word, and punctuation, three digits are a status.
    status_words: Vec<&'static str>,
    /// The same, right behind.
    statuses: Vec<&'static str>,
    /// Before such a word a number counts something.
    counted: Vec<&'static str>,
    /// Before a code.
    codes: Vec<Finder<'static>>,
}

static ANCHORS: LazyLock<Anchors> = LazyLock::new(|| built_in(read_anchors(FILE)));

fn read_anchors(table: Table) -> Result<Anchors, TableError> {
    let mut anchors = Anchors::default();
    let names = [("status-word", 0), ("status-anchor", 1), ("counted", 2), ("code-anchor", 3)];
    for row in table.rows(2, 2)? {
        let (kind, text) = (row.one_of(0, &names)?, row.phrase(1));
        if kind != 3 && text != text.to_lowercase() {
            return Err(row.error(format!("`{text}` is not in lower case")));
        }
        let texts = match kind {
            0 => &mut anchors.status_words,
            1 => &mut anchors.statuses,
            2 => &mut anchors.counted,
            _ => {
                anchors.codes.push(Finder::new(text));
                continue;
            }
        };
        if texts.contains(&text) {
            return Err(row.error(format!("`{text}` is listed twice")));
        }
        texts.push(text);
    }
    Ok(anchors)
}

/// Reads the table now rather than at the first failure.
pub(crate) fn warm() {
    LazyLock::force(&ANCHORS);
}

/// Reads a piece of prose: anchored statuses and names as facts, all of it as a text.
pub(crate) fn read<'a, 't>(
    facts: &mut Facts<'a>,
    rank: Rank,
    text: &'t str,
    keep: fn(&'t str) -> Cow<'a, str>,
) {
    let text = text.trim_matches(|c: char| c.is_whitespace() || matches!(c, '"' | '}' | ']' | ','));
    if text.is_empty() {
        return;
    }
    codes(facts, rank, text);
    facts.text(rank, keep(text));
}

/// The statuses and names of a text where SDKs put them.
pub(crate) fn codes(facts: &mut Facts<'_>, rank: Rank, text: &str) {
    let head = head(text, ANCHOR_REACH);
    let start =
        head.trim_start_matches(|c: char| c.is_whitespace() || matches!(c, '<' | '[' | '"'));
    let bytes = head.as_bytes();
    let mut stated = status(start);
    // Most texts have few such digits; only around those is anything compared.
    for at in memchr::memchr2_iter(b'4', b'5', bytes) {
        if stated.is_some_and(|status| !is_relays(status)) {
            break;
        }
        if at > 0
            && bytes.get(at + 1).is_some_and(u8::is_ascii_digit)
            && let Some(rest) = head.get(at..)
            && let Some(status) = status(rest)
        {
            let anchored = is_anchored(&bytes[..at]);
            let named = is_named(bytes[at - 1], rest, status);
            // Behind a relay's own status only one that is beyond doubt counts.
            if if stated.is_some() { anchored && named } else { anchored || named } {
                stated = Some(status);
            }
        }
    }
    if let Some(status) = stated {
        facts.status(rank, status);
    }
    names(facts, rank, head);
}

/// What relays answer with when somebody else has failed: `HTTP 502: … error 410: Gone`.
const fn is_relays(status: u64) -> bool {
    matches!(status, 500 | 502)
}

/// Whether a number right behind `before` is where a status is written.
fn is_anchored(before: &[u8]) -> bool {
    if ANCHORS.statuses.iter().any(|anchor| ends_with(before, anchor)) {
        return true;
    }
    let Some(end) = last_word(before) else { return false };
    // `status code of 503`.
    let linked = ["of", "is", "was"].iter().find(|link| ends_with(&before[..end], link));
    let end = match linked {
        Some(link) => match last_word(&before[..end - link.len()]) {
            Some(end) => end,
            None => return false,
        },
        None => end,
    };
    ANCHORS.status_words.iter().any(|word| ends_with(&before[..end], word))
}

/// Where the word before the punctuation at the end of `text` ends; there has to be some.
fn last_word(text: &[u8]) -> Option<usize> {
    let is_gap = |b: &u8| matches!(b, b' ' | b':' | b'=' | b'(' | b'[' | b'"' | b'\'' | b'<');
    let gap = text.iter().rev().take_while(|b| is_gap(b)).count();
    (1..=4).contains(&gap).then(|| text.len() - gap)
}

/// Whether a number is followed by its name (`503 Service Unavailable`, `400 BAD_REQUEST`), or
/// stands alone in brackets.
fn is_named(before: u8, rest: &str, status: u64) -> bool {
    if before == b'[' && rest.as_bytes().get(3) == Some(&b']') {
        return true;
    }
    if before.is_ascii_alphanumeric() || matches!(before, b'.' | b'-' | b'_' | b'/' | b',') {
        return false;
    }
    let name = u16::try_from(status)
        .ok()
        .and_then(|status| StatusCode::from_u16(status).ok())
        .and_then(|status| status.canonical_reason());
    let from = if rest.as_bytes().get(3) == Some(&b':') { 5 } else { 4 };
    let Some((name, rest)) = name.zip(rest.as_bytes().get(from..)) else { return false };
    rest.len() >= name.len()
        && name
            .bytes()
            .zip(rest)
            .all(|(a, b)| a.eq_ignore_ascii_case(b) || (a == b' ' && matches!(b, b'_' | b'-')))
}

/// Whether `text` ends with `end`, which is in lower case.
fn ends_with(text: &[u8], end: &str) -> bool {
    text.len()
        .checked_sub(end.len())
        .is_some_and(|from| text[from..].eq_ignore_ascii_case(end.as_bytes()))
}

/// Three digits that stand alone, are a status somebody uses, and count nothing.
fn status(text: &str) -> Option<u64> {
    let bytes = text.as_bytes();
    let alone = bytes.len() >= 3
        && bytes[..3].iter().all(u8::is_ascii_digit)
        && !bytes.get(3).is_some_and(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'/' | b'-'))
        // `404.5 tokens`, `500,000 tokens`.
        && !(matches!(bytes.get(3), Some(b'.' | b','))
            && bytes.get(4).is_some_and(u8::is_ascii_digit));
    let (status, _) = alone.then(|| numbers::count(text))??;
    let used = matches!(status, 400..=451 | 494..=511 | 520..=530 | 598 | 599);
    let counts = bytes.get(3) == Some(&b' ')
        && ANCHORS.counted.iter().any(|unit| {
            bytes.get(4..4 + unit.len()).is_some_and(|b| b.eq_ignore_ascii_case(unit.as_bytes()))
        });
    (used && !counts).then_some(status)
}

/// Names of exceptions, gRPC codes and codes where SDKs put them.
fn names(facts: &mut Facts<'_>, rank: Rank, text: &str) {
    // botocore: `An error occurred (ThrottlingException) when calling the X operation`.
    // gRPC: `rpc error: code = Canceled desc = ...`. Relays: `[code] text`, `code x, message y`.
    for anchor in &ANCHORS.codes {
        if let Some(at) = anchor.find(text.as_bytes()) {
            facts.code(rank, Field::Prose, word(&text[at + anchor.needle().len()..]));
        }
    }
    let has = |byte| memchr::memchr(byte, text.as_bytes()).is_some();
    if !has(b' ') && !has(b':') {
        if is_name(text) {
            facts.code(rank, Field::Prose, text);
        }
        return;
    }
    // `429 RESOURCE_EXHAUSTED. {...}`.
    let mut parts = text.splitn(3, ' ');
    if let (Some(first), Some(second)) = (parts.next(), parts.next())
        && first.len() == 3
        && first.bytes().all(|b| b.is_ascii_digit())
    {
        facts.code(rank, Field::Prose, word(second));
    }
    // `litellm.RateLimitError: AzureException RateLimitError - ...`, `permission-denied: ...`,
    // `Category: api_error`: what is around the first few colons. Each is inside the one
    // before it.
    let mut depth = rank.depth;
    let mut from = 0;
    let mut note = |name: &str| {
        // The rest of a URL.
        if name.starts_with("//") {
            return;
        }
        let name = name.trim_matches(|c: char| !c.is_ascii_alphanumeric());
        if is_name(name) && facts.code(Rank { depth, ..rank }, Field::Prose, name) {
            depth = depth.saturating_add(1);
        }
    };
    for at in memchr::memchr_iter(b':', text.as_bytes()).take(5) {
        let part = &text[from..at];
        let mut parts = part.split_ascii_whitespace();
        let (first, last) = (parts.next(), parts.next_back());
        // Before the first colon only the last word is a name: the first begins a sentence.
        if from > 0
            && last.is_some()
            && let Some(first) = first
        {
            note(first);
        }
        if let Some(last) = last.or(first) {
            note(last);
        }
        from = at + 1;
    }
    // `litellm.Timeout - ...` has none.
    if let Some(last) = text[from..].split_ascii_whitespace().next() {
        note(last);
    }
}

/// Is an identifier rather than a word of a sentence.
fn is_name(name: &str) -> bool {
    // `insufficient_quota`, `UNAVAILABLE`, `TooManyRequests`.
    let mut bytes = name.bytes();
    name.len() > 5
        && (name.contains(['_', '-', '.'])
            || bytes.by_ref().all(|b| b.is_ascii_uppercase())
            || bytes.any(|b| b.is_ascii_uppercase()))
}

/// The identifier at the start of `text`.
fn word(text: &str) -> &str {
    let end = text
        .find(|c: char| !c.is_ascii_alphanumeric() && !matches!(c, '_' | '-' | '.'))
        .unwrap_or(text.len());
    text[..end].trim_end_matches('.')
}

/// At most `limit` bytes from the start of `text`.
pub(crate) fn head(text: &str, limit: usize) -> &str {
    if text.len() <= limit {
        return text;
    }
    let mut end = limit;
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

/// Whether a text is, or soon becomes, a web page.
pub(crate) fn is_html(text: &str) -> bool {
    let head = head(text, 64).as_bytes();
    memchr::memchr_iter(b'<', head).any(|at| {
        ["<html", "<!doctype html", "<head", "<title"].iter().any(|tag| {
            head[at..]
                .get(..tag.len())
                .is_some_and(|start| start.eq_ignore_ascii_case(tag.as_bytes()))
        })
    })
}

/// What a web page says: its title and first heading.
pub(crate) fn html<'a, 't>(
    facts: &mut Facts<'a>,
    rank: Rank,
    text: &'t str,
    keep: fn(&'t str) -> Cow<'a, str>,
) {
    for (open, close) in [("<title>", "</title>"), ("<h1", "</h1>")] {
        let Some(start) = text.find(open) else { continue };
        let rest = &text[start + open.len()..];
        let rest = match open {
            "<h1" => rest.split_once('>').map_or("", |(_, rest)| rest),
            _ => rest,
        };
        let end = rest.find(close).unwrap_or(rest.len().min(200));
        read(facts, rank, head(rest, end), keep);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str) -> Option<u16> {
        let mut facts = Facts::default();
        codes(&mut facts, Rank::default(), text);
        facts.status.map(|(_, status)| status)
    }

    #[test]
    fn the_file_is_well_formed() {
        read_anchors(FILE).unwrap();
        for (text, error) in [
            ("status-word | Error", "prose.txt:1: `Error` is not in lower case"),
            ("counted | x\ncounted | x", "prose.txt:2: `x` is listed twice"),
        ] {
            let found = read_anchors(Table { file: "prose.txt", text }).unwrap_err();
            assert_eq!(found.to_string(), format!("data/{error}"));
        }
    }

    #[test]
    fn statuses_are_read_at_anchored_positions_only() {
        for (text, expected) in [
            ("429 Too Many Requests", Some(429)),
            ("Error code: 400 - {", Some(400)),
            ("API error (402): x", Some(402)),
            ("API error (status 403 Forbidden): x", Some(403)),
            (
                "exceeded retry limit, last status: 429 Too Many Requests, request id: 9c84",
                Some(429),
            ),
            ("401 status code (no body)", Some(401)),
            ("HTTP 402: request reached", Some(402)),
            ("<400> InternalError.Algo", Some(400)),
            ("API Error: 400 due to tool use concurrency issues", Some(400)),
            ("success: 400 (Bad Request).", Some(400)),
            ("the response has a status code of 503 and", Some(503)),
            ("Request failed with status: x. 400 BAD_REQUEST", Some(400)),
            ("[a/b] [503]: Request dropped", Some(503)),
            ("LLM response status: 422 body:", Some(422)),
            ("Azure returned 404", Some(404)),
            ("error: 500 tokens are too many", None),
            ("a limit of 500 characters", None),
            ("maximum (512)", None),
            ("requested 142937 tokens", None),
            ("messages.429: bad", None),
            ("see https://example.com/error-code-429", None),
            ("item rs_2529f2e of 529 tokens", None),
            ("500,000 tokens are too many", None),
            ("529-a", None),
            ("200 OK", None),
        ] {
            assert_eq!(found(text), expected, "{text}");
        }
    }

    #[test]
    fn names_are_read_where_sdks_put_them() {
        for (text, expected) in [
            ("An error occurred (ThrottlingException) when calling", "ThrottlingException"),
            ("Error rpc error: code = Canceled desc = context canceled", "CANCELLED"),
            ("litellm.ContextWindowExceededError: x", "ContextWindowExceededError"),
            ("Upstream request failed: [unsupported_value] no", "unsupported_value"),
            ("429 RESOURCE_EXHAUSTED. {", "RESOURCE_EXHAUSTED"),
            ("type x, code account_deactivated, message y", "account_deactivated"),
        ] {
            let mut facts = Facts::default();
            codes(&mut facts, Rank::default(), text);
            let name = facts.hits.first().map(|hit| hit.code.name.to_ascii_lowercase());
            let name = name.unwrap_or_default().replace("canceled", "cancelled");
            assert_eq!(name, expected.to_ascii_lowercase(), "{text}");
        }
    }
}
