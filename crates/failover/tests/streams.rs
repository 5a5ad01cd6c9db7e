//! Replies that go on after their head: events by hand, and bodies.

#![allow(clippy::unwrap_used, reason = "helpers of a test")]

mod support;

use std::{
    convert::Infallible,
    future::{Ready, ready},
    pin::Pin,
    sync::Arc,
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
use steadfast_core::{BudgetPolicy, BufferLimits, Call, Dialect, Failure, Reason, RetryBudget};
use steadfast_failover::{Chain, CooldownFailoverLayer, Status, TargetSpec};
use support::{chain, secs, target};
use tower::{Layer, Service, ServiceExt};

/// One thing a stream does.
#[derive(Clone)]
enum Does {
    Ping,
    Say(&'static str),
    Fail(Reason),
    Pause(u64),
    Hang,
    End,
    /// Ends without its terminal event... which the client below reports as a failure.
    Cut,
}
use Does::{Cut, End, Fail, Hang, Pause, Ping, Say};

fn events(script: Vec<Does>) -> EventStream {
    let stream = stream::unfold(script.into_iter(), |mut script| async move {
        loop {
            let event = match script.next()? {
                Ping => Event::new([Delta::Ping]),
                Say(text) => Event::new([Delta::Text { index: 0, text: text.to_owned() }]),
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

/// A client of providers that stream as told: `a` the first script, everybody else the second.
#[derive(Clone)]
struct Client {
    scripts: Arc<Mutex<[Vec<Does>; 2]>>,
    asked: Arc<Mutex<Vec<ChatRequest>>>,
}

impl Client {
    fn new(a: Vec<Does>, others: Vec<Does>) -> Self {
        Self { scripts: Arc::new(Mutex::new([a, others])), asked: Arc::default() }
    }

    fn asked(&self) -> Vec<String> {
        let asked = std::mem::take(&mut *self.asked.lock());
        asked.iter().map(|ask| ask.context().target.as_ref().unwrap().to_string()).collect()
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
        self.asked.lock().push(request);
        let mut head = Head::new(Dialect::OpenAi);
        head.target = Some(target);
        ready(Ok(ChatResponse::new(head, events(self.scripts.lock()[which].clone()))))
    }
}

fn layer() -> CooldownFailoverLayer {
    CooldownFailoverLayer::new(chain(["a", "b"]))
}

#[tokio::test(start_paused = true)]
async fn what_fails_before_content_is_replaced_unnoticed() {
    let good = || vec![Say("hello "), Say("there"), End];
    for script in [
        vec![Fail(Reason::Overloaded)],
        vec![Ping, Ping, Fail(Reason::ServerError)],
        vec![Cut],
        vec![Say(""), Cut],
        vec![Ping, Pause(20), Fail(Reason::Timeout)],
    ] {
        let client = Client::new(script, good());
        let layer = layer();
        let response = layer.layer(client.clone()).oneshot(ChatRequest::user("hi")).await.unwrap();
        let answer = response.collect().await.unwrap();
        assert_eq!(answer.text(), "hello there", "nothing of the first is in it");
        assert_eq!(answer.head.target.unwrap().provider(), "b");
        assert_eq!(client.asked(), ["a", "b"]);
        assert_eq!(layer.handle().snapshot().get(&target("a")).unwrap().status, Status::Degraded);
    }
}

#[tokio::test(start_paused = true)]
async fn what_was_held_back_arrives_and_once() {
    let client = Client::new(vec![Ping, Say(""), Say("one"), Ping, Say(" two"), End], vec![]);
    let response = layer().layer(client).oneshot(ChatRequest::user("hi")).await.unwrap();
    let events: Vec<_> = StreamExt::map(response, Result::unwrap).collect().await;
    assert_eq!(events.len(), 6);
    assert_eq!(events[0], Event::new([Delta::Ping]));
    assert!(events[5].is_end());
}

#[tokio::test(start_paused = true)]
async fn what_fails_after_content_is_the_callers_and_counts_against_the_target() {
    let client = Client::new(vec![Say("half"), Fail(Reason::ServerError)], vec![Say("b"), End]);
    let layer = layer();
    let handle = layer.handle();
    let mut service = layer.layer(client.clone());
    let mut response = service.ready().await.unwrap().call(ChatRequest::user("hi")).await.unwrap();
    assert!(handle.snapshot().get(&target("a")).unwrap().last_success.is_none(), "not yet");
    assert!(response.next().await.unwrap().unwrap().is_content());
    let failure = response.next().await.unwrap().unwrap_err();
    assert!(failure.is_delivered());
    assert_eq!(client.asked(), ["a"], "nobody else is asked behind the caller's back");
    assert!(response.next().await.is_none() && response.next().await.is_none(), "ended for good");
    let a = handle.snapshot().get(&target("a")).unwrap().clone();
    assert_eq!((a.errors, a.cooling.is_some()), (1, true));
    service
        .ready()
        .await
        .unwrap()
        .call(ChatRequest::user("hi"))
        .await
        .unwrap()
        .collect()
        .await
        .unwrap();
    assert_eq!(client.asked(), ["b"]);
}

#[tokio::test(start_paused = true)]
async fn success_is_when_the_stream_has_ended() {
    let client = Client::new(vec![Say("x"), Pause(60), End], vec![]);
    let layer = layer();
    let response = layer.layer(client).oneshot(ChatRequest::user("hi")).await.unwrap();
    let last = || layer.handle().snapshot().get(&target("a")).unwrap().last_success;
    assert_eq!(last(), None);
    response.collect().await.unwrap();
    assert_eq!(last(), Some(tokio::time::Instant::now()));
}

#[tokio::test(start_paused = true)]
async fn a_reply_dropped_half_way_says_nothing_and_frees_a_probe() {
    let client = Client::new(vec![Fail(Reason::ServerError)], vec![Say("b"), End]);
    let layer = layer();
    let mut service = layer.layer(client.clone());
    let mut call =
        async || service.ready().await.unwrap().call(ChatRequest::user("hi")).await.unwrap();
    drop(call().await);
    client.scripts.lock()[0] = vec![Say("x"), Hang];
    tokio::time::advance(secs(40)).await;
    let probe = call().await;
    assert!(layer.handle().snapshot().get(&target("a")).unwrap().probing, "until it has ended");
    drop(call().await);
    assert_eq!(client.asked(), ["a", "b", "a", "b"]);
    drop(probe);
    let a = layer.handle().snapshot().get(&target("a")).unwrap().clone();
    assert!(!a.probing && a.cooling.is_some() && a.errors == 1);
}

#[tokio::test(start_paused = true)]
async fn a_budget_gets_back_what_helped_when_it_has_helped() {
    let budget = RetryBudget::new(BudgetPolicy { capacity: 20, ..BudgetPolicy::default() });
    let client = Client::new(vec![Fail(Reason::ServerError)], vec![Say("b"), End]);
    let layer = layer().with_budget(budget.clone());
    let response = layer.layer(client.clone()).oneshot(ChatRequest::user("hi")).await.unwrap();
    assert_eq!(budget.remaining(), 6);
    response.collect().await.unwrap();
    assert_eq!(budget.remaining(), 20);
    layer.handle().reset_all();
    drop(layer.layer(client).oneshot(ChatRequest::user("hi")).await.unwrap());
    assert_eq!(budget.remaining(), 6, "an answer nobody wanted puts nothing back");
}

#[tokio::test(start_paused = true)]
async fn the_content_buffer_is_bounded() {
    let forever: Vec<_> = (0..10_000).map(|_| Ping).chain([Fail(Reason::ServerError)]).collect();
    let client = Client::new(forever, vec![Say("b"), End]);
    let narrow = layer().with_buffer(BufferLimits { bytes: 1_000, time: secs(600) });
    let response = narrow.layer(client.clone()).oneshot(ChatRequest::user("hi")).await.unwrap();
    drop(response.collect().await.unwrap_err());
    assert_eq!(client.asked(), ["a"], "what is held back is bounded, so it was handed on");

    let client = Client::new(vec![Ping, Pause(9), Fail(Reason::ServerError)], vec![]);
    let short = layer().with_buffer(BufferLimits { bytes: 1_000, time: secs(5) });
    let start = tokio::time::Instant::now();
    let response = short.layer(client).oneshot(ChatRequest::user("hi")).await.unwrap();
    assert_eq!(start.elapsed(), secs(5));
    let failure = response.collect().await.unwrap_err();
    assert!(!failure.is_delivered(), "a layer above may still try");
}

#[tokio::test(start_paused = true)]
async fn a_hang_before_content_is_hedged_and_the_slow_stream_dropped() {
    let client = Client::new(vec![Ping, Hang], vec![Ping, Say("b"), End]);
    let hedged = layer().with_hedge(secs(3)).layer(client.clone());
    let start = tokio::time::Instant::now();
    let answer = hedged.oneshot(ChatRequest::user("hi")).await.unwrap().collect().await.unwrap();
    assert_eq!((answer.text().as_str(), start.elapsed()), ("b", secs(3)));
    assert_eq!(client.asked(), ["a", "b"]);
}

#[tokio::test(start_paused = true)]
async fn a_conversation_is_fitted_to_each_target_and_shared_until_then() {
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
    let client = Client::new(vec![Fail(Reason::ServerError)], vec![Say("b"), End]);
    let service = CooldownFailoverLayer::new(chain).layer(client.clone());
    service.oneshot(request).await.unwrap().collect().await.unwrap();
    let asked = client.asked.lock();
    let [first, second] = &asked[..] else { panic!("two attempts") };
    assert!(first.messages.same(&original.messages), "not even copied");
    assert_eq!((first.model.as_str(), first.params.temperature), ("claude-sonnet-4", Some(0.5)));
    assert_eq!(second.context().target.as_ref().unwrap().to_string(), "b/gpt-4o");
    assert_eq!((second.model.as_str(), second.params.temperature), ("gpt-4o", None));
    assert_eq!(second.params.max_output, Some(16_000));
    assert_eq!(
        second.messages[1].parts(),
        [Part::text("a cat")],
        "thoughts stay with their thinker"
    );
    assert!(second.needs().vision, "it sees");
}

// Somebody's own http client, which knows nothing of chats.

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
async fn a_body_settles_when_it_ends() {
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
    let mut body = get().await;
    assert_eq!(body.frame().await.unwrap().unwrap().into_data().unwrap(), "half");
    assert_eq!(layer.handle().snapshot().cooling().count(), 0);
    drop(body.frame().await.unwrap().unwrap_err());
    assert!(body.frame().await.is_none(), "fused");
    assert_eq!(layer.handle().snapshot().cooling().next().unwrap().target.provider(), "a");
    assert_eq!(get().await.collect().await.unwrap().to_bytes(), "all of it");
}

#[tokio::test(start_paused = true)]
async fn a_refused_head_goes_on() {
    let client = http(|provider| match provider {
        "a" => Err(Failure::new(Reason::Overloaded, "")),
        _ => Ok(http::Response::new(whole("b"))),
    });
    let request = http::Request::new(Full::new(Bytes::new()));
    let response = layer().layer(client).oneshot(request).await.unwrap();
    assert_eq!(response.into_body().collect().await.unwrap().to_bytes(), "b");
}

#[test]
fn streams_stay_unpin() {
    fn assert<T: Unpin>() {}
    assert::<Pin<Box<EventStream>>>();
    assert::<<steadfast_core::UntilEnd as steadfast_core::Track<ChatResponse>>::Tracked>();
}
