//! Announcements of one session share a turn.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

mod common;

use std::{sync::Arc, time::Duration};

use common::{Channel, ledger};
use parking_lot::Mutex;
use steadfast_core::{Failure, Reason};
use steadfast_deliver::{
    Announcement, BatchLayer, BatchPolicy, DeadLetterLayer, DeadLetters, DeliveryReceipt,
    DeliveryRoute, LetterQueuePolicy, ParentTurn, RouteFallbackLayer, SendOnceLayer,
};
use steadfast_testkit::{elapsed_ms, ms, secs};
use tokio::{task::JoinHandle, time::Instant};
use tower::{Layer, ServiceBuilder, ServiceExt, service_fn, util::BoxCloneSyncService};

type Turns = Arc<Mutex<Vec<(Duration, Vec<String>)>>>;

struct Fixture {
    turns: Turns,
    channel: Channel,
    service: BoxCloneSyncService<Announcement, DeliveryReceipt, Failure>,
}

/// A parent that takes this long; never, with `None`; and what is around it.
fn fixture(takes: Option<Duration>, policy: BatchPolicy) -> Fixture {
    let (turns, channel, start) = (Turns::default(), Channel::default(), Instant::now());
    let seen = turns.clone();
    let parent = service_fn(move |turn: ParentTurn| {
        let keys = turn.announcements.iter().map(|one| one.key.to_string()).collect();
        seen.lock().push((elapsed_ms(start), keys));
        async move {
            match takes {
                Some(Duration::MAX) => panic!("as the script says"),
                Some(takes) => tokio::time::sleep(takes).await,
                None => std::future::pending().await,
            }
            Ok::<_, Failure>(())
        }
    });
    let ledger = ledger();
    let parent = BatchLayer::new(ledger.clone()).with_policy(policy).unwrap().layer(parent);
    let direct = SendOnceLayer::new(ledger.clone()).layer(channel.clone());
    let service = BoxCloneSyncService::new(RouteFallbackLayer::new(parent, ledger).layer(direct));
    Fixture { turns, channel, service }
}

impl Fixture {
    fn send(&self, key: &str, session: &str) -> JoinHandle<(DeliveryRoute, Duration)> {
        let message = Announcement::new(key, "x", "text").with_session(session);
        let (service, start) = (self.service.clone(), Instant::now());
        tokio::spawn(async move {
            let receipt = service.oneshot(message).await.unwrap();
            (receipt.route, elapsed_ms(start))
        })
    }

    fn turns(&self) -> Vec<(u64, String)> {
        let turns = self.turns.lock();
        turns.iter().map(|(at, keys)| (at.as_millis() as u64, keys.join(" "))).collect()
    }
}

