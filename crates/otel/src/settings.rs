//! Where traces and metrics go: OpenTelemetry's own environment variables.

use std::time::Duration;

use http::Uri;

use crate::TelemetryError;

/// How spans wait for their export.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SpanQueuePolicy {
    /// How many spans wait at most; those beyond are dropped, and counted. 2,048, OpenTelemetry's default.
    pub capacity: usize,
    /// How many are sent at once. 512, OpenTelemetry's default.
    pub batch: usize,
    /// How long they wait for others, at most. 5 s, OpenTelemetry's default.
    pub delay: Duration,
    /// How long an export may take, after which its spans are dropped. 30 s, OpenTelemetry's default; the exporter itself
    /// gives up after 10 s.
    pub timeout: Duration,
}

impl Default for SpanQueuePolicy {
    fn default() -> Self {
        Self {
            capacity: 2_048,
            batch: 512,
            delay: Duration::from_secs(5),
            timeout: Duration::from_secs(30),
        }
    }
}

/// How something is sent to a collector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum OtlpProtocol {
    /// gRPC.
    Grpc,
    /// Protobuf over HTTP.
    Http,
}

impl OtlpProtocol {
    /// As `OTEL_EXPORTER_OTLP_PROTOCOL` has it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Grpc => "grpc",
            Self::Http => "http/protobuf",
        }
    }

    /// The protocol of this name.
    fn of(name: &str, value: &str) -> Result<Self, TelemetryError> {
        [Self::Grpc, Self::Http].into_iter().find(|one| one.as_str() == value).ok_or_else(|| {
            TelemetryError::Setting {
                name: name.to_owned(),
                value: value.to_owned(),
                right: "grpc or http/protobuf",
            }
        })
    }
}

/// Where one kind of telemetry goes.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct OtlpDestination {
    /// The address, for HTTP with its path.
    pub endpoint: String,
    /// How it is sent there.
    pub protocol: OtlpProtocol,
    /// How long one request may take.
    pub timeout: Duration,
}

/// What is exported, and where to.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TelemetrySettings {
    /// Where traces go; `None`: nowhere.
    pub traces: Option<OtlpDestination>,
    /// Where metrics go; `None`: nowhere.
    pub metrics: Option<OtlpDestination>,
    /// How often metrics are sent. 60 s, OpenTelemetry's default.
    pub metrics_interval: Duration,
    /// How spans wait.
    pub queue: SpanQueuePolicy,
    /// What the service is called. `OTEL_SERVICE_NAME` and `OTEL_RESOURCE_ATTRIBUTES` go before.
    pub service_name: String,
}

/// How long one request of an exporter may take: 10 s, OpenTelemetry's default.
const TIMEOUT: Duration = Duration::from_secs(10);

/// The port of collectors for gRPC.
const GRPC_PORT: u16 = 4317;

impl TelemetrySettings {
    /// By the environment alone. `None` where it names no endpoint, or `OTEL_SDK_DISABLED` is `true`.
    ///
    /// # Errors
    ///
    /// When a variable can not be read.
    pub fn from_env() -> Result<Option<Self>, TelemetryError> {
        Self::from_env_or(None, None)
    }

    /// By the environment, with this endpoint and protocol in place of those of `OTEL_EXPORTER_OTLP_*`.
    ///
    /// # Errors
    ///
    /// When a variable, the endpoint or the protocol can not be read.
    pub fn from_env_or(
        endpoint: Option<&str>,
        protocol: Option<&str>,
    ) -> Result<Option<Self>, TelemetryError> {
        let var = |name: &str| std::env::var(name).ok();
        Self::read(&var, endpoint, protocol)
    }

    pub(crate) fn read(
        var: &dyn Fn(&str) -> Option<String>,
        endpoint: Option<&str>,
        protocol: Option<&str>,
    ) -> Result<Option<Self>, TelemetryError> {
        let var = |name: &str| {
            var(name).map(|value| value.trim().to_owned()).filter(|value| !value.is_empty())
        };
        if var("OTEL_SDK_DISABLED").is_some_and(|value| value.eq_ignore_ascii_case("true")) {
            return Ok(None);
        }
        let own = Own { endpoint, protocol };
        let traces = own.destination(&var, "TRACES", "v1/traces")?;
        let metrics = own.destination(&var, "METRICS", "v1/metrics")?;
        if traces.is_none() && metrics.is_none() {
            return Ok(None);
        }
        let default = SpanQueuePolicy::default();
        let number = |name: &str, usual: usize| {
            number(&var, name).map(|read| read.map_or(usual, |read| read as usize))
        };
        let capacity = number("OTEL_BSP_MAX_QUEUE_SIZE", default.capacity)?.max(1);
        Ok(Some(Self {
            traces,
            metrics,
            metrics_interval: millis(&var, "OTEL_METRIC_EXPORT_INTERVAL")?
                .unwrap_or(Duration::from_secs(60)),
            queue: SpanQueuePolicy {
                capacity,
                batch: number("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", default.batch)?.clamp(1, capacity),
                delay: millis(&var, "OTEL_BSP_SCHEDULE_DELAY")?.unwrap_or(default.delay),
                timeout: millis(&var, "OTEL_BSP_EXPORT_TIMEOUT")?.unwrap_or(default.timeout),
            },
            service_name: "steadfast".to_owned(),
        }))
    }
}

/// What is set beside the environment.
#[derive(Clone, Copy)]
struct Own<'a> {
    endpoint: Option<&'a str>,
    protocol: Option<&'a str>,
}

type Variables<'a> = dyn Fn(&str) -> Option<String> + 'a;

