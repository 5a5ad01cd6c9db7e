//! The sources of an answer's text, as this dialect has them: at each block of text.

use std::ops::Range;

use bytes::Bytes;
use serde::Deserialize;
use steadfast_chat::{Citation, Completion, Part};

use crate::{
    dialect::range_of,
    json::{Fields, Object, Raw, Str, items},
};

/// What stands where the vendor has its own name of a search result, in sources of other vendors'. The vendor
/// knows no such result, and is not sent it.
const FOREIGN: &str = "steadfast:translated";

#[derive(Deserialize)]
struct Source<'a> {
    #[serde(borrow, rename = "type")]
    kind: Option<Str<'a>>,
    #[serde(borrow)]
    url: Option<Str<'a>>,
    #[serde(borrow)]
    source: Option<Str<'a>>,
    #[serde(borrow)]
    title: Option<Str<'a>>,
}

/// Reads a source that has an address: one in a caller's document has none.
pub(super) fn read(raw: Raw<'_>) -> Option<Citation> {
    let read: Source<'_> = serde_json::from_str(raw.get()).ok()?;
    let address = match &*read.kind?.0 {
        "web_search_result_location" => read.url,
        "search_result_location" => read.source,
        _ => None,
    };
    let mut citation = Citation::new(address?.0);
    citation.title = read.title.map(|title| title.0.into_owned());
    Some(citation)
}

/// Writes a source of another vendor's.
pub(super) fn put(object: &mut Object<'_>, citation: &Citation) {
    object
        .put("type", "web_search_result_location")
        .put("url", &citation.url)
        .put("title", &citation.title)
        .put("encrypted_index", FOREIGN)
        .put("cited_text", "");
}

/// The sources of the block of text `at` of an answer: those of a piece of it, and at the last block those of no
/// piece in particular.
pub(super) fn of_block(answer: &Completion, at: usize) -> impl Iterator<Item = &Citation> {
    let length = |part: &Part| part.as_text().map_or(0, |text| text.chars().count() as u64);
    let has_text = |part: &Part| length(part) > 0;
    // Most answers have none, and are not counted.
    let (start, end) = match answer.citations.is_empty() {
        true => (0, 0),
        false => {
            let start = answer.parts[..at].iter().map(length).sum();
            (start, start + length(&answer.parts[at]))
        }
    };
    let is_last = !answer.citations.is_empty() && !answer.parts[at + 1..].iter().any(has_text);
    answer.citations.iter().filter(move |citation| match citation.range {
        Some((from, _)) => (start..end).contains(&from) || (is_last && from >= end),
        None => is_last,
    })
}

/// The body of a request without the sources that were [written](put) here.
pub(super) fn without_foreign(body: &Bytes) -> Bytes {
    if memchr::memmem::find(body, FOREIGN.as_bytes()).is_none() {
        return body.clone();
    }
    let Ok(text) = std::str::from_utf8(body) else { return body.clone() };
    let mut out = String::with_capacity(text.len());
    let mut from = 0;
    for (span, kept) in foreign(text) {
        out.push_str(&text[from..span.start]);
        out.push_str(&kept);
        from = span.end;
    }
    out.push_str(&text[from..]);
    out.into()
}

/// Where in a body a list of sources has some that were written here, in order, and what is left of it.
fn foreign(text: &str) -> Vec<(Range<usize>, String)> {
    let mut found = Vec::new();
    let Ok((_, messages)) = Fields::with_list(text.as_bytes(), "messages") else { return found };
    for message in messages {
        let content = field(message, "content").filter(|content| content.is_list());
        for block in content.and_then(|content| items(content).ok()).into_iter().flatten() {
            let Some(list) = field(block, "citations") else { continue };
            let Ok(sources) = items(list) else { continue };
            let is_foreign = |source: &Raw<'_>| {
                let name = field(*source, "encrypted_index").and_then(|name| name.text().ok());
                name.is_some_and(|name| name == FOREIGN)
            };
            let all = sources.len();
            let kept: Vec<&str> =
                sources.into_iter().filter(|it| !is_foreign(it)).map(Raw::get).collect();
            if kept.len() < all
                && let Some(span) = range_of(text, list.get())
            {
                let list = match kept.is_empty() {
                    true => "null".to_owned(),
                    false => format!("[{}]", kept.join(",")),
                };
                found.push((span, list));
            }
        }
    }
    found
}

fn field<'a>(object: Raw<'a>, name: &str) -> Option<Raw<'a>> {
    let fields = object.is_object().then(|| Fields::read(object).ok()).flatten()?;
    fields.iter().find(|(known, _)| *known == name).map(|(_, raw)| raw)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_that_were_written_here_are_taken_out_of_a_history_and_nothing_else() {
        let own = r#"{"type":"web_search_result_location","encrypted_index":"Eo8B","url":"u"}"#;
        let foreign = Object::text(|object| put(object, &Citation::new("https://a.example")));
        let body = |first: &str, second: &str| {
            let text = |list: &str| format!(r#"{{"type":"text","citations": {list},"text":"x"}}"#);
            Bytes::from(format!(
                r#"{{"n":1e400,"messages":[{{"role":"user","content":"{FOREIGN}"}},{{"role":"assistant","content":[{},{}]}}],"z":0}}"#,
                text(first),
                text(second)
            ))
        };
        let sent = body(&format!("[{foreign}]"), &format!("[{own}, {foreign}]"));
        assert_eq!(without_foreign(&sent), body("null", &format!("[{own}]")));
        let untouched = body("null", &format!("[{own}]"));
        assert_eq!(without_foreign(&untouched), untouched);
        for odd in
            ["", "{", r#"{"messages":3}"#, r#"{"messages":[3,{"content":[{"citations":3}]}]}"#]
        {
            let odd = Bytes::from(format!("{odd}{FOREIGN}"));
            assert_eq!(without_foreign(&odd), odd);
        }
    }
}
