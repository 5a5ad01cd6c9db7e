//! The decision: a table, and a comparison with a naive model.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

mod common;

use std::time::Duration;

use common::hint;
use http::StatusCode;
use proptest::prelude::*;
use steadfast_core::{Backoff, Failure, FaultSide, Jitter, Priority, Reason, Retry, TimeLimit};
use steadfast_retry::{Decision, GiveUp, RetryPolicy, Situation};
use steadfast_testkit::{fail, ms, secs};

fn decide(policy: &RetryPolicy, failure: &Failure, situation: &Situation) -> Decision {
    policy.decide(failure, situation, &mut fastrand::Rng::with_seed(0))
}

#[test]
fn every_reason_on_a_first_attempt() {
    for reason in Reason::ALL {
        let expected = match reason {
            Reason::RateLimit
            | Reason::Overloaded
            | Reason::ServerError
            | Reason::Timeout
            | Reason::Network => Decision::Retry(ms(500)),
            Reason::Safety | Reason::SpendCap => Decision::GiveUp(GiveUp::Forbidden),
            Reason::CircuitOpen | Reason::Cooling | Reason::Exhausted | Reason::Budget => {
                Decision::GiveUp(GiveUp::Refused)
            }
            _ => Decision::GiveUp(GiveUp::NotRetryable),
        };
        assert_eq!(
            decide(&common::exact(), &fail(reason), &Situation::default()),
            expected,
            "{reason}"
        );
    }
}

/// The waits before the retries of a call that fails the same way each time, and why it gives up.
fn waits(failure: &Failure, alternatives: u32) -> (Vec<Duration>, GiveUp) {
    let policy = RetryPolicy { backoff: common::exact().backoff, ..RetryPolicy::transient() };
    let hang = failure.time_limit().is_some();
    let mut waits = Vec::new();
    loop {
        let retries = u32::try_from(waits.len()).unwrap();
        let situation = Situation {
            retries,
            alternatives,
            overloaded: retries + 1,
            hangs: if hang { retries + 1 } else { 0 },
            waited: waits.last().copied().unwrap_or_default(),
            ..Situation::default()
        };
        match decide(&policy, failure, &situation) {
            Decision::Retry(wait) => waits.push(wait),
            Decision::GiveUp(why) => return (waits, why),
            _ => panic!("no other decision"),
        }
    }
}

