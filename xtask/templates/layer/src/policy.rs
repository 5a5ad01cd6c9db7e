//! The policy of the layer.

use steadfast_core::KeyedPolicy;

use crate::PolicyError;

/// The policy of the layer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct {{Pascal}}Policy {
    /// A target is reported when this many calls in a row have failed. Default 5: more than the attempts
    /// of one call with a few retries, so that the failure of a single call is not reported.
    pub failures_in_a_row: u32,
    /// How many targets are kept, and for how long.
    pub keys: KeyedPolicy,
}

impl Default for {{Pascal}}Policy {
    fn default() -> Self {
        Self { failures_in_a_row: 5, keys: KeyedPolicy::default() }
    }
}

impl {{Pascal}}Policy {
    /// Checks the policy.
    ///
    /// # Errors
    ///
    /// The first invalid value, and what would be valid.
    pub fn validate(&self) -> Result<(), PolicyError> {
        if self.failures_in_a_row == 0 {
            return Err(PolicyError::Zero { field: "failures_in_a_row" });
        }
        if self.keys.capacity == 0 {
            return Err(PolicyError::Zero { field: "keys.capacity" });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_is_valid() {
        assert_eq!({{Pascal}}Policy::default().validate(), Ok(()));
    }

    #[test]
    fn invalid_policies_are_refused_with_the_field() {
        type Change = fn(&mut {{Pascal}}Policy);
        let table: [(&str, Change); 2] = [
            ("failures_in_a_row", |policy| policy.failures_in_a_row = 0),
            ("keys.capacity", |policy| policy.keys.capacity = 0),
        ];
        for (field, change) in table {
            let mut policy = {{Pascal}}Policy::default();
            change(&mut policy);
            let error = policy.validate().expect_err(field).to_string();
            assert!(error.contains(&format!("`{field}`")), "{field}: {error}");
        }
    }
}
