//! What this gateway shares with others, what is seen of them, and what they are asked to do.

pub(crate) mod folders;
pub(crate) mod held;
pub(crate) mod orders;

use std::{
    fmt::Write,
    sync::{Arc, OnceLock},
};

use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use steadfast::{
    Spend,
    shared::{FactRow, Known, NodeReport, SharedState, SharedTask},
};

use crate::{
    config::{Config, ConfigErrors, Source},
    stack::{Attention, Gateway, Severity, SharedNames},
};

/// The other gateways, if there are any.
#[derive(Debug, Default)]
pub(crate) struct Fleet {
    shared: OnceLock<Shared>,
    /// What is shared besides what the layers know.
    tasks: OnceLock<Vec<SharedTask>>,
}

#[derive(Debug)]
struct Shared {
    state: Arc<dyn SharedState>,
    names: SharedNames,
    /// Where this one listens.
    address: String,
}

impl Fleet {
    /// Shares by `state` from now on what `gateway` knows, where nothing is shared yet; it listens at `address` and
    /// goes by the configuration `text`. `tasks` are those by which it shares what layers do not. Returns what targets are called
    /// among gateways, the first time.
    pub(crate) fn join(
        &self,
        state: Arc<dyn SharedState>,
        gateway: &Gateway,
        text: &str,
        address: String,
        tasks: impl FnOnce(&Arc<dyn SharedState>) -> Vec<SharedTask>,
    ) -> Option<SharedNames> {
        let names = SharedNames::default();
        let own = state.clone();
        self.shared.set(Shared { state, names: names.clone(), address }).ok()?;
        self.renew(gateway, text);
        // Nobody else has set them.
        let _ = self.tasks.set(tasks(&own));
        Some(names)
    }

    /// What it is shared by, if it is.
    pub(crate) fn state(&self) -> Option<&Arc<dyn SharedState>> {
        self.shared.get().map(|shared| &shared.state)
    }

    /// What is configured is this from now on.
    pub(crate) fn renew(&self, gateway: &Gateway, text: &str) {
        if let Some(Shared { state, names, address }) = self.shared.get() {
            gateway.share(state, names);
            let report = NodeReport::new(env!("CARGO_PKG_VERSION"), digest(text));
            state.describe(report.with_address(address.as_str()));
        }
    }

    /// The nodes, the store, and what each node has found.
    pub(crate) fn json(&self, gateway: &Gateway) -> Value {
        let Some(Shared { state, .. }) = self.shared.get() else {
            return json!({ "shared": false });
        };
        let fleet = state.fleet();
        let now_ms = state.clock().unix_ms();
        let store = &fleet.store;
        let nodes = fleet.nodes.iter().map(|node| {
            json!({
                "name": node.name,
                "this": node.name == state.node(),
                "version": node.version,
                "configuration": node.configuration,
                "address": node.address,
                "up_s": now_ms.saturating_sub(node.began_ms) / 1_000,
                "heard_ago_s": now_ms.saturating_sub(node.heard_ms) / 1_000,
            })
        });
        json!({
            "shared": true,
            "node": state.node(),
            "store": {
                "name": store.name,
                "away": state.is_away(),
                "away_s": store.away_for.map(|away| away.as_secs()),
                "error": store.error,
                "outages": store.outages,
                "commands": store.commands,
                "waiting": store.waiting,
                "clock_ahead_ms": store.clock_ahead_ms,
            },
            "nodes": nodes.collect::<Vec<_>>(),
            "differ_in_configuration": differ(&fleet.nodes, |node| &node.configuration),
            "differ_in_version": differ(&fleet.nodes, |node| &node.version),
            "facts": facts(&fleet.facts, now_ms),
            "leases": leases(gateway),
        })
    }

    /// Whether anything is shared.
    pub(crate) fn is_shared(&self) -> bool {
        self.shared.get().is_some()
    }

    /// What of it needs a person.
    pub(crate) fn attention(&self) -> Vec<Attention> {
        let Some(Shared { state, .. }) = self.shared.get() else { return Vec::new() };
        let mut all = Vec::new();
        let fleet = state.fleet();
        if state.is_away() {
            let name = &fleet.store.name;
            let text = format!(
                "The store {name} that gateways share can not be reached: each goes on by what it knows itself."
            );
            all.push(Attention::new(Severity::Warn, "state_away", text));
        }
        if differ(&fleet.nodes, |node| &node.configuration) {
            let text =
                "The gateways of the fleet differ in their configuration: they decide differently.";
            all.push(Attention::new(Severity::Note, "fleet_differs", text));
        }
        all
    }

