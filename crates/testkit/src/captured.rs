//! A `tracing` subscriber for tests.

use std::{
    fmt::{self, Write as _},
    sync::{Arc, LazyLock},
};

use parking_lot::Mutex;
use tracing::{
    Dispatch, Event, Level, Metadata, Subscriber,
    field::{Field, Visit},
    span::{Attributes, Id, Record},
};

/// A subscriber that keeps each event as `name field=value ...`, without its message. For
/// `tracing::subscriber::set_default`; clones share the events.
#[derive(Clone, Debug)]
pub struct CapturedEvents(Arc<Mutex<Vec<(Level, String)>>>);

/// A second subscriber, which nobody uses. While there is but one, tracing asks that of the thread which comes to an event first whether anybody
/// listens, and remembers the answer for all threads: a test without a subscriber would take the event from the others for good.
static SECOND: LazyLock<Dispatch> = LazyLock::new(|| Dispatch::new(CapturedEvents(Arc::default())));

impl Default for CapturedEvents {
    fn default() -> Self {
        LazyLock::force(&SECOND);
        Self(Arc::default())
    }
}

impl CapturedEvents {
    /// The events since they were last taken.
    pub fn take(&self) -> Vec<String> {
        self.take_with_levels().into_iter().map(|(_, event)| event).collect()
    }

    /// The same, with their levels.
    pub fn take_with_levels(&self) -> Vec<(Level, String)> {
        std::mem::take(&mut self.0.lock())
    }
}

impl Subscriber for CapturedEvents {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut line = Line(event.metadata().name().to_owned());
        event.record(&mut line);
        self.0.lock().push((*event.metadata().level(), line.0));
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if field.name() != "message" {
            // Writing to a string does not fail.
            let _ = write!(self.0, " {}={value:?}", field.name());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_captured_that_a_thread_without_a_subscriber_came_to_first() {
        let events = CapturedEvents::default();
        let _guard = tracing::subscriber::set_default(events.clone());
        let emit = || tracing::event!(name: "seen", tracing::Level::INFO, "an event");
        std::thread::spawn(emit).join().unwrap();
        emit();
        assert_eq!(events.take(), ["seen"]);
        emit();
        assert_eq!(events.take_with_levels(), [(tracing::Level::INFO, "seen".to_owned())]);
    }
}
