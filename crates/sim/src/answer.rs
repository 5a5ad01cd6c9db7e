//! Scripted answers of the model, and the record of what was sent.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::continuation::ContinuationMode;
use crate::fault::ErrorKind;
use crate::summary::SummaryReply;
use crate::tokens::{count_output, pieces};

/// An answer of the model, before it is written in a dialect.
///
/// ```
/// use steadfast_sim::{Answer, Stop};
///
/// let answer = Answer::text("I will look.")
///     .then_tool_call("read", r#"{"path":"a.txt"}"#)
///     .then_tool_call("read", r#"{"path":"b.txt"}"#);
/// assert_eq!(answer.stop_or_implied(), Stop::ToolUse);
/// ```
///
/// As JSON: `{"blocks": [{"text": "I will look."}], "stop": "max_tokens"}`; a key that is left out
/// has its default.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Answer {
    /// Its content, in order.
    pub blocks: Vec<Block>,
    /// Why it ended; implied by the blocks if `None` (tool use if there is a call).
    pub stop: Option<Stop>,
    /// The usage it reports; counted if `None`.
    pub usage: Option<Usage>,
    /// Undocumented fields, at the top level of a whole body and of every frame.
    pub extra: Map<String, Value>,
    /// Stream the text in these pieces instead of [`pieces`](crate::tokens::pieces).
    pub chunks: Option<usize>,
    /// How the model [continues](crate::continuation) this answer for a client that has only the
    /// beginning; the provider's [setting](crate::SimProviderBuilder::with_continuation) if `None`.
    /// Its key is `goes_on`.
    #[serde(rename = "goes_on")]
    pub continuation: Option<ContinuationMode>,
    /// It never ends: after its blocks comes endless text, cut at the output limit. With a
    /// [`continuation`](Self::continuation), the rest continues where the text was cut.
    pub endless: bool,
    /// Cut after so many output tokens, whatever the request allowed: a limit of the provider for
    /// this answer alone.
    pub limit: Option<u64>,
    /// Send this refusal instead of an answer.
    pub refuse: Option<ErrorKind>,
    /// A summary of the request, in place of the blocks and of the stop reason.
    pub summary: Option<SummaryReply>,
}

/// One block of an answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Block {
    /// Text.
    Text(String),
    /// Thinking. Anthropic and Gemini have a field for it; in the OpenAI dialect it is sent as
    /// `reasoning_content`, as compatible servers do.
    Thinking(String),
    /// Encrypted thinking (Anthropic; left out elsewhere).
    RedactedThinking(String),
    /// A tool call.
    ToolCall {
        /// Its id; generated from the seed if `None`.
        #[serde(default)]
        id: Option<String>,
        /// The tool's name.
        name: String,
        /// The arguments, exactly these bytes. Where the wire needs an object and this is not one,
        /// `{}` is sent.
        arguments: String,
    },
}

/// Why an answer ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Stop {
    /// It is complete.
    EndTurn,
    /// It calls tools.
    ToolUse,
    /// It reached the output limit.
    MaxTokens,
    /// The window was full: a stop reason of Anthropic, an output limit for the others.
    Window,
    /// It wrote this stop sequence.
    StopSequence(String),
    /// The provider's filter, or the model itself, refused.
    Refusal,
    /// Exactly this value of the dialect's field.
    Raw(String),
}

/// Token counts as reported.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Usage {
    /// Input, without tokens read from or written to the cache.
    pub input: u64,
    /// Output, thinking included.
    pub output: u64,
    /// Input read from the cache.
    pub cache_read: u64,
    /// Input written to the cache.
    pub cache_write: u64,
    /// The part of the output that was thinking.
    pub reasoning: u64,
}

/// A complete answer, whether or not all of it reached the client.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Sent {
    /// All text, in order.
    pub text: String,
    /// All readable thinking, in order.
    pub thinking: String,
    /// The tool calls, in order, with the ids and the argument bytes of the wire.
    pub tool_calls: Vec<SentCall>,
    /// The usage reported.
    pub usage: Usage,
    /// The stop reason as the dialect writes it.
    pub stop: String,
    /// Whether the output limit cut it.
    pub truncated: bool,
    /// Where a limit cut it, if one did.
    #[serde(default)]
    pub cut: Option<Cut>,
    /// The signatures the answer carries.
    pub signatures: Vec<String>,
}

/// What a limit cut an answer in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Cut {
    /// A text.
    Text,
    /// Thinking.
    Thinking,
    /// The arguments of a tool call. Gemini then leaves the call out.
    Arguments,
    /// Nothing: the cut is between two blocks, or before the first.
    Between,
}

