//! The chat layer, driven by hand around a simple service of foreign types.

#![allow(clippy::expect_used, clippy::unwrap_used, reason = "helpers of tests are tests")]

use std::{
    borrow::Cow,
    convert::Infallible,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use futures_core::Stream;
use http::{HeaderMap, StatusCode};
use steadfast_chat::{ChatRequest, ChatResponse, Delta, Event, Frame, Head, StopReason};
use steadfast_classify::{ClassifyLayer, Evidence, Opinion, Verdict};
use steadfast_core::{
    Call, CallContext, Dialect, Failover, Failure, Reason, RecoveryTable, Retry, Scope, Target,
    Upstream, Usage,
};
use steadfast_testkit::{PlainRequest, plain_request};
use tokio_test::{assert_pending, assert_ready, assert_ready_err, task};
use tower::{BoxError, Layer, Service, ServiceExt, service_fn};

fn ask() -> PlainRequest {
    plain_request(|context| context.target = Some(Target::new("anthropic").with_model("claude")))
}

/// Events from a list; counts how often it is polled after its end.
struct Script(std::vec::IntoIter<Result<Event, Failure>>);

impl Stream for Script {
    type Item = Result<Event, Failure>;

    fn poll_next(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        Poll::Ready(self.0.next())
    }
}

fn script(events: Vec<Result<Event, Failure>>) -> ChatResponse<Script> {
    ChatResponse::new(Head::new(Dialect::Anthropic), Script(events.into_iter()))
}

fn text(text: &str) -> Delta {
    Delta::Text { index: 0, text: text.to_owned() }
}

fn event(delta: Delta) -> Result<Event, Failure> {
    Ok(Event::new([delta]))
}

fn stop(reason: StopReason) -> Delta {
    Delta::Stop(reason.into())
}

fn refusal(status: u16, body: &'static str) -> Failure {
    Failure::from_upstream(Upstream::response(
        StatusCode::from_u16(status).unwrap(),
        HeaderMap::new(),
        body,
    ))
}

/// What comes out of a stream: event count, then how it ended.
async fn drain<S>(mut response: ChatResponse<S>) -> (usize, Option<Failure>)
where
    ChatResponse<S>: Stream<Item = Result<Event, Failure>> + Unpin,
{
    let mut count = 0;
    let mut end = None;
    loop {
        let next = std::future::poll_fn(|cx| Pin::new(&mut response).poll_next(cx)).await;
        match next {
            Some(Ok(_)) => count += 1,
            Some(Err(failure)) => {
                assert!(end.is_none(), "one failure, then nothing");
                end = Some(failure);
            }
            None => return (count, end),
        }
    }
}

async fn answer(
    layer: &ClassifyLayer,
    events: Vec<Result<Event, Failure>>,
) -> (usize, Option<Failure>) {
    answer_to(ask(), layer, events).await
}

async fn answer_to(
    request: PlainRequest,
    layer: &ClassifyLayer,
    events: Vec<Result<Event, Failure>>,
) -> (usize, Option<Failure>) {
    let mut once = Some(events);
    let inner = service_fn(move |_: PlainRequest| {
        let response = script(once.take().expect("one call"));
        async move { Ok::<_, Infallible>(response) }
    });
    drain(layer.layer(inner).oneshot(request).await.unwrap()).await
}

#[tokio::test]
async fn a_refusal_is_judged_in_full_and_names_its_target() {
    let service = ClassifyLayer::default().layer(service_fn(|_: PlainRequest| async {
        Err::<ChatResponse<Script>, Failure>(refusal(
            429,
            r#"{"error":{"type":"insufficient_quota","message":"You exceeded your current quota"}}"#,
        ))
    }));
    let failure = service.oneshot(ask()).await.unwrap_err();
    assert_eq!(failure.reason(), Reason::Billing);
    assert_eq!(failure.retry(), Retry::No);
    assert_eq!(failure.failover(), Failover::NextCredential);
    assert_eq!(failure.evidence(), "code:insufficient_quota");
    assert_eq!(failure.target().unwrap().to_string(), "anthropic/claude");
    assert_eq!(failure.message(), "You exceeded your current quota");
    assert_eq!(failure.status(), Some(StatusCode::TOO_MANY_REQUESTS));
    assert!(failure.upstream().is_some(), "the evidence is kept");
}

#[tokio::test]
async fn what_layers_have_judged_is_kept() {
    for (failure, reason) in [
        (Failure::new(Reason::Timeout, "stalled").with_evidence("ours"), Reason::Timeout),
        (Failure::refused(Reason::CircuitOpen, "open"), Reason::CircuitOpen),
        (Failure::new(Reason::Safety, "429 rate limit"), Reason::Safety),
        (Failure::new(Reason::Unknown, "429 rate limit"), Reason::Unknown),
    ] {
        let (message, attempts) = (failure.message().to_owned(), failure.attempts());
        let mut once = Some(failure);
        let service = ClassifyLayer::default().layer(service_fn(move |_: PlainRequest| {
            let failure = once.take().unwrap();
            async { Err::<ChatResponse<Script>, _>(failure) }
        }));
        let after = service.oneshot(ask()).await.unwrap_err();
        assert_eq!(after.reason(), reason);
        assert_eq!((after.message(), after.attempts()), (&*message, attempts));
    }
}

#[tokio::test]
async fn foreign_errors_are_recognised_by_type_then_by_text() {
    let reset: fn() -> BoxError =
        || std::io::Error::from(std::io::ErrorKind::ConnectionReset).into();
    let elapsed: fn() -> BoxError = || tower::timeout::error::Elapsed::new().into();
    let text: fn() -> BoxError = || "connect ECONNREFUSED 127.0.0.1:11434".into();
    let strange: fn() -> BoxError = || "what is this".into();
    for (error, reason, evidence) in [
        (reset, Reason::Network, "transport:reset"),
        (text, Reason::Network, "pattern:econnrefused"),
        (strange, Reason::Unknown, "error"),
        #[cfg(feature = "tower")]
        (elapsed, Reason::Timeout, "transport:timeout"),
    ] {
        let service =
            ClassifyLayer::default().layer(service_fn(move |_: PlainRequest| async move {
                Err::<ChatResponse<Script>, _>(error())
            }));
        let failure = service.oneshot(ask()).await.unwrap_err();
        assert_eq!((failure.reason(), failure.evidence()), (reason, evidence));
        assert!(std::error::Error::source(&failure).is_some(), "the cause is kept");
        assert_eq!(failure.target().unwrap().provider(), "anthropic");
    }
    drop(elapsed());
}

#[tokio::test]
async fn what_another_systems_guard_stopped_is_not_asked_again_anywhere() {
    for (text, reason, retry, failover) in [
        ("loop detected", Reason::Safety, Retry::Forbidden, Failover::Forbidden),
        ("Safety limit reached: 50 calls", Reason::Safety, Retry::Forbidden, Failover::Forbidden),
        ("user cancelled", Reason::Cancelled, Retry::No, Failover::Never),
        ("aborted", Reason::Cancelled, Retry::No, Failover::Never),
    ] {
        let service =
            ClassifyLayer::default().layer(service_fn(move |_: PlainRequest| async move {
                Err::<ChatResponse<Script>, BoxError>(text.into())
            }));
        let failure = service.oneshot(ask()).await.unwrap_err();
        assert_eq!(
            (failure.reason(), failure.retry(), failure.failover()),
            (reason, retry, failover),
            "{text}"
        );
        // As the error event of a stream.
        let event = Failure::from_upstream(Upstream::event(text));
        let (_, end) = answer(&ClassifyLayer::default(), vec![Err(event)]).await;
        let failure = end.unwrap();
        assert_eq!((failure.reason(), failure.retry()), (reason, retry), "{text}");
    }
}

#[tokio::test]
async fn a_whole_answer_is_handed_on_unchanged() {
    let events = vec![
        event(Delta::Start { id: None, model: None }),
        event(text("hello")),
        event(stop(StopReason::EndTurn)),
        event(Delta::End),
    ];
    let (count, end) = answer(&ClassifyLayer::default(), events).await;
    assert_eq!(count, 4);
    assert!(end.is_none());
}

#[tokio::test]
async fn an_error_event_is_judged_and_knows_whether_content_was_delivered() {
    let overloaded = || {
        Failure::from_upstream(Upstream::event(
            r#"{"type":"error","error":{"details":null,"type":"overloaded_error","message":"Overloaded"}}"#,
        ))
    };
    let (count, end) = answer(
        &ClassifyLayer::default(),
        vec![event(text("a")), Err(overloaded()), event(text("b"))],
    )
    .await;
    let failure = end.unwrap();
    assert_eq!(count, 1, "nothing comes after an error");
    assert_eq!(failure.reason(), Reason::Overloaded);
    assert!(failure.is_delivered());

    let (_, end) = answer(&ClassifyLayer::default(), vec![Err(overloaded())]).await;
    assert!(!end.unwrap().is_delivered());
}

#[tokio::test]
async fn secrets_that_are_known_are_gone_before_anybody_reads_what_a_provider_wrote() {
    fn mask(text: &[u8]) -> Cow<'_, [u8]> {
        match std::str::from_utf8(text) {
            Ok(text) if text.contains("open sesame") => {
                Cow::Owned(text.replace("open sesame", "***").into_bytes())
            }
            _ => Cow::Borrowed(text),
        }
    }
    let layer =
        ClassifyLayer::default().with_mask(mask).with_override(|evidence: &Evidence<'_>| {
            assert!(!String::from_utf8_lossy(evidence.body).contains("sesame"));
            Opinion::None
        });
    let body = r#"{"error":{"type":"invalid_request_error","message":"no, open sesame"}}"#;
    let refuses = service_fn(move |_: PlainRequest| async move {
        Err::<ChatResponse<Script>, Failure>(refusal(400, body))
    });
    let refused = layer.layer(refuses).oneshot(ask()).await.unwrap_err();
    let event = Failure::from_upstream(Upstream::event(body));
    let (_, broken) = answer(&layer, vec![Err(event)]).await;
    for failure in [refused, broken.unwrap()] {
        assert_eq!(failure.message(), "no, ***");
        assert_eq!(failure.upstream().unwrap().body, body.replace("open sesame", "***"));
    }
}

