//! The health of every target, shared by all services of a layer.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use steadfast_core::{Keep, Keyed, KeyedPolicy, RetryBudget, Scope, Target};
use tokio::{sync::watch, time::Instant};

use crate::{
    health::{Cooldown, Failed, Health},
    policy::{Blame, FailoverPolicy},
    snapshot::{Snapshot, TargetHealth},
};

/// Records, and the clock of generations they share.
#[derive(Debug)]
pub(crate) struct Book {
    pub(crate) policy: FailoverPolicy,
    /// What every target after the first is paid from.
    pub(crate) budget: Option<RetryBudget>,
    records: Keyed<Target, Record>,
    /// Records whose `until` is not 0: without any, nobody has to look at one.
    cooling: Arc<AtomicUsize>,
    /// Moves on when something cools, recovers or is reset.
    generation: AtomicU64,
    /// Names probes; 0 is none.
    probes: AtomicU64,
    epoch: Instant,
    watch: watch::Sender<Snapshot>,
}

/// The health of one key.
#[derive(Debug)]
pub(crate) struct Record {
    pub(crate) key: Target,
    pub(crate) scope: Scope,
    health: Mutex<Health>,
    /// When its cooldown ends, in nanoseconds since the epoch of the book; 0 when it does not
    /// cool. So a call looks at a healthy target without a lock and without reading the clock.
    until: AtomicU64,
    /// How many records of the book have one.
    cooling: Arc<AtomicUsize>,
    /// Whether a success would change more than its own time.
    troubled: AtomicBool,
    /// The last success, as `until`.
    success: AtomicU64,
}

impl Keep for Record {
    fn keep(&self, now: Instant) -> bool {
        // Providers and credentials are as many as are configured; models come from callers.
        matches!(self.scope, Scope::Provider | Scope::Credential)
            || self.health.lock().cooling(now).is_some()
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        self.rest_until(0);
    }
}

impl Book {
    pub(crate) fn new(policy: FailoverPolicy, budget: Option<RetryBudget>) -> Self {
        Self {
            policy,
            budget,
            records: Keyed::new(KeyedPolicy::default()),
            cooling: Arc::default(),
            generation: AtomicU64::new(0),
            probes: AtomicU64::new(0),
            epoch: Instant::now(),
            watch: watch::Sender::new(Snapshot::default()),
        }
    }

    /// The record of `key`.
    pub(crate) fn record(&self, key: &Target, scope: Scope) -> Arc<Record> {
        self.records.get_or_insert_with(key, Instant::now(), || {
            Record::new(key.clone(), scope, self.cooling.clone())
        })
    }

    /// The record of `key`, if there is one.
    pub(crate) fn find(&self, key: &Target) -> Option<Arc<Record>> {
        self.records.get(key)
    }

    /// Whether anything may be cooling: if not, nobody needs the time to know.
    #[inline]
    pub(crate) fn may_cool(&self) -> bool {
        self.cooling.load(Ordering::Relaxed) != 0
    }

    /// The generation a call is admitted under.
    pub(crate) fn admit(&self) -> u64 {
        self.generation.load(Ordering::Relaxed)
    }

    /// A number for a probe.
    pub(crate) fn mark(&self) -> u64 {
        self.probes.fetch_add(1, Ordering::Relaxed) + 1
    }

