//! Accepting connections, and closing them well.

use std::{io, sync::Arc, time::Duration};

use axum::Router;
use tokio::{
    net::TcpListener,
    sync::{Semaphore, watch},
};

use super::connection::{self, ConnectionLimits};

/// Wait after `accept` failed, which means the process is out of file descriptors: the connections
/// it has must end first.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// How many connections more than there may be are accepted, to refuse what they ask: an eighth, 64 at least. Others
/// wait until they are.
const CROWD: (usize, usize) = (8, 64);

/// Serves `router` on `listener`, HTTP/1.1 and HTTP/2, until `shutdown` is ready, then waits up to
/// `grace` for the answers in progress. There are no more connections than `limits` allow, and none does nothing
/// for longer.
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
    let most = limits.max_connections;
    let crowd = (most / CROWD.0).max(CROWD.1);
    let room = Arc::new(Semaphore::new(most.saturating_add(crowd).min(Semaphore::MAX_PERMITS)));
    loop {
        let accept = async {
            // The semaphore is never closed.
            let permit = room.clone().acquire_owned().await.ok();
            (listener.accept().await, permit)
        };
        let (stream, remote, permit) = tokio::select! {
            (accepted, permit) = accept => match accepted {
                Ok((stream, remote)) => (stream, remote, permit),
                Err(error) => {
                    tracing::warn!(name: "steadfast::gateway::accept_failed", target: "steadfast::gateway", %error, "a connection could not be accepted");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            },
            () = &mut shutdown => break,
        };
        let is_crowded = room.available_permits() < crowd;
        let (router, limits, stopped) = (router.clone(), limits.clone(), stop.subscribe());
        let counted = limits.admission.connected();
        let connection = connection::serve(stream, remote, router, limits, is_crowded, stopped);
        tokio::spawn(async move {
            let _held = (permit, counted);
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
