//! What a model of Anthropic's takes: output limit, thinking, sampling.

use steadfast_chat::{ChatRequest, ModelFacts, ThinkingConfig, ToolChoice};
use steadfast_core::Call;

use super::DIALECT;
use crate::dialect::{effort, turns::loop_without_thinking};

/// The output limit when the caller named none and nothing is known of the model, in tokens. The dialect
/// needs one; 8,192 is what every model since Claude 3.5 takes.
const DEFAULT_MAX_TOKENS: u64 = 8_192;

/// The smallest budget Anthropic takes, in tokens.
const MIN_BUDGET: u64 = 1_024;

/// What to send of the parameters that hang together.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Plan {
    pub(super) max_tokens: u64,
    pub(super) thinking: Option<Think>,
    pub(super) effort: Option<String>,
    pub(super) temperature: Option<f64>,
    pub(super) top_p: Option<f64>,
    pub(super) top_k: Option<u64>,
}

/// The field `thinking`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Think {
    Disabled,
    Adaptive,
    Budget(u64),
}

/// For whom a request was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Written {
    /// For this dialect and this model: it is sent as it is.
    ForThis,
    /// By a program, in no dialect: it is put into what the model takes.
    InOurs,
    /// For another vendor or another model: what this model would refuse is left out.
    ForAnother,
}

impl Written {
    pub(super) fn of(request: &ChatRequest) -> Self {
        match (request.dialect(), request.origin(DIALECT)) {
            (None, _) => Self::InOurs,
            (Some(_), Some(origin)) if origin.read().model == request.model => Self::ForThis,
            _ => Self::ForAnother,
        }
    }
}

impl Plan {
    /// For `request`, whose budget for thinking stays below the output limit always.
    pub(super) fn new(request: &ChatRequest, written: Written) -> Self {
        let params = &request.params;
        let model = Model::of(&request.model);
        let own = written == Written::ForThis;
        let translated = written == Written::ForAnother;
        let forced = matches!(params.tool_choice, Some(ToolChoice::Required | ToolChoice::Tool(_)));

        let (mut thinking, mut effort) = match &params.thinking {
            None => (None, None),
            Some(ThinkingConfig::Off) => (Some(Think::Disabled), None),
            Some(ThinkingConfig::Budget(0)) if !own => (None, None),
            Some(ThinkingConfig::Budget(tokens)) if !own && model.adaptive => {
                (Some(Think::Adaptive), Some(effort::word(*tokens).to_owned()))
            }
            Some(ThinkingConfig::Budget(tokens)) => (Some(Think::Budget(*tokens)), None),
            Some(ThinkingConfig::Effort(word)) if model.adaptive || own => {
                let word = if word == "minimal" { "low" } else { word };
                (Some(Think::Adaptive), Some(word.to_owned()))
            }
            Some(ThinkingConfig::Effort(word)) => (Some(Think::Budget(effort::budget(word))), None),
            Some(_) if model.adaptive || own => (Some(Think::Adaptive), None),
            Some(_) => (Some(Think::Budget(effort::budget("medium"))), None),
        };
        if translated {
            // A model that may or may not think needs no setting for not thinking; those that always
            // do refuse it.
            if thinking == Some(Think::Disabled) {
                thinking = None;
            }
            // Thinking goes with no forced tool, and not with a tool loop that began without it.
            if forced || loop_without_thinking(&request.messages, DIALECT) {
                (thinking, effort) = (None, None);
            }
        }
        let budget = match thinking {
            Some(Think::Budget(tokens)) => tokens,
            Some(Think::Adaptive) => effort.as_deref().map_or(0, effort::budget),
            _ => 0,
        };
        // The limit counts thinking too, so a default limit leaves room for both.
        let least = DEFAULT_MAX_TOKENS + budget;
        let max_tokens = params.max_output.unwrap_or_else(|| match translated {
            true => most_output(request, least),
            false => least,
        });
        if let Some(Think::Budget(tokens)) = thinking
            && tokens >= max_tokens
        {
            // Half of the limit is left to the answer.
            let fitted = (max_tokens / 2).max(MIN_BUDGET);
            thinking = (fitted < max_tokens).then_some(Think::Budget(fitted));
        }
        let mut plan = Self {
            max_tokens,
            thinking,
            effort,
            temperature: params.temperature,
            top_p: params.top_p,
            top_k: params.top_k,
        };
        if translated {
            plan.fit_sampling(&model);
        }
        plan
    }

