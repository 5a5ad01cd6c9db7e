//! What a breaker reports of itself.

use steadfast_core::circuit::{CircuitSnapshot, Transition};

/// A change of one breaker's state.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BreakerTransition<K> {
    /// Whose breaker.
    pub key: K,
    /// What changed.
    pub transition: Transition,
}

/// One breaker as it stands.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct BreakerSnapshot<K> {
    /// Whose breaker.
    pub key: K,
    /// Its state and its counts.
    pub circuit: CircuitSnapshot,
    /// Calls refused since the breaker was made, observed ones included.
    pub refused: u64,
}
