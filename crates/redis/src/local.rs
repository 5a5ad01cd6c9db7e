//! What a node knows without asking the store: all that its callers see.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicI64, AtomicU64, AtomicUsize, Ordering},
    },
    time::{Duration, UNIX_EPOCH},
};

use parking_lot::Mutex;
use redis::{PushInfo, PushKind};
use serde::{Deserialize, Serialize};
use steadfast_core::{
    shared::{Fact, FactBoard, FactRow, Fleet, News, NodeReport, StoreReport},
    time::{WallClock, wall_at},
};
use tokio::{sync::Notify, time::Instant};

use crate::{
    AwayCause, RedisConfig,
    connection::Connection,
    endpoint::Endpoint,
    event,
    keys::Keys,
    outbox::{Outbox, Write},
};

/// The memory that callers read and write, and the driver keeps in step with the store.
#[derive(Debug)]
pub(crate) struct LocalState {
    pub(crate) config: RedisConfig,
    pub(crate) keys: Keys,
    pub(crate) board: Arc<FactBoard>,
    /// What the store is called, without secrets.
    store: Box<str>,
    outbox: Mutex<Outbox>,
    /// How far the store's clock is ahead, in microseconds.
    ahead_us: AtomicI64,
    /// The store's clock is known.
    is_synced: AtomicBool,
    is_away: AtomicBool,
    health: Mutex<StoreHealth>,
    /// While the store is not away.
    connection: Mutex<Option<Connection>>,
    pub(crate) commands: Arc<AtomicU64>,
    nodes: AtomicUsize,
    fleet: Mutex<Vec<NodeReport>>,
    report: Mutex<NodeReport>,
    /// Something waits to be written.
    pub(crate) wake: Notify,
    /// The store is to be asked at once whether it is there.
    pub(crate) doubt: Notify,
    /// Facts may have been missed.
    pub(crate) may_have_missed: AtomicBool,
    /// The last handle was dropped.
    pub(crate) closing: Notify,
}

#[derive(Debug)]
struct StoreHealth {
    away_since: Option<Instant>,
    /// The outage was reported; the time before the first connection is none.
    is_reported: bool,
    cause: AwayCause,
    outages: u64,
}

/// A fact in the store, and in the message that announces it.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct StoredFact {
    kind: Box<str>,
    key: Box<str>,
    node: Box<str>,
    fact: Fact,
}

impl LocalState {
    pub(crate) fn new(config: RedisConfig, endpoint: &Endpoint) -> Self {
        let name = config.node();
        let mut report = NodeReport::default();
        report.name.clone_from(&name);
        report.began_ms = WallClock::now().unix_ms();
        let health = StoreHealth {
            away_since: Some(Instant::now()),
            is_reported: false,
            cause: AwayCause::NotReached,
            outages: 0,
        };
        Self {
            keys: Keys::new(&config.prefix, endpoint.database()),
            config,
            board: Arc::new(FactBoard::new(name)),
            store: endpoint.name().into(),
            outbox: Mutex::default(),
            ahead_us: AtomicI64::new(0),
            is_synced: AtomicBool::new(false),
            is_away: AtomicBool::new(true),
            health: Mutex::new(health),
            connection: Mutex::new(None),
            commands: Arc::default(),
            nodes: AtomicUsize::new(1),
            fleet: Mutex::default(),
            report: Mutex::new(report),
            wake: Notify::new(),
            doubt: Notify::new(),
            may_have_missed: AtomicBool::new(false),
            closing: Notify::new(),
        }
    }

    pub(crate) fn clock(&self) -> WallClock {
        let at = Instant::now();
        let local = local_time(at);
        let ahead_us = self.ahead_us.load(Ordering::Relaxed);
        let ahead = Duration::from_micros(ahead_us.unsigned_abs());
        let unix = match ahead_us >= 0 {
            true => local.saturating_add(ahead),
            false => local.saturating_sub(ahead),
        };
        WallClock::new(at, unix)
    }

    /// How far the store's clock is ahead. What was found before that was known had the time of this node's.
    pub(crate) fn set_ahead(&self, ahead_us: i64) {
        // Publishers hold it, too: a fact has either clock's time, not one's for the other's.
        let mut outbox = self.outbox.lock();
        self.ahead_us.store(ahead_us, Ordering::Relaxed);
        if !self.is_synced.swap(true, Ordering::Relaxed) {
            let ahead_ms = ahead_us / 1_000;
            self.board.shift(ahead_ms);
            let mut report = self.report.lock();
            report.began_ms = report.began_ms.saturating_add_signed(ahead_ms);
            // They are written from the board.
            outbox.take_facts();
        }
    }

