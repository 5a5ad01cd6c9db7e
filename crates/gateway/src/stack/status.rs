//! The state of the layers, for operators.

use std::time::Duration;

use serde_json::{Value, json};
use steadfast::{Handles, RefusedParameter, Spend, Target};
use tokio::time::Instant;

use super::{RouteStack, escalation, gauges};

/// The most tasks or conversations in a status: as many as somebody reads.
const SHOWN: usize = 50;

/// `/admin/status`.
pub(super) fn json(handles: &Handles, routes: &[RouteStack]) -> Value {
    let now = Instant::now();
    let ago = |at: Instant| seconds(now.saturating_duration_since(at));
    let snapshot = handles.failover.snapshot();
    let targets: Vec<_> = snapshot
        .targets()
        .iter()
        .map(|health| {
            json!({
                "target": health.target.to_string(),
                "status": health.status.as_str(),
                "errors": health.errors,
                "consecutive": health.consecutive,
                "last_error": health.last_error.as_ref().map(|error| json!({
                    "reason": error.reason.as_str(),
                    "message": error.message,
                    "ago_s": ago(error.at),
                })),
                "last_success_ago_s": health.last_success.map(ago),
                "cooling": health.cooling.as_ref().zip(health.cooling_for(now)).map(|(cooling, left)| json!({
                    "reason": cooling.reason.as_str(),
                    "for_s": seconds(left),
                })),
                "probing": health.probing,
                "out": health.out,
                "in_flight": health.in_flight,
            })
        })
        .collect();
    let breakers: Vec<_> = handles
        .breaker
        .snapshot()
        .iter()
        .map(|breaker| {
            json!({
                "target": key(breaker.key.as_ref()),
                "state": breaker.circuit.state.as_str(),
                "for_s": breaker.circuit.until.map(|until| seconds(until.saturating_duration_since(now))),
                "consecutive": breaker.circuit.consecutive,
                "calls": breaker.circuit.calls,
                "failures": breaker.circuit.failures,
            })
        })
        .collect();
    let retry = handles.retry.snapshot();
    let (cut, broken) = (handles.continuation.snapshot(), handles.resume.snapshot());
    json!({
        "chain": routes.last().map(RouteStack::chain),
        "routes": routes.iter().map(route).collect::<Vec<_>>(),
        "targets": targets,
        "breakers": breakers,
        "escalation": escalation::status(&handles.escalation),
        "health": health(handles, now),
        "rate_limits": rate_limits(handles),
        "guard": guard(handles),
        "continuation": {
            "cut": cut.cut,
            "escalated": cut.escalated,
            "continued": cut.continued,
            "truncated": cut.truncated,
        },
        "compaction": compaction(handles),
        "resume": {
            "broken": broken.broken,
            "resumed": broken.resumed,
            "declined": broken.declined,
            "wasted_tokens": broken.wasted_tokens,
        },
        "retry": {
            "calls": retry.calls,
            "retries": retry.retries.iter().map(|(_, times)| times).sum::<u64>(),
            "recovered": retry.recovered,
            "gave_up": retry.gave_up,
            "budget": retry.budget,
            "waiting": retry.waiting,
        },
    })
}

/// What is known of each target's limits.
fn rate_limits(handles: &Handles) -> Value {
    let known = handles.rate_limit.snapshot().into_iter().map(|known| {
        let quotas = known.quotas.iter().map(|quota| {
            json!({
                "of": quota.name,
                "limit": quota.limit,
                "period_s": seconds(quota.period),
                "available": quota.available,
                "learned": quota.learned,
            })
        });
        json!({
            "target": known.target.as_ref().map(ToString::to_string),
            "quotas": quotas.collect::<Vec<_>>(),
            "in_use": known.in_use,
            "waiting": known.waiting,
            "admitted": known.admitted,
            "waited": known.waited,
            "refused": known.refused,
            "rejected": known.rejected,
            "blocked_for_s": seconds(known.blocked_for),
        })
    });
    known.collect()
}

