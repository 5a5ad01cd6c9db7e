//! Dead letters that may be on their way already: sent once, or recorded.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

mod common;

use std::{fs, path::Path};

use common::{Channel, Mode, down, ends, keys, ledger, message, open_with};
use steadfast_core::{Failure, Reason};
use steadfast_deliver::{
    DeadLetter, DeadLetters, DeliveryFolder, DeliveryLedger, LetterDrain, LetterList,
    LetterQueuePolicy, SendOnceLayer,
};
use steadfast_testkit::{elapsed_ms, ms, secs};
use tokio::{sync::watch, time::Instant};
use tower::{Layer, ServiceExt};

/// Letters that are sent once, by a channel that may take longer than an attempt.
struct Fixture {
    channel: Channel,
    ledger: DeliveryLedger,
    letters: DeadLetters,
    folder: tempfile::TempDir,
}

async fn fixture(policy: LetterQueuePolicy) -> Fixture {
    let (folder, channel, ledger) = (tempfile::tempdir().unwrap(), Channel::default(), ledger());
    let once = SendOnceLayer::new(ledger.clone()).layer(channel.clone());
    let locked = DeliveryFolder::open(folder.path()).await.unwrap();
    let letters = DeadLetters::open(&locked, policy, ledger.clone(), once).await.unwrap();
    Fixture { channel, ledger, letters, folder }
}

impl Fixture {
    /// The letter of this key, as a process that is killed now leaves it.
    fn on_disk(&self, key: &str) -> DeadLetter {
        LetterList::read(self.folder.path()).unwrap().get(key).unwrap().clone()
    }

    /// What the next process does when this one is killed now: the keys that it sends, and how letters end.
    async fn killed(&self) -> (Vec<String>, Vec<String>) {
        let next = tempfile::tempdir().unwrap();
        let name = "dead-letters.jsonl";
        fs::copy(self.folder.path().join(name), next.path().join(name)).unwrap();
        starts(next.path()).await
    }
}

/// A process that starts in this folder, with a channel that is well and nothing in its ledger.
async fn starts(folder: &Path) -> (Vec<String>, Vec<String>) {
    let channel = Channel::default();
    let letters = open_with(folder, LetterQueuePolicy::default(), ledger(), channel.clone()).await;
    tokio::time::sleep(secs(3_600)).await;
    (channel.sent(), ends(&letters.list()))
}

#[tokio::test(start_paused = true)]
async fn a_channel_that_breaks_connections_ends_one_letter_a_drain() {
    let fixture = fixture(LetterQueuePolicy::default()).await;
    let Fixture { channel, letters, .. } = &fixture;
    for number in 0..10 {
        letters.keep(&message(&number.to_string(), "x"), &down()).await.unwrap();
    }
    channel.set_all(Mode::Reset);
    for drain in 1..=3 {
        letters.drain(&LetterDrain::All);
        tokio::time::sleep(secs(1)).await;
        assert_eq!((ends(&letters.list()).len(), channel.calls()), (drain, drain as u64));
    }
    assert_eq!(ends(&letters.list()), ["0 unclear", "1 unclear", "2 unclear"]);
    // A message that the platform never takes says nothing of the channel.
    channel.set_all(Mode::Invalid);
    letters.drain(&LetterDrain::All);
    tokio::time::sleep(secs(1)).await;
    assert_eq!((ends(&letters.list()).len(), channel.calls()), (10, 10));
}

#[tokio::test(start_paused = true)]
async fn killed_after_an_attempt_whose_send_goes_on_it_is_not_sent_again() {
    let fixture = fixture(LetterQueuePolicy::default()).await;
    fixture.letters.keep(&message("a", "x"), &down()).await.unwrap();
    fixture.channel.set_all(Mode::SentThenHangs);
    fixture.letters.drain(&LetterDrain::All);
    tokio::time::sleep(secs(31)).await;
    assert_eq!((fixture.letters.snapshot().sending, fixture.ledger.is_sending("a")), (0, true));
    assert!(fixture.on_disk("a").sending);
    assert_eq!(fixture.killed().await, (vec![], vec!["a unclear".to_owned()]));
}

#[tokio::test(start_paused = true)]
async fn a_letter_whose_first_send_goes_on_is_kept_as_being_sent() {
    let fixture = fixture(LetterQueuePolicy::default()).await;
    fixture.channel.set_all(Mode::SentThenHangs);
    let once = SendOnceLayer::new(fixture.ledger.clone()).layer(fixture.channel.clone());
    let call = once.oneshot(message("a", "x"));
    assert!(tokio::time::timeout(secs(5), call).await.is_err());
    let late = Failure::new(Reason::Timeout, "nobody waits any longer");
    assert!(fixture.letters.keep(&message("a", "x"), &late).await.unwrap());
    assert_eq!(fixture.killed().await, (vec![], vec!["a unclear".to_owned()]));
}

#[tokio::test(start_paused = true)]
async fn a_letter_that_somebody_sends_again_is_kept_as_being_sent() {
    let fixture = fixture(LetterQueuePolicy::default()).await;
    assert!(fixture.letters.keep(&message("a", "x"), &down()).await.unwrap());
    fixture.channel.set_all(Mode::SentThenHangs);
    let once = SendOnceLayer::new(fixture.ledger.clone()).layer(fixture.channel.clone());
    let call = once.oneshot(message("a", "x"));
    assert!(tokio::time::timeout(secs(5), call).await.is_err());
    assert!(fixture.letters.keep(&message("a", "x"), &down()).await.unwrap());
    assert_eq!(fixture.killed().await, (vec![], vec!["a unclear".to_owned()]));
}

