//! Between this project's trace contexts and OpenTelemetry's.

use std::str::FromStr;

use opentelemetry::trace::{SpanContext, TraceFlags, TraceState};
use steadfast_core::{SpanId, TraceContext, TraceId};

/// As OpenTelemetry has it.
pub(crate) fn to_span_context(context: &TraceContext, is_remote: bool) -> SpanContext {
    let flags = TraceFlags::default().with_sampled(context.is_sampled());
    let state = context.state().and_then(|state| TraceState::from_str(state).ok());
    SpanContext::new(
        opentelemetry::TraceId::from(context.trace_id().get()),
        opentelemetry::SpanId::from(context.span_id().get()),
        flags,
        is_remote,
        state.unwrap_or_default(),
    )
}

/// As this project has it; `None` for one that is not valid.
pub(crate) fn from_span_context(context: &SpanContext) -> Option<TraceContext> {
    let trace = TraceId::new(u128::from_be_bytes(context.trace_id().to_bytes()))?;
    let span = SpanId::new(u64::from_be_bytes(context.span_id().to_bytes()))?;
    let state = context.trace_state().header();
    let own = TraceContext::new(trace, span, context.is_sampled());
    Some(if state.is_empty() { own } else { own.with_state(&state) })
}
