//! Readiness: acquired before a call, kept until the call, and not shared with clones.

use std::task::Poll;

use steadfast_core::{Failure, Reason};
use tower_service::Service;

use crate::{
    Action, Contract, Exchange,
    contract::ContractedLayer,
    harness::{ClauseResult, Harness},
    probe::BROKEN,
    task::{Stuck, WAIT_LIMIT},
};

clause! {
    /// The layer never calls an inner service, or a clone of one, that was not polled ready since its
    /// last call. (tower#547)
    ready_before_call, ready_before_call_
}

async fn ready_before_call_<E: Exchange, L: ContractedLayer<E>>(
    contract: &Contract<E, L>,
) -> ClauseResult {
    use Reason::{Network, Overloaded};
    let plans: [&[Action]; 4] = [
        &[Action::answer()],
        &[Action::fail(Network), Action::answer()],
        &[Action::fail(Network), Action::fail_late(Overloaded).slow(), Action::fail(Network)],
        &[Action::fail_late(Network).with_pieces(0)],
    ];
    for plan in plans {
        let mut harness = Harness::new(contract).await;
        for _ in 0..2 {
            harness.handle.script(plan.iter().copied());
            // It may fail; other clauses check how.
            let _ = harness.send_and_read().await?;
            check_use(&harness)?;
        }
        // Two at once from one service, and one from a clone of it.
        harness.handle.script(plan.iter().copied());
        let (one, two) = (harness.request(), harness.request());
        let mut first = harness.call(one).await?;
        let mut second = harness.call(two).await?;
        let clone = harness.service().clone();
        for future in [&mut first, &mut second] {
            harness.drive(future, usize::MAX).await.map_err(Stuck::describe)?;
        }
        *harness.service() = clone;
        let _ = harness.send_and_read().await?;
        check_use(&harness)?;
    }
    Ok(())
}

fn check_use<E: Exchange, L: ContractedLayer<E>>(harness: &Harness<'_, E, L>) -> ClauseResult {
    match harness.handle.misuse().first() {
        None => Ok(()),
        Some(what) => Err(format!(
            "misuse of the inner service: {what}. A clone is not ready because the original was: \
             take the original (`std::mem::replace`), or poll the clone"
        )),
    }
}

clause! {
    /// Readiness is acquired once for each call: polling again before the call neither loses it nor
    /// acquires more from the inner service. (tower#408)
    readiness_is_kept_until_used, kept
}

async fn kept<E: Exchange, L: ContractedLayer<E>>(contract: &Contract<E, L>) -> ClauseResult {
    let mut harness = Harness::new(contract).await;
    harness.handle.set_capacity(1);
    for poll in 1..=3 {
        if !matches!(harness.poll_ready(), Poll::Ready(Ok(()))) {
            return Err(format!(
                "poll {poll} of `poll_ready` was not ready, although the only permit was free: a \
                 service that was ready stays ready until it is called"
            ));
        }
        tokio::time::advance(WAIT_LIMIT).await;
    }
    let granted = harness.handle.granted();
    if granted != 1 {
        return Err(format!(
            "three polls of `poll_ready` acquired the readiness of the inner service {granted} \
             times; it is needed once"
        ));
    }
    let request = harness.request();
    let mut future = harness.call(request).await?;
    let result = harness.drive(&mut future, usize::MAX).await.map_err(Stuck::describe)?;
    if let Some(Err(failure)) = result {
        return Err(format!("the call that was ready failed: {failure}"));
    }
    drop((result, future));
    harness.drop_service();
    harness.freed("after the call").await
}

clause! {
    /// A clone of a service that is ready has to be polled ready itself.
    readiness_is_absent_in_a_clone, absent
}

async fn absent<E: Exchange, L: ContractedLayer<E>>(contract: &Contract<E, L>) -> ClauseResult {
    let mut harness = Harness::new(contract).await;
    harness.handle.set_capacity(1);
    let _ = harness.poll_ready();
    let mut clone = harness.service().clone();
    if harness.task.poll(|cx| clone.poll_ready(cx)).is_ready() {
        return Err(
            "a clone of a service that is ready is ready too, although the original has the only \
                    permit: a clone polls the inner service itself"
                .to_owned(),
        );
    }
    harness.drop_service();
    if !harness.task.is_woken() {
        return Err("the original was dropped unused and its permit is free, but the clone that \
                    waits for it was not woken"
            .to_owned());
    }
    match harness.task.poll(|cx| clone.poll_ready(cx)) {
        Poll::Ready(Ok(())) => Ok(()),
        _ => Err("the clone is not ready although the permit is free".to_owned()),
    }
}

