//! Errors of invalid policies.

/// A policy that is invalid, and what would be valid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PolicyError {
    /// A rule that would stop without advice before.
    #[error(
        "rule `{rule}` warns at {warn} and stops at {stop}; `warn` has to be at least 2 and `stop` \
         above it, or leave the rule out"
    )]
    Strikes {
        /// The rule.
        rule: &'static str,
        /// The count at which it advises.
        warn: u32,
        /// The count at which it stops.
        stop: u32,
    },
    /// A number that would forbid everything.
    #[error("`{0}` is zero; set at least 1{1}")]
    Zero(
        /// The field.
        &'static str,
        /// How to switch it off, where that is possible.
        &'static str,
    ),
    /// A number outside its range.
    #[error("`{field}` is {value}; set {least} to {most}, or leave it out")]
    Range {
        /// The field.
        field: &'static str,
        /// Its value.
        value: u32,
        /// The least it can be.
        least: u32,
        /// The most it can be.
        most: u32,
    },
    /// A tool without a name.
    #[error("tool {0} of the table has no name; give it the one that the model calls it by")]
    Unnamed(
        /// Its index in the table, counted from 0.
        usize,
    ),
    /// One name for two tools.
    #[error("the tool name `{0}` stands for two tools; names and aliases have to differ")]
    TwiceNamed(
        /// The name, in lower case.
        String,
    ),
}

impl PolicyError {
    /// The path of the field in the policy, as it is written in Rust: `limits.time`.
    pub fn field(&self) -> String {
        match self {
            PolicyError::Strikes { rule, .. } => format!("rules.{rule}"),
            PolicyError::Zero(field, _) | PolicyError::Range { field, .. } => (*field).to_owned(),
            PolicyError::Unnamed(at) => format!("tools[{at}].name"),
            PolicyError::TwiceNamed(_) => "tools".to_owned(),
        }
    }
}
