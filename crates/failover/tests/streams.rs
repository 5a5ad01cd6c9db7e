//! Replies that continue after their head: events and bodies.

#![allow(clippy::unwrap_used, reason = "helpers of a test")]

mod support;

use std::{
    convert::Infallible,
    future::{Ready, ready},
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use http_body_util::{BodyExt, Full, StreamBody, combinators::BoxBody};
use parking_lot::Mutex;
use steadfast_chat::{
    ChatRequest, ChatResponse, Delta, Event, EventStream, Head, Message, Part, Role, Thinking,
};
use steadfast_core::{
    BudgetPolicy, BufferLimits, Call, Dialect, Failure, OnUnsupported, Reason, RetryBudget,
};
use steadfast_failover::{Chain, CooldownFailoverLayer, Status, TargetSpec};
use support::{chain, secs, target};
use tower::{Layer, Service, ServiceExt};

/// A step of a scripted stream.
#[derive(Clone)]
enum Step {
    Ping,
    Text(&'static str),
    Fail(Reason),
    Pause(u64),
    Hang,
    End,
    /// Ends without its terminal event, which the client reports as a failure.
    Cut,
}
use Step::{Cut, End, Fail, Hang, Pause, Ping, Text};

fn events(script: Vec<Step>) -> EventStream {
    let stream = stream::unfold(script.into_iter(), |mut script| async move {
        loop {
            let event = match script.next()? {
                Ping => Event::new([Delta::Ping]),
                Text(text) => Event::new([Delta::Text { index: 0, text: text.to_owned() }]),
                Fail(reason) => return Some((Err(Failure::new(reason, "an error event")), script)),
                Cut => {
                    return Some((Err(Failure::new(Reason::Network, "no terminal event")), script));
                }
                Pause(seconds) => {
                    tokio::time::sleep(Duration::from_secs(seconds)).await;
                    continue;
                }
                Hang => std::future::pending().await,
                End => Event::new([Delta::End]),
            };
            return Some((Ok(event), script));
        }
    });
    Box::pin(stream)
}

/// A client of scripted providers: `a` streams the first script, all others the second.
#[derive(Clone)]
struct Client {
    scripts: Arc<Mutex<[Vec<Step>; 2]>>,
    requests: Arc<Mutex<Vec<ChatRequest>>>,
}

impl Client {
    fn new(a: Vec<Step>, others: Vec<Step>) -> Self {
        Self { scripts: Arc::new(Mutex::new([a, others])), requests: Arc::default() }
    }

    fn calls(&self) -> Vec<String> {
        let requests = std::mem::take(&mut *self.requests.lock());
        requests
            .iter()
            .map(|request| request.context().target.as_ref().unwrap().to_string())
            .collect()
    }
}

impl Service<ChatRequest> for Client {
    type Response = ChatResponse;
    type Error = Failure;
    type Future = Ready<Result<ChatResponse, Failure>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Failure>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: ChatRequest) -> Self::Future {
        let target = request.context().target.clone().unwrap();
        let which = usize::from(target.provider() != "a");
        self.requests.lock().push(request);
        let mut head = Head::new(Dialect::OpenAi);
        head.target = Some(target);
        ready(Ok(ChatResponse::new(head, events(self.scripts.lock()[which].clone()))))
    }
}

fn layer() -> CooldownFailoverLayer {
    CooldownFailoverLayer::new(chain(["a", "b"]))
}

#[tokio::test(start_paused = true)]
async fn a_failure_before_content_is_failed_over_unnoticed() {
    let good = || vec![Text("hello "), Text("there"), End];
    for script in [
        vec![Fail(Reason::Overloaded)],
        vec![Ping, Ping, Fail(Reason::ServerError)],
        vec![Cut],
        vec![Text(""), Cut],
        vec![Ping, Pause(20), Fail(Reason::Timeout)],
    ] {
        let client = Client::new(script, good());
        let layer = layer();
        let response = layer.layer(client.clone()).oneshot(ChatRequest::user("hi")).await.unwrap();
        let answer = response.collect().await.unwrap();
        assert_eq!(answer.text(), "hello there", "nothing of the first answer is in it");
        assert_eq!(answer.head.target.unwrap().provider(), "b");
        assert_eq!(client.calls(), ["a", "b"]);
        assert_eq!(layer.handle().snapshot().get(&target("a")).unwrap().status, Status::Degraded);
    }
}

#[tokio::test(start_paused = true)]
async fn buffered_events_are_delivered_once() {
    let client = Client::new(vec![Ping, Text(""), Text("one"), Ping, Text(" two"), End], vec![]);
    let response = layer().layer(client).oneshot(ChatRequest::user("hi")).await.unwrap();
    let events: Vec<_> = StreamExt::map(response, Result::unwrap).collect().await;
    assert_eq!(events.len(), 6);
    assert_eq!(events[0], Event::new([Delta::Ping]));
    assert!(events[5].is_end());
}

#[tokio::test(start_paused = true)]
async fn a_failure_after_content_is_returned_and_counts_against_the_target() {
    let client = Client::new(vec![Text("half"), Fail(Reason::ServerError)], vec![Text("b"), End]);
    let layer = layer();
    let handle = layer.handle();
    let mut service = layer.layer(client.clone());
    let mut response = service.ready().await.unwrap().call(ChatRequest::user("hi")).await.unwrap();
    assert!(response.next().await.unwrap().unwrap().is_content());
    let failure = response.next().await.unwrap().unwrap_err();
    assert!(failure.is_delivered());
    assert_eq!(client.calls(), ["a"], "no other target is called");
    assert!(
        response.next().await.is_none() && response.next().await.is_none(),
        "the stream is fused"
    );
    let a = handle.snapshot().get(&target("a")).unwrap().clone();
    assert_eq!((a.errors, a.status, a.cooling), (1, Status::Degraded, None));
}

#[tokio::test(start_paused = true)]
async fn broken_streams_rest_nothing_and_count_in_a_share_of_their_own() {
    let client = Client::new(vec![Text("half"), Fail(Reason::ServerError)], vec![Text("b"), End]);
    let layer = layer();
    let mut service = layer.layer(client.clone());
    let mut call = async |n: u32| {
        let request = ChatRequest::user(format!("prompt {n}"));
        service.ready().await.unwrap().call(request).await.unwrap().collect().await
    };
    let cooling = || layer.handle().snapshot().cooling().count();
    // However many there are in a row, it is behind at worst, as it is when most calls fail.
    for n in 0..3 {
        drop(call(n).await.unwrap_err());
        assert_eq!((client.calls(), cooling()), (vec!["a".to_owned()], 0));
    }
    drop(call(3).await.unwrap());
    assert_eq!((client.calls(), cooling()), (vec!["b".to_owned()], 0));
    // One in three is not most of them.
    layer.handle().reset_all();
    for n in 4..34 {
        let end = if n % 3 == 0 { Fail(Reason::ServerError) } else { End };
        client.scripts.lock()[0] = vec![Text("half"), end];
        drop(call(n).await);
        assert_eq!((client.calls(), cooling()), (vec!["a".to_owned()], 0), "{n}");
    }
}

#[tokio::test(start_paused = true)]
async fn of_streams_of_a_minute_failures_of_five_per_cent_rest_nothing() {
    // The failures are known a minute before the ends of the streams that began beside them.
    let asked = Arc::new(AtomicUsize::new(0));
    let counter = asked.clone();
    let client = tower::service_fn(move |request: ChatRequest| {
        let target = request.context().target.clone().unwrap();
        let fails = target.provider() == "a" && counter.fetch_add(1, Ordering::Relaxed) % 20 == 10;
        let stream = vec![Text("begins"), Pause(60), Text("ends"), End];
        let script = if fails { vec![Fail(Reason::ServerError)] } else { stream };
        let mut head = Head::new(Dialect::OpenAi);
        head.target = Some(target);
        ready(Ok::<_, Failure>(ChatResponse::new(head, events(script))))
    });
    let layer = layer();
    let handle = layer.handle();
    let mut calls = tokio::task::JoinSet::new();
    for n in 0..400 {
        let call = layer.layer(client.clone()).oneshot(ChatRequest::user(format!("prompt {n}")));
        calls.spawn(async move { call.await?.collect().await });
        tokio::time::sleep(Duration::from_millis(250)).await;
        assert_eq!(handle.snapshot().cooling().count(), 0, "call {n}");
    }
    while let Some(answer) = calls.join_next().await {
        answer.unwrap().unwrap();
    }
    assert_eq!(asked.load(Ordering::Relaxed), 400, "each call asks it first");
}

#[tokio::test(start_paused = true)]
async fn success_counts_at_the_first_content() {
    let client = Client::new(vec![Ping, Pause(5), Text("x"), Pause(60), End], vec![]);
    let layer = layer();
    let last = || layer.handle().snapshot().get(&target("a")).unwrap().last_success;
    let start = tokio::time::Instant::now();
    let response = layer.layer(client).oneshot(ChatRequest::user("hi")).await.unwrap();
    assert_eq!(last(), Some(start + secs(5)));
    response.collect().await.unwrap();
    assert_eq!(last(), Some(start + secs(5)));
}

#[tokio::test(start_paused = true)]
async fn the_first_content_ends_a_rest_and_a_reply_dropped_before_says_nothing() {
    let client = Client::new(vec![Fail(Reason::ServerError)], vec![Text("b"), End]);
    let layer = layer();
    let mut service = layer.layer(client.clone());
    let mut call = || service.call(ChatRequest::user(format!("prompt {}", fastrand::u64(..))));
    let a = || layer.handle().snapshot().get(&target("a")).unwrap().clone();
    for _ in 0..2 {
        drop(call().await.unwrap());
    }
    tokio::time::advance(secs(1)).await;
    client.scripts.lock()[0] = vec![Ping, Pause(3), Text("x"), Hang];
    let mut probe = tokio_test::task::spawn(call());
    assert!(probe.poll().is_pending());
    assert!(a().probing);
    client.calls();
    drop(call().await);
    assert_eq!(client.calls(), ["b"]);
    drop(probe);
    assert!(!a().probing && a().cooling.is_some() && a().errors == 2);
    let reply = call().await.unwrap();
    assert!(!a().probing && a().cooling.is_none(), "though it has not ended");
    drop(reply);
    assert_eq!((a().errors, a().status), (2, Status::Healthy));
}

#[tokio::test(start_paused = true)]
async fn the_budget_is_refunded_when_the_answer_has_succeeded() {
    for ends_well in [true, false] {
        let budget = RetryBudget::new(BudgetPolicy { capacity: 20, ..BudgetPolicy::default() });
        let client = Client::new(vec![Fail(Reason::ServerError)], vec![]);
        let layer = CooldownFailoverLayer::new(chain(["a"])).with_budget(budget.clone());
        let call = layer.layer(client.clone()).oneshot(ChatRequest::user("hi"));
        let mut call = tokio_test::task::spawn(call);
        // Two repetitions are free.
        while budget.remaining() == 20 {
            client.scripts.lock()[0] = match client.requests.lock().len() {
                3 => vec![Text("x"), End],
                _ => vec![Fail(Reason::ServerError)],
            };
            assert!(call.poll().is_pending());
            tokio::time::advance(Duration::from_millis(200)).await;
            if call.is_woken() && client.requests.lock().len() == 3 {
                break;
            }
        }
        let response = call.await.unwrap();
        assert_eq!(budget.remaining(), 6);
        if ends_well {
            response.collect().await.unwrap();
            assert_eq!(budget.remaining(), 20);
        } else {
            drop(response);
            assert_eq!(budget.remaining(), 6, "a dropped answer refunds nothing");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn the_content_buffer_is_bounded() {
    let forever: Vec<_> = (0..10_000).map(|_| Ping).chain([Fail(Reason::ServerError)]).collect();
    let client = Client::new(forever, vec![Text("b"), End]);
    let narrow = layer().with_buffer(BufferLimits { bytes: 1_000, time: secs(600) });
    let response = narrow.layer(client.clone()).oneshot(ChatRequest::user("hi")).await.unwrap();
    drop(response.collect().await.unwrap_err());
    assert_eq!(client.calls(), ["a"], "the full buffer was delivered");

    let client = Client::new(vec![Ping, Pause(9), Fail(Reason::ServerError)], vec![]);
    let short = layer().with_buffer(BufferLimits { bytes: 1_000, time: secs(5) });
    let start = tokio::time::Instant::now();
    let response = short.layer(client).oneshot(ChatRequest::user("hi")).await.unwrap();
    assert_eq!(start.elapsed(), secs(5));
    let failure = response.collect().await.unwrap_err();
    assert!(!failure.is_delivered(), "an outer layer may still retry");
}

#[tokio::test(start_paused = true)]
async fn a_hang_before_content_is_hedged_and_the_slow_stream_dropped() {
    let client = Client::new(vec![Ping, Hang], vec![Ping, Text("b"), End]);
    let hedged = layer().with_hedge(secs(3)).layer(client.clone());
    let start = tokio::time::Instant::now();
    let answer = hedged.oneshot(ChatRequest::user("hi")).await.unwrap().collect().await.unwrap();
    assert_eq!((answer.text().as_str(), start.elapsed()), ("b", secs(3)));
    assert_eq!(client.calls(), ["a", "b"]);
}

#[tokio::test(start_paused = true)]
async fn a_conversation_is_adapted_to_each_target_and_copied_only_then() {
    let history = vec![
        Message::new(Role::User, vec![Part::text("look"), Part::image("image/png", "AAAA")]),
        Message::new(
            Role::Assistant,
            vec![
                Part::Thinking(Thinking {
                    text: "hm".into(),
                    signature: Some("signed".into()),
                    extra: None,
                }),
                Part::text("a cat"),
            ],
        ),
        Message::user("and now?"),
    ];
    let mut request =
        ChatRequest::new(history).with_model("claude-sonnet-4").with_max_output(64_000);
    request.params.temperature = Some(0.5);
    let original = request.clone();
    let chain = Chain::new([
        TargetSpec::new("a"),
        TargetSpec::new("blind").with_vision(false),
        TargetSpec::new("b")
            .with_model("claude-sonnet-4", "gpt-4o")
            .with_max_output(16_000)
            .with_unsupported(["temperature"]),
    ])
    .unwrap();
    let client = Client::new(vec![Fail(Reason::ServerError)], vec![Text("b"), End]);
    let service = CooldownFailoverLayer::new(chain).layer(client.clone());
    service.oneshot(request).await.unwrap().collect().await.unwrap();
    let requests = client.requests.lock();
    let [first, second] = &requests[..] else { panic!("two attempts") };
    assert!(first.messages.same(&original.messages), "not even copied");
    assert_eq!((first.model.as_str(), first.params.temperature), ("claude-sonnet-4", Some(0.5)));
    assert_eq!(second.context().target.as_ref().unwrap().to_string(), "b/gpt-4o");
    assert_eq!((second.model.as_str(), second.params.temperature), ("gpt-4o", None));
    assert_eq!(second.params.max_output, Some(16_000));
    assert_eq!(
        second.messages[1].parts(),
        [Part::text("a cat")],
        "thinking is only for its author"
    );
    assert!(second.needs().vision, "it reads images");
}

#[tokio::test(start_paused = true)]
async fn a_target_that_refuses_what_it_does_not_take_is_skipped() {
    let mut request = ChatRequest::user("hi");
    request.params.temperature = Some(0.5);
    let strict = TargetSpec::new("a").with_unsupported(["temperature"]);
    let strict = strict.with_on_unsupported(OnUnsupported::Refuse);
    let chain = Chain::new([strict, TargetSpec::new("b")]).unwrap();
    let client = Client::new(vec![Text("a"), End], vec![Text("b"), End]);
    let service = CooldownFailoverLayer::new(chain).layer(client.clone());
    service.oneshot(request).await.unwrap().collect().await.unwrap();
    assert_eq!(client.calls(), ["b"]);
}

// An HTTP client, without conversations.

type Body = BoxBody<Bytes, Failure>;

fn http(
    script: impl Fn(&str) -> Result<http::Response<Body>, Failure> + Clone,
) -> impl Service<
    http::Request<Full<Bytes>>,
    Response = http::Response<Body>,
    Error = Failure,
    Future = Ready<Result<http::Response<Body>, Failure>>,
> + Clone {
    tower::service_fn(move |request: http::Request<Full<Bytes>>| {
        ready(script(request.context().target.as_ref().unwrap().provider()))
    })
}

fn whole(text: &'static str) -> Body {
    Full::new(Bytes::from_static(text.as_bytes()))
        .map_err(|never: Infallible| match never {})
        .boxed()
}

#[tokio::test(start_paused = true)]
async fn a_body_counts_when_it_ends() {
    let broken = || {
        let frames = [
            Ok(http_body::Frame::data(Bytes::from_static(b"half"))),
            Err(Failure::new(Reason::Network, "reset")),
        ];
        BodyExt::boxed(StreamBody::new(stream::iter(frames)))
    };
    let client = http(move |provider| {
        Ok(http::Response::new(if provider == "a" { broken() } else { whole("all of it") }))
    });
    let layer = layer();
    let mut service = layer.layer(client);
    let mut get = async || {
        let request = http::Request::new(Full::new(Bytes::new()));
        service.ready().await.unwrap().call(request).await.unwrap().into_body()
    };
    let a = || layer.handle().snapshot().get(&target("a")).unwrap().clone();
    for errors in 0..3 {
        let mut body = get().await;
        assert_eq!(body.frame().await.unwrap().unwrap().into_data().unwrap(), "half");
        assert_eq!(a().errors, errors);
        drop(body.frame().await.unwrap().unwrap_err());
        assert!(body.frame().await.is_none(), "fused");
        assert_eq!((a().errors, a().cooling), (errors + 1, None));
    }
    assert_eq!(get().await.collect().await.unwrap().to_bytes(), "all of it", "`a` is behind");
}

#[tokio::test(start_paused = true)]
async fn a_failure_before_the_head_is_failed_over() {
    let client = http(|provider| match provider {
        "a" => Err(Failure::new(Reason::Overloaded, "")),
        _ => Ok(http::Response::new(whole("b"))),
    });
    let request = http::Request::new(Full::new(Bytes::new()));
    let response = layer().layer(client).oneshot(request).await.unwrap();
    assert_eq!(response.into_body().collect().await.unwrap().to_bytes(), "b");
}

#[test]
fn streams_are_unpin() {
    fn assert<T: Unpin>() {}
    assert::<Pin<Box<EventStream>>>();
    assert::<<steadfast_core::UntilEnd as steadfast_core::Track<ChatResponse>>::Tracked>();
}
