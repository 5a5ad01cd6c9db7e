//! Policies that make no sense.

/// A policy that makes no sense, and what would.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PolicyError {
    /// Nothing would be kept of an answer, so that none could be gone on with.
    #[error("`{0}` is zero; set at least 1{1}")]
    Zero(
        /// The field.
        &'static str,
        /// How to turn it off, where that is meant.
        &'static str,
    ),
    /// Less is held back than has to be read to find the overlap.
    #[error(
        "`overlap.hold` is {hold}, below `{field}`, which is {wanted}: that could never be found; raise \
         the one or lower the other"
    )]
    Hold {
        /// The field that wants more.
        field: &'static str,
        /// What it wants.
        wanted: usize,
        /// What is held back.
        hold: usize,
    },
    /// The text that is asked for is shorter than what counts as an overlap: it would be found by
    /// chance.
    #[error(
        "`overlap.anchor` is {anchor}, below `overlap.shortest`, which is {shortest}: text that short is \
         found by chance; raise it"
    )]
    Anchor {
        /// The text that is asked for.
        anchor: usize,
        /// What counts as an overlap.
        shortest: usize,
    },
}

impl PolicyError {
    /// The field it is about, as it is written in Rust, below the policy: `overlap.hold`.
    pub const fn field(&self) -> &'static str {
        match self {
            PolicyError::Zero(field, _) => field,
            PolicyError::Hold { .. } => "overlap.hold",
            PolicyError::Anchor { .. } => "overlap.anchor",
        }
    }
}
