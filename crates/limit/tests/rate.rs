//! The rate limit as callers meet it.
#![allow(clippy::unwrap_used, clippy::cast_precision_loss, reason = "tests")]

use std::{
    num::NonZeroU32,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use futures_util::{FutureExt, StreamExt, future::join_all, stream::FuturesUnordered};
use http_body_util::{BodyExt, Full};
use steadfast_core::{
    BudgetPolicy, Call, CallContext, Deadline, Failover, Failure, FaultSide, Reason, RecoveryLog,
    Retry, RetryBudget, Target,
};
use steadfast_limit::{CallTokens, RateLimitLayer, RatePolicy, ReleaseAt};
use steadfast_testkit::{PlainRequest, elapsed_ms, fail, ms, plain_request, secs};
use tokio::time::{Instant, advance, sleep};
use tower::{Layer, Service, ServiceExt, service_fn};

fn key() -> Option<Target> {
    Some(Target::new("openai"))
}

fn of(tenant: &str) -> PlainRequest {
    plain_request(|context| {
        *context = CallContext::new().with_target("openai").with_tenant(tenant);
    })
}

fn layer(policy: RatePolicy) -> RateLimitLayer {
    RateLimitLayer::new(policy).unwrap()
}

fn a_minute(requests: u64) -> RatePolicy {
    RatePolicy { requests: Some(requests), ..RatePolicy::default() }
}

/// Answers with a value after a second.
async fn slow(_: PlainRequest) -> Result<&'static str, Failure> {
    sleep(secs(1)).await;
    Ok("answered")
}

async fn at_once(_: PlainRequest) -> Result<&'static str, Failure> {
    Ok("answered")
}

