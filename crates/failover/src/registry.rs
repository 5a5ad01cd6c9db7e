//! The health of every target, shared by all services of a layer.

use std::{
    fmt,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
    },
    time::Duration,
};

use parking_lot::{Mutex, RwLock};
use steadfast_core::{
    Keep, Keyed, KeyedPolicy, Permit, PermitKind, Reason, Scope, Target, Witness,
    circuit::{Moment, Restored},
    shared::News,
    time::WallClock,
};
use tokio::{sync::watch, time::Instant};

use crate::{
    balance::Load,
    event,
    health::{self, Cooldown, Health, ProbePermit},
    policy::FailoverPolicy,
    saved::SavedHealth,
    snapshot::{FailoverSnapshot, TargetHealth},
};

/// Health records; layers of different settings can share them.
#[derive(Debug)]
pub(crate) struct HealthRegistry {
    /// Of this policy, what belongs to targets.
    policy: RwLock<Arc<FailoverPolicy>>,
    records: Keyed<Target, Record>,
    epoch: Instant,
    watch: watch::Sender<FailoverSnapshot>,
    pub(crate) observer: RecordObserver,
}

/// Other processes, when what is known here is shared with them.
pub(crate) type RecordObserver = Arc<OnceLock<Box<dyn ObserveRecords>>>;

/// Sees each change of what is known of a target.
pub(crate) trait ObserveRecords: fmt::Debug + Send + Sync {
    /// What of a change is news to others. Called under its lock.
    fn news(&self, key: &Target, health: &mut Health) -> Option<News>;

    /// Lets them know.
    fn publish(&self, key: &Target, news: News);

    /// Whether a call may see whether it is back, as far as others know.
    fn may_probe(&self, key: &Target, now: Instant) -> bool;
}

/// The health of one key.
#[derive(Debug)]
pub(crate) struct Record {
    pub(crate) key: Target,
    pub(crate) scope: Scope,
    health: Mutex<Health>,
    /// Something is wrong with it: a call looks at a healthy target without a lock.
    is_degraded: AtomicBool,
    /// Calls that have begun.
    calls: AtomicU64,
    /// The latest of them that is known to have got content.
    succeeded: AtomicU64,
    /// The last success, in nanoseconds since `epoch`; 0: none.
    success: AtomicU64,
    /// Calls that got content, and answers that arrived whole, since they were last counted.
    contents: AtomicU32,
    answers: AtomicU32,
    load: Load,
    epoch: Instant,
    observer: RecordObserver,
}

/// A record that cools.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cooling {
    pub(crate) cooldown: Cooldown,
    /// A call is under way that sees whether it is well again, here or in another process.
    pub(crate) probing: bool,
    /// Other models of the provider may stand in.
    pub(crate) yields: bool,
}

impl Keep for Record {
    fn keep(&self, now: Instant) -> bool {
        // Providers and credentials are as many as are configured; models come from callers.
        matches!(self.scope, Scope::Provider | Scope::Credential)
            || self.health.lock().is_worth_keeping(now)
    }

    /// Models that have never answered share what the others leave: any number of them can be asked for.
    fn owner(&self) -> u64 {
        let is_few = matches!(self.scope, Scope::Provider | Scope::Credential);
        u64::from(is_few || self.last_success().is_some())
    }
}

impl HealthRegistry {
    pub(crate) fn new(policy: Arc<FailoverPolicy>) -> Self {
        Self {
            policy: RwLock::new(policy),
            records: Keyed::new(KeyedPolicy::default()),
            epoch: Instant::now(),
            watch: watch::Sender::new(FailoverSnapshot::default()),
            observer: RecordObserver::default(),
        }
    }

    /// All targets go by `policy` from now on; what is known of them is kept.
    pub(crate) fn set_policy(&self, policy: &Arc<FailoverPolicy>) {
        *self.policy.write() = policy.clone();
        // A record that is made meanwhile is either here already or goes by the new one.
        let now = Instant::now();
        for record in self.all() {
            record.health.lock().set_policy(policy, now);
        }
        self.publish();
    }

    /// The record of `key`.
    pub(crate) fn record(&self, key: &Target, scope: Scope) -> Arc<Record> {
        let now = Instant::now();
        self.records.get_or_insert_with(key, now, || Record {
            key: key.clone(),
            scope,
            health: Mutex::new(Health::new(&self.policy.read(), now)),
            is_degraded: AtomicBool::new(false),
            calls: AtomicU64::new(0),
            succeeded: AtomicU64::new(0),
            success: AtomicU64::new(0),
            contents: AtomicU32::new(0),
            answers: AtomicU32::new(0),
            load: Load::default(),
            epoch: self.epoch,
            observer: self.observer.clone(),
        })
    }

    /// The record of `key`, if there is one.
    pub(crate) fn find(&self, key: &Target) -> Option<Arc<Record>> {
        self.records.get(key)
    }

    /// Changes what is known of `record`, and shows it to whoever watches.
    pub(crate) fn change<T>(
        &self,
        record: &Record,
        at: Instant,
        change: impl FnOnce(&mut Health, Moment) -> T,
    ) -> T {
        let out = record.change(at, change);
        self.publish();
        out
    }

