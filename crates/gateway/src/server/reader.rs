//! Whether the caller reads its answer.
//!
//! A server polls a body only while it can write. So a timer in the body never fires for a caller that
//! does not read: the time is kept by the task that the body belongs to, which is that of the connection
//! (HTTP/1) or of the stream (HTTP/2). When that task gives up, it drops the answer, and with it the
//! provider's connection.

use std::{
    mem::take,
    pin::{Pin, pin},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering},
    },
    task::{Context, Poll, ready},
    time::Duration,
};

use axum::body::Body;
use bytes::Bytes;
use http_body::{Body as _, Frame, SizeHint};
use parking_lot::Mutex;
use steadfast_core::time::{Alarm, later};
use tokio::time::Instant;

/// What a caller may be behind with after the call's deadline: 1 s, in which whoever reads gets the error
/// that says so.
const GRACE: Duration = Duration::from_secs(1);

/// The largest piece that an HTTP/2 stream is given at once, 16 KiB: its frames are no larger by default,
/// and who takes one has made progress.
const PIECE: usize = 16 * 1024;

/// The body was polled, and there was nothing, or no answer is under way.
const CAUGHT_UP: u8 = 0;
/// The body gave a piece and was not polled since.
const BEHIND: u8 = 1;
/// The same, and the time is being taken.
const TIMED: u8 = 2;

/// No time.
const NEVER: u64 = u64::MAX;

/// What happens on a connection, as far as its times depend on it.
#[derive(Debug)]
pub(super) struct Activity {
    /// When it was accepted, from which other times are counted, in milliseconds.
    born: Instant,
    /// Requests whose answers have not ended.
    active: AtomicUsize,
    /// When the last of them ended, or a byte was taken of what was written for it.
    idle_since: AtomicU64,
    /// Part of a head may have come.
    head: AtomicBool,
    /// The caller's side is full.
    blocked: AtomicBool,
    /// It is closed with a part of a request unread.
    lingers: AtomicBool,
    /// It is closed because the caller does not read.
    unread: AtomicBool,
}

impl Activity {
    pub(super) fn new(born: Instant) -> Self {
        Self {
            born,
            active: AtomicUsize::new(0),
            idle_since: AtomicU64::new(0),
            head: AtomicBool::new(false),
            blocked: AtomicBool::new(false),
            lingers: AtomicBool::new(false),
            unread: AtomicBool::new(false),
        }
    }

    fn offset(&self, at: Instant) -> u64 {
        steadfast_core::time::millis(at.saturating_duration_since(self.born))
    }

    fn instant(&self, offset: u64) -> Instant {
        later(self.born, Duration::from_millis(offset))
    }

    fn rest(&self) {
        self.idle_since.store(self.offset(Instant::now()), Ordering::Relaxed);
    }

    /// Bytes have come.
    pub(super) fn received(&self) {
        self.head.store(true, Ordering::Relaxed);
    }

    /// Whether a part of a head has come, and no request.
    pub(super) fn in_head(&self) -> bool {
        self.head.load(Ordering::Relaxed) && self.active.load(Ordering::Acquire) == 0
    }

    /// Whether the caller takes no more for now.
    pub(super) fn set_blocked(&self, blocked: bool) {
        self.blocked.store(blocked, Ordering::Relaxed);
        if !blocked {
            self.rest();
        }
    }

    /// Since when nothing is under way; `None` while something is.
    pub(super) fn idle_since(&self) -> Option<Instant> {
        let busy = self.active.load(Ordering::Acquire) > 0 || self.blocked.load(Ordering::Relaxed);
        (!busy).then(|| self.instant(self.idle_since.load(Ordering::Relaxed)))
    }

    /// A part of a request stays unread.
    pub(super) fn linger(&self) {
        self.lingers.store(true, Ordering::Relaxed);
    }

    pub(super) fn lingers(&self) -> bool {
        self.lingers.load(Ordering::Relaxed)
    }

    /// It ends because the caller does not read.
    pub(super) fn end_unread(&self) {
        self.unread.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_unread(&self) -> bool {
        self.unread.load(Ordering::Relaxed)
    }
}

/// How far a caller is with an answer: one for all answers of an HTTP/1 connection, which come one after
/// another, one for each stream of HTTP/2.
#[derive(Debug)]
pub(super) struct Reader {
    connection: Arc<Activity>,
    state: AtomicU8,
    /// When the call ends, while the provider is still answering.
    deadline: AtomicU64,
    unread: AtomicBool,
}

impl Reader {
    pub(super) fn new(connection: Arc<Activity>) -> Self {
        Self {
            connection,
            state: AtomicU8::new(CAUGHT_UP),
            deadline: AtomicU64::new(NEVER),
            unread: AtomicBool::new(false),
        }
    }

    /// One for another answer of the same connection.
    pub(super) fn another(&self) -> Self {
        Self::new(self.connection.clone())
    }

