//! What of the health of targets outlives its process.

use steadfast_core::{Reason, Target, circuit::SavedCircuit};

/// The health of a target that cools, as plain data: what [`FailoverHandle::save`](crate::FailoverHandle::save) makes.
/// Providers' messages are not in it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
#[non_exhaustive]
pub struct SavedHealth {
    /// What it is the health of: the parts that are set.
    pub target: Target,
    /// Its cooldown.
    pub circuit: SavedCircuit,
    /// Failures in a row.
    #[cfg_attr(feature = "serde", serde(default))]
    pub consecutive: u32,
    /// Other models of the provider may stand in meanwhile.
    #[cfg_attr(feature = "serde", serde(default))]
    pub yields: bool,
    /// The last failure.
    #[cfg_attr(feature = "serde", serde(default))]
    pub last_error: Option<SavedError>,
}

/// A failure, as plain data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
#[non_exhaustive]
pub struct SavedError {
    /// Why.
    pub reason: Reason,
    /// When, in milliseconds since 1970.
    pub at_ms: u64,
}
