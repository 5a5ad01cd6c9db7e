//! Inside a failover: turns of a breaker, reports of failed attempts, targets that rest.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

mod common;

use std::{sync::atomic::Ordering, time::Duration};

use common::{Health, exact, layer, routed, routed_as, run_script, turn};
use steadfast_core::{CallContext, Deadline, Failure, PermitKind, Reason, RecoveryLog};
use steadfast_retry::RetryPolicy;
use steadfast_testkit::{PlainRequest, fail, ms, plain_request, secs};

/// A request as a failover without a spare sends it.
fn alone() -> PlainRequest {
    plain_request(|context| {
        context.routed = Some(routed().0);
        context.patience = Some(secs(60));
    })
}

fn reported(health: &Health) -> Vec<Reason> {
    health.failed.lock().clone()
}

#[tokio::test(start_paused = true)]
async fn a_retry_out_of_turn_waits_for_its_turn() {
    for seed in 0..20 {
        let layer = layer(RetryPolicy { nudge: true, ..exact() }).with_seed(seed);
        let request = PlainRequest { text: "the whole request", ..alone() };
        let script = [
            Err(fail(Reason::ServerError)),
            Err(turn(secs(1))),
            Err(turn(ms(600))),
            Err(fail(Reason::Network)),
            Ok("answer"),
        ];
        let run = run_script(&layer, request, script).await;
        assert_eq!(run.answer.unwrap(), "answer");

        let waits: Vec<_> = run.arrivals.windows(2).map(|pair| pair[1] - pair[0]).collect();
        // What was stated and up to a quarter more; a timer may end a millisecond later.
        assert_eq!(waits[0], ms(500));
        assert!(waits[1] >= ms(1_000) && waits[1] <= ms(1_251), "{waits:?}");
        assert!(waits[2] >= ms(600) && waits[2] <= ms(751), "{waits:?}");
        // The second retry: what was refused is none of its own.
        assert_eq!(waits[3], secs(1));

        let seen = |of: fn(&PlainRequest) -> u32| run.requests.iter().map(of).collect::<Vec<_>>();
        assert_eq!(seen(|request| request.context.attempts), [0, 1, 1, 1, 2]);
        assert_eq!(
            seen(|request| request.context.routed.as_ref().unwrap().repeats),
            [0, 1, 1, 1, 2]
        );
        assert!(run.requests.iter().all(|request| request.text == "the whole request"));
        let nudges: Vec<_> = run.requests.iter().map(|request| request.nudges.concat()).collect();
        assert!(nudges[0].is_empty() && nudges[1].contains("carry on"));
        assert!(nudges[2] == nudges[1] && nudges[3] == nudges[1], "kept: {nudges:?}");
        assert!(nudges[4].contains("finish now"));

        let snapshot = layer.handle().snapshot();
        assert_eq!(snapshot.retries, [(Reason::ServerError, 1), (Reason::Network, 1)]);
        assert_eq!((snapshot.recovered, snapshot.gave_up), (1, 0));
    }
}

#[tokio::test(start_paused = true)]
async fn calls_that_are_refused_together_come_back_apart() {
    let layer = layer(exact());
    let mut ends = Vec::new();
    for _ in 0..10 {
        let script = [Err(fail(Reason::Network)), Err(turn(secs(1))), Ok("answer")];
        ends.push(run_script(&layer, alone(), script).await.ended);
    }
    ends.sort();
    ends.dedup();
    assert!(ends.len() > 5, "{ends:?}");
}

#[tokio::test(start_paused = true)]
async fn the_last_retry_may_be_out_of_turn_too() {
    let policy = RetryPolicy { retries: 1, ..exact() };
    let limited = plain_request(|context| {
        context.routed = Some(routed().0);
        context.max_attempts = std::num::NonZeroU32::new(2);
    });
    for request in [alone(), limited] {
        let script = [Err(fail(Reason::Network)), Err(turn(secs(1))), Ok("answer")];
        let run = run_script(&layer(policy), request, script).await;
        assert_eq!(run.answer.unwrap(), "answer");
    }
}

