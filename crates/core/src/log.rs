//! What the layers did to a request.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::{Reason, Target};

/// Steps kept per request. What goes wrong in a stack that makes more shows in the first 64.
pub const MAX_STEPS: usize = 64;

/// What the layers did to one request, in order: a handle, shared by the request, its retries and
/// its response.
///
/// A disabled log (the default) ignores what is recorded and allocates nothing.
///
/// ```
/// use steadfast_core::{RecoveryLog, Step};
///
/// let log = RecoveryLog::enabled();
/// log.record(|| Step::new("retry", "retried"));
/// assert_eq!(log.to_string(), "retry.retried");
///
/// RecoveryLog::default().record(|| unreachable!("the log is disabled"));
/// ```
#[derive(Clone, Default)]
pub struct RecoveryLog(Option<Arc<Log>>);

/// The action of a step that is reported to people.
const NOTICE: &str = "notice";

struct Log {
    started: Instant,
    attempts: AtomicU32,
    steps: Mutex<Steps>,
}

#[derive(Default)]
struct Steps {
    kept: Vec<Step>,
    dropped: usize,
}

/// One thing one layer did.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Step {
    /// The layer, such as `retry`.
    pub layer: &'static str,
    /// What it did, such as `retried`.
    pub action: &'static str,
    /// The target it concerned.
    pub target: Option<Target>,
    /// Why.
    pub reason: Option<Reason>,
    /// How long it waited or will wait.
    pub wait: Option<Duration>,
    /// A short detail.
    pub detail: Option<Box<str>>,
    /// When, since the log was created.
    pub at: Duration,
}

impl Step {
    /// A step of `layer`.
    pub const fn new(layer: &'static str, action: &'static str) -> Self {
        Self {
            layer,
            action,
            target: None,
            reason: None,
            wait: None,
            detail: None,
            at: Duration::ZERO,
        }
    }

    /// Sets the target it concerned.
    #[must_use]
    pub fn with_target(mut self, target: Option<&Target>) -> Self {
        self.target = target.cloned();
        self
    }

    /// Sets the reason.
    #[must_use]
    pub fn with_reason(mut self, reason: Reason) -> Self {
        self.reason = Some(reason);
        self
    }

    /// Sets how long it waited or will wait.
    #[must_use]
    pub fn with_wait(mut self, wait: Duration) -> Self {
        self.wait = Some(wait);
        self
    }

    /// Adds a detail.
    #[must_use]
    pub fn with_detail(mut self, detail: impl Into<Box<str>>) -> Self {
        self.detail = Some(detail.into());
        self
    }
}

impl fmt::Display for Step {
    /// `layer.action target reason wait detail`, as far as set.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.layer, self.action)?;
        if let Some(target) = &self.target {
            write!(f, " {target}")?;
        }
        if let Some(reason) = self.reason {
            write!(f, " {reason}")?;
        }
        if let Some(wait) = self.wait {
            write!(f, " {}ms", wait.as_millis())?;
        }
        if let Some(detail) = &self.detail {
            write!(f, " {detail}")?;
        }
        Ok(())
    }
}

impl RecoveryLog {
    /// A log that keeps nothing.
    pub const fn disabled() -> Self {
        Self(None)
    }

    /// A log that keeps what is recorded, at most [`MAX_STEPS`].
    pub fn enabled() -> Self {
        let (attempts, steps) = (AtomicU32::default(), Mutex::default());
        Self(Some(Arc::new(Log { started: Instant::now(), attempts, steps })))
    }

    /// Counts an attempt: for the service that asks a provider, whichever layer made the attempt.
    pub fn count_attempt(&self) {
        if let Some(log) = &self.0 {
            log.attempts.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// How often a provider was asked for the request so far; 0 while the log is disabled, and around a
    /// service that does not [count](Self::count_attempt).
    pub fn attempts(&self) -> u32 {
        self.0.as_ref().map_or(0, |log| log.attempts.load(Ordering::Relaxed))
    }

    /// Records a step; `step` is not called when the log is disabled or full.
    pub fn record(&self, step: impl FnOnce() -> Step) {
        let Some(log) = &self.0 else { return };
        let mut made = step();
        made.at = log.started.elapsed();
        let mut steps = log.steps.lock();
        if steps.kept.len() < MAX_STEPS {
            steps.kept.push(made);
        } else {
            steps.dropped += 1;
        }
    }

    /// Records that another model than the one asked for will answer, for want of capacity: what people
    /// see, in [`notice`](Self::notice).
    pub fn record_notice(&self, layer: &'static str, target: &Target) {
        self.record(|| Step::new(layer, NOTICE).with_target(Some(target)));
    }

    /// What to show the person who gets the answer, once: that another model has stood in for an
    /// overloaded one. A fixed text with the model's name.
    pub fn notice(&self) -> Option<String> {
        let log = self.0.as_ref()?;
        let steps = log.steps.lock();
        let target = steps.kept.iter().rfind(|step| step.action == NOTICE)?.target.as_ref()?;
        let model = target.model().unwrap_or(target.provider());
        Some(format!(
            "{model} answers: the model that was asked for has no capacity at the moment."
        ))
    }

    /// The steps so far, oldest first.
    pub fn steps(&self) -> Vec<Step> {
        self.0.as_ref().map_or_else(Vec::new, |log| log.steps.lock().kept.clone())
    }

    /// How many steps were dropped beyond [`MAX_STEPS`].
    pub fn dropped(&self) -> usize {
        self.0.as_ref().map_or(0, |log| log.steps.lock().dropped)
    }

    /// Whether nothing has been recorded.
    pub fn is_empty(&self) -> bool {
        self.0.as_ref().is_none_or(|log| log.steps.lock().kept.is_empty())
    }
}

impl fmt::Display for RecoveryLog {
    /// The steps, separated by `; `.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(log) = &self.0 else { return Ok(()) };
        let steps = log.steps.lock();
        for (index, step) in steps.kept.iter().enumerate() {
            if index > 0 {
                f.write_str("; ")?;
            }
            step.fmt(f)?;
        }
        if steps.dropped > 0 {
            write!(f, "; and {} more", steps.dropped)?;
        }
        Ok(())
    }
}

impl fmt::Debug for RecoveryLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            None => f.write_str("RecoveryLog(disabled)"),
            Some(_) => write!(f, "RecoveryLog({self})"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn is_shared_ordered_timed_and_bounded() {
        let log = RecoveryLog::enabled();
        let clone = log.clone();
        clone.record(|| Step::new("failover", "switched").with_reason(Reason::Overloaded));
        tokio::time::advance(Duration::from_millis(250)).await;
        log.record(|| Step::new("retry", "retried").with_wait(Duration::from_millis(500)));
        clone.count_attempt();
        assert_eq!((log.attempts(), RecoveryLog::disabled().attempts()), (1, 0));
        assert_eq!(log.to_string(), "failover.switched overloaded; retry.retried 500ms");
        assert_eq!(log.steps()[1].at, Duration::from_millis(250));
        assert_eq!(log.notice(), None);
        log.record_notice("failover", &Target::new("openai").with_model("gpt-4o-mini"));
        let notice = log.notice().unwrap();
        assert!(notice.starts_with("gpt-4o-mini answers: "), "{notice}");
        for _ in 1..MAX_STEPS {
            log.record(|| Step::new("x", "y"));
        }
        assert_eq!((log.steps().len(), log.dropped()), (MAX_STEPS, 2));
    }
}
