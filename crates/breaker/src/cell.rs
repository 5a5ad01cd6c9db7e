//! One key's breaker between the calls and the machine: locks, clocks, reports.

use std::{
    fmt,
    hash::Hash,
    ops::Deref,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU8, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use steadfast_core::{
    CallContext, Keep, Keyed, Near, Outcome, Reason, RecoveryLog, Settle, Settled, Step, Target,
    Token,
};
use tokio::{sync::broadcast, time::Instant};

use crate::{
    BreakerPolicy, Covers, Snapshot, State, Transition,
    front::Front,
    state::{Change, Decision, Machine},
    verdict::judge,
};

/// Transitions kept for a subscriber that is slow to read. An incident changes the state of each
/// target a few times a minute; a subscriber that misses this many is told how many it missed.
const TRANSITIONS: usize = 256;

/// The state of one layer: a breaker for each key.
pub(crate) struct Shared<K> {
    pub(crate) common: Arc<Common<K>>,
    cells: Keyed<K, Cell<K>>,
}

/// What all breakers of a layer have in common.
pub(crate) struct Common<K> {
    pub(crate) policy: Arc<BreakerPolicy>,
    pub(crate) keys: Keys<K>,
    pub(crate) observe: AtomicBool,
    pub(crate) transitions: broadcast::Sender<Transition<K>>,
    rng: Mutex<fastrand::Rng>,
}

/// What is known of the keys.
pub(crate) struct Keys<K> {
    /// The target a key stands for, when it does.
    pub(crate) target: fn(&K) -> Option<Target>,
    pub(crate) covers: CoversOf<K>,
    pub(crate) label: Option<Label<K>>,
}

/// A key's name in logs.
pub(crate) type Label<K> = Arc<dyn Fn(&K) -> String + Send + Sync>;

/// How narrow a key is.
pub(crate) enum CoversOf<K> {
    All(Covers),
    Each(fn(&K) -> Covers),
}

impl<K> Clone for CoversOf<K> {
    fn clone(&self) -> Self {
        match self {
            Self::All(covers) => Self::All(*covers),
            Self::Each(of) => Self::Each(*of),
        }
    }
}

impl<K> Clone for Keys<K> {
    fn clone(&self) -> Self {
        Self { target: self.target, covers: self.covers.clone(), label: self.label.clone() }
    }
}

/// One key's breaker.
pub(crate) struct Cell<K> {
    /// What the usual call needs.
    front: Front,
    /// The map has let go of it.
    evicted: AtomicBool,
    covers: Covers,
    key: K,
    machine: Mutex<Machine>,
    /// The reason it opened for, as its place in [`Reason::ALL`]: refusals read it without a lock.
    because: AtomicU8,
    common: Arc<Common<K>>,
}

/// What a service knows: its layer's state, and the breaker it used last. One pointer once a key has
/// come twice in a row, so that a clone of the service counts once.
pub(crate) struct Own<K> {
    last: Option<Last<K>>,
    /// `None` while `last` knows it.
    shared: Option<Near<Shared<K>>>,
}

/// The breaker a service used last.
pub(crate) enum Last<K> {
    /// For the first time in a row: a service that is used once, or goes from key to key, allocates
    /// nothing.
    New(Arc<Cell<K>>),
    /// Counted for this service and its clones alone.
    Known(Arc<Known<K>>),
}

/// A breaker, and the state it belongs to.
pub(crate) struct Known<K> {
    cell: Arc<Cell<K>>,
    shared: Near<Shared<K>>,
}

impl<K> Own<K> {
    pub(crate) fn new(shared: Arc<Shared<K>>) -> Self {
        Self { last: None, shared: Some(Near::new(shared)) }
    }

    pub(crate) fn shared(&self) -> &Near<Shared<K>> {
        match (&self.last, &self.shared) {
            (Some(Last::Known(known)), _) => &known.shared,
            (_, Some(shared)) => shared,
            _ => unreachable!("it is let go of only for one that knows it"),
        }
    }
}

impl<K> Own<K>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
{
    /// The breaker of `key`: the last one, when it is that, without asking the map; else it becomes
    /// that.
    #[inline]
    pub(crate) fn find(&mut self, key: &K) -> &Last<K> {
        if !matches!(&self.last, Some(Last::Known(known)) if known.cell.is_for(key)) {
            self.find_other(key);
        }
        self.last.get_or_insert_with(|| unreachable!("it has just been put there"))
    }

    #[cold]
    fn find_other(&mut self, key: &K) {
        let shared = self.shared().clone();
        self.last = Some(match self.last.take() {
            // The second time in a row, so probably a third time.
            Some(Last::New(cell)) if cell.is_for(key) => {
                self.shared = None;
                Last::Known(Arc::new(Known { cell, shared }))
            }
            _ => {
                let cell = shared.get_or_insert(key, Instant::now());
                self.shared = Some(shared);
                Last::New(cell)
            }
        });
    }
}

impl<K> Clone for Own<K> {
    fn clone(&self) -> Self {
        Self { last: self.last.clone(), shared: self.shared.clone() }
    }
}

impl<K> Deref for Last<K> {
    type Target = Cell<K>;

    #[inline]
    fn deref(&self) -> &Cell<K> {
        match self {
            Self::New(cell) => cell,
            Self::Known(known) => &known.cell,
        }
    }
}

impl<K> Clone for Last<K> {
    #[inline]
    fn clone(&self) -> Self {
        match self {
            Self::New(cell) => Self::New(cell.clone()),
            Self::Known(known) => Self::Known(known.clone()),
        }
    }
}

/// Why and for how long a call is not let through.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Refused {
    pub(crate) wait: Duration,
    pub(crate) because: Option<Reason>,
}

