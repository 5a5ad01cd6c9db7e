//! The rate limit in the default stack: with failover above it, retries between, and nothing set.
#![cfg(feature = "stack")]
#![allow(clippy::unwrap_used, reason = "tests")]

mod support;

use std::{sync::Arc, time::Duration};

use http::{HeaderMap, HeaderValue, StatusCode};
use parking_lot::Mutex;
use steadfast::{
    CallContext, ChatRequest, ChatResponse, ChatService, Deadline, Dialect, EventStream, Failure,
    Head, Reason, Stack, Upstream,
    failover::Chain,
    limit::{RateLimitLayer, RatePolicy},
};
use support::*;
use tokio::{task::JoinSet, time::Instant};
use tower::{ServiceExt, service_fn};

fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

/// Who was asked, and when.
#[derive(Clone, Default)]
struct Asked(Arc<Mutex<Vec<(String, Duration)>>>);

impl Asked {
    fn take(&self) -> Vec<(String, u64)> {
        let asked = std::mem::take(&mut *self.0.lock());
        asked.into_iter().map(|(who, at)| (who, at.as_millis() as u64)).collect()
    }
}

fn answer(headers: &[(&'static str, &'static str)]) -> ChatResponse {
    let mut received = HeaderMap::new();
    for (name, value) in headers {
        received.insert(*name, HeaderValue::from_static(value));
    }
    let mut head = Head::new(Dialect::OpenAi);
    head.headers = received.into();
    ChatResponse::new(head, Box::pin(tokio_stream::iter(whole())) as EventStream)
}

fn error(status: StatusCode) -> Failure {
    Failure::from_upstream(Upstream::response(status, HeaderMap::new(), ""))
}

/// A chain of `names` that behave as `target` says.
fn stack(
    names: &[&str],
    rate: RatePolicy,
    target: impl Fn(&str, usize) -> Result<ChatResponse, Failure> + Clone + Send + Sync + 'static,
) -> (ChatService, Asked) {
    let asked = Asked::default();
    let (start, seen) = (Instant::now(), asked.clone());
    let client = service_fn(move |request: ChatRequest| {
        let name = request.context.target.as_ref().unwrap().provider().to_owned();
        let number = {
            let mut seen = seen.0.lock();
            seen.push((name.clone(), start.elapsed()));
            seen.iter().filter(|(who, _)| *who == name).count()
        };
        let outcome = target(&name, number);
        async move { outcome }
    });
    let stack = Stack::new(Chain::new(names.iter().copied()).unwrap())
        .with_rate_limit(RateLimitLayer::new(rate).unwrap());
    (stack.boxed(client), asked)
}

async fn ask(stack: ChatService, context: CallContext) -> Result<String, Failure> {
    let request = ChatRequest::user("What?").with_model("m").with_context(context);
    Ok(stack.oneshot(request).await?.collect().await?.text())
}

const NONE_LEFT: [(&str, &str); 2] =
    [("x-ratelimit-limit-requests", "40"), ("x-ratelimit-remaining-requests", "0")];

#[tokio::test(start_paused = true)]
async fn a_target_with_room_in_a_moment_is_come_back_to_when_the_other_is_down() {
    for configured in [true, false] {
        // 40 a minute: room again in 1.5 s.
        let requests = configured.then_some(40);
        let rate = RatePolicy { requests, ..RatePolicy::default() };
        let (stack, asked) = stack(&["a", "b"], rate, move |name, number| match name {
            "a" if configured => Ok(answer(&[])),
            "a" => Ok(answer(&NONE_LEFT)),
            _ if number > 100 => unreachable!("it is asked ten times"),
            _ => Err(error(StatusCode::INTERNAL_SERVER_ERROR)),
        });
        for _ in 0..if configured { 40 } else { 1 } {
            ask(stack.clone(), CallContext::new()).await.unwrap();
        }
        asked.take();
        ask(stack.clone(), CallContext::new())
            .await
            .unwrap_or_else(|failure| panic!("configured {configured}: {failure}"));
        let asked = asked.take();
        println!("{asked:?}");
        assert_eq!(asked.first().map(|(who, _)| who.as_str()), Some("b"), "{asked:?}");
        let (who, at) = asked.last().unwrap();
        assert!(who == "a" && (1_490..4_000).contains(at), "{asked:?}");
    }
}

/// The numbers that providers state are no reason to answer less than the provider alone would.
#[tokio::test(start_paused = true)]
async fn a_target_alone_that_states_nonsense_answers_every_call() {
    let headers = [
        ("x-ratelimit-limit-requests", "1"),
        ("x-ratelimit-remaining-requests", "0"),
        ("x-ratelimit-reset-requests", "86400"),
        ("x-ratelimit-limit-tokens", "10"),
        ("x-ratelimit-remaining-tokens", "0"),
    ];
    let (stack, _) = stack(&["a"], RatePolicy::default(), move |_, _| Ok(answer(&headers)));
    let start = Instant::now();
    for _ in 0..100 {
        ask(stack.clone(), CallContext::new()).await.unwrap();
    }
    // It is believed until it has served five calls more than it says.
    assert!(start.elapsed() < secs(400), "{:?}", start.elapsed());
    let began = Instant::now();
    let calls: JoinSet<_> = (0..300).map(|_| ask(stack.clone(), CallContext::new())).collect();
    calls.join_all().await.into_iter().for_each(|answered| drop(answered.unwrap()));
    assert_eq!(began.elapsed(), Duration::ZERO);
}

/// What a call waits for a limit and what it waits between its attempts add up to no more than its patience.
#[tokio::test(start_paused = true)]
async fn all_waits_of_a_call_together_are_limited() {
    let rate = RatePolicy { requests: Some(2), ..RatePolicy::default() };
    let (stack, asked) = stack(&["a"], rate, |_, number| match number {
        1 | 2 => Ok(answer(&[])),
        _ => Err(error(StatusCode::INTERNAL_SERVER_ERROR)),
    });
    for _ in 0..2 {
        ask(stack.clone(), CallContext::new()).await.unwrap();
    }
    let start = Instant::now();
    let failure = ask(stack.clone(), CallContext::new()).await.unwrap_err();
    // Half a minute for the first attempt, half a minute less the pause for the second.
    assert_eq!(failure.reason(), Reason::ServerError, "{failure}");
    assert!(start.elapsed() <= secs(61), "{:?}", start.elapsed());
    assert!(failure.waited() >= secs(29) && failure.waited() <= secs(60), "{:?}", failure.waited());
    assert!(asked.take().len() >= 3);
}

/// A deadline is not spent on waiting for a limit that is only estimated.
#[tokio::test(start_paused = true)]
async fn half_of_the_deadline_is_left_for_the_answer() {
    let (stack, _) = stack(&["a"], RatePolicy::default(), |_, _| Ok(answer(&NONE_LEFT)));
    for _ in 0..3 {
        ask(stack.clone(), CallContext::new()).await.unwrap();
    }
    let context = CallContext::new().with_deadline(Deadline::after(secs(10)));
    let calls: JoinSet<_> = (0..50).map(|_| ask(stack.clone(), context.clone())).collect();
    calls.join_all().await.into_iter().for_each(|answered| drop(answered.unwrap()));
}
