//! What passes unchanged.

use steadfast_core::Failure;
use tower_service::Service;

use crate::{
    Act, Contract, Exchange, Read, Watch,
    contract::ContractedLayer,
    scene::{Found, Scene},
    watch::Stuck,
};

clause! {
    /// A request reaches the inner service as it came, its context aside, and once.
    a_request_passes_unchanged, request
}

async fn request<E: Exchange, L: ContractedLayer<E>>(contract: &Contract<E, L>) -> Found {
    let mut scene = Scene::new(contract).await;
    scene.handle.record();
    if let Err(failure) = scene.ask_all().await? {
        return Err(format!("a call failed that the inner service answers: {failure}"));
    }
    let calls = scene.handle.calls();
    if calls != 1 {
        return Err(format!("the inner service was called {calls} times for one answer"));
    }
    match scene.probe.last() {
        Some(came) if contract.exchange.same(&contract.exchange.request(), &came) => Ok(()),
        _ => Err("the request that reached the inner service says something else than the one \
                  that was sent"
            .to_owned()),
    }
}

clause! {
    /// A reply reaches the caller as the inner service gave it: its head, its pieces, and the end of
    /// them, once each.
    a_reply_passes_unchanged, reply
}

async fn reply<E: Exchange, L: ContractedLayer<E>>(contract: &Contract<E, L>) -> Found {
    for act in [Act::answer(), Act::answer().slow(), Act::answer().with_pieces(1)] {
        let mut scene = Scene::new(contract).await;
        scene.handle.usually(act);
        let request = scene.request();
        let gave = transcript(&mut scene.probe.clone(), request).await?;
        let request = scene.request();
        let came = transcript(scene.service(), request).await?;
        if gave != came {
            return Err(format!("the inner service gave {gave:?}, and {came:?} came"));
        }
    }
    Ok(())
}

/// All that can be seen of a reply.
async fn transcript<S, Req>(service: &mut S, request: Req) -> Result<Vec<String>, String>
where
    S: Service<Req, Response: Read, Error: Into<Failure>>,
{
    let mut watch = Watch::new();
    let ready = watch.finish(|cx| service.poll_ready(cx)).await.map_err(Stuck::describe)?;
    ready.map_err(|error| format!("`poll_ready` failed: {}", error.into()))?;
    let mut future = Box::pin(service.call(request));
    let reply = watch.finish(|cx| future.as_mut().poll(cx)).await.map_err(Stuck::describe)?;
    let reply = reply.map_err(|error| format!("a call failed: {}", error.into()))?;
    let (head, pieces) = reply.read();
    let mut seen = vec![format!("{head:?}")];
    let mut pieces = Box::pin(pieces);
    loop {
        let piece = watch.finish(|cx| futures_core::Stream::poll_next(pieces.as_mut(), cx)).await;
        match piece.map_err(Stuck::describe)? {
            Some(Ok(piece)) => seen.push(format!("{piece:?}")),
            Some(Err(failure)) => seen.push(format!("failed: {failure}")),
            None => return Ok(seen),
        }
    }
}
