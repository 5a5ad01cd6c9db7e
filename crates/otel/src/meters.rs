//! The metrics.

use opentelemetry::{
    KeyValue,
    metrics::{Counter, Histogram, Meter},
};
use steadfast_core::{AttemptEnd, AttemptRecord};

use crate::{
    call::CallReport,
    mask::{self, MaskText},
    names, spans,
};

/// The boundaries that the conventions advise for durations, in seconds.
const SECONDS: [f64; 14] =
    [0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92];

/// Those for tokens.
const TOKENS: [f64; 14] = [
    1.0,
    4.0,
    16.0,
    64.0,
    256.0,
    1024.0,
    4096.0,
    16384.0,
    65536.0,
    262_144.0,
    1_048_576.0,
    4_194_304.0,
    16_777_216.0,
    67_108_864.0,
];

/// What is counted of calls.
#[derive(Debug)]
pub(crate) struct Meters {
    duration: Histogram<f64>,
    first_chunk: Histogram<f64>,
    tokens: Histogram<u64>,
    requests: Histogram<f64>,
    steps: Counter<u64>,
}

impl Meters {
    pub(crate) fn new(meter: &Meter) -> Self {
        let seconds = |name: &'static str, about: &'static str, bounds: &[f64]| {
            meter
                .f64_histogram(name)
                .with_unit("s")
                .with_description(about)
                .with_boundaries(bounds.to_vec())
                .build()
        };
        Self {
            duration: seconds(names::OPERATION_DURATION, "GenAI operation duration.", &SECONDS),
            first_chunk: seconds(
                names::OPERATION_FIRST_CHUNK,
                "Time to the first content of an answer in pieces.",
                &SECONDS,
            ),
            tokens: meter
                .u64_histogram(names::TOKEN_USAGE)
                .with_unit("{token}")
                .with_description("Number of input and output tokens used.")
                .with_boundaries(TOKENS.to_vec())
                .build(),
            requests: seconds(
                names::REQUEST_DURATION,
                "How long requests took, with all that was done for them.",
                &SECONDS,
            ),
            steps: meter
                .u64_counter(names::STEPS)
                .with_unit("{step}")
                .with_description("How often layers did what.")
                .build(),
        }
    }

    /// Counts a call that is over.
    pub(crate) fn record(
        &self,
        report: &CallReport<'_>,
        server: spans::Servers<'_>,
        mask: Option<&MaskText>,
    ) {
        for attempt in report.attempts {
            self.attempt(report, attempt, server, mask);
        }
        let mut attributes = vec![
            KeyValue::new(names::OPERATION, report.operation.as_str()),
            KeyValue::new(names::OUTCOME, report.outcome.as_str()),
            KeyValue::new(names::RECOVERED, report.is_recovered()),
        ];
        attributes.extend(report.outcome.error_type());
        self.requests.record(report.took.as_secs_f64(), &attributes);
        for step in report.steps {
            let name = format!("{}.{}", step.layer, step.action);
            self.steps.add(1, &[KeyValue::new(names::STEP, name)]);
        }
    }

    fn attempt(
        &self,
        report: &CallReport<'_>,
        attempt: &AttemptRecord,
        server: spans::Servers<'_>,
        mask: Option<&MaskText>,
    ) {
        // What nobody waited for says nothing of its provider, and its time is not that of an operation.
        let (Some(took), true) = (attempt.took, !matches!(attempt.end, AttemptEnd::Dropped)) else {
            return;
        };
        let mut attributes = spans::identity(report.operation, attempt, server);
        if let Some(model) = attempt.answer.as_ref().and_then(|answer| answer.model.as_deref()) {
            attributes.push(KeyValue::new(names::RESPONSE_MODEL, model.to_owned()));
        }
        if let Some(mask) = mask {
            mask::attributes(&mut attributes, mask);
        }
        for (kind, count) in [("input", attempt.usage.input), ("output", attempt.usage.output)] {
            if let Some(count) = count {
                attributes.push(KeyValue::new(names::TOKEN_TYPE, kind));
                self.tokens.record(count, &attributes);
                attributes.pop();
            }
        }
        if let Some(first) = attempt.first_content.filter(|_| report.stream) {
            self.first_chunk.record(first.as_secs_f64(), &attributes);
        }
        if let AttemptEnd::Failed { reason, .. } = &attempt.end {
            attributes.push(KeyValue::new(names::ERROR_TYPE, reason.as_str()));
        }
        self.duration.record(took.as_secs_f64(), &attributes);
    }
}
