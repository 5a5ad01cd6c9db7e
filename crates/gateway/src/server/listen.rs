//! Accepting connections, and closing them well.

use std::{convert::Infallible, io, net::SocketAddr, time::Duration};

use axum::{Router, response::Response};
use http::Request;
use hyper::body::Incoming;
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::conn::auto,
    service::TowerToHyperService,
};
use steadfast_core::BoxError;
use tokio::{
    net::{TcpListener, TcpStream},
    sync::watch,
};
use tower::{Service, ServiceExt};

use super::version;

/// How long a client may take to send its headers: 30 s, longer than any honest one needs, short
/// enough that slow ones can not hold every connection.
const HEADER_TIMEOUT: Duration = Duration::from_secs(30);

/// How often a silent HTTP/2 connection is asked whether it is alive, and how long the answer may
/// take: a client that vanished must not hold its streams until the network notices.
const PING: (Duration, Duration) = (Duration::from_secs(30), Duration::from_secs(10));

/// Wait after `accept` failed, which means the process is out of file descriptors: the connections
/// it has must end first.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Where a connection came from: in the extensions of its requests to `/admin/`.
#[derive(Clone, Copy, Debug)]
pub struct Peer {
    /// The caller's address.
    pub remote: SocketAddr,
}

/// Serves `router` on `listener`, HTTP/1.1 and HTTP/2, until `shutdown` is ready, then waits up to
/// `grace` for the answers in progress. Returns how many connections had to be cut.
///
/// # Errors
///
/// None so far: a connection that breaks ends alone, and accepting goes on.
pub async fn serve(
    listener: TcpListener,
    router: Router,
    shutdown: impl Future<Output = ()>,
    grace: Duration,
) -> io::Result<usize> {
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
        let service = router.clone().map_request(move |mut request: Request<Incoming>| {
            // Nobody else asks, and the first extension allocates.
            if request.uri().path().starts_with("/admin/") {
                request.extensions_mut().insert(Peer { remote });
            }
            request
        });
        let connection = connection(stream, service, stop.subscribe());
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                // A client that went away is its own business.
                tracing::debug!(name: "steadfast::gateway::connection_ended", target: "steadfast::gateway", %remote, %error, "a connection ended badly");
            }
        });
    }
    drop(listener);
    tracing::info!(name: "steadfast::gateway::draining", target: "steadfast::gateway", open = stop.receiver_count(), grace_s = grace.as_secs(), "stopping: waiting for the answers in progress");
    // Nobody listens any more when all have ended.
    let _ = stop.send(());
    let cut = tokio::select! {
        () = stop.closed() => 0,
        () = tokio::time::sleep(grace) => stop.receiver_count(),
    };
    Ok(cut)
}

/// Serves one connection. When it is `stopped`, what is in progress is the last.
async fn connection<S>(
    stream: TcpStream,
    service: S,
    mut stopped: watch::Receiver<()>,
) -> Result<(), BoxError>
where
    S: Service<Request<Incoming>, Response = Response, Error = Infallible>,
    S: Clone + Send + 'static,
    S::Future: Send,
{
    // Small writes must not wait for each other: a piece of a stream is one.
    stream.set_nodelay(true)?;
    let mut server = auto::Builder::new(TokioExecutor::new());
    server.http1().timer(TokioTimer::new()).header_read_timeout(HEADER_TIMEOUT);
    let mut http2 = server.http2();
    http2.timer(TokioTimer::new()).keep_alive_interval(PING.0).keep_alive_timeout(PING.1);
    let is_http2 = tokio::select! {
        is_http2 = tokio::time::timeout(HEADER_TIMEOUT, version::is_http2(&stream)) => is_http2??,
        _ = stopped.changed() => return Ok(()),
    };
    let server = if is_http2 { server.http2_only() } else { server.http1_only() };
    let service = TowerToHyperService::new(service);
    // Boxed: this future keeps the room that the detection needed.
    let mut connection = Box::pin(server.serve_connection(TokioIo::new(stream), service));
    tokio::select! {
        biased;
        ended = &mut connection => return ended,
        _ = stopped.changed() => connection.as_mut().graceful_shutdown(),
    }
    connection.await
}
