//! Simulated LLM providers that fail on command.
//!
//! A [`SimProvider`] speaks one of four dialects (OpenAI chat completions and responses, Anthropic messages,
//! Gemini `generateContent`), streaming and not. It is a tower service, so a test on a paused
//! clock can use it in process; a [`SimServer`] puts the same provider behind a real socket.
//!
//! * **Deterministic**: texts, ids, jitter and chance come from a seed and the request. The same
//!   requests to a provider of the same seed get the same bytes.
//! * **Scripted answers**: a test scripts [`Answer`]s, or gives a closure from [`SimRequest`].
//! * **Tasks**: given a [`Task`], the model does it with the tools that a client declares, whatever
//!   they are called: a real agent in front of it reads, edits and runs commands.
//! * **Limits to the token**: an output limit of the request, the model, the provider or one
//!   answer cuts at an exact token, in text, thinking or arguments; a window overflows with each
//!   provider's [own message](Overflow); [`tokens`] counts as the simulator does.
//! * **Continuations and summaries**: an answer defines how the model [continues](continuation)
//!   it, faithfully or not; a [`SummaryReply`] is good, empty, endless, refused or a tool call.
//! * **Embeddings**: a vector is a [function](embedding) of model and text.
//! * **Faults**: a [`FaultPlan`] matches requests to [`Fault`]s, from a refusal with the
//!   provider's own body to a connection that is reset inside a multi-byte character. Plans are
//!   values and can be read from TOML or JSON.
//! * **Strict**: what the real providers refuse is refused with their status and their message:
//!   unanswered tool calls, foreign thinking signatures, a prompt beyond the window, wrong keys.
//! * **Platforms** (feature `clouds`): `SimProviderBuilder::on` puts a provider on Azure, Vertex AI or Bedrock, with
//!   their addresses, credentials (signatures are verified), envelopes, errors and streams.
//! * **A journal**: the [`Journal`] has every request, the fault applied to it, whether its
//!   response was read to the end or dropped, and as [`Sent`] the complete answer.
//!
//! All time is tokio's, so a paused clock drives it.
//!
//! ```
//! use http_body_util::BodyExt;
//! use steadfast_sim::{Answer, Dialect, ErrorKind, Fault, FaultPlan, SimProvider};
//! use tower::ServiceExt;
//!
//! # #[tokio::main(flavor = "current_thread", start_paused = true)]
//! # async fn main() {
//! let provider = SimProvider::builder(Dialect::OpenAi)
//!     .with_script([Answer::text("Hello!")])
//!     .with_faults(FaultPlan::first(1, Fault::Error(ErrorKind::ServerError)))
//!     .build();
//!
//! let ask = || {
//!     http::Request::post("http://sim/v1/chat/completions")
//!         .header("authorization", "Bearer sk-anything")
//!         .body(String::from(
//!             r#"{"model": "gpt-4o", "messages": [{"role": "user", "content": "hi"}]}"#,
//!         ))
//!         .unwrap()
//! };
//! let refused = provider.clone().oneshot(ask()).await.unwrap();
//! assert_eq!(refused.status(), 500);
//!
//! let answered = provider.clone().oneshot(ask()).await.unwrap();
//! let body = answered.into_body().collect().await.unwrap().to_bytes();
//! let body: serde_json::Value = serde_json::from_slice(&body).unwrap();
//! assert_eq!(body["choices"][0]["message"]["content"], "Hello!");
//!
//! let journal = provider.journal().entries();
//! assert_eq!(journal[1].sent.as_ref().unwrap().text, "Hello!");
//! # }
//! ```
//!
//! # Where to put it
//!
//! Innermost, in place of an HTTP client: layers go around it. Do not put a layer that retries
//! *between* [`SimServer`] and [`SimProvider`]: the journal would count its attempts as the
//! caller's, and the caller would never see the faults that a test asked for.

#![forbid(unsafe_code)]

mod answer;
mod body;
mod clock;
pub mod continuation;
mod dialect;
mod embed;
mod error;
mod fault;
mod generate;
mod hash;
mod hosting;
mod journal;
mod limit;
mod models;
mod plan;
#[cfg(feature = "clouds")]
mod platform;
mod provider;
mod raw;
mod request;
mod serve;
mod server;
mod summary;
mod task;
pub mod tokens;
mod wire;

pub use answer::{Answer, Block, Cut, Sent, SentCall, Stop, Usage};
pub use body::SimBody;
pub use continuation::ContinuationMode;
pub use dialect::Dialect;
pub use dialect::overflow::Overflow;
pub use embed::embedding;
pub use error::{SimError, SimErrorKind};
pub use fault::{
    Break, Coalesce, Drip, ErrorKind, Fault, FirstToken, How, RateLimit, RawResponse,
    WindowOverride,
};
pub use journal::{End, Entry, Journal};
pub use limit::KeyLimits;
pub use models::{Model, Prefill, ToolsBeside, default_models};
pub use plan::{FaultPlan, PlanError, PlanRule};
#[cfg(feature = "clouds")]
pub use platform::{AwsSigner, SimAzure, SimBedrock, SimPlatform, SimVertex};
pub use provider::{
    Latency, LineEnd, ResponseFuture, SimCompaction, SimProvider, SimProviderBuilder,
};
pub use request::SimRequest;
pub use server::SimServer;
pub use summary::{Summaries, SummaryReply};
pub use task::{Task, TaskCall, TaskError, TaskStep};
pub use tokens::{count_output, count_tokens};
