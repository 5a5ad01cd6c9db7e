//! Dead letters: outages on a paused clock.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

mod common;

use std::time::Duration;

use common::{Channel, Mode, down, ends, keys, ledger, let_run, message, open, open_with};
use steadfast_core::{Failure, Jitter, Reason};
use steadfast_deliver::{
    Announcement, DeadLetterLayer, DeadLetterPolicy, DeadLetters, DeliverError, DeliveryReceipt,
    DeliveryRetryLayer, DeliveryRoute, LetterDrain, LetterEnd, LetterList, LetterQueuePolicy,
    OfflineLetters, RouteFallbackLayer, SendOnceLayer,
};
use steadfast_testkit::{elapsed_ms, ms, secs};
use tokio::{sync::watch, time::Instant};
use tower::{Layer, ServiceBuilder, ServiceExt, util::BoxCloneSyncService};

/// Everything, as a process has it: letters, route, retries, sent once, channel. No parent answers.
struct Stack {
    channel: Channel,
    letters: DeadLetters,
    service: BoxCloneSyncService<Announcement, DeliveryReceipt, Failure>,
    _folder: tempfile::TempDir,
}

async fn stack() -> Stack {
    stack_with(LetterQueuePolicy::default()).await
}

async fn stack_with(policy: LetterQueuePolicy) -> Stack {
    let (folder, channel, ledger) = (tempfile::tempdir().unwrap(), Channel::default(), ledger());
    let once = SendOnceLayer::new(ledger.clone()).layer(channel.clone());
    let locked = steadfast_deliver::DeliveryFolder::open(folder.path()).await.unwrap();
    let letters = DeadLetters::open(&locked, policy, ledger.clone(), once.clone()).await.unwrap();
    let parent = Channel::default();
    parent.set_all(Mode::Down);
    let service = ServiceBuilder::new()
        .layer(DeadLetterLayer::new(letters.clone()))
        .layer(RouteFallbackLayer::new(parent, ledger))
        .layer(DeliveryRetryLayer::default())
        .service(once);
    Stack { channel, letters, service: BoxCloneSyncService::new(service), _folder: folder }
}

impl Stack {
    async fn send(&self, message: Announcement) -> Result<DeliveryRoute, Failure> {
        Ok(self.service.clone().oneshot(message).await?.route)
    }