/// A tool call as it was sent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SentCall {
    /// Its id; empty where the dialect has none.
    pub id: String,
    /// The tool's name.
    pub name: String,
    /// The argument bytes.
    pub arguments: String,
}

impl Answer {
    /// An answer of one text.
    pub fn text(text: impl Into<String>) -> Self {
        Self::default().then_text(text)
    }

    /// An answer that begins with thinking.
    pub fn thinking(text: impl Into<String>) -> Self {
        Self::default().then_thinking(text)
    }

    /// An answer that begins with a tool call.
    pub fn tool_call(name: impl Into<String>, arguments: impl Into<String>) -> Self {
        Self::default().then_tool_call(name, arguments)
    }

    /// This refusal instead of an answer.
    #[must_use]
    pub fn refuse(kind: ErrorKind) -> Self {
        Self { refuse: Some(kind), ..Self::default() }
    }

    /// A summary of the request.
    #[must_use]
    pub fn summary(summary: SummaryReply) -> Self {
        Self { summary: Some(summary), ..Self::default() }
    }

    /// Endless text, which continues faithfully after each cut.
    #[must_use]
    pub fn endless() -> Self {
        Self { endless: true, ..Self::default() }.continuation(ContinuationMode::Faithful)
    }

    /// Sets how the model [continues](crate::continuation) this answer.
    #[must_use]
    pub fn continuation(mut self, how: ContinuationMode) -> Self {
        self.continuation = Some(how);
        self
    }

    /// Cuts it after so many output tokens, whatever the request allowed.
    #[must_use]
    pub fn limit(mut self, tokens: u64) -> Self {
        self.limit = Some(tokens);
        self
    }

    /// Adds text.
    #[must_use]
    pub fn then_text(self, text: impl Into<String>) -> Self {
        self.then(Block::Text(text.into()))
    }

    /// Adds thinking.
    #[must_use]
    pub fn then_thinking(self, text: impl Into<String>) -> Self {
        self.then(Block::Thinking(text.into()))
    }

    /// Adds a tool call with an id from the seed.
    #[must_use]
    pub fn then_tool_call(self, name: impl Into<String>, arguments: impl Into<String>) -> Self {
        self.then(Block::ToolCall { id: None, name: name.into(), arguments: arguments.into() })
    }

    /// Adds any block.
    #[must_use]
    pub fn then(mut self, block: Block) -> Self {
        self.blocks.push(block);
        self
    }

    /// Fixes the stop reason.
    #[must_use]
    pub fn stop(mut self, stop: Stop) -> Self {
        self.stop = Some(stop);
        self
    }

    /// Fixes the reported usage.
    #[must_use]
    pub fn usage(mut self, usage: Usage) -> Self {
        self.usage = Some(usage);
        self
    }

    /// Adds an undocumented field.
    #[must_use]
    pub fn extra(mut self, key: impl Into<String>, value: impl Into<Value>) -> Self {
        self.extra.insert(key.into(), value.into());
        self
    }

    /// Streams the text in pieces of so many characters (at least 1).
    #[must_use]
    pub fn in_chunks_of(mut self, characters: usize) -> Self {
        self.chunks = Some(characters.max(1));
        self
    }

    /// Why it ends: the fixed stop reason, else tool use if it calls a tool, else the end of its
    /// turn.
    #[must_use]
    pub fn stop_or_implied(&self) -> Stop {
        self.stop.clone().unwrap_or_else(|| {
            if self.blocks.iter().any(|b| matches!(b, Block::ToolCall { .. })) {
                Stop::ToolUse
            } else {
                Stop::EndTurn
            }
        })
    }

    /// An error message that begins with the key, if a value is invalid.
    pub(crate) fn check(&self) -> Result<(), String> {
        if self.chunks == Some(0) {
            return Err("chunks is 0; it must be at least 1".into());
        }
        match (&self.refuse, &self.summary) {
            (Some(kind), _) | (_, Some(SummaryReply::Fails(kind))) => kind.check(),
            _ => Ok(()),
        }
    }

