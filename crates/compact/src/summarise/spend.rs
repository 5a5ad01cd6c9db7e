//! What summaries may cost.
//!
//! The tenant pays for summaries without having requested them: a loop of compactions must not use
//! up a budget. The most that a compaction may cost is reserved in the layer's
//! [`SpendLedger`](steadfast_core::SpendLedger), and charged afterwards.

use steadfast_core::{SpendAccount, SpendCaps};

/// The most tokens of summaries in an hour and in a day, both rolling; 0 for no limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
#[cfg_attr(feature = "serde", serde(default, deny_unknown_fields))]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub struct SpendPolicy {
    /// Tokens in any hour. 500,000: a few compactions of a large window.
    #[cfg_attr(feature = "serde", serde(rename = "spend_hour"))]
    pub hour: u64,
    /// Tokens in any day. 5,000,000: ten such hours.
    #[cfg_attr(feature = "serde", serde(rename = "spend_day"))]
    pub day: u64,
}

impl Default for SpendPolicy {
    fn default() -> Self {
        Self { hour: 500_000, day: 5_000_000 }
    }
}

impl SpendPolicy {
    pub(super) const fn caps(self) -> SpendCaps {
        SpendCaps::of_tokens(self.hour, self.day)
    }
}

/// The account of a tenant's summaries.
pub(crate) fn account(tenant: &str) -> SpendAccount {
    SpendAccount::Tenant(tenant.into())
}
