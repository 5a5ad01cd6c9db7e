//! What a call holds is free when it is over, however it ends.

use steadfast_core::{Deadline, Reason};

use crate::{
    Act, Aspect, Contract, Exchange,
    contract::ContractedLayer,
    scene::{Found, Scene},
    watch::Stuck,
};

/// No call of a clause takes more polls than this.
const MOST_POLLS: usize = 200;

/// How often a call is given up at the same place: more than a layer has permits or probes by
/// default, so that one leaked each time shows.
const TIMES: usize = 12;

clause! {
    /// A call that is dropped, before its first poll or at any await point, frees all it held: the
    /// inner call, permits, leases, timers, its request; and it counts for nothing, so that the next
    /// call is as good as the first.
    a_dropped_future_frees, dropped_future
}

async fn dropped_future<E: Exchange, L: ContractedLayer<E>>(contract: &Contract<E, L>) -> Found {
    contract.declared(Aspect::Held, &contract.held)?;
    let plans: [(&[Act], bool); 3] = [
        (&[Act::answer().slow()], true),
        (&[Act::hang()], true),
        (&[Act::fail(Reason::Network).slow(), Act::answer().slow()], false),
    ];
    for (plan, blameless) in plans {
        for polls in 0..MOST_POLLS {
            let mut scene = Scene::new(contract).await;
            let mut over = false;
            for _ in 0..TIMES {
                over = drop_after(&mut scene, plan, polls, blameless).await?;
                if over {
                    break;
                }
            }
            if over {
                break;
            }
            if blameless {
                // Nothing was learnt of the inner service, so it is as good as new.
                scene.handle.next([]);
                let answered = scene.ask_all().await.map_err(|stuck| {
                    format!("after calls dropped at poll {polls}, the next call: {stuck}")
                })?;
                if let Err(failure) = answered {
                    return Err(format!(
                        "after calls dropped at poll {polls}, the next one failed: {failure}; a \
                         caller who goes away says nothing of the inner service"
                    ));
                }
            }
        }
        // A service that is dropped beneath its call changes nothing.
        let mut scene = Scene::new(contract).await;
        scene.handle.next(plan.iter().copied());
        let request = scene.request();
        let mut future = scene.call(request).await?;
        scene.drop_service();
        let _ = scene.drive(&mut future, 1).await;
        drop(future);
        scene.freed("after service and call were dropped").await?;
    }
    Ok(())
}

/// Says whether the call was over by then.
async fn drop_after<E: Exchange, L: ContractedLayer<E>>(
    scene: &mut Scene<'_, E, L>,
    plan: &[Act],
    polls: usize,
    blameless: bool,
) -> Result<bool, String> {
    scene.handle.next(plan.iter().copied());
    let request = scene.request();
    let mut future = scene.call(request).await?;
    let over = match scene.drive(&mut future, polls).await {
        Ok(Some(Err(failure))) if blameless && failure.reason().is_refusal() => {
            return Err(format!(
                "beside calls dropped at poll {polls} or before, one is refused: {failure}; a \
                 caller who goes away says nothing of the inner service"
            ));
        }
        Ok(result) => result.is_some(),
        // A layer without a limit of its own waits for ever; that is as far as it goes.
        Err(Stuck::Asleep) => true,
        Err(spins) => return Err(spins.describe().to_owned()),
    };
    drop(future);
    scene.freed(&format!("after a call was dropped at poll {polls}")).await?;
    Ok(over)
}

clause! {
    /// A reply that is dropped half read frees all it held, and counts for nothing.
    a_dropped_body_frees, dropped_body
}

async fn dropped_body<E: Exchange, L: ContractedLayer<E>>(contract: &Contract<E, L>) -> Found {
    for act in [Act::answer(), Act::answer().slow(), Act::hang_late()] {
        for pieces in 0..=act.pieces {
            let mut scene = Scene::new(contract).await;
            for _ in 0..TIMES {
                scene.handle.next([act]);
                let mut reply = match scene.ask().await? {
                    Ok(reply) => reply,
                    Err(failure) => {
                        return Err(format!(
                            "after replies dropped half read, a call failed: {failure}"
                        ));
                    }
                };
                for _ in 0..pieces {
                    let piece = scene.next(&mut reply).await.map_err(Stuck::describe)?;
                    if piece.is_none() {
                        break;
                    }
                }
                // One more poll, which may leave a waker behind.
                let _ = scene.watch.poll(|cx| {
                    futures_core::Stream::poll_next(reply.pieces.as_mut(), cx).map(drop)
                });
                drop(reply);
                scene.freed(&format!("after a reply was dropped behind piece {pieces}")).await?;
            }
        }
    }
    Ok(())
}

clause! {
    /// A reply that was read to its end has let go of the layer's permits and leases, even while the
    /// caller keeps it.
    a_body_read_to_its_end_frees, body_end
}