fn empty(reason: StopReason) -> Vec<Result<Event, Failure>> {
    vec![event(text("")), event(stop(reason)), event(Delta::End)]
}

#[tokio::test]
async fn an_answer_with_nothing_in_it_is_an_answer() {
    for reason in [
        StopReason::EndTurn,
        StopReason::StopSequence,
        StopReason::ToolUse,
        StopReason::MaxTokens,
        StopReason::ContentFilter,
        StopReason::Pause,
        StopReason::Other,
    ] {
        let (count, end) = answer(&ClassifyLayer::default(), empty(reason)).await;
        assert_eq!(count, 3, "{reason:?}");
        assert!(end.is_none(), "{reason:?}: {end:?}");
    }
    let (count, end) = answer(&ClassifyLayer::default(), vec![event(text(""))]).await;
    assert_eq!((count, end.unwrap().evidence()), (1, "no terminal event"), "it has no end");

    // LM Studio answers a prompt that does not fit in this way.
    let local = plain_request(|context| context.target = Some(Target::new("lmstudio")));
    let (_, end) = answer_to(local, &ClassifyLayer::default(), empty(StopReason::EndTurn)).await;
    assert_eq!(end.unwrap().reason(), Reason::ContextOverflow);
}

#[tokio::test]
async fn an_answer_with_nothing_in_it_is_asked_for_once_more_where_that_is_the_policy() {
    let layer = ClassifyLayer::default().with_retry_empty(true);
    let (count, end) = answer(&layer, empty(StopReason::EndTurn)).await;
    let failure = end.unwrap();
    assert_eq!(count, 2, "the end is held back");
    assert_eq!((failure.reason(), failure.evidence()), (Reason::ServerError, "empty answer"));
    assert_eq!((failure.retry(), failure.scope()), (Retry::Yes, Scope::Request));
    assert!(!failure.is_delivered());

    let again = plain_request(|context| context.attempts = 1);
    let (count, end) = answer_to(again, &layer, empty(StopReason::EndTurn)).await;
    assert_eq!(count, 3, "then it is what the model has to say");
    assert!(end.is_none(), "{end:?}");

    for reason in [StopReason::MaxTokens, StopReason::ContentFilter, StopReason::Pause] {
        let (count, end) = answer(&layer, empty(reason)).await;
        assert_eq!(count, 3);
        assert!(end.is_none(), "{reason:?} explains it");
    }
    let call = Delta::ToolCall { index: 0, id: "1".into(), name: "f".into() };
    let audio = Frame::sse(Dialect::OpenAi, "data: {}\n\n").with_content(true);
    for content in [event(call), Ok(Event::from_frame(audio, []))] {
        let events = vec![content, event(stop(StopReason::EndTurn)), event(Delta::End)];
        assert!(answer(&layer, events).await.1.is_none(), "it has content");
    }
}

