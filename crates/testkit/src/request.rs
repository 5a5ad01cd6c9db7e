//! A minimal request, and short functions that many tests use.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use steadfast_core::{Call, CallContext, Failure, Reason, time::millis};
use tokio::time::Instant;

/// A minimal request: a context, and a text to identify it by. It counts its clones and keeps the
/// nudges it received.
#[derive(Debug, Default)]
pub struct PlainRequest {
    /// The context of the call.
    pub context: CallContext,
    /// Identifies the request.
    pub text: &'static str,
    /// The nudges it received.
    pub nudges: Vec<String>,
    /// How often it and its clones were cloned, in total.
    pub clones: Arc<AtomicUsize>,
}

impl Clone for PlainRequest {
    fn clone(&self) -> Self {
        self.clones.fetch_add(1, Ordering::Relaxed);
        Self {
            context: self.context.clone(),
            text: self.text,
            nudges: self.nudges.clone(),
            clones: self.clones.clone(),
        }
    }
}

impl Call for PlainRequest {
    fn context(&self) -> &CallContext {
        &self.context
    }

    fn context_mut(&mut self) -> &mut CallContext {
        &mut self.context
    }

    fn nudge(&mut self, text: &str) -> bool {
        self.nudges.push(text.to_owned());
        true
    }
}

/// A [`PlainRequest`] whose context was changed by `change`.
pub fn plain_request(change: impl FnOnce(&mut CallContext)) -> PlainRequest {
    let mut request = PlainRequest::default();
    change(&mut request.context);
    request
}

/// A failure for `reason`.
pub fn fail(reason: Reason) -> Failure {
    Failure::new(reason, "as the script says")
}

/// A duration in seconds.
pub const fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

/// A duration in milliseconds.
pub const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// The time since `since` in whole milliseconds, to which tokio's timers are exact.
pub fn elapsed_ms(since: Instant) -> Duration {
    ms(millis(since.elapsed()))
}
