//! A `tracing` subscriber for tests.

use std::{
    fmt::{self, Write as _},
    sync::Arc,
};

use parking_lot::Mutex;
use tracing::{
    Event, Metadata, Subscriber,
    field::{Field, Visit},
    span::{Attributes, Id, Record},
};

/// A subscriber that keeps each event as `name field=value ...`, without its message. For
/// `tracing::subscriber::set_default`; clones share the events.
#[derive(Clone, Debug, Default)]
pub struct CapturedEvents(Arc<Mutex<Vec<String>>>);

impl CapturedEvents {
    /// The events since the last call of this.
    pub fn take(&self) -> Vec<String> {
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
        self.0.lock().push(line.0);
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
