//! One target on the way to a failure.

use std::{fmt, time::Duration};

use http::StatusCode;

use super::Failure;
use crate::{FaultSide, Reason, Target, redact::redact};

/// One target that was tried or skipped on the way to a failure.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Attempt {
    /// Where it went.
    pub target: Option<Target>,
    /// Why it did not answer.
    pub reason: Reason,
    /// The status it answered with.
    pub status: Option<StatusCode>,
    /// Skipped without a call: cooling, or not able to serve this request.
    pub skipped: bool,
    /// How long it would have to be waited for, counted from the end of the call, as far as that is known:
    /// what the provider asked for, or what is left of a cooldown.
    pub retry_after: Option<Duration>,
    /// Who would have to change something: what is the caller's or the model's fault may quote the request or
    /// the answer in its message.
    pub fault: FaultSide,
    /// The bounded message that came back.
    pub message: Box<str>,
}

impl Attempt {
    /// The attempt that ended with `failure`.
    pub fn from_failure(failure: &Failure) -> Self {
        Self {
            target: failure.0.target.clone(),
            reason: failure.0.because.unwrap_or(failure.0.reason),
            status: failure.0.status,
            // It was not called.
            skipped: failure.0.because.is_some(),
            retry_after: failure.0.retry_after,
            fault: failure.0.fault,
            message: failure.message().into(),
        }
    }

    /// A target that was skipped.
    pub fn skipped(target: Target, reason: Reason, message: impl AsRef<str>) -> Self {
        Self {
            target: Some(target),
            reason,
            status: None,
            skipped: true,
            retry_after: None,
            fault: FaultSide::Local,
            message: redact(message.as_ref()),
        }
    }
}

impl fmt::Display for Attempt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.target {
            Some(target) => write!(f, "{target}: ")?,
            None => f.write_str("call: ")?,
        }
        if self.skipped {
            f.write_str("skipped, ")?;
        }
        self.reason.fmt(f)?;
        if let Some(status) = self.status {
            write!(f, " ({})", status.as_u16())?;
        }
        Ok(())
    }
}