    /// Other vendors' temperatures go up to 2, here to 1. Newer models take no sampling at all,
    /// thinking allows none, and of temperature and `top_p` newer models take one.
    fn fit_sampling(&mut self, model: &Model) {
        let thinks = matches!(self.thinking, Some(Think::Adaptive | Think::Budget(_)));
        if model.fixed_sampling || thinks {
            (self.temperature, self.top_p, self.top_k) = (None, None, None);
        }
        self.temperature = self.temperature.map(|temperature| temperature.min(1.0));
        if self.temperature.is_some() {
            self.top_p = None;
        }
    }
}

/// The output limit of a translated request that names none: the model's own, as far as the window has room for it
/// beside the conversation. Where nobody has measured that it is `least` at the least, which may be more; and where
/// nothing is known of the model. In the other dialects there is no other limit either.
fn most_output(request: &ChatRequest, least: u64) -> u64 {
    if let Some(room) = request.answer_room {
        return room;
    }
    let Some(facts) = ModelFacts::of(&request.model) else { return least };
    let Some(output) = facts.output else { return least };
    let room = facts.window.saturating_sub(request.needs().most_input_tokens);
    output.min(room.max(least))
}

/// Whether a model of this name can be held to a schema: Claude 4.5 and later.
pub(super) fn takes_schema(name: &str) -> bool {
    version(name).is_some_and(|version| version >= (4, 5))
}

/// What is known of a model by its name.
struct Model {
    /// It thinks as much as it likes, guided by an effort: Claude 4.6 and later. Budgets are
    /// deprecated there, and refused from 4.7 on.
    adaptive: bool,
    /// It refuses sampling parameters: Claude 4.7 and later.
    fixed_sampling: bool,
}

impl Model {
    /// A model whose name has no version is taken for an older one.
    fn of(name: &str) -> Self {
        let version = version(name).unwrap_or((0, 0));
        Self { adaptive: version >= (4, 6), fixed_sampling: version >= (4, 7) }
    }
}

/// The version in names such as `claude-opus-4-7`, `claude-3-5-haiku-20241022`,
/// `anthropic/claude-sonnet-4.6` and `us.anthropic.claude-opus-5`. A number of more than two digits
/// is a date.
fn version(name: &str) -> Option<(u32, u32)> {
    let rest = &name[name.find("claude")?..];
    let mut numbers = rest
        .split(['-', '.', '@', ':', '_'])
        .skip(1)
        .map(|piece| (piece.len() <= 2).then(|| piece.parse::<u32>().ok()).flatten());
    let major = numbers.by_ref().flatten().next()?;
    Some((major, numbers.next().flatten().unwrap_or(0)))
}

#[cfg(test)]
mod tests {
    use steadfast_chat::Message;
    use steadfast_core::Dialect;

    use super::*;

    #[test]
    fn versions_are_read_out_of_names() {
        for (name, wanted) in [
            ("claude-opus-4-7", Some((4, 7))),
            ("claude-opus-4-7-20260416", Some((4, 7))),
            ("claude-sonnet-4-20250514", Some((4, 0))),
            ("claude-3-5-haiku-20241022", Some((3, 5))),
            ("anthropic/claude-sonnet-4.6", Some((4, 6))),
            ("us.anthropic.claude-opus-5", Some((5, 0))),
            ("claude-opus-5-5", Some((5, 5))),
            ("claude-latest", None),
            ("gpt-4-1", None),
        ] {
            assert_eq!(version(name), wanted, "{name}");
        }
    }

    fn translated(model: &str, change: impl FnOnce(&mut ChatRequest)) -> Plan {
        let request = ChatRequest::user("hi").with_model(model);
        let mut request = request.with_origin(Dialect::OpenAi, Default::default());
        change(&mut request);
        Plan::new(&request, Written::of(&request))
    }

