//! What is wrong with a policy.

/// A [`{{Pascal}}Policy`](crate::{{Pascal}}Policy) that makes no sense, with the field and what would be right.
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
