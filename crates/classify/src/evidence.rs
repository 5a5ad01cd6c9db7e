//! What there is to judge.

use std::{fmt, sync::LazyLock, time::SystemTime};

use http::{HeaderMap, HeaderName, StatusCode};
use steadfast_core::{Dialect, Upstream};

/// How a connection failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum TransportErrorKind {
    /// The connection was refused or could not be made.
    Connect,
    /// The name did not resolve.
    Dns,
    /// The TLS handshake or a TLS record failed.
    Tls,
    /// The peer's certificate was not accepted: trying again changes nothing.
    Certificate,
    /// The connection was reset or closed while in use.
    Reset,
    /// Nothing came in time.
    Timeout,
    /// The caller went away.
    Cancelled,
    /// The peer broke the protocol: an HTTP message that can not be read.
    Protocol,
}

impl TransportErrorKind {
    /// The name used in JSON and as evidence, such as `connect`.
    pub const fn as_str(self) -> &'static str {
        match self {
            TransportErrorKind::Connect => "connect",
            TransportErrorKind::Dns => "dns",
            TransportErrorKind::Tls => "tls",
            TransportErrorKind::Certificate => "certificate",
            TransportErrorKind::Reset => "reset",
            TransportErrorKind::Timeout => "timeout",
            TransportErrorKind::Cancelled => "cancelled",
            TransportErrorKind::Protocol => "protocol",
        }
    }

    /// The transport failure of that name; common other names are understood.
    pub fn from_name(name: &str) -> Option<Self> {
        Some(match name {
            "connect" | "refused" | "connection" => TransportErrorKind::Connect,
            "dns" => TransportErrorKind::Dns,
            "tls" | "ssl" => TransportErrorKind::Tls,
            "certificate" => TransportErrorKind::Certificate,
            "reset" | "closed" | "eof" | "broken_pipe" | "network" => TransportErrorKind::Reset,
            "timeout" => TransportErrorKind::Timeout,
            "cancelled" | "canceled" => TransportErrorKind::Cancelled,
            "protocol" => TransportErrorKind::Protocol,
            _ => return None,
        })
    }
}

impl fmt::Display for TransportErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// Everything known about one answer, or about its absence.
///
/// All of it is optional: a bare text is judged too.
///
/// ```
/// use http::StatusCode;
/// use steadfast_classify::{Classifier, Evidence};
/// use steadfast_core::Reason;
///
/// let body = br#"{"error":{"type":"insufficient_quota","message":"You exceeded your quota."}}"#;
/// let evidence = Evidence::new(body).with_status(StatusCode::TOO_MANY_REQUESTS);
/// let verdict = Classifier::default().judge(&evidence).expect("an error");
/// assert_eq!(verdict.reason, Reason::Billing);
/// assert_eq!(verdict.evidence, "code:insufficient_quota");
/// ```
#[derive(Clone, Copy)]
#[non_exhaustive]
pub struct Evidence<'a> {
    /// Who answered, by any name it is known under (`openai`, `zai-coding`); some codes mean
    /// something at one vendor only.
    pub provider: Option<&'a str>,
    /// The dialect it speaks.
    pub dialect: Option<Dialect>,
    /// The response's status; `None` when there was no response or it is not known.
    pub status: Option<StatusCode>,
    /// The response's headers.
    pub headers: &'a HeaderMap,
    /// The body, or what there is of it, or an error's text. The first 64 KiB are read.
    pub body: &'a [u8],
    /// How the connection failed, if it did.
    pub transport: Option<TransportErrorKind>,
    /// The model's window in tokens, if known: more reported input than this is an overflow that
    /// the provider kept silent about.
    pub window: Option<u64>,
    /// The time for waits given as dates; the real one when `None`.
    pub now: Option<SystemTime>,
}

static NO_HEADERS: LazyLock<HeaderMap> = LazyLock::new(HeaderMap::new);

impl<'a> Evidence<'a> {
    /// Evidence of a body, and nothing else yet.
    pub fn new(body: &'a [u8]) -> Self {
        Self {
            provider: None,
            dialect: None,
            status: None,
            headers: &NO_HEADERS,
            body,
            transport: None,
            window: None,
            now: None,
        }
    }

    /// The evidence a client put into its failure.
    pub fn from_upstream(upstream: &'a Upstream) -> Self {
        Self {
            dialect: upstream.dialect,
            status: upstream.status,
            headers: &upstream.headers,
            ..Self::new(&upstream.body)
        }
    }

    /// With the provider's name.
    #[must_use]
    pub fn with_provider(mut self, provider: &'a str) -> Self {
        self.provider = Some(provider);
        self
    }

    /// With the response's status.
    #[must_use]
    pub fn with_status(mut self, status: StatusCode) -> Self {
        self.status = Some(status);
        self
    }

    /// With the response's headers.
    #[must_use]
    pub fn with_headers(mut self, headers: &'a HeaderMap) -> Self {
        self.headers = headers;
        self
    }

    /// With a connection failure.
    #[must_use]
    pub fn with_transport(mut self, transport: TransportErrorKind) -> Self {
        self.transport = Some(transport);
        self
    }

    /// With the model's window, in tokens.
    #[must_use]
    pub fn with_window(mut self, window: u64) -> Self {
        self.window = Some(window);
        self
    }

    /// At this time.
    #[must_use]
    pub fn with_now(mut self, now: SystemTime) -> Self {
        self.now = Some(now);
        self
    }

    pub(crate) fn now(&self) -> SystemTime {
        self.now.unwrap_or_else(steadfast_core::time::wall)
    }

    /// A header as text.
    pub(crate) fn header(&self, name: HeaderName) -> Option<&'a str> {
        if self.headers.is_empty() {
            return None;
        }
        self.headers.get(name)?.to_str().ok()
    }
}

impl fmt::Debug for Evidence<'_> {
    /// Shows shapes, not contents: a body may quote the prompt, a header the key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Evidence")
            .field("provider", &self.provider)
            .field("dialect", &self.dialect)
            .field("status", &self.status)
            .field("headers", &self.headers.len())
            .field("body", &format_args!("{} bytes", self.body.len()))
            .field("transport", &self.transport)
            .finish_non_exhaustive()
    }
}
