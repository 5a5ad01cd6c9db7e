//! A node of an embedded store, whose reads are counted and can freeze.

use std::{
    future,
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
    time::Duration,
};

use bytes::Bytes;
use steadfast_core::{
    shared::{
        AccountDraw, AccountGrant, Claim, EmbeddedNode, FactListener, Fleet, News, NodeReport,
        SharedFuture, SharedState, WantedShare,
    },
    time::WallClock,
};

/// A node of an [`EmbeddedStore`](steadfast_core::shared::EmbeddedStore), for tests of layers that share values: what is read
/// and put is counted, and reads may [not answer](Self::set_frozen) at all, which a store that keeps to its contract does
/// not do.
#[derive(Debug)]
pub struct SharedNode {
    node: EmbeddedNode,
    reads: AtomicUsize,
    writes: AtomicUsize,
    is_frozen: AtomicBool,
}

impl SharedNode {
    /// This node.
    pub fn new(node: EmbeddedNode) -> Self {
        let (reads, writes) = (AtomicUsize::new(0), AtomicUsize::new(0));
        Self { node, reads, writes, is_frozen: AtomicBool::new(false) }
    }

    /// The node itself.
    pub fn embedded(&self) -> &EmbeddedNode {
        &self.node
    }

    /// Values read since the last call of this.
    pub fn take_reads(&self) -> usize {
        self.reads.swap(0, Ordering::Relaxed)
    }

    /// Values put since the last call of this.
    pub fn take_writes(&self) -> usize {
        self.writes.swap(0, Ordering::Relaxed)
    }

    /// Lets reads that begin from now on answer never, or as ever.
    pub fn set_frozen(&self, is_frozen: bool) {
        self.is_frozen.store(is_frozen, Ordering::Relaxed);
    }
}

impl SharedState for SharedNode {
    fn node(&self) -> &str {
        self.node.node()
    }

    fn clock(&self) -> WallClock {
        self.node.clock()
    }

    fn is_away(&self) -> bool {
        self.node.is_away()
    }

    fn nodes(&self) -> usize {
        self.node.nodes()
    }

    fn publish(&self, kind: &'static str, key: &str, news: News) {
        self.node.publish(kind, key, news);
    }

    fn subscribe(&self, kind: &'static str) -> FactListener {
        self.node.subscribe(kind)
    }

    fn get<'a>(&'a self, space: &'static str, key: &'a str) -> SharedFuture<'a, Option<Bytes>> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        match self.is_frozen.load(Ordering::Relaxed) {
            false => self.node.get(space, key),
            true => Box::pin(future::pending()),
        }
    }

    fn put(&self, space: &'static str, key: &str, value: Bytes, lasts: Duration) {
        self.writes.fetch_add(1, Ordering::Relaxed);
        self.node.put(space, key, value, lasts);
    }

    fn lease(&self, wanted: Vec<WantedShare>) -> SharedFuture<'_, Vec<u32>> {
        self.node.lease(wanted)
    }

    fn draw(&self, draws: Vec<AccountDraw>) -> SharedFuture<'_, Vec<AccountGrant>> {
        self.node.draw(draws)
    }

    fn claim<'a>(&'a self, key: &'a str, lasts: Duration) -> SharedFuture<'a, Option<Claim>> {
        self.node.claim(key, lasts)
    }

    fn release(&self, claim: &Claim) {
        self.node.release(claim);
    }

    fn describe(&self, report: NodeReport) {
        self.node.describe(report);
    }

    fn fleet(&self) -> Fleet {
        self.node.fleet()
    }
}
