//! The contract that every tower layer should pass, as one macro.
//!
//! A layer that compiles may still call a clone that was never polled ready, leak a permit when a
//! caller goes away, forget a waker, or hold a lease until a body is dropped that has long been
//! read. [`contract!`] makes a test of each such clause: the layer is put around a [`Probe`], an
//! inner service that does as it is told and watches how it is treated, and polled by hand on a
//! paused clock.
//!
//! ```
//! use std::task::{Context, Poll};
//!
//! use steadfast_core::{Call, Priority};
//! use steadfast_testkit::{Aspect, Contract, Http, contract};
//! use tower::{Layer, Service};
//!
//! /// Somebody's own layer: gives each request a priority.
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
//! # What to say of a layer
//!
//! A [`Contract`] needs to know how the layer is made and what its requests and replies are:
//! [`Plain`] values, [`Http`] (or [`PinnedHttp`]), [`Chat`], or an [`Exchange`] of your own. Three
//! things cannot be seen from outside, and are told with a closure each: what makes it
//! [refuse](Contract::refuses), a number of its [state](Contract::state), and what it believes to
//! [hold](Contract::held). Of what it has [none](Contract::none), the contract says so and why:
//! a clause about something that was neither told nor declined fails, since it would have asked
//! nothing. [Allocations](Contract::allocates) of the success path are none unless told.
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
//! They are the functions of [`clause`], whose documentation says what each asks and who paid for
//! it. Auto traits are asked by the compiler: a service whose future is not `Send` does not fit.
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
//! # For tests of your own
//!
//! [`Probe`] with [`Act`] is a scripted inner service, [`Watch`] polls by hand with a new waker each
//! time, [`Heard`] listens to `tracing`, and [`Ask`] is a request of nobody's making.
//!
//! With the feature `allocations`, a default one, this crate is the program's allocator and counts: it is
//! for `dev-dependencies` only. A crate with an allocator of its own does without it
//! (`default-features = false`), and without that clause.

#[macro_use]
mod macros;
mod act;
mod ask;
mod circuit_model;
pub mod clause;
mod contract;
mod exchange;
mod heard;
mod probe;
mod scene;
mod violation;
mod watch;

pub use self::{
    act::{Act, Pieces, PinnedBody, ProbeBody, ProbeEvents},
    ask::{Ask, ask, fail, ms, secs, whole},
    circuit_model::{Change, CircuitModel},
    contract::{Aspect, Contract, Contracted, ContractedLayer},
    exchange::{Chat, Exchange, Frames, Http, Nothing, PinnedHttp, Plain, Read, SECRET, Said},
    heard::Heard,
    macros::{CLAUSES, ask_clause, run, verify},
    probe::{Answering, Probe, ProbeHandle},
    violation::Violation,
    watch::Watch,
};
