//! The contract of every layer.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::{
    convert::Infallible,
    pin::Pin,
    task::{Context, Poll},
};

use futures_core::Stream;
use steadfast_core::{CallContext, Failure, Target};
use steadfast_supervise::{
    Actors, AgentRun, GhostSweep, RunHandle, RunRegistry, Sweeping, Watchdog, WatchdogLayer,
    future::ResponseFuture,
};
use steadfast_testkit::{Action, Contract, Exchange, Pieces, Read, SECRET, contract};

/// Runs of an agent.
#[derive(Clone, Copy, Debug)]
struct Runs;

#[derive(Debug)]
struct Report {
    _pieces: Pieces,
}

#[derive(Debug)]
struct NoPieces;

impl Stream for NoPieces {
    type Item = Result<Infallible, Failure>;

    fn poll_next(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        Poll::Ready(None)
    }
}

impl Read for Report {
    type Head = &'static str;
    type Piece = Infallible;
    type Pieces = NoPieces;

    fn read(self) -> (&'static str, NoPieces) {
        ("reported", NoPieces)
    }
}

impl Exchange for Runs {
    type Request = AgentRun<&'static str>;
    type Reply = Report;

    fn request(&self) -> Self::Request {
        let context = CallContext::new().with_target(Target::new("probe"));
        AgentRun::new(SECRET).with_context(context).with_destination("a channel")
    }

    fn same(&self, sent: &Self::Request, received: &Self::Request) -> bool {
        sent.input == received.input
            && sent.max_steps() == received.max_steps()
            && sent.destination() == received.destination()
    }

    fn reply(&self, pieces: Pieces) -> Report {
        Report { _pieces: pieces }
    }
}

fn watchdog() -> Contract<Runs, WatchdogLayer> {
    Contract::new(Runs, WatchdogLayer::default)
        .refuses(|layer: &WatchdogLayer, _| layer.registry().stop())
        .state(Action::answer(), |layer| layer.registry().snapshot().counts.completed)
        .held(|layer| layer.registry().snapshot().running as u64)
        .allocates(6, "the run's record: its name and its caller's, in the registry")
}

contract!(watchdog_of_runs, watchdog());

contract!(
    watchdog_that_fires,
    watchdog().state(Action::hang(), |layer| layer.registry().snapshot().counts.watchdog_timeout)
);

#[test]
fn auto_traits_beyond_the_contract() {
    fn all<T: Send + Sync + 'static>() {}
    fn clone<T: Clone>() {}
    fn send<T: Send>() {}
    all::<RunRegistry>();
    all::<RunHandle>();
    all::<Actors<String>>();
    all::<Sweeping>();
    all::<GhostSweep>();
    clone::<Actors<std::cell::Cell<u8>>>();
    type Inner = tower::util::BoxCloneService<AgentRun<String>, String, Failure>;
    send::<ResponseFuture<Inner, String>>();
    send::<Watchdog<Inner>>();
}
