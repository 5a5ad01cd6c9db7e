//! How the model is to answer.

use crate::{RawJson, ToolChoice};

/// How the model is to answer; all optional.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Params {
    /// The most it may write, in tokens.
    pub max_output: Option<u64>,
    /// Sampling temperature.
    pub temperature: Option<f64>,
    /// Nucleus sampling.
    pub top_p: Option<f64>,
    /// Sampling among the k likeliest.
    pub top_k: Option<u64>,
    /// Texts that end the answer.
    pub stop: Vec<String>,
    /// Seed for sampling.
    pub seed: Option<i64>,
    /// Penalty on tokens that occurred.
    pub presence_penalty: Option<f64>,
    /// Penalty by how often tokens occurred.
    pub frequency_penalty: Option<f64>,
    /// Which tools it may or must call.
    pub tool_choice: Option<ToolChoice>,
    /// Whether it may call several tools at once.
    pub parallel_tool_calls: Option<bool>,
    /// Whether and how much it thinks first.
    pub thinking: Option<ThinkingConfig>,
    /// The form of the answer.
    pub format: Option<ResponseFormat>,
    /// The end user, for the provider's abuse detection.
    pub user: Option<String>,
    /// A stream is to report usage at its end (OpenAI's dialect makes that a choice).
    pub stream_usage: Option<bool>,
    /// How many answers; other than one is only possible within one dialect.
    pub answers: Option<u64>,
}

/// Whether and how much a model thinks before it answers.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ThinkingConfig {
    /// Not at all.
    Off,
    /// As much as it likes.
    Adaptive,
    /// At most this many tokens.
    Budget(u64),
    /// By a word, such as `low`, `medium`, `high`.
    Effort(String),
}

/// The form of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ResponseFormat {
    /// Words.
    Text,
    /// Some JSON object.
    Json,
    /// JSON that follows a schema.
    Schema {
        /// The schema's name.
        name: Option<String>,
        /// The schema.
        schema: RawJson,
        /// Whether the provider must hold the model to it.
        strict: Option<bool>,
    },
}