#[tokio::test]
async fn a_stream_without_its_terminal_event_is_a_failure() {
    let (count, end) = answer(&ClassifyLayer::default(), vec![event(text("half an ans"))]).await;
    let failure = end.unwrap();
    assert_eq!(count, 1);
    assert_eq!((failure.reason(), failure.evidence()), (Reason::ServerError, "no terminal event"));
    assert!(failure.is_delivered());
}

#[tokio::test]
async fn more_input_than_the_window_holds_is_a_silent_overflow() {
    let layer = ClassifyLayer::default()
        .with_windows(|target| (target.model() == Some("claude")).then_some(1_000));
    let used = |input| event(Delta::Usage(Usage::new(input, 5)));
    let (_, end) = answer(&layer, vec![used(1_500), event(text("a")), event(Delta::End)]).await;
    let failure = end.unwrap();
    assert_eq!(failure.reason(), Reason::ContextOverflow);
    let window = failure.window().unwrap();
    assert_eq!((window.limit, window.requested), (Some(1_000), Some(1_500)));

    let (_, end) = answer(&layer, vec![used(1_000), event(text("a")), event(Delta::End)]).await;
    assert!(end.is_none(), "full is not over");
    let late = vec![event(text("a")), used(1_500), event(Delta::End)];
    assert!(answer(&layer, late).await.1.is_none(), "what was delivered is not taken back");
    let (_, end) =
        answer(&ClassifyLayer::default(), vec![used(9_999), event(text("a")), event(Delta::End)])
            .await;
    assert!(end.is_none(), "an unknown window is none");
}