    pub(crate) fn publish(&self, kind: &str, key: &str, news: News) {
        let mut outbox = self.outbox.lock();
        let row = self.board.publish(kind, key, news, self.clock().unix_ms());
        outbox.fact(row);
        drop(outbox);
        self.wake.notify_one();
    }

    pub(crate) fn write(&self, write: Write) {
        let mut outbox = self.outbox.lock();
        match write {
            Write::Put { .. } if self.is_away() => outbox.drop_put(),
            write => outbox.write(write),
        }
        drop(outbox);
        self.wake.notify_one();
    }

    pub(crate) fn with_outbox<T>(&self, then: impl FnOnce(&mut Outbox) -> T) -> T {
        then(&mut self.outbox.lock())
    }

    /// Something came from the store unasked.
    pub(crate) fn hear(&self, push: &PushInfo) {
        match (&push.kind, push.data.as_slice()) {
            (PushKind::Message, [_, redis::Value::BulkString(message)]) => self.read(message),
            (PushKind::Disconnection, _) => {
                // One of a cluster's connections is made again behind this; what came meanwhile is lost.
                self.may_have_missed.store(true, Ordering::Relaxed);
                self.doubt.notify_one();
            }
            _ => {}
        }
    }

    /// A fact as it is in the store; what is none, of a version to come, is left alone.
    fn read(&self, stored: &[u8]) {
        if let Some(row) = read(stored)
            && *row.node != *self.board.node()
        {
            self.board.apply(row, self.clock().unix_ms());
        }
    }

    /// The same, of one that was read on purpose: returned when it is this node's own.
    pub(crate) fn read_or_own(&self, stored: &[u8]) -> Option<FactRow> {
        let row = read(stored)?;
        if *row.node == *self.board.node() {
            return Some(row);
        }
        self.board.apply(row, self.clock().unix_ms());
        None
    }

    pub(crate) fn is_away(&self) -> bool {
        self.is_away.load(Ordering::Relaxed)
    }

    /// A connection, unless the store is away.
    pub(crate) fn connection(&self) -> Option<Connection> {
        self.connection.lock().clone()
    }

    /// Why the store is away, if it is.
    pub(crate) fn away(&self) -> Option<AwayCause> {
        let health = self.health.lock();
        health.away_since.map(|_| health.cause.clone())
    }

    pub(crate) fn go_away(&self, cause: &AwayCause) {
        self.is_away.store(true, Ordering::Relaxed);
        drop(self.connection.lock().take());
        self.outbox.lock().drop_puts();
        let mut health = self.health.lock();
        let is_news = !std::mem::replace(&mut health.is_reported, true);
        health.outages += u64::from(is_news);
        health.away_since.get_or_insert_with(Instant::now);
        health.cause.clone_from(cause);
        drop(health);
        if is_news {
            event::away(&self.store, self.board.node(), cause);
        }
    }

    /// The node has caught up; so many changes waited for it.
    pub(crate) fn come_back(&self, connection: Connection, waited: usize) {
        *self.connection.lock() = Some(connection);
        self.is_away.store(false, Ordering::Relaxed);
        let mut health = self.health.lock();
        let away_since = health.away_since.take();
        let was_reported = std::mem::take(&mut health.is_reported);
        drop(health);
        if let Some(since) = away_since
            && was_reported
        {
            event::back(&self.store, self.board.node(), since.elapsed(), waited);
        }
    }

    /// How many nodes there are, or were.
    pub(crate) fn nodes(&self) -> usize {
        self.nodes.load(Ordering::Relaxed)
    }

    /// The store says who lives.
    pub(crate) fn meet(&self, nodes: Vec<NodeReport>) {
        self.nodes.store(nodes.len().max(1), Ordering::Relaxed);
        *self.fleet.lock() = nodes;
    }

    /// What this node shows.
    pub(crate) fn report(&self) -> NodeReport {
        self.report.lock().clone()
    }

    pub(crate) fn describe(&self, mut report: NodeReport) {
        let mut own = self.report.lock();
        report.name.clone_from(&own.name);
        report.began_ms = own.began_ms;
        *own = report;
        drop(own);
        self.doubt.notify_one();
    }