impl Own<'_> {
    /// Where `signal` goes.
    fn destination(
        self,
        var: &Variables<'_>,
        signal: &str,
        path: &str,
    ) -> Result<Option<OtlpDestination>, TelemetryError> {
        if var(&format!("OTEL_{signal}_EXPORTER")).is_some_and(|exporter| exporter == "none") {
            return Ok(None);
        }
        let of_signal = |what: &str| format!("OTEL_EXPORTER_OTLP_{signal}_{what}");
        let first = |what: &str| {
            let names = [of_signal(what), format!("OTEL_EXPORTER_OTLP_{what}")];
            names.into_iter().find_map(|name| var(&name).map(|value| (name, value)))
        };
        let exact = var(&of_signal("ENDPOINT")).filter(|_| self.endpoint.is_none());
        let base = self.endpoint.map(str::to_owned).or_else(|| var("OTEL_EXPORTER_OTLP_ENDPOINT"));
        let Some(given) = exact.as_ref().or(base.as_ref()) else { return Ok(None) };
        let name = if self.endpoint.is_some() { "endpoint" } else { "OTEL_EXPORTER_OTLP_ENDPOINT" };
        let uri = given.parse::<Uri>().ok().filter(|uri| {
            uri.host().is_some() && matches!(uri.scheme_str(), Some("http" | "https"))
        });
        let Some(uri) = uri else {
            return Err(TelemetryError::Setting {
                name: name.to_owned(),
                value: given.clone(),
                right: "an address such as http://localhost:4317",
            });
        };
        let protocol = match (self.protocol, first("PROTOCOL")) {
            (Some(own), _) => OtlpProtocol::of("protocol", own)?,
            (None, Some((name, value))) => OtlpProtocol::of(&name, &value)?,
            // By the specification it is HTTP, but nothing listens for that at this port.
            (None, None) if uri.port_u16() == Some(GRPC_PORT) => OtlpProtocol::Grpc,
            (None, None) => OtlpProtocol::Http,
        };
        let endpoint = match (protocol, &exact) {
            (OtlpProtocol::Http, None) => format!("{}/{path}", given.trim_end_matches('/')),
            _ => given.clone(),
        };
        let timeout = match first("TIMEOUT") {
            Some((name, _)) => millis(var, &name)?,
            None => None,
        };
        Ok(Some(OtlpDestination { endpoint, protocol, timeout: timeout.unwrap_or(TIMEOUT) }))
    }
}

fn number(var: &Variables<'_>, name: &str) -> Result<Option<u64>, TelemetryError> {
    let Some(value) = var(name) else { return Ok(None) };
    match value.parse() {
        Ok(number) => Ok(Some(number)),
        Err(_) => {
            Err(TelemetryError::Setting { name: name.to_owned(), value, right: "a whole number" })
        }
    }
}

fn millis(var: &Variables<'_>, name: &str) -> Result<Option<Duration>, TelemetryError> {
    Ok(number(var, name)?.map(Duration::from_millis))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(vars: &[(&str, &str)]) -> Result<Option<TelemetrySettings>, TelemetryError> {
        let var = |name: &str| {
            vars.iter().find(|(own, _)| *own == name).map(|(_, value)| (*value).to_owned())
        };
        TelemetrySettings::read(&var, None, None)
    }

    fn destination(vars: &[(&str, &str)]) -> (String, &'static str) {
        let traces = read(vars).unwrap().unwrap().traces.unwrap();
        (traces.endpoint, traces.protocol.as_str())
    }

    #[test]
    fn nothing_is_exported_unless_an_endpoint_says_where() {
        assert_eq!(read(&[]).unwrap(), None);
        assert_eq!(read(&[("OTEL_EXPORTER_OTLP_ENDPOINT", " ")]).unwrap(), None);
        let endpoint = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector:4318");
        assert_eq!(read(&[endpoint, ("OTEL_SDK_DISABLED", "TRUE")]).unwrap(), None);
        let only = read(&[endpoint, ("OTEL_METRICS_EXPORTER", "none")]).unwrap().unwrap();
        assert!(only.metrics.is_none() && only.traces.is_some());
        let traces = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://collector:4318/other");
        assert!(read(&[traces]).unwrap().unwrap().metrics.is_none());
    }

    #[test]
    fn the_endpoint_and_the_protocol_are_read_as_the_specification_has_them() {
        let base = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector:4318/");
        let grpc = ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc");
        let exact = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://other:1/in");
        for (vars, endpoint, protocol) in [
            (&[base][..], "http://collector:4318/v1/traces", "http/protobuf"),
            (&[base, grpc], "http://collector:4318/", "grpc"),
            (&[base, exact], "http://other:1/in", "http/protobuf"),
            (
                &[base, grpc, ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "http/protobuf")],
                "http://collector:4318/v1/traces",
                "http/protobuf",
            ),
            (&[("OTEL_EXPORTER_OTLP_ENDPOINT", "http://c:4317")], "http://c:4317", "grpc"),
        ] {
            assert_eq!(destination(vars), (endpoint.to_owned(), protocol), "{vars:?}");
        }
        let own = TelemetrySettings::read(&|_| None, Some("https://own"), Some("grpc")).unwrap();
        assert_eq!(own.unwrap().traces.unwrap().endpoint, "https://own");
        for wrong in [
            &[("OTEL_EXPORTER_OTLP_ENDPOINT", "collector")][..],
            &[("OTEL_EXPORTER_OTLP_ENDPOINT", "ftp://collector")],
            &[base, ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json")],
            &[base, ("OTEL_EXPORTER_OTLP_TIMEOUT", "10s")],
            &[base, ("OTEL_BSP_MAX_QUEUE_SIZE", "many")],
        ] {
            let error = read(wrong).unwrap_err().to_string();
            assert!(error.contains("right would be"), "{error}");
        }
    }
}
