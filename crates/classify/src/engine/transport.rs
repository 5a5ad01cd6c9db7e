//! Errors of the connection, by their types.

use std::{error::Error, io, sync::LazyLock};

use steadfast_core::{MAX_CAUSES, Reason};

use super::{
    sockets,
    table::{Table, TableError, built_in, table},
};
use crate::TransportErrorKind;

const FILE: Table = table!("transport.txt");

/// What a transport failure is called.
pub(crate) fn reason(transport: TransportErrorKind) -> Reason {
    match transport {
        TransportErrorKind::Timeout => Reason::Timeout,
        TransportErrorKind::Cancelled => Reason::Cancelled,
        TransportErrorKind::Connect
        | TransportErrorKind::Dns
        | TransportErrorKind::Tls
        | TransportErrorKind::Certificate
        | TransportErrorKind::Reset
        | TransportErrorKind::Protocol => Reason::Network,
    }
}

/// What kind of transport failure `error` is, if it or one of its causes is one.
///
/// The chain is walked at most [`MAX_CAUSES`] links deep, so a cycle ends. Wrappers say less than
/// what they wrap: the most specific link decides, and of two equal ones the inner.
pub(crate) fn find(error: &(dyn Error + 'static)) -> Option<TransportErrorKind> {
    let mut best: Option<(u8, TransportErrorKind)> = None;
    let mut cause = Some(error);
    for _ in 0..=MAX_CAUSES {
        let Some(link) = cause else { break };
        if let Some(found) = classify(link)
            && best.is_none_or(|(known, _)| found.0 >= known)
        {
            best = Some(found);
        }
        cause = link.source();
    }
    best.map(|(_, transport)| transport)
}

/// One link, with how much it says.
fn classify(error: &(dyn Error + 'static)) -> Option<(u8, TransportErrorKind)> {
    if error.is::<tokio::time::error::Elapsed>() {
        return Some((3, TransportErrorKind::Timeout));
    }
    #[cfg(feature = "tower")]
    if error.is::<tower::timeout::error::Elapsed>() {
        return Some((3, TransportErrorKind::Timeout));
    }
    if let Some(error) = error.downcast_ref::<io::Error>() {
        return by_kind(error);
    }
    #[cfg(feature = "hyper")]
    if let Some(error) = error.downcast_ref::<hyper::Error>() {
        return by_hyper(error);
    }
    // Connectors and TLS stacks have types of their own.
    by_name(&error.to_string())
}

fn by_kind(error: &io::Error) -> Option<(u8, TransportErrorKind)> {
    use io::ErrorKind as Kind;

    Some(match error.kind() {
        Kind::ConnectionRefused
        | Kind::HostUnreachable
        | Kind::NetworkUnreachable
        | Kind::NetworkDown
        | Kind::AddrNotAvailable => (3, TransportErrorKind::Connect),
        Kind::ConnectionReset
        | Kind::ConnectionAborted
        | Kind::NotConnected
        | Kind::BrokenPipe
        | Kind::UnexpectedEof => (2, TransportErrorKind::Reset),
        Kind::TimedOut => (3, TransportErrorKind::Timeout),
        // Resolvers and TLS stacks put their own errors into these; of Windows' socket errors the
        // standard library knows only some.
        _ => {
            let number = error.raw_os_error().and_then(|number| u32::try_from(number).ok());
            return match number.and_then(sockets::by_number) {
                Some(transport) => Some((3, transport)),
                None => by_name(&error.to_string()),
            };
        }
    })
}

#[cfg(feature = "hyper")]
fn by_hyper(error: &hyper::Error) -> Option<(u8, TransportErrorKind)> {
    Some(if error.is_timeout() {
        (3, TransportErrorKind::Timeout)
    } else if error.is_parse() {
        (1, TransportErrorKind::Protocol)
    } else if error.is_incomplete_message() || error.is_closed() || error.is_canceled() {
        // `canceled`: the connection went away before the request was written. The caller's own
        // going away drops the future and is never seen here.
        (1, TransportErrorKind::Reset)
    } else if error.is_user() {
        return None;
    } else {
        (0, TransportErrorKind::Reset)
    })
}

/// A part of an error's text, how much it says, and what it means.
type Name = (&'static str, u8, TransportErrorKind);

static NAMES: LazyLock<Vec<Name>> = LazyLock::new(|| built_in(read(FILE)));

fn read(table: Table) -> Result<Vec<Name>, TableError> {
    let mut names: Vec<Name> = Vec::new();
    for row in table.rows(3, 3)? {
        let (text, rank) = (row.text(0), row.number(1)?);
        let transport = TransportErrorKind::from_name(row.text(2))
            .ok_or_else(|| row.error(format!("`{}` is no transport failure", row.text(2))))?;
        if let Some((known, ..)) = names.iter().find(|(known, ..)| text.contains(known)) {
            return Err(row.error(format!("`{text}` is never reached: `{known}` is above it")));
        }
        names.push((text, rank, transport));
    }
    Ok(names)
}

/// Reads the table now rather than at the first failure.
pub(crate) fn warm() {
    LazyLock::force(&NAMES);
}

/// By the text of an error, at whose beginning it says what it is.
fn by_name(text: &str) -> Option<(u8, TransportErrorKind)> {
    let head = super::prose::head(text, 160);
    let name = NAMES.iter().find(|(name, ..)| head.contains(name));
    name.map(|&(_, rank, transport)| (rank, transport)).or_else(|| {
        let (_, number) = head.split_once("os error ")?;
        let digits = number.split(|c: char| !c.is_ascii_digit()).next()?;
        Some((3, sockets::by_number(digits.parse().ok()?)?))
    })
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
                Some(TransportErrorKind::Connect),
            ),
            (
                Wrap(
                    "client error (Connect)",
                    Box::new(Wrap("dns error", io(io::ErrorKind::Other))),
                ),
                Some(TransportErrorKind::Dns),
            ),
            (
                Wrap(
                    "client error (Connect)",
                    Box::new(io::Error::new(
                        io::ErrorKind::InvalidData,
                        "invalid peer certificate: UnknownIssuer",
                    )),
                ),
                Some(TransportErrorKind::Certificate),
            ),
            (
                Wrap("client error (SendRequest)", io(io::ErrorKind::ConnectionReset)),
                Some(TransportErrorKind::Reset),
            ),
            (
                Wrap("connection error", io(io::ErrorKind::TimedOut)),
                Some(TransportErrorKind::Timeout),
            ),
            (Wrap("x", io(io::ErrorKind::BrokenPipe)), Some(TransportErrorKind::Reset)),
            (Wrap("x", io(io::ErrorKind::PermissionDenied)), None),
            (Wrap("x", Box::new(Cycle)), None),
        ] {
            assert_eq!(find(&error), expected, "{error:?}");
        }
        assert_eq!(find(&Loop), None, "a cycle ends");
    }

    #[test]
    fn the_file_is_well_formed() {
        read(FILE).unwrap();
        for (text, error) in [
            (
                "dns | 1 | dns\ndns error | 2 | dns",
                "2: `dns error` is never reached: `dns` is above it",
            ),
            ("dns | 1 | pigeon", "1: `pigeon` is no transport failure"),
            ("dns | x | dns", "1: `x` is no number that fits here"),
        ] {
            let found = read(Table { file: "transport.txt", text }).unwrap_err();
            assert_eq!(found.to_string(), format!("data/transport.txt:{error}"));
        }
    }

    #[test]
    fn windows_socket_errors_go_by_number() {
        for (number, expected) in [
            (10_051, TransportErrorKind::Connect),
            (10_054, TransportErrorKind::Reset),
            (10_060, TransportErrorKind::Timeout),
            (10_061, TransportErrorKind::Connect),
            (10_065, TransportErrorKind::Connect),
            (11_001, TransportErrorKind::Dns),
        ] {
            let typed = io::Error::from_raw_os_error(number);
            assert_eq!(find(&typed), Some(expected), "{number}");
            // In the language of the machine, and without its type.
            let text = format!("Es ging nicht. (os error {number})");
            assert_eq!(find(&*Box::<dyn Error>::from(text)), Some(expected), "{number}");
        }
        for text in ["x (os error 100541)", "x (os error)", "os error "] {
            assert_eq!(find(&*Box::<dyn Error>::from(text)), None, "{text}");
        }
    }

    #[test]
    fn causes_too_deep_are_ignored() {
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
        assert_eq!(find(&elapsed), Some(TransportErrorKind::Timeout));
    }
}
