//! Among tower's own layers.

use std::time::Duration;

use futures_core::Stream;
use steadfast_core::{Failure, Reason};
use tokio::task::JoinSet;
use tower::{ServiceExt, buffer::Buffer, limit::ConcurrencyLimit};
use tower_service::Service;

use crate::{
    Act, Contract, Exchange, Probe, ProbeHandle, Read, contract::ContractedLayer, scene::Found,
    watch::PATIENCE,
};

/// Calls at the same time: enough for each to wait behind others, few enough for a layer that
/// refuses beyond some number.
const CALLS: usize = 8;

clause! {
    /// With tower's `ConcurrencyLimit` of one around it, every call gets its turn and the permit
    /// returns.
    works_in_a_concurrency_limit, in_a_limit
}

async fn in_a_limit<E: Exchange, L: ContractedLayer<E>>(contract: &Contract<E, L>) -> Found {
    for act in plans() {
        let (probe, handle) = Probe::new(contract.exchange.clone());
        let service = ConcurrencyLimit::new(contract.layer().await.layer(probe), 1);
        crowd(contract, service, &handle, act, "inside `ConcurrencyLimit(1)`").await?;
    }
    Ok(())
}

clause! {
    /// With tower's `ConcurrencyLimit` of one inside it, it never waits for a permit that it holds
    /// itself, and every permit returns.
    works_around_a_concurrency_limit, around_a_limit
}

async fn around_a_limit<E: Exchange, L: ContractedLayer<E>>(contract: &Contract<E, L>) -> Found {
    for act in plans() {
        let (probe, handle) = Probe::new(contract.exchange.clone());
        let limit = ConcurrencyLimit::new(probe, 1);
        let (probe, _) = Probe::over(contract.exchange.clone(), limit);
        let service = contract.layer().await.layer(probe);
        crowd(contract, service, &handle, act, "around `ConcurrencyLimit(1)`").await?;
    }
    Ok(())
}

clause! {
    /// With tower's `Buffer` around it, every call gets its turn.
    works_in_a_buffer, in_a_buffer
}

async fn in_a_buffer<E: Exchange, L: ContractedLayer<E>>(contract: &Contract<E, L>) -> Found {
    for act in plans() {
        let (probe, handle) = Probe::new(contract.exchange.clone());
        let inner = contract.layer().await.layer(probe).map_err(Into::<Failure>::into);
        let service = Buffer::new(inner, 1).map_err(Failure::from);
        crowd(contract, service, &handle, act, "inside `Buffer(1)`").await?;
    }
    Ok(())
}

clause! {
    /// With tower's `Buffer` inside it, every call gets its turn.
    works_around_a_buffer, around_a_buffer
}

async fn around_a_buffer<E: Exchange, L: ContractedLayer<E>>(contract: &Contract<E, L>) -> Found {
    for act in plans() {
        let (probe, handle) = Probe::new(contract.exchange.clone());
        let buffer = Buffer::new(probe, 1);
        let (probe, _) = Probe::over(contract.exchange.clone(), buffer);
        let service = contract.layer().await.layer(probe);
        crowd(contract, service, &handle, act, "around `Buffer(1)`").await?;
    }
    Ok(())
}

fn plans() -> [Act; 4] {
    [
        Act::answer(),
        Act::answer().slow(),
        Act::fail(Reason::Network).slow(),
        Act::fail_late(Reason::Network).slow(),
    ]
}

/// Many calls at once, every third of which meets `act` first: all end, and when nothing fails
/// none does. Then the permits are back.
async fn crowd<E, L, S>(
    contract: &Contract<E, L>,
    service: S,
    handle: &ProbeHandle,
    act: Act,
    place: &str,
) -> Found
where
    E: Exchange,
    L: ContractedLayer<E>,
    S: Service<E::Request, Response: Read, Error: Into<Failure>, Future: Send + 'static>
        + Clone
        + Send
        + 'static,
{
    let well = act.head == crate::act::Ending::Well && act.body == crate::act::Ending::Well;
    if well {
        handle.usually(act);
    } else {
        handle.next((0..CALLS).map(|n| if n % 3 == 0 { act } else { Act::answer().slow() }));
    }
    let mut calls = JoinSet::new();
    for _ in 0..CALLS {
        let (mut service, request) = (service.clone(), contract.exchange.request());
        calls.spawn(async move {
            // The service stays until the end, as one of a connection does.
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
            if let Ok(Err(failure)) = call
                && well
                && !(contract.refuses_crowds && failure.reason().is_refusal())
            {
                return Err(format!("{place}, a call failed: {failure}"));
            }
        }
        Ok(())
    };
    match tokio::time::timeout(PATIENCE, all).await {
        Ok(found) => found?,
        Err(_) => {
            return Err(format!(
                "{place}, {ended} of {CALLS} calls ended within an hour, the rest are stuck: a \
                 permit is held while another is waited for, or was never given back"
            ));
        }
    }
    // Whoever comes now finds it free.
    let (mut last, request) = (service, contract.exchange.request());
    handle.usually(Act::answer());
    handle.next([]);
    let ready = tokio::time::timeout(Duration::from_secs(1), last.ready()).await;
    match ready {
        Err(_) => Err(format!("{place}, a permit is not back after all calls have ended")),
        Ok(Err(error)) => Err(format!("{place}, `poll_ready` fails: {}", error.into())),
        Ok(Ok(service)) => {
            drop(service.call(request));
            Ok(())
        }
    }
}
