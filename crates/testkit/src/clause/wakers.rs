//! Wakers: one registered on every `Pending`, and none woken without a cause.

use std::{task::Poll, time::Duration};

use steadfast_core::Reason;
use tokio::time::Instant;
use tower_service::Service;

use crate::{
    Action, Contract, Exchange, TestTask,
    contract::ContractedLayer,
    harness::{ClauseResult, Harness},
    task::{Stuck, WAIT_LIMIT},
};

clause! {
    /// Every `Pending`, of readiness, of a call and of a reply, registers the waker of that very poll:
    /// each poll here has another one, and only the latest counts.
    a_waker_on_every_pending, on_every_pending
}

async fn on_every_pending<E: Exchange, L: ContractedLayer<E>>(
    contract: &Contract<E, L>,
) -> ClauseResult {
    let failing = Action::fail(Reason::Network).slow();
    let plans: [&[Action]; 4] = [
        &[Action::answer().slow()],
        &[failing, Action::answer().slow()],
        &[Action::fail_late(Reason::Network).slow()],
        &[Action::fail_late(Reason::Network).slow().with_pieces(0), failing, failing],
    ];
    for plan in plans {
        // Polled only when woken, and with spurious polls as well.
        for polls_twice in [false, true] {
            let mut harness = Harness::new(contract).await;
            harness.task.polls_twice = polls_twice;
            harness.handle.script(plan.iter().copied());
            let request = harness.request();
            let mut future = harness.call(request).await?;
            let result = harness
                .drive(&mut future, usize::MAX)
                .await
                .map_err(|stuck| format!("a call: {}", stuck.describe()))?;
            if let Some(Ok(mut reply)) = result {
                let _ = harness.read(&mut reply).await?;
            }
        }
    }
    // The inner service is not ready for a while in the middle of a call.
    let mut harness = Harness::new(contract).await;
    harness.handle.script([failing, failing]);
    let request = harness.request();
    let mut future = harness.call(request).await?;
    harness.handle.set_capacity(0);
    let handle = harness.handle.clone();
    tokio::spawn(async move {
        tokio::time::sleep(Duration::from_secs(100)).await;
        handle.set_capacity(usize::MAX);
    });
    let result = harness
        .drive(&mut future, usize::MAX)
        .await
        .map_err(|stuck| format!("a call that waits for readiness: {}", stuck.describe()))?;
    drop(result);
    Ok(())
}

clause! {
    /// While nothing happens, nothing is woken: what waits for the inner service, or for a reply that
    /// hangs, is polled a few times an hour.
    nothing_spins, spins
}

/// The most polls in an hour in which nothing happens. Two a minute are enough for a periodic check;
/// layers have timers for their limits and attempts, some dozens at most.
const MAX_POLLS: usize = 120;

async fn spins<E: Exchange, L: ContractedLayer<E>>(contract: &Contract<E, L>) -> ClauseResult {
    let mut harness = Harness::new(contract).await;
    harness.handle.set_capacity(0);
    let mut service = harness.service().clone();
    quiet(&mut harness.task, "`poll_ready` of a busy service", |cx| {
        service.poll_ready(cx).map(drop)
    })
    .await?;
    drop(service);

    let mut harness = Harness::new(contract).await;
    harness.handle.set_default(Action::hang());
    let request = harness.request();
    let mut future = harness.call(request).await?;
    quiet(&mut harness.task, "a call that hangs", |cx| future.as_mut().poll(cx).map(drop)).await?;
    drop(future);

    let mut harness = Harness::new(contract).await;
    harness.handle.set_default(Action::hang_late());
    if let Ok(mut reply) = harness.send().await? {
        quiet(&mut harness.task, "a reply that hangs", |cx| {
            loop {
                match futures_core::Stream::poll_next(reply.pieces.as_mut(), cx) {
                    Poll::Ready(Some(Ok(_))) => {}
                    other => return other.map(drop),
                }
            }
        })
        .await?;
    }
    Ok(())
}

/// Polls for an hour, or until it is ready.
async fn quiet(
    task: &mut TestTask,
    what: &str,
    mut poll: impl FnMut(&mut std::task::Context<'_>) -> Poll<()>,
) -> ClauseResult {
    let started = Instant::now();
    for _ in 0..MAX_POLLS {
        let left = WAIT_LIMIT.saturating_sub(started.elapsed());
        if task.poll(&mut poll).is_ready() || !task.woken(left).await {
            return Ok(());
        }
        tokio::task::yield_now().await;
    }
    Err(format!(
        "{what} was woken {MAX_POLLS} times within {:?} although nothing happened: {}",
        started.elapsed(),
        Stuck::Spins.describe()
    ))
}