impl<K> Shared<K>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
{
    pub(crate) fn new(policy: Arc<BreakerPolicy>, keys: Keys<K>) -> Self {
        let rng = policy.seed.map_or_else(fastrand::Rng::new, fastrand::Rng::with_seed);
        let common = Common {
            keys,
            observe: AtomicBool::new(policy.observe),
            transitions: broadcast::Sender::new(TRANSITIONS),
            rng: Mutex::new(rng),
            policy,
        };
        Self { cells: Keyed::new(common.policy.keys), common: Arc::new(common) }
    }

    pub(crate) fn get_or_insert(&self, key: &K, now: Instant) -> Arc<Cell<K>> {
        self.cells.get_or_insert_with(key, now, || Cell::new(key.clone(), &self.common, now))
    }

    pub(crate) fn get(&self, key: &K) -> Option<Arc<Cell<K>>> {
        self.cells.get(key)
    }

    pub(crate) fn remove(&self, key: &K) -> bool {
        self.cells.remove(key).is_some()
    }

    pub(crate) fn all(&self) -> Vec<Arc<Cell<K>>> {
        self.cells.entries().into_iter().map(|(_, cell)| cell).collect()
    }
}

impl<K: Clone> Cell<K> {
    fn new(key: K, common: &Arc<Common<K>>, now: Instant) -> Self {
        let rng = common.rng.lock().fork();
        let cell = Self {
            front: Front::new(now),
            evicted: AtomicBool::new(false),
            covers: match common.keys.covers {
                CoversOf::All(covers) => covers,
                CoversOf::Each(of) => of(&key),
            },
            key,
            machine: Mutex::new(Machine::new(common.policy.clone(), rng, now)),
            because: AtomicU8::new(u8::MAX),
            common: common.clone(),
        };
        cell.with_machine(|_| ());
        cell
    }

    /// Lets a call pass, or says when to come back.
    #[inline]
    pub(crate) fn admit(&self, context: &CallContext) -> Result<Token, Refused> {
        match self.front.door() {
            Some(generation) => Ok(Machine::ordinary(generation)),
            None => self.ask(context),
        }
    }