    /// Forgets what happened to `key`; whether anything is known of it.
    pub(crate) fn reset(&self, key: &Target) -> bool {
        let Some(record) = self.find(key) else { return false };
        self.clear(&record);
        self.publish();
        true
    }

    pub(crate) fn reset_all(&self) {
        for record in self.all() {
            self.clear(&record);
        }
        self.publish();
    }

    fn clear(&self, record: &Record) {
        record.success.store(0, Ordering::Relaxed);
        record.change(Instant::now(), |health, now| health.reset(now));
    }

    /// All records, in no order.
    pub(crate) fn all(&self) -> impl Iterator<Item = Arc<Record>> {
        self.records.entries().into_iter().map(|(_, record)| record)
    }

    /// Drops the records that `keep` does not want. Calls under way keep theirs and change nothing
    /// that is looked at any more.
    pub(crate) fn retain(&self, keep: impl Fn(&Target) -> bool) {
        self.records.retain(|key, _| keep(key));
        self.publish();
    }

    pub(crate) fn snapshot(&self) -> FailoverSnapshot {
        let now = Instant::now();
        let policy = self.policy.read().clone();
        let targets = self
            .all()
            .map(|record| {
                let health = record.health.lock();
                TargetHealth {
                    status: health.status(&policy),
                    consecutive: health.consecutive,
                    errors: health.errors,
                    last_error: health.last_error.clone(),
                    last_success: record.last_success(),
                    cooling: health.cooling(),
                    probing: health.probing(now),
                    out: health.is_out(),
                    in_flight: record.load.in_flight(),
                    scope: record.scope,
                    target: record.key.clone(),
                }
            })
            .collect();
        FailoverSnapshot::new(now, targets)
    }

    pub(crate) fn save(&self) -> Vec<SavedHealth> {
        let clock = WallClock::now();
        self.all().filter_map(|record| record.health.lock().save(&record.key, clock)).collect()
    }

    /// Goes on with the cooldowns of `saved` whose target is `known`.
    pub(crate) fn restore(
        &self,
        saved: &[SavedHealth],
        known: impl Fn(&Target) -> bool,
    ) -> Restored {
        let clock = WallClock::now();
        let policy = health::circuit(&self.policy.read());
        let mut counts = Restored::default();
        for one in saved {
            let count = if !known(&one.target) {
                &mut counts.unknown
            } else if one.circuit.is_live(&policy, clock) && self.restore_one(one, clock) {
                &mut counts.restored
            } else {
                &mut counts.expired
            };
            *count += 1;
        }
        self.publish();
        counts
    }

    fn restore_one(&self, saved: &SavedHealth, clock: WallClock) -> bool {
        let record = self.record(&saved.target, scope(&saved.target));
        let cooldown =
            record.change(clock.at(), |health, now| health.restore(saved, clock, now.order));
        if let Some(cooldown) = &cooldown {
            let left = cooldown.until.saturating_duration_since(clock.at());
            event::restored(&saved.target, cooldown.reason, left);
        }
        cooldown.is_some()
    }

    pub(crate) fn watch(&self) -> watch::Receiver<FailoverSnapshot> {
        let receiver = self.watch.subscribe();
        // Whoever looks now sees what is, not what was when somebody last watched.
        self.publish();
        receiver
    }

    /// Notifies whoever watches. Costs nothing when nobody does.
    pub(crate) fn publish(&self) {
        if self.watch.receiver_count() > 0 {
            self.watch.send_modify(|snapshot| *snapshot = self.snapshot());
        }
    }
}

/// What a record of `key` is about: as many parts as are set.
pub(crate) fn scope(key: &Target) -> Scope {
    match (key.model(), key.credential()) {
        (None, None) => Scope::Provider,
        (Some(_), None) => Scope::Model,
        (None, Some(_)) => Scope::Credential,
        (Some(_), Some(_)) => Scope::ModelCredential,
    }
}

impl Record {
    /// When anybody last got content of it.
    pub(crate) fn last_success(&self) -> Option<Instant> {
        match self.success.load(Ordering::Relaxed) {
            0 => None,
            nanos => self.epoch.checked_add(Duration::from_nanos(nanos)),
        }
    }

    /// What is under way here.
    #[inline]
    pub(crate) fn load(&self) -> &Load {
        &self.load
    }

    /// How long the first content has taken lately, and how long ago that was, in seconds.
    pub(crate) fn first_content(&self, now: Instant) -> Option<(f64, f64)> {
        self.load.first_content(now.saturating_duration_since(self.epoch))
    }

    /// Notes how long the first content has taken.
    pub(crate) fn measure(&self, took: Duration) {
        self.load.measure(took, self.epoch.elapsed());
    }

