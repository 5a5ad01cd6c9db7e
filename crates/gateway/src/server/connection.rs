//! One connection, from its first byte to its last: the requests on it, and the times it has.

use std::{
    convert::Infallible,
    net::SocketAddr,
    pin::{Pin, pin},
    sync::Arc,
    task::Poll,
    time::Duration,
};

use axum::Router;
use http::{Request, StatusCode, header};
use hyper::{body::Incoming, service::service_fn};
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    server::conn::auto,
};
use parking_lot::Mutex;
use steadfast_core::{
    BoxError,
    time::{Alarm, later},
};
use tokio::{net::TcpStream, sync::watch, time::Instant};
use tower::Service as _;

use super::{
    crowded, head, malformed,
    reader::{Active, Activity, Reader, Streams, Unread},
    socket::Socket,
    version,
};
use crate::{
    admission::{Admission, Limits},
    config::ServerConfig,
};

/// How long a client may take to send its headers: 30 s, longer than any honest one needs, short
/// enough that slow ones can not hold every connection.
const HEADER_TIMEOUT: Duration = Duration::from_secs(30);

/// How often a silent HTTP/2 connection is asked whether it is alive, and how long the answer may
/// take: a client that vanished must not hold its streams until the network notices.
const PING: (Duration, Duration) = (Duration::from_secs(30), Duration::from_secs(10));

/// How much may be on its way to a caller that has not been sent, 128 KiB: what else a caller does not read waits
/// at the provider, and not in the system's memory, which would take megabytes for each.
#[cfg(target_os = "linux")]
const UNSENT: u32 = 128 * 1024;

/// How many streams a connection may have at once, 128: more than an agent has calls in flight, and common among
/// servers.
const STREAMS: u32 = 128;

/// How long a connection that is one more than there may be can take to send a request: 1 s.
const CROWDED_IDLE: Duration = Duration::from_secs(1);

/// How many connections there may be and how long they may do nothing; the keys of `[server]` by the same names.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ConnectionLimits {
    /// How many there may be whose requests are answered.
    pub max_connections: usize,
    /// How long a caller may take not a byte of an answer.
    pub send_timeout: Duration,
    /// How long a connection is kept without a request.
    pub idle_timeout: Duration,
    /// How old a connection may become, give or take a tenth.
    pub max_connection_age: Option<Duration>,
    /// Counts them.
    pub(super) admission: Admission,
}

impl ConnectionLimits {
    pub(super) fn new(server: &ServerConfig, admission: Admission) -> Self {
        Self {
            max_connections: server.max_connections,
            send_timeout: server.send_timeout,
            idle_timeout: server.idle_timeout,
            max_connection_age: server.max_connection_age,
            admission,
        }
    }

    /// Those of a connection that is one more than there may be: it is refused, and does not last.
    pub(super) fn crowded(&self) -> Self {
        let idle_timeout = self.idle_timeout.min(CROWDED_IDLE);
        Self { idle_timeout, ..self.clone() }
    }

    /// How long a connection goes on at most without its times being looked into.
    fn checked(&self) -> Duration {
        self.idle_timeout.min(self.send_timeout)
    }
}

/// What a connection goes on with once it is no HTTP any more: in the extensions of its requests.
#[derive(Clone, Default)]
pub(super) struct Successor(Arc<Mutex<Option<Then>>>);

/// Runs until one side has enough, or shortly after somebody stops it.
type Then = Box<dyn FnOnce(watch::Receiver<()>) -> BoxFuture + Send>;

type BoxFuture = Pin<Box<dyn Future<Output = ()> + Send>>;

impl Successor {
    pub(super) fn set(&self, next: impl FnOnce(watch::Receiver<()>) -> BoxFuture + Send + 'static) {
        *self.0.lock() = Some(Box::new(next));
    }
}

impl Default for ConnectionLimits {
    fn default() -> Self {
        let server = ServerConfig::default();
        Self::new(&server, Admission::new(Limits::of(&server, 0)))
    }
}

/// Where a request came from, and how far its caller is with the answer: in its extensions.
#[derive(Clone, Debug)]
pub struct Peer {
    /// The caller's address.
    pub remote: SocketAddr,
    pub(super) reader: Arc<Reader>,
}

impl Peer {
    /// Of one more request of it, whose answer is read by itself.
    pub(super) fn anew(&self) -> Self {
        Self { remote: self.remote, reader: Arc::new(self.reader.another()) }
    }
}

