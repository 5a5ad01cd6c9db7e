//! A provider's error as it was received: the evidence that classification reads.

use std::{borrow::Cow, fmt};

use bytes::Bytes;
use http::{HeaderMap, StatusCode, header};

use crate::Dialect;

/// How much of a body is read for its message, which is bounded further: 4 KiB.
const MAX_READ: usize = 4_096;

/// A provider's error as it was received: status, headers and the first part of the body, or the
/// data of a stream's error event.
///
/// A client puts it into the [`Failure`](crate::Failure) it returns; the classifier reads it there.
#[derive(Clone, Default)]
#[non_exhaustive]
pub struct Upstream {
    /// The response's status; 200 for an error inside a stream. `None` when there was no response.
    pub status: Option<StatusCode>,
    /// The response's headers.
    pub headers: HeaderMap,
    /// The body, or the error event's data; cut at the client's limit.
    pub body: Bytes,
    /// The dialect of the provider, when it is known.
    pub dialect: Option<Dialect>,
}

impl Upstream {
    /// Evidence of a whole response.
    pub fn response(status: StatusCode, headers: HeaderMap, body: impl Into<Bytes>) -> Self {
        Self { status: Some(status), headers, body: body.into(), dialect: None }
    }

    /// Evidence of an error event inside a stream that began with a 200.
    pub fn event(data: impl Into<Bytes>) -> Self {
        Self {
            status: Some(StatusCode::OK),
            headers: HeaderMap::new(),
            body: data.into(),
            dialect: None,
        }
    }

    /// The message for an operator: the beginning of its body. Empty when the body is.
    pub(crate) fn message(&self) -> Cow<'_, str> {
        let encoding = self.headers.get(header::CONTENT_ENCODING);
        match encoding.map(|encoding| String::from_utf8_lossy(encoding.as_bytes())) {
            Some(encoding) if !encoding.eq_ignore_ascii_case("identity") => {
                let status = self.status.map_or(200, |status| status.as_u16());
                format!("HTTP {status} with a body in content-encoding `{encoding}`, not read")
                    .into()
            }
            _ => String::from_utf8_lossy(&self.body[..self.body.len().min(MAX_READ)]),
        }
    }

    /// The message when the body has none.
    pub(crate) fn default_message(&self) -> String {
        match self.status {
            Some(status) if !status.is_success() => {
                format!("HTTP {} with an empty body", status.as_u16())
            }
            _ => "an error without a message".to_owned(),
        }
    }

    /// Sets the dialect of the provider.
    #[must_use]
    pub fn with_dialect(mut self, dialect: Dialect) -> Self {
        self.dialect = Some(dialect);
        self
    }
}

impl fmt::Debug for Upstream {
    /// Shows sizes, not contents: a body may quote the prompt, a header the key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Upstream")
            .field("status", &self.status)
            .field("headers", &self.headers.len())
            .field("body", &format_args!("{} bytes", self.body.len()))
            .field("dialect", &self.dialect)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Failure;

    #[test]
    fn a_failure_has_a_message_whatever_the_body_is() {
        let message = |status: u16, encoding: Option<&'static str>, body: &'static str| {
            let mut headers = HeaderMap::new();
            if let Some(encoding) = encoding {
                headers.insert("content-encoding", http::HeaderValue::from_static(encoding));
            }
            let status = StatusCode::from_u16(status).unwrap();
            let failure = Failure::from_upstream(Upstream::response(status, headers, body));
            failure.message().to_owned()
        };
        assert_eq!(message(503, None, ""), "HTTP 503 with an empty body");
        assert_eq!(message(404, None, " \r\n\u{0}"), "HTTP 404 with an empty body");
        assert_eq!(message(503, Some("identity"), "busy"), "busy");
        assert_eq!(
            message(429, Some("gzip"), "\u{1f}\u{8b}garbage"),
            "HTTP 429 with a body in content-encoding `gzip`, not read"
        );
        let event = Failure::from_upstream(Upstream::event(""));
        assert_eq!(event.message(), "an error without a message");
    }
}
