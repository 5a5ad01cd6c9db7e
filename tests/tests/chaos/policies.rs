//! Random policies, always valid.

use std::time::Duration;

use fastrand::Rng;
use steadfast::{
    Backoff, Failover, Jitter, PERMANENT_COOLDOWN, Reason, RecoveryTable, Scope,
    breaker::BreakerPolicy,
    circuit::{LonePolicy, SlowPolicy},
    failover::{FailoverPolicy, WhenExhausted},
    retry::RetryPolicy,
    timeout::{Floor, StallPolicy},
};
use steadfast_tests::seeds::{chance, maybe};

use crate::ms;

pub(crate) fn retry(rng: &mut Rng) -> RetryPolicy {
    let jitter = match rng.u8(0..4) {
        0 => Jitter::None,
        1 => Jitter::Full,
        2 => Jitter::Decorrelated,
        _ => Jitter::Additive(rng.f64()),
    };
    let base = ms(rng, 1..2_000);
    let backoff =
        Backoff::new(base, base + ms(rng, 0..30_000)).unwrap().with_jitter(jitter).unwrap();
    let failover_wait = ms(rng, 0..20_000);
    RetryPolicy {
        retries: rng.u32(0..=4),
        retries_with_spare: rng.u32(0..=2),
        retries_after_hang: rng.u32(0..=2),
        backoff,
        max_wait: failover_wait + ms(rng, 0..60_000),
        failover_wait,
        overloaded_limit: rng.u32(0..=3),
        nudge: rng.bool(),
        ..RetryPolicy::transient()
    }
}

pub(crate) fn stall(rng: &mut Rng) -> StallPolicy {
    let stall = ms(rng, 1_000..=20_000);
    let most = u64::try_from(stall.as_millis()).unwrap();
    StallPolicy {
        stall,
        ceiling: maybe(rng, |rng| rng.u32(1..=10)),
        attempt: maybe(rng, |rng| ms(rng, 1_000..=60_000)),
        attempt_to_end: false,
        whole: maybe(rng, |rng| ms(rng, 1_000..=60_000)),
        first_content: maybe(rng, |rng| ms(rng, 1_000..=most)),
        floor: chance(rng, 0.2).then(|| Floor {
            min_chars_per_s: 0.5 + 20.0 * rng.f64(),
            window: ms(rng, 500..10_000),
        }),
    }
}

pub(crate) fn failover(rng: &mut Rng) -> FailoverPolicy {
    let mut policy = FailoverPolicy::default();
    policy.when_exhausted = match rng.u8(0..3) {
        0 => WhenExhausted::Fail,
        1 => WhenExhausted::Wait(ms(rng, 1..60_000)),
        _ => WhenExhausted::TrySoonest,
    };
    policy.table = table(rng);
    if chance(rng, 0.2) {
        // No cooldowns except hinted and permanent ones: the breaker has to do the rest.
        for reason in Reason::ALL {
            policy.table = policy.table.with_cooldown(reason, Duration::ZERO);
        }
    }
    policy.rest_after = rng.u32(1..=3);
    policy.first_rest = maybe(rng, |rng| ms(rng, 1..10_000));
    policy.rest_growth = if rng.bool() { 1.0 + 2.0 * rng.f64() } else { 1.0 };
    // When the last success was is known to a tenth of a second: here it counts always, or never.
    policy.trusted_for = if rng.bool() { Duration::ZERO } else { Duration::from_secs(10_000_000) };
    let patience = |rng: &mut Rng| if rng.bool() { ms(rng, 0..90_000) } else { ms(rng, 0..5_000) };
    policy.patience.with_spare = patience(rng);
    policy.patience.alone = patience(rng);
    policy.attempts = rng.u32(1..=12);
    policy.pause = pause(rng);
    policy.hedge = chance(rng, 0.3).then(|| ms(rng, 1..10_000));
    policy.probe_hedge = maybe(rng, |rng| ms(rng, 1..10_000));
    policy.down_after = rng.u32(1..=4);
    policy.probe_window = ms(rng, 0..60_000);
    policy.probe_limit = probe_limit(rng, 180_000);
    policy.downgrade_on_overload = rng.bool();
    if rng.bool() {
        policy.sticky = Duration::ZERO;
    }
    if rng.bool() {
        policy.permanent = ms(rng, 1_000..100_000);
    }
    policy
}

