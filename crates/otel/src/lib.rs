//! OpenTelemetry for LLM calls: traces and metrics of what the resilience layers did, by the conventions for generative AI.
//!
//! * [`OtelLayer`] traces each call of the service inside it, and counts it.
//! * [`Telemetry`] is what is made once a process: the exporters over OTLP, and a bounded queue before them.
//! * [`TelemetrySettings`] reads OpenTelemetry's environment variables.
//!
//! ```
//! use opentelemetry_sdk::{error::OTelSdkResult, metrics::SdkMeterProvider, trace::{SpanData, SpanExporter}};
//! use steadfast_core::{CallContext, Failure, Target, WithContext};
//! use steadfast_otel::{OtelLayer, SpanQueuePolicy, Telemetry};
//! use tower::{ServiceBuilder, ServiceExt, service_fn};
//!
//! /// In place of OTLP, for which `Telemetry::start(&TelemetrySettings::from_env()?)` is all.
//! #[derive(Debug)]
//! struct Print;
//!
//! impl SpanExporter for Print {
//!     async fn export(&self, spans: Vec<SpanData>) -> OTelSdkResult {
//!         for span in spans {
//!             println!("{} {:?}", span.name, span.attributes);
//!         }
//!         Ok(())
//!     }
//! }
//!
//! # #[tokio::main(flavor = "current_thread", start_paused = true)]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let metrics = SdkMeterProvider::builder().build();
//! let telemetry = Telemetry::with_exporter(Print, metrics, SpanQueuePolicy::default())?;
//! let service = ServiceBuilder::new()
//!     .layer(OtelLayer::new(telemetry.clone()).at_once())
//!     // In place of the other layers and a client.
//!     .service(service_fn(async |_: WithContext<&str>| Ok::<_, Failure>("hello")));
//!
//! let context = CallContext::new().with_target(Target::new("openai").with_model("gpt-4o"));
//! service.oneshot(WithContext::new("say hello").with_context(context)).await?;
//! telemetry.flush().await;
//! assert_eq!(telemetry.snapshot().sent, 1);
//! # Ok(())
//! # }
//! ```
//!
//! # What is exported
//!
//! A call has a span `chat MODEL`: of a server's kind in the gateway, an internal one otherwise. Beneath it each time that a provider was asked has a
//! span of a client's kind, as an [`AttemptsLayer`](steadfast_core::AttemptsLayer) has noted it (`Stack` has one). The
//! steps of the layers ([`Step`](steadfast_core::Step)) are events of the call's span, by their own names, such as `retry.retried`.
//! `error.type` is the name of a [`Reason`](steadfast_core::Reason). All of it is made of the call's
//! [`RecoveryLog`](steadfast_core::RecoveryLog) when the call is over, with the times that the log has, so that traces never show anything else than
//! the log, the gateway's stories and its metrics do.
//!
//! The names are those of OpenTelemetry's conventions for generative AI, as far as there are any, and checked against them by a test; the
//! others begin with `steadfast.`. Tokens by the conventions' names are on the attempts alone, so that whoever adds them up counts them once.
//!
//! | metric | of |
//! |---|---|
//! | `gen_ai.client.operation.duration` | attempts that were answered or failed, in seconds |
//! | `gen_ai.client.operation.time_to_first_chunk` | attempts in pieces: until their first content, in seconds |
//! | `gen_ai.client.token.usage` | attempts: tokens read and written, as providers report them |
//! | `steadfast.request.duration` | calls, with all that was done for them, in seconds |
//! | `steadfast.steps` | what layers did |
//!
//! **Content is never exported**: neither what is asked nor what is answered, nor arguments or results of tools; the
//! conventions' opt-in for that is not implemented.
//!
//! # Traces around the call
//!
//! A call is a part of the span that is the current one where it is made (of `tracing` with `tracing-opentelemetry`, or of OpenTelemetry's own
//! context), or of [`CallContext::trace`](steadfast_core::CallContext::trace), where a server puts its caller's
//! [`TraceContext`](steadfast_core::TraceContext). With [`Telemetry::tracing_layer`] in a subscriber the spans that `steadfast-tool` opens around tools
//! (`execute_tool NAME`) and `steadfast-supervise` around runs (`invoke_agent NAME`) go the same way.
//!
//! The ids are there while the call is under way: each attempt has its own, and a client that is to
//! (`Provider::with_trace_context`) sends it to its provider as `traceparent`. By default none does.
//!
//! # Where to put this layer
//!
//! Outermost, around the whole stack.
//!
//! ```text
//! Otel
//! Deadline, Guard, Failover, Retry, ...
//! Attempts            each time that a provider is asked
//! Classify
//! the client
//! ```
//!
//! **Wrong:** inside retry or failover. Each attempt is then a call of its own, in a trace of its own, and what was done between them is in none.
//!
//! # Errors, cancellation and streaming
//!
//! The layer refuses nothing and changes neither requests, but for their [`trace`](steadfast_core::CallContext::trace) and log, nor replies nor failures. A call is over when its
//! reply's body or stream has ended, failed or was dropped; dropped at any moment it is exported as cancelled.
//!
//! A collector that is slow or gone costs nothing but spans: [`SpanQueuePolicy`] bounds how many wait, those beyond it are dropped, counted in
//! [`TelemetrySnapshot::dropped`], and logged once a minute (`steadfast::otel::dropped`).

#![cfg_attr(docsrs, feature(doc_cfg))]

mod call;
mod context;
mod error;
mod layer;
mod mask;
mod meters;
mod names;
mod provider;
mod queue;
mod settings;
mod spans;
mod telemetry;
mod transport;

pub use self::{
    call::{CallOutcome, CallReport, CallRole, CallSpan, Operation},
    error::TelemetryError,
    layer::{Otel, OtelLayer},
    settings::{OtlpDestination, OtlpProtocol, SpanQueuePolicy, TelemetrySettings},
    telemetry::{Telemetry, TelemetrySnapshot},
};
