//! Retries of a message.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

mod common;

use std::time::Duration;

use common::{Channel, Mode, message};
use steadfast_core::{Deadline, Jitter};
use steadfast_deliver::{DeliveryRetryLayer, DeliveryRetryPolicy};
use steadfast_testkit::{elapsed_ms, ms, secs};
use tokio::time::Instant;
use tower::{Layer, ServiceExt};

fn exact(change: impl FnOnce(&mut DeliveryRetryPolicy)) -> DeliveryRetryLayer {
    let mut policy = DeliveryRetryPolicy { jitter: Jitter::None, ..DeliveryRetryPolicy::default() };
    change(&mut policy);
    DeliveryRetryLayer::new(policy).unwrap()
}

#[tokio::test(start_paused = true)]
async fn three_retries_after_one_two_and_four_seconds() {
    for (mode, calls, after) in [
        (Mode::Down, 4, secs(7)),
        (Mode::Refused, 4, secs(7)),
        (Mode::Limited(5), 4, secs(15)),
        (Mode::Limited(90), 1, secs(0)),
        (Mode::Invalid, 1, secs(0)),
        (Mode::Reset, 1, secs(0)),
    ] {
        let channel = Channel::default();
        channel.set_all(mode);
        let layer = exact(|_| ());
        let start = Instant::now();
        let failure = layer.layer(channel.clone()).oneshot(message("a", "x")).await.unwrap_err();
        assert_eq!((channel.calls(), elapsed_ms(start)), (calls, after), "{mode:?}");
        assert_eq!(u64::from(failure.attempts()), calls, "{mode:?}");
        assert_eq!(failure.is_delivered(), mode == Mode::Reset, "{mode:?}");
        assert_eq!(layer.handle().snapshot().gave_up, 1);
    }
}

#[tokio::test(start_paused = true)]
async fn guppy_sends_again_after_a_broken_connection() {
    let channel = Channel::default();
    channel.set_all(Mode::Reset);
    let layer = DeliveryRetryLayer::new(DeliveryRetryPolicy::guppy()).unwrap();
    let failure = layer.layer(channel.clone()).oneshot(message("a", "x")).await.unwrap_err();
    assert_eq!((channel.calls(), failure.is_delivered()), (4, false));
}

#[tokio::test(start_paused = true)]
async fn what_recovers_is_delivered() {
    let channel = Channel::default();
    channel.set_all(Mode::Down);
    let (layer, start) = (exact(|_| ()), Instant::now());
    let sent = tokio::spawn(layer.layer(channel.clone()).oneshot(message("a", "x")));
    tokio::time::sleep(ms(2_500)).await;
    channel.set_all(Mode::Up);
    sent.await.unwrap().unwrap();
    assert_eq!((channel.sent(), elapsed_ms(start)), (vec!["a".to_owned()], secs(3)));
}

#[tokio::test(start_paused = true)]
async fn no_wait_beyond_the_deadline_and_none_after_the_last() {
    let channel = Channel::default();
    channel.set_all(Mode::Down);
    let mut late = message("a", "x");
    late.context = late.context.with_deadline(Deadline::after(secs(2)));
    let start = Instant::now();
    let layer = exact(|_| ());
    let _ = layer.layer(channel.clone()).oneshot(late).await.unwrap_err();
    assert_eq!((channel.calls(), elapsed_ms(start)), (2, secs(1)));
    let none = exact(|policy| policy.retries = 0);
    let _ = none.layer(channel.clone()).oneshot(message("b", "x")).await.unwrap_err();
    assert_eq!((channel.calls(), elapsed_ms(start)), (3, secs(1)));
}

#[tokio::test(start_paused = true)]
async fn dropped_in_any_state_it_ends() {
    for (at, calls) in [(ms(500), 1), (ms(1_500), 2), (ms(3_500), 3)] {
        let channel = Channel::default();
        channel.set_all(Mode::Down);
        let call = exact(|_| ()).layer(channel.clone()).oneshot(message("a", "x"));
        assert!(tokio::time::timeout(at, call).await.is_err());
        tokio::time::sleep(secs(60)).await;
        assert_eq!(channel.calls(), calls, "{at:?}");
    }
}

#[test]
fn policies_are_checked() {
    let bad = DeliveryRetryPolicy { max_wait: Duration::ZERO, ..DeliveryRetryPolicy::default() };
    let error = DeliveryRetryLayer::new(bad).unwrap_err().to_string();
    assert!(error.contains("such as 60 s"), "{error}");
}
