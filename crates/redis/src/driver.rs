//! The task that keeps a node and the store in step: connects, catches up, and begins again.

use std::{sync::Arc, time::Duration};

use tokio::time::{sleep, timeout};

use crate::{
    AwayCause,
    endpoint::Endpoint,
    local::LocalState,
    session::{self, Session},
};

/// The first wait before it is tried again.
const FIRST_WAIT: Duration = Duration::from_millis(50);

/// The longest: with the time that a connection takes, a node has caught up within 2 s of the store's return.
const LONGEST_WAIT: Duration = Duration::from_millis(500);

/// How long the owner mark outlives the last beat of the fleet. An outage of every node, or a restart of all, is shorter.
pub(crate) const OWNER: Duration = Duration::from_secs(60);

/// How often a node says that it lives, and hears who else does. With an answer's time, it is as long as an outage is not
/// noticed by a node that has nothing else to write.
pub(crate) const BEAT: Duration = Duration::from_secs(1);

/// A node that says nothing for as long is none: others, who look once a beat, leave it out within 10 s.
pub(crate) const SILENCE: Duration = Duration::from_secs(9);

/// Runs until the last handle is dropped.
pub(crate) async fn drive(local: Arc<LocalState>, endpoint: Endpoint) {
    tokio::select! {
        () = connect_again_and_again(&local, endpoint) => {}
        () = local.closing.notified() => {}
    }
    // Others need not wait until they notice, if the store is there.
    let _ = timeout(local.config.answer_timeout, session::leave(&local)).await;
}

async fn connect_again_and_again(local: &Arc<LocalState>, mut endpoint: Endpoint) {
    let mut wait = FIRST_WAIT;
    loop {
        let (has_joined, cause) = connect_once(local, &mut endpoint).await;
        local.go_away(&cause);
        if has_joined {
            wait = FIRST_WAIT;
        }
        // Nodes that were thrown out together do not come back together.
        sleep(wait.mul_f64(0.75 + 0.5 * fastrand::f64())).await;
        wait = wait.saturating_mul(2).min(LONGEST_WAIT);
    }
}

/// Goes on as long as the store is there; whether it was, and why it is not any more.
async fn connect_once(local: &Arc<LocalState>, endpoint: &mut Endpoint) -> (bool, AwayCause) {
    let heard = Arc::downgrade(local);
    let hear = move |push| {
        if let Some(local) = heard.upgrade() {
            local.hear(&push);
        }
    };
    let connection = endpoint.connect(&local.config, &local.commands, hear).await;
    let session = match connection {
        Ok(connection) => Session::join(local, connection).await,
        Err(cause) => Err(cause),
    };
    match session {
        Ok(session) => (true, session.serve().await),
        Err(cause) => (false, cause),
    }
}
