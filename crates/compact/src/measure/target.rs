//! What is known of a target: its dialect, its window, how it counts.

use std::{hash::BuildHasher, sync::Arc};

use steadfast_chat::{ChatRequest, transcript::TranscriptRules};
use steadfast_core::{Call, Dialect, Keep, Target};
use tokio::time::Instant;

use steadfast_core::model_names::names;

use super::{TokenLimits, UNKNOWN};
use crate::{
    decide::{Refused, Room},
    state::LayerState,
};

/// What the layer has to know of a target, where its name is not enough.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct TargetFacts {
    /// Its dialect; `None` to go by its name, the request, and the model's name.
    pub dialect: Option<Dialect>,
    /// A second one, in which callers of it are answered.
    pub also: Option<Dialect>,
    /// Its window and output limit; `None` for those of its model in [`Models`](crate::Models).
    pub limits: Option<TokenLimits>,
    /// Whether it reads images.
    pub vision: bool,
}

impl Default for TargetFacts {
    fn default() -> Self {
        Self { dialect: None, also: None, limits: None, vision: true }
    }
}

impl TargetFacts {
    /// With this dialect.
    #[must_use]
    pub fn with_dialect(mut self, dialect: Dialect) -> Self {
        self.dialect = Some(dialect);
        self
    }

    /// With this one besides, for callers of it.
    #[must_use]
    pub fn with_also(mut self, dialect: Option<Dialect>) -> Self {
        self.also = dialect;
        self
    }

    /// With these limits.
    #[must_use]
    pub fn with_limits(mut self, limits: TokenLimits) -> Self {
        self.limits = Some(limits);
        self
    }

    /// Says whether it reads images.
    #[must_use]
    pub fn with_vision(mut self, vision: bool) -> Self {
        self.vision = vision;
        self
    }
}

/// The least room for an answer that is asked for, in tokens: with less of the window left the request is refused,
/// and then compacted.
const LEAST_ROOM: u64 = 1_024;

/// What every model since Claude 3.5 writes at the least, in tokens.
const USUAL_OUTPUT: u64 = 8_192;

/// What is known of where a request goes.
#[derive(Clone, Debug)]
pub(crate) struct TargetInfo {
    target: Option<Target>,
    pub(crate) model: Box<str>,
    pub(crate) limits: TokenLimits,
    /// Whether the limits are stated; otherwise they are assumed.
    pub(crate) is_known: bool,
    /// Until when all this holds, where something of it was learned.
    until: Option<Instant>,
    /// What was given; the dialect as far as the provider's name shows, too.
    facts: TargetFacts,
    /// The parameters that it has refused.
    refused: Box<[Refused]>,
    /// As far as the model's name shows.
    of_model: Option<Dialect>,
}

impl Keep for TargetInfo {}

impl TargetInfo {
    /// Whether the limits still hold. The clock is read only where a window was learned.
    fn holds(&self) -> bool {
        self.until.is_none_or(|until| Instant::now() < until)
    }

    fn dialect(&self, request: &ChatRequest) -> Dialect {
        let also = self.facts.also.filter(|also| request.dialect() == Some(*also));
        also.or(self.facts.dialect)
            .or_else(|| request.dialect())
            .or(self.of_model)
            .unwrap_or(Dialect::OpenAi)
    }

    /// Whether the output asked for counts towards the window.
    pub(crate) fn output_counts(&self, request: &ChatRequest) -> bool {
        self.dialect(request) == Dialect::Anthropic
    }

    /// Takes the parameters that it has refused from a request that was not written for it.
    pub(crate) fn leave_out(&self, request: &mut ChatRequest) {
        for refused in &self.refused {
            if refused.is_in(request) {
                refused.leave_out_of(&mut request.params);
            }
        }
    }

    /// Says how much of the window `request` of so many tokens leaves to an answer that has no limit of its own.
    pub(crate) fn leave_room(&self, request: &mut ChatRequest, tokens: u64) {
        let is_unlimited = request.params.max_output.is_none() && self.output_counts(request);
        request.answer_room = None;
        if is_unlimited && self.is_known {
            // Either may be the rougher.
            let tokens = tokens.min(request.needs().most_input_tokens);
            let room = self.limits.window.saturating_sub(tokens).max(LEAST_ROOM);
            request.answer_room = match self.limits.output {
                Some(most) => Some(most.min(room)),
                // More than the model writes is refused, and how much that is nobody has stated.
                None => Some(room).filter(|room| *room < USUAL_OUTPUT),
            };
        }
    }

