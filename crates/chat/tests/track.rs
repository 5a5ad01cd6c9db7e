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
use steadfast_chat::{ChatResponse, ContentBuffer, Delta, Event, Head, Stop, StopReason};
use steadfast_core::{
    BufferLimits, Dialect, Failure, Lease, LeaseEnd, Observer, Outcome, Permit, PermitKind, Reason,
    RecoveryLog, Track, UntilEnd, Usage,
};
use tokio_test::{assert_pending, assert_ready, task};

/// Writes down when content came and how each lease ended.
#[derive(Default)]
struct Ends(Mutex<Vec<String>>);

impl Observer for Ends {
    fn first_content(&self, _: Permit, after: Duration, _: &RecoveryLog) {
        self.0.lock().push(format!("content after {after:?}"));
    }

    fn ended(&self, end: LeaseEnd<'_>) {
        let outcome = match end.outcome {
            Outcome::Success => "success".to_owned(),
            Outcome::Failure(failure) => failure.reason().to_string(),
            _ => "cancelled".to_owned(),
        };
        self.0.lock().push(outcome);
    }
}

impl Ends {
    fn lease(self: &Arc<Self>) -> Lease {
        let permit = Permit::new(PermitKind::Ordinary, 1);
        Lease::new(self.clone(), permit, RecoveryLog::disabled())
    }

    fn seen(&self) -> Vec<String> {
        self.0.lock().clone()
    }
}

