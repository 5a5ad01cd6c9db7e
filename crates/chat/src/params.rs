//! Parameters of the answer.

use std::{
    fmt,
    ops::{Deref, DerefMut},
    sync::{Arc, LazyLock},
};

use crate::{RawJson, ToolChoice};

/// Parameters of the answer; all optional.
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
    /// The log probabilities of its tokens are to be reported.
    pub logprobs: Option<bool>,
    /// With so many alternatives for each.
    pub top_logprobs: Option<u64>,
    /// The tools came by the older name `functions` of OpenAI's dialect, and calls are answered by it.
    pub functions: bool,
    /// Which tools it may or must call.
    pub tool_choice: Option<ToolChoice>,
    /// Whether it may call several tools at once.
    pub parallel_tool_calls: Option<bool>,
    /// Whether and how much it thinks first.
    pub thinking: Option<ThinkingConfig>,
    /// What [`thinking`](Self::thinking) was before a repair turned it off, for the open tool loop alone.
    pub(crate) withheld_thinking: Option<ThinkingConfig>,
    /// The form of the answer.
    pub format: Option<ResponseFormat>,
    /// The end user, for the provider's abuse detection.
    pub user: Option<String>,
    /// A stream is to report usage at its end (optional in OpenAI's dialect).
    pub stream_usage: Option<bool>,
    /// The output limit has the other of its two names in OpenAI's dialect, because the provider has refused the
    /// one that it would have had.
    pub other_limit_name: bool,
    /// Fields of the caller's own body that are none of these parameters, and that a provider has refused: they are
    /// left out of what goes to it.
    pub withheld: Vec<&'static str>,
    /// How many answers; other than one is only possible within one dialect.
    pub answers: Option<u64>,
}

impl Params {
    /// The names that [`clear`](Self::clear) knows: those of OpenAI's dialect.
    pub const NAMES: [&str; 18] = [
        "max_tokens",
        "max_completion_tokens",
        "temperature",
        "top_p",
        "top_k",
        "stop",
        "seed",
        "presence_penalty",
        "frequency_penalty",
        "logprobs",
        "top_logprobs",
        "tool_choice",
        "parallel_tool_calls",
        "reasoning_effort",
        "thinking",
        "response_format",
        "user",
        "n",
    ];

    /// What OpenAI's dialect calls `name`, and nothing else: to compare one parameter of two requests.
    #[must_use]
    pub fn only(&self, name: &str) -> Self {
        let mut only = Self::default();
        match name {
            "max_tokens" | "max_completion_tokens" => only.max_output = self.max_output,
            "temperature" => only.temperature = self.temperature,
            "top_p" => only.top_p = self.top_p,
            "top_k" => only.top_k = self.top_k,
            "stop" => only.stop.clone_from(&self.stop),
            "seed" => only.seed = self.seed,
            "presence_penalty" => only.presence_penalty = self.presence_penalty,
            "frequency_penalty" => only.frequency_penalty = self.frequency_penalty,
            "logprobs" => only.logprobs = self.logprobs,
            "top_logprobs" => only.top_logprobs = self.top_logprobs,
            "tool_choice" => only.tool_choice.clone_from(&self.tool_choice),
            "parallel_tool_calls" => only.parallel_tool_calls = self.parallel_tool_calls,
            "reasoning_effort" | "thinking" => only.thinking.clone_from(&self.thinking),
            "response_format" => only.format.clone_from(&self.format),
            "user" => only.user.clone_from(&self.user),
            "n" => only.answers = self.answers,
            _ => {}
        }
        only
    }

    /// Leaves out the field `name` of the caller's own body; whether it was not [left out](Self::withheld) before.
    pub fn withhold(&mut self, name: &'static str) -> bool {
        let is_new = !self.withheld.contains(&name);
        if is_new {
            self.withheld.push(name);
        }
        is_new
    }

