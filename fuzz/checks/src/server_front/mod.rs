//! The server's front, bytes of a connection in and requests out: `mode plan bytes`.
//!
//! The connection is one over loopback, on a paused clock: whatever waits for a time waits for none.

mod http1;
mod http2;

use std::{
    io,
    net::{Ipv4Addr, TcpListener},
    sync::{Arc, LazyLock},
    time::Duration,
};

use axum::{Router, body::Body, extract::Request, response::Response};
use bytes::Bytes;
use http::{HeaderValue, Method, StatusCode, Uri, header};
use http_body_util::BodyExt;
use parking_lot::Mutex;
use steadfast_gateway::server::{ConnectionLimits, serve};
use tokio::{
    io::AsyncWriteExt,
    net::TcpStream,
    sync::oneshot,
    time::{Instant, timeout},
};

use self::{http1::End, http2::FramedBody};
use crate::input::{Input, cut};

/// One for all connections, so that none waits for its port.
static LISTENER: LazyLock<TcpListener> = LazyLock::new(|| {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
    listener.set_nonblocking(true).expect("a socket of tokio's");
    listener
});

/// How often the server's tasks run before time passes.
const TURNS: usize = 8;

/// How much time passes between two pieces.
const STEP: Duration = Duration::from_millis(1);

/// How many pieces a connection's bytes come in at most.
const PIECES: usize = 32;

/// How long the handler waits for a piece of a body, as the gateway does.
const BODY: Duration = Duration::from_secs(30);

/// What all that is possible at once takes no longer than.
const SOON: Duration = Duration::from_secs(1);

/// Until a connection that was refused is closed: the server's linger and some more.
const REFUSED: Duration = Duration::from_secs(5);

/// Until any connection is closed on which nothing comes any more: a body's wait, an idle one, a ping, and
/// the linger.
const CLOSED: Duration = Duration::from_secs(300);

/// The kernel may be late where the clock does not wait for it: what depends on time has so many tries.
const TRIES: usize = 3;

/// What both sides do.
#[derive(Clone, Copy, Debug)]
struct Mode {
    /// Bodies are not read.
    leaves_bodies: bool,
    /// Answers close their connection.
    closes: bool,
    /// The client closes its side when it has sent all.
    half_closes: bool,
    /// The bytes describe frames of HTTP/2.
    frames: bool,
}

impl Mode {
    fn of(byte: u8) -> Self {
        let bit = |n: u8| byte & (1 << n) != 0;
        Self { leaves_bodies: bit(0), closes: bit(1), half_closes: bit(2), frames: bit(3) }
    }
}

/// What a handler was given.
#[derive(Debug)]
struct Received {
    method: Method,
    uri: Uri,
    body: Vec<u8>,
    whole: bool,
}

/// What came of a connection.
#[derive(Debug)]
struct Seen {
    requests: Vec<Received>,
    /// From the last byte sent to the end, which the client did not make.
    closed_after: Duration,
    /// How many connections were left when it had gone.
    left: usize,
}

/// * Each request is one that a strict reader of its own reads at that place, with the same body, as far as
///   both have come: no byte of a body is ever a head.
/// * After what that reader refuses, or a request that is the last one, there is none.
/// * What is plain is received, whole.
/// * HTTP/2: no more requests than frames that begin one; each body is what a stream's frames have.
/// * Every connection is closed: soon where it was refused, in minutes where nothing comes any more.
pub fn run(data: &[u8]) {
    let mut input = Input(data);
    let mode = Mode::of(input.byte());
    let plan = input.byte();
    let bytes = if mode.frames { http2::frames(&mut input) } else { input.rest() };
    let mut late = String::new();
    for _ in 0..TRIES {
        let seen = connection(mode, pieces(&bytes, plan));
        let checked = if bytes.starts_with(http2::PREFACE) {
            check_http2(&bytes, &seen)
        } else {
            check_http1(&bytes, mode, &seen)
        };
        match checked {
            Ok(()) => return,
            Err(problem) => late = problem,
        }
    }
    panic!("{late}");
}

