//! Supervision of agents: what keeps one from being stuck in silence.
#![cfg_attr(docsrs, feature(doc_cfg))]

mod actors;
mod clock;
mod disk;
mod error;
mod event;
pub mod future;
mod layer;
mod notice;
mod panic;
mod policy;
mod record;
mod registry;
mod run;
mod runs;
mod service;
mod sweep;

pub use self::{
    actors::{
        Actors, ActorsBuilder, ActorsSnapshot, HISTORY_LOST, PostBody, Prompt, ReplySink, Steered,
        Steering, StopReport, TOOL_TIMEOUT, ThreadKey, ThreadPost, TurnCounts, TurnFailure,
    },
    error::{MailboxError, PolicyError},
    layer::WatchdogLayer,
    notice::{NoticeKind, NoticeSink, NoticeVia, RunNotice},
    panic::record_panics,
    policy::{ActorsPolicy, GhostPolicy, WatchdogPolicy},
    record::{NoticeState, RunRecord, RunState},
    registry::{RegistrySnapshot, RunCounts, RunRegistry},
    run::{AgentRun, RunHandle, RunId},
    service::Watchdog,
    sweep::{GhostSweep, Sweeping},
};
