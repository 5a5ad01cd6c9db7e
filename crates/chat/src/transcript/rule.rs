//! The rules of transcripts.

use std::fmt;

/// A rule that providers hold a conversation to.
///
/// | | rule | Anthropic | OpenAI | Gemini |
/// |---|---|---|---|---|
/// | S1 | [`FirstMessage`](TranscriptRule::FirstMessage) | the user's | any | the user's |
/// | S2 | [`Alternation`](TranscriptRule::Alternation) | encoder joins | any | encoder joins |
/// | S3 | [`Answered`](TranscriptRule::Answered) | in the next user turn | before the next message of another role | as many results as calls |
/// | S4 | [`Orphan`](TranscriptRule::Orphan) | refused | refused | refused |
/// | S5 | [`Duplicate`](TranscriptRule::Duplicate) | refused; the first is kept | as Anthropic | as Anthropic |
/// | S6 | [`Order`](TranscriptRule::Order) | results before all else | results before all else | in the order of the calls |
/// | S7 | [`Batch`](TranscriptRule::Batch) | answered as a whole | as Anthropic | as Anthropic |
/// | S8 | [`Ids`](TranscriptRule::Ids) | `[A-Za-z0-9_-]`, up to 64, each once | up to 64, once a batch | names are declared, results repeat them |
/// | S9 | [`Empty`](TranscriptRule::Empty) | no blank text, no empty message | no empty message, no empty result | no empty text, no empty message |
/// | S10 | [`Tail`](TranscriptRule::Tail) | the user's, or a prefill | any | the user's |
/// | S11 | [`Thinking`](TranscriptRule::Thinking) | signed, first, never last | never last | calls signed, where the model signs; never last |
/// | S12 | [`CacheMarks`](TranscriptRule::CacheMarks) | up to 4, longest lived first | - | - |
/// | S13 | [`Images`](TranscriptRule::Images) | number, size, sides, type | vision | total size |
/// | S14 | [`Size`](TranscriptRule::Size) | input + output | input + reserve | input |
/// | S15 | [`Tools`](TranscriptRule::Tools) | declared if used | - | - |
/// | S16 | [`Opaque`](TranscriptRule::Opaque) | pairs whole | - | - |
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum TranscriptRule {
    /// S1: the role of the first message. Repaired by a user message in front of the model's.
    FirstMessage,
    /// S2: turns alternate. Never reported: neighbours of one role are valid in a request, and
    /// encoders join them where a dialect requires it.
    Alternation,
    /// S3: every call has a result. Repaired by a failed result that says there is none.
    Answered,
    /// S4: every result has a call. What the user wrote beside an orphan stays.
    Orphan,
    /// S5: one result a call; the first wins.
    Duplicate,
    /// S6: the order inside a reply.
    Order,
    /// S7: calls made together are answered together. A result in a later turn is moved back to its
    /// call.
    Batch,
    /// S8: ids and names. Call and result change together, and always to the same id.
    Ids,
    /// S9: nothing is empty.
    Empty,
    /// S10: the role of the last message. Repaired by a user message at the end, never by dropping
    /// what the model wrote.
    Tail,
    /// S11: thinking is sent back unchanged or not at all.
    Thinking,
    /// S12: cache marks.
    CacheMarks,
    /// S13: images. Repaired by a line of text instead of the image.
    Images,
    /// S14: the request fits its window. Not repaired here: that is what compaction does.
    Size,
    /// S15: a conversation with tools in it declares tools.
    Tools,
    /// S16: blocks of one dialect are sent whole or not at all.
    Opaque,
}

/// The codes, in the order of the variants.
const CODES: [&str; 16] = [
    "S1", "S2", "S3", "S4", "S5", "S6", "S7", "S8", "S9", "S10", "S11", "S12", "S13", "S14", "S15",
    "S16",
];

impl TranscriptRule {
    /// Every rule.
    pub const ALL: [TranscriptRule; 16] = [
        TranscriptRule::FirstMessage,
        TranscriptRule::Alternation,
        TranscriptRule::Answered,
        TranscriptRule::Orphan,
        TranscriptRule::Duplicate,
        TranscriptRule::Order,
        TranscriptRule::Batch,
        TranscriptRule::Ids,
        TranscriptRule::Empty,
        TranscriptRule::Tail,
        TranscriptRule::Thinking,
        TranscriptRule::CacheMarks,
        TranscriptRule::Images,
        TranscriptRule::Size,
        TranscriptRule::Tools,
        TranscriptRule::Opaque,
    ];

    /// Its short name, `S1` to `S16`, used in logs.
    pub const fn code(self) -> &'static str {
        CODES[self as usize]
    }
}

impl fmt::Display for TranscriptRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.code())
    }
}
