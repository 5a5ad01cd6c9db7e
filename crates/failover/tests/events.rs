//! What is traced.

mod support;

use std::{fmt::Write, sync::Arc};

use parking_lot::Mutex;
use steadfast_core::{Failure, Reason};
use steadfast_failover::{CooldownFailoverLayer, TargetSpec};
use support::*;
use tokio::time::advance;
use tracing::{
    Event, Level, Metadata, Subscriber,
    field::{Field, Visit},
    span,
};

/// The events of `steadfast::failover`, as `LEVEL name fields`.
#[derive(Clone, Default)]
struct Captured(Arc<Mutex<Vec<String>>>);

impl Captured {
    fn take(&self) -> Vec<String> {
        std::mem::take(&mut *self.0.lock())
    }

    fn names(&self) -> Vec<String> {
        let word = |line: &String| line.split(' ').nth(1).unwrap_or_default().to_owned();
        self.take().iter().map(word).collect()
    }
}

struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        let _ = write!(self.0, " {field}={value:?}");
    }
}

impl Subscriber for Captured {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("steadfast::failover") && *metadata.level() <= Level::INFO
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, event: &Event<'_>) {
        let metadata = event.metadata();
        let name = metadata.name().rsplit("::").next().unwrap_or_default();
        let mut line = Line(format!("{} {name}", metadata.level()));
        event.record(&mut line);
        self.0.lock().push(line.0);
    }

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

#[tokio::test(start_paused = true)]
async fn a_refused_key_and_an_unpaid_bill_raise_an_alarm_once() {
    for reason in [Reason::Auth, Reason::Billing] {
        let captured = Captured::default();
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
        let lines = captured.take();
        let alarms: Vec<_> = lines.iter().filter(|line| line.starts_with("ERROR alarm")).collect();
        assert_eq!(alarms.len(), 1, "{lines:?}");
        assert!(alarms[0].contains(&format!("target=a#main reason=\"{reason}\"")), "{alarms:?}");
        assert!(!lines.concat().contains("aaaa"), "no secret: {lines:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn every_action_is_traced_by_its_name() {
    let captured = Captured::default();
    let _guard = tracing::subscriber::set_default(captured.clone());
    let providers = Providers::new();
    let layer = abc().with_hedge(secs(5)).at_once();
    send(&layer, &providers, PlainRequest::new()).await.unwrap();
    assert!(captured.take().is_empty(), "nothing for a success");
    providers.set("a", fail(Reason::Network));
    send(&layer, &providers, PlainRequest::new()).await.unwrap();
    assert_eq!(captured.names(), ["switched"]);
    send(&layer, &providers, PlainRequest::new()).await.unwrap();
    assert_eq!(captured.names(), ["cooled", "switched"]);
    providers.set("a", after(secs(6), Action::Answer)).set("b", Action::Hang);
    advance(secs(1)).await;
    send(&layer, &providers, PlainRequest::new()).await.unwrap();
    assert_eq!(captured.names(), ["probe", "hedged", "recovered"]);
    providers.repair("b");
    rest(&layer, &providers, "a").await;
    captured.take();
    providers.set_all(&["b", "c"], &fail(Reason::Unsupported));
    drop(send(&layer, &providers, PlainRequest::new()).await.unwrap_err());
    let names = captured.names();
    let first = ["switched", "insisted", "switched", "waited", "probe", "cooled", "waited"];
    assert_eq!(names[..first.len()], first, "from the second round on it is the same target");
    assert_eq!(names.last().unwrap(), "exhausted");
}
