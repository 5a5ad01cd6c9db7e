//! The models a simulated provider serves.

use crate::{Dialect, Overflow};

/// One model: its name, its limits and what it can do.
///
/// Limits are in tokens of the simulator's own counter ([`count_tokens`](crate::count_tokens)).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Model {
    /// The name a request asks for.
    pub name: String,
    /// The context window: input plus output for OpenAI and Anthropic, input alone for Gemini, as
    /// the three providers define it.
    pub context: u64,
    /// The most output one answer can have.
    pub output: u64,
    /// Whether it takes images.
    pub vision: bool,
    /// Whether it can think: `thinking` (Anthropic), `thinkingConfig` (Gemini), and for OpenAI
    /// the reasoning models' rules (`max_completion_tokens` instead of `max_tokens`).
    pub thinking: bool,
    /// The efforts of reasoning that it takes, in OpenAI's dialect; any when there are none here.
    pub efforts: &'static [&'static str],
    /// Whether it takes tools beside an effort of reasoning, in OpenAI's dialect.
    pub tools: ToolsBeside,
    /// The fields of a request that it refuses, as its dialect calls them; in Gemini's dialect those of
    /// `generationConfig`.
    pub refuses: &'static [&'static str],
    /// Whether the last message may be the beginning of its own answer.
    pub prefill: Prefill,
    /// Whether the function calls of the current turn must carry their signatures (Gemini 3).
    /// A signature that is there is always verified.
    pub signatures: bool,
    /// Whether a message of the role `system` may follow a user's in the middle of a conversation
    /// (Anthropic, since Claude Opus 4.8).
    pub system_turns: bool,
    /// How a request beyond the window is refused.
    pub overflow: Overflow,
    /// Whether an output limit beyond the window is accepted as long as the input fits. The
    /// answer then ends where the window is full: [`Stop::Window`](crate::Stop::Window).
    pub fills_window: bool,
    /// How many numbers its vectors have; 0 for a model that does not embed. One that does answers nothing else.
    pub dimensions: usize,
}

/// Beside which efforts of reasoning a model of OpenAI's takes tools on chat completions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ToolsBeside {
    /// Beside any.
    #[default]
    AnyEffort,
    /// Beside `none`, which is its default (GPT-5.2 to 5.4).
    NoEffort,
    /// Beside `none` where the request says so; by default it thinks (from GPT-5.5 on).
    NoneAlone,
}

/// Whether a request may end with the beginning of the model's own answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Prefill {
    /// As the dialect does: OpenAI and Anthropic accept it, Gemini does not.
    #[default]
    Usual,
    /// Accepted.
    Accepted,
    /// Refused with a 400; in OpenAI's dialect with Mistral's message.
    Refused,
}

impl Prefill {
    pub(crate) fn accepted(self, usual: bool) -> bool {
        match self {
            Self::Usual => usual,
            Self::Accepted => true,
            Self::Refused => false,
        }
    }
}

impl Model {
    /// The field of `object` that it refuses, if there is one.
    pub(crate) fn refused(&self, object: &serde_json::Value) -> Option<&'static str> {
        self.refuses.iter().copied().find(|field| !object[*field].is_null())
    }

    /// A model with vision, thinking and the dialect's prefill, without signatures. The methods
    /// below change that.
    pub fn new(name: impl Into<String>, context: u64, output: u64) -> Self {
        Self {
            name: name.into(),
            context,
            output,
            vision: true,
            thinking: true,
            efforts: &[],
            tools: ToolsBeside::AnyEffort,
            refuses: &[],
            prefill: Prefill::Usual,
            signatures: false,
            system_turns: false,
            overflow: Overflow::Usual,
            fills_window: false,
            dimensions: 0,
        }
    }

    /// A model that embeds texts of up to `context` tokens as vectors of so many numbers.
    pub fn embedding(name: impl Into<String>, context: u64, dimensions: usize) -> Self {
        Self { dimensions, ..Self::new(name, context, 0) }
    }

    /// Accepts no images.
    #[must_use]
    pub fn without_vision(mut self) -> Self {
        self.vision = false;
        self
    }

    /// Can not think.
    #[must_use]
    pub fn without_thinking(mut self) -> Self {
        self.thinking = false;
        self
    }

    /// Takes these efforts of reasoning, in OpenAI's dialect, and tools beside some.
    #[must_use]
    pub fn with_efforts(mut self, efforts: &'static [&'static str], tools: ToolsBeside) -> Self {
        (self.efforts, self.tools) = (efforts, tools);
        self
    }

    /// Refuses requests with any of these fields.
    #[must_use]
    pub fn refusing(mut self, fields: &'static [&'static str]) -> Self {
        self.refuses = fields;
        self
    }

    /// Accepts no prefill.
    #[must_use]
    pub fn without_prefill(mut self) -> Self {
        self.prefill = Prefill::Refused;
        self
    }

    /// Accepts prefill, also where the dialect usually does not (Gemini).
    #[must_use]
    pub fn with_prefill(mut self) -> Self {
        self.prefill = Prefill::Accepted;
        self
    }

    /// How it refuses a request beyond the window.
    #[must_use]
    pub fn overflow(mut self, overflow: Overflow) -> Self {
        self.overflow = overflow;
        self
    }

    /// Accepts an output limit beyond the window and fills the window instead.
    #[must_use]
    pub fn filling_window(mut self) -> Self {
        self.fills_window = true;
        self
    }

    /// Takes instructions in the middle of a conversation.
    #[must_use]
    pub fn with_system_turns(mut self) -> Self {
        self.system_turns = true;
        self
    }

    /// Demands the signatures of its function calls back.
    #[must_use]
    pub fn with_signatures(mut self) -> Self {
        self.signatures = true;
        self
    }
}

