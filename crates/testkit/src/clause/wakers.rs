//! Wakers: one on every `Pending`, and none for nothing.

use std::{task::Poll, time::Duration};

use steadfast_core::Reason;
use tokio::time::Instant;
use tower_service::Service;

use crate::{
    Act, Contract, Exchange, Watch,
    contract::ContractedLayer,
    scene::{Found, Scene},
    watch::{PATIENCE, Stuck},
};

clause! {
    /// Every `Pending`, of readiness, of a call and of a reply, leaves the waker of that very poll
    /// behind: each poll here has another one, and only the latest counts.
    a_waker_on_every_pending, on_every_pending
}

async fn on_every_pending<E: Exchange, L: ContractedLayer<E>>(contract: &Contract<E, L>) -> Found {
    let failing = Act::fail(Reason::Network).slow();
    let plans: [&[Act]; 4] = [
        &[Act::answer().slow()],
        &[failing, Act::answer().slow()],
        &[Act::fail_late(Reason::Network).slow()],
        &[Act::fail_late(Reason::Network).slow().with_pieces(0), failing, failing],
    ];
    for plan in plans {
        // Polled only when woken, and polled out of turn as well.
        for restless in [false, true] {
            let mut scene = Scene::new(contract).await;
            scene.watch.restless = restless;
            scene.handle.next(plan.iter().copied());
            let request = scene.request();
            let mut future = scene.call(request).await?;
            let result = scene
                .drive(&mut future, usize::MAX)
                .await
                .map_err(|stuck| format!("a call: {}", stuck.describe()))?;
            if let Some(Ok(mut reply)) = result {
                let _ = scene.read(&mut reply).await?;
            }
        }
    }
    // The inner service is not ready for a while in the middle of a call.
    let mut scene = Scene::new(contract).await;
    scene.handle.next([failing, failing]);
    let request = scene.request();
    let mut future = scene.call(request).await?;
    scene.handle.places(0);
    let handle = scene.handle.clone();
    tokio::spawn(async move {
        tokio::time::sleep(Duration::from_secs(100)).await;
        handle.places(usize::MAX);
    });
    let result = scene
        .drive(&mut future, usize::MAX)
        .await
        .map_err(|stuck| format!("a call that waits for readiness: {}", stuck.describe()))?;
    drop(result);
    Ok(())
}

clause! {
    /// While nothing happens, nothing is woken: whatever waits for the inner service, or for a reply
    /// that hangs, is polled a few times an hour and not all the time.
    nothing_spins, spins
}

/// The most polls in an hour in which nothing happens. Two a minute are enough for whoever looks
/// after something; layers have timers for their limits and attempts, some dozens at most.
const MOST_POLLS: usize = 120;

async fn spins<E: Exchange, L: ContractedLayer<E>>(contract: &Contract<E, L>) -> Found {
    let mut scene = Scene::new(contract).await;
    scene.handle.places(0);
    let mut service = scene.service().clone();
    quiet(&mut scene.watch, "`poll_ready` of a busy service", |cx| {
        service.poll_ready(cx).map(drop)
    })
    .await?;
    drop(service);

    let mut scene = Scene::new(contract).await;
    scene.handle.usually(Act::hang());
    let request = scene.request();
    let mut future = scene.call(request).await?;
    quiet(&mut scene.watch, "a call that hangs", |cx| future.as_mut().poll(cx).map(drop)).await?;
    drop(future);

    let mut scene = Scene::new(contract).await;
    scene.handle.usually(Act::hang_late());
    if let Ok(mut reply) = scene.ask().await? {
        quiet(&mut scene.watch, "a reply that hangs", |cx| {
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
    watch: &mut Watch,
    what: &str,
    mut poll: impl FnMut(&mut std::task::Context<'_>) -> Poll<()>,
) -> Found {
    let began = Instant::now();
    for _ in 0..MOST_POLLS {
        if watch.poll(&mut poll).is_ready() || !watch.woken(PATIENCE).await {
            return Ok(());
        }
        tokio::task::yield_now().await;
    }
    Err(format!(
        "{what} was woken {MOST_POLLS} times within {:?} although nothing happened: {}",
        began.elapsed(),
        Stuck::Spins.describe()
    ))
}
