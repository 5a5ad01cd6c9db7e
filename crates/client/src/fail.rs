//! Failures of the transport.

use std::{error::Error, fmt::Write, io};

use steadfast_core::{BoxError, Failure, MAX_CAUSES, Reason};

/// The failure that an HTTP service's error means: a failure of its own when it is one, a timeout
/// when the system says so, else the network's. The error is kept as source, so that a classifier
/// can say more.
pub(crate) fn transport_failure(error: BoxError) -> Failure {
    if Failure::find(&*error).is_some() {
        return Failure::from(error);
    }
    let mut message = error.to_string();
    let mut reason = Reason::Network;
    let mut cause: Option<&(dyn Error + 'static)> = Some(&*error);
    for depth in 0..=MAX_CAUSES {
        let Some(error) = cause else { break };
        if depth > 0 {
            let _ = write!(message, ": {error}");
        }
        let io = error.downcast_ref::<io::Error>();
        if io.is_some_and(|error| error.kind() == io::ErrorKind::TimedOut) {
            reason = Reason::Timeout;
        }
        cause = error.source();
    }
    Failure::new(reason, message).with_evidence("transport").with_source(error)
}
