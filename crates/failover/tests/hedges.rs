//! A second target beside one that does not begin to answer.

mod support;

use std::num::NonZeroU32;

use steadfast_core::{AtOnce, BudgetPolicy, Failure, Reason, RetryBudget};
use steadfast_failover::{CooldownFailoverLayer, OneChain, TargetSpec};
use support::*;
use tokio::time::{Instant, advance};

fn hedging() -> CooldownFailoverLayer<OneChain, AtOnce> {
    abc().with_hedge(secs(2)).at_once()
}

#[tokio::test(start_paused = true)]
async fn off_unless_asked() {
    let world = World::new();
    world.set("a", after(secs(500), Act::Answer));
    for layer in [abc().at_once(), abc().with_hedge(secs(0)).at_once()] {
        assert_eq!(ask(&layer, &world, Ask::new()).await.unwrap(), "a");
        assert_eq!(world.calls(), ["a"]);
    }
}

#[tokio::test(start_paused = true)]
async fn the_first_content_wins_and_the_loser_is_dropped() {
    let world = World::new();
    world.set("a", after(secs(30), Act::Answer)).set("b", after(secs(1), Act::Answer));
    let (start, request) = (Instant::now(), Ask::new());
    let log = request.log();
    let layer = hedging();
    assert_eq!(ask(&layer, &world, request).await.unwrap(), "b");
    assert_eq!(
        (start.elapsed(), world.open(), world.dropped()),
        (secs(3), 0, vec!["a".to_owned()])
    );
    assert!(log.to_string().contains("failover.hedged b 2000ms; failover.outrun a"), "{log}");
    // Being slower than somebody else is no failure.
    let snapshot = layer.handle().snapshot();
    assert_eq!(snapshot.get(&target("a")).unwrap().errors, 0);
    assert!(snapshot.get(&target("b")).unwrap().last_success.is_some());
    let attempts: Vec<_> = world.seen().iter().map(|seen| seen.ask.context.attempts).collect();
    assert_eq!(attempts, [0, 1]);
}

#[tokio::test(start_paused = true)]
async fn the_first_may_win_after_all() {
    let world = World::new();
    world.set("a", after(secs(3), Act::Answer)).set("b", after(secs(30), Act::Answer));
    assert_eq!(ask(&hedging(), &world, Ask::new()).await.unwrap(), "a");
    assert_eq!(world.dropped(), ["b"]);
}

#[tokio::test(start_paused = true)]
async fn an_answer_in_time_is_not_hedged_and_a_failure_is_not_waited_for() {
    let world = World::new();
    world.set("a", after(secs(1), fail(Reason::Network))).set("b", after(secs(1), Act::Answer));
    let start = Instant::now();
    assert_eq!(ask(&hedging(), &world, Ask::new()).await.unwrap(), "b");
    assert_eq!((start.elapsed(), world.calls()), (secs(2), vec!["a".to_owned(), "b".to_owned()]));
}

#[tokio::test(start_paused = true)]
async fn one_of_two_may_fail_in_either_order() {
    for (a, b) in [(5, 9), (9, 5)] {
        let world = World::new();
        let act = |time: u64| {
            let end = if time == 5 { fail(Reason::ServerError) } else { Act::Answer };
            after(secs(time), end)
        };
        world.set("a", act(a)).set("b", act(b));
        let answer = ask(&hedging(), &world, Ask::new()).await.unwrap();
        assert_eq!(answer, if a == 9 { "a" } else { "b" });
        assert_eq!(world.calls(), ["a", "b"], "the other one is waited for");
    }
}

#[tokio::test(start_paused = true)]
async fn when_both_fail_the_call_goes_on() {
    let world = World::new();
    world.set("a", after(secs(5), fail(Reason::ServerError)));
    world.set("b", after(secs(1), fail(Reason::Format)));
    // What one provider finds malformed ends the call, but not before the other has spoken.
    let failure = ask(&hedging(), &world, Ask::new()).await.unwrap_err();
    assert_eq!(world.calls(), ["a", "b"]);
    assert_eq!((failure.reason(), failure.trail().len()), (Reason::Format, 2));

    world.set("b", after(secs(1), fail(Reason::ServerError)));
    assert_eq!(ask(&hedging(), &world, Ask::new()).await.unwrap(), "c");
    assert_eq!(world.calls(), ["a", "b", "c"]);
}

