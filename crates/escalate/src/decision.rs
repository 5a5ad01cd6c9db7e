//! What a person can decide of a held request.

use std::fmt;

use steadfast_chat::ModelName;
use steadfast_core::Target;

use crate::DecideError;

/// The longest answer written by hand: far more than anybody writes in the time that a request is held.
pub(crate) const MAX_ANSWER_BYTES: usize = 256 * 1024;

/// The longest name of a model: longer than any vendor's, and as long as callers may send one.
pub(crate) const MAX_MODEL_BYTES: usize = 512;

/// What is to be done with a held request.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum EscalationDecision {
    /// Send it again as it is.
    TryAgain,
    /// Send it to this target and no other, whether or not that rests: as far as the target has parts, so
    /// that a provider alone is any of its models and credentials.
    TryTarget(Target),
    /// Ask for this model instead, of whichever target serves it.
    TryModel(ModelName),
    /// End the cooldown of this target, for all requests, and send it again.
    ResetCooldown(Target),
    /// This text is the answer.
    Answer(String),
    /// The caller gets the failure now.
    Refuse,
}

/// A kind of [`EscalationDecision`], for lists, logs and counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DecisionKind {
    /// [`EscalationDecision::TryAgain`]
    TryAgain,
    /// [`EscalationDecision::TryTarget`]
    TryTarget,
    /// [`EscalationDecision::TryModel`]
    TryModel,
    /// [`EscalationDecision::ResetCooldown`]
    ResetCooldown,
    /// [`EscalationDecision::Answer`]
    Answer,
    /// [`EscalationDecision::Refuse`]
    Refuse,
}

impl DecisionKind {
    /// Every kind.
    pub const ALL: [Self; 6] = [
        Self::TryAgain,
        Self::TryTarget,
        Self::TryModel,
        Self::ResetCooldown,
        Self::Answer,
        Self::Refuse,
    ];

    /// The name in logs, metrics and JSON, such as `try_again`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::TryAgain => "try_again",
            Self::TryTarget => "try_target",
            Self::TryModel => "try_model",
            Self::ResetCooldown => "reset_cooldown",
            Self::Answer => "answer",
            Self::Refuse => "refuse",
        }
    }
}

impl fmt::Display for DecisionKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl EscalationDecision {
    /// Its kind.
    pub const fn kind(&self) -> DecisionKind {
        match self {
            Self::TryAgain => DecisionKind::TryAgain,
            Self::TryTarget(_) => DecisionKind::TryTarget,
            Self::TryModel(_) => DecisionKind::TryModel,
            Self::ResetCooldown(_) => DecisionKind::ResetCooldown,
            Self::Answer(_) => DecisionKind::Answer,
            Self::Refuse => DecisionKind::Refuse,
        }
    }

    /// The target that it names.
    pub const fn target(&self) -> Option<&Target> {
        match self {
            Self::TryTarget(target) | Self::ResetCooldown(target) => Some(target),
            _ => None,
        }
    }

    /// What can be checked without knowing the request.
    pub(crate) fn check(&self) -> Result<(), DecideError> {
        match self {
            Self::TryModel(model) if model.is_empty() || model.len() > MAX_MODEL_BYTES => {
                Err(DecideError::InvalidModel)
            }
            Self::Answer(text) if text.is_empty() || text.len() > MAX_ANSWER_BYTES => {
                Err(DecideError::InvalidAnswer)
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_bounded() {
        let check = |decision: EscalationDecision| decision.check();
        assert_eq!(check(EscalationDecision::TryModel("".into())), Err(DecideError::InvalidModel));
        let long = "m".repeat(MAX_MODEL_BYTES + 1);
        assert_eq!(
            check(EscalationDecision::TryModel(long.into())),
            Err(DecideError::InvalidModel)
        );
        assert_eq!(check(EscalationDecision::TryModel("m".into())), Ok(()));
        for length in [0, MAX_ANSWER_BYTES + 1] {
            let answer = EscalationDecision::Answer("a".repeat(length));
            assert_eq!(check(answer), Err(DecideError::InvalidAnswer));
        }
        assert_eq!(check(EscalationDecision::Answer("a".repeat(MAX_ANSWER_BYTES))), Ok(()));
    }
}