    /// Whether it matters how long the first content takes.
    #[inline]
    pub(crate) fn times_calls(&self) -> bool {
        self.common.policy.slow.is_some()
    }

    /// Runs `act` on the machine, under its lock: the only way to it.
    fn with_machine<R>(&self, act: impl FnOnce(&mut Machine) -> R) -> R {
        let mut machine = self.machine.lock();
        machine.absorb(self.front.collect());
        let done = act(&mut machine);
        let because = machine.because().map_or(u8::MAX, |reason| reason as u8);
        self.because.store(because, Ordering::Relaxed);
        self.front.publish(machine.open_door(), machine.quiet_until(), machine.bar());
        done
    }

    #[cold]
    fn ask(&self, context: &CallContext) -> Result<Token, Refused> {
        let now = Instant::now();
        let lone = context.alternatives == 0;
        if let Some(wait) = self.front.bars(now, lone) {
            return self.refuse(context, wait);
        }
        let admission = self.with_machine(|machine| machine.on_admit(now, lone));
        if admission.lost > 0 {
            self.tell_lost(admission.lost);
        }
        if let Some(change) = admission.change {
            self.tell(&change, None);
        }
        match admission.decision {
            Decision::Pass(token) => Ok(token),
            Decision::Probe(token) => {
                self.tell_probe(&context.log, false);
                Ok(token)
            }
            Decision::Lone(token) => {
                self.tell_probe(&context.log, true);
                Ok(token)
            }
            Decision::Refuse { wait } => self.refuse(context, wait),
        }
    }

    /// Refuses a call, or says that it would be refused.
    fn refuse(&self, context: &CallContext, wait: Duration) -> Result<Token, Refused> {
        self.front.refuse();
        let observe = self.common.observe.load(Ordering::Relaxed);
        tracing::event!(
            name: "steadfast::breaker::refused",
            target: "steadfast::breaker",
            tracing::Level::DEBUG,
            key = %self.name(),
            wait_ms = millis(wait),
            observed = observe,
            "call refused by an open circuit breaker"
        );
        context.log.record(|| {
            let action = if observe { "would_refuse" } else { "refused" };
            Step::new("breaker", action).target(context.target.as_ref()).wait(wait)
        });
        if observe {
            return Ok(Machine::observed());
        }
        let because = Reason::ALL.get(usize::from(self.because.load(Ordering::Relaxed))).copied();
        Err(Refused { wait, because })
    }

    /// Runs `change` on the machine, and reports what came of it.
    pub(crate) fn steer(
        &self,
        change: impl FnOnce(&mut Machine, Instant) -> Option<Change>,
    ) -> bool {
        let now = Instant::now();
        let change = self.with_machine(|machine| change(machine, now));
        if let Some(change) = &change {
            self.tell(change, None);
        }
        change.is_some()
    }

    pub(crate) fn snapshot(&self, now: Instant) -> Snapshot<K> {
        let key = self.key.clone();
        let refused = self.front.refused();
        Snapshot { refused, ..self.with_machine(|machine| machine.snapshot(key, now)) }
    }

