//! What summaries may cost.
//!
//! The tenant pays for summaries without having requested them: a loop of compactions must not use
//! up a budget. The most that a compaction may cost is reserved in the layer's
//! [`SpendLedger`], and charged afterwards: to the summaries of the tenant, and to what the call that needs
//! the summary is charged to.

use std::sync::atomic::{AtomicBool, Ordering};

use steadfast_core::{CallContext, CallSpend, Spend, SpendAccount, SpendCaps, SpendLedger};
use tokio::time::Instant;

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
    SpendAccount::Summaries(tenant.into())
}

/// What one call of a summariser may spend.
pub(super) struct SummarySpend {
    /// It travels with the call, and layers of the summariser's that observe attempts charge those to it.
    pub(super) call: CallSpend,
    most: Spend,
    made: AtomicBool,
}

impl SummarySpend {
    /// Reserves so many tokens for a call on behalf of that with `context`; `None` when a cap leaves less.
    pub(super) fn reserve(
        ledger: &SpendLedger,
        policy: SpendPolicy,
        context: &CallContext,
        tokens: u64,
        now: Instant,
    ) -> Option<Self> {
        let tenant = account(context.tenant().unwrap_or_default());
        let (own, most) = ([(tenant, policy.caps())], Spend::new(tokens, 0));
        let outer = context.spend.as_ref().filter(|outer| outer.is_of(ledger));
        let call = match outer {
            Some(outer) => outer.beside(own, most, now),
            None => CallSpend::reserve(ledger, own, most, now),
        };
        Some(Self { call: call.ok()?, most, made: AtomicBool::new(false) })
    }

    /// The call is being made.
    pub(super) fn made(&self) {
        self.made.store(true, Ordering::Relaxed);
    }

    /// The call has taken so many tokens; `None`: all that it might. Nothing is charged where a layer of the
    /// summariser's has.
    pub(super) fn charge(&self, tokens: Option<u64>, now: Instant) {
        if self.call.attempts() == 0
            && let Ok(attempt) = self.call.attempt(self.most, now)
        {
            attempt.charge(tokens.map_or(self.most, |tokens| Spend::new(tokens, 0)), now);
        }
    }

    /// Nobody knows what the call has taken, if it was made and is not charged.
    pub(super) fn keep(&self, now: Instant) {
        if self.made.load(Ordering::Relaxed) {
            self.charge(None, now);
        }
    }
}

impl Drop for SummarySpend {
    /// The summariser may hold on to the request.
    fn drop(&mut self) {
        self.call.end(Instant::now());
    }
}
