//! What one provider, or one model, accepts.

use std::{fmt, sync::Arc};

use steadfast_core::{Dialect, Profile};

use crate::{ChatRequest, Role, ThinkingConfig};

/// What one provider, or one model of it, accepts. Plain data: start from a dialect's rules and
/// change what is different.
///
/// ```
/// use steadfast_chat::transcript::TranscriptRules;
/// use steadfast_core::Dialect;
///
/// let mut rules = TranscriptRules::for_dialect(Dialect::Anthropic);
/// rules.prefill = true; // an older model
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct TranscriptRules {
    /// The dialect: whose error messages are used, and whose opaque blocks are accepted.
    pub dialect: Dialect,
    /// S2: neighbouring messages of one role become one turn on the wire.
    pub merges: bool,
    /// S1: the first message that is no instruction is the user's.
    pub user_first: bool,
    /// S10: the last message that is no instruction is the user's, results included.
    pub user_last: bool,
    /// S10: the model continues a last message of its own. Off by default: Anthropic's models from
    /// 4.6 on refuse it. With thinking on it is never taken.
    pub prefill: bool,
    /// S6: in a reply, results come before all else.
    pub results_first: bool,
    /// S6: results come in the order of the calls.
    pub results_in_order: bool,
    /// S8: results repeat the name of their call, and calls name declared tools.
    pub calls_by_name: bool,
    /// S8: ids; `None` when the dialect does without.
    pub ids: Option<IdRules>,
    /// S8: the characters of a called tool's name.
    pub name_charset: Charset,
    /// S8: the bytes of a called tool's name, at most; less than 12 counts as 12.
    pub name_len: usize,
    /// S9: which texts are too empty.
    pub blank: Blank,
    /// S9: a tool's result may be empty.
    pub empty_results: bool,
    /// S11: thinking is signed and leads its turn (Anthropic).
    pub signed_thinking: bool,
    /// S11: in the current turn, the first call of each step is signed (Gemini from 3 on; off by
    /// default, older models do not sign).
    pub signed_calls: bool,
    /// S11: another model wrote the history, so its thinking and its signatures go.
    pub foreign_history: bool,
    /// S12: the most cache marks; `None` when the dialect has none.
    pub cache_marks: Option<usize>,
    /// S13: images.
    pub images: ImageRules,
    /// S14: the window in tokens: of input and output for Anthropic, of the input for others.
    /// Checked only when `count` is there too.
    pub window: Option<u64>,
    /// S14: tokens of the window to be left free besides.
    pub reserve: u64,
    /// S14: the output limit asked for counts towards the window.
    pub output_counts: bool,
    /// S14: counts a request's tokens.
    pub count: Option<TokenCount>,
    /// S15: a conversation with calls in it declares tools.
    pub tools_declared: bool,
    /// S16: calls of server tools and their results are checked for pairs.
    pub server_tools: bool,
}

/// S8: what an id may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct IdRules {
    /// Its characters.
    pub charset: Charset,
    /// Its bytes, at most; less than 21 counts as 21, which generated ids need. Every vendor of a
    /// dialect accepts 64 but OpenAI, whose older chat models stop at 40.
    pub max_len: usize,
    /// It occurs once in a request; else once in a batch of calls.
    pub unique: bool,
}

/// Characters allowed in an id or a name. Neither may be empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Charset {
    /// All.
    Any,
    /// `A-Z a-z 0-9 _ -`.
    Word,
    /// `A-Z a-z 0-9 _ - . :`.
    Dotted,
}

impl Charset {
    /// Whether `byte` is allowed.
    pub(super) fn allows(self, byte: u8) -> bool {
        let word = byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-');
        match self {
            Charset::Any => true,
            Charset::Word => word,
            Charset::Dotted => word || matches!(byte, b'.' | b':'),
        }
    }

    /// Whether `text` is made of it, is not empty and has at most `max` bytes.
    pub(super) fn accepts(self, text: &str, max: usize) -> bool {
        !text.is_empty() && text.len() <= max && text.bytes().all(|byte| self.allows(byte))
    }
}

/// S9: which texts are too empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Blank {
    /// None: an empty text is accepted.
    Allowed,
    /// Not empty, unless it carries a signature.
    NotEmpty,
    /// Neither empty nor white space alone.
    NotBlank,
}

/// S13: what images are accepted. `None` is no limit.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ImageRules {
    /// The model reads images at all.
    pub vision: bool,
    /// The model's own messages may hold media.
    pub in_answers: bool,
    /// How many in a request.
    pub max: Option<usize>,
    /// How large one may be: the bytes of its base64 text, which is what Anthropic measures.
    pub max_base64: Option<usize>,
    /// How large all of them together may be, in bytes of base64.
    pub max_total: Option<usize>,
    /// How many pixels a side may have.
    pub max_side: Option<u32>,
    /// With more than this many images in a request, the second figure is the longest side.
    pub many: Option<(usize, u32)>,
    /// The media types, such as `image/png`; empty for any.
    pub types: &'static [&'static str],
}

