//! Cooldowns that are saved and restored in another layer, as after a restart.

mod support;

use std::time::Duration;

use steadfast_core::{Reason, Target};
use steadfast_failover::{CooldownFailoverLayer, Status, TargetSpec};
use support::*;
use tokio::time::{Instant, advance};

fn keyed() -> CooldownFailoverLayer {
    let two_keys = TargetSpec::new("a").with_credential("1").with_credential("2");
    CooldownFailoverLayer::new(chain([two_keys, TargetSpec::new("b")]))
}

/// A layer that goes on where `old` was left, as another process would.
fn restarted(old: &CooldownFailoverLayer) -> CooldownFailoverLayer {
    let new = keyed();
    let saved = old.handle().save();
    let counts = new.handle().restore(&saved, |_| true);
    assert_eq!((counts.restored, counts.expired), (saved.len(), 0));
    new
}

#[tokio::test(start_paused = true)]
async fn a_refused_key_stays_refused_over_restarts() {
    let providers = Providers::new();
    providers.set("a#1", fail(Reason::Auth));
    let mut layer = keyed();
    let start = Instant::now();
    let mut asked = Vec::new();
    // A restart each 100 s: it is asked when its 600 s are nearly over, as without restarts.
    for _ in 0..8 {
        let service = layer.clone().at_once();
        send(&service, &providers, PlainRequest::model("m")).await.unwrap();
        asked.extend(providers.times(start).into_iter().filter(|(at, _)| at.ends_with("#1")));
        let snapshot = layer.handle().snapshot();
        let health = snapshot.get(&target("a#1")).unwrap();
        assert!(health.cooling.unwrap().refuses);
        assert_eq!(health.last_error.as_ref().unwrap().reason, Reason::Auth);
        assert_eq!(health.status, Status::Degraded);
        layer = restarted(&layer);
        advance(secs(96)).await;
    }
    let times: Vec<_> = asked.into_iter().map(|(_, ms)| ms / 1_000).collect();
    assert_eq!(times, [0, 576], "from 570 s on it may be");
}

#[tokio::test(start_paused = true)]
async fn a_rest_ends_in_time_and_grows_on() {
    let providers = Providers::new();
    let layer = keyed();
    rest(&layer.clone().at_once(), &providers, "a").await;
    let cooling = |layer: &CooldownFailoverLayer| {
        let now = Instant::now();
        let left = layer.handle().snapshot().get(&target("a")).unwrap().cooling_for(now);
        // Files have whole milliseconds.
        left.map(|left| left.as_secs_f64().round())
    };
    assert_eq!(cooling(&layer), Some(2.0));
    advance(secs(1)).await;
    let layer = restarted(&layer);
    assert_eq!(cooling(&layer), Some(1.0));
    advance(Duration::from_millis(5)).await;
    // The probe fails: half as long again.
    send(&layer.clone().at_once(), &providers, PlainRequest::new()).await.unwrap();
    assert_eq!(providers.calls(), ["a#1", "b"]);
    assert_eq!(cooling(&layer), Some(3.0));
    providers.repair("a");
    advance(secs(2)).await;
    let layer = restarted(&layer);
    send(&layer.clone().at_once(), &providers, PlainRequest::new()).await.unwrap();
    assert_eq!(providers.calls(), ["a#1"]);
    assert_eq!(cooling(&layer), None);
    assert_eq!(layer.handle().save(), []);
}

#[tokio::test(start_paused = true)]
async fn what_is_unknown_or_over_is_counted_and_left_out() {
    let handle = keyed().handle();
    for (name, wait) in [("a", 10), ("b", 100), ("a/m", 100), ("a#1", 100), ("a/m#1", 100)] {
        handle.cool(&target(name), secs(wait));
    }
    handle.cool(&target("gone"), secs(100));
    let saved = handle.save();
    advance(secs(11)).await;
    let layer = keyed();
    let handle = layer.handle();
    let mut watch = handle.watch();
    watch.mark_unchanged();
    let counts = handle.restore(&saved, |target: &Target| target.provider() != "gone");
    assert_eq!((counts.restored, counts.expired, counts.unknown), (4, 1, 1));
    assert!(watch.has_changed().unwrap(), "who watches sees it");
    let snapshot = handle.snapshot();
    let names: Vec<_> = snapshot.cooling().map(|health| health.target.to_string()).collect();
    assert_eq!(names, ["a#1", "a/m", "a/m#1", "b"]);
    assert!(snapshot.get(&target("gone")).is_none() && snapshot.get(&target("a")).is_none());
    assert_eq!(handle.restore(&saved, |_| true).restored, 1, "what cools is left as it is");
}