fn pieces(bytes: &Bytes, plan: u8) -> Vec<Bytes> {
    let mut pieces = cut(bytes, plan);
    pieces.truncate(PIECES);
    let sent: usize = pieces.iter().map(Bytes::len).sum();
    pieces.push(bytes.slice(sent..));
    pieces
}

/// # Errors
///
/// With what depends on time and is not as it should be.
fn check_http1(bytes: &[u8], mode: Mode, seen: &Seen) -> Result<(), String> {
    let expected = http1::read(bytes);
    let shown = || format!("{seen:?} of {expected:?}");
    let is_disputed = expected.end == End::Disputed;
    let compared = if is_disputed { expected.requests.len() - 1 } else { usize::MAX };
    for (n, got) in seen.requests.iter().enumerate().take(compared) {
        let Some(wanted) = expected.requests.get(n) else { panic!("one too many: {}", shown()) };
        assert_eq!((&got.method, &got.uri), (&wanted.method, &wanted.uri), "{}", shown());
        let is_same = if got.whole {
            wanted.whole && got.body == wanted.body
        } else {
            wanted.body.starts_with(&got.body)
        };
        assert!(is_same, "another body: {}", shown());
    }
    assert!(!mode.closes || seen.requests.len() <= 1, "after the last answer: {}", shown());

    let plain = expected.requests.iter().take_while(|request| request.plain).count().min(compared);
    let is_read = |n: usize| expected.requests[n].whole == seen.requests[n].whole;
    let all = mode.closes
        || mode.leaves_bodies
        || (seen.requests.len() >= plain && (0..plain).all(is_read));
    let is_refused = matches!(expected.end, End::Refused | End::Closed);
    // Of a part of HTTP/2's preface the rest is waited for.
    let is_refused = is_refused && !http2::PREFACE.starts_with(bytes);
    let soon = !is_refused || seen.closed_after <= REFUSED;
    check(all, "a plain request is missing", shown)?;
    check(soon, "what was refused goes on", shown)?;
    check_end(seen, shown)
}

/// # Errors
///
/// As [`check_http1`]'s.
fn check_http2(bytes: &[u8], seen: &Seen) -> Result<(), String> {
    let frames = http2::count(bytes);
    let shown = || format!("{seen:?} of {frames:?}");
    assert!(seen.requests.len() <= frames.heads, "more requests than heads: {}", shown());
    for request in &seen.requests {
        let is_one = |body: &FramedBody| body.can_be(&request.body, request.whole);
        assert!(frames.bodies.values().any(is_one), "a body of no stream: {}", shown());
    }
    check_end(seen, shown)
}

fn check_end(seen: &Seen, shown: impl Fn() -> String) -> Result<(), String> {
    check(seen.closed_after <= CLOSED, "it stays open", &shown)?;
    check(seen.left == 0, "it outlives its client", shown)
}

fn check(holds: bool, problem: &str, shown: impl Fn() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(format!("{problem}: {}", shown())) }
}

