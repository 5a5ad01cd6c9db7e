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
use steadfast_chat::{ChatResponse, Delta, Event, Head, Stop, StopReason};
use steadfast_core::{
    BufferLimits, Dialect, Failure, Lease, LeaseEnd, Observer, Outcome, Permit, PermitKind, Reason,
    RecoveryLog, Track, UntilEnd, Usage,
};
use tokio_test::{assert_pending, assert_ready, task};

/// Records when content came and how each lease ended.
#[derive(Default)]
struct Ends(Mutex<Vec<String>>);

impl Observer for Ends {
    fn first_content(&self, _: Permit, _: tokio::time::Instant, after: Duration, _: &RecoveryLog) {
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

    fn recorded(&self) -> Vec<String> {
        self.0.lock().clone()
    }
}

/// A reply with a lease on it that nobody has read from.
fn track<R>(reply: R, lease: Lease) -> <UntilEnd as Track<R>>::Tracked
where
    UntilEnd: Track<R>,
{
    let mut reply = UntilEnd.track(reply);
    UntilEnd.attach(&mut reply, lease);
    reply
}

/// One step of a script.
enum Action<T> {
    Item(T),
    Wait,
    Fail,
}

struct Script<T> {
    actions: VecDeque<Action<T>>,
    ended: bool,
    /// Whether the body knows its own end, as one with a content-length does.
    knows_end: bool,
}

impl<T> Script<T> {
    fn new(actions: impl IntoIterator<Item = Action<T>>) -> Self {
        Self { actions: actions.into_iter().collect(), ended: false, knows_end: false }
    }

