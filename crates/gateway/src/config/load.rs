//! Where a configuration comes from: a file, or the environment.

use std::path::Path;

use steadfast_core::Dialect;

use super::{Auth, Config, ConfigErrors, ProviderConfig, Source};

/// Variables that hold a provider's key, in the order of the chain they make.
const KNOWN: [(&str, &str, Dialect); 3] = [
    ("ANTHROPIC_API_KEY", "anthropic", Dialect::Anthropic),
    ("OPENAI_API_KEY", "openai", Dialect::OpenAi),
    ("GEMINI_API_KEY", "google", Dialect::Gemini),
];

/// The model asked of a provider found in the environment when a caller wants another vendor's: the
/// one in the middle of its range.
pub(crate) const fn stand_in(dialect: Dialect) -> &'static str {
    match dialect {
        Dialect::Anthropic => "claude-sonnet-4-5",
        Dialect::Gemini => "gemini-2.5-pro",
        Dialect::OpenAi | Dialect::Responses => "gpt-5.4",
    }
}

impl Config {
    /// Reads `file`, or without one makes a configuration of the keys in the environment, open to
    /// this machine alone.
    ///
    /// # Errors
    ///
    /// When the file can not be read or is wrong, or there is no file and no key.
    pub fn load(file: Option<&Path>) -> Result<(Self, Source), ConfigErrors> {
        match file {
            Some(path) => {
                let source = Source::file(path)?;
                Ok((Self::read(&source)?, source))
            }
            None => {
                let set =
                    |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
                Ok((Self::from_keys(set)?, Source::default()))
            }
        }
    }

    /// What `source` says, and what it leaves to the environment.
    pub(crate) fn read(source: &Source) -> Result<Self, ConfigErrors> {
        let mut config = source.parse()?;
        config.take_fallback(|name| std::env::var(name).ok());
        Ok(config)
    }

    /// The configuration without a file: the providers whose key variable is `set`.
    ///
    /// # Errors
    ///
    /// When none is set.
    pub fn from_keys(set: impl Fn(&str) -> bool) -> Result<Self, ConfigErrors> {
        let providers: Vec<_> = KNOWN
            .into_iter()
            .filter(|(variable, ..)| set(variable))
            .map(|(variable, name, dialect)| {
                let mut provider = ProviderConfig::new(name, dialect);
                provider.credentials = vec![format!("env:{variable}")];
                provider.also = (dialect == Dialect::OpenAi).then_some(Dialect::Responses);
                // A vendor's own models go to it by their own names.
                provider.models = native(dialect)
                    .iter()
                    .map(|own| ((*own).to_owned(), "*".to_owned()))
                    .chain([("*".to_owned(), stand_in(dialect).to_owned())])
                    .collect();
                provider
            })
            .collect();
        if providers.is_empty() {
            let names: Vec<_> = KNOWN.iter().map(|(variable, ..)| *variable).collect();
            let message = format!(
                "there is no provider; set one of {}, or write a file and name it with --config",
                names.join(", ")
            );
            return Err(Source::default().error("providers", message).into());
        }
        let mut config = Self { providers, ..Self::default() };
        config.server.auth = Auth::None;
        config.failover.own_vendor_first = true;
        Ok(config)
    }
}

/// The names a vendor's own models begin with.
pub(crate) const fn native(dialect: Dialect) -> &'static [&'static str] {
    match dialect {
        Dialect::Anthropic => &["claude-*"],
        Dialect::Gemini => &["gemini-*", "gemma-*"],
        Dialect::OpenAi | Dialect::Responses => &["gpt-*", "o1*", "o3*", "o4*", "chatgpt-*"],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn providers_are_those_with_a_key() {
        let config =
            Config::from_keys(|name| name == "OPENAI_API_KEY" || name == "GEMINI_API_KEY").unwrap();
        let names: Vec<_> = config.providers.iter().map(|p| p.name.as_str()).collect();
        assert_eq!(names, ["openai", "google"]);
        assert_eq!(config.providers[0].models["gpt-*"], "*");
        assert_eq!(config.providers[0].also, Some(Dialect::Responses), "Codex speaks no other");
        assert_eq!(config.providers[1].also, None);
        assert_eq!(config.providers[1].models["*"], "gemini-2.5-pro");
        assert_eq!(config.server.auth, Auth::None);
        config.validate(&Source::default()).unwrap();
    }

    #[test]
    fn without_a_key_it_says_which_there_could_be() {
        let error = Config::from_keys(|_| false).unwrap_err().to_string();
        assert!(error.contains("ANTHROPIC_API_KEY") && error.contains("--config"), "{error}");
    }

    #[test]
    fn a_missing_file_is_named() {
        let error = Config::load(Some(Path::new("/nonexistent/x.toml"))).unwrap_err().to_string();
        assert!(error.starts_with("/nonexistent/x.toml: can not be read"), "{error}");
    }
}