    /// A call begins: its position in the order of calls.
    #[inline]
    pub(crate) fn begin(&self) -> u64 {
        self.calls.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Notes the beginning of a call while something is wrong.
    #[inline]
    pub(crate) fn began(&self, order: u64, witness: Witness) {
        if self.is_degraded() {
            let permit = Permit { witness, ..Permit::new(PermitKind::Ordinary, order) };
            self.health.lock().began(&permit);
        }
    }

    /// The position whose lowest bits are `order`, of a call that has begun.
    #[inline]
    pub(crate) fn position(&self, order: u32) -> u64 {
        let latest = self.calls.load(Ordering::Relaxed);
        // The lowest bits are enough: so many calls are not under way.
        latest.saturating_sub(u64::from((latest as u32).wrapping_sub(order)))
    }

    #[inline]
    pub(crate) fn is_degraded(&self) -> bool {
        self.is_degraded.load(Ordering::Relaxed)
    }

    /// The cooldown for `witness` at `now`, while it lasts.
    pub(crate) fn cooling(&self, witness: Witness, now: Instant) -> Option<Cooling> {
        if !self.is_degraded() {
            return None;
        }
        let health = self.health.lock();
        let cooldown = health.cooling_for(witness, now)?;
        let (probing, yields) = (health.probing(now), health.yields);
        drop(health);
        let elsewhere = || {
            let observer = self.observer.get().filter(|_| cooldown.probe_from <= now);
            observer.is_some_and(|observer| !observer.may_probe(&self.key, now))
        };
        Some(Cooling { cooldown, probing: probing || elsewhere(), yields })
    }

    /// Its message when it refused for this reason, while it rests for that.
    pub(crate) fn refusal(&self, reason: Reason) -> Option<Box<str>> {
        self.health.lock().refusal(reason).map(Into::into)
    }

    /// Probes that were outrun since there was content.
    pub(crate) fn outrun(&self) -> u32 {
        self.health.lock().outrun
    }

    /// When the last failure was, and what for.
    pub(crate) fn last_failure(&self) -> Option<(Instant, Reason)> {
        self.health.lock().last_error.as_ref().map(|error| (error.at, error.reason))
    }

    /// Whether most of what it was asked lately has failed.
    pub(crate) fn mostly_fails(&self, now: Instant) -> bool {
        self.is_degraded() && self.health.lock().mostly_fails(now)
    }

    /// Acquires the probe's permit for the call that begins as the `order`th.
    pub(crate) fn acquire_probe(&self, at: Instant, order: u64) -> ProbePermit {
        if self.is_degraded() {
            self.change(at, |health, _| health.acquire_probe(Moment { at, order }))
        } else {
            ProbePermit::NotNeeded
        }
    }

    /// A time as `note_content` takes it: in nanoseconds since all records of a registry began.
    #[inline]
    pub(crate) fn since_epoch(&self, at: Instant) -> u64 {
        let since = at.saturating_duration_since(self.epoch);
        // In 64 bits, which hold 584 years.
        (since.as_secs() * 1_000_000_000 + u64::from(since.subsec_nanos())).max(1)
    }

    /// Notes that the call that began as the `order`th has got content at that time, and that `counts` in
    /// the share of calls that do. Takes the lock ten times a second at most.
    #[inline]
    pub(crate) fn note_content(&self, order: u64, (at, since): (Instant, u64), counts: bool) {
        self.succeeded.fetch_max(order, Ordering::Relaxed);
        if counts {
            self.contents.fetch_add(1, Ordering::Relaxed);
        }
        if self.touch(since) && counts {
            self.count(&mut self.health.lock(), at);
        }
    }

    /// Notes that an answer has arrived whole.
    #[inline]
    pub(crate) fn note_answer(&self) {
        self.answers.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts what has been noted without the lock.
    fn count(&self, health: &mut Health, at: Instant) {
        let contents = self.contents.swap(0, Ordering::Relaxed);
        health.count_good(at, contents, self.answers.swap(0, Ordering::Relaxed));
    }

    /// Notes the time of a success; whether the one before was long ago. A tenth of a second is exact
    /// enough, and keeps busy threads from fighting over one cache line.
    fn touch(&self, nanos: u64) -> bool {
        const TENTH: u64 = 100_000_000;
        let known = self.success.load(Ordering::Relaxed);
        let long = known == 0 || nanos.saturating_sub(known) >= TENTH;
        if long {
            self.success.store(nanos, Ordering::Relaxed);
        }
        long
    }

    /// Changes the health, and what can be seen of it without the lock.
    pub(crate) fn change<T>(
        &self,
        at: Instant,
        change: impl FnOnce(&mut Health, Moment) -> T,
    ) -> T {
        let mut health = self.health.lock();
        self.count(&mut health, at);
        health.note_success(self.succeeded.load(Ordering::Relaxed), self.last_success());
        let out = change(&mut health, Moment { at, order: self.calls.load(Ordering::Relaxed) });
        self.is_degraded.store(health.is_degraded(at), Ordering::Relaxed);
        if let Some(observer) = self.observer.get()
            && let Some(news) = observer.news(&self.key, &mut health)
        {
            drop(health);
            observer.publish(&self.key, news);
        }
        out
    }
}
