//! The targets of a call, in the order they are asked.

use std::{
    collections::{BTreeMap, HashSet},
    ops::Deref,
    sync::Arc,
};

use steadfast_core::{Capabilities, Dialect, OnUnsupported, Profile, Target};

use crate::{
    error::{ChainError, ChainPart},
    models::{Downgrades, ModelMap},
};

/// The most combinations of model and credential one request may go through: more than anyone
/// configures, and a bit each in one word.
pub const MAX_CANDIDATES: usize = 128;

/// Targets in the order they are asked. Never empty; cheap to clone.
///
/// ```
/// use steadfast_failover::{Chain, TargetSpec};
///
/// let by_name = Chain::new(["anthropic", "openai", "google"])?;
/// assert_eq!(by_name.len(), 3);
///
/// let in_detail = Chain::new([
///     TargetSpec::new("anthropic").with_credential("main").with_credential("spare"),
///     TargetSpec::new("openai").with_model("claude-sonnet-4", "gpt-4o").with_window(128_000),
/// ])?;
/// assert_eq!(in_detail[0].credentials, ["main", "spare"]);
///
/// assert!(Chain::new(["anthropic", "anthropic"]).is_err());
/// # Ok::<(), steadfast_failover::ChainError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chain(Arc<[TargetSpec]>);

/// One provider of a [`Chain`], with its keys and models.
///
/// Plain fields, and a method for each.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TargetSpec {
    /// The provider's name, as the client below knows it.
    pub provider: String,
    /// What it speaks, when known.
    pub dialect: Option<Dialect>,
    /// What it speaks besides: a caller of that dialect is answered by it as it is.
    pub also: Option<Dialect>,
    /// The *names* of its keys, never the keys, in the order they are used. Empty: it has one
    /// that needs no name.
    pub credentials: Vec<String>,
    /// Which model it is sent for the one asked for.
    pub models: ModelMap,
    /// What it is sent when it does not have that model.
    pub downgrades: Downgrades,
    /// It is as good as the one before it in the chain: calls are shared between them, by the
    /// [`balance`](crate::FailoverPolicy::balance) of the policy.
    pub equal: bool,
    /// Its share of the calls, beside equals. 1, so that all have the same; 0: only when the others can not.
    pub weight: u32,
    /// What its models can do.
    pub capabilities: Capabilities,
    /// What single models of it can do, by the model sent, where that differs.
    pub by_model: BTreeMap<String, Capabilities>,
}

impl Chain {
    /// A chain of provider names or of [`TargetSpec`]s.
    ///
    /// # Errors
    ///
    /// When it is empty, when a name is empty or stands in it twice, or when it has more
    /// combinations than [`MAX_CANDIDATES`].
    pub fn new<T: Into<TargetSpec>>(
        targets: impl IntoIterator<Item = T>,
    ) -> Result<Self, ChainError> {
        let specs: Arc<[TargetSpec]> = targets.into_iter().map(Into::into).collect();
        if specs.is_empty() {
            return Err(ChainError::Empty);
        }
        let mut providers = HashSet::new();
        for (index, spec) in specs.iter().enumerate() {
            spec.check(index + 1)?;
            if !providers.insert(&spec.provider) {
                return Err(ChainError::DuplicateProvider(spec.provider.clone()));
            }
        }
        let candidates = specs.iter().fold(0usize, |sum, spec| {
            sum.saturating_add(
                spec.credentials.len().max(1).saturating_mul(1 + spec.downgrades.longest()),
            )
        });
        if candidates > MAX_CANDIDATES {
            return Err(ChainError::TooMany(candidates));
        }
        Ok(Self(specs))
    }

    /// The same without downgrades: for requests that one model alone may answer.
    #[must_use]
    pub fn without_downgrades(mut self) -> Self {
        for spec in Arc::make_mut(&mut self.0) {
            spec.downgrades = Downgrades::default();
        }
        self
    }
}

impl Deref for Chain {
    type Target = [TargetSpec];

