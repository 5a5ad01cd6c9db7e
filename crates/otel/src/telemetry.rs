//! What is made once a process: the exporters, and the queue before them.

use std::{collections::HashMap, fmt, sync::Arc, time::Duration};

use opentelemetry::{Context, InstrumentationScope, metrics::MeterProvider, trace::TracerProvider};
use opentelemetry_otlp::{MetricExporter, SpanExporter, WithExportConfig, WithHttpConfig};
use opentelemetry_sdk::{
    Resource,
    metrics::{PeriodicReader, SdkMeterProvider},
    trace::{SdkTracer, SdkTracerProvider, SpanExporter as Exporter},
};
use parking_lot::Mutex;
use steadfast_core::TraceContext;
use tokio::{runtime::Handle, sync::oneshot, time::Instant};
use tracing::Level;
use tracing_subscriber::{Layer as _, filter::filter_fn, registry::LookupSpan};

use crate::{
    CallRole, CallSpan, Operation, OtlpDestination, OtlpProtocol, SpanQueuePolicy, TelemetryError,
    TelemetrySettings,
    call::{parent_of, remote},
    context::to_span_context,
    meters::Meters,
    queue::SpanQueue,
    spans::ServerTable,
    transport::Transport,
};

/// The name of what makes the spans.
const SCOPE: &str = "steadfast";

/// Traces and metrics, on their way to a collector. Cheap to clone; one a process.
#[derive(Clone)]
pub struct Telemetry(Arc<Inner>);

struct Inner {
    queue: SpanQueue,
    traces: SdkTracerProvider,
    tracer: SdkTracer,
    metrics: SdkMeterProvider,
    meters: Meters,
    scope: InstrumentationScope,
    servers: Mutex<Arc<ServerTable>>,
    /// Where it goes, for people.
    to: Vec<(&'static str, OtlpDestination)>,
}

/// How many spans were sent, and how many not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TelemetrySnapshot {
    /// How many wait, those that are being sent among them.
    pub waiting: u64,
    /// How many a collector has taken.
    pub sent: u64,
    /// How many were dropped: there was no room, or the collector did not take them.
    pub dropped: u64,
}

impl Telemetry {
    /// Exports by OTLP, as `settings` say, on the tokio runtime that this is called in.
    ///
    /// # Errors
    ///
    /// When there is no runtime, or the exporter does not take the settings.
    pub fn start(settings: &TelemetrySettings) -> Result<Self, TelemetryError> {
        let runtime = Handle::try_current().map_err(|_| TelemetryError::NoRuntime)?;
        let mut to = Vec::new();
        let resource = resource(&settings.service_name);
        let mut metrics = SdkMeterProvider::builder().with_resource(resource.clone());
        if let Some(destination) = &settings.metrics {
            let reader = PeriodicReader::builder(metric_exporter(destination, &runtime)?)
                .with_interval(settings.metrics_interval)
                .build();
            metrics = metrics.with_reader(reader);
            to.push(("metrics", destination.clone()));
        }
        let queue = match &settings.traces {
            None => SpanQueue::start(Nowhere, settings.queue, &runtime),
            Some(destination) => {
                to.insert(0, ("traces", destination.clone()));
                let mut exporter = span_exporter(destination, &runtime)?;
                exporter.set_resource(&resource);
                SpanQueue::start(exporter, settings.queue, &runtime)
            }
        };
        Ok(Self::of(queue, metrics.build(), resource, to))
    }

    /// Gives spans to `exporter`, any of OpenTelemetry's, on the tokio runtime that this is called in. Metrics are
    /// counted by `metrics`.
    ///
    /// # Errors
    ///
    /// When there is no runtime.
    pub fn with_exporter(
        mut exporter: impl Exporter + 'static,
        metrics: SdkMeterProvider,
        policy: SpanQueuePolicy,
    ) -> Result<Self, TelemetryError> {
        let runtime = Handle::try_current().map_err(|_| TelemetryError::NoRuntime)?;
        let resource = resource(SCOPE);
        exporter.set_resource(&resource);
        Ok(Self::of(SpanQueue::start(exporter, policy, &runtime), metrics, resource, Vec::new()))
    }

