//! What is traced. Alone in its file: a callsite that another test reaches first, without a subscriber, may stay disabled.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

mod common;

use common::{Channel, Mode, down, ledger, message, open_with};
use steadfast_core::Jitter;
use steadfast_deliver::{
    Announcement, BatchLayer, DeadLetterLayer, DeliveryRetryLayer, DeliveryRetryPolicy,
    FailureNotice, LetterDrain, LetterQueuePolicy, ParentTurn, RouteFallbackLayer, SendOnceLayer,
};
use steadfast_testkit::{CapturedEvents, ms, secs};
use tower::{Layer, ServiceBuilder, ServiceExt, service_fn};

fn of(events: &CapturedEvents) -> Vec<String> {
    let events = events.take().into_iter();
    events.filter_map(|one| Some(one.strip_prefix("steadfast::deliver::")?.to_owned())).collect()
}

#[tokio::test(start_paused = true)]
async fn every_action_is_traced_once_by_its_name() {
    let events = CapturedEvents::default();
    let _guard = tracing::subscriber::set_default(events.clone());
    let (folder, channel, ledger) = (tempfile::tempdir().unwrap(), Channel::default(), ledger());
    channel.set_all(Mode::Down);
    let jitter = Jitter::None;
    let policy = LetterQueuePolicy { retries: 2, jitter, ..LetterQueuePolicy::default() };
    let letters = open_with(folder.path(), policy, ledger.clone(), channel.clone()).await;
    let retry = DeliveryRetryPolicy { retries: 1, jitter, ..DeliveryRetryPolicy::default() };
    let parent = service_fn(async |turn: ParentTurn| match turn.announcements.len() {
        2 => Ok(()),
        _ => Err(down()),
    });
    let delivery = ServiceBuilder::new()
        .layer(DeadLetterLayer::new(letters.clone()))
        .layer(RouteFallbackLayer::new(
            BatchLayer::new(ledger.clone()).layer(parent),
            ledger.clone(),
        ))
        .layer(DeliveryRetryLayer::new(retry).unwrap())
        .layer(SendOnceLayer::new(ledger))
        .service(channel.clone());
    let send = |message: Announcement| delivery.clone().oneshot(message);

    let (first, second) = tokio::join!(send(message("a", "x")), send(message("b", "x")));
    first.and(second).unwrap();
    let routed = |key: &str| {
        format!(
            "routed route=\"parent\" why=\"the parent announced it\" key=\"{key}\" kind=\"announcement\" \
             session=\"x\" destination=\"x\""
        )
    };
    let turn = "turn session=\"x\" announcements=2 outcome=\"announced\"".to_owned();
    // Either of the two may be polled first.
    let mut announced = of(&events);
    announced.sort();
    assert_eq!(announced, [routed("a"), routed("b"), turn]);

    let reply = send(Announcement::reply("r", "x", "an answer")).await;
    assert!(reply.is_err());
    assert_eq!(
        of(&events),
        [
            "retried reason=\"server_error\" retry=1 wait_ms=1000",
            "gave_up reason=\"server_error\" why=\"no retries left\" retries=1",
            "dropped reason=\"server_error\" why=\"messages of its kind are not kept\" key=\"r\" kind=\"reply\" \
             session=\"x\" destination=\"x\"",
        ]
    );

    // By which way a notice went: the parent announces two of them, and not one alone.
    let notice = |key: &str| send(Announcement::notice(key, "x", FailureNotice::NotSuccessful));
    let (first, second) = tokio::join!(notice("p"), notice("q"));
    first.and(second).unwrap();
    let parent =
        "routed route=\"parent\" why=\"the parent announced it\" key=\"p\" kind=\"notice\"";
    assert_eq!(of(&events).iter().filter(|one| one.starts_with(parent)).count(), 1);
    notice("n").await.unwrap();
    let seen = of(&events);
    let names: Vec<_> = seen.iter().map(|one| one.split(' ').next().unwrap().to_owned()).collect();
    let expected = ["turn", "parent_failed", "retried", "gave_up", "dead_lettered", "routed"];
    assert_eq!(names, expected);
    let letter = "routed route=\"letter\" why=\"it was not delivered\" key=\"n\" kind=\"notice\"";
    assert!(seen[5].starts_with(letter), "{seen:?}");

    // By hand, earlier than its backoff: it is no new letter.
    letters.drain(&LetterDrain::All);
    tokio::time::sleep(ms(1)).await;
    let ids = "key=\"n\" kind=\"notice\" session=\"x\" destination=\"x\"";
    assert_eq!(
        of(&events),
        [
            "draining letters=1 why=\"by hand\"".to_owned(),
            format!("dead_letter_failed {ids} attempts=0"),
        ]
    );

    tokio::time::sleep(secs(300)).await;
    assert_eq!(
        of(&events),
        [
            format!("dead_letter_failed {ids} attempts=1"),
            format!("dead_letter_expired {ids} attempts=2 why=\"no_retries\""),
        ]
    );
    channel.set_all(Mode::Up);
    assert_eq!(letters.drain(&LetterDrain::Key("n".into())), 1);
    tokio::time::sleep(ms(1)).await;
    assert_eq!(
        of(&events),
        [
            "draining letters=1 why=\"by hand\"".to_owned(),
            format!("dead_lettered {ids}"),
            format!("dead_letter_delivered {ids} attempts=0"),
        ]
    );
    // Whoever sends it again.
    send(Announcement::reply("n", "x", "any")).await.unwrap();
    assert_eq!(
        of(&events),
        ["repeated why=\"it was delivered before\" key=\"n\" destination=\"x\""]
    );
}
