//! The decision: a table, and a comparison with a naive model.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

mod common;

use common::hint;
use proptest::prelude::*;
use std::time::Duration;
use steadfast_core::{Backoff, Failure, Jitter, Priority, Reason, Retry, TimeLimit};
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
            Reason::Safety => Decision::GiveUp(GiveUp::Forbidden),
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

#[test]
fn what_stops_retries() {
    use Decision::{GiveUp as Stop, Retry as Go};
    let first = Situation { overloaded: 1, ..Situation::default() };
    let elsewhere = Situation { alternatives: 2, ..first };
    let hang = || fail(Reason::Timeout).with_time_limit(TimeLimit::FirstContent);
    let rows = [
        (fail(Reason::Network).with_delivered(), first, Stop(GiveUp::Delivered)),
        (fail(Reason::Safety).with_delivered(), first, Stop(GiveUp::Forbidden)),
        (
            fail(Reason::Timeout).with_time_limit(TimeLimit::Pipeline),
            first,
            Stop(GiveUp::NotRetryable),
        ),
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
        (
            fail(Reason::Overloaded),
            Situation { overloaded: 3, retries: 10, ..first },
            Stop(GiveUp::Overloaded),
        ),
        (fail(Reason::Network), Situation { retries: 9, ..first }, Go(secs(32))),
        (fail(Reason::Network), Situation { retries: 10, ..first }, Stop(GiveUp::RetriesSpent)),
        (
            fail(Reason::Network),
            Situation { attempts_left: 0, ..first },
            Stop(GiveUp::AttemptsSpent),
        ),
        (fail(Reason::Network), Situation { attempts_left: 1, ..first }, Go(ms(500))),
        (hang(), first, Go(ms(500))),
        (hang(), elsewhere, Stop(GiveUp::HangElsewhere)),
        (fail(Reason::ServerError), elsewhere, Go(ms(500))),
        (hint(Reason::RateLimit, secs(20)), elsewhere, Go(secs(20))),
        (hint(Reason::RateLimit, ms(20_001)), elsewhere, Stop(GiveUp::HintElsewhere)),
        (hint(Reason::RateLimit, ms(60_001)), elsewhere, Stop(GiveUp::HintTooLong)),
        (hint(Reason::RateLimit, secs(60)), first, Go(secs(60))),
        (hint(Reason::RateLimit, Duration::MAX), first, Stop(GiveUp::HintTooLong)),
        (
            fail(Reason::Network),
            Situation { time_left: Some(ms(500)), ..first },
            Stop(GiveUp::NoTime),
        ),
        (fail(Reason::Network), Situation { time_left: Some(ms(501)), ..first }, Go(ms(500))),
        (
            fail(Reason::Network),
            Situation { time_left: Some(Duration::ZERO), ..first },
            Stop(GiveUp::NoTime),
        ),
    ];
    for (failure, situation, expected) in rows {
        let got = decide(&common::exact(), &failure, &situation);
        assert_eq!(got, expected, "{failure:?} in {situation:?}");
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
        pipeline in proptest::bool::weighted(0.1),
        retry_after in maybe(90_000),
        retries in 0u32..12,
        allowed in 0u32..12,
        attempts_left in prop_oneof![Just(u32::MAX), 0u32..3],
        alternatives in 0u32..3,
        background in any::<bool>(),
        time_left in maybe(90_000),
        overloaded in 0u32..5,
        limit in 0u32..5,
        waited in 0u64..40_000,
        kind in 0usize..4,
        seed in any::<u64>(),
    ) {
        let jitter = [Jitter::Additive(0.25), Jitter::Full, Jitter::Decorrelated, Jitter::None][kind];
        let policy = RetryPolicy {
            retries: allowed,
            overloaded_limit: limit,
            backoff: Backoff::default().with_jitter(jitter).unwrap(),
            ..RetryPolicy::default()
        };
        let mut failure = fail(reason).with_retry_after(retry_after);
        failure = match verdict {
            0 => failure.with_retry(Retry::Yes),
            1 => failure.with_retry(Retry::No),
            2 => failure.with_retry(Retry::Forbidden),
            _ => failure,
        };
        if delivered { failure = failure.with_delivered(); }
        if pipeline { failure = failure.with_time_limit(TimeLimit::Pipeline); }
        let priority = if background { Priority::Background } else { Priority::Interactive };
        let situation = Situation {
            retries, attempts_left, alternatives, priority, time_left, overloaded,
            waited: ms(waited),
        };
        let decision = policy.decide(&failure, &situation, &mut fastrand::Rng::with_seed(seed));
        let hint = retry_after.filter(|hint| !hint.is_zero());

        // What a model without an order of checks allows, apart from the wait.
        let overload = reason == Reason::Overloaded;
        let elsewhere = alternatives > 0;
        let forbidden = [
            failure.retry() != Retry::Yes,
            delivered,
            pipeline,
            reason.is_refusal(),
            overload && background,
            overload && limit > 0 && overloaded >= limit,
            retries >= allowed,
            attempts_left == 0,
            reason == Reason::Timeout && elsewhere,
            hint.is_some_and(|hint| hint > policy.max_wait),
            hint.is_some_and(|hint| elsewhere && hint > policy.failover_wait),
        ];
        let allowed_at_all = !forbidden.contains(&true);
        match decision {
            Decision::Retry(wait) => {
                prop_assert!(allowed_at_all);
                prop_assert!(time_left.is_none_or(|left| wait < left), "past the deadline");
                match hint {
                    Some(hint) => prop_assert!(wait >= hint && wait <= hint + ms(500)),
                    None => prop_assert!(wait <= policy.backoff.longest()),
                }
            }
            Decision::GiveUp(GiveUp::NoTime) => {
                prop_assert!(allowed_at_all);
                let left = time_left.expect("there is a deadline");
                let longest = hint.map_or(policy.backoff.longest(), |hint| hint + ms(500));
                prop_assert!(longest >= left, "there was time left");
            }
            Decision::GiveUp(_) => prop_assert!(!allowed_at_all),
            _ => prop_assert!(false, "no other decision"),
        }
    }
}
