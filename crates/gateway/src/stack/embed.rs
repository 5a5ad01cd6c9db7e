//! The stacks for embeddings that a configuration stands for.

use steadfast::{
    EmbedService, Stack,
    client::dialect::embed_codec,
    failover::{Chain, ChainError, ModelMap, TargetSpec},
};
use steadfast_core::Dialect;

use super::layers;
use crate::config::{Config, Link, ProviderConfig};

/// A stack for each dialect that has embeddings and a provider in the chain.
#[derive(Clone, Default)]
pub(super) struct Embeddings(Vec<(Dialect, EmbedService)>);

impl Embeddings {
    /// Those of `config`, by the chain of its chats; each is made by `boxed`.
    pub(super) fn of<C, L>(
        config: &Config,
        chat: &Stack<C, L>,
        boxed: impl Fn(steadfast::EmbedStack) -> EmbedService,
    ) -> Result<Self, ChainError> {
        let mut all = Vec::new();
        for dialect in Dialect::ALL {
            let specs = specs(config, &config.chain(), dialect);
            if embed_codec(dialect).is_some() && !specs.is_empty() {
                all.push((dialect, boxed(chat.embeddings(Chain::new(specs)?))));
            }
        }
        Ok(Self(all))
    }

    /// The stack for requests in `dialect`: they go to providers of the same alone.
    pub(super) fn service(&self, dialect: Dialect) -> Option<EmbedService> {
        let found = self.0.iter().find(|(own, _)| *own == dialect);
        found.map(|(_, service)| service.clone())
    }
}

/// The providers of `dialect` in `links`.
fn specs(config: &Config, links: &[Link], dialect: Dialect) -> Vec<TargetSpec> {
    let provider = |name: &String| config.providers.iter().find(|one| one.name == *name);
    let of_link = |link: &Link| {
        let own = link.names().iter().filter_map(provider).filter(|one| one.dialect == dialect);
        let specs = own.map(|one| spec(config, one)).enumerate();
        specs.map(|(n, spec)| if n == 0 { spec } else { spec.as_equal() }).collect::<Vec<_>>()
    };
    links.iter().flat_map(of_link).collect()
}

/// Vectors of two models do not mix, so what stands in for the model that is asked for is no target: of `models` an
/// entry counts that names the model, and no pattern; without one the model goes by its own name.
fn spec(config: &Config, provider: &ProviderConfig) -> TargetSpec {
    let mut spec = layers::spec(config, provider);
    let exact = provider.models.iter().filter(|(asked, _)| !asked.contains('*'));
    spec.models = ModelMap::new(exact.map(|(asked, sent)| (asked.clone(), sent.clone())));
    // A batch is larger than what chats of its provider may be.
    spec.capabilities.window = None;
    spec
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Source;

    #[test]
    fn a_target_is_sent_the_model_that_was_asked_for_or_what_the_file_calls_it() {
        let text = "[[providers]]\nname = 'a'\ndialect = 'openai'\nwindow = 9\n\
             models = { 'gpt-*' = '*', '*' = 'gpt-4o', 'small' = 'our-small' }\n\
             [[providers]]\nname = 'b'\ndialect = 'anthropic'\n\
             [[providers]]\nname = 'c'\ndialect = 'openai'\ndowngrades = { '*' = ['x'] }\n\
             [[providers]]\nname = 'd'\ndialect = 'gemini'\n\
             [failover]\nchain = ['b', ['d', 'c', 'a']]\n";
        let config = Source::text(text).parse().unwrap();
        let specs = specs(&config, &config.chain(), Dialect::OpenAi);
        let names: Vec<_> = specs.iter().map(|spec| (&*spec.provider, spec.equal)).collect();
        assert_eq!(names, [("c", false), ("a", true)]);
        for (asked, sent) in [("small", "our-small"), ("large", "large"), ("gpt-x", "gpt-x")] {
            assert_eq!(specs[1].models.sent(Some(asked)), Some(sent));
        }
        assert_eq!(specs[1].capabilities.window, None);
        assert_eq!(super::specs(&config, &config.chain(), Dialect::Gemini)[0].provider, "d");
    }
}
