//! Finding facts in text.

use std::sync::LazyLock;

use super::table_lines;

/// Phrases that forbid or bind.
static BINDING: LazyLock<Vec<&str>> =
    LazyLock::new(|| table_lines(include_str!("../../data/binding_phrases.txt")).collect());

/// Calls `found` with each sentence that forbids something.
pub(super) fn prohibitions(text: &str, mut found: impl FnMut(&str)) {
    for sentence in text.lines().flat_map(sentences) {
        let lower = sentence.replace('\u{2019}', "'").to_lowercase();
        if BINDING.iter().any(|phrase| has_word(&lower, phrase)) {
            found(sentence.trim());
        }
    }
}

/// The sentences of a line: each ends with a mark that white space follows, so that the dots in
/// names and numbers end none.
fn sentences(line: &str) -> impl Iterator<Item = &str> {
    let mut rest = line;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let mut chars = rest.char_indices().peekable();
        let mut end = rest.len();
        while let Some((at, c)) = chars.next() {
            let is_mark = matches!(c, '.' | '!' | '?')
                && chars.peek().is_none_or(|(_, next)| next.is_whitespace());
            if is_mark || matches!(c, '。' | '！' | '？') {
                end = at + c.len_utf8();
                break;
            }
        }
        let (sentence, tail) = rest.split_at(end);
        rest = tail;
        Some(sentence)
    })
}

/// Whether `word` is in `text` and not a part of a longer Latin word.
pub(crate) fn has_word(text: &str, word: &str) -> bool {
    let is_letter = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
    text.match_indices(word).any(|(at, _)| {
        !is_letter(text[..at].chars().next_back())
            && !is_letter(text[at + word.len()..].chars().next())
    })
}

/// Calls `found` with each to-do and whether it is done.
pub(super) fn todos(text: &str, mut found: impl FnMut(&str, bool)) {
    for line in text.lines() {
        let line = line.trim();
        let item = line.strip_prefix(['-', '*', '+']).map(str::trim_start).unwrap_or(line);
        if let Some(open) = item.strip_prefix("[ ]") {
            found(open, false);
        } else if let Some(done) = item.strip_prefix("[x]").or_else(|| item.strip_prefix("[X]")) {
            found(done, true);
        } else if let Some(at) = item.find("TODO:").or_else(|| item.find("FIXME:")) {
            let rest = &item[at..];
            found(rest.split_once(':').map_or(rest, |(_, rest)| rest), false);
        }
    }
}

/// Calls `found` with each file that a patch names.
pub(super) fn patched(text: &str, mut found: impl FnMut(&str)) {
    if !text.starts_with("*** Begin Patch") && !text.starts_with("--- ") && !text.contains("\n+++ ")
    {
        return;
    }
    const HEADS: [&str; 5] =
        ["*** Update File: ", "*** Add File: ", "*** Delete File: ", "*** Move to: ", "+++ "];
    for line in text.lines() {
        if let Some(path) = HEADS.iter().find_map(|head| line.strip_prefix(head)) {
            let path = path.strip_prefix("b/").unwrap_or(path);
            if path != "/dev/null" {
                found(path);
            }
        }
    }
}

/// Calls `found` with each path, address, number, version, hash or other exact name.
pub(super) fn identifiers(text: &str, mut found: impl FnMut(&str)) {
    let is_border = |c: char| {
        c.is_whitespace() || "\"'`()<>{}[];|".contains(c) || (!c.is_ascii() && !c.is_alphanumeric())
    };
    for token in text.split(is_border) {
        let token = token.trim_matches([',', ':', '!', '?', '*']);
        let token = token.trim_end_matches(['.', ',', ':', '!', '?', '*']);
        // `key=value` and lists without spaces hold several names; a thousands separator does not
        // part a number.
        if is_identifier(token) {
            found(token);
        }
        for part in token.split(['=', ',']).filter(|part| part.len() < token.len()) {
            let is_group = part.len() <= 3 && part.bytes().all(|byte| byte.is_ascii_digit());
            if !is_group && is_identifier(part) {
                found(part);
            }
        }
    }
}

