//! Keeps a conversation inside its model's window.
//!
//! This crate holds the parts that need no model and no clock, each usable alone:
//!
//! * [`Counter`] and [`Tape`] count tokens, each message once, and learn from reported usage.
//! * [`Models`] knows windows and output limits.
//! * [`Policy`] says when to compact and how far, [`Plan`] what may go and where to cut.
//! * [`strip`] (tier 1) replaces large results and arguments of older messages by markers.
//! * [`Digest`] (tier 4) and [`Ledger`] keep what can be kept by rule; [`render`] makes a message of
//!   it that can not pass for an instruction.
//! * [`Applied`] repeats a compaction for callers who send their whole history in every turn.
//! * [`chunks`], [`ask`] and [`accept`] (tiers 2 and 3) say what a summariser is asked and which of
//!   its answers may replace history.
//! * [`SpendCap`] says whether a tenant may pay for another summary.
//! * [`Compactor`] puts them together: a request goes in, and one that fits comes out, or an error
//!   that says why it can not.
//!
//! ```
//! use steadfast_compact::{Compactor, Counter, Models, Policy, Tape, Task};
//! use steadfast_core::{ChatRequest, Dialect, transcript::Rules};
//!
//! let (models, counter) = (Models::default(), Counter::default());
//! let compactor = Compactor::new(Policy::default())?;
//! let (model, rules) = ("claude-sonnet-4-5", Rules::for_dialect(Dialect::Anthropic));
//!
//! // Once a turn; the tape belongs to the conversation.
//! let mut tape = Tape::default();
//! let mut request = ChatRequest::user("hello").with_model(model);
//! let count = counter.count(&mut tape, &request, model);
//! let weigh = |message: &_| counter.message(message, model);
//! let mut task = Task::new(&rules, &weigh);
//! let asked = request.params.max_output;
//! task.room = compactor.policy().room(models.limits(model), asked, rules.output_counts);
//! task.fixed = count.fixed;
//! task.measured = Some(count.upper);
//! task.growth = tape.growth(&counter.calibration(model));
//! let run = compactor.run(&mut request, &task, &mut fastrand::Rng::new())?;
//! assert!(run.is_none(), "there is room enough");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # What is never touched
//!
//! Instructions, pinned messages, the user's current request, and the most recent messages (four,
//! and the calls that go with their results). Calls and results go together or stay together.
//!
//! # What comes out
//!
//! A request that the provider accepts, by [`transcript::validate`](steadfast_core::transcript::validate):
//! ways to cut are tried until one is valid. A request that needs nothing is not changed by a byte.
//! One that can not be made to fit is an error with the numbers, before anybody is asked.

//!
//! # With a summariser
//!
//! [`Compactor`] asks nobody. Whoever has a summariser (any `Service<ChatRequest>`) asks it in
//! between, and hands over what it wrote:
//!
//! 1. [`Compactor::pending`] names the messages that will go. `None`: nobody has to be asked; an
//!    error: no summary would help, and nothing was paid for.
//! 2. [`chunks`] cuts them to the summariser's window, [`ask`] makes a request of each, [`accept`]
//!    judges each answer.
//! 3. [`Compactor::run`] with [`Task::written`] puts the words in place and completes them with the
//!    facts they lack. Without (the summariser failed, its breaker is open, its budget is spent),
//!    the same run makes the emergency truncation.
//! 4. [`Run::summary`] is kept for the next compaction, and [`Applied`] for the next turn.

mod applied;
mod compactor;
mod count;
mod course;
mod event;
mod events;
pub mod future;
mod gate;
mod glance;
mod handle;
mod job;
mod layer;
mod ledger;
mod look;
mod mark;
mod memory;
mod models;
mod notice;
mod plain;
mod plan;
mod policy;
mod render;
mod report;
mod scope;
mod service;
mod spend;
mod state;
mod strip;
mod summarise;
mod summariser;
mod summary_policy;

pub use self::{
    applied::Applied,
    compactor::{Compactor, Pending, Run, Summary, Task},
    count::{Calibration, Count, Counter, Encoding, Sample, Scheme, Tape, Weight},
    events::CompactionEvents,
    gate::GateState,
    handle::{CompactionHandle, CompactionSnapshot, ConversationSnapshot},
    layer::CompactionLayer,
    ledger::Ledger,
    models::{Limits, Models, UNKNOWN},
    notice::{Compacted, Notice},
    plain::Digest,
    plan::{Conversation, Cut, Plan},
    policy::{Goal, Level, Policy, PolicyError, Room},
    render::{EMERGENCY, Heading, escape, render},
    report::{Effect, Report, Tier, TooLarge},
    scope::ConversationId,
    service::Compaction,
    spend::{OverBudget, Reservation, SpendCap, SpendPolicy},
    state::TargetFacts,
    strip::{Stripped, strip},
    summarise::{Unusable, accept, ask, chunks},
    summariser::Degraded,
    summary_policy::SummaryPolicy,
};
