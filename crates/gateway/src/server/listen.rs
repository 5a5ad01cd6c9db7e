//! Accepting connections, and closing them well.

use std::{io, net::SocketAddr, time::Duration};

use axum::Router;
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::{conn::auto::Builder, graceful::GracefulShutdown},
    service::TowerToHyperService,
};
use tokio::net::{TcpListener, TcpStream};
use tower::ServiceExt;

/// How long a client may take to send its headers: 30 s, longer than any honest one needs, short
/// enough that slow ones can not hold every connection.
const HEADER_TIMEOUT: Duration = Duration::from_secs(30);

/// Wait after `accept` failed, which means the process is out of file descriptors: the connections
/// it has must end first.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Where a connection came from and arrived.
#[derive(Clone, Copy, Debug)]
pub struct Peer {
    /// The caller's address.
    pub remote: SocketAddr,
}

/// Serves `router` on `listener` until `shutdown` is ready, then waits up to `grace` for the
/// answers under way. Returns how many connections had to be cut.
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
    let mut builder = Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(HEADER_TIMEOUT);
    builder.http2().timer(TokioTimer::new());
    let graceful = GracefulShutdown::new();
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
        let router = router.clone();
        let service =
            tower::service_fn(move |mut request: http::Request<hyper::body::Incoming>| {
                request.extensions_mut().insert(Peer { remote });
                router.clone().oneshot(request.map(axum::body::Body::new))
            });
        let connection = builder
            .serve_connection(TokioIo::new(no_delay(stream)), TowerToHyperService::new(service))
            .into_owned();
        let connection = graceful.watch(connection);
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                // A client that went away is its own business.
                tracing::debug!(name: "steadfast::gateway::connection_ended", target: "steadfast::gateway", %remote, %error, "a connection ended badly");
            }
        });
    }
    drop(listener);
    let open = graceful.count();
    tracing::info!(name: "steadfast::gateway::draining", target: "steadfast::gateway", open, grace_s = grace.as_secs(), "waiting for the answers under way");
    let cut = tokio::select! {
        () = graceful.shutdown() => 0,
        () = tokio::time::sleep(grace) => open,
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
