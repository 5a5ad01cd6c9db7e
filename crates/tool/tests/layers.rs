//! What an agent sees of tools that hang, fail, panic and keep failing.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::{
    future::{Future, pending, poll_fn},
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    task::Poll,
    time::Duration,
};

use steadfast_chat::{Part, ToolCall, ToolFailure, ToolFailureKind, ToolRequest, ToolResult};
use steadfast_core::{BoxError, CallContext, Deadline, Failure, Reason};
use steadfast_testkit::{CapturedEvents, secs};
use steadfast_tool::{
    PolicyError, ToolBreakerLayer, ToolBreakerPolicy, ToolErrorLayer, ToolTimeoutLayer,
    ToolTimeoutPolicy,
};
use tokio::time::Instant;
use tower::{Layer, Service, ServiceBuilder, ServiceExt, service_fn};

fn call(arguments: &str) -> ToolRequest {
    let call = ToolCall {
        id: "call_7".into(),
        name: "fetch".into(),
        arguments: arguments.into(),
        ..ToolCall::default()
    };
    ToolRequest::new(CallContext::recording().with_task("task"), call)
}

fn text(result: &ToolResult) -> &str {
    assert_eq!((result.id.as_str(), result.name.as_deref()), ("call_7", Some("fetch")));
    result.content[0].as_text().unwrap()
}

type Outcome = Result<ToolResult, Failure>;

async fn run<S>(service: S, request: ToolRequest) -> Outcome
where
    S: Service<ToolRequest, Response = ToolResult, Error = Failure>,
{
    service.oneshot(request).await
}

/// Counts what is dropped.
#[derive(Clone, Default)]
struct Drops(Arc<AtomicU32>);

