//! Requests that are held for a person: the layer, and how they are shown.

use std::{
    sync::{Arc, OnceLock},
    time::{Duration, UNIX_EPOCH},
};

use http::Uri;
use serde_json::{Value, json};
use steadfast::{
    Target,
    client::Secret,
    escalate::{DecisionKind, EscalationHandle, EscalationLayer, EscalationPolicy, HeldRequest},
    failover::FailoverHandle,
};
use tokio::time::Instant;

use crate::{
    admission::Limits,
    config::{Config, ConfigErrors, ServerConfig, Source},
    keys,
    webhook::Webhook,
};

/// What ends cooldowns, once the stacks are made.
pub(super) type Health = Arc<OnceLock<FailoverHandle>>;

/// The layer of `config`, which notifies `webhook`.
///
/// # Errors
///
/// When its numbers are wrong.
pub(super) fn layer(
    config: &Config,
    source: &Source,
    webhook: Option<Webhook>,
    health: &Health,
) -> Result<EscalationLayer, ConfigErrors> {
    let given = &config.escalation;
    if !given.enabled {
        return Ok(EscalationLayer::off());
    }
    let layer = EscalationLayer::new(within(given.policy, &config.server));
    let layer = layer.map_err(|error| source.error("escalation", error.to_string()))?;
    let health = health.clone();
    let layer = layer.with_reset(move |target| health.get().is_some_and(|all| reset(all, target)));
    let Some(webhook) = webhook else { return Ok(layer) };
    Ok(layer.with_operator(move |held: Arc<HeldRequest>| {
        // One notice for each request, and not for each round.
        if held.round == 1 {
            webhook.send(&notice(&held, Instant::now()).to_string());
        }
        // The decision comes by the endpoint.
        std::future::ready(None)
    }))
}

/// `policy` with what is held kept to a quarter of the requests in flight, and of the memory for them, as calls
/// are that wait between attempts.
fn within(mut policy: EscalationPolicy, server: &ServerConfig) -> EscalationPolicy {
    let quarter = (server.max_in_flight / 4).max(1);
    let memory = Limits::of(server, 0).memory_of_waiting().max(1);
    policy.max_held = policy.max_held.min(quarter);
    policy.max_held_bytes = policy.max_held_bytes.min(memory);
    policy
}

/// The address to notify, and whether it is a secret.
///
/// # Errors
///
/// When it can not be read, or is no address.
pub(super) fn address(
    config: &Config,
    source: &Source,
) -> Result<Option<(Uri, Option<Secret>)>, ConfigErrors> {
    let given = config.escalation.webhook.as_deref().filter(|_| config.escalation.enabled);
    let Some(given) = given else { return Ok(None) };
    let error = |message: String| source.error("escalation.webhook", message);
    if is_address(given) {
        let uri = given.parse().map_err(|_| error(format!("`{given}` is no address")))?;
        return Ok(Some((uri, None)));
    }
    let secret = keys::resolve(given).map_err(error)?;
    match secret.expose().parse::<Uri>() {
        Ok(uri) if is_address(secret.expose()) => Ok(Some((uri, Some(secret)))),
        _ => Err(error(format!("{given} holds no address such as https://HOST/PATH")).into()),
    }
}

/// Whether notices can be sent to `text`.
pub(crate) fn is_address(text: &str) -> bool {
    text.parse::<Uri>().is_ok_and(|uri| {
        let plain = uri.authority().is_some_and(|authority| !authority.as_str().contains('@'));
        plain && matches!(uri.scheme_str(), Some("http" | "https"))
    })
}

/// Ends each cooldown that keeps `target` from being asked, of its parts as well.
fn reset(health: &FailoverHandle, target: &Target) -> bool {
    let known = health.snapshot();
    let known = known.targets().iter().map(|health| &health.target);
    let concerned = known.filter(|known| target.covers(known) || known.covers(target));
    // All of them, and not up to the first.
    concerned.map(|known| health.reset(known)).filter(|reset| *reset).count() > 0
}

/// What is posted to the webhook.
fn notice(held: &HeldRequest, now: Instant) -> Value {
    let text = format!(
        "steadfast holds a request{} that every target has failed ({}); decide within {} s: POST \
         /admin/escalations/{}",
        if held.model.is_empty() { String::new() } else { format!(" for {}", held.model) },
        held.reason,
        held.left_at(now).as_secs(),
        held.id,
    );
    json!({ "event": "held", "text": text, "request": shown(held, now) })
}

