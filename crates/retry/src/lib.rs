//! Retries of the same target, with backoff.
//!
//! [`RetryBackoffLayer`] retries a call that failed for a reason that may pass: no capacity, a rate
//! limit, a broken connection, a stream that ends before its first content. It waits as long as
//! the provider asked, or `500 ms x 2^n` and up to a quarter more, and it stops early where
//! retrying only does harm: when the wait is longer than the time left, when another target
//! could answer at once, when the [budget](steadfast_core::RetryBudget) is empty.
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
//! CircuitBreaker      counts every attempt, and its refusal is not retried
//! StallTimeout        ends every attempt
//! Classify
//! ```
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
//! Dropping the future ends the attempt, the sleep or the wait for readiness that is under way.

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
