//! The events that one thread of a test program emits.

use std::{cell::RefCell, sync::Once};

use tracing::Event;
use tracing_subscriber::{
    Layer,
    layer::{Context, SubscriberExt as _},
};

type Listener = Box<dyn Fn(&Event<'_>)>;

thread_local! {
    static LISTENER: RefCell<Option<Listener>> = const { RefCell::new(None) };
}

/// Hands events to the listener of their thread.
struct ToThread;

impl<S: tracing::Subscriber> Layer<S> for ToThread {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        LISTENER.with_borrow(|listener| {
            if let Some(listener) = listener {
                listener(event);
            }
        });
    }
}

/// Gives each event of this thread to `listener` from now on. A subscriber of the thread alone would miss events that another
/// thread of the program came to first, where nobody listened.
///
/// # Panics
///
/// When something else has set a subscriber for the program.
pub fn listen(listener: impl Fn(&Event<'_>) + 'static) {
    static GLOBAL: Once = Once::new();
    GLOBAL.call_once(|| {
        let subscriber = tracing_subscriber::registry().with(ToThread);
        tracing::subscriber::set_global_default(subscriber).expect("nobody else sets one");
    });
    LISTENER.set(Some(Box::new(listener)));
}
