//! Accepting connections, and closing them well.

use std::{io, time::Duration};

use axum::Router;
use tokio::{net::TcpListener, sync::watch};

use super::connection::{self, ConnectionLimits};

/// Wait after `accept` failed, which means the process is out of file descriptors: the connections
/// it has must end first.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Serves `router` on `listener`, HTTP/1.1 and HTTP/2, until `shutdown` is ready, then waits up to
/// `grace` for the answers in progress. No connection does nothing for longer than `limits` allow.
/// Returns how many connections had to be cut.
///
/// # Errors
///
/// None so far: a connection that breaks ends alone, and accepting goes on.
pub async fn serve(
    listener: TcpListener,
    router: Router,
    limits: ConnectionLimits,
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
        let connection =
            connection::serve(stream, remote, router.clone(), limits, stop.subscribe());
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
