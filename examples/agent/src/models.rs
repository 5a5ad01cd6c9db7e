//! The models: those of the environment's keys, else simulated ones.

use std::{env, error::Error};

use steadfast::{
    ChatService, Dialect, Handles, Stack,
    client::{Credential, LlmClient, Provider, Providers},
    compact::{CompactionLayer, CompactionPolicy},
    failover::{Chain, TargetSpec},
    sim::{FaultPlan, SimProvider, SimServer},
};

use crate::{screen::Screen, writer};

type BoxError = Box<dyn Error + Send + Sync>;

/// A provider that the agent may ask.
struct Known {
    name: &'static str,
    dialect: Dialect,
    key: &'static str,
    url: &'static str,
    model: &'static str,
}

const KNOWN: [Known; 3] = [
    Known {
        name: "anthropic",
        dialect: Dialect::Anthropic,
        key: "ANTHROPIC_API_KEY",
        url: "ANTHROPIC_BASE_URL",
        model: "claude-sonnet-4-5",
    },
    Known {
        name: "openai",
        dialect: Dialect::OpenAi,
        key: "OPENAI_API_KEY",
        url: "OPENAI_BASE_URL",
        model: "gpt-4o",
    },
    Known {
        name: "google",
        dialect: Dialect::Gemini,
        key: "GEMINI_API_KEY",
        url: "GEMINI_BASE_URL",
        model: "gemini-2.5-pro",
    },
];

/// The whole stack over every provider whose key is in the environment; `None` without any.
pub(crate) fn real(screen: &Screen) -> Result<Option<(ChatService, Handles)>, BoxError> {
    let mut providers = Vec::new();
    for known in KNOWN {
        if env::var_os(known.key).is_none() {
            continue;
        }
        let mut provider = Provider::new(known.name, known.dialect);
        if let Ok(url) = env::var(known.url) {
            provider = provider.with_base_url(url);
        }
        providers.push((provider.with_credential(Credential::env(known.key)?), known.model));
    }
    match providers.is_empty() {
        true => Ok(None),
        false => stack(providers, screen).map(Some),
    }
}

/// Two simulated providers behind real sockets.
pub(crate) struct Simulated {
    pub(crate) anthropic: SimServer,
    pub(crate) openai: SimServer,
}

impl Simulated {
    /// Their model is the [`writer`].
    pub(crate) async fn start() -> Result<Self, BoxError> {
        let provider = |dialect| {
            let provider = SimProvider::builder(dialect);
            SimServer::local(provider.respond(|request| Some(writer::answer(request))).build())
        };
        let (anthropic, openai) = (provider(Dialect::Anthropic), provider(Dialect::OpenAi));
        Ok(Self { anthropic: anthropic.await?, openai: openai.await? })
    }

    /// The first of them misbehaves like this.
    pub(crate) fn misbehave(&self, plan: FaultPlan) {
        self.anthropic.provider().set_faults(plan);
    }

    /// The whole stack over them.
    pub(crate) fn stack(&self, screen: &Screen) -> Result<(ChatService, Handles), BoxError> {
        let provider = |name, dialect, server: &SimServer| {
            Provider::new(name, dialect)
                .with_base_url(server.base_url())
                .with_credential(Credential::new("simulated", "sk-simulated"))
        };
        let providers = vec![
            (provider("anthropic", Dialect::Anthropic, &self.anthropic), KNOWN[0].model),
            (provider("openai", Dialect::OpenAi, &self.openai), KNOWN[1].model),
        ];
        stack(providers, screen)
    }

    /// How often they were asked.
    pub(crate) fn asked(&self) -> usize {
        self.anthropic.provider().journal().len() + self.openai.provider().journal().len()
    }
}

fn stack(
    providers: Vec<(Provider, &'static str)>,
    screen: &Screen,
) -> Result<(ChatService, Handles), BoxError> {
    let target = |(provider, model): &(Provider, &'static str)| {
        TargetSpec::new(provider.name()).with_model("*", *model)
    };
    let targets: Vec<_> = providers.iter().map(target).collect();
    let providers = Providers::new(providers.into_iter().map(|(provider, _)| provider))?;
    let shown = screen.clone();
    let stack = around(Chain::new(targets)?)?.on_step(move |step| shown.step(step));
    let handles = stack.handles();
    Ok((stack.connect(LlmClient::new(providers))?, handles))
}

/// The stack of the agent: a conversation that does not fit is compacted once. What has not helped is not done again.
pub(crate) fn around(chain: Chain) -> Result<Stack, BoxError> {
    let mut compaction = CompactionPolicy::default();
    compaction.overflows = 1;
    Ok(Stack::new(chain).with_compaction(CompactionLayer::rules_only().with_policy(compaction)?))
}
