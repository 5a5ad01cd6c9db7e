//! The lines of an event stream, and the JSON that servers write between them.

/// A line of a stream, or several that belong together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Line<'a> {
    /// The name of an event.
    Event(&'a str),
    /// The data of an event; several lines of one event are several documents.
    Data(&'a str),
    /// JSON that is no event: servers that fail in the middle write it as they would answer it.
    Raw(&'a str),
    /// An event ends.
    Blank,
}

/// What ends streams of OpenAI's dialect.
pub(crate) const DONE: &str = "[DONE]";

const FIELDS: [&str; 5] = ["data:", "event:", ": ", "id:", "retry:"];

/// Whether a text is an event stream.
pub(crate) fn is_stream(text: &str) -> bool {
    let text = text.trim_start_matches('\u{FEFF}').trim_start();
    is_field(text) || text.starts_with(":\n")
}

/// Whether a line belongs to an event.
pub(crate) fn is_field(line: &str) -> bool {
    FIELDS.iter().any(|field| line.starts_with(field))
}

/// The lines of a stream that say something.
pub(crate) fn lines(text: &str) -> impl Iterator<Item = Line<'_>> {
    let mut rest = text;
    std::iter::from_fn(move || {
        loop {
            if rest.is_empty() {
                return None;
            }
            if rest.starts_with('{') {
                let end = end_of_raw(rest);
                let (raw, after) = rest.split_at(end);
                rest = after;
                return Some(Line::Raw(raw));
            }
            let (next, after) = rest.split_once('\n').unwrap_or((rest, ""));
            rest = after;
            if let Some(line) = line(next) {
                return Some(line);
            }
        }
    })
}

/// What one line is; `None` for comments and fields that say nothing here.
pub(crate) fn line(line: &str) -> Option<Line<'_>> {
    let line = line.strip_suffix('\r').unwrap_or(line);
    if line.is_empty() {
        return Some(Line::Blank);
    }
    if let Some(name) = line.strip_prefix("event:") {
        return Some(Line::Event(name.trim()));
    }
    let data = line.strip_prefix("data:").map(str::trim)?;
    (!data.is_empty()).then_some(Line::Data(data))
}

/// Where JSON at the start of `text` ends: at the next field of an event.
fn end_of_raw(text: &str) -> usize {
    let mut ends = memchr::memchr_iter(b'\n', text.as_bytes()).map(|end| end + 1);
    ends.find(|end| is_field(&text[*end..])).unwrap_or(text.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read() {
        let text = ": ping\r\nevent: error\r\ndata: {\"a\":1}\r\n\r\nid: 7\ndata:\ndata:[DONE]";
        let read: Vec<Line<'_>> = lines(text).collect();
        let expected =
            [Line::Event("error"), Line::Data("{\"a\":1}"), Line::Blank, Line::Data(DONE)];
        assert_eq!(read, expected);
    }

    #[test]
    fn json_between_events_is_one_document() {
        let text = "data: {\"a\":1}\n\n{\n  \"error\": {}\n}\n\ndata: [DONE]\n{\"b\":2}";
        let raw: Vec<Line<'_>> = lines(text).filter(|line| matches!(line, Line::Raw(_))).collect();
        assert_eq!(raw, [Line::Raw("{\n  \"error\": {}\n}\n\n"), Line::Raw("{\"b\":2}")]);
    }

    #[test]
    fn streams_are_recognised() {
        for text in ["data: x", "\u{FEFF}event: x", " : comment", ":\n\ndata: x", "retry: 1"] {
            assert!(is_stream(text), "{text}");
        }
        for text in ["", "{\"data\":1}", "dat", "error: x"] {
            assert!(!is_stream(text), "{text}");
        }
    }
}
