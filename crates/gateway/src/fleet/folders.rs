//! What stands in folders on the nodes' disks, dead letters and runs, as the other nodes see it: counts and the newest.

use std::{future::Future, sync::Arc, time::Duration};

use serde_json::Value;
use steadfast::shared::{News, SharedState, SharedTask};
use tokio::time::{Instant, MissedTickBehavior, interval};

use super::orders::{VALUE_LIMIT, cut};

/// Summaries of folders: a register of each node under the folder's name.
const FOLDERS: &str = "folders";

/// How often a folder is looked into.
const EVERY: Duration = Duration::from_secs(5);

/// How often a summary is published that has not changed.
const AGAIN: Duration = Duration::from_secs(30);

/// How long it is believed: one may be lost, and a node that is gone is not shown for ever.
const LASTS: Duration = Duration::from_secs(75);

/// The most entries of one summary.
pub(crate) const SHOWN: usize = 50;

/// The longest text in an entry, in bytes, such as an error message. A key is never cut.
const TEXT: usize = 256;

/// The folder `name` of a node.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct NodeFolder {
    pub(crate) node: Box<str>,
    /// What the node shows of it: an object with a list under the folder's name.
    pub(crate) summary: Value,
}

impl NodeFolder {
    /// The number `name`.
    pub(crate) fn count(&self, name: &str) -> u64 {
        self.summary[name].as_u64().unwrap_or(0)
    }

    /// The list `name`, each entry with its node.
    pub(crate) fn entries(&self, name: &str) -> Vec<Value> {
        let all = self.summary[name].as_array().into_iter().flatten();
        all.map(|entry| of_node(entry.clone(), &self.node)).collect()
    }
}

/// `entry` with its node.
pub(crate) fn of_node(mut entry: Value, node: &str) -> Value {
    if let Some(parts) = entry.as_object_mut() {
        parts.insert("node".to_owned(), node.into());
    }
    entry
}

