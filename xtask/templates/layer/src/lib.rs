//! Counts answers and failures of each target.
//!
//! ```
//! use steadfast_core::{Call, CallContext, Failure, Reason, Target};
//! use steadfast_{{snake}}::{{Pascal}}Layer;
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
//! let layer = {{Pascal}}Layer::default().at_once();
//! let handle = layer.handle();
//! let mut service = ServiceBuilder::new().layer(layer).service(service_fn(|_: PlainRequest| async {
//!     Err::<String, _>(Failure::new(Reason::ServerError, "the model crashed"))
//! }));
//!
//! let request = PlainRequest(CallContext::new().with_target("openai"));
//! assert!(service.ready().await?.call(request).await.is_err());
//! let counts = handle.get(&Some(Target::new("openai"))).unwrap_or_default();
//! assert_eq!((counts.answers, counts.failures), (0, 1));
//! # Ok(())
//! # }
//! ```
//!
//! # What it does
//!
//! A call is counted under the target in its context when its answer has *ended*: an answer that begins
//! with a 200 and breaks half way is a failure. A call that the caller drops counts as neither. After
//! [`failures_in_a_row`]({{Pascal}}Policy::failures_in_a_row) failures the layer reports the target, once
//! until it answers again.
//!
//! # Where to put this layer
//!
//! Inside the layers that retry or fail over, so that each attempt is counted, and outside of time limits
//! and classification, which decide why an attempt has failed.
//!
//! ```
//! # use std::time::Duration;
//! # use steadfast_{{snake}}::{{Pascal}}Layer;
//! # use tower::{ServiceBuilder, timeout::TimeoutLayer};
//! let right = ServiceBuilder::new()
//!     // retries and failover here
//!     .layer({{Pascal}}Layer::default())
//!     .layer(TimeoutLayer::new(Duration::from_secs(180)));
//!     // classification here, then the client
//!
//! let wrong = ServiceBuilder::new()
//!     .layer(TimeoutLayer::new(Duration::from_secs(180)))
//!     .layer({{Pascal}}Layer::default());
//! # let _ = (right, wrong);
//! ```
//!
//! In the wrong order a provider that hangs is never counted as failing: the timeout drops this layer's
//! future, and a dropped future counts as cancelled.
//!
//! # What it costs
//!
//! A call takes the lock of its target's counts twice, for a few additions. The first call of a target
//! allocates its counts; the others allocate nothing.

#![cfg_attr(docsrs, feature(doc_cfg))]

mod error;
mod event;
pub mod future;
mod layer;
mod policy;
mod service;
mod state;

pub use self::{
    error::PolicyError,
    layer::{{Pascal}}Layer,
    policy::{{Pascal}}Policy,
    service::{{Pascal}},
    state::{ {{Pascal}}Counts, {{Pascal}}Handle},
};