    pub(crate) fn fleet(&self) -> Fleet {
        let mut own = self.report();
        let mut nodes = self.fleet.lock().clone();
        match nodes.iter_mut().find(|node| node.name == own.name) {
            Some(node) => {
                own.heard_ms = node.heard_ms;
                *node = own;
            }
            None => nodes.push(own),
        }
        nodes.sort_unstable_by(|one, other| one.name.cmp(&other.name));
        Fleet::new(nodes, self.store_report(), self.board.rows())
    }

    fn store_report(&self) -> StoreReport {
        let mut report = StoreReport::default();
        report.name = self.store.to_string();
        report.commands = self.commands.load(Ordering::Relaxed);
        report.clock_ahead_ms = self.ahead_us.load(Ordering::Relaxed) / 1_000;
        report.waiting = self.outbox.lock().len();
        let health = self.health.lock();
        report.away_for = health.away_since.map(|since| since.elapsed());
        let has_failed = health.cause != AwayCause::NotReached || health.away_since.is_some();
        report.error = has_failed.then(|| health.cause.to_string());
        report.outages = health.outages;
        report
    }
}

impl From<FactRow> for StoredFact {
    fn from(row: FactRow) -> Self {
        Self { kind: row.kind, key: row.key, node: row.node, fact: row.fact }
    }
}

fn read(stored: &[u8]) -> Option<FactRow> {
    let StoredFact { kind, key, node, fact } = serde_json::from_slice(stored).ok()?;
    Some(FactRow::new(kind, key, node, fact))
}

/// This node's own time, since 1970.
pub(crate) fn local_time(at: Instant) -> Duration {
    wall_at(at).duration_since(UNIX_EPOCH).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn local() -> LocalState {
        let config = RedisConfig::new("redis://localhost").with_node("own");
        let endpoint = Endpoint::new(&config).unwrap();
        LocalState::new(config, &endpoint)
    }

    fn fact(local: &LocalState) -> Fact {
        local.board.own().pop().unwrap().fact
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_found_before_the_stores_time_was_known_is_moved() {
        let local = local();
        let early_ms = local.clock().unix_ms();
        let began_ms = local.report().began_ms;
        local.publish("rests", "key", News::holds(early_ms, early_ms + 60_000, "{}"));
        // The store is 10 min behind.
        local.set_ahead(-600_000_000);
        assert_eq!(local.clock().unix_ms(), early_ms - 600_000);
        assert_eq!(local.report().began_ms, began_ms - 600_000);
        let moved = fact(&local);
        assert_eq!((moved.since_ms, moved.until_ms), (early_ms - 600_000, early_ms - 540_000));
        assert_eq!(local.fleet().store.clock_ahead_ms, -600_000);
        // Later it is only compared more closely.
        local.set_ahead(-599_000_000);
        assert_eq!(fact(&local), moved);
    }

    #[tokio::test(start_paused = true)]
    async fn a_message_is_heard_unless_it_is_ones_own_or_none() {
        let local = local();
        let until_ms = local.clock().unix_ms() + 60_000;
        let mut held = Fact::default();
        (held.number, held.until_ms) = (1, until_ms);
        let message = |node: &str| {
            let row = FactRow::new("rests", "key", node, held.clone());
            let json = serde_json::to_vec(&StoredFact::from(row)).unwrap();
            let channel = redis::Value::BulkString(b"channel".to_vec());
            let data = vec![channel, redis::Value::BulkString(json)];
            PushInfo { kind: PushKind::Message, data }
        };
        local.hear(&message("own"));
        assert!(local.board.rows().is_empty());
        local.hear(&message("other"));
        assert_eq!(local.board.rows().len(), 1);
        let nonsense = redis::Value::BulkString(b"{\"version\":2}".to_vec());
        local.hear(&PushInfo { kind: PushKind::Message, data: vec![nonsense.clone(), nonsense] });
        assert_eq!(local.board.rows().len(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn an_outage_is_one_whatever_becomes_of_it() {
        let local = local();
        local.go_away(&AwayCause::Full("full".into()));
        tokio::time::advance(Duration::from_secs(7)).await;
        local.go_away(&AwayCause::ReadOnly("a replica".into()));
        let store = local.fleet().store;
        assert_eq!((store.outages, store.away_for), (1, Some(Duration::from_secs(7))));
        assert!(store.error.unwrap_or_default().contains("a replica"), "the last is what counts");
    }
}
