//! The spans of a call, of what its recovery log has.

use std::collections::HashMap;

use opentelemetry::{
    Array, InstrumentationScope, KeyValue, StringValue, Value,
    trace::{Event, SpanContext, SpanKind, Status},
};
use opentelemetry_sdk::trace::{SpanData, SpanEvents, SpanLinks};
use steadfast_core::{AnswerRecord, AttemptEnd, AttemptRecord, SpanId, Step, time::wall_at};

use crate::{Operation, call::CallReport, names, provider::known_as};

/// Where providers are, by their names: host and port.
pub(crate) type ServerTable = HashMap<Box<str>, (Box<str>, u16)>;
pub(crate) type Servers<'a> = &'a ServerTable;

/// The name of a span.
pub(crate) fn name(operation: Operation, model: Option<&str>) -> String {
    match model.filter(|model| !model.is_empty()) {
        Some(model) => format!("{} {model}", operation.as_str()),
        None => operation.as_str().to_owned(),
    }
}

/// What identifies the operation of an attempt, for spans and metrics.
pub(crate) fn identity(
    operation: Operation,
    attempt: &AttemptRecord,
    servers: Servers<'_>,
) -> Vec<KeyValue> {
    let mut attributes = Vec::with_capacity(20);
    attributes.push(KeyValue::new(names::OPERATION, operation.as_str()));
    let Some(target) = &attempt.target else { return attributes };
    attributes.push(KeyValue::new(names::PROVIDER, known_as(target.provider()).to_owned()));
    if let Some(model) = target.model() {
        attributes.push(KeyValue::new(names::REQUEST_MODEL, model.to_owned()));
    }
    if let Some((host, port)) = servers.get(target.provider()) {
        attributes.push(KeyValue::new(names::SERVER_ADDRESS, host.to_string()));
        attributes.push(KeyValue::new(names::SERVER_PORT, i64::from(*port)));
    }
    attributes
}

/// What the provider says of its answer.
fn answer(of: &AnswerRecord) -> impl Iterator<Item = KeyValue> {
    let text = |name: &'static str, value: &Option<Box<str>>| {
        value.as_ref().map(|value| KeyValue::new(name, value.to_string()))
    };
    let finish = of.finish.as_ref().map(|finish| {
        let one = StringValue::from(finish.to_string());
        KeyValue::new(names::FINISH_REASONS, Value::Array(Array::String(vec![one])))
    });
    [text(names::RESPONSE_ID, &of.id), text(names::RESPONSE_MODEL, &of.model), finish]
        .into_iter()
        .flatten()
}

/// Adds `value` under `name`, where there is one.
fn put(to: &mut Vec<KeyValue>, name: &'static str, value: Option<impl Into<Value>>) {
    to.extend(value.map(|value| KeyValue::new(name, value)));
}

fn tokens(count: Option<u64>) -> Option<i64> {
    count.map(|count| i64::try_from(count).unwrap_or(i64::MAX))
}

/// What a request's span has.
pub(crate) fn request(report: &CallReport<'_>) -> Vec<KeyValue> {
    let mut attributes = vec![KeyValue::new(names::OPERATION, report.operation.as_str())];
    let to = &mut attributes;
    let text = |text: Option<&str>| text.map(str::to_owned);
    put(to, names::REQUEST_MODEL, text(Some(report.model).filter(|model| !model.is_empty())));
    put(to, names::REQUEST_STREAM, report.stream.then_some(true));
    if let Some(answered) = report.answered() {
        let provider =
            answered.target.as_ref().map(|target| known_as(target.provider()).to_owned());
        put(to, names::PROVIDER, provider);
        put(to, names::TARGET, answered.target.as_ref().map(ToString::to_string));
        to.extend(answered.answer.iter().flat_map(|one| answer(one)));
    }
    put(to, names::CONVERSATION, text(report.conversation));
    put(to, names::AGENT, text(report.agent));
    put(to, names::TENANT, text(report.tenant));
    put(to, names::KEY, text(report.key));
    put(to, names::TASK, text(report.task));
    put(to, names::ROUTE, text(report.route));
    put(to, names::REQUEST_ID, text(report.request_id));
    put(to, names::OUTCOME, Some(report.outcome.as_str()));
    put(to, names::RECOVERED, Some(report.is_recovered()));
    put(to, names::ATTEMPTS, Some(report.attempts.len() as i64));
    put(to, names::EVIDENCE, text(report.outcome.evidence()));
    to.extend(report.outcome.error_type());
    let usage = report.usage();
    put(to, names::ALL_INPUT_TOKENS, tokens(usage.input));
    put(to, names::ALL_OUTPUT_TOKENS, tokens(usage.output));
    put(to, names::COST, report.micro_dollars.map(|micros| micros as f64 / 1e6));
    let dropped = i64::try_from(report.steps_dropped).unwrap_or(i64::MAX);
    put(to, names::STEPS_DROPPED, (dropped > 0).then_some(dropped));
    attributes
}

