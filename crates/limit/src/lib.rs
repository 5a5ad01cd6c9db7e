//! Rate limits that are learned from providers, and spend caps.
//!
//! * [`RateLimitLayer`] keeps calls below the rate limits of their target, so that the 429 is not caused at
//!   all: requests and tokens in a time, as the provider states them in the headers of its answers. Nothing has
//!   to be configured. Calls beyond the limit wait for their turn, tenants in turn, or move on to another target.
//! * [`SpendLimitLayer`] caps what each tenant and each API key spends in any hour, day and 30 days, in tokens
//!   and in money. What a call may cost is reserved before, and what it did cost is charged after, attempt by
//!   attempt.
//!
//! Several processes keep to one limit, or one cap, by `RateHandle::share` (feature `shared`) and
//! [`SpendLedger::share`](steadfast_core::SpendLedger::share).
//!
//! ```
//! use steadfast_core::{Call, CallContext, Failure, Reason, SpendAccount};
//! use steadfast_limit::{CallTokens, RateLimitLayer, SpendLimitLayer, SpendLimitPolicy};
//! use tower::{Service, ServiceBuilder, ServiceExt, service_fn};
//!
//! #[derive(Clone)]
//! struct Ask(CallContext);
//!
//! impl Call for Ask {
//!     fn context(&self) -> &CallContext { &self.0 }
//!     fn context_mut(&mut self) -> &mut CallContext { &mut self.0 }
//! }
//!
//! # #[tokio::main(flavor = "current_thread", start_paused = true)]
//! # async fn main() -> Result<(), Failure> {
//! // A thousand tokens an hour for each tenant. A chat request says by itself what it needs, and a chat
//! // response what it has used; here both are estimated.
//! let spend = SpendLimitLayer::new(SpendLimitPolicy { tokens_hour: 1_000, ..Default::default() })
//!     .expect("the policy is valid")
//!     .with_estimate(|_: &Ask| CallTokens { input: 400, max_output: Some(0) })
//!     .at_once();
//! let mut service = ServiceBuilder::new()
//!     .layer(spend.clone())
//!     // failover and retry here
//!     .layer(RateLimitLayer::default().at_once())
//!     .layer(spend.meter())
//!     .service(service_fn(async |_: Ask| Ok::<_, Failure>("an answer")));
//!
//! let ask = || Ask(CallContext::new().with_tenant("acme"));
//! for _ in 0..2 {
//!     assert_eq!(service.ready().await?.call(ask()).await?, "an answer");
//! }
//! let refused = service.ready().await?.call(ask()).await.unwrap_err();
//! assert_eq!(refused.reason(), Reason::SpendCap);
//! assert!(refused.retry_after().is_some(), "it says when there is room again");
//! let account = SpendAccount::Tenant("acme".into());
//! assert_eq!(spend.ledger().totals(&account, tokio::time::Instant::now()).hour.tokens, 800);
//! # Ok(())
//! # }
//! ```
//!
//! # How rates are limited
//!
//! Each target (provider, model, credential) has a bucket for requests, for tokens, and for input and output
//! tokens where a provider limits those apart. An answer's headers state the limit, what remains and when it is
//! full again; the bucket is set right by them, less what is under way and may not be counted there yet. The
//! tokens of a call are estimated by what calls have used lately, and corrected by the usage that is reported.
//!
//! What is learned is an estimate. A call beyond it waits for at most [`max_wait`](RatePolicy::max_wait), its
//! patience and half of its deadline, and the provider is asked then. Where another target can answer it waits for
//! at most [`max_wait_with_spare`](RatePolicy::max_wait_with_spare), and fails with
//! [`Reason::Budget`](steadfast_core::Reason::Budget) and the wait: failover moves on, comes back when the others
//! fail, too, and nothing counts against the provider. What is configured is the operator's: a call that would have
//! to wait longer than it may is refused. The hint of a 429 binds its call; from the second in a row on, others
//! that can go elsewhere do.
//!
//! # How spending is capped
//!
//! Accounts are in a [`SpendLedger`](steadfast_core::SpendLedger), which other layers, metrics and pages can
//! share. Before a call its estimate is reserved, with the whole output that it may have: calls at the same time
//! can not exceed a cap together. [`SpendMeterLayer`], innermost, charges each attempt: retries, other targets,
//! hedges, resumed and broken streams. A refusal is [`Reason::SpendCap`](steadfast_core::Reason::SpendCap),
//! which no layer retries or sends elsewhere. Money is counted by [`Prices`].
//!
//! # Where to put these layers
//!
//! The caps outside of failover, the rate limit and the meter inside of retry:
//!
//! ```text
//! Deadline
//! SpendLimit         a tenant's cap is final, and holds for all attempts together
//! CooldownFailover
//! RetryBackoff
//! RateLimit          every attempt counts
//! CircuitBreaker
//! StallTimeout
//! SpendMeter         every attempt is charged
//! Classify
//! LlmClient
//! ```
//!
//! **Wrong:** `RateLimit` outside of `RetryBackoff`. A call takes one request from the bucket and makes up to eleven:
//! retries of a provider that is overloaded cause the 429 that the limit is there to prevent.
//!
//! **Wrong:** `SpendLimit` inside of failover. A call of a tenant that has spent its cap is refused by each target in
//! turn, and each attempt reserves for itself alone.
//!
//! # What it costs
//!
//! A call takes the lock of its target's state a few times, for a few additions each. Without anything known of
//! the limits, and without a cap, nothing is allocated; a call with a cap allocates what it may spend.

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
        QuotaKey, QuotaOfTarget, QuotaSnapshot, RateHandle, RateLimitLayer, RateLimited,
        RatePermit, RatePolicy, RateSnapshot, ReleaseAt,
    },
    spend::{
        AttemptMeter, CallSpendMeter, LongInputPrice, ModelPrice, Prices, SpendLimit,
        SpendLimitLayer, SpendLimitPolicy, SpendMeter, SpendMeterLayer, UnpricedModel,
    },
};
