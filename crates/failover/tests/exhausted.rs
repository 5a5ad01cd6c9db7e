//! How a call ends when no target answers.

mod support;

use std::{error::Error, num::NonZeroU32, time::Duration};

use steadfast_core::{Attempt, BudgetPolicy, Deadline, Failure, Reason, Retry, RetryBudget, Usage};
use steadfast_failover::{CooldownFailoverLayer, TargetSpec, WhenExhausted};
use support::*;
use tokio::time::{Instant, advance};

fn trail(failure: &Failure) -> Vec<String> {
    failure.trail().iter().map(ToString::to_string).collect()
}

#[tokio::test(start_paused = true)]
async fn the_failure_lists_all_attempts_and_has_the_last_one_as_source() {
    let providers = Providers::new();
    providers.set("a", fail(Reason::Overloaded)).set("b", fail(Reason::Auth));
    providers.set(
        "c",
        fail_with(|| {
            Failure::new(Reason::ServerError, "it broke")
                .with_usage(Usage::new(7, 0))
                .with_attempts(4)
        }),
    );
    let layer = abc().at_once();
    let request = PlainRequest::new();
    let log = request.log();
    let failure = send(&layer, &providers, request).await.unwrap_err();
    assert_eq!(failure.reason(), Reason::Exhausted);
    let tried = ["a: overloaded", "b: auth", "c: server_error", "a: overloaded", "c: server_error"];
    assert_eq!(trail(&failure), tried);
    let wait = |attempt: &Attempt| attempt.retry_after.map(|wait| wait.as_secs_f64().ceil());
    let waits: Vec<_> = failure.trail().iter().map(wait).collect();
    assert_eq!(waits, [2.0, 600.0, 2.0, 2.0, 2.0].map(Some), "of each target, from now on");
    assert_eq!(failure.attempts(), 11);
    assert_eq!(failure.message(), "no target is left: 5 failed; last server_error at c: it broke");
    let source = failure.source().unwrap().downcast_ref::<Failure>().unwrap();
    assert_eq!(source.reason(), Reason::ServerError);
    assert_eq!(failure.retry_after(), Some(secs(2)), "the soonest of 2, 600 and 2 s");
    assert_eq!(failure.usage().unwrap().input, Some(14));
    assert_eq!(failure.http_status(), 503);
    let steps = log.to_string();
    for step in [
        "failover.switched b overloaded",
        "failover.cooled b auth 600000ms",
        "failover.switched c auth",
        "failover.exhausted server_error",
    ] {
        assert!(steps.contains(step), "{step} in {steps}");
    }
}

#[tokio::test(start_paused = true)]
async fn all_limited_is_a_429_with_the_soonest_hint() {
    let providers = Providers::new();
    providers.set("a", limited(90)).set("b", limited(70)).set("c", limited(80));
    let layer = abc().at_once();
    let failure = send(&layer, &providers, PlainRequest::new()).await.unwrap_err();
    assert_eq!((failure.http_status().as_u16(), failure.retry_after()), (429, Some(secs(70))));
    let waits: Vec<_> = failure.trail().iter().map(|attempt| attempt.retry_after).collect();
    assert_eq!(waits, [90, 70, 80].map(|wait| Some(secs(wait))));
    assert_eq!((failure.reason(), failure.attempts()), (Reason::Exhausted, 3));
    // A target that is held when the call ends has been tried, and not skipped.
    providers.set("a", limited(30)).set("b", limited(50));
    layer.handle().reset_all();
    let mut urgent = PlainRequest::new();
    urgent.context.deadline = Some(Deadline::after(secs(40)));
    let failure = send(&layer, &providers, urgent).await.unwrap_err();
    let rate_limited = ["a: rate_limit (429)", "b: rate_limit (429)", "c: rate_limit (429)"];
    assert_eq!(trail(&failure), [&rate_limited[..], &rate_limited[..1]].concat());
    assert_eq!((failure.http_status().as_u16(), failure.retry_after()), (429, Some(secs(20))));
}