#[tokio::test(start_paused = true)]
async fn calls_beyond_the_limit_wait_for_their_turn() {
    let layer = layer(a_minute(60)).at_once();
    let service = layer.layer(service_fn(at_once));
    let start = Instant::now();
    let calls =
        (0..65).map(|_| service.clone().oneshot(of("a")).map(|done| (done, elapsed_ms(start))));
    let done = join_all(calls).await;
    let waits: Vec<_> = done.iter().map(|(result, at)| (result.is_ok(), at.as_secs())).collect();
    assert_eq!(waits[..60], [(true, 0); 60]);
    assert_eq!(waits[60..], [(true, 1), (true, 2), (true, 3), (true, 4), (true, 5)]);
    let snapshot = layer.handle().get(&key()).unwrap();
    assert_eq!((snapshot.admitted, snapshot.waited, snapshot.refused), (65, 5, 0));
    assert_eq!((snapshot.in_use, snapshot.waiting), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn who_can_not_wait_so_long_is_refused_with_the_wait_and_moves_on() {
    let layer = layer(a_minute(1)).at_once();
    let service = layer.layer(service_fn(at_once));
    service.clone().oneshot(of("a")).await.unwrap();
    type Change = fn(&mut CallContext);
    let cases: [(&str, Change, bool); 5] = [
        ("alone", |_| (), true),
        ("a deadline", |context| context.deadline = Some(Deadline::after(secs(59))), false),
        ("its patience", |context| context.patience = Some(secs(30)), false),
        ("another target", |context| context.alternatives = 1, false),
        ("time enough", |context| context.deadline = Some(Deadline::after(secs(61))), true),
    ];
    for (what, change, waits) in cases {
        let mut request = of("a");
        request.context.log = RecoveryLog::enabled();
        change(&mut request.context);
        let log = request.context.log.clone();
        let mut call = Box::pin(service.clone().oneshot(request));
        match call.as_mut().now_or_never() {
            None => assert!(waits, "{what}"),
            Some(result) => {
                let failure = result.unwrap_err();
                assert!(!waits, "{what}: {failure}");
                assert_eq!((failure.reason(), failure.attempts()), (Reason::Budget, 0), "{what}");
                assert_eq!(failure.retry_after(), Some(secs(60)), "{what}");
                assert_eq!(failure.retry(), Retry::No);
                assert_eq!(failure.failover(), Failover::NextTarget);
                assert_eq!(failure.fault(), FaultSide::Local, "never the provider's");
                assert_eq!(failure.target(), key().as_ref());
                assert!(
                    log.to_string().contains("limit.refused openai budget 60000ms wait"),
                    "{log}"
                );
            }
        }
    }
    assert_eq!(layer.handle().get(&key()).unwrap().waiting, 0, "those that waited are gone");
}

#[tokio::test(start_paused = true)]
async fn tenants_share_whatever_they_queue() {
    let layer = layer(RatePolicy { max_wait: secs(600), ..a_minute(60) }).at_once();
    let service = layer.layer(service_fn(at_once));
    join_all((0..60).map(|_| service.clone().oneshot(of("warm")))).await;
    // One has queued a hundred calls when the other comes with ten.
    let mut calls = FuturesUnordered::new();
    for (tenant, count) in [("greedy", 100), ("modest", 10)] {
        for _ in 0..count {
            let call = service.clone().oneshot(of(tenant));
            calls.push(call.map(move |done| (tenant, done.is_ok())));
        }
    }
    let mut order = Vec::new();
    while order.len() < 20 {
        let (tenant, done) = calls.next().await.unwrap();
        assert!(done);
        order.push(tenant);
    }
    assert_eq!(order.iter().filter(|tenant| **tenant == "modest").count(), 10, "{order:?}");
}

#[tokio::test(start_paused = true)]
async fn a_full_queue_makes_room_for_tenants_with_less() {
    let layer = layer(RatePolicy { max_waiting: 5, ..a_minute(60) }).at_once();
    let service = layer.layer(service_fn(at_once));
    join_all((0..60).map(|_| service.clone().oneshot(of("warm")))).await;
    let mut greedy: Vec<_> =
        (0..5).map(|_| tokio_test::task::spawn(service.clone().oneshot(of("greedy")))).collect();
    for call in &mut greedy {
        assert!(call.poll().is_pending());
    }
    let refused = service.clone().oneshot(of("greedy")).await.unwrap_err();
    assert!(refused.message().contains("`limit.max_waiting`"), "{refused}");
    assert!(refused.retry_after().is_some_and(|wait| wait >= secs(1)));
    let mut modest = tokio_test::task::spawn(service.clone().oneshot(of("modest")));
    assert!(modest.poll().is_pending());
    assert!(greedy[4].is_woken());
    assert!(greedy[4].poll().is_ready(), "the last one of whoever has most");
    assert_eq!(layer.handle().get(&key()).unwrap().waiting, 5);
}

/// Each way in which a call that waits can go frees its position, and nobody else waits longer.
#[tokio::test(start_paused = true)]
async fn a_cancelled_call_frees_its_position_at_every_point() {
    let layer = layer(a_minute(60)).at_once();
    let service = layer.layer(service_fn(slow));
    join_all((0..60).map(|_| service.clone().oneshot(of("warm")))).await;
    advance(secs(60)).await;
    let calls: Vec<_> =
        (0..60).map(|_| tokio_test::task::spawn(service.clone().oneshot(of("a")))).collect();
    let mut calls: Vec<_> = calls.into_iter().map(Some).collect();
    for call in calls.iter_mut().flatten() {
        assert!(call.poll().is_pending());
    }
    let spawn = |tenant| {
        let mut call = tokio_test::task::spawn(service.clone().oneshot(of(tenant)));
        assert!(call.poll().is_pending());
        call
    };
    let (first, mut second, third) = (spawn("a"), spawn("a"), spawn("a"));
    let waiting = || layer.handle().get(&key()).unwrap().waiting;
    assert_eq!(waiting(), 3);
    // In the queue, and as its first.
    drop(third);
    assert_eq!(waiting(), 2);
    drop(first);
    assert_eq!(waiting(), 1);
    assert!(second.is_woken(), "the next one sets its timer");
    assert!(second.poll().is_pending());
    // Given its turn, and not polled since: the next one has it.
    let mut fourth = spawn("a");
    advance(ms(1_000)).await;
    layer.handle().snapshot();
    let mut fifth = spawn("a");
    assert_eq!(waiting(), 2, "the second one has its turn");
    drop(second);
    assert!(fourth.is_woken());
    assert!(fourth.poll().is_pending());
    assert_eq!(waiting(), 1, "the fourth one has it now");
    assert!(fifth.poll().is_pending());
    // Under way.
    assert_eq!(layer.handle().get(&key()).unwrap().in_use, 61);
    calls.clear();
    drop((fourth, fifth));
    let snapshot = layer.handle().get(&key()).unwrap();
    assert_eq!((snapshot.in_use, snapshot.waiting), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn a_call_that_waits_for_the_inner_service_gives_back_what_it_took() {
    let layer = layer(RatePolicy { requests: Some(60), ..RatePolicy::default() }).at_once();
    let inner = tower::limit::ConcurrencyLimitLayer::new(1).layer(service_fn(slow));
    let mut service = layer.layer(inner.clone());
    layer.handle().block(&key(), secs(1));
    let mut waits = tokio_test::task::spawn(service.ready().await.unwrap().call(of("a")));
    assert!(waits.poll().is_pending());
    let mut other = inner;
    let _taken = other.ready().now_or_never().expect("a call that waits holds no readiness");
    advance(secs(2)).await;
    // Its turn has come, and the inner service is not ready: somebody else has the only permit.
    assert!(waits.poll().is_pending());
    let used = |layer: &RateLimitLayer<_, _, _>| {
        let key = layer.handle().get(&key()).unwrap();
        (key.in_use, key.quotas[0].available)
    };
    assert_eq!(used(&layer), (1, 59));
    drop(waits);
    assert_eq!(used(&layer), (0, 60));
}

#[tokio::test(start_paused = true)]
async fn concurrency_is_freed_when_the_policy_says() {
    for (release_at, at_head, at_content, at_end) in [
        (ReleaseAt::Headers, 0, 0, 0),
        (ReleaseAt::FirstContent, 1, 0, 0),
        (ReleaseAt::End, 1, 1, 0),
    ] {
        let layer =
            layer(RatePolicy { max_concurrent: Some(1), release_at, ..RatePolicy::default() });
        let answer = async |_: PlainRequest| {
            let pieces = ["first", "last"]
                .map(|piece| Ok::<_, Failure>(http_body::Frame::data(bytes::Bytes::from(piece))));
            let body = http_body_util::StreamBody::new(futures_util::stream::iter(pieces));
            Ok::<_, Failure>(http::Response::new(body))
        };
        let service = layer.layer(service_fn(answer));
        let in_use = || layer.handle().get(&key()).unwrap().in_use;
        let mut answer = service.clone().oneshot(of("a")).await.unwrap();
        assert_eq!(in_use(), at_head, "{release_at:?}");
        answer.body_mut().frame().await.unwrap().unwrap();
        assert_eq!(in_use(), at_content, "{release_at:?}");
        if at_content > 0 {
            // Another call waits until this one has ended.
            let mut other = tokio_test::task::spawn(service.clone().oneshot(of("b")));
            assert!(other.poll().is_pending());
            answer.body_mut().collect().await.unwrap();
            assert!(other.is_woken() && other.poll().is_ready());
        } else {
            answer.body_mut().collect().await.unwrap();
        }
        drop(answer);
        assert_eq!(in_use(), at_end, "{release_at:?}");
    }
}

/// With so many other targets.
fn with_spare(tenant: &str) -> PlainRequest {
    let mut request = of(tenant);
    request.context.alternatives = 1;
    request
}

#[tokio::test(start_paused = true)]
async fn from_the_second_429_on_calls_go_elsewhere_until_a_success() {
    let count = Arc::new(AtomicU32::new(0));
    let calls = count.clone();
    let layer = layer(a_minute(6_000));
    let service = layer.layer(service_fn(move |_: PlainRequest| {
        let number = calls.fetch_add(1, Ordering::Relaxed);
        async move {
            let mut answer = http::Response::new(Full::new(bytes::Bytes::new()));
            if number < 2 {
                *answer.status_mut() = http::StatusCode::TOO_MANY_REQUESTS;
                answer.headers_mut().insert("retry-after", http::HeaderValue::from_static("7"));
            }
            Ok::<_, Failure>(answer)
        }
    }));
    let ask = |request| service.clone().oneshot(request).now_or_never().expect("nobody waits");
    ask(of("a")).unwrap();
    assert_eq!(
        layer.handle().get(&key()).unwrap().blocked_for,
        Duration::ZERO,
        "it binds its call"
    );
    ask(with_spare("b")).unwrap();
    assert_eq!(layer.handle().get(&key()).unwrap().blocked_for, secs(7));
    let refused = ask(with_spare("c")).unwrap_err();
    assert_eq!((refused.reason(), refused.retry_after()), (Reason::Budget, Some(secs(2))));
    advance(ms(20)).await;
    ask(of("d")).expect("who has nowhere else to go is let through");
    let snapshot = layer.handle().get(&key()).unwrap();
    assert_eq!((snapshot.rejected, snapshot.blocked_for), (2, Duration::ZERO));
    ask(with_spare("e")).unwrap();
}

/// An answer that states a limit and what is left of it.
fn stating(headers: &[(&'static str, &'static str)]) -> http::Response<Full<bytes::Bytes>> {
    let mut answer = http::Response::new(Full::new(bytes::Bytes::new()));
    for (name, value) in headers {
        answer.headers_mut().insert(*name, http::HeaderValue::from_static(value));
    }
    answer
}

const NONE_LEFT: [(&str, &str); 2] =
    [("x-ratelimit-limit-requests", "60"), ("x-ratelimit-remaining-requests", "0")];

#[tokio::test(start_paused = true)]
async fn nobody_is_refused_on_an_estimate_who_has_nowhere_else_to_go() {
    let layer = RateLimitLayer::default();
    let service =
        layer.layer(service_fn(async |_: PlainRequest| Ok::<_, Failure>(stating(&NONE_LEFT))));
    service.clone().oneshot(of("warm")).await.unwrap();
    // The estimated wait is a second.
    type Change = fn(&mut CallContext);
    let cases: [(&str, Change, Duration); 5] = [
        ("patient", |_| (), secs(1)),
        ("impatient", |context| context.patience = Some(ms(999)), Duration::ZERO),
        ("no patience", |context| context.patience = Some(Duration::ZERO), Duration::ZERO),
        ("in time", |context| context.deadline = Some(Deadline::after(secs(3))), secs(1)),
        (
            "half of the deadline is for the answer",
            |context| context.deadline = Some(Deadline::after(ms(1_500))),
            Duration::ZERO,
        ),
    ];
    for (what, change, waits) in cases {
        layer.handle().reset(&key());
        service.clone().oneshot(of("warm")).await.unwrap();
        let mut request = of("a");
        change(&mut request.context);
        let start = Instant::now();
        service.clone().oneshot(request).await.expect(what);
        assert_eq!(elapsed_ms(start), waits, "{what}");
    }
    layer.handle().reset(&key());
    service.clone().oneshot(of("warm")).await.unwrap();
    let start = Instant::now();
    let done = join_all((0..300).map(|_| service.clone().oneshot(of("a")))).await;
    assert!(done.iter().all(Result::is_ok));
    assert!(elapsed_ms(start) <= secs(60), "{:?}", elapsed_ms(start));
    let snapshot = layer.handle().get(&key()).unwrap();
    assert_eq!((snapshot.refused, snapshot.waiting, snapshot.in_use), (0, 0, 0));
}

#[tokio::test(start_paused = true)]
async fn with_another_target_an_estimate_is_a_reason_to_go_there_and_to_come_back_soon() {
    let layer = RateLimitLayer::default();
    let service =
        layer.layer(service_fn(async |_: PlainRequest| Ok::<_, Failure>(stating(&NONE_LEFT))));
    service.clone().oneshot(of("warm")).await.unwrap();
    let start = Instant::now();
    let done = join_all((0..30).map(|_| service.clone().oneshot(with_spare("a")))).await;
    assert!(elapsed_ms(start) <= secs(1));
    let refused: Vec<_> = done.into_iter().filter_map(Result::err).collect();
    assert_eq!(refused.len(), 29, "one waits for a second");
    for failure in refused {
        assert_eq!(failure.reason(), Reason::Budget);
        assert_eq!(failure.retry_after(), Some(secs(2)), "whatever the estimate says");
    }
}

#[tokio::test(start_paused = true)]
async fn what_a_call_may_write_is_not_what_it_is_expected_to() {
    // 30,000 tokens a minute, and calls that may write 32,000 and write 100.
    let layer = RateLimitLayer::default()
        .with_estimate(|_: &PlainRequest| CallTokens { input: 100, max_output: Some(32_000) });
    let left = Arc::new(AtomicU32::new(30_000));
    let service = layer.clone().at_once().layer(service_fn(at_once));
    let states = layer.layer(service_fn(move |_: PlainRequest| {
        let left = left.fetch_sub(200, Ordering::Relaxed) - 200;
        let mut answer = stating(&[("x-ratelimit-limit-tokens", "30000")]);
        answer.headers_mut().insert("x-ratelimit-remaining-tokens", left.into());
        async { Ok::<_, Failure>(answer) }
    }));
    let start = Instant::now();
    for _ in 0..40 {
        states.clone().oneshot(of("a")).await.unwrap();
        service.clone().oneshot(with_spare("a")).await.expect("there is room for fifty more");
    }
    assert_eq!(elapsed_ms(start), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn a_call_that_waits_takes_a_slot_among_all_that_wait_and_says_how_long_it_waited() {
    let layer = layer(a_minute(60)).at_once();
    let service =
        layer.layer(service_fn(async |_: PlainRequest| Err::<&str, _>(fail(Reason::ServerError))));
    join_all((0..60).map(|_| service.clone().oneshot(of("warm")))).await;
    let policy = BudgetPolicy { max_waiting: 8, ..BudgetPolicy::default() };
    let budget = RetryBudget::new(policy);
    let mut others: Vec<_> = std::iter::from_fn(|| budget.wait(0)).collect();
    others.pop();
    let ask = || {
        let mut request = of("a");
        request.context.budget = Some(budget.clone());
        tokio_test::task::spawn(service.clone().oneshot(request))
    };
    let mut waits = ask();
    assert!(waits.poll().is_pending());
    assert_eq!(budget.waiting() as usize, others.len() + 1);
    let refused = ask().await.unwrap_err();
    assert_eq!(refused.reason(), Reason::Budget);
    assert!(refused.is_crowded() && refused.attempts() == 0, "{refused}");
    let failure = waits.await.unwrap_err();
    assert_eq!((failure.reason(), failure.waited()), (Reason::ServerError, secs(1)));
    assert_eq!(budget.waiting() as usize, others.len());
    assert_eq!(layer.handle().get(&key()).unwrap().waiting, 0);
}

#[tokio::test(start_paused = true)]
async fn tenants_share_in_tokens() {
    let policy =
        RatePolicy { tokens: Some(600_000), max_wait: secs(3_600), ..RatePolicy::default() };
    let layer = RateLimitLayer::new(policy)
        .unwrap()
        .with_estimate(|request: &PlainRequest| CallTokens {
            input: if request.context.tenant() == Some("large") { 100_000 } else { 1_000 },
            max_output: Some(0),
        })
        .at_once();
    let service = layer.layer(service_fn(at_once));
    join_all((0..6).map(|_| service.clone().oneshot(of("large")))).await;
    let mut calls = FuturesUnordered::new();
    for (tenant, count) in [("large", 30), ("small", 3_000)] {
        for _ in 0..count {
            let call = service.clone().oneshot(of(tenant));
            calls.push(call.map(move |done| done.map(|_| tenant)));
        }
    }
    let mut tokens = [0_u64; 2];
    let end = Instant::now() + secs(180);
    while Instant::now() < end {
        match calls.next().await.unwrap() {
            Ok("large") => tokens[0] += 100_000,
            Ok(_) => tokens[1] += 1_000,
            // There is room for a thousand.
            Err(failure) => assert!(failure.message().contains("max_waiting"), "{failure}"),
        }
    }
    let [large, small] = tokens.map(|tokens| tokens as f64);
    assert!(large + small > 1_600_000.0, "{tokens:?}");
    assert!((large - small).abs() <= 100_000.0, "{tokens:?}");
}

#[tokio::test(start_paused = true)]
async fn what_was_not_sent_takes_nothing() {
    // A breaker inside refuses the first, the provider fails the second.
    for (failure, left) in [
        (Failure::refused(Reason::CircuitOpen, "open"), 1_000),
        (fail(Reason::ServerError), 900),
        (fail(Reason::RateLimit), 1_000),
    ] {
        let policy = RatePolicy { tokens: Some(1_000), learn: false, ..RatePolicy::default() };
        let layer = layer(policy);
        let reason = failure.reason();
        let layer = layer
            .with_estimate(|_: &PlainRequest| CallTokens { input: 100, max_output: Some(400) });
        let failure = Arc::new(parking_lot::Mutex::new(Some(failure)));
        let service = layer.clone().at_once().layer(service_fn(move |_: PlainRequest| {
            let failure = failure.lock().take().unwrap();
            async { Err::<&str, _>(failure) }
        }));
        let _ = service.oneshot(of("a")).await.unwrap_err();
        let snapshot = layer.handle().get(&key()).unwrap();
        let expected = if reason == Reason::RateLimit { 0 } else { left };
        assert_eq!(snapshot.quotas[0].available, expected, "{reason}");
        assert_eq!(snapshot.in_use, 0);
    }
}

#[tokio::test(start_paused = true)]
async fn a_handle_blocks_shows_and_resets() {
    let layer = layer(a_minute(2)).at_once();
    let service = layer.layer(service_fn(at_once));
    for _ in 0..2 {
        service.clone().oneshot(of("a")).await.unwrap();
    }
    let handle = layer.handle();
    let quota = handle.snapshot()[0].quotas[0].clone();
    assert_eq!(
        (quota.name, quota.limit, quota.period, quota.available, quota.learned),
        ("requests", 2, secs(60), 0, false)
    );
    assert!(handle.reset(&key()) && !handle.reset(&None));
    assert_eq!(handle.get(&key()).unwrap().quotas[0].available, 2);
    handle.block(&key(), secs(3_600));
    let refused = service.clone().oneshot(of("a")).await.unwrap_err();
    assert_eq!(refused.retry_after(), Some(secs(3_600)));
    handle.reset_all();
    service.clone().oneshot(of("a")).await.unwrap();
    assert!(format!("{handle:?}{layer:?}{service:?}").len() < 2_000);
}

#[tokio::test(start_paused = true)]
async fn what_a_reload_has_changed_is_forgotten_and_whoever_waits_there_goes_on() {
    let layer = layer(a_minute(1)).at_once();
    let service = layer.layer(service_fn(at_once));
    let to =
        |target: &str| plain_request(|context| *context = CallContext::new().with_target(target));
    for target in ["renewed", "kept"] {
        service.clone().oneshot(to(target)).await.unwrap();
    }
    let start = Instant::now();
    let mut waits = tokio_test::task::spawn(service.clone().oneshot(to("renewed")));
    assert!(waits.poll().is_pending());
    layer.handle().retain(|target| target.provider() != "renewed");
    let known = layer.handle().snapshot();
    assert_eq!(known.len(), 1);
    assert_eq!(known[0].target, Some(Target::new("kept")));
    service.clone().oneshot(to("renewed")).now_or_never().expect("nothing is used").unwrap();
    waits.await.unwrap();
    assert_eq!(elapsed_ms(start), secs(60), "as it was told when it began");
}

#[tokio::test(start_paused = true)]
async fn new_settings_go_on_with_what_is_used() {
    let before = layer(a_minute(10)).at_once();
    for _ in 0..10 {
        before.layer(service_fn(at_once)).oneshot(of("a")).await.unwrap();
    }
    let mut waits = tokio_test::task::spawn(before.layer(service_fn(at_once)).oneshot(of("a")));
    assert!(waits.poll().is_pending());
    let after = layer(a_minute(12)).at_once().sharing(&before.handle());
    assert!(waits.is_woken() && waits.poll().is_ready(), "there is room for two more");
    let quota = &after.handle().get(&key()).unwrap().quotas[0];
    assert_eq!((quota.limit, quota.available), (12, 1));
}

#[tokio::test(start_paused = true)]
async fn a_closure_chooses_the_key() {
    let layer = RateLimitLayer::new(a_minute(1)).unwrap().at_once();
    let layer = layer.with_key(|request: &http::Request<()>| request.uri().host().map(Target::new));
    let service =
        layer.layer(service_fn(async |_: http::Request<()>| Ok::<_, Failure>("answered")));
    for host in ["http://a/", "http://b/"] {
        let mut request = http::Request::get(host).body(()).unwrap();
        request.context_mut().max_attempts = NonZeroU32::new(1);
        service.clone().oneshot(request).now_or_never().unwrap().unwrap();
    }
    assert_eq!(layer.handle().snapshot().len(), 2);
}
