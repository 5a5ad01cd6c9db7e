//! The state of all keys: their limits, and who waits for them.

use std::{collections::HashMap, hash::BuildHasher, sync::Arc, task::Waker, time::Duration};

use foldhash::quality::RandomState;
use parking_lot::Mutex;
use smallvec::SmallVec;
use steadfast_core::{CallContext, Keep, Keyed, RecoveryLog, Target, shared::WHOLE, time::later};
use tokio::time::Instant;

use crate::CallTokens;

use super::{
    RatePermit, RatePolicy,
    bucket::nanos,
    handle::{QuotaSnapshot, RateSnapshot},
    queue::FairQueue,
    quota::{Admitted, Cost, KeyQuota, QuotaWait},
};

/// What all services of one layer share.
pub(crate) struct RateState {
    pub(crate) policy: RatePolicy,
    pub(crate) memory: Arc<RateMemory>,
}

/// What is remembered; layers of different settings can share it.
pub(crate) struct RateMemory {
    pub(crate) keys: Keyed<Option<Target>, RateKey>,
    hasher: RandomState,
    began: Instant,
    /// Other processes, with which its limits are shared.
    #[cfg(feature = "shared")]
    pub(super) fleet: std::sync::OnceLock<super::shared::Fleet>,
}

impl RateMemory {
    /// The part of each limit that a new key has.
    fn first_part(&self) -> u32 {
        #[cfg(feature = "shared")]
        if let Some(fleet) = self.fleet.get() {
            return fleet.first_part();
        }
        WHOLE
    }
}

/// The state of one key.
pub(crate) struct RateKey {
    target: Option<Target>,
    began: Instant,
    state: Mutex<KeyState>,
}

struct KeyState {
    quota: KeyQuota,
    queue: FairQueue,
    waiters: HashMap<u64, WaiterState, RandomState>,
    next_id: u64,
    waited: u64,
    refused: u64,
    rejected: u64,
}

/// One that waits.
struct WaiterState {
    call: CallTokens,
    cost: Cost,
    waker: Option<Waker>,
    outcome: Option<Result<Admitted, Refused>>,
}

/// Why a call is not let through. Not yet a failure, and so without an allocation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Refused {
    pub(crate) why: RefusedFor,
    /// When there is room for it, as far as that can be known.
    pub(crate) wait: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RefusedFor {
    /// The wait is longer than the call may wait.
    Time,
    /// Too many wait for the target already.
    Crowd,
    /// Too many calls wait already, for whatever it is.
    Slots,
}

/// How long a call may wait.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Patience {
    /// For what is certain.
    pub(crate) most: Duration,
    /// For what is an estimate.
    pub(crate) estimated: Duration,
    /// No other target is left for it: then an estimate is no reason to refuse it.
    pub(crate) alone: bool,
}

/// Whether a call has nowhere else to go: there is no other target, or it has been at the others.
fn is_alone(context: &CallContext) -> bool {
    context.alternatives == 0 || context.routed.as_ref().is_some_and(|routed| routed.is_return)
}

impl Patience {
    /// For an estimate no more than half of what is left of the deadline: the rest is for the answer.
    fn of(context: &CallContext, policy: &RatePolicy, now: Instant) -> Self {
        let own = match context.alternatives {
            0 => policy.max_wait,
            _ => policy.max_wait_with_spare,
        };
        let own = own.min(context.patience.unwrap_or(Duration::MAX));
        let left = context.deadline.map_or(Duration::MAX, |deadline| deadline.remaining_at(now));
        let (most, estimated) = (own.min(left), own.min(left / 2));
        Self { most, estimated, alone: is_alone(context) }
    }
}

/// The longest wait that a refusal states by an estimate, or by the hint of other calls. 2 s: what has failed meanwhile elsewhere is not at its last
/// attempt by then, and who comes back with nowhere else to go is let through to the provider.
const LONGEST_ESTIMATE: Duration = Duration::from_secs(2);

/// What a call gets at once.
pub(crate) enum Admission {
    Permit(RatePermit),
    Wait(Waiter),
    Refused(Refused),
}

/// The wakers of those whose turn has come, woken once the lock is released.
type Woken = SmallVec<[Waker; 4]>;

fn wake(woken: Woken) {
    for waker in woken {
        waker.wake();
    }
}

impl RateState {
    pub(crate) fn new(policy: RatePolicy) -> Self {
        let memory = RateMemory {
            keys: Keyed::new(policy.keys),
            hasher: RandomState::default(),
            began: Instant::now(),
            #[cfg(feature = "shared")]
            fleet: std::sync::OnceLock::new(),
        };
        Self { policy, memory: Arc::new(memory) }
    }

