//! What operators are told.

use std::{fmt, sync::Arc};

use parking_lot::Mutex;
use tracing::{Event, Subscriber, field::Field, subscriber::DefaultGuard};
use tracing_subscriber::{Layer, layer::Context, prelude::*};

/// The alarms raised on this thread while it lives: where, and why.
pub(crate) struct Alarms {
    heard: Arc<Mutex<Vec<Alarm>>>,
    _guard: DefaultGuard,
}

/// One alarm.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Alarm {
    pub(crate) level: String,
    pub(crate) at: String,
    pub(crate) reason: String,
}

impl Alarms {
    pub(crate) fn listen() -> Self {
        let heard = Arc::<Mutex<Vec<Alarm>>>::default();
        let registry = tracing_subscriber::registry().with(Ear(heard.clone()));
        Self { heard, _guard: registry.set_default() }
    }

    pub(crate) fn heard(&self) -> Vec<Alarm> {
        self.heard.lock().clone()
    }
}

struct Ear(Arc<Mutex<Vec<Alarm>>>);

impl<S: Subscriber> Layer<S> for Ear {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        if event.metadata().target() == "steadfast::failover::alarm" {
            let mut alarm =
                Alarm { level: event.metadata().level().to_string(), ..Alarm::default() };
            event.record(&mut |field: &Field, value: &dyn fmt::Debug| match field.name() {
                "at" => alarm.at = format!("{value:?}"),
                "reason" => alarm.reason = format!("{value:?}"),
                _ => {}
            });
            self.0.lock().push(alarm);
        }
    }
}
