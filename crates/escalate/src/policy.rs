//! The policy of the layer.

use std::time::Duration;

use crate::PolicyError;

/// How long, how often and how many requests are held, for an [`EscalationLayer`](crate::EscalationLayer).
///
/// ```
/// use std::time::Duration;
/// use steadfast_escalate::{EscalationLayer, EscalationPolicy};
///
/// let policy = EscalationPolicy { hold: Duration::from_secs(60), ..EscalationPolicy::default() };
/// let layer = EscalationLayer::new(policy)?;
/// # Ok::<(), steadfast_escalate::PolicyError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
#[cfg_attr(feature = "serde", serde(default, deny_unknown_fields))]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub struct EscalationPolicy {
    /// How long a request is held in all, whatever is tried meanwhile; less where its deadline comes before.
    /// 300 s: long enough for a person who is on call to read a message and answer, and half of the usual
    /// deadline of a call.
    #[cfg_attr(
        feature = "serde",
        serde(rename = "hold_s", with = "steadfast_core::config::Seconds")
    )]
    pub hold: Duration,
    /// The most requests held at once; one more gets its failure at once. 100: more than a person can decide
    /// one by one in five minutes.
    pub max_held: usize,
    /// The most bytes of memory that the held requests may have in all, where whoever let them in counts
    /// them ([`CallContext::held_bytes`](steadfast_core::CallContext::held_bytes)). 64 MiB: a hundred long
    /// conversations.
    pub max_held_bytes: u64,
    /// How often one request is held: after a decision whose attempt fails it is held again. 3: who has
    /// decided three times knows that nothing helps.
    pub max_rounds: u32,
    /// Whether a person who decides sees the last message of the user, and error messages that may quote
    /// the conversation. Off by default: prompts are private, and what was asked for is seldom needed to
    /// choose a target.
    pub show_prompt: bool,
    /// How much of that message is shown, in bytes. 2,000: a screen.
    pub max_prompt_bytes: usize,
}

impl Default for EscalationPolicy {
    fn default() -> Self {
        Self {
            hold: Duration::from_secs(300),
            max_held: 100,
            max_held_bytes: 64 * 1024 * 1024,
            max_rounds: 3,
            show_prompt: false,
            max_prompt_bytes: 2_000,
        }
    }
}

impl EscalationPolicy {
    /// Checks the policy.
    ///
    /// # Errors
    ///
    /// The first invalid value, and what would be valid.
    pub fn validate(&self) -> Result<(), PolicyError> {
        if self.hold < HOLD_AT_LEAST {
            return Err(PolicyError::HoldTooShort(self.hold));
        }
        for (field, zero) in [
            ("max_held", self.max_held == 0),
            ("max_held_bytes", self.max_held_bytes == 0),
            ("max_rounds", self.max_rounds == 0),
            ("max_prompt_bytes", self.max_prompt_bytes == 0),
        ] {
            if zero {
                return Err(PolicyError::Zero(field));
            }
        }
        Ok(())
    }
}

/// Nobody reads and decides in less.
const HOLD_AT_LEAST: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_is_valid() {
        assert_eq!(EscalationPolicy::default().validate(), Ok(()));
    }

    #[test]
    fn invalid_policies_are_refused_with_the_field() {
        type Change = fn(&mut EscalationPolicy);
        let table: [(&str, Change); 6] = [
            ("hold", |policy| policy.hold = Duration::ZERO),
            ("hold", |policy| policy.hold = Duration::from_millis(999)),
            ("max_held", |policy| policy.max_held = 0),
            ("max_held_bytes", |policy| policy.max_held_bytes = 0),
            ("max_rounds", |policy| policy.max_rounds = 0),
            ("max_prompt_bytes", |policy| policy.max_prompt_bytes = 0),
        ];
        for (field, change) in table {
            let mut policy = EscalationPolicy::default();
            change(&mut policy);
            let error = policy.validate().expect_err(field).to_string();
            assert!(error.contains(&format!("`{field}`")), "{field}: {error}");
        }
    }

    #[cfg(feature = "serde")]
    #[test]
    fn it_is_read_as_a_configuration_spells_it() {
        let read: EscalationPolicy =
            serde_json::from_str(r#"{"hold_s": 60, "max_held": 7}"#).expect("valid");
        let expected = EscalationPolicy {
            hold: Duration::from_secs(60),
            max_held: 7,
            ..EscalationPolicy::default()
        };
        assert_eq!(read, expected);
        assert!(serde_json::from_str::<EscalationPolicy>(r#"{"held": 1}"#).is_err());
    }
}
