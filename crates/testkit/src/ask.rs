//! A request of somebody else's type, and short words that many tests use.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use steadfast_core::{Call, CallContext, Failure, Reason};
use tokio::time::Instant;

/// A request of nobody's making: a context, and something to tell it by. It counts its clones and
/// keeps what it was nudged with.
#[derive(Debug, Default)]
pub struct Ask {
    /// What travels with it.
    pub context: CallContext,
    /// What it says.
    pub text: &'static str,
    /// What it was nudged with.
    pub nudges: Vec<String>,
    /// How often it and its clones were cloned, all together.
    pub clones: Arc<AtomicUsize>,
}

impl Clone for Ask {
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

impl Call for Ask {
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

/// An [`Ask`] whose context was changed.
pub fn ask(change: impl FnOnce(&mut CallContext)) -> Ask {
    let mut ask = Ask::default();
    change(&mut ask.context);
    ask
}

/// A failure for `reason`.
pub fn fail(reason: Reason) -> Failure {
    Failure::new(reason, "as the script says")
}

/// So many seconds.
pub const fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

/// So many milliseconds.
pub const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// The time since `since` in whole milliseconds: timers fire on those, at or after their time.
pub fn whole(since: Instant) -> Duration {
    Duration::from_millis(u64::try_from(since.elapsed().as_millis()).unwrap_or(u64::MAX))
}
