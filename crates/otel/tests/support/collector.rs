//! A collector of OTLP, made from the protocol's own definitions.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use axum::{Router, body::Bytes, extract::State, http::HeaderMap, routing::post};
use opentelemetry_proto::{
    tonic::{
        collector::{
            metrics::v1::{
                ExportMetricsServiceRequest, ExportMetricsServiceResponse,
                metrics_service_server::{MetricsService, MetricsServiceServer},
            },
            trace::v1::{
                ExportTraceServiceRequest, ExportTraceServiceResponse,
                trace_service_server::{TraceService, TraceServiceServer},
            },
        },
        common::v1::{KeyValue, any_value::Value},
        metrics::v1::{Metric, metric::Data},
        trace::v1::{Span, span::SpanKind, status::StatusCode},
    },
    transform::{
        common::tonic::ResourceAttributesWithSchema,
        trace::tonic::group_spans_by_resource_and_scope,
    },
};
use opentelemetry_sdk::{
    error::OTelSdkResult,
    trace::{SpanData, SpanExporter},
};
use parking_lot::Mutex;
use prost::Message;
use tokio::net::TcpListener;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::{Request, Response, Status, transport::Server};

/// What has come.
#[derive(Clone, Default)]
pub(crate) struct Collector(Arc<Mutex<Received>>);

#[derive(Default)]
struct Received {
    spans: Vec<Span>,
    resource: Vec<KeyValue>,
    metrics: Vec<Metric>,
    /// The value of the header `x-who`.
    who: Option<String>,
}

impl Collector {
    /// One that speaks gRPC, and its address.
    pub(crate) async fn grpc() -> (Self, String) {
        let collector = Self::default();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let served = Server::builder()
            .add_service(TraceServiceServer::new(collector.clone()))
            .add_service(MetricsServiceServer::new(collector.clone()))
            .serve_with_incoming(TcpListenerStream::new(listener));
        tokio::spawn(served);
        (collector, address)
    }

    /// One that speaks protobuf over HTTP, and its address.
    pub(crate) async fn http() -> (Self, String) {
        async fn traces(State(to): State<Collector>, headers: HeaderMap, body: Bytes) {
            assert_eq!(headers["content-type"], "application/x-protobuf");
            let who = headers.get("x-who").map(|who| who.to_str().unwrap().to_owned());
            to.take_traces(ExportTraceServiceRequest::decode(body).unwrap(), who);
        }
        async fn metrics(State(to): State<Collector>, body: Bytes) {
            to.take_metrics(ExportMetricsServiceRequest::decode(body).unwrap());
        }
        let collector = Self::default();
        let router = Router::new()
            .route("/v1/traces", post(traces))
            .route("/v1/metrics", post(metrics))
            .with_state(collector.clone());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        tokio::spawn(async move { axum::serve(listener, router).await });
        (collector, address)
    }

    fn take_traces(&self, request: ExportTraceServiceRequest, who: Option<String>) {
        let mut received = self.0.lock();
        received.who = who;
        for resource in request.resource_spans {
            received.resource = resource.resource.unwrap_or_default().attributes;
            for scope in resource.scope_spans {
                received.spans.extend(scope.spans);
            }
        }
    }

    fn take_metrics(&self, request: ExportMetricsServiceRequest) {
        let all = request.resource_metrics.into_iter().flat_map(|resource| resource.scope_metrics);
        self.0.lock().metrics = all.flat_map(|scope| scope.metrics).collect();
    }

    /// The spans, in the order in which they began.
    pub(crate) fn spans(&self) -> Vec<SeenSpan> {
        let mut spans: Vec<_> = self.0.lock().spans.iter().map(SeenSpan::of).collect();
        spans.sort_by_key(|span| (span.start, span.end));
        spans
    }

    /// The metrics, by name.
    pub(crate) fn metrics(&self) -> BTreeMap<String, Metric> {
        self.0.lock().metrics.iter().map(|metric| (metric.name.clone(), metric.clone())).collect()
    }

    /// What the sender says of itself.
    pub(crate) fn resource(&self) -> BTreeMap<String, String> {
        attributes(&self.0.lock().resource)
    }

    /// The value of the header `x-who`.
    pub(crate) fn who(&self) -> Option<String> {
        self.0.lock().who.clone()
    }
}

/// In this process, without a socket: for tests on a paused clock.
impl SpanExporter for Collector {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let resource = ResourceAttributesWithSchema::default();
        let resource_spans = group_spans_by_resource_and_scope(batch, &resource);
        self.take_traces(ExportTraceServiceRequest { resource_spans }, None);
        Ok(())
    }
}

impl std::fmt::Debug for Collector {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Collector")
    }
}

