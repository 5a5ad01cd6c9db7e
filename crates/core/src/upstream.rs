//! What a provider said when it refused: the raw evidence that classification reads.

use std::fmt;

use bytes::Bytes;
use http::{HeaderMap, StatusCode};

use crate::Dialect;

/// A provider's refusal as it came off the wire: status, headers and the first part of the body,
/// or the data of a stream's error event.
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
    /// The dialect the client speaks with this provider, when it knows.
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

    /// Says which dialect the provider speaks.
    #[must_use]
    pub fn with_dialect(mut self, dialect: Dialect) -> Self {
        self.dialect = Some(dialect);
        self
    }
}

impl fmt::Debug for Upstream {
    /// Shows shapes, not contents: a body may quote the prompt, a header the key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Upstream")
            .field("status", &self.status)
            .field("headers", &self.headers.len())
            .field("body", &format_args!("{} bytes", self.body.len()))
            .field("dialect", &self.dialect)
            .finish()
    }
}