    /// Every message was read once, or has ended in a record.
    fn assert_each_once(&self, messages: &[String]) {
        let (sent, list) = (self.channel.sent(), self.letters.list());
        assert!(list.waiting.is_empty(), "still waiting: {:?}", list.waiting);
        for key in messages {
            let read = sent.iter().filter(|one| *one == key).count();
            let lost = list.ended.iter().any(|one| {
                *one.key == **key && one.end != Some(steadfast_deliver::LetterEnd::Delivered)
            });
            assert_eq!(read + usize::from(lost), 1, "{key}: read {read} times, lost {lost}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_channel_down_slow_flapping_and_down_for_an_hour() {
    type Script = fn(u64) -> Mode;
    let scripts: [(&str, Script, Option<bool>); 7] = [
        ("down for ten minutes", |at| if at < 600 { Mode::Down } else { Mode::Up }, Some(true)),
        (
            "unreachable for half an hour",
            |at| if at < 1_800 { Mode::Refused } else { Mode::Up },
            Some(true),
        ),
        // Its callers wait for 20 s, and an attempt for 30.
        ("slow", |_| Mode::Slow(secs(45)), Some(true)),
        ("slower than an attempt and its backoff", |_| Mode::Slow(secs(200)), Some(true)),
        // For longer than the retries take. All five of a letter's may fall into times when it is down.
        ("flapping", |at| if at / 20 % 2 == 0 { Mode::Down } else { Mode::Up }, None),
        ("limited", |at| if at < 300 { Mode::Limited(100) } else { Mode::Up }, Some(true)),
        (
            "down for longer than an hour",
            |at| if at < 4_500 { Mode::Down } else { Mode::Up },
            Some(false),
        ),
    ];
    for (name, script, all_read) in scripts {
        let stack = stack().await;
        let channel = stack.channel.clone();
        channel.set_all(script(0));
        let weather = tokio::spawn(async move {
            for at in 0..10_000 {
                channel.set_all(script(at));
                tokio::time::sleep(secs(1)).await;
            }
        });
        let mut messages = Vec::new();
        let mut sends = Vec::new();
        for number in 0..40 {
            let key = format!("{number}");
            let destination = format!("channel {}", number % 4);
            let (service, message) = (stack.service.clone(), message(&key, &destination));
            sends.push(tokio::spawn(async move {
                tokio::time::sleep(secs(number * 5)).await;
                tokio::time::timeout(secs(20), service.oneshot(message)).await
            }));
            messages.push(key);
        }
        for send in sends {
            // What nobody waits for any longer is a letter.
            send.await.unwrap().map_or(Ok(()), |sent| sent.map(drop)).unwrap();
        }
        let accepted = stack.letters.snapshot().accepted;
        assert!((1..=40).contains(&accepted), "{name}: {accepted} letters");
        tokio::time::sleep(secs(2 * 3_600)).await;
        stack.assert_each_once(&messages);
        let read = stack.channel.sent().len();
        let expected = all_read.is_none_or(|all_read| all_read == (read == 40));
        assert!(expected, "{name}: {read} of 40 were read");
        weather.abort();
    }
}

#[tokio::test(start_paused = true)]
async fn five_retries_in_an_hour_from_the_moment_of_failure() {
    let mut policy = LetterQueuePolicy::comis();
    policy.jitter = Jitter::None;
    let (folder, channel) = (tempfile::tempdir().unwrap(), Channel::default());
    channel.set_all(Mode::Down);
    let letters = open_with(folder.path(), policy, ledger(), channel.clone()).await;
    assert!(letters.keep(&message("a", "x"), &down()).await.unwrap());
    let start = Instant::now();
    let mut tried = Vec::new();
    for _ in 0..3_700 {
        let before = channel.calls();
        tokio::time::sleep(secs(1)).await;
        if channel.calls() > before {
            tried.push(start.elapsed().as_secs());
        }
    }
    for (at, expected) in tried.iter().zip([90, 270, 630, 1_350, 2_790]) {
        assert!(at.abs_diff(expected) <= 1, "{tried:?}");
    }
    assert_eq!(tried.len(), 5, "{tried:?}");
    assert_eq!(ends(&letters.list()), ["a no_retries"]);
}

#[tokio::test(start_paused = true)]
async fn a_recovery_after_five_seconds_delivers_at_once() {
    let (folder, channel) = (tempfile::tempdir().unwrap(), Channel::default());
    channel.set_all(Mode::Down);
    let letters = open(folder.path(), &channel).await;
    letters.keep(&message("a", "x"), &down()).await.unwrap();
    letters.keep(&message("b", "y"), &down()).await.unwrap();
    let (health, receiver) = watch::channel("degraded");
    letters.drain_when(receiver, |health| *health == "recovered");
    tokio::time::sleep(secs(5)).await;
    channel.set_all(Mode::Up);
    health.send("degraded").unwrap();
    let_run().await;
    assert!(channel.sent().is_empty());
    health.send("recovered").unwrap();
    // The clock stands still while the disk is written to.
    tokio::time::sleep(ms(1)).await;
    assert_eq!(channel.sent().len(), 2);
    assert!(letters.close().await);
    assert_eq!(ends(&LetterList::read(folder.path()).unwrap()).len(), 2);
}

#[tokio::test(start_paused = true)]
async fn the_first_delivered_letter_brings_the_others_in_their_order() {
    let (folder, channel) = (tempfile::tempdir().unwrap(), Channel::default());
    channel.set_all(Mode::Down);
    let letters = open(folder.path(), &channel).await;
    for number in 0..20 {
        letters.keep(&message(&format!("{number}"), "x"), &down()).await.unwrap();
        tokio::time::sleep(secs(60)).await;
    }
    channel.set_all(Mode::Up);
    for _ in 0..3_600 {
        if !channel.sent().is_empty() {
            break;
        }
        tokio::time::sleep(secs(1)).await;
    }
    tokio::time::sleep(ms(1)).await;
    let sent: Vec<u32> = channel.sent().iter().map(|key| key.parse().unwrap()).collect();
    assert_eq!(sent.len(), 20, "none waits for its own backoff");
    // Those that were not tried yet, then those that were.
    let falls = sent.windows(2).filter(|pair| pair[1] < pair[0]).count();
    assert!(falls <= 4, "{sent:?}");
}

#[tokio::test(start_paused = true)]
async fn recoveries_that_flap_use_up_no_retry() {
    let (folder, channel) = (tempfile::tempdir().unwrap(), Channel::default());
    channel.set_all(Mode::Down);
    let letters = open(folder.path(), &channel).await;
    letters.keep(&message("a", "x"), &down()).await.unwrap();
    for round in 1..=8 {
        assert_eq!(letters.drain(&LetterDrain::All), 1);
        tokio::time::sleep(secs(5)).await;
        assert_eq!(channel.calls(), round, "tried each time");
    }
    assert_eq!(letters.list().waiting[0].attempts, 0);
}

#[tokio::test(start_paused = true)]
async fn one_dead_channel_delays_no_other() {
    let (folder, channel) = (tempfile::tempdir().unwrap(), Channel::default());
    channel.set("dead", Mode::Hangs);
    let policy = LetterQueuePolicy { resend_unclear: true, ..LetterQueuePolicy::default() };
    let letters = open_with(folder.path(), policy, ledger(), channel.clone()).await;
    for number in 0..50 {
        letters.keep(&message(&format!("dead {number}"), "dead"), &down()).await.unwrap();
    }
    for number in 0..10 {
        let destination = format!("well {}", number % 3);
        letters.keep(&message(&format!("{number}"), &destination), &down()).await.unwrap();
    }
    letters.drain(&LetterDrain::All);
    tokio::time::sleep(ms(1)).await;
    assert_eq!(channel.sent().len(), 10);
    // The dead one is called with one letter at a time, each for 30 s.
    tokio::time::sleep(secs(29)).await;
    assert_eq!((channel.calls(), letters.snapshot().sending), (11, 1));
    assert_eq!(letters.snapshot().waiting, 50);
}

#[tokio::test(start_paused = true)]
async fn a_letter_that_is_never_taken_does_not_block_its_channel() {
    let (folder, channel) = (tempfile::tempdir().unwrap(), Channel::default());
    let letters = open(folder.path(), &channel).await;
    letters.keep(&message("bad", "x"), &down()).await.unwrap();
    channel.set("x", Mode::Invalid);
    letters.drain(&LetterDrain::All);
    tokio::time::sleep(ms(1)).await;
    assert_eq!(ends(&letters.list()), ["bad refused"]);
    channel.set("x", Mode::Up);
    letters.keep(&message("good", "x"), &down()).await.unwrap();
    letters.drain(&LetterDrain::Destination("x".into()));
    tokio::time::sleep(ms(1)).await;
    assert_eq!(channel.sent(), ["good"]);
}

#[tokio::test(start_paused = true)]
async fn a_timeout_of_a_letter_after_its_send_is_no_second_message() {
    let stack = stack().await;
    stack.channel.set_all(Mode::Down);
    assert_eq!(stack.send(message("a", "x")).await.unwrap(), DeliveryRoute::Letter);
    // It takes longer than an attempt may; the send goes on, and a later attempt finds it delivered.
    stack.channel.set_all(Mode::Slow(secs(100)));
    tokio::time::sleep(secs(3_600)).await;
    assert_eq!(stack.channel.sent(), ["a"]);
    assert_eq!(ends(&stack.letters.list()), ["a delivered"]);
}

#[tokio::test(start_paused = true)]
async fn what_may_have_been_sent_ends_in_a_record_and_can_be_sent_by_hand() {
    let stack = stack().await;
    stack.channel.set_all(Mode::Reset);
    // It is decided: a failure would be an invitation to send it again.
    let receipt = stack.service.clone().oneshot(message("a", "x")).await.unwrap();
    assert_eq!((receipt.route, receipt.end), (DeliveryRoute::Recorded, Some(LetterEnd::Unclear)));
    assert_eq!((stack.channel.calls(), ends(&stack.letters.list())), (1, vec!["a unclear".into()]));
    stack.channel.set_all(Mode::Up);
    assert_eq!(stack.letters.drain(&LetterDrain::All), 0, "a person decides");
    assert_eq!(stack.letters.drain(&LetterDrain::Key("a".into())), 1);
    tokio::time::sleep(ms(1)).await;
    assert_eq!(stack.channel.sent(), ["a"]);
    assert_eq!(ends(&stack.letters.list()), ["a delivered"]);
    assert_eq!(stack.letters.drain(&LetterDrain::Key("a".into())), 0, "delivered is delivered");
}

#[tokio::test(start_paused = true)]
async fn replies_are_dropped_and_announcements_kept() {
    let stack = stack().await;
    stack.channel.set_all(Mode::Down);
    let reply = Announcement::reply("r", "x", "an answer");
    let failure = stack.send(reply).await.unwrap_err();
    assert_eq!((failure.reason(), stack.channel.calls()), (Reason::ServerError, 4));
    assert_eq!(stack.send(message("a", "x")).await.unwrap(), DeliveryRoute::Letter);
    assert_eq!(keys(&stack.letters.list()), ["a"]);
    // As guppy: nothing is kept.
    let guppy = DeadLetterLayer::new(stack.letters.clone()).with_policy(DeadLetterPolicy::guppy());
    let service = guppy.layer(stack.channel.clone());
    assert!(service.oneshot(message("b", "x")).await.is_err());
    assert_eq!(keys(&stack.letters.list()), ["a"]);
}

#[tokio::test(start_paused = true)]
async fn dropped_at_any_moment_a_message_is_delivered_once() {
    // The parent hangs for 30 s, the channel is down for a while: every state of every layer.
    let moments = (0..46).map(|second| ms(second * 1_000 + 500));
    for at in moments {
        let (folder, channel, ledger) =
            (tempfile::tempdir().unwrap(), Channel::default(), ledger());
        channel.set_all(Mode::Down);
        let direct = ServiceBuilder::new()
            .layer(DeliveryRetryLayer::default())
            .layer(SendOnceLayer::new(ledger.clone()))
            .service(channel.clone());
        let locked = steadfast_deliver::DeliveryFolder::open(folder.path()).await.unwrap();
        let policy = LetterQueuePolicy::default();
        let letters =
            DeadLetters::open(&locked, policy, ledger.clone(), direct.clone()).await.unwrap();
        let parent = Channel::default();
        parent.set_all(Mode::Hangs);
        let service = ServiceBuilder::new()
            .layer(DeadLetterLayer::new(letters.clone()))
            .layer(RouteFallbackLayer::new(parent, ledger))
            .service(direct);
        let weather = channel.clone();
        tokio::spawn(async move {
            tokio::time::sleep(secs(36)).await;
            weather.set_all(Mode::Slow(secs(8)));
        });
        let call = service.oneshot(message("a", "x"));
        let _ = tokio::time::timeout(at, call).await;
        tokio::time::sleep(secs(3_600)).await;
        assert_eq!(channel.sent(), ["a"], "dropped at {at:?}");
        assert!(letters.list().waiting.is_empty(), "dropped at {at:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn never_polled_it_is_accepted_nevertheless() {
    let stack = stack().await;
    let mut service = stack.service.clone();
    drop(tower::Service::call(service.ready().await.unwrap(), message("a", "x")));
    tokio::time::sleep(secs(1)).await;
    assert_eq!(stack.channel.sent(), ["a"]);
}

#[tokio::test(start_paused = true)]
async fn a_panic_in_the_channel_is_a_failed_attempt() {
    let (folder, channel) = (tempfile::tempdir().unwrap(), Channel::default());
    channel.set_all(Mode::Panics);
    let letters = open(folder.path(), &channel).await;
    letters.keep(&message("a", "x"), &down()).await.unwrap();
    letters.drain(&LetterDrain::All);
    tokio::time::sleep(secs(1)).await;
    assert_eq!((channel.calls(), letters.snapshot().sending), (1, 0));
    channel.set_all(Mode::Up);
    tokio::time::sleep(secs(200)).await;
    assert_eq!(channel.sent(), ["a"]);
}

#[tokio::test(start_paused = true)]
async fn bounded_the_destination_with_most_loses_its_oldest() {
    let (folder, channel) = (tempfile::tempdir().unwrap(), Channel::default());
    channel.set_all(Mode::Down);
    let policy = LetterQueuePolicy { letters: 10, ended: 5, ..LetterQueuePolicy::default() };
    let letters = open_with(folder.path(), policy, ledger(), channel.clone()).await;
    for number in 0..3 {
        letters.keep(&message(&format!("few {number}"), "few"), &down()).await.unwrap();
    }
    for number in 0..100 {
        letters.keep(&message(&format!("{number}"), "many"), &down()).await.unwrap();
    }
    let list = letters.list();
    let expected = ["few 0", "few 1", "few 2", "93", "94", "95", "96", "97", "98", "99"];
    assert_eq!(keys(&list), expected);
    let gone: Vec<_> = (88..93).map(|number| format!("{number} queue_full")).collect();
    assert_eq!(ends(&list), gone, "the last of them, for people");
    assert!(letters.close().await);
    let lines = std::fs::read_to_string(folder.path().join("dead-letters.jsonl")).unwrap();
    assert!(lines.lines().count() < 120, "the file is bounded, too: {}", lines.lines().count());
    let read = LetterList::read(folder.path()).unwrap();
    assert_eq!(keys(&read).len(), 10);
}

#[tokio::test(start_paused = true)]
async fn bounded_by_bytes_too() {
    let (folder, channel) = (tempfile::tempdir().unwrap(), Channel::default());
    let policy = LetterQueuePolicy { bytes: 10_000, ..LetterQueuePolicy::default() };
    let letters = open_with(folder.path(), policy, ledger(), channel.clone()).await;
    let large = |key: &str| Announcement::new(key, "x", "y".repeat(4_000));
    for key in ["a", "b", "c"] {
        letters.keep(&large(key), &down()).await.unwrap();
    }
    assert_eq!(ends(&letters.list()), ["a queue_full"]);
    // The destination with most letters loses its oldest, however small they are.
    for number in 0..10 {
        letters.keep(&message(&number.to_string(), "y"), &down()).await.unwrap();
    }
    assert_eq!(keys(&letters.list()), ["b", "c", "5", "6", "7", "8", "9"]);
    // What is larger than all is kept alone: none is refused for its size.
    letters.keep(&Announcement::new("all", "x", "y".repeat(20_000)), &down()).await.unwrap();
    assert_eq!(keys(&letters.list()), ["all"]);
}

#[tokio::test(start_paused = true)]
async fn as_many_destinations_at_once_as_the_policy_says() {
    let (folder, channel) = (tempfile::tempdir().unwrap(), Channel::default());
    for dead in 0..3 {
        channel.set(&format!("dead {dead}"), Mode::Hangs);
    }
    let policy =
        LetterQueuePolicy { parallel: 3, resend_unclear: true, ..LetterQueuePolicy::default() };
    let letters = open_with(folder.path(), policy, ledger(), channel.clone()).await;
    for destination in ["dead 0", "dead 1", "dead 2", "well"] {
        letters.keep(&message(destination, destination), &down()).await.unwrap();
    }
    letters.drain(&LetterDrain::All);
    tokio::time::sleep(ms(29_999)).await;
    assert_eq!((channel.calls(), letters.snapshot().sending), (3, 3));
    // More dead channels than that delay others by an attempt's time, once a round.
    tokio::time::sleep(ms(2)).await;
    assert_eq!((channel.sent(), letters.snapshot().sending), (vec!["well".to_owned()], 0));
}

#[tokio::test(start_paused = true)]
async fn a_restart_goes_on_where_it_was() {
    let (folder, channel) = (tempfile::tempdir().unwrap(), Channel::default());
    channel.set_all(Mode::Down);
    let letters = open(folder.path(), &channel).await;
    letters.keep(&message("a", "x").with_session("s").with_tenant("t"), &down()).await.unwrap();
    letters.keep(&message("b", "y"), &down()).await.unwrap();
    tokio::time::sleep(secs(120)).await;
    assert_eq!(letters.list().waiting[0].attempts, 1);
    letters.discard("b").unwrap();
    assert!(matches!(letters.discard("b"), Err(DeliverError::NoLetter(_))));
    assert!(letters.close().await);
    assert!(matches!(letters.keep(&message("c", "x"), &down()).await, Err(DeliverError::Closed)));
    drop(letters);

    channel.set_all(Mode::Up);
    let letters = open(folder.path(), &channel).await;
    let list = letters.list();
    assert_eq!((keys(&list), ends(&list)), (vec!["a"], vec!["b discarded".to_owned()]));
    let again = list.waiting[0].to_announcement();
    assert_eq!(
        (&*again.session, again.context.tenant(), &*again.text),
        ("s", Some("t"), "the text of a")
    );
    assert_eq!(list.waiting[0].attempts, 1);
    tokio::time::sleep(secs(400)).await;
    assert_eq!(channel.sent(), ["a"]);
    assert!(letters.close().await);
}

#[tokio::test(start_paused = true)]
async fn by_hand_while_nobody_delivers() {
    let (folder, channel) = (tempfile::tempdir().unwrap(), Channel::default());
    assert_eq!(LetterList::read(folder.path().join("none")).unwrap(), LetterList::default());
    channel.set_all(Mode::Down);
    let letters = open(folder.path(), &channel).await;
    for key in ["a", "b", "c"] {
        letters.keep(&message(key, key), &down()).await.unwrap();
    }
    // Reading needs no lock, changing does.
    assert_eq!(keys(&LetterList::read(folder.path()).unwrap()), ["a", "b", "c"]);
    let locked = OfflineLetters::open(folder.path()).unwrap_err();
    assert!(matches!(locked, DeliverError::Locked(_)), "{locked}");
    assert!(letters.close().await);
    drop(letters);

    let mut offline = OfflineLetters::open(folder.path()).unwrap();
    offline.discard("a").unwrap();
    assert!(matches!(offline.discard("z"), Err(DeliverError::NoLetter(_))));
    assert_eq!(offline.drain(&LetterDrain::Key("b".into())).unwrap(), 1);
    assert_eq!(ends(&offline.list().unwrap()), ["a discarded"]);
    drop(offline);
    channel.set_all(Mode::Up);
    let letters = open(folder.path(), &channel).await;
    tokio::time::sleep(ms(10)).await;
    assert_eq!(channel.sent(), ["b"], "that one is due at once");
    tokio::time::sleep(Duration::from_secs(200)).await;
    assert_eq!(channel.sent(), ["b", "c"]);
    letters.close().await;
}

#[tokio::test(start_paused = true)]
async fn a_letter_that_may_have_been_sent_is_drained_by_its_key_alone() {
    let (folder, killed) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let channel = Channel::default();
    channel.set_all(Mode::Hangs);
    let letters = open(folder.path(), &channel).await;
    letters.keep(&message("a", "x"), &down()).await.unwrap();
    letters.drain(&LetterDrain::All);
    tokio::time::sleep(secs(1)).await;
    assert!(LetterList::read(folder.path()).unwrap().waiting[0].sending);
    // What a process that is killed now leaves.
    let name = "dead-letters.jsonl";
    std::fs::copy(folder.path().join(name), killed.path().join(name)).unwrap();
    let mut offline = OfflineLetters::open(killed.path()).unwrap();
    assert_eq!(offline.drain(&LetterDrain::All).unwrap(), 0);
    assert_eq!(offline.drain(&LetterDrain::Destination("x".into())).unwrap(), 0);
    assert!(offline.list().unwrap().waiting[0].sending);
    assert_eq!(offline.drain(&LetterDrain::Key("a".into())).unwrap(), 1, "a person has decided");
    assert!(!offline.list().unwrap().waiting[0].sending);
}

#[tokio::test(start_paused = true)]
async fn the_same_message_twice_is_one_letter() {
    let (folder, channel) = (tempfile::tempdir().unwrap(), Channel::default());
    let letters = open(folder.path(), &channel).await;
    for _ in 0..3 {
        assert!(letters.keep(&message("a", "x"), &down()).await.unwrap());
    }
    tokio::time::sleep(secs(200)).await;
    assert_eq!(channel.sent(), ["a"]);
    // Nor is it one again.
    assert!(letters.keep(&message("a", "x"), &down()).await.unwrap());
    assert_eq!(letters.snapshot().waiting, 0);
}

#[tokio::test(start_paused = true)]
async fn closing_waits_for_what_is_being_sent() {
    let (folder, channel) = (tempfile::tempdir().unwrap(), Channel::default());
    channel.set_all(Mode::Slow(secs(10)));
    let letters = open(folder.path(), &channel).await;
    letters.keep(&message("a", "x"), &down()).await.unwrap();
    letters.keep(&message("b", "x"), &down()).await.unwrap();
    letters.drain(&LetterDrain::All);
    tokio::time::sleep(secs(1)).await;
    let start = Instant::now();
    assert!(letters.close().await);
    assert_eq!(elapsed_ms(start), secs(9));
    let list = LetterList::read(folder.path()).unwrap();
    assert_eq!((keys(&list), ends(&list)), (vec!["b"], vec!["a delivered".to_owned()]));
    assert!(letters.close().await, "once more is no harm");
}

#[test]
fn policies_are_checked() {
    let good = LetterQueuePolicy::default();
    good.validate().unwrap();
    for (policy, message) in [
        (LetterQueuePolicy { retries: 0, ..good }, "at least 1"),
        (LetterQueuePolicy { max_age: secs(60), ..good }, "raise `max_age`"),
        (LetterQueuePolicy { parallel: 0, ..good }, "at least 1 destination"),
        (LetterQueuePolicy { attempt_timeout: secs(0), ..good }, "such as 30 s"),
    ] {
        let error = policy.validate().unwrap_err().to_string();
        assert!(error.contains(message), "{error}");
    }
}
