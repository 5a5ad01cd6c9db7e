//! Whether a message may have been sent although its sending failed.

use std::{error::Error, io};

use steadfast_core::{Failure, MAX_CAUSES, Reason};

/// Whether certainly nothing was sent: a refusal of our own before the platform was called, or a connection that could
/// not be made (refused, no route, no name, no TLS), by the evidence of the classifier or an [`io::Error`] among the causes.
pub fn nothing_was_sent(failure: &Failure) -> bool {
    const EVIDENCE: [&str; 4] =
        ["transport:connect", "transport:dns", "transport:tls", "transport:certificate"];
    failure.attempts() == 0
        || EVIDENCE.contains(&failure.evidence())
        || causes(failure).any(|cause| {
            use io::ErrorKind as Kind;
            let kind = cause.downcast_ref().map(io::Error::kind);
            matches!(
                kind,
                Some(
                    Kind::ConnectionRefused
                        | Kind::HostUnreachable
                        | Kind::NetworkUnreachable
                        | Kind::NetworkDown
                        | Kind::AddrNotAvailable
                )
            )
        })
}

/// Whether nobody knows if the message was sent: the connection broke, or nothing came in time, by the failure's reason or
/// by an error among its causes.
///
/// A status is an answer of the platform, which then did not take the message.
pub(crate) fn is_unclear(failure: &Failure) -> bool {
    failure.is_delivered()
        || (matches!(failure.reason(), Reason::Network | Reason::Timeout)
            || causes(failure).any(is_broken_or_late))
            && failure.status().is_none()
            && !nothing_was_sent(failure)
}

fn is_broken_or_late(cause: &(dyn Error + 'static)) -> bool {
    use io::ErrorKind as Kind;

    let kind = cause.downcast_ref().map(io::Error::kind);
    cause.is::<tokio::time::error::Elapsed>()
        || matches!(
            kind,
            Some(
                Kind::ConnectionReset
                    | Kind::ConnectionAborted
                    | Kind::BrokenPipe
                    | Kind::NotConnected
                    | Kind::UnexpectedEof
                    | Kind::TimedOut
                    | Kind::WriteZero
            )
        )
}

fn causes<'a>(failure: &'a Failure) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    let first = Some(failure as &(dyn Error + 'static));
    std::iter::successors(first, |error| (*error).source()).take(MAX_CAUSES + 1)
}

#[cfg(test)]
mod tests {
    use http::StatusCode;

    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("the platform's client failed")]
    struct Wrapped(#[source] io::Error);

    fn boxed(error: impl Error + Send + Sync + 'static) -> Failure {
        Failure::from(Box::new(error) as steadfast_core::BoxError)
    }

    #[test]
    fn what_may_have_been_sent() {
        let io = |kind| io::Error::new(kind, "no");
        for (failure, unclear) in [
            (Failure::new(Reason::Network, "reset"), true),
            (Failure::new(Reason::Timeout, "ours"), true),
            (Failure::new(Reason::Timeout, "").with_status(StatusCode::GATEWAY_TIMEOUT), false),
            (Failure::new(Reason::ServerError, "500"), false),
            (Failure::new(Reason::Unknown, "any"), false),
            (Failure::refused(Reason::Network, "no address"), false),
            (Failure::new(Reason::Network, "").with_evidence("transport:dns"), false),
            (
                Failure::new(Reason::Network, "").with_source(io(io::ErrorKind::ConnectionRefused)),
                false,
            ),
            (
                Failure::new(Reason::Network, "").with_source(io(io::ErrorKind::ConnectionReset)),
                true,
            ),
            (Failure::new(Reason::ServerError, "").with_delivered(), true),
            // Errors that nobody has classified.
            (boxed(io(io::ErrorKind::ConnectionReset)), true),
            (boxed(io(io::ErrorKind::TimedOut)), true),
            (boxed(Wrapped(io(io::ErrorKind::UnexpectedEof))), true),
            (boxed(io(io::ErrorKind::ConnectionRefused)), false),
            (boxed(io(io::ErrorKind::InvalidInput)), false),
            (boxed(io(io::ErrorKind::ConnectionReset)).with_status(StatusCode::BAD_GATEWAY), false),
        ] {
            assert_eq!(is_unclear(&failure), unclear, "{failure:?}");
        }
    }
}