#[test]
fn each_row_and_both_columns_of_the_table() {
    use GiveUp::{
        HangElsewhere, HintElsewhere, HintTooLong, NotRetryable, Overloaded, Refused, Resting,
        RetriesSpent,
    };
    let backoff = || [500, 1_000, 2_000, 4_000, 8_000, 16_000, 32_000].map(ms).to_vec();
    // Ten retries, the last ones after the cap.
    let ten = || {
        let mut waits = backoff();
        waits.resize(10, secs(32));
        (waits, RetriesSpent)
    };
    let ten_of = |wait| (vec![wait; 10], RetriesSpent);
    let none = |why| (Vec::new(), why);
    let status = |code, reason| fail(reason).with_status(StatusCode::from_u16(code).unwrap());
    let hinted = |code, reason, wait| status(code, reason).with_retry_after(Some(wait));
    let limit = |limit| fail(Reason::Timeout).with_time_limit(limit);
    let one = || (vec![ms(500)], RetriesSpent);
    let two = || (vec![ms(500), secs(1)], Overloaded);

    // What came, what happens alone, and what happens with a spare.
    let rows = [
        (status(429, Reason::RateLimit), ten(), none(HintElsewhere)),
        (fail(Reason::RateLimit), ten(), none(HintElsewhere)),
        (hinted(429, Reason::RateLimit, Duration::ZERO), ten(), none(HintElsewhere)),
        (hinted(429, Reason::RateLimit, secs(1)), ten_of(secs(1)), (vec![secs(1)], RetriesSpent)),
        (hinted(429, Reason::RateLimit, ms(1_001)), ten_of(ms(1_001)), none(HintElsewhere)),
        (hinted(429, Reason::RateLimit, secs(60)), ten_of(secs(60)), none(HintElsewhere)),
        (hinted(429, Reason::RateLimit, ms(60_001)), none(HintTooLong), none(HintElsewhere)),
        (hinted(429, Reason::RateLimit, Duration::MAX), none(HintTooLong), none(HintElsewhere)),
        (status(500, Reason::ServerError), ten(), one()),
        (status(502, Reason::ServerError), ten(), one()),
        (status(504, Reason::Timeout), ten(), one()),
        (status(520, Reason::ServerError), ten(), one()),
        (status(599, Reason::Timeout), ten(), one()),
        (status(408, Reason::Timeout), ten(), one()),
        (status(409, Reason::ServerError), ten(), one()),
        (status(200, Reason::ServerError), ten(), one()),
        (fail(Reason::ServerError), ten(), one()),
        (fail(Reason::Network), ten(), one()),
        (fail(Reason::Timeout), ten(), one()),
        (hinted(500, Reason::ServerError, ms(300)), ten_of(ms(300)), (vec![ms(300)], RetriesSpent)),
        (hinted(500, Reason::ServerError, secs(20)), ten_of(secs(20)), none(HintElsewhere)),
        (status(503, Reason::Overloaded), ten(), two()),
        (status(529, Reason::Overloaded), ten(), two()),
        (fail(Reason::Overloaded), ten(), two()),
        (hinted(503, Reason::Overloaded, secs(20)), ten_of(secs(20)), none(HintElsewhere)),
        // The row is that of what came, and not of what it was taken for.
        (status(429, Reason::Overloaded), ten(), none(HintElsewhere)),
        (status(503, Reason::ServerError), ten(), two()),
        (status(500, Reason::Overloaded), ten(), one()),
        (limit(TimeLimit::FirstContent), one(), none(HangElsewhere)),
        (limit(TimeLimit::Stall), one(), none(HangElsewhere)),
        (limit(TimeLimit::Attempt), one(), none(HangElsewhere)),
        (limit(TimeLimit::Pipeline), none(NotRetryable), none(NotRetryable)),
        (status(401, Reason::Auth), none(NotRetryable), none(NotRetryable)),
        (status(402, Reason::Billing), none(NotRetryable), none(NotRetryable)),
        (status(404, Reason::ModelNotFound), none(NotRetryable), none(NotRetryable)),
        (fail(Reason::Unsupported), none(NotRetryable), none(NotRetryable)),
        (status(500, Reason::ServerError).with_opened_circuit(), ten(), none(Resting)),
        (
            hinted(429, Reason::RateLimit, secs(1)).with_opened_circuit(),
            ten_of(secs(1)),
            none(Resting),
        ),
        (Failure::refused(Reason::CircuitOpen, "open"), none(Refused), none(Refused)),
    ];
    for (failure, alone, with_spare) in rows {
        assert_eq!(waits(&failure, 0), alone, "alone: {failure:?}");
        for others in [1, 3] {
            assert_eq!(waits(&failure, others), with_spare, "{others} others: {failure:?}");
        }
    }
}