#[tokio::test]
async fn a_users_own_rules_come_first_and_may_have_no_opinion() {
    let layer = ClassifyLayer::default().with_override(|evidence: &Evidence<'_>| {
        evidence.body.starts_with(b"E7").then(|| {
            Verdict::new(Reason::Overloaded, "house rule")
                .with_retry_after(Some(Duration::from_secs(3)))
        })
    });
    let fail = |body| {
        service_fn(move |_: PlainRequest| async move {
            Err::<ChatResponse<Script>, _>(refusal(400, body))
        })
    };
    let own = layer.layer(fail("E7 busy")).oneshot(ask()).await.unwrap_err();
    assert_eq!((own.reason(), own.evidence()), (Reason::Overloaded, "house rule"));
    assert_eq!(own.retry_after(), Some(Duration::from_secs(3)));
    let other = layer.layer(fail("E8 bad")).oneshot(ask()).await.unwrap_err();
    assert_eq!(other.reason(), Reason::Format);
}

#[tokio::test]
async fn that_a_failure_is_fine_does_not_make_an_answer_of_it() {
    let layer = ClassifyLayer::default().with_override(|_: &Evidence<'_>| Opinion::Fine);
    let service = layer.layer(service_fn(|_: PlainRequest| async {
        Err::<ChatResponse<Script>, _>(refusal(429, r#"{"error":{"code":"insufficient_quota"}}"#))
    }));
    let failure = service.oneshot(ask()).await.unwrap_err();
    assert_eq!(
        (failure.reason(), failure.evidence()),
        (Reason::Billing, "code:insufficient_quota")
    );

    let service = layer.layer(service_fn(|_: PlainRequest| async {
        Err::<ChatResponse<Script>, BoxError>("connection reset by peer".into())
    }));
    assert_eq!(service.oneshot(ask()).await.unwrap_err().reason(), Reason::Network);

    let event = Failure::from_upstream(Upstream::event(r#"{"error":{"type":"overloaded_error"}}"#));
    let (_, end) = answer(&layer, vec![Err(event)]).await;
    assert_eq!(end.unwrap().reason(), Reason::Overloaded);
}

#[tokio::test]
async fn the_operators_table_is_used() {
    let table = RecoveryTable::default()
        .with_rule(Reason::ContentFilter, |rule| rule.failover = Failover::NextTarget);
    let layer = ClassifyLayer::default().with_table(table);
    let service = layer.layer(service_fn(|_: PlainRequest| async {
        Err::<ChatResponse<Script>, _>(refusal(400, r#"{"error":{"code":"content_filter"}}"#))
    }));
    let failure = service.oneshot(ask()).await.unwrap_err();
    assert_eq!(failure.failover(), Failover::NextTarget);
}

#[tokio::test(start_paused = true)]
async fn readiness_is_the_inner_services_and_dropping_the_future_drops_the_call() {
    let (inner, mut handle) = tower_test::mock::pair::<PlainRequest, ChatResponse<Script>>();
    let mut service = task::spawn(ClassifyLayer::default().layer(inner));
    handle.allow(0);
    assert_pending!(service.enter(|cx, mut service| service.poll_ready(cx)));
    handle.allow(1);
    assert_ready!(service.enter(|cx, mut service| service.poll_ready(cx))).unwrap();
    let mut future = task::spawn(service.call(ask()));
    assert_pending!(future.poll());
    let (request, _reply) = handle.next_request().await.unwrap();
    assert_eq!(request.context().target.as_ref().unwrap().provider(), "anthropic");

    let held = std::sync::Arc::new(());
    let guard = held.clone();
    let mut service = ClassifyLayer::default().layer(service_fn(move |_: PlainRequest| {
        let guard = guard.clone();
        async move {
            let _guard = guard;
            std::future::pending::<Result<ChatResponse<Script>, Failure>>().await
        }
    }));
    let mut future = task::spawn(service.call(ask()));
    assert_pending!(future.poll());
    assert_eq!(std::sync::Arc::strong_count(&held), 3);
    drop(future);
    assert_eq!(std::sync::Arc::strong_count(&held), 2);
}

#[tokio::test(start_paused = true)]
async fn an_error_of_the_inner_service_fails_the_call() {
    let (inner, mut handle) = tower_test::mock::pair::<PlainRequest, ChatResponse<Script>>();
    let mut service = ClassifyLayer::default().layer(inner);
    let ready = service.ready().await.unwrap();
    let mut future = task::spawn(ready.call(ask()));
    assert_pending!(future.poll());
    let (_, reply) = handle.next_request().await.unwrap();
    reply.send_error(refusal(529, ""));
    let failure = assert_ready_err!(future.poll());
    assert_eq!((failure.reason(), failure.evidence()), (Reason::Overloaded, "status:529"));
}

#[test]
fn judging_a_chat_answer_that_is_fine_allocates_nothing() {
    let layer = ClassifyLayer::default();
    let mut service = layer
        .layer(service_fn(|response: Ask2| std::future::ready(Ok::<_, Infallible>(response.1))));
    let waker = std::task::Waker::noop();
    let mut cx = Context::from_waker(waker);
    let events = vec![event(text("hello")), event(stop(StopReason::EndTurn)), event(Delta::End)];
    let request = Ask2(CallContext::new().with_target("openai"), script(events));
    let mut slot = Some(request);
    let info = allocation_counter::measure(|| {
        let future = service.call(slot.take().unwrap());
        let mut future = std::pin::pin!(future);
        let Poll::Ready(Ok(mut response)) = future.as_mut().poll(&mut cx) else {
            panic!("ready at once")
        };
        let mut count = 0;
        while let Poll::Ready(Some(Ok(event))) = Pin::new(&mut response).poll_next(&mut cx) {
            count += 1;
            // Freeing what the test made is not the layer's doing, nor is it counted.
            drop(event);
        }
        assert_eq!(count, 3);
    });
    assert_eq!(info.count_total, 0, "allocations");
}

/// A request that carries its answer.
struct Ask2(CallContext, ChatResponse<Script>);

impl Call for Ask2 {
    fn context(&self) -> &CallContext {
        &self.0
    }
    fn context_mut(&mut self) -> &mut CallContext {
        &mut self.0
    }
}

#[tokio::test]
async fn works_on_the_projects_own_request_too() {
    let service = ClassifyLayer::default().layer(service_fn(|_: ChatRequest| async {
        Err::<ChatResponse<Script>, _>(refusal(
            404,
            r#"{"error":{"message":"model: x","type":"not_found_error"}}"#,
        ))
    }));
    let failure = service.oneshot(ChatRequest::user("hi")).await.unwrap_err();
    assert_eq!(failure.reason(), Reason::ModelNotFound);
}