    #[test]
    fn without_a_limit_it_is_the_models_own_as_far_as_the_window_has_room() {
        let limit = |model: &str, words: usize| {
            let change = |request: &mut ChatRequest| {
                request.messages = vec![Message::user("word ".repeat(words))].into();
            };
            translated(model, change).max_tokens
        };
        assert_eq!(limit("claude-sonnet-4-5", 1), 64_000);
        assert_eq!(limit("claude-sonnet-4-5", 90_000), 200_000 - 150_000 - 8);
        assert_eq!(limit("claude-sonnet-4-5", 200_000), 8_192, "it may be fewer tokens than that");
        assert_eq!(limit("claude-3-opus", 1), 8_192, "whose limit is not known");
        assert_eq!(limit("house-model", 1), 8_192);
        let measured = |room| {
            let change = |request: &mut ChatRequest| request.answer_room = Some(room);
            translated("claude-sonnet-4-5", change).max_tokens
        };
        assert_eq!((measured(12_000), measured(3_000)), (12_000, 3_000));
    }

    #[test]
    fn an_effort_becomes_what_the_model_takes() {
        let high = |request: &mut ChatRequest| {
            request.params.thinking = Some(ThinkingConfig::Effort("high".into()));
            request.params.temperature = Some(1.7);
        };
        let older = translated("claude-sonnet-4-5", high);
        assert_eq!(older.thinking, Some(Think::Budget(24_576)));
        assert_eq!(older.max_tokens, 64_000, "the most that the model writes");
        assert_eq!((older.effort, older.temperature), (None, None));

        let newer = translated("claude-opus-4-7", high);
        assert_eq!(newer.thinking, Some(Think::Adaptive));
        assert_eq!(newer.effort.as_deref(), Some("high"));

        let tight = translated("claude-sonnet-4-5", |request| {
            high(request);
            request.params.max_output = Some(4_000);
        });
        assert_eq!(tight.thinking, Some(Think::Budget(2_000)));
        let none = translated("claude-sonnet-4-5", |request| {
            high(request);
            request.params.max_output = Some(1_000);
        });
        assert_eq!((none.thinking, none.temperature), (None, Some(1.0)));
    }

    #[test]
    fn no_thinking_where_it_would_be_refused() {
        let think = |request: &mut ChatRequest| {
            request.params.thinking = Some(ThinkingConfig::Effort("low".into()));
        };
        let forced = translated("claude-sonnet-4-5", |request| {
            think(request);
            request.params.tool_choice = Some(ToolChoice::Required);
        });
        assert_eq!(forced.thinking, None);
        let mid_loop = translated("claude-sonnet-4-5", |request| {
            think(request);
            let call = steadfast_chat::Part::tool_call("c", "f", "{}");
            let messages = request.messages.make_mut();
            messages.push(Message::new(steadfast_chat::Role::Assistant, vec![call]));
            messages.push(Message::tool("c", "done"));
        });
        assert_eq!(mid_loop.thinking, None);
    }

    #[test]
    fn what_a_caller_wrote_is_kept_for_the_model_it_was_written_for() {
        let mut request = ChatRequest::user("hi").with_model("claude-opus-4-6");
        request.params.thinking = Some(ThinkingConfig::Budget(2_000));
        request.params.temperature = Some(0.3);
        request.params.max_output = Some(3_000);
        let mut request = request.with_origin(DIALECT, Default::default());
        let plan = |request: &ChatRequest| Plan::new(request, Written::of(request));
        assert_eq!(plan(&request).thinking, Some(Think::Budget(2_000)));
        assert_eq!(plan(&request).temperature, Some(0.3));
        // A layer lowered the limit: the budget follows.
        request.params.max_output = Some(2_000);
        assert_eq!(plan(&request).thinking, Some(Think::Budget(1_024)));
        // Failover chose another model.
        request.model = "claude-opus-4-7".into();
        assert_eq!(plan(&request).thinking, Some(Think::Adaptive));
        assert_eq!(plan(&request).temperature, None);
    }
}
