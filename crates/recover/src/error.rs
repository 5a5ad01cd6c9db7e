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
    /// Less is held back than has to be read to find the seam.
    #[error(
        "`seam.hold` is {hold}, below `{field}`, which is {wanted}: that could never be found; raise \
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
    /// The words that are asked for are shorter than what counts as an overlap: they would be found
    /// by chance.
    #[error(
        "`seam.anchor` is {anchor}, below `seam.overlap`, which is {overlap}: words that short are \
         found by chance; raise it"
    )]
    Anchor {
        /// The words that are asked for.
        anchor: usize,
        /// What counts as an overlap.
        overlap: usize,
    },
}

impl PolicyError {
    /// The field it is about, as it is written in Rust, below the policy: `seam.hold`.
    pub const fn field(&self) -> &'static str {
        match self {
            PolicyError::Zero(field, _) => field,
            PolicyError::Hold { .. } => "seam.hold",
            PolicyError::Anchor { .. } => "seam.anchor",
        }
    }
}
