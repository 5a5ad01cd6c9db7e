//! When an answer counts as over, for bodies and for events.

use std::{
    collections::VecDeque,
    future::poll_fn,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use futures_core::Stream;
use http_body::{Body, Frame, SizeHint};
use parking_lot::Mutex;
use steadfast_chat::{ChatResponse, Delta, Event, Head, Look, Stop, StopReason};
use steadfast_core::{
    Dialect, Failure, Lease, Outcome, Peek, Reason, RecoveryLog, Settle, Settled, Token, Track,
    Usage,
};
use tokio_test::{assert_pending, assert_ready, task};

/// Writes down how each lease ended.
#[derive(Default)]
struct Book(Mutex<Vec<String>>);

impl Settle for Book {
    fn settle(&self, settled: Settled<'_>) {
        let outcome = match settled.outcome {
            Outcome::Success => format!("success {:?}", settled.usage.and_then(Usage::total)),
            Outcome::Failure(failure) => failure.reason().to_string(),
            _ => "cancelled".to_owned(),
        };
        self.0.lock().push(outcome);
    }
}

impl Book {
    fn lease(self: &Arc<Self>) -> Lease {
        Lease::new(self.clone(), Token::default(), RecoveryLog::disabled()).metered()
    }

    fn told(&self) -> Vec<String> {
        self.0.lock().clone()
    }
}

/// What a script does next.
enum Act<T> {
    Item(T),
    Wait,
    Fail,
}

struct Script<T> {
    acts: VecDeque<Act<T>>,
    /// Whether the body knows its own end, as one with a content-length does.
    knows_end: bool,
}

impl<T> Script<T> {
    fn new(acts: impl IntoIterator<Item = Act<T>>) -> Self {
        Self { acts: acts.into_iter().collect(), knows_end: false }
    }

    fn next(&mut self) -> Poll<Option<Result<T, Failure>>> {
        match self.acts.pop_front() {
            Some(Act::Item(item)) => Poll::Ready(Some(Ok(item))),
            Some(Act::Wait) => {
                self.acts.push_front(Act::Wait);
                Poll::Pending
            }
            Some(Act::Fail) => Poll::Ready(Some(Err(Failure::new(Reason::Network, "reset")))),
            None => Poll::Ready(None),
        }
    }
}

impl<T: Unpin> Stream for Script<T> {
    type Item = Result<T, Failure>;

    fn poll_next(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.next()
    }
}

impl Body for Script<Bytes> {
    type Data = Bytes;
    type Error = Failure;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Failure>>> {
        self.next().map_ok(Frame::data)
    }

    fn is_end_stream(&self) -> bool {
        self.knows_end && self.acts.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(7)
    }
}

fn data(bytes: &'static str) -> Act<Bytes> {
    Act::Item(Bytes::from_static(bytes.as_bytes()))
}

fn say(text: &str) -> Act<Event> {
    Act::Item(Event::new([Delta::Text { index: 0, text: text.into() }]))
}

fn start() -> Act<Event> {
    Act::Item(Event::new([Delta::Start { id: None, model: None }]))
}

fn end() -> Act<Event> {
    Act::Item(Event::new([
        Delta::Usage(Usage::new(2, 3)),
        Delta::Stop(Stop::from(StopReason::EndTurn)),
        Delta::End,
    ]))
}

fn answer(acts: impl IntoIterator<Item = Act<Event>>) -> ChatResponse<Script<Event>> {
    ChatResponse::new(Head::new(Dialect::OpenAi), Script::new(acts))
}

/// Waits for the first content, as a layer does.
async fn commit<R: Track>(mut reply: R, peek: Peek) -> Result<R::Committed, Failure> {
    let mut look = R::Look::default();
    poll_fn(|cx| reply.poll_content(&mut look, peek, cx)).await?;
    Ok(reply.commit(look, Lease::idle()))
}

async fn drain<S>(stream: &mut S) -> Vec<Result<Event, Reason>>
where
    S: Stream<Item = Result<Event, Failure>> + Unpin,
{
    let mut all = Vec::new();
    while let Some(item) = poll_fn(|cx| Pin::new(&mut *stream).poll_next(cx)).await {
        all.push(item.map_err(|failure| failure.reason()));
    }
    all
}

#[tokio::test]
async fn events_settle_at_their_end_with_usage() {
    let book = Arc::new(Book::default());
    let mut response = answer([start(), say("hi"), end()]).track(book.lease());
    assert!(book.told().is_empty(), "not at the head");
    drain(&mut response).await;
    assert_eq!(book.told(), ["success Some(5)"]);
}

#[tokio::test]
async fn a_reader_that_stops_at_the_terminal_event_has_had_it_all() {
    let book = Arc::new(Book::default());
    let mut response = answer([say("hi"), end(), Act::Wait]).track(book.lease());
    let mut task = task::spawn(async {
        for _ in 0..2 {
            poll_fn(|cx| Pin::new(&mut response).poll_next(cx)).await;
        }
    });
    assert_ready!(task.poll());
    drop(task);
    drop(response);
    assert_eq!(book.told(), ["success Some(5)"]);
}

#[tokio::test]
async fn a_stream_that_breaks_is_a_failure_and_stays_ended() {
    let book = Arc::new(Book::default());
    let mut response = answer([say("hi"), Act::Fail, say("zombie")]).track(book.lease());
    let seen = drain(&mut response).await;
    assert_eq!(seen.len(), 2);
    assert_eq!(seen[1], Err(Reason::Network));
    assert!(drain(&mut response).await.is_empty(), "polled again it stays ended");
    assert_eq!(book.told(), ["network"]);
}

#[tokio::test]
async fn a_dropped_answer_is_cancelled() {
    let book = Arc::new(Book::default());
    drop(answer([say("hi")]).track(book.lease()));
    drop(http::Response::new(Script::new([data("a")])).track(book.lease()));
    assert_eq!(book.told(), ["cancelled", "cancelled"]);
}

#[tokio::test]
async fn bodies_settle_at_their_last_byte_even_when_nobody_asks_for_more() {
    let book = Arc::new(Book::default());
    let mut script = Script::new([data("ab"), data("c")]);
    script.knows_end = true;
    let mut body = http::Response::new(script).track(book.lease()).into_body();
    assert_eq!(body.size_hint().exact(), Some(7), "the length passes through");
    for _ in 0..2 {
        poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await.unwrap().unwrap();
    }
    assert!(body.is_end_stream());
    drop(body);
    let mut empty = Script::<Bytes>::new([]);
    empty.knows_end = true;
    drop(http::Response::new(empty).track(book.lease()));
    assert_eq!(book.told(), ["success None", "success None"]);
}

#[tokio::test]
async fn a_body_is_fused_after_its_first_error() {
    let book = Arc::new(Book::default());
    let script = Script::new([data("a"), Act::Fail, data("zombie")]);
    let mut body = http::Response::new(script).track(book.lease()).into_body();
    let mut next = async || poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await;
    assert!(next().await.unwrap().is_ok());
    assert!(next().await.unwrap().is_err());
    assert!(next().await.is_none());
    assert_eq!(book.told(), ["network"]);
}

#[tokio::test]
async fn commit_loses_nothing_and_waits_for_content_alone() {
    let acts = [start(), Act::Item(Event::new([Delta::Ping])), say(""), say("hi"), end()];
    let mut response = commit(answer(acts), Peek::default()).await.unwrap();
    let seen = drain(&mut response).await;
    assert_eq!(seen.len(), 5);
    assert_eq!(seen[3], Ok(Event::new([Delta::Text { index: 0, text: "hi".into() }])));
}

#[tokio::test]
async fn commit_fails_with_what_fails_before_content() {
    let failure = commit(answer([start(), Act::Fail]), Peek::default()).await.unwrap_err();
    assert_eq!(failure.reason(), Reason::Network);
    assert!(!failure.is_delivered());
}

#[tokio::test]
async fn what_fails_after_content_says_so() {
    let mut response = commit(answer([say("hi"), Act::Fail]), Peek::default()).await.unwrap();
    let mut failed = None;
    while let Some(item) = poll_fn(|cx| Pin::new(&mut response).poll_next(cx)).await {
        failed = item.err();
    }
    assert!(failed.unwrap().is_delivered());
}

#[tokio::test(start_paused = true)]
async fn commit_is_bounded_in_time() {
    let peek = Peek { time: Duration::from_secs(5), ..Peek::default() };
    let mut commit = task::spawn(commit(answer([start(), Act::Wait]), peek));
    assert_pending!(commit.poll());
    tokio::time::advance(Duration::from_millis(4_999)).await;
    assert_pending!(commit.poll());
    tokio::time::advance(Duration::from_millis(2)).await;
    assert!(assert_ready!(commit.poll()).is_ok());
}

#[tokio::test]
async fn commit_is_bounded_in_bytes() {
    let peek = Peek { bytes: 2_000, ..Peek::default() };
    let pings = (0..1_000).map(|_| Act::Item(Event::new([Delta::Ping])));
    let mut response = commit(answer(pings), peek).await.unwrap();
    assert_eq!(drain(&mut response).await.len(), 1_000);
}

#[tokio::test]
async fn an_answer_that_ends_without_content_is_handed_on() {
    let mut response = commit(answer([start(), end()]), Peek::default()).await.unwrap();
    assert_eq!(drain(&mut response).await.len(), 2);
}

#[tokio::test]
async fn whoever_looks_second_finds_it_at_hand() {
    // What lets everything through changes nothing; what is put between might hold something back.
    for (between, seen) in [(false, "seen: 0"), (true, "seen: 2")] {
        let inner = commit(answer([start(), say("hi"), Act::Wait]), Peek::default()).await.unwrap();
        let mut outer = inner.track(Lease::idle());
        if between {
            outer = outer.map(|events| events);
        }
        let mut look = Look::default();
        poll_fn(|cx| outer.poll_content(&mut look, Peek::default(), cx)).await.unwrap();
        assert!(format!("{look:?}").contains(seen), "{look:?}");
        let mut response = outer.commit(look, Lease::idle());
        let first = poll_fn(|cx| Pin::new(&mut response).poll_next(cx)).await;
        let start = Event::new([Delta::Start { id: None, model: None }]);
        assert_eq!(first.unwrap().unwrap(), start);
    }
}