#[test]
fn what_stops_retries() {
    use Decision::{GiveUp as Stop, Retry as Go};
    let first = Situation { overloaded: 1, ..Situation::default() };
    let elsewhere = Situation { alternatives: 2, ..first };
    let hang = || fail(Reason::Timeout).with_time_limit(TimeLimit::FirstContent);
    let unusable = || fail(Reason::ServerError).with_fault(FaultSide::Model);
    let network = || fail(Reason::Network);
    let limited = |wait| hint(Reason::RateLimit, wait);
    let rows = [
        (network().with_delivered(), first, Stop(GiveUp::Delivered)),
        (fail(Reason::Safety).with_delivered(), first, Stop(GiveUp::Forbidden)),
        // Nobody waits for the answer of a background call.
        (
            fail(Reason::Overloaded),
            Situation { priority: Priority::Background, ..first },
            Stop(GiveUp::Background),
        ),
        (
            fail(Reason::RateLimit),
            Situation { priority: Priority::Background, ..first },
            Go(ms(500)),
        ),
        // Retries that were made for another reason count.
        (network(), Situation { retries: 9, ..first }, Go(secs(32))),
        (network(), Situation { retries: 10, ..first }, Stop(GiveUp::RetriesSpent)),
        (network(), Situation { retries: 1, ..elsewhere }, Stop(GiveUp::RetriesSpent)),
        (limited(secs(1)), Situation { retries: 1, ..elsewhere }, Stop(GiveUp::RetriesSpent)),
        (fail(Reason::Overloaded), Situation { retries: 1, ..elsewhere }, Go(secs(1))),
        (
            fail(Reason::Overloaded),
            Situation { retries: 2, ..elsewhere },
            Stop(GiveUp::RetriesSpent),
        ),
        // Nobody else, so three in a row are no reason to give up.
        (fail(Reason::Overloaded), Situation { overloaded: 3, retries: 2, ..first }, Go(secs(2))),
        (
            fail(Reason::Overloaded),
            Situation { overloaded: 3, ..elsewhere },
            Stop(GiveUp::Overloaded),
        ),
        // The hang is what is made once more, whatever failed before or after it.
        (hang(), Situation { hangs: 1, retries: 4, ..first }, Go(secs(8))),
        (hang(), Situation { hangs: 2, retries: 1, ..first }, Stop(GiveUp::RetriesSpent)),
        (network(), Situation { hangs: 2, retries: 2, ..first }, Go(secs(2))),
        (unusable(), Situation { unusable: 1, retries: 4, ..first }, Go(secs(8))),
        (unusable(), Situation { unusable: 2, retries: 1, ..first }, Stop(GiveUp::RetriesSpent)),
        (unusable(), Situation { unusable: 1, alternatives: 1, ..first }, Go(ms(500))),
        (network(), Situation { attempts_left: 0, ..first }, Stop(GiveUp::AttemptsSpent)),
        (network(), Situation { attempts_left: 1, ..first }, Go(ms(500))),
        (network(), Situation { attempts_left: 0, ..elsewhere }, Stop(GiveUp::AttemptsSpent)),
        // It only matters that the target rests when there is another one.
        (network(), Situation { rests: true, ..elsewhere }, Stop(GiveUp::Resting)),
        (hang(), Situation { rests: true, ..elsewhere }, Stop(GiveUp::Resting)),
        (limited(secs(1)), Situation { rests: true, ..elsewhere }, Stop(GiveUp::Resting)),
        (network(), Situation { rests: true, ..first }, Go(ms(500))),
        (fail(Reason::Auth), Situation { rests: true, ..elsewhere }, Stop(GiveUp::NotRetryable)),
        // A wait that ends with the deadline leaves no time for the attempt.
        (network(), Situation { time_left: Some(ms(500)), ..first }, Stop(GiveUp::NoTime)),
        (network(), Situation { time_left: Some(ms(501)), ..first }, Go(ms(500))),
        (network(), Situation { time_left: Some(Duration::ZERO), ..first }, Stop(GiveUp::NoTime)),
        // Patience is for the waits alone.
        (network(), Situation { patience: Some(ms(500)), ..first }, Go(ms(500))),
        (network(), Situation { patience: Some(ms(499)), ..first }, Stop(GiveUp::NoTime)),
        (network(), Situation { patience: Some(ms(499)), ..elsewhere }, Stop(GiveUp::NoTime)),
        (limited(secs(60)), Situation { patience: Some(secs(60)), ..first }, Go(secs(60))),
        (
            limited(secs(60)),
            Situation { patience: Some(ms(59_999)), ..first },
            Stop(GiveUp::NoTime),
        ),
    ];
    for (failure, situation, expected) in rows {
        let got = decide(&common::exact(), &failure, &situation);
        assert_eq!(got, expected, "{failure:?} in {situation:?}");
    }
}

