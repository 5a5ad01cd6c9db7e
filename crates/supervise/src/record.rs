//! What is known of a run, in memory and on disk.

use serde::{Deserialize, Serialize};
use steadfast_core::{Call, Reason, time::millis};

use crate::{AgentRun, NoticeVia, RunId, RunNotice};

/// Where a run is in its life. All but the first are terminal, and a run has exactly one of those.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum RunState {
    /// Registered and not ended, as far as is known.
    Running,
    /// It returned its result.
    Completed,
    /// It returned a failure, or panicked.
    Failed,
    /// Whoever waited for it dropped it, or it was cancelled by its caller.
    Cancelled,
    /// The watchdog gave it up.
    WatchdogTimeout,
    /// The sweep found it long after it should have ended.
    GhostSweep,
}

impl RunState {
    /// The name in logs, on disk and in metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
            Self::WatchdogTimeout => "watchdog_timeout",
            Self::GhostSweep => "ghost_sweep",
        }
    }

    /// Whether nothing but a late result can follow.
    pub const fn is_terminal(self) -> bool {
        !matches!(self, Self::Running)
    }

    /// Whether somebody has to be notified.
    pub const fn is_announced(self) -> bool {
        matches!(self, Self::Failed | Self::WatchdogTimeout | Self::GhostSweep)
    }
}

impl std::fmt::Display for RunState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.as_str())
    }
}

/// What became of a run's notice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum NoticeState {
    /// None is needed.
    None,
    /// It is to be sent, or was sent and nobody has confirmed it.
    Pending,
    /// It was taken, by this way.
    Sent(NoticeVia),
    /// Nobody took it, and there were too many of those.
    Dropped,
}

/// What is known of a run.
///
/// On disk it is the value of a record; members that are not known, of a later version, are ignored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct RunRecord {
    /// Its name.
    pub id: RunId,
    /// The run that waits for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<RunId>,
    /// Who pays.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant: Option<Box<str>>,
    /// Which agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<Box<str>>,
    /// Which task.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task: Option<Box<str>>,
    /// Which conversation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<Box<str>>,
    /// Which channel hears of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub destination: Option<Box<str>>,
    /// Where it is.
    pub state: RunState,
    /// When it was registered: milliseconds since 1970.
    pub started_ms: u64,
    /// When it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_ms: Option<u64>,
    /// Why it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<Box<str>>,
    /// The process ended while it ran, in good order: the next sweep takes it, without grace.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub interrupted: bool,
    /// Its notice.
    pub notice: NoticeState,
    /// What it returned after it had been given up: recorded, and not announced.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub late: Option<RunState>,
}

impl RunRecord {
    pub(crate) fn of<T>(run: &AgentRun<T>, started_ms: u64) -> Self {
        let context = run.context();
        // Copies, since a record outlives the request.
        let boxed = |text: Option<&str>| text.map(Box::from);
        Self {
            id: run.id().clone(),
            parent: run.parent().map(|parent| parent.id().clone()),
            tenant: boxed(context.tenant()),
            agent: boxed(context.agent()),
            task: boxed(context.task()),
            session: boxed(context.session()),
            destination: boxed(run.destination()),
            state: RunState::Running,
            started_ms,
            ended_ms: None,
            reason: None,
            interrupted: false,
            notice: NoticeState::None,
            late: None,
        }
    }

    /// The notice that has to be sent for it.
    pub(crate) fn notice(&self) -> Option<RunNotice> {
        (self.notice == NoticeState::Pending).then(|| RunNotice::of(self))
    }
}

/// How a run has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RunEnd {
    pub(crate) state: RunState,
    pub(crate) reason: Option<&'static str>,
}

impl RunEnd {
    pub(crate) const fn of(state: RunState) -> Self {
        Self { state, reason: None }
    }

    pub(crate) const fn failed(reason: Reason) -> Self {
        match reason {
            Reason::Cancelled => Self::of(RunState::Cancelled),
            reason => Self { state: RunState::Failed, reason: Some(reason.as_str()) },
        }
    }

    pub(crate) const fn panicked() -> Self {
        Self { state: RunState::Failed, reason: Some("panic") }
    }
}

/// Wall time in milliseconds since 1970.
pub(crate) fn wall_ms() -> u64 {
    steadfast_core::time::wall().duration_since(std::time::UNIX_EPOCH).map_or(0, millis)
}