    /// The answer under way is one in pieces, and ends at `deadline` whatever happens.
    pub(super) fn ends_at(&self, deadline: Instant) {
        self.deadline.store(self.connection.offset(deadline), Ordering::Relaxed);
    }

    /// Whether the answer was ended because nobody read it.
    pub(super) fn is_unread(&self) -> bool {
        self.unread.load(Ordering::Relaxed) || self.connection.is_unread()
    }

    fn ended(&self) {
        self.state.store(CAUGHT_UP, Ordering::Relaxed);
        self.deadline.store(NEVER, Ordering::Relaxed);
    }
}

/// When a caller that does not read has had its time.
#[derive(Debug)]
pub(super) struct Unread {
    /// `None`: who reads at all is found out by the bytes that its connection takes.
    send_timeout: Option<Duration>,
    since: Option<Instant>,
}

impl Unread {
    pub(super) fn new(send_timeout: Option<Duration>) -> Self {
        Self { send_timeout, since: None }
    }

    /// When the answer is over if nothing is read until then. Asked each time the task has run.
    pub(super) fn due(&mut self, reader: &Reader) -> Option<Instant> {
        match reader.state.load(Ordering::Relaxed) {
            CAUGHT_UP => {
                self.since = None;
                return None;
            }
            BEHIND => {
                self.since = Some(Instant::now());
                // The task that polls the body is the one that asks.
                reader.state.store(TIMED, Ordering::Relaxed);
            }
            _ => {}
        }
        let deadline = reader.deadline.load(Ordering::Relaxed);
        let deadline =
            (deadline != NEVER).then(|| later(reader.connection.instant(deadline), GRACE));
        let silent = self.since.zip(self.send_timeout).map(|(since, limit)| later(since, limit));
        deadline.into_iter().chain(silent).min()
    }
}

/// One request of a connection, until its answer has ended.
#[derive(Debug)]
pub(super) struct Active(Arc<Reader>);

impl Active {
    pub(super) fn new(reader: Arc<Reader>) -> Self {
        reader.connection.active.fetch_add(1, Ordering::AcqRel);
        reader.connection.head.store(false, Ordering::Relaxed);
        Self(reader)
    }

    /// `body`, the answer to it; in `pieces` for a stream of HTTP/2.
    pub(super) fn answer(self, body: Body, pieces: bool) -> ReadBody {
        ReadBody { body, rest: Bytes::new(), pieces, active: self }
    }
}

impl Drop for Active {
    fn drop(&mut self) {
        self.0.ended();
        let connection = &self.0.connection;
        connection.head.store(false, Ordering::Relaxed);
        if connection.active.fetch_sub(1, Ordering::AcqRel) == 1 {
            connection.rest();
        }
    }
}

/// The body of an answer, which marks whether it is read.
#[derive(Debug)]
pub(super) struct ReadBody {
    body: Body,
    /// Of a piece that was too large.
    rest: Bytes,
    pieces: bool,
    active: Active,
}

impl ReadBody {
    fn polled(&self, is_piece: bool) {
        let state = if is_piece { BEHIND } else { CAUGHT_UP };
        self.active.0.state.store(state, Ordering::Relaxed);
    }

    /// As much as a stream of HTTP/2 is given at once.
    fn poll_piece(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        if self.rest.is_empty() {
            match ready!(Pin::new(&mut self.body).poll_frame(cx)) {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(bytes) => self.rest = bytes,
                    Err(frame) => return Poll::Ready(Some(Ok(frame))),
                },
                end => return Poll::Ready(end),
            }
        }
        let is_last = self.rest.len() <= PIECE;
        let piece = if is_last { take(&mut self.rest) } else { self.rest.split_to(PIECE) };
        Poll::Ready(Some(Ok(Frame::data(piece))))
    }
}

impl http_body::Body for ReadBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let polled =
            if self.pieces { self.poll_piece(cx) } else { Pin::new(&mut self.body).poll_frame(cx) };
        self.polled(matches!(polled, Poll::Ready(Some(_))));
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let mut hint = self.body.size_hint();
        let rest = self.rest.len() as u64;
        if let Some(upper) = hint.upper() {
            hint.set_upper(upper.saturating_add(rest));
        }
        hint.set_lower(hint.lower().saturating_add(rest));
        hint
    }
}

/// Runs the streams of an HTTP/2 connection, each as a task that ends when nobody reads. Dropped, a stream
/// is reset; the others of its connection go on.
#[derive(Clone, Debug)]
pub(super) struct Streams {
    next: Arc<Mutex<Option<Arc<Reader>>>>,
    send_timeout: Duration,
}

impl Streams {
    pub(super) fn new(send_timeout: Duration) -> Self {
        Self { next: Arc::default(), send_timeout }
    }

    /// The next stream is the one of this reader: a server calls the service, and runs the stream it has
    /// made of that.
    pub(super) fn expect(&self, reader: Arc<Reader>) {
        *self.next.lock() = Some(reader);
    }
}

