//! The breakers of one layer: a circuit for each key, behind its lock, and what is reported of it.

use std::{
    fmt,
    hash::Hash,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use parking_lot::{Mutex, RwLock};
#[cfg(feature = "shared")]
use steadfast_core::shared::{Known, PublishedCircuit};
use steadfast_core::{
    CallContext, Keep, Keyed, Lease, LeaseEnd, Observer, Permit, PermitKind, RecoveryLog, Step,
    Target,
    circuit::{Circuit, CircuitState, CircuitVerdict, Moment, Refused, Transition},
    shared::News,
    time::{WallClock, millis},
};
use tokio::{sync::broadcast, time::Instant};

use crate::{
    BreakerPolicy, BreakerSnapshot, BreakerTransition, Covers, SavedBreaker,
    judge::{in_turns, judge},
};

/// Transitions kept for a subscriber that is slow to read. An incident changes the state of each
/// target a few times a minute; a subscriber that misses this many learns how many it missed.
const TRANSITIONS: usize = 256;

/// The state of one layer: a breaker for each key.
pub(crate) struct Breakers<K> {
    pub(crate) common: Arc<Common<K>>,
    breakers: Keyed<K, Breaker<K>>,
}

/// What all breakers of a layer have in common.
pub(crate) struct Common<K> {
    /// What new breakers go by.
    policy: RwLock<Arc<BreakerPolicy>>,
    pub(crate) keys: Keys<K>,
    pub(crate) observe: AtomicBool,
    pub(crate) transitions: broadcast::Sender<BreakerTransition<K>>,
    /// Other processes, when what is known here is shared with them.
    pub(crate) observer: OnceLock<Box<dyn ObserveBreakers<K>>>,
}

/// Sees each change of a breaker.
pub(crate) trait ObserveBreakers<K>: Send + Sync {
    /// What of a change is news to others. Called under the breaker's lock.
    fn news(&self, key: &K, counted: &mut Counted) -> Option<News>;

    /// Lets them know.
    fn publish(&self, key: &K, news: News);

    /// Whether a call may see whether the breaker can close, as far as others know.
    fn may_probe(&self, key: &K, now: Instant) -> bool;
}

/// What is known of the keys.
pub(crate) struct Keys<K> {
    /// The target a key stands for, when it does.
    pub(crate) target: fn(&K) -> Option<Target>,
    /// How narrow a key is.
    pub(crate) covers: Arc<dyn Fn(&K) -> Covers + Send + Sync>,
    /// A key's name in logs.
    pub(crate) label: Option<Label<K>>,
}

type Label<K> = Arc<dyn Fn(&K) -> String + Send + Sync>;

impl<K> Clone for Keys<K> {
    fn clone(&self) -> Self {
        Self { target: self.target, covers: self.covers.clone(), label: self.label.clone() }
    }
}

/// One key's breaker.
pub(crate) struct Breaker<K> {
    key: K,
    covers: Covers,
    counted: Mutex<Counted>,
    common: Arc<Common<K>>,
}

pub(crate) struct Counted {
    policy: Arc<BreakerPolicy>,
    circuit: Circuit,
    /// Calls that have begun.
    calls: u64,
    /// Calls that were refused, or would have been.
    refused: u64,
    /// It has answered somebody.
    answered: bool,
    /// Failover decides who is asked. The first call says so, or saved state.
    routed: Option<bool>,
    /// Here, repetitions take turns.
    takes_turns: bool,
    /// What other processes know of it.
    #[cfg(feature = "shared")]
    published: PublishedCircuit,
}

impl Counted {
    fn set_routed(&mut self, routed: bool, now: Instant) {
        self.routed = Some(routed);
        if routed {
            self.set_policy(self.policy.clone(), now);
        }
    }

    fn set_policy(&mut self, policy: Arc<BreakerPolicy>, now: Instant) {
        self.policy = policy;
        let circuit = self.policy.circuit_for(self.routed == Some(true));
        self.takes_turns = circuit.turns.is_some();
        self.circuit.set_policy(circuit, now);
    }

    fn save<K: Clone>(&self, key: &K, clock: WallClock) -> Option<SavedBreaker<K>> {
        let circuit = self.circuit.save(clock)?;
        Some(SavedBreaker { key: key.clone(), routed: self.routed == Some(true), circuit })
    }

    /// Else the first call says so.
    fn set_saved_routed(&mut self, routed: bool, now: Instant) {
        if self.routed.is_none() && routed {
            self.set_routed(true, now);
        }
    }

    /// What of its last change is news to other processes, with its rest as `write` has it.
    #[cfg(feature = "shared")]
    pub(crate) fn news<K: Clone>(
        &mut self,
        key: &K,
        clock: WallClock,
        write: impl FnOnce(&SavedBreaker<K>) -> String,
    ) -> Option<News> {
        if self.circuit.is_forced() {
            // That holds in this process.
            return None;
        }
        let saved = self.save(key, clock);
        let rest = saved
            .as_ref()
            .map(|saved| (&saved.circuit, saved.circuit.live_until_ms(self.circuit.policy())));
        let value = || saved.as_ref().map(write).unwrap_or_default();
        self.published.changed(rest, clock, value)
    }
}

impl<K> Breakers<K> {
    pub(crate) fn policy(&self) -> Arc<BreakerPolicy> {
        self.common.policy.read().clone()
    }
}

impl<K> Breakers<K>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
{
    pub(crate) fn new(policy: BreakerPolicy, keys: Keys<K>) -> Self {
        let breakers = Keyed::new(policy.keys);
        let observe = AtomicBool::new(policy.observe);
        let transitions = broadcast::Sender::new(TRANSITIONS);
        let policy = RwLock::new(Arc::new(policy));
        let observer = OnceLock::new();
        let common = Arc::new(Common { policy, keys, observe, transitions, observer });
        Self { breakers, common }
    }

    /// All breakers go by `policy` from now on; what they have counted is kept, and how they stand.
    pub(crate) fn set_policy(&self, policy: &Arc<BreakerPolicy>) {
        let old = std::mem::replace(&mut *self.common.policy.write(), policy.clone());
        if old == *policy {
            return;
        }
        if old.observe != policy.observe {
            self.common.observe.store(policy.observe, Ordering::Relaxed);
        }
        self.breakers.set_policy(policy.keys);
        // A breaker that is made meanwhile is either here already or goes by the new one.
        let now = Instant::now();
        for breaker in self.all() {
            breaker.counted.lock().set_policy(policy.clone(), now);
        }
    }

    pub(crate) fn get_or_insert(&self, key: &K, now: Instant) -> Arc<Breaker<K>> {
        self.breakers.get_or_insert_with(key, now, || Breaker::new(key, &self.common, now))
    }

    pub(crate) fn get(&self, key: &K) -> Option<Arc<Breaker<K>>> {
        self.breakers.get(key)
    }

    pub(crate) fn remove(&self, key: &K) -> bool {
        self.breakers.remove(key).is_some()
    }

    pub(crate) fn all(&self) -> Vec<Arc<Breaker<K>>> {
        self.breakers.entries().into_iter().map(|(_, breaker)| breaker).collect()
    }
}

impl<K: Clone + Send + Sync + 'static> Breaker<K> {
    fn new(key: &K, common: &Arc<Common<K>>, now: Instant) -> Self {
        let policy = common.policy.read().clone();
        let circuit = Circuit::new(policy.circuit(), now);
        let counted = Counted {
            policy,
            circuit,
            calls: 0,
            refused: 0,
            answered: false,
            routed: None,
            takes_turns: false,
            #[cfg(feature = "shared")]
            published: PublishedCircuit::default(),
        };
        Self {
            key: key.clone(),
            covers: (common.keys.covers)(key),
            counted: Mutex::new(counted),
            common: common.clone(),
        }
    }

    /// Lets a call pass, with a lease on this breaker, or says when to come back, and whether that is its turn.
    #[inline]
    pub(crate) fn admit(
        self: Arc<Self>,
        now: Instant,
        context: &CallContext,
    ) -> Result<Lease, (Refused, bool)> {
        let (admission, takes_turns, timed) = {
            let mut counted = self.counted.lock();
            if counted.routed.is_none() {
                counted.set_routed(context.routed.is_some(), now);
            }
            // A call that is refused has no position in the order.
            let moment = Moment { at: now, order: counted.calls + 1 };
            let admission = if counted.takes_turns {
                let repeats = context.routed.as_ref().map_or(0, |routed| routed.repeats);
                counted.circuit.take_turn(moment, repeats == 0, context.witness)
            } else if self.is_probed_elsewhere(&counted, now) {
                counted.circuit.admit_unprobed(moment, context.alternatives == 0)
            } else {
                counted.circuit.admit(moment, context.alternatives == 0)
            };
            let passes = u64::from(admission.result.is_ok());
            counted.calls += passes;
            counted.refused += 1 - passes;
            let timed = counted.takes_turns || counted.policy.slow.is_some();
            (admission, counted.takes_turns, timed)
        };
        if admission.lost > 0 {
            self.report_lost(admission.lost);
        }
        if let Some(transition) = &admission.transition {
            self.report(transition, None);
        }
        match admission.result {
            Ok(permit) => {
                let permit = Permit { witness: context.witness, ..permit };
                Ok(self.lease(permit, timed.then_some(now), context))
            }
            Err(refused) => self.refuse(refused, context).map_err(|refused| (refused, takes_turns)),
        }
    }

    /// A lease on this breaker, which observes the first content when the call's start is given.
    fn lease(
        self: Arc<Self>,
        permit: Permit,
        observed: Option<Instant>,
        context: &CallContext,
    ) -> Lease {
        if permit.kind != PermitKind::Ordinary {
            self.report_probe(&context.log, permit.kind);
        }
        let lease = Lease::new(self, permit, context.log.clone());
        match observed {
            Some(began) => lease.observing_content(began),
            None => lease,
        }
    }

    /// Refuses a call, or says that it would be refused.
    #[cold]
    fn refuse(&self, refused: Refused, context: &CallContext) -> Result<Lease, Refused> {
        let observe = self.common.observe.load(Ordering::Relaxed);
        tracing::event!(
            name: "steadfast::breaker::refused",
            target: "steadfast::breaker",
            tracing::Level::DEBUG,
            key = %self.name(),
            wait_ms = millis(refused.wait),
            observed = observe,
            "call refused by an open circuit breaker"
        );
        context.log.record(|| {
            let action = if observe { "would_refuse" } else { "refused" };
            Step::new("breaker", action)
                .with_target(context.target.as_ref())
                .with_wait(refused.wait)
        });
        let lease = || Lease::idle().with_log(context.log.clone());
        if observe { Ok(lease()) } else { Err(refused) }
    }

    /// Whether another process sees whether it can close.
    #[inline]
    fn is_probed_elsewhere(&self, counted: &Counted, now: Instant) -> bool {
        let observer = self.common.observer.get().filter(|_| counted.circuit.is_probe_due(now));
        observer.is_some_and(|observer| !observer.may_probe(&self.key, now))
    }

    /// Does something to the circuit by hand, and reports what came of it; whether that changed its
    /// state.
    pub(crate) fn steer(
        &self,
        change: impl FnOnce(&mut Circuit, Moment) -> Option<Transition>,
    ) -> bool {
        self.change(Instant::now(), None, |counted, now| change(&mut counted.circuit, now))
    }

    pub(crate) fn save(&self, clock: WallClock) -> Option<SavedBreaker<K>> {
        self.counted.lock().save(&self.key, clock)
    }

    /// Goes on with what was saved; whether it rests by that.
    pub(crate) fn restore(&self, saved: &SavedBreaker<K>, clock: WallClock) -> bool {
        self.change(clock.at(), None, |counted, now| {
            counted.set_saved_routed(saved.routed, now.at);
            counted.circuit.restore(&saved.circuit, clock, now.order)
        })
    }

    #[cfg(feature = "shared")]
    pub(crate) fn key(&self) -> &K {
        &self.key
    }

    /// Other processes know this of it, with its rest there.
    #[cfg(feature = "shared")]
    pub(crate) fn hear(&self, known: &Known, saved: Option<&SavedBreaker<K>>, clock: WallClock) {
        self.change(clock.at(), None, |counted, now| {
            let over = counted.circuit.take_back(now, clock.to_instant(known.over_ms));
            let rests = saved.and_then(|saved| {
                counted.set_saved_routed(saved.routed, now.at);
                counted.circuit.merge(&saved.circuit, clock, now.order)
            });
            counted.published.heard(known, counted.circuit.resting().is_some(), clock);
            rests.or(over)
        });
    }

    pub(crate) fn snapshot(&self, now: Instant) -> BreakerSnapshot<K> {
        let mut counted = self.counted.lock();
        BreakerSnapshot {
            key: self.key.clone(),
            circuit: counted.circuit.snapshot(now),
            refused: counted.refused,
        }
    }

    /// Reports a change: an event, a step in the log of the request that brought it about, a
    /// message to subscribers. No lock is held.
    #[cold]
    fn report(&self, transition: &Transition, log: Option<&RecoveryLog>) {
        let rest = transition.until.map_or(Duration::ZERO, |until| until - transition.at);
        // The names of events are constants, so each has its own call.
        macro_rules! event {
            ($name:literal, $level:ident, $text:literal) => {
                tracing::event!(
                    name: $name,
                    target: "steadfast::breaker",
                    tracing::Level::$level,
                    key = %self.name(),
                    from = transition.from.as_str(),
                    to = transition.to.as_str(),
                    cause = transition.cause.as_str(),
                    reason = transition.reason.map(|reason| reason.as_str()),
                    rest_ms = millis(rest),
                    generation = transition.generation,
                    $text
                )
            };
        }
        let action = match transition.to {
            CircuitState::HalfOpen => {
                event!("steadfast::breaker::half_opened", INFO, "circuit breaker lets probes pass");
                "half_opened"
            }
            CircuitState::Closed | CircuitState::ForcedClosed => {
                event!("steadfast::breaker::closed", INFO, "circuit breaker closed");
                "closed"
            }
            _ => {
                event!("steadfast::breaker::opened", WARN, "circuit breaker opened");
                "opened"
            }
        };
        if let Some(log) = log {
            log.record(|| {
                let mut step = Step::new("breaker", action)
                    .with_target((self.common.keys.target)(&self.key).as_ref())
                    .with_detail(transition.cause.as_str());
                step.reason = transition.reason;
                step.wait = transition.until.map(|_| rest);
                step
            });
        }
        if self.common.transitions.receiver_count() > 0 {
            let (key, transition) = (self.key.clone(), *transition);
            // An error says that the last receiver has just gone.
            let _ = self.common.transitions.send(BreakerTransition { key, transition });
        }
    }

    #[cold]
    fn report_probe(&self, log: &RecoveryLog, kind: PermitKind) {
        let lone = kind == PermitKind::Lone;
        tracing::event!(
            name: "steadfast::breaker::probe",
            target: "steadfast::breaker",
            tracing::Level::DEBUG,
            key = %self.name(),
            lone,
            "call let through an open circuit breaker"
        );
        log.record(|| {
            let target = (self.common.keys.target)(&self.key);
            let step = Step::new("breaker", "probe").with_target(target.as_ref());
            if lone { step.with_detail("nowhere else to go") } else { step }
        });
    }

    #[cold]
    fn report_lost(&self, lost: usize) {
        tracing::event!(
            name: "steadfast::breaker::probe_lost",
            target: "steadfast::breaker",
            tracing::Level::WARN,
            key = %self.name(),
            lost,
            "probes were out longer than `probe_limit` and were given up"
        );
    }

    /// The key in logs: what the user says, else the target; a key of unknown kind may be a secret
    /// and is not shown.
    fn name(&self) -> String {
        if let Some(label) = &self.common.keys.label {
            return label(&self.key);
        }
        let target = (self.common.keys.target)(&self.key);
        target.map_or_else(|| "-".to_owned(), |target| target.to_string())
    }
}

