//! Supervision of agents: what keeps one from being stuck without anybody noticing.
//!
//! * [`Actors`]: one mailbox a thread. Its prompts run in order, a steering message and an abort overtake them, and whatever happens
//!   to a turn, its user gets a reply or a fixed text and the next prompt runs.
//! * [`WatchdogLayer`]: gives up runs of agents that take too long, and spares a parent that waits for a live child.
//! * [`RunRegistry`]: every run, on disk before it starts, with exactly one terminal state and at most one [`RunNotice`].
//! * [`GhostSweep`]: finds the runs that a crash left running.
//!
//! | limit | default | what happens then |
//! |---|---|---|
//! | prompts of a thread that wait | 20 | the next one is refused ([`MailboxError`]) |
//! | a prompt's whole run | 600 s | dropped, a fixed text, the next prompt |
//! | an idle mailbox | 300 s | removed, made again on demand |
//! | a run of `n` steps | `n` x 60 s, at most 600 s | dropped, `watchdog_timeout`, a notice |
//! | a run without steps | 600 s | the same |
//! | a run that is still marked as running | 720 s | `ghost_sweep`, a notice |
//!
//! ```
//! use std::{num::NonZeroU32, time::Duration};
//! use steadfast_core::Failure;
//! use steadfast_supervise::{
//!     AgentRun, GhostPolicy, GhostSweep, NoticeVia, RunNotice, RunRegistry, RunState, WatchdogLayer,
//! };
//! use tower::{ServiceBuilder, ServiceExt, service_fn};
//!
//! # #[tokio::main(flavor = "current_thread", start_paused = true)]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let folder = std::env::temp_dir().join(format!("steadfast-supervise-doc-{}", std::process::id()));
//! let registry = RunRegistry::open(&folder).await?.with_notices(async |notice: RunNotice| {
//!     println!("to {:?}: {}", notice.destination, notice.text());
//!     Ok::<_, Failure>(NoticeVia::Direct)
//! });
//! let _sweeping = GhostSweep::new(registry.clone(), GhostPolicy::default())?.spawn();
//!
//! let agent = ServiceBuilder::new()
//!     .layer(WatchdogLayer::default().with_registry(registry.clone()))
//!     .service(service_fn(async |_: AgentRun<&str>| {
//!         tokio::time::sleep(Duration::from_secs(1_000)).await;
//!         Ok::<_, Failure>("too late")
//!     }));
//!
//! let run = AgentRun::new("find the bug").with_max_steps(NonZeroU32::new(4)).with_destination("slack:C01");
//! let id = run.id().clone();
//! let failure = agent.oneshot(run).await.unwrap_err();
//! assert_eq!(
//!     failure.message(),
//!     "the run was not over in time: limit of 240s, set by `per_step_timeout_ms`; given up after 240s",
//! );
//! assert_eq!(registry.get(&id).unwrap().state, RunState::WatchdogTimeout);
//!
//! // When the process ends: what still runs is for the next one's sweep.
//! registry.close(Duration::from_secs(30)).await;
//! # std::fs::remove_dir_all(&folder).ok();
//! # Ok(())
//! # }
//! ```
//!
//! # Where to put this layer
//!
//! [`WatchdogLayer`] around the runs that somebody else waits for: sub-agents, jobs in the background. [`Actors`] are outermost, around
//! the turn of an agent, which makes such runs with [`AgentRun::child`] or [`AgentRun::new`]:
//!
//! ```text
//! Actors              600 s for a prompt; nothing leaves a turn
//!   the agent's turn
//!     Watchdog        one for each sub-agent
//!       a sub-agent
//!         Deadline    and the other layers of its calls
//! ```
//!
//! **Wrong:** `Watchdog` as the service of `Actors`, around the whole turn, with a sink for notices. A turn that fails then is reported
//! twice: as the text of the mailbox, and as the notice of the run.
//!
//! **Wrong:** retries around `Watchdog`. Each attempt is a run of its own with a notice of its own, and has a new time limit. Retries belong
//! inside, where they share the run's deadline.
//!
//! # Times
//!
//! A run's limit counts the time in which it works itself; while a child of it lives, its clock is stopped. A child lives until it ends, is
//! dropped, or its own deadline passes. What nothing moves is the hard limit of `max_run_timeout`, the deadline of the run's caller, and
//! that of its parent: a child never has a later deadline than its parent, and the sweep never meets a run that lives.

#![cfg_attr(docsrs, feature(doc_cfg))]
mod actors;
mod clock;
mod disk;
mod error;
mod event;
pub mod future;
mod guard;
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