    fn next(&mut self) -> Poll<Option<Result<T, Failure>>> {
        match self.actions.pop_front() {
            Some(Action::Item(item)) => Poll::Ready(Some(Ok(item))),
            Some(Action::Wait) => {
                self.actions.push_front(Action::Wait);
                Poll::Pending
            }
            Some(Action::Fail) => Poll::Ready(Some(Err(Failure::new(Reason::Network, "reset")))),
            None => {
                assert!(!self.ended, "polled after its end");
                self.ended = true;
                Poll::Ready(None)
            }
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
        self.knows_end && self.actions.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(7)
    }
}

fn data(bytes: &'static str) -> Action<Bytes> {
    Action::Item(Bytes::from_static(bytes.as_bytes()))
}

fn text(text: &str) -> Action<Event> {
    Action::Item(Event::new([Delta::Text { index: 0, text: text.into() }]))
}

fn start() -> Action<Event> {
    Action::Item(Event::new([Delta::Start { id: None, model: None }]))
}

fn end() -> Action<Event> {
    Action::Item(Event::new([
        Delta::Usage(Usage::new(2, 3)),
        Delta::Stop(Stop::from(StopReason::EndTurn)),
        Delta::End,
    ]))
}

fn answer(actions: impl IntoIterator<Item = Action<Event>>) -> ChatResponse<Script<Event>> {
    ChatResponse::new(Head::new(Dialect::OpenAi), Script::new(actions))
}

/// Waits for the first content, as a layer does.
async fn wait<R>(reply: R, limits: BufferLimits) -> Result<<UntilEnd as Track<R>>::Tracked, Failure>
where
    UntilEnd: Track<R>,
{
    wait_times(1, reply, limits).await
}

async fn wait_times<R>(
    times: usize,
    reply: R,
    limits: BufferLimits,
) -> Result<<UntilEnd as Track<R>>::Tracked, Failure>
where
    UntilEnd: Track<R>,
{
    let mut reply = UntilEnd.track(reply);
    for _ in 0..times {
        poll_fn(|cx| UntilEnd.poll_content(&mut reply, limits, cx)).await?;
    }
    Ok(reply)
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
async fn events_end_their_lease_at_their_end() {
    let ends = Arc::new(Ends::default());
    let mut response = track(answer([start(), text("hi"), end()]), ends.lease());
    assert!(ends.recorded().is_empty(), "not before the stream");
    drain(&mut response).await;
    assert_eq!(ends.recorded(), ["success"]);
}

#[tokio::test]
async fn a_reader_that_stops_at_the_terminal_event_has_the_whole_answer() {
    let ends = Arc::new(Ends::default());
    let mut response = track(answer([text("hi"), end(), Action::Wait]), ends.lease());
    let mut task = task::spawn(async {
        for _ in 0..2 {
            poll_fn(|cx| Pin::new(&mut response).poll_next(cx)).await;
        }
    });
    assert_ready!(task.poll());
    drop(task);
    drop(response);
    assert_eq!(ends.recorded(), ["success"]);
}

#[tokio::test]
async fn a_broken_stream_is_a_failure_and_stays_ended() {
    let ends = Arc::new(Ends::default());
    let mut response = track(answer([text("hi"), Action::Fail, text("late")]), ends.lease());
    let seen = drain(&mut response).await;
    assert_eq!(seen.len(), 2);
    assert_eq!(seen[1], Err(Reason::Network));
    assert!(drain(&mut response).await.is_empty(), "ended when polled again");
    assert_eq!(ends.recorded(), ["network"]);
}

#[tokio::test]
async fn a_dropped_answer_is_cancelled() {
    let ends = Arc::new(Ends::default());
    drop(track(answer([text("hi")]), ends.lease()));
    drop(track(http::Response::new(Script::new([data("a")])), ends.lease()));
    assert_eq!(ends.recorded(), ["cancelled", "cancelled"]);
}

#[tokio::test]
async fn bodies_end_at_their_last_byte_without_another_poll() {
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
    assert_eq!(ends.recorded(), ["success", "success"]);
}

#[tokio::test]
async fn a_body_is_fused_after_its_first_error() {
    let ends = Arc::new(Ends::default());
    let script = Script::new([data("a"), Action::Fail, data("late")]);
    let mut body = track(http::Response::new(script), ends.lease()).into_body();
    let mut next = async || poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await;
    assert!(next().await.unwrap().is_ok());
    assert!(next().await.unwrap().is_err());
    assert!(next().await.is_none());
    assert_eq!(ends.recorded(), ["network"]);
}

#[tokio::test]
async fn waiting_loses_no_event_and_is_only_for_content() {
    let actions = [start(), Action::Item(Event::new([Delta::Ping])), text(""), text("hi"), end()];
    let mut response = wait(answer(actions), BufferLimits::default()).await.unwrap();
    let seen = drain(&mut response).await;
    assert_eq!(seen.len(), 5);
    assert_eq!(seen[3], Ok(Event::new([Delta::Text { index: 0, text: "hi".into() }])));
}

#[tokio::test]
async fn waiting_fails_with_a_failure_before_content() {
    let failure = wait(answer([start(), Action::Fail]), BufferLimits::default()).await.unwrap_err();
    assert_eq!(failure.reason(), Reason::Network);
    assert!(!failure.is_delivered());
}

#[tokio::test]
async fn a_failure_after_content_is_marked_as_delivered() {
    let mut response =
        wait(answer([text("hi"), Action::Fail]), BufferLimits::default()).await.unwrap();
    let mut failed = None;
    while let Some(item) = poll_fn(|cx| Pin::new(&mut response).poll_next(cx)).await {
        failed = item.err();
    }
    assert!(failed.unwrap().is_delivered());
}

#[tokio::test(start_paused = true)]
async fn waiting_is_bounded_in_time() {
    let limits = BufferLimits { time: Duration::from_secs(5), ..BufferLimits::default() };
    let mut waiting = task::spawn(wait(answer([start(), Action::Wait]), limits));
    assert_pending!(waiting.poll());
    tokio::time::advance(Duration::from_millis(4_999)).await;
    assert_pending!(waiting.poll());
    tokio::time::advance(Duration::from_millis(2)).await;
    assert!(assert_ready!(waiting.poll()).is_ok());
}

#[tokio::test]
async fn waiting_is_bounded_in_bytes() {
    let limits = BufferLimits { bytes: 2_000, ..BufferLimits::default() };
    let pings = (0..1_000).map(|_| Action::Item(Event::new([Delta::Ping])));
    let answer = answer(pings.chain([Action::Wait]));
    let mut waiting = task::spawn(wait(answer, limits));
    let mut response = assert_ready!(waiting.poll()).unwrap();
    let mut received = 0;
    let mut next = task::spawn(poll_fn(|cx| Pin::new(&mut response).poll_next(cx)));
    while let Poll::Ready(event) = next.poll() {
        assert_eq!(event.unwrap().unwrap(), Event::new([Delta::Ping]));
        received += 1;
    }
    assert_eq!(received, 1_000);
}

#[tokio::test]
async fn waiting_again_reads_no_more_and_keeps_the_order() {
    let empty = |index| Event::new([Delta::Text { index, text: "".into() }]);
    let events: Vec<_> = (0..8).map(empty).collect();
    // Exceeded by the second event.
    let limits = BufferLimits { bytes: events[0].size(), ..BufferLimits::default() };
    let answer = answer(events.iter().cloned().map(Action::Item));
    let mut reply = wait_times(3, answer, limits).await.unwrap();
    assert_eq!(drain(&mut reply).await, events.into_iter().map(Ok).collect::<Vec<_>>());
}

#[tokio::test]
async fn an_answer_that_ends_without_content_is_passed_on() {
    for script in [vec![start(), end()], vec![start()], vec![]] {
        let length = script.len();
        let mut response = wait(answer(script), BufferLimits::default()).await.unwrap();
        assert_eq!(drain(&mut response).await.len(), length);
    }
}

#[tokio::test]
async fn content_that_an_inner_layer_waited_for_is_not_buffered_again() {
    // A layer that passes every event on changes nothing; one that maps the stream may hold events back.
    for (between, held) in [(false, "buffered: 0"), (true, "buffered: 2")] {
        let mut inner = wait(answer([start(), text("hi"), Action::Wait]), BufferLimits::default())
            .await
            .unwrap();
        if between {
            inner = inner.map(|events| events);
        }
        let outer = wait(inner, BufferLimits::default()).await.unwrap();
        let mut response = outer.map(|events| {
            assert!(format!("{events:?}").contains(held), "{events:?}");
            events
        });
        let first = poll_fn(|cx| Pin::new(&mut response).poll_next(cx)).await;
        let start = Event::new([Delta::Start { id: None, model: None }]);
        assert_eq!(first.unwrap().unwrap(), start);
    }
}

#[tokio::test(start_paused = true)]
async fn the_first_content_is_observed_once_when_requested() {
    let ends = Arc::new(Ends::default());
    let lease = ends.lease().observing_content(tokio::time::Instant::now());
    let mut response = track(answer([start(), text(""), text("hi"), text("ho"), end()]), lease);
    tokio::time::advance(Duration::from_secs(2)).await;
    drain(&mut response).await;
    assert_eq!(ends.recorded(), ["content after 2s", "success"]);
}