    fn deref(&self) -> &[TargetSpec] {
        &self.0
    }
}

impl TargetSpec {
    /// A provider with one unnamed key, to which every model goes through unchanged and which can
    /// do everything.
    pub fn new(provider: impl Into<String>) -> Self {
        Self { provider: provider.into(), ..Self::default() }
    }

    /// Puts it beside the one before it in the chain: calls are shared between them.
    ///
    /// ```
    /// use steadfast_failover::{Chain, TargetSpec};
    ///
    /// // Three calls of four go to the first, the fourth to the second; the third is there for both.
    /// let chain = Chain::new([
    ///     TargetSpec::new("europe").with_weight(3),
    ///     TargetSpec::new("america").as_equal(),
    ///     TargetSpec::new("spare"),
    /// ])?;
    /// # let _ = chain;
    /// # Ok::<(), steadfast_failover::ChainError>(())
    /// ```
    #[must_use]
    pub fn as_equal(mut self) -> Self {
        self.equal = true;
        self
    }

    /// With this share of the calls, beside equals.
    #[must_use]
    pub fn with_weight(mut self, weight: u32) -> Self {
        self.weight = weight;
        self
    }

    /// Says what it speaks.
    #[must_use]
    pub fn with_dialect(mut self, dialect: Dialect) -> Self {
        self.dialect = Some(dialect);
        self
    }

    /// Says what it speaks besides: a caller of that dialect is answered by it as it is.
    #[must_use]
    pub fn with_also(mut self, dialect: Option<Dialect>) -> Self {
        self.also = dialect;
        self
    }

    /// Adds a key by its name, after those it has.
    #[must_use]
    pub fn with_credential(mut self, name: impl Into<String>) -> Self {
        self.credentials.push(name.into());
        self
    }

    /// Sends `sent` when `asked` was asked for; `*` stands for all others.
    #[must_use]
    pub fn with_model(mut self, asked: impl Into<String>, sent: impl Into<String>) -> Self {
        let more = [(asked.into(), sent.into())];
        self.models = self
            .models
            .iter()
            .map(|(asked, sent)| (asked.to_owned(), sent.to_owned()))
            .chain(more)
            .collect();
        self
    }

    /// Sends one of `fallbacks`, best first, when it does not have the model it would be sent.
    #[must_use]
    pub fn with_downgrade<F: Into<String>>(
        mut self,
        sent: impl Into<String>,
        fallbacks: impl IntoIterator<Item = F>,
    ) -> Self {
        self.downgrades.insert(sent, fallbacks);
        self
    }

    /// Says whether it reads images.
    #[must_use]
    pub fn with_vision(mut self, vision: bool) -> Self {
        self.capabilities.vision = vision;
        self
    }

    /// Says whether it calls tools.
    #[must_use]
    pub fn with_tools(mut self, tools: bool) -> Self {
        self.capabilities.tools = tools;
        self
    }

    /// Says how large its window is, in tokens.
    #[must_use]
    pub fn with_window(mut self, tokens: u64) -> Self {
        self.capabilities.window = Some(tokens);
        self
    }

    /// Says how much it writes at most in one answer, in tokens.
    #[must_use]
    pub fn with_max_output(mut self, tokens: u64) -> Self {
        self.capabilities.max_output = Some(tokens);
        self
    }

    /// Names parameters it does not take, as OpenAI's dialect calls them.
    #[must_use]
    pub fn with_unsupported<P: Into<String>>(
        mut self,
        parameters: impl IntoIterator<Item = P>,
    ) -> Self {
        self.capabilities.unsupported = parameters.into_iter().map(Into::into).collect();
        self
    }

    /// Says what to do with what it does not take.
    #[must_use]
    pub fn with_on_unsupported(mut self, action: OnUnsupported) -> Self {
        self.capabilities.on_unsupported = action;
        self
    }

    /// Says what one of its models can do, by the model sent.
    #[must_use]
    pub fn with_capabilities_of(mut self, sent: impl Into<String>, can: Capabilities) -> Self {
        self.by_model.insert(sent.into(), can);
        self
    }

