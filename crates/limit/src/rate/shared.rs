//! Limits that several processes share: each has the part of them that it needs, by leases.

use std::{
    collections::HashMap,
    sync::{Arc, Weak},
    time::Duration,
};

use steadfast_core::{
    Target,
    shared::{SharedState, SharedTask, WHOLE, WantedShare},
};
use tokio::time::{Instant, MissedTickBehavior, interval};

use super::{
    bucket::Quota,
    state::{RateKey, RateMemory},
};

/// How often parts are leased: four times in the time for which they are, so that one answer may be lost.
const EVERY: Duration = Duration::from_millis(500);

/// How long a target that is not asked keeps its part. A minute, as rates are.
const IDLE: Duration = Duration::from_secs(60);

/// The part of an equal share that a process goes by which has been leased nothing yet: the others give theirs back within
/// [`EVERY`], and who waits for that need not hear that the limit is reached.
const MEANWHILE: u32 = 4;

/// What is wanted falls by this part each time, at most: calls come in waves, as long as answers are. By half in 7 s.
const FADES: u32 = 20;

/// More than a process uses now, in parts of that and of the whole, so that it need not wait when that grows.
const HEADROOM: (f64, f64) = (1.25, 0.02);

/// Other processes, as the limits of a layer have them.
#[derive(Debug)]
pub(super) struct Fleet {
    state: Arc<dyn SharedState>,
    _leasing: SharedTask,
}

impl Fleet {
    /// The part that a process has of a limit for which it has leased nothing yet.
    pub(super) fn first_part(&self) -> u32 {
        equal_part(&*self.state)
    }
}

/// What is remembered of a key from one time to the next.
#[derive(Debug)]
struct Demand {
    taken: [i64; 4],
    used: Instant,
    /// The part that was last asked for.
    wanted: u32,
}

fn equal_part(state: &dyn SharedState) -> u32 {
    WHOLE / u32::try_from(state.nodes().max(1)).unwrap_or(WHOLE)
}

/// Shares the limits of `memory`; whether they were not shared before.
pub(super) fn share(
    memory: &Arc<RateMemory>,
    state: Arc<dyn SharedState>,
    name: impl Fn(&Target) -> Option<String> + Send + Sync + 'static,
) -> bool {
    if memory.fleet.get().is_some() {
        return false;
    }
    let leasing = SharedTask::spawn(lease(Arc::downgrade(memory), state.clone(), name));
    memory.fleet.set(Fleet { state, _leasing: leasing }).is_ok()
}

/// Leases what is needed, again and again, as long as somebody has the memory.
async fn lease(
    memory: Weak<RateMemory>,
    state: Arc<dyn SharedState>,
    name: impl Fn(&Target) -> Option<String> + Send + Sync,
) {
    let mut demands: HashMap<Box<str>, Demand> = HashMap::new();
    let mut ticks = interval(EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let Some(memory) = memory.upgrade() else { return };
        let now = Instant::now();
        let named = memory.keys.entries().into_iter().filter_map(|(target, key)| {
            let name = name(target.as_ref()?)?;
            Some((format!("rate:{name}").into_boxed_str(), key))
        });
        let keys: Vec<_> = named.filter(|(_, key)| key.is_limited(now)).collect();
        drop(memory);
        demands.retain(|name, _| keys.iter().any(|(known, _)| known == name));
        let mut wanted = Vec::new();
        for (name, key) in keys {
            let (taken, waiting) = key.demand(now);
            let demand = demands.entry(name.clone()).or_insert_with(|| Demand {
                taken,
                used: now,
                wanted: 0,
            });
            let used = std::array::from_fn(|kind| taken[kind].wrapping_sub(demand.taken[kind]));
            demand.taken = taken;
            if waiting || used.iter().any(|used| *used > 0) {
                demand.used = now;
            }
            let before = demand.wanted;
            demand.wanted = match now - demand.used < IDLE {
                // Whoever waits could use any part.
                true if waiting => WHOLE,
                true => key.part_of(used, now).max(before / FADES * (FADES - 1)),
                false => 0,
            };
            if demand.wanted > 0 || before > 0 {
                wanted.push((WantedShare::new(name, demand.wanted), key));
            }
        }
        if wanted.is_empty() {
            continue;
        }
        let (shares, keys): (Vec<_>, Vec<_>) = wanted.into_iter().unzip();
        let granted = state.lease(shares).await.unwrap_or_default();
        let equal = equal_part(&*state);
        for (at, key) in keys.iter().enumerate() {
            let part = match granted.get(at) {
                Some(0) => equal / MEANWHILE,
                Some(part) => *part,
                // By itself, this part of the fleet.
                None => equal,
            };
            key.update(|quota, now| quota.set_part(part.max(1), now));
        }
    }
}

impl RateKey {
    /// Whether a limit of it is known.
    fn is_limited(&self, now: Instant) -> bool {
        self.read(now, |quota, now| quota.limits(now).iter().any(Option::is_some))
    }

    /// The part of its limits that is used by who has used so much since the last time, in parts per million.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_precision_loss,
        clippy::cast_sign_loss,
        reason = "an estimate, between none and all"
    )]
    fn part_of(&self, used: [i64; 4], now: Instant) -> u32 {
        let limits = self.read(now, |quota, now| quota.limits(now));
        let part = |quota: Quota, used: i64| {
            let periods = quota.period as f64 / EVERY.as_nanos() as f64;
            used.max(0) as f64 * periods / quota.limit.max(1) as f64
        };
        let parts = limits.into_iter().zip(used);
        let parts = parts.filter_map(|(quota, used)| Some(part(quota?, used)));
        let part = parts.fold(0.0, f64::max) * HEADROOM.0 + HEADROOM.1;
        (part.min(1.0) * f64::from(WHOLE)) as u32
    }
}