/// What each account has spent in the last hour, day and 30 days, and what calls under way have reserved:
/// `/admin/spend`.
pub(super) fn spend(handles: &Handles) -> Value {
    let shown = |spent: Spend| json!({ "tokens": spent.tokens, "micro_dollars": spent.cost });
    let accounts = handles.spend.snapshot(Instant::now()).into_iter().map(|(account, totals)| {
        let Some((kind, name)) = gauges::kind(&account) else { return Value::Null };
        json!({
            kind: name,
            "hour": shown(totals.hour),
            "day": shown(totals.day),
            "month": shown(totals.month),
            "held": shown(totals.held),
        })
    });
    json!({ "accounts": accounts.filter(|account| !account.is_null()).collect::<Vec<_>>() })
}

/// The providers, seen across all callers.
fn health(handles: &Handles, now: Instant) -> Value {
    let shown = handles.health.snapshot().providers.into_iter().map(|provider| {
        json!({
            "provider": provider.provider,
            "status": provider.status.as_str(),
            "forced": provider.forced,
            "for_s": seconds(now.saturating_duration_since(provider.since)),
            "degradations": provider.degradations,
            "calls": provider.calls,
            "failures": provider.failures,
            "failing_agents": provider.failing_agents,
            "last_failure": provider.last_failure.map(|reason| reason.as_str()),
        })
    });
    shown.collect()
}

/// A route, and what it takes.
fn route(route: &RouteStack) -> Value {
    let mut shown = json!({ "name": route.name, "chain": route.chain });
    if let Some(when) = &route.when {
        shown["models"] = json!(when.models);
        shown["tenants"] = json!(when.tenants);
        shown["agents"] = json!(when.agents);
    }
    shown
}

/// What was compacted, and whose conversations are the largest.
fn compaction(handles: &Handles) -> Value {
    let done = handles.compaction.snapshot();
    let mut conversations = done.conversations;
    let known = conversations.len();
    conversations.sort_by_key(|one| std::cmp::Reverse(one.tokens));
    conversations.truncate(SHOWN);
    let shown: Vec<_> = conversations
        .iter()
        .map(|one| {
            json!({
                "conversation": one.id.to_string(),
                "tokens": one.tokens,
                "compactions": one.compactions,
                "saved": one.saved,
                "ineffective": one.ineffective,
                "off": one.is_off,
            })
        })
        .collect();
    let spent: Vec<_> = done
        .spent
        .iter()
        .map(|(tenant, hour, day)| json!({ "tenant": tenant, "hour": hour, "day": day }))
        .collect();
    json!({
        "warned": done.counts.warned,
        "compacted": done.counts.compacted,
        "summarised": done.counts.summarised,
        "degraded": done.counts.degraded,
        "ineffective": done.counts.ineffective,
        "overflows": done.counts.overflows,
        "too_large": done.counts.too_large,
        "repaired": done.counts.repaired,
        "learned": done.learned.iter().map(|(model, window)| {
            json!({ "model": model, "window": window })
        }).collect::<Vec<_>>(),
        "refused": done.refused.iter().map(|(provider, model, parameter)| {
            let RefusedParameter { name, most } = parameter;
            json!({ "provider": provider, "model": model, "parameter": name, "most": most })
        }).collect::<Vec<_>>(),
        "breakers": done.breakers.iter().map(|(tenant, state)| {
            json!({ "tenant": tenant, "state": state.as_str() })
        }).collect::<Vec<_>>(),
        "spent": spent,
        "known_conversations": known,
        "conversations": shown,
    })
}

/// The guard's tasks: those that were stopped, and the ones that used most.
fn guard(handles: &Handles) -> Value {
    let mut tasks = handles.guard.snapshot();
    let known = tasks.len();
    tasks.sort_by_key(|task| (task.stop.is_none(), std::cmp::Reverse(task.calls)));
    tasks.truncate(SHOWN);
    let shown: Vec<_> = tasks
        .iter()
        .map(|task| {
            json!({
                "task": task.task,
                "tenant": task.tenant,
                "events": task.events,
                "calls": task.calls,
                "elapsed_s": seconds(task.elapsed),
                "stopped": task.stop.as_ref().map(|stop| stop.cause.to_string()),
            })
        })
        .collect();
    json!({ "stops": handles.guard.stops(), "known_tasks": known, "tasks": shown })
}

fn key(target: Option<&Target>) -> String {
    target.map_or_else(|| "(none)".to_owned(), ToString::to_string)
}

fn seconds(duration: Duration) -> f64 {
    (duration.as_secs_f64() * 10.0).round() / 10.0
}
