//! An HTTP LLM client for four wire dialects over any tower HTTP service.
//!
//! [`LlmClient`] is the innermost service of a stack: it takes a
//! [`ChatRequest`](steadfast_chat::ChatRequest), speaks the dialect of the provider that the
//! request's target names, and gives back events as they come. Any dialect's request can go to any
//! dialect's provider; where both are the same, bytes are passed on as they are.
//!
//! ```
//! use std::convert::Infallible;
//!
//! use http::{Request, Response};
//! use steadfast_client::{ClientBody, Credential, LlmClient, Provider, Providers};
//! use steadfast_chat::ChatRequest;
//! use steadfast_core::Dialect;
//! use tower::{ServiceExt, service_fn};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // Any HTTP service will do; without one, `LlmClient::new` goes over the network.
//! let provider = service_fn(|request: Request<ClientBody>| async move {
//!     assert_eq!(request.uri(), "https://api.openai.com/v1/chat/completions");
//!     Ok::<_, Infallible>(Response::new(http_body_util::Full::<bytes::Bytes>::from(
//!         r#"{"choices":[{"message":{"content":"Hello!"},"finish_reason":"stop"}]}"#,
//!     )))
//! });
//! let providers = Providers::new([
//!     Provider::new("openai", Dialect::OpenAi).with_credential(Credential::new("main", "sk-...")),
//! ])?;
//! let client = LlmClient::with_service(providers, provider);
//!
//! let answer = client.oneshot(ChatRequest::user("hi").with_model("gpt-4o")).await?;
//! assert_eq!(answer.collect().await?.text(), "Hello!");
//! # Ok(()) }
//! ```
//!
//! [`EmbedClient`] is the same for embeddings, and [`CountClient`] for counts of tokens.
//!
//! # Where to put this service
//!
//! At the bottom, directly under `ClassifyLayer`. What it returns is the provider's own report and a
//! first guess by status; the classifier reads the rest of the evidence. With a retry layer
//! directly on top, and no classifier between, an account without credit (a 429 by status) is asked
//! ten times over.
//!
//! # Dialects
//!
//! The [`dialect`] module has the codecs themselves, for both sides of the wire, and
//! [`sse`] the parser of server-sent events under them.

#![cfg_attr(docsrs, feature(doc_cfg))]

mod authorize;
mod body;
mod client;
mod count;
pub mod dialect;
mod document;
#[cfg(feature = "hyper")]
mod drive;
mod embed;
mod events;
mod fail;
mod future;
pub mod headers;
mod json;
mod models;
mod platform;
mod provider;
mod secret;
mod source;
pub mod sse;
mod stored;
#[cfg(feature = "hyper")]
pub mod transport;

use self::fail::transport_failure;
#[cfg(feature = "hyper")]
pub use self::transport::Transport;
pub use self::{
    authorize::Sending,
    client::{AnswerLimits, ClientBody, LlmClient},
    count::{CountClient, CountReader, ProviderCount},
    document::{DocumentFuture, ReadDocument},
    embed::{EmbedClient, EmbeddingsReader},
    events::ClientEvents,
    future::ResponseFuture,
    platform::Platform,
    provider::{Provider, ProviderError, Providers},
    secret::{Credential, CredentialError, Secret},
    source::{CredentialFuture, CredentialSource, TemporaryCredential},
};