/// A reply with a lease on it, of which nothing has been read.
fn track<R>(reply: R, lease: Lease) -> <UntilEnd as Track<R>>::Tracked
where
    UntilEnd: Track<R>,
{
    UntilEnd.track(reply, Default::default(), lease)
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
async fn wait<R>(
    mut reply: R,
    limits: BufferLimits,
) -> Result<<UntilEnd as Track<R>>::Tracked, Failure>
where
    UntilEnd: Track<R>,
{
    let mut buffer = Default::default();
    poll_fn(|cx| UntilEnd.poll_content(&mut reply, &mut buffer, limits, cx)).await?;
    Ok(UntilEnd.track(reply, buffer, Lease::idle()))
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
async fn events_end_their_lease_with_themselves() {
    let ends = Arc::new(Ends::default());
    let mut response = track(answer([start(), say("hi"), end()]), ends.lease());
    assert!(ends.seen().is_empty(), "not at the head");
    drain(&mut response).await;
    assert_eq!(ends.seen(), ["success"]);
}

#[tokio::test]
async fn a_reader_that_stops_at_the_terminal_event_has_had_it_all() {
    let ends = Arc::new(Ends::default());
    let mut response = track(answer([say("hi"), end(), Act::Wait]), ends.lease());
    let mut task = task::spawn(async {
        for _ in 0..2 {
            poll_fn(|cx| Pin::new(&mut response).poll_next(cx)).await;
        }
    });
    assert_ready!(task.poll());
    drop(task);
    drop(response);
    assert_eq!(ends.seen(), ["success"]);
}

#[tokio::test]
async fn a_stream_that_breaks_is_a_failure_and_stays_ended() {
    let ends = Arc::new(Ends::default());
    let mut response = track(answer([say("hi"), Act::Fail, say("zombie")]), ends.lease());
    let seen = drain(&mut response).await;
    assert_eq!(seen.len(), 2);
    assert_eq!(seen[1], Err(Reason::Network));
    assert!(drain(&mut response).await.is_empty(), "polled again it stays ended");
    assert_eq!(ends.seen(), ["network"]);
}

#[tokio::test]
async fn a_dropped_answer_is_cancelled() {
    let ends = Arc::new(Ends::default());
    drop(track(answer([say("hi")]), ends.lease()));
    drop(track(http::Response::new(Script::new([data("a")])), ends.lease()));
    assert_eq!(ends.seen(), ["cancelled", "cancelled"]);
}

#[tokio::test]
async fn bodies_end_at_their_last_byte_even_when_nobody_asks_for_more() {
    let ends = Arc::new(Ends::default());
    let mut script = Script::new([data("ab"), data("c")]);
    script.knows_end = true;
    let mut body = track(http::Response::new(script), ends.lease()).into_body();
    assert_eq!(body.size_hint().exact(), Some(7), "the length passes through");
    for _ in 0..2 {
        poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await.unwrap().unwrap();
    }
    assert!(body.is_end_stream());
    drop(body);
    let mut empty = Script::<Bytes>::new([]);
    empty.knows_end = true;
    drop(track(http::Response::new(empty), ends.lease()));
    assert_eq!(ends.seen(), ["success", "success"]);
}

#[tokio::test]
async fn a_body_is_fused_after_its_first_error() {
    let ends = Arc::new(Ends::default());
    let script = Script::new([data("a"), Act::Fail, data("zombie")]);
    let mut body = track(http::Response::new(script), ends.lease()).into_body();
    let mut next = async || poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await;
    assert!(next().await.unwrap().is_ok());
    assert!(next().await.unwrap().is_err());
    assert!(next().await.is_none());
    assert_eq!(ends.seen(), ["network"]);
}

#[tokio::test]
async fn waiting_loses_nothing_and_is_for_content_alone() {
    let acts = [start(), Act::Item(Event::new([Delta::Ping])), say(""), say("hi"), end()];
    let mut response = wait(answer(acts), BufferLimits::default()).await.unwrap();
    let seen = drain(&mut response).await;
    assert_eq!(seen.len(), 5);
    assert_eq!(seen[3], Ok(Event::new([Delta::Text { index: 0, text: "hi".into() }])));
}

#[tokio::test]
async fn waiting_fails_with_what_fails_before_content() {
    let failure = wait(answer([start(), Act::Fail]), BufferLimits::default()).await.unwrap_err();
    assert_eq!(failure.reason(), Reason::Network);
    assert!(!failure.is_delivered());
}

#[tokio::test]
async fn what_fails_after_content_says_so() {
    let mut response = wait(answer([say("hi"), Act::Fail]), BufferLimits::default()).await.unwrap();
    let mut failed = None;
    while let Some(item) = poll_fn(|cx| Pin::new(&mut response).poll_next(cx)).await {
        failed = item.err();
    }
    assert!(failed.unwrap().is_delivered());
}

#[tokio::test(start_paused = true)]
async fn waiting_is_bounded_in_time() {
    let limits = BufferLimits { time: Duration::from_secs(5), ..BufferLimits::default() };
    let mut waiting = task::spawn(wait(answer([start(), Act::Wait]), limits));
    assert_pending!(waiting.poll());
    tokio::time::advance(Duration::from_millis(4_999)).await;
    assert_pending!(waiting.poll());
    tokio::time::advance(Duration::from_millis(2)).await;
    assert!(assert_ready!(waiting.poll()).is_ok());
}

#[tokio::test]
async fn waiting_is_bounded_in_bytes() {
    let limits = BufferLimits { bytes: 2_000, ..BufferLimits::default() };
    let pings = (0..1_000).map(|_| Act::Item(Event::new([Delta::Ping])));
    let mut response = wait(answer(pings), limits).await.unwrap();
    assert_eq!(drain(&mut response).await.len(), 1_000);
}

#[tokio::test]
async fn an_answer_that_ends_without_content_is_handed_on() {
    let mut response = wait(answer([start(), end()]), BufferLimits::default()).await.unwrap();
    assert_eq!(drain(&mut response).await.len(), 2);
}

#[tokio::test]
async fn content_that_was_waited_for_further_in_is_at_hand() {
    // What lets everything through changes nothing; what is put between might hold something back.
    for (between, held) in [(false, "events: 0"), (true, "events: 2")] {
        let inner =
            wait(answer([start(), say("hi"), Act::Wait]), BufferLimits::default()).await.unwrap();
        let mut outer = track(inner, Lease::idle());
        if between {
            outer = outer.map(|events| events);
        }
        let (mut buffer, limits) = (ContentBuffer::default(), BufferLimits::default());
        poll_fn(|cx| UntilEnd.poll_content(&mut outer, &mut buffer, limits, cx)).await.unwrap();
        assert!(format!("{buffer:?}").contains(held), "{buffer:?}");
        let mut response = UntilEnd.track(outer, buffer, Lease::idle());
        let first = poll_fn(|cx| Pin::new(&mut response).poll_next(cx)).await;
        let start = Event::new([Delta::Start { id: None, model: None }]);
        assert_eq!(first.unwrap().unwrap(), start);
    }
}

#[tokio::test(start_paused = true)]
async fn the_first_content_is_observed_once_where_that_is_asked_for() {
    let ends = Arc::new(Ends::default());
    let lease = ends.lease().observing_content(tokio::time::Instant::now());
    let mut response = track(answer([start(), say(""), say("hi"), say("ho"), end()]), lease);
    tokio::time::advance(Duration::from_secs(2)).await;
    drain(&mut response).await;
    assert_eq!(ends.seen(), ["content after 2s", "success"]);
}
