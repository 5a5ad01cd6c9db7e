//! The refusals of a request beyond the window, of many providers.

use serde::{Deserialize, Serialize};
use serde_json::json;

use super::{Dialect, Refusal, anthropic, gemini, openai, responses};
use crate::models::Model;

/// What a provider does with a request that does not fit its window.
///
/// Messages other than [`Usual`](Self::Usual) and [`NoNumbers`](Self::NoNumbers) are those of
/// servers that speak OpenAI's dialect; in another dialect they are sent in its envelope, as relays
/// do. Numbers are the simulator's own exact ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Overflow {
    /// The dialect's own message, with its numbers.
    #[default]
    Usual,
    /// The dialect's own message without numbers. Gemini has none: its usual message without the
    /// numbers.
    NoNumbers,
    /// vLLM: window, reserved output and input.
    Vllm,
    /// xAI.
    Xai,
    /// Mistral.
    Mistral,
    /// Groq: code without numbers.
    Groq,
    /// llama.cpp: a 500 with the numbers in fields.
    LlamaCpp,
    /// Together and Fireworks.
    Together,
    /// Moonshot (Kimi): input and output in one number.
    Moonshot,
    /// DashScope: the window as the range of a parameter.
    DashScope,
    /// MiniMax: a message alone.
    MiniMax,
    /// Bedrock: a message alone.
    Bedrock,
    /// A 200 without content, with the whole input in its usage (LM Studio).
    Silent,
    /// A normal answer to a prompt that was cut to the window, as only its usage shows (Ollama).
    Truncates,
}

/// A request against a window.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Over {
    pub(crate) window: u64,
    pub(crate) input: u64,
    /// The output it reserves.
    pub(crate) output: u64,
}

impl Overflow {
    /// Whether the reserved output counts against the window.
    fn reserves(self, dialect: Dialect) -> bool {
        match self {
            Self::Usual | Self::NoNumbers | Self::Silent | Self::Truncates => {
                dialect != Dialect::Gemini
            }
            Self::Vllm | Self::Groq | Self::Moonshot => true,
            _ => false,
        }
    }

    fn refusal(self, dialect: Dialect, over: Over) -> Refusal {
        let Over { window, input, output } = over;
        let total = input.saturating_add(output);
        let invalid = |message: String| match dialect {
            Dialect::OpenAi | Dialect::Responses => openai::errors::invalid(message),
            Dialect::Anthropic => anthropic::errors::invalid(message),
            Dialect::Gemini => gemini::errors::invalid(message),
        };
        match self {
            Self::Usual | Self::Silent | Self::Truncates => match dialect {
                Dialect::OpenAi if input > window => openai::errors::overflow(window, input),
                Dialect::OpenAi => openai::errors::overflow_with_output(window, input, output),
                Dialect::Anthropic if input > window => anthropic::errors::overflow(window, input),
                Dialect::Anthropic => {
                    anthropic::errors::overflow_with_output(window, input, output)
                }
                Dialect::Gemini => gemini::errors::overflow(window, input),
                Dialect::Responses => responses::errors::overflow(),
            },
            Self::NoNumbers => match dialect {
                Dialect::OpenAi | Dialect::Responses => responses::errors::overflow(),
                Dialect::Anthropic => {
                    invalid("Request size exceeds model context window".to_owned())
                }
                Dialect::Gemini => invalid(
                    "The input token count exceeds the maximum number of tokens allowed."
                        .to_owned(),
                ),
            },
            Self::Vllm => invalid(format!(
                "This model's maximum context length is {window} tokens. However, you requested \
                 {output} output tokens and your prompt contains at least {input} input tokens, \
                 for a total of at least {total} tokens. Please reduce the length of the input \
                 prompt or the number of requested output tokens."
            ))
            .fields(json!({"type": "BadRequestError", "code": 400})),
            Self::Xai => invalid(format!(
                "This model's maximum prompt length is {window} but the request contains {input} \
                 tokens."
            )),
            Self::Mistral => invalid(format!(
                "Prompt contains {input} tokens and 0 draft tokens, too large for model with \
                 {window} maximum context length"
            )),
            Self::Groq => {
                invalid("Please reduce the length of the messages or completion.".to_owned())
                    .param("messages")
                    .code("context_length_exceeded")
            }
            Self::LlamaCpp => {
                let mut refusal = invalid(
                    "the request exceeds the available context size. try increasing the context \
                     size or enable context shift"
                        .to_owned(),
                )
                .fields(json!({
                    "code": 500,
                    "type": "exceed_context_size_error",
                    "n_prompt_tokens": input,
                    "n_ctx": window,
                }));
                refusal.status = 500;
                refusal
            }
            Self::Together => invalid(format!(
                "Input length {input} exceeds the maximum allowed input length of {window} tokens."
            )),
            Self::Moonshot => invalid(format!(
                "Invalid request: Your request exceeded model token limit: {window} (requested: \
                 {total})"
            )),
            Self::DashScope => invalid(format!(
                "<400> InternalError.Algo.InvalidParameter: Range of input length should be [1, \
                 {window}]"
            ))
            .code("invalid_parameter_error"),
            Self::MiniMax => {
                invalid("invalid params, context window exceeds limit (2013)".to_owned())
            }
            Self::Bedrock => invalid("Input is too long for requested model.".to_owned()),
        }
    }
}

/// Whether a request fits the window of its model.
pub(crate) fn check(
    dialect: Dialect,
    model: &Model,
    input: u64,
    output: u64,
) -> Result<(), Refusal> {
    let window = model.context;
    let reserved = if model.fills_window || !model.overflow.reserves(dialect) { 0 } else { output };
    if input.saturating_add(reserved) <= window
        || matches!(model.overflow, Overflow::Silent | Overflow::Truncates)
    {
        return Ok(());
    }
    Err(model.overflow.refusal(dialect, Over { window, input, output }))
}

/// The refusal for a fault plan, with numbers that fit the model.
pub(crate) fn planned(dialect: Dialect, model: &Model, input: u64) -> Refusal {
    model.overflow.refusal(dialect, Over { window: model.context, input, output: 0 })
}

/// Output tokens for which a window has room after `input`, where they share it.
pub(crate) fn room(dialect: Dialect, model: &Model, input: u64) -> Option<u64> {
    match model.overflow {
        Overflow::Silent | Overflow::Truncates => None,
        wording => wording.reserves(dialect).then(|| model.context.saturating_sub(input)),
    }
}