#[tokio::test(start_paused = true)]
async fn those_of_one_session_within_two_seconds_share_a_turn() {
    let fixture = fixture(Some(secs(3)), BatchPolicy::default());
    let first = fixture.send("a", "s");
    let other = fixture.send("b", "t");
    tokio::time::sleep(ms(1_999)).await;
    let second = fixture.send("c", "s");
    tokio::time::sleep(ms(2)).await;
    let later = fixture.send("d", "s");
    assert_eq!(first.await.unwrap(), (DeliveryRoute::Parent, secs(5)));
    assert_eq!(second.await.unwrap(), (DeliveryRoute::Parent, ms(3_001)));
    assert_eq!(other.await.unwrap(), (DeliveryRoute::Parent, secs(5)));
    assert_eq!(later.await.unwrap(), (DeliveryRoute::Parent, secs(5)));
    let mut turns = fixture.turns();
    turns.sort();
    let expected = [(2_000, "a c"), (2_000, "b"), (4_001, "d")];
    assert_eq!(turns, expected.map(|(at, keys)| (at, keys.to_owned())));
    assert!(fixture.channel.sent().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_turn_that_is_not_over_in_time_sends_each_directly() {
    let fixture = fixture(None, BatchPolicy::default());
    let first = fixture.send("a", "s");
    tokio::time::sleep(secs(1)).await;
    let second = fixture.send("b", "s");
    assert_eq!(first.await.unwrap(), (DeliveryRoute::Direct, secs(30)));
    // With the first: the turn is one.
    assert_eq!(second.await.unwrap(), (DeliveryRoute::Direct, secs(29)));
    let mut sent = fixture.channel.sent();
    sent.sort();
    assert_eq!((sent.join(" "), fixture.turns().len()), ("a b".to_owned(), 1));
}

#[tokio::test(start_paused = true)]
async fn a_turn_that_is_over_when_its_time_is_has_announced() {
    let policy = BatchPolicy { turn_timeout: secs(10), ..BatchPolicy::default() };
    let fixture = fixture(Some(secs(10)), policy);
    let (first, second) = (fixture.send("a", "s"), fixture.send("b", "s"));
    assert_eq!(first.await.unwrap(), (DeliveryRoute::Parent, secs(12)));
    assert_eq!(second.await.unwrap(), (DeliveryRoute::Parent, secs(12)));
    assert!(fixture.channel.sent().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_turn_that_is_over_when_it_is_given_up_has_announced() {
    // The first caller's own time ends with the turn's work: 2 s of waiting for others and 28 s.
    let fixture = fixture(Some(secs(28)), BatchPolicy::default());
    let sends = [fixture.send("a", "s"), fixture.send("b", "s")];
    for send in sends {
        let (route, after) = send.await.unwrap();
        assert!(matches!(route, DeliveryRoute::Parent | DeliveryRoute::Repeated), "{route}");
        assert_eq!(after, secs(30));
    }
    assert_eq!((fixture.turns().len(), fixture.channel.calls()), (1, 0));
}

/// What happens in which order: the end of a parent's turn that hangs, and what is sent directly.
#[derive(Clone, Default)]
struct Order(Arc<Mutex<Vec<String>>>);

impl Drop for Order {
    fn drop(&mut self) {
        self.0.lock().push("the turn has ended".to_owned());
    }
}

#[tokio::test(start_paused = true)]
async fn a_turn_that_is_given_up_has_ended_before_anything_is_sent() {
    let order = Arc::<Mutex<Vec<String>>>::default();
    let seen = order.clone();
    let parent = service_fn(move |_: ParentTurn| {
        let turn = Order(seen.clone());
        async move {
            let _turn = turn;
            std::future::pending::<Result<(), Failure>>().await
        }
    });
    let seen = order.clone();
    let channel = service_fn(move |message: Announcement| {
        seen.lock().push(format!("{} is sent", message.key));
        std::future::ready(Ok::<_, Failure>(()))
    });
    let ledger = ledger();
    let letters =
        DeadLetters::in_memory(LetterQueuePolicy::default(), ledger.clone(), channel.clone());
    let batch = BatchLayer::new(ledger.clone()).layer(parent);
    let service = ServiceBuilder::new()
        .layer(DeadLetterLayer::new(letters.unwrap()))
        .layer(RouteFallbackLayer::new(batch, ledger))
        .service(channel);
    let send = |key: &str| service.clone().oneshot(Announcement::new(key, "x", "text"));

    // By its own time: the deadline of the turn is the same instant.
    assert_eq!(send("a").await.unwrap().route, DeliveryRoute::Direct);
    assert_eq!(*order.lock(), ["the turn has ended", "a is sent"]);
    order.lock().clear();
    // Dropped with everything around it: it is a letter that is due at once.
    assert!(tokio::time::timeout(secs(10), send("b")).await.is_err());
    tokio::time::sleep(ms(1)).await;
    assert_eq!(*order.lock(), ["the turn has ended", "b is sent"]);
}

#[tokio::test(start_paused = true)]
async fn a_full_turn_begins_at_once() {
    let policy = BatchPolicy { announcements: 2, ..BatchPolicy::default() };
    let fixture = fixture(Some(secs(1)), policy);
    let sends: Vec<_> = ["a", "b", "c"].iter().map(|key| fixture.send(key, "s")).collect();
    for send in sends {
        assert_eq!(send.await.unwrap().0, DeliveryRoute::Parent);
    }
    let expected = [(0, "a b".to_owned()), (2_000, "c".to_owned())];
    assert_eq!(fixture.turns(), expected);
}

#[tokio::test(start_paused = true)]
async fn beyond_the_sessions_nobody_waits() {
    let policy = BatchPolicy { sessions: 1, ..BatchPolicy::default() };
    let fixture = fixture(Some(secs(1)), policy);
    let first = fixture.send("a", "s");
    tokio::task::yield_now().await;
    assert_eq!(fixture.send("b", "t").await.unwrap(), (DeliveryRoute::Parent, secs(1)));
    assert_eq!(first.await.unwrap(), (DeliveryRoute::Parent, secs(3)));
}

#[tokio::test(start_paused = true)]
async fn a_caller_that_gives_up_withdraws_its_announcement() {
    // While the batch collects: the others are announced. In the turn: the others go directly, at once.
    for (at, route, turns) in
        [(secs(1), DeliveryRoute::Parent, "b"), (secs(4), DeliveryRoute::Direct, "a b")]
    {
        let fixture = fixture(Some(secs(10)), BatchPolicy::default());
        let (first, second) = (fixture.send("a", "s"), fixture.send("b", "s"));
        tokio::time::sleep(at).await;
        first.abort();
        let (went, after) = second.await.unwrap();
        assert_eq!(went, route, "{at:?}");
        let expected = if route == DeliveryRoute::Parent { secs(12) } else { at };
        assert_eq!(after, expected);
        assert_eq!(fixture.turns(), [(2_000, turns.to_owned())]);
    }
}

#[tokio::test(start_paused = true)]
async fn nobody_left_is_no_turn() {
    let fixture = fixture(Some(secs(10)), BatchPolicy::default());
    let only = fixture.send("a", "s");
    tokio::time::sleep(secs(1)).await;
    only.abort();
    tokio::time::sleep(secs(10)).await;
    assert!(fixture.turns().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_turn_that_panics_sends_each_directly() {
    let fixture = fixture(Some(Duration::MAX), BatchPolicy::default());
    let (first, second) = (fixture.send("a", "s"), fixture.send("b", "s"));
    assert_eq!(first.await.unwrap(), (DeliveryRoute::Direct, secs(2)));
    assert_eq!(second.await.unwrap(), (DeliveryRoute::Direct, secs(2)));
}

#[tokio::test(start_paused = true)]
async fn a_failure_of_the_turn_is_everybody_s() {
    let parent = service_fn(async |_: ParentTurn| {
        Err::<(), _>(Failure::new(Reason::Overloaded, "no capacity"))
    });
    let service = BatchLayer::new(ledger()).layer(parent);
    let send = |key: &str| service.clone().oneshot(Announcement::new(key, "x", "text"));
    let (first, second) = tokio::join!(send("a"), send("b"));
    for failure in [first.unwrap_err(), second.unwrap_err()] {
        assert_eq!(failure.reason(), Reason::Overloaded);
    }
}
