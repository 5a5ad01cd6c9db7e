//! Nothing is sent twice.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

mod common;

use std::{fs, sync::Arc};

use common::{Channel, Mode, ledger, message};
use steadfast_core::Reason;
use steadfast_deliver::{
    DeliveryFolder, DeliveryLedger, DeliveryRetryLayer, DeliveryRoute, LedgerPolicy, SendOnceLayer,
};
use steadfast_testkit::{elapsed_ms, secs};
use tokio::time::Instant;
use tower::{Layer, ServiceBuilder, ServiceExt, timeout::TimeoutLayer};

#[tokio::test(start_paused = true)]
async fn a_timeout_after_the_send_is_no_second_message() {
    let (channel, ledger) = (Channel::default(), ledger());
    channel.set_all(Mode::Slow(secs(40)));
    let once = SendOnceLayer::new(ledger.clone()).layer(channel.clone());
    let service = ServiceBuilder::new().layer(TimeoutLayer::new(secs(10))).service(once.clone());
    for _ in 0..3 {
        service.clone().oneshot(message("a", "x")).await.unwrap_err();
    }
    assert!(ledger.is_sending("a") && ledger.delivered("a").is_none());
    // The next one finds out how it ended.
    let start = Instant::now();
    once.clone().oneshot(message("a", "x")).await.unwrap();
    assert_eq!(elapsed_ms(start), secs(10));
    let receipt = once.oneshot(message("a", "x")).await.unwrap();
    assert_eq!(receipt.route, DeliveryRoute::Repeated);
    assert_eq!((channel.sent(), channel.calls()), (vec!["a".to_owned()], 1));
    assert_eq!(ledger.snapshot().repeated, 4);
}

#[tokio::test(start_paused = true)]
async fn everybody_who_waits_learns_how_a_send_has_failed() {
    let (channel, ledger) = (Channel::default(), ledger());
    channel.set_all(Mode::Limited(7));
    let once = SendOnceLayer::new(ledger.clone()).layer(channel.clone());
    let send = || once.clone().oneshot(message("a", "x"));
    let (first, second) = tokio::join!(send(), send());
    for failure in [first.unwrap_err(), second.unwrap_err()] {
        assert_eq!((failure.reason(), failure.retry_after()), (Reason::RateLimit, Some(secs(7))));
    }
    assert_eq!((channel.calls(), ledger.snapshot().sending), (1, 0));
    // A failure is no delivery: the retries send it.
    channel.set_all(Mode::Up);
    let retried = DeliveryRetryLayer::default().layer(once);
    assert_eq!(retried.oneshot(message("a", "x")).await.unwrap().route, DeliveryRoute::Direct);
    assert_eq!(channel.sent(), ["a"]);
}

#[tokio::test(start_paused = true)]
async fn a_send_that_never_ends_may_have_been_sent() {
    let (channel, ledger) = (Channel::default(), ledger());
    channel.set_all(Mode::SentThenHangs);
    let once = SendOnceLayer::new(ledger.clone()).layer(channel.clone());
    let start = Instant::now();
    let failure = once.clone().oneshot(message("a", "x")).await.unwrap_err();
    assert_eq!((failure.is_delivered(), elapsed_ms(start)), (true, secs(300)));
    channel.set_all(Mode::Panics);
    let failure = once.oneshot(message("b", "x")).await.unwrap_err();
    assert!(failure.is_delivered() && !ledger.is_sending("b"));
}

#[tokio::test]
async fn a_restart_knows_what_was_delivered() {
    let path = tempfile::tempdir().unwrap();
    let policy = LedgerPolicy { keys: 100, ..LedgerPolicy::default() };
    for round in 0..4 {
        let folder = DeliveryFolder::open(path.path()).await.unwrap();
        let ledger = DeliveryLedger::open(&folder, policy).await.unwrap();
        assert_eq!(ledger.snapshot().delivered, if round == 0 { 0 } else { 100 });
        if round > 0 {
            assert!(ledger.delivered(&format!("{} 149", round - 1)).is_some());
            assert!(ledger.delivered(&format!("{} 49", round - 1)).is_none());
        }
        for number in 0..150 {
            let key: Arc<str> = format!("{round} {number}").into();
            ledger.record(&key);
            ledger.record(&key);
        }
        assert!(ledger.delivered(&format!("{round} 50")).is_some());
        assert!(ledger.delivered(&format!("{round} 49")).is_none());
        assert!(ledger.close().await);
        drop((ledger, folder));
    }
    let lines = fs::read_to_string(path.path().join("ledger.jsonl")).unwrap().lines().count();
    assert!(lines <= 350, "bounded: {lines}");
}

#[tokio::test]
async fn a_ledger_cut_at_every_byte_is_read() {
    let path = tempfile::tempdir().unwrap();
    let file = path.path().join("ledger.jsonl");
    let folder = DeliveryFolder::open(path.path()).await.unwrap();
    let ledger = DeliveryLedger::open(&folder, LedgerPolicy::default()).await.unwrap();
    for key in ["a", "b", "c"] {
        ledger.record(&key.into());
    }
    ledger.close().await;
    let whole = fs::read(&file).unwrap();
    for length in 0..=whole.len() {
        fs::write(&file, &whole[..length]).unwrap();
        let ledger = DeliveryLedger::open(&folder, LedgerPolicy::default()).await.unwrap();
        // A record whose line feed alone is missing is whole.
        let records =
            whole[..length].split(|byte| *byte == b'\n').filter(|line| line.ends_with(b"}}"));
        assert_eq!(ledger.snapshot().delivered, records.count(), "cut at {length}");
        ledger.close().await;
    }
}
