//! Reads an event stream as it goes by: finds error events, errors between the events, and the
//! end.
//!
//! Lines that are whole in a chunk are read in it; only a line that is cut by a chunk's end is
//! kept until the rest of it comes.

use std::sync::LazyLock;

use memchr::memmem::Finder;

use crate::engine::{
    self, MAX_BODY,
    events::{self, Line},
};

/// The streams whose end can be recognised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// OpenAI chat completions and everything compatible.
    Chat,
    /// OpenAI responses.
    Responses,
    Anthropic,
    Gemini,
}

#[derive(Debug, Default)]
pub(super) struct Scanner {
    /// The beginning of a line whose end has not come.
    partial: Vec<u8>,
    /// The line in progress is too long to be an error.
    skipping: bool,
    /// The event in progress is called `error`.
    error_event: bool,
    /// JSON that is no event, over several lines of which the last has not come.
    raw: String,
    kind: Option<Kind>,
    terminal: bool,
}

impl Scanner {
    /// Reads on, and takes from `chunk` what it has read: all of it, or as far as an error event,
    /// whose data it returns.
    pub(super) fn feed(&mut self, chunk: &mut &[u8]) -> Option<Vec<u8>> {
        let mut rest = *chunk;
        while let Some(end) = memchr::memchr(b'\n', rest) {
            let line = &rest[..end];
            rest = &rest[end + 1..];
            *chunk = rest;
            if std::mem::take(&mut self.skipping) {
                continue;
            }
            let error = if self.partial.is_empty() {
                self.line(line)
            } else {
                let mut whole = std::mem::take(&mut self.partial);
                whole.extend_from_slice(line);
                let error = self.line(&whole);
                // Kept for the next one that is cut.
                whole.clear();
                self.partial = whole;
                error
            };
            if error.is_some() {
                return error;
            }
        }
        *chunk = &[];
        if !self.skipping {
            if self.partial.len() + rest.len() > MAX_BODY {
                self.partial = Vec::new();
                self.skipping = true;
            } else {
                self.partial.extend_from_slice(rest);
            }
        }
        None
    }

    /// The stream is over: `Err` with the data of an error event that had no line end, or with
    /// nothing when the terminal event is missing.
    pub(super) fn finish(&mut self) -> Result<(), Option<Vec<u8>>> {
        let last = std::mem::take(&mut self.partial);
        if let Some(error) = self.line(&last).or_else(|| self.end_of_raw()) {
            return Err(Some(error));
        }
        if self.may_end() { Ok(()) } else { Err(None) }
    }

    /// Whether the stream may end here: it is complete, or of a kind whose end can not be recognised.
    pub(super) fn may_end(&self) -> bool {
        self.terminal || self.kind.is_none()
    }

    /// One line, without its end.
    fn line(&mut self, line: &[u8]) -> Option<Vec<u8>> {
        let line = &*engine::text(line, usize::MAX);
        if line.starts_with('{') || (!self.raw.is_empty() && !events::is_field(line)) {
            return self.raw(line.trim_end());
        }
        if let Some(error) = self.end_of_raw() {
            return Some(error);
        }
        let data = match events::line(line)? {
            Line::Blank => {
                self.error_event = false;
                return None;
            }
            Line::Event(name) => {
                self.error_event = name == "error";
                return None;
            }
            Line::Data(events::DONE) => {
                self.terminal = true;
                return None;
            }
            Line::Data(data) | Line::Raw(data) => data,
        };
        let marks = &*MARKS;
        let has = |mark: &Finder<'_>| mark.find(data.as_bytes()).is_some();
        if self.error_event || has(&marks.error) || has(&marks.failed) {
            let error = self.reported(data, self.error_event);
            if error.is_some() {
                return error;
            }
        }
        let kind = match self.kind {
            Some(kind) => kind,
            None => *self.kind.insert(marks.kind(data.as_bytes())?),
        };
        self.terminal |= match kind {
            // Some compatible servers leave out `[DONE]`; a finish reason is as good.
            Kind::Chat => stops(data, &marks.chat_stop),
            Kind::Responses => has(&marks.completed) || has(&marks.incomplete),
            Kind::Anthropic => has(&marks.message_stop),
            Kind::Gemini => stops(data, &marks.gemini_stop) || has(&marks.blocked),
        };
        None
    }

    /// One line of JSON that is no event.
    fn raw(&mut self, line: &str) -> Option<Vec<u8>> {
        if self.raw.is_empty() && line.ends_with('}') {
            return self.reported(line, false);
        }
        if self.raw.len() + line.len() < MAX_BODY {
            self.raw.push_str(line);
            self.raw.push('\n');
        }
        if line == "}" { self.end_of_raw() } else { None }
    }

