//! Time limits: of one attempt, and of a call with all its attempts.
//!
//! * [`StallTimeoutLayer`] ends an attempt that hangs (`stall`), that has no content in time
//!   (`first_content`), that takes too long (`makespan`, and `attempt` for retries and
//!   fallbacks), or that begins too slowly to be useful (`floor`).
//! * [`DeadlineLayer`] gives a call a deadline that every inner layer keeps, and ends the call at
//!   it, in any state.
//!
//! The limits do not end at the head of a reply: they run until its body or event stream is over.
//! A limit that fires is a [`Failure`](steadfast_core::Failure) of
//! [`Reason::Timeout`](steadfast_core::Reason::Timeout) with its
//! [`TimeLimit`](steadfast_core::TimeLimit); what it ended is dropped at once, which closes the
//! connection.
//!
//! | limit | default | restarts with | counts against the provider |
//! |---|---|---|---|
//! | `stall` | 180 s | content: text, thinking, tool calls; not pings or comments | yes |
//! | `makespan` | 10 x `stall` | nothing | no |
//! | `attempt` | 60 s to the first content, for calls that are not the first attempt | nothing | yes |
//! | `whole` | off, for answers that do not come as a stream | nothing | yes |
//! | `first_content` | off | nothing | yes |
//! | `throughput` | off | nothing | yes |
//! | `pipeline` | 600 s, or the caller's deadline | nothing | no |
//!
//! An answer that comes whole is silent by nature: `stall`, `attempt` and `first_content` do not apply to a
//! request that says it wants one ([`Call::is_whole`](steadfast_core::Call::is_whole)).
//!
//! They work on any request that is a [`Call`](steadfast_core::Call) and on any reply that is
//! a [`TimeoutReply`]; `.at_once()` limits the future alone, for replies that are values.
//!
//! ```
//! use std::time::Duration;
//! use steadfast_core::{Call, CallContext, Failure, TimeLimit};
//! use steadfast_timeout::{DeadlineLayer, StallTimeoutLayer};
//! use tower::{ServiceBuilder, ServiceExt, service_fn};
//!
//! #[derive(Default)]
//! struct Ask { context: CallContext }
//!
//! impl Call for Ask {
//!     fn context(&self) -> &CallContext { &self.context }
//!     fn context_mut(&mut self) -> &mut CallContext { &mut self.context }
//! }
//!
//! # #[tokio::main(flavor = "current_thread", start_paused = true)]
//! # async fn main() {
//! let service = ServiceBuilder::new()
//!     .layer(DeadlineLayer::default().at_once())
//!     .layer(StallTimeoutLayer::default().at_once())
//!     .service(service_fn(|_: Ask| async {
//!         tokio::time::sleep(Duration::from_secs(1_000)).await;
//!         Ok::<_, Failure>("too late")
//!     }));
//!
//! let failure = service.oneshot(Ask::default()).await.unwrap_err();
//! assert_eq!(failure.time_limit(), Some(TimeLimit::Stall));
//! assert_eq!(
//!     failure.message(),
//!     "the answer stalled: limit stall of 180s, set by `timeout.stall_ms`, fired after 180s; \
//!      no content had been delivered",
//! );
//! # }
//! ```
//!
//! # Where to put these layers
//!
//! The deadline outermost, the stall limit inside the breaker:
//!
//! ```text
//! Deadline            one for the call with all its retries and fallbacks
//! CooldownFailover
//! RetryBackoff
//! CircuitBreaker      counts what the stall limit ends
//! StallTimeout        one for every attempt
//! Classify
//! ```
//!
//! **Wrong:** `StallTimeout` outside `CircuitBreaker`. When the limit fires, the call of the breaker
//! is dropped, which counts as cancelled by the caller and not against the provider. A provider that
//! hangs on every call then never trips it, and every call waits for the whole limit.
//!
//! # What a limit costs
//!
//! A call that is ready at once arms no timer and, in [`StallTimeoutLayer`], reads no clock: the
//! time of a call counts from the first poll that had to wait. One timer is used for all limits of
//! a call and is rarely reset: it fires early and is reset then, so that content, which comes many
//! times a second, does not reset it. Streams stay `Unpin`.
//!
//! Limits fire while the future or the stream is polled. A caller that does not read does not use up
//! `stall`, which runs while something is waited for, but does use up the limits of the whole call.

#![cfg_attr(docsrs, feature(doc_cfg))]

mod body;
mod clocks;
mod error;
mod event;
mod events;
pub mod future;
mod layer;
mod limits;
mod policy;
mod reply;
mod service;
mod sse;
mod state;

pub use self::{
    body::StallBody,
    clocks::Clocks,
    error::PolicyError,
    events::StallEvents,
    layer::{DeadlineLayer, StallTimeoutLayer, TimeoutLayer},
    policy::{DeadlinePolicy, Floor, StallPolicy},
    reply::TimeoutReply,
    service::{StallTimeout, Timeout},
    state::{TimeoutHandle, TimeoutSnapshot},
};
