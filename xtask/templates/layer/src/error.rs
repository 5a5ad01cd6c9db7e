//! Errors of invalid policies.

/// Why a [`{{Pascal}}Policy`](crate::{{Pascal}}Policy) is invalid: the field, and what would be valid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PolicyError {
    /// A number that must be at least one.
    #[error("{{kebab}} policy: `{field}` is zero; write at least 1")]
    Zero {
        /// The field.
        field: &'static str,
    },
}
