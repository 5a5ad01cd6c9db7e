//! The policy of the rate limit.

use std::time::Duration;

use steadfast_core::{KeyedPolicy, time::millis};

use crate::PolicyError;

/// The policy of a [`RateLimitLayer`](crate::RateLimitLayer).
///
/// With the default nothing is limited until a provider states its limits in an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
#[cfg_attr(feature = "serde", serde(default, deny_unknown_fields))]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub struct RatePolicy {
    /// Requests a minute of each target: provider, model and credential. Off by default: what the provider
    /// states in the headers of its answers holds. Where both are known, the smaller does.
    #[cfg_attr(
        feature = "serde",
        serde(rename = "requests_per_minute", with = "steadfast_core::config::ZeroIsOff")
    )]
    pub requests: Option<u64>,
    /// Tokens a minute of each target, input and output together. Off by default, for the same reason.
    #[cfg_attr(
        feature = "serde",
        serde(rename = "tokens_per_minute", with = "steadfast_core::config::ZeroIsOff")
    )]
    pub tokens: Option<u64>,
    /// Calls of each target at once. Off by default: the large vendors limit rates.
    #[cfg_attr(feature = "serde", serde(with = "steadfast_core::config::ZeroIsOff"))]
    pub max_concurrent: Option<u32>,
    /// When a call does not count against `max_concurrent` any more. The end of its answer by default: until
    /// then it takes capacity of the provider.
    pub release_at: ReleaseAt,
    /// Limits are learned from the headers of answers. On by default.
    pub learn: bool,
    /// The longest wait for a limit where no other target can answer, within the deadline of the call and its
    /// patience. 60 s: rate windows are a minute wide.
    #[cfg_attr(
        feature = "serde",
        serde(rename = "max_wait_ms", with = "steadfast_core::config::Millis")
    )]
    pub max_wait: Duration,
    /// The longest wait where another target can. 1 s: what moving costs, a prompt cache, is worth about as
    /// much.
    #[cfg_attr(
        feature = "serde",
        serde(rename = "max_wait_with_spare_ms", with = "steadfast_core::config::Millis")
    )]
    pub max_wait_with_spare: Duration,
    /// The most calls that wait for one target. 1,000: a minute of a limit that is large already. Beyond it the
    /// tenant with the most makes room for others.
    pub max_waiting: usize,
    /// How many targets are known at once.
    pub keys: KeyedPolicy,
}

/// When a call does not count as under way any more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub enum ReleaseAt {
    /// When the head of its answer has come.
    Headers,
    /// When the first content has come.
    FirstContent,
    /// When its answer has ended.
    #[default]
    End,
}

impl Default for RatePolicy {
    fn default() -> Self {
        Self {
            requests: None,
            tokens: None,
            max_concurrent: None,
            release_at: ReleaseAt::End,
            learn: true,
            max_wait: Duration::from_secs(60),
            max_wait_with_spare: Duration::from_secs(1),
            max_waiting: 1_000,
            keys: KeyedPolicy::default(),
        }
    }
}

impl RatePolicy {
    /// Checks the policy.
    ///
    /// # Errors
    ///
    /// The first invalid value, and what would be valid.
    pub fn validate(&self) -> Result<(), PolicyError> {
        let zero = |field, zero| if zero { Err(PolicyError::Zero { field }) } else { Ok(()) };
        zero("requests_per_minute", self.requests == Some(0))?;
        zero("tokens_per_minute", self.tokens == Some(0))?;
        zero("max_concurrent", self.max_concurrent == Some(0))?;
        zero("keys", self.keys.capacity == 0)?;
        if self.max_wait_with_spare > self.max_wait {
            return Err(PolicyError::Waits {
                spare_ms: millis(self.max_wait_with_spare),
                alone_ms: millis(self.max_wait),
            });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_policies_are_refused_with_the_field() {
        assert_eq!(RatePolicy::default().validate(), Ok(()));
        type Change = fn(&mut RatePolicy);
        let table: [(&str, Change); 5] = [
            ("requests_per_minute", |policy| policy.requests = Some(0)),
            ("tokens_per_minute", |policy| policy.tokens = Some(0)),
            ("max_concurrent", |policy| policy.max_concurrent = Some(0)),
            ("keys", |policy| policy.keys.capacity = 0),
            ("max_wait_with_spare_ms", |policy| {
                policy.max_wait_with_spare = Duration::from_secs(61);
            }),
        ];
        for (field, change) in table {
            let mut policy = RatePolicy::default();
            change(&mut policy);
            let error = policy.validate().expect_err(field).to_string();
            assert!(error.contains(&format!("`{field}`")), "{field}: {error}");
        }
    }

    #[cfg(feature = "serde")]
    #[test]
    fn a_configuration_is_read_and_written() {
        let text = r#"{"requests_per_minute":60,"max_wait_ms":5000,"release_at":"first_content"}"#;
        let read: RatePolicy = serde_json::from_str(text).unwrap();
        assert_eq!((read.requests, read.max_wait), (Some(60), Duration::from_secs(5)));
        assert_eq!((read.release_at, read.tokens), (ReleaseAt::FirstContent, None));
        let written = serde_json::to_string(&read).unwrap();
        assert_eq!(serde_json::from_str::<RatePolicy>(&written).unwrap(), read);
    }
}
