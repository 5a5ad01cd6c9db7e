//! An answer, piece by piece.

use bytes::Bytes;
use smallvec::SmallVec;

use crate::{Citation, Opaque, Stop, StopReason, TokenLogprob};
use steadfast_core::{AnswerRecord, Dialect, Usage};

/// The content of one [`Event`], in order.
pub type Deltas = SmallVec<[Delta; 1]>;

/// One piece of an answer: its content, and the bytes it was read from.
///
/// One event is one frame of the wire (a server-sent event, or the whole body of an answer that is
/// not streamed), so that passing events on in the same dialect passes on the same frames. The
/// content of a frame is its [`deltas`](Event::deltas): usually one, sometimes none, and everything
/// for a whole body. Content that no delta has a type for is in the frame alone.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Event {
    /// The content, in order.
    pub deltas: Deltas,
    /// The frame it was read from; `None` once the event has been changed or when a layer made it.
    pub frame: Option<Frame>,
}

/// A frame of the wire.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Frame {
    /// The dialect it is in.
    pub dialect: Dialect,
    /// What kind of frame.
    pub kind: FrameKind,
    /// Its bytes, separators included.
    pub bytes: Bytes,
    /// It has content of the answer, be it in a delta or not: audio, a picture, the input of a
    /// server's tool, a second answer.
    pub content: bool,
}

/// How much is remembered of an id or a name that a provider has made up: 256 bytes. Vendors' are below 100.
const MAX_WORD: usize = 256;

/// The beginning of `word`.
fn bounded(word: &str) -> Box<str> {
    let mut end = word.len().min(MAX_WORD);
    while !word.is_char_boundary(end) {
        end -= 1;
    }
    word[..end].into()
}

/// What kind of frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FrameKind {
    /// One server-sent event or comment, with the empty line that ends it.
    Sse,
    /// The whole body of an answer that is not streamed.
    Body,
}

impl Frame {
    /// A server-sent event.
    pub fn sse(dialect: Dialect, bytes: impl Into<Bytes>) -> Self {
        Self { dialect, kind: FrameKind::Sse, bytes: bytes.into(), content: false }
    }

    /// A whole body.
    pub fn body(dialect: Dialect, bytes: impl Into<Bytes>) -> Self {
        Self { dialect, kind: FrameKind::Body, bytes: bytes.into(), content: false }
    }

    /// With content that is in no delta of its event, or without.
    #[must_use]
    pub fn with_content(mut self, content: bool) -> Self {
        self.content = content;
        self
    }
}

/// One item of an event's content.
///
/// Blocks are numbered in the order they begin, whatever numbers the provider used. Text and
/// thinking begin with their first piece, a tool call with [`Delta::ToolCall`].
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Delta {
    /// The answer begins.
    Start {
        /// The provider's id of it.
        id: Option<String>,
        /// The model that answers, as the provider names it.
        model: Option<String>,
    },
    /// A piece of text.
    Text {
        /// The block.
        index: u32,
        /// The text.
        text: String,
    },
    /// A piece of thinking.
    Thinking {
        /// The block.
        index: u32,
        /// The thoughts.
        text: String,
    },
    /// The provider's signature over a block.
    Signature {
        /// The block.
        index: u32,
        /// The signature.
        signature: String,
    },
    /// Thinking that only its provider can read, whole.
    Redacted {
        /// The block.
        index: u32,
        /// The opaque data.
        data: String,
    },
    /// A tool call begins.
    ToolCall {
        /// The block.
        index: u32,
        /// The id its result is to refer to.
        id: String,
        /// The tool.
        name: String,
    },
    /// A piece of a tool call's arguments.
    Arguments {
        /// The block.
        index: u32,
        /// The piece of JSON text.
        json: String,
    },
    /// A block that only one dialect has, whole.
    Opaque {
        /// The block.
        index: u32,
        /// The block.
        block: Opaque,
    },
    /// A block is complete.
    BlockEnd {
        /// The block.
        index: u32,
    },
    /// Sources of the text.
    Citations(Vec<Citation>),
    /// How likely the next tokens were.
    Logprobs(Vec<TokenLogprob>),
    /// What has been used so far.
    Usage(Usage),
    /// Why the model stopped.
    Stop(Stop),
    /// The answer is complete: the dialect's terminal event. An answer that ends without it is cut.
    End,
    /// Keeps the connection alive; no content.
    Ping,
}

impl Delta {
    /// Whether it is content of the answer, as opposed to metadata. An empty piece is not.
    pub fn is_content(&self) -> bool {
        match self {
            Delta::Text { text, .. } | Delta::Thinking { text, .. } => !text.is_empty(),
            Delta::Arguments { json, .. } => !json.is_empty(),
            Delta::ToolCall { .. } | Delta::Redacted { .. } | Delta::Opaque { .. } => true,
            Delta::Start { .. }
            | Delta::Signature { .. }
            | Delta::BlockEnd { .. }
            | Delta::Citations(_)
            | Delta::Logprobs(_)
            | Delta::Usage(_)
            | Delta::Stop(_)
            | Delta::End
            | Delta::Ping => false,
        }
    }

    /// The bytes of its content.
    fn size(&self) -> usize {
        match self {
            Delta::Text { text, .. } | Delta::Thinking { text, .. } => text.len(),
            Delta::Arguments { json, .. } => json.len(),
            Delta::Redacted { data, .. } => data.len(),
            Delta::Opaque { block, .. } => block.json.get().len(),
            _ => 0,
        }
    }
}

