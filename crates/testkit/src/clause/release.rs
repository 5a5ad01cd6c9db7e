//! What a call holds is released when it is over, however it ends.

use steadfast_core::{Deadline, Reason};

use crate::{
    Action, Aspect, Contract, Exchange,
    contract::ContractedLayer,
    harness::{ClauseResult, Harness},
    task::Stuck,
};

/// No call of a clause takes more polls than this.
const MAX_POLLS: usize = 200;

/// How often a call is dropped at the same point: more than a layer has permits or probes by
/// default, so that leaking one each time is noticed.
const REPEATS: usize = 12;

clause! {
    /// A call that is dropped, before its first poll or at any await point, releases all it held: the
    /// inner call, permits, leases, timers, its request. It counts neither as success nor as failure,
    /// so that the next call is treated like the first.
    a_dropped_future_frees, dropped_future
}

async fn dropped_future<E: Exchange, L: ContractedLayer<E>>(
    contract: &Contract<E, L>,
) -> ClauseResult {
    contract.declared(Aspect::Held, &contract.held)?;
    let plans: [(&[Action], bool); 3] = [
        (&[Action::answer().slow()], true),
        (&[Action::hang()], true),
        (&[Action::fail(Reason::Network).slow(), Action::answer().slow()], false),
    ];
    for (plan, blameless) in plans {
        for polls in 0..MAX_POLLS {
            let mut harness = Harness::new(contract).await;
            let mut over = false;
            for _ in 0..REPEATS {
                over = drop_after(&mut harness, plan, polls, blameless).await?;
                if over {
                    break;
                }
            }
            if over {
                break;
            }
            if blameless {
                // Dropped calls are no evidence about the inner service.
                harness.handle.script([]);
                let answered = harness.send_and_read().await.map_err(|stuck| {
                    format!("after calls dropped at poll {polls}, the next call: {stuck}")
                })?;
                if let Err(failure) = answered {
                    return Err(format!(
                        "after calls dropped at poll {polls}, the next one failed: {failure}; a \
                         dropped call is no evidence about the inner service"
                    ));
                }
            }
        }
        // Dropping the service during the call changes nothing.
        let mut harness = Harness::new(contract).await;
        harness.handle.script(plan.iter().copied());
        let request = harness.request();
        let mut future = harness.call(request).await?;
        harness.drop_service();
        let _ = harness.drive(&mut future, 1).await;
        drop(future);
        harness.freed("after service and call were dropped").await?;
    }
    Ok(())
}

/// Returns whether the call was over by then.
async fn drop_after<E: Exchange, L: ContractedLayer<E>>(
    harness: &mut Harness<'_, E, L>,
    plan: &[Action],
    polls: usize,
    blameless: bool,
) -> Result<bool, String> {
    harness.handle.script(plan.iter().copied());
    let request = harness.request();
    let mut future = harness.call(request).await?;
    let over = match harness.drive(&mut future, polls).await {
        Ok(Some(Err(failure))) if blameless && failure.reason().is_refusal() => {
            return Err(format!(
                "after calls dropped at poll {polls} or before, one is refused: {failure}; a \
                 dropped call is no evidence about the inner service"
            ));
        }
        Ok(result) => result.is_some(),
        // A layer without a time limit waits for ever, so there is no later poll to test.
        Err(Stuck::NotWoken) => true,
        Err(spins) => return Err(spins.describe().to_owned()),
    };
    drop(future);
    harness.freed(&format!("after a call was dropped at poll {polls}")).await?;
    Ok(over)
}

clause! {
    /// A reply that is dropped half read releases all it held, and counts neither as success nor as
    /// failure.
    a_dropped_body_frees, dropped_body
}

async fn dropped_body<E: Exchange, L: ContractedLayer<E>>(
    contract: &Contract<E, L>,
) -> ClauseResult {
    for action in [Action::answer(), Action::answer().slow(), Action::hang_late()] {
        for pieces in 0..=action.pieces {
            let mut harness = Harness::new(contract).await;
            for _ in 0..REPEATS {
                harness.handle.script([action]);
                let mut reply = match harness.send().await? {
                    Ok(reply) => reply,
                    Err(failure) => {
                        return Err(format!(
                            "after replies dropped half read, a call failed: {failure}"
                        ));
                    }
                };
                for _ in 0..pieces {
                    let piece = harness.next(&mut reply).await.map_err(Stuck::describe)?;
                    if piece.is_none() {
                        break;
                    }
                }
                // One more poll, which may leave a waker behind.
                let _ = harness.task.poll(|cx| {
                    futures_core::Stream::poll_next(reply.pieces.as_mut(), cx).map(drop)
                });
                drop(reply);
                harness.freed(&format!("after a reply was dropped after piece {pieces}")).await?;
            }
        }
    }
    Ok(())
}

clause! {
    /// A reply that was read to its end has released the layer's permits and leases, even while the
    /// caller keeps it.
    a_body_read_to_its_end_frees, body_end
}

