//! Providers that are degraded and recover, seen across all agents.
//!
//! [`ProviderHealthLayer`] observes how the calls of each provider end, whoever makes them. When calls of two
//! agents fail within a minute, or three of one agent in a row, and that is a fifth of all its calls or more, the
//! provider is *degraded*: not a matter of one agent, one request or one moment. It recovers on evidence alone:
//! calls that succeed. The layer refuses nothing and changes no answer. Others ask it: failover sends calls to
//! other providers first, compaction does without summaries, notices take another route.
//!
//! ```
//! use steadfast_core::{Call, CallContext, Failure, Reason};
//! use steadfast_health::{HealthStatus, ProviderHealthLayer};
//! use tower::{Service, ServiceBuilder, ServiceExt, service_fn};
//!
//! #[derive(Clone)]
//! struct PlainRequest(CallContext);
//!
//! impl Call for PlainRequest {
//!     fn context(&self) -> &CallContext { &self.0 }
//!     fn context_mut(&mut self) -> &mut CallContext { &mut self.0 }
//! }
//!
//! # #[tokio::main(flavor = "current_thread", start_paused = true)]
//! # async fn main() -> Result<(), Failure> {
//! // Plain values are complete when they arrive; bodies and streams need no `at_once`.
//! let layer = ProviderHealthLayer::default().at_once();
//! let (handle, degraded) = (layer.handle(), layer.degraded());
//! let mut service = ServiceBuilder::new().layer(layer).service(service_fn(|_: PlainRequest| async {
//!     Err::<String, _>(Failure::new(Reason::ServerError, "the model crashed"))
//! }));
//!
//! for agent in ["planner", "coder"] {
//!     let request = PlainRequest(CallContext::new().with_target("openai").with_agent(agent));
//!     assert!(service.ready().await?.call(request).await.is_err());
//! }
//! assert!(degraded.contains("openai"));
//! let openai = handle.get("openai").expect("it was called");
//! assert_eq!((openai.status, openai.failing_agents), (HealthStatus::Degraded, 0)); // counted anew
//! # Ok(())
//! # }
//! ```
//!
//! # When a provider is degraded
//!
//! Within the [`window`](HealthPolicy::window) of 60 s
//!
//! * calls of [two agents](HealthPolicy::agents) have failed, or
//! * [three calls](HealthPolicy::failures) of one agent in a row, without a success of that agent between, and
//! * at least [a fifth](HealthPolicy::min_share) of the provider's calls, those under way taken as good.
//!
//! An agent is the agent in the call's context, else the session, else the tenant. A call without any of them is
//! one of its own; calls with the same prompt are one.
//!
//! Only failures of the [whole provider](HealthPolicy::any_scope) count ([`FaultSide::Provider`](steadfast_core::FaultSide),
//! [`Scope::Provider`](steadfast_core::Scope)): not those of one model or key, not the caller's
//! mistakes, not what the model did wrong, no refusals of our own, no cancelled call. An answer that stalls counts,
//! and one that goes on for too long does not.
//!
//! # When it has recovered
//!
//! After [three successes](HealthPolicy::recover_after) since its last failure, when at most
//! [a tenth](HealthPolicy::recover_share) of its calls since it was degraded, within the window, has failed.
//! First content is a success; an answer that breaks after it is a failure. Silence is no evidence: without a call
//! the provider stays degraded. So that there is one where others are preferred, one call in
//! [10 s](HealthPolicy::probe_every), and the next one as soon as that has succeeded, may be sent there as a probe
//! ([`DegradedProviders::acquire_probe`](steadfast_core::DegradedProviders::acquire_probe)); and
//! [`HealthHandle::probed`] takes the outcome of a health check of your own.
//!
//! A call that began before the provider was degraded, or recovered, decides nothing any more.
//!
//! # Where to put this layer
//!
//! Below failover, which sets the target, and above everything that works on one target: compaction, retries,
//! breaker, time limits, classification.
//!
//! ```
//! # use std::time::Duration;
//! # use steadfast_health::ProviderHealthLayer;
//! # use tower::{ServiceBuilder, timeout::TimeoutLayer};
//! let right = ServiceBuilder::new()
//!     // failover here, which sets the target
//!     .layer(ProviderHealthLayer::default())
//!     // retries here
//!     .layer(TimeoutLayer::new(Duration::from_secs(180)));
//!     // classification here, then the client
//!
//! let wrong = ServiceBuilder::new()
//!     .layer(TimeoutLayer::new(Duration::from_secs(180)))
//!     .layer(ProviderHealthLayer::default());
//! # let _ = (right, wrong);
//! ```
//!
//! In the wrong order a provider that hangs is never degraded: the timeout drops this layer's future, and a dropped
//! future counts as cancelled. Inside of retries each attempt would count as a call, so that a failure which a retry
//! half a second later hides is one of an outage. Outside of failover nobody knows which provider a call went to:
//! all of them are counted as one, whose name is empty.
//!
//! # What it costs
//!
//! A call takes the lock of its provider three times, for a few additions and a look through the 64 agents that are
//! remembered. The first call of a provider allocates what is kept of it, about 10 KB; the others allocate nothing.
//! While no provider is degraded, whoever asks reads one number.

#![cfg_attr(docsrs, feature(doc_cfg))]

mod agents;
mod error;
mod event;
pub mod future;
mod handle;
mod layer;
mod monitor;
mod policy;
mod service;
#[cfg(feature = "shared")]
mod shared;
mod state;

pub use self::{
    agents::AgentKey,
    error::PolicyError,
    handle::{HealthHandle, HealthSnapshot},
    layer::ProviderHealthLayer,
    monitor::{
        HealthCall, HealthCause, HealthMonitor, HealthStatus, HealthTransition, ProviderSnapshot,
    },
    policy::HealthPolicy,
    service::ProviderHealth,
};