const TO_XHIGH: &[&str] = &["none", "low", "medium", "high", "xhigh"];
const FROM_MINIMAL: &[&str] = &["minimal", "low", "medium", "high"];

/// The models that a provider of this dialect serves by default.
///
/// Windows and limits are the published ones of late 2026. OpenAI's figures are windows: input
/// plus output.
#[must_use]
pub fn default_models(dialect: Dialect) -> Vec<Model> {
    let (m, e) = (Model::new, Model::embedding);
    match dialect {
        Dialect::OpenAi | Dialect::Responses => vec![
            m("gpt-4o", 128_000, 16_384).without_thinking(),
            m("gpt-4o-mini", 128_000, 16_384).without_thinking(),
            m("gpt-4.1", 1_047_576, 32_768).without_thinking(),
            m("gpt-4.1-mini", 1_047_576, 32_768).without_thinking(),
            m("gpt-3.5-turbo", 16_385, 4_096).without_thinking().without_vision(),
            m("gpt-5.6", 922_000, 128_000).with_efforts(TO_XHIGH, ToolsBeside::NoneAlone),
            m("gpt-5.4", 1_050_000, 128_000).with_efforts(TO_XHIGH, ToolsBeside::NoEffort),
            m("gpt-5", 400_000, 128_000).with_efforts(FROM_MINIMAL, ToolsBeside::AnyEffort),
            m("gpt-5-mini", 400_000, 128_000).with_efforts(FROM_MINIMAL, ToolsBeside::AnyEffort),
            m("o3", 200_000, 100_000)
                .with_efforts(&["low", "medium", "high"], ToolsBeside::AnyEffort),
            e("text-embedding-3-small", 8_191, 1_536),
            e("text-embedding-3-large", 8_191, 3_072),
        ],
        Dialect::Anthropic => vec![
            m("claude-opus-5-5", 1_000_000, 128_000).without_prefill().with_system_turns(),
            m("claude-sonnet-5-5", 1_000_000, 128_000).without_prefill().with_system_turns(),
            m("claude-opus-4-6", 1_000_000, 128_000).without_prefill(),
            m("claude-sonnet-4-6", 1_000_000, 128_000).without_prefill(),
            m("claude-opus-4-5", 200_000, 64_000),
            m("claude-sonnet-4-5", 200_000, 64_000),
            m("claude-haiku-4-5", 200_000, 64_000),
            m("claude-haiku-4-5-20251001", 200_000, 64_000),
            m("claude-sonnet-4", 200_000, 64_000),
            m("claude-3-5-haiku-latest", 200_000, 8_192).without_thinking(),
        ],
        Dialect::Gemini => vec![
            m("gemini-3.1-pro-preview", 1_048_576, 65_536).with_signatures(),
            m("gemini-3-flash-preview", 1_048_576, 65_536).with_signatures(),
            m("gemini-3.8-flash", 1_048_576, 65_536).with_signatures(),
            m("gemini-3.5-flash-lite", 1_048_576, 65_536).with_signatures(),
            m("gemini-2.5-pro", 1_048_576, 65_536),
            m("gemini-2.5-flash", 1_048_576, 65_536),
            m("gemini-2.0-flash", 1_048_576, 8_192).without_thinking(),
            m("gemini-1.5-pro", 2_097_152, 8_192).without_thinking(),
            m("gemini-1.5-flash", 1_048_576, 8_192).without_thinking(),
            m("gemma-3-1b-it", 32_768, 8_192).without_thinking().without_vision(),
            e("gemini-embedding-001", 2_048, 3_072),
        ],
    }
}
