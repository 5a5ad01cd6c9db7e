//! Accepting connections, and closing them well.

use std::{
    convert::Infallible,
    io,
    net::SocketAddr,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use axum::response::Response;
use hyper::body::Incoming;
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::{conn::auto::Builder, graceful::GracefulShutdown},
    service::TowerToHyperService,
};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpListener, TcpStream},
    time::Sleep,
};
use tower::{Service, ServiceExt};

/// How long a client may take to send its headers: 30 s, longer than any honest one needs, short
/// enough that slow ones can not hold every connection.
const HEADER_TIMEOUT: Duration = Duration::from_secs(30);

/// How often a silent HTTP/2 connection is asked whether it is alive, and how long the answer may
/// take: a client that vanished must not hold its streams until the network notices.
const PING: (Duration, Duration) = (Duration::from_secs(30), Duration::from_secs(10));

/// Wait after `accept` failed, which means the process is out of file descriptors: the connections
/// it has must end first.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Where a connection came from: in the extensions of all requests that it is asked of, which chats
/// are not.
#[derive(Clone, Copy, Debug)]
pub struct Peer {
    /// The caller's address.
    pub remote: SocketAddr,
}

/// Serves `service`, such as [`App::service`](super::App::service) or a router, on `listener` until `shutdown` is ready, then waits up to `grace` for the
/// answers under way. Returns how many connections had to be cut.
///
/// # Errors
///
/// None so far: a connection that breaks ends alone, and accepting goes on.
pub async fn serve<S>(
    listener: TcpListener,
    service: S,
    shutdown: impl Future<Output = ()>,
    grace: Duration,
) -> io::Result<usize>
where
    S: Service<http::Request<Incoming>, Response = Response, Error = Infallible>,
    S: Clone + Send + 'static,
    S::Future: Send + 'static,
{
    let mut builder = Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(HEADER_TIMEOUT);
    builder.http2().timer(TokioTimer::new()).keep_alive_interval(PING.0).keep_alive_timeout(PING.1);
    let graceful = GracefulShutdown::new();
    // Held once by each connection.
    let open = Arc::new(());
    let mut shutdown = std::pin::pin!(shutdown);
    loop {
        let (stream, remote) = tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    tracing::warn!(name: "steadfast::gateway::accept_failed", target: "steadfast::gateway", %error, "a connection could not be accepted");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            },
            () = &mut shutdown => break,
        };
        let service = service.clone().map_request(move |mut request: http::Request<Incoming>| {
            // Extensions take memory of their own, and most requests are chats.
            if super::front::chat_of(&request).is_none() {
                request.extensions_mut().insert(Peer { remote });
            }
            request
        });
        let connection = builder
            .serve_connection(
                TokioIo::new(Greeting::of(no_delay(stream))),
                TowerToHyperService::new(service),
            )
            .into_owned();
        let connection = graceful.watch(connection);
        let held = open.clone();
        tokio::spawn(async move {
            let _held = held;
            if let Err(error) = connection.await {
                // A client that went away is its own business.
                tracing::debug!(name: "steadfast::gateway::connection_ended", target: "steadfast::gateway", %remote, %error, "a connection ended badly");
            }
        });
    }
    drop(listener);
    tracing::info!(name: "steadfast::gateway::draining", target: "steadfast::gateway", open = graceful.count(), grace_s = grace.as_secs(), "waiting for the answers under way");
    let cut = tokio::select! {
        () = graceful.shutdown() => 0,
        () = tokio::time::sleep(grace) => Arc::strong_count(&open) - 1,
    };
    Ok(cut)
}

/// Small writes must not wait for each other: a token is a small write.
fn no_delay(stream: TcpStream) -> TcpStream {
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(name: "steadfast::gateway::nodelay_failed", target: "steadfast::gateway", %error, "small writes may be delayed");
    }
    stream
}

/// What a client of HTTP/2 says first; until it can be told from HTTP/1, the timers of neither run.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// A connection whose client has to say which HTTP it speaks within [`HEADER_TIMEOUT`]. Else one
/// that says nothing would stay for ever.
struct Greeting {
    stream: TcpStream,
    /// How much of [`PREFACE`] has come.
    seen: usize,
    /// `None` once it is known what the client speaks.
    patience: Option<Pin<Box<Sleep>>>,
}

impl Greeting {
    fn of(stream: TcpStream) -> Self {
        let patience = Some(Box::pin(tokio::time::sleep(HEADER_TIMEOUT)));
        Self { stream, seen: 0, patience }
    }
}

impl AsyncRead for Greeting {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let before = buf.filled().len();
        let read = Pin::new(&mut this.stream).poll_read(cx, buf);
        if let Some(patience) = &mut this.patience {
            let new = buf.filled().get(before..).unwrap_or_default();
            let wanted = PREFACE.get(this.seen..).unwrap_or_default();
            if new.iter().zip(wanted).any(|(a, b)| a != b) || new.len() >= wanted.len() {
                this.patience = None;
            } else {
                this.seen += new.len();
                if read.is_pending() && patience.as_mut().poll(cx).is_ready() {
                    return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
                }
            }
        }
        read
    }
}

impl AsyncWrite for Greeting {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
