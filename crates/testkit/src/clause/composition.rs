//! Together with tower's own layers.

use std::time::Duration;

use futures_core::Stream;
use steadfast_core::{Failure, Reason};
use tokio::task::JoinSet;
use tower::{ServiceExt, buffer::Buffer, limit::ConcurrencyLimit};
use tower_service::Service;

use crate::{
    Action, Contract, Exchange, Probe, ProbeHandle, Read, contract::ContractedLayer,
    harness::ClauseResult, task::WAIT_LIMIT,
};

/// Concurrent calls: enough for each to wait for others, few enough for a layer that refuses calls
/// beyond some number.
const CALLS: usize = 8;

clause! {
    /// With tower's `ConcurrencyLimit` of one around it, every call ends and the permit is released.
    works_in_a_concurrency_limit, inside_limit
}

async fn inside_limit<E: Exchange, L: ContractedLayer<E>>(
    contract: &Contract<E, L>,
) -> ClauseResult {
    for action in plans() {
        let (probe, handle) = Probe::new(contract.exchange.clone());
        let service = ConcurrencyLimit::new(contract.layer().await.layer(probe), 1);
        concurrent_calls(contract, service, &handle, action, "inside `ConcurrencyLimit(1)`")
            .await?;
    }
    Ok(())
}

clause! {
    /// With tower's `ConcurrencyLimit` of one inside it, it never waits for a permit that it holds
    /// itself, and every permit is released.
    works_around_a_concurrency_limit, around_limit
}

async fn around_limit<E: Exchange, L: ContractedLayer<E>>(
    contract: &Contract<E, L>,
) -> ClauseResult {
    for action in plans() {
        let (probe, handle) = Probe::new(contract.exchange.clone());
        let limit = ConcurrencyLimit::new(probe, 1);
        let (probe, _) = Probe::forwarding(contract.exchange.clone(), limit);
        let service = contract.layer().await.layer(probe);
        concurrent_calls(contract, service, &handle, action, "around `ConcurrencyLimit(1)`")
            .await?;
    }
    Ok(())
}

clause! {
    /// With tower's `Buffer` around it, every call ends.
    works_in_a_buffer, inside_buffer
}

async fn inside_buffer<E: Exchange, L: ContractedLayer<E>>(
    contract: &Contract<E, L>,
) -> ClauseResult {
    for action in plans() {
        let (probe, handle) = Probe::new(contract.exchange.clone());
        let inner = contract.layer().await.layer(probe).map_err(Into::<Failure>::into);
        let service = Buffer::new(inner, 1).map_err(Failure::from);
        concurrent_calls(contract, service, &handle, action, "inside `Buffer(1)`").await?;
    }
    Ok(())
}

clause! {
    /// With tower's `Buffer` inside it, every call ends.
    works_around_a_buffer, around_buffer
}

async fn around_buffer<E: Exchange, L: ContractedLayer<E>>(
    contract: &Contract<E, L>,
) -> ClauseResult {
    for action in plans() {
        let (probe, handle) = Probe::new(contract.exchange.clone());
        let buffer = Buffer::new(probe, 1);
        let (probe, _) = Probe::forwarding(contract.exchange.clone(), buffer);
        let service = contract.layer().await.layer(probe);
        concurrent_calls(contract, service, &handle, action, "around `Buffer(1)`").await?;
    }
    Ok(())
}

fn plans() -> [Action; 4] {
    [
        Action::answer(),
        Action::answer().slow(),
        Action::fail(Reason::Network).slow(),
        Action::fail_late(Reason::Network).slow(),
    ]
}

/// Makes [`CALLS`] calls at once: all of them get `action` if it succeeds, otherwise every third. All
/// end, and none fails unless the probe does. Afterwards the permits are released.
async fn concurrent_calls<E, L, S>(
    contract: &Contract<E, L>,
    service: S,
    handle: &ProbeHandle,
    action: Action,
    setup: &str,
) -> ClauseResult
where
    E: Exchange,
    L: ContractedLayer<E>,
    S: Service<E::Request, Response: Read, Error: Into<Failure>, Future: Send + 'static>
        + Clone
        + Send
        + 'static,
{
    let succeeds = action.head == crate::action::Ending::Complete
        && action.body == crate::action::Ending::Complete;
    if succeeds {
        handle.set_default(action);
    } else {
        handle
            .script((0..CALLS).map(|n| if n % 3 == 0 { action } else { Action::answer().slow() }));
    }
    let mut calls = JoinSet::new();
    for _ in 0..CALLS {
        let (mut service, request) = (service.clone(), contract.exchange.request());
        calls.spawn(async move {
            // The service is kept until the end, like that of a connection.
            let ready = service.ready().await.map_err(Into::<Failure>::into)?;
            let reply = ready.call(request).await.map_err(Into::<Failure>::into)?;
            let mut pieces = Box::pin(reply.read().1);
            while let Some(piece) = std::future::poll_fn(|cx| pieces.as_mut().poll_next(cx)).await {
                drop(piece?);
            }
            Ok::<_, Failure>(())
        });
    }
    let mut ended = 0;
    let all = async {
        while let Some(call) = calls.join_next().await {
            ended += 1;
            let call = call.map_err(|panic| format!("{setup}, a call panicked: {panic}"))?;
            if let Err(failure) = call
                && succeeds
                && !(contract.refuses_crowds && failure.reason().is_refusal())
            {
                return Err(format!("{setup}, a call failed: {failure}"));
            }
        }
        Ok(())
    };
    match tokio::time::timeout(WAIT_LIMIT, all).await {
        Ok(found) => found?,
        Err(_) => {
            return Err(format!(
                "{setup}, {ended} of {CALLS} calls ended within an hour, the others are stuck: a \
                 permit is held while another is waited for, or was never released"
            ));
        }
    }
    // A further call finds a permit.
    let (mut last, request) = (service, contract.exchange.request());
    handle.set_default(Action::answer());
    handle.script([]);
    let ready = tokio::time::timeout(Duration::from_secs(1), last.ready()).await;
    match ready {
        Err(_) => Err(format!("{setup}, a permit is still held after all calls have ended")),
        Ok(Err(error)) => Err(format!("{setup}, `poll_ready` fails: {}", error.into())),
        Ok(Ok(service)) => {
            drop(service.call(request));
            Ok(())
        }
    }
}
