//! One target on the way to a failure.

use std::fmt;

use http::StatusCode;

use super::Failure;
use crate::{Reason, Target, redact::redact};

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
