//! What the shared state reports: one `tracing` event when the store is away, and one when it is back.

use std::time::Duration;

use steadfast_core::time::millis;

use crate::AwayCause;

/// The store can not be reached.
pub(crate) fn away(store: &str, node: &str, cause: &AwayCause) {
    tracing::warn!(
        name: "steadfast::state::away",
        target: "steadfast::state",
        store, node, error = %cause,
        "the shared state can not be reached; this node goes on by what it knows"
    );
}

/// It can again, and the node has caught up.
pub(crate) fn back(store: &str, node: &str, away: Duration, waited: usize) {
    tracing::info!(
        name: "steadfast::state::back",
        target: "steadfast::state",
        store, node, away_ms = millis(away), waited,
        "the shared state can be reached again, and this node has caught up with it"
    );
}
