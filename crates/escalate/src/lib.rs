//! When all has failed, ask a person.
//!
//! [`EscalationLayer`] holds a request that every target has failed, for a person who sees the chain of
//! failures and what a wait for each target would cost, and decides: [`EscalationDecision`]. What is held is
//! bounded in number, in memory and in time. When nobody decides, the caller gets the failure as it would have
//! without this layer. It is off until it is configured, and costs nothing then.
//!
//! ```
//! use std::time::Duration;
//! use steadfast_chat::ChatRequest;
//! use steadfast_core::{Failure, Reason};
//! use steadfast_escalate::{EscalationDecision, EscalationEvent, EscalationLayer, EscalationPolicy};
//! # use steadfast_chat::ChatResponse;
//! use tower::{ServiceBuilder, ServiceExt, service_fn};
//!
//! # #[tokio::main(flavor = "current_thread", start_paused = true)]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let layer = EscalationLayer::new(EscalationPolicy::default())?;
//! let handle = layer.handle();
//! let llm = ServiceBuilder::new()
//!     .layer(layer)
//!     // failover, retries and a client here
//!     .service(service_fn(|_: ChatRequest| async {
//!         Err::<ChatResponse, _>(Failure::new(Reason::Overloaded, "no capacity anywhere"))
//!     }));
//!
//! // A person with a console.
//! let mut events = handle.subscribe();
//! tokio::spawn(async move {
//!     while let Ok(event) = events.recv().await {
//!         if let EscalationEvent::Held(held) = event {
//!             println!("{} failed for {}", held.model, held.reason);
//!             let text = "Our models are out of reach; we call you back.".into();
//!             handle.decide(held.id, EscalationDecision::Answer(text)).unwrap();
//!         }
//!     }
//! });
//!
//! let answer = llm.oneshot(ChatRequest::user("Is my order on its way?")).await?.collect().await?;
//! assert_eq!(answer.text(), "Our models are out of reach; we call you back.");
//! assert!(answer.head.log.to_string().ends_with("escalate.answered by hand"));
//! # Ok(())
//! # }
//! ```
//!
//! # What is held
//!
//! A call whose failure is a last word that a person may change: `exhausted`, the failure of an only target, a
//! refused key, an open breaker. Passed on at once are
//!
//! * a stop of the safety guard, and whatever else is [forbidden](steadfast_core::Retry::Forbidden),
//! * a call whose caller went away,
//! * what the caller has to change: a malformed request, one too large for every window, a key of its own,
//! * a refusal for want of budget, or by a cap,
//! * calls for which nobody waits ([`Priority::Background`](steadfast_core::Priority::Background)),
//! * an answer that broke: a call is held before the head of its answer only.
//!
//! # Who decides
//!
//! Whoever is first: an [`Operator`] that the layer was given, which every async closure is, or anybody with the
//! [`EscalationHandle`], which lists what is held and reports what happens to it. A decision to try
//! again makes an ordinary call of the inner service; when that fails the request is held again, within the same
//! time and at most [three times](EscalationPolicy::max_rounds).
//!
//! | decision | what is done |
//! |---|---|
//! | [`TryAgain`](EscalationDecision::TryAgain) | the request is sent again |
//! | [`TryTarget`](EscalationDecision::TryTarget) | to that target alone, although it rests ([`Preference::Only`](steadfast_core::Preference::Only), which a failover layer inside reads) |
//! | [`TryModel`](EscalationDecision::TryModel) | another model is asked for, of whichever target serves it |
//! | [`ResetCooldown`](EscalationDecision::ResetCooldown) | a closure ends the cooldown ([`with_reset`](EscalationLayer::with_reset)), and the request is sent again |
//! | [`Answer`](EscalationDecision::Answer) | the caller gets this text: whole or as a stream, with a regular end, no usage, and the model that it asked for |
//! | [`Refuse`](EscalationDecision::Refuse) | the caller gets the failure now |
//!
//! A request may have as many attempts again as it came with; its deadline stays, and a hold ends a second before
//! it. A caller that goes away takes its request with it.
//!
//! # Where to put this layer
//!
//! ```text
//! Deadline
//! SpendLimit          its refusal is final
//! Escalation
//! SafetyGuard         its stop is final, and its limits hold for what a person tries
//! Continuation
//! StreamResume
//! CooldownFailover    selects the target; asks the one that was chosen
//! ...
//! ```
//!
//! **Wrong:** `Escalation` inside `CooldownFailover`. The first target that fails is held for a person, for five
//! minutes, while the next one of the chain could have answered at once; and with three targets up to three people
//! are asked about one call.
//!
//! **Wrong too:** `Retry(Escalation(..))`. A failure about which nobody has decided is retried, and so
//! held again, five minutes at a time.
//!
//! # What it costs
//!
//! A call keeps a clone of its request, which is counted pointers and the headers to forward. Nothing is locked
//! until a call has failed. A layer that is [off](EscalationLayer::off) keeps nothing.

#![cfg_attr(docsrs, feature(doc_cfg))]

mod decision;
mod error;
mod escalating;
mod event;
mod events;
pub mod future;
mod handle;
mod held;
mod last_word;
mod layer;
mod operator;
mod policy;
mod registry;
mod service;
mod state;

pub use self::{
    decision::{DecisionKind, EscalationDecision},
    error::{DecideError, PolicyError},
    events::EscalatedEvents,
    handle::{EscalationEvent, EscalationHandle, EscalationSnapshot},
    held::{EscalationId, HeldRequest, HeldTarget, ParseEscalationIdError},
    layer::EscalationLayer,
    operator::Operator,
    policy::EscalationPolicy,
    service::Escalation,
};
