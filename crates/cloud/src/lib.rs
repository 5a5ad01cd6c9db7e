//! Credentials of clouds for calls of language models, which expire and are fetched anew.
//!
//! * `AwsSource` (feature `aws`) is where keys of AWS come from, for models on Amazon Bedrock: the environment, a
//!   profile, a web identity, a container or EC2, by `aws-config`.
//! * `GoogleSource` (feature `google`) is where tokens of Google Cloud come from, for models on Vertex AI: a service
//!   account, gcloud or the metadata server, by `gcp_auth`.
//!
//! Both are a [`CredentialSource`](steadfast_client::CredentialSource): the client keeps what they give, shares it with
//! all calls, and fetches the next 5 minutes before its end or when a provider has refused it. So neither keeps
//! anything itself: each fetch reads files, runs commands and asks endpoints again, and what an operator has rotated is
//! in use with the next.
//!
//! ```
//! # #[cfg(all(feature = "aws", feature = "google"))]
//! # {
//! use steadfast_client::{Platform, Provider, Providers};
//! use steadfast_cloud::{AwsSource, GoogleSource};
//! use steadfast_core::Dialect;
//!
//! // With the client's feature `bedrock`.
//! let providers = Providers::new([
//!     Provider::new("bedrock", Dialect::Anthropic)
//!         .on(Platform::bedrock("eu-central-1"))
//!         .with_source("default", AwsSource::default_chain()),
//!     Provider::new("vertex", Dialect::Gemini)
//!         .on(Platform::vertex("my-project", "europe-west4"))
//!         .with_source("default", GoogleSource::default_chain()),
//! ])
//! .unwrap();
//! assert_eq!(providers.credentials("bedrock").collect::<Vec<_>>(), ["default"]);
//! # }
//! ```
//!
//! # Errors
//!
//! Where nothing is configured, or what is configured can not be read, it is in vain to ask again: the failure is a
//! refusal for [`Reason::Auth`](steadfast_core::Reason::Auth), and its message names what was looked for and what would
//! be right. An endpoint that can not be reached is [`Reason::Network`](steadfast_core::Reason::Network), one that does
//! not answer in time [`Reason::Timeout`](steadfast_core::Reason::Timeout), and one that answers with an error, as well
//! as a command that fails, [`Reason::ServerError`](steadfast_core::Reason::ServerError): the call may be made again.
//! No message has a secret in it.
//!
//! # Where to put them
//!
//! In [`Provider::with_source`](steadfast_client::Provider::with_source), by themselves. **Wrong:** a source of one's
//! own around them that keeps what they gave: the client asks when a provider has refused a credential, and would get
//! the refused one again.

#![cfg_attr(docsrs, feature(doc_cfg))]

#[cfg(feature = "aws")]
mod aws;
#[cfg(any(feature = "aws", feature = "google"))]
mod causes;
#[cfg(feature = "google")]
mod google;

#[cfg(feature = "aws")]
#[cfg_attr(docsrs, doc(cfg(feature = "aws")))]
pub use self::aws::{AwsSource, aws_region};
#[cfg(feature = "google")]
#[cfg_attr(docsrs, doc(cfg(feature = "google")))]
pub use self::google::GoogleSource;