impl<F> hyper::rt::Executor<F> for Streams
where
    F: Future<Output = ()> + Send + 'static,
{
    fn execute(&self, stream: F) {
        let next = self.next.lock().take();
        match next {
            Some(reader) => drop(tokio::spawn(while_read(stream, reader, self.send_timeout))),
            // An upgraded connection.
            None => drop(tokio::spawn(stream)),
        }
    }
}

/// Runs `stream` for as long as somebody reads it.
async fn while_read<F: Future<Output = ()>>(stream: F, reader: Arc<Reader>, limit: Duration) {
    let mut stream = pin!(stream);
    let mut unread = Unread::new(Some(limit));
    let mut alarm: Option<Alarm> = None;
    std::future::poll_fn(|cx| {
        loop {
            if stream.as_mut().poll(cx).is_ready() {
                return Poll::Ready(());
            }
            let Some(due) = unread.due(&reader) else { return Poll::Pending };
            let alarm = alarm.get_or_insert_with(|| Alarm::at(due));
            // One that is early is moved when it fires.
            if alarm.deadline() > due || alarm.is_elapsed() {
                alarm.reset(due);
            }
            if alarm.poll(cx).is_pending() {
                return Poll::Pending;
            }
            if Instant::now() >= due {
                reader.unread.store(true, Ordering::Relaxed);
                return Poll::Ready(());
            }
        }
    })
    .await;
}

#[cfg(test)]
mod tests {
    use http_body::Body as _;
    use http_body_util::BodyExt;

    use super::*;

    const LIMIT: Duration = Duration::from_secs(60);

    fn reader() -> Arc<Reader> {
        Arc::new(Reader::new(Arc::new(Activity::new(Instant::now()))))
    }

    /// A stream that has given out a piece of a long body, and waits for ever to send it.
    async fn blocked(mut body: ReadBody) {
        assert!(body.frame().await.is_some());
        std::future::pending::<()>().await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_stream_that_nobody_reads_ends_by_the_earlier_of_its_times() {
        for (deadline, ends) in [(None, 60), (Some(600), 60), (Some(8), 9), (Some(60), 60)] {
            let (began, reader) = (Instant::now(), reader());
            if let Some(deadline) = deadline {
                reader.ends_at(began + Duration::from_secs(deadline));
            }
            let body = Active::new(reader.clone()).answer(Body::from("a piece"), true);
            while_read(blocked(body), reader.clone(), LIMIT).await;
            assert_eq!(began.elapsed().as_secs(), ends, "deadline {deadline:?}");
            assert!(reader.is_unread() && !reader.connection.is_unread());
            assert_eq!(reader.connection.idle_since(), Some(Instant::now()), "the answer is gone");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_stream_that_is_read_has_all_the_time_it_takes() {
        let (began, reader) = (Instant::now(), reader());
        let mut body = Active::new(reader.clone()).answer(Body::from(vec![0; 10 * PIECE]), true);
        let read = async move {
            while body.frame().await.is_some() {
                tokio::time::sleep(LIMIT - Duration::from_secs(1)).await;
                // The provider has no more for now, and its caller waits.
                body.active.0.state.store(CAUGHT_UP, Ordering::Relaxed);
                tokio::time::sleep(10 * LIMIT).await;
            }
        };
        reader.ends_at(began + 100 * LIMIT);
        while_read(read, reader.clone(), LIMIT).await;
        assert!(!reader.is_unread() && began.elapsed() > 100 * LIMIT);
    }

    #[tokio::test(start_paused = true)]
    async fn the_end_of_a_request_is_when_a_connection_becomes_idle() {
        let activity = Arc::new(Activity::new(Instant::now()));
        let reader = Arc::new(Reader::new(activity.clone()));
        activity.received();
        assert!(activity.in_head());
        let (first, second) = (Active::new(reader.clone()), Active::new(reader));
        assert!(!activity.in_head() && activity.idle_since().is_none());
        tokio::time::advance(LIMIT).await;
        drop(first);
        assert_eq!(activity.idle_since(), None);
        activity.set_blocked(true);
        drop(second);
        assert_eq!(activity.idle_since(), None, "its answer is still on its way");
        tokio::time::advance(LIMIT).await;
        activity.set_blocked(false);
        assert_eq!(activity.idle_since(), Some(Instant::now()));
    }

    #[tokio::test]
    async fn a_stream_of_http2_is_given_pieces() {
        for (pieces, expected) in [(true, &[PIECE, PIECE, 5][..]), (false, &[2 * PIECE + 5])] {
            let body = Body::from(vec![7; 2 * PIECE + 5]);
            let mut body = Active::new(reader()).answer(body, pieces);
            let mut left = 2 * PIECE + 5;
            for (n, size) in expected.iter().enumerate() {
                assert_eq!(body.size_hint().exact(), Some(left as u64));
                assert!(!body.is_end_stream());
                let piece = body.frame().await.unwrap().unwrap().into_data().unwrap();
                assert_eq!((n, piece.len()), (n, *size));
                left -= size;
            }
            assert!(body.is_end_stream() && body.frame().await.is_none());
        }
    }
}