/// Serves one connection, or refuses it what it asks where it `is_crowded`. When it is `stopped`, what is in
/// progress is the last.
pub(super) async fn serve(
    stream: TcpStream,
    remote: SocketAddr,
    router: Router,
    limits: ConnectionLimits,
    is_crowded: bool,
    mut stopped: watch::Receiver<()>,
) -> Result<(), BoxError> {
    let born = Instant::now();
    let limits = if is_crowded { limits.crowded() } else { limits };
    // Small writes must not wait for each other: a piece of a stream is one.
    stream.set_nodelay(true)?;
    // What does not know the option holds more.
    #[cfg(target_os = "linux")]
    let _ = socket2::SockRef::from(&stream).set_tcp_notsent_lowat(UNSENT);
    let silence = HEADER_TIMEOUT.min(limits.idle_timeout);
    let is_http2 = tokio::select! {
        is_http2 = tokio::time::timeout(silence, version::is_http2(&stream)) => is_http2??,
        _ = stopped.changed() => return Ok(()),
    };
    let activity = Arc::new(Activity::new(born));
    let reader = Arc::new(Reader::new(activity.clone()));
    let streams = Streams::new(limits.send_timeout);
    let mut server = auto::Builder::new(streams.clone());
    // A head has its limit below: hyper's would end an idle connection.
    server.http1().header_read_timeout(None);
    let mut http2 = server.http2();
    http2.timer(TokioTimer::new()).keep_alive_interval(PING.0).keep_alive_timeout(PING.1);
    http2.max_concurrent_streams(STREAMS);
    let server = if is_http2 { server.http2_only() } else { server.http1_only() };

    let successor = Successor::default();
    let service = service_fn({
        let (activity, reader) = (activity.clone(), reader.clone());
        let successor = successor.clone();
        let crowd = is_crowded.then(|| limits.admission.clone());
        move |mut request: Request<Incoming>| {
            let reader = if is_http2 {
                let reader = Arc::new(Reader::new(activity.clone()));
                streams.expect(reader.clone());
                reader
            } else {
                reader.clone()
            };
            let (activity, active) = (activity.clone(), Active::new(reader.clone()));
            let (headers, uri) = (request.headers(), request.uri());
            let refused = match head::check(headers, uri) {
                Ok(()) => crowd.as_ref().and_then(|full| crowded(full, headers, uri)),
                Err(problem) => Some(malformed(problem, headers, uri)),
            };
            let answer = match refused {
                None => {
                    request.extensions_mut().insert(Peer { remote, reader });
                    if !is_http2 {
                        request.extensions_mut().insert(successor.clone());
                    }
                    Ok(router.clone().call(request))
                }
                Some(refused) => Err(refused),
            };
            async move {
                let response = match answer {
                    Ok(response) => response.await.unwrap_or_else(|never| match never {}),
                    Err(refused) => refused,
                };
                let goes_on = response.status() == StatusCode::SWITCHING_PROTOCOLS;
                if response.headers().contains_key(header::CONNECTION) && !goes_on {
                    activity.linger();
                }
                Ok::<_, Infallible>(response.map(|body| active.answer(body, is_http2)))
            }
        }
    });
    let socket = Socket::new(stream, activity.clone(), limits.send_timeout);
    // Boxed: this future keeps the room that the detection needed.
    let mut connection =
        Box::pin(server.serve_connection_with_upgrades(TokioIo::new(socket), service));

    let mut times = Times {
        closes_at: limits.max_connection_age.map(|age| later(born, about(age))),
        ..Times::default()
    };
    let mut unread = Unread::new(None);
    let checked = later(born, limits.checked());
    let mut alarm = Alarm::at(times.closes_at.map_or(checked, |closes| closes.min(checked)));
    // Whether it was closing when it ended as one of HTTP.
    let is_closing = {
        let mut stop = pin!(stopped.changed());
        let http = std::future::poll_fn(move |cx| {
            loop {
                if let Poll::Ready(ended) = connection.as_mut().poll(cx) {
                    return Poll::Ready(ended.map(|()| times.closing_since.is_some()));
                }
                if times.closing_since.is_none() && stop.as_mut().poll(cx).is_ready() {
                    connection.as_mut().graceful_shutdown();
                    times.closing_since = Some(Instant::now());
                    continue;
                }
                if is_http2 || !activity.in_head() {
                    times.head_since = None;
                } else if times.head_since.is_none() {
                    times.head_since = Some(Instant::now());
                }
                times.unread_at = unread.due(&reader);
                if let Some(due) = times.early()
                    && due < alarm.deadline()
                {
                    alarm.reset(due);
                }
                if alarm.poll(cx).is_pending() {
                    return Poll::Pending;
                }
                let now = Instant::now();
                times.idle_since = activity.idle_since();
                match times.next(&limits, now) {
                    Next::Wait(until) => alarm.reset(until),
                    Next::Close => {
                        connection.as_mut().graceful_shutdown();
                        times.closing_since = Some(now);
                        alarm.reset(later(now, limits.checked()));
                    }
                    Next::Drop => return Poll::Ready(Ok(true)),
                    Next::Reset => {
                        activity.end_unread();
                        return Poll::Ready(Err(
                            "the caller did not read until the call's end".into()
                        ));
                    }
                }
            }
        });
        http.await?
    };
    let next = successor.0.lock().take();
    if let Some(next) = next {
        if is_closing {
            stopped.mark_changed();
        }
        next(stopped).await;
    }
    Ok(())
}

