//! The configured engine: a user's own opinion first, then the built-in rules, read through a
//! recovery table.

use std::{borrow::Cow, fmt, sync::Arc};

use http::StatusCode;
use steadfast_core::{BoxError, Failure, Reason, RecoveryTable, Target, Upstream};

use crate::{ClassifyPolicy, Evidence, TransportErrorKind, Verdict, engine};

/// What a user's own rules say of an answer or an error.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Opinion {
    /// Nothing: the built-in rules decide.
    None,
    /// It is fine, whatever the built-in rules say: an HTTP layer hands it on, status and body
    /// unchanged. Where there is nothing to hand on (an error of the transport, an error that a chat
    /// client returned) the built-in rules decide.
    Fine,
    /// It is this failure.
    Failure(Verdict),
}

impl From<Verdict> for Opinion {
    fn from(verdict: Verdict) -> Self {
        Opinion::Failure(verdict)
    }
}

impl From<Reason> for Opinion {
    fn from(reason: Reason) -> Self {
        Opinion::Failure(reason.into())
    }
}

impl<O: Into<Opinion>> From<Option<O>> for Opinion {
    fn from(opinion: Option<O>) -> Self {
        opinion.map_or(Opinion::None, Into::into)
    }
}

/// A user's own rules, asked before the built-in ones. Implemented for closures that return an
/// [`Opinion`], or an `Option` of one, of a [`Reason`] or of a [`Verdict`]; `None` is *no opinion*.
///
/// ```
/// use http::StatusCode;
/// use steadfast_classify::{Classifier, Evidence, Opinion};
/// use steadfast_core::Reason;
///
/// let classifier = Classifier::default().with_override(|evidence: &Evidence<'_>| {
///     if evidence.body.starts_with(b"E1042") {
///         Reason::Overloaded.into()
///     } else if evidence.status == Some(StatusCode::CONFLICT) {
///         // Somebody else did it already.
///         Opinion::Fine
///     } else {
///         Opinion::None
///     }
/// });
/// let verdict = classifier.judge(&Evidence::new(b"E1042 try again")).unwrap();
/// assert_eq!(verdict.reason, Reason::Overloaded);
/// let conflict = Evidence::new(b"exists").with_status(StatusCode::CONFLICT);
/// assert_eq!(classifier.judge(&conflict), None);
/// let limited = Evidence::new(b"").with_status(StatusCode::TOO_MANY_REQUESTS);
/// assert_eq!(classifier.judge(&limited).unwrap().reason, Reason::RateLimit);
/// ```
pub trait ClassifyOverride: Send + Sync {
    /// Judges `evidence`, or has no opinion. Called for every refusal, error event and transport
    /// error, and over HTTP for whole JSON answers too: check the status before judging one of
    /// those. Must not block.
    fn classify(&self, evidence: &Evidence<'_>) -> Opinion;
}

impl<F, O> ClassifyOverride for F
where
    F: Fn(&Evidence<'_>) -> O + Send + Sync,
    O: Into<Opinion>,
{
    fn classify(&self, evidence: &Evidence<'_>) -> Opinion {
        self(evidence).into()
    }
}

/// Takes secrets out of a text.
type Masking = Arc<dyn for<'t> Fn(&'t [u8]) -> Cow<'t, [u8]> + Send + Sync>;

/// Judges errors. Cheap to clone; clones share the table and the user's rules.
#[derive(Clone, Default)]
pub struct Classifier {
    own: Option<Arc<dyn ClassifyOverride>>,
    table: Option<Arc<RecoveryTable>>,
    policy: Option<Arc<ClassifyPolicy>>,
    mask: Option<Masking>,
    rules: Rules,
}

/// The built-in rules: those for LLM APIs, or those for any HTTP service.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Rules {
    #[default]
    Llm,
    Http,
}

impl fmt::Debug for Classifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Classifier")
            .field("own", &self.own.is_some())
            .field("table", &self.table.is_some())
            .field("policy", &self.policy)
            .field("mask", &self.mask.is_some())
            .field("rules", &self.rules)
            .finish()
    }
}

impl Classifier {
    /// The built-in rules for LLM APIs and the default table.
    ///
    /// Reads the tables (`data/` in the crate) once a process, in a few milliseconds; all classifiers
    /// share them.
    pub fn new() -> Self {
        engine::warm();
        Self::default()
    }

