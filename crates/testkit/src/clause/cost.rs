//! Allocations of the success path.

use std::{
    pin::pin,
    task::{Context, Poll, Waker},
};

use steadfast_core::Failure;
use tower_service::Service;

use crate::{
    Action, Contract, Exchange, Read,
    contract::ContractedLayer,
    harness::{ClauseResult, Harness, poll_quietly},
};

clause! {
    /// A call that succeeds at once, and its reply of three pieces, make no more allocations than the
    /// bare service, or at most as many more as [`Contract::allocates`] declares. Not applicable
    /// without the feature `allocations`.
    allocations, count
}

async fn count<E: Exchange, L: ContractedLayer<E>>(contract: &Contract<E, L>) -> ClauseResult {
    if cfg!(not(feature = "allocations")) {
        println!("not applicable: without the feature `allocations` they are not counted");
    }
    let mut harness = Harness::new(contract).await;
    harness.handle.set_default(Action::answer());
    let mut bare = harness.probe.clone();
    // The first calls allocate what all of them share.
    for _ in 0..2 {
        once(&mut bare, harness.request())?;
        let request = harness.request();
        once(harness.service(), request)?;
    }
    let bare = once(&mut bare, harness.request())?;
    let request = harness.request();
    let ours = once(harness.service(), request)?;
    // A clone, as for each connection of a server.
    let mut clone = harness.service().clone();
    let cloned = once(&mut clone, harness.request())?;
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
fn allocations_of(run: impl FnOnce()) -> u64 {
    allocation_counter::measure(run).count_total
}

/// Without the counting allocator, there is no count.
#[cfg(not(feature = "allocations"))]
fn allocations_of(run: impl FnOnce()) -> u64 {
    run();
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
                return Err("a reply failed that the inner service gave in full");
            }
            Poll::Pending => return Err("a reply is pending that the inner service gave at once"),
        }
    }
}