/// A step, as an event of its request.
pub(crate) fn step(of: &Step, report: &CallReport<'_>) -> Event {
    let mut attributes = Vec::with_capacity(4);
    let to = &mut attributes;
    put(to, names::TARGET, of.target.as_ref().map(ToString::to_string));
    put(to, names::REASON, of.reason.map(|reason| reason.as_str()));
    put(to, names::WAIT, of.wait.map(|wait| wait.as_secs_f64()));
    put(to, names::DETAIL, of.detail.as_ref().map(ToString::to_string));
    let name = format!("{}.{}", of.layer, of.action);
    Event::new(name, wall_at(report.log_started + of.at), attributes, 0)
}

/// The span of an attempt of the call with the span `call`.
pub(crate) fn attempt(
    of: &AttemptRecord,
    call: &SpanContext,
    report: &CallReport<'_>,
    servers: Servers<'_>,
    scope: &InstrumentationScope,
) -> SpanData {
    let mut attributes = identity(report.operation, of, servers);
    let to = &mut attributes;
    let (outcome, failed) = match &of.end {
        AttemptEnd::Answered => ("answered", None),
        AttemptEnd::Failed { reason, evidence } => ("failed", Some((*reason, evidence))),
        AttemptEnd::Dropped => ("dropped", None),
        _ => ("underway", None),
    };
    put(to, names::OUTCOME, Some(outcome));
    put(to, names::ATTEMPT, Some(i64::from(of.number)));
    put(to, names::TARGET, of.target.as_ref().map(ToString::to_string));
    put(to, names::BYTES, (of.bytes > 0).then(|| tokens(Some(of.bytes))).flatten());
    put(to, names::REQUEST_STREAM, report.stream.then_some(true));
    let first = of.first_content.filter(|_| report.stream);
    put(to, names::TIME_TO_FIRST_CHUNK, first.map(|first| first.as_secs_f64()));
    put(to, names::INPUT_TOKENS, tokens(of.usage.input));
    put(to, names::OUTPUT_TOKENS, tokens(of.usage.output));
    put(to, names::CACHE_READ_TOKENS, tokens(of.usage.cache_read));
    put(to, names::CACHE_WRITE_TOKENS, tokens(of.usage.cache_write));
    put(to, names::THINKING_TOKENS, tokens(of.usage.thinking));
    to.extend(of.answer.iter().flat_map(|one| answer(one)));
    if let Some((reason, evidence)) = failed {
        put(to, names::ERROR_TYPE, Some(reason.as_str()));
        put(to, names::EVIDENCE, evidence.as_ref().map(ToString::to_string));
    }
    let id = of.span.unwrap_or_else(SpanId::random);
    let began = report.log_started + of.at;
    // One that is not over ends with its call, which nobody waits for it after.
    let ended = of.took.map_or(report.started + report.took, |took| began + took).max(began);
    SpanData {
        span_context: SpanContext::new(
            call.trace_id(),
            opentelemetry::SpanId::from(id.get()),
            call.trace_flags(),
            false,
            call.trace_state().clone(),
        ),
        parent_span_id: call.span_id(),
        parent_span_is_remote: false,
        span_kind: SpanKind::Client,
        name: name(report.operation, of.target.as_ref().and_then(|target| target.model())).into(),
        start_time: wall_at(began),
        end_time: wall_at(ended),
        attributes,
        dropped_attributes_count: 0,
        events: SpanEvents::default(),
        links: SpanLinks::default(),
        status: failed.map_or(Status::Unset, |(reason, _)| Status::error(reason.as_str())),
        instrumentation_scope: scope.clone(),
    }
}
