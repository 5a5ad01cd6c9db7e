//! A provider behind a real socket.

use std::error::Error as StdError;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};
use tower_service::Service;

use crate::dialect::Dialect;
use crate::error::{SimError, SimErrorKind};
use crate::provider::SimProvider;

/// Time for the written bytes to reach the peer before a connection is reset.
const BEFORE_RESET: Duration = Duration::from_millis(5);

/// A [`SimProvider`] over HTTP/1.1 on a real socket, one server a provider.
///
/// Faults of the connection are real here: a reset is a TCP RST, a close leaves the chunked
/// body without its end, half of the headers is half of the bytes.
///
/// Dropping it resets all connections.
#[derive(Debug)]
pub struct SimServer {
    addr: SocketAddr,
    provider: SimProvider,
    mode: watch::Sender<Mode>,
    listening: watch::Receiver<bool>,
    accepted: Arc<AtomicUsize>,
    task: Option<JoinHandle<()>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Serve,
    Refuse,
    Drain,
    Abort,
}

impl SimServer {
    /// Binds and serves; port 0 takes a free one.
    ///
    /// # Errors
    ///
    /// If the address can not be bound.
    pub async fn bind(
        addr: impl tokio::net::ToSocketAddrs,
        provider: SimProvider,
    ) -> io::Result<Self> {
        let listener = TcpListener::bind(addr).await?;
        let addr = listener.local_addr()?;
        let (mode, mode_rx) = watch::channel(Mode::Serve);
        let (listening_tx, listening) = watch::channel(true);
        let accepted = Arc::new(AtomicUsize::new(0));
        let acceptor = Acceptor {
            addr,
            provider: provider.clone(),
            mode: mode_rx,
            listening: listening_tx,
            accepted: accepted.clone(),
        };
        let task = Some(tokio::spawn(acceptor.run(listener)));
        Ok(Self { addr, provider, mode, listening, accepted, task })
    }

    /// A free port on this machine.
    ///
    /// # Errors
    ///
    /// If no port is free.
    pub async fn local(provider: SimProvider) -> io::Result<Self> {
        Self::bind(("127.0.0.1", 0), provider).await
    }

    /// Where it listens.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// The base URL as the vendor's SDK expects it: OpenAI's ends in `/v1`, the others are the
    /// host. On a platform it is the host.
    #[must_use]
    pub fn base_url(&self) -> String {
        match self.provider.dialect() {
            _ if !self.provider.inner.hosting.is_vendor() => format!("http://{}", self.addr),
            Dialect::OpenAi | Dialect::Responses => format!("http://{}/v1", self.addr),
            Dialect::Anthropic | Dialect::Gemini => format!("http://{}", self.addr),
        }
    }

    /// The provider behind it.
    #[must_use]
    pub fn provider(&self) -> &SimProvider {
        &self.provider
    }

    /// How many connections were accepted so far.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.accepted.load(Ordering::Relaxed)
    }

    /// Closes the port, so that new connections are refused. Open connections are kept.
    pub async fn refuse(&self) {
        self.turn(Mode::Refuse, false).await;
    }

    /// Opens the port again after [`refuse`](Self::refuse).
    pub async fn accept(&self) {
        self.turn(Mode::Serve, true).await;
    }

    async fn turn(&self, mode: Mode, listening: bool) {
        self.mode.send_replace(mode);
        let mut now = self.listening.clone();
        // If the acceptor has ended, the port is closed already.
        let _ = now.wait_for(|now| *now == listening).await;
    }

    /// Closes the port, lets requests in flight end, and returns when all connections are closed.
    pub async fn shutdown(mut self) {
        self.stop(Mode::Drain).await;
    }

    /// Closes the port and resets every connection.
    pub async fn abort(mut self) {
        self.stop(Mode::Abort).await;
    }

    async fn stop(&mut self, mode: Mode) {
        self.mode.send_replace(mode);
        if let Some(task) = self.task.take() {
            // It fails only by a panic, which is printed.
            let _ = task.await;
        }
    }
}

impl Drop for SimServer {
    fn drop(&mut self) {
        if self.task.is_some() {
            self.mode.send_replace(Mode::Abort);
        }
    }
}