    fn of(
        queue: SpanQueue,
        metrics: SdkMeterProvider,
        resource: Resource,
        to: Vec<(&'static str, OtlpDestination)>,
    ) -> Self {
        let traces = SdkTracerProvider::builder()
            .with_span_processor(queue.clone())
            .with_resource(resource)
            .build();
        let scope =
            InstrumentationScope::builder(SCOPE).with_version(env!("CARGO_PKG_VERSION")).build();
        let meters = Meters::new(&metrics.meter_with_scope(scope.clone()));
        let tracer = traces.tracer_with_scope(scope.clone());
        let servers = Mutex::default();
        Self(Arc::new(Inner { queue, traces, tracer, metrics, meters, scope, servers, to }))
    }

    /// Begins a call that `parent` asks for, as somebody else's `traceparent` says; without one a new trace.
    pub fn begin(
        &self,
        role: CallRole,
        operation: Operation,
        model: Option<&str>,
        started: Instant,
        parent: Option<&TraceContext>,
    ) -> CallSpan {
        let parent = parent.map_or_else(Context::new, |one| remote(to_span_context(one, true)));
        CallSpan::begin(self, role, operation, model, started, &parent)
    }

    /// Begins a call of this process: a part of what `caller` is in, or else of the span that this thread is in.
    pub(crate) fn begin_here(
        &self,
        operation: Operation,
        model: Option<&str>,
        caller: Option<&TraceContext>,
    ) -> CallSpan {
        let parent = parent_of(caller);
        CallSpan::begin(self, CallRole::Own, operation, model, Instant::now(), &parent)
    }

    /// The provider of tracers whose spans go the same way: for `tracing-opentelemetry`, or OpenTelemetry's
    /// [global](opentelemetry::global::set_tracer_provider) one.
    pub fn tracer_provider(&self) -> &SdkTracerProvider {
        &self.0.traces
    }

    /// Exports the `tracing` spans of an application the same way, to be given to its subscriber: those that Steadfast's crates open
    /// around tools (`execute_tool`) and runs (`invoke_agent`), and its own. Calls that are made inside are parts of
    /// them.
    ///
    /// Spans alone, with their fields: events are left to the log, since some quote what a tool was called with. And those of the level
    /// `info` and above: below it the libraries that send have spans, of which each export would make more.
    pub fn tracing_layer<S>(&self) -> impl tracing_subscriber::Layer<S> + Send + Sync + use<S>
    where
        S: tracing::Subscriber + for<'span> LookupSpan<'span> + Send + Sync,
    {
        tracing_opentelemetry::layer()
            .with_tracer(self.0.tracer.clone())
            .with_location(false)
            .with_threads(false)
            .with_tracked_inactivity(false)
            .with_target(false)
            .with_filter(filter_fn(|metadata| {
                metadata.is_span() && *metadata.level() <= Level::INFO
            }))
    }

    /// Where providers are, by their names: host and port, for `server.address` and `server.port`.
    pub fn set_servers<N, H>(&self, servers: impl IntoIterator<Item = (N, (H, u16))>)
    where
        N: Into<Box<str>>,
        H: Into<Box<str>>,
    {
        let servers: HashMap<_, _> = servers
            .into_iter()
            .map(|(name, (host, port))| (name.into(), (host.into(), port)))
            .collect();
        *self.0.servers.lock() = Arc::new(servers);
    }

    /// Gives each text that is exported to `mask`, which has what replaces it where there is a secret in it. Only the first is used.
    pub fn set_mask(&self, mask: impl Fn(&str) -> Option<String> + Send + Sync + 'static) {
        self.0.queue.set_mask(Box::new(mask));
    }

    /// What is sent, and where to, for people: `traces to http://localhost:4317 (grpc)`.
    pub fn destinations(&self) -> impl Iterator<Item = String> {
        self.0.to.iter().map(|(what, to)| {
            // Without a name and a password.
            let (scheme, rest) = to.endpoint.split_once("://").unwrap_or(("", &to.endpoint));
            let rest = rest.rsplit_once('@').map_or(rest, |(_, rest)| rest);
            format!("{what} to {scheme}://{rest} ({})", to.protocol.as_str())
        })
    }

    /// How many spans were sent, and how many not.
    pub fn snapshot(&self) -> TelemetrySnapshot {
        let queue = &self.0.queue;
        TelemetrySnapshot { waiting: queue.waiting(), sent: queue.sent(), dropped: queue.dropped() }
    }

    /// Returns once all spans that wait were exported or dropped.
    pub async fn flush(&self) {
        self.0.queue.flush().await;
    }

    /// Exports what waits, and the metrics as they are, for `within` at most: a collector may never answer. Nothing is
    /// exported afterwards.
    pub async fn shutdown(&self, within: Duration) {
        let (done, is_done) = oneshot::channel();
        let metrics = self.0.metrics.clone();
        // Not a blocking task, which the end of the runtime would wait for.
        let thread = std::thread::Builder::new().name("otel-metrics".into()).spawn(move || {
            // Nothing can be done about a collector that does not take them.
            let _ = metrics.shutdown_with_timeout(within);
            let _ = done.send(());
        });
        let flushed = async {
            self.0.queue.flush().await;
            if thread.is_ok() {
                let _ = is_done.await;
            }
        };
        // What is late is given up.
        let _ = tokio::time::timeout(within, flushed).await;
        let _ = self.0.traces.shutdown_with_timeout(Duration::ZERO);
    }

    pub(crate) fn tracer(&self) -> &SdkTracer {
        &self.0.tracer
    }

    pub(crate) fn queue(&self) -> &SpanQueue {
        &self.0.queue
    }

    pub(crate) fn meters(&self) -> &Meters {
        &self.0.meters
    }

    pub(crate) fn scope(&self) -> &InstrumentationScope {
        &self.0.scope
    }

    pub(crate) fn servers(&self) -> Arc<ServerTable> {
        self.0.servers.lock().clone()
    }
}

impl fmt::Debug for Telemetry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Telemetry")
            .field("queue", &self.0.queue)
            .field("to", &self.0.to)
            .finish_non_exhaustive()
    }
}

