//! What models can do: what the configuration says, else what is publicly known.

use std::{collections::HashMap, sync::Arc};

use steadfast::{compact::Models, recover::OutputLimits};
use steadfast_core::Target;

use crate::config::Config;

/// The limits of models at each provider; cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct ModelLimits {
    models: Arc<Models>,
    providers: Arc<HashMap<String, OutputLimits>>,
}

impl ModelLimits {
    pub(super) fn of(config: &Config) -> Self {
        let stated = |provider: &crate::config::ProviderConfig| OutputLimits {
            max_output: provider.max_output,
            window: provider.window,
        };
        let providers = config.providers.iter().map(|p| (p.name.clone(), stated(p))).collect();
        Self { models: Arc::default(), providers: Arc::new(providers) }
    }

    /// The limits of `target`, as far as they are known.
    pub(super) fn of_target(&self, target: Option<&Target>) -> OutputLimits {
        let Some(target) = target else { return OutputLimits::default() };
        let stated = self.providers.get(target.provider()).copied().unwrap_or_default();
        let known = target.model().and_then(|model| self.models.get(model));
        OutputLimits {
            max_output: stated.max_output.or_else(|| known.and_then(|limits| limits.output)),
            window: stated.window.or_else(|| known.map(|limits| limits.window)),
        }
    }
}