    /// What a request to `target`, one of this provider's, is fitted to.
    pub(crate) fn profile(&self, target: Target, foreign_history: bool) -> Profile {
        let own = target.model().and_then(|model| self.by_model.get(model));
        let mut profile = Profile::new(target);
        profile.can = own.unwrap_or(&self.capabilities).clone();
        profile.dialect = self.dialect;
        profile.also = self.also;
        profile.foreign_history = foreign_history;
        profile
    }

    fn check(&self, position: usize) -> Result<(), ChainError> {
        let unnamed = |what| Err(ChainError::Unnamed { what, position });
        if self.provider.is_empty() {
            return unnamed(ChainPart::Provider);
        }
        let mut credentials = HashSet::new();
        for credential in &self.credentials {
            if credential.is_empty() {
                return unnamed(ChainPart::Credential);
            }
            if !credentials.insert(credential) {
                return Err(ChainError::DuplicateCredential {
                    provider: self.provider.clone(),
                    credential: credential.clone(),
                });
            }
        }
        if self.models.iter().any(|(_, sent)| sent.is_empty()) {
            return unnamed(ChainPart::Model);
        }
        for (model, fallbacks) in self.downgrades.iter() {
            let mut seen = HashSet::from([model]);
            for fallback in fallbacks {
                if fallback.is_empty() {
                    return unnamed(ChainPart::Model);
                }
                if !seen.insert(fallback) {
                    return Err(ChainError::RepeatedModel {
                        provider: self.provider.clone(),
                        model: model.to_owned(),
                        fallback: fallback.clone(),
                    });
                }
            }
        }
        Ok(())
    }
}

impl Default for TargetSpec {
    fn default() -> Self {
        Self {
            provider: String::new(),
            dialect: None,
            also: None,
            credentials: Vec::new(),
            models: ModelMap::default(),
            downgrades: Downgrades::default(),
            equal: false,
            weight: 1,
            capabilities: Capabilities::default(),
            by_model: BTreeMap::new(),
        }
    }
}

impl From<&str> for TargetSpec {
    fn from(provider: &str) -> Self {
        Self::new(provider)
    }
}

impl From<String> for TargetSpec {
    fn from(provider: String) -> Self {
        Self::new(provider)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error<T: Into<TargetSpec>>(targets: impl IntoIterator<Item = T>) -> String {
        Chain::new(targets).unwrap_err().to_string()
    }

    #[test]
    fn an_invalid_chain_is_refused_with_a_reason() {
        assert!(error::<&str>([]).contains("is empty"));
        assert!(error(["a", ""]).contains("target 2 of the chain has an empty provider name"));
        assert!(error(["a", "b", "a"]).contains("`a` stands in the chain twice"));
        let twice = TargetSpec::new("a").with_credential("k").with_credential("k");
        assert!(error([twice]).contains("credential `k` twice"));
        assert!(
            error([TargetSpec::new("a").with_credential("")]).contains("empty credential name")
        );
        assert!(error([TargetSpec::new("a").with_model("x", "")]).contains("empty model name"));
        let circle = TargetSpec::new("a").with_downgrade("big", ["small", "big"]);
        assert!(error([circle]).contains("`big` a second time"));
        let many =
            (0..43).fold(TargetSpec::new("a"), |spec, n| spec.with_credential(n.to_string()));
        assert!(error([many.with_downgrade("*", ["b", "c"])]).contains("129 combinations"));
    }

    #[test]
    fn a_model_of_its_own_size_has_its_own_profile() {
        let mut small = Capabilities::default();
        small.window = Some(8_000);
        let spec = TargetSpec::new("a").with_window(200_000).with_capabilities_of("small", small);
        let window = |model| spec.profile(Target::new("a").with_model(model), false).can.window;
        assert_eq!((window("small"), window("big")), (Some(8_000), Some(200_000)));
    }
}