impl Drop for Drops {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[tokio::test(start_paused = true)]
async fn a_tool_that_hangs_is_a_result_after_120_seconds() {
    let (counts, dropped) = (Drops::default(), Arc::new(AtomicU32::new(0)));
    drop(counts);
    let hangs = {
        let dropped = dropped.clone();
        service_fn(move |request: ToolRequest| {
            let (held, limit) = (Drops(dropped.clone()), request.context.deadline.unwrap());
            assert_eq!(limit.remaining(), secs(120), "the tool knows its limit");
            async move {
                let _held = held;
                pending::<Outcome>().await
            }
        })
    };
    let layer = ToolTimeoutLayer::default();
    let (request, began) = (call("{}"), Instant::now());
    let log = request.context.log.clone();
    let future = run(layer.layer(hangs), request);
    let result = future.await.unwrap();
    assert_eq!(began.elapsed(), secs(120));
    assert_eq!(dropped.load(Ordering::Relaxed), 1, "at once");
    assert_eq!(result.failure_kind(), Some(ToolFailureKind::TimedOut));
    assert!(text(&result).starts_with("The call was stopped because it was not done after 120 s."));
    let for_user = result.failure.as_ref().unwrap().user_text().unwrap();
    assert!(for_user.contains("Say so if it should be tried again"), "{for_user}");
    assert_eq!(log.to_string(), "tool.timed_out timeout 120000ms fetch");
    assert_eq!(layer.handle().snapshot().timed_out, 1);
    layer.handle().reset();
    assert_eq!(layer.handle().snapshot().timed_out, 0);
}

#[tokio::test(start_paused = true)]
async fn the_earlier_limit_counts() {
    let slow = |after| {
        service_fn(move |request: ToolRequest| async move {
            tokio::time::sleep(after).await;
            Ok::<_, Failure>(ToolResult::of(&request.call, "done"))
        })
    };
    for (after, deadline, ends_at, error) in [
        (119, None, 119, false),
        (121, None, 120, true),
        (50, Some(40), 40, true),
        (50, Some(400), 50, false),
    ] {
        let mut request = call("{}");
        request.context.deadline = deadline.map(|at| Deadline::after(secs(at)));
        let began = Instant::now();
        let result = run(ToolTimeoutLayer::default().layer(slow(secs(after))), request).await;
        assert_eq!((began.elapsed(), result.unwrap().is_error), (secs(ends_at), error), "{after}");
    }
    assert_eq!(
        ToolTimeoutLayer::after(Duration::ZERO).unwrap_err(),
        PolicyError::Zero("timeout", "")
    );
    assert_eq!(ToolTimeoutPolicy::default().timeout, secs(120));
}

/// A tool that is always busy uses up the budget of its task, with which timers are polled.
#[tokio::test(start_paused = true)]
async fn a_tool_that_is_always_busy_is_ended() {
    let busy = || {
        service_fn(|_: ToolRequest| {
            poll_fn(|cx| {
                while let Poll::Ready(progress) = tokio::task::coop::poll_proceed(cx) {
                    progress.made_progress();
                }
                Poll::<Outcome>::Pending
            })
        })
    };
    let layer = ToolTimeoutLayer::default();
    let timed = tokio::spawn(run(layer.layer(busy()), call("{}")));
    let request = call("{}");
    let abort = request.abort.clone();
    let aborted = tokio::spawn(run(layer.layer(busy()), request));
    tokio::task::yield_now().await;
    abort.cancel();
    tokio::time::advance(secs(121)).await;
    for (running, kind) in [(timed, ToolFailureKind::TimedOut), (aborted, ToolFailureKind::Aborted)]
    {
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        assert!(running.is_finished(), "{kind:?}");
        assert_eq!(running.await.unwrap().unwrap().failure_kind(), Some(kind));
    }
}

#[tokio::test(start_paused = true)]
async fn an_abort_ends_the_call() {
    let hangs = || service_fn(|_: ToolRequest| pending::<Outcome>());
    let layer = ToolTimeoutLayer::default();
    let request = call("{}");
    let (abort, log) = (request.abort.clone(), request.context.log.clone());
    let running = tokio::spawn(run(layer.layer(hangs()), request));
    tokio::time::sleep(secs(3)).await;
    abort.cancel();
    let result = running.await.unwrap().unwrap();
    assert_eq!(result.failure_kind(), Some(ToolFailureKind::Aborted));
    assert!(text(&result).starts_with("The call was aborted"), "{result:?}");
    assert_eq!(log.to_string(), "tool.aborted 3000ms fetch");
    // Aborted before: it is not made.
    let never = service_fn(|_: ToolRequest| -> std::future::Ready<Outcome> { unreachable!() });
    let request = call("{}").with_abort(abort);
    let result = run(layer.layer(never), request).await.unwrap();
    assert_eq!(result.failure_kind(), Some(ToolFailureKind::Aborted));
    assert!(text(&result).contains("no effect"), "{result:?}");
    assert_eq!(layer.handle().snapshot().aborted, 2);
}

/// However often it comes too late, the tool is not to blame.
#[tokio::test(start_paused = true)]
async fn a_call_that_comes_too_late_is_not_made_and_counts_for_nobody() {
    let made = Arc::new(AtomicU32::new(0));
    let tool = {
        let made = made.clone();
        service_fn(move |request: ToolRequest| {
            made.fetch_add(1, Ordering::Relaxed);
            async move { Ok::<_, Failure>(ToolResult::of(&request.call, "done")) }
        })
    };
    let (breaker, timeout) = (ToolBreakerLayer::default(), ToolTimeoutLayer::default());
    let tool = ServiceBuilder::new().layer(breaker).layer(timeout.clone()).service(tool);
    for _ in 0..10 {
        let mut request = call("{}");
        request.context.deadline = Some(Deadline::after(Duration::ZERO));
        let log = request.context.log.clone();
        let result = run(tool.clone(), request).await.unwrap();
        assert_eq!(result.failure_kind(), Some(ToolFailureKind::Refused));
        let begins = "`fetch` was not called, so it has had no effect";
        assert!(text(&result).starts_with(begins), "{}", text(&result));
        assert_eq!(log.to_string(), "tool.refused fetch deadline");
        assert_eq!(result.failure.unwrap().user_text(), None);
    }
    assert_eq!((timeout.handle().snapshot().timed_out, made.load(Ordering::Relaxed)), (0, 0));
    assert!(!run(tool, call("{}")).await.unwrap().is_error, "it is not blocked");
}

#[tokio::test]
async fn errors_are_results_but_for_two() {
    let failing = |failure: fn() -> Failure| {
        ToolErrorLayer::default()
            .layer(service_fn(move |_: ToolRequest| async move { Outcome::Err(failure()) }))
    };
    let result = run(
        failing(|| {
            Failure::from(BoxError::from("no route to host, key sk-ant-api03-abcdefghijklmnop"))
        }),
        call("{}"),
    );
    let result = result.await.unwrap();
    assert_eq!(result.failure_kind(), Some(ToolFailureKind::Failed));
    assert!(text(&result).starts_with("`fetch` failed: no route to host"), "{result:?}");
    assert!(!text(&result).contains("abcdefghijklmnop"), "secrets are masked: {result:?}");
    let empty = run(failing(|| Failure::new(Reason::Auth, "")), call("{}")).await.unwrap();
    assert_eq!(text(&empty), "`fetch` failed: auth.");
    assert_eq!(empty.failure.unwrap().tag.as_deref(), Some("auth"));
    let stop = run(failing(|| Failure::new(Reason::Safety, "stop")), call("{}")).await;
    assert_eq!(stop.unwrap_err().reason(), Reason::Safety);
    let gone = run(failing(|| Failure::new(Reason::Cancelled, "")), call("{}")).await;
    assert_eq!(gone.unwrap_err().reason(), Reason::Cancelled);
}

/// Panics when it is polled, and again when it is dropped.
struct PanicsTwice;

impl Future for PanicsTwice {
    type Output = Outcome;