    /// What the target accepts.
    pub(crate) fn rules(&self, request: &ChatRequest) -> TranscriptRules {
        let mut rules = TranscriptRules::for_dialect(self.dialect(request));
        rules.images.vision = self.facts.vision;
        rules
    }
}

/// The model that will answer: the target's, or the one asked for.
pub(crate) fn model(request: &ChatRequest) -> &str {
    request.context.target.as_ref().and_then(Target::model).unwrap_or(&request.model)
}

/// The dialect of a provider or model of this name, as far as the name shows.
fn dialect_of(name: &str) -> Option<Dialect> {
    const NAMES: [(&str, Dialect); 6] = [
        ("anthropic", Dialect::Anthropic),
        ("claude", Dialect::Anthropic),
        ("gemini", Dialect::Gemini),
        ("google", Dialect::Gemini),
        ("vertex", Dialect::Gemini),
        ("openai", Dialect::OpenAi),
    ];
    let name = name.to_ascii_lowercase();
    NAMES.iter().find(|(part, _)| name.contains(part)).map(|(_, dialect)| *dialect)
}

impl LayerState {
    /// What is known of where `request` goes. Found out once for each target and model, and again when a
    /// limit was learned or has expired.
    pub(crate) fn target(&self, request: &ChatRequest) -> Arc<TargetInfo> {
        let (target, model) = (request.context.target.as_ref(), model(request));
        let key = self.memory.hasher.hash_one((target, model, self.models.epoch()));
        // On a hash collision (once in 2^64) the other target's are not used.
        let is_it = |one: &Arc<TargetInfo>| one.target.as_ref() == target && *one.model == *model;
        match self.targets.get(&key) {
            Some(found) if !found.holds() => drop(self.targets.remove(&key)),
            Some(found) if is_it(&found) => return found,
            _ => {}
        }
        let made = self.target_info(target, model);
        let found = self.targets.get_or_insert_with(&key, Instant::now(), || made.clone());
        if is_it(&found) { found } else { Arc::new(made) }
    }

    /// The room there is for `request` in its target's window.
    pub(crate) fn room(&self, target: &TargetInfo, request: &ChatRequest) -> Room {
        let counts = target.output_counts(request);
        self.policy().room(target.limits, request.params.max_output, counts)
    }

    /// What is configured for a target, and learned of its model. A request without a target goes to one
    /// of which nothing but the model is known.
    fn target_info(&self, target: Option<&Target>, model: &str) -> TargetInfo {
        let config = &self.config;
        let asked = target.cloned().unwrap_or_else(|| Target::new("").with_model(model));
        let mut given = config.targets.as_ref().map(|of| of(&asked)).unwrap_or_default();
        let known = self.models.get(model);
        let stated = names(model).find_map(|name| self.policy().windows.get(name));
        let known = match stated {
            Some(window) => Some(TokenLimits { window: *window, ..known.unwrap_or(UNKNOWN) }),
            None => known,
        };
        let limits = given.limits.or(known).unwrap_or(UNKNOWN);
        // What was learned of the model may be less than what is stated of it.
        let learned = self.models.learned(model);
        let window = learned.map_or(u64::MAX, |learned| learned.window);
        let limits = TokenLimits { window: limits.window.min(window), ..limits };
        let of_provider = || target.and_then(|one| dialect_of(one.provider()));
        given.dialect = given.dialect.or_else(of_provider);
        let (refused, refused_until) = self.models.refused(target, model).unzip();
        let until = learned.map(|learned| learned.until);
        TargetInfo {
            target: target.cloned(),
            model: model.into(),
            limits,
            is_known: given.limits.or(known).is_some(),
            until: until.into_iter().chain(refused_until).min(),
            refused: refused.unwrap_or_default(),
            of_model: dialect_of(model),
            facts: given,
        }
    }
}
