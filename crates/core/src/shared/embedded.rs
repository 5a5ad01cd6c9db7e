//! The shared state of one process.

use std::{
    collections::HashMap,
    fmt,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use foldhash::fast::RandomState;
use parking_lot::Mutex;
use tokio::time::Instant;

use super::{
    AccountDraw, AccountGrant, Claim, FactBoard, FactListener, Fleet, News, NodeReport,
    SharedFuture, SharedState, StoreAway, StoreReport, WantedShare, account::AccountTable,
    lease::ShareTable,
};
use crate::time::{WallClock, later};

/// Values and claims that are kept at most: beyond it those that end first go.
const ENTRIES: usize = 65_536;

/// The shared state of one process: that of a gateway which has no other, and of tests with many nodes, whose
/// partitions and losses can be [had](EmbeddedNode::set_away) at will. Cheap to clone.
///
/// What is published is heard by the other nodes at once.
#[derive(Clone, Debug, Default)]
pub struct EmbeddedStore(Arc<Mutex<StoreState>>);

#[derive(Debug)]
struct StoreState {
    nodes: Vec<Weak<NodeState>>,
    /// What was published.
    board: Arc<FactBoard>,
    values: HashMap<(&'static str, Box<str>), (Bytes, Instant), RandomState>,
    claims: HashMap<Box<str>, (u64, Instant), RandomState>,
    shares: HashMap<Box<str>, ShareTable, RandomState>,
    accounts: HashMap<Box<str>, AccountTable, RandomState>,
    /// The token of the last claim.
    token: u64,
}

/// One node of an [`EmbeddedStore`]. Cheap to clone; it leaves when the last clone, listener or future of it is gone.
#[derive(Clone)]
pub struct EmbeddedNode {
    store: EmbeddedStore,
    node: Arc<NodeState>,
}

#[derive(Debug)]
struct NodeState {
    board: Arc<FactBoard>,
    report: Mutex<NodeReport>,
    is_away: AtomicBool,
    /// How many nodes there were when it last saw them.
    nodes: AtomicUsize,
    outages: AtomicU64,
    commands: AtomicU64,
}

impl Default for StoreState {
    fn default() -> Self {
        Self {
            nodes: Vec::new(),
            board: Arc::new(FactBoard::new("")),
            values: HashMap::default(),
            claims: HashMap::default(),
            shares: HashMap::default(),
            accounts: HashMap::default(),
            token: 0,
        }
    }
}

impl EmbeddedStore {
    /// An empty store.
    pub fn new() -> Self {
        Self::default()
    }

    /// A node of this name, which no other node has.
    pub fn join(&self, name: &str) -> EmbeddedNode {
        let now_ms = WallClock::now().unix_ms();
        let report =
            NodeReport { name: name.to_owned(), began_ms: now_ms, ..NodeReport::default() };
        let node = Arc::new(NodeState {
            board: Arc::new(FactBoard::new(name)),
            report: Mutex::new(report),
            is_away: AtomicBool::new(false),
            nodes: AtomicUsize::new(1),
            outages: AtomicU64::new(0),
            commands: AtomicU64::new(0),
        });
        let mut state = self.0.lock();
        state.nodes.push(Arc::downgrade(&node));
        state.meet();
        state.exchange(&node, now_ms);
        drop(state);
        EmbeddedNode { store: self.clone(), node }
    }

    /// Goes away for all of its nodes at once, or comes back: they publish what they have found meanwhile, and hear what others
    /// have.
    pub fn set_away(&self, away: bool) {
        let now_ms = WallClock::now().unix_ms();
        let mut state = self.0.lock();
        let nodes: Vec<_> = state.living().filter(|node| node.set_away(away)).collect();
        if !away {
            for node in nodes {
                state.exchange(&node, now_ms);
            }
            state.meet();
        }
    }

    /// Loses everything, as a store does that is restarted without its data. The nodes that reach it publish again
    /// what they have found; values and claims are gone.
    pub fn lose(&self) {
        let now_ms = WallClock::now().unix_ms();
        let mut state = self.0.lock();
        state.board.clear();
        state.values.clear();
        state.claims.clear();
        state.shares.clear();
        state.accounts.clear();
        for node in state.reached() {
            state.exchange(&node, now_ms);
        }
    }
}

impl StoreState {
    fn living(&self) -> impl Iterator<Item = Arc<NodeState>> {
        self.nodes.iter().filter_map(Weak::upgrade)
    }

    /// The nodes that reach the store.
    fn reached(&self) -> Vec<Arc<NodeState>> {
        self.living().filter(|node| !node.is_away()).collect()
    }

    /// Everybody who reaches the store sees how many do.
    fn meet(&mut self) {
        self.nodes.retain(|node| node.strong_count() > 0);
        let reached = self.reached();
        for node in &reached {
            node.nodes.store(reached.len(), Ordering::Relaxed);
        }
    }

    /// What a node has found goes to the store and the others, and what they have to the node.
    fn exchange(&self, node: &NodeState, now_ms: u64) {
        for row in node.board.own() {
            self.spread(node, row, now_ms);
        }
        for row in self.board.rows() {
            if *row.node != *node.board.node() {
                node.board.apply(row, now_ms);
            }
        }
    }

    fn spread(&self, from: &NodeState, row: super::FactRow, now_ms: u64) {
        for other in self.reached() {
            if other.board.node() != from.board.node() {
                other.board.apply(row.clone(), now_ms);
            }
        }
        self.board.apply(row, now_ms);
    }

    fn shrink(&mut self, now: Instant) {
        if self.values.len() >= ENTRIES {
            self.values.retain(|_, (_, until)| *until > now);
        }
        if self.values.len() >= ENTRIES {
            let mut ends: Vec<_> = self.values.values().map(|(_, until)| *until).collect();
            let (_, last, _) = ends.select_nth_unstable(ENTRIES / 8);
            let last = *last;
            self.values.retain(|_, (_, until)| *until > last);
        }
        if self.claims.len() >= ENTRIES {
            self.claims.retain(|_, (_, until)| *until > now);
        }
        if self.shares.len() >= ENTRIES {
            self.shares.retain(|_, table| !table.is_empty(now));
        }
        if self.accounts.len() >= ENTRIES {
            let now_ms = WallClock::now().unix_ms();
            self.accounts.retain(|_, table| !table.is_empty(now, now_ms));
        }
    }
}

impl NodeState {
    fn is_away(&self) -> bool {
        self.is_away.load(Ordering::Relaxed)
    }

    /// Whether that changes anything.
    fn set_away(&self, away: bool) -> bool {
        let changes = self.is_away.swap(away, Ordering::Relaxed) != away;
        self.outages.fetch_add(u64::from(changes && away), Ordering::Relaxed);
        changes
    }

    /// The node asks the store for something.
    fn command(&self) -> Result<(), StoreAway> {
        if self.is_away() {
            return Err(StoreAway);
        }
        self.commands.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}

impl EmbeddedNode {
    /// Cuts the node off, or lets it back: it publishes what it has found meanwhile, and hears what others have.
    pub fn set_away(&self, away: bool) {
        let mut state = self.store.0.lock();
        if self.node.set_away(away) && !away {
            state.exchange(&self.node, WallClock::now().unix_ms());
        }
        state.meet();
    }
}

impl SharedState for EmbeddedNode {
    fn node(&self) -> &str {
        self.node.board.node()
    }

    fn clock(&self) -> WallClock {
        WallClock::now()
    }

    fn is_away(&self) -> bool {
        self.node.is_away()
    }

    fn nodes(&self) -> usize {
        if !self.is_away() {
            self.store.0.lock().meet();
        }
        self.node.nodes.load(Ordering::Relaxed)
    }

    fn publish(&self, kind: &'static str, key: &str, news: News) {
        let now_ms = self.clock().unix_ms();
        let state = self.store.0.lock();
        let row = self.node.board.publish(kind, key, news, now_ms);
        if self.node.command().is_ok() {
            state.spread(&self.node, row, now_ms);
        }
    }

    fn subscribe(&self, kind: &'static str) -> FactListener {
        self.node.board.subscribe(kind)
    }

    fn get<'a>(&'a self, space: &'static str, key: &'a str) -> SharedFuture<'a, Option<Bytes>> {
        Box::pin(async move {
            self.node.command()?;
            let state = self.store.0.lock();
            let value = state.values.get(&(space, Box::from(key)));
            let live = value.filter(|(_, until)| *until > Instant::now());
            Ok(live.map(|(value, _)| value.clone()))
        })
    }

    fn put(&self, space: &'static str, key: &str, value: Bytes, lasts: Duration) {
        if self.node.command().is_ok() {
            let now = Instant::now();
            let mut state = self.store.0.lock();
            state.shrink(now);
            state.values.insert((space, key.into()), (value, later(now, lasts)));
        }
    }

    fn lease(&self, wanted: Vec<WantedShare>) -> SharedFuture<'_, Vec<u32>> {
        Box::pin(async move {
            self.node.command()?;
            let now = Instant::now();
            let mut state = self.store.0.lock();
            state.shrink(now);
            let granted = wanted.into_iter().map(|WantedShare { key, ppm }| {
                state.shares.entry(key).or_default().lease(self.node(), ppm, now)
            });
            Ok(granted.collect())
        })
    }

    fn draw(&self, draws: Vec<AccountDraw>) -> SharedFuture<'_, Vec<AccountGrant>> {
        Box::pin(async move {
            self.node.command()?;
            let (now, now_ms) = (Instant::now(), self.clock().unix_ms());
            let mut state = self.store.0.lock();
            state.shrink(now);
            let granted = draws.into_iter().map(|draw| {
                let account = state.accounts.entry(draw.key.clone());
                let account = account.or_insert_with(|| AccountTable::new(now_ms));
                account.draw(self.node(), &draw, now, now_ms)
            });
            Ok(granted.collect())
        })
    }

    fn claim<'a>(&'a self, key: &'a str, lasts: Duration) -> SharedFuture<'a, Option<Claim>> {
        Box::pin(async move {
            self.node.command()?;
            let now = Instant::now();
            let mut state = self.store.0.lock();
            if state.claims.get(key).is_some_and(|(_, until)| *until > now) {
                return Ok(None);
            }
            state.shrink(now);
            state.token += 1;
            let token = state.token;
            state.claims.insert(key.into(), (token, later(now, lasts)));
            Ok(Some(Claim::new(key, token)))
        })
    }

    fn release(&self, claim: &Claim) {
        if self.node.command().is_ok() {
            let mut state = self.store.0.lock();
            if state.claims.get(&claim.key).is_some_and(|(token, _)| *token == claim.token) {
                state.claims.remove(&claim.key);
            }
        }
    }

    fn describe(&self, report: NodeReport) {
        let own = &mut *self.node.report.lock();
        *own = NodeReport { name: own.name.clone(), began_ms: own.began_ms, ..report };
    }

    fn fleet(&self) -> Fleet {
        let heard_ms = self.clock().unix_ms();
        let report = |node: Arc<NodeState>| NodeReport { heard_ms, ..node.report.lock().clone() };
        let mut nodes: Vec<_> = match self.is_away() {
            true => vec![report(self.node.clone())],
            false => self.store.0.lock().reached().into_iter().map(report).collect(),
        };
        nodes.sort_unstable_by(|one, other| one.name.cmp(&other.name));
        let store = StoreReport {
            name: "embedded".to_owned(),
            outages: self.node.outages.load(Ordering::Relaxed),
            commands: self.node.commands.load(Ordering::Relaxed),
            away_for: self.is_away().then_some(Duration::ZERO),
            ..StoreReport::default()
        };
        Fleet::new(nodes, store, self.node.board.rows())
    }
}

impl fmt::Debug for EmbeddedNode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EmbeddedNode").field("node", &self.node()).finish_non_exhaustive()
    }
}
