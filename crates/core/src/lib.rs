//! The words every Steadfast layer speaks.
//!
//! This crate has no policy and knows no provider's JSON. It holds what the layers share:
//!
//! * [`Failure`] and [`Reason`]: the one error of every service in a stack, and what it means.
//! * [`Call`] and [`CallContext`]: what a generic layer may ask of a request, and what travels
//!   with it.
//! * [`Track`], [`Lease`] and [`Outcome`]: how a layer learns that an answer is over.
//! * [`Backoff`], [`RetryBudget`], [`Deadline`], [`Keyed`], [`RecoveryLog`]: the small machines.
//! * [`ChatRequest`], [`ChatResponse`], [`Event`] and [`Completion`]: a conversation and its
//!   answer, in no dialect.
//! * [`transcript`]: what a provider accepts as a conversation, and how to mend one.
//!
//! A layer crate depends on this one and on no sibling.

#[cfg(feature = "axum")]
mod axum;
mod backoff;
mod budget;
mod chat;
#[cfg(feature = "serde")]
pub mod config;
mod context;
mod dialect;
mod failure;
mod keyed;
mod lease;
mod limit;
mod log;
mod near;
mod reason;
mod redact;
mod tally;
mod target;
pub mod time;
mod track;
pub mod transcript;
mod upstream;
mod usage;

pub use self::{
    backoff::{Backoff, BackoffError, Jitter},
    budget::{BudgetPolicy, RetryBudget, Withdrawal},
    chat::{
        ChatRequest, ChatResponse, Collect, Completion, Delta, Event, EventDeltas, EventStream,
        Events, Extra, Frame, FrameKind, Gist, Head, InvalidJson, Media, MediaKind, MediaSource,
        Message, Opaque, Origin, Params, Part, RawJson, ReplyHeaders, ResponseFormat, Role,
        SharedParams, SharedVec, Stop, StopReason, Text, Thinking, ThinkingConfig, Tool, ToolCall,
        ToolChoice, ToolResult,
    },
    context::{Call, CallContext, Identity, Needs, OnUnsupported, Priority, Profile},
    dialect::{Dialect, ParseDialectError},
    failure::{Attempt, BoxError, Failure, MAX_CAUSES, Window},
    keyed::{Keep, Keyed, KeyedPolicy},
    lease::{Lease, Outcome, Settle, Settled, Token},
    limit::TimeLimit,
    log::{MAX_STEPS, RecoveryLog, Step},
    near::Near,
    reason::{
        Failover, Fault, PERMANENT_COOLDOWN, PERMANENT_COOLDOWN_CAP, ParseReasonError, Reason,
        RecoveryTable, Retry, Rule, Scope,
    },
    redact::{MAX_MESSAGE, mask, redact},
    tally::Tally,
    target::Target,
    time::Deadline,
    track::{
        AtOnce, CommittedEvents, Look, Peek, Track, TrackedBody, TrackedEvents, Tracking, UntilEnd,
    },
    upstream::Upstream,
    usage::Usage,
};