#[test]
fn the_limits_are_policy() {
    let policy = |change: fn(&mut RetryPolicy)| {
        let mut policy = common::exact();
        change(&mut policy);
        policy
    };
    let elsewhere = Situation { alternatives: 1, overloaded: 1, ..Situation::default() };
    let hung = Situation { hangs: 1, ..Situation::default() };
    let hang = fail(Reason::Timeout).with_time_limit(TimeLimit::Stall);
    let go = Decision::Retry(ms(500));
    let stop = Decision::GiveUp;
    for (policy, failure, situation, expected) in [
        (
            policy(|policy| policy.retries_with_spare = 0),
            fail(Reason::Network),
            elsewhere,
            stop(GiveUp::RetriesSpent),
        ),
        // None is none for any call.
        (
            policy(|policy| policy.retries = 0),
            fail(Reason::Network),
            elsewhere,
            stop(GiveUp::RetriesSpent),
        ),
        (
            policy(|policy| policy.retries_after_hang = 0),
            hang.without_delivered(),
            hung,
            stop(GiveUp::RetriesSpent),
        ),
        (
            policy(|policy| policy.overloaded_limit = 1),
            fail(Reason::Overloaded),
            elsewhere,
            stop(GiveUp::Overloaded),
        ),
        (
            policy(|policy| policy.overloaded_limit = 0),
            fail(Reason::Overloaded),
            Situation { overloaded: 9, ..elsewhere },
            go,
        ),
        (
            policy(|policy| policy.failover_wait = Duration::ZERO),
            hint(Reason::RateLimit, ms(1)),
            elsewhere,
            stop(GiveUp::HintElsewhere),
        ),
    ] {
        assert_eq!(decide(&policy, &failure, &situation), expected, "{failure:?} by {policy:?}");
    }
}

fn reasons() -> impl Strategy<Value = Reason> {
    proptest::sample::select(&Reason::ALL[..])
}

