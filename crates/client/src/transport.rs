//! The default transport: hyper with rustls.

use std::{
    fmt,
    future::Future,
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use http::{Request, Response, Uri};
use hyper::{
    body::Incoming,
    rt::{Read, ReadBufCursor, Write},
};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder, MaybeHttpsStream};
use hyper_util::{
    client::legacy::{
        self, Client,
        connect::{Connected, Connection, HttpConnector},
    },
    rt::TokioTimer,
};
use pin_project_lite::pin_project;
use steadfast_core::BoxError;
use tokio::time::{Sleep, sleep};
use tower_service::Service;

use crate::{
    ClientBody, LlmClient, Providers,
    drive::{Link, Spawn},
};

/// How long a connection may take until it can be used, name, TCP and TLS together: 10 s. Ten
/// times what the slowest good path takes; the vendors' SDKs wait 5 to 10.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// How long an idle connection is kept: 60 s, less than the minute and more after which load
/// balancers in front of providers close theirs, which would be noticed by a failed request only.
pub const POOL_IDLE_TIMEOUT: Duration = Duration::from_secs(60);

/// How many idle connections are kept for each host: 256. Over HTTP/1.1 each call has one for itself, so
/// that fewer than a busy gateway has calls under way would be closed and opened again all the time; with
/// HTTP/2 it is one. An idle one holds some 20 KB for at most a minute.
pub const POOL_MAX_IDLE: usize = 256;

/// The most header lines read of an HTTP/1 response: 100, hyper's own number, for which alone it has
/// room without asking for memory at each response. Providers send about 40.
pub const MAX_HEADERS: usize = 100;

/// The most header bytes read of a response: 64 KiB, HTTP/1 and HTTP/2 alike.
pub const MAX_HEADER_BYTES: usize = 64 * 1024;

/// How often a silent HTTP/2 connection is asked whether it is alive: every 30 s, so that one that
/// died unnoticed does not hold its streams until their stall limit.
pub const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(30);

/// How long the answer to that may take: 10 s.
pub const KEEP_ALIVE_TIMEOUT: Duration = Duration::from_secs(10);

/// HTTP/1.1 and HTTP/2 over TCP, with TLS by rustls and Mozilla's roots for `https`. HTTP/2 is used
/// where the server offers it. Connections are pooled; clones share the pool.
#[derive(Clone)]
pub struct Transport(Arc<Pool>);

/// Half a kilobyte of settings, behind a pointer: each call clones its way to them several times.
type Pool = Client<ConnectTimeout<HttpsConnector<HttpConnector>>, ClientBody>;

impl Transport {
    /// A transport with the numbers of this module.
    ///
    /// # Panics
    ///
    /// Never: the TLS versions asked for are those the crypto provider was built with.
    #[expect(clippy::expect_used, reason = "the message proves that it can not happen")]
    pub fn new() -> Self {
        let mut tcp = HttpConnector::new();
        tcp.set_nodelay(true);
        tcp.set_connect_timeout(Some(CONNECT_TIMEOUT));
        tcp.set_keepalive(Some(KEEP_ALIVE_INTERVAL));
        // `https` is the next connector's.
        tcp.enforce_http(false);
        let tls = HttpsConnectorBuilder::new()
            .with_provider_and_webpki_roots(Arc::new(rustls::crypto::ring::default_provider()))
            .expect("ring, built with TLS 1.2 and 1.3, supports the default versions")
            .https_or_http()
            .enable_all_versions()
            .wrap_connector(tcp);
        let client = Client::builder(Spawn)
            .timer(TokioTimer::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(POOL_IDLE_TIMEOUT)
            .pool_max_idle_per_host(POOL_MAX_IDLE)
            .http1_max_buf_size(MAX_HEADER_BYTES)
            .http2_max_header_list_size(MAX_HEADER_BYTES as u32)
            .http2_adaptive_window(true)
            .http2_keep_alive_interval(KEEP_ALIVE_INTERVAL)
            .http2_keep_alive_timeout(KEEP_ALIVE_TIMEOUT)
            .build(ConnectTimeout(tls));
        Self(Arc::new(client))
    }
}

impl Default for Transport {
    fn default() -> Self {
        Self::new()
    }
}

impl Service<Request<ClientBody>> for Transport {
    type Response = Response<Incoming>;
    type Error = legacy::Error;
    type Future = legacy::ResponseFuture;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Service::poll_ready(&mut &*self.0, cx)
    }