/// Counts the tokens of a request.
#[derive(Clone)]
pub struct TokenCount(Arc<dyn Fn(&ChatRequest) -> u64 + Send + Sync>);

impl TokenCount {
    /// Counts with `count`, which is called once a validation.
    pub fn new(count: impl Fn(&ChatRequest) -> u64 + Send + Sync + 'static) -> Self {
        Self(Arc::new(count))
    }

    /// The tokens of `request`.
    pub fn count(&self, request: &ChatRequest) -> u64 {
        (self.0)(request)
    }
}

impl fmt::Debug for TokenCount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TokenCount")
    }
}

/// Anthropic's limit for one image; its error says 5,242,880 and means the base64 text.
const ANTHROPIC_IMAGE: usize = 5 * 1024 * 1024;

/// Gemini's limit for a request with data in it.
const GEMINI_INLINE: usize = 20 * 1024 * 1024;

impl TranscriptRules {
    /// What the vendor of the dialect accepts, as far as it does not depend on the model.
    pub fn for_dialect(dialect: Dialect) -> Self {
        match dialect {
            Dialect::Anthropic => Self::anthropic(),
            Dialect::OpenAi => Self::openai(),
            Dialect::Gemini => Self::gemini(),
            Dialect::Responses => Self::responses(),
        }
    }

    /// What one target accepts: the dialect's rules, with its vision, window and history.
    pub fn for_profile(dialect: Dialect, profile: &Profile) -> Self {
        let mut rules = Self::for_dialect(dialect);
        rules.images.vision = profile.can.vision;
        rules.window = profile.can.window;
        rules.foreign_history = profile.foreign_history;
        rules
    }

    fn openai() -> Self {
        Self {
            dialect: Dialect::OpenAi,
            merges: false,
            user_first: false,
            user_last: false,
            prefill: false,
            results_first: true,
            results_in_order: false,
            calls_by_name: false,
            ids: Some(IdRules { charset: Charset::Any, max_len: 40, unique: false }),
            name_charset: Charset::Any,
            name_len: usize::MAX,
            blank: Blank::Allowed,
            empty_results: false,
            signed_thinking: false,
            signed_calls: false,
            foreign_history: false,
            cache_marks: None,
            images: ImageRules {
                vision: true,
                in_answers: false,
                max: None,
                max_base64: None,
                max_total: None,
                max_side: None,
                many: None,
                types: &[],
            },
            window: None,
            reserve: 0,
            output_counts: false,
            count: None,
            tools_declared: false,
            server_tools: false,
        }
    }

    fn anthropic() -> Self {
        Self {
            dialect: Dialect::Anthropic,
            merges: true,
            user_first: true,
            user_last: true,
            ids: Some(IdRules { charset: Charset::Word, max_len: 64, unique: true }),
            name_charset: Charset::Word,
            name_len: 128,
            blank: Blank::NotBlank,
            empty_results: true,
            signed_thinking: true,
            cache_marks: Some(4),
            images: ImageRules {
                max: Some(100),
                max_base64: Some(ANTHROPIC_IMAGE),
                max_side: Some(8_000),
                many: Some((20, 2_000)),
                types: &["image/jpeg", "image/png", "image/gif", "image/webp"],
                ..Self::openai().images
            },
            output_counts: true,
            tools_declared: true,
            server_tools: true,
            ..Self::openai()
        }
    }

    fn gemini() -> Self {
        Self {
            dialect: Dialect::Gemini,
            merges: true,
            user_first: true,
            user_last: true,
            results_first: false,
            results_in_order: true,
            calls_by_name: true,
            ids: None,
            name_charset: Charset::Dotted,
            name_len: 128,
            blank: Blank::NotEmpty,
            empty_results: true,
            images: ImageRules {
                in_answers: true,
                max_total: Some(GEMINI_INLINE),
                ..Self::openai().images
            },
            ..Self::openai()
        }
    }

    fn responses() -> Self {
        Self {
            dialect: Dialect::Responses,
            ids: Some(IdRules { charset: Charset::Any, max_len: 64, unique: false }),
            name_charset: Charset::Word,
            name_len: 64,
            ..Self::openai()
        }
    }

    /// The role of new results: the dialect's own, so that a repaired request of this dialect looks
    /// like one that needed no repair.
    pub(super) fn result_role(&self) -> Role {
        if self.merges { Role::User } else { Role::Tool }
    }

    /// Whether a last message of the model is taken as the beginning of its answer.
    pub(super) fn takes_prefill(&self, thinking: Option<&ThinkingConfig>) -> bool {
        self.prefill && !thinks(thinking)
    }
}

/// Whether the model is asked to think.
pub(super) fn thinks(thinking: Option<&ThinkingConfig>) -> bool {
    thinking.is_some_and(|thinking| *thinking != ThinkingConfig::Off)
}
