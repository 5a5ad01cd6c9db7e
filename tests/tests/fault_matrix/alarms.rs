//! The alarms for operators.

use std::{fmt, sync::Arc};

use parking_lot::Mutex;
use tracing::{Event, Subscriber, field::Field, subscriber::DefaultGuard};
use tracing_subscriber::{Layer, layer::Context, prelude::*};

/// Records the alarms that are raised on this thread while it exists.
pub(crate) struct Alarms {
    recorded: Arc<Mutex<Vec<Alarm>>>,
    _guard: DefaultGuard,
}

/// One alarm: its level, its target and its reason.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Alarm {
    pub(crate) level: String,
    pub(crate) at: String,
    pub(crate) reason: String,
}

impl Alarms {
    pub(crate) fn record() -> Self {
        let recorded = Arc::<Mutex<Vec<Alarm>>>::default();
        let registry = tracing_subscriber::registry().with(AlarmLayer(recorded.clone()));
        Self { recorded, _guard: registry.set_default() }
    }

    pub(crate) fn recorded(&self) -> Vec<Alarm> {
        self.recorded.lock().clone()
    }
}

struct AlarmLayer(Arc<Mutex<Vec<Alarm>>>);

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
            self.0.lock().push(alarm);
        }
    }
}