impl<K: Clone + Send + Sync + 'static> Observer for Breaker<K> {
    fn first_content(&self, permit: Permit, at: Instant, after: Duration, log: &RecoveryLog) {
        self.change(at, Some(log), |counted, now| {
            counted.answered = true;
            counted.circuit.first_content(now, &permit, after)
        });
    }

    fn rests(&self, _: Permit) -> bool {
        let counted = self.counted.lock();
        counted.circuit.resting().is_some() && !counted.takes_turns
    }

    fn ended(&self, end: LeaseEnd<'_>) {
        self.change(Instant::now(), Some(end.log), |counted, now| {
            let verdict = judge(&end.outcome, &counted.policy, self.covers);
            let verdict = if counted.takes_turns { in_turns(verdict) } else { verdict };
            counted.answered |= verdict == CircuitVerdict::Success;
            counted.circuit.end(now, &end.permit, verdict, end.first_content)
        });
    }
}

impl<K: Clone + Send + Sync + 'static> Breaker<K> {
    /// Changes what is known, and reports what that has changed, to other processes too; whether it has changed the
    /// state.
    fn change(
        &self,
        at: Instant,
        log: Option<&RecoveryLog>,
        change: impl FnOnce(&mut Counted, Moment) -> Option<Transition>,
    ) -> bool {
        let observer = self.common.observer.get();
        let (transition, news) = {
            let mut counted = self.counted.lock();
            let now = Moment { at, order: counted.calls };
            let transition = change(&mut counted, now);
            (transition, observer.and_then(|observer| observer.news(&self.key, &mut counted)))
        };
        if let Some(transition) = &transition {
            self.report(transition, log);
        }
        if let Some((observer, news)) = observer.zip(news) {
            observer.publish(&self.key, news);
        }
        transition.is_some()
    }
}

impl<K> Keep for Breaker<K> {
    fn keep(&self, now: Instant) -> bool {
        self.counted.lock().circuit.is_worth_keeping(now)
    }

    /// Callers can ask for models that do not exist, each of them a target that fails. They share what is
    /// left by those that answer.
    fn owner(&self) -> u64 {
        u64::from(self.counted.lock().answered)
    }
}

impl<K> fmt::Debug for Breakers<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Breakers").field("policy", &self.policy()).finish_non_exhaustive()
    }
}
