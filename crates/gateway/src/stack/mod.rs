//! The stack that a configuration stands for, around the client that reaches its providers.

mod layers;
mod models;
mod report;
mod status;

use std::{collections::BTreeSet, fmt, sync::Arc};

pub use self::report::{Line, Report};
use crate::{
    config::{Config, ConfigError, ConfigErrors, Source, credential_name},
    keys,
};
use http::{Request, Response};
use http_body::Body;
use serde_json::Value;
use steadfast::{
    ChatService, Handles, Target,
    client::{ClientBody, Credential, LlmClient, Provider, Providers, transport::Transport},
};
use steadfast_core::BoxError;
use tower::Service;

/// A running stack and its handles; cheap to clone.
#[derive(Clone)]
pub struct Gateway(Arc<Inner>);

struct Inner {
    service: ChatService,
    handles: Handles,
    chain: Vec<String>,
    /// What may be asked: each provider of the chain, with each of its keys.
    targets: Vec<Target>,
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
        Self::with_client(config, source, LlmClient::with_service(providers, Transport::new()))
    }

    /// The stack of `config` around `client`, whose providers replace the configured ones: over any
    /// HTTP service, such as simulated providers on a paused clock.
    ///
    /// # Errors
    ///
    /// When a number of the configuration is wrong.
    pub fn with_client<T, B>(
        config: &Config,
        source: &Source,
        client: LlmClient<T>,
    ) -> Result<Self, ConfigErrors>
    where
        T: Service<Request<ClientBody>, Response = Response<B>> + Clone + Send + Sync + 'static,
        T::Future: Send,
        T::Error: Into<BoxError>,
        B: Body + Send + 'static,
        B::Error: Into<BoxError>,
    {
        let stack = layers::stack(config, source, &|stack| stack.boxed(client.clone()))?;
        let handles = stack.handles();
        Ok(Self(Arc::new(Inner {
            service: stack.boxed(client),
            handles,
            chain: config.chain(),
            targets: targets(config),
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

    /// Whether some provider of the chain may be asked with some key. One that is only cooling may: a cooldown
    /// is a preference between targets.
    pub fn any_target_available(&self) -> bool {
        let snapshot = self.0.handles.failover.snapshot();
        let refuses = |target: &Target| {
            let health = snapshot.get(target);
            health.and_then(|health| health.cooling).is_some_and(|cooldown| cooldown.refuses)
        };
        self.0
            .targets
            .iter()
            .any(|target| !refuses(&Target::new(target.provider())) && !refuses(target))
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

/// Each provider of the chain with each of its keys.
fn targets(config: &Config) -> Vec<Target> {
    let chain = config.chain();
    let in_chain = config.providers.iter().filter(|provider| chain.contains(&provider.name));
    in_chain
        .flat_map(|provider| {
            let whole = Target::new(provider.name.as_str());
            let keys = provider.credentials.iter();
            let keyed: Vec<_> =
                keys.map(|key| whole.with_credential(credential_name(key))).collect();
            if keyed.is_empty() { vec![whole] } else { keyed }
        })
        .collect()
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
