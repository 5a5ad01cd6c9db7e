//! The health of every target, shared by all services of a layer.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use steadfast_core::{
    Keep, Keyed, KeyedPolicy, Permit, RetryBudget, Scope, Target,
    circuit::{Blame, Moment},
};
use tokio::{sync::watch, time::Instant};

use crate::{
    health::{Cooldown, Failed, Health, ProbePermit},
    policy::FailoverPolicy,
    snapshot::{FailoverSnapshot, TargetHealth},
};

/// Health records, and the order of calls that they share.
#[derive(Debug)]
pub(crate) struct HealthRegistry {
    pub(crate) policy: FailoverPolicy,
    /// What every target after the first is paid from.
    pub(crate) budget: Option<RetryBudget>,
    records: Keyed<Target, Record>,
    /// Calls that have begun.
    calls: AtomicU64,
    epoch: Instant,
    watch: watch::Sender<FailoverSnapshot>,
}

/// The health of one key.
#[derive(Debug)]
pub(crate) struct Record {
    pub(crate) key: Target,
    pub(crate) scope: Scope,
    health: Mutex<Health>,
    /// Something is wrong with it: a call looks at a healthy target without a lock.
    is_degraded: AtomicBool,
    /// The last success, in nanoseconds since the registry's epoch; 0: none.
    success: AtomicU64,
}

/// A record that cools.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cooling {
    pub(crate) cooldown: Cooldown,
    /// A call is under way that sees whether it is well again.
    pub(crate) probing: bool,
    /// Other models of the provider may stand in.
    pub(crate) yields: bool,
}

impl Keep for Record {
    fn keep(&self, now: Instant) -> bool {
        // Providers and credentials are as many as are configured; models come from callers.
        matches!(self.scope, Scope::Provider | Scope::Credential)
            || self.health.lock().cooling(now).is_some()
    }
}

impl HealthRegistry {
    pub(crate) fn new(policy: FailoverPolicy, budget: Option<RetryBudget>) -> Self {
        Self {
            policy,
            budget,
            records: Keyed::new(KeyedPolicy::default()),
            calls: AtomicU64::new(0),
            epoch: Instant::now(),
            watch: watch::Sender::new(FailoverSnapshot::default()),
        }
    }

    /// The record of `key`.
    pub(crate) fn record(&self, key: &Target, scope: Scope) -> Arc<Record> {
        let now = Instant::now();
        self.records.get_or_insert_with(key, now, || Record {
            key: key.clone(),
            scope,
            health: Mutex::new(Health::new(&self.policy, now)),
            is_degraded: AtomicBool::new(false),
            success: AtomicU64::new(0),
        })
    }

    /// The record of `key`, if there is one.
    pub(crate) fn find(&self, key: &Target) -> Option<Arc<Record>> {
        self.records.get(key)
    }

    /// A call begins: its position in the order of calls.
    #[inline]
    pub(crate) fn begin(&self) -> u64 {
        self.calls.fetch_add(1, Ordering::Relaxed) + 1
    }

    pub(crate) fn moment(&self, at: Instant) -> Moment {
        Moment { at, order: self.calls.load(Ordering::Relaxed) }
    }

    pub(crate) fn fail(
        &self,
        record: &Record,
        permit: &Permit,
        blame: Blame,
        yields: bool,
        message: &str,
    ) -> Failed {
        let now = self.moment(Instant::now());
        let failed = record.change(|health| health.fail(now, permit, blame, yields, message));
        self.publish();
        failed
    }

    /// It can not be asked for `wait`, for no fault of its own.
    pub(crate) fn rest(&self, record: &Record, wait: Duration) {
        record.change(|health| health.rest(Instant::now(), wait));
        self.publish();
    }

    /// Notes a success of what is degraded; whether that ended a cooldown.
    #[cold]
    pub(crate) fn recover(&self, record: &Record, at: Instant, permit: &Permit) -> bool {
        let now = self.moment(at);
        let recovered = record.change(|health| health.succeed(now, permit));
        self.publish();
        recovered
    }

    pub(crate) fn release(&self, record: &Record, permit: &Permit) {
        let now = self.moment(Instant::now());
        record.change(|health| health.release(now, permit));
    }

    pub(crate) fn force(&self, record: &Record, wait: Duration) {
        let now = self.moment(Instant::now());
        record.change(|health| health.force(now, wait));
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
        let now = self.moment(Instant::now());
        record.success.store(0, Ordering::Relaxed);
        record.change(|health| health.reset(now));
    }

    /// Drops the records that `keep` does not want. Calls under way keep theirs and change nothing
    /// that is looked at any more.
    pub(crate) fn retain(&self, keep: impl Fn(&Target) -> bool) {
        self.records.retain(|key, _| keep(key));
        self.publish();
    }

    pub(crate) fn snapshot(&self) -> FailoverSnapshot {
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
                    last_success: self.instant(&record.success),
                    cooling: health.cooling(now),
                    probing: health.probing(now),
                    scope: record.scope,
                    target: record.key.clone(),
                }
            })
            .collect();
        FailoverSnapshot::new(now, targets)
    }

    pub(crate) fn watch(&self) -> watch::Receiver<FailoverSnapshot> {
        let receiver = self.watch.subscribe();
        // Whoever looks now sees what is, not what was when somebody last watched.
        self.publish();
        receiver
    }

    /// Notifies whoever watches. Costs nothing when nobody does.
    fn publish(&self) {
        if self.watch.receiver_count() > 0 {
            self.watch.send_modify(|snapshot| *snapshot = self.snapshot());
        }
    }

    /// Since the registry's epoch.
    pub(crate) fn nanos(&self, at: Instant) -> u64 {
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
    #[inline]
    pub(crate) fn is_degraded(&self) -> bool {
        self.is_degraded.load(Ordering::Relaxed)
    }

    /// The cooldown at `now`, while it lasts.
    pub(crate) fn cooling(&self, now: Instant) -> Option<Cooling> {
        if !self.is_degraded() {
            return None;
        }
        let health = self.health.lock();
        let (cooldown, probing) = (health.cooling(now)?, health.probing(now));
        Some(Cooling { cooldown, probing, yields: health.yields })
    }

    /// Acquires the probe's permit for the call that begins at `now`.
    pub(crate) fn acquire_probe(&self, now: Moment) -> ProbePermit {
        if self.is_degraded() {
            self.change(|health| health.acquire_probe(now))
        } else {
            ProbePermit::NotNeeded
        }
    }

    /// Notes a success. A tenth of a second is exact enough, and keeps busy threads from fighting
    /// over one cache line.
    pub(crate) fn touch(&self, nanos: u64) {
        const TENTH: u64 = 100_000_000;
        let known = self.success.load(Ordering::Relaxed);
        if known == 0 || nanos.saturating_sub(known) >= TENTH {
            self.success.store(nanos, Ordering::Relaxed);
        }
    }

    /// Changes the health, and what can be seen of it without the lock.
    fn change<T>(&self, change: impl FnOnce(&mut Health) -> T) -> T {
        let mut health = self.health.lock();
        let out = change(&mut health);
        self.is_degraded.store(health.is_degraded(), Ordering::Relaxed);
        out
    }
}
