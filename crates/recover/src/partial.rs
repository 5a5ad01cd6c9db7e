//! What was delivered of an answer so far.

use std::fmt;

use steadfast_chat::{Delta, Event, StopReason};
use steadfast_core::Usage;

use crate::calls::Calls;

/// Bytes of text to a token, for usage that a broken stream did not report: English prose has four in
/// every tokenizer in use.
pub(crate) const BYTES_PER_TOKEN: usize = 4;

/// The first capacity of the text buffer, enough for a short answer.
const FIRST_CAPACITY: usize = 128;

/// What was delivered of an answer so far, as far as it is needed to continue after a break. Only the
/// text is kept; of thinking and of tool arguments the size, and whether they are complete.
#[derive(Clone, Default)]
pub struct Partial {
    pub(crate) text: String,
    /// The most text to keep, in bytes.
    limit: usize,
    too_long: bool,
    /// There is a block that only its own dialect has.
    opaque: bool,
    /// Content has come.
    content: bool,
    /// The text block that is open.
    pub(crate) open_text: Option<u32>,
    /// The text block that ended, while nothing has come since.
    closed_text: Option<u32>,
    /// The thinking block that is open.
    pub(crate) open_thinking: Option<u32>,
    /// The number of the next block to begin.
    pub(crate) next: u32,
    /// The tool calls so far.
    pub(crate) calls: Calls,
    stop: Option<StopReason>,
    ended: bool,
    /// What the current stream has reported.
    pub(crate) usage: Usage,
    /// Bytes of content since the last [`piece`](Self::next_piece) began.
    bytes: usize,
}

/// Whether and how an answer can be continued at this point.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ResumePoint {
    /// No content has come.
    Nothing,
    /// There is only thinking, which can be repeated.
    Thinking,
    /// There is text.
    Text,
    /// There is a tool call that is not complete, and a part of it was delivered.
    InCall,
    /// A tool call is complete: the turn is finished.
    AfterCall,
    /// The model has reported why it stopped.
    Finished,
    /// There is a block that can neither be sent back nor repeated.
    Opaque,
    /// It is longer than what is kept.
    TooLong,
}

impl ResumePoint {
    /// Whether another stream can continue the answer, unnoticed.
    pub const fn is_resumable(self) -> bool {
        matches!(self, ResumePoint::Thinking | ResumePoint::Text)
    }

    /// The name used in logs.
    pub const fn as_str(self) -> &'static str {
        match self {
            ResumePoint::Nothing => "nothing_delivered",
            ResumePoint::Thinking => "in_thinking",
            ResumePoint::Text => "in_text",
            ResumePoint::InCall => "in_tool_call",
            ResumePoint::AfterCall => "after_tool_call",
            ResumePoint::Finished => "finished",
            ResumePoint::Opaque => "opaque_block",
            ResumePoint::TooLong => "too_long",
        }
    }
}

impl Partial {
    /// Nothing yet; keeps at most `limit` bytes of text.
    pub fn new(limit: usize) -> Self {
        Self { limit, ..Self::default() }
    }

    /// Records an event that is delivered.
    pub fn see(&mut self, event: &Event) {
        for delta in &event.deltas {
            self.see_delta(delta);
        }
    }

    /// Records one delta of an event.
    pub fn see_delta(&mut self, delta: &Delta) {
        self.content |= delta.is_content();
        match delta {
            Delta::Text { index, text } => {
                self.begin(*index);
                self.open_text = Some(*index);
                self.keep(text);
            }
            Delta::Thinking { index, text } => {
                self.begin(*index);
                self.open_thinking = Some(*index);
                self.bytes += text.len();
            }
            Delta::Redacted { index, data } => {
                self.begin(*index);
                self.bytes += data.len();
            }
            Delta::ToolCall { index, .. } => {
                self.begin(*index);
                self.calls.begin(*index);
            }
            Delta::Arguments { index, json } => {
                self.bytes += json.len();
                self.calls.read(*index, json);
            }
            Delta::Opaque { index, .. } => {
                self.begin(*index);
                self.opaque = true;
            }
            Delta::BlockEnd { index } => {
                self.closed_text = self.open_text.filter(|open| open == index);
                self.open_text = self.open_text.filter(|open| open != index);
                self.open_thinking = self.open_thinking.filter(|open| open != index);
                self.calls.end(*index);
            }
            Delta::Usage(usage) => self.usage.update(usage),
            Delta::Stop(stop) => {
                self.stop = Some(stop.reason);
                if stop.reason != StopReason::MaxTokens {
                    self.calls.confirm();
                }
            }
            Delta::End => self.ended = true,
            // Signatures, pings and unknown deltas do not count.
            _ => {}
        }
    }

