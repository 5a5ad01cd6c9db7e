//! Hedged calls: a second target when the first one has no content in time.

mod support;

use std::num::NonZeroU32;

use steadfast_core::{AtOnce, BudgetPolicy, Failure, Reason, RetryBudget};
use steadfast_failover::{CooldownFailoverLayer, OneChain, TargetSpec};
use support::*;
use tokio::time::{Instant, advance};
use tower::{Layer, ServiceExt, limit::ConcurrencyLimit};

fn hedging() -> CooldownFailoverLayer<OneChain, AtOnce> {
    abc().with_hedge(secs(2)).at_once()
}

#[tokio::test(start_paused = true)]
async fn hedging_is_off_by_default() {
    let providers = Providers::new();
    providers.set("a", after(secs(500), Action::Answer));
    for layer in [abc().at_once(), abc().with_hedge(secs(0)).at_once()] {
        assert_eq!(send(&layer, &providers, PlainRequest::new()).await.unwrap(), "a");
        assert_eq!(providers.calls(), ["a"]);
    }
}

#[tokio::test(start_paused = true)]
async fn the_first_content_wins_and_the_loser_is_dropped() {
    let providers = Providers::new();
    providers.set("a", after(secs(30), Action::Answer)).set("b", after(secs(1), Action::Answer));
    let (start, request) = (Instant::now(), PlainRequest::new());
    let log = request.log();
    let layer = hedging();
    assert_eq!(send(&layer, &providers, request).await.unwrap(), "b");
    assert_eq!(
        (start.elapsed(), providers.in_flight(), providers.dropped()),
        (secs(3), 0, vec!["a".to_owned()])
    );
    assert!(log.to_string().contains("failover.hedged b 2000ms; failover.outrun a"), "{log}");
    // Being slower than the hedge is no failure.
    let snapshot = layer.handle().snapshot();
    assert_eq!(snapshot.get(&target("a")).unwrap().errors, 0);
    assert!(snapshot.get(&target("b")).unwrap().last_success.is_some());
    let attempts: Vec<_> =
        providers.received().iter().map(|received| received.request.context.attempts).collect();
    assert_eq!(attempts, [0, 1]);
}

#[tokio::test(start_paused = true)]
async fn the_first_target_may_still_win() {
    let providers = Providers::new();
    providers.set("a", after(secs(3), Action::Answer)).set("b", after(secs(30), Action::Answer));
    assert_eq!(send(&hedging(), &providers, PlainRequest::new()).await.unwrap(), "a");
    assert_eq!(providers.dropped(), ["b"]);
}

#[tokio::test(start_paused = true)]
async fn an_answer_in_time_is_not_hedged_and_a_failure_is_not_waited_for() {
    let providers = Providers::new();
    providers
        .set("a", after(secs(1), fail(Reason::Network)))
        .set("b", after(secs(1), Action::Answer));
    let start = Instant::now();
    assert_eq!(send(&hedging(), &providers, PlainRequest::new()).await.unwrap(), "b");
    assert_eq!(
        (start.elapsed(), providers.calls()),
        (secs(2), vec!["a".to_owned(), "b".to_owned()])
    );
}

#[tokio::test(start_paused = true)]
async fn one_of_two_may_fail_in_either_order() {
    for (a, b) in [(5, 9), (9, 5)] {
        let providers = Providers::new();
        let action = |time: u64| {
            let end = if time == 5 { fail(Reason::ServerError) } else { Action::Answer };
            after(secs(time), end)
        };
        providers.set("a", action(a)).set("b", action(b));
        let answer = send(&hedging(), &providers, PlainRequest::new()).await.unwrap();
        assert_eq!(answer, if a == 9 { "a" } else { "b" });
        assert_eq!(providers.calls(), ["a", "b"], "the other one is waited for");
    }
}

