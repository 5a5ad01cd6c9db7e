//! What is wrong with a chain or a policy.

use std::{fmt, time::Duration};

use crate::chain::MAX_CANDIDATES;

/// A [`Chain`](crate::Chain) that makes no sense.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ChainError {
    /// There is nothing in it.
    #[error("the chain is empty; name at least one provider")]
    Empty,
    /// Something in it has no name.
    #[error("target {position} of the chain has an empty {what}; give it a name or leave it out")]
    Unnamed {
        /// What has no name.
        what: ChainPart,
        /// Which target, counted from 1.
        position: usize,
    },
    /// A provider stands in it twice.
    #[error(
        "the provider `{0}` stands in the chain twice; list its keys and models in one target instead"
    )]
    DuplicateProvider(String),
    /// A credential stands twice at one provider.
    #[error("the provider `{provider}` has the credential `{credential}` twice; remove one")]
    DuplicateCredential {
        /// The provider.
        provider: String,
        /// The credential's name.
        credential: String,
    },
    /// A list of fallback models leads back to a model that comes before.
    #[error(
        "the downgrades of `{model}` at `{provider}` name `{fallback}` a second time; each model may stand there once, the model itself not at all"
    )]
    RepeatedModel {
        /// The provider.
        provider: String,
        /// The model whose list it is.
        model: String,
        /// The model that is there too often.
        fallback: String,
    },
    /// More combinations than one request should ever go through.
    #[error(
        "the chain has {0} combinations of model and credential for one request, more than {MAX_CANDIDATES}; use fewer credentials or downgrades"
    )]
    TooMany(usize),
}

/// A [`FailoverPolicy`](crate::FailoverPolicy) that makes no sense, and what would.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum PolicyError {
    /// A number or duration that must be more than nothing.
    #[error("`{0}` is zero; it must be above zero")]
    Zero(
        /// The field.
        &'static str,
    ),
    /// A cap below what it caps.
    #[error(
        "`permanent` {permanent:?} is above `permanent_cap` {permanent_cap:?}; lower the one or raise the other"
    )]
    PermanentAboveCap {
        /// The first cooldown after a permanent failure.
        permanent: Duration,
        /// The longest.
        permanent_cap: Duration,
    },
    /// Cooldowns that become shorter with each failed probe, or that are no time at all.
    #[error("`rest_growth` is {0}; it must be between 1 and 100, such as 1.5")]
    Growth(
        /// What was given.
        f64,
    ),
}

/// What in a target can lack a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ChainPart {
    /// The provider.
    Provider,
    /// A credential.
    Credential,
    /// A model.
    Model,
}

impl fmt::Display for ChainPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ChainPart::Provider => "provider name",
            ChainPart::Credential => "credential name",
            ChainPart::Model => "model name",
        })
    }
}
