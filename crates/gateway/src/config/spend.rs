//! `[spend_limit]`: caps of all, caps of some, and what models cost.

use std::collections::{BTreeMap, HashMap};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use steadfast::limit::{ModelPrice, Prices, SpendLimitPolicy, UnpricedModel};
use steadfast_core::{Spend, SpendAccount, SpendCaps};

/// `[spend_limit]`
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(default)]
#[non_exhaustive]
pub struct SpendLimitConfig {
    #[allow(missing_docs, reason = "its fields are the keys, with documentation of their own")]
    #[serde(flatten)]
    pub policy: SpendLimitPolicy,
    /// What a model costs whose price is not known. It is reported once for each model.
    pub unpriced: UnpricedModel,
    /// Caps of single tenants, by name, where they are others than those above.
    pub tenants: BTreeMap<String, AccountCaps>,
    /// Caps of single API keys, by the names that `/admin/spend` has: `"acme/CI_KEY"`.
    pub keys: BTreeMap<String, AccountCaps>,
    /// What models cost, by name and by what names begin with, where it is not what the built-in table says or the
    /// table does not know them: micro-dollars for a million tokens, so 3_000_000 is 3 dollars.
    pub prices: BTreeMap<String, ModelPrice>,
}

/// Caps of one tenant or key. What is not set is as for all of them; 0 is no cap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct AccountCaps {
    /// Tokens in any hour.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens_hour: Option<u64>,
    /// Tokens in any day.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens_day: Option<u64>,
    /// Tokens in any 30 days.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens_month: Option<u64>,
    /// Micro-dollars in any hour.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cost_hour: Option<u64>,
    /// Micro-dollars in any day.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cost_day: Option<u64>,
    /// Micro-dollars in any 30 days.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cost_month: Option<u64>,
}

impl AccountCaps {
    /// These, and those of `general` where none is set.
    fn over(&self, general: SpendCaps) -> SpendCaps {
        let spend = |tokens: Option<u64>, cost: Option<u64>, general: Spend| {
            Spend::new(tokens.unwrap_or(general.tokens), cost.unwrap_or(general.cost))
        };
        SpendCaps {
            hour: spend(self.tokens_hour, self.cost_hour, general.hour),
            day: spend(self.tokens_day, self.cost_day, general.day),
            month: spend(self.tokens_month, self.cost_month, general.month),
        }
    }
}

impl SpendLimitConfig {
    /// The caps of the tenants and keys that have their own.
    pub(crate) fn caps(&self) -> HashMap<SpendAccount, SpendCaps> {
        let (tenant, key) = (self.policy.tenant_caps(), self.policy.key_caps());
        let tenants = self.tenants.iter();
        let tenants = tenants
            .map(|(name, caps)| (SpendAccount::Tenant(name.as_str().into()), caps.over(tenant)));
        let keys = self.keys.iter();
        let keys =
            keys.map(|(name, caps)| (SpendAccount::Key(name.as_str().into()), caps.over(key)));
        tenants.chain(keys).collect()
    }

    /// What models cost.
    pub(crate) fn prices(&self) -> Prices {
        let prices = Prices::default().with_unpriced(self.unpriced);
        self.prices
            .iter()
            .fold(prices, |prices, (model, price)| prices.with_override(model.as_str(), *price))
    }

    /// What is wrong with `caps` of a single tenant or key, which `general` are for.
    pub(super) fn problem(caps: &AccountCaps, general: SpendCaps) -> Option<String> {
        let SpendCaps { hour, day, month } = caps.over(general);
        let policy = SpendLimitPolicy {
            tokens_hour: hour.tokens,
            tokens_day: day.tokens,
            tokens_month: month.tokens,
            cost_hour: hour.cost,
            cost_day: day.cost,
            cost_month: month.cost,
            ..SpendLimitPolicy::default()
        };
        policy.validate().err().map(|error| error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_tenant_does_not_set_is_as_for_all() {
        let config: SpendLimitConfig = toml::from_str(
            "tokens_hour = 10\ntokens_day = 20\nkey_cost_day = 5\nunpriced = 'dearest'\n\
             tenants = { trial = { tokens_hour = 3 }, own = { tokens_hour = 0, tokens_day = 0, cost_month = 7 } }\n\
             keys = { 'trial/CI' = { tokens_day = 1 } }\n\
             prices = { house = { input = 100_000, output = 400_000 } }",
        )
        .unwrap();
        let caps = config.caps();
        assert_eq!(caps.len(), 3);
        assert_eq!(caps[&SpendAccount::Tenant("trial".into())], SpendCaps::of_tokens(3, 20));
        let own = SpendCaps { month: Spend::new(0, 7), ..SpendCaps::default() };
        assert_eq!(caps[&SpendAccount::Tenant("own".into())], own);
        let key = SpendCaps { day: Spend::new(1, 5), ..SpendCaps::default() };
        assert_eq!(caps[&SpendAccount::Key("trial/CI".into())], key);
        let prices = config.prices();
        assert_eq!(prices.price("house-q4").output, 400_000);
        assert!(prices.price("nobody-knows").output > 400_000);
    }
}
