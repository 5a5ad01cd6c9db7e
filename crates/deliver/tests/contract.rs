//! The contract of every layer, for those whose requests are the same inside and outside.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

mod common;

use std::{
    convert::Infallible,
    future::{Ready, ready},
    pin::Pin,
    sync::atomic::{AtomicU64, Ordering},
    task::{Context, Poll},
};

use common::ledger;
use steadfast_core::{Failure, Reason};
use steadfast_deliver::{
    Announcement, Batch, BatchLayer, DeadLetterLayer, DeadLetters, DeliveryLedger, DeliveryReceipt,
    DeliveryRetryLayer, LetterQueuePolicy, ParentTurn, RouteFallbackLayer, SendOnce, SendOnceLayer,
};
use steadfast_testkit::{
    Action, Aspect, CLAUSES, Contract, ContractedLayer, Exchange, Pieces, Plain, PlainReply, Read,
    SECRET, check_clause, contract,
};
use tower::{
    Layer, service_fn,
    util::{MapRequest, MapResponse, ServiceFn},
};

/// Announcements, answered by plain values.
#[derive(Clone, Copy, Debug)]
struct Deliveries;

impl Exchange for Deliveries {
    type Request = Announcement;
    type Reply = PlainReply;

    fn request(&self) -> Announcement {
        // A key names one message.
        static MESSAGES: AtomicU64 = AtomicU64::new(0);
        let key = format!("key {}", MESSAGES.fetch_add(1, Ordering::Relaxed));
        Announcement::new(key, "channel", SECRET).with_session("session")
    }

    fn same(&self, sent: &Announcement, received: &Announcement) -> bool {
        // Each has another one.
        received.key.starts_with("key ")
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

/// Every clause, each in a runtime of its own, but for those that a layer can not keep by its purpose: it violates them in this way.
fn verify_but<E: Exchange, L: ContractedLayer<E>>(
    contract: impl Fn() -> Contract<E, L>,
    exceptions: &[(&str, &str)],
) {
    for clause in CLAUSES {
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
        let found = runtime.unwrap().block_on(check_clause(clause, &contract()));
        let found = found.err().map(|violation| violation.to_string());
        match (exceptions.iter().find(|(name, _)| name == clause), found) {
            (None, found) => assert_eq!(found, None),
            (Some((_, how)), found) => {
                assert!(found.as_ref().is_some_and(|found| found.contains(how)), "{found:?}");
            }
        }
    }
}

/// With its ledger, whose number is the layer's state.
#[derive(Clone, Debug)]
struct Once(SendOnceLayer, DeliveryLedger);

impl<S> Layer<S> for Once {
    type Service = SendOnce<S>;

    fn layer(&self, inner: S) -> Self::Service {
        self.0.layer(inner)
    }
}

/// A send is a task that nobody's timeout ends: so neither does a caller that goes away, and the caller waits for the task.
#[test]
fn send_once() {
    let contract = || {
        let layer = || {
            let ledger = ledger();
            Around(Once(SendOnceLayer::new(ledger.clone()), ledger))
        };
        Contract::new(Deliveries, layer)
            .state(Action::answer(), |layer| layer.0.1.snapshot().delivered as u64)
            .none(Aspect::Refusal, "every message is sent")
            .none(Aspect::Held, "what is under way is a task")
    };
    verify_but(
        contract,
        &[
            ("a_dropped_future_frees", "1 calls of the inner service, 1 spawned tasks"),
            ("allocations", "a call is pending that the inner service answers at once"),
        ],
    );
}

/// Around a parent that is a channel: what it announces is the first of its turn.
#[derive(Clone, Debug)]
struct Turns(BatchLayer, DeliveryLedger);

type Parents<S> = MapRequest<S, fn(ParentTurn) -> Announcement>;

impl<S: Clone> Layer<S> for Turns {
    type Service = Batch<Parents<S>>;

    fn layer(&self, inner: S) -> Self::Service {
        self.0.layer(MapRequest::new(inner, |mut turn| turn.announcements.swap_remove(0)))
    }
}

/// A turn is a task of several callers, which begins when they have come: none of them can wait for the parent's readiness.
#[test]
fn batch() {
    let contract = || {
        let layer = || {
            let ledger = ledger();
            Around(Turns(BatchLayer::new(ledger.clone()), ledger))
        };
        Contract::new(Deliveries, layer)
            .state(Action::answer(), |layer| layer.0.1.snapshot().delivered as u64)
            .none(Aspect::Refusal, "every message is announced")
            .none(Aspect::Held, "what is under way is a task")
    };
    verify_but(
        contract,
        &[
            ("readiness_is_kept_until_used", "the readiness of the inner service 0 times"),
            ("readiness_is_absent_in_a_clone", "a clone of a service that is ready is ready too"),
            ("readiness_passes_through", "it is ready although the inner service is not"),
            ("readiness_errors_pass_through", "the inner service has failed permanently"),
            ("a_dropped_future_frees", "1 spawned tasks"),
            ("allocations", "a call is pending that the inner service answers at once"),
        ],
    );
}
