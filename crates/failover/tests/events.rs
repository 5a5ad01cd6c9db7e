//! What the log is told.

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

/// Everything said under `steadfast::failover`, as `LEVEL name fields`.
#[derive(Clone, Default)]
struct Ear(Arc<Mutex<Vec<String>>>);

impl Ear {
    fn heard(&self) -> Vec<String> {
        std::mem::take(&mut *self.0.lock())
    }

    fn names(&self) -> Vec<String> {
        let word = |line: &String| line.split(' ').nth(1).unwrap_or_default().to_owned();
        self.heard().iter().map(word).collect()
    }
}

struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        let _ = write!(self.0, " {field}={value:?}");
    }
}

impl Subscriber for Ear {
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
        let name = metadata.target().rsplit("::").next().unwrap_or_default();
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
        let ear = Ear::default();
        let _guard = tracing::subscriber::set_default(ear.clone());
        let world = World::new();
        world.set("a", fail_with(move || Failure::new(reason, "key sk-aaaaaaaaaaaaaaaaaaaaaaaa")));
        let layer = CooldownFailoverLayer::new(chain([
            TargetSpec::new("a").with_credential("main"),
            TargetSpec::new("b"),
        ]))
        .at_once();
        for _ in 0..3 {
            assert_eq!(ask(&layer, &world, Ask::new()).await.unwrap(), "b");
        }
        let heard = ear.heard();
        let alarms: Vec<_> = heard.iter().filter(|line| line.starts_with("ERROR alarm")).collect();
        assert_eq!(alarms.len(), 1, "{heard:?}");
        assert!(alarms[0].contains(&format!("at=a#main reason={reason}")), "{alarms:?}");
        assert!(!heard.concat().contains("aaaa"), "no secret: {heard:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn every_turn_of_a_story_has_its_name() {
    let ear = Ear::default();
    let _guard = tracing::subscriber::set_default(ear.clone());
    let world = World::new();
    let layer = abc().with_hedge(secs(5)).at_once();
    ask(&layer, &world, Ask::new()).await.unwrap();
    assert!(ear.heard().is_empty(), "what goes well is not worth a word");
    world.set("a", fail(Reason::Network));
    ask(&layer, &world, Ask::new()).await.unwrap();
    assert_eq!(ear.names(), ["cooled", "switched"]);
    world.set("a", after(secs(6), Act::Answer)).set("b", Act::Hang);
    advance(secs(20)).await;
    ask(&layer, &world, Ask::new()).await.unwrap();
    assert_eq!(ear.names(), ["probe", "hedged", "recovered"]);
    for name in ["a", "b", "c"] {
        world.set(name, fail(Reason::ServerError));
    }
    drop(ask(&layer, &world, Ask::new()).await.unwrap_err());
    let names = ear.names();
    assert_eq!(names.last().unwrap(), "exhausted");
    assert_eq!(names.iter().filter(|name| *name == "switched").count(), 2);
}
