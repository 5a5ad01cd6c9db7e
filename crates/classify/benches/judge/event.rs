//! What the layers add to one event of a stream.

use std::{
    convert::Infallible,
    hint::black_box,
    pin::Pin,
    task::{Context, Poll, Waker},
};

use bytes::Bytes;
use futures_core::Stream;
use http_body::{Body, Frame};
use steadfast_chat::{ChatRequest, ChatResponse, Delta, Event, Head};
use steadfast_classify::ClassifyLayer;
use steadfast_core::{Dialect, Failure};
use tokio::time::Instant;
use tower_layer::Layer;
use tower_service::Service;

/// Events in a stream: few enough that the machine does nothing else during some streams.
const EVENTS: u32 = 1_000;

/// Streams of which the fastest counts.
const ROUNDS: u32 = 500;

/// As many events as asked for, each the same.
struct Same {
    event: Event,
    left: u32,
}

impl Stream for Same {
    type Item = Result<Event, Failure>;

    fn poll_next(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.left = match self.left.checked_sub(1) {
            Some(left) => left,
            None => return Poll::Ready(None),
        };
        Poll::Ready(Some(Ok(self.event.clone())))
    }
}

/// Answers with [`Same`].
struct Answering;

impl Service<ChatRequest> for Answering {
    type Response = ChatResponse<Same>;
    type Error = Failure;
    type Future = std::future::Ready<Result<ChatResponse<Same>, Failure>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Failure>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: ChatRequest) -> Self::Future {
        let event = Event::new([Delta::Text { index: 0, text: "word".into() }]);
        let events = Same { event, left: EVENTS };
        std::future::ready(Ok(ChatResponse::new(Head::new(Dialect::OpenAi), events)))
    }
}

/// What the layers add to one event of a stream.
pub(crate) fn run() {
    let bare = each_event(&mut Answering);
    let classified = each_event(&mut ClassifyLayer::new().layer(Answering));
    report("an event", bare, classified);

    let bare = each_frame(&mut Sending);
    let classified = each_frame(&mut ClassifyLayer::llm_http().layer(Sending));
    report("an event over HTTP", bare, classified);
}

fn report(what: &str, bare: f64, classified: f64) {
    let ours = classified - bare;
    println!("{what:<22} {classified:>18.1} ns, of them the layer's {ours:.1} ns");
}

/// A piece of a stream of OpenAI's.
const FRAME: &[u8] = b"data: {\"id\":\"chatcmpl-9wUTzJ4qvGkVe3QnWx5mYb8a\",\"object\":\"chat.completion.chunk\",\"created\":1760000000,\"model\":\"gpt-4o-2024-08-06\",\"system_fingerprint\":\"fp_0a88084f25\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\" word\"},\"logprobs\":null,\"finish_reason\":null}]}\n\n";

/// An event stream, a piece at a time.
struct Pieces {
    left: u32,
}

impl Body for Pieces {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.left = match self.left.checked_sub(1) {
            Some(left) => left,
            None => return Poll::Ready(None),
        };
        Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(FRAME)))))
    }
}

/// Answers with [`Pieces`].
struct Sending;

impl Service<http::Request<()>> for Sending {
    type Response = http::Response<Pieces>;
    type Error = Infallible;
    type Future = std::future::Ready<Result<http::Response<Pieces>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: http::Request<()>) -> Self::Future {
        let mut response = http::Response::new(Pieces { left: EVENTS });
        let kind = http::HeaderValue::from_static("text/event-stream");
        response.headers_mut().insert(http::header::CONTENT_TYPE, kind);
        std::future::ready(Ok(response))
    }
}

fn each_frame<S, B>(service: &mut S) -> f64
where
    S: Service<http::Request<()>, Response = http::Response<B>>,
    B: Body + Unpin,
{
    let mut cx = Context::from_waker(Waker::noop());
    let mut best = f64::INFINITY;
    for _ in 0..ROUNDS {
        let mut future = std::pin::pin!(service.call(http::Request::new(())));
        let Poll::Ready(Ok(answer)) = future.as_mut().poll(&mut cx) else { return f64::NAN };
        let mut body = answer.into_body();
        let began = Instant::now();
        for _ in 0..EVENTS {
            black_box(Pin::new(&mut body).poll_frame(&mut cx).is_ready());
        }
        best = best.min(began.elapsed().as_nanos() as f64 / f64::from(EVENTS));
    }
    best
}

fn each_event<S, E>(service: &mut S) -> f64
where
    S: Service<ChatRequest, Response = ChatResponse<E>>,
    E: Stream<Item = Result<Event, Failure>> + Unpin,
{
    let mut cx = Context::from_waker(Waker::noop());
    let mut best = f64::INFINITY;
    for _ in 0..ROUNDS {
        let mut future = std::pin::pin!(service.call(ChatRequest::user("hello")));
        let Poll::Ready(Ok(mut answer)) = future.as_mut().poll(&mut cx) else { return f64::NAN };
        let began = Instant::now();
        for _ in 0..EVENTS {
            black_box(Pin::new(&mut answer).poll_next(&mut cx).is_ready());
        }
        best = best.min(began.elapsed().as_nanos() as f64 / f64::from(EVENTS));
    }
    best
}
