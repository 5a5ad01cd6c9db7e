//! What the layers go by, at random and always valid.

use std::time::Duration;

use fastrand::Rng;
use steadfast::{
    Backoff, Jitter, Reason, RecoveryTable,
    breaker::BreakerPolicy,
    circuit::{LonePolicy, SlowPolicy},
    failover::{FailoverPolicy, WhenExhausted},
    retry::RetryPolicy,
    timeout::{Floor, StallPolicy},
};

use crate::{chance, maybe, ms};

pub(crate) fn retry(dice: &mut Rng) -> RetryPolicy {
    let jitter = match dice.u8(0..4) {
        0 => Jitter::None,
        1 => Jitter::Full,
        2 => Jitter::Decorrelated,
        _ => Jitter::Additive(dice.f64()),
    };
    let base = ms(dice, 1..2_000);
    let backoff =
        Backoff::new(base, base + ms(dice, 0..30_000)).unwrap().with_jitter(jitter).unwrap();
    let failover_wait = ms(dice, 0..20_000);
    RetryPolicy {
        retries: dice.u32(0..=4),
        backoff,
        max_wait: failover_wait + ms(dice, 0..60_000),
        failover_wait,
        overloaded_limit: dice.u32(0..=3),
        nudge: dice.bool(),
        ..RetryPolicy::transient()
    }
}

pub(crate) fn stall(dice: &mut Rng) -> StallPolicy {
    let stall = ms(dice, 1_000..=20_000);
    let most = u64::try_from(stall.as_millis()).unwrap();
    StallPolicy {
        stall,
        ceiling: maybe(dice, |dice| dice.u32(1..=10)),
        attempt: maybe(dice, |dice| ms(dice, 1_000..=60_000)),
        first_content: maybe(dice, |dice| ms(dice, 1_000..=most)),
        floor: chance(dice, 0.2).then(|| Floor {
            min_chars_per_s: 0.5 + 20.0 * dice.f64(),
            window: ms(dice, 500..10_000),
        }),
    }
}

/// With `hedge` as it is given, because that decides what can be said of attempts.
pub(crate) fn failover(dice: &mut Rng, hedge: Option<Duration>) -> FailoverPolicy {
    let mut policy = FailoverPolicy::default();
    policy.when_exhausted = match dice.u8(0..3) {
        0 => WhenExhausted::Fail,
        1 => WhenExhausted::Wait(ms(dice, 0..60_000)),
        _ => WhenExhausted::TrySoonest,
    };
    policy.table = table(dice);
    if chance(dice, 0.2) {
        // Only what is asked for or does not pass by itself cools: the breaker is left to it.
        for reason in Reason::ALL {
            policy.table = policy.table.with_cooldown(reason, Duration::ZERO);
        }
    }
    policy.hedge = hedge;
    policy.down_after = dice.u32(1..=4);
    policy.probe_window = ms(dice, 0..60_000);
    policy.probe_limit = probe_limit(dice, 180_000);
    policy.soft_wait = ms(dice, 0..20_000);
    policy.downgrade_on_overload = dice.bool();
    if dice.bool() {
        policy.sticky = Duration::ZERO;
    }
    if dice.bool() {
        policy.permanent = ms(dice, 1_000..100_000);
    }
    policy
}

/// Often shorter than an answer may take, so that probes get lost.
fn probe_limit(dice: &mut Rng, most: u64) -> Duration {
    if dice.bool() { ms(dice, 100..5_000) } else { ms(dice, 1_000..=most) }
}

fn table(dice: &mut Rng) -> RecoveryTable {
    let mut table = match dice.u8(0..4) {
        0 => RecoveryTable::adr012(),
        1 => RecoveryTable::codebuddy(),
        _ => RecoveryTable::default(),
    };
    for reason in Reason::ALL {
        if chance(dice, 0.2) {
            table = table.with_cooldown(reason, ms(dice, 0..100_000));
        }
    }
    table
}

pub(crate) fn breaker(dice: &mut Rng) -> BreakerPolicy {
    let cooldown = ms(dice, 1..60_000);
    BreakerPolicy {
        consecutive: maybe(dice, |dice| dice.u32(1..=5)),
        window: ms(dice, 1_000..100_000),
        min_calls: dice.u32(1..=20),
        failure_rate: maybe(dice, |dice| 1.0 - dice.f64()),
        slow: chance(dice, 0.3)
            .then(|| SlowPolicy { after: ms(dice, 1_000..10_000), rate: 1.0 - dice.f64() }),
        table: table(dice),
        cooldown,
        max_cooldown: cooldown + ms(dice, 0..900_000),
        probes: dice.u32(1..=3),
        successes: dice.u32(1..=3),
        probe_lead: ms(dice, 0..60_000),
        probe_limit: probe_limit(dice, 600_000),
        lone: maybe(dice, |dice| LonePolicy {
            at_once: dice.u32(1..=3),
            every: ms(dice, 1..5_000),
            successes: dice.u32(1..=3),
        }),
        observe: chance(dice, 0.1),
        ..BreakerPolicy::default()
    }
}
