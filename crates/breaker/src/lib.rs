//! Stops asking a target that keeps failing, and finds out by itself when to ask again.
//!
//! ```
//! use std::time::Duration;
//!
//! use steadfast_breaker::CircuitBreakerLayer;
//! use steadfast_core::{Call, CallContext, Failure, Reason};
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
//! // Plain replies are over when they are there; bodies and streams need no `at_once`.
//! let layer = CircuitBreakerLayer::default().at_once();
//! let breakers = layer.handle();
//! let mut service = ServiceBuilder::new().layer(layer).service(service_fn(|_: Ask| async {
//!     Err::<String, _>(Failure::new(Reason::ServerError, "the model crashed"))
//! }));
//!
//! let ask = Ask(CallContext::new().with_target("openai"));
//! for _ in 0..5 {
//!     let failure = service.ready().await?.call(ask.clone()).await.unwrap_err();
//!     assert_eq!(failure.reason(), Reason::ServerError);
//! }
//! // Five in a row: the sixth does not reach the provider.
//! let refusal = service.ready().await?.call(ask).await.unwrap_err();
//! assert_eq!(refusal.reason(), Reason::CircuitOpen);
//! assert!(refusal.retry_after() <= Some(Duration::from_secs(1)));
//!
//! breakers.reset(&Some("openai".into()));
//! # Ok(())
//! # }
//! ```
//!
//! # What it does
//!
//! There is one breaker for each key: by default the target in the call's context, or whatever
//! [`with_key`](CircuitBreakerLayer::with_key) makes of a request.
//!
//! | state | calls | leaves it |
//! |---|---|---|
//! | closed | pass and are counted | when too many failed in a row, too large a share failed or was slow to begin, or one failure was proof by itself: then it opens |
//! | open | are refused | shortly before its rest ends, with the first call that comes: half-open |
//! | half-open | some are let through as probes, the others are refused | closes when enough probes succeeded, opens again for twice as long when one failed |
//!
//! The verdict on a call falls when its answer has *ended*. An answer that begins with a 200 and
//! dies half way is a failure. What counts for what:
//!
//! | the call ended with | counts as |
//! |---|---|
//! | a whole answer | success; ends the rows of calls that began before it |
//! | `rate_limit`, `overloaded` | soft failure: in the share, never in the row; a probe that ends so has failed |
//! | `server_error`, `timeout`, `network`, `unknown`, a panic | hard failure: in the share and in the row |
//! | `auth`, `billing`, `model_not_found`, and what is permanent | proof: opens at once, if the key is as narrow as what is refused or missing (see [`Covers`]); else nothing |
//! | the caller's fault, a refusal of our own, a time limit that blames nobody, a dropped future or body | nothing: it releases its permit and changes no count |
//!
//! The rule behind the fourth line: a failure that [must not be retried](steadfast_core::Retry)
//! and concerns a [model or a credential](steadfast_core::Scope) is repeated by every further call
//! to the same model or with the same credential. One is enough to know.
//!
//! The rest is as long as the provider asked for, else as the reason's cooldown in the
//! [`RecoveryTable`](steadfast_core::RecoveryTable). Its end only ever moves later.
//!
//! A call that has nowhere else to go (the context knows of no alternative) is let through a rest
//! now and then: see [`LonePolicy`](steadfast_core::circuit::LonePolicy). A context without a failover layer above knows of none, so a
//! breaker alone in front of one provider lets one call a second through.
//!
//! # Below failover
//!
//! All this is about a breaker by itself. Below a failover that selects the target
//! ([`CallContext::routed`](steadfast_core::CallContext::routed)) that layer decides who is asked, and this one only
//! paces repetitions: it opens after [20 failures in a row](BreakerPolicy::dead), throttled calls among them, lets each call ask
//! once all the same, and those that ask again one [turn](BreakerPolicy::turn) after the other. First content is a success
//! there and closes it, a break after it changes nothing, and nothing is proof: failover rests a refused key itself.
//!
//! # A refusal
//!
//! is decided in `call`; the inner service is not called and stays ready. The future is ready at
//! once with [`Reason::CircuitOpen`](steadfast_core::Reason::CircuitOpen), the target, and when to
//! come back as `retry_after`.
//!
//! # Where to put this layer
//!
//! Inside whatever retries or fails over, so that each attempt is judged, and outside of whatever
//! decides what it failed of: time limits and classification.
//!
//! ```
//! # use std::time::Duration;
//! # use steadfast_breaker::CircuitBreakerLayer;
//! # use tower::{ServiceBuilder, timeout::TimeoutLayer};
//! let right = ServiceBuilder::new()
//!     // retries and failover here
//!     .layer(CircuitBreakerLayer::default())
//!     .layer(TimeoutLayer::new(Duration::from_secs(180)));
//!     // classification here, then the client
//!
//! let wrong = ServiceBuilder::new()
//!     .layer(TimeoutLayer::new(Duration::from_secs(180)))
//!     .layer(CircuitBreakerLayer::default());
//! # let _ = (right, wrong);
//! ```
//!
//! In the wrong order a provider that hangs never trips the breaker. When the time is up, the
//! timeout drops the breaker's future, and a dropped future is a caller who went away: it says
//! nothing of the provider. So every call waits for the whole time limit, for ever.
//!
//! With classification outside, an `http::Response` with status 500 is a response like any other
//! whose body ends well: a success.
//!
//! # What it costs
//!
//! A call that passes and succeeds allocates nothing: it reads the clock once and takes its breaker's lock
//! twice, for as long as a few counts take. A refusal allocates the failure that it becomes.

#![cfg_attr(docsrs, feature(doc_cfg))]

mod error;
mod event;
mod future;
mod handle;
mod judge;
mod key;
mod layer;
mod policy;
mod saved;
mod service;
#[cfg(feature = "shared")]
mod shared;
mod state;

pub use self::{
    error::PolicyError,
    event::{BreakerSnapshot, BreakerTransition},
    future::ResponseFuture,
    handle::BreakerHandle,
    key::{ByTarget, Covers, KeyBy},
    layer::CircuitBreakerLayer,
    policy::BreakerPolicy,
    saved::SavedBreaker,
    service::CircuitBreaker,
};
