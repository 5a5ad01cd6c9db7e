//! The contract of every layer, for those whose requests are the same inside and outside.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

mod common;

use std::{
    convert::Infallible,
    future::{Ready, ready},
    pin::Pin,
    task::{Context, Poll},
};

use common::ledger;
use steadfast_core::{Failure, Reason};
use steadfast_deliver::{
    Announcement, DeadLetterLayer, DeadLetters, DeliveryReceipt, DeliveryRetryLayer,
    LetterQueuePolicy, RouteFallbackLayer,
};
use steadfast_testkit::{
    Action, Aspect, Contract, Exchange, Pieces, Plain, PlainReply, Read, SECRET, contract,
};
use tower::{
    Layer, service_fn,
    util::{MapResponse, ServiceFn},
};

/// Announcements, answered by plain values.
#[derive(Clone, Copy, Debug)]
struct Deliveries;

impl Exchange for Deliveries {
    type Request = Announcement;
    type Reply = PlainReply;

    fn request(&self) -> Announcement {
        Announcement::new("key", "channel", SECRET).with_session("session")
    }

    fn same(&self, sent: &Announcement, received: &Announcement) -> bool {
        sent.key == received.key
            && sent.text == received.text
            && sent.session == received.session
            && sent.destination == received.destination
            && sent.kind == received.kind
    }

    fn reply(&self, pieces: Pieces) -> PlainReply {
        Plain.reply(pieces)
    }
}

/// A receipt, as the kit reads it.
#[derive(Debug)]
struct Answered;

struct Nothing;

impl Read for Answered {
    type Head = &'static str;
    type Piece = Infallible;
    type Pieces = Nothing;

    fn read(self) -> (&'static str, Nothing) {
        ("answered", Nothing)
    }
}

impl futures_core::Stream for Nothing {
    type Item = Result<Infallible, Failure>;

    fn poll_next(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        Poll::Ready(None)
    }
}

/// A layer whose service takes a channel and replies with receipts.
#[derive(Clone, Debug)]
struct Around<L>(L);

type Channel<S> = MapResponse<S, fn(PlainReply)>;

impl<S, L: Layer<Channel<S>>> Layer<S> for Around<L> {
    type Service = MapResponse<L::Service, fn(DeliveryReceipt) -> Answered>;

    fn layer(&self, inner: S) -> Self::Service {
        let channel: Channel<S> = MapResponse::new(inner, drop);
        MapResponse::new(self.0.layer(channel), |_| Answered)
    }
}

contract!(
    retry,
    Contract::new(Plain, DeliveryRetryLayer::default)
        .state(Action::answer(), |layer| layer.handle().snapshot().calls)
        .none(Aspect::Refusal, "every message is sent")
        .none(Aspect::Held, "its timer is a part of the future")
);

type Parent = ServiceFn<fn(Announcement) -> Ready<Result<(), Failure>>>;

/// A parent that fails at once: what is tested is the channel.
fn no_parent() -> Parent {
    service_fn(|_| ready(Err(Failure::new(Reason::Overloaded, "the parent is busy"))))
}

contract!(
    route,
    Contract::new(Deliveries, || Around(RouteFallbackLayer::new(no_parent(), ledger())))
        .state(Action::fail(Reason::Overloaded), |layer| layer.0.handle().snapshot().parent_failed)
        .none(Aspect::Refusal, "every message is sent")
        .none(Aspect::Held, "the channel that is ready is a part of the future")
        .allocates(12, "a timer for the parent, its failure, and the key in the ledger")
);

fn letters() -> DeadLetterLayer {
    let channel: Parent = service_fn(|_| ready(Ok(())));
    let policy = LetterQueuePolicy::default();
    DeadLetterLayer::new(DeadLetters::in_memory(policy, ledger(), channel).unwrap())
}

contract!(
    dead_letters,
    Contract::new(Deliveries, || Around(letters()))
        .state(Action::fail(Reason::Overloaded), |layer| layer.0.handle().snapshot().accepted)
        .none(Aspect::Refusal, "every message is sent")
        .none(Aspect::Held, "what is under way is a part of the future")
);