#[tokio::test(start_paused = true)]
async fn a_turn_that_does_not_come_in_time_is_not_waited_for() {
    let patience: fn(&mut CallContext) = |context| context.patience = Some(secs(5));
    let deadline: fn(&mut CallContext) =
        |context| context.deadline = Some(Deadline::after(secs(5)));
    for limit in [patience, deadline] {
        let mut request = alone();
        limit(&mut request.context);
        let layer = layer(exact());
        let script =
            [Err(fail(Reason::ServerError))].into_iter().chain((0..20).map(|_| Err(turn(secs(1)))));
        let run = run_script(&layer, request, script).await;
        assert!(run.ended >= secs(3) && run.ended <= secs(5), "{:?}", run.ended);
        let failure = run.answer.unwrap_err();
        assert_eq!((failure.reason(), failure.attempts()), (Reason::ServerError, 1));
        assert!(failure.waited().abs_diff(run.ended) < ms(20), "{:?}", failure.waited());
    }
}

#[tokio::test(start_paused = true)]
async fn a_retry_that_is_refused_ends_with_what_it_was_retried_for() {
    let with_spare: fn(&mut CallContext) = |context| context.alternatives = 1;
    let unrouted: fn(&mut CallContext) = |context| context.routed = None;
    let nothing: fn(&mut CallContext) = |_| ();
    let refused = |reason| Failure::refused(reason, "no").with_retry_after(Some(secs(1)));
    for (change, refusal) in [
        (with_spare, turn(secs(1))),
        (unrouted, turn(secs(1))),
        (nothing, Failure::refused(Reason::CircuitOpen, "for ever")),
        (nothing, turn(Duration::ZERO)),
        (nothing, turn(secs(61))),
        (nothing, turn(Duration::MAX)),
        (nothing, refused(Reason::Cooling)),
        (nothing, refused(Reason::Budget)),
        (nothing, refused(Reason::Format)),
    ] {
        let mut request = alone();
        change(&mut request.context);
        request.context.log = RecoveryLog::enabled();
        let log = request.context.log.clone();
        let layer = layer(exact());
        let what = format!("{refusal:?} {:?}", request.context);
        let run = run_script(&layer, request, [Err(fail(Reason::Network)), Err(refusal)]).await;
        assert_eq!(run.ended, ms(500), "{what}");
        let failure = run.answer.unwrap_err();
        assert_eq!((failure.reason(), failure.attempts()), (Reason::Network, 1), "{what}");
        assert_eq!((failure.retry_after(), failure.waited()), (None, ms(500)), "{what}");
        let snapshot = layer.handle().snapshot();
        assert_eq!((snapshot.total_retries(), snapshot.gave_up), (0, 1), "{what}");
        assert_eq!(
            log.to_string(),
            "retry.retried network 500ms; retry.gave_up network refused",
            "{what}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_first_attempt_that_is_refused_is_returned() {
    // When a call comes round again its failover does the waiting.
    let (mut again, health) = routed();
    again.repeats = 1;
    let request = plain_request(|context| context.routed = Some(again));
    let run = run_script(&layer(exact()), request, [Err(turn(secs(1)))]).await;
    let failure = run.answer.unwrap_err();
    assert_eq!((run.ended, failure.attempts()), (Duration::ZERO, 0));
    assert_eq!((failure.reason(), failure.retry_after()), (Reason::CircuitOpen, Some(secs(1))));
    assert_eq!(reported(&health), [], "no provider was asked");
}

#[tokio::test(start_paused = true)]
async fn what_no_layer_may_retry_is_never_replaced() {
    let forbidden = Failure::refused(Reason::Safety, "a loop");
    let run =
        run_script(&layer(exact()), alone(), [Err(fail(Reason::Network)), Err(forbidden)]).await;
    let failure = run.answer.unwrap_err();
    assert_eq!((failure.reason(), failure.attempts()), (Reason::Safety, 1));
}

#[tokio::test(start_paused = true)]
async fn each_failed_attempt_is_reported_once() {
    use Reason::{Auth, Network, Overloaded, RateLimit, ServerError};
    let out_of_turn = || turn(secs(1));
    let recorded = || fail(RateLimit).with_recorded();
    // Alternatives, what came, and what the failover knows then.
    let rows = [
        (0, vec![Err(fail(ServerError)), Err(fail(Network)), Ok("")], vec![ServerError, Network]),
        (0, vec![Err(fail(ServerError)), Err(fail(Auth))], vec![ServerError, Auth]),
        (0, vec![Err(fail(Auth))], vec![Auth]),
        (1, vec![Err(fail(Overloaded)), Err(fail(Network))], vec![Overloaded, Network]),
        (1, vec![Err(fail(RateLimit))], vec![RateLimit]),
        (0, vec![Err(fail(Network)), Err(out_of_turn()), Ok("")], vec![Network]),
        (1, vec![Err(fail(Network)), Err(out_of_turn())], vec![Network]),
        (0, vec![Err(recorded()), Err(fail(Auth))], vec![Auth]),
        (0, vec![Ok("")], vec![]),
    ];
    for (alternatives, script, expected) in rows {
        let (routed, health) = routed();
        let request = plain_request(|context| {
            context.routed = Some(routed);
            context.alternatives = alternatives;
        });
        let run = run_script(&layer(exact()), request, script).await;
        assert_eq!(run.unused, 0, "{expected:?}");
        assert_eq!(reported(&health), expected);
        if let Err(failure) = run.answer {
            assert!(failure.is_recorded(), "{failure:?}");
        }
    }
    // Without retries as well.
    let (routed, health) = routed();
    let request = plain_request(|context| context.routed = Some(routed));
    let policy = RetryPolicy { retries: 0, ..exact() };
    let run = run_script(&layer(policy), request, [Err(fail(Network))]).await;
    assert!(run.answer.unwrap_err().is_recorded());
    assert_eq!(reported(&health), [Network]);
}

#[tokio::test(start_paused = true)]
async fn a_target_that_rests_is_left_when_there_is_a_spare() {
    for (alternatives, attempts) in [(1, 2), (0, 4)] {
        let (routed, health) = routed();
        health.fragile.store(true, Ordering::Relaxed);
        let request = plain_request(|context| {
            context.routed = Some(routed);
            context.alternatives = alternatives;
        });
        let script = (0..3).map(|_| Err(fail(Reason::Overloaded))).chain([Ok("answer")]);
        let run = run_script(&layer(exact()), request, script).await;
        assert_eq!(run.requests.len(), attempts, "the second failure makes it rest");
    }
}

#[tokio::test(start_paused = true)]
async fn a_probe_is_made_once_when_there_is_a_spare() {
    for (alternatives, attempts) in [(1, 1), (0, 2)] {
        let (routed, health) = routed_as(PermitKind::Probe);
        let request = plain_request(|context| {
            context.routed = Some(routed);
            context.alternatives = alternatives;
        });
        let script = [Err(fail(Reason::ServerError)), Ok("answer")];
        let run = run_script(&layer(exact()), request, script).await;
        assert_eq!((run.requests.len(), reported(&health).len()), (attempts, 1));
    }
}

#[tokio::test(start_paused = true)]
async fn a_breaker_that_opened_ends_the_retries_when_there_is_a_spare() {
    for (alternatives, attempts) in [(1, 1), (0, 2)] {
        let request = plain_request(|context| context.alternatives = alternatives);
        let opened = fail(Reason::ServerError).with_opened_circuit();
        let run = run_script(&layer(exact()), request, [Err(opened), Ok("answer")]).await;
        assert_eq!(run.requests.len(), attempts);
        assert_eq!(run.ended, if alternatives > 0 { ms(0) } else { ms(500) });
    }
}
