//! Routes: which requests go by a chain and limits of their own.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use toml::de::{DeTable, DeValue};

use super::Link;

/// `[routes.NAME]`
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct RouteConfig {
    /// The models it is for, as they are asked for, aliases replaced. A name that ends with `*` stands for
    /// every beginning. None: whatever the model.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub models: Vec<String>,
    /// The tenants it is for. None: whoever asks.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tenants: Vec<String>,
    /// The agents it is for, by what they say in `x-steadfast-agent`; a name that ends with `*` stands for
    /// every beginning. None: whatever the agent.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub agents: Vec<String>,
    /// The providers in the order they are asked, as in `[failover]`. None: those of `[failover]`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub chain: Vec<Link>,
    /// Keys of `[failover]` about single calls, such as `when_exhausted`, `patience` or `hedge_ms`; not those
    /// about targets. With a chain of its own a route has the `chains` that stand here.
    #[serde(skip_serializing_if = "Map::is_empty")]
    pub failover: Map<String, Value>,
    /// Keys of `[retry]`, except the budget.
    #[serde(skip_serializing_if = "Map::is_empty")]
    pub retry: Map<String, Value>,
    /// Keys of `[timeout]`.
    #[serde(skip_serializing_if = "Map::is_empty")]
    pub timeout: Map<String, Value>,
    /// Keys of `[guard]`, except `tasks`.
    #[serde(skip_serializing_if = "Map::is_empty")]
    pub guard: Map<String, Value>,
    /// Keys of `[continuation]`.
    #[serde(skip_serializing_if = "Map::is_empty")]
    pub continuation: Map<String, Value>,
    /// Keys of `[resume]`.
    #[serde(skip_serializing_if = "Map::is_empty")]
    pub resume: Map<String, Value>,
    /// Keys of `[compaction]`, except the summariser.
    #[serde(skip_serializing_if = "Map::is_empty")]
    pub compaction: Map<String, Value>,
    /// Where it stands in the file.
    #[serde(skip)]
    pub(super) position: usize,
}

/// The routes by name.
pub(super) type Routes = BTreeMap<String, RouteConfig>;

impl RouteConfig {
    /// Whether a request for `model` of this tenant and agent takes it.
    pub fn takes(&self, model: &str, tenant: Option<&str>, agent: Option<&str>) -> bool {
        let any = |names: &[String], name: Option<&str>| {
            names.is_empty()
                || name.is_some_and(|name| names.iter().any(|pattern| fits(pattern, name)))
        };
        let exact = |names: &[String], name: Option<&str>| {
            names.is_empty() || name.is_some_and(|name| names.iter().any(|one| one == name))
        };
        any(&self.models, Some(model)) && exact(&self.tenants, tenant) && any(&self.agents, agent)
    }
}

/// Whether `name` is the pattern, or begins with what is before the pattern's `*`.
fn fits(pattern: &str, name: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(start) => name.starts_with(start),
        None => pattern == name,
    }
}

/// The sections that a route can have keys of.
const SECTIONS: [&str; 7] =
    ["failover", "retry", "timeout", "guard", "continuation", "resume", "compaction"];

/// Keys of those that belong to what all routes share.
const SHARED: [(&str, &[&str]); 4] = [
    (
        "failover",
        &[
            "down_after",
            "first_rest_ms",
            "longest_hint_s",
            "permanent_cap_s",
            "permanent_s",
            "probe_limit_s",
            "probe_window_s",
            "rest_after",
            "rest_growth",
            "sessions",
            "trusted_for_s",
        ],
    ),
    (
        "retry",
        &[
            "budget",
            "budget_free",
            "budget_network",
            "budget_refill",
            "budget_throttling",
            "budget_transient",
            "max_waiting",
        ],
    ),
    ("guard", &["tasks"]),
    ("compaction", &["summariser"]),
];

/// The table of the route `name` in `root`.
pub(super) fn table<'t, 'i>(root: &'t DeTable<'i>, name: &str) -> Option<&'t DeTable<'i>> {
    inner(inner(root, "routes")?, name)
}