#[tokio::test(start_paused = true)]
async fn the_same_message_again_does_not_hide_that_it_is_being_sent() {
    let mut fixture = fixture(LetterQueuePolicy::default()).await;
    for by_the_channel_alone in [false, true] {
        if by_the_channel_alone {
            // No ledger knows what is being sent.
            let (folder, channel) = (tempfile::tempdir().unwrap(), fixture.channel.clone());
            let policy = LetterQueuePolicy::default();
            fixture.letters = open_with(folder.path(), policy, ledger(), channel).await;
            fixture.folder = folder;
        }
        fixture.channel.set_all(Mode::SentThenHangs);
        fixture.letters.keep(&message("a", "x"), &down()).await.unwrap();
        fixture.letters.drain(&LetterDrain::All);
        tokio::time::sleep(secs(1)).await;
        assert!(fixture.letters.keep(&message("a", "x"), &down()).await.unwrap());
        assert_eq!(fixture.killed().await, (vec![], vec!["a unclear".to_owned()]));
    }
}

#[tokio::test(start_paused = true)]
async fn closing_waits_for_sends_that_have_outlived_their_attempts() {
    // Each attempt ends after 30 s; it is closed a second later.
    for (channel_does, after, ended, next_sends) in [
        (Mode::Slow(secs(35)), secs(4), vec!["a delivered"], vec![]),
        (Mode::DownAfter(secs(35)), secs(4), vec![], vec!["a"]),
        (Mode::ResetAfter(secs(35)), secs(4), vec!["a unclear"], vec![]),
        (Mode::SentThenHangs, secs(10), vec![], vec![]),
    ] {
        let fixture = fixture(LetterQueuePolicy::default()).await;
        fixture.letters.keep(&message("a", "x"), &down()).await.unwrap();
        fixture.channel.set_all(channel_does);
        fixture.letters.drain(&LetterDrain::All);
        tokio::time::sleep(secs(31)).await;
        let start = Instant::now();
        assert!(fixture.letters.close().await);
        assert_eq!(elapsed_ms(start), after, "{channel_does:?}");
        assert_eq!(ends(&fixture.letters.list()), ended, "{channel_does:?}");
        assert_eq!(fixture.killed().await.0, next_sends, "{channel_does:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn closing_the_ledger_waits_for_sends() {
    for (channel_does, after, all) in
        [(Mode::Slow(secs(8)), secs(7), true), (Mode::Slow(secs(20)), secs(10), false)]
    {
        let fixture = fixture(LetterQueuePolicy::default()).await;
        fixture.channel.set_all(channel_does);
        let once = SendOnceLayer::new(fixture.ledger.clone()).layer(fixture.channel.clone());
        let call = once.oneshot(message("a", "x"));
        assert!(tokio::time::timeout(secs(1), call).await.is_err());
        let start = Instant::now();
        assert_eq!(fixture.ledger.close().await, all, "{channel_does:?}");
        assert_eq!(elapsed_ms(start), after, "{channel_does:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_send_that_breaks_while_nobody_waits_for_it_is_not_made_again() {
    for (resend_unclear, calls, expected) in [(false, 1, "a unclear"), (true, 2, "a delivered")] {
        let policy = LetterQueuePolicy { resend_unclear, ..LetterQueuePolicy::default() };
        let fixture = fixture(policy).await;
        let Fixture { channel, letters, .. } = &fixture;
        letters.keep(&message("a", "x"), &down()).await.unwrap();
        // Between the end of the attempt, after 30 s, and the next one, after 90 at least.
        channel.set_all(Mode::ResetAfter(secs(40)));
        letters.drain(&LetterDrain::All);
        tokio::time::sleep(secs(31)).await;
        channel.set_all(Mode::Up);
        tokio::time::sleep(secs(600)).await;
        assert_eq!((channel.calls(), ends(&letters.list())), (calls, vec![expected.to_owned()]));
        // A person decides, once.
        letters.drain(&LetterDrain::Key("a".into()));
        tokio::time::sleep(secs(1)).await;
        assert_eq!((channel.calls(), channel.sent().len()), (2, 1));
    }
}

#[tokio::test(start_paused = true)]
async fn a_recovery_while_a_letter_is_being_sent_is_not_missed() {
    let fixture = fixture(LetterQueuePolicy::default()).await;
    let Fixture { channel, letters, .. } = &fixture;
    let (health, receiver) = watch::channel("degraded");
    letters.drain_when(receiver, |health| *health == "recovered");
    for key in ["a", "b", "c"] {
        letters.keep(&message(key, "x"), &down()).await.unwrap();
    }
    channel.set_all(Mode::DownAfter(secs(10)));
    letters.drain(&LetterDrain::All);
    tokio::time::sleep(secs(5)).await;
    channel.set_all(Mode::Up);
    health.send("recovered").unwrap();
    tokio::time::sleep(ms(4_999)).await;
    assert_eq!(channel.calls(), 1, "one at a time");
    tokio::time::sleep(ms(2)).await;
    assert_eq!(channel.sent(), ["a", "b", "c"]);
}

#[tokio::test(start_paused = true)]
async fn a_drain_before_an_attempt_is_over_with_its_failure() {
    let fixture = fixture(LetterQueuePolicy::default()).await;
    let Fixture { channel, letters, .. } = &fixture;
    for key in ["a", "b"] {
        letters.keep(&message(key, "x"), &down()).await.unwrap();
    }
    channel.set_all(Mode::DownAfter(secs(1)));
    letters.drain(&LetterDrain::All);
    tokio::time::sleep(secs(60)).await;
    assert_eq!((channel.calls(), keys(&letters.list())), (1, vec!["a", "b"]));
}