async fn body_end<E: Exchange, L: ContractedLayer<E>>(contract: &Contract<E, L>) -> ClauseResult {
    for action in [Action::answer(), Action::answer().slow(), Action::answer().with_pieces(1)] {
        let mut harness = Harness::new(contract).await;
        let mut kept = Vec::new();
        for _ in 0..REPEATS {
            harness.handle.script([action]);
            let sent = harness.send().await.map_err(|stuck| {
                format!("with earlier replies read to their end, and kept, the next call: {stuck}")
            })?;
            let mut reply = match sent {
                Ok(reply) => reply,
                Err(failure) => {
                    return Err(format!(
                        "with earlier replies read to their end, and kept, the next call failed: \
                         {failure}"
                    ));
                }
            };
            if let Err(failure) = harness.read(&mut reply).await? {
                return Err(format!("a reply failed: {failure}"));
            }
            if harness.held() != 0 {
                return Err(format!(
                    "a reply was read to its end, and {} permits, leases or probes are still held \
                     for it: release them at the end, not when it is dropped",
                    harness.held()
                ));
            }
            kept.push(reply);
        }
        drop(kept);
        harness.freed("after all replies were dropped").await?;
    }
    Ok(())
}

clause! {
    /// A reply that fails half way has released permits and leases with its error, even while the
    /// caller keeps it.
    a_failed_body_frees, failed_body
}

async fn failed_body<E: Exchange, L: ContractedLayer<E>>(
    contract: &Contract<E, L>,
) -> ClauseResult {
    for action in [
        Action::fail_late(Reason::Network),
        Action::fail_late(Reason::Network).slow(),
        Action::fail_late(Reason::Overloaded).with_pieces(1),
        Action::hang_late(),
    ] {
        let mut harness = Harness::new(contract).await;
        harness.handle.set_default(action);
        let Ok(mut reply) = harness.send().await? else { continue };
        // One that hangs ends only where there is a time limit.
        let ended = loop {
            match harness.next(&mut reply).await {
                Ok(Some(Ok(_))) => {}
                Ok(_) => break true,
                Err(Stuck::NotWoken) => break false,
                Err(spins) => return Err(spins.describe().to_owned()),
            }
        };
        if ended && harness.held() != 0 {
            return Err(format!(
                "a reply failed, and {} permits, leases or probes are still held for it: \
                 release them with the error, not when it is dropped",
                harness.held()
            ));
        }
        drop(reply);
        harness.freed("after a reply that failed was dropped").await?;
    }
    Ok(())
}

clause! {
    /// However a call fails, it holds nothing afterwards: a failure of the inner service for each
    /// reason, an inner service whose readiness fails between attempts, a call that hangs, a deadline,
    /// a refusal.
    every_error_frees, every_error
}

async fn every_error<E: Exchange, L: ContractedLayer<E>>(
    contract: &Contract<E, L>,
) -> ClauseResult {
    for reason in Reason::ALL {
        let mut harness = Harness::new(contract).await;
        for action in [Action::fail(reason), Action::fail(reason).slow()] {
            harness.handle.set_default(action);
            for _ in 0..REPEATS {
                let failed = harness.send().await?;
                drop(failed);
                harness.freed(&format!("after a call failed with {reason}")).await?;
            }
        }
    }

    let mut harness = Harness::new(contract).await;
    harness.handle.set_default(Action::fail(Reason::Network).slow());
    let request = harness.request();
    let mut future = harness.call(request).await?;
    let _ = harness.drive(&mut future, 1).await;
    harness.handle.break_down();
    let failed = harness.drive(&mut future, MAX_POLLS).await.map_err(Stuck::describe)?;
    drop((failed, future));
    harness.freed("after the readiness of the inner service failed during a call").await?;

    for action in [Action::hang(), Action::fail(Reason::Overloaded).slow()] {
        let mut harness = Harness::new(contract).await;
        harness.handle.set_default(action);
        let mut request = harness.request();
        let deadline = Deadline::after(std::time::Duration::from_millis(25));
        steadfast_core::Call::context_mut(&mut request).deadline = Some(deadline);
        let mut future = harness.call(request).await?;
        // Only a layer that keeps deadlines has to end it.
        let ended = harness.drive(&mut future, MAX_POLLS).await;
        drop((ended, future));
        harness.freed("after the deadline of a call had passed").await?;
    }

    if let Some(refuse) = &contract.refuse {
        let mut harness = Harness::new(contract).await;
        let mut request = harness.request();
        refuse(&harness.layer, &mut request);
        let mut future = harness.call(request).await?;
        let refused = harness.drive(&mut future, MAX_POLLS).await.map_err(Stuck::describe)?;
        drop((refused, future));
        harness.drop_service();
        harness.freed("after a call was refused").await?;
        let mut request = harness.request();
        refuse(&harness.layer, &mut request);
        harness.service();
        let future = harness.call(request).await?;
        drop(future);
        harness.drop_service();
        harness.freed("after a refused call was dropped unpolled").await?;
    }
    Ok(())
}
