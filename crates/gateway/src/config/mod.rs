//! The configuration file.
//!
//! Every key is optional. What is wrong is said with file, line and key, all of it at once.

mod conversation;
mod error;
mod load;
mod schema;
mod source;
mod validate;

pub use self::{
    conversation::{
        CompactionConfig, ContinuationConfig, GuardConfig, LoopsConfig, ResumeConfig, Rule,
        SummariserConfig, ToolConfig,
    },
    error::{ConfigError, ConfigErrors},
    schema::{
        Auth, BreakerConfig, ChainsConfig, Config, CooldownConfig, FailoverConfig, ProviderConfig,
        RecoveryConfig, RecoveryPreset, RetryConfig, RuleConfig, ServerConfig, TenantConfig,
        TimeoutConfig, WhenExhausted,
    },
    source::Source,
};
pub(crate) use self::{load::native, validate::credential_name};
