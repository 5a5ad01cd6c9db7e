//! The contract that every tower layer should pass, as one macro.
//!
//! A layer that compiles may still call a clone that was never polled ready, leak a permit when a
//! caller goes away, forget a waker, or hold a lease until a body is dropped that was read long
//! before. [`contract!`] makes a test of each such clause: the layer is put around a [`Probe`], a
//! scripted inner service that records how it is used, and polled by hand on a paused clock.
//!
//! ```
//! use std::task::{Context, Poll};
//!
//! use steadfast_core::{Call, Priority};
//! use steadfast_testkit::{Aspect, Contract, Http, contract};
//! use tower::{Layer, Service};
//!
//! /// A layer under test: gives each request a priority.
//! #[derive(Clone, Debug)]
//! struct Background;
//!
//! impl<S> Layer<S> for Background {
//!     type Service = InBackground<S>;
//!
//!     fn layer(&self, inner: S) -> InBackground<S> {
//!         InBackground(inner)
//!     }
//! }
//!
//! #[derive(Clone, Debug)]
//! struct InBackground<S>(S);
//!
//! impl<S: Service<R>, R: Call> Service<R> for InBackground<S> {
//!     type Response = S::Response;
//!     type Error = S::Error;
//!     type Future = S::Future;
//!
//!     fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
//!         self.0.poll_ready(cx)
//!     }
//!
//!     fn call(&mut self, mut request: R) -> S::Future {
//!         request.context_mut().priority = Priority::Background;
//!         self.0.call(request)
//!     }
//! }
//!
//! // In `tests/contract.rs`: 24 tests in a module of this name.
//! contract!(background_over_http, contract());
//!
//! fn contract() -> Contract<Http, Background> {
//!     Contract::new(Http, || Background)
//!         .none(Aspect::Refusal, "every call is sent")
//!         .none(Aspect::State, "nothing is remembered of a call")
//!         .none(Aspect::Held, "nothing is taken for a call")
//! }
//! # steadfast_testkit::run(async { steadfast_testkit::verify(&contract()).await });
//! ```
//!
//! # What to declare about a layer
//!
//! A [`Contract`] needs to know how the layer is made and what its requests and replies are:
//! [`Plain`] values, [`Http`] (or [`PinnedHttp`]), [`Chat`], [`Tools`], or an [`Exchange`] of your own. Three
//! things cannot be observed from outside, and are declared with a closure each: what makes it
//! [refuse](Contract::refuses), a number of its [state](Contract::state), and how many permits and
//! leases it [holds](Contract::held). What it does not have is declared with
//! [none](Contract::none) and a reason: a clause about something undeclared fails, since it would
//! have tested nothing. The success path makes no [allocations](Contract::allocates) unless some
//! are declared.
//!
//! ```
//! use std::time::Duration;
//! use steadfast_testkit::{Aspect, Contract, Plain};
//! use tower::timeout::TimeoutLayer;
//!
//! # steadfast_testkit::run(async {
//! // tower's own timeout boxes its errors, and makes no state.
//! let contract = Contract::new(Plain, || TimeoutLayer::new(Duration::from_secs(30)))
//!     .none(Aspect::Refusal, "every call is sent")
//!     .none(Aspect::State, "nothing is remembered of a call")
//!     .none(Aspect::Held, "its timer is a part of its future");
//! steadfast_testkit::verify(&contract).await
//! # });
//! ```
//!
//! # The clauses
//!
//! They are the functions of [`clause`], whose documentation says what each requires and which bug
//! it comes from. Auto traits are checked by the compiler: a service whose future is not `Send`
//! does not compile.
//!
//! ```compile_fail,E0277
//! use std::{rc::Rc, task::{Context, Poll}};
//! use steadfast_testkit::{Contract, Plain};
//! use tower::layer::layer_fn;
//!
//! #[derive(Clone, Debug)]
//! struct NotSend<S>(S, Rc<()>);
//!
//! impl<S: tower::Service<R>, R> tower::Service<R> for NotSend<S> {
//!     type Response = S::Response;
//!     type Error = S::Error;
//!     type Future = S::Future;
//!     fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
//!         self.0.poll_ready(cx)
//!     }
//!     fn call(&mut self, request: R) -> S::Future {
//!         self.0.call(request)
//!     }
//! }
//!
//! let _ = Contract::new(Plain, || layer_fn(|inner| NotSend(inner, Rc::new(()))));
//! ```
//!
//! # Stores
//!
//! What every [`SharedState`](steadfast_core::shared::SharedState) promises is in [`shared_state`].
//!
//! # For tests of your own
//!
//! [`Probe`] with [`Action`] is a scripted inner service, [`TestTask`] polls by hand with a new
//! waker each time, [`CapturedEvents`] is a `tracing` subscriber that keeps events, and
//! [`PlainRequest`] is a minimal request.
//!
//! With the feature `allocations`, a default one, this crate installs a global allocator that
//! counts: it is for `dev-dependencies` only. A crate that has its own global allocator switches
//! the feature off (`default-features = false`), and does without that clause.

#[macro_use]
mod macros;
mod action;
mod captured;
pub mod clause;
mod contract;
mod exchange;
mod harness;
mod probe;
mod request;
mod shared_node;
pub mod shared_state;
mod task;
mod violation;

pub use self::{
    action::{Action, Pieces, PinnedBody, ProbeBody, ProbeEvents},
    captured::CapturedEvents,
    contract::{Aspect, Contract, Contracted, ContractedLayer},
    exchange::{
        Chat, Exchange, Frames, Http, NoPieces, PinnedHttp, Plain, PlainReply, Read, SECRET, Tools,
    },
    macros::{CLAUSES, check_clause, run, verify},
    probe::{Probe, ProbeFuture, ProbeHandle},
    request::{PlainRequest, elapsed_ms, fail, ms, plain_request, secs},
    shared_node::SharedNode,
    task::TestTask,
    violation::ContractViolation,
};
