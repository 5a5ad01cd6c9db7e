//! Limits.

#![cfg_attr(docsrs, feature(doc_cfg))]

mod error;
mod estimate;
mod meter;
mod rate;
mod spend;

pub mod future {
    //! The futures of the services.

    pub use crate::{rate::RateFuture, spend::MeteredFuture};
}

#[cfg(feature = "chat")]
pub use self::meter::MeteredEvents;
pub use self::{
    error::PolicyError,
    estimate::{CallTokens, EstimateTokens, FromNeeds},
    meter::{MeteredBody, MeteredReply, ReplyMeter},
    rate::{
        QuotaKey, QuotaOfTarget, QuotaSnapshot, RateHandle, RateLimit, RateLimitLayer, RatePermit,
        RatePolicy, RateSnapshot, ReleaseAt,
    },
    spend::{
        AttemptMeter, CallSpendMeter, LongInputPrice, ModelPrice, Prices, SpendLimit,
        SpendLimitLayer, SpendLimitPolicy, SpendMeter, SpendMeterLayer, UnpricedModel,
    },
};
