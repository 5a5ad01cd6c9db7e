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

use crate::{
    AttemptEnd, AttemptRecord, Call, Identity, Reason, Target, TraceContext, Usage,
    on_step::StepObserver,
};

/// Steps kept per request. What goes wrong in a stack that makes more shows in the first 64.
pub const MAX_STEPS: usize = 64;

/// What the layers did to one request, in order: a handle, shared by the request, its retries and
/// its response.
///
/// A disabled log (the default) ignores what is recorded and allocates nothing. Whoever needs the steps as
/// they happen, of every call, takes an [`OnStepLayer`](crate::OnStepLayer).
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
    steps: Destination,
}

/// Where the steps go.
enum Destination {
    Kept(Mutex<Steps>),
    Observed(Observed),
}

#[derive(Default)]
struct Steps {
    kept: Vec<Step>,
    dropped: usize,
    /// What the last notice was about, though its step may have been dropped.
    notice: Option<Target>,
    attempts: Vec<AttemptRecord>,
}

/// Of a call whose steps are given to somebody as they happen.
struct Observed {
    observer: Arc<StepObserver>,
    identity: Option<Arc<Identity>>,
    model: Option<Arc<str>>,
    /// That of the request as it came, which keeps the steps unless it is disabled.
    callers: RecoveryLog,
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
    /// How often a provider had been asked for the request by then; see [`RecoveryLog::attempts`].
    pub attempts: u32,
    /// Who called, if that is known: set for those who [observe](crate::OnStepLayer) the steps.
    pub identity: Option<Arc<Identity>>,
    /// The model that the call came with, before any target was selected: set for those who observe the
    /// steps.
    pub model: Option<Arc<str>>,
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
            attempts: 0,
            identity: None,
            model: None,
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
        Self::to(Instant::now(), Destination::Kept(Mutex::default()))
    }

    /// The log of `request`, whose steps are given to `observer` as well.
    pub(crate) fn observed<Req: Call>(request: &Req, observer: Arc<StepObserver>) -> Self {
        let context = request.context();
        let (identity, callers) = (context.shared_identity(), context.log.clone());
        let started = callers.0.as_ref().map_or_else(Instant::now, |log| log.started);
        let model = request.model().map(Arc::from);
        Self::to(started, Destination::Observed(Observed { observer, identity, model, callers }))
    }

    fn to(started: Instant, steps: Destination) -> Self {
        Self(Some(Arc::new(Log { started, attempts: AtomicU32::default(), steps })))
    }

    /// When it was created: what the times of its steps and attempts count from. `None` while it is disabled.
    pub fn started(&self) -> Option<Instant> {
        self.0.as_ref().map(|log| log.started)
    }

    /// Whether anybody learns of what is recorded.
    pub const fn is_enabled(&self) -> bool {
        self.0.is_some()
    }

    /// Counts an attempt: for the service that asks a provider, whichever layer made the attempt.
    pub fn count_attempt(&self) {
        let Some(log) = &self.0 else { return };
        log.attempts.fetch_add(1, Ordering::Relaxed);
        if let Destination::Observed(observed) = &log.steps {
            observed.callers.count_attempt();
        }
    }

    /// How often a provider was asked for the request so far; 0 while the log is disabled, and around a
    /// service that does not [count](Self::count_attempt).
    pub fn attempts(&self) -> u32 {
        let Some(log) = &self.0 else { return 0 };
        match &log.steps {
            Destination::Observed(Observed { callers, .. }) if callers.is_enabled() => {
                callers.attempts()
            }
            _ => log.attempts.load(Ordering::Relaxed),
        }
    }

    /// The times that a provider was asked for the request, in their order, as far as an
    /// [`AttemptsLayer`](crate::AttemptsLayer) has noted them; at most [`MAX_STEPS`].
    pub fn attempt_records(&self) -> Vec<AttemptRecord> {
        self.kept().map_or_else(Vec::new, |steps| steps.lock().attempts.clone())
    }

    /// Notes that a provider is asked. The number of the attempt, where it is kept.
    pub(crate) fn begin_attempt(
        &self,
        target: Option<&Target>,
        trace: Option<&TraceContext>,
    ) -> Option<u64> {
        let (at, mut steps) = (self.0.as_ref()?.started.elapsed(), self.kept()?.lock());
        if steps.attempts.len() >= MAX_STEPS {
            return None;
        }
        let number = steps.attempts.len() as u32 + 1;
        steps.attempts.push(AttemptRecord {
            number,
            target: target.cloned(),
            at,
            first_content: None,
            took: None,
            end: AttemptEnd::Underway,
            usage: Usage::default(),
            bytes: 0,
            span: trace.map(TraceContext::span_id),
            answer: None,
        });
        Some(u64::from(number))
    }

    /// Changes attempt `number`, at this moment since the log was created.
    pub(crate) fn update_attempt(
        &self,
        number: u64,
        change: impl FnOnce(&mut AttemptRecord, Duration),
    ) {
        let (Some(log), Some(steps)) = (&self.0, self.kept()) else { return };
        let at = usize::try_from(number).ok().and_then(|number| number.checked_sub(1));
        let mut steps = steps.lock();
        if let Some(attempt) = at.and_then(|at| steps.attempts.get_mut(at)) {
            change(attempt, log.started.elapsed());
        }
    }

    /// Records a step; `step` is not called when the log is disabled.
    pub fn record(&self, step: impl FnOnce() -> Step) {
        let Some(log) = &self.0 else { return };
        let made = Step { at: log.started.elapsed(), attempts: self.attempts(), ..step() };
        log.steps.add(made);
    }

    /// Records that another model than the one asked for will answer, for want of capacity: what people
    /// see, in [`notice`](Self::notice).
    pub fn record_notice(&self, layer: &'static str, target: &Target) {
        self.record(|| {
            Step::new(layer, NOTICE).with_target(Some(target)).with_reason(Reason::Overloaded)
        });
    }

    /// What to show the person who gets the answer, once: that another model has stood in for an
    /// overloaded one. A fixed text with the model's name.
    pub fn notice(&self) -> Option<String> {
        let steps = self.kept()?.lock();
        let target = steps.notice.as_ref()?;
        let model = target.model().unwrap_or(target.provider());
        Some(format!(
            "{model} answers: the model that was asked for has no capacity at the moment."
        ))
    }

    /// The steps so far, oldest first.
    pub fn steps(&self) -> Vec<Step> {
        self.kept().map_or_else(Vec::new, |steps| steps.lock().kept.clone())
    }

    /// Reads the attempts and the steps so far, without copying them; none where they are not kept. `read` must not
    /// record anything.
    pub fn read<R>(&self, read: impl FnOnce(&[AttemptRecord], &[Step]) -> R) -> R {
        match self.kept() {
            Some(steps) => {
                let steps = steps.lock();
                read(&steps.attempts, &steps.kept)
            }
            None => read(&[], &[]),
        }
    }

    /// How many steps were dropped beyond [`MAX_STEPS`].
    pub fn dropped(&self) -> usize {
        self.kept().map_or(0, |steps| steps.lock().dropped)
    }

    /// Whether no step is kept.
    pub fn is_empty(&self) -> bool {
        self.kept().is_none_or(|steps| steps.lock().kept.is_empty())
    }

    fn kept(&self) -> Option<&Mutex<Steps>> {
        match &self.0.as_ref()?.steps {
            Destination::Kept(steps) => Some(steps),
            Destination::Observed(Observed { callers, .. }) => callers.kept(),
        }
    }
}

impl Destination {
    fn add(&self, mut step: Step) {
        match self {
            Self::Kept(steps) => {
                let mut steps = steps.lock();
                if step.action == NOTICE {
                    steps.notice.clone_from(&step.target);
                }
                if steps.kept.len() < MAX_STEPS {
                    steps.kept.push(step);
                } else {
                    steps.dropped += 1;
                }
            }
            Self::Observed(Observed { observer, identity, model, callers }) => {
                step.identity.clone_from(identity);
                step.model.clone_from(model);
                // Before the observer, which may have the caller's log at hand.
                if let Some(log) = &callers.0 {
                    log.steps.add(step.clone());
                }
                observer(&step);
            }
        }
    }
}

impl fmt::Display for RecoveryLog {
    /// The steps, separated by `; `.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(steps) = self.kept() else { return Ok(()) };
        let steps = steps.lock();
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
        log.record_notice("failover", &Target::new("openai").with_model("gpt-4o"));
        assert!(log.notice().unwrap().starts_with("gpt-4o answers: "), "not lost behind the steps");
    }
}
