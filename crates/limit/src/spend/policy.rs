//! The policy of the spend caps.

use steadfast_core::{KeyedPolicy, Spend, SpendCaps};

use crate::PolicyError;

/// The policy of a [`SpendLimitLayer`](crate::SpendLimitLayer): caps in rolling windows, 0 for none. Money is in
/// micro-dollars, a millionth of a US dollar. Nothing is capped by default.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
#[cfg_attr(feature = "serde", serde(default, deny_unknown_fields))]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub struct SpendLimitPolicy {
    /// Tokens of a tenant in any hour.
    pub tokens_hour: u64,
    /// Tokens of a tenant in any day.
    pub tokens_day: u64,
    /// Tokens of a tenant in any 30 days.
    pub tokens_month: u64,
    /// Micro-dollars of a tenant in any hour.
    pub cost_hour: u64,
    /// Micro-dollars of a tenant in any day.
    pub cost_day: u64,
    /// Micro-dollars of a tenant in any 30 days.
    pub cost_month: u64,
    /// Tokens of an API key in any hour.
    pub key_tokens_hour: u64,
    /// Tokens of an API key in any day.
    pub key_tokens_day: u64,
    /// Tokens of an API key in any 30 days.
    pub key_tokens_month: u64,
    /// Micro-dollars of an API key in any hour.
    pub key_cost_hour: u64,
    /// Micro-dollars of an API key in any day.
    pub key_cost_day: u64,
    /// Micro-dollars of an API key in any 30 days.
    pub key_cost_month: u64,
    /// What is reserved for the output of a call that does not limit it, in tokens. 16,384: longer than nearly
    /// every answer; what is not used is given back at its end.
    pub assumed_output: u64,
    /// What is spent is recorded also where nothing is capped. Off by default: then a call without a cap
    /// costs nothing here.
    pub record: bool,
    /// How many tenants and keys are known at once. Beyond it those that have spent nothing are forgotten
    /// first.
    pub accounts: KeyedPolicy,
}

impl Default for SpendLimitPolicy {
    fn default() -> Self {
        Self {
            tokens_hour: 0,
            tokens_day: 0,
            tokens_month: 0,
            cost_hour: 0,
            cost_day: 0,
            cost_month: 0,
            key_tokens_hour: 0,
            key_tokens_day: 0,
            key_tokens_month: 0,
            key_cost_hour: 0,
            key_cost_day: 0,
            key_cost_month: 0,
            assumed_output: 16_384,
            record: false,
            accounts: KeyedPolicy::default(),
        }
    }
}

impl SpendLimitPolicy {
    /// The caps of the preset `comis`: 10,000,000 tokens an hour and 100,000,000 a day for each tenant.
    pub fn comis() -> Self {
        Self { tokens_hour: 10_000_000, tokens_day: 100_000_000, ..Self::default() }
    }

    /// The caps of each tenant.
    pub const fn tenant_caps(&self) -> SpendCaps {
        SpendCaps {
            hour: Spend::new(self.tokens_hour, self.cost_hour),
            day: Spend::new(self.tokens_day, self.cost_day),
            month: Spend::new(self.tokens_month, self.cost_month),
        }
    }

    /// The caps of each API key.
    pub const fn key_caps(&self) -> SpendCaps {
        SpendCaps {
            hour: Spend::new(self.key_tokens_hour, self.key_cost_hour),
            day: Spend::new(self.key_tokens_day, self.key_cost_day),
            month: Spend::new(self.key_tokens_month, self.key_cost_month),
        }
    }

    /// Checks the policy.
    ///
    /// # Errors
    ///
    /// The first invalid value, and what would be valid.
    pub fn validate(&self) -> Result<(), PolicyError> {
        if self.accounts.capacity == 0 {
            return Err(PolicyError::Zero { field: "accounts" });
        }
        let rows = [
            [
                ("tokens_hour", self.tokens_hour),
                ("tokens_day", self.tokens_day),
                ("tokens_month", self.tokens_month),
            ],
            [
                ("cost_hour", self.cost_hour),
                ("cost_day", self.cost_day),
                ("cost_month", self.cost_month),
            ],
            [
                ("key_tokens_hour", self.key_tokens_hour),
                ("key_tokens_day", self.key_tokens_day),
                ("key_tokens_month", self.key_tokens_month),
            ],
            [
                ("key_cost_hour", self.key_cost_hour),
                ("key_cost_day", self.key_cost_day),
                ("key_cost_month", self.key_cost_month),
            ],
        ];
        for row in rows {
            let mut shorter: Option<(&'static str, u64)> = None;
            for (long, long_value) in row.into_iter().filter(|(_, cap)| *cap > 0) {
                if let Some((short, short_value)) = shorter
                    && long_value < short_value
                {
                    return Err(PolicyError::Inverted { long, long_value, short, short_value });
                }
                shorter = Some((long, long_value));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_policies_are_refused_with_the_field() {
        assert_eq!(SpendLimitPolicy::default().validate(), Ok(()));
        assert_eq!(SpendLimitPolicy::comis().validate(), Ok(()));
        type Change = fn(&mut SpendLimitPolicy);
        let table: [(&str, Change); 3] = [
            ("accounts", |policy| policy.accounts.capacity = 0),
            ("tokens_day", |policy| (policy.tokens_hour, policy.tokens_day) = (10, 9)),
            ("key_cost_month", |policy| (policy.key_cost_hour, policy.key_cost_month) = (10, 9)),
        ];
        for (field, change) in table {
            let mut policy = SpendLimitPolicy::default();
            change(&mut policy);
            let error = policy.validate().expect_err(field).to_string();
            assert!(error.contains(&format!("`{field}`")), "{field}: {error}");
        }
    }

    #[test]
    fn comis_has_the_numbers_of_its_document() {
        let caps = SpendLimitPolicy::comis().tenant_caps();
        assert_eq!(caps, SpendCaps::of_tokens(10_000_000, 100_000_000));
        assert!(SpendLimitPolicy::comis().key_caps().is_off());
    }

    #[cfg(feature = "serde")]
    #[test]
    fn a_configuration_is_read_and_written() {
        let text = r#"{"tokens_hour":5,"cost_month":20000000,"record":true}"#;
        let read: SpendLimitPolicy = serde_json::from_str(text).unwrap();
        assert_eq!((read.tokens_hour, read.cost_month, read.record), (5, 20_000_000, true));
        let written = serde_json::to_string(&read).unwrap();
        assert_eq!(serde_json::from_str::<SpendLimitPolicy>(&written).unwrap(), read);
    }
}