impl Event {
    /// An event that a layer made.
    pub fn new(deltas: impl IntoIterator<Item = Delta>) -> Self {
        Self { deltas: deltas.into_iter().collect(), frame: None }
    }

    /// An event read from `frame`, which has the content of its deltas, and maybe more.
    pub fn from_frame(mut frame: Frame, deltas: impl IntoIterator<Item = Delta>) -> Self {
        let deltas: Deltas = deltas.into_iter().collect();
        frame.content |= deltas.iter().any(Delta::is_content);
        Self { deltas, frame: Some(frame) }
    }

    /// Adds to `answer` what the provider says of it here.
    pub(crate) fn describe(&self, answer: &mut AnswerRecord) {
        for delta in &self.deltas {
            match delta {
                Delta::Start { id, model } => {
                    answer.id = id.as_deref().map(bounded);
                    answer.model = model.as_deref().map(bounded);
                }
                Delta::Stop(stop) => {
                    let word = stop.word.as_deref();
                    answer.finish = Some(bounded(word.unwrap_or(stop.reason.as_str())));
                }
                _ => {}
            }
        }
    }

    /// Whether it has content of the answer, in a delta or in its frame alone.
    pub fn is_content(&self) -> bool {
        self.frame.as_ref().is_some_and(|frame| frame.content)
            || self.deltas.iter().any(Delta::is_content)
    }

    /// Whether the answer is complete with it.
    pub fn is_end(&self) -> bool {
        self.deltas.iter().any(|delta| matches!(delta, Delta::End))
    }

    /// Whether a block, such as a tool call, is complete with it.
    pub fn ends_block(&self) -> bool {
        self.deltas.iter().any(|delta| matches!(delta, Delta::BlockEnd { .. }))
    }

    /// The usage it reports; the last report, when several.
    pub fn usage(&self) -> Option<&Usage> {
        self.deltas.iter().rev().find_map(|delta| match delta {
            Delta::Usage(usage) => Some(usage),
            _ => None,
        })
    }

    /// Why the model stopped, when it reports that.
    pub fn stop_reason(&self) -> Option<StopReason> {
        self.deltas.iter().rev().find_map(|delta| match delta {
            Delta::Stop(stop) => Some(stop.reason),
            _ => None,
        })
    }

    /// The content, to be changed: drops the frame.
    pub fn deltas_mut(&mut self) -> &mut Deltas {
        self.frame = None;
        &mut self.deltas
    }

    /// The frame it was read from, when that was in `dialect`.
    pub fn frame(&self, dialect: Dialect) -> Option<&Frame> {
        self.frame.as_ref().filter(|frame| frame.dialect == dialect)
    }

    /// About how much memory it holds, for bounds on buffers.
    pub fn size(&self) -> usize {
        let frame = self.frame.as_ref().map_or(0, |frame| frame.bytes.len());
        size_of::<Self>() + self.deltas.iter().map(Delta::size).sum::<usize>() + frame
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_provider_says_of_its_answer_is_kept_in_its_words_and_bounded() {
        let mut answer = AnswerRecord::default();
        let long = "\u{e9}".repeat(MAX_WORD);
        let start = Delta::Start { id: Some(long.clone()), model: Some("gpt-4o".into()) };
        let stop = Delta::Stop(Stop::new(StopReason::EndTurn, "stop"));
        Event::new([start, stop]).describe(&mut answer);
        assert_eq!(answer.id.as_deref(), Some(&long[..MAX_WORD]));
        assert_eq!(answer.model.as_deref(), Some("gpt-4o"));
        assert_eq!(answer.finish.as_deref(), Some("stop"));
        Event::new([Delta::Stop(StopReason::MaxTokens.into())]).describe(&mut answer);
        assert_eq!(answer.finish.as_deref(), Some("max_tokens"));
    }

    #[test]
    fn the_content_is_in_the_deltas_and_a_change_drops_the_frame() {
        let deltas = [
            Delta::Text { index: 0, text: "hi".into() },
            Delta::Usage(Usage::new(3, 1)),
            Delta::Stop(StopReason::EndTurn.into()),
            Delta::End,
        ];
        let mut event = Event::from_frame(Frame::body(Dialect::OpenAi, "{}"), deltas);
        let before = event.clone();
        assert!(event.is_content() && event.is_end() && !event.ends_block());
        assert_eq!(event.usage(), Some(&Usage::new(3, 1)));
        assert_eq!(event.stop_reason(), Some(StopReason::EndTurn));
        assert_eq!(event.size(), size_of::<Event>() + 4);
        event.deltas_mut().clear();
        assert!(event.frame.is_none() && event.deltas.is_empty());
        assert!(!event.is_content() && !event.is_end());
        assert_eq!((event.usage(), event.stop_reason()), (None, None));
        assert_eq!(before.deltas.len(), 4);
    }

    #[test]
    fn content_of_a_frame_goes_with_the_frame() {
        let frame = || Frame::sse(Dialect::OpenAi, "data: {}\n\n");
        let text = Event::from_frame(frame(), [Delta::Text { index: 0, text: "hi".into() }]);
        assert!(text.frame.is_some_and(|frame| frame.content));
        assert!(!Event::from_frame(frame(), [Delta::Ping]).is_content());
        let mut audio = Event::from_frame(frame().with_content(true), []);
        assert!(audio.is_content());
        audio.deltas_mut().push(Delta::Ping);
        assert!(!audio.is_content());
    }
}