    /// These settings with what `memory` has: its limits go by them from now on.
    pub(crate) fn sharing(&self, memory: &Arc<RateMemory>) -> Self {
        let RatePolicy { requests, tokens, max_concurrent, keys, .. } = self.policy;
        memory.keys.set_policy(keys);
        for (_, key) in memory.keys.entries() {
            key.update(|quota, now| quota.configure(requests, tokens, max_concurrent, now));
        }
        Self { policy: self.policy, memory: memory.clone() }
    }

    pub(crate) fn key(&self, target: &Option<Target>, now: Instant) -> Arc<RateKey> {
        let RateMemory { keys, hasher, began, .. } = &*self.memory;
        keys.get_or_insert_with(target, now, || {
            let RatePolicy { requests, tokens, max_concurrent, .. } = self.policy;
            let mut quota = KeyQuota::new(requests, tokens, max_concurrent);
            quota.set_part(self.memory.first_part(), 0);
            RateKey {
                target: target.clone(),
                began: *began,
                state: Mutex::new(KeyState {
                    quota,
                    queue: FairQueue::default(),
                    waiters: HashMap::with_hasher(hasher.clone()),
                    next_id: 0,
                    waited: 0,
                    refused: 0,
                    rejected: 0,
                }),
            }
        })
    }

    /// Whose turn it is in a queue.
    pub(crate) fn tenant(&self, context: &CallContext) -> u64 {
        self.memory.hasher.hash_one(context.tenant())
    }
}

impl Keep for RateKey {
    fn keep(&self, now: Instant) -> bool {
        let state = self.state.lock();
        state.quota.in_use > 0 || state.quota.blocked_for(self.nanos(now)) > Duration::ZERO
    }
}

impl RateKey {
    pub(crate) fn target(&self) -> Option<&Target> {
        self.target.as_ref()
    }

    fn nanos(&self, now: Instant) -> u64 {
        nanos(now.saturating_duration_since(self.began))
    }

    /// Lets a call through, queues it, or refuses it, by what it may wait.
    pub(crate) fn admit(
        self: &Arc<Self>,
        call: CallTokens,
        context: &CallContext,
        shared: &RateState,
        now: Instant,
    ) -> Admission {
        let (policy, log, is_alone) = (&shared.policy, &context.log, is_alone(context));
        let nanos = self.nanos(now);
        let mut state = self.state.lock();
        let moves_on = if is_alone { Duration::ZERO } else { state.quota.moves_on_for(nanos) };
        if state.queue.is_empty()
            && moves_on.is_zero()
            && let Ok(admitted) = state.quota.admit(call, nanos)
        {
            return Admission::Permit(RatePermit::new(self, admitted, policy, log));
        }
        let mut woken = Woken::new();
        let tenant = shared.tenant(context);
        let patience = Patience::of(context, policy, now);
        let decided = match moves_on > patience.most {
            // Asking is not known to be useless: a call that comes back with nowhere else to go is let through.
            true => Err(Refused { why: RefusedFor::Time, wait: moves_on.min(LONGEST_ESTIMATE) }),
            false => state.decide(tenant, call, &patience, policy.max_waiting, nanos, &mut woken),
        };
        let admission = match decided {
            Ok(Decided::Ask(admitted)) => {
                Admission::Permit(RatePermit::new(self, admitted, policy, log))
            }
            Ok(Decided::Wait(id, longest)) => Admission::Wait(Waiter {
                key: self.clone(),
                id,
                began: now,
                give_up: later(now, longest),
                why: RefusedFor::Time,
                is_alone: patience.alone,
                policy: *policy,
                log: log.clone(),
                over: false,
            }),
            Err(refused) => {
                state.refused += 1;
                Admission::Refused(refused)
            }
        };
        state.serve(nanos, &mut woken);
        drop(state);
        wake(woken);
        admission
    }

    /// Changes what is known of the limits, and lets those through who need not wait any more.
    pub(super) fn update<R>(&self, change: impl FnOnce(&mut KeyQuota, u64) -> R) -> R {
        let nanos = self.nanos(Instant::now());
        let mut woken = Woken::new();
        let mut state = self.state.lock();
        let changed = change(&mut state.quota, nanos);
        state.serve(nanos, &mut woken);
        drop(state);
        wake(woken);
        changed
    }

    /// Reads what is known of the limits.
    #[cfg(feature = "shared")]
    pub(super) fn read<R>(&self, now: Instant, read: impl FnOnce(&KeyQuota, u64) -> R) -> R {
        let nanos = self.nanos(now);
        read(&self.state.lock().quota, nanos)
    }

    /// What was taken of each kind since it is known, and whether anybody waits.
    #[cfg(feature = "shared")]
    pub(super) fn demand(&self, now: Instant) -> ([i64; 4], bool) {
        let nanos = self.nanos(now);
        let state = self.state.lock();
        let waits = !state.queue.is_empty() || state.quota.moves_on_for(nanos) > Duration::ZERO;
        (state.quota.taken(), waits)
    }