    fn begin(&mut self, index: u32) {
        if index >= self.next {
            self.next = index.saturating_add(1);
            self.calls.confirm();
            self.open_text = None;
            self.closed_text = None;
            self.open_thinking = None;
        }
    }

    fn keep(&mut self, text: &str) {
        self.bytes += text.len();
        if self.too_long || self.text.len() + text.len() > self.limit {
            self.too_long = true;
            self.text = String::new();
        } else {
            if self.text.capacity() == 0 && !text.is_empty() {
                self.text.reserve(FIRST_CAPACITY.min(self.limit).max(text.len()));
            }
            self.text.push_str(text);
        }
    }

    /// Whether and how it can be continued.
    pub fn resume_point(&self) -> ResumePoint {
        if self.has_stopped() {
            ResumePoint::Finished
        } else if !self.calls.is_empty() {
            if self.calls.are_over() { ResumePoint::AfterCall } else { ResumePoint::InCall }
        } else if !self.content {
            ResumePoint::Nothing
        } else if self.opaque {
            ResumePoint::Opaque
        } else if self.too_long {
            ResumePoint::TooLong
        } else if self.text.is_empty() {
            ResumePoint::Thinking
        } else {
            ResumePoint::Text
        }
    }

    /// All text so far. Empty when it was [too long](ResumePoint::TooLong).
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The terminal event has come.
    pub(crate) fn is_ended(&self) -> bool {
        self.ended
    }

    /// The model has reported why it stopped, or the terminal event has come.
    pub(crate) fn has_stopped(&self) -> bool {
        self.ended || self.stop.is_some()
    }

    /// Whether no other block has begun since the first of the calls that are not complete.
    pub(crate) fn ends_in_cut_calls(&self) -> bool {
        let cut = self.calls.cut();
        cut.is_some_and(|(first, count)| self.next.checked_sub(first) == Some(count))
    }

    /// Removes the calls that are not complete, and their blocks.
    pub(crate) fn drop_cut_calls(&mut self) {
        if let Some(first) = self.calls.drop_cut() {
            self.next = self.next.min(first);
        }
        // Without the calls there may be no content left.
        let has_text = self.too_long || !self.text.is_empty();
        self.content &= self.next > 0 || has_text || self.open_thinking.is_some();
    }

    /// The end of the last text block was not delivered: the block is open again.
    pub(crate) fn reopen_text(&mut self) {
        self.open_text = self.open_text.or(self.closed_text.take());
    }

    /// Whether `event` is the end of the last text block, and nothing else.
    pub(crate) fn is_text_end(&self, event: &Event) -> bool {
        matches!(&event.deltas[..], [Delta::BlockEnd { index }] if self.ends_text(*index))
    }

    /// Whether the block of that number is the last text block, and has just ended.
    pub(crate) fn ends_text(&self, index: u32) -> bool {
        self.closed_text == Some(index)
    }

    /// Whether content has come in the current stream.
    pub(crate) fn has_content(&self) -> bool {
        self.bytes > 0
    }

    /// Whether there is anything that another request can not continue.
    pub(crate) fn is_closed(&self) -> bool {
        self.opaque || self.too_long
    }

