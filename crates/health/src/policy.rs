//! When a provider is degraded, and what it takes to be well again.

use std::time::Duration;

use steadfast_core::KeyedPolicy;

use crate::PolicyError;

/// The most failures in a row that are counted of one agent.
pub(crate) const MAX_ROW: u32 = 16;

/// The most agents that a policy can require: half of those that are remembered.
pub(crate) const MAX_REQUIRED_AGENTS: u32 = 32;

/// When a provider is degraded, and what it takes to be well again; plain fields.
///
/// ```
/// use steadfast_health::{HealthPolicy, ProviderHealthLayer};
///
/// let layer = ProviderHealthLayer::new(HealthPolicy { agents: 3, ..HealthPolicy::default() })?;
/// # let _ = layer;
/// # Ok::<(), steadfast_health::PolicyError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
#[cfg_attr(feature = "serde", serde(default))]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub struct HealthPolicy {
    /// The time within which failures are seen together. 60 s, as wide as the providers' rate windows: an
    /// outage shows in it, and an incident that is over is forgotten.
    #[cfg_attr(
        feature = "serde",
        serde(rename = "window_s", with = "steadfast_core::config::Seconds")
    )]
    pub window: Duration,
    /// A provider is degraded when calls of so many agents have failed within the window. 2: what fails for
    /// one agent alone may be its request. At most 32.
    pub agents: u32,
    /// It is also degraded when so many calls of one agent have failed in a row within the window. 3: one is an
    /// accident, two a coincidence. At most 16.
    pub failures: u32,
    /// Neither degrades a provider unless at least this share of its calls in the window has failed, those under
    /// way taken as good. 0.2: at 5 % of failures two agents fail within a minute every day, and a fifth is
    /// nothing that retries hide. 0: two or three failures are enough, however many calls succeed.
    pub min_share: f64,
    /// Whether failures count that speak for one model or credential of the provider alone: rate limits, a lack of
    /// capacity, a refused key, a missing model. Off by default: other models and keys of the provider are well, and
    /// failover knows which are not.
    pub any_scope: bool,
    /// A degraded provider recovers after so many successes since its last failure. 3: as many as it took
    /// failures of one agent.
    pub recover_after: u32,
    /// And only while at most this share of its calls in the window, since it was degraded, has failed. 0.1:
    /// half of what degrades it, so that a provider between the two does not change back and forth.
    pub recover_share: f64,
    /// While a provider is degraded, one call in this time may be sent there as if it were well, to see whether
    /// it is, and the next one as soon as that has succeeded. 10 s: one caller in 10 s pays for a provider that
    /// is down.
    #[cfg_attr(
        feature = "serde",
        serde(rename = "probe_every_s", with = "steadfast_core::config::Seconds")
    )]
    pub probe_every: Duration,
    /// How many providers are kept. 256, of about 10 KB each: more than anybody configures.
    pub providers: KeyedPolicy,
}

impl Default for HealthPolicy {
    fn default() -> Self {
        Self {
            window: Duration::from_secs(60),
            agents: 2,
            failures: 3,
            min_share: 0.2,
            any_scope: false,
            recover_after: 3,
            recover_share: 0.1,
            probe_every: Duration::from_secs(10),
            providers: KeyedPolicy { capacity: 256, ..KeyedPolicy::default() },
        }
    }
}

impl HealthPolicy {
    /// The rule of an agent platform: two agents, or three failures in a row of one, whatever they are for and
    /// whatever the share; and
    /// the first success is the recovery. Where degraded providers are skipped altogether, a probe of one is
    /// made when its failures have left the window.
    pub fn comis() -> Self {
        Self {
            min_share: 0.0,
            any_scope: true,
            recover_after: 1,
            recover_share: 1.0,
            probe_every: Duration::from_secs(60),
            ..Self::default()
        }
    }

    /// Checks the policy.
    ///
    /// # Errors
    ///
    /// The first invalid value, and what would be valid.
    pub fn validate(&self) -> Result<(), PolicyError> {
        for (field, value, most) in [
            ("agents", self.agents, MAX_REQUIRED_AGENTS),
            ("failures", self.failures, MAX_ROW),
            ("recover_after", self.recover_after, u32::MAX),
        ] {
            if value == 0 {
                return Err(PolicyError::Zero { field });
            }
            if value > most {
                return Err(PolicyError::TooMany { field, value, most });
            }
        }
        if self.providers.capacity == 0 {
            return Err(PolicyError::Zero { field: "providers" });
        }
        for (field, time) in [("window", self.window), ("probe_every", self.probe_every)] {
            if time < Duration::from_millis(1) {
                return Err(PolicyError::NoTime { field, time });
            }
        }
        for (field, share) in [("min_share", self.min_share), ("recover_share", self.recover_share)]
        {
            if !(0.0..=1.0).contains(&share) {
                return Err(PolicyError::Share { field, share });
            }
        }
        // With `min_share` 0 there is no share that could be below it.
        if self.min_share > 0.0 && self.recover_share > self.min_share {
            let Self { min_share, recover_share, .. } = *self;
            return Err(PolicyError::NoHysteresis { min_share, recover_share });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_and_the_preset_are_valid() {
        assert_eq!(HealthPolicy::default().validate(), Ok(()));
        assert_eq!(HealthPolicy::comis().validate(), Ok(()));
    }

    #[test]
    fn invalid_policies_are_refused_with_the_field() {
        type Change = fn(&mut HealthPolicy);
        let table: [(&str, Change); 11] = [
            ("agents", |policy| policy.agents = 0),
            ("agents", |policy| policy.agents = 33),
            ("failures", |policy| policy.failures = 0),
            ("failures", |policy| policy.failures = 17),
            ("recover_after", |policy| policy.recover_after = 0),
            ("window", |policy| policy.window = Duration::from_nanos(9)),
            ("probe_every", |policy| policy.probe_every = Duration::ZERO),
            ("providers", |policy| policy.providers.capacity = 0),
            ("min_share", |policy| policy.min_share = f64::NAN),
            ("recover_share", |policy| policy.recover_share = 1.01),
            ("recover_share", |policy| policy.recover_share = 0.3),
        ];
        for (field, change) in table {
            let mut policy = HealthPolicy::default();
            change(&mut policy);
            let error = policy.validate().expect_err(field).to_string();
            assert!(error.contains(&format!("`{field}`")), "{field}: {error}");
        }
    }

    #[cfg(feature = "serde")]
    #[test]
    fn is_written_as_a_configuration_spells_it() {
        let read = |text| serde_json::from_str::<HealthPolicy>(text);
        let policy = HealthPolicy {
            window: Duration::from_secs(30),
            min_share: 0.0,
            ..HealthPolicy::default()
        };
        assert_eq!(read(r#"{"window_s": 30, "min_share": 0}"#).ok(), Some(policy));
        let text = serde_json::to_string(&HealthPolicy::comis()).expect("it is plain data");
        assert_eq!(read(&text).ok(), Some(HealthPolicy::comis()));
        assert!(read(r#"{"window_s": "long"}"#).is_err());
    }
}
