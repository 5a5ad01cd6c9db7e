//! The stall layer over the future and over the events of an answer.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

mod common;

use std::{sync::Arc, time::Duration};

use common::{Events, Timed, cut, end, next, of, ping, read, reply, text};
use steadfast_chat::{ChatResponse, Delta};
use steadfast_core::{
    AtOnce, Deadline, Failure, Fault, Reason, RecoveryLog, Retry, Scope, TimeLimit, Usage,
};
use steadfast_testkit::{Ask, ask, ms, secs, whole};
use steadfast_timeout::{Floor, StallEvents, StallPolicy, StallTimeoutLayer};
use tokio::time::Instant;
use tower::{Layer, ServiceExt, service_fn};

fn layer(change: impl FnOnce(&mut StallPolicy)) -> StallTimeoutLayer {
    let mut policy = StallPolicy::default();
    change(&mut policy);
    StallTimeoutLayer::new(policy).unwrap()
}

/// Sends `request` to a provider whose head comes `after` and whose answer is `events`.
async fn answer(
    layer: &StallTimeoutLayer,
    request: Ask,
    after: Duration,
    events: Events,
) -> Result<ChatResponse<StallEvents<Events>>, Failure> {
    let mut events = Some(events);
    let provider = service_fn(move |_: Ask| {
        let reply = reply(events.take().unwrap());
        async move {
            if !after.is_zero() {
                tokio::time::sleep(after).await;
            }
            Ok::<_, Failure>(reply)
        }
    });
    layer.layer(provider).oneshot(request).await
}

/// Sends a request and reads the answer; with it the time it took.
async fn run(
    layer: &StallTimeoutLayer,
    request: Ask,
    after: Duration,
    events: Events,
) -> (String, Option<Failure>, Duration) {
    let began = Instant::now();
    let (said, failure) = match answer(layer, request, after, events).await {
        Ok(mut answer) => read(&mut answer).await,
        Err(failure) => (String::new(), Some(failure)),
    };
    (said, failure, whole(began))
}

fn every<T>(period: Duration, items: impl IntoIterator<Item = T>) -> Timed<T> {
    Timed::new(items.into_iter().map(|item| (period, item)))
}

#[tokio::test(start_paused = true)]
async fn a_head_that_never_comes_is_a_stall_and_the_call_is_dropped_at_once() {
    let alive = Arc::new(());
    let held = alive.clone();
    let layer = layer(|_| ()).at_once();
    let provider = service_fn(move |_: Ask| {
        let held = held.clone();
        async move {
            std::future::pending::<()>().await;
            drop(held);
            Ok::<_, Failure>(())
        }
    });
    let mut call = std::pin::pin!(layer.layer(provider).call_once(ask(|_| ())));
    let began = Instant::now();
    let failure = call.as_mut().await.unwrap_err();
    assert_eq!(whole(began), secs(180));
    assert_eq!(Arc::strong_count(&alive), 1, "dropped, though its future is still held");
    assert_eq!((failure.reason(), failure.time_limit()), (Reason::Timeout, Some(TimeLimit::Stall)));
    assert_eq!((failure.retry(), failure.fault()), (Retry::Yes, Fault::Provider));
    assert_eq!(failure.scope(), Scope::Provider);
    assert!(!failure.is_delivered());
    let again = call.await.unwrap_err();
    assert!(again.message().contains("after it was ready"), "says so instead of panicking");
}

/// `oneshot` drops its future when it is over; this keeps it.
trait CallOnce<Req>: tower::Service<Req> + Sized {
    fn call_once(mut self, request: Req) -> Self::Future {
        self.call(request)
    }
}

impl<S: tower::Service<Req>, Req> CallOnce<Req> for S {}

