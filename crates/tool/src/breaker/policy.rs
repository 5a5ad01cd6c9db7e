//! The policy of the breaker.

use std::time::Duration;

use steadfast_core::{
    KeyedPolicy,
    circuit::{CircuitPolicy, MAX_ROW},
};

use crate::PolicyError;

/// When a tool or one call of it is blocked, and for how long, for a
/// [`ToolBreakerLayer`](crate::ToolBreakerLayer).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
#[cfg_attr(feature = "serde", serde(default, deny_unknown_fields))]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub struct ToolBreakerPolicy {
    /// A call is blocked after it failed this often in a row with the same arguments. 3: the second try shows
    /// whether the failure passes by itself, the third that the model does not notice. Off: never for that.
    #[cfg_attr(feature = "serde", serde(with = "steadfast_core::config::ZeroIsOff"))]
    pub same_call: Option<u32>,
    /// A tool is blocked after this many failures without a success between, whatever the arguments. 5: more
    /// than a model needs to find out that it asks in the wrong way. Off: never for that.
    #[cfg_attr(feature = "serde", serde(with = "steadfast_core::config::ZeroIsOff"))]
    pub tool: Option<u32>,
    /// A tool is blocked after this many failures of one [tag](steadfast_chat::ToolFailure::tag) without a
    /// success between. 2: a tag is given where other arguments do not help. Off: never for that.
    #[cfg_attr(feature = "serde", serde(with = "steadfast_core::config::ZeroIsOff"))]
    pub same_tag: Option<u32>,
    /// How long it is blocked, before one call finds out whether it works again. 60 s: an agent does something
    /// else meanwhile, and a service that restarts is back.
    #[cfg_attr(
        feature = "serde",
        serde(rename = "rest_ms", with = "steadfast_core::config::Millis")
    )]
    pub rest: Duration,
    /// How long that call may take before it is given up and another one may find out. 600 s: five times the
    /// usual limit of a call, which ends it long before.
    #[cfg_attr(
        feature = "serde",
        serde(rename = "probe_limit_ms", with = "steadfast_core::config::Millis")
    )]
    pub probe_limit: Duration,
    /// How many tasks or sessions are remembered. 1,024; of each at most 32 tools and calls that fail.
    pub sessions: KeyedPolicy,
}

impl Default for ToolBreakerPolicy {
    fn default() -> Self {
        Self {
            same_call: Some(3),
            tool: Some(5),
            same_tag: Some(2),
            rest: Duration::from_secs(60),
            probe_limit: Duration::from_secs(600),
            sessions: KeyedPolicy { capacity: 1_024, ..KeyedPolicy::default() },
        }
    }
}

impl ToolBreakerPolicy {
    /// Checks the policy.
    ///
    /// # Errors
    ///
    /// The first invalid value, and what would be valid.
    pub fn validate(&self) -> Result<(), PolicyError> {
        for (field, count) in
            [("same_call", self.same_call), ("tool", self.tool), ("same_tag", self.same_tag)]
        {
            match count {
                Some(0) => return Err(PolicyError::Zero(field, ", or `None` for no limit")),
                Some(count) if count > MAX_ROW => {
                    return Err(PolicyError::TooMany(field, count, MAX_ROW));
                }
                _ => {}
            }
        }
        for (field, time) in [("rest", self.rest), ("probe_limit", self.probe_limit)] {
            if time.is_zero() {
                return Err(PolicyError::Zero(field, ""));
            }
        }
        if self.sessions.capacity == 0 {
            return Err(PolicyError::Zero("sessions", ""));
        }
        Ok(())
    }

    /// The circuit of a tool or of a call, which opens after so many failures in a row.
    pub(super) fn circuit(&self, consecutive: Option<u32>) -> CircuitPolicy {
        CircuitPolicy {
            consecutive,
            second_witness: false,
            trusted_for: Duration::ZERO,
            window: self.rest,
            // Rates say little of a tool: it is called now and then, with arguments of all kinds.
            min_calls: u32::MAX,
            failure_rate: None,
            slow: None,
            content_is_success: false,
            cooldown: self.rest,
            first_rest: None,
            growth: 1.0,
            max_cooldown: self.rest,
            permanent_cooldown: self.rest,
            max_permanent: self.rest,
            probe_lead: Duration::ZERO,
            probe_limit: self.probe_limit,
            probes: 1,
            successes: 1,
            lone: None,
            turns: None,
        }
    }
}