    /// Reports a change: an event, a step in the log of the request that brought it about, a
    /// message to subscribers. No lock is held.
    fn tell(&self, change: &Change, log: Option<&RecoveryLog>) {
        let rest = change.until.map_or(Duration::ZERO, |until| until - change.at);
        // The names of events are constants, so each has its own call.
        macro_rules! event {
            ($name:literal, $level:ident, $text:literal) => {
                tracing::event!(
                    name: $name,
                    target: "steadfast::breaker",
                    tracing::Level::$level,
                    key = %self.name(),
                    from = change.from.as_str(),
                    to = change.to.as_str(),
                    cause = change.cause.as_str(),
                    reason = change.reason.map(|reason| reason.as_str()),
                    rest_ms = millis(rest),
                    generation = change.generation,
                    $text
                )
            };
        }
        let action = match change.to {
            State::Open | State::ForcedOpen | State::Isolated => {
                event!("steadfast::breaker::opened", WARN, "circuit breaker opened");
                "opened"
            }
            State::HalfOpen => {
                event!("steadfast::breaker::half_opened", INFO, "circuit breaker lets probes pass");
                "half_opened"
            }
            State::Closed | State::ForcedClosed => {
                event!("steadfast::breaker::closed", INFO, "circuit breaker closed");
                "closed"
            }
        };
        if let Some(log) = log {
            log.record(|| {
                let mut step = Step::new("breaker", action)
                    .target((self.common.keys.target)(&self.key).as_ref())
                    .detail(change.cause.as_str());
                step.reason = change.reason;
                step.wait = change.until.map(|_| rest);
                step
            });
        }
        if self.common.transitions.receiver_count() > 0 {
            // An error says that the last receiver has just gone.
            let _ = self.common.transitions.send(Transition {
                key: self.key.clone(),
                from: change.from,
                to: change.to,
                cause: change.cause,
                reason: change.reason,
                at: change.at,
                until: change.until,
                generation: change.generation,
            });
        }
    }

    fn tell_probe(&self, log: &RecoveryLog, lone: bool) {
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
            let step = Step::new("breaker", "probe").target(target.as_ref());
            if lone { step.detail("nowhere else to go") } else { step }
        });
    }

    fn tell_lost(&self, lost: usize) {
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

impl<K> Settle for Cell<K>
where
    K: Clone + Send + Sync + 'static,
{
    fn settle(&self, settled: Settled<'_>) {
        let Settled { token, outcome, first_content, log, .. } = settled;
        self.ended(token, &outcome, first_content, log);
    }
}

impl<K> Settle for Known<K>
where
    K: Clone + Send + Sync + 'static,
{
    fn settle(&self, settled: Settled<'_>) {
        self.cell.settle(settled);
    }
}

impl<K: Clone> Cell<K> {
    /// A call that was given `token` has ended.
    #[inline]
    pub(crate) fn ended(
        &self,
        token: Token,
        outcome: &Outcome<'_>,
        first_content: Option<Duration>,
        log: &RecoveryLog,
    ) {
        let now = Instant::now();
        // An open door's generation is that of ordinary calls only: a probe's ends with it.
        let counted =
            matches!(outcome, Outcome::Success) && self.front.count(token.generation, now);
        if !counted {
            self.ended_unusually(now, token, outcome, first_content, log);
        }
    }

    #[cold]
    fn ended_unusually(
        &self,
        now: Instant,
        token: Token,
        outcome: &Outcome<'_>,
        first_content: Option<Duration>,
        log: &RecoveryLog,
    ) {
        let verdict = judge(outcome, &self.common.policy.table, self.covers);
        let change =
            self.with_machine(|machine| machine.on_settle(now, token, verdict, first_content));
        if let Some(change) = change {
            self.tell(&change, Some(log));
        }
    }
}

impl<K: PartialEq> Cell<K> {
    /// Whether it is the breaker of `key`, as far as the map is concerned.
    #[inline]
    fn is_for(&self, key: &K) -> bool {
        self.key == *key && !self.evicted.load(Ordering::Relaxed)
    }
}

impl<K> Keep for Cell<K> {
    fn keep(&self, now: Instant) -> bool {
        self.machine.lock().keep(now)
    }

    fn evicted(&self) {
        self.evicted.store(true, Ordering::Relaxed);
    }
}

impl<K> fmt::Debug for Cell<K> {
    /// Without the key, which may be a secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cell").field("machine", &self.machine).finish_non_exhaustive()
    }
}

impl<K> fmt::Debug for Shared<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").field("cells", &self.cells).finish_non_exhaustive()
    }
}

/// For events; half a billion years at most.
fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