    /// The same in Prometheus' text format.
    pub(crate) fn gauges(&self) -> String {
        let Some(Shared { state, .. }) = self.shared.get() else { return String::new() };
        let fleet = state.fleet();
        let store = &fleet.store;
        let mut text = String::new();
        let all = [
            ("fleet_nodes", "gauge", "", fleet.nodes.len() as u64),
            ("fleet_facts", "gauge", "", fleet.facts.len() as u64),
            ("state_away", "gauge", "", u64::from(state.is_away())),
            ("state_waiting", "gauge", "", store.waiting as u64),
            ("state_outages", "counter", "_total", store.outages),
            ("state_commands", "counter", "_total", store.commands),
        ];
        for (name, kind, end, value) in all {
            // Writing to a string does not fail.
            let _ = write!(text, "# TYPE steadfast_{name} {kind}\nsteadfast_{name}{end} {value}\n");
        }
        text
    }

    /// What it is shared by, for the lines at the start.
    pub(crate) fn destination(&self) -> Option<String> {
        let shared = self.shared.get()?;
        Some(format!("{}, as {}", shared.state.fleet().store.name, shared.state.node()))
    }
}

/// What this node has of what the fleet shares: of caps, and of rates that are limited.
fn leases(gateway: &Gateway) -> Value {
    let handles = gateway.handles();
    let amount = |spend: Spend| json!({ "tokens": spend.tokens, "micro_dollars": spend.cost });
    let spend = handles.spend.grants().into_iter().map(|one| {
        json!({
            "account": one.account.to_string(),
            "is_cost": one.is_cost,
            "granted": amount(one.granted),
            "held": amount(one.held),
        })
    });
    let limited = handles.rate_limit.snapshot().into_iter().filter(|one| !one.quotas.is_empty());
    let rates = limited
        .filter_map(|one| Some(json!({ "target": one.target?.to_string(), "ppm": one.part_ppm })));
    json!({ "spend": spend.collect::<Vec<_>>(), "rates": rates.collect::<Vec<_>>() })
}

/// Whether nodes differ in what they show of themselves. One that has just come has shown nothing yet.
fn differ(nodes: &[NodeReport], of: impl Fn(&NodeReport) -> &String) -> bool {
    let mut shown = nodes.iter().map(of).filter(|shown| !shown.is_empty());
    let first = shown.next();
    shown.any(|shown| Some(shown) != first)
}

/// What nodes have found, the registers of a key together: which of them is in force, and until when.
fn facts(rows: &[FactRow], now_ms: u64) -> Vec<Value> {
    let of_keys = rows.chunk_by(|one, other| (&one.kind, &one.key) == (&other.kind, &other.key));
    let facts = of_keys.map(|of_key| {
        let known = Known::of(of_key.iter().map(|row| &row.fact));
        let left = |until_ms: u64| until_ms.saturating_sub(now_ms) as f64 / 1e3;
        let by = of_key.iter().map(|row| {
            json!({
                "node": row.node,
                "for_s": left(row.fact.until_ms),
                "holds": known.fact.as_ref() == Some(&row.fact),
                "over_ago_s": (row.fact.over_ms > 0).then(|| now_ms.saturating_sub(row.fact.over_ms) / 1_000),
            })
        });
        let holds = known.fact.as_ref().filter(|fact| fact.until_ms > now_ms);
        json!({
            "kind": of_key[0].kind,
            "key": of_key[0].key,
            "for_s": holds.map(|fact| left(fact.until_ms)),
            "by": by.collect::<Vec<_>>(),
        })
    });
    facts.collect()
}

/// Nodes that differ in it decide differently.
fn digest(text: &str) -> String {
    let hash = Sha256::digest(text);
    hash[..4].iter().fold(String::new(), |all, byte| format!("{all}{byte:02x}"))
}

/// The store that `config` names, if it does. It is not waited for.
///
/// # Errors
///
/// When the address is wrong or can not be read.
#[cfg(feature = "redis")]
pub(crate) fn connect(
    config: &Config,
    source: &Source,
) -> Result<Option<Arc<dyn SharedState>>, ConfigErrors> {
    use steadfast::redis::{RedisConfig, RedisState};
    let state = &config.state;
    let Some(url) = &state.url else { return Ok(None) };
    let wrong = |why: String| ConfigErrors::from(source.error("state.url", why));
    let url = match crate::keys::is_reference(url) {
        true => crate::keys::resolve(url).map_err(wrong)?.expose().to_owned(),
        false => url.clone(),
    };
    let store =
        RedisConfig::new(url).with_prefix(state.prefix.as_str()).with_fleet(state.fleet.as_str());
    let connected = RedisState::connect(store).map_err(|error| wrong(error.to_string()))?;
    Ok(Some(Arc::new(connected)))
}

/// This build has none.
///
/// # Errors
///
/// When `config` names one.
#[cfg(not(feature = "redis"))]
pub(crate) fn connect(
    config: &Config,
    source: &Source,
) -> Result<Option<Arc<dyn SharedState>>, ConfigErrors> {
    if config.state.url.is_none() {
        return Ok(None);
    }
    let why = "this build shares nothing; build it with the feature `redis`";
    Err(source.error("state.url", why.to_owned()).into())
}
