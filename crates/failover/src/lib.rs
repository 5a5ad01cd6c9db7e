//! Another target while this one cools down.
//!
//! [`CooldownFailoverLayer`] sends each call to the first target of a [`Chain`] that is not cooling. When
//! that fails, the call goes on to the next one, and round again after a pause. A target that fails twice
//! in a row cools down, by as much of it as the failures speak for. The caller sees one answer, or one
//! failure that lists what was tried.
//!
//! ```
//! use std::convert::Infallible;
//! use steadfast_core::{Call, CallContext, Failure, Reason, Target};
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
//! let anthropic = snapshot.get(&Target::new("anthropic")).expect("it was asked");
//! assert_eq!(anthropic.status, Status::Degraded);
//! assert!(anthropic.cooling.is_none(), "one failure is an accident");
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
//! | `auth`, `billing` | the provider's next credential, then the next provider | that credential at once, 10 and 30 min, and an alarm: a person has to act |
//! | `model_not_found` | the provider's next model, then the next provider | that model at once, 1 h |
//! | `rate_limit` | the next | that model with that credential, for as long as the provider asked, else up to 1 min |
//! | `overloaded` | the next (a smaller model first, [if asked](CooldownFailoverLayer::with_downgrade_on_overload)) | that model, up to 2 min |
//! | `server_error`, `timeout`, `network`, `unknown` | the next provider | the provider, up to 30 s or 1 min |
//! | `context_overflow` | targets with a window known to be larger | nothing |
//! | `unsupported` | the next provider | nothing |
//! | our own refusals, such as an open breaker | the next | nothing |
//! | the caller's own mistakes, `content_filter`, `cancelled` | nowhere: the failure is returned as it is | nothing |
//! | `safety` | nowhere, whatever a table says | nothing |
//!
//! "Up to" means: from the second failure in a row on, first for 2 s, and half as long again after each
//! probe that fails. Calls stand in a row in the order in which they began, and only failures of two
//! callers make one: while one session, or one prompt, fails again and again, the target cools for that
//! one alone. What cools at once is not asked meanwhile, not even by a call that has no other target. If
//! it has answered somebody within 10 min, that takes a second caller too.
//!
//! A cooldown never shortens one that ends later. It lasts until a call has seen that it is over: in its
//! second half, and at most 30 s before its end, one call at a time is let through as a probe (never before
//! a time that the provider asked for). After 5 s without content the next target is asked beside it. Any
//! success of a call that began in the cooldown ends it, for that very target. A call that was under way
//! before a target began to cool or recovered decides nothing about it any more.
//!
//! # Which target is asked
//!
//! 1. Those that do not cool, in the chain's order; a session first goes where it was answered last.
//!    One without a name that was moved is recognised by its [beginning](steadfast_core::Call::beginning).
//! 2. Those whose provider is degraded for all callers, when the layer is
//!    [given](CooldownFailoverLayer::with_health) them; one call in 10 s goes there as a probe.
//! 3. Those that mostly failed in the last minute.
//! 4. Those that cool, the first to be back before the others.
//!
//! A call that a person has sent to one target ([`Preference::Only`](steadfast_core::Preference::Only)) goes
//! to that one and no other, whatever is known of it. One that goes on with an answer does not go to those
//! that have failed it and are not to be asked for it again ([`Preference::Except`](steadfast_core::Preference::Except)).
//!
//! A cooldown, a degraded provider or a share of failures is a preference: it puts a target behind others, and that is all. When
//! all have failed the call, it goes round them again, after a
//! [pause](FailoverPolicy::pause) that grows, and not before the first of them is back, if that is within
//! 10 s. It ends after [10 attempts](FailoverPolicy::attempts), and when its
//! [patience](FailoverPolicy::patience) is used up: its waits are 30 s in all, or 60 s where no other
//! target could serve it. What can not pass, such as a refused key or one of our own time limits, is not
//! asked again. Each target's first attempt and two more are free; what goes beyond is paid from the
//! [budget](CooldownFailoverLayer::with_budget).
//!
//! A wait that a provider asks for binds the call that it answers, and from the second in a row on it makes
//! the target cool for others. A wait of more than a minute is final for its call, unless the target has
//! answered somebody within 2 min.
//!
//! # Streams
//!
//! Until the first *content* a reply can fail and be replaced unnoticed: a stream whose first event is an
//! error goes on to the next target. From then on the reply is the caller's, and for the target it is a
//! success: it can be reached. The reply carries a lease, and a stream that dies half way counts in the
//! share of broken answers, which puts a target behind others and makes nothing cool. Dropping the future
//! or the reply ends the call and says nothing of the target.
//!
//! # What a target gets
//!
//! Each attempt is a clone of the request with the context's target, attempts so far, number of
//! alternatives and patience set, and [adapted](steadfast_core::Call::adapt) to what the target can do. A
//! request that can not be made to fit passes that target over. The model travels in the request:
//! a downgrade touches nobody else. A layer below that makes several attempts reports each that fails
//! ([`Routed`](steadfast_core::Routed)), so that what is known of the target does not wait for the last.
//!
//! # Where to put this layer
//!
//! Outside retry, breaker and stall timeout, inside the deadline: everything below it is about one
//! target, everything above about the call.
//!
//! Wrong: `Retry(Failover(client))`. No target is retried in place: the first `server_error` changes the
//! target, and throws a prompt cache away. A call that no target could serve ends as `exhausted`, which is
//! a refusal of our own and is not retried, so the layer outside waits for no hint; and around a single
//! target, whose own failure is returned, both make their attempts and multiply.
//!
//! Wrong too: `Breaker(Failover(client))` with a breaker per target. The target is picked below the
//! breaker, so the breaker counts every failure for no target at all.
//!
//! [`Failure::failover`]: steadfast_core::Failure::failover
//! [`Failure::scope`]: steadfast_core::Failure::scope

#![cfg_attr(docsrs, feature(doc_cfg))]

mod affinity;
mod attempt;
mod balance;
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
mod hedge;
mod history;
mod layer;
mod models;
mod outcome;
mod policy;
mod prepare;
mod registry;
mod rounds;
mod route;
mod saved;
mod select;
mod service;
#[cfg(feature = "shared")]
mod shared;
mod snapshot;
mod verdict;

pub use self::{
    balance::Balance,
    chain::{Chain, MAX_CANDIDATES, TargetSpec},
    choose::{ChooseChain, OneChain},
    error::{ChainError, ChainPart, PolicyError},
    handle::{FailoverHandle, NextTarget},
    health::{Cooldown, LastError, Status},
    layer::CooldownFailoverLayer,
    models::{Downgrades, ModelMap},
    policy::{FailoverPolicy, Patience, WhenExhausted},
    saved::{SavedError, SavedHealth},
    service::CooldownFailover,
    snapshot::{FailoverSnapshot, TargetHealth},
};
pub use steadfast_core::Capabilities;
