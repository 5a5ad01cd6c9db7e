//! What an operator is shown of a fleet.

use std::time::Duration;

use super::FactRow;

/// What a node shows of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(default))]
#[non_exhaustive]
pub struct NodeReport {
    /// Its name, another one each time it starts.
    pub name: String,
    /// What it runs.
    pub version: String,
    /// A digest of its configuration: nodes that differ in it decide differently.
    pub configuration: String,
    /// Where it is.
    pub address: String,
    /// When it started.
    pub began_ms: u64,
    /// When it was last heard of.
    pub heard_ms: u64,
}

impl NodeReport {
    /// A node that runs `version` with `configuration`.
    pub fn new(version: impl Into<String>, configuration: impl Into<String>) -> Self {
        Self { version: version.into(), configuration: configuration.into(), ..Self::default() }
    }

    /// The same, at `address`.
    #[must_use]
    pub fn with_address(self, address: impl Into<String>) -> Self {
        Self { address: address.into(), ..self }
    }
}

/// How the store is doing, as one node sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct StoreReport {
    /// What it is, without secrets: `embedded`, or an address.
    pub name: String,
    /// For how long it can not be reached.
    pub away_for: Option<Duration>,
    /// Why it last could not.
    pub error: Option<String>,
    /// How often it was away.
    pub outages: u64,
    /// Commands that were sent to it.
    pub commands: u64,
    /// Changes that have not been sent yet.
    pub waiting: usize,
    /// How far the store's clock is ahead of this node's, in milliseconds.
    pub clock_ahead_ms: i64,
}

/// The nodes, the store, and what each node has found: a copy.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Fleet {
    /// In the order of their names.
    pub nodes: Vec<NodeReport>,
    /// How the store is doing.
    pub store: StoreReport,
    /// What each node has found.
    pub facts: Vec<FactRow>,
}

impl Fleet {
    /// A copy of what a store has.
    pub fn new(nodes: Vec<NodeReport>, store: StoreReport, facts: Vec<FactRow>) -> Self {
        Self { nodes, store, facts }
    }
}
