//! Conversions between a failure and other errors.

use std::{error::Error, fmt};

use super::{BoxError, Failure, Inner, MAX_CAUSES};
use crate::Reason;

impl Failure {
    /// The first failure in the `source()` chain of `error`, itself included; at most
    /// [`MAX_CAUSES`] links are followed, so a cycle ends.
    pub fn find<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a Failure> {
        let mut cause = Some(error);
        for _ in 0..=MAX_CAUSES {
            let error = cause?;
            if let Some(failure) = error.downcast_ref() {
                return Some(failure);
            }
            cause = error.source();
        }
        None
    }

    /// A copy without its source, which can not be cloned.
    fn without_source(&self) -> Self {
        let inner = &*self.0;
        Self(Box::new(Inner {
            message: inner.message.clone(),
            evidence: inner.evidence.clone(),
            request_id: inner.request_id.clone(),
            target: inner.target.clone(),
            usage: inner.usage,
            trail: inner.trail.clone(),
            upstream: inner.upstream.clone(),
            source: None,
            ..*inner
        }))
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.reason.fmt(f)?;
        if let Some(status) = self.0.status {
            write!(f, " ({})", status.as_u16())?;
        }
        if let Some(target) = &self.0.target {
            write!(f, " at {target}")?;
        }
        if !self.0.message.is_empty() {
            write!(f, ": {}", self.0.message)?;
        }
        Ok(())
    }
}

impl fmt::Debug for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let inner = &*self.0;
        let mut out = f.debug_struct("Failure");
        out.field("reason", &inner.reason)
            .field("retry", &inner.retry)
            .field("failover", &inner.failover)
            .field("scope", &inner.scope)
            .field("status", &inner.status)
            .field("target", &inner.target)
            .field("message", &inner.message)
            .field("evidence", &inner.evidence)
            .field("attempts", &inner.attempts);
        if let Some(wait) = inner.retry_after {
            out.field("retry_after", &wait);
        }
        if !inner.trail.is_empty() {
            out.field("trail", &inner.trail);
        }
        if let Some(source) = &inner.source {
            out.field("source", source);
        }
        out.finish_non_exhaustive()
    }
}

impl Error for Failure {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.0.source.as_deref().map(|source| source as &(dyn Error + 'static))
    }
}

impl From<BoxError> for Failure {
    /// Takes the failure out of the box, or finds one in its causes; anything else becomes
    /// [`Reason::Unknown`] with the box as its source. So tower's own layers, which box their
    /// errors, can be used in a stack.
    fn from(error: BoxError) -> Self {
        let error = match error.downcast::<Failure>() {
            Ok(failure) => return *failure,
            Err(error) => error,
        };
        match Failure::find(&*error) {
            Some(found) => found.without_source().with_source(error),
            None => Failure::new(Reason::Unknown, error.to_string())
                .with_evidence("error")
                .with_source(error),
        }
    }
}

/// An error that becomes a [`Failure`]: what every layer requires of the service inside it. It is every
/// `Into<Failure>`, with a better message of the compiler for the others.
#[diagnostic::on_unimplemented(
    message = "the error `{Self}` does not become a `Failure`",
    label = "the inner service fails with `{Self}`",
    note = "a `ClassifyLayer` next to the inner service takes any error; without one, convert it: \
            `ServiceBuilder::new().layer(..).map_err(BoxError::from).service(..)`",
    note = "for a type of your own, `impl From<{Self}> for Failure` says which reason it has"
)]
pub trait IntoFailure: Into<Failure> {}

#[diagnostic::do_not_recommend]
impl<E: Into<Failure>> IntoFailure for E {}

/// An error that can be boxed: what a classifier requires of the service inside it. It is every
/// `Into<BoxError>`, with a better message of the compiler for the others.
#[diagnostic::on_unimplemented(
    message = "a classifier can not read the error `{Self}`: it is no `std::error::Error + Send + Sync`",
    label = "the inner service fails with `{Self}`",
    note = "implement `std::error::Error` for it, or convert it next to the inner service: \
            `.map_err(|error| BoxError::from(format!(\"{{error:?}}\")))`"
)]
pub trait IntoBoxError: Into<BoxError> {}

#[diagnostic::do_not_recommend]
impl<E: Into<BoxError>> IntoBoxError for E {}

impl From<std::convert::Infallible> for Failure {
    fn from(never: std::convert::Infallible) -> Self {
        match never {}
    }
}