    fn next(&self) -> u64 {
        self.generation.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// The cooldown of `record` at `now`, and whether it is being probed.
    pub(crate) fn cooling(&self, record: &Record, now: Instant) -> Option<(Cooldown, bool)> {
        let seen = record.until.load(Ordering::Relaxed);
        if seen == 0 {
            return None;
        }
        let health = record.health.lock();
        let cooling = health.cooling(now);
        if cooling.is_none() {
            // Its rest is over: from here on it costs nobody a look.
            record.rest_until(0);
        }
        cooling.map(|cooldown| (cooldown, health.probing(now)))
    }

    pub(crate) fn fail(
        &self,
        record: &Record,
        now: Instant,
        admitted: u64,
        blame: Blame,
        message: &str,
    ) -> Failed {
        let next = self.next();
        let failed = record
            .change(self, |health| health.fail(now, admitted, next, blame, message, &self.policy));
        self.publish();
        failed
    }

    /// It can not be asked for `wait`, for no fault of its own.
    pub(crate) fn rest(&self, record: &Record, now: Instant, wait: Duration) {
        record.change(self, |health| health.rest(now, wait));
        self.publish();
    }

    /// Notes a success of everything in `records`; calls `recovered` with those whose cooldown that
    /// ended.
    #[inline]
    pub(crate) fn succeed<'a>(
        &self,
        records: impl Iterator<Item = &'a Arc<Record>>,
        admitted: u64,
        mut recovered: impl FnMut(&'a Record),
    ) {
        let now = Instant::now();
        let nanos = self.nanos(now);
        for record in records {
            record.touch(nanos);
            if record.troubled.load(Ordering::Relaxed) && self.recover(record, now, admitted) {
                recovered(record);
            }
        }
    }

    #[cold]
    fn recover(&self, record: &Record, now: Instant, admitted: u64) -> bool {
        let next = self.next();
        let recovered = record.change(self, |health| health.succeed(now, admitted, next));
        self.publish();
        recovered
    }

    pub(crate) fn claim(&self, record: &Record, now: Instant, mark: u64) -> bool {
        let limit = self.policy.probe_limit;
        let next = self.next();
        record.change(self, |health| health.claim(now, mark, next, limit))
    }

    pub(crate) fn release(&self, record: &Record, mark: u64) {
        record.health.lock().release(mark);
    }

    pub(crate) fn force(&self, record: &Record, wait: Duration) {
        let next = self.next();
        record.change(self, |health| health.force(Instant::now(), wait, next));
        self.publish();
    }

    /// Forgets what happened to `key`; whether anything is known of it.
    pub(crate) fn reset(&self, key: &Target) -> bool {
        let Some(record) = self.find(key) else { return false };
        self.clear(&record);
        self.publish();
        true
    }

    pub(crate) fn reset_all(&self) {
        for (_, record) in self.records.entries() {
            self.clear(&record);
        }
        self.publish();
    }

    fn clear(&self, record: &Record) {
        let next = self.next();
        record.success.store(0, Ordering::Relaxed);
        record.change(self, |health| health.reset(next));
    }

    /// Drops the records that `keep` does not want. Calls under way keep theirs and change nothing
    /// that is looked at any more.
    pub(crate) fn retain(&self, keep: impl Fn(&Target) -> bool) {
        self.records.retain(|key, _| keep(key));
        self.publish();
    }

    pub(crate) fn snapshot(&self) -> Snapshot {
        let now = Instant::now();
        let targets = self
            .records
            .entries()
            .into_iter()
            .map(|(_, record)| {
                let health = record.health.lock();
                TargetHealth {
                    status: health.status(&self.policy),
                    consecutive: health.consecutive,
                    errors: health.errors,
                    last_error: health.last_error.clone(),
                    last_success: health.last_success.max(self.instant(&record.success)),
                    cooling: health.cooling(now),
                    probing: health.probing(now),
                    scope: record.scope,
                    target: record.key.clone(),
                }
            })
            .collect();
        Snapshot::new(now, targets)
    }

    pub(crate) fn watch(&self) -> watch::Receiver<Snapshot> {
        let receiver = self.watch.subscribe();
        // Whoever looks now sees what is, not what was when somebody last watched.
        self.publish();
        receiver
    }

    /// Tells whoever watches. Costs nothing when nobody does.
    fn publish(&self) {
        if self.watch.receiver_count() > 0 {
            self.watch.send_modify(|snapshot| *snapshot = self.snapshot());
        }
    }

    fn nanos(&self, at: Instant) -> u64 {
        let since = at.saturating_duration_since(self.epoch).as_nanos();
        u64::try_from(since).unwrap_or(u64::MAX).max(1)
    }

    fn instant(&self, nanos: &AtomicU64) -> Option<Instant> {
        match nanos.load(Ordering::Relaxed) {
            0 => None,
            nanos => self.epoch.checked_add(Duration::from_nanos(nanos)),
        }
    }
}

impl Record {
    fn new(key: Target, scope: Scope, cooling: Arc<AtomicUsize>) -> Self {
        Self {
            key,
            scope,
            health: Mutex::default(),
            until: AtomicU64::new(0),
            cooling,
            troubled: AtomicBool::new(false),
            success: AtomicU64::new(0),
        }
    }

    /// Whether it may be cooling.
    pub(crate) fn may_cool(&self) -> bool {
        self.until.load(Ordering::Relaxed) != 0
    }

    /// Sets when the cooldown ends, under the lock of the health.
    fn rest_until(&self, until: u64) {
        match (self.until.swap(until, Ordering::Relaxed), until) {
            (0, 0) => {}
            (0, _) => drop(self.cooling.fetch_add(1, Ordering::Relaxed)),
            (_, 0) => drop(self.cooling.fetch_sub(1, Ordering::Relaxed)),
            _ => {}
        }
    }

    /// Notes a success. A tenth of a second is exact enough, and keeps busy threads from fighting
    /// over one cache line.
    fn touch(&self, nanos: u64) {
        const TENTH: u64 = 100_000_000;
        let known = self.success.load(Ordering::Relaxed);
        if known == 0 || nanos.saturating_sub(known) >= TENTH {
            self.success.store(nanos, Ordering::Relaxed);
        }
    }

    /// Changes the health, and what can be seen of it without the lock.
    fn change<T>(&self, book: &Book, change: impl FnOnce(&mut Health) -> T) -> T {
        let mut health = self.health.lock();
        let out = change(&mut health);
        let until = health.until().map_or(0, |until| book.nanos(until));
        self.rest_until(until);
        self.troubled.store(health.is_troubled(), Ordering::Relaxed);
        out
    }
}