    pub(super) fn count_rejection(&self) {
        self.state.lock().rejected += 1;
    }

    pub(super) fn snapshot(&self, now: Instant) -> RateSnapshot {
        let nanos = self.nanos(now);
        let state = self.state.lock();
        RateSnapshot {
            target: self.target.clone(),
            quotas: state
                .quota
                .known(nanos)
                .map(|(name, quota, available, learned)| QuotaSnapshot {
                    name,
                    limit: quota.limit,
                    period: Duration::from_nanos(quota.period),
                    available,
                    learned,
                })
                .collect(),
            in_use: state.quota.in_use,
            waiting: state.queue.len(),
            admitted: state.quota.admitted,
            waited: state.waited,
            refused: state.refused,
            rejected: state.rejected,
            blocked_for: state.quota.blocked_for(nanos),
            part_ppm: state.quota.part(),
        }
    }
}

impl KeyState {
    /// What becomes of a call that is not let through at once.
    fn decide(
        &mut self,
        tenant: u64,
        call: CallTokens,
        patience: &Patience,
        max_waiting: usize,
        now: u64,
        woken: &mut Woken,
    ) -> Result<Decided, Refused> {
        let cost = self.quota.cost(call);
        let QuotaWait { certain, estimated } = self.wait_in_queue(tenant, cost, now);
        let (certain, estimated) = (Duration::from_nanos(certain), Duration::from_nanos(estimated));
        let is_full = self.quota.is_full();
        if certain > patience.most || (is_full && patience.most.is_zero()) {
            return Err(Refused { why: RefusedFor::Time, wait: certain });
        }
        let is_certain = is_full || !certain.is_zero();
        let mut longest = if is_certain { patience.most } else { patience.estimated };
        if estimated > patience.estimated {
            if !patience.alone {
                let wait = certain.max(estimated.min(LONGEST_ESTIMATE));
                return Err(Refused { why: RefusedFor::Time, wait });
            }
            if let Ok(admitted) = self.quota.admit_beyond(call, now) {
                return Ok(Decided::Ask(admitted));
            }
            longest = longest.min(certain);
        }
        if self.queue.len() >= max_waiting {
            let wait = certain.max(estimated.min(LONGEST_ESTIMATE)).max(MIN_WAIT);
            let crowd = Refused { why: RefusedFor::Crowd, wait };
            // Whoever fills the queue makes room for others.
            let Some(replaced) = self.queue.replaced_by(tenant) else {
                let beyond = patience.alone.then(|| self.quota.admit_beyond(call, now).ok());
                return beyond.flatten().map(Decided::Ask).ok_or(crowd);
            };
            self.queue.remove(replaced);
            if let Some(waiter) = self.waiters.get_mut(&replaced) {
                waiter.outcome = Some(Err(crowd));
                woken.extend(waiter.waker.take());
            }
        }
        let id = self.next_id;
        self.next_id += 1;
        self.queue.push(tenant, id, self.quota.weight(cost, now));
        self.waiters.insert(id, WaiterState { call, cost, waker: None, outcome: None });
        Ok(Decided::Wait(id, longest))
    }

    /// How long a new call of `tenant` would wait for its turn and for its room.
    fn wait_in_queue(&self, tenant: u64, cost: Cost, now: u64) -> QuotaWait {
        let mut ahead = [0_u64; 4];
        for waiter in self.queue.ahead(tenant).filter_map(|id| self.waiters.get(&id)) {
            for (sum, amount) in ahead.iter_mut().zip(waiter.cost) {
                *sum = sum.saturating_add(amount);
            }
        }
        self.quota.wait_behind(ahead, cost, now)
    }

    /// Lets through, in turn, who need not wait any more, and has the next one set its timer.
    fn serve(&mut self, now: u64, woken: &mut Woken) {
        while let Some(id) = self.queue.first() {
            let Some(waiter) = self.waiters.get_mut(&id) else {
                self.queue.pop();
                continue;
            };
            match self.quota.admit(waiter.call, now) {
                Ok(call) => {
                    waiter.outcome = Some(Ok(call));
                    self.waited += 1;
                    woken.extend(waiter.waker.take());
                    self.queue.pop();
                }
                Err(_) => {
                    // Whatever has changed, its timer may be wrong now.
                    woken.extend(waiter.waker.take());
                    return;
                }
            }
        }
    }
}

/// What becomes of a call that is not refused.
enum Decided {
    /// It is made, though there seems to be no room for it.
    Ask(Admitted),
    /// It waits, for so long at most.
    Wait(u64, Duration),
}