    fn call(&mut self, request: Request<ClientBody>) -> Self::Future {
        Service::call(&mut &*self.0, request)
    }
}

impl fmt::Debug for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Transport").finish_non_exhaustive()
    }
}

impl LlmClient<Transport> {
    /// A client over the network.
    pub fn new(providers: Providers) -> Self {
        Self::with_service(providers, Transport::new())
    }
}

/// Connects within [`CONNECT_TIMEOUT`], the TLS handshake included.
#[derive(Clone)]
struct ConnectTimeout<C>(C);

impl<C, T> Service<Uri> for ConnectTimeout<C>
where
    C: Service<Uri, Response = MaybeHttpsStream<T>>,
    C::Error: Into<BoxError>,
{
    type Response = Linked<T>;
    type Error = BoxError;
    type Future = Connecting<C::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.0.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        Connecting { connecting: self.0.call(uri), limit: Box::pin(sleep(CONNECT_TIMEOUT)) }
    }
}

pin_project! {
    struct Connecting<F> {
        #[pin]
        connecting: F,
        // Boxed: hyper wants the whole to be `Unpin`, and connecting is the slow path.
        limit: Pin<Box<Sleep>>,
    }
}

impl<F, T, E> Future for Connecting<F>
where
    F: Future<Output = Result<MaybeHttpsStream<T>, E>>,
    E: Into<BoxError>,
{
    type Output = Result<Linked<T>, BoxError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        if let Poll::Ready(connected) = this.connecting.poll(cx) {
            return Poll::Ready(connected.map(Linked::of).map_err(Into::into));
        }
        this.limit.as_mut().poll(cx).map(|()| {
            let message = format!("no connection within {} s", CONNECT_TIMEOUT.as_secs());
            Err(io::Error::new(io::ErrorKind::TimedOut, message).into())
        })
    }
}

/// A stream that finds the connection it is read by, so that its answers can move that on.
struct Linked<T> {
    stream: Stream<T>,
    link: Link,
}

/// Without TLS there is no need for the kilobyte that its state takes.
enum Stream<T> {
    Plain(T),
    Tls(Box<MaybeHttpsStream<T>>),
}

impl<T> Linked<T> {
    fn of(stream: MaybeHttpsStream<T>) -> Self {
        let stream = match stream {
            MaybeHttpsStream::Http(stream) => Stream::Plain(stream),
            tls => Stream::Tls(Box::new(tls)),
        };
        Self { stream, link: Link::default() }
    }
}

impl<T> Connection for Linked<T>
where
    T: Connection + Read + Write + Unpin,
{
    fn connected(&self) -> Connected {
        let connected = match &self.stream {
            Stream::Plain(stream) => stream.connected(),
            Stream::Tls(stream) => stream.connected(),
        };
        connected.extra(self.link.clone())
    }
}

impl<T: Read + Write + Unpin> Read for Linked<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        self.link.find();
        match &mut self.stream {
            Stream::Plain(stream) => Pin::new(stream).poll_read(cx, buf),
            Stream::Tls(stream) => Pin::new(stream).poll_read(cx, buf),
        }
    }
}

impl<T: Read + Write + Unpin> Write for Linked<T> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        match &mut self.stream {
            Stream::Plain(stream) => Pin::new(stream).poll_write(cx, buf),
            Stream::Tls(stream) => Pin::new(stream).poll_write(cx, buf),
        }
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match &mut self.stream {
            Stream::Plain(stream) => Pin::new(stream).poll_write_vectored(cx, bufs),
            Stream::Tls(stream) => Pin::new(stream).poll_write_vectored(cx, bufs),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match &self.stream {
            Stream::Plain(stream) => stream.is_write_vectored(),
            Stream::Tls(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.stream {
            Stream::Plain(stream) => Pin::new(stream).poll_flush(cx),
            Stream::Tls(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.stream {
            Stream::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
            Stream::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}
