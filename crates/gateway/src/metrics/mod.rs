//! What the gateway counts, in Prometheus' formats.

mod native;
mod protobuf;

use std::{
    collections::BTreeMap,
    fmt::{self, Write},
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;
use prometheus_client::{
    encoding::{EncodeLabelSet, text::encode_registry},
    metrics::{
        counter::Counter, exemplar::HistogramWithExemplars, family::Family,
        histogram::exponential_buckets,
    },
    registry::{Metric, Registry},
};
use serde::Serialize;
use steadfast_core::{Dialect, Failure, RecoveryLog, TraceContext, Usage};

use self::native::NativeTimes;
pub(crate) use self::protobuf::{CONTENT_TYPE, Native, encode, is_preferred};
use crate::logs;

/// The counters, shared by cloning.
#[derive(Clone)]
pub struct Metrics(Arc<Inner>);

struct Inner {
    registry: Registry,
    requests: Family<RequestLabels, Counter>,
    failures: Family<FailureLabels, Counter>,
    attempts: Counter,
    token_counts: Family<CountLabels, Counter>,
    routes: Family<RouteLabels, Counter>,
    reloads: Family<OutcomeLabel, Counter>,
    state_saves: Family<OutcomeLabel, Counter>,
    /// Sorted, so that it can be listed.
    steps: Mutex<BTreeMap<(&'static str, &'static str, &'static str), u64>>,
    tokens: Family<TokenLabels, Counter>,
    head: Timings,
    whole: Timings,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RequestLabels {
    dialect: &'static str,
    stream: &'static str,
    outcome: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct FailureLabels {
    reason: &'static str,
    /// `head`: the caller got a status; `stream`: an error event after content.
    at: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RouteLabels {
    /// Of the configuration, so that there are few.
    route: String,
    outcome: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CountLabels {
    dialect: &'static str,
    /// Who counted: `provider`, `gateway`, or `failed`.
    by: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OutcomeLabel {
    outcome: &'static str,
}

/// How often a layer did something.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct StepCount {
    /// The layer.
    pub layer: &'static str,
    /// What it did.
    pub action: &'static str,
    /// Why; empty when there is no reason to name.
    pub reason: &'static str,
    /// How often.
    pub times: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct TokenLabels {
    provider: String,
    direction: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct DialectLabel {
    dialect: &'static str,
}

/// Times, with a trace of each bucket as an example.
type Timing = HistogramWithExemplars<TraceLabel>;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct TraceLabel {
    trace_id: String,
}

impl TraceLabel {
    /// Of a trace that is recorded.
    fn of(trace: Option<&TraceContext>) -> Option<Self> {
        let trace = trace.filter(|trace| trace.is_sampled())?;
        Some(Self { trace_id: trace.trace_id().to_string() })
    }
}

/// Times by dialect.
struct Timings {
    name: &'static str,
    classic: Family<DialectLabel, Timing, fn() -> Timing>,
    native: Mutex<BTreeMap<&'static str, NativeTimes>>,
}

impl Timings {
    fn new(registry: &mut Registry, name: &'static str, help: &str) -> Self {
        let classic = Family::new_with_constructor(seconds as fn() -> Timing);
        Self { name, classic: add(registry, name, help, classic), native: Mutex::default() }
    }

    fn add(&self, dialect: Dialect, took: Duration, trace: Option<&TraceContext>) {
        let dialect = dialect.as_str();
        let trace = TraceLabel::of(trace);
        let classic = self.classic.get_or_create(&DialectLabel { dialect });
        classic.observe(took.as_secs_f64(), trace, None);
        drop(classic);
        self.native.lock().entry(dialect).or_default().add(took);
    }

    fn natives(&self) -> Vec<Native> {
        let (family, all) = (self.name, self.native.lock());
        let of = |(dialect, times): (&&'static str, &NativeTimes)| Native {
            family,
            dialect,
            times: times.clone(),
        };
        all.iter().map(of).collect()
    }
}

/// 5 ms to about 5 minutes: from a cached refusal to a long answer.
fn seconds() -> Timing {
    Timing::new(exponential_buckets(0.005, 2.0, 17))
}

impl Default for Metrics {
    fn default() -> Self {
        let mut all = Registry::with_prefix("steadfast");
        Self(Arc::new(Inner {
            requests: add(&mut all, "requests", "Requests by how they ended", Family::default()),
            failures: add(
                &mut all,
                "failures",
                "Failures that reached a caller",
                Family::default(),
            ),
            attempts: add(
                &mut all,
                "attempts",
                "Times that providers were asked, by whichever layer",
                Counter::default(),
            ),
            token_counts: add(
                &mut all,
                "token_counts",
                "Requests to count tokens by who counted",
                Family::default(),
            ),
            routes: add(
                &mut all,
                "route_requests",
                "Requests by the route they took",
                Family::default(),
            ),
            reloads: add(
                &mut all,
                "reloads",
                "Times that the configuration was read again",
                Family::default(),
            ),
            state_saves: add(
                &mut all,
                "state_saves",
                "Times that the state file was written",
                Family::default(),
            ),
            tokens: add(&mut all, "tokens", "Tokens that providers reported", Family::default()),
            head: Timings::new(&mut all, "time_to_head_seconds", "Time until the answer began"),
            whole: Timings::new(&mut all, "time_to_end_seconds", "Time until the answer ended"),
            steps: Mutex::default(),
            registry: all,
        }))
    }
}

fn add<M: Metric + Clone>(registry: &mut Registry, name: &str, help: &str, metric: M) -> M {
    registry.register(name, help, metric.clone());
    metric
}

impl Metrics {
    /// An answer has started after `took`.
    pub(crate) fn head(&self, dialect: Dialect, took: Duration, trace: Option<&TraceContext>) {
        self.0.head.add(dialect, took, trace);
    }

    /// A request has ended after `took`.
    pub(crate) fn whole(&self, dialect: Dialect, took: Duration, trace: Option<&TraceContext>) {
        self.0.whole.add(dialect, took, trace);
    }

    /// A request has ended after so many `attempts`, and the layers did what `log` says.
    pub fn end(
        &self,
        dialect: Dialect,
        stream: bool,
        outcome: &'static str,
        attempts: u32,
        log: &RecoveryLog,
    ) {
        let inner = &*self.0;
        inner.attempts.inc_by(attempts.into());
        let dialect = dialect.as_str();
        let stream = if stream { "true" } else { "false" };
        inner.requests.get_or_create(&RequestLabels { dialect, stream, outcome }).inc();
        if log.is_empty() {
            return;
        }
        let done = log.steps();
        let mut steps = inner.steps.lock();
        for step in done {
            let reason = step.reason.map_or("", |reason| reason.as_str());
            *steps.entry((step.layer, step.action, reason)).or_default() += 1;
        }
    }

    /// How often providers were asked for requests that are over.
    pub fn attempts(&self) -> u64 {
        self.0.attempts.get()
    }

    /// What the layers did, and how often.
    pub fn steps(&self) -> Vec<StepCount> {
        let steps = self.0.steps.lock();
        steps
            .iter()
            .map(|(&(layer, action, reason), &times)| StepCount { layer, action, reason, times })
            .collect()
    }

    /// How often `layer` did this.
    pub fn count(&self, layer: &str, action: &str) -> u64 {
        let steps = self.0.steps.lock();
        let found = steps.iter().filter(|((of, did, _), _)| *of == layer && *did == action);
        found.map(|(_, times)| times).sum()
    }

    /// A failure has reached a caller: as a status, or `in_stream`.
    pub fn failed(&self, failure: &Failure, in_stream: bool) {
        let at = if in_stream { "stream" } else { "head" };
        let labels = FailureLabels { reason: failure.reason().as_str(), at };
        self.0.failures.get_or_create(&labels).inc();
    }

    /// A request to count tokens has been answered.
    pub(crate) fn counted(&self, dialect: Dialect, by: &'static str) {
        let dialect = dialect.as_str();
        self.0.token_counts.get_or_create(&CountLabels { dialect, by }).inc();
    }

    /// A request of this route has ended.
    pub fn routed(&self, route: &str, outcome: &'static str) {
        let labels = RouteLabels { route: route.to_owned(), outcome };
        self.0.routes.get_or_create(&labels).inc();
    }

    /// The configuration has been read again, and is in force if it is right.
    pub fn reloaded(&self, ok: bool) {
        let outcome = if ok { "ok" } else { "failed" };
        self.0.reloads.get_or_create(&OutcomeLabel { outcome }).inc();
    }

    /// Counts a try to write the state file.
    pub(crate) fn state_saved(&self, ok: bool) {
        let outcome = if ok { "ok" } else { "failed" };
        self.0.state_saves.get_or_create(&OutcomeLabel { outcome }).inc();
    }

    /// A provider has reported what an answer used.
    pub fn tokens(&self, provider: &str, usage: &Usage) {
        for (direction, tokens) in [("input", usage.input), ("output", usage.output)] {
            if let Some(tokens) = tokens {
                let labels = TokenLabels { provider: provider.to_owned(), direction };
                self.0.tokens.get_or_create(&labels).inc_by(tokens);
            }
        }
    }

    /// The times, in buckets that text has not.
    pub(crate) fn natives(&self) -> Vec<Native> {
        [self.0.head.natives(), self.0.whole.natives()].concat()
    }

    /// All of it as text, without the mark that ends an exposition: gauges that are read at the
    /// moment of asking follow.
    pub fn render(&self) -> String {
        let mut text = String::new();
        // Writing to a string does not fail.
        let _ = encode_registry(&mut text, &self.0.registry);
        text.push_str(
            "# HELP steadfast_steps What the layers did.\n# TYPE steadfast_steps counter\n",
        );
        for StepCount { layer, action, reason, times } in self.steps() {
            let _ = writeln!(
                text,
                "steadfast_steps_total{{layer=\"{layer}\",action=\"{action}\",reason=\"{reason}\"}} {times}"
            );
        }
        let _ = writeln!(
            text,
            "# HELP steadfast_log_lines_dropped Lines of the log that nobody read in time.\n\
             # TYPE steadfast_log_lines_dropped counter\n\
             steadfast_log_lines_dropped_total {}",
            logs::dropped()
        );
        text
    }
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Metrics").field("attempts", &self.attempts()).finish_non_exhaustive()
    }
}
