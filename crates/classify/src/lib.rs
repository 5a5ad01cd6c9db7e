//! Turn any provider error, status, body or stream event into one typed failure.
//!
//! Providers state the same thing in many forms and different things in the same form: a 429 is a
//! rate limit, a bill, an overload or a request that never fits; a 200 carries an error; a 500
//! means the conversation is too long. This crate reads all of it and says what happened
//! ([`Reason`](steadfast_core::Reason)), whether the same target is worth asking again, whether
//! another one is, and how long to wait.
//!
//! * [`ClassifyLayer::default`] judges the failures of a chat service
//!   ([`ChatResponse`](steadfast_chat::ChatResponse)), and the events of its answers.
//! * [`ClassifyLayer::llm_http`] does the same for a raw HTTP client of an LLM API.
//! * [`ClassifyLayer::http`] judges any HTTP service by status, headers and transport errors; a 2xx is
//!   fine whatever its body. See [`http`] for which is when.
//! * [`Classifier`] is the engine: [`Evidence`] in, [`Verdict`] out, no I/O. [`json`] is its
//!   form for command lines.
//!
//! # The order of evidence
//!
//! A typed transport error; the innermost structured code or type; headers; phrases of messages,
//! with vetoes and statuses; a stated wait; the status alone; unknown. Errors that relays and SDKs wrapped
//! into strings are unwrapped, at most eight deep, except that a relay's own 401, 402 or 403
//! stands. A status is never read out of prose except where SDKs put one.
//!
//! An error that is nothing but a short text is read too: `loop detected` or `safety limit` is another
//! system's guard that stopped the task ([`Safety`](steadfast_core::Reason::Safety): no retry, no other
//! target), `aborted` its user.
//!
//! A success is inspected as well: an error object or error event in a 200, a stream without its
//! terminal event, a web page, and, where the windows are known, more input than fits. An answer
//! that ended as it should is an answer, even with nothing in it; who wants another one then sets
//! [`ClassifyLayer::with_retry_empty`].
//!
//! What providers' codes, phrases and keys mean is data, one line an entry: `data/` in the crate,
//! which `docs/classify.md` in the repository explains.
//!
//! Your own rules come first: a closure that may have no opinion, name a failure, or find an answer
//! fine that the built-in rules would refuse ([`ClassifyOverride`], [`Opinion`]). What follows from a
//! reason is a table you can change ([`ClassifyLayer::with_table`]).
//!
//! # Example
//!
//! ```
//! use std::convert::Infallible;
//!
//! use http::{HeaderMap, StatusCode};
//! use steadfast_classify::ClassifyLayer;
//! use steadfast_chat::{ChatRequest, ChatResponse};
//! use steadfast_core::{Failover, Failure, Reason, Retry, Upstream};
//! use tower::{ServiceBuilder, ServiceExt, service_fn};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() {
//! // A client that reports what the provider answered.
//! let client = service_fn(|_: ChatRequest| async {
//!     let body = r#"{"error":{"message":"Rate limit reached. Please try again in 4.77s",
//!         "type":"tokens","code":"rate_limit_exceeded"}}"#;
//!     let status = StatusCode::TOO_MANY_REQUESTS;
//!     let upstream = Upstream::response(status, HeaderMap::new(), body);
//!     Err::<ChatResponse, _>(Failure::from_upstream(upstream))
//! });
//! let llm = ServiceBuilder::new().layer(ClassifyLayer::default()).service(client);
//!
//! let failure = llm.oneshot(ChatRequest::user("hello")).await.unwrap_err();
//! assert_eq!(failure.reason(), Reason::RateLimit);
//! assert_eq!(failure.retry(), Retry::Yes);
//! assert_eq!(failure.failover(), Failover::NextTarget);
//! assert_eq!(failure.retry_after().unwrap().as_millis(), 4_770);
//! assert_eq!(failure.evidence(), "code:rate_limit_exceeded");
//! # }
//! ```
//!
//! # Where to put this layer
//!
//! Innermost, right around the client: every layer further out decides by the verdict.
//!
//! ```text
//! Retry, CircuitBreaker, StallTimeout, Classify, LlmClient      right
//! Classify, Retry, CircuitBreaker, StallTimeout, LlmClient      wrong
//! ```
//!
//! In the wrong order retry and breaker see failures that were judged by their status alone: an
//! exhausted account (429) is asked again ten times, and an overflow that arrives as a 500 opens
//! the breaker of a healthy provider. The verdict then describes the last of those attempts.
//!
//! # Streaming, cancellation, errors
//!
//! Events and bytes are handed on as they come; nothing is held back but the terminal event of an empty
//! answer and, over HTTP at an LLM API, JSON answers of up to 64 KiB. Dropping a future or a body drops
//! what is inside. Failures that some layer has judged already (timeouts, refusals, the safety guard)
//! are handed on untouched. Each judgement emits the `tracing` event `steadfast::classify::classified` at
//! debug level. An answer that is fine allocates nothing.
//!
//! # Features
//!
//! * `hyper`: recognises `hyper::Error` by its type. Without it the crate does not depend on
//!   hyper, and recognises its errors by their causes and texts.
//! * `tower`: recognises the timeouts of `tower::timeout` by their type.

#![cfg_attr(docsrs, feature(doc_cfg))]

mod classifier;
mod engine;
mod evidence;
pub mod future;
pub mod http;
pub mod json;
mod layer;
mod policy;
mod reply;
pub mod service;
pub mod stream;
mod verdict;

pub use self::{
    classifier::{Classifier, ClassifyOverride, Opinion},
    evidence::{Evidence, TransportErrorKind},
    layer::ClassifyLayer,
    policy::ClassifyPolicy,
    reply::ClassifyReply,
    verdict::Verdict,
};
