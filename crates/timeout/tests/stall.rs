//! The stall layer over the future and over the events of an answer.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

mod common;

use std::{sync::Arc, time::Duration};

use common::{Events, Timed, cut, end, next, of, ping, read, reply, text};
use steadfast_chat::{ChatResponse, Delta, Event};
use steadfast_core::{
    AtOnce, Deadline, Failure, FaultSide, Reason, RecoveryLog, Retry, Scope, TimeLimit, Usage,
};
use steadfast_testkit::{PlainRequest, elapsed_ms, ms, plain_request, secs};
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
    request: PlainRequest,
    after: Duration,
    events: Events,
) -> Result<ChatResponse<StallEvents<Events>>, Failure> {
    let mut events = Some(events);
    let provider = service_fn(move |_: PlainRequest| {
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
    request: PlainRequest,
    after: Duration,
    events: Events,
) -> (String, Option<Failure>, Duration) {
    let start = Instant::now();
    let (received, failure) = match answer(layer, request, after, events).await {
        Ok(mut answer) => read(&mut answer).await,
        Err(failure) => (String::new(), Some(failure)),
    };
    (received, failure, elapsed_ms(start))
}

fn every<T>(period: Duration, items: impl IntoIterator<Item = T>) -> Timed<T> {
    Timed::new(items.into_iter().map(|item| (period, item)))
}

#[tokio::test(start_paused = true)]
async fn a_reply_that_never_comes_is_a_stall_and_the_call_is_dropped_at_once() {
    let alive = Arc::new(());
    let held = alive.clone();
    let layer = layer(|_| ()).at_once();
    let provider = service_fn(move |_: PlainRequest| {
        let held = held.clone();
        async move {
            std::future::pending::<()>().await;
            drop(held);
            Ok::<_, Failure>(())
        }
    });
    let mut call = std::pin::pin!(layer.layer(provider).call_once(plain_request(|_| ())));
    let start = Instant::now();
    let failure = call.as_mut().await.unwrap_err();
    assert_eq!(elapsed_ms(start), secs(180));
    assert_eq!(Arc::strong_count(&alive), 1, "dropped, though its future is still held");
    assert_eq!((failure.reason(), failure.time_limit()), (Reason::Timeout, Some(TimeLimit::Stall)));
    assert_eq!((failure.retry(), failure.fault()), (Retry::Yes, FaultSide::Provider));
    assert_eq!(failure.scope(), Scope::Provider);
    assert!(!failure.is_delivered());
    let again = call.await.unwrap_err();
    assert!(again.message().contains("after it was ready"), "an error instead of a panic");
}

/// Unlike `oneshot`, keeps the future when it is over.
trait CallOnce<Req>: tower::Service<Req> + Sized {
    fn call_once(mut self, request: Req) -> Self::Future {
        self.call(request)
    }
}

impl<S: tower::Service<Req>, Req> CallOnce<Req> for S {}

#[tokio::test(start_paused = true)]
async fn content_restarts_the_stall_limit_and_keep_alives_do_not() {
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
        let (_, failure, took) = run(&layer(|_| ()), plain_request(|_| ()), secs(0), events).await;
        assert_eq!(took, if content { secs(280) } else { secs(180) }, "{what}");
        assert_eq!(failure.unwrap().time_limit(), Some(TimeLimit::Stall), "{what}");
    }
}

type Items = Vec<(Duration, Result<Event, Failure>)>;

fn each(period: Duration, times: usize, item: fn() -> Result<Event, Failure>) -> Items {
    (0..times).map(|_| (period, item())).collect()
}

fn both(mut one: Items, other: Items) -> Items {
    one.extend(other);
    one
}

fn dot() -> Result<Event, Failure> {
    text(".")
}

/// Which limit ends which answer, when, and what the caller has received by then; `None` for an answer
/// that ends by itself.
#[tokio::test(start_paused = true)]
async fn a_table_of_answers() {
    type Change = fn(&mut StallPolicy);
    let default: Change = |_| ();
    let no_attempt: Change = |policy| policy.attempt = None;
    let strict: Change = |policy| policy.first_content = Some(secs(20));
    let floor: Change =
        |policy| policy.floor = Some(Floor { min_chars_per_s: 5.0, window: secs(10) });
    let fast = || text(&"x".repeat(50));
    let late = |pings: usize, after| {
        both(each(secs(after), pings, ping), vec![(secs(after), text("late"))])
    };
    let ends = |last: Option<Result<Event, Failure>>| {
        [(ms(1), text("yes"))].into_iter().chain(last.map(|last| (ms(1), last))).collect::<Items>()
    };
    let breaks = |item, delivered: bool| {
        let cut = if delivered { cut().with_delivered() } else { cut() };
        vec![(ms(1), item), (ms(1), Err(cut))]
    };
    let slow = || both(each(secs(1), 2, ping), each(secs(1), 99, dot));
    let then_slow = || both(vec![(ms(1), fast())], each(secs(9), 20, dot));
    use TimeLimit::{Attempt, FirstContent, Stall, Throughput};
    // What; the policy, attempts before, when the head comes; the answer, whether it then hangs; the characters
    // that come, the limit that fires, when it is over, and whether anything was delivered.
    type Row = (&'static str, Change, u32, u64, Items, bool, usize, Option<TimeLimit>, u64, bool);
    #[rustfmt::skip]
    let rows: Vec<Row> = vec![
        ("many pieces, the last at 10.2 s", default, 0, 0, each(ms(100), 102, dot), true, 102, Some(Stall), 190_200, true),
        ("head and first event share a stall", default, 0, 100, late(0, 100), false, 0, Some(Stall), 180_000, false),
        ("a first attempt may begin late", default, 0, 1, late(20, 7), false, 4, None, 148_000, false),
        ("a retry has a minute, in spite of pings", default, 1, 1, late(20, 7), false, 0, Some(Attempt), 60_000, false),
        ("so does a seventh", default, 7, 1, late(20, 7), false, 0, Some(Attempt), 60_000, false),
        ("unless that limit is off", no_attempt, 1, 1, each(secs(7), 20, ping), false, 0, None, 141_000, false),
        ("a retry with content may continue", default, 1, 1, each(secs(7), 20, dot), false, 20, None, 141_000, false),
        ("no content in time", strict, 0, 1, late(2, 9), false, 0, Some(FirstContent), 20_000, false),
        ("with content only the stall counts", strict, 0, 0, each(secs(19), 4, dot), false, 4, None, 76_000, false),
        ("too slow an answer fails before it is delivered", floor, 0, 0, slow(), false, 0, Some(Throughput), 13_000, false),
        ("once fast enough it may be slow", floor, 0, 0, then_slow(), false, 70, None, 180_001, false),
        ("a short answer is not slow", floor, 0, 0, ends(Some(end())), false, 3, None, 2, false),
        ("nor without its end", floor, 0, 0, ends(None), false, 3, None, 1, false),
    ];
    for (what, change, attempts, head, items, hangs, chars, limit, at, delivered) in rows {
        let events = Timed::new(items);
        let events = if hangs { events.hanging() } else { events };
        let request = plain_request(|context| context.attempts = attempts);
        let (received, failure, took) = run(&layer(change), request, secs(head), events).await;
        assert_eq!((received.len(), took), (chars, ms(at)), "{what}");
        let fired = failure.as_ref().and_then(|failure| failure.time_limit());
        assert_eq!((fired, failure.is_some()), (limit, limit.is_some()), "{what}");
        if let Some(failure) = failure {
            assert_eq!(
                (failure.is_delivered(), failure.fault()),
                (delivered, FaultSide::Provider),
                "{what}"
            );
        }
    }
    // What was held back when the answer breaks was not delivered, even when the inner layer, which had
    // passed it on, marks it as delivered.
    for (item, marked, chars, delivered) in
        [(text("half"), false, 0, false), (text("half"), true, 0, false), (fast(), true, 50, true)]
    {
        let events = Timed::new(breaks(item, marked));
        let (received, failure, _) =
            run(&layer(floor), plain_request(|_| ()), secs(0), events).await;
        assert_eq!(
            (received.len(), failure.unwrap().is_delivered()),
            (chars, delivered),
            "{marked}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_slow_reader_is_no_stall() {
    let events = Timed::new([(secs(0), text("a")), (secs(100), text("b")), (secs(1), end())]);
    let mut answer = answer(&layer(|_| ()), plain_request(|_| ()), secs(0), events).await.unwrap();
    for _ in 0..2 {
        assert!(next(&mut answer).await.unwrap().is_ok());
        tokio::time::sleep(secs(179)).await;
    }
    assert_eq!(read(&mut answer).await.0, "");
}

#[tokio::test(start_paused = true)]
async fn steady_content_reaches_the_ceiling_which_is_not_the_providers_fault() {
    let events = every(secs(100), (0..100).map(|_| text(".")));
    let alive = events.alive.clone();
    let layer = layer(|_| ());
    let mut answer = answer(&layer, plain_request(|_| ()), secs(0), events).await.unwrap();
    let start = Instant::now();
    let (received, failure) = read(&mut answer).await;
    let failure = failure.unwrap();
    // The eighteenth piece comes at the same time, and is delivered first.
    assert_eq!((received.len(), elapsed_ms(start)), (18, secs(1_800)));
    assert_eq!(failure.time_limit(), Some(TimeLimit::Makespan));
    assert_eq!((failure.scope(), failure.fault()), (Scope::Request, FaultSide::Local));
    assert!(failure.is_delivered());
    assert_eq!(
        failure.message(),
        "the answer took too long: limit makespan of 1800s, set by `timeout.ceiling`, fired after 1800s; \
         content had been delivered"
    );
    assert_eq!(Arc::strong_count(&alive), 1, "dropped, though the answer is still held");
    assert!(next(&mut answer).await.is_none(), "fused");
    assert!(next(&mut answer).await.is_none());

    let endless = StallTimeoutLayer::new(StallPolicy { ceiling: None, ..StallPolicy::default() });
    let events = every(secs(100), (0..100).map(|_| text(".")));
    let (received, failure, _) =
        run(&endless.unwrap(), plain_request(|_| ()), secs(0), events).await;
    assert_eq!((received.len(), failure.is_none()), (100, true));
}

#[tokio::test(start_paused = true)]
async fn every_wait_is_bounded_by_the_deadline() {
    for after in [secs(0), secs(900)] {
        let request = plain_request(|context| {
            context.deadline = Some(Deadline::after(secs(30)));
            context.target = Some("openai".into());
        });
        let events = every(secs(7), (0..20).map(|_| text(".")));
        let (_, failure, took) = run(&layer(|_| ()), request, after, events).await;
        let failure = failure.unwrap();
        assert_eq!((took, failure.time_limit()), (secs(30), Some(TimeLimit::Pipeline)));
        assert_eq!((failure.retry(), failure.evidence()), (Retry::Forbidden, "pipeline_timeout"));
        assert_eq!((failure.scope(), failure.fault()), (Scope::Request, FaultSide::Local));
        assert!(failure.message().starts_with("execution:aborted"), "{failure}");
        assert!(failure.message().contains("the caller's deadline"), "{failure}");
        assert_eq!(failure.target(), Some(&"openai".into()));
        assert_eq!(failure.is_delivered(), after.is_zero());
    }
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_is_always_ready_meets_its_limits_too() {
    let events = Timed::new((0..1_000).map(|_| (secs(0), ping())));
    let mut answer = answer(&layer(|_| ()), plain_request(|_| ()), secs(0), events).await.unwrap();
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
async fn a_ready_answer_arms_no_timer() {
    let events = Timed::new((0..200).map(|_| (secs(0), text("."))).chain([(secs(0), end())]));
    let mut answer = answer(&layer(|_| ()), plain_request(|_| ()), secs(0), events).await.unwrap();
    assert_eq!(read(&mut answer).await.0.len(), 200);
    let (_, events) = answer.into_parts();
    assert!(format!("{events:?}").contains("armed: false"), "{events:?}");
}

#[tokio::test(start_paused = true)]
async fn failures_of_the_answer_pass_through_and_end_it() {
    let events = Timed::new([(secs(0), text("a")), (secs(1), Err(cut())), (secs(0), text("b"))]);
    let alive = events.alive.clone();
    let mut answer = answer(&layer(|_| ()), plain_request(|_| ()), secs(0), events).await.unwrap();
    let (received, failure) = read(&mut answer).await;
    let failure = failure.unwrap();
    assert_eq!(
        (received.as_str(), failure.reason(), failure.is_delivered()),
        ("a", Reason::Network, true)
    );
    assert!(next(&mut answer).await.is_none());
    assert_eq!(Arc::strong_count(&alive), 1);
}

fn floored() -> StallTimeoutLayer {
    layer(|policy| policy.floor = Some(Floor { min_chars_per_s: 5.0, window: secs(10) }))
}

#[tokio::test(start_paused = true)]
async fn an_answer_of_usual_speed_is_held_back_briefly_and_keeps_its_order() {
    // Ten characters each 250 ms: the floor is met with the fifth piece.
    let pieces = (0..40).map(|n| text(&format!("{n:>10}")));
    let events = every(ms(250), [ping()].into_iter().chain(pieces).chain([end()]));
    let layer = floored();
    let mut answer = answer(&layer, plain_request(|_| ()), secs(0), events).await.unwrap();
    let start = Instant::now();
    assert_eq!(next(&mut answer).await.unwrap().unwrap(), ping().unwrap(), "a ping is not held");
    assert_eq!(elapsed_ms(start), ms(250));
    assert_eq!(next(&mut answer).await.unwrap().unwrap(), text("         0").unwrap());
    assert_eq!(elapsed_ms(start), ms(1_500));
    let received = read(&mut answer).await.0;
    let expected: String = (1..40).map(|n| format!("{n:>10}")).collect();
    assert_eq!(received, expected);
}

#[tokio::test(start_paused = true)]
async fn the_terminal_event_releases_the_answer_even_if_the_connection_stays_open() {
    let events = Timed::new([(ms(1), text("yes")), (ms(1), end())]).hanging();
    let mut answer = answer(&floored(), plain_request(|_| ()), secs(0), events).await.unwrap();
    let start = Instant::now();
    assert_eq!(next(&mut answer).await.unwrap().unwrap(), text("yes").unwrap());
    assert_eq!(next(&mut answer).await.unwrap().unwrap(), end().unwrap());
    assert_eq!(elapsed_ms(start), ms(2));
}

#[tokio::test(start_paused = true)]
async fn a_limit_that_fired_is_logged_and_counted() {
    let layer = layer(|_| ());
    let log = RecoveryLog::enabled();
    let request = plain_request(|context| {
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
async fn plain_values_can_be_limited() {
    let layer: StallTimeoutLayer<AtOnce> = layer(|_| ()).at_once();
    let provider = service_fn(|_: PlainRequest| async { Ok::<_, Failure>(42) });
    assert_eq!(layer.layer(provider).oneshot(plain_request(|_| ())).await.unwrap(), 42);
}

#[test]
fn the_setter_validates() {
    assert!(layer(|_| ()).with_stall(secs(0)).is_err());
    let quick = layer(|_| ()).with_stall(secs(5)).unwrap();
    assert_eq!(quick.policy().makespan(), Some(secs(50)));
}
