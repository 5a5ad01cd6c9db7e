//! All facts that a node knows.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    fmt,
    sync::{Arc, Weak},
};

use foldhash::fast::RandomState;
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::{Fact, Known, News};

/// The most keys that are known: more than there are targets, even where callers choose the models.
const KEYS: usize = 16_384;

/// What all nodes have found, as one of them knows it: the local memory behind a [`SharedState`](super::SharedState).
/// A store fills it; layers listen to it.
#[derive(Debug)]
pub struct FactBoard {
    node: Box<str>,
    state: Mutex<BoardState>,
}

#[derive(Debug, Default)]
struct BoardState {
    /// By kind and key, the register of each node.
    facts: HashMap<Key, HashMap<Box<str>, Fact, RandomState>, RandomState>,
    listeners: Vec<(&'static str, Weak<Pending>)>,
}

type Key = (Box<str>, Box<str>);

/// One register of a [`FactBoard`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FactRow {
    /// What kind of fact it is.
    pub kind: Box<str>,
    /// What it is about.
    pub key: Box<str>,
    /// Whose register.
    pub node: Box<str>,
    /// What it says.
    pub fact: Fact,
}

impl FactRow {
    /// The register of `node`.
    pub fn new(
        kind: impl Into<Box<str>>,
        key: impl Into<Box<str>>,
        node: impl Into<Box<str>>,
        fact: Fact,
    ) -> Self {
        Self { kind: kind.into(), key: key.into(), node: node.into(), fact }
    }
}

impl FactBoard {
    /// An empty board of `node`.
    pub fn new(node: impl Into<Box<str>>) -> Self {
        Self { node: node.into(), state: Mutex::default() }
    }

    /// Whose board it is.
    pub fn node(&self) -> &str {
        &self.node
    }

    /// This node has found something: its register as it is now, for the others.
    pub fn publish(&self, kind: &str, key: &str, news: News, now_ms: u64) -> FactRow {
        let mut state = self.state.lock();
        let registers = state.registers((kind.into(), key.into()), now_ms);
        let register = registers.entry(self.node.clone()).or_default();
        *register = std::mem::take(register).with(news, now_ms);
        FactRow::new(kind, key, self.node.clone(), register.clone())
    }

    /// Reads a register; whether that was news.
    pub fn apply(&self, row: FactRow, now_ms: u64) -> bool {
        let FactRow { kind, key, node, fact } = row;
        if fact.ends_ms() <= now_ms {
            return false;
        }
        let mut state = self.state.lock();
        let key = (kind, key);
        let registers = state.registers(key.clone(), now_ms);
        if registers.get(&node).is_some_and(|known| known.number >= fact.number) {
            return false;
        }
        registers.insert(node, fact);
        state.notify(&key);
        true
    }

    /// What is known of a key.
    pub fn known(&self, kind: &str, key: &str) -> Known {
        let state = self.state.lock();
        let registers = state.facts.get(&(Box::from(kind), Box::from(key)));
        registers.map_or_else(Known::default, |registers| Known::of(registers.values()))
    }

    /// Hears of each change of a key of this `kind` by another node, beginning with all that is known.
    pub fn subscribe(self: &Arc<Self>, kind: &'static str) -> FactListener {
        let pending = Arc::<Pending>::default();
        let mut state = self.state.lock();
        for (of, key) in state.facts.keys() {
            if **of == *kind {
                pending.add(key);
            }
        }
        state.listeners.retain(|(_, listener)| listener.strong_count() > 0);
        state.listeners.push((kind, Arc::downgrade(&pending)));
        drop(state);
        FactListener { kind, pending, board: self.clone() }
    }

    /// All registers, in the order of their kinds, keys and nodes.
    pub fn rows(&self) -> Vec<FactRow> {
        let state = self.state.lock();
        let all = state.facts.iter().flat_map(|((kind, key), registers)| {
            registers
                .iter()
                .map(|(node, fact)| FactRow::new(&**kind, &**key, &**node, fact.clone()))
        });
        let mut rows: Vec<_> = all.collect();
        drop(state);
        rows.sort_unstable_by(|one, other| {
            (&one.kind, &one.key, &one.node).cmp(&(&other.kind, &other.key, &other.node))
        });
        rows
    }