    /// Leaves out what OpenAI's dialect calls `name`; whether it was set.
    pub fn clear(&mut self, name: &str) -> bool {
        match name {
            "max_tokens" | "max_completion_tokens" => self.max_output.take().is_some(),
            "temperature" => self.temperature.take().is_some(),
            "top_p" => self.top_p.take().is_some(),
            "top_k" => self.top_k.take().is_some(),
            "stop" => !std::mem::take(&mut self.stop).is_empty(),
            "seed" => self.seed.take().is_some(),
            "presence_penalty" => self.presence_penalty.take().is_some(),
            "frequency_penalty" => self.frequency_penalty.take().is_some(),
            "logprobs" => self.logprobs.take().is_some(),
            "top_logprobs" => self.top_logprobs.take().is_some(),
            "tool_choice" => self.tool_choice.take().is_some(),
            "parallel_tool_calls" => self.parallel_tool_calls.take().is_some(),
            "reasoning_effort" | "thinking" => self.thinking.take().is_some(),
            "response_format" => self.format.take().is_some(),
            "user" => self.user.take().is_some(),
            "n" => self.answers.take().is_some(),
            _ => false,
        }
    }
}

/// The [`Params`] of a request, shared by its clones until one of them changes them. Dereferences to
/// [`Params`]; it is small, because a request is moved from layer to layer.
///
/// ```
/// use steadfast_chat::{ChatRequest, Params};
///
/// let mut request = ChatRequest::user("hello");
/// request.params.temperature = Some(0.2);
/// let before = request.clone();
/// request.params.clear("temperature");
/// assert_eq!(*request.params, Params::default());
/// assert_eq!(before.params.temperature, Some(0.2));
/// ```
#[derive(Clone, Default)]
pub struct SharedParams(Option<Arc<Params>>);

/// The parameters of a request that sets none.
static NONE: LazyLock<Params> = LazyLock::new(Params::default);

impl Deref for SharedParams {
    type Target = Params;

    fn deref(&self) -> &Params {
        self.0.as_deref().unwrap_or(&NONE)
    }
}

impl DerefMut for SharedParams {
    fn deref_mut(&mut self) -> &mut Params {
        Arc::make_mut(self.0.get_or_insert_default())
    }
}

impl From<Params> for SharedParams {
    fn from(params: Params) -> Self {
        Self((params != *NONE).then(|| Arc::new(params)))
    }
}

impl PartialEq for SharedParams {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(&**self, &**other) || **self == **other
    }
}

impl fmt::Debug for SharedParams {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

/// Whether and how much a model thinks before it answers.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ThinkingConfig {
    /// Not at all.
    Off,
    /// The model decides how much.
    Adaptive,
    /// At most this many tokens.
    Budget(u64),
    /// By a level, such as `low`, `medium`, `high`.
    Effort(String),
}

/// The form of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ResponseFormat {
    /// Text.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_clears_something() {
        for name in Params::NAMES {
            let mut params = Params {
                max_output: Some(1),
                temperature: Some(1.0),
                top_p: Some(1.0),
                top_k: Some(1),
                stop: vec!["x".into()],
                seed: Some(1),
                presence_penalty: Some(1.0),
                frequency_penalty: Some(1.0),
                logprobs: Some(true),
                top_logprobs: Some(1),
                functions: false,
                tool_choice: Some(ToolChoice::Auto),
                parallel_tool_calls: Some(true),
                thinking: Some(ThinkingConfig::Off),
                withheld_thinking: None,
                format: Some(ResponseFormat::Text),
                user: Some("u".into()),
                stream_usage: None,
                other_limit_name: false,
                withheld: Vec::new(),
                answers: Some(1),
            };
            let mut only = params.only(name);
            assert_ne!(only, Params::default(), "{name}");
            assert!(only.clear(name), "{name}");
            assert_eq!(only, Params::default(), "{name} and nothing else");
            assert!(params.clear(name) && !params.clear(name), "{name}");
        }
        assert!(!Params::default().clear("nonsense"));
    }
}
