//! The state of the layers as Prometheus gauges, read at the moment of asking.
//!
//! Callers can ask for any model, and a reload can take a tenant away: what the configuration does not name shares
//! one series, `other`.

use std::{
    collections::{BTreeMap, HashSet},
    fmt::Write,
};

use steadfast::{Handles, Spend, SpendAccount, Target, health::HealthStatus};
use tokio::time::Instant;

use super::{
    RouteStack,
    available::{Resting, of_route},
};
use crate::escape;

/// Series by their labels.
type Series<T> = BTreeMap<String, T>;

/// All gauges, with the mark that ends an exposition. `is_known` is true for the models that have series of their
/// own; so have these `accounts`, and none is shown without.
pub(super) fn of(
    handles: &Handles,
    is_known: impl Fn(&str) -> bool,
    accounts: Option<&HashSet<SpendAccount>>,
    (routes, all): (&[RouteStack], &[Target]),
) -> String {
    let mut text = String::new();
    targets(&mut text, handles, &is_known);
    available(&mut text, handles, &is_known, (routes, all));
    rates(&mut text, handles, &is_known);
    let degraded = handles.health.snapshot().providers.into_iter().map(|provider| {
        let label = format!("provider=\"{}\"", escape::label(&provider.provider));
        (label, u8::from(provider.status == HealthStatus::Degraded))
    });
    gauge(&mut text, "provider_degraded", degraded);
    let held = handles.escalation.snapshot().held;
    gauge(&mut text, "escalations_held", [(String::new(), held)]);
    let stopped = handles.guard.snapshot().iter().filter(|task| task.stop.is_some()).count();
    gauge(&mut text, "tasks_stopped", [(String::new(), stopped)]);
    if let Some(accounts) = accounts {
        spend(&mut text, handles, accounts);
    }
    text.push_str("# EOF\n");
    text
}

/// Who cools, and whose breaker is open. Of targets that share a series the worst is shown.
fn targets(text: &mut String, handles: &Handles, is_known: &impl Fn(&str) -> bool) {
    let now = Instant::now();
    let (mut cooling, mut open) = (Series::new(), Series::new());
    for health in handles.failover.snapshot().targets() {
        let left = health.cooling_for(now).unwrap_or_default().as_secs_f64();
        raise(&mut cooling, target(Some(&health.target), is_known), left);
    }
    for breaker in handles.breaker.snapshot() {
        let is_open = u8::from(breaker.circuit.state.as_str() != "closed");
        raise(&mut open, target(breaker.key.as_ref(), is_known), is_open);
    }
    gauge(text, "target_cooling_seconds", cooling);
    gauge(text, "breaker_open", open);
}

/// Why targets cool, and how many of each route may be asked.
fn available(
    text: &mut String,
    handles: &Handles,
    is_known: &impl Fn(&str) -> bool,
    (routes, all): (&[RouteStack], &[Target]),
) {
    let resting = Resting::now(handles);
    let why = resting.reasons().iter().map(|(cooling, reason)| {
        (format!("{},reason=\"{}\"", target(Some(cooling), is_known), reason.as_str()), 1)
    });
    gauge(text, "target_resting", why.collect::<Series<u8>>());
    let of_routes: Vec<_> = routes
        .iter()
        .map(|route| {
            let label = format!("route=\"{}\"", escape::label(route.name()));
            (label, of_route(route, all, &resting))
        })
        .collect();
    gauge(text, "route_targets", of_routes.iter().map(|(label, (all, _))| (label.clone(), *all)));
    let available = of_routes.into_iter().map(|(label, (_, available))| (label, available));
    gauge(text, "route_targets_available", available);
}

/// The limits that are known of targets, what is left of them, and who waits.
fn rates(text: &mut String, handles: &Handles, is_known: &impl Fn(&str) -> bool) {
    let (mut limits, mut left, mut waiting) = (Series::new(), Series::new(), Series::new());
    for known in handles.rate_limit.snapshot() {
        let target = target(known.target.as_ref(), is_known);
        for quota in &known.quotas {
            let label = format!("{target},of=\"{}\"", quota.name);
            raise(&mut limits, label.clone(), quota.limit);
            raise(&mut left, label, quota.available);
        }
        *waiting.entry(target).or_insert(0) += known.waiting;
    }
    gauge(text, "rate_limit", limits);
    gauge(text, "rate_limit_available", left);
    gauge(text, "rate_limit_waiting", waiting);
}

/// What accounts have spent, as `/admin/spend` shows it.
fn spend(text: &mut String, handles: &Handles, accounts: &HashSet<SpendAccount>) {
    let (mut tokens, mut cost) = (Series::new(), Series::new());
    for (account, totals) in handles.spend.snapshot(Instant::now()) {
        let Some((kind, name)) = kind(&account) else { continue };
        let name = match name {
            _ if !accounts.contains(&account) => "other",
            "" => "(none)",
            name => name,
        };
        let name = escape::label(name);
        let windows = [
            ("hour", totals.hour),
            ("day", totals.day),
            ("month", totals.month),
            ("held", totals.held),
        ];
        for (window, Spend { tokens: spent, cost: paid }) in windows {
            let label = format!("account=\"{kind}\",name=\"{name}\",window=\"{window}\"");
            *tokens.entry(label.clone()).or_insert(0) += spent;
            *cost.entry(label).or_insert(0) += paid;
        }
    }
    gauge(text, "spend_tokens", tokens);
    gauge(text, "spend_micro_dollars", cost);
}

/// What kind of account it is, and whose.
pub(super) fn kind(account: &SpendAccount) -> Option<(&'static str, &str)> {
    match account {
        SpendAccount::Tenant(name) => Some(("tenant", name)),
        SpendAccount::Key(name) => Some(("key", name)),
        SpendAccount::Summaries(name) => Some(("summaries", name)),
        _ => None,
    }
}

fn gauge<T: std::fmt::Display>(
    text: &mut String,
    name: &str,
    series: impl IntoIterator<Item = (String, T)>,
) {
    // Writing to a string does not fail.
    let _ = writeln!(text, "# TYPE steadfast_{name} gauge");
    for (labels, value) in series {
        let labels = if labels.is_empty() { labels } else { format!("{{{labels}}}") };
        let _ = writeln!(text, "steadfast_{name}{labels} {value}");
    }
}

/// The label of a target.
fn target(target: Option<&Target>, is_known: &impl Fn(&str) -> bool) -> String {
    let name = match target.map(|target| (target, target.model())) {
        Some((target, Some(model))) if !is_known(model) => {
            escape::label(target.with_model("other").as_str())
        }
        Some((target, _)) => escape::label(target.as_str()),
        None => "(none)".to_owned(),
    };
    format!("target=\"{name}\"")
}

/// Several targets can share a series: the largest value counts.
fn raise<T: PartialOrd>(series: &mut Series<T>, label: String, value: T) {
    match series.get_mut(&label) {
        Some(known) if *known >= value => {}
        Some(known) => *known = value,
        None => {
            series.insert(label, value);
        }
    }
}