fn maybe(limit_ms: u64) -> impl Strategy<Value = Option<Duration>> {
    proptest::option::of((0..limit_ms).prop_map(ms))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    /// Every rule of the documentation, checked separately.
    #[test]
    fn breaks_no_rule(
        reason in reasons(),
        verdict in 0u8..4,
        delivered in proptest::bool::weighted(0.1),
        time_limit in proptest::option::weighted(0.3, proptest::sample::select(vec![
            TimeLimit::Pipeline, TimeLimit::Stall, TimeLimit::FirstContent,
        ])),
        code in proptest::option::of(proptest::sample::select(vec![429u16, 500, 503, 529])),
        opened in proptest::bool::weighted(0.1),
        retry_after in prop_oneof![maybe(90_000), maybe(2_000)],
        retries in 0u32..12,
        allowed in 0u32..12,
        with_spare in 0u32..4,
        after_hang in 0u32..3,
        attempts_left in prop_oneof![Just(u32::MAX), 0u32..3],
        alternatives in 0u32..3,
        rests in proptest::bool::weighted(0.2),
        background in any::<bool>(),
        limits in (maybe(90_000), maybe(90_000)),
        overloaded in 0u32..5,
        hangs in 0u32..4,
        limit in 0u32..5,
        waited in 0u64..40_000,
        kind in 0usize..4,
        seed in any::<u64>(),
    ) {
        let jitter = [Jitter::Additive(0.25), Jitter::Full, Jitter::Decorrelated, Jitter::None][kind];
        let policy = RetryPolicy {
            retries: allowed,
            retries_with_spare: with_spare,
            retries_after_hang: after_hang,
            overloaded_limit: limit,
            backoff: Backoff::default().with_jitter(jitter).unwrap(),
            ..RetryPolicy::transient()
        };
        let mut failure = fail(reason).with_retry_after(retry_after);
        failure = match verdict {
            0 => failure.with_retry(Retry::Yes),
            1 => failure.with_retry(Retry::No),
            2 => failure.with_retry(Retry::Forbidden),
            _ => failure,
        };
        if delivered { failure = failure.with_delivered(); }
        if let Some(limit) = time_limit { failure = failure.with_time_limit(limit); }
        if let Some(code) = code { failure = failure.with_status(StatusCode::from_u16(code).unwrap()); }
        if opened { failure = failure.with_opened_circuit(); }
        let priority = if background { Priority::Background } else { Priority::Interactive };
        let (time_left, patience) = limits;
        let situation = Situation {
            retries, attempts_left, alternatives, rests, priority, time_left, patience, overloaded,
            hangs, waited: ms(waited), ..Situation::default()
        };
        let decision = policy.decide(&failure, &situation, &mut fastrand::Rng::with_seed(seed));
        let hint = retry_after.filter(|hint| !hint.is_zero());

        // What a model without an order of checks allows, apart from the wait.
        let hang = time_limit.is_some();
        let overload = !hang && match code {
            Some(code) => code == 503 || code == 529,
            None => reason == Reason::Overloaded,
        };
        let throttled = !hang && match code {
            Some(code) => code == 429,
            None => reason == Reason::RateLimit,
        };
        let elsewhere = alternatives > 0;
        let forbidden = [
            failure.retry() != Retry::Yes,
            delivered,
            time_limit == Some(TimeLimit::Pipeline),
            reason.is_refusal(),
            overload && background,
            retries >= allowed,
            attempts_left == 0,
            hint.is_some_and(|hint| hint > policy.max_wait),
            !elsewhere && hang && hangs > after_hang,
            elsewhere && hang,
            elsewhere && (rests || opened),
            elsewhere && hint.is_some_and(|hint| hint > policy.failover_wait),
            elsewhere && throttled && (hint.is_none() || retries >= 1),
            elsewhere && overload && limit > 0 && (overloaded >= limit || retries >= limit - 1),
            elsewhere && !throttled && !overload && retries >= with_spare,
        ];
        let allowed_at_all = !forbidden.contains(&true);
        match decision {
            Decision::Retry(wait) => {
                prop_assert!(allowed_at_all);
                prop_assert!(time_left.is_none_or(|left| wait < left), "past the deadline");
                // The jitter of a hint is not what patience is about.
                prop_assert!(patience.is_none_or(|left| hint.unwrap_or(wait) <= left), "impatient");
                match hint {
                    Some(hint) => prop_assert!(wait >= hint && wait <= hint + ms(500)),
                    None => prop_assert!(wait <= policy.backoff.longest()),
                }
            }
            Decision::GiveUp(GiveUp::NoTime) => {
                prop_assert!(allowed_at_all);
                let longest = hint.map_or(policy.backoff.longest(), |hint| hint + ms(500));
                let left = time_left.into_iter().chain(patience).min().expect("there is a limit");
                prop_assert!(longest >= left, "there was time left");
            }
            Decision::GiveUp(_) => prop_assert!(!allowed_at_all),
            _ => prop_assert!(false, "no other decision"),
        }
    }
}

#[test]
fn a_wait_that_nobody_has_is_doubted_of_a_target_that_has_just_answered() {
    let policy = RetryPolicy::in_stack();
    let decide = |seconds, answered_lately, retry| {
        let failure = Failure::new(Reason::RateLimit, "")
            .with_retry(retry)
            .with_retry_after(Some(Duration::from_secs(seconds)));
        let situation = Situation { answered_lately, ..Situation::default() };
        policy.decide(&failure, &situation, &mut fastrand::Rng::with_seed(1))
    };
    // A classifier says that so long a wait is not worth a retry.
    assert_eq!(decide(3_600, false, Retry::No), Decision::GiveUp(GiveUp::NotRetryable));
    let doubted = decide(3_600, true, Retry::No);
    assert!(
        matches!(doubted, Decision::Retry(wait) if wait < Duration::from_millis(700)),
        "{doubted:?}"
    );
    let believed = decide(60, true, Retry::Yes);
    assert!(matches!(believed, Decision::Retry(wait) if wait >= Duration::from_secs(60)));
    assert_eq!(decide(60, true, Retry::No), Decision::GiveUp(GiveUp::NotRetryable));
}

