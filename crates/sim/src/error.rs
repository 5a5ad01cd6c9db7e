//! The error of a connection that fails, before or inside a response.

use std::error::Error as StdError;
use std::fmt;
use std::io;

/// A connection that failed: the error of the service and of its bodies.
///
/// Its chain of sources is that of an HTTP client over real sockets: an error of the client, below
/// it one of the transport, below that a [`std::io::Error`] of the matching kind. Code that walks
/// [`source()`](StdError::source) sees no difference.
pub struct SimError {
    kind: SimErrorKind,
    at: At,
    cause: Cause,
}

/// How the connection failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum SimErrorKind {
    /// The port is closed: `io::ErrorKind::ConnectionRefused`.
    Refused,
    /// The peer reset the connection: `io::ErrorKind::ConnectionReset`.
    Reset,
    /// The peer closed the connection before the message was complete:
    /// `io::ErrorKind::UnexpectedEof`.
    Closed,
    /// The peer closed the connection in the middle of the response's headers:
    /// `io::ErrorKind::UnexpectedEof`.
    HalfHeaders,
    /// The request's body could not be read to its end.
    RequestBody,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    Head,
    Body,
}

#[derive(Debug)]
struct Cause {
    text: &'static str,
    source: Box<dyn StdError + Send + Sync>,
}

impl SimError {
    /// A failure before any header of the response came.
    pub(crate) fn head(kind: SimErrorKind) -> Self {
        Self::new(kind, At::Head)
    }

    /// A failure inside the response's body.
    pub(crate) fn body(kind: SimErrorKind) -> Self {
        Self::new(kind, At::Body)
    }

    pub(crate) fn request_body(source: Box<dyn StdError + Send + Sync>) -> Self {
        let cause = Cause { text: "the request's body ended with an error", source };
        Self { kind: SimErrorKind::RequestBody, at: At::Head, cause }
    }

    fn new(kind: SimErrorKind, at: At) -> Self {
        let (text, io) = match kind {
            SimErrorKind::Refused => {
                ("tcp connect error", io::Error::from(io::ErrorKind::ConnectionRefused))
            }
            SimErrorKind::Reset => {
                ("connection error", io::Error::from(io::ErrorKind::ConnectionReset))
            }
            SimErrorKind::Closed | SimErrorKind::HalfHeaders | SimErrorKind::RequestBody => (
                "connection closed before message completed",
                io::Error::new(io::ErrorKind::UnexpectedEof, "unexpected end of file"),
            ),
        };
        Self { kind, at, cause: Cause { text, source: Box::new(io) } }
    }

    /// How the connection failed.
    #[must_use]
    pub fn kind(&self) -> SimErrorKind {
        self.kind
    }

    /// Whether it failed before the first byte of a response.
    #[must_use]
    pub fn before_headers(&self) -> bool {
        self.at == At::Head && self.kind != SimErrorKind::HalfHeaders
    }

    /// The io error at the bottom of the chain, where there is one.
    #[must_use]
    pub fn io(&self) -> Option<&io::Error> {
        self.cause.source.downcast_ref()
    }
}

impl fmt::Debug for SimError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SimError")
            .field("kind", &self.kind)
            .field("at", &self.at)
            .field("source", &self.cause.source)
            .finish()
    }
}

impl fmt::Display for SimError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match (self.at, self.kind) {
            (At::Head, SimErrorKind::Refused) => "client error (Connect)",
            (At::Head, _) => "client error (SendRequest)",
            (At::Body, _) => "error reading a body from connection",
        })
    }
}

impl StdError for SimError {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        Some(&self.cause)
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text)
    }
}

impl StdError for Cause {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        Some(&*self.source)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_chain_ends_in_an_io_error_of_the_right_kind() {
        for (kind, io) in [
            (SimErrorKind::Refused, io::ErrorKind::ConnectionRefused),
            (SimErrorKind::Reset, io::ErrorKind::ConnectionReset),
            (SimErrorKind::Closed, io::ErrorKind::UnexpectedEof),
            (SimErrorKind::HalfHeaders, io::ErrorKind::UnexpectedEof),
        ] {
            let error = SimError::head(kind);
            let mut last: &(dyn StdError + 'static) = &error;
            let mut links = 0;
            while let Some(next) = last.source() {
                last = next;
                links += 1;
            }
            assert_eq!(links, 2, "{kind:?}");
            assert_eq!(last.downcast_ref::<io::Error>().map(io::Error::kind), Some(io));
            assert_eq!(error.io().map(io::Error::kind), Some(io));
        }
    }
}
