//! What people are sent when a run does not succeed.

use std::{fmt, future::Future, pin::Pin, sync::Arc};

use serde::{Deserialize, Serialize};
use steadfast_core::Failure;

use crate::{RunId, RunRecord, RunState};

/// What a notice says. Both texts are fixed: no model writes them, and nothing of an error is in them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum NoticeKind {
    /// The run had not ended when its time was over.
    NotInTime,
    /// The run failed, or ended with its process.
    NotSuccessful,
}

impl NoticeKind {
    /// The text for the user.
    pub const fn text(self) -> &'static str {
        match self {
            Self::NotInTime => {
                "A task that was running in the background did not finish in time and was stopped."
            }
            Self::NotSuccessful => {
                "A task that was running in the background did not finish successfully."
            }
        }
    }

    /// The name in logs.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::NotInTime => "not_in_time",
            Self::NotSuccessful => "not_successful",
        }
    }
}

/// By which way a notice went.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum NoticeVia {
    /// The parent agent announces it.
    Parent,
    /// It went to the channel itself.
    Direct,
    /// It is a dead letter, which is delivered later.
    Letter,
}

impl NoticeVia {
    /// The name in logs.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Parent => "parent",
            Self::Direct => "direct",
            Self::Letter => "letter",
        }
    }
}

/// The notice of a run that failed, was given up by the watchdog, or was found by the sweep.
///
/// A run has at most one. It is sent again, with the same key, when nobody confirmed it: after a crash, or after the sink failed. So
/// whoever delivers it keeps the keys of what was delivered.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RunNotice {
    /// The same for every attempt: `run-notice:` and the run's name.
    pub key: String,
    /// The run.
    pub run: RunId,
    /// The run that waits for it, whose agent may announce it.
    pub parent: Option<RunId>,
    /// Who pays.
    pub tenant: Option<Box<str>>,
    /// Which agent ran.
    pub agent: Option<Box<str>>,
    /// Which conversation.
    pub session: Option<Box<str>>,
    /// The channel, in the words of whoever delivers.
    pub destination: Option<Box<str>>,
    /// What it says.
    pub kind: NoticeKind,
    /// The run's terminal state.
    pub state: RunState,
}

impl RunNotice {
    pub(crate) fn of(record: &RunRecord) -> Self {
        let kind = match record.state {
            RunState::WatchdogTimeout => NoticeKind::NotInTime,
            _ => NoticeKind::NotSuccessful,
        };
        Self {
            key: format!("run-notice:{}", record.id),
            run: record.id.clone(),
            parent: record.parent.clone(),
            tenant: record.tenant.clone(),
            agent: record.agent.clone(),
            session: record.session.clone(),
            destination: record.destination.clone(),
            kind,
            state: record.state,
        }
    }

    /// The text for the user.
    pub const fn text(&self) -> &'static str {
        self.kind.text()
    }
}

/// Takes notices and sees to it that they arrive. Implemented for closures that return a future.
///
/// When the future returns the way, the notice is somebody else's: delivered, or kept on disk as a letter. When it fails, panics or takes
/// longer than two minutes, the notice is sent again with a later sweep.
///
/// ```
/// use steadfast_core::Failure;
/// use steadfast_supervise::{NoticeVia, RunNotice, RunRegistry};
///
/// let registry = RunRegistry::in_memory().with_notices(async |notice: RunNotice| {
///     println!("{}: {}", notice.destination.as_deref().unwrap_or("log"), notice.text());
///     Ok::<_, Failure>(NoticeVia::Direct)
/// });
/// # let _ = registry;
/// ```
pub trait NoticeSink: Send + Sync + 'static {
    /// Takes a notice.
    ///
    /// # Errors
    ///
    /// It could not be handed on, or the sink can not say whether it was.
    fn send(
        &self,
        notice: RunNotice,
    ) -> impl Future<Output = Result<NoticeVia, Failure>> + Send + 'static;
}

impl<F, Fut> NoticeSink for F
where
    F: Fn(RunNotice) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<NoticeVia, Failure>> + Send + 'static,
{
    fn send(
        &self,
        notice: RunNotice,
    ) -> impl Future<Output = Result<NoticeVia, Failure>> + Send + 'static {
        self(notice)
    }
}

type Sending = Pin<Box<dyn Future<Output = Result<NoticeVia, Failure>> + Send>>;

/// Any sink.
#[derive(Clone)]
pub(crate) struct BoxedSink(Arc<dyn Fn(RunNotice) -> Sending + Send + Sync>);

impl BoxedSink {
    pub(crate) fn new(sink: impl NoticeSink) -> Self {
        Self(Arc::new(move |notice| Box::pin(sink.send(notice))))
    }

    pub(crate) fn send(&self, notice: RunNotice) -> Sending {
        (self.0)(notice)
    }
}

impl fmt::Debug for BoxedSink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("BoxedSink")
    }
}
