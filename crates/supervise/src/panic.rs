//! Panics of other people's code: caught where it is called, with the backtrace if it is recorded.

use std::{
    any::Any,
    backtrace::Backtrace,
    cell::{Cell, RefCell},
    fmt,
    future::Future,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::Pin,
    sync::Once,
    task::{Context, Poll},
};

use steadfast_core::redact;

use crate::{ThreadKey, event};

thread_local! {
    /// How many supervised calls this thread is in.
    static DEPTH: Cell<u32> = const { Cell::new(0) };
    /// The last panic inside one.
    static RECORDED: RefCell<Option<Recorded>> = const { RefCell::new(None) };
}

struct Recorded {
    at: String,
    backtrace: String,
}

/// Records position and backtrace of every panic in a supervised turn or run, for the ERROR event of that turn. Call it once, when the
/// program starts; further calls do nothing.
///
/// It is a panic hook. The one that was there before is still called, for every panic.
pub fn record_panics() {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if DEPTH.get() > 0 {
                let at = info.location().map_or_else(String::new, ToString::to_string);
                let backtrace = Backtrace::force_capture().to_string();
                RECORDED.with_borrow_mut(|last| *last = Some(Recorded { at, backtrace }));
            }
            before(info);
        }));
    });
}

/// What a caught panic has left.
#[derive(Debug)]
pub(crate) struct Panicked {
    /// Its message, secrets masked.
    pub(crate) message: String,
    /// Where it was, if that was recorded.
    pub(crate) at: Option<String>,
    /// How it came there, if that was recorded.
    pub(crate) backtrace: Option<String>,
}

impl fmt::Display for Panicked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "panic: {}", self.message)?;
        match &self.at {
            Some(at) => write!(f, ", at {at}"),
            None => Ok(()),
        }
    }
}

/// Calls this, and returns instead of unwinding.
pub(crate) fn caught<T>(call: impl FnOnce() -> T) -> Result<T, Panicked> {
    DEPTH.set(DEPTH.get() + 1);
    let result = catch_unwind(AssertUnwindSafe(call));
    DEPTH.set(DEPTH.get().saturating_sub(1));
    result.map_err(|payload| {
        let recorded = RECORDED.with_borrow_mut(Option::take);
        let (at, backtrace) =
            recorded.map_or((None, None), |last| (Some(last.at), Some(last.backtrace)));
        let message = redact(text(&*payload)).into_string();
        // A payload whose own drop panics is still no reason to unwind.
        let _ = catch_unwind(AssertUnwindSafe(|| drop(payload)));
        Panicked { message, at, backtrace }
    })
}

fn text(payload: &(dyn Any + Send)) -> &str {
    match (payload.downcast_ref::<&str>(), payload.downcast_ref::<String>()) {
        (Some(text), _) => text,
        (_, Some(text)) => text,
        _ => "a value that is no text",
    }
}

/// A future whose panics are results in `poll`, and events in its drop.
pub(crate) struct Caught<F> {
    future: Option<Pin<Box<F>>>,
    /// Whose it is.
    of: Option<(ThreadKey, u64)>,
}

impl<F: Future> Caught<F> {
    pub(crate) fn new(future: F) -> Self {
        Self { future: Some(Box::pin(future)), of: None }
    }

    /// That of the turn of this prompt.
    pub(crate) fn of(mut self, thread: ThreadKey, prompt: u64) -> Self {
        self.of = Some((thread, prompt));
        self
    }
}

impl<F: Future> Future for Caught<F> {
    type Output = Result<F::Output, Panicked>;

    /// When it is ready, the future is dropped with this.
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(future) = self.future.as_mut() else { return Poll::Pending };
        match caught(|| future.as_mut().poll(cx)) {
            Ok(poll) => poll.map(Ok),
            Err(panicked) => Poll::Ready(Err(panicked)),
        }
    }
}

impl<F> Drop for Caught<F> {
    fn drop(&mut self) {
        let dropped = caught(|| drop(self.future.take()));
        if let (Err(panicked), Some((thread, prompt))) = (dropped, &self.of) {
            event::drop_panicked(thread, *prompt, &panicked);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_recorded_with_its_message_position_and_backtrace_and_only_inside() {
        record_panics();
        record_panics();
        let panicked = caught(|| {
            if true {
                panic!("the key is sk-ant-{}", "a1b2c3d4e5f6a1b2c3d4e5f6");
            }
        })
        .unwrap_err();
        assert!(panicked.message.starts_with("the key is "), "{}", panicked.message);
        assert!(!panicked.message.contains("a1b2c3d4e5f6"), "{}", panicked.message);
        assert!(panicked.at.as_deref().unwrap().contains("panic.rs:"));
        assert!(panicked.backtrace.unwrap().contains("caught"));
        // A panic outside is nobody's, and does not show up in the next one.
        let _ = catch_unwind(|| panic!("outside"));
        assert!(RECORDED.with_borrow(Option::is_none));
        assert!(caught(|| std::panic::panic_any(7)).unwrap_err().message.contains("no text"));
    }

    #[test]
    fn a_payload_that_panics_is_caught_too() {
        struct Bad;
        impl Drop for Bad {
            fn drop(&mut self) {
                panic!("again");
            }
        }
        assert!(caught(|| std::panic::panic_any(Bad)).is_err());
    }
}
