//! Through the parent, else directly.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

mod common;

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use common::{Channel, Mode, ledger, message};
use steadfast_core::CallContext;
use steadfast_deliver::{
    Announcement, DeliveryRoute, FailureNotice, RouteFallbackLayer, RoutePolicy, SendOnceLayer,
};
use steadfast_testkit::{elapsed_ms, ms, secs};
use tokio::time::Instant;
use tower::{Layer, ServiceExt};

struct Fixture {
    parent: Channel,
    channel: Channel,
    layer: RouteFallbackLayer<Channel>,
}

fn fixture(parent_does: Mode) -> Fixture {
    let (parent, channel) = (Channel::default(), Channel::default());
    parent.set_all(parent_does);
    let layer = RouteFallbackLayer::new(parent.clone(), ledger());
    let layer = layer.with_policy(RoutePolicy::comis()).unwrap();
    Fixture { parent, channel, layer }
}

fn notice(key: &str) -> Announcement {
    Announcement::notice(key, "x", FailureNotice::NotInTime)
}

#[tokio::test(start_paused = true)]
async fn notices_by_parent_within_30_000_ms_then_direct() {
    for (parent, route, after) in [
        (Mode::Up, DeliveryRoute::Parent, ms(0)),
        (Mode::Slow(ms(29_999)), DeliveryRoute::Parent, ms(29_999)),
        (Mode::Hangs, DeliveryRoute::Direct, ms(30_000)),
        (Mode::Down, DeliveryRoute::Direct, ms(0)),
    ] {
        let fixture = fixture(parent);
        let start = Instant::now();
        let mut notice = notice("n");
        notice.context = CallContext::recording();
        let log = notice.context.log.clone();
        let receipt = fixture.layer.layer(fixture.channel.clone()).oneshot(notice).await.unwrap();
        assert_eq!((receipt.route, elapsed_ms(start)), (route, after), "{parent:?}");
        let direct = usize::from(route == DeliveryRoute::Direct);
        assert_eq!(fixture.channel.sent().len(), direct, "{parent:?}");
        assert!(log.to_string().ends_with(&format!("deliver.routed {route}")), "{log}");
    }
}

#[tokio::test(start_paused = true)]
async fn notices_skip_the_parent_while_its_provider_is_degraded() {
    let degraded = Arc::new(AtomicBool::new(true));
    let fixture = fixture(Mode::Up);
    let skip = degraded.clone();
    let layer = fixture.layer.skip_parent_when(move || skip.load(Ordering::Relaxed));
    let service = layer.layer(fixture.channel.clone());
    let receipt = service.clone().oneshot(notice("a")).await.unwrap();
    assert_eq!((receipt.route, fixture.parent.calls()), (DeliveryRoute::Direct, 0));
    // An announcement is the parent's to word, and has its 30 s.
    let receipt = service.clone().oneshot(message("b", "x")).await.unwrap();
    assert_eq!((receipt.route, fixture.parent.calls()), (DeliveryRoute::Parent, 1));
    degraded.store(false, Ordering::Relaxed);
    let receipt = service.clone().oneshot(notice("c")).await.unwrap();
    assert_eq!((receipt.route, fixture.parent.calls()), (DeliveryRoute::Parent, 2));
    let reply = Announcement::reply("d", "x", "an answer");
    let receipt = service.oneshot(reply).await.unwrap();
    assert_eq!((receipt.route, fixture.parent.calls()), (DeliveryRoute::Direct, 2));
    assert_eq!(fixture.channel.sent(), ["a", "d"]);
}

#[tokio::test(start_paused = true)]
async fn a_parent_that_has_sent_it_and_hangs_is_no_second_message() {
    let ledger = ledger();
    let channel = Channel::default();
    // The parent sends through the channel's own ledger, and then never ends its turn.
    let sends = SendOnceLayer::new(ledger.clone()).layer(channel.clone());
    let through = sends.clone();
    let parent = tower::service_fn(move |message: Announcement| {
        let sends = through.clone();
        async move {
            sends.oneshot(message).await?;
            std::future::pending::<Result<(), steadfast_core::Failure>>().await
        }
    });
    let layer = RouteFallbackLayer::new(parent, ledger);
    let start = Instant::now();
    let receipt = layer.layer(sends).oneshot(message("a", "x")).await.unwrap();
    assert_eq!((receipt.route, elapsed_ms(start)), (DeliveryRoute::Repeated, secs(30)));
    assert_eq!(channel.sent(), ["a"]);
}

#[tokio::test(start_paused = true)]
async fn a_parent_that_records_what_it_sent_itself_is_believed() {
    let (ledger, channel) = (ledger(), Channel::default());
    let recorded = ledger.clone();
    let parent = tower::service_fn(move |message: Announcement| {
        recorded.record(&message.key);
        std::future::ready(Err::<(), _>(common::down()))
    });
    let layer = RouteFallbackLayer::new(parent, ledger);
    let receipt = layer.layer(channel.clone()).oneshot(message("a", "x")).await.unwrap();
    assert_eq!((receipt.route, channel.calls()), (DeliveryRoute::Repeated, 0));
}

#[tokio::test(start_paused = true)]
async fn the_channel_s_failure_is_returned() {
    let fixture = fixture(Mode::Down);
    fixture.channel.set_all(Mode::Invalid);
    let service = fixture.layer.layer(fixture.channel.clone());
    let failure = service.oneshot(message("a", "x")).await.unwrap_err();
    assert_eq!(failure.reason(), steadfast_core::Reason::Format);
    let counts = fixture.layer.handle().snapshot();
    assert_eq!((counts.parent, counts.direct, counts.parent_failed), (0, 0, 1));
}

#[test]
fn failure_notices_are_two_fixed_texts() {
    let texts = [FailureNotice::NotInTime, FailureNotice::NotSuccessful].map(FailureNotice::text);
    assert_ne!(texts[0], texts[1]);
    assert!(texts[0].contains("in time") && texts[1].contains("could not be completed"));
    assert_eq!(&*notice("a").text, texts[0]);
}
