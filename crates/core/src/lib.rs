//! The types that every Steadfast layer shares.
//!
//! This crate has no policy and knows no provider's JSON. It holds what the layers share:
//!
//! * [`Failure`] and [`Reason`]: the one error of every service in a stack, and what it means.
//! * [`Call`] and [`CallContext`]: a request that generic layers can handle, and its context.
//! * [`Track`], [`Lease`] and [`Outcome`]: how a layer learns that an answer is over.
//! * [`Backoff`], [`RetryBudget`], [`Deadline`], [`Keyed`], [`RecoveryLog`]: the parts that layers
//!   are made of.
//! * [`shared::SharedState`]: what several processes know together.
//!
//! Conversations and answers are in `steadfast-chat`. A layer crate depends on this one, on that one
//! where it reads conversations, and on no other layer crate.

#![cfg_attr(docsrs, feature(doc_cfg))]

mod attempt;
#[cfg(feature = "axum")]
mod axum;
mod backoff;
mod budget;
pub mod circuit;
#[cfg(feature = "serde")]
pub mod config;
mod context;
mod degraded;
mod dialect;
mod failure;
mod first_content;
pub mod hint;
mod keyed;
mod lease;
mod limit;
mod log;
mod macros;
pub mod model_names;
mod on_step;
pub mod quota;
mod reason;
mod redact;
mod routed;
pub mod shared;
mod spare;
mod spend;
mod target;
mod text;
pub mod time;
mod trace;
mod track;
mod upstream;
mod usage;
mod with_context;
mod witness;

pub use self::{
    attempt::{AnswerRecord, AttemptEnd, AttemptRecord, Attempts, AttemptsLayer},
    backoff::{Backoff, BackoffError, Jitter},
    budget::{BudgetPolicy, BudgetSource, Reservation, RetryBudget, Waiting, Withdrawal},
    context::{
        Call, CallContext, Capabilities, Identity, Needs, OnUnsupported, Preference, Priority,
        Profile,
    },
    degraded::DegradedProviders,
    dialect::{Dialect, ParseDialectError},
    failure::{
        Attempt, BoxError, Failure, IntoBoxError, IntoFailure, MAX_CAUSES, RefusedParameter, Window,
    },
    first_content::{AttemptFailure, FirstContent},
    keyed::{Keep, Keyed, KeyedPolicy},
    lease::{Lease, LeaseEnd, Observer, Outcome, Permit, PermitKind},
    limit::TimeLimit,
    log::{MAX_STEPS, RecoveryLog, Step},
    on_step::{OnStep, OnStepLayer},
    reason::{
        Failover, FaultSide, PERMANENT_COOLDOWN, PERMANENT_COOLDOWN_CAP, ParseReasonError, Reason,
        RecoveryRule, RecoveryTable, Retry, Scope,
    },
    redact::{MASK, MAX_MESSAGE, mask, redact},
    routed::Routed,
    spare::{Kept, Spare},
    spend::{
        AttemptSpend, CallSpend, CapSharing, Spend, SpendAccount, SpendCaps, SpendGrant,
        SpendLease, SpendLedger, SpendRecord, SpendRecordRow, SpendRefusal, SpendReservation,
        SpendTotals, SpendWindow,
    },
    target::Target,
    text::{LOST_HISTORY, STOPPED_TOOL},
    time::Deadline,
    trace::{SpanId, TraceContext, TraceId},
    track::{AtOnce, BufferLimits, Leased, Track, TrackedBody, UntilEnd},
    upstream::Upstream,
    usage::Usage,
    with_context::WithContext,
    witness::{Beginning, PromptDigest, Witness},
};
