//! Accepting connections, and closing them well.

use std::{
    convert::Infallible,
    io,
    net::SocketAddr,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use axum::response::Response;
use hyper::{
    body::Incoming,
    server::conn::{http1, http2},
};
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use steadfast_core::BoxError;
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf},
    net::{TcpListener, TcpStream},
    sync::watch,
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
    // Connections hold a receiver each.
    let (stop, _) = watch::channel(());
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
        let service = TowerToHyperService::new(service);
        let connection = connection(no_delay(stream), service, stop.subscribe());
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                // A client that went away is its own business.
                tracing::debug!(name: "steadfast::gateway::connection_ended", target: "steadfast::gateway", %remote, %error, "a connection ended badly");
            }
        });
    }
    drop(listener);
    tracing::info!(name: "steadfast::gateway::draining", target: "steadfast::gateway", open = stop.receiver_count(), grace_s = grace.as_secs(), "waiting for the answers under way");
    // Nobody listens any more when all have ended.
    let _ = stop.send(());
    let cut = tokio::select! {
        () = stop.closed() => 0,
        () = tokio::time::sleep(grace) => stop.receiver_count(),
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

/// What a client of HTTP/2 says first.
const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Serves one connection in the HTTP that its client speaks, which it has to say within
/// [`HEADER_TIMEOUT`]: until then, the timers of neither run. When it is `stopped`, what is under way
/// is the last.
///
/// hyper-util's own way of telling them apart puts the beginning of a connection before the rest in
/// such a way that hyper takes twice the memory to read it, and keeps that.
async fn connection<S>(
    stream: TcpStream,
    service: S,
    mut stopped: watch::Receiver<()>,
) -> Result<(), BoxError>
where
    S: hyper::service::Service<http::Request<Incoming>, Response = Response> + Send + 'static,
    S::Error: Into<BoxError>,
    S::Future: Send + 'static,
{
    let greeted = tokio::select! {
        greeted = tokio::time::timeout(HEADER_TIMEOUT, Greeted::of(stream)) => greeted??,
        _ = stopped.changed() => return Ok(()),
    };
    let newer = greeted.speaks_http2();
    let io = TokioIo::new(greeted);
    // Boxed: this future keeps the room that was needed on the way there.
    if newer {
        let mut connection = Box::pin(
            http2::Builder::new(TokioExecutor::new())
                .timer(TokioTimer::new())
                .keep_alive_interval(PING.0)
                .keep_alive_timeout(PING.1)
                .serve_connection(io, service),
        );
        tokio::select! {
            biased;
            ended = &mut connection => return Ok(ended?),
            _ = stopped.changed() => connection.as_mut().graceful_shutdown(),
        }
        return Ok(connection.await?);
    }
    let mut connection = Box::pin(
        http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEADER_TIMEOUT)
            .serve_connection(io, service),
    );
    tokio::select! {
        biased;
        ended = &mut connection => return Ok(ended?),
        _ = stopped.changed() => connection.as_mut().graceful_shutdown(),
    }
    Ok(connection.await?)
}

/// A connection whose client has said something.
struct Greeted {
    stream: TcpStream,
    /// What it has said.
    said: [u8; PREFACE.len()],
    /// How much of that there is.
    len: usize,
    /// How much of that has been passed on.
    passed: usize,
}

impl Greeted {
    /// Waits for as much as shows which HTTP the client speaks.
    async fn of(mut stream: TcpStream) -> io::Result<Self> {
        let (mut said, mut len) = ([0; PREFACE.len()], 0);
        while len < said.len() && PREFACE.starts_with(&said[..len]) {
            match stream.read(&mut said[len..]).await? {
                0 => break,
                more => len += more,
            }
        }
        Ok(Self { stream, said, len, passed: 0 })
    }

    fn speaks_http2(&self) -> bool {
        self.said[..self.len] == PREFACE[..]
    }
}

impl AsyncRead for Greeted {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if this.passed == this.len {
            return Pin::new(&mut this.stream).poll_read(cx, buf);
        }
        let to = this.len.min(this.passed + buf.remaining());
        buf.put_slice(&this.said[this.passed..to]);
        this.passed = to;
        if buf.remaining() > 0 {
            // More has come with it, as a rule; the same memory takes both. What can not be read now
            // can not be the next time.
            let _ = Pin::new(&mut this.stream).poll_read(cx, buf);
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Greeted {
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
