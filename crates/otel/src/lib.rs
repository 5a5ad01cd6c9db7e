//! x
#![cfg_attr(docsrs, feature(doc_cfg))]
mod call;
mod context;
mod error;
mod layer;
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
