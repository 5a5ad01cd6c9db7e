//! The clauses, one function each. [`contract!`](crate::contract) makes a test of every one.
//!
//! Each checks a [`Contract`](crate::Contract) and needs tokio's paused clock, which
//! [`run`](crate::run) provides. None panics: a layer that violates a clause gets a
//! [`ContractViolation`](crate::ContractViolation) that says how.

/// A clause and the function that checks it; the error gets the clause's name.
macro_rules! clause {
    ($(#[$doc:meta])* $name:ident, $check:ident) => {
        $(#[$doc])*
        ///
        /// # Errors
        ///
        /// When the layer violates it: what was observed, and what would be right.
        pub async fn $name<E: crate::Exchange, L: crate::ContractedLayer<E>>(
            contract: &crate::Contract<E, L>,
        ) -> Result<(), crate::ContractViolation> {
            let result = $check(contract).await;
            result.map_err(|message| crate::ContractViolation::new(stringify!($name), message))
        }
    };
}

mod composition;
mod cost;
mod passthrough;
mod readiness;
mod refusal;
mod release;
mod state;
mod traits;
mod wakers;

pub use self::{
    composition::*, cost::*, passthrough::*, readiness::*, refusal::*, release::*, state::*,
    traits::*, wakers::*,
};