/// Where each route stands.
pub(super) fn positions(root: &DeTable<'_>, routes: &mut Routes) {
    let Some(tables) = inner(root, "routes") else { return };
    for (name, _) in tables {
        if let Some(route) = routes.get_mut(&**name.get_ref()) {
            route.position = name.span().start;
        }
    }
}

/// What a route changes, as the sections of a file.
pub(super) fn sections<'i>(route: &DeTable<'i>) -> DeTable<'i> {
    let of_section = route.iter().filter(|(name, _)| SECTIONS.contains(&&**name.get_ref()));
    of_section.map(|(name, value)| (name.clone(), value.clone())).collect()
}

/// Calls `found` for each key of a route that is not for routes, with its offset and what would be right.
pub(super) fn not_for_routes(
    name: &str,
    route: &DeTable<'_>,
    found: &mut dyn FnMut(String, usize, String),
) {
    for (section, value) in route {
        let (at, section) = (section.span().start, &**section.get_ref());
        if ["breaker", "cooldown", "recovery"].contains(&section) {
            let message = format!(
                "it belongs to the targets, which all routes share; set [{section}] for all of them"
            );
            found(format!("routes.{name}.{section}"), at, message);
        }
        let DeValue::Table(keys) = value.get_ref() else { continue };
        let shared = SHARED.iter().find(|(of, _)| *of == section).map_or(&[][..], |(_, keys)| keys);
        for (key, _) in keys {
            let (at, key) = (key.span().start, &**key.get_ref());
            let message = if shared.contains(&key) {
                format!("it belongs to what all routes share; set it in [{section}]")
            } else if (section, key) == ("failover", "chain") {
                format!("the chain of a route stands in [routes.{name}] itself")
            } else {
                continue;
            };
            found(format!("routes.{name}.{section}.{key}"), at, message);
        }
    }
}

fn inner<'t, 'i>(table: &'t DeTable<'i>, name: &str) -> Option<&'t DeTable<'i>> {
    let (_, value) = table.iter().find(|(key, _)| key.get_ref() == name)?;
    match value.get_ref() {
        DeValue::Table(inner) => Some(inner),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_of_the_budget_is_everybodys() {
        let budget = serde_json::to_value(steadfast::BudgetPolicy::default()).unwrap();
        let keys: Vec<_> = budget.as_object().unwrap().keys().map(String::as_str).collect();
        let (_, shared) = SHARED.iter().find(|(section, _)| *section == "retry").unwrap();
        assert_eq!(shared.len(), keys.len());
        assert!(keys.iter().all(|key| shared.contains(key)), "{keys:?}");
    }

    #[test]
    fn a_route_takes_what_all_of_its_lists_allow() {
        let list = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        let route = |models: &[&str], tenants: &[&str], agents: &[&str]| RouteConfig {
            models: list(models),
            tenants: list(tenants),
            agents: list(agents),
            ..RouteConfig::default()
        };
        let asks = [
            ("gpt-5.4", Some("acme"), Some("coder")),
            ("gpt-5.4-mini", None, None),
            ("claude-opus-5", Some("umbrella"), Some("coder-2")),
        ];
        for (route, taken) in [
            (route(&["gpt-*"], &[], &[]), [true, true, false]),
            (route(&["gpt-5.4"], &[], &[]), [true, false, false]),
            (route(&["claude-opus-5", "gpt-5.4-*"], &[], &[]), [false, true, true]),
            (route(&["*"], &[], &[]), [true, true, true]),
            (route(&[], &["acme"], &[]), [true, false, false]),
            (route(&[], &["acme", "umbrella"], &[]), [true, false, true]),
            (route(&[], &[], &["coder"]), [true, false, false]),
            (route(&[], &[], &["coder*"]), [true, false, true]),
            (route(&["gpt-*"], &["umbrella"], &[]), [false, false, false]),
            (route(&["gpt-*"], &["acme"], &["coder"]), [true, false, false]),
            (route(&[], &["acm*"], &[]), [false, false, false]),
        ] {
            let got = asks.map(|(model, tenant, agent)| route.takes(model, tenant, agent));
            assert_eq!(got, taken, "{route:?}");
        }
    }
}