    /// The pieces in which a text of this answer is streamed.
    pub(crate) fn pieces<'t>(&self, text: &'t str) -> Vec<&'t str> {
        match self.chunks {
            None => pieces(text).collect(),
            Some(size) => {
                let mut rest = text;
                let mut out = Vec::new();
                while !rest.is_empty() {
                    let end = rest.char_indices().nth(size).map_or(rest.len(), |(at, _)| at);
                    let (piece, tail) = rest.split_at(end);
                    out.push(piece);
                    rest = tail;
                }
                out
            }
        }
    }

    /// Output tokens: the pieces of all blocks.
    #[must_use]
    pub fn output_tokens(&self) -> u64 {
        self.blocks.iter().map(Block::tokens).sum()
    }

    /// Cuts the answer where `limit` output tokens are used up, which may be inside a text,
    /// thinking or the arguments of a call. Returns whether there was anything to cut.
    pub fn cut(&mut self, limit: u64) -> bool {
        self.cut_in(limit).is_some()
    }

    /// Like [`cut`](Self::cut); returns in what.
    pub fn cut_in(&mut self, limit: u64) -> Option<Cut> {
        let mut left = limit;
        for at in 0..self.blocks.len() {
            let tokens = self.blocks[at].tokens();
            if tokens <= left {
                left -= tokens;
                continue;
            }
            let keep = usize::try_from(left).unwrap_or(usize::MAX);
            let block = &mut self.blocks[at];
            let text = block.body_mut();
            let bytes: usize = pieces(text).take(keep).map(str::len).sum();
            text.truncate(bytes);
            let cut = match block {
                _ if bytes == 0 => Cut::Between,
                Block::Text(_) => Cut::Text,
                Block::Thinking(_) | Block::RedactedThinking(_) => Cut::Thinking,
                Block::ToolCall { .. } => Cut::Arguments,
            };
            self.blocks.truncate(if bytes == 0 { at } else { at + 1 });
            self.stop = Some(Stop::MaxTokens);
            self.usage = self.usage.map(|usage| Usage {
                output: limit,
                reasoning: usage.reasoning.min(limit),
                ..usage
            });
            return Some(cut);
        }
        None
    }
}

impl Block {
    pub(crate) fn is_thinking(&self) -> bool {
        matches!(self, Self::Thinking(_) | Self::RedactedThinking(_))
    }

    pub(crate) fn is_call(&self) -> bool {
        matches!(self, Self::ToolCall { .. })
    }

    /// Its output tokens: the pieces of its text or of its arguments. Names and ids are not
    /// counted.
    #[must_use]
    pub fn tokens(&self) -> u64 {
        let text = match self {
            Self::Text(text) | Self::Thinking(text) | Self::RedactedThinking(text) => text,
            Self::ToolCall { arguments, .. } => arguments,
        };
        count_output(text) as u64
    }

    fn body_mut(&mut self) -> &mut String {
        match self {
            Self::Text(text) | Self::Thinking(text) | Self::RedactedThinking(text) => text,
            Self::ToolCall { arguments, .. } => arguments,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_cuts_at_any_token_and_only_when_needed() {
        let whole =
            Answer::thinking("one two").then_text("three four").then_tool_call("t", "{\"a\": 1}");
        let total = whole.output_tokens();
        assert_eq!(total, 2 + 2 + 2);
        let mut same = whole.clone();
        assert!(!same.cut(total));
        assert_eq!(same, whole);

        let blocks = |limit| {
            let mut answer = whole.clone();
            assert!(answer.cut(limit));
            assert_eq!(answer.stop, Some(Stop::MaxTokens));
            answer.blocks
        };
        assert_eq!(blocks(0), []);
        assert_eq!(blocks(1), [Block::Thinking("one".into())]);
        assert_eq!(blocks(2), [Block::Thinking("one two".into())]);
        assert_eq!(blocks(3)[1], Block::Text("three".into()));
        assert_eq!(
            blocks(5)[2],
            Block::ToolCall { id: None, name: "t".into(), arguments: "{\"a\":".into() }
        );
    }

    #[test]
    fn an_answer_is_read_with_defaults_for_missing_keys() {
        let read = |text: &str| serde_json::from_str::<Answer>(text);
        assert_eq!(
            read(
                r#"{"blocks": [{"text": "a"}, {"tool_call": {"name": "t", "arguments": "{}"}}],
                    "stop": "max_tokens", "usage": {"input": 3}}"#
            )
            .unwrap(),
            Answer::text("a")
                .then_tool_call("t", "{}")
                .stop(Stop::MaxTokens)
                .usage(Usage { input: 3, ..Usage::default() })
        );
        assert!(read(r#"{"block": []}"#).unwrap_err().to_string().contains("unknown field"));
    }

    #[test]
    fn chunks_concatenate_to_the_text() {
        let text = "naïve 日本 🦀!";
        for size in 1..6 {
            let answer = Answer::text(text).in_chunks_of(size);
            assert_eq!(answer.pieces(text).concat(), text);
        }
    }
}
