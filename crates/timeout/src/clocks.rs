//! The clocks of one call: one lazy timer, whatever the number of limits.

use std::{
    fmt,
    sync::Arc,
    task::{Context, Poll, ready},
};

use steadfast_core::{CallContext, Deadline, Failure, RecoveryLog, Target, TimeLimit, time::Alarm};
use tokio::time::Instant;

use crate::{
    Floor,
    event::Fired,
    limits::{Due, TimeLimits, Times},
    state::Shared,
};

/// Pieces that may be ready one after the other before the time is read: a stream that never
/// has to wait must not outrun its limits.
const PIECES_UNSEEN: u8 = 32;

/// The clocks of one call. They go from the future to the reply, so that a limit runs over both.
///
/// Nothing is armed and no time is read until there is something to wait for.
#[must_use = "clocks limit nothing unless polled"]
pub struct Clocks {
    shared: Arc<Shared>,
    times: Times,
    /// The deadline is the caller's and not this layer's.
    callers: bool,
    /// There has been progress since the time was last read.
    fresh: bool,
    delivered: bool,
    unseen: u8,
    timer: Option<Alarm>,
    target: Option<Target>,
    log: RecoveryLog,
}

impl Clocks {
    /// Those of a call that is about to be made, under the caller's deadline if there is one.
    #[inline]
    pub(crate) fn new(shared: Arc<Shared>, context: &CallContext) -> Self {
        let deadline = context.deadline.map(Deadline::instant);
        Self {
            shared,
            times: Times { again: context.attempts > 0, deadline, ..Times::default() },
            callers: true,
            fresh: false,
            delivered: false,
            unseen: 0,
            timer: None,
            target: context.target.clone(),
            log: context.log.clone(),
        }
    }

    /// The call begins `now` and ends at `own`, by this layer's own limit, unless the caller has
    /// less time; says whether it has not. Fails when the caller has no time left.
    #[inline]
    pub(crate) fn begin_by(&mut self, now: Instant, own: Instant) -> Result<bool, Failure> {
        self.times.started = Some(now);
        match self.times.deadline {
            Some(callers) if callers <= now => {
                let due = Due { at: now, limit: TimeLimit::Pipeline };
                return Err(self.fire(due, now).with_attempts(0));
            }
            Some(callers) if callers <= own => {}
            _ => (self.times.deadline, self.callers) = (Some(own), false),
        }
        Ok(!self.callers)
    }

    pub(crate) fn limits(&self) -> &TimeLimits {
        &self.shared.limits
    }

    /// The limit that has been reached, if any. To be polled whenever what is waited for is not
    /// ready; wakes the task when a limit is due.
    pub fn poll_fired(&mut self, cx: &mut Context<'_>) -> Poll<Failure> {
        self.unseen = 0;
        loop {
            let now = Instant::now();
            let Some(due) = self.due(now) else { return Poll::Pending };
            if due.at <= now {
                return Poll::Ready(self.fire(due, now));
            }
            let timer = match &mut self.timer {
                None => self.timer.insert(Alarm::at(due.at)),
                Some(timer) => {
                    // Moving a timer is dear and progress is frequent, so a timer is never
                    // put off: it fires early, once a limit at most, and is set anew then.
                    if timer.is_elapsed() || timer.deadline() > due.at {
                        timer.reset(due.at);
                    }
                    timer
                }
            };
            ready!(timer.poll(cx));
        }
    }

    /// The limit that has been passed, if any, checked only once in a while and without waiting
    /// for it: to be asked before each piece of the reply, so that one which is always ready meets
    /// its limits too.
    pub fn overdue(&mut self) -> Option<Failure> {
        if self.unseen < PIECES_UNSEEN {
            return None;
        }
        self.unseen = 0;
        let now = Instant::now();
        let due = self.due(now).filter(|due| due.at <= now)?;
        Some(self.fire(due, now))
    }

    fn due(&mut self, now: Instant) -> Option<Due> {
        self.times.started.get_or_insert(now);
        if std::mem::take(&mut self.fresh) {
            self.times.progress = Some(now);
        }
        self.times.due(&self.shared.limits)
    }

    /// A piece of the reply has come. `content` says that it was more than a sign of life,
    /// `progress` that it was content or a sign that work goes on, such as a complete tool call.
    pub fn came(&mut self, content: bool, progress: bool) {
        self.unseen = self.unseen.saturating_add(1);
        self.fresh |= progress;
        self.times.content |= content;
    }

    /// A piece has been handed on to the caller; `content` as in [`came`](Self::came).
    pub fn delivered(&mut self, content: bool) {
        self.delivered |= content;
    }

    /// `failure`, which says whether content has reached the caller. What is under this layer
    /// may take content for delivered that is `held` back here.
    pub(crate) fn mark_delivered(&self, failure: Failure, held: bool) -> Failure {
        match (self.delivered, held) {
            (true, _) => failure.with_delivered(),
            (false, true) => failure.without_delivered(),
            (false, false) => failure,
        }
    }

    /// The beginning of the answer is measured from now on for `floor`'s window.
    pub(crate) fn open_window(&mut self, floor: &Floor) {
        self.times.window = Instant::now().checked_add(floor.window);
    }

    /// The beginning was fast enough.
    pub(crate) fn close_window(&mut self) {
        self.times.window = None;
    }

    fn fire(&self, due: Due, now: Instant) -> Failure {
        self.shared.fired(due.limit);
        let started = self.times.started.unwrap_or(now);
        let fired = Fired {
            limit: due.limit,
            limits: &self.shared.limits,
            callers: self.callers,
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
