//! Errors of the connection, by their types.

use std::{error::Error, io};

use steadfast_core::{MAX_CAUSES, Reason};

use crate::Transport;

/// What a transport failure is called.
pub(crate) fn reason(transport: Transport) -> Reason {
    match transport {
        Transport::Timeout => Reason::Timeout,
        Transport::Cancelled => Reason::Cancelled,
        Transport::Connect
        | Transport::Dns
        | Transport::Tls
        | Transport::Certificate
        | Transport::Reset
        | Transport::Protocol => Reason::Network,
    }
}

/// Whether a TLS error's text speaks of a certificate, which does not mend itself.
pub(crate) fn is_certificate(text: &str) -> bool {
    ["certificate", "CERTIFICATE_VERIFY", "unknown issuer", "UnknownIssuer"]
        .iter()
        .any(|words| text.contains(words))
        && !text.contains("bad certificate status")
}

/// What kind of transport failure `error` is, if it or one of its causes is one.
///
/// The chain is walked at most [`MAX_CAUSES`] links deep, so a cycle ends. Wrappers say less than
/// what they wrap: the most specific link decides, and of two equal ones the inner.
pub(crate) fn find(error: &(dyn Error + 'static)) -> Option<Transport> {
    let mut best: Option<(u8, Transport)> = None;
    let mut cause = Some(error);
    for _ in 0..=MAX_CAUSES {
        let Some(link) = cause else { break };
        if let Some(found) = look(link)
            && best.is_none_or(|(known, _)| found.0 >= known)
        {
            best = Some(found);
        }
        cause = link.source();
    }
    best.map(|(_, transport)| transport)
}

/// One link, with how much it says.
fn look(error: &(dyn Error + 'static)) -> Option<(u8, Transport)> {
    if error.is::<tokio::time::error::Elapsed>() {
        return Some((3, Transport::Timeout));
    }
    #[cfg(feature = "tower")]
    if error.is::<tower::timeout::error::Elapsed>() {
        return Some((3, Transport::Timeout));
    }
    if let Some(error) = error.downcast_ref::<io::Error>() {
        return by_kind(error);
    }
    #[cfg(feature = "hyper")]
    if let Some(error) = error.downcast_ref::<hyper::Error>() {
        return by_hyper(error);
    }
    // Connectors and TLS stacks have types of their own; all name themselves in the same few
    // words. Only the start of the text is looked at, where an error says what it is.
    by_name(&error.to_string())
}

fn by_kind(error: &io::Error) -> Option<(u8, Transport)> {
    use io::ErrorKind as Kind;

    Some(match error.kind() {
        Kind::ConnectionRefused
        | Kind::HostUnreachable
        | Kind::NetworkUnreachable
        | Kind::NetworkDown
        | Kind::AddrNotAvailable => (3, Transport::Connect),
        Kind::ConnectionReset
        | Kind::ConnectionAborted
        | Kind::NotConnected
        | Kind::BrokenPipe
        | Kind::UnexpectedEof => (2, Transport::Reset),
        Kind::TimedOut => (3, Transport::Timeout),
        // Resolvers and TLS stacks put their own errors into these.
        _ => return by_name(&error.to_string()),
    })
}

#[cfg(feature = "hyper")]
fn by_hyper(error: &hyper::Error) -> Option<(u8, Transport)> {
    Some(if error.is_timeout() {
        (3, Transport::Timeout)
    } else if error.is_parse() {
        (1, Transport::Protocol)
    } else if error.is_incomplete_message() || error.is_closed() || error.is_canceled() {
        // `canceled`: the connection went away before the request was written. The caller's own
        // going away drops the future and is never seen here.
        (1, Transport::Reset)
    } else if error.is_user() {
        return None;
    } else {
        (0, Transport::Reset)
    })
}

/// Beginnings and fixed words of connectors' errors: hyper-util, rustls, native-tls, h2, the
/// resolver of the standard library.
fn by_name(text: &str) -> Option<(u8, Transport)> {
    const NAMES: [(&str, u8, Transport); 17] = [
        ("invalid peer certificate", 4, Transport::Certificate),
        ("certificate verify failed", 4, Transport::Certificate),
        ("invalid certificate", 4, Transport::Certificate),
        ("dns error", 4, Transport::Dns),
        ("failed to lookup address", 4, Transport::Dns),
        ("nodename nor servname", 4, Transport::Dns),
        ("Name or service not known", 4, Transport::Dns),
        ("tls handshake", 2, Transport::Tls),
        ("received fatal alert", 2, Transport::Tls),
        ("received corrupt message", 2, Transport::Tls),
        ("peer is incompatible", 2, Transport::Tls),
        ("tcp connect error", 1, Transport::Connect),
        ("client error (Connect)", 0, Transport::Connect),
        ("http2 error", 0, Transport::Reset),
        ("connection error", 0, Transport::Reset),
        ("stream error", 0, Transport::Reset),
        ("operation timed out", 3, Transport::Timeout),
    ];
    let head = super::prose::head(text, 160);
    NAMES
        .iter()
        .find(|(name, ..)| head.contains(name))
        .map(|&(_, rank, transport)| (rank, transport))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("{0}")]
    struct Wrap(&'static str, #[source] Box<dyn Error + Send + Sync>);

    /// Its own cause.
    #[derive(Debug, thiserror::Error)]
    #[error("round and round")]
    struct Cycle;

    #[derive(Debug)]
    struct Loop;

    impl std::fmt::Display for Loop {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("loop")
        }
    }

    impl Error for Loop {
        fn source(&self) -> Option<&(dyn Error + 'static)> {
            Some(self)
        }
    }

    fn io(kind: io::ErrorKind) -> Box<dyn Error + Send + Sync> {
        Box::new(io::Error::from(kind))
    }

    #[test]
    fn the_most_specific_link_decides() {
        for (error, expected) in [
            (
                Wrap(
                    "client error (Connect)",
                    Box::new(Wrap("tcp connect error", io(io::ErrorKind::ConnectionRefused))),
                ),
                Some(Transport::Connect),
            ),
            (
                Wrap(
                    "client error (Connect)",
                    Box::new(Wrap("dns error", io(io::ErrorKind::Other))),
                ),
                Some(Transport::Dns),
            ),
            (
                Wrap(
                    "client error (Connect)",
                    Box::new(io::Error::new(
                        io::ErrorKind::InvalidData,
                        "invalid peer certificate: UnknownIssuer",
                    )),
                ),
                Some(Transport::Certificate),
            ),
            (
                Wrap("client error (SendRequest)", io(io::ErrorKind::ConnectionReset)),
                Some(Transport::Reset),
            ),
            (Wrap("connection error", io(io::ErrorKind::TimedOut)), Some(Transport::Timeout)),
            (Wrap("x", io(io::ErrorKind::BrokenPipe)), Some(Transport::Reset)),
            (Wrap("x", io(io::ErrorKind::PermissionDenied)), None),
            (Wrap("x", Box::new(Cycle)), None),
        ] {
            assert_eq!(find(&error), expected, "{error:?}");
        }
        assert_eq!(find(&Loop), None, "a cycle ends");
    }

    #[test]
    fn causes_too_deep_are_not_looked_at() {
        let mut error = io(io::ErrorKind::ConnectionReset);
        for _ in 0..=MAX_CAUSES {
            error = Box::new(Wrap("wrapped", error));
        }
        assert_eq!(find(&*error), None);
    }

    #[tokio::test(start_paused = true)]
    async fn elapsed_timers_are_timeouts() {
        let elapsed =
            tokio::time::timeout(std::time::Duration::from_secs(1), std::future::pending::<()>())
                .await
                .unwrap_err();
        assert_eq!(find(&elapsed), Some(Transport::Timeout));
    }
}