/// The shortest wait that a refusal for want of room states: many callers will come back.
const MIN_WAIT: Duration = Duration::from_secs(1);

/// A call that waits. Dropped, it leaves the queue; what it was given already goes back.
pub(crate) struct Waiter {
    key: Arc<RateKey>,
    id: u64,
    began: Instant,
    give_up: Instant,
    /// Why it is refused then.
    why: RefusedFor,
    is_alone: bool,
    policy: RatePolicy,
    log: RecoveryLog,
    over: bool,
}

/// What a waiter learns when it is polled.
pub(crate) enum Turn {
    Permit(RatePermit),
    Refused(Refused),
    /// Not before that.
    Later(Instant),
}

impl Waiter {
    pub(crate) const fn key(&self) -> &Arc<RateKey> {
        &self.key
    }

    pub(crate) fn waited(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.began)
    }

    /// There is no place for it to wait: it is refused when it is polled, unless its turn has come.
    pub(crate) fn give_up(&mut self, now: Instant) {
        (self.give_up, self.why) = (now, RefusedFor::Slots);
    }

    /// Whether its turn has come; otherwise `waker` is woken when that may have changed, or it is to be
    /// polled again at the time returned.
    pub(crate) fn poll(&mut self, waker: &Waker, now: Instant) -> Turn {
        let nanos = self.key.nanos(now);
        let mut woken = Woken::new();
        let mut state = self.key.state.lock();
        let outcome = state.waiters.get_mut(&self.id).and_then(|waiter| waiter.outcome.take());
        let outcome = outcome.or_else(|| {
            // Not by `serve` of its own: a waker of this task would be woken for nothing.
            if state.queue.first() != Some(self.id) {
                return None;
            }
            let call = state.waiters.get(&self.id)?.call;
            let call = state.quota.admit(call, nanos).ok()?;
            state.queue.pop();
            state.waited += 1;
            Some(Ok(call))
        });
        let turn = match outcome {
            Some(Ok(call)) => {
                self.over = true;
                state.waiters.remove(&self.id);
                state.serve(nanos, &mut woken);
                Turn::Permit(RatePermit::new(&self.key, call, &self.policy, &self.log))
            }
            Some(Err(refused)) => {
                self.over = true;
                self.end_wait(&mut state, Some(refused), nanos, &mut woken)
            }
            None if now >= self.give_up => {
                self.over = true;
                self.end_wait(&mut state, None, nanos, &mut woken)
            }
            None => {
                let first = state.queue.first() == Some(self.id);
                let mut at = self.give_up;
                if first && let Some(waiter) = state.waiters.get(&self.id) {
                    let cost = state.quota.cost(waiter.call);
                    let wait = state.quota.wait_behind([0; 4], cost, nanos).longest();
                    if wait > 0 {
                        at = at.min(later(now, Duration::from_nanos(wait)));
                    }
                }
                if let Some(waiter) = state.waiters.get_mut(&self.id)
                    && !waiter.waker.as_ref().is_some_and(|known| known.will_wake(waker))
                {
                    waiter.waker = Some(waker.clone());
                }
                Turn::Later(at)
            }
        };
        drop(state);
        wake(woken);
        turn
    }

    /// It waits no longer: it is refused, unless the provider is to decide that.
    fn end_wait(
        &self,
        state: &mut KeyState,
        refused: Option<Refused>,
        now: u64,
        woken: &mut Woken,
    ) -> Turn {
        state.queue.remove(self.id);
        let call = state.waiters.remove(&self.id).map_or_else(CallTokens::default, |own| own.call);
        let beyond = self.is_alone.then(|| state.quota.admit_beyond(call, now).ok()).flatten();
        let turn = match beyond {
            Some(admitted) => {
                state.waited += 1;
                Turn::Permit(RatePermit::new(&self.key, admitted, &self.policy, &self.log))
            }
            None => {
                state.refused += 1;
                let wait = state.quota.wait_behind([0; 4], state.quota.cost(call), now);
                let wait = wait.certain.max(wait.estimated.min(nanos(LONGEST_ESTIMATE)));
                let wait = Duration::from_nanos(wait).max(MIN_WAIT);
                Turn::Refused(refused.unwrap_or(Refused { why: self.why, wait }))
            }
        };
        state.serve(now, woken);
        turn
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        if self.over {
            return;
        }
        let nanos = self.key.nanos(Instant::now());
        let mut woken = Woken::new();
        let mut state = self.key.state.lock();
        state.queue.remove(self.id);
        if let Some(WaiterState { outcome: Some(Ok(call)), .. }) = state.waiters.remove(&self.id) {
            state.quota.release();
            state.quota.refund(&call, false, nanos);
        }
        state.serve(nanos, &mut woken);
        drop(state);
        wake(woken);
    }
}
