//! Retries of the same target, with backoff.
//!
//! [`RetryBackoffLayer`] retries a call that failed for a reason that may pass: no capacity, a rate
//! limit, a broken connection, a stream that ends before its first content. It waits as long as
//! the provider asked, or `500 ms x 2^n` and up to a quarter more. How often depends on whether another
//! target can serve the call ([`alternatives`](steadfast_core::CallContext::alternatives), which failover
//! sets). By default:
//!
//! | what came | another target can | it is alone |
//! |---|---|---|
//! | 429 without a hint | none | 10 retries |
//! | 429 with a hint of at most 1 s | waits it, 1 retry | waits it, 10 retries |
//! | anything with a longer hint | none | waits it up to 60 s, else fails with the hint |
//! | 503, 529, `overloaded` | 2 retries, then asks for a fallback model | 10 retries |
//! | anything else that may pass | 1 retry | 10 retries |
//! | one of our own time limits | none | 1 retry |
//! | anything while the target rests, from a probe, or that opened a breaker | none | as above |
//!
//! It stops earlier where retrying only does harm: when the wait does not fit into the time left or into
//! what the call may [wait in all](steadfast_core::CallContext::patience), and from the third retry on when
//! the [budget](steadfast_core::RetryBudget) is empty. A retry that a breaker refuses because it is not
//! its turn waits for that turn when it is alone; any other refusal of a retry ends the call with the
//! failure that it was retried for.
//!
//! It works on any request that is a [`Call`](steadfast_core::Call) and on any reply that has a
//! [`Track`](steadfast_core::Track). Only an `Err` of the inner service is a failure here: around a
//! plain HTTP client put a classifier inside, which turns a 503 into one.
//!
//! ```
//! use std::sync::atomic::{AtomicU32, Ordering};
//! use std::time::Duration;
//! use steadfast_core::{Call, CallContext, Failure, Reason};
//! use steadfast_retry::RetryBackoffLayer;
//! use tower::{ServiceBuilder, ServiceExt, service_fn};
//!
//! #[derive(Clone, Default)]
//! struct Ask { context: CallContext }
//!
//! impl Call for Ask {
//!     fn context(&self) -> &CallContext { &self.context }
//!     fn context_mut(&mut self) -> &mut CallContext { &mut self.context }
//! }
//!
//! # #[tokio::main(flavor = "current_thread", start_paused = true)]
//! # async fn main() -> Result<(), Failure> {
//! static ASKED: AtomicU32 = AtomicU32::new(0);
//!
//! let layer = RetryBackoffLayer::transient().at_once();
//! let handle = layer.handle();
//! let service = ServiceBuilder::new().layer(layer).service(service_fn(|_: Ask| async {
//!     match ASKED.fetch_add(1, Ordering::Relaxed) {
//!         0 => Err(Failure::new(Reason::RateLimit, "slow down")
//!             .with_retry_after(Some(Duration::from_secs(2)))),
//!         _ => Ok("forty-two"),
//!     }
//! }));
//!
//! assert_eq!(service.oneshot(Ask::default()).await?, "forty-two");
//! assert_eq!(handle.snapshot().retries, [(Reason::RateLimit, 1)]);
//! # Ok(())
//! # }
//! ```
//!
//! # Where to put this layer
//!
//! Inside failover, outside the breaker and the stall limit:
//!
//! ```text
//! CooldownFailover    selects the target; each target gets its own retries
//! RetryBackoff        here
//! CircuitBreaker      counts every attempt
//! StallTimeout        ends every attempt
//! Classify
//! ```
//!
//! Each failed attempt is reported to the failover at once
//! ([`Routed::failed`](steadfast_core::Routed::failed)), so that other calls need not find it out again.
//!
//! **Wrong:** `RetryBackoff` outside `CooldownFailover`. When all targets have failed, what comes out of
//! the failover is a refusal of its own, which is not retried. So three targets get three attempts a
//! round, one each and none in place, and no hint is waited for here.
//!
//! **Wrong:** `StallTimeout` outside `RetryBackoff`. The limit then runs over all attempts and
//! the waits between them: a hang uses it up in the first attempt, no retry is made, and a wait the
//! provider asked for counts as a hang.
//!
//! # Streams
//!
//! An answer is buffered until its first content has come ([`RetryPolicy::buffer`]), and the buffer is
//! delivered first. Up to that point a broken answer is retried unnoticed. After it a failure is
//! returned to the caller and never retried here
//! ([`Failure::is_delivered`](steadfast_core::Failure::is_delivered)). The body of an
//! `http::Response` counts as content from its head. What retries took out of the budget is put
//! back when the answer has ended successfully, not when it begins.
//!
//! # Cancellation
//!
//! Dropping the future ends the attempt, the sleep or the wait for readiness that is under way. A retry
//! is paid once it has been sent; one that was not goes back into the budget.

#![cfg_attr(docsrs, feature(doc_cfg))]

mod call;
mod decide;
mod error;
mod event;
pub mod future;
mod layer;
mod nudge;
mod policy;
mod service;
mod state;

pub use self::{
    decide::{Decision, GiveUp, Situation},
    error::PolicyError,
    layer::RetryBackoffLayer,
    nudge::Nudge,
    policy::RetryPolicy,
    service::RetryBackoff,
    state::{RetryHandle, RetrySnapshot},
};