/// Serves one connection, on which `pieces` come.
fn connection(mode: Mode, pieces: Vec<Bytes>) -> Seen {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    // Sockets are asked at each turn.
    let runtime = runtime.enable_all().event_interval(1).start_paused(true).build();
    runtime.expect("a runtime").block_on(async move {
        let received = Arc::new(Mutex::new(Vec::new()));
        let requests = received.clone();
        let router =
            Router::new().fallback(move |request| receive(mode, requests.clone(), request));
        let listener = LISTENER.try_clone().expect("a descriptor");
        let listener = tokio::net::TcpListener::from_std(listener).expect("a listener");
        let address = listener.local_addr().expect("its address");
        let stream = std::net::TcpStream::connect(address).expect("a connection");
        stream.set_nonblocking(true).expect("a socket of tokio's");
        let stream = TcpStream::from_std(stream).expect("a stream");
        let (closed, is_closed) = oneshot::channel();
        let (gone, is_gone) = oneshot::channel();
        let client = async move {
            let _ = closed.send(send(stream, mode, pieces).await);
            turns().await;
            let _ = gone.send(());
            loop {
                pass(SOON / 10).await;
            }
        };
        let shutdown = async move { drop(is_gone.await) };
        let server = serve(listener, router, ConnectionLimits::default(), shutdown, SOON);
        let left = tokio::select! {
            left = server => left.expect("a server"),
            () = client => unreachable!("it goes on without end"),
        };
        let closed_after = is_closed.await.expect("the client has gone");
        let requests = std::mem::take(&mut *received.lock());
        Seen { requests, closed_after, left }
    })
}

/// Sends all, and waits until the server ends the connection; for how long.
async fn send(mut stream: TcpStream, mode: Mode, pieces: Vec<Bytes>) -> Duration {
    // Its port is free at once, and no piece waits for another.
    let _ = stream.set_zero_linger();
    let _ = stream.set_nodelay(true);
    for mut piece in pieces {
        while !piece.is_empty() && !is_at_end(&stream) {
            match stream.try_write(&piece) {
                Ok(sent) => drop(piece.split_to(sent)),
                Err(_) => turns().await,
            }
        }
        pass(STEP).await;
    }
    let sent = Instant::now();
    // What has come whole is answered before: a server need not answer who has gone.
    while sent.elapsed() < 20 * STEP {
        pass(STEP).await;
    }
    if mode.half_closes {
        let _ = stream.shutdown().await;
    }
    while !is_at_end(&stream) && sent.elapsed() <= CLOSED {
        pass(if sent.elapsed() < REFUSED { SOON } else { REFUSED }).await;
    }
    sent.elapsed()
}

/// Whether the server has ended the connection. Reads what it has sent.
fn is_at_end(stream: &TcpStream) -> bool {
    let mut room = [0; 4 * 1024];
    loop {
        match stream.try_read(&mut room) {
            Ok(1..) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return false,
            Ok(_) | Err(_) => return true,
        }
    }
}

/// Lets the other side do what it can, and then some time pass.
///
/// Nobody waits for a timer here: a paused clock goes on by itself as soon as all wait, for sockets too.
async fn pass(time: Duration) {
    turns().await;
    tokio::time::advance(time).await;
}

async fn turns() {
    for _ in 0..TURNS {
        tokio::task::yield_now().await;
    }
}

/// Answers a request, and writes down what it was.
async fn receive(mode: Mode, received: Arc<Mutex<Vec<Received>>>, request: Request) -> Response {
    let (parts, mut body) = request.into_parts();
    let status = if parts.method == Method::CONNECT {
        StatusCode::METHOD_NOT_ALLOWED
    } else {
        StatusCode::OK
    };
    let at = {
        let mut all = received.lock();
        let (method, uri) = (parts.method, parts.uri);
        all.push(Received { method, uri, body: Vec::new(), whole: false });
        all.len() - 1
    };
    let with = |change: &dyn Fn(&mut Received)| {
        let mut all = received.lock();
        all.get_mut(at).map(change);
    };
    let mut is_read = !mode.leaves_bodies;
    while is_read {
        match timeout(BODY, body.frame()).await {
            Ok(Some(Ok(frame))) => {
                if let Ok(data) = frame.into_data() {
                    with(&|request| request.body.extend_from_slice(&data));
                }
            }
            Ok(None) => {
                with(&|request| request.whole = true);
                break;
            }
            Ok(Some(Err(_))) | Err(_) => is_read = false,
        }
    }
    let mut response = Response::new(Body::from("ok"));
    *response.status_mut() = status;
    if mode.closes || !(is_read || mode.leaves_bodies) {
        response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    response
}