async fn body_end<E: Exchange, L: ContractedLayer<E>>(contract: &Contract<E, L>) -> Found {
    for act in [Act::answer(), Act::answer().slow(), Act::answer().with_pieces(1)] {
        let mut scene = Scene::new(contract).await;
        let mut kept = Vec::new();
        for _ in 0..TIMES {
            scene.handle.next([act]);
            let asked = scene.ask().await.map_err(|stuck| {
                format!("beside replies read to their end, and kept, the next call: {stuck}")
            })?;
            let mut reply = match asked {
                Ok(reply) => reply,
                Err(failure) => {
                    return Err(format!(
                        "beside replies read to their end, and kept, the next call failed: \
                         {failure}"
                    ));
                }
            };
            if let Err(failure) = scene.read(&mut reply).await? {
                return Err(format!("a reply failed: {failure}"));
            }
            if scene.held() != 0 {
                return Err(format!(
                    "a reply was read to its end, and {} permits, leases or probes are still held \
                     for it: let go at the end, not when it is dropped",
                    scene.held()
                ));
            }
            kept.push(reply);
        }
        drop(kept);
        scene.freed("after all replies were dropped").await?;
    }
    Ok(())
}

clause! {
    /// A reply that fails half way has let go of permits and leases with its error, even while the
    /// caller keeps it.
    a_failed_body_frees, failed_body
}

async fn failed_body<E: Exchange, L: ContractedLayer<E>>(contract: &Contract<E, L>) -> Found {
    for act in [
        Act::fail_late(Reason::Network),
        Act::fail_late(Reason::Network).slow(),
        Act::fail_late(Reason::Overloaded).with_pieces(1),
        Act::hang_late(),
    ] {
        let mut scene = Scene::new(contract).await;
        scene.handle.usually(act);
        let Ok(mut reply) = scene.ask().await? else { continue };
        // One that hangs ends only where there is a limit of time.
        let ended = loop {
            match scene.next(&mut reply).await {
                Ok(Some(Ok(_))) => {}
                Ok(_) => break true,
                Err(Stuck::Asleep) => break false,
                Err(spins) => return Err(spins.describe().to_owned()),
            }
        };
        if ended && scene.held() != 0 {
            return Err(format!(
                "a reply failed, and {} permits, leases or probes are still held for it: let go \
                 with the error, not when it is dropped",
                scene.held()
            ));
        }
        drop(reply);
        scene.freed("after a reply that failed was dropped").await?;
    }
    Ok(())
}

clause! {
    /// Whatever a call fails of, it holds nothing afterwards: a failure of the inner service for each
    /// reason, one that breaks down between attempts, a call that hangs, a deadline, a refusal.
    every_error_frees, every_error
}

async fn every_error<E: Exchange, L: ContractedLayer<E>>(contract: &Contract<E, L>) -> Found {
    for reason in Reason::ALL {
        let mut scene = Scene::new(contract).await;
        for act in [Act::fail(reason), Act::fail(reason).slow()] {
            scene.handle.usually(act);
            for _ in 0..TIMES {
                let failed = scene.ask().await?;
                drop(failed);
                scene.freed(&format!("after a call failed of {reason}")).await?;
            }
        }
    }

    let mut scene = Scene::new(contract).await;
    scene.handle.usually(Act::fail(Reason::Network).slow());
    let request = scene.request();
    let mut future = scene.call(request).await?;
    let _ = scene.drive(&mut future, 1).await;
    scene.handle.break_down();
    let failed = scene.drive(&mut future, MOST_POLLS).await.map_err(Stuck::describe)?;
    drop((failed, future));
    scene.freed("after the inner service broke down under a call").await?;

    for act in [Act::hang(), Act::fail(Reason::Overloaded).slow()] {
        let mut scene = Scene::new(contract).await;
        scene.handle.usually(act);
        let mut request = scene.request();
        let deadline = Deadline::after(std::time::Duration::from_millis(25));
        steadfast_core::Call::context_mut(&mut request).deadline = Some(deadline);
        let mut future = scene.call(request).await?;
        // Nobody but a layer of deadlines has to end it.
        let ended = scene.drive(&mut future, MOST_POLLS).await;
        drop((ended, future));
        scene.freed("after the deadline of a call had passed").await?;
    }

    if let Some(refuse) = &contract.refuse {
        let mut scene = Scene::new(contract).await;
        let mut request = scene.request();
        refuse(&scene.layer, &mut request);
        let mut future = scene.call(request).await?;
        let refused = scene.drive(&mut future, MOST_POLLS).await.map_err(Stuck::describe)?;
        drop((refused, future));
        scene.drop_service();
        scene.freed("after a call was refused").await?;
        let mut request = scene.request();
        refuse(&scene.layer, &mut request);
        scene.service();
        let future = scene.call(request).await?;
        drop(future);
        scene.drop_service();
        scene.freed("after a refused call was dropped unpolled").await?;
    }
    Ok(())
}