#[tokio::test(start_paused = true)]
async fn a_forbidden_end_ends_both() {
    let world = World::new();
    world.set("a", after(secs(5), fail(Reason::Safety))).set("b", Act::Hang);
    let start = Instant::now();
    let failure = ask(&hedging(), &world, Ask::new()).await.unwrap_err();
    assert_eq!((failure.reason(), start.elapsed()), (Reason::Safety, secs(5)));
    assert_eq!(world.dropped(), ["b"]);
}

#[tokio::test(start_paused = true)]
async fn not_at_the_same_provider_and_only_where_there_is_another() {
    let world = World::new();
    world.set("a", after(secs(9), Act::Answer));
    let two_keys = TargetSpec::new("a").with_credential("1").with_credential("2");
    let layer = CooldownFailoverLayer::new(chain([two_keys])).with_hedge(secs(2)).at_once();
    ask(&layer, &world, Ask::new()).await.unwrap();
    assert_eq!(world.calls(), ["a#1"]);
    // A cooling one is not asked either.
    let layer = hedging();
    layer.handle().cool(&target("b"), secs(60));
    layer.handle().cool(&target("c"), secs(60));
    ask(&layer, &world, Ask::new()).await.unwrap();
    assert_eq!(world.calls(), ["a"]);
}

#[tokio::test(start_paused = true)]
async fn within_the_attempts_and_the_budget() {
    let world = World::new();
    world.set("a", after(secs(9), Act::Answer));
    let mut request = Ask::new();
    request.context.max_attempts = NonZeroU32::new(1);
    ask(&hedging(), &world, request).await.unwrap();
    assert_eq!(world.calls(), ["a"]);

    let budget = RetryBudget::new(BudgetPolicy { capacity: 20, ..BudgetPolicy::default() });
    let layer = abc().with_hedge(secs(2)).with_budget(budget.clone()).at_once();
    world.set("b", Act::Hang);
    ask(&layer, &world, Ask::new()).await.unwrap();
    assert_eq!(world.calls(), ["a", "b"]);
    assert_eq!(budget.remaining(), 6, "one that did not help is not refunded");
    ask(&layer, &world, Ask::new()).await.unwrap();
    assert_eq!(world.calls(), ["a"], "there is too little left for another");
}

#[tokio::test(start_paused = true)]
async fn two_at_once_have_no_more_attempts_together_than_one() {
    let world = World::new();
    world.set("a", after(secs(5), fail(Reason::ServerError)));
    world.set("b", after(secs(5), fail(Reason::ServerError)));
    let seen = |max, already| {
        let mut request = Ask::new();
        request.context.max_attempts = NonZeroU32::new(max);
        request.context.attempts = already;
        let world = &world;
        async move {
            world.calls();
            let _ = ask(&hedging(), world, request).await;
            let context = |seen: &Seen| {
                let context = &seen.ask.context;
                (context.attempts, context.max_attempts.unwrap().get())
            };
            world.seen().iter().map(context).collect::<Vec<_>>()
        }
    };
    // The first may retry all but one of them, which is the second's; the third has what is left.
    assert_eq!(seen(5, 0).await, [(0, 4), (1, 2), (2, 5)]);
    assert_eq!(seen(6, 1).await, [(1, 5), (2, 3), (3, 6)]);
    // With one left there is no second, and nothing to set aside for it.
    assert_eq!(seen(3, 2).await, [(2, 3)]);
}

#[tokio::test(start_paused = true)]
async fn dropping_the_call_drops_both() {
    let world = World::new();
    world.set("a", Act::Hang).set("b", Act::Hang);
    let layer = hedging();
    let mut call = tokio_test::task::spawn(ask(&layer, &world, Ask::new()));
    assert!(call.poll().is_pending());
    advance(secs(2)).await;
    assert!(call.is_woken());
    assert!(call.poll().is_pending());
    assert_eq!(world.open(), 2);
    drop(call);
    assert_eq!(world.open(), 0);
    assert_eq!(layer.handle().snapshot().cooling().count(), 0);
}

#[tokio::test(start_paused = true)]
async fn the_chain_goes_on_after_a_hedge_that_lost_its_main() {
    let world = World::new();
    let retry_later = || Failure::new(Reason::RateLimit, "").with_retry_after(Some(secs(30)));
    world.set("a", after(secs(3), fail_with(retry_later)));
    world.set("b", after(secs(5), fail(Reason::Network)));
    let start = Instant::now();
    assert_eq!(ask(&hedging(), &world, Ask::new()).await.unwrap(), "c");
    assert_eq!(start.elapsed(), secs(7));
}