/// `age`, give or take a tenth: connections that were opened together are not closed together.
fn about(age: Duration) -> Duration {
    age.mul_f64(0.9 + 0.2 * fastrand::f64())
}

/// Since when a connection does what it does.
#[derive(Clone, Copy, Debug, Default)]
struct Times {
    /// Nothing is under way.
    idle_since: Option<Instant>,
    /// A part of a head has come.
    head_since: Option<Instant>,
    /// It takes no more requests.
    closing_since: Option<Instant>,
    /// It is old enough then.
    closes_at: Option<Instant>,
    /// The call whose answer is not read ends then.
    unread_at: Option<Instant>,
}

/// What is to be done with a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    /// Nothing until then.
    Wait(Instant),
    /// To be closed when what is under way has ended.
    Close,
    /// To be closed.
    Drop,
    /// To be closed with what has not been read.
    Reset,
}

impl Times {
    /// What may be due before it is looked into again.
    fn early(&self) -> Option<Instant> {
        let head = self.head_since.map(|since| later(since, HEADER_TIMEOUT));
        head.into_iter().chain(self.unread_at).min()
    }

    fn next(&self, limits: &ConnectionLimits, now: Instant) -> Next {
        let passed = |at: Option<Instant>| at.is_some_and(|at| at <= now);
        let idle_for = |wait: Duration| self.idle_since.map(|since| later(since, wait));
        let head = self.head_since.map(|since| later(since, HEADER_TIMEOUT));
        let (close, end) = match self.closing_since {
            None => (idle_for(limits.idle_timeout).into_iter().chain(self.closes_at).min(), None),
            // The other side has as long to close as it has to read.
            Some(since) => {
                let end = idle_for(limits.send_timeout);
                (None, end.map(|end| end.max(later(since, limits.send_timeout))))
            }
        };
        if passed(self.unread_at) {
            Next::Reset
        } else if passed(head) || passed(end) {
            Next::Drop
        } else if passed(close) {
            Next::Close
        } else {
            let checked = later(now, limits.checked());
            let due = [self.unread_at, head, end, close].into_iter().flatten().min();
            Next::Wait(due.map_or(checked, |due| due.min(checked)))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn each_wait_of_a_connection_has_its_end() {
        let limits = ConnectionLimits::default();
        let born = Instant::now();
        let at = |secs: u64| born + Duration::from_secs(secs);
        let some = |secs: u64| Some(at(secs));
        let none = Times::default();
        let idle = Times { idle_since: some(100), ..none };
        let head = Times { head_since: some(100), ..idle };
        let old = Times { closes_at: some(100), ..none };
        let closing = Times { closing_since: some(100), ..none };
        let unread = Times { unread_at: some(100), ..none };
        for (times, now, next) in [
            (none, 1_000, Next::Wait(at(1_060))),
            (idle, 174, Next::Wait(at(175))),
            (idle, 175, Next::Close),
            (head, 129, Next::Wait(at(130))),
            (head, 130, Next::Drop),
            // What is under way ends first.
            (old, 99, Next::Wait(at(100))),
            (old, 100, Next::Close),
            (closing, 1_000, Next::Wait(at(1_060))),
            (Times { idle_since: some(50), ..closing }, 159, Next::Wait(at(160))),
            (Times { idle_since: some(50), ..closing }, 160, Next::Drop),
            (Times { idle_since: some(150), ..closing }, 209, Next::Wait(at(210))),
            (Times { idle_since: some(150), closes_at: some(90), ..closing }, 210, Next::Drop),
            (unread, 99, Next::Wait(at(100))),
            (unread, 100, Next::Reset),
            (Times { closing_since: some(1), ..unread }, 100, Next::Reset),
        ] {
            assert_eq!(times.next(&limits, at(now)), next, "{times:?} at {now}");
        }
    }

    #[test]
    fn an_age_varies_by_a_tenth() {
        let (least, most) = (Duration::from_secs(90), Duration::from_secs(110));
        let ages: Vec<_> = (0..100).map(|_| about(Duration::from_secs(100))).collect();
        assert!(ages.iter().all(|age| (least..=most).contains(age)), "{ages:?}");
        assert!(ages.iter().max() > ages.iter().min());
    }
}
