//! What a transcript is held to.

use std::fmt;

/// A rule that providers hold a conversation to.
///
/// | | rule | Anthropic | OpenAI | Gemini |
/// |---|---|---|---|---|
/// | S1 | [`FirstMessage`](Rule::FirstMessage) | the user's | any | the user's |
/// | S2 | [`Alternation`](Rule::Alternation) | encoder joins | free | encoder joins |
/// | S3 | [`Answered`](Rule::Answered) | in the next user turn | before the next message of another role | as many results as calls |
/// | S4 | [`Orphan`](Rule::Orphan) | refused | refused | refused |
/// | S5 | [`Duplicate`](Rule::Duplicate) | refused; the first is kept | as Anthropic | as Anthropic |
/// | S6 | [`Order`](Rule::Order) | results before all else | results before all else | in the order of the calls |
/// | S7 | [`Batch`](Rule::Batch) | answered as a whole | as Anthropic | as Anthropic |
/// | S8 | [`Ids`](Rule::Ids) | `[A-Za-z0-9_-]`, up to 64, each once | up to 64, once a batch | names are declared, results repeat them |
/// | S9 | [`Empty`](Rule::Empty) | no blank text, no empty message | no empty message, no empty result | no empty text, no empty message |
/// | S10 | [`Tail`](Rule::Tail) | the user's, or a prefill | any | the user's |
/// | S11 | [`Thinking`](Rule::Thinking) | signed, first, never last | never last | calls signed, where the model signs; never last |
/// | S12 | [`CacheMarks`](Rule::CacheMarks) | up to 4, longest lived first | - | - |
/// | S13 | [`Images`](Rule::Images) | number, size, sides, type | vision | total size |
/// | S14 | [`Size`](Rule::Size) | input + output | input + reserve | input |
/// | S15 | [`Tools`](Rule::Tools) | declared if used | - | - |
/// | S16 | [`Opaque`](Rule::Opaque) | own blocks only, pairs whole | own blocks only | own blocks only |
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Rule {
    /// S1: who opens the conversation. Mended by a line in the user's name before the model's.
    FirstMessage,
    /// S2: turns alternate. Never reported: neighbours of one role are lawful in a request, and
    /// encoders join them where a dialect asks for it.
    Alternation,
    /// S3: every call has a result. Mended by a failed result that says there is none.
    Answered,
    /// S4: every result has a call. What the user wrote beside an orphan stays.
    Orphan,
    /// S5: one result a call; the first wins.
    Duplicate,
    /// S6: the order inside a reply.
    Order,
    /// S7: calls made together are answered together. A result that strayed to a later turn is
    /// moved back to its call.
    Batch,
    /// S8: ids and names. Call and result change together, and the same way every time.
    Ids,
    /// S9: nothing is empty.
    Empty,
    /// S10: who has the last word. Mended by a line in the user's name, never by dropping what the
    /// model said.
    Tail,
    /// S11: thinking is replayed as it came or not at all.
    Thinking,
    /// S12: cache marks.
    CacheMarks,
    /// S13: images. Mended by a line of text in the image's place.
    Images,
    /// S14: the request fits its window. Not mended here: that is compaction's work.
    Size,
    /// S15: a conversation with tools in it declares tools.
    Tools,
    /// S16: blocks of one dialect are moved whole or not at all.
    Opaque,
}

impl Rule {
    /// Every rule.
    pub const ALL: [Rule; 16] = [
        Rule::FirstMessage,
        Rule::Alternation,
        Rule::Answered,
        Rule::Orphan,
        Rule::Duplicate,
        Rule::Order,
        Rule::Batch,
        Rule::Ids,
        Rule::Empty,
        Rule::Tail,
        Rule::Thinking,
        Rule::CacheMarks,
        Rule::Images,
        Rule::Size,
        Rule::Tools,
        Rule::Opaque,
    ];

    /// Its short name, `S1` to `S16`, used in logs.
    pub const fn code(self) -> &'static str {
        match self {
            Rule::FirstMessage => "S1",
            Rule::Alternation => "S2",
            Rule::Answered => "S3",
            Rule::Orphan => "S4",
            Rule::Duplicate => "S5",
            Rule::Order => "S6",
            Rule::Batch => "S7",
            Rule::Ids => "S8",
            Rule::Empty => "S9",
            Rule::Tail => "S10",
            Rule::Thinking => "S11",
            Rule::CacheMarks => "S12",
            Rule::Images => "S13",
            Rule::Size => "S14",
            Rule::Tools => "S15",
            Rule::Opaque => "S16",
        }
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.code())
    }
}
