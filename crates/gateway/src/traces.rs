//! Traces of requests by OpenTelemetry, made of their stories.
//!
//! Without the feature `otel` there is nothing of it but these types.

#[cfg(feature = "otel")]
use std::borrow::Cow;
use std::{fmt, sync::Arc};

use http::HeaderMap;
use steadfast_core::{RecoveryLog, TraceContext};
use tokio::time::Instant;

use crate::{
    config::{Config, ConfigErrors, Source},
    stack::Gateway,
    stories::Story,
};
#[cfg(feature = "otel")]
use crate::{secrets::mask_lines, stories::Outcome};

/// Where traces go, if anywhere.
#[derive(Default)]
pub(crate) struct Traces {
    #[cfg(feature = "otel")]
    telemetry: std::sync::OnceLock<steadfast::otel::Telemetry>,
}

/// A request that is traced.
pub(crate) struct RequestSpan {
    #[cfg(feature = "otel")]
    span: steadfast::otel::CallSpan,
    #[cfg(feature = "otel")]
    operation: steadfast::otel::Operation,
    trace: Arc<TraceContext>,
}

impl RequestSpan {
    /// Which trace it belongs to.
    pub(crate) fn trace(&self) -> &Arc<TraceContext> {
        &self.trace
    }
}

/// How long the end of the process waits until what waits is sent: 5 s. A collector may never answer.
#[cfg(feature = "otel")]
const LAST: std::time::Duration = std::time::Duration::from_secs(5);

#[cfg(feature = "otel")]
impl Traces {
    /// Begins to export, if the configuration or the environment says where to.
    ///
    /// # Errors
    ///
    /// What is wrong with it.
    pub(crate) fn start(&self, config: &Config, source: &Source) -> Result<(), ConfigErrors> {
        use steadfast::otel::{Telemetry, TelemetrySettings};
        let given = &config.otel;
        let wrong =
            |error: &dyn fmt::Display| ConfigErrors::from(source.error("otel", error.to_string()));
        let settings =
            TelemetrySettings::from_env_or(given.endpoint.as_deref(), given.protocol.as_deref());
        if let Some(settings) = settings.map_err(|error| wrong(&error))? {
            self.set(Telemetry::start(&settings).map_err(|error| wrong(&error))?);
        }
        Ok(())
    }

    /// From now on requests are traced by `telemetry`. Only the first is used.
    pub(crate) fn set(&self, telemetry: steadfast::otel::Telemetry) {
        telemetry.set_mask(|text| match mask_lines(text.as_bytes()) {
            Cow::Borrowed(_) => None,
            Cow::Owned(masked) => Some(String::from_utf8_lossy(&masked).into_owned()),
        });
        // Another one is dropped.
        let _ = self.telemetry.set(telemetry);
    }

    /// Providers are where `gateway` has them.
    pub(crate) fn set_servers(&self, gateway: &Gateway) {
        if let Some(telemetry) = self.telemetry.get() {
            telemetry.set_servers(gateway.servers().iter().cloned());
        }
    }

    /// A request with these headers has come, at `started`.
    pub(crate) fn begin(&self, headers: &HeaderMap, started: Instant) -> Option<RequestSpan> {
        use steadfast::otel::{CallRole, Operation};
        let (telemetry, operation) = (self.telemetry.get()?, Operation::Chat);
        let caller = TraceContext::from_headers(headers);
        let span = telemetry.begin(CallRole::Serving, operation, None, started, caller.as_ref());
        let trace = span.trace()?.clone();
        Some(RequestSpan { span, operation, trace })
    }

    /// What is sent and where to, a line each.
    pub(crate) fn destinations(&self) -> Vec<String> {
        self.telemetry.get().map_or_else(Vec::new, |telemetry| telemetry.destinations().collect())
    }

    /// How many spans were sent and dropped, in Prometheus' text format.
    pub(crate) fn counters(&self) -> String {
        let Some(telemetry) = self.telemetry.get() else { return String::new() };
        let counts = telemetry.snapshot();
        format!(
            "# HELP steadfast_spans_sent Spans that a collector has taken.\n\
             # TYPE steadfast_spans_sent counter\n\
             steadfast_spans_sent_total {}\n\
             # HELP steadfast_spans_dropped Spans that no collector has taken in time.\n\
             # TYPE steadfast_spans_dropped counter\n\
             steadfast_spans_dropped_total {}\n",
            counts.sent, counts.dropped
        )
    }

    /// Sends what waits, for some seconds at most.
    pub(crate) async fn stop(&self) {
        if let Some(telemetry) = self.telemetry.get() {
            telemetry.shutdown(LAST).await;
        }
    }
}

#[cfg(feature = "otel")]
impl RequestSpan {
    /// It asks for embeddings.
    pub(crate) fn embeds(&mut self) {
        self.operation = steadfast::otel::Operation::Embeddings;
    }

    /// The request is over, and `story` says what became of it; the times of its steps count from those of `log`.
    pub(crate) fn end(self, story: &Story, log: &RecoveryLog) {
        use steadfast::otel::{CallOutcome, CallReport};
        let (draft, ending) = (&*story.draft, &story.ending);
        let outcome = match (ending.outcome, ending.reason) {
            (Outcome::Ok, _) => CallOutcome::Answered,
            (Outcome::Failed, Some(reason)) => {
                CallOutcome::Failed { reason, evidence: ending.evidence.as_deref() }
            }
            _ => CallOutcome::Cancelled,
        };
        let mut report = CallReport::new(draft.started, &story.attempts, story.steps(), outcome);
        (report.operation, report.model, report.stream) =
            (self.operation, &draft.model, draft.stream);
        (report.took, report.steps_dropped) = (ending.took, story.dropped);
        report.log_started = log.started().unwrap_or(draft.started);
        let [tenant, key, agent, session, task] = &draft.who;
        (report.tenant, report.key) = (tenant.as_deref(), key.as_deref());
        (report.agent, report.task) = (agent.as_deref(), task.as_deref());
        // What is made of a conversation's beginning is no name that anybody has given it.
        report.conversation = session.as_deref().filter(|session| !session.contains('#'));
        report.route = draft.route.as_deref();
        report.request_id = Some(&draft.id);
        report.micro_dollars = Some(story.micro_dollars()).filter(|micros| *micros > 0);
        self.span.end(&report);
    }
}

#[cfg(not(feature = "otel"))]
impl Traces {
    /// Nothing is exported by this build.
    ///
    /// # Errors
    ///
    /// Where the configuration says that something is.
    pub(crate) fn start(&self, config: &Config, source: &Source) -> Result<(), ConfigErrors> {
        if config.otel.endpoint.is_none() {
            return Ok(());
        }
        let why = "this build has no OpenTelemetry; build it with the feature `otel`";
        Err(source.error("otel.endpoint", why.to_owned()).into())
    }

    pub(crate) fn set_servers(&self, gateway: &Gateway) {
        let _ = gateway.servers();
    }

    pub(crate) fn begin(&self, _: &HeaderMap, _: Instant) -> Option<RequestSpan> {
        None
    }

    pub(crate) fn destinations(&self) -> Vec<String> {
        Vec::new()
    }

    pub(crate) fn counters(&self) -> String {
        String::new()
    }

    #[expect(clippy::unused_async, reason = "with the feature it waits")]
    pub(crate) async fn stop(&self) {}
}

#[cfg(not(feature = "otel"))]
impl RequestSpan {
    pub(crate) fn embeds(&mut self) {}

    pub(crate) fn end(self, _: &Story, _: &RecoveryLog) {}
}

impl fmt::Debug for Traces {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Traces").field("to", &self.destinations()).finish()
    }
}