    fn poll(
        self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Outcome> {
        panic!("polled {}", 1)
    }
}

impl Drop for PanicsTwice {
    fn drop(&mut self) {
        assert!(std::thread::panicking(), "dropped");
    }
}

#[tokio::test]
async fn a_panic_is_a_result_and_one_event() {
    let events = CapturedEvents::default();
    let _guard = tracing::subscriber::set_default(events.clone());
    let layer = ToolErrorLayer::default();
    let in_call = layer
        .layer(service_fn(|_: ToolRequest| -> std::future::Ready<Outcome> { panic!("called") }));
    let in_poll = layer.layer(service_fn(|_: ToolRequest| PanicsTwice));
    for at_first in [true, false] {
        let (result, error) = match at_first {
            true => (run(in_call.clone(), call("{}")).await, "called"),
            false => (run(in_poll.clone(), call("{}")).await, "polled 1"),
        };
        let result = result.unwrap();
        assert_eq!(result.failure_kind(), Some(ToolFailureKind::Panicked));
        assert!(text(&result).contains("a bug in the tool") && !text(&result).contains(error));
        let line = format!("steadfast::tool::panicked tool=\"fetch\" error=\"{error}\"");
        assert_eq!(events.take(), [line]);
    }
    assert_eq!(layer.snapshot().panicked, 2);
}

/// The recommended order around a tool that does what `run` says.
fn stack<F, Fut>(
    breaker: &ToolBreakerLayer,
    run: F,
) -> impl Service<ToolRequest, Response = ToolResult, Error = Failure, Future: Send> + Clone
where
    F: FnMut(ToolRequest) -> Fut + Clone,
    Fut: Future<Output = Outcome> + Send,
{
    ServiceBuilder::new()
        .layer(breaker.clone())
        .layer(ToolErrorLayer::default())
        .layer(ToolTimeoutLayer::default())
        .service(service_fn(run))
}

#[tokio::test(start_paused = true)]
async fn a_call_that_keeps_hanging_is_blocked_and_tried_again_later() {
    let (breaker, calls) = (ToolBreakerLayer::default(), Arc::new(AtomicU32::new(0)));
    let tool = {
        let calls = calls.clone();
        stack(&breaker, move |_| {
            calls.fetch_add(1, Ordering::Relaxed);
            pending()
        })
    };
    for _ in 0..3 {
        let result = run(tool.clone(), call(r#"{"a":{"x":1,"y":2},"b":3}"#)).await.unwrap();
        assert_eq!(result.failure_kind(), Some(ToolFailureKind::TimedOut));
    }
    // The same, in another order.
    let began = Instant::now();
    let request = call(r#"{ "b": 3, "a": {"y": 2, "x": 1} }"#);
    let log = request.context.log.clone();
    let blocked = run(tool.clone(), request).await.unwrap();
    assert_eq!((began.elapsed(), calls.load(Ordering::Relaxed)), (Duration::ZERO, 3));
    assert_eq!(blocked.failure_kind(), Some(ToolFailureKind::Refused));
    let says = text(&blocked);
    for part in
        ["this same call failed 3 times", "not done after 120 s", "change the arguments", "in 60 s"]
    {
        assert!(says.contains(part), "{part}: {says}");
    }
    assert_eq!(log.to_string(), "tool.blocked 60000ms fetch");
    // Another task is not concerned.
    let mut other = call(r#"{"a":{"x":1,"y":2},"b":3}"#);
    other.context = CallContext::new().with_tenant("acme").with_task("task");
    run(tool.clone(), other).await.unwrap();
    assert_eq!(calls.load(Ordering::Relaxed), 4);
    tokio::time::sleep(secs(60)).await;
    run(tool.clone(), call(r#"{"a":{"x":1,"y":2},"b":3}"#)).await.unwrap();
    assert_eq!(calls.load(Ordering::Relaxed), 5, "the probe");
    assert!(breaker.handle().reset("fetch"));
    run(tool, call(r#"{"a":{"x":1,"y":2},"b":3}"#)).await.unwrap();
    assert_eq!(calls.load(Ordering::Relaxed), 6);
}

#[tokio::test]
async fn a_tool_that_fails_with_everything_is_blocked() {
    // How it fails, and after how many calls with different arguments it is blocked.
    type Run = fn(ToolRequest) -> Outcome;
    let table: [(&str, Run, Option<u32>); 8] = [
        ("errors", |_| Err(Failure::new(Reason::Network, "refused")), Some(5)),
        ("errors that stay", |_| Err(Failure::new(Reason::Billing, "unpaid")), Some(2)),
        ("panics", |_| panic!("bug"), Some(5)),
        (
            "results that are errors",
            |request| {
                let content = vec![Part::text("it broke")];
                let id = request.call.id;
                Ok(ToolResult { id, content, is_error: true, ..ToolResult::default() })
            },
            Some(5),
        ),
        (
            "one tag",
            |request| {
                let failure = ToolFailure::from(ToolFailureKind::Failed).with_tag("gone");
                Ok(ToolResult::failed(&request.call, failure, "it is gone"))
            },
            Some(2),
        ),
        (
            "wrong arguments",
            |request| Ok(ToolResult::failed(&request.call, ToolFailureKind::Arguments, "no `a`")),
            None,
        ),
        (
            "commands that end with a status",
            |request| Ok(ToolResult::failed(&request.call, ToolFailureKind::Exit, "status 1")),
            None,
        ),
        ("success", |request| Ok(ToolResult::of(&request.call, "fine")), None),
    ];
    for (what, behaves, blocked_after) in table {
        let (breaker, calls) = (ToolBreakerLayer::default(), Arc::new(AtomicU32::new(0)));
        let tool = {
            let calls = calls.clone();
            stack(&breaker, move |request| {
                calls.fetch_add(1, Ordering::Relaxed);
                async move { behaves(request) }
            })
        };
        let mut last = None;
        for at in 0..10 {
            last = Some(run(tool.clone(), call(&format!(r#"{{"at":{at}}}"#))).await.unwrap());
        }
        let made = blocked_after.unwrap_or(10);
        assert_eq!(calls.load(Ordering::Relaxed), made, "{what}");
        let refused = last.unwrap().failure_kind() == Some(ToolFailureKind::Refused);
        assert_eq!(refused, blocked_after.is_some(), "{what}");
        assert_eq!(breaker.handle().blocked(), u64::from(10 - made), "{what}");
    }
}

#[tokio::test]
async fn a_panic_counts_without_a_layer_that_catches_it() {
    let breaker = ToolBreakerLayer::default();
    let tool = breaker.layer(service_fn(|_: ToolRequest| async { panic!("bug") as Outcome }));
    for _ in 0..3 {
        let running = tokio::spawn(run(tool.clone(), call("{}")));
        assert!(running.await.unwrap_err().is_panic());
    }
    assert!(run(tool, call("{}")).await.unwrap().is_error);
    assert_eq!(breaker.handle().in_flight(), 0);
}

#[tokio::test(start_paused = true)]
async fn dropped_calls_count_neither_way() {
    let breaker = ToolBreakerLayer::default();
    let hangs = breaker.layer(service_fn(|_: ToolRequest| pending::<Outcome>()));
    for _ in 0..20 {
        let call = tokio::time::timeout(secs(1), run(hangs.clone(), call("{}"))).await;
        assert!(call.is_err(), "it is made each time");
    }
    assert_eq!(breaker.handle().in_flight(), 0);
    assert!(breaker.handle().snapshot().is_empty());
}

#[tokio::test(start_paused = true)]
async fn what_the_breaker_does_is_reported() {
    let events = CapturedEvents::default();
    let _guard = tracing::subscriber::set_default(events.clone());
    let breaker = ToolBreakerLayer::default();
    let works = Arc::new(AtomicU32::new(0));
    let tool = {
        let works = works.clone();
        breaker.layer(service_fn(move |request: ToolRequest| {
            let works = works.load(Ordering::Relaxed) > 0;
            let kind = ToolFailureKind::Failed;
            let result = match works {
                true => ToolResult::of(&request.call, "fine"),
                false => ToolResult::failed(&request.call, kind, "broken"),
            };
            async { Ok::<_, Failure>(result) }
        }))
    };
    for _ in 0..4 {
        run(tool.clone(), call("{}")).await.unwrap();
    }
    tokio::time::sleep(secs(60)).await;
    works.store(1, Ordering::Relaxed);
    run(tool.clone(), call("{}")).await.unwrap();
    let about = "session=\"task\" tool=\"fetch\"";
    assert_eq!(
        events.take(),
        [
            format!(
                "steadfast::tool::opened {about} covers=\"call\" cause=\"consecutive\" failures=3 rest_ms=60000"
            ),
            format!("steadfast::tool::blocked {about} covers=\"call\" failures=3 wait_ms=60000"),
            format!("steadfast::tool::probe {about}"),
            format!("steadfast::tool::closed {about} covers=\"call\""),
        ]
    );
}

#[test]
fn invalid_policies_are_refused_with_a_message() {
    let good = ToolBreakerPolicy::default();
    good.validate().unwrap();
    for (policy, says) in [
        (ToolBreakerPolicy { same_call: Some(0), ..good }, "`same_call` is zero"),
        (ToolBreakerPolicy { tool: Some(65), ..good }, "set at most 64"),
        (ToolBreakerPolicy { rest: Duration::ZERO, ..good }, "`rest` is zero"),
        (ToolBreakerPolicy { sessions: 0.into(), ..good }, "`sessions` is zero"),
    ] {
        let error = ToolBreakerLayer::new(policy).unwrap_err().to_string();
        assert!(error.contains(says), "{error}");
    }
    let off = ToolBreakerPolicy { same_call: None, tool: None, same_tag: None, ..good };
    off.validate().unwrap();
}