/// A held request, for operators.
pub(crate) fn shown(held: &HeldRequest, now: Instant) -> Value {
    let chain = held.chain.iter().map(|attempt| {
        json!({
            "target": attempt.target.as_ref().map(ToString::to_string),
            "reason": attempt.reason.as_str(),
            "status": attempt.status.map(|status| status.as_u16()),
            "skipped": attempt.skipped,
            "message": attempt.message,
        })
    });
    let targets = held.targets.iter().map(|target| {
        json!({
            "target": target.target.to_string(),
            "reason": target.reason.as_str(),
            "tried": target.tried,
            "back_in_s": target.wait_at(now).map(seconds),
        })
    });
    let kinds = DecisionKind::ALL.into_iter();
    let kinds = kinds.filter(|kind| *kind != DecisionKind::ResetCooldown || held.can_reset);
    let back = |soonest: Instant| seconds(soonest.saturating_duration_since(now));
    json!({
        "id": held.id.to_string(),
        "round": held.round,
        "since": held.since_wall.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()),
        "left_s": seconds(held.left_at(now)),
        "tenant": held.tenant,
        "agent": held.agent,
        "task": held.task,
        "session": held.session,
        "model": held.model,
        "stream": held.stream,
        "reason": held.reason.as_str(),
        "attempts": held.attempts,
        "soonest_s": held.soonest.map(back),
        "chain": chain.collect::<Vec<_>>(),
        "targets": targets.collect::<Vec<_>>(),
        "decisions": kinds.map(DecisionKind::as_str).collect::<Vec<_>>(),
        "prompt": held.prompt,
    })
}

/// What has been held and decided, for `/admin/status`.
pub(super) fn status(handle: &EscalationHandle) -> Value {
    let done = handle.snapshot();
    let decided =
        done.decided.iter().map(|(kind, count)| (kind.as_str().to_owned(), (*count).into()));
    json!({
        "waiting": done.waiting,
        "held": done.held,
        "held_bytes": done.held_bytes,
        "total": done.total,
        "decided": decided.collect::<serde_json::Map<String, Value>>(),
        "recovered": done.recovered,
        "expired": done.expired,
        "left": done.left,
        "overflowed": done.overflowed,
    })
}

/// To a tenth.
fn seconds(duration: Duration) -> f64 {
    (duration.as_secs_f64() * 10.0).round() / 10.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_gateway_holds_a_quarter_of_its_requests() {
        for (in_flight, held) in [(4_096, 100), (40, 10), (1, 1)] {
            let server = ServerConfig { max_in_flight: in_flight, ..ServerConfig::default() };
            assert_eq!(within(EscalationPolicy::default(), &server).max_held, held);
        }
        let policy = EscalationPolicy { max_held: 7, ..EscalationPolicy::default() };
        assert_eq!(within(policy, &ServerConfig::default()).max_held, 7);
    }

    #[test]
    fn what_is_wrong_is_reported_with_its_key() {
        let errors = |keys: &str| {
            let text = format!(
                "[server]\nauth = 'none'\n[[providers]]\nname = 'a'\ndialect = 'openai'\n\
                 [escalation]\n{keys}\n"
            );
            let source = Source::text(text);
            let config = source.parse().unwrap();
            let validated = config.validate(&source).and_then(|()| address(&config, &source));
            validated.map_or_else(|errors| errors.to_string(), |_| String::new())
        };
        for (keys, error) in [
            ("enabled = true\nwebhook = 'https://hooks.example/x'", ""),
            ("webhook = 'env:STEADFAST_NOWHERE_SET'", ""),
            ("hold_s = 0.5", "escalation.hold_s: `hold` 500ms is too short"),
            ("max_held = 0", "escalation.max_held: `max_held` is zero"),
            ("webhook = 'hooks.example'", "escalation.webhook: write an address"),
            ("webhook = 'https://me:secret@hooks.example'", "without a password"),
            (
                "enabled = true\nwebhook = 'env:STEADFAST_NOWHERE_SET'",
                "escalation.webhook: the environment variable STEADFAST_NOWHERE_SET is not set",
            ),
        ] {
            let found = errors(keys);
            assert!(found.contains(error) && found.is_empty() == error.is_empty(), "{found}");
        }
    }

    #[test]
    fn notices_go_to_addresses_alone() {
        for (text, is) in [
            ("https://hooks.example/T0/B0", true),
            ("http://127.0.0.1:9000", true),
            ("hooks.example/x", false),
            ("ftp://hooks.example/x", false),
            ("https://user:secret@hooks.example/x", false),
            ("/x", false),
            ("env:HOOK", false),
        ] {
            assert_eq!(is_address(text), is, "{text}");
        }
    }
}
