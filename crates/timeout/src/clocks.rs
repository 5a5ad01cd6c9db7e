//! The clocks of one call: one lazy timer for all limits.

use std::{
    fmt,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use steadfast_core::{CallContext, Deadline, Failure, RecoveryLog, Target, TimeLimit, time::Alarm};
use tokio::time::Instant;

use crate::{
    Floor,
    event::Fired,
    limits::{Due, TimeLimits, Times},
    state::TimeoutState,
};

/// Pieces that may be ready one after the other before the time is read, so that a stream which is
/// always ready meets its limits too.
const MAX_UNCHECKED: u8 = 32;

/// The clocks of one call. They move from the future to the reply, so that a limit covers both.
///
/// No timer is armed and no time is read until there is something to wait for.
#[must_use = "clocks limit nothing unless polled"]
pub struct Clocks {
    shared: Arc<TimeoutState>,
    times: Times,
    /// The limit that the deadline is the end of; `None`: it is the caller's own.
    pipeline: Option<Duration>,
    /// There has been progress since the time was last read.
    fresh: bool,
    delivered: bool,
    unchecked: u8,
    /// Nothing has come since the timer was set.
    quiet: bool,
    /// A limit may end before the timer fires.
    sooner: bool,
    timer: Option<Alarm>,
    target: Option<Target>,
    log: RecoveryLog,
}

impl Clocks {
    /// The clocks of a call that will be made, under the caller's deadline if there is one; `is_whole` when
    /// its answer is silent until it is complete.
    #[inline]
    pub(crate) fn new(shared: Arc<TimeoutState>, context: &CallContext, is_whole: bool) -> Self {
        let pipeline = context.deadline.and_then(Deadline::limit);
        let deadline = context.deadline.map(Deadline::instant);
        Self {
            shared,
            times: Times { is_retry: context.attempts > 0, is_whole, deadline, ..Times::default() },
            pipeline,
            fresh: false,
            delivered: false,
            unchecked: 0,
            quiet: false,
            sooner: false,
            timer: None,
            target: context.target.clone(),
            log: context.log.clone(),
        }
    }

    /// The call begins `now` and ends at `own`, this layer's limit, unless the caller's deadline is
    /// earlier; returns whether `own` applies. Fails when the caller's deadline has passed.
    #[inline]
    pub(crate) fn begin_by(&mut self, now: Instant, own: Instant) -> Result<bool, Failure> {
        self.times.started = Some(now);
        match self.times.deadline {
            Some(callers) if callers <= now => {
                let due = Due { at: now, limit: TimeLimit::Pipeline };
                return Err(self.fire(due, now).with_attempts(0));
            }
            Some(callers) if callers <= own => return Ok(false),
            _ => {}
        }
        self.times.deadline = Some(own);
        self.pipeline = self.shared.limits.pipeline;
        Ok(true)
    }

    /// The recovery log of the call.
    pub const fn log(&self) -> &RecoveryLog {
        &self.log
    }

    pub(crate) fn limits(&self) -> &TimeLimits {
        &self.shared.limits
    }

    /// The limit that has been reached, if any. To be polled whenever what is waited for is not
    /// ready; wakes the task when a limit is due.
    pub fn poll_fired(&mut self, cx: &mut Context<'_>) -> Poll<Failure> {
        self.unchecked = 0;
        if self.quiet
            && let Some(timer) = &mut self.timer
        {
            ready!(timer.poll(cx));
        }
        self.quiet = true;
        loop {
            let now = Instant::now();
            self.progressed(now);
            // What comes moves limits later, and they are asked for when the timer fires.
            if let Some(timer) = &mut self.timer
                && !std::mem::take(&mut self.sooner)
            {
                ready!(timer.poll(cx));
            }
            let Some(due) = self.times.due(&self.shared.limits) else { return Poll::Pending };
            if due.at <= now {
                return Poll::Ready(self.fire(due, now));
            }
            let timer = match &mut self.timer {
                None => self.timer.insert(Alarm::at(due.at)),
                Some(timer) => {
                    // Resetting a timer is expensive and progress is frequent, so a timer is not
                    // moved later: it fires early, at most once a limit, and is reset then.
                    if timer.is_elapsed() || timer.deadline() > due.at {
                        timer.reset(due.at);
                    }
                    timer
                }
            };
            ready!(timer.poll(cx));
        }
    }

    /// The limit that has been exceeded, if any, without registering a waker. To be called before
    /// each piece of the reply; checks the time only every few pieces.
    pub fn overdue(&mut self) -> Option<Failure> {
        if self.unchecked < MAX_UNCHECKED {
            return None;
        }
        self.unchecked = 0;
        let now = Instant::now();
        self.progressed(now);
        let due = self.times.due(&self.shared.limits).filter(|due| due.at <= now)?;
        Some(self.fire(due, now))
    }

    /// Whatever has come since the time was last read has come by `now`.
    fn progressed(&mut self, now: Instant) {
        self.times.started.get_or_insert(now);
        if std::mem::take(&mut self.fresh) {
            self.times.progress = Some(now);
        }
    }

    /// A piece of the reply has come. `content` when it was content and not just a keep-alive,
    /// `progress` when it was content or other progress, such as a complete tool call.
    pub fn received(&mut self, content: bool, progress: bool) {
        self.unchecked = self.unchecked.saturating_add(1);
        self.quiet = false;
        self.fresh |= progress;
        self.times.content |= content;
    }

    /// A piece has been delivered to the caller; `content` as in [`received`](Self::received).
    pub fn delivered(&mut self, content: bool) {
        self.delivered |= content;
    }

    /// `failure`, marked with whether content has reached the caller. Inner layers may count content
    /// as delivered that is `held` back here.
    pub(crate) fn mark_delivered(&self, failure: Failure, held: bool) -> Failure {
        match (self.delivered, held) {
            (true, _) => failure.with_delivered(),
            (false, true) => failure.without_delivered(),
            (false, false) => failure,
        }
    }

    /// The rate of the answer is measured from now on, for `floor`'s window.
    pub(crate) fn open_window(&mut self, floor: &Floor) {
        (self.quiet, self.sooner) = (false, true);
        self.times.window = Instant::now().checked_add(floor.window);
    }

    /// The answer was fast enough.
    pub(crate) fn close_window(&mut self) {
        self.times.window = None;
    }

    fn fire(&self, due: Due, now: Instant) -> Failure {
        self.shared.fired(due.limit);
        let started = self.times.started.unwrap_or(now);
        let fired = Fired {
            limit: due.limit,
            limits: &self.shared.limits,
            pipeline: self.pipeline,
            elapsed: now.saturating_duration_since(started),
            delivered: self.delivered,
            target: self.target.as_ref(),
            log: &self.log,
        };
        fired.failure()
    }
}

impl fmt::Debug for Clocks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Clocks")
            .field("limits", &self.shared.limits)
            .field("times", &self.times)
            .field("armed", &self.timer.is_some())
            .finish_non_exhaustive()
    }
}
