//! Time limits of a call: of one attempt, and of everything that is done for it.
//!
//! * [`StallTimeoutLayer`] ends an attempt that has hung (`stall`), that did not begin
//!   (`first_content`), that takes too long (`makespan`, and `attempt` for retries and
//!   fallbacks), or that began too slowly to be of use (`floor`).
//! * [`DeadlineLayer`] gives a call a deadline that every layer below obeys, and ends the call
//!   at it, wherever it stands.
//!
//! The limits do not end at the head of a reply: they run until its body or event stream is over.
//! A limit that fires is a [`Failure`](steadfast_core::Failure) of
//! [`Reason::Timeout`](steadfast_core::Reason::Timeout) with its
//! [`TimeLimit`](steadfast_core::TimeLimit); what it ended is dropped at once, which closes the
//! connection.
//!
//! | limit | default | begins anew with | counts against the provider |
//! |---|---|---|---|
//! | `stall` | 180 s | content: text, thinking, tool calls; not pings or comments | yes |
//! | `makespan` | 10 x `stall` | nothing | no |
//! | `attempt` | 60 s to the first content, for calls that are not the first attempt | nothing | yes |
//! | `first_content` | off | nothing | yes |
//! | `throughput` | off | nothing | yes |
//! | `pipeline` | 600 s, or the caller's deadline | nothing | no |
//!
//! They work on any request that is a [`Call`](steadfast_core::Call) and on any reply that is
//! a [`TimeLimitedReply`]; `.at_once()` limits the future alone, for replies that are values.
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
//!     "the answer stalled: limit stall of 180s, set by `stall`, fired after 180s; \
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
//! CircuitBreaker      judges what the stall limit says
//! StallTimeout        one for every attempt
//! Classify
//! ```
//!
//! **Wrong:** `StallTimeout` outside `CircuitBreaker`. When the limit fires, the breaker below is
//! dropped with the call and sees a caller that went away, which says nothing of the provider. A
//! provider that hangs on every call then never trips it, and every call waits the whole limit.
//!
//! # What a limit costs
//!
//! A call that is ready at once arms no timer and, in [`StallTimeoutLayer`], reads no clock: the
//! time of a call counts from the first poll that had to wait. One timer serves all limits of a
//! call and is moved rarely: it is left to fire early and set anew, so that content, which comes
//! many times a second, moves no timer. Streams stay `Unpin`.
//!
//! Limits fire while the future or the stream is polled. A caller that does not read does not
//! use up `stall`, which begins when something is waited for, but does use up the limits of the
//! whole.

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
    layer::{DeadlineLayer, StallTimeoutLayer, TimeLimitLayer},
    policy::{DeadlinePolicy, Floor, StallPolicy},
    reply::TimeLimitedReply,
    service::{DeadlineService, StallTimeout, TimeLimited},
    state::{TimeoutHandle, TimeoutSnapshot},
};
