//! Requests and replies pass unchanged.

use steadfast_core::Failure;
use tower_service::Service;

use crate::{
    Action, Contract, Exchange, Read, TestTask,
    contract::ContractedLayer,
    harness::{ClauseResult, Harness},
    task::Stuck,
};

clause! {
    /// A request reaches the inner service once, unchanged apart from its context.
    a_request_passes_unchanged, request
}

async fn request<E: Exchange, L: ContractedLayer<E>>(contract: &Contract<E, L>) -> ClauseResult {
    let mut harness = Harness::new(contract).await;
    harness.handle.record();
    if let Err(failure) = harness.send_and_read().await? {
        return Err(format!("a call failed that the inner service answers: {failure}"));
    }
    let calls = harness.handle.calls();
    if calls != 1 {
        return Err(format!("the inner service was called {calls} times for one answer"));
    }
    match harness.probe.last() {
        Some(received) if contract.exchange.same(&contract.exchange.request(), &received) => Ok(()),
        _ => Err("the request that reached the inner service differs from the one that was sent"
            .to_owned()),
    }
}

clause! {
    /// A reply reaches the caller as the inner service gave it: its head, its pieces, and their end,
    /// once each.
    a_reply_passes_unchanged, reply
}

async fn reply<E: Exchange, L: ContractedLayer<E>>(contract: &Contract<E, L>) -> ClauseResult {
    for action in [Action::answer(), Action::answer().slow(), Action::answer().with_pieces(1)] {
        let mut harness = Harness::new(contract).await;
        harness.handle.set_default(action);
        let request = harness.request();
        let bare = transcript(&mut harness.probe.clone(), request).await?;
        let request = harness.request();
        let received = transcript(harness.service(), request).await?;
        if bare != received {
            return Err(format!("the inner service replied {bare:?}, the layer {received:?}"));
        }
    }
    Ok(())
}

/// Everything a caller can observe of a reply.
async fn transcript<S, Req>(service: &mut S, request: Req) -> Result<Vec<String>, String>
where
    S: Service<Req, Response: Read, Error: Into<Failure>>,
{
    let mut task = TestTask::new();
    let ready = task.finish(|cx| service.poll_ready(cx)).await.map_err(Stuck::describe)?;
    ready.map_err(|error| format!("`poll_ready` failed: {}", error.into()))?;
    let mut future = Box::pin(service.call(request));
    let reply = task.finish(|cx| future.as_mut().poll(cx)).await.map_err(Stuck::describe)?;
    let reply = reply.map_err(|error| format!("a call failed: {}", error.into()))?;
    let (head, pieces) = reply.read();
    let mut seen = vec![format!("{head:?}")];
    let mut pieces = Box::pin(pieces);
    loop {
        let piece = task.finish(|cx| futures_core::Stream::poll_next(pieces.as_mut(), cx)).await;
        match piece.map_err(Stuck::describe)? {
            Some(Ok(piece)) => seen.push(format!("{piece:?}")),
            Some(Err(failure)) => seen.push(format!("failed: {failure}")),
            None => return Ok(seen),
        }
    }
}
