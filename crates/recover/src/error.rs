//! Errors of invalid policies.

/// A policy that is invalid, and what would be valid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PolicyError {
    /// Nothing would be kept of an answer, so that none could be continued.
    #[error("`{0}` is zero; set at least 1{1}")]
    Zero(
        /// The field.
        &'static str,
        /// How to switch it off, where that is possible.
        &'static str,
    ),
    /// Less is held back than has to be read for the overlap.
    #[error(
        "`overlap.hold` is {hold}, below `{field}`, which is {wanted}: that could never be found; raise \
         the one or lower the other"
    )]
    Hold {
        /// The field that needs more.
        field: &'static str,
        /// What it needs.
        wanted: usize,
        /// What is held back.
        hold: usize,
    },
    /// The requested text is shorter than what counts as an overlap: it would be found by chance.
    #[error(
        "`overlap.anchor` is {anchor}, below `overlap.shortest`, which is {shortest}: text that short is \
         found by chance; raise it"
    )]
    Anchor {
        /// The length of the requested text.
        anchor: usize,
        /// The shortest overlap.
        shortest: usize,
    },
}

impl PolicyError {
    /// The path of the field in the policy, as it is written in Rust: `overlap.hold`.
    pub const fn field(&self) -> &'static str {
        match self {
            PolicyError::Zero(field, _) => field,
            PolicyError::Hold { .. } => "overlap.hold",
            PolicyError::Anchor { .. } => "overlap.anchor",
        }
    }
}
