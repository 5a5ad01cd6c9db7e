//! What of a breaker outlives its process.

use steadfast_core::circuit::SavedCircuit;

/// A breaker that rests, as plain data: what [`BreakerHandle::save`](crate::BreakerHandle::save) makes.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
#[non_exhaustive]
pub struct SavedBreaker<K> {
    /// Whose breaker.
    pub key: K,
    /// Failover decides who is asked, so it goes by [`BreakerPolicy::dead`](crate::BreakerPolicy::dead).
    #[cfg_attr(feature = "serde", serde(default))]
    pub routed: bool,
    /// Its rest.
    pub circuit: SavedCircuit,
}