    /// Those of this node, for a store that has lost them.
    pub fn own(&self) -> Vec<FactRow> {
        let mut rows = self.rows();
        rows.retain(|row| row.node == self.node);
        rows
    }

    /// Moves all times by so many milliseconds: those of a node that has published by its own clock, and hears only
    /// now what the store's is.
    pub fn shift(&self, by_ms: i64) {
        for fact in self.state.lock().facts.values_mut().flat_map(HashMap::values_mut) {
            fact.shift(by_ms);
        }
    }

    /// Drops what has ended.
    pub fn expire(&self, now_ms: u64) {
        self.state.lock().expire(now_ms);
    }

    /// Drops everything.
    pub fn clear(&self) {
        self.state.lock().facts.clear();
    }
}

impl BoardState {
    /// The registers of a key. Of too many keys, some of the kind that has most go, those that end first: no kind, such as
    /// requests that wait for a person in an outage, takes the room of another.
    fn registers(&mut self, key: Key, now_ms: u64) -> &mut HashMap<Box<str>, Fact, RandomState> {
        if self.facts.len() >= KEYS && !self.facts.contains_key(&key) {
            self.expire(now_ms);
            self.shrink();
        }
        self.facts.entry(key).or_default()
    }

    fn expire(&mut self, now_ms: u64) {
        self.facts.retain(|_, registers| {
            registers.retain(|_, fact| fact.ends_ms() > now_ms);
            !registers.is_empty()
        });
    }

    /// Makes room, when there is none.
    fn shrink(&mut self) {
        if self.facts.len() < KEYS {
            return;
        }
        let end = |registers: &HashMap<_, Fact, _>| registers.values().map(Fact::ends_ms).max();
        let mut ends = HashMap::<&str, Vec<_>, RandomState>::default();
        for ((kind, _), registers) in &self.facts {
            ends.entry(kind).or_default().push(end(registers));
        }
        let largest = ends.into_iter().max_by_key(|(_, ends)| ends.len());
        let Some((kind, mut ends)) = largest else { return };
        let largest = Box::<str>::from(kind);
        let eighth = ends.len() / 8;
        let (_, last, _) = ends.select_nth_unstable(eighth);
        let last = *last;
        self.facts.retain(|(kind, _), registers| *kind != largest || end(registers) > last);
    }

    fn notify(&self, (kind, key): &Key) {
        for (of, listener) in &self.listeners {
            if **of == **kind
                && let Some(listener) = listener.upgrade()
            {
                listener.add(key);
            }
        }
    }
}

/// Hears what other nodes have found about keys of one kind. What changes several times before it is read is heard
/// once, as it is then, so a slow reader costs no more than a key each.
pub struct FactListener {
    kind: &'static str,
    pending: Arc<Pending>,
    board: Arc<FactBoard>,
}

/// The keys that a listener has not read yet.
#[derive(Debug, Default)]
struct Pending {
    keys: Mutex<PendingKeys>,
    notify: Notify,
}

#[derive(Debug, Default)]
struct PendingKeys {
    queue: VecDeque<Box<str>>,
    set: HashSet<Box<str>, RandomState>,
}

impl Pending {
    fn add(&self, key: &str) {
        let mut keys = self.keys.lock();
        if keys.set.insert(key.into()) {
            keys.queue.push_back(key.into());
            drop(keys);
            self.notify.notify_one();
        }
    }

    fn take(&self) -> Option<Box<str>> {
        let mut keys = self.keys.lock();
        let key = keys.queue.pop_front()?;
        keys.set.remove(&key);
        Some(key)
    }
}

impl FactListener {
    /// The next key of which something has changed, and what is known of it. Waits as long as nothing does. Dropping
    /// the future loses nothing.
    pub async fn next(&mut self) -> (Box<str>, Known) {
        loop {
            if let Some(next) = self.try_next() {
                return next;
            }
            self.pending.notify.notified().await;
        }
    }