    /// The JSON that is no event is over, if there is any.
    fn end_of_raw(&mut self) -> Option<Vec<u8>> {
        if self.raw.is_empty() {
            return None;
        }
        let raw = std::mem::take(&mut self.raw);
        self.reported(&raw, false)
    }

    /// `data`, if it is an error.
    fn reported(&mut self, data: &str, named: bool) -> Option<Vec<u8>> {
        let is_error = named || engine::is_error(data);
        self.terminal |= is_error;
        is_error.then(|| data.as_bytes().to_vec())
    }
}

/// Whether an event states why the answer stopped, under the key that `key` finds. Nearly all state
/// there that it has not, and need not be read any further.
fn stops(data: &str, key: &Finder<'_>) -> bool {
    let ends = key.find_iter(data.as_bytes()).map(|at| at + key.needle().len());
    let mut values = ends.map(|end| data[end..].trim_ascii_start());
    values.any(|value| {
        let value = value.strip_prefix(':').unwrap_or(value).trim_ascii_start();
        !value.starts_with("null")
    }) && engine::has_stop(data)
}

/// What is searched for in every event, by searchers that are built once.
struct Marks {
    /// `error`, `Error` and `errors`.
    error: Finder<'static>,
    failed: Finder<'static>,
    kinds: [(Finder<'static>, Kind); 5],
    chat_stop: Finder<'static>,
    gemini_stop: Finder<'static>,
    completed: Finder<'static>,
    incomplete: Finder<'static>,
    message_stop: Finder<'static>,
    blocked: Finder<'static>,
}

static MARKS: LazyLock<Marks> = LazyLock::new(|| Marks {
    error: Finder::new("rror"),
    failed: Finder::new("response.failed"),
    kinds: [
        (Finder::new("\"choices\""), Kind::Chat),
        (Finder::new("\"response."), Kind::Responses),
        (Finder::new("message_start"), Kind::Anthropic),
        (Finder::new("\"candidates\""), Kind::Gemini),
        (Finder::new("\"usageMetadata\""), Kind::Gemini),
    ],
    chat_stop: Finder::new("\"finish_reason\""),
    gemini_stop: Finder::new("\"finishReason\""),
    completed: Finder::new("response.completed"),
    incomplete: Finder::new("response.incomplete"),
    message_stop: Finder::new("message_stop"),
    blocked: Finder::new("\"blockReason\""),
});

impl Marks {
    /// The stream an event is of, if that can be recognised.
    fn kind(&self, data: &[u8]) -> Option<Kind> {
        let mut kinds = self.kinds.iter();
        kinds.find(|(mark, _)| mark.find(data).is_some()).map(|(_, kind)| *kind)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const CHAT: &str = "data: {\"choices\":[{\"delta\":{\"content\":\"an \\\"error\\\" in text\"},\"finish_reason\":null}]}\n\n\
        data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n";
    const ANTHROPIC: &str = "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"usage\":{\"input_tokens\":1}}}\n\n\
        event: ping\ndata: {\"type\":\"ping\"}\n\n\
        event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n";
    const RESPONSES: &str = "data: {\"type\":\"response.created\",\"response\":{\"error\":null}}\n\n\
        data: {\"type\":\"response.completed\",\"response\":{\"error\":null,\"status\":\"completed\"}}\n\n";
    const GEMINI: &str = "data: {\"candidates\":[{\"content\":{\"parts\":[{\"text\":\"a\"}]}}]}\r\n\r\n\
        data: {\"candidates\":[{\"content\":{\"parts\":[]},\"finishReason\":\"STOP\"}]}\r\n\r\n";

    fn scan(text: &str, size: usize) -> (Option<String>, Result<(), ()>) {
        let mut scanner = Scanner::default();
        for mut chunk in text.as_bytes().chunks(size.max(1)) {
            if let Some(error) = scanner.feed(&mut chunk) {
                return (Some(String::from_utf8(error).unwrap()), Ok(()));
            }
        }
        match scanner.finish() {
            Ok(()) => (None, Ok(())),
            Err(Some(error)) => (Some(String::from_utf8(error).unwrap()), Ok(())),
            Err(None) => (None, Err(())),
        }
    }

    #[test]
    fn whole_streams_end_well_however_they_are_cut() {
        for text in [CHAT, ANTHROPIC, RESPONSES, GEMINI] {
            for size in 1..text.len() {
                assert_eq!(scan(text, size), (None, Ok(())), "{size} {text}");
            }
        }
    }

    #[test]
    fn a_finish_reason_counts_where_it_is_none_but_not_where_it_is_null() {
        for (event, ends) in [
            ("data: {\"choices\":[{\"finish_reason\" : \"stop\"}]}\n", true),
            ("data: {\"choices\":[{\"finish_reason\": null}]}\n", false),
            ("data: {\"choices\":[{\"finish_reason\":null},{\"finish_reason\":\"stop\"}]}\n", true),
            (
                "data: {\"choices\":[{\"delta\":{\"content\":\"\\\"finish_reason\\\": x\"}}]}\n",
                false,
            ),
        ] {
            assert_eq!(scan(event, 1_000), (None, if ends { Ok(()) } else { Err(()) }), "{event}");
        }
    }

    #[test]
    fn streams_without_their_end_are_recognised() {
        for text in [CHAT, ANTHROPIC, RESPONSES, GEMINI] {
            let first = text
                .split_inclusive("\n\n")
                .next()
                .unwrap()
                .split_inclusive("\r\n\r\n")
                .next()
                .unwrap();
            assert_eq!(scan(first, 7), (None, Err(())), "{first}");
        }
        assert_eq!(scan("data: something else\n\n", 7), (None, Ok(())));
        assert_eq!(scan(": ping\n\n", 7), (None, Ok(())));
    }

    #[test]
    fn error_events_of_every_dialect_are_found() {
        for text in [
            "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"overloaded_error\"}}\n\n",
            "data: {\"error\":{\"message\":\"x\",\"code\":500}}\n\n",
            "data: {\"id\":\"x\",\"error\":{\"code\":502},\"choices\":[]}\n\n",
            "data: {\"type\":\"error\",\"code\":\"server_error\",\"message\":\"x\"}\n\n",
            "data: {\"type\":\"response.failed\",\"response\":{\"error\":{\"code\":\"x\"}}}\n\n",
            "event: error\ndata: something broke\n\n",
            "data: {\"errors\":[{\"code\":\"x\",\"status\":\"500\"}]}\n\n",
            "data: {\"Response\":{\"Error\":{\"Code\":\"x\"},\"RequestId\":\"y\"}}\n\n",
            "data: {\"error\":\"no line end\"}",
        ] {
            for size in [1, 5, 1_000] {
                let (error, _) = scan(text, size);
                assert!(error.is_some(), "{size} {text}");
            }
        }
    }

    #[test]
    fn errors_between_the_events_are_found() {
        const RAW: [&str; 5] = [
            "{\"error\":{\"message\":\"x\",\"code\":500}}",
            "{\"error\":\"x\"}\n",
            "{\r\n  \"error\": {\r\n    \"code\": 500\r\n  }\r\n}\r\n",
            "{\n  \"error\": {\n    \"code\": 500",
            "{\n  \"message\": \"x\",\n  \"code\": 1\n}\n\ndata: [DONE]\n\n",
        ];
        let first = CHAT.split_inclusive("\n\n").next().unwrap();
        for raw in RAW {
            for size in [1, 5, 1_000] {
                for before in ["", first] {
                    let (error, _) = scan(&format!("{before}{raw}"), size);
                    let error = error.unwrap_or_else(|| panic!("{size} {raw}"));
                    assert!(error.starts_with('{'), "{error}");
                }
            }
        }
        // Lines of JSON that are an answer.
        let lines = "{\"message\":{\"content\":\"an error\"}}\n{\"done\":true}\n";
        assert_eq!(scan(lines, 7), (None, Ok(())));
    }

    #[test]
    fn json_that_does_not_end_is_not_kept() {
        let mut scanner = Scanner::default();
        scanner.feed(&mut &b"{\n"[..]);
        for _ in 0..20 {
            assert!(scanner.feed(&mut &[b'x'; 10_000][..]).is_none());
            assert!(scanner.feed(&mut &b"\n"[..]).is_none());
            assert!(scanner.raw.capacity() <= 2 * MAX_BODY);
        }
        assert!(
            scanner.feed(&mut &b"data: {\"error\":{\"code\":1}}\n"[..]).is_some(),
            "the next event counts"
        );
    }

    #[test]
    fn a_line_without_end_is_not_kept() {
        let mut scanner = Scanner::default();
        let chunk = vec![b'x'; 10_000];
        for _ in 0..20 {
            assert!(scanner.feed(&mut &chunk[..]).is_none());
            assert!(scanner.partial.capacity() <= 2 * MAX_BODY);
        }
        assert!(
            scanner.feed(&mut &b"\ndata: {\"error\":{\"code\":1}}\n"[..]).is_some(),
            "the next line counts"
        );
    }

    proptest! {
        #[test]
        fn any_bytes_are_read(bytes in prop::collection::vec(any::<u8>(), 0..300), size in 1usize..40) {
            let mut scanner = Scanner::default();
            for mut chunk in bytes.chunks(size) {
                if scanner.feed(&mut chunk).is_some() {
                    break;
                }
            }
            scanner.finish().ok();
        }
    }
}
