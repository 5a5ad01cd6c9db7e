//! What is traced.

mod support;

use steadfast_core::{Failure, Reason};
use steadfast_failover::{CooldownFailoverLayer, TargetSpec};
use steadfast_testkit::CapturedEvents;
use support::*;
use tokio::time::advance;
use tracing::Level;

/// The events of this layer, as `LEVEL name fields`; without those for debugging.
fn take(captured: &CapturedEvents) -> Vec<String> {
    let events = captured.take_with_levels().into_iter().filter(|(level, _)| *level <= Level::INFO);
    events
        .filter_map(|(level, event)| {
            event.strip_prefix("steadfast::failover::").map(|event| format!("{level} {event}"))
        })
        .collect()
}

fn names(captured: &CapturedEvents) -> Vec<String> {
    let word = |line: &String| line.split(' ').nth(1).unwrap_or_default().to_owned();
    take(captured).iter().map(word).collect()
}

#[tokio::test(start_paused = true)]
async fn a_refused_key_and_an_unpaid_bill_raise_an_alarm_once() {
    for reason in [Reason::Auth, Reason::Billing] {
        let captured = CapturedEvents::default();
        let _guard = tracing::subscriber::set_default(captured.clone());
        let providers = Providers::new();
        providers
            .set("a", fail_with(move || Failure::new(reason, "key sk-aaaaaaaaaaaaaaaaaaaaaaaa")));
        let layer = CooldownFailoverLayer::new(chain([
            TargetSpec::new("a").with_credential("main"),
            TargetSpec::new("b"),
        ]))
        .at_once();
        for _ in 0..3 {
            assert_eq!(send(&layer, &providers, PlainRequest::new()).await.unwrap(), "b");
        }
        let lines = take(&captured);
        let alarms: Vec<_> = lines.iter().filter(|line| line.starts_with("ERROR alarm")).collect();
        assert_eq!(alarms.len(), 1, "{lines:?}");
        assert!(alarms[0].contains(&format!("target=a#main reason=\"{reason}\"")), "{alarms:?}");
        assert!(!lines.concat().contains("aaaa"), "no secret: {lines:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn every_action_is_traced_by_its_name() {
    let captured = CapturedEvents::default();
    let _guard = tracing::subscriber::set_default(captured.clone());
    let providers = Providers::new();
    let layer = abc().with_hedge(secs(5)).at_once();
    send(&layer, &providers, PlainRequest::new()).await.unwrap();
    assert!(take(&captured).is_empty(), "nothing for a success");
    providers.set("a", fail(Reason::Network));
    send(&layer, &providers, PlainRequest::new()).await.unwrap();
    assert_eq!(names(&captured), ["switched"]);
    send(&layer, &providers, PlainRequest::new()).await.unwrap();
    assert_eq!(names(&captured), ["cooled", "switched"]);
    providers.set("a", after(secs(6), Action::Answer)).set("b", Action::Hang);
    advance(secs(1)).await;
    send(&layer, &providers, PlainRequest::new()).await.unwrap();
    assert_eq!(names(&captured), ["probe", "hedged", "recovered"]);
    providers.repair("b");
    rest(&layer, &providers, "a").await;
    take(&captured);
    providers.set_all(&["b", "c"], &fail(Reason::Unsupported));
    drop(send(&layer, &providers, PlainRequest::new()).await.unwrap_err());
    let names = names(&captured);
    let first = ["switched", "insisted", "switched", "waited", "probe", "cooled", "waited"];
    assert_eq!(names[..first.len()], first, "from the second round on it is the same target");
    assert_eq!(names.last().unwrap(), "exhausted");
}
