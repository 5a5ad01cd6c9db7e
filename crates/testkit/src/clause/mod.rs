//! The clauses, one function each. [`contract!`](crate::contract) makes a test of every one.
//!
//! Each is asked of a [`Contract`](crate::Contract) and needs tokio's paused clock, as
//! [`run`](crate::run) has it.
//! None panics: a layer that does not keep a clause gets a [`Violation`](crate::Violation) that says how it showed.

/// A clause and what asks it: whatever that finds goes by the clause's own name.
macro_rules! clause {
    ($(#[$doc:meta])* $name:ident, $ask:ident) => {
        $(#[$doc])*
        ///
        /// # Errors
        ///
        /// When the layer does not keep it: what was seen, and what would be right.
        pub async fn $name<E: crate::Exchange, L: crate::ContractedLayer<E>>(
            contract: &crate::Contract<E, L>,
        ) -> Result<(), crate::Violation> {
            let found = $ask(contract).await;
            found.map_err(|message| crate::Violation::new(stringify!($name), message))
        }
    };
}

mod cost;
mod frees;
mod neighbours;
mod passes;
mod readiness;
mod refusal;
mod state;
mod traits;
mod wakers;

pub use self::{
    cost::*, frees::*, neighbours::*, passes::*, readiness::*, refusal::*, state::*, traits::*,
    wakers::*,
};