/// Whether a token is worth keeping exactly.
fn is_identifier(token: &str) -> bool {
    if token.len() < 3 || token.len() > 300 {
        return false;
    }
    let digits = token.bytes().filter(u8::is_ascii_digit).count();
    let letters = token.chars().filter(|c| c.is_alphabetic()).count();
    if letters == 0 {
        return digits >= 3 || (digits >= 2 && token.contains('.'));
    }
    if digits > 0 && token.len() >= 4 && !is_ordinal(token) {
        return true;
    }
    if token.contains("://") || (token.contains('@') && token.contains('.')) {
        return true;
    }
    is_path(token) || is_code_name(token)
}

/// `21st`, `100th`.
fn is_ordinal(token: &str) -> bool {
    let rest = token.trim_start_matches(|c: char| c.is_ascii_digit());
    rest.len() < token.len() && matches!(rest, "st" | "nd" | "rd" | "th")
}

/// `/etc/hosts`, `src/main.rs`, `a/b/c`, `main.rs`; not `and/or`, `e.g`.
fn is_path(token: &str) -> bool {
    let slashes = token.bytes().filter(|byte| matches!(byte, b'/' | b'\\')).count();
    let is_rooted =
        token.starts_with(['/', '~', '\\']) || token.starts_with("./") || token.starts_with("..");
    let name = token.rsplit(['/', '\\']).next().unwrap_or(token);
    let has_ending = name.rsplit_once('.').is_some_and(|(stem, ending)| {
        (stem.len() >= 2 || (stem.len() == 1 && slashes == 0 && ending.len() >= 2))
            && (1..=10).contains(&ending.len())
            && ending.bytes().all(|byte| byte.is_ascii_alphanumeric())
    });
    has_ending || (is_rooted && slashes >= 1) || slashes >= 2
}

/// `MAX_TOKENS`, `snake_case`, `Type::method`, `camelCase`.
fn is_code_name(token: &str) -> bool {
    let is_name =
        |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | ':' | '.' | '-' | '$' | '#');
    if !token.chars().all(is_name) || token.len() < 4 {
        return false;
    }
    let is_hump = |pair: &[u8]| pair[0].is_ascii_lowercase() && pair[1].is_ascii_uppercase();
    token.trim_matches('_').contains('_')
        || token.contains("::")
        || token.as_bytes().windows(2).any(is_hump)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(text: &str) -> Vec<String> {
        let mut out = Vec::new();
        identifiers(text, |found| out.push(found.to_owned()));
        out
    }

    #[test]
    fn exact_names_are_found_and_prose_is_not() {
        for name in [
            "src/main.rs",
            "/etc/hosts",
            "~/.ssh/config",
            "./run",
            "a/b/c",
            "main.rs",
            "Cargo.toml",
            "C:\\temp\\x.txt",
            "https://example.com/a?b=1",
            "bob@example.com",
            "PROJ-4711",
            "550e8400-e29b-41d4-a716-446655440000",
            "a1b2c3d",
            "0xdeadbeef",
            "8443",
            "3.14",
            "2026-11-21",
            "v1.2.3",
            "10.0.0.1:8080",
            "MAX_TOKENS",
            "retry_after",
            "Vec::push",
            "maxTokens",
            "req_011CQ",
            "1,200,000",
            "日本語2",
        ] {
            assert!(all(&format!("see {name}, then")).contains(&name.to_owned()), "{name}");
            assert!(all(&format!("(`{name}`).")).contains(&name.to_owned()), "{name} in marks");
        }
        let prose = "The quick brown fox, e.g. and/or a well-known 21st one - it is 5 or 42; I/O!";
        assert_eq!(all(prose), Vec::<String>::new());
    }

    #[test]
    fn values_behind_keys_are_found() {
        assert!(all("port=8443,host=db7").contains(&"8443".to_owned()));
        assert!(all("port=8443,host=db-7").contains(&"db-7".to_owned()));
    }

    #[test]
    fn binding_phrases_bind_as_whole_words() {
        let found = |text| {
            let mut out = Vec::new();
            prohibitions(text, |sentence| out.push(sentence.to_owned()));
            out
        };
        assert_eq!(
            found("Nevertheless go on. Do Not edit v1.2 of it! Fine?"),
            ["Do Not edit v1.2 of it!"]
        );
        assert_eq!(found("这个文件不要修改。好"), ["这个文件不要修改。"]);
        assert_eq!(found("DON'T"), ["DON'T"]);
        assert_eq!(found("...\n!!\n"), Vec::<String>::new());
    }
}
