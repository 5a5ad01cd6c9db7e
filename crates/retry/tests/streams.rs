//! Streamed answers: what is retried, what is not, and when the budget is refunded.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

mod common;

use std::{
    collections::VecDeque,
    pin::Pin,
    task::{Context, Poll},
};

use common::ready;
use futures_core::Stream;
use steadfast_chat::{ChatRequest, ChatResponse, Delta, Event, Head, Role};
use steadfast_core::{BudgetPolicy, Dialect, Failure, Reason, RetryBudget};
use steadfast_retry::{RetryBackoffLayer, RetryPolicy};
use steadfast_testkit::{fail, secs};
use tower::{Layer, Service, ServiceExt};
use tower_test::mock;

/// Yields its items; then it is pending for ever, or ends.
struct Script {
    items: VecDeque<Result<Event, Failure>>,
    hangs: bool,
}

impl Stream for Script {
    type Item = Result<Event, Failure>;

    fn poll_next(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        match self.items.pop_front() {
            None if self.hangs => Poll::Pending,
            item => Poll::Ready(item),
        }
    }
}

fn reply(items: impl IntoIterator<Item = Result<Event, Failure>>) -> ChatResponse<Script> {
    let items = items.into_iter().collect();
    ChatResponse::new(Head::new(Dialect::OpenAi), Script { items, hangs: false })
}

fn text(text: &str) -> Result<Event, Failure> {
    Ok(Event::new([Delta::Text { index: 0, text: text.into() }]))
}

fn start() -> Result<Event, Failure> {
    Ok(Event::new([Delta::Start { id: None, model: None }]))
}

fn end() -> Result<Event, Failure> {
    Ok(Event::new([Delta::End]))
}

fn policy() -> RetryPolicy {
    common::exact()
}

#[tokio::test(start_paused = true)]
async fn broken_before_content_is_retried_unnoticed() {
    let layer = RetryBackoffLayer::new(policy())
        .unwrap()
        .with_nudge(|nudge| nudge.began.then_some("It had begun.".into()));
    let (inner, mut handle) = mock::pair::<ChatRequest, ChatResponse<Script>>();
    let answer = tokio::spawn(layer.layer(inner).oneshot(ChatRequest::user("hello")));

    let (first, send) = handle.next_request().await.unwrap();
    assert_eq!(first.messages.len(), 1);
    send.send_response(reply([start(), Err(fail(Reason::ServerError))]));
    let (second, send) = handle.next_request().await.unwrap();
    assert_eq!(second.context.attempts, 1);
    let last = second.messages.last().unwrap();
    assert_eq!((second.messages.len(), last.role()), (2, Role::User), "nudged");
    send.send_response(reply([start(), text("all"), text(" well"), end()]));

    let completion = answer.await.unwrap().unwrap().collect().await.unwrap();
    assert_eq!(completion.text(), "all well");
}

#[tokio::test(start_paused = true)]
async fn broken_after_content_is_returned_to_the_caller() {
    let layer = RetryBackoffLayer::new(policy()).unwrap();
    let (inner, mut handle) = mock::pair::<ChatRequest, ChatResponse<Script>>();
    let answer = tokio::spawn(layer.layer(inner).oneshot(ChatRequest::user("hello")));
    let (_, send) = handle.next_request().await.unwrap();
    send.send_response(reply([start(), text("half"), Err(fail(Reason::Network)), text("never")]));

    let mut answer = answer.await.unwrap().unwrap();
    let mut seen = Vec::new();
    while let Some(item) = std::future::poll_fn(|cx| Pin::new(&mut answer).poll_next(cx)).await {
        seen.push(item.map_err(|failure| (failure.reason(), failure.is_delivered())));
    }
    assert_eq!(seen.len(), 3, "fused after its error");
    assert_eq!(seen[2].as_ref().unwrap_err(), &(Reason::Network, true));
    assert!(handle.next_request().await.is_none(), "no second call");
}

#[tokio::test(start_paused = true)]
async fn the_budget_is_refunded_at_the_end_of_a_successful_answer() {
    enum How {
        Read,
        Break,
        Drop,
    }
    for (how, expected) in [(How::Read, 500), (How::Break, 486), (How::Drop, 486)] {
        // The first retry is not free.
        let budget = RetryBudget::new(BudgetPolicy { free: 0, ..BudgetPolicy::default() });
        let layer = RetryBackoffLayer::new(policy()).unwrap().with_budget(budget.clone());
        let (inner, mut handle) = mock::pair::<ChatRequest, ChatResponse<Script>>();
        let answer = tokio::spawn(layer.layer(inner).oneshot(ChatRequest::user("hello")));
        let (_, send) = handle.next_request().await.unwrap();
        send.send_error(fail(Reason::ServerError));
        let (_, send) = handle.next_request().await.unwrap();
        let last = match how {
            How::Break => Err(fail(Reason::Network)),
            _ => end(),
        };
        send.send_response(reply([text("hi"), last]));
        let answer = answer.await.unwrap().unwrap();
        assert_eq!(budget.remaining(), 486, "not at its head");
        match how {
            How::Drop => drop(answer),
            How::Read | How::Break => drop(answer.collect().await),
        }
        assert_eq!(budget.remaining(), expected);
    }
}

#[tokio::test(start_paused = true)]
async fn dropping_the_call_while_it_waits_for_content_drops_the_stream() {
    let layer = RetryBackoffLayer::new(policy()).unwrap();
    let (inner, mut handle) = mock::pair::<ChatRequest, ChatResponse<Script>>();
    let mut service = layer.layer(inner);
    let call = ready(&mut service).await.call(ChatRequest::user("hello"));
    let mut call = tokio_test::task::spawn(call);
    let (_, send) = handle.next_request().await.unwrap();
    let mut hanging = reply([start()]);
    hanging = hanging.map(|script| Script { hangs: true, ..script });
    send.send_response(hanging);
    tokio_test::assert_pending!(call.poll());
    tokio::time::advance(secs(5)).await;
    tokio_test::assert_pending!(call.poll());
    drop(call);
    drop(service);
    assert!(handle.next_request().await.is_none());
}

#[tokio::test(start_paused = true)]
async fn an_http_client_with_its_own_body_error() {
    let layer = RetryBackoffLayer::new(policy()).unwrap();
    let (inner, mut handle) = mock::pair::<http::Request<String>, http::Response<String>>();
    // A body whose error is converted into a failure.
    let inner = inner.map_response(|reply: http::Response<String>| {
        reply.map(|body| http_body_util::BodyExt::map_err(body, Failure::from))
    });
    let answer = tokio::spawn(layer.layer(inner).oneshot(http::Request::new("ping".to_owned())));
    let (first, send) = handle.next_request().await.unwrap();
    assert!(first.extensions().is_empty(), "the first attempt is as the caller made it");
    send.send_error(fail(Reason::Network));
    let (second, send) = handle.next_request().await.unwrap();
    assert_eq!(steadfast_core::Call::context(&second).attempts, 1);
    assert_eq!(second.body(), "ping");
    send.send_response(http::Response::new("pong".to_owned()));
    let body = answer.await.unwrap().unwrap().into_body();
    let bytes = http_body_util::BodyExt::collect(body).await.unwrap().to_bytes();
    assert_eq!(bytes, "pong");
}
