//! Invariants over thousands of calls of targets with random behaviour.

#![allow(clippy::unwrap_used, reason = "helpers of a test")]

mod support;

use std::{collections::HashSet, num::NonZeroU32, time::Duration};

use steadfast_core::{BudgetPolicy, Deadline, Failure, Reason, RetryBudget, Target};
use steadfast_failover::{CooldownFailoverLayer, TargetHealth, TargetSpec, WhenExhausted};
use support::*;
use tokio::time::Instant;

fn action(rng: &mut fastrand::Rng) -> Action {
    let end = match rng.u8(0..10) {
        0..=3 => Action::Answer,
        4 => Action::Hang,
        _ => {
            let reason = rng.choice(Reason::ALL).unwrap();
            let hint = rng.bool().then(|| secs(rng.u64(0..90)));
            let permanent = rng.u8(0..20) == 0;
            fail_with(move || {
                Failure::new(reason, "chaos").with_retry_after(hint).with_permanent(permanent)
            })
        }
    };
    if rng.bool() { after(Duration::from_millis(rng.u64(0..4_000)), end) } else { end }
}

fn layer(rng: &mut fastrand::Rng) -> CooldownFailoverLayer {
    let chain = chain([
        TargetSpec::new("a")
            .with_credential("1")
            .with_credential("2")
            .with_downgrade("*", ["small", "tiny"]),
        TargetSpec::new("b").with_window(1_000).with_downgrade("m", ["n"]),
        TargetSpec::new("c").with_vision(false),
    ]);
    let mut layer = CooldownFailoverLayer::new(chain).with_when_exhausted(match rng.u8(0..3) {
        0 => WhenExhausted::Fail,
        1 => WhenExhausted::Wait(secs(rng.u64(0..120))),
        _ => WhenExhausted::TrySoonest,
    });
    if rng.bool() {
        layer = layer.with_hedge(Duration::from_millis(rng.u64(1..3_000)));
    }
    if rng.bool() {
        layer = layer.with_downgrade_on_overload();
    }
    layer
}

/// A target that must not be asked, and until when.
fn refuses(health: &TargetHealth) -> Option<(Target, Instant)> {
    let cooldown = health.cooling.filter(|cooldown| cooldown.refuses)?;
    Some((health.target.clone(), cooldown.probe_from))
}

/// Whether what is known of `part` holds for the target called `name`.
fn is_part(part: &Target, name: &str) -> bool {
    let of = target(name);
    part.provider() == of.provider()
        && part.model().is_none_or(|model| of.model() == Some(model))
        && part.credential().is_none_or(|key| of.credential() == Some(key))
}

async fn run(seed: u64) {
    let mut rng = fastrand::Rng::with_seed(seed);
    let providers = Providers::new();
    let budget = RetryBudget::new(BudgetPolicy { capacity: 200, ..BudgetPolicy::default() });
    let waits = layer(&mut rng).with_budget(budget.clone());
    let layer = waits.at_once();
    let handle = layer.handle();
    for round in 0..rng.usize(1..25) {
        for name in ["a#1", "a#2", "a/m", "a/small", "b", "c"] {
            if rng.bool() {
                providers.set(name, action(&mut rng));
            }
        }
        let mut request = match rng.u8(0..4) {
            0 => PlainRequest::new(),
            3 => PlainRequest::prompt(rng.u64(0..3)),
            1 => PlainRequest::session("s"),
            _ => PlainRequest { model: Some("m".to_owned()), ..PlainRequest::session("t") },
        };
        request.needs.vision = rng.bool();
        request.needs.input_tokens = rng.u64(0..2_000);
        request.context.max_attempts = NonZeroU32::new(rng.u32(0..6));
        if rng.u8(0..4) == 0 {
            request.unfit_for = Some(["a", "b", "c"][rng.usize(0..3)]);
        }
        let most = request.context.max_attempts.map_or(u32::MAX, NonZeroU32::get);
        let limit = secs(rng.u64(0..200));
        if rng.bool() {
            request.context.deadline = Some(Deadline::after(limit));
        }
        let start = Instant::now();
        let refusing: Vec<_> = handle.snapshot().cooling().filter_map(refuses).collect();
        // The caller drops the call at some time, as a deadline layer would.
        let ended = tokio::time::timeout(limit, send(&layer, &providers, request)).await;
        assert!(start.elapsed() <= limit, "seed {seed}, call {round}");
        assert_eq!(
            providers.in_flight(),
            0,
            "seed {seed}, call {round}: a call is still in flight"
        );
        let received = providers.received();
        for (who, until) in &refusing {
            let asked = received.iter().find(|one| one.time < *until && is_part(who, &one.at));
            assert!(asked.is_none(), "seed {seed}, call {round}: {asked:?} in vain");
        }
        let calls: Vec<_> = received.into_iter().map(|received| received.at).collect();
        assert!(calls.len() <= most as usize, "seed {seed}, call {round}: {calls:?}");
        let distinct: HashSet<_> = calls.iter().collect();
        // One more may be under way beside the tenth.
        let rounds = if layer.policy().when_exhausted == WhenExhausted::Fail { 0 } else { 11 };
        assert!(
            calls.len() <= distinct.len().max(rounds),
            "seed {seed}, call {round}: each once, or ten in all: {calls:?}"
        );
        match ended {
            Ok(Ok(answer)) => assert!(calls.contains(&answer), "seed {seed}, call {round}"),
            Ok(Err(failure)) => {
                let tried = failure.trail().iter().filter(|attempt| !attempt.skipped).count();
                // A hedge's other half may have been dropped by a final failure.
                let dropped = providers.dropped().len();
                assert!(
                    failure.trail().is_empty() || tried + dropped == calls.len(),
                    "seed {seed}, call {round}: {calls:?} but {:?}",
                    failure.trail()
                );
                assert!(failure.attempts() as usize <= calls.len(), "seed {seed}, call {round}");
                let patience = match layer.policy().when_exhausted {
                    WhenExhausted::Wait(longest) => longest,
                    _ => secs(60),
                };
                assert!(failure.waited() <= patience, "seed {seed}, call {round}");
            }
            Err(_) => {}
        }
        assert!(budget.remaining() <= 200);
        providers.dropped();
        let snapshot = handle.snapshot();
        assert!(
            snapshot.targets().iter().all(|health| !health.probing),
            "seed {seed}, call {round}: a probe's permit was not released"
        );
        if rng.u8(0..8) == 0 {
            handle.reset_all();
        }
        tokio::time::advance(secs(rng.u64(0..60))).await;
    }
    // A day later all targets are used again.
    for name in ["a#1", "a#2", "a/m", "a/small", "b", "c"] {
        providers.repair(name);
    }
    budget.reset();
    tokio::time::advance(secs(25 * 3_600)).await;
    assert_eq!(send(&layer, &providers, PlainRequest::new()).await.unwrap(), "a#1", "seed {seed}");
}

#[tokio::test(start_paused = true)]
async fn invariants_hold_for_any_behaviour_of_the_targets() {
    for seed in 0..1_500 {
        run(seed).await;
    }
}
