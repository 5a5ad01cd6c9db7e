//! The gateway in process, in front of simulated providers in process: everything from the caller's HTTP
//! request to the bytes of the providers runs as over a network, but without a socket, and on a paused
//! clock all times are exact.

use std::path::Path;

use axum::Router;
use http_body_util::Full;
use steadfast::{
    Dialect,
    client::{Credential, LlmClient, Provider, Providers, dialect::Wire},
    sim::SimProvider,
};
use steadfast_gateway::{
    config::{Config, Source},
    server::App,
    stack::Gateway,
};
use tokio_stream::StreamExt as _;
use tower::ServiceExt as _;

use super::{
    PROVIDER_KEY,
    http::{HttpRequest, Reply},
};
use crate::harness::{Net, base_url, model};

/// The variable that holds a vendor's key, and what the gateway calls its provider.
const fn known(dialect: Dialect) -> (&'static str, &'static str) {
    match dialect {
        Dialect::Anthropic => ("ANTHROPIC_API_KEY", "anthropic"),
        Dialect::Gemini => ("GEMINI_API_KEY", "google"),
        _ => ("OPENAI_API_KEY", "openai"),
    }
}

/// What the gateway of [`InProcess::without_file`] calls the provider of this dialect.
pub const fn provider_name(dialect: Dialect) -> &'static str {
    known(dialect).1
}

/// A gateway and the providers behind it.
#[derive(Debug)]
pub struct InProcess {
    /// The gateway.
    pub app: App,
    router: Router,
}

impl InProcess {
    /// `steadfast serve` without a file, as far as these providers have a key in its environment: nothing
    /// is set. Each is called by its [`provider_name`].
    pub fn without_file(sims: &[SimProvider]) -> Self {
        let set = |variable: &str| sims.iter().any(|sim| known(sim.dialect()).0 == variable);
        let mut config = Config::from_keys(set).unwrap();
        for given in &mut config.providers {
            let own: Vec<Dialect> = sims
                .iter()
                .filter(|sim| sim.name() == given.name)
                .map(SimProvider::dialect)
                .collect();
            // A simulated provider has one dialect, and one that has two is two of one name.
            given.also = given.also.filter(|also| own.contains(also) && own.len() > 1);
            given.dialect = *own.iter().find(|dialect| Some(**dialect) != given.also).unwrap();
        }
        Self::new(&config, &Source::default(), sims, &|_| PROVIDER_KEY)
    }

    /// The gateway of this file. Its providers are those in process of the same names.
    pub fn with_file(text: &str, sims: &[SimProvider]) -> Self {
        Self::with_secrets(text, sims, |_| PROVIDER_KEY)
    }

    /// The gateway of this file, with a section for each of these providers at its end: each has one model, whatever callers
    /// name, and the key in `KEY`.
    pub fn with_settings(text: &str, sims: &[SimProvider]) -> Self {
        let section = |sim: &SimProvider| {
            let (name, dialect) = (sim.name(), sim.dialect());
            let model = model(dialect);
            format!(
                "[[providers]]\nname = '{name}'\ndialect = '{dialect}'\ncredentials = ['env:KEY']\n\
                 models = {{ '*' = '{model}' }}\n"
            )
        };
        let sections: String = sims.iter().map(section).collect();
        Self::with_file(&format!("{text}\n{sections}"), sims)
    }

    /// The gateway of this file as `steadfast serve` loads it, with what the file leaves to the environment.
    pub fn loading(file: &Path, sims: &[SimProvider]) -> Self {
        let (config, source) = Config::load(Some(file)).unwrap();
        Self::new(&config, &source, sims, &|_| PROVIDER_KEY)
    }

    /// The same as [`with_file`](Self::with_file), with the secret that `secret` gives for the variable of each credential.
    pub fn with_secrets<'s>(
        text: &str,
        sims: &[SimProvider],
        secret: impl Fn(&str) -> &'s str,
    ) -> Self {
        let source = Source::text(text);
        let config = source.parse().unwrap();
        Self::new(&config, &source, sims, &secret)
    }

    fn new<'s>(
        config: &Config,
        source: &Source,
        sims: &[SimProvider],
        secret: &dyn Fn(&str) -> &'s str,
    ) -> Self {
        config.validate(source).unwrap();
        let providers = config.providers.iter().map(|given| {
            let sim = sims.iter().find(|sim| sim.name() == given.name).unwrap();
            let provider = Provider::new(sim.name(), sim.dialect())
                .with_base_url(base_url(sim))
                .with_wire(Wire::default());
            let provider = match given.also {
                Some(also) => provider.with_also(also),
                None => provider,
            };
            given.credentials.iter().fold(provider, |provider, reference| {
                let name = reference.trim_start_matches("env:");
                provider.with_credential(Credential::new(name, secret(name)))
            })
        });
        let providers = Providers::new(providers).unwrap();
        let client = LlmClient::with_service(providers, Net::new(sims));
        let gateway = Gateway::with_client(config, source, client).unwrap();
        let app = App::new(config, source, gateway).unwrap();
        Self { router: app.router(), app }
    }

    /// Sends `request` and reads the whole response.
    pub async fn send(&self, request: &HttpRequest) -> Reply {
        let request = request.to_http().map(Full::from);
        let (parts, body) = self.router.clone().oneshot(request).await.unwrap().into_parts();
        let name_and_value = |(name, value): (&http::HeaderName, &http::HeaderValue)| {
            (name.as_str().to_owned(), value.to_str().unwrap().to_owned())
        };
        let headers = parts.headers.iter().map(name_and_value).collect();
        let (mut pieces, mut read, mut clean) = (body.into_data_stream(), Vec::new(), true);
        while let Some(piece) = pieces.next().await {
            match piece {
                Ok(piece) => read.extend(piece),
                Err(_) => clean = false,
            }
        }
        Reply { status: parts.status.as_u16(), headers, body: read, clean }
    }
}
