//! Another target while this one cools down.
//!
//! [`CooldownFailoverLayer`] sends each call to the first target of a [`Chain`] that is not cooling. When
//! that fails, the target cools down, by as much of it as the failure speaks for, and the call goes on
//! to the next one. The caller sees one answer, or one failure that lists what was tried.
//!
//! ```
//! use std::convert::Infallible;
//! use steadfast_core::{Call, CallContext, Failure, Reason};
//! use steadfast_failover::{Chain, CooldownFailoverLayer, Status};
//! use tower::{Layer, ServiceExt, service_fn};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! #[derive(Clone, Default)]
//! struct Ask { text: String, context: CallContext }
//!
//! impl Call for Ask {
//!     fn context(&self) -> &CallContext { &self.context }
//!     fn context_mut(&mut self) -> &mut CallContext { &mut self.context }
//! }
//!
//! // Somebody's client: it goes where the context says.
//! let client = service_fn(|ask: Ask| async move {
//!     let target = ask.context.target.expect("failover sets it");
//!     match target.provider() {
//!         "anthropic" => Err(Failure::new(Reason::Overloaded, "no capacity")),
//!         provider => Ok(format!("{provider} heard: {}", ask.text)),
//!     }
//! });
//!
//! let chain = Chain::new(["anthropic", "openai", "google"])?;
//! let layer = CooldownFailoverLayer::new(chain).at_once(); // replies are plain values here
//! let handle = layer.handle();
//! let llm = layer.layer(client);
//!
//! let answer = llm.oneshot(Ask { text: "hello".into(), ..Ask::default() }).await?;
//! assert_eq!(answer, "openai heard: hello");
//! let snapshot = handle.snapshot();
//! let anthropic = snapshot.cooling().next().expect("it failed");
//! assert_eq!((anthropic.status, anthropic.target.provider()), (Status::Degraded, "anthropic"));
//! # Ok(())
//! # }
//! ```
//!
//! # What fails over, and what cools
//!
//! The failure decides, by [`Failure::failover`] and [`Failure::scope`]; a
//! [table](CooldownFailoverLayer::with_table) overrides it reason by reason.
//!
//! | reason | goes on to | cools |
//! |---|---|---|
//! | `auth`, `billing` | the provider's next credential, then the next provider | that credential, 10 and 30 min, and an alarm: a person has to act |
//! | `rate_limit` | the next | that model with that credential, for as long as the provider asked, else 1 min |
//! | `overloaded` | the next (a smaller model first, [if asked](CooldownFailoverLayer::with_downgrade_on_overload)) | that model, 2 min |
//! | `server_error`, `timeout`, `network`, `unknown` | the next provider | the provider, 30 s to 1 min |
//! | `model_not_found` | the provider's next model, then the next provider | that model, 1 h |
//! | `context_overflow` | targets with a window known to be larger | nothing |
//! | `unsupported` | the next provider | nothing |
//! | our own refusals, such as an open breaker | the next | nothing |
//! | the caller's own mistakes, `content_filter`, `cancelled` | nowhere: the failure is returned as it is | nothing |
//! | `safety` | nowhere, whatever a table says | nothing |
//!
//! A cooldown never shortens one that ends later. In its last 30 s (never more than half of it, and
//! never while the provider asked for the time) one call at a time sees whether the target is
//! back. A success clears what that very target rests by, and says nothing of any other. A call that
//! was under way before a target failed or recovered decides nothing about it any more.
//!
//! # Streams
//!
//! Until the first *content* a reply can fail and be replaced unnoticed: a stream whose first event is an
//! error goes on to the next target. From then on the reply is the caller's. It carries a lease, and a
//! stream that dies half way counts against the target that served it. Dropping the future or
//! the reply ends the call and says nothing of the target.
//!
//! # What a target gets
//!
//! Each attempt is a clone of the request with the context's target, attempts so far and number of
//! alternatives set, and [adapted](steadfast_core::Call::adapt) to what the target can do. A
//! request that can not be made to fit passes that target over. The model travels in the request:
//! a downgrade touches nobody else.
//!
//! # Where to put this layer
//!
//! Outside retry, breaker and stall timeout, inside the deadline: everything below it is about one
//! target, everything above about the call.
//!
//! Wrong: `Retry(Failover(client))`. When every target has failed, the retry has them all asked again,
//! and again: three targets and ten retries are 33 attempts, and each target's "come back in 2 s" is
//! answered with another target's backoff. Inside failover, each target gets a few attempts of its own,
//! and a target worth waiting for is waited for.
//!
//! Wrong too: `Breaker(Failover(client))` with a breaker per target. The target is picked below the
//! breaker, so the breaker counts every failure for no target at all.
//!
//! [`Failure::failover`]: steadfast_core::Failure::failover
//! [`Failure::scope`]: steadfast_core::Failure::scope

#![cfg_attr(docsrs, feature(doc_cfg))]

mod affinity;
mod attempt;
mod call;
mod candidate;
mod chain;
mod choose;
mod ending;
mod error;
mod event;
pub mod future;
mod handle;
mod health;
mod history;
mod layer;
mod models;
mod policy;
mod registry;
mod route;
mod select;
mod service;
mod snapshot;

pub use self::{
    chain::{Chain, MAX_CANDIDATES, TargetSpec},
    choose::{ChooseChain, OneChain},
    error::{ChainError, ChainPart, PolicyError},
    handle::FailoverHandle,
    health::{Cooldown, LastError, Status},
    layer::CooldownFailoverLayer,
    models::{Downgrades, ModelMap},
    policy::{FailoverPolicy, WhenExhausted},
    service::CooldownFailover,
    snapshot::{FailoverSnapshot, TargetHealth},
};
pub use steadfast_core::Capabilities;