#[test]
fn other_targets_may_come_after_all_retries() {
    let base =
        RetryPolicy { retries: 2, backoff: common::exact().backoff, ..RetryPolicy::transient() };
    let policy = RetryPolicy { spares_last: true, overloaded_limit: 0, ..base };
    let elsewhere =
        Situation { alternatives: 2, rests: true, overloaded: 3, ..Situation::default() };
    let limited = || fail(Reason::RateLimit);
    for (failure, situation, expected) in [
        (fail(Reason::Network), elsewhere, Decision::Retry(ms(500))),
        (limited(), elsewhere, Decision::Retry(ms(500))),
        (limited().with_retry_after(Some(secs(30))), elsewhere, Decision::Retry(secs(30))),
        (fail(Reason::Overloaded), elsewhere, Decision::Retry(ms(500))),
        (limited().with_opened_circuit(), elsewhere, Decision::Retry(ms(500))),
        (
            fail(Reason::Network),
            Situation { retries: 2, ..elsewhere },
            Decision::GiveUp(GiveUp::RetriesSpent),
        ),
    ] {
        assert_eq!(decide(&policy, &failure, &situation), expected, "{failure}");
    }
}

#[test]
fn a_smaller_model_is_reason_enough_to_end_a_row_of_overloads() {
    let policy = RetryPolicy { backoff: common::exact().backoff, ..RetryPolicy::transient() };
    let third = Situation { overloaded: 3, retries: 2, ..Situation::default() };
    let overloaded = fail(Reason::Overloaded);
    assert_eq!(decide(&policy, &overloaded, &third), Decision::Retry(secs(2)), "nobody else");
    let smaller = Situation { has_downgrade: true, ..third };
    let why = Decision::GiveUp(GiveUp::Overloaded);
    assert_eq!(decide(&policy, &overloaded, &smaller), why);
    let patient = RetryPolicy { spares_last: true, ..policy };
    assert_eq!(decide(&patient, &overloaded, &smaller), why);
}

#[test]
fn a_policy_may_wait_longer_than_a_classifier_finds_worth_it() {
    let limited = |wait| fail(Reason::RateLimit).with_retry(Retry::No).with_retry_after(Some(wait));
    let base = RetryPolicy { backoff: common::exact().backoff, ..RetryPolicy::transient() };
    let patient = RetryPolicy { max_wait: secs(600), ..base };
    let no = Decision::GiveUp(GiveUp::NotRetryable);
    let alone = Situation::default();
    assert_eq!(decide(&base, &limited(secs(90)), &alone), no);
    assert_eq!(decide(&patient, &limited(secs(90)), &alone), Decision::Retry(secs(90)));
    assert_eq!(decide(&patient, &limited(secs(601)), &alone), no);
    assert_eq!(decide(&patient, &limited(secs(9)), &alone), no, "it has another reason");
}

#[test]
fn waits_may_grow_with_the_position_in_the_chain_and_downgrades_be_asked_once() {
    let base = RetryPolicy { backoff: common::exact().backoff, ..RetryPolicy::transient() };
    let second = Situation { position: 1, ..Situation::default() };
    let slower = RetryPolicy { slower_by_position: true, ..base };
    let network = fail(Reason::Network);
    assert_eq!(decide(&base, &network, &second), Decision::Retry(ms(500)));
    assert_eq!(decide(&slower, &network, &second), Decision::Retry(secs(1)));
    let downgrade = Situation { is_downgrade: true, ..Situation::default() };
    let once = RetryPolicy { downgrades_once: true, ..base };
    assert_eq!(decide(&base, &network, &downgrade), Decision::Retry(ms(500)));
    let why = Decision::GiveUp(GiveUp::RetriesSpent);
    assert_eq!(decide(&once, &network, &downgrade), why);
    assert_eq!(decide(&once, &network, &Situation::default()), Decision::Retry(ms(500)));
}