/// Who sends: what the environment says, and the service's name where it has none.
fn resource(service_name: &str) -> Resource {
    let resource = Resource::builder().build();
    let name = opentelemetry::Key::from_static_str("service.name");
    let own = resource.get(&name).map(|name| name.to_string());
    if own.is_some_and(|own| !own.starts_with("unknown_service")) {
        return resource;
    }
    Resource::builder().with_service_name(service_name.to_owned()).build()
}

fn problem(signal: &'static str, error: impl fmt::Display) -> TelemetryError {
    TelemetryError::Exporter { signal, problem: error.to_string() }
}

fn span_exporter(to: &OtlpDestination, runtime: &Handle) -> Result<SpanExporter, TelemetryError> {
    let built = match to.protocol {
        OtlpProtocol::Grpc => SpanExporter::builder()
            .with_tonic()
            .with_endpoint(&to.endpoint)
            .with_timeout(to.timeout)
            .build(),
        OtlpProtocol::Http => SpanExporter::builder()
            .with_http()
            .with_http_client(Transport::new(runtime.clone(), to.timeout))
            .with_protocol(opentelemetry_otlp::Protocol::HttpBinary)
            .with_endpoint(&to.endpoint)
            .with_timeout(to.timeout)
            .build(),
    };
    built.map_err(|error| problem("traces", error))
}

fn metric_exporter(
    to: &OtlpDestination,
    runtime: &Handle,
) -> Result<MetricExporter, TelemetryError> {
    let built = match to.protocol {
        OtlpProtocol::Grpc => MetricExporter::builder()
            .with_tonic()
            .with_endpoint(&to.endpoint)
            .with_timeout(to.timeout)
            .build(),
        OtlpProtocol::Http => MetricExporter::builder()
            .with_http()
            .with_http_client(Transport::new(runtime.clone(), to.timeout))
            .with_protocol(opentelemetry_otlp::Protocol::HttpBinary)
            .with_endpoint(&to.endpoint)
            .with_timeout(to.timeout)
            .build(),
    };
    built.map_err(|error| problem("metrics", error))
}

/// Takes spans where only metrics are exported.
#[derive(Debug)]
struct Nowhere;

impl Exporter for Nowhere {
    async fn export(
        &self,
        _: Vec<opentelemetry_sdk::trace::SpanData>,
    ) -> opentelemetry_sdk::error::OTelSdkResult {
        Ok(())
    }
}
