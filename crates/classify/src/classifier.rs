//! The configured engine: a user's own opinion first, then the built-in rules, read through a
//! recovery table.

use std::{fmt, sync::Arc};

use steadfast_core::{BoxError, Failure, Reason, RecoveryTable, Target};

use crate::{Evidence, TransportErrorKind, Verdict, engine};

/// A user's own rules, asked before the built-in ones. Implemented for closures that return
/// `Option<Reason>` or `Option<Verdict>`; `None` is *no opinion*.
///
/// ```
/// use steadfast_classify::{Classifier, Evidence};
/// use steadfast_core::Reason;
///
/// let classifier = Classifier::default().with_override(|evidence: &Evidence<'_>| {
///     evidence.body.starts_with(b"E1042").then_some(Reason::Overloaded)
/// });
/// let verdict = classifier.judge(&Evidence::new(b"E1042 try again")).unwrap();
/// assert_eq!(verdict.reason, Reason::Overloaded);
/// ```
pub trait ClassifyOverride: Send + Sync {
    /// Judges `evidence`, or has no opinion. Called for every refusal, error event and transport
    /// error, and over HTTP for whole JSON answers too: check the status before judging one of
    /// those. Must not block.
    fn classify(&self, evidence: &Evidence<'_>) -> Option<Verdict>;
}

impl<F, V> ClassifyOverride for F
where
    F: Fn(&Evidence<'_>) -> Option<V> + Send + Sync,
    V: Into<Verdict>,
{
    fn classify(&self, evidence: &Evidence<'_>) -> Option<Verdict> {
        self(evidence).map(Into::into)
    }
}

/// Judges errors. Cheap to clone; clones share the table and the user's rules.
#[derive(Clone, Default)]
pub struct Classifier {
    own: Option<Arc<dyn ClassifyOverride>>,
    table: Option<Arc<RecoveryTable>>,
}

impl fmt::Debug for Classifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Classifier")
            .field("own", &self.own.is_some())
            .field("table", &self.table.is_some())
            .finish()
    }
}

impl Classifier {
    /// The built-in rules and the default table.
    ///
    /// Reads the tables (`data/` in the crate) once a process, in a few milliseconds; all classifiers
    /// share them.
    pub fn new() -> Self {
        engine::warm();
        Self::default()
    }

    /// Asks `own` first.
    #[must_use]
    pub fn with_override(mut self, own: impl ClassifyOverride + 'static) -> Self {
        self.own = Some(Arc::new(own));
        self
    }

    /// Reads reasons through `table` rather than the default one.
    #[must_use]
    pub fn with_table(mut self, table: RecoveryTable) -> Self {
        self.table = Some(Arc::new(table));
        self
    }

    /// Judges `evidence`; `None` when it is fine.
    pub fn judge(&self, evidence: &Evidence<'_>) -> Option<Verdict> {
        self.own.as_ref().and_then(|own| own.classify(evidence)).or_else(|| engine::judge(evidence))
    }

    /// Lets `with` use the table.
    pub fn table<T>(&self, with: impl FnOnce(&RecoveryTable) -> T) -> T {
        match &self.table {
            Some(table) => with(table),
            None => with(&RecoveryTable::default()),
        }
    }

    /// Judges a failure that nobody has judged yet: one that carries the provider's answer, or an
    /// unknown one with a cause. Others, such as timeouts and refusals of our own, are given back
    /// as they are.
    pub fn failure(&self, failure: Failure, target: Option<&Target>) -> Failure {
        if let Some(upstream) = failure.upstream() {
            let mut evidence = Evidence::from_upstream(upstream);
            evidence.provider = target.map(Target::provider);
            let verdict = self.judge(&evidence).or_else(|| {
                // Whoever made a failure of an answer that seems fine had a reason to: an error
                // event is one whatever is in it.
                evidence.status = None;
                self.judge(&evidence)
            });
            return match verdict {
                Some(verdict) => self.finish(verdict, failure, target),
                None => with_target(failure, target),
            };
        }
        if failure.reason() != Reason::Unknown {
            return with_target(failure, target);
        }
        let Some(source) = std::error::Error::source(&failure) else {
            return with_target(failure, target);
        };
        let transport = engine::transport::find(source);
        let text = chain(source);
        match self.cause(transport, &text, target) {
            Some(verdict) => self.finish(verdict, failure, target),
            None => with_target(failure, target),
        }
    }

    /// Judges any error: a [`Failure`] is found in it, a transport error is recognised by its
    /// type, and what remains by its text.
    pub fn error(&self, error: impl Into<BoxError>, target: Option<&Target>) -> Failure {
        self.failure(Failure::from(error.into()), target)
    }

    fn cause(
        &self,
        transport: Option<TransportErrorKind>,
        text: &str,
        target: Option<&Target>,
    ) -> Option<Verdict> {
        let mut evidence = Evidence::new(text.as_bytes());
        evidence.provider = target.map(Target::provider);
        evidence.transport = transport;
        self.judge(&evidence).filter(|verdict| verdict.reason != Reason::Unknown)
    }

    /// Applies the table and names the target, and says so.
    pub(crate) fn finish(
        &self,
        verdict: Verdict,
        failure: Failure,
        target: Option<&Target>,
    ) -> Failure {
        let failure = self.table(|table| verdict.apply(failure, table));
        let failure = with_target(failure, target);
        tracing::debug!(
            name: "steadfast::classify::classified",
            target: "steadfast::classify",
            reason = failure.reason().as_str(),
            evidence = failure.evidence(),
            status = failure.status().map(|status| status.as_u16()),
            retry = ?failure.retry(),
            target = failure.target().map(tracing::field::display),
            "classified a failure",
        );
        failure
    }
}

fn with_target(failure: Failure, target: Option<&Target>) -> Failure {
    match target {
        Some(target) if failure.target().is_none() => failure.with_target(target.clone()),
        _ => failure,
    }
}

/// The texts of an error and its causes, without those that repeat.
fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    for _ in 0..steadfast_core::MAX_CAUSES {
        let Some(error) = cause else { break };
        let next = error.to_string();
        if !text.contains(&next) {
            text.push_str(": ");
            text.push_str(&next);
        }
        cause = error.source();
    }
    text
}
