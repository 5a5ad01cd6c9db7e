//! The configuration file.
//!
//! Every key is optional. What is wrong is reported with file, line and key, all of it at once.

mod cloud;
mod error;
mod keys;
mod link;
mod load;
mod overlay;
mod preset;
mod routes;
mod schema;
mod source;
mod spend;
mod validate;

pub(crate) use self::{
    cloud::CloudCredential,
    load::{native, stand_in},
    preset::keys as preset_keys,
    validate::{credential_name, key_name},
};
pub use self::{
    error::{ConfigError, ConfigErrors},
    keys::schema,
    link::Link,
    routes::RouteConfig,
    schema::{
        Auth, ChainsConfig, CompactionConfig, Config, EscalationConfig, FailoverConfig, LogConfig,
        ObserveConfig, OtelConfig, ProviderConfig, ProviderKind, RecoveryConfig, ResponsesConfig,
        RetryConfig, RuleConfig, ServerConfig, StateConfig, SummariserConfig, Switch, TenantConfig,
        TimeoutConfig,
    },
    source::Source,
    spend::{AccountCaps, SpendLimitConfig},
};