/// Never without any wait: so a new round and a change of target can be told apart.
fn pause(rng: &mut Rng) -> Backoff {
    let base = ms(rng, 2..2_000);
    let jitter = if rng.bool() { Jitter::None } else { Jitter::Additive(rng.f64()) };
    Backoff::new(base, base + ms(rng, 0..20_000)).unwrap().with_jitter(jitter).unwrap()
}

/// Often shorter than an answer may take, so that probes expire.
fn probe_limit(rng: &mut Rng, most: u64) -> Duration {
    if rng.bool() { ms(rng, 100..5_000) } else { ms(rng, 1_000..=most) }
}

fn table(rng: &mut Rng) -> RecoveryTable {
    let mut table = match rng.u8(0..4) {
        0 => permanent(),
        1 => grouped(),
        _ => RecoveryTable::default(),
    };
    for reason in Reason::ALL {
        if chance(rng, 0.2) {
            table = table.with_cooldown(reason, ms(rng, 0..100_000));
        }
    }
    if chance(rng, 0.2) {
        // The whole provider rests, and this call may still ask it for another model.
        let reasons =
            [Reason::ServerError, Reason::Overloaded, Reason::Network, Reason::ModelNotFound];
        for reason in reasons {
            table = table.with_rule(reason, |rule| {
                rule.scope = Scope::Provider;
                rule.failover = Failover::NextModel;
            });
        }
    }
    table
}

pub(crate) fn breaker(rng: &mut Rng) -> BreakerPolicy {
    let cooldown = ms(rng, 1..60_000);
    BreakerPolicy {
        consecutive: maybe(rng, |rng| rng.u32(1..=5)),
        window: ms(rng, 1_000..100_000),
        min_calls: rng.u32(1..=20),
        failure_rate: maybe(rng, |rng| 1.0 - rng.f64()),
        slow: chance(rng, 0.3)
            .then(|| SlowPolicy { after: ms(rng, 1_000..10_000), rate: 1.0 - rng.f64() }),
        table: table(rng),
        cooldown,
        max_cooldown: cooldown + ms(rng, 0..900_000),
        probes: rng.u32(1..=3),
        successes: rng.u32(1..=3),
        probe_lead: ms(rng, 0..60_000),
        probe_limit: probe_limit(rng, 600_000),
        lone: maybe(rng, |rng| LonePolicy {
            at_once: rng.u32(1..=3),
            every: ms(rng, 1..5_000),
            successes: rng.u32(1..=3),
        }),
        dead: chance(rng, 0.7).then(|| rng.u32(1..=6)),
        turn: ms(rng, 1..5_000),
        observe: chance(rng, 0.1),
        ..BreakerPolicy::default()
    }
}

/// Three reasons do not pass by themselves.
fn permanent() -> RecoveryTable {
    let reasons = [Reason::Auth, Reason::Billing, Reason::ModelNotFound];
    reasons.into_iter().fold(RecoveryTable::default(), |table, reason| {
        table.with_rule(reason, |rule| {
            rule.permanent = true;
            rule.cooldown = Some(PERMANENT_COOLDOWN);
        })
    })
}

/// Some reasons have the consequences of others.
fn grouped() -> RecoveryTable {
    RecoveryTable::default()
        .with_rule(Reason::ServerError, |rule| rule.cooldown = Reason::Unknown.rule().cooldown)
        .with_rule(Reason::Network, |rule| *rule = Reason::Timeout.rule())
        .with_rule(Reason::PayloadTooLarge, |rule| *rule = Reason::Format.rule())
        .with_rule(Reason::Unsupported, |rule| *rule = Reason::Format.rule())
}
