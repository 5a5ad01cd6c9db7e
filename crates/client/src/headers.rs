//! Which headers are passed on, to a provider and from one, and which parts of an address's query: the table
//! `data/headers.jsonl`, whose rows say why.
//!
//! A caller's header goes up only to a provider of the caller's own dialect, with the body that it belongs to: a field
//! of the body and the beta header that allows it are sent together or not at all.

use std::sync::LazyLock;

use http::{HeaderMap, HeaderName, header};
use serde::Deserialize;
use steadfast_core::Dialect;

const TABLE: &str = include_str!("../data/headers.jsonl");

static RULES: LazyLock<Rules> = LazyLock::new(|| Rules::read(TABLE));

/// A row of the table.
#[derive(Deserialize)]
struct Row {
    way: Way,
    name: Box<str>,
    dialect: Option<Dialect>,
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
enum Way {
    /// Neither up nor down.
    Never,
    /// From a caller to a provider of its dialect.
    Up,
    /// A part of the query that does not go up.
    QueryNever,
    /// The id of a request; down too.
    Id,
    /// Kept for layers.
    Kept,
    /// From a provider to the caller; kept too.
    Down,
}

/// A name, or what one begins with.
#[derive(Debug)]
enum Pattern {
    Exact(Box<str>),
    Begins(Box<str>),
}

impl Pattern {
    fn of(name: &str) -> Self {
        match name.strip_suffix('*') {
            Some(start) => Self::Begins(start.into()),
            None => Self::Exact(name.into()),
        }
    }

    fn fits(&self, name: &str) -> bool {
        match self {
            Self::Exact(own) => **own == *name,
            Self::Begins(start) => name.starts_with(&**start),
        }
    }
}

/// The table, by what is asked of it.
#[derive(Debug, Default)]
struct Rules {
    never: Vec<Pattern>,
    up: Vec<(Option<Dialect>, Pattern)>,
    query_never: Vec<Pattern>,
    ids: Vec<Box<str>>,
    kept: Vec<Pattern>,
    down: Vec<Pattern>,
}

impl Rules {
    /// A line that is no row is left out; a test reads all of them.
    fn read(table: &str) -> Self {
        let mut rules = Self::default();
        for row in table.lines().filter_map(|line| serde_json::from_str::<Row>(line).ok()) {
            let pattern = Pattern::of(&row.name);
            match row.way {
                Way::Never => rules.never.push(pattern),
                Way::Up => rules.up.push((row.dialect, pattern)),
                Way::QueryNever => rules.query_never.push(pattern),
                Way::Id => rules.ids.push(row.name),
                Way::Kept => rules.kept.push(pattern),
                Way::Down => rules.down.push(pattern),
            }
        }
        rules
    }

    fn is_never(&self, name: &str) -> bool {
        self.never.iter().any(|pattern| pattern.fits(name))
    }

    fn is_id(&self, name: &str) -> bool {
        self.ids.iter().any(|id| **id == *name)
    }

