//! Policies that make no sense.

/// A policy that makes no sense, and what would.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PolicyError {
    /// A rule that would stop without having advised first.
    #[error(
        "rule `{rule}` warns at {warn} and stops at {stop}; `warn` has to be at least 2 and `stop` \
         above it, or leave the rule out"
    )]
    Strikes {
        /// The rule.
        rule: &'static str,
        /// Where it warns.
        warn: u32,
        /// Where it stops.
        stop: u32,
    },
    /// A number that would forbid everything.
    #[error("`{0}` is zero; set at least 1{1}")]
    Zero(
        /// The field.
        &'static str,
        /// What turns it off, where that can be.
        &'static str,
    ),
    /// One name that stands for two tools.
    #[error("the tool name `{0}` stands twice in the table; names and aliases have to differ")]
    TwiceNamed(
        /// The name, in lower case.
        String,
    ),
}