#[tokio::test(start_paused = true)]
async fn a_target_that_may_be_asked_at_once_is_no_reason_to_come_back_later() {
    let providers = Providers::new();
    providers.set("a", limited(90)).set("b", fail(Reason::ServerError));
    let layer = CooldownFailoverLayer::new(chain(["a", "b"]))
        .with_when_exhausted(WhenExhausted::Fail)
        .at_once();
    let failure = send(&layer, &providers, PlainRequest::new()).await.unwrap_err();
    assert_eq!(failure.retry_after(), None);
    providers.set("b", fail(Reason::Unsupported));
    let failure = send(&layer, &providers, PlainRequest::new()).await.unwrap_err();
    assert_eq!(failure.retry_after(), Some(secs(90)), "`b` never serves this request");
}

#[tokio::test(start_paused = true)]
async fn a_second_call_with_all_keys_refused_says_so_and_asks_nobody() {
    for (reason, wait, status) in [
        (Reason::Auth, 600, 503),
        (Reason::Billing, 1_800, 503),
        (Reason::ModelNotFound, 3_600, 404),
    ] {
        let keys = TargetSpec::new("a").with_credential("1").with_credential("2");
        for chain in [chain([TargetSpec::new("a")]), chain([keys, TargetSpec::new("b")])] {
            let (providers, targets) = (Providers::new(), chain.len());
            providers.set_all(&["a", "b"], &fail(reason));
            let layer = CooldownFailoverLayer::new(chain).at_once();
            drop(send(&layer, &providers, PlainRequest::model("m")).await.unwrap_err());
            providers.calls();
            advance(secs(10)).await;
            let failure = send(&layer, &providers, PlainRequest::model("m")).await.unwrap_err();
            assert!(providers.calls().is_empty());
            assert_eq!((failure.reason(), failure.because()), (reason, Some(reason)));
            assert_eq!((failure.retry(), failure.attempts()), (Retry::No, 0));
            let back = (reason != Reason::ModelNotFound).then(|| secs(wait - 10));
            assert_eq!(failure.retry_after(), back, "a fact");
            assert_eq!(failure.http_status(), status);
            assert_eq!(failure.target().is_some(), targets == 1);
            // The message of the provider, and in the trail why it was not asked.
            assert!(failure.message().ends_with(&format!("{reason} it is")), "{failure}");
            let text = format!("cooling for {}.0 s more after {reason}", wait - 10);
            assert!(failure.trail().iter().all(|one| *one.message == *text), "{failure:?}");
            assert!(failure.trail().iter().all(|one| one.skipped && one.reason == reason));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn refusals_of_several_kinds_are_an_exhausted_chain() {
    let providers = Providers::new();
    providers.set("a", fail(Reason::Auth)).set("b", fail(Reason::Billing));
    let layer = CooldownFailoverLayer::new(chain(["a", "b"])).at_once();
    drop(send(&layer, &providers, PlainRequest::new()).await.unwrap_err());
    let failure = send(&layer, &providers, PlainRequest::new()).await.unwrap_err();
    assert_eq!((failure.reason(), failure.retry()), (Reason::Exhausted, Retry::No));
    assert_eq!(trail(&failure), ["a: skipped, auth", "b: skipped, billing"]);
    assert_eq!(failure.retry_after(), Some(secs(600)));
    // What an operator leaves alone is cooling, and no more is known.
    let single = CooldownFailoverLayer::new(chain(["a"])).at_once();
    single.handle().cool(&target("a"), secs(60));
    let failure = send(&single, &providers, PlainRequest::new()).await.unwrap_err();
    assert_eq!((failure.reason(), failure.retry_after()), (Reason::Cooling, Some(secs(60))));
}

#[tokio::test(start_paused = true)]
async fn the_operators_bad_keys_are_not_the_callers_401() {
    let providers = Providers::new();
    for name in ["a", "b", "c"] {
        providers.set(name, fail(Reason::Auth));
    }
    let failure = send(&abc().at_once(), &providers, PlainRequest::new()).await.unwrap_err();
    assert_eq!(failure.http_status(), 503);
}

#[tokio::test(start_paused = true)]
async fn a_single_target_returns_its_own_failure() {
    let providers = Providers::new();
    providers.set("a", limited(90));
    let layer = CooldownFailoverLayer::new(chain(["a"])).at_once();
    for calls in 1..4 {
        let failure = send(&layer, &providers, PlainRequest::new()).await.unwrap_err();
        assert_eq!((failure.reason(), failure.retry_after()), (Reason::RateLimit, Some(secs(90))));
        assert_eq!((failure.attempts(), failure.http_status().as_u16()), (1, 429));
        assert_eq!(failure.target().unwrap().to_string(), "a");
        assert!(failure.trail().is_empty());
        assert_eq!(providers.calls().len(), 1, "call {calls} asks in spite of the rest");
        advance(secs(30)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn fail_makes_no_call() {
    let providers = Providers::new();
    providers.set_all(&["a", "b", "c"], &fail(Reason::ServerError));
    let layer = abc().with_when_exhausted(WhenExhausted::Fail).at_once();
    for _ in 0..2 {
        drop(send(&layer, &providers, PlainRequest::new()).await.unwrap_err());
        assert_eq!(providers.calls(), ["a", "b", "c"], "one round");
    }
    advance(Duration::from_millis(500)).await;
    let failure = send(&layer, &providers, PlainRequest::new()).await.unwrap_err();
    assert!(providers.calls().is_empty());
    assert_eq!(failure.retry_after(), Some(Duration::from_millis(1_500)));
    assert_eq!(failure.http_status(), 502, "all have the same reason");
    advance(Duration::from_millis(500)).await;
    drop(send(&layer, &providers, PlainRequest::new()).await.unwrap_err());
    assert_eq!(providers.calls(), ["a", "b", "c"], "as probes");
}

#[tokio::test(start_paused = true)]
async fn wait_waits_for_the_first_to_come_back() {
    let providers = Providers::new();
    providers.set("a", limited(50)).set("b", limited(40)).set("c", limited(300));
    let layer = abc().with_when_exhausted(WhenExhausted::Wait(secs(60))).at_once();
    // The same call asks a target again after its hint.
    let start = Instant::now();
    let mut call = tokio_test::task::spawn(send(&layer, &providers, PlainRequest::new()));
    assert!(call.poll().is_pending());
    providers.repair("b");
    assert_eq!(call.await.unwrap(), "b");
    assert_eq!(start.elapsed(), secs(40));
    assert_eq!(providers.calls(), ["a", "b", "c", "b"]);
}

#[tokio::test(start_paused = true)]
async fn wait_asks_what_rests_as_a_probe_alone() {
    let providers = Providers::new();
    let layer = CooldownFailoverLayer::new(chain(["a", "b"]))
        .with_when_exhausted(WhenExhausted::Wait(secs(60)))
        .at_once();
    rest(&layer, &providers, "a").await;
    layer.handle().cool(&target("b"), secs(30));
    providers.repair("a");
    let start = Instant::now();
    assert_eq!(send(&layer, &providers, PlainRequest::new()).await.unwrap(), "a");
    assert_eq!(start.elapsed(), secs(1), "at the half of its rest");
    // An operator's cooldown is waited for too.
    layer.handle().cool(&target("a"), secs(60));
    assert_eq!(send(&layer, &providers, PlainRequest::new()).await.unwrap(), "b");
    assert_eq!(start.elapsed(), secs(30));
}

#[tokio::test(start_paused = true)]
async fn wait_is_bounded_by_its_limit_and_the_deadline() {
    let providers = Providers::new();
    providers.set_all(&["a", "b", "c"], &limited(10));
    let layer = abc().with_when_exhausted(WhenExhausted::Wait(secs(25))).at_once();
    let start = Instant::now();
    let failure = send(&layer, &providers, PlainRequest::new()).await.unwrap_err();
    assert_eq!(failure.reason(), Reason::Exhausted);
    assert_eq!(providers.calls().concat(), "abcabcabc");
    assert_eq!(start.elapsed(), secs(20));

    layer.handle().reset_all();
    let mut urgent = PlainRequest::new();
    urgent.context.deadline = Some(Deadline::after(secs(9)));
    let start = Instant::now();
    let failure = send(&layer, &providers, urgent).await.unwrap_err();
    assert_eq!((start.elapsed(), failure.retry_after()), (secs(0), Some(secs(10))));

    providers.set_all(&["a", "b", "c"], &limited(26));
    layer.handle().reset_all();
    let start = Instant::now();
    drop(send(&layer, &providers, PlainRequest::new()).await.unwrap_err());
    assert_eq!(start.elapsed(), secs(0), "too long, so not at all");
}

#[tokio::test(start_paused = true)]
async fn a_dropped_wait_makes_no_call() {
    let providers = Providers::new();
    providers.set("a", limited(30));
    let layer = CooldownFailoverLayer::new(chain(["a"]))
        .with_when_exhausted(WhenExhausted::Wait(secs(60)))
        .at_once();
    let mut call = tokio_test::task::spawn(send(&layer, &providers, PlainRequest::new()));
    assert!(call.poll().is_pending());
    drop(call);
    advance(secs(60)).await;
    assert_eq!(providers.calls(), ["a"]);
}

#[tokio::test(start_paused = true)]
async fn attempts_are_limited_over_the_chain() {
    let providers = Providers::new();
    for name in ["a", "b", "c"] {
        providers.set(name, fail(Reason::ServerError));
    }
    let mut request = PlainRequest::new();
    request.context.max_attempts = NonZeroU32::new(4);
    request.context.attempts = 2;
    let failure = send(&abc().at_once(), &providers, request).await.unwrap_err();
    assert_eq!(providers.calls(), ["a", "b"]);
    assert!(failure.message().contains("all the attempts it may have: 2 failed"), "{failure}");
    assert_eq!(failure.retry_after(), None, "`c` is not cooling");
    let mut spent = PlainRequest::new();
    spent.context.max_attempts = NonZeroU32::new(2);
    spent.context.attempts = 2;
    let failure = send(&abc().at_once(), &providers, spent).await.unwrap_err();
    assert_eq!((failure.reason(), providers.calls().len()), (Reason::Budget, 0));
}

#[tokio::test(start_paused = true)]
async fn a_passed_deadline_ends_it() {
    let providers = Providers::new();
    providers.set("a", after(secs(3), fail(Reason::ServerError)));
    let mut request = PlainRequest::new();
    request.context.deadline = Some(Deadline::after(secs(2)));
    let failure = send(&abc().at_once(), &providers, request).await.unwrap_err();
    assert_eq!((failure.reason(), providers.calls()), (Reason::ServerError, vec!["a".to_owned()]));
}

#[tokio::test(start_paused = true)]
async fn a_refusal_of_an_inner_breaker_costs_nothing_and_keeps_its_hint() {
    let refused =
        fail_with(|| Failure::refused(Reason::CircuitOpen, "").with_retry_after(Some(secs(12))));
    let providers = Providers::new();
    providers.set_all(&["a", "b", "c"], &refused);
    let budget = RetryBudget::new(BudgetPolicy { capacity: 0, ..BudgetPolicy::default() });
    let layer = abc().with_budget(budget).at_once();
    let mut urgent = PlainRequest::new();
    urgent.context.deadline = Some(Deadline::after(secs(10)));
    let failure = send(&layer, &providers, urgent).await.unwrap_err();
    assert_eq!(providers.calls(), ["a", "b", "c"]);
    assert_eq!((failure.attempts(), failure.retry_after()), (0, Some(secs(12))));
    let snapshot = layer.handle().snapshot();
    let cooling: Vec<_> =
        snapshot.cooling().map(|health| (health.errors, health.cooling.unwrap().reason)).collect();
    assert_eq!(cooling, [(0, Reason::CircuitOpen); 3], "no failure of a target");
    // With the time for it, the call waits for its turn, and is no attempt before that.
    let start = Instant::now();
    let mut call = tokio_test::task::spawn(send(&layer, &providers, PlainRequest::new()));
    assert!(call.poll().is_pending());
    providers.repair("c");
    assert_eq!(call.await.unwrap(), "c");
    assert_eq!(start.elapsed(), secs(12));
}
