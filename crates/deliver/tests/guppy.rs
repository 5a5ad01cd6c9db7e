//! The chat bot `guppy`, all of its row: retries, then logged and dropped. Alone in its file, as `trace.rs` is.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

mod common;

use common::{Channel, Mode, ledger, message, open};
use steadfast_core::{Jitter, Reason};
use steadfast_deliver::{
    Announcement, DeadLetterLayer, DeadLetterPolicy, DeliveryRetryLayer, DeliveryRetryPolicy,
    SendOnceLayer,
};
use steadfast_testkit::{CapturedEvents, elapsed_ms, ms, secs};
use tokio::time::Instant;
use tower::{ServiceBuilder, ServiceExt};

#[tokio::test(start_paused = true)]
async fn three_retries_by_the_platform_s_wait_for_5xx_and_connections_then_logged_and_dropped() {
    let events = CapturedEvents::default();
    let _guard = tracing::subscriber::set_default(events.clone());
    let (folder, channel) = (tempfile::tempdir().unwrap(), Channel::default());
    let letters = open(folder.path(), &channel).await;
    let retry = DeliveryRetryPolicy { jitter: Jitter::None, ..DeliveryRetryPolicy::guppy() };
    let kept = DeadLetterLayer::new(letters.clone()).with_policy(DeadLetterPolicy::guppy());
    let delivery = ServiceBuilder::new()
        .layer(kept)
        .layer(DeliveryRetryLayer::new(retry).unwrap())
        .layer(SendOnceLayer::new(ledger()))
        .service(channel.clone());
    for message in [Announcement::reply("a", "x", "an answer"), message("a", "x")] {
        channel.set_all(Mode::Limited(7));
        let call = tokio::spawn(delivery.clone().oneshot(message));
        let (start, before) = (Instant::now(), channel.calls());
        tokio::time::sleep(ms(1)).await;
        let mut tried = vec![0];
        // What the channel does at the first, second and third retry, after how long.
        for (mode, wait) in [(Mode::Down, 7), (Mode::Reset, 2), (Mode::Refused, 4)] {
            channel.set_all(mode);
            tokio::time::sleep(secs(wait)).await;
            tried.push(channel.calls() - before - 1);
        }
        assert_eq!(tried, [0, 1, 2, 3]);
        assert_eq!(elapsed_ms(start), ms(13_001));
        assert!(call.is_finished());
        let failure = call.await.unwrap().unwrap_err();
        assert_eq!((failure.reason(), failure.attempts()), (Reason::Network, 4));
        let names = events.take().into_iter().map(|one| {
            let words: Vec<_> = one.split(' ').take(2).collect();
            words.join(" ").replace("steadfast::deliver::", "")
        });
        assert_eq!(
            names.collect::<Vec<_>>(),
            [
                "retried reason=\"rate_limit\"",
                "retried reason=\"server_error\"",
                "retried reason=\"network\"",
                "gave_up reason=\"network\"",
                "dropped reason=\"network\"",
            ]
        );
    }
    tokio::time::sleep(secs(3_600)).await;
    assert_eq!((channel.calls(), letters.list().waiting.len()), (8, 0), "nothing is kept");
    assert!(letters.list().ended.is_empty() && letters.close().await);
}
