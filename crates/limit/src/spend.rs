//! Spend caps: tokens and money of tenants and API keys in rolling windows.

mod event;
mod future;
mod layer;
mod policy;
mod prices;
mod service;
mod state;

pub use self::{
    future::MeteredFuture,
    layer::{SpendLimitLayer, SpendMeterLayer},
    policy::SpendLimitPolicy,
    prices::{LongInputPrice, ModelPrice, Prices, UnpricedModel},
    service::{SpendLimit, SpendMeter},
    state::{AttemptMeter, CallSpendMeter},
};
