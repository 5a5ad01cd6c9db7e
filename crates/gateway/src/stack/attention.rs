//! What of the layers' state needs a person, in words.

use serde_json::{Value, json};
use steadfast::{Handles, health::HealthStatus};
use steadfast_core::{Reason, circuit::CircuitState};
use tokio::time::Instant;

use super::Gateway;

/// The most of one kind: whoever sees so many looks for what they have in common.
const MOST: usize = 8;

/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Severity {
    /// Callers are not answered, or will not be.
    Bad,
    /// It costs something, or will.
    Warn,
    /// Somebody has wanted it, and may have forgotten.
    Note,
}

/// Something that needs a person.
#[derive(Clone, Debug)]
pub(crate) struct Attention {
    pub(crate) severity: Severity,
    pub(crate) kind: &'static str,
    pub(crate) text: String,
    /// What it is about, where that is a target.
    pub(crate) target: Option<String>,
}

impl Attention {
    pub(crate) fn new(severity: Severity, kind: &'static str, text: impl Into<String>) -> Self {
        Self { severity, kind, text: text.into(), target: None }
    }

    fn about(mut self, target: &impl ToString) -> Self {
        self.target = Some(target.to_string());
        self
    }

    pub(crate) fn json(&self) -> Value {
        let severity = match self.severity {
            Severity::Bad => "bad",
            Severity::Warn => "warn",
            Severity::Note => "note",
        };
        json!({ "severity": severity, "kind": self.kind, "text": self.text, "target": self.target })
    }
}

impl Gateway {
    /// What needs a person, in no order.
    pub(crate) fn attention(&self) -> Vec<Attention> {
        let (now, handles) = (Instant::now(), self.handles());
        let mut all = Vec::new();
        for (route, (has, available)) in self.availability() {
            if has > 0 && available == 0 {
                let text = format!(
                    "Nobody can be asked on the route {route}: each of its {has} targets rests."
                );
                all.push(Attention::new(Severity::Bad, "no_target", text));
            }
        }
        all.extend(targets(handles, now).take(MOST));
        all.extend(breakers(handles).take(MOST));
        let degraded = handles.health.snapshot().providers.into_iter();
        let degraded = degraded.filter(|provider| provider.status == HealthStatus::Degraded);
        all.extend(degraded.take(MOST).map(|provider| {
            let text = format!(
                "{} is degraded: {} of its last {} calls failed, across all callers.",
                provider.provider, provider.failures, provider.calls
            );
            Attention::new(Severity::Warn, "degraded", text).about(&provider.provider)
        }));
        let held = handles.escalation.held();
        if let Some(first) = held.iter().map(|held| held.left_at(now)).min() {
            let (count, left) = (held.len(), first.as_secs());
            let text = match count {
                1 => format!("A request is held for somebody's decision, for {left} s more."),
                _ => format!(
                    "{count} requests are held for somebody's decision, the first for {left} s more."
                ),
            };
            all.push(Attention::new(Severity::Bad, "held", text));
        }
        let tasks = handles.guard.snapshot();
        let stopped: Vec<_> = tasks.iter().filter(|task| task.stop.is_some()).collect();
        if let Some(first) = stopped.first() {
            let more = match stopped.len() {
                1 => String::new(),
                count => format!(", and {} others", count - 1),
            };
            let text = format!("The guard has stopped the task {}{more}.", first.task);
            all.push(Attention::new(Severity::Warn, "stopped", text));
        }
        all
    }
}

/// Targets that do not come back by themselves, and those that somebody has taken out.
fn targets(handles: &Handles, now: Instant) -> impl Iterator<Item = Attention> {
    let snapshot = handles.failover.snapshot();
    let known = snapshot.targets().to_vec().into_iter();
    known.filter_map(move |health| {
        let target = &health.target;
        if health.out {
            let text = format!("{target} was taken out by an operator, and is not asked.");
            return Some(Attention::new(Severity::Note, "out", text).about(target));
        }
        let cooling = health.cooling.filter(|cooling| cooling.refuses && cooling.until > now)?;
        let (severity, kind, text) = match cooling.reason {
            Reason::Auth => (
                Severity::Bad,
                "key_refused",
                format!("{target} refuses our key. Renew it, then reset the rest of {target}."),
            ),
            Reason::Billing => (
                Severity::Bad,
                "unpaid",
                format!("{target} wants to be paid first. Then reset the rest of {target}."),
            ),
            Reason::ModelNotFound => {
                (Severity::Warn, "no_model", format!("{target} is not there, says its provider."))
            }
            _ => return None,
        };
        Some(Attention::new(severity, kind, text).about(target))
    })
}

/// Breakers that somebody has forced.
fn breakers(handles: &Handles) -> impl Iterator<Item = Attention> {
    handles.breaker.snapshot().into_iter().filter_map(|breaker| {
        let key = breaker.key.as_ref()?;
        let what = match breaker.circuit.state {
            CircuitState::ForcedOpen | CircuitState::Isolated => "open: nobody is let through",
            CircuitState::ForcedClosed => "closed: everybody is let through",
            _ => return None,
        };
        let text = format!("An operator keeps the breaker of {key} {what}.");
        Some(Attention::new(Severity::Note, "forced", text).about(key))
    })
}
