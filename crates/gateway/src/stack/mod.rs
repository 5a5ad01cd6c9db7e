//! The stack that a configuration stands for, around the client that reaches its providers.

mod layers;
mod models;
mod report;
mod status;

use std::{collections::BTreeSet, fmt, sync::Arc};

use serde_json::Value;
use steadfast::{
    ChatService, Handles,
    client::{Credential, LlmClient, Provider, Providers, transport::Transport},
};
use tokio::time::Instant;

pub use self::report::{Line, Report};
use crate::{
    config::{Config, ConfigError, ConfigErrors, Source, credential_name},
    keys,
};

/// A running stack and its handles; cheap to clone.
#[derive(Clone)]
pub struct Gateway(Arc<Inner>);

struct Inner {
    service: ChatService,
    handles: Handles,
    chain: Vec<String>,
    models: Vec<String>,
}

impl Gateway {
    /// The stack of `config`, connected to its providers.
    ///
    /// # Errors
    ///
    /// When a number, address or credential of the configuration is wrong or missing.
    pub fn connect(config: &Config, source: &Source) -> Result<Self, ConfigErrors> {
        Self::with_providers(config, source, providers(config, source)?)
    }

    /// The stack of `config` around `providers`, which replace the configured ones: their
    /// names and those of their credentials must be the same.
    ///
    /// # Errors
    ///
    /// When a number of the configuration is wrong.
    pub fn with_providers(
        config: &Config,
        source: &Source,
        providers: Providers,
    ) -> Result<Self, ConfigErrors> {
        let client = LlmClient::with_service(providers, Transport::new());
        let stack = layers::stack(config, source, &client)?;
        let handles = stack.handles();
        Ok(Self(Arc::new(Inner {
            service: stack.boxed(client),
            handles,
            chain: config.chain(),
            models: models(config),
        })))
    }

    /// The stack, to be called.
    pub fn service(&self) -> ChatService {
        self.0.service.clone()
    }

    /// The handles of its layers.
    pub fn handles(&self) -> &Handles {
        &self.0.handles
    }

    /// The providers in the order they are asked.
    pub fn chain(&self) -> &[String] {
        &self.0.chain
    }

    /// The models that can be asked for by name.
    pub fn models(&self) -> &[String] {
        &self.0.models
    }

    /// Whether some provider of the chain is not resting as a whole.
    pub fn any_target_available(&self) -> bool {
        let now = Instant::now();
        let snapshot = self.0.handles.failover.snapshot();
        self.0.chain.iter().any(|provider| {
            let whole = steadfast::Target::new(provider.as_str());
            snapshot.get(&whole).is_none_or(|health| health.cooling_for(now).is_none())
        })
    }

    /// Who is resting, why and until when, and each breaker's state.
    pub fn status(&self) -> Value {
        status::json(&self.0.handles, &self.0.chain)
    }

    /// The same as Prometheus gauges, with the mark that ends an exposition.
    pub fn gauges(&self) -> String {
        status::gauges(&self.0.handles)
    }
}

impl fmt::Debug for Gateway {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gateway").field("chain", &self.0.chain).finish_non_exhaustive()
    }
}

/// The providers of `config` with their credentials read.
fn providers(config: &Config, source: &Source) -> Result<Providers, ConfigErrors> {
    let mut errors: Vec<ConfigError> = Vec::new();
    let mut all = Vec::new();
    for (index, given) in config.providers.iter().enumerate() {
        let mut provider = Provider::new(given.name.as_str(), given.dialect);
        if let Some(url) = &given.base_url {
            provider = provider.with_base_url(url);
        }
        for (name, value) in &given.headers {
            provider = provider.with_header(name, value);
        }
        if given.credentials.is_empty() {
            provider = provider.without_credential();
        }
        for (n, reference) in given.credentials.iter().enumerate() {
            match keys::resolve(reference) {
                Ok(secret) => {
                    let name = credential_name(reference);
                    provider = provider.with_credential(Credential::new(name, secret));
                }
                Err(why) => {
                    errors.push(source.error(&format!("providers[{index}].credentials[{n}]"), why));
                }
            }
        }
        all.push(provider);
    }
    if !errors.is_empty() {
        return Err(ConfigErrors(errors));
    }
    Providers::new(all).map_err(|error| source.error("providers", error.to_string()).into())
}

/// Every model that the maps name, patterns left out.
fn models(config: &Config) -> Vec<String> {
    config
        .providers
        .iter()
        .flat_map(|provider| &provider.models)
        .flat_map(|(asked, sent)| [asked, sent])
        .filter(|model| !model.contains('*'))
        .cloned()
        .collect::<BTreeSet<_>>()
        .into_iter()
        .collect()
}
