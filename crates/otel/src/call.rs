//! One call: its span while it is under way, and what is known of it when it is over.

use std::{fmt, sync::Arc, time::Duration};

use opentelemetry::{
    Context, KeyValue,
    trace::{Span as _, SpanContext, SpanKind, Status, TraceContextExt, Tracer},
};
use opentelemetry_sdk::trace::Span;
use steadfast_core::{AttemptEnd, AttemptRecord, Reason, Step, TraceContext, Usage, time::wall_at};
use tokio::time::Instant;
use tracing_opentelemetry::OpenTelemetrySpanExt as _;

use crate::{
    Telemetry,
    context::{from_span_context, to_span_context},
    names, spans,
};

/// What is asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Operation {
    /// An answer to a conversation.
    #[default]
    Chat,
    /// Embeddings.
    Embeddings,
}

impl Operation {
    /// Its name in the conventions.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Chat => "chat",
            Self::Embeddings => "embeddings",
        }
    }
}

/// Who makes a call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum CallRole {
    /// Somebody else, whose request is served: its span is one of a server.
    Serving,
    /// This process.
    #[default]
    Own,
}

/// How a call ended for whoever made it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CallOutcome<'a> {
    /// It was answered whole.
    Answered,
    /// It failed.
    Failed {
        /// Why.
        reason: Reason,
        /// What that was concluded from.
        evidence: Option<&'a str>,
    },
    /// Whoever made it has gone.
    Cancelled,
}

impl<'a> CallOutcome<'a> {
    /// In the word of stories.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Answered => "ok",
            Self::Failed { .. } => "failed",
            Self::Cancelled => "cancelled",
        }
    }

    pub(crate) fn error_type(self) -> Option<KeyValue> {
        match self {
            Self::Failed { reason, .. } => Some(KeyValue::new(names::ERROR_TYPE, reason.as_str())),
            _ => None,
        }
    }

    pub(crate) const fn evidence(self) -> Option<&'a str> {
        match self {
            Self::Failed { evidence, .. } => evidence,
            _ => None,
        }
    }
}

/// What is known of a call that is over. Nothing in it is of what was asked or answered.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct CallReport<'a> {
    /// What was asked for.
    pub operation: Operation,
    /// The model that was asked for, if any was named.
    pub model: &'a str,
    /// Whether the answer was to come in pieces.
    pub stream: bool,
    /// When it began.
    pub started: Instant,
    /// How long it took.
    pub took: Duration,
    /// When its log was created: what the times of steps and attempts count from.
    pub log_started: Instant,
    /// What its [log](steadfast_core::RecoveryLog::attempt_records) has of its attempts.
    pub attempts: &'a [AttemptRecord],
    /// What its log has of its steps.
    pub steps: &'a [Step],
    /// How many steps its log has dropped.
    pub steps_dropped: usize,
    /// How it ended.
    pub outcome: CallOutcome<'a>,
    /// Who pays.
    pub tenant: Option<&'a str>,
    /// The name of the key that the call came with.
    pub key: Option<&'a str>,
    /// Which agent.
    pub agent: Option<&'a str>,
    /// Which of its tasks.
    pub task: Option<&'a str>,
    /// Which conversation.
    pub conversation: Option<&'a str>,
    /// The route that it went by.
    pub route: Option<&'a str>,
    /// The id by which it is found elsewhere.
    pub request_id: Option<&'a str>,
    /// What all attempts have cost.
    pub micro_dollars: Option<u64>,
}

impl<'a> CallReport<'a> {
    /// Of a call that began at `started` and ends now.
    pub fn new(
        started: Instant,
        attempts: &'a [AttemptRecord],
        steps: &'a [Step],
        outcome: CallOutcome<'a>,
    ) -> Self {
        Self {
            operation: Operation::Chat,
            model: "",
            stream: false,
            started,
            took: started.elapsed(),
            log_started: started,
            attempts,
            steps,
            steps_dropped: 0,
            outcome,
            tenant: None,
            key: None,
            agent: None,
            task: None,
            conversation: None,
            route: None,
            request_id: None,
            micro_dollars: None,
        }
    }