    /// The built-in rules for any HTTP service, LLM API or not: an answer is judged by its status and
    /// headers, never by its body. Errors without an answer are judged as by [`new`](Self::new).
    pub fn http() -> Self {
        Self { rules: Rules::Http, ..Self::new() }
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

    /// Changes what the rules find as `policy` says.
    #[must_use]
    pub fn with_policy(mut self, policy: ClassifyPolicy) -> Self {
        self.policy = (policy != ClassifyPolicy::default()).then(|| Arc::new(policy));
        self
    }

    /// Takes secrets that are known by value out of what a provider wrote before anybody reads it: `mask` returns all
    /// of a text with a mask in the place of each, or the text itself. What looks like a secret is always masked.
    #[must_use]
    pub fn with_mask(
        mut self,
        mask: impl for<'t> Fn(&'t [u8]) -> Cow<'t, [u8]> + Send + Sync + 'static,
    ) -> Self {
        self.mask = Some(Arc::new(mask));
        self
    }

    /// Judges `evidence`; `None` when it is fine.
    pub fn judge(&self, evidence: &Evidence<'_>) -> Option<Verdict> {
        match self.opinion(evidence) {
            Opinion::None => self.built_in(evidence),
            Opinion::Fine => None,
            Opinion::Failure(verdict) => Some(verdict),
        }
    }

    /// What the user's own rules say.
    fn opinion(&self, evidence: &Evidence<'_>) -> Opinion {
        self.own.as_ref().map_or(Opinion::None, |own| own.classify(evidence))
    }

    fn built_in(&self, evidence: &Evidence<'_>) -> Option<Verdict> {
        match self.rules {
            Rules::Llm => engine::judge(evidence),
            Rules::Http => engine::judge_http(evidence),
        }
    }

    /// Whether bodies are read as those of an LLM API.
    pub(crate) fn is_llm(&self) -> bool {
        self.rules == Rules::Llm
    }

    /// Whether somebody reads whole answers that have a status of success.
    pub(crate) fn reads_answers(&self) -> bool {
        self.is_llm() || self.own.is_some()
    }

    /// Whether an HTTP answer of this status is a failure, unless the user's own rules find it fine.
    pub(crate) fn refuses(&self, status: StatusCode) -> bool {
        match self.rules {
            // No LLM API redirects a call.
            Rules::Llm => {
                !status.is_informational()
                    && !status.is_success()
                    && status != StatusCode::NOT_MODIFIED
            }
            Rules::Http => status.as_u16() >= 400,
        }
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
        let failure = self.masked(failure);
        self.by_policy(self.by_rules(failure, target))
    }

    fn masked(&self, failure: Failure) -> Failure {
        match &self.mask {
            Some(mask) => failure.with_mask(|text| mask(text)),
            None => failure,
        }
    }

    fn by_policy(&self, failure: Failure) -> Failure {
        match &self.policy {
            Some(policy) => self.table(|table| policy.apply(failure, table)),
            None => failure,
        }
    }

    fn by_rules(&self, failure: Failure, target: Option<&Target>) -> Failure {
        if let Some(upstream) = failure.upstream() {
            let opinion = self.opinion(&of(upstream, target));
            return self.answered(failure, opinion, target);
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

    /// The failure that an event of a stream reports; `None` when the user's own rules find it fine.
    pub(crate) fn reported(&self, upstream: Upstream, target: Option<&Target>) -> Option<Failure> {
        let opinion = self.opinion(&of(&upstream, target));
        match opinion {
            Opinion::Fine => None,
            opinion => {
                let failure = self.masked(Failure::from_upstream(upstream));
                let failure = self.answered(failure, opinion, target);
                Some(self.by_policy(failure))
            }
        }
    }

    /// Judges a failure that carries the provider's answer, of which the user's own rules have this
    /// opinion.
    fn answered(&self, failure: Failure, opinion: Opinion, target: Option<&Target>) -> Failure {
        let verdict = match opinion {
            Opinion::Failure(verdict) => Some(verdict),
            Opinion::None | Opinion::Fine => failure.upstream().and_then(|upstream| {
                let mut evidence = of(upstream, target);
                self.built_in(&evidence).or_else(|| {
                    // Whoever made a failure of an answer that seems fine had a reason to: an error
                    // event is one whatever is in it.
                    evidence.status = None;
                    self.built_in(&evidence)
                })
            }),
        };
        match verdict {
            Some(verdict) => self.finish(verdict, failure, target),
            None => with_target(failure, target),
        }
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
        let verdict = match self.opinion(&evidence) {
            Opinion::Failure(verdict) => Some(verdict),
            Opinion::None | Opinion::Fine => self.built_in(&evidence),
        };
        verdict.filter(|verdict| verdict.reason != Reason::Unknown)
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

/// What there is to judge of an answer.
fn of<'a>(upstream: &'a Upstream, target: Option<&'a Target>) -> Evidence<'a> {
    let mut evidence = Evidence::from_upstream(upstream);
    evidence.provider = target.map(Target::provider);
    evidence
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
