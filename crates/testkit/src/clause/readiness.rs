//! Readiness: taken before a call, kept until it, and nobody else's.

use std::task::Poll;

use steadfast_core::{Failure, Reason};
use tower_service::Service;

use crate::{
    Act, Contract, Exchange,
    contract::ContractedLayer,
    probe::BROKEN,
    scene::{Found, Scene},
    watch::{PATIENCE, Stuck},
};

clause! {
    /// The layer never calls an inner service, or a clone of one, that was not polled ready since its
    /// last call. (tower#547)
    ready_before_call, ready_before_call_
}

async fn ready_before_call_<E: Exchange, L: ContractedLayer<E>>(
    contract: &Contract<E, L>,
) -> Found {
    use Reason::{Network, Overloaded};
    let plans: [&[Act]; 4] = [
        &[Act::answer()],
        &[Act::fail(Network), Act::answer()],
        &[Act::fail(Network), Act::fail_late(Overloaded).slow(), Act::fail(Network)],
        &[Act::fail_late(Network).with_pieces(0)],
    ];
    for plan in plans {
        let mut scene = Scene::new(contract).await;
        for _ in 0..2 {
            scene.handle.next(plan.iter().copied());
            // It may fail; how is not this clause's concern.
            let _ = scene.ask_all().await?;
            check_use(&scene)?;
        }
        // Two at once from one service, and one from a clone of it.
        scene.handle.next(plan.iter().copied());
        let (one, two) = (scene.request(), scene.request());
        let mut first = scene.call(one).await?;
        let mut second = scene.call(two).await?;
        let clone = scene.service().clone();
        for future in [&mut first, &mut second] {
            scene.drive(future, usize::MAX).await.map_err(Stuck::describe)?;
        }
        *scene.service() = clone;
        let _ = scene.ask_all().await?;
        check_use(&scene)?;
    }
    Ok(())
}

fn check_use<E: Exchange, L: ContractedLayer<E>>(scene: &Scene<'_, E, L>) -> Found {
    match scene.handle.misuse().first() {
        None => Ok(()),
        Some(what) => Err(format!(
            "of the inner service: {what}. A clone is not ready because the original was: take \
             the one that is (`std::mem::replace`), or poll the clone"
        )),
    }
}

clause! {
    /// Readiness is given once for each call: polling again before the call neither loses it nor takes
    /// more of it from the inner service. (tower#408)
    readiness_is_kept_until_used, kept
}

async fn kept<E: Exchange, L: ContractedLayer<E>>(contract: &Contract<E, L>) -> Found {
    let mut scene = Scene::new(contract).await;
    scene.handle.places(1);
    for poll in 1..=3 {
        if !matches!(scene.poll_ready(), Poll::Ready(Ok(()))) {
            return Err(format!(
                "poll {poll} of `poll_ready` was not ready, with one place free and nobody else \
                 about: what was ready stays so until it is called"
            ));
        }
        tokio::time::advance(PATIENCE).await;
    }
    let granted = scene.handle.granted();
    if granted != 1 {
        return Err(format!(
            "three polls of `poll_ready` took the readiness of the inner service {granted} times; \
             it is needed once"
        ));
    }
    let request = scene.request();
    let mut future = scene.call(request).await?;
    let result = scene.drive(&mut future, usize::MAX).await.map_err(Stuck::describe)?;
    if let Some(Err(failure)) = result {
        return Err(format!("the call that was ready failed: {failure}"));
    }
    drop((result, future));
    scene.drop_service();
    scene.freed("after the call").await
}

clause! {
    /// A clone of a service that is ready has to become so by itself.
    readiness_is_absent_in_a_clone, absent
}

