//! What models can do: what the configuration says, else what is publicly known.

use std::{collections::HashMap, sync::Arc};

use steadfast::{
    compact::{Counter, Models, TargetFacts, TokenLimits},
    recover::OutputLimits,
};
use steadfast_core::Target;

use crate::config::{Config, ProviderConfig};

/// The limits of models at each provider; cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct ModelLimits {
    models: Arc<Models>,
    counter: Arc<Counter>,
    providers: Arc<HashMap<String, Stated>>,
}

/// What the configuration says of a provider.
#[derive(Clone, Debug, Default)]
struct Stated {
    limits: OutputLimits,
    facts: TargetFacts,
}

impl Stated {
    fn of(provider: &ProviderConfig) -> Self {
        let (window, max_output) = (provider.window, provider.max_output);
        let facts = TargetFacts::default()
            .with_dialect(provider.dialect)
            .with_also(provider.also)
            .with_vision(provider.vision);
        Self { limits: OutputLimits { max_output, window }, facts }
    }
}

impl ModelLimits {
    pub(super) fn of(config: &Config, models: Arc<Models>) -> Self {
        let providers = config.providers.iter().map(|p| (p.name.clone(), Stated::of(p))).collect();
        Self { models, counter: Arc::default(), providers: Arc::new(providers) }
    }

    /// With this counter, and what it has learned.
    pub(super) fn with_counter(mut self, counter: Arc<Counter>) -> Self {
        self.counter = counter;
        self
    }

    /// Counts tokens, and learns while serving.
    pub(super) fn counter(&self) -> Arc<Counter> {
        self.counter.clone()
    }

    /// The limits of `target`, as far as they are known.
    pub(super) fn of_target(&self, target: Option<&Target>) -> OutputLimits {
        let Some(target) = target else { return OutputLimits::default() };
        let stated = self.providers.get(target.provider()).map(|p| p.limits).unwrap_or_default();
        let known = target.model().and_then(|model| self.models.get(model));
        OutputLimits {
            max_output: stated.max_output.or_else(|| known.and_then(|limits| limits.output)),
            window: stated.window.or_else(|| known.map(|limits| limits.window)),
        }
    }
}

impl ModelLimits {
    /// What is publicly known, and what is learned while serving.
    pub(super) fn models(&self) -> Arc<Models> {
        self.models.clone()
    }

    /// What a compaction has to know of `target`.
    pub(super) fn facts(&self, target: &Target) -> TargetFacts {
        let Some(stated) = self.providers.get(target.provider()) else {
            return TargetFacts::default();
        };
        let facts = stated.facts.clone();
        let Some(window) = stated.limits.window else { return facts };
        let limits = TokenLimits::new(window);
        facts.with_limits(match self.of_target(Some(target)).max_output {
            Some(output) => limits.with_output(output),
            None => limits,
        })
    }
}