    fn goes_down(&self, name: &str) -> bool {
        self.down.iter().any(|pattern| pattern.fits(name)) || self.is_id(name)
    }
}

/// Whether a caller's header may go to a provider at all: no credential may, and nothing that belongs to one
/// connection or one body.
pub fn may_pass(name: &HeaderName) -> bool {
    !RULES.is_never(name.as_str())
}

/// Whether a header of a caller goes to a provider of the caller's `dialect` without anybody asking for it.
pub fn goes_up(dialect: Dialect, name: &HeaderName) -> bool {
    let fits = |(own, pattern): &(Option<Dialect>, Pattern)| {
        own.is_none_or(|own| own == dialect) && pattern.fits(name.as_str())
    };
    RULES.up.iter().any(fits) && may_pass(name)
}

/// The part of a caller's query that goes to a provider of its dialect, as it came: all but credentials and what
/// is about one body. `None` when nothing is left.
pub fn query_up(query: &str) -> Option<String> {
    let goes = |part: &&str| {
        let name = part.split_once('=').map_or(*part, |(name, _)| name);
        // Written otherwise it would mean the same.
        let name = form_urlencoded::parse(name.as_bytes()).next().map(|(name, _)| name);
        name.is_some_and(|name| !RULES.query_never.iter().any(|never| never.fits(&name)))
    };
    let kept: Vec<&str> = query.split('&').filter(goes).collect();
    (!kept.is_empty()).then(|| kept.join("&"))
}

/// Whether a header of a provider goes to the caller.
pub fn goes_down(name: &HeaderName) -> bool {
    RULES.goes_down(name.as_str()) && may_pass(name)
}

/// The headers that say something about the call: limits, ids, timings.
pub(crate) fn kept(headers: &HeaderMap) -> HeaderMap {
    let worth =
        |name: &str| RULES.goes_down(name) || RULES.kept.iter().any(|pattern| pattern.fits(name));
    // Usually there are one or two, if any.
    let mut out = HeaderMap::new();
    for (name, value) in headers.iter().filter(|(name, _)| worth(name.as_str())) {
        out.append(name, value.clone());
    }
    out
}

/// The id of the request, the vendors' own before those of what lies between.
pub(crate) fn request_id(headers: &HeaderMap) -> Option<String> {
    let value = RULES.ids.iter().find_map(|name| headers.get(&**name))?;
    let id = value.to_str().ok()?;
    // Bounded: it goes into logs and errors.
    Some(id.get(..128).unwrap_or(id).to_owned())
}

/// Whether the content type is that of an event stream.
pub(crate) fn is_event_stream(headers: &HeaderMap) -> bool {
    const WANTED: &str = "text/event-stream";
    let value = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    value
        .and_then(|value| value.trim_start().get(..WANTED.len()))
        .is_some_and(|word| word.eq_ignore_ascii_case(WANTED))
}

/// How a body is encoded, when it is, bounded for messages.
pub(crate) fn encoding(headers: &HeaderMap) -> Option<String> {
    let value = headers.get(header::CONTENT_ENCODING)?.to_str().ok()?.trim();
    let identity = value.is_empty() || value.eq_ignore_ascii_case("identity");
    (!identity).then(|| value.chars().take(32).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_is_read_and_says_why() {
        let mut rows = TABLE.lines();
        assert!(rows.next().is_some_and(|first| first.starts_with(r#"{"note""#)));
        let mut seen = std::collections::HashSet::new();
        for line in rows {
            let row: Row =
                serde_json::from_str(line).unwrap_or_else(|error| panic!("{line}: {error}"));
            let why: serde_json::Value = serde_json::from_str(line).unwrap();
            assert!(why["why"].as_str().is_some_and(|why| !why.is_empty()), "{line}");
            assert_eq!(*row.name, *row.name.to_lowercase(), "{line}");
            assert!(seen.insert(line), "twice: {line}");
            let name = row.name.trim_end_matches('*');
            assert!(!name.contains('*'), "{line}");
            if matches!(row.way, Way::Up | Way::Id | Way::Down) {
                assert!(!RULES.is_never(name), "{line}: it never goes anywhere");
            }
        }
    }

    #[test]
    fn an_open_list_goes_up_and_no_credential_does() {
        for (dialect, name, goes) in [
            (Dialect::Anthropic, "anthropic-beta", true),
            (Dialect::Anthropic, "anthropic-whatever-2027", true),
            (Dialect::Anthropic, "openai-beta", false),
            (Dialect::OpenAi, "openai-beta", true),
            (Dialect::OpenAi, "openai-organization", false),
            (Dialect::OpenAi, "anthropic-beta", false),
            (Dialect::Gemini, "x-goog-api-client", true),
            (Dialect::Gemini, "x-goog-api-key", false),
            (Dialect::Gemini, "x-goog-iam-authorization-token", false),
            (Dialect::Gemini, "x-goog-user-project", false),
            (Dialect::Anthropic, "x-api-key", false),
        ] {
            assert_eq!(goes_up(dialect, &HeaderName::from_static(name)), goes, "{dialect} {name}");
        }
    }

    #[test]
    fn queries_go_up_as_they_came_without_credentials() {
        for (query, up) in [
            ("beta=true", Some("beta=true")),
            ("key=secret", None),
            ("k%65y=secret&beta=true", Some("beta=true")),
            ("alt=sse&key=x&%24fields=a%2Cb", Some("%24fields=a%2Cb")),
            ("flag&a=1&a=2", Some("flag&a=1&a=2")),
            ("", None),
        ] {
            assert_eq!(query_up(query).as_deref(), up, "{query}");
        }
    }

    #[test]
    fn what_comes_down_is_a_list() {
        for (name, down) in [
            ("x-ratelimit-remaining-tokens", true),
            ("anthropic-ratelimit-tokens-reset", true),
            ("request-id", true),
            ("openai-model", true),
            ("x-codex-primary-used-percent", true),
            ("retry-after", false),
            ("set-cookie", false),
            ("server", false),
            ("x-internal-host", false),
        ] {
            assert_eq!(goes_down(&HeaderName::from_static(name)), down, "{name}");
        }
    }
}