async fn absent<E: Exchange, L: ContractedLayer<E>>(contract: &Contract<E, L>) -> Found {
    let mut scene = Scene::new(contract).await;
    scene.handle.places(1);
    let _ = scene.poll_ready();
    let mut clone = scene.service().clone();
    if scene.watch.poll(|cx| clone.poll_ready(cx)).is_ready() {
        return Err(
            "a clone of a service that is ready said to be ready too, with the only place \
                    taken by the original: a clone polls the inner service itself"
                .to_owned(),
        );
    }
    scene.drop_service();
    if !scene.watch.is_woken() {
        return Err("the original was dropped unused and its place is free, but the clone that \
                    waits for it was not woken"
            .to_owned());
    }
    match scene.watch.poll(|cx| clone.poll_ready(cx)) {
        Poll::Ready(Ok(())) => Ok(()),
        _ => Err("the clone is not ready although the place is free".to_owned()),
    }
}

clause! {
    /// While the inner service is not ready, neither is the layer's; it wakes its caller when that
    /// changes.
    readiness_passes_through, passes
}

async fn passes<E: Exchange, L: ContractedLayer<E>>(contract: &Contract<E, L>) -> Found {
    let mut scene = Scene::new(contract).await;
    scene.handle.places(0);
    if scene.poll_ready().is_ready() {
        return Err("it is ready although the inner service is not: a caller that could have \
                    waited, or gone elsewhere, is made to call"
            .to_owned());
    }
    // The second poll has another waker, which is the one to wake.
    if scene.poll_ready().is_ready() {
        return Err("it is ready at the second poll although the inner service is not".to_owned());
    }
    scene.handle.places(1);
    if !scene.watch.is_woken() {
        return Err("the inner service became ready, and the waker of the latest poll was not \
                    woken"
            .to_owned());
    }
    match scene.poll_ready() {
        Poll::Ready(Ok(())) => Ok(()),
        Poll::Ready(Err(failure)) => Err(format!("readiness failed: {failure}")),
        Poll::Pending => Err("it is not ready although the inner service is".to_owned()),
    }
}

clause! {
    /// An inner service that is broken for good says so through the layer.
    readiness_errors_pass_through, errors
}

async fn errors<E: Exchange, L: ContractedLayer<E>>(contract: &Contract<E, L>) -> Found {
    let mut scene = Scene::new(contract).await;
    scene.handle.break_down();
    match scene.poll_ready() {
        Poll::Ready(Err(failure)) if says(&failure, BROKEN) => Ok(()),
        Poll::Ready(Err(failure)) => {
            Err(format!("the inner service's words are lost; it said {BROKEN:?}, not {failure}"))
        }
        Poll::Ready(Ok(())) => {
            Err("it is ready although the inner service is broken for good".to_owned())
        }
        Poll::Pending => Err("it waits for an inner service that is broken for good".to_owned()),
    }
}

fn says(failure: &Failure, words: &str) -> bool {
    let mut source = Some(failure as &(dyn std::error::Error + 'static));
    while let Some(error) = source {
        if error.to_string().contains(words) {
            return true;
        }
        source = error.source();
    }
    false
}

clause! {
    /// The layer itself never fails in `poll_ready`, whatever it has seen: that is terminal, and a
    /// caller throws the service away. What it refuses, it refuses in `call`. (tower#43)
    poll_ready_never_fails_by_itself, never_fails
}

async fn never_fails<E: Exchange, L: ContractedLayer<E>>(contract: &Contract<E, L>) -> Found {
    let mut scene = Scene::new(contract).await;
    if let Some(refuse) = &contract.refuse {
        refuse(&scene.layer, &mut scene.request());
        check_ready(&mut scene, "after the layer was made to refuse calls")?;
    }
    let mut scene = Scene::new(contract).await;
    for reason in [Reason::ServerError, Reason::RateLimit, Reason::Auth, Reason::Network] {
        scene.handle.usually(Act::fail(reason));
        for _ in 0..8 {
            check_ready(&mut scene, "after failed calls")?;
            let _ = scene.ask().await?;
        }
    }
    check_ready(&mut scene, "after failed calls")
}

fn check_ready<E: Exchange, L: ContractedLayer<E>>(
    scene: &mut Scene<'_, E, L>,
    when: &str,
) -> Found {
    match scene.poll_ready() {
        Poll::Ready(Err(failure)) => Err(format!(
            "{when}, `poll_ready` fails with `{failure}` although the inner service is well: \
             refuse in `call` instead"
        )),
        _ => Ok(()),
    }
}
