//! The default transport: hyper, with rustls where the feature `tls` is on.

use std::{
    fmt,
    future::Future,
    io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use http::{Request, Response, Uri, uri::Scheme};
use hyper::{
    body::Incoming,
    rt::{Read, ReadBufCursor, Write},
};
use hyper_util::{
    client::legacy::{
        self, Client,
        connect::{Connected, Connection, HttpConnector},
    },
    rt::TokioTimer,
};
use steadfast_core::BoxError;
use tokio::time::timeout;
use tower_service::Service;

use crate::{
    ClientBody, LlmClient, Providers,
    drive::{Link, Spawn},
};

#[cfg(feature = "tls")]
type Connector = hyper_rustls::HttpsConnector<HttpConnector>;
#[cfg(not(feature = "tls"))]
type Connector = HttpConnector;

/// How long a connection may take until it can be used, name, TCP and TLS together: 10 s. Ten
/// times what the slowest good path takes; the vendors' SDKs wait 5 to 10.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// How long an idle connection is kept: 60 s, less than the minute and more after which load
/// balancers in front of providers close theirs, which would be noticed by a failed request only.
pub const POOL_IDLE_TIMEOUT: Duration = Duration::from_secs(60);

/// How many idle connections are kept for each host: 256. Over HTTP/1.1 each call has one for itself, so
/// that fewer than a busy gateway has calls open would be closed and opened again all the time; with
/// HTTP/2 it is one. An idle one holds some 20 KB for at most a minute.
pub const POOL_MAX_IDLE: usize = 256;

/// The most header bytes read of a response: 64 KiB, HTTP/1 and HTTP/2 alike. Of an HTTP/1 response at
/// most 100 lines are read, which is hyper's own limit; providers send about 40.
pub const MAX_HEADER_BYTES: usize = 64 * 1024;

/// How often a silent HTTP/2 connection is asked whether it is alive: every 30 s, so that one that
/// died unnoticed does not hold its streams until their stall limit.
pub const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(30);

/// How long the answer to that may take: 10 s.
pub const KEEP_ALIVE_TIMEOUT: Duration = Duration::from_secs(10);

/// HTTP/1.1 and HTTP/2 over TCP; with the feature `tls`, TLS by rustls and Mozilla's roots for `https`,
/// where HTTP/2 is used when the server offers it. Connections are pooled; clones share the pool.
#[derive(Clone)]
pub struct Transport(Arc<Pool>);

/// Half a kilobyte of settings, behind a pointer: each call clones the pointer several times.
struct Pool {
    client: Client<LinkedConnector<Connector>, ClientBody>,
    open: OpenConnections,
}

/// How many connections are open.
type OpenConnections = Arc<AtomicUsize>;

/// A connection that is open.
struct OpenConnection(OpenConnections);

impl OpenConnection {
    fn new(open: OpenConnections) -> Self {
        open.fetch_add(1, Ordering::Relaxed);
        Self(open)
    }
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Transport {
    /// A transport with the numbers of this module.
    pub fn new() -> Self {
        let mut tcp = HttpConnector::new();
        tcp.set_nodelay(true);
        tcp.set_connect_timeout(Some(CONNECT_TIMEOUT));
        tcp.set_keepalive(Some(KEEP_ALIVE_INTERVAL));
        let open = OpenConnections::default();
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
            .build(LinkedConnector { connector: connector(tcp), open: open.clone() });
        Self(Arc::new(Pool { client, open }))
    }

    /// How many connections are open, idle ones among them.
    pub fn connections(&self) -> usize {
        self.0.open.load(Ordering::Relaxed)
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
        Service::poll_ready(&mut &self.0.client, cx)
    }

    fn call(&mut self, request: Request<ClientBody>) -> Self::Future {
        Service::call(&mut &self.0.client, request)
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

/// `https` by rustls, `http` by `tcp` alone.
#[cfg(feature = "tls")]
#[expect(clippy::expect_used, reason = "the message proves that it can not happen")]
fn connector(mut tcp: HttpConnector) -> Connector {
    // `https` is the next connector's.
    tcp.enforce_http(false);
    hyper_rustls::HttpsConnectorBuilder::new()
        .with_provider_and_webpki_roots(Arc::new(rustls::crypto::ring::default_provider()))
        .expect("ring, built with TLS 1.2 and 1.3, supports the default versions")
        .https_or_http()
        .enable_all_versions()
        .wrap_connector(tcp)
}

#[cfg(not(feature = "tls"))]
fn connector(tcp: HttpConnector) -> Connector {
    tcp
}

/// Connects within [`CONNECT_TIMEOUT`], the TLS handshake included, to a stream that finds its
/// connection.
#[derive(Clone)]
struct LinkedConnector<C> {
    connector: C,
    open: OpenConnections,
}

impl<C> Service<Uri> for LinkedConnector<C>
where
    C: Service<Uri, Future: Send + 'static, Error: Into<BoxError>>,
{
    type Response = Linked<C::Response>;
    type Error = BoxError;
    /// Boxed: connecting is the slow path.
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, BoxError>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.connector.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        if cfg!(not(feature = "tls")) && uri.scheme() == Some(&Scheme::HTTPS) {
            let message = "the address is https, and this build has no TLS; the feature `tls` of \
                           steadfast-client adds it";
            let error = io::Error::new(io::ErrorKind::Unsupported, message);
            return Box::pin(async move { Err(error.into()) });
        }
        let connecting = timeout(CONNECT_TIMEOUT, self.connector.call(uri));
        let open = self.open.clone();
        Box::pin(async move {
            let Ok(connected) = connecting.await else {
                let message = format!("no connection within {} s", CONNECT_TIMEOUT.as_secs());
                return Err(io::Error::new(io::ErrorKind::TimedOut, message).into());
            };
            let stream = connected.map_err(Into::into)?;
            Ok(Linked { stream, link: Link::default(), _open: OpenConnection::new(open) })
        })
    }
}

/// A stream that finds the connection it is read by, so that its answers can drive that.
struct Linked<T> {
    stream: T,
    link: Link,
    _open: OpenConnection,
}

impl<T: Connection> Connection for Linked<T> {
    fn connected(&self) -> Connected {
        self.stream.connected().extra(self.link.clone())
    }
}

impl<T: Read + Unpin> Read for Linked<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        self.link.find();
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl<T: Write + Unpin> Write for Linked<T> {
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