#[tokio::test(start_paused = true)]
async fn when_both_fail_the_next_target_is_called() {
    let providers = Providers::new();
    providers.set("a", after(secs(5), fail(Reason::ServerError)));
    providers.set("b", after(secs(1), fail(Reason::Format)));
    // A malformed request ends the call, but not before the other attempt has ended.
    let failure = send(&hedging(), &providers, PlainRequest::new()).await.unwrap_err();
    assert_eq!(providers.calls(), ["a", "b"]);
    assert_eq!((failure.reason(), failure.trail().len()), (Reason::Format, 2));

    providers.set("b", after(secs(1), fail(Reason::ServerError)));
    assert_eq!(send(&hedging(), &providers, PlainRequest::new()).await.unwrap(), "c");
    assert_eq!(providers.calls(), ["a", "b", "c"]);
}

#[tokio::test(start_paused = true)]
async fn a_final_failure_ends_both() {
    let providers = Providers::new();
    providers.set("a", after(secs(5), fail(Reason::Safety))).set("b", Action::Hang);
    let start = Instant::now();
    let failure = send(&hedging(), &providers, PlainRequest::new()).await.unwrap_err();
    assert_eq!((failure.reason(), start.elapsed()), (Reason::Safety, secs(5)));
    assert_eq!(providers.dropped(), ["b"]);
}