    /// The usage of the current stream, from what it reported and from its content. `input` is a lower
    /// bound of the request's tokens.
    pub(crate) fn used(&self, input: u64) -> Usage {
        let wrote = self.bytes.div_ceil(BYTES_PER_TOKEN) as u64;
        let mut usage = self.usage;
        usage.input = usage.input.or((input > 0).then_some(input));
        usage.output = match usage.output {
            Some(reported) if self.ended => Some(reported),
            // What a stream reports at its start is not its final usage.
            reported => Some(reported.unwrap_or(0).max(wrote)),
        };
        usage
    }

    /// Another stream continues the answer: its usage counts from zero, and it has not stopped.
    pub(crate) fn next_piece(&mut self) {
        self.usage = Usage::default();
        self.bytes = 0;
        self.stop = None;
        self.ended = false;
    }
}

impl fmt::Debug for Partial {
    /// Shows sizes, not contents: answers are private.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Partial")
            .field("resume_point", &self.resume_point())
            .field("text", &format_args!("{} bytes", self.text.len()))
            .field("blocks", &self.next)
            .field("usage", &self.usage)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resume_point(deltas: impl IntoIterator<Item = Delta>) -> ResumePoint {
        let mut partial = Partial::new(100);
        for delta in deltas {
            partial.see(&Event::new([delta]));
        }
        partial.resume_point()
    }

    fn text(text: &str) -> Delta {
        Delta::Text { index: 0, text: text.into() }
    }

    fn call(index: u32) -> Delta {
        Delta::ToolCall { index, id: "a".into(), name: "read".into() }
    }

    fn arguments(index: u32, json: &str) -> Delta {
        Delta::Arguments { index, json: json.into() }
    }

    #[test]
    fn a_table_of_resume_points() {
        let thought = || Delta::Thinking { index: 0, text: "hm".into() };
        let end = || Delta::BlockEnd { index: 0 };
        for (deltas, point) in [
            (vec![], ResumePoint::Nothing),
            (vec![Delta::Start { id: None, model: None }], ResumePoint::Nothing),
            (vec![text("")], ResumePoint::Nothing),
            (vec![thought()], ResumePoint::Thinking),
            (vec![thought(), end()], ResumePoint::Thinking),
            (vec![text("a")], ResumePoint::Text),
            (vec![text("a"), end()], ResumePoint::Text),
            (vec![text(&"a".repeat(101))], ResumePoint::TooLong),
            (vec![text("a"), call(1)], ResumePoint::InCall),
            (vec![text("a"), call(1), arguments(1, "{\"a\":{}")], ResumePoint::InCall),
            (vec![call(0), arguments(0, "{}"), call(1)], ResumePoint::InCall),
            (
                vec![call(0), arguments(0, "{\"}\\\"}\":"), arguments(0, "1}")],
                ResumePoint::AfterCall,
            ),
            (vec![call(0), end()], ResumePoint::AfterCall),
            (vec![text("a"), Delta::Stop(StopReason::EndTurn.into())], ResumePoint::Finished),
            (vec![text("a"), Delta::End], ResumePoint::Finished),
        ] {
            let case = format!("{deltas:?}");
            assert_eq!(resume_point(deltas), point, "{case}");
        }
    }

    #[test]
    fn a_brace_in_a_string_ends_nothing() {
        let mut partial = Partial::new(100);
        partial.see_delta(&call(0));
        for (json, cut) in [("{\"a\"", true), (":\"}\\", true), ("\"}\"", true), ("}", false)] {
            partial.see_delta(&arguments(0, json));
            assert_eq!(partial.calls.has_cut(), cut, "{json}");
        }
        assert_eq!(partial.calls.cut_bytes(), 0);
    }

    #[test]
    fn unreported_usage_is_estimated() {
        let mut partial = Partial::new(1_000);
        partial.see_delta(&Delta::Usage(Usage::new(50, 1)));
        partial.see_delta(&text(&"a".repeat(400)));
        assert_eq!(partial.used(7), Usage::new(50, 100));
        let mut update = Usage::default();
        update.output = Some(140);
        partial.see_delta(&Delta::Usage(update));
        assert_eq!(partial.used(7), Usage::new(50, 140));
        partial.next_piece();
        assert_eq!(partial.used(7), Usage::new(7, 0));
        assert_eq!(partial.text().len(), 400);
    }
}
