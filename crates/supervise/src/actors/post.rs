//! What a thread is sent: replies, and fixed texts in their place.

use std::{fmt, future::Future, pin::Pin, sync::Arc};

use steadfast_core::{Failure, FaultSide, LOST_HISTORY, Reason, STOPPED_TOOL};

use super::ThreadKey;

/// The evidence of a failure that stands for a command, or any other tool, which was not over in time.
pub const TOOL_TIMEOUT: &str = "tool_timeout";

/// The evidence of a failure that stands for a history which could not be read, and was set aside.
pub const HISTORY_LOST: &str = "history_lost";

/// Which kind of failure ended a turn, as far as it matters to its user.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum TurnFailure {
    /// No provider of models could be reached, or none could answer.
    Provider,
    /// A command was not over in time.
    ToolTimeout,
    /// The history could not be loaded.
    History,
    /// The whole run was not over in time.
    Pipeline,
    /// Anything else, with a word for it: a [`Reason`], `panic`, `restart`.
    Unknown(&'static str),
}

impl TurnFailure {
    /// What a failure is to its user, unless [`ActorsBuilder::kinds`](crate::ActorsBuilder::kinds) decides otherwise: by its evidence
    /// ([`TOOL_TIMEOUT`], [`HISTORY_LOST`]), then by its reason.
    pub fn of(failure: &Failure) -> Self {
        match (failure.evidence(), failure.reason()) {
            (TOOL_TIMEOUT, _) => Self::ToolTimeout,
            (HISTORY_LOST, _) => Self::History,
            ("pipeline_timeout" | "watchdog_timeout", _) => Self::Pipeline,
            // A bug of ours has that reason, too.
            (_, Reason::Unknown) => Self::Unknown("unknown"),
            (_, Reason::CircuitOpen | Reason::Cooling | Reason::Exhausted) => Self::Provider,
            _ if failure.fault() == FaultSide::Provider => Self::Provider,
            (_, reason) => Self::Unknown(reason.as_str()),
        }
    }

    /// The name in logs.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Provider => "provider",
            Self::ToolTimeout => "tool_timeout",
            Self::History => "history",
            Self::Pipeline => "pipeline_timeout",
            Self::Unknown(_) => "unknown",
        }
    }
}

impl fmt::Display for TurnFailure {
    /// The text for the user: fixed, without anything of the error but its kind.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Provider => f.write_str(
                "The model provider can't be reached right now. Please try again in a moment.",
            ),
            Self::ToolTimeout => f.write_str(STOPPED_TOOL),
            Self::History => f.write_str(LOST_HISTORY),
            Self::Pipeline => f.write_str(
                "This took too long and was stopped. Please send it again, or ask for a smaller part of it.",
            ),
            Self::Unknown(kind) => {
                write!(f, "Something went wrong ({kind}). Please send your message again.")
            }
        }
    }
}

/// Something for the user of a thread.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ThreadPost<R> {
    /// The thread.
    pub thread: ThreadKey,
    /// The prompt that it answers.
    pub prompt: u64,
    /// What it is.
    pub body: PostBody<R>,
}

/// What a thread is sent.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PostBody<R> {
    /// The turn's own reply.
    Reply(R),
    /// A fixed text in its place: [`Display`](fmt::Display) is the text.
    Failed(TurnFailure),
}

impl<R> ThreadPost<R> {
    pub(super) const fn new(thread: ThreadKey, prompt: u64, body: PostBody<R>) -> Self {
        Self { thread, prompt, body }
    }
}

/// Sends replies and fixed texts to the users of threads. Implemented for closures that return a future.
///
/// A reply that could not be sent is dropped with a WARN event: retries are the sink's, and a stale reply is worse than none.
pub trait ReplySink<R>: Send + Sync + 'static {
    /// Sends it. A reply has what is left of its prompt's run, a fixed text 30 s.
    ///
    /// # Errors
    ///
    /// It could not be sent.
    fn post(
        &self,
        post: ThreadPost<R>,
    ) -> impl Future<Output = Result<(), Failure>> + Send + 'static;
}

impl<R, F, Fut> ReplySink<R> for F
where
    F: Fn(ThreadPost<R>) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<(), Failure>> + Send + 'static,
{
    fn post(
        &self,
        post: ThreadPost<R>,
    ) -> impl Future<Output = Result<(), Failure>> + Send + 'static {
        self(post)
    }
}

type Posting = Pin<Box<dyn Future<Output = Result<(), Failure>> + Send>>;

/// Any sink.
pub(super) struct BoxedReplies<R>(Arc<dyn Fn(ThreadPost<R>) -> Posting + Send + Sync>);

impl<R: 'static> BoxedReplies<R> {
    pub(super) fn new(sink: impl ReplySink<R>) -> Self {
        Self(Arc::new(move |post| Box::pin(sink.post(post))))
    }

    pub(super) fn post(&self, post: ThreadPost<R>) -> Posting {
        (self.0)(post)
    }
}

impl<R> Clone for BoxedReplies<R> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_failure_has_its_text_and_no_text_has_an_error() {
        let secret = "the raw error";
        for (failure, kind, text) in [
            (Failure::new(Reason::Overloaded, secret), "provider", "can't be reached"),
            (Failure::new(Reason::Network, secret), "provider", "in a moment"),
            (Failure::new(Reason::Auth, secret), "provider", "can't be reached"),
            (Failure::new(Reason::Exhausted, secret), "provider", "can't be reached"),
            (Failure::new(Reason::CircuitOpen, secret), "provider", "can't be reached"),
            (
                Failure::new(Reason::Timeout, secret).with_evidence(TOOL_TIMEOUT),
                "tool_timeout",
                "should be tried again",
            ),
            (
                Failure::new(Reason::Unknown, secret).with_evidence(HISTORY_LOST),
                "history",
                "starts afresh",
            ),
            (Failure::new(Reason::Format, secret), "unknown", "(format)"),
            (Failure::new(Reason::Safety, secret), "unknown", "(safety)"),
            (Failure::new(Reason::Unknown, secret), "unknown", "(unknown)"),
            (
                Failure::from(steadfast_core::BoxError::from(secret)),
                "unknown",
                "send your message again",
            ),
        ] {
            let what = TurnFailure::of(&failure);
            assert_eq!(what.as_str(), kind, "{failure}");
            let shown = what.to_string();
            assert!(shown.contains(text) && !shown.contains(secret), "{shown}");
        }
    }
}