#[tokio::test(start_paused = true)]
async fn content_begins_the_stall_anew_and_signs_of_life_do_not() {
    let call = || Delta::ToolCall { index: 0, id: "1".into(), name: "ls".into() };
    let usage = Usage::new(1, 1);
    for (delta, content) in [
        (Delta::Text { index: 0, text: "x".into() }, true),
        (Delta::Thinking { index: 0, text: "x".into() }, true),
        (Delta::Arguments { index: 0, json: "{".into() }, true),
        (call(), true),
        (Delta::BlockEnd { index: 0 }, true),
        (Delta::Text { index: 0, text: String::new() }, false),
        (Delta::Arguments { index: 0, json: String::new() }, false),
        (Delta::Ping, false),
        (Delta::Start { id: None, model: None }, false),
        (Delta::Usage(usage), false),
    ] {
        let what = format!("{delta:?}");
        let events = every(secs(100), [of(delta)]).hanging();
        let (_, failure, took) = run(&layer(|_| ()), ask(|_| ()), secs(0), events).await;
        assert_eq!(took, if content { secs(280) } else { secs(180) }, "{what}");
        assert_eq!(failure.unwrap().time_limit(), Some(TimeLimit::Stall), "{what}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_stall_counts_from_the_last_content_exactly() {
    // Many pieces in quick succession, the last of them at 10.2 s.
    let events = every(ms(100), (0..102).map(|_| text("."))).hanging();
    let (said, failure, took) = run(&layer(|_| ()), ask(|_| ()), secs(0), events).await;
    assert_eq!((said.len(), took), (102, ms(190_200)));
    assert!(failure.unwrap().is_delivered());
}

#[tokio::test(start_paused = true)]
async fn the_head_and_the_first_event_share_one_stall() {
    let events = Timed::new([(secs(100), text("late"))]);
    let (_, failure, took) = run(&layer(|_| ()), ask(|_| ()), secs(100), events).await;
    assert_eq!((took, failure.unwrap().is_delivered()), (secs(180), false));
}

#[tokio::test(start_paused = true)]
async fn a_slow_reader_is_no_stall() {
    let events = Timed::new([(secs(0), text("a")), (secs(100), text("b")), (secs(1), end())]);
    let mut answer = answer(&layer(|_| ()), ask(|_| ()), secs(0), events).await.unwrap();
    for _ in 0..2 {
        assert!(next(&mut answer).await.unwrap().is_ok());
        tokio::time::sleep(secs(179)).await;
    }
    assert_eq!(read(&mut answer).await.0, "");
}

#[tokio::test(start_paused = true)]
async fn steady_content_meets_the_ceiling_which_is_not_the_providers_fault() {
    let events = every(secs(100), (0..100).map(|_| text(".")));
    let alive = events.alive.clone();
    let layer = layer(|_| ());
    let mut answer = answer(&layer, ask(|_| ()), secs(0), events).await.unwrap();
    let began = Instant::now();
    let (said, failure) = read(&mut answer).await;
    let failure = failure.unwrap();
    // The eighteenth piece is due at the very moment; it has come, so it is handed on first.
    assert_eq!((said.len(), whole(began)), (18, secs(1_800)));
    assert_eq!(failure.time_limit(), Some(TimeLimit::Makespan));
    assert_eq!((failure.scope(), failure.fault()), (Scope::Request, Fault::Local));
    assert!(failure.is_delivered());
    assert_eq!(
        failure.message(),
        "the answer took too long: limit makespan of 1800s, set by `ceiling`, fired after 1800s; \
         content had been delivered"
    );
    assert_eq!(Arc::strong_count(&alive), 1, "dropped, though the answer is still held");
    assert!(next(&mut answer).await.is_none(), "fused");
    assert!(next(&mut answer).await.is_none());

    let endless = StallTimeoutLayer::new(StallPolicy { ceiling: None, ..StallPolicy::default() });
    let events = every(secs(100), (0..100).map(|_| text(".")));
    let (said, failure, _) = run(&endless.unwrap(), ask(|_| ()), secs(0), events).await;
    assert_eq!((said.len(), failure.is_none()), (100, true));
}

#[tokio::test(start_paused = true)]
async fn a_retry_has_a_minute_to_begin() {
    for (attempts, expected) in [(0, None), (1, Some(secs(60))), (7, Some(secs(60)))] {
        let request = ask(|context| context.attempts = attempts);
        // Signs of life are no beginning.
        let events = every(secs(7), (0..20).map(|_| ping()).chain([text("late")]));
        let (_, failure, took) = run(&layer(|_| ()), request, secs(1), events).await;
        assert_eq!(failure.as_ref().map(|_| took), expected);
        if let Some(failure) = failure {
            assert_eq!(failure.time_limit(), Some(TimeLimit::Attempt));
            assert_eq!(failure.fault(), Fault::Provider);
        }
    }
    let request = ask(|context| context.attempts = 1);
    let events = every(secs(7), (0..20).map(|_| ping()));
    let free = layer(|policy| policy.attempt = None);
    assert!(run(&free, request, secs(1), events).await.1.is_none());
}

#[tokio::test(start_paused = true)]
async fn a_retry_that_has_begun_may_go_on_for_longer_than_a_minute() {
    let request = ask(|context| context.attempts = 1);
    let events = every(secs(7), (0..20).map(|_| text(".")));
    let (said, failure, took) = run(&layer(|_| ()), request, secs(1), events).await;
    assert_eq!((said.len(), failure.is_none()), (20, true));
    assert!(took > secs(60));
}

#[tokio::test(start_paused = true)]
async fn first_content() {
    let strict = layer(|policy| policy.first_content = Some(secs(20)));
    // The head, a start and pings are no content.
    let events = every(secs(9), [of(Delta::Start { id: None, model: None }), ping(), text("late")]);
    let (_, failure, took) = run(&strict, ask(|_| ()), secs(1), events).await;
    assert_eq!((took, failure.unwrap().time_limit()), (secs(20), Some(TimeLimit::FirstContent)));
    // Once it is there, only the stall counts.
    let events = every(secs(19), [text("a"), text("b"), text("c"), end()]);
    assert_eq!(run(&strict, ask(|_| ()), secs(0), events).await.0, "abc");
}

#[tokio::test(start_paused = true)]
async fn every_wait_is_bounded_by_the_deadline() {
    for after in [secs(0), secs(900)] {
        let request = ask(|context| {
            context.deadline = Some(Deadline::after(secs(30)));
            context.target = Some("openai".into());
        });
        let events = every(secs(7), (0..20).map(|_| text(".")));
        let (_, failure, took) = run(&layer(|_| ()), request, after, events).await;
        let failure = failure.unwrap();
        assert_eq!((took, failure.time_limit()), (secs(30), Some(TimeLimit::Pipeline)));
        assert_eq!((failure.retry(), failure.evidence()), (Retry::Forbidden, "pipeline_timeout"));
        assert_eq!((failure.scope(), failure.fault()), (Scope::Request, Fault::Local));
        assert!(failure.message().starts_with("execution:aborted"), "{failure}");
        assert!(failure.message().contains("`deadline`"), "{failure}");
        assert_eq!(failure.target(), Some(&"openai".into()));
        assert_eq!(failure.is_delivered(), after.is_zero());
    }
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_is_always_ready_meets_its_limits_too() {
    let events = Timed::new((0..1_000).map(|_| (secs(0), ping())));
    let mut answer = answer(&layer(|_| ()), ask(|_| ()), secs(0), events).await.unwrap();
    for _ in 0..100 {
        assert!(next(&mut answer).await.unwrap().is_ok());
    }
    tokio::time::advance(secs(181)).await;
    let mut more = 0;
    while let Some(Ok(_)) = next(&mut answer).await {
        more += 1;
    }
    assert!(more <= 32, "{more} pieces after its limit");
}

#[tokio::test(start_paused = true)]
async fn what_is_ready_arms_no_timer() {
    let events = Timed::new((0..200).map(|_| (secs(0), text("."))).chain([(secs(0), end())]));
    let mut answer = answer(&layer(|_| ()), ask(|_| ()), secs(0), events).await.unwrap();
    assert_eq!(read(&mut answer).await.0.len(), 200);
    let (_, events) = answer.into_parts();
    assert!(format!("{events:?}").contains("armed: false"), "{events:?}");
}

#[tokio::test(start_paused = true)]
async fn failures_of_the_answer_pass_through_and_it_stays_ended() {
    let events = Timed::new([(secs(0), text("a")), (secs(1), Err(cut())), (secs(0), text("b"))]);
    let alive = events.alive.clone();
    let mut answer = answer(&layer(|_| ()), ask(|_| ()), secs(0), events).await.unwrap();
    let (said, failure) = read(&mut answer).await;
    let failure = failure.unwrap();
    assert_eq!(
        (said.as_str(), failure.reason(), failure.is_delivered()),
        ("a", Reason::Network, true)
    );
    assert!(next(&mut answer).await.is_none());
    assert_eq!(Arc::strong_count(&alive), 1);
}

fn floored() -> StallTimeoutLayer {
    layer(|policy| policy.floor = Some(Floor { min_chars_per_s: 5.0, window: secs(10) }))
}

#[tokio::test(start_paused = true)]
async fn a_trickle_is_ended_unseen() {
    // A character a second from the second second on, where fifty in ten were due.
    let events = every(secs(1), [ping(), ping()].into_iter().chain((0..99).map(|_| text("."))));
    let (said, failure, took) = run(&floored(), ask(|_| ()), secs(0), events).await;
    let failure = failure.unwrap();
    assert_eq!((said.as_str(), took), ("", secs(13)));
    assert_eq!(failure.time_limit(), Some(TimeLimit::Throughput));
    assert!(!failure.is_delivered(), "so it can be asked for again");
    assert_eq!(failure.fault(), Fault::Provider);
}

#[tokio::test(start_paused = true)]
async fn an_answer_of_usual_speed_is_held_back_for_a_moment_and_keeps_its_order() {
    // Ten characters each 250 ms: the floor is met with the fifth piece.
    let pieces = (0..40).map(|n| text(&format!("{n:>10}")));
    let events = every(ms(250), [ping()].into_iter().chain(pieces).chain([end()]));
    let layer = floored();
    let mut answer = answer(&layer, ask(|_| ()), secs(0), events).await.unwrap();
    let began = Instant::now();
    assert_eq!(next(&mut answer).await.unwrap().unwrap(), ping().unwrap(), "a ping is not held");
    assert_eq!(whole(began), ms(250));
    assert_eq!(next(&mut answer).await.unwrap().unwrap(), text("         0").unwrap());
    assert_eq!(whole(began), ms(1_500));
    let said = read(&mut answer).await.0;
    let expected: String = (1..40).map(|n| format!("{n:>10}")).collect();
    assert_eq!(said, expected);
    // Once met, a trickle is its own affair.
    let events = Timed::new(
        [(ms(1), text(&"x".repeat(50)))].into_iter().chain((0..20).map(|_| (secs(9), text(".")))),
    );
    assert!(run(&layer, ask(|_| ()), secs(0), events).await.1.is_none());
}

#[tokio::test(start_paused = true)]
async fn a_short_answer_is_no_slow_one() {
    for last in [Some(end()), None] {
        let events = Timed::new([(ms(1), text("yes"))].into_iter().chain(last.map(|e| (ms(1), e))));
        let (said, failure, took) = run(&floored(), ask(|_| ()), secs(0), events).await;
        assert_eq!((said.as_str(), failure.is_none()), ("yes", true));
        assert!(took <= ms(2));
    }
}

#[tokio::test(start_paused = true)]
async fn the_terminal_event_ends_the_holding_back_even_if_the_connection_stays() {
    let events = Timed::new([(ms(1), text("yes")), (ms(1), end())]).hanging();
    let mut answer = answer(&floored(), ask(|_| ()), secs(0), events).await.unwrap();
    let began = Instant::now();
    assert_eq!(next(&mut answer).await.unwrap().unwrap(), text("yes").unwrap());
    assert_eq!(next(&mut answer).await.unwrap().unwrap(), end().unwrap());
    assert_eq!(whole(began), ms(2));
}

#[tokio::test(start_paused = true)]
async fn what_is_held_back_when_the_answer_breaks_was_never_delivered() {
    // Also when what is under this layer, which had handed it on, says it was.
    for cut in [cut(), cut().with_delivered()] {
        let events = Timed::new([(ms(1), text("half")), (ms(1), Err(cut))]);
        let (said, failure, _) = run(&floored(), ask(|_| ()), secs(0), events).await;
        assert_eq!((said.as_str(), failure.unwrap().is_delivered()), ("", false));
    }
    let fast = "x".repeat(50);
    let events = Timed::new([(ms(1), text(&fast)), (ms(1), Err(cut().with_delivered()))]);
    let (said, failure, _) = run(&floored(), ask(|_| ()), secs(0), events).await;
    assert_eq!((said, failure.unwrap().is_delivered()), (fast, true));
}

#[tokio::test(start_paused = true)]
async fn what_fired_is_logged_and_counted() {
    let layer = layer(|_| ());
    let log = RecoveryLog::enabled();
    let request = ask(|context| {
        context.log = log.clone();
        context.target = Some("openai".into());
    });
    let events = Timed::new([(secs(5), text("a"))]).hanging();
    run(&layer, request, secs(0), events).await;
    assert_eq!(log.to_string(), "timeout.fired openai timeout 185000ms stall");
    let handle = layer.handle();
    assert_eq!(handle.snapshot().fired, [(TimeLimit::Stall, 1)]);
    assert_eq!(handle.snapshot().count(TimeLimit::Makespan), 0);
    handle.reset();
    assert!(handle.snapshot().fired.is_empty());
}

#[tokio::test(start_paused = true)]
async fn plain_values_are_limited_until_they_are_there() {
    let layer: StallTimeoutLayer<AtOnce> = layer(|_| ()).at_once();
    let provider = service_fn(|_: Ask| async { Ok::<_, Failure>(42) });
    assert_eq!(layer.layer(provider).oneshot(ask(|_| ())).await.unwrap(), 42);
}

#[test]
fn the_setter_validates() {
    assert!(layer(|_| ()).with_stall(secs(0)).is_err());
    let quick = layer(|_| ()).with_stall(secs(5)).unwrap();
    assert_eq!(quick.policy().makespan(), Some(secs(50)));
}