#[tokio::test(start_paused = true)]
async fn a_hedge_that_waits_for_its_service_is_not_sent_after_a_final_failure() {
    for (reason, calls) in
        [(Reason::Safety, &["a"][..]), (Reason::Format, &["a"]), (Reason::ServerError, &["a", "b"])]
    {
        let providers = Providers::new();
        providers.set("a", after(secs(5), fail(reason)));
        // Not ready until the first attempt is over.
        let service = hedging().layer(ConcurrencyLimit::new(providers.client(), 1));
        let result = service.oneshot(PlainRequest::new()).await;
        assert_eq!(providers.calls(), calls, "{reason}");
        assert_eq!(
            result.err().map(|failure| failure.reason()),
            (calls.len() == 1).then_some(reason)
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_hedge_needs_another_provider_that_is_not_cooling() {
    let providers = Providers::new();
    providers.set("a", after(secs(9), Action::Answer));
    let two_keys = TargetSpec::new("a").with_credential("1").with_credential("2");
    let layer = CooldownFailoverLayer::new(chain([two_keys])).with_hedge(secs(2)).at_once();
    send(&layer, &providers, PlainRequest::new()).await.unwrap();
    assert_eq!(providers.calls(), ["a#1"]);
    // A cooling target is no hedge either.
    let layer = hedging();
    layer.handle().cool(&target("b"), secs(60));
    layer.handle().cool(&target("c"), secs(60));
    send(&layer, &providers, PlainRequest::new()).await.unwrap();
    assert_eq!(providers.calls(), ["a"]);
    // Nor is one that is asked only when nobody else is left.
    let layer = hedging();
    providers.set("a", fail(Reason::Unsupported));
    rest(&layer, &providers, "b").await;
    layer.handle().cool(&target("c"), secs(60));
    providers.set("a", after(secs(9), Action::Answer)).repair("b");
    send(&layer, &providers, PlainRequest::new()).await.unwrap();
    assert_eq!(providers.calls(), ["a"]);
}

#[tokio::test(start_paused = true)]
async fn a_hedge_counts_for_attempts_and_budget() {
    let providers = Providers::new();
    providers.set("a", after(secs(9), Action::Answer));
    let mut request = PlainRequest::new();
    request.context.max_attempts = NonZeroU32::new(1);
    send(&hedging(), &providers, request).await.unwrap();
    assert_eq!(providers.calls(), ["a"]);

    let budget = RetryBudget::new(BudgetPolicy { capacity: 20, ..BudgetPolicy::default() });
    let layer = abc().with_hedge(secs(2)).with_budget(budget.clone()).at_once();
    providers.set("b", Action::Hang);
    send(&layer, &providers, PlainRequest::new()).await.unwrap();
    assert_eq!(providers.calls(), ["a", "b"]);
    assert_eq!(budget.remaining(), 6, "a hedge that lost is not refunded");
    send(&layer, &providers, PlainRequest::new()).await.unwrap();
    assert_eq!(providers.calls(), ["a"], "too little is left for another");
}

#[tokio::test(start_paused = true)]
async fn both_attempts_share_the_limit_of_attempts() {
    let providers = Providers::new();
    providers.set("a", after(secs(5), fail(Reason::ServerError)));
    providers.set("b", after(secs(5), fail(Reason::ServerError)));
    let received = |max, already| {
        let mut request = PlainRequest::new();
        request.context.max_attempts = NonZeroU32::new(max);
        request.context.attempts = already;
        let providers = &providers;
        async move {
            providers.calls();
            let _ = send(&hedging(), providers, request).await;
            let context = |received: &Received| {
                let context = &received.request.context;
                (context.attempts, context.max_attempts.unwrap().get())
            };
            providers.received().iter().map(context).collect::<Vec<_>>()
        }
    };
    // The first may use all but one, which is reserved for the hedge; the third has the rest.
    assert_eq!(received(5, 0).await, [(0, 4), (1, 2), (2, 5)]);
    assert_eq!(received(6, 1).await, [(1, 5), (2, 3), (3, 6)]);
    // With one left there is no hedge, and nothing is reserved for it.
    assert_eq!(received(3, 2).await, [(2, 3)]);
}

fn whole() -> PlainRequest {
    PlainRequest { whole: true, ..PlainRequest::new() }
}

/// Two of three hang: what is not answered by either is not lost.
#[tokio::test(start_paused = true)]
async fn each_further_time_of_a_stall_one_more_target_is_asked_for_a_whole_answer() {
    let providers = Providers::new();
    let layer = abc().at_once();
    providers
        .set("a", Action::Hang)
        .set("b", Action::Hang)
        .set("c", after(secs(1), Action::Answer));
    let (start, request) = (Instant::now(), whole());
    let log = request.log();
    assert_eq!(send(&layer, &providers, request).await.unwrap(), "c");
    let at = |name: &str, secs: u128| (name.to_owned(), secs * 1_000);
    assert_eq!(providers.times(start), [at("a", 0), at("b", 180), at("c", 360)]);
    assert_eq!((start.elapsed(), providers.in_flight()), (secs(361), 0));
    let steps = "failover.hedged b 180000ms; failover.hedged c 180000ms; failover.outrun a; failover.outrun b";
    assert!(log.to_string().contains(steps), "{log}");
    let snapshot = layer.handle().snapshot();
    let errors = ["a", "b", "c"].map(|name| snapshot.get(&target(name)).map_or(0, |it| it.errors));
    assert_eq!(errors, [1, 1, 0], "held against both");

    // The first may still be the one that answers, and then nothing is held against it.
    let layer = abc().at_once();
    providers.set("a", after(secs(400), Action::Answer)).set("c", Action::Hang);
    assert_eq!(send(&layer, &providers, whole()).await.unwrap(), "a");
    assert_eq!(providers.in_flight(), 0);
    assert_eq!(layer.handle().snapshot().get(&target("a")).unwrap().errors, 0);
}

#[tokio::test(start_paused = true)]
async fn a_target_that_was_moved_on_to_and_fails_is_followed_by_the_next_at_once() {
    let providers = Providers::new();
    providers.set("a", Action::Hang).set("b", after(secs(2), fail(Reason::ServerError)));
    let start = Instant::now();
    assert_eq!(send(&abc().at_once(), &providers, whole()).await.unwrap(), "c");
    assert_eq!(start.elapsed(), secs(182));
    assert_eq!(providers.dropped(), ["a"]);

    // One that the request can not be made to fit is passed over.
    let providers = Providers::new();
    providers.set("a", Action::Hang);
    let request = PlainRequest { unfit_for: Some("b"), ..whole() };
    assert_eq!(send(&abc().at_once(), &providers, request).await.unwrap(), "c");
    assert_eq!(providers.calls(), ["a", "c"]);

    // What ends the call waits for what is under way.
    providers.set("a", after(secs(200), Action::Answer)).set("b", fail(Reason::Format));
    assert_eq!(send(&abc().at_once(), &providers, whole()).await.unwrap(), "a");
    assert_eq!(providers.calls(), ["a", "b"]);

    // All of them fail: the call goes round.
    providers.set("a", after(secs(190), fail(Reason::ServerError)));
    providers.set("b", fail(Reason::ServerError)).set("c", fail(Reason::ServerError));
    let failure = send(&abc().at_once(), &providers, whole()).await.unwrap_err();
    assert_eq!((failure.reason(), providers.in_flight()), (Reason::Exhausted, 0));
}

/// What several at once may spend could not be shared out.
#[tokio::test(start_paused = true)]
async fn where_attempts_are_limited_there_is_one_beside_and_no_third() {
    let providers = Providers::new();
    providers.set("a", after(secs(500), Action::Answer)).set("b", Action::Hang);
    let mut request = whole();
    request.context.max_attempts = NonZeroU32::new(9);
    assert_eq!(send(&abc().at_once(), &providers, request).await.unwrap(), "a");
    assert_eq!(providers.calls(), ["a", "b"]);
}

#[tokio::test(start_paused = true)]
async fn dropping_the_call_drops_both() {
    let providers = Providers::new();
    providers.set("a", Action::Hang).set("b", Action::Hang);
    let layer = hedging();
    let mut call = tokio_test::task::spawn(send(&layer, &providers, PlainRequest::new()));
    assert!(call.poll().is_pending());
    advance(secs(2)).await;
    assert!(call.is_woken());
    assert!(call.poll().is_pending());
    assert_eq!(providers.in_flight(), 2);
    drop(call);
    assert_eq!(providers.in_flight(), 0);
    assert_eq!(layer.handle().snapshot().cooling().count(), 0);
}

#[tokio::test(start_paused = true)]
async fn the_chain_continues_after_a_failed_hedge() {
    let providers = Providers::new();
    let retry_later = || Failure::new(Reason::RateLimit, "").with_retry_after(Some(secs(30)));
    providers.set("a", after(secs(3), fail_with(retry_later)));
    providers.set("b", after(secs(5), fail(Reason::Network)));
    let start = Instant::now();
    assert_eq!(send(&hedging(), &providers, PlainRequest::new()).await.unwrap(), "c");
    assert_eq!(start.elapsed(), secs(7));
}

#[tokio::test(start_paused = true)]
async fn a_hedge_that_a_spend_cap_has_no_room_for_ends_alone() {
    let unpaid = || Failure::refused(Reason::SpendCap, "the cap leaves too little");
    // The attempt under way answers.
    let providers = Providers::new();
    providers.set("a", after(secs(5), Action::Answer)).set("b", fail_with(unpaid));
    let request = PlainRequest::new();
    let log = request.log();
    assert_eq!(send(&hedging(), &providers, request).await.unwrap(), "a");
    assert_eq!(providers.calls(), ["a", "b"]);
    assert!(log.to_string().contains("a spend cap has no room"), "{log}");
    // It fails: by then there may be room.
    let providers = Providers::new();
    providers.set("a", after(secs(5), fail(Reason::Network))).set("b", fail_with(unpaid));
    assert_eq!(send(&hedging(), &providers, PlainRequest::new()).await.unwrap(), "c");
    assert_eq!(providers.calls(), ["a", "b", "c"]);
    // Alone it ends the call.
    let providers = Providers::new();
    providers.set("a", fail_with(unpaid));
    let failure = send(&hedging(), &providers, PlainRequest::new()).await.unwrap_err();
    assert_eq!((failure.reason(), providers.calls()), (Reason::SpendCap, vec!["a".to_owned()]));
    // What is forbidden for safety ends all, beside others, too.
    let providers = Providers::new();
    let unsafe_ = || Failure::new(Reason::Safety, "it loops");
    providers.set("a", after(secs(5), Action::Answer)).set("b", fail_with(unsafe_));
    let failure = send(&hedging(), &providers, PlainRequest::new()).await.unwrap_err();
    assert_eq!((failure.reason(), providers.in_flight()), (Reason::Safety, 0));
}