    /// The attempt whose answer it got, or the last part of it.
    pub(crate) fn answered(&self) -> Option<&AttemptRecord> {
        self.attempts.iter().rev().find(|attempt| attempt.end == AttemptEnd::Answered)
    }

    /// Whether it was answered because something was done about a failure.
    pub(crate) fn is_recovered(&self) -> bool {
        let is_failed = |one: &AttemptRecord| matches!(one.end, AttemptEnd::Failed { .. });
        self.outcome == CallOutcome::Answered && self.attempts.iter().any(is_failed)
    }

    /// The tokens of all attempts.
    pub(crate) fn usage(&self) -> Usage {
        self.attempts.iter().fold(Usage::default(), |all, one| all.plus(&one.usage))
    }
}

/// A call that is under way. Dropped without an [end](Self::end) it is exported as it is.
#[must_use = "a call ends when its report is there"]
pub struct CallSpan {
    telemetry: Telemetry,
    span: Span,
    trace: Option<Arc<TraceContext>>,
}

impl CallSpan {
    /// Begins a call at `started`, as a part of what `parent` is in.
    pub(crate) fn begin(
        telemetry: &Telemetry,
        role: CallRole,
        operation: Operation,
        model: Option<&str>,
        started: Instant,
        parent: &Context,
    ) -> Self {
        let tracer = telemetry.tracer();
        let kind = match role {
            CallRole::Serving => SpanKind::Server,
            CallRole::Own => SpanKind::Internal,
        };
        let builder = tracer
            .span_builder(spans::name(operation, model))
            .with_kind(kind)
            .with_start_time(wall_at(started));
        let span = tracer.build_with_context(builder, parent);
        let trace = from_span_context(span.span_context()).map(Arc::new);
        Self { telemetry: telemetry.clone(), span, trace }
    }

    /// Its trace context, for the [context](steadfast_core::CallContext::trace) of the call.
    pub fn trace(&self) -> Option<&Arc<TraceContext>> {
        self.trace.as_ref()
    }

    /// The call is over: its spans are made of `report`, and its metrics counted.
    pub fn end(mut self, report: &CallReport<'_>) {
        let servers = self.telemetry.servers();
        self.telemetry.meters().record(report, &servers, self.telemetry.queue().mask());
        if !self.span.is_recording() {
            return;
        }
        let context = self.span.span_context().clone();
        if context.is_sampled() {
            let scope = self.telemetry.scope();
            for attempt in report.attempts {
                let span = spans::attempt(attempt, &context, report, &servers, scope);
                self.telemetry.queue().push(span);
            }
        }
        let model = Some(report.model);
        self.span.update_name(spans::name(report.operation, model));
        self.span.set_attributes(spans::request(report));
        for step in report.steps {
            let event = spans::step(step, report);
            self.span.add_event_with_timestamp(event.name, event.timestamp, event.attributes);
        }
        if let CallOutcome::Failed { reason, .. } = report.outcome {
            self.span.set_status(Status::error(reason.as_str()));
        }
        self.span.end_with_timestamp(wall_at(report.started + report.took));
    }
}

impl fmt::Debug for CallSpan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CallSpan").field("trace", &self.trace).finish_non_exhaustive()
    }
}

/// What a call is a part of: the span that this thread is in, unless `caller` is of another trace.
pub(crate) fn parent_of(caller: Option<&TraceContext>) -> Context {
    let here = tracing::Span::current().context();
    let here = if here.span().span_context().is_valid() { here } else { Context::current() };
    let Some(caller) = caller.map(|caller| to_span_context(caller, true)) else { return here };
    // What is beneath the caller's span is nearer to the call.
    let is_beneath = here.span().span_context().trace_id() == caller.trace_id();
    if is_beneath { here } else { remote(caller) }
}

/// A context in which the span of somebody else is the current one.
pub(crate) fn remote(span: SpanContext) -> Context {
    Context::new().with_remote_span_context(span)
}