clause! {
    /// While the inner service is not ready, neither is the layer's; it wakes the caller when that
    /// changes.
    readiness_passes_through, passes
}

async fn passes<E: Exchange, L: ContractedLayer<E>>(contract: &Contract<E, L>) -> ClauseResult {
    let mut harness = Harness::new(contract).await;
    harness.handle.set_capacity(0);
    if harness.poll_ready().is_ready() {
        return Err("it is ready although the inner service is not: a caller that could wait, or \
                    use another service, is made to call"
            .to_owned());
    }
    // The second poll has another waker, which is the one to wake.
    if harness.poll_ready().is_ready() {
        return Err("it is ready at the second poll although the inner service is not".to_owned());
    }
    harness.handle.set_capacity(1);
    if !harness.task.is_woken() {
        return Err("the inner service became ready, and the waker of the latest poll was not \
                    woken"
            .to_owned());
    }
    match harness.poll_ready() {
        Poll::Ready(Ok(())) => Ok(()),
        Poll::Ready(Err(failure)) => Err(format!("readiness failed: {failure}")),
        Poll::Pending => Err("it is not ready although the inner service is".to_owned()),
    }
}

clause! {
    /// An error of the inner service's `poll_ready` passes through the layer.
    readiness_errors_pass_through, errors
}

async fn errors<E: Exchange, L: ContractedLayer<E>>(contract: &Contract<E, L>) -> ClauseResult {
    let mut harness = Harness::new(contract).await;
    harness.handle.break_down();
    match harness.poll_ready() {
        Poll::Ready(Err(failure)) if has_message(&failure, BROKEN) => Ok(()),
        Poll::Ready(Err(failure)) => Err(format!(
            "the inner service's error is lost: neither `{failure}` nor its sources say {BROKEN:?}"
        )),
        Poll::Ready(Ok(())) => {
            Err("it is ready although the inner service has failed permanently".to_owned())
        }
        Poll::Pending => {
            Err("it waits for an inner service that has failed permanently".to_owned())
        }
    }
}

fn has_message(failure: &Failure, message: &str) -> bool {
    let mut source = Some(failure as &(dyn std::error::Error + 'static));
    while let Some(error) = source {
        if error.to_string().contains(message) {
            return true;
        }
        source = error.source();
    }
    false
}

clause! {
    /// The layer itself never fails in `poll_ready`, whatever happened before: such an error is
    /// terminal, and a caller discards the service. What it refuses, it refuses in `call`. (tower#43)
    poll_ready_never_fails_by_itself, never_fails
}

async fn never_fails<E: Exchange, L: ContractedLayer<E>>(
    contract: &Contract<E, L>,
) -> ClauseResult {
    let mut harness = Harness::new(contract).await;
    if let Some(refuse) = &contract.refuse {
        refuse(&harness.layer, &mut harness.request());
        check_ready(&mut harness, "after the layer was made to refuse calls")?;
    }
    let mut harness = Harness::new(contract).await;
    for reason in [Reason::ServerError, Reason::RateLimit, Reason::Auth, Reason::Network] {
        harness.handle.set_default(Action::fail(reason));
        for _ in 0..8 {
            check_ready(&mut harness, "after failed calls")?;
            let _ = harness.send().await?;
        }
    }
    check_ready(&mut harness, "after failed calls")
}

fn check_ready<E: Exchange, L: ContractedLayer<E>>(
    harness: &mut Harness<'_, E, L>,
    when: &str,
) -> ClauseResult {
    match harness.poll_ready() {
        Poll::Ready(Err(failure)) => Err(format!(
            "{when}, `poll_ready` fails with `{failure}` although the inner service works: \
             refuse in `call` instead"
        )),
        _ => Ok(()),
    }
}