/// Shows the other nodes the folder `name` as `read` finds it, until the task is dropped; it finds nothing where there is no
/// such folder.
///
/// # Panics
///
/// Outside of a tokio runtime.
pub(crate) fn publish<F>(
    state: Arc<dyn SharedState>,
    name: &'static str,
    read: impl Fn() -> F + Send + Sync + 'static,
) -> SharedTask
where
    F: Future<Output = Option<Value>> + Send,
{
    SharedTask::spawn(async move {
        let mut ticks = interval(EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut last: Option<(String, Instant)> = None;
        loop {
            ticks.tick().await;
            // Nobody would see it.
            if state.is_away() || state.nodes() <= 1 {
                continue;
            }
            let text = read().await.map(|found| bounded(found, name)).unwrap_or_default();
            let is_same = last.as_ref().is_some_and(|(known, _)| *known == text);
            let was_nothing = last.as_ref().is_none_or(|(known, _)| known.is_empty());
            if text.is_empty() && was_nothing
                || is_same && last.as_ref().is_some_and(|(_, at)| at.elapsed() < AGAIN)
            {
                continue;
            }
            let clock = state.clock();
            let until_ms = clock.to_unix_ms(clock.at() + LASTS);
            state.publish(FOLDERS, name, News::holds(clock.unix_ms(), until_ms, &*text));
            last = Some((text, Instant::now()));
        }
    })
}

/// The folder `name` of every other node that has one, in the order of their names.
pub(crate) fn of_others(state: &dyn SharedState, name: &str) -> Vec<NodeFolder> {
    let now_ms = state.clock().unix_ms();
    let fleet = state.fleet();
    let rows = fleet.facts.into_iter().filter(|row| {
        let is_one = *row.kind == *FOLDERS && *row.key == *name && !row.fact.value.is_empty();
        is_one && *row.node != *state.node() && row.fact.until_ms > now_ms
    });
    let folders = rows.map(|row| {
        // One of another version is there, with nothing that this one can show.
        let summary = serde_json::from_str(&row.fact.value).unwrap_or_default();
        NodeFolder { node: row.node, summary }
    });
    folders.collect()
}

/// `found` as a fact's value: with as many of the list `name` as there is room for.
fn bounded(mut found: Value, name: &str) -> String {
    if let Some(entries) = found[name].as_array_mut() {
        entries.iter_mut().for_each(shorten);
        // A name of kilobytes takes the room of all others.
        entries.retain(|entry| entry.to_string().len() <= VALUE_LIMIT / 4);
        entries.truncate(SHOWN);
    }
    loop {
        let text = found.to_string();
        match found[name].as_array_mut() {
            Some(entries) if text.len() > VALUE_LIMIT && !entries.is_empty() => {
                entries.truncate(entries.len() - entries.len().div_ceil(8));
            }
            _ => return text,
        }
    }
}

fn shorten(entry: &mut Value) {
    for (name, part) in entry.as_object_mut().into_iter().flatten() {
        if let Value::String(text) = part
            && name != "key"
            && name != "id"
        {
            cut(text, TEXT);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use steadfast::shared::EmbeddedStore;
    use tokio::time::sleep;

    use super::*;

    #[test]
    fn a_summary_fits_into_a_fact() {
        let letter = |number: usize, size: usize| json!({ "key": format!("k{number}"), "error": "é".repeat(size) });
        for (size, most) in [(1, SHOWN), (300, SHOWN), (0, SHOWN)] {
            let letters: Vec<_> = (0..500).map(|number| letter(number, size)).collect();
            let text = bounded(json!({ "waiting": 500, "letters": letters }), "letters");
            let read: Value = serde_json::from_str(&text).unwrap();
            assert!(text.len() <= VALUE_LIMIT && read["waiting"] == 500, "{size}");
            assert_eq!(read["letters"].as_array().unwrap().len(), most, "{size}");
        }
        let long =
            json!({ "waiting": 2, "letters": [{ "key": "k".repeat(20_000) }, { "key": "short" }] });
        let read: Value = serde_json::from_str(&bounded(long, "letters")).unwrap();
        assert_eq!(read["letters"], json!([{ "key": "short" }]));
        let all: Vec<_> = (0..50).map(|_| json!({ "key": "k".repeat(1_000) })).collect();
        let text = bounded(json!({ "letters": all }), "letters");
        assert!(text.len() <= VALUE_LIMIT && text.len() > VALUE_LIMIT / 2, "{}", text.len());
    }

    #[tokio::test(start_paused = true)]
    async fn a_folder_is_published_when_it_changes_and_otherwise_seldom() {
        let store = EmbeddedStore::new();
        let (one, other) = (store.join("one"), store.join("other"));
        let start = Instant::now();
        let _task = publish(Arc::new(one.clone()), "runs", move || async move {
            // It changes after a minute, and is gone after ten.
            match start.elapsed().as_secs() {
                600.. => None,
                passed => Some(json!({ "known": u64::from(passed >= 60) })),
            }
        });
        let known = || of_others(&other, "runs").first().map(|folder| folder.count("known"));
        let wait = async |seconds| sleep(Duration::from_secs(seconds)).await;
        wait(1).await;
        assert_eq!(known(), Some(0));
        let before = one.fleet().store.commands;
        wait(55).await;
        assert_eq!(one.fleet().store.commands - before, 1, "it has not changed");
        wait(10).await;
        assert_eq!(known(), Some(1));
        wait(520).await;
        assert_eq!(known(), Some(1));
        wait(60).await;
        assert_eq!(known(), None);
    }

    #[tokio::test(start_paused = true)]
    async fn the_folder_of_a_node_that_is_gone_is_not_shown_for_ever() {
        let store = EmbeddedStore::new();
        let (one, other) = (store.join("one"), store.join("other"));
        let task = publish(Arc::new(one), "runs", || async { Some(json!({ "known": 7 })) });
        sleep(Duration::from_secs(1)).await;
        assert_eq!(of_others(&other, "runs").len(), 1);
        drop(task);
        sleep(LASTS).await;
        assert!(of_others(&other, "runs").is_empty());
    }
}
