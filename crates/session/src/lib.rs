//! Conversations of agents on disk, that survive a crash.
//!
//! * [`SessionLayer`] gives an agent the history of its thread and keeps what it adds: each turn is saved when it ends.
//! * [`SessionStore`] has the threads: a folder each, one caller at a time, as many open as its [policy](SessionPolicy) allows.
//!   It also lists, shows and verifies them without a lock, for the command line.
//! * [`PromptParts`] puts the system prompt together, anew for each run.
//!
//! ```
//! use steadfast_chat::{ChatRequest, Message};
//! use steadfast_core::Failure;
//! use steadfast_session::{SessionLayer, SessionPrompt, SessionRun, SessionStore, SessionTurn};
//! use tower::{Layer, ServiceExt, service_fn};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let folder = std::env::temp_dir().join(format!("steadfast-session-doc-{}", std::process::id()));
//! // The agent gets the whole history, and answers with what it adds.
//! let agent = service_fn(|run: SessionRun| async move {
//!     let text = format!("message {}", run.request.messages.len());
//!     Ok::<_, Failure>(SessionTurn::from(Message::assistant(text)))
//! });
//! let layer = SessionLayer::new(SessionStore::new(&folder));
//!
//! let ask = || SessionPrompt::new("slack/C42", ChatRequest::user("hello")).with_key("m-1");
//! let reply = layer.layer(agent).oneshot(ask()).await?;
//! assert_eq!((reply.text(), reply.saved), ("message 1".to_owned(), true));
//!
//! // A retry of the same prompt gets the same answer; nothing is added twice.
//! assert!(layer.layer(agent).oneshot(ask()).await?.replayed);
//!
//! // Another process goes on where this one was killed.
//! drop(layer);
//! let layer = SessionLayer::new(SessionStore::new(&folder));
//! let more = SessionPrompt::new("slack/C42", ChatRequest::user("and?"));
//! assert_eq!(layer.layer(agent).oneshot(more).await?.text(), "message 3");
//! # std::fs::remove_dir_all(&folder).ok();
//! # Ok(())
//! # }
//! ```
//!
//! # What a history has in it
//!
//! *Turns that have ended.* A turn is what the agent adds between two saves: an answer, or an answer with tool calls and their results.
//! An agent of several steps reports each with [`TurnSink::end_turn`] and returns the last one. The prompt enters the history with
//! the first turn of its run, so a run that fails before leaves nothing, and a user who sends a message again is not read twice. A run
//! that is interrupted after a turn goes on there when its prompt comes again, with its key.
//!
//! What never enters it: an answer that failed, has not ended or is empty; the system prompt; a turn that is reported after its run.
//!
//! # What a crash leaves
//!
//! A turn is appended to `log.jsonl` and then saved with `context.jsonl`; each is on the disk when the call returns. `kill -9` at any
//! instant loses at most the turn in flight. When a thread is opened, the two are put together ([`OpenReport`]): a damaged context is
//! replaced by the one before it and the log's turns since; when there is none, by the log, if it has every turn of the session; else
//! the thread starts afresh, everything damaged is kept beside it, and its user is informed ([`LOST_HISTORY`]).
//!
//! A full disk or a missing permission to write delays the saving: the turn is kept in memory, its answer is delivered, and the next
//! turn or [`SessionStore::flush`] tries again. Where the context can be written and the log can not, a crash would lose the keys of
//! the prompts: such a turn is not saved either. A file that may not be *read* is an error, never an empty history.
//!
//! # Where to put this layer
//!
//! Around the agent's loop, inside whatever sends a prompt again:
//!
//! ```text
//! mailbox of the thread
//! retry of the prompt, with its key
//! Session             the history
//! the agent's loop    tools, several calls of a model
//! Deadline .. client  the layers around each call of a model
//! ```
//!
//! A limit inside of it counts runs, and no prompts that wait for a busy thread: those wait before they ask for it.
//!
//! **Wrong:** a retry between `Session` and the agent's loop. The second attempt is given the history as it was before the first,
//! and reports the first one's turns again: they are in the history twice. **Wrong:** `Session` around each call of a model. A tool
//! call is then saved without its result, and a crash before the result leaves a history that has to be repaired by a made-up one.

#![cfg_attr(docsrs, feature(doc_cfg))]

mod disk;
mod entry;
mod error;
mod event;
pub mod future;
mod inspect;
mod keys;
mod layer;
mod memory;
mod name;
mod parts;
mod policy;
mod reconcile;
mod request;
mod run;
mod scope;
mod service;
mod sink;
mod slot;
mod store;
mod thread;

pub use steadfast_core::LOST_HISTORY;

pub use self::{
    entry::{SessionEntry, StartEntry, StartReason, TurnEntry},
    error::{PolicyError, SaveError, SessionError},
    inspect::{SessionSummary, SessionTranscript, ThreadCheck},
    layer::SessionLayer,
    parts::PromptParts,
    policy::SessionPolicy,
    reconcile::Opened,
    request::{SessionPrompt, SessionReply, SessionRun, SessionTurn},
    scope::{ScopeError, SessionScope},
    service::Session,
    sink::TurnSink,
    store::{FlushReport, SessionSnapshot, SessionStore},
    thread::{OpenReport, SessionThread, TurnSaved},
};