    /// The same without waiting.
    pub fn try_next(&mut self) -> Option<(Box<str>, Known)> {
        let key = self.pending.take()?;
        let known = self.board.known(self.kind, &key);
        Some((key, known))
    }
}

impl fmt::Debug for FactListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FactListener").field("kind", &self.kind).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(key: &str, number: u64, until_ms: u64) -> FactRow {
        let fact = Fact { number, since_ms: 1, until_ms, ..Fact::default() };
        FactRow::new("rests", key, "other", fact)
    }

    #[tokio::test]
    async fn a_listener_hears_each_key_once_and_as_it_is() {
        let board = Arc::new(FactBoard::new("own"));
        assert!(board.apply(row("a", 1, 50), 0));
        let mut listener = board.subscribe("rests");
        let mut others = board.subscribe("breakers");
        for number in 2..9 {
            assert!(board.apply(row("a", number, 50 + number), 0));
        }
        assert!(!board.apply(row("a", 3, 99), 0), "an older one");
        let (key, known) = listener.next().await;
        assert_eq!((&*key, known.fact.map(|fact| fact.until_ms)), ("a", Some(58)));
        board.publish("rests", "a", News::holds(1, 70, ""), 0);
        assert!(listener.try_next().is_none() && others.try_next().is_none(), "its own is no news");
        assert_eq!(board.known("rests", "a").fact.map(|fact| fact.until_ms), Some(70));
        assert_eq!(board.own().len(), 1);
        board.apply(row("b", 1, 50), 0);
        assert_eq!(&*listener.next().await.0, "b", "it was waiting");
    }

    #[test]
    fn what_has_ended_is_dropped() {
        let board = FactBoard::new("own");
        board.apply(row("a", 1, 50), 0);
        board.apply(row("b", 1, 90), 0);
        assert!(!board.apply(row("c", 1, 50), 60), "it comes too late");
        board.expire(60);
        let keys: Vec<_> = board.rows().into_iter().map(|row| row.key).collect();
        assert_eq!(keys, ["b".into()]);
    }

    #[test]
    fn what_was_found_by_another_clock_is_moved() {
        let board = FactBoard::new("own");
        board.publish("rests", "a", News::holds(700_000, 760_000, ""), 700_000);
        board.publish("rests", "b", News::over(700_000), 700_000);
        board.shift(-600_000);
        let facts: Vec<_> = board.own().into_iter().map(|row| row.fact).collect();
        assert_eq!((facts[0].since_ms, facts[0].until_ms, facts[0].over_ms), (100_000, 160_000, 0));
        assert_eq!((facts[1].over_ms, facts[1].until_ms), (100_000, 0));
        board.publish("rests", "b", News::holds(100_001, 150_000, ""), 100_001);
        assert!(board.known("rests", "b").fact.is_some(), "what is over is not over in advance");
    }

    #[test]
    fn memory_is_bounded_and_those_that_end_first_go() {
        let board = FactBoard::new("own");
        for number in 0..40_000_u64 {
            board.apply(row(&format!("key {number}"), 1, 1_000 + number), 0);
        }
        let rows = board.rows();
        assert!(rows.len() <= KEYS, "{}", rows.len());
        assert!(rows.iter().any(|row| &*row.key == "key 39999"));
        assert!(board.known("rests", "key 0").fact.is_none());
        for number in 0..40_000 {
            board.apply(row(&format!("same {number}"), 1, 7), 0);
        }
        assert!(board.rows().len() <= KEYS);
    }

    #[test]
    fn a_kind_with_many_keys_takes_no_room_of_another() {
        let board = FactBoard::new("own");
        for number in 0..100 {
            board.apply(row(&format!("target {number}"), 1, 10), 0);
        }
        for number in 0..40_000_u64 {
            let fact = Fact { number: 1, since_ms: 1, until_ms: 1_000, ..Fact::default() };
            board.apply(FactRow::new("held", format!("request {number}"), "other", fact), 0);
        }
        let rows = board.rows();
        assert!(rows.len() <= KEYS, "{}", rows.len());
        assert_eq!(rows.iter().filter(|row| &*row.kind == "rests").count(), 100);
    }
}
