//! The alarms for operators.

use std::{cell::RefCell, fmt, sync::Once};

use tracing::{Event, Subscriber, field::Field};
use tracing_subscriber::{Layer, layer::Context, prelude::*};

thread_local! {
    static RECORDED: RefCell<Vec<Alarm>> = const { RefCell::new(Vec::new()) };
}

/// Records the alarms that are raised on this thread. The subscriber is that of the process: where each
/// test has its own, tracing may take an event for one that nobody is interested in, since another test
/// raises it first.
pub(crate) struct Alarms;

/// One alarm: its level, its target and its reason.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Alarm {
    pub(crate) level: String,
    pub(crate) at: String,
    pub(crate) reason: String,
}

impl Alarms {
    pub(crate) fn record() -> Self {
        static INSTALLED: Once = Once::new();
        INSTALLED.call_once(|| tracing_subscriber::registry().with(AlarmLayer).init());
        RECORDED.with_borrow_mut(Vec::clear);
        Self
    }

    pub(crate) fn recorded(&self) -> Vec<Alarm> {
        RECORDED.with_borrow(Clone::clone)
    }
}

struct AlarmLayer;

impl<S: Subscriber> Layer<S> for AlarmLayer {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        if event.metadata().name() == "steadfast::failover::alarm" {
            let mut alarm =
                Alarm { level: event.metadata().level().to_string(), ..Alarm::default() };
            event.record(&mut |field: &Field, value: &dyn fmt::Debug| match field.name() {
                "target" => alarm.at = format!("{value:?}"),
                "reason" => alarm.reason = format!("{value:?}").trim_matches('"').to_owned(),
                _ => {}
            });
            RECORDED.with_borrow_mut(|recorded| recorded.push(alarm));
        }
    }
}