struct Acceptor {
    addr: SocketAddr,
    provider: SimProvider,
    mode: watch::Receiver<Mode>,
    listening: watch::Sender<bool>,
    accepted: Arc<AtomicUsize>,
}

impl Acceptor {
    async fn run(mut self, listener: TcpListener) {
        let mut listener = Some(listener);
        let mut connections = JoinSet::new();
        loop {
            let mode = *self.mode.borrow_and_update();
            match mode {
                Mode::Serve if listener.is_none() => match TcpListener::bind(self.addr).await {
                    Ok(bound) => listener = Some(bound),
                    Err(error) => {
                        tracing::warn!(name: "steadfast::sim::listen_failed", target: "steadfast::sim", %error, addr = %self.addr, "can not listen again");
                        tokio::time::sleep(Duration::from_millis(10)).await;
                        continue;
                    }
                },
                Mode::Refuse => listener = None,
                Mode::Drain | Mode::Abort => {
                    drop(listener.take());
                    self.listening.send_replace(false);
                    while connections.join_next().await.is_some() {}
                    return;
                }
                Mode::Serve => {}
            }
            self.listening.send_replace(listener.is_some());
            tokio::select! {
                changed = self.mode.changed() => {
                    if changed.is_err() {
                        return;
                    }
                }
                accepted = accept(listener.as_ref()) => {
                    if let Ok(stream) = accepted {
                        self.accepted.fetch_add(1, Ordering::Relaxed);
                        connections.spawn(connection(
                            stream,
                            self.provider.clone(),
                            self.mode.clone(),
                        ));
                    }
                }
                Some(_) = connections.join_next() => {}
            }
        }
    }
}

async fn accept(listener: Option<&TcpListener>) -> io::Result<TcpStream> {
    match listener {
        Some(listener) => listener.accept().await.map(|(stream, _)| stream),
        None => std::future::pending().await,
    }
}

/// Serves one connection to its end or its reset.
async fn connection(stream: TcpStream, provider: SimProvider, mut mode: watch::Receiver<Mode>) {
    // Small frames must not wait for each other.
    let _ = stream.set_nodelay(true);
    let service = service_fn(move |request| provider.clone().call(request));
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new());
    let mut connection = http.serve_connection(TokioIo::new(stream), service);
    let mut draining = false;
    let result = loop {
        tokio::select! {
            result = std::future::poll_fn(|cx| connection.poll_without_shutdown(cx)) => {
                break Some(result);
            }
            changed = mode.wait_for(|mode| match mode {
                Mode::Drain => !draining,
                Mode::Abort => true,
                Mode::Serve | Mode::Refuse => false,
            }) => match changed.map(|mode| *mode) {
                Ok(Mode::Drain) => {
                    draining = true;
                    std::pin::Pin::new(&mut connection).graceful_shutdown();
                }
                // The server was dropped or is shutting down.
                _ => break None,
            }
        }
    };
    let mut stream = connection.into_parts().io.into_inner();
    let broken = match &result {
        None => Some(SimErrorKind::Reset),
        Some(Ok(())) => None,
        Some(Err(error)) => find(error).map(SimError::kind),
    };
    match broken {
        None => {
            let _ = stream.shutdown().await;
        }
        Some(SimErrorKind::Reset | SimErrorKind::Refused) => reset(stream).await,
        Some(SimErrorKind::HalfHeaders) => {
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-ty").await;
            let _ = stream.shutdown().await;
        }
        Some(SimErrorKind::Closed | SimErrorKind::RequestBody) => {
            let _ = stream.shutdown().await;
        }
    }
}

/// The simulator's error in a chain of sources.
fn find<'e>(error: &'e (dyn StdError + 'static)) -> Option<&'e SimError> {
    let mut link = Some(error);
    while let Some(error) = link {
        if let Some(found) = error.downcast_ref() {
            return Some(found);
        }
        link = error.source();
    }
    None
}

/// Ends the connection with a TCP RST, after what was written has been sent.
async fn reset(stream: TcpStream) {
    tokio::time::sleep(BEFORE_RESET).await;
    let _ = socket2::SockRef::from(&stream).set_linger(Some(Duration::ZERO));
    drop(stream);
}
