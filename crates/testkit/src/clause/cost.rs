//! What a call that needs nothing pays.

use std::{
    pin::pin,
    task::{Context, Poll, Waker},
};

use steadfast_core::Failure;
use tower_service::Service;

use crate::{
    Act, Contract, Exchange, Read,
    contract::ContractedLayer,
    scene::{Found, Scene, poll_quietly},
};

clause! {
    /// A call that succeeds at once, and its reply of three pieces, make no allocations beyond those
    /// of the bare service, or at most as many as [`Contract::allocates`] says. Not applicable without
    /// the feature `allocations`.
    allocations, count
}

async fn count<E: Exchange, L: ContractedLayer<E>>(contract: &Contract<E, L>) -> Found {
    if cfg!(not(feature = "allocations")) {
        println!("not applicable: without the feature `allocations` nobody counts them");
    }
    let mut scene = Scene::new(contract).await;
    scene.handle.usually(Act::answer());
    let mut bare = scene.probe.clone();
    // What all calls share is made by the first ones.
    for _ in 0..2 {
        once(&mut bare, scene.request())?;
        let request = scene.request();
        once(scene.service(), request)?;
    }
    let bare = once(&mut bare, scene.request())?;
    let request = scene.request();
    let ours = once(scene.service(), request)?;
    // A clone, as for each connection of a server.
    let mut clone = scene.service().clone();
    let cloned = once(&mut clone, scene.request())?;
    let allowed = contract.allocations;
    for (what, all) in [("a call", ours), ("a call through a clone", cloned)] {
        let more = all.saturating_sub(bare);
        if more > allowed {
            return Err(format!(
                "{what} makes {more} allocations more than the bare service, which makes {bare}; \
                 {allowed} are allowed"
            ));
        }
    }
    Ok(())
}

/// Allocations of one call and its whole reply.
fn once<S, Req>(service: &mut S, request: Req) -> Result<u64, String>
where
    S: Service<Req, Response: Read, Error: Into<Failure>>,
{
    let mut result = Ok(());
    let count = allocations_of(|| result = at_once(service, request));
    result.map(|()| count).map_err(str::to_owned)
}

#[cfg(feature = "allocations")]
fn allocations_of(act: impl FnOnce()) -> u64 {
    allocation_counter::measure(act).count_total
}

/// The allocator is somebody else's, and does not tell.
#[cfg(not(feature = "allocations"))]
fn allocations_of(act: impl FnOnce()) -> u64 {
    act();
    0
}

fn at_once<S, Req>(service: &mut S, request: Req) -> Result<(), &'static str>
where
    S: Service<Req, Response: Read, Error: Into<Failure>>,
{
    let mut cx = Context::from_waker(Waker::noop());
    let Poll::Ready(Ok(())) = service.poll_ready(&mut cx) else {
        return Err("it is not ready although the inner service is");
    };
    let future = pin!(service.call(request));
    let reply = match future.poll(&mut cx) {
        Poll::Ready(Ok(reply)) => reply,
        Poll::Ready(Err(_)) => return Err("a call failed that the inner service answers"),
        Poll::Pending => return Err("a call is pending that the inner service answers at once"),
    };
    let (_, pieces) = reply.read();
    let mut pieces = pin!(pieces);
    loop {
        match poll_quietly(pieces.as_mut()) {
            Poll::Ready(None) => return Ok(()),
            Poll::Ready(Some(Ok(_))) => {}
            Poll::Ready(Some(Err(_))) => {
                return Err("a reply failed that the inner service gave whole");
            }
            Poll::Pending => return Err("a reply is pending that the inner service gave at once"),
        }
    }
}
