//! The requests that all nodes hold for a person.
//!
//! A held request is a caller's connection, so it is answered where it is. What the others have is a fact of it: the summary
//! that operators are shown, until the hold ends.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use serde_json::{Map, Value, json};
use steadfast::{
    escalate::{EscalationHandle, EscalationId, HeldRequest},
    shared::{FactRow, News, SharedState, SharedTask},
};
use tokio::{
    sync::broadcast::{Receiver, error::RecvError, error::TryRecvError},
    time::Instant,
};

use super::orders::VALUE_LIMIT;
use crate::stack::shown;

/// Held requests, by their ids. One that is not held any more has no value.
const HELD: &str = "held";

/// The most that one node shows the others; those that come then are shown when others have ended.
const SHOWN: usize = 256;

/// How long it is known at least that a request is not held any more.
const OVER: Duration = Duration::from_secs(60);

/// What a summary can do without, when it is too large for a fact: that first, of which there is most.
const SPARE: [&str; 9] =
    ["prompt", "chain", "targets", "session", "task", "agent", "tenant", "model", "decisions"];

/// Where a request is held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Whereabouts {
    /// No other node has had it lately.
    Unknown,
    /// It is not held any more.
    Over,
    /// There, in this round.
    Held { node: Box<str>, round: u64 },
}

/// Shows the other nodes what `handle` holds, until the task is dropped. `mask` leaves no secret in a text of JSON.
///
/// # Panics
///
/// Outside of a tokio runtime.
pub(crate) fn publish(
    state: Arc<dyn SharedState>,
    handle: EscalationHandle,
    mask: impl Fn(String) -> String + Send + 'static,
) -> SharedTask {
    let mut events = handle.subscribe();
    SharedTask::spawn(async move {
        let mut published = Published::default();
        loop {
            published.renew(&*state, &handle.held(), &mask);
            if !changed(&mut events).await {
                return;
            }
        }
    })
}

/// Waits until something has changed, however often; `false` when nothing will any more.
async fn changed<T: Clone>(events: &mut Receiver<T>) -> bool {
    if matches!(events.recv().await, Err(RecvError::Closed)) {
        return false;
    }
    while matches!(events.try_recv(), Ok(_) | Err(TryRecvError::Lagged(_))) {}
    true
}

/// What the others have been shown: the round of each request, and until when it is held.
#[derive(Debug, Default)]
struct Published(BTreeMap<EscalationId, (u32, Instant)>);

impl Published {
    fn renew(
        &mut self,
        state: &dyn SharedState,
        held: &[Arc<HeldRequest>],
        mask: &dyn Fn(String) -> String,
    ) {
        let clock = state.clock();
        let now_ms = clock.unix_ms();
        self.0.retain(|id, (_, until)| {
            let is_held = held.iter().any(|held| held.id == *id);
            if !is_held {
                // Nobody shows it any more who was cut off meanwhile. No finding that it is over: those are remembered for
                // longer, and one of the same millisecond as the next round would end that, too.
                let until_ms = clock.to_unix_ms((*until).max(clock.at() + OVER));
                state.publish(HELD, &id.to_string(), News::holds(now_ms, until_ms, ""));
            }
            is_held
        });
        for held in held {
            let known = self.0.get(&held.id);
            let is_news = known.is_none_or(|(round, _)| *round != held.round);
            if is_news && (known.is_some() || self.0.len() < SHOWN) {
                let until_ms = clock.to_unix_ms(held.until);
                let value = summary(shown(held, clock.at()), mask);
                state.publish(HELD, &held.id.to_string(), News::holds(now_ms, until_ms, value));
                self.0.insert(held.id, (held.round, held.until));
            }
        }
    }
}

/// `shown` as a fact's value, without what would be too much.
fn summary(mut shown: Value, mask: &dyn Fn(String) -> String) -> String {
    let mut text = mask(shown.to_string());
    for name in SPARE {
        if text.len() <= VALUE_LIMIT {
            break;
        }
        if let Some(parts) = shown.as_object_mut() {
            let is_list = parts.get(name).is_some_and(Value::is_array);
            parts.insert(name.to_owned(), if is_list { json!([]) } else { Value::Null });
            parts.insert("shortened".to_owned(), true.into());
        }
        text = mask(shown.to_string());
    }
    text
}

/// What the other nodes hold, each with its node, and whether that is heard of; in the order of their ids.
pub(crate) fn of_others(state: &dyn SharedState) -> Vec<Value> {
    let fleet = state.fleet();
    let now_ms = state.clock().unix_ms();
    let held = fleet.facts.iter().filter(|row| is_held(row, state.node(), now_ms));
    let shown = held.map(|row| {
        let since_ms = row.fact.since_ms;
        let mut shown = match serde_json::from_str::<Map<String, Value>>(&row.fact.value) {
            Ok(shown) => shown,
            // One of another version.
            Err(_) => Map::from_iter([("id".to_owned(), row.key.as_ref().into())]),
        };
        age(&mut shown, now_ms.saturating_sub(since_ms) as f64 / 1e3);
        shown.insert(
            "left_s".to_owned(),
            tenths(row.fact.until_ms.saturating_sub(now_ms) as f64 / 1e3),
        );
        shown.insert("node".to_owned(), row.node.as_ref().into());
        let is_heard = fleet.nodes.iter().any(|node| *node.name == *row.node);
        shown.insert("node_heard".to_owned(), is_heard.into());
        Value::Object(shown)
    });
    shown.collect()
}

/// Where the request `id` is held, if not here.
pub(crate) fn find(state: &dyn SharedState, id: &str) -> Whereabouts {
    let now_ms = state.clock().unix_ms();
    let fleet = state.fleet();
    let mut rows = fleet.facts.iter().filter(|row| *row.kind == *HELD && *row.key == *id);
    let Some(row) = rows.find(|row| *row.node != *state.node()) else {
        return Whereabouts::Unknown;
    };
    if !is_held(row, state.node(), now_ms) {
        return Whereabouts::Over;
    }
    let round = serde_json::from_str::<Value>(&row.fact.value);
    let round = round.ok().and_then(|shown| shown["round"].as_u64()).unwrap_or(1);
    Whereabouts::Held { node: row.node.clone(), round }
}

fn is_held(row: &FactRow, own: &str, now_ms: u64) -> bool {
    let FactRow { kind, node, fact, .. } = row;
    **kind == *HELD && **node != *own && fact.until_ms > now_ms && !fact.value.is_empty()
}

/// The waits in a summary that is so many seconds old.
fn age(shown: &mut Map<String, Value>, by_s: f64) {
    let left = |wait: &Value| wait.as_f64().map(|wait| (wait - by_s).max(0.0));
    if let Some(soonest) = shown.get("soonest_s").and_then(left) {
        shown.insert("soonest_s".to_owned(), tenths(soonest));
    }
    let targets = shown.get_mut("targets").and_then(Value::as_array_mut);
    for target in targets.into_iter().flatten() {
        let back = target.get("back_in_s").and_then(left).filter(|wait| *wait > 0.0);
        if let Some(target) = target.as_object_mut() {
            target.insert("back_in_s".to_owned(), back.map_or(Value::Null, tenths));
        }
    }
}

fn tenths(seconds: f64) -> Value {
    ((seconds * 10.0).round() / 10.0).into()
}
