//! What retries cost, and when it is put back.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

mod common;

use std::sync::{
    Arc,
    atomic::{AtomicU32, Ordering},
};

use common::{exact, layer, routed, run_script, turn};
use steadfast_core::{BudgetPolicy, Failure, Reason, RetryBudget};
use steadfast_testkit::{PlainRequest, fail, ms, plain_request, secs};
use tower::{Layer, ServiceExt, service_fn};

#[tokio::test(start_paused = true)]
async fn the_first_two_retries_of_a_call_are_free_and_the_third_is_paid() {
    // How often the call has asked the target before, how many retries it makes, what they cost.
    for (before, retries, paid) in
        [(0, 1, 0), (0, 2, 0), (0, 3, 14), (0, 4, 28), (1, 1, 0), (1, 2, 14), (2, 1, 14)]
    {
        let budget = RetryBudget::default();
        let layer = layer(exact()).with_budget(budget.clone());
        let request = plain_request(|context| {
            let (mut routed, _) = routed();
            routed.repeats = before;
            context.routed = Some(routed);
        });
        let script =
            (0..retries).map(|_| Err(fail(Reason::ServerError))).chain([Err(fail(Reason::Format))]);
        let run = run_script(&layer, request, script).await;
        assert_eq!(run.unused, 0);
        assert_eq!(budget.remaining(), 500 - paid, "{retries} after {before}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_dead_provider_costs_a_bounded_share() {
    let layer = layer(exact());
    let mut calls = 0;
    for _ in 0..100 {
        let script = (0..11).map(|_| Err(fail(Reason::ServerError)));
        calls += run_script(&layer, plain_request(|_| ()), script).await.requests.len();
    }
    assert_eq!(calls, 100 * 3 + 500 / 14);
    assert_eq!(layer.handle().snapshot().budget, Some(500 % 14));
    layer.handle().reset();
    assert_eq!(layer.handle().snapshot().budget, Some(500));
}

#[tokio::test(start_paused = true)]
async fn an_answer_puts_back_what_its_retries_cost() {
    let layer = layer(exact());
    let reasons = [Reason::ServerError, Reason::RateLimit, Reason::ServerError, Reason::Network];
    for _ in 0..200 {
        let script = reasons.map(|reason| Err(fail(reason))).into_iter().chain([Ok("answer")]);
        assert!(run_script(&layer, plain_request(|_| ()), script).await.answer.is_ok());
    }
    assert_eq!(layer.handle().snapshot().budget, Some(500));
}

#[tokio::test(start_paused = true)]
async fn which_budget_retries_draw_from() {
    let empty = || RetryBudget::new(BudgetPolicy { capacity: 0, ..BudgetPolicy::default() });
    let with = |budget: RetryBudget| plain_request(|context| context.budget = Some(budget));
    let script = || (0..3).map(|_| Err(fail(Reason::Network))).chain([Err(fail(Reason::Format))]);
    for (layer, request, attempts) in [
        (layer(exact()), plain_request(|_| ()), 4),
        (layer(exact()), with(empty()), 3),
        (layer(exact()).with_budget(RetryBudget::default()), with(empty()), 4),
        (layer(exact()).with_budget(empty()), with(RetryBudget::default()), 3),
        (layer(exact()).without_budget(), with(empty()), 4),
    ] {
        let run = run_script(&layer, request, script()).await;
        assert_eq!(run.requests.len(), attempts, "{layer:?}");
        assert_eq!(
            run.answer.is_err_and(|failure| failure.reason() == Reason::Network),
            attempts == 3
        );
    }
    assert_eq!(layer(exact()).without_budget().handle().snapshot().budget, None);
}

#[tokio::test(start_paused = true)]
async fn a_retry_that_was_refused_costs_nothing() {
    let costly = BudgetPolicy { free: 0, ..BudgetPolicy::default() };
    for alternatives in [0, 1] {
        let budget = RetryBudget::new(costly);
        let layer = layer(exact()).with_budget(budget.clone());
        let request = plain_request(|context| context.alternatives = alternatives);
        // Without failover nobody waits for a turn.
        let script = [Err(fail(Reason::ServerError)), Err(turn(secs(1)))];
        assert!(run_script(&layer, request, script).await.answer.is_err());
        assert_eq!(budget.remaining(), 500);
    }
    // The retry that waited for its turn is paid once.
    let budget = RetryBudget::new(costly);
    let layer = layer(exact()).with_budget(budget.clone());
    let request = plain_request(|context| context.routed = Some(routed().0));
    let turn = || Err(turn(secs(1)));
    let script = [Err(fail(Reason::ServerError)), turn(), turn(), Err(fail(Reason::Format))];
    assert_eq!(run_script(&layer, request, script).await.unused, 0);
    assert_eq!(budget.remaining(), 500 - 14);
}

#[tokio::test(start_paused = true)]
async fn nothing_is_lost_when_the_call_is_dropped() {
    // It fails after 1 s, its retry is refused at 1.5 s and sent again between 2 and 2.5 s: then it hangs.
    for (at, paid) in [(ms(500), 0), (ms(1_200), 0), (ms(1_800), 0), (ms(3_000), 14)] {
        let budget = RetryBudget::new(BudgetPolicy { free: 0, ..BudgetPolicy::default() });
        let layer = layer(exact()).with_budget(budget.clone());
        let calls = Arc::new(AtomicU32::new(0));
        let service = layer.layer(service_fn(move |_| {
            let call = calls.fetch_add(1, Ordering::Relaxed);
            async move {
                match call {
                    0 => tokio::time::sleep(secs(1)).await,
                    1 => return Err(turn(secs(1))),
                    _ => std::future::pending().await,
                }
                Err::<(), Failure>(fail(Reason::ServerError))
            }
        }));
        let request = plain_request(|context| context.routed = Some(routed().0));
        let alive = request.clones.clone();
        assert!(tokio::time::timeout(at, service.oneshot(request)).await.is_err());
        assert_eq!(budget.remaining(), 500 - paid, "{at:?}");
        assert_eq!(Arc::strong_count(&alive), 1, "{at:?}: the request is gone");
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_that_may_not_wait_ends_with_its_failure() {
    let budget = RetryBudget::new(BudgetPolicy { max_waiting: 1, ..BudgetPolicy::default() });
    let layer = layer(exact()).with_budget(budget.clone());
    let fails = || service_fn(async |_: PlainRequest| Err::<(), _>(fail(Reason::ServerError)));
    let mut first = tokio_test::task::spawn(
        layer.clone().at_once().layer(fails()).oneshot(plain_request(|_| ())),
    );
    assert!(first.poll().is_pending());
    assert_eq!(budget.waiting(), 1);
    let request = plain_request(|context| context.log = steadfast_core::RecoveryLog::enabled());
    let log = request.context.log.clone();
    let failure = layer.clone().at_once().layer(fails()).oneshot(request).await.unwrap_err();
    assert_eq!((failure.reason(), failure.attempts()), (Reason::ServerError, 1));
    assert!(failure.is_crowded(), "whoever called may ask again");
    assert!(log.to_string().contains("retry.gave_up server_error crowded"), "{log}");
    drop(first);
    assert_eq!(budget.waiting(), 0, "a call that is dropped waits no longer");
    let run =
        run_script(&layer, plain_request(|_| ()), [Err(fail(Reason::ServerError)), Ok("yes")])
            .await;
    assert_eq!((run.answer.is_ok(), budget.waiting()), (true, 0));
}
