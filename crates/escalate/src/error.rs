//! Errors of invalid policies and of decisions that can not be carried out.

use std::time::Duration;

use steadfast_core::Target;

use crate::{
    EscalationId,
    decision::{MAX_ANSWER_BYTES, MAX_MODEL_BYTES},
};

/// Why a policy is invalid, and what would be valid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PolicyError {
    /// A request would not be held long enough for anybody to decide.
    #[error(
        "`hold` {0:?} is too short for a person to decide; set at least 1 s, or leave escalation off"
    )]
    HoldTooShort(
        /// How long it would be held.
        Duration,
    ),
    /// A number that must be at least one.
    #[error("`{0}` is zero; set at least 1, or leave escalation off")]
    Zero(
        /// The field.
        &'static str,
    ),
}

/// Why a decision is not carried out.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DecideError {
    /// No request has had that id.
    #[error("no request has the id `{0}`; the held ones are listed by `held`")]
    Unknown(
        /// The id.
        EscalationId,
    ),
    /// The request is not held any more: it was answered, its time was up, or its caller went away.
    #[error("the request `{0}` is not held any more")]
    Over(
        /// The id.
        EscalationId,
    ),
    /// Somebody else has decided, and the attempt is under way.
    #[error("the request `{0}` has been decided already; it is held again if that fails")]
    AlreadyDecided(
        /// The id.
        EscalationId,
    ),
    /// No target that could serve the request has that name.
    #[error("`{0}` is no target of this request; its targets are listed with it")]
    UnknownTarget(
        /// The target.
        Target,
    ),
    /// The layer does not know how to end a cooldown.
    #[error(
        "cooldowns can not be ended here; to ask `{0}` alone, whether or not it cools, try that target"
    )]
    CanNotReset(
        /// The target.
        Target,
    ),
    /// The name of a model is empty or far too long.
    #[error("the name of a model has to have 1 to {MAX_MODEL_BYTES} bytes")]
    InvalidModel,
    /// The text of an answer is empty or far too long.
    #[error("the text of an answer has to have 1 to {MAX_ANSWER_BYTES} bytes")]
    InvalidAnswer,
}