#[tonic::async_trait]
impl TraceService for Collector {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        let who = request.metadata().get("x-who").map(|who| who.to_str().unwrap().to_owned());
        self.take_traces(request.into_inner(), who);
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}

#[tonic::async_trait]
impl MetricsService for Collector {
    async fn export(
        &self,
        request: Request<ExportMetricsServiceRequest>,
    ) -> Result<Response<ExportMetricsServiceResponse>, Status> {
        self.take_metrics(request.into_inner());
        Ok(Response::new(ExportMetricsServiceResponse::default()))
    }
}

/// A span as a collector sees it.
#[derive(Clone, Debug)]
pub(crate) struct SeenSpan {
    pub(crate) name: String,
    pub(crate) kind: &'static str,
    pub(crate) trace: String,
    pub(crate) id: String,
    /// Empty of a root.
    pub(crate) parent: String,
    pub(crate) state: String,
    /// Since 1970.
    pub(crate) start: Duration,
    pub(crate) end: Duration,
    pub(crate) attributes: BTreeMap<String, String>,
    /// Each with its type.
    pub(crate) types: BTreeMap<String, &'static str>,
    pub(crate) events: Vec<SeenEvent>,
    pub(crate) is_error: bool,
}

/// An event of a span.
#[derive(Clone, Debug)]
pub(crate) struct SeenEvent {
    pub(crate) name: String,
    pub(crate) at: Duration,
    pub(crate) attributes: BTreeMap<String, String>,
}

impl SeenSpan {
    fn of(span: &Span) -> Self {
        Self {
            name: span.name.clone(),
            kind: match span.kind() {
                SpanKind::Server => "server",
                SpanKind::Client => "client",
                SpanKind::Internal => "internal",
                _ => "other",
            },
            trace: hex(&span.trace_id),
            id: hex(&span.span_id),
            parent: hex(&span.parent_span_id),
            state: span.trace_state.clone(),
            start: Duration::from_nanos(span.start_time_unix_nano),
            end: Duration::from_nanos(span.end_time_unix_nano),
            attributes: attributes(&span.attributes),
            types: span.attributes.iter().map(|one| (one.key.clone(), kind(one))).collect(),
            events: span
                .events
                .iter()
                .map(|event| SeenEvent {
                    name: event.name.clone(),
                    at: Duration::from_nanos(event.time_unix_nano),
                    attributes: attributes(&event.attributes),
                })
                .collect(),
            is_error: span.status.as_ref().is_some_and(|status| status.code() == StatusCode::Error),
        }
    }

    /// The value of an attribute, empty without one.
    pub(crate) fn get(&self, name: &str) -> &str {
        self.attributes.get(name).map_or("", String::as_str)
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn attributes(of: &[KeyValue]) -> BTreeMap<String, String> {
    of.iter().map(|one| (one.key.clone(), text(one))).collect()
}

fn value(of: &KeyValue) -> Option<&Value> {
    of.value.as_ref()?.value.as_ref()
}

/// A value.
pub(crate) fn text(of: &KeyValue) -> String {
    match value(of) {
        Some(Value::StringValue(text)) => text.clone(),
        Some(Value::BoolValue(is)) => is.to_string(),
        Some(Value::IntValue(number)) => number.to_string(),
        Some(Value::DoubleValue(number)) => number.to_string(),
        Some(Value::ArrayValue(array)) => format!("{:?}", array.values.len()),
        other => format!("{other:?}"),
    }
}

/// The type of a value, in the conventions' word.
pub(crate) fn kind(of: &KeyValue) -> &'static str {
    match value(of) {
        Some(Value::StringValue(_)) => "string",
        Some(Value::BoolValue(_)) => "boolean",
        Some(Value::IntValue(_)) => "int",
        Some(Value::DoubleValue(_)) => "double",
        Some(Value::ArrayValue(_)) => "string[]",
        _ => "other",
    }
}

/// The attributes of the points of a metric, with their types; and its kind.
pub(crate) fn points(of: &Metric) -> (&'static str, Vec<BTreeMap<String, String>>, Vec<KeyValue>) {
    let (kind, all): (_, Vec<Vec<KeyValue>>) = match of.data.as_ref().unwrap() {
        Data::Histogram(histogram) => (
            "histogram",
            histogram.data_points.iter().map(|point| point.attributes.clone()).collect(),
        ),
        Data::Sum(sum) => {
            ("counter", sum.data_points.iter().map(|point| point.attributes.clone()).collect())
        }
        _ => ("other", Vec::new()),
    };
    (kind, all.iter().map(|one| attributes(one)).collect(), all.into_iter().flatten().collect())
}
