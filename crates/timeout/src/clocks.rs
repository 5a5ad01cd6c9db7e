//! The clocks of one call: one lazy timer, whatever the number of limits.

use std::{
    fmt,
    task::{Context, Poll, ready},
};

use steadfast_core::{CallContext, Failure, Near, RecoveryLog, Target, time::Alarm};
use tokio::time::Instant;

use crate::{
    Floor,
    fired::Fired,
    state::{Limits, Shared},
    times::{Due, Times},
};

/// Pieces that may be ready one after the other before the time is looked at: a stream that never
/// has to wait must not outrun its limits.
const PIECES_UNSEEN: u8 = 32;

/// The clocks of one call. They go from the future to the reply, so that a limit runs over both.
///
/// Nothing is armed and no time is read until there is something to wait for.
#[must_use = "clocks limit nothing unless polled"]
pub struct Clocks {
    shared: Near<Shared>,
    times: Times,
    /// The deadline is the caller's and not this layer's.
    callers: bool,
    /// There has been progress since the time was last read.
    fresh: bool,
    delivered: bool,
    unseen: u8,
    /// Set, or found to be early enough, after content: what may be due has moved later at most.
    settled: bool,
    timer: Option<Alarm>,
    target: Option<Target>,
    log: RecoveryLog,
}

/// What is known of a call before it is made.
pub(crate) struct Seed {
    target: Option<Target>,
    log: RecoveryLog,
    /// It is not the first attempt of its request.
    again: bool,
    deadline: Option<Instant>,
    /// The deadline is the caller's and not this layer's.
    callers: bool,
    /// When it was made, where that is known already.
    started: Option<Instant>,
}

impl Seed {
    /// A call under the caller's deadline, if there is one.
    #[inline]
    pub(crate) fn new(context: &CallContext) -> Self {
        Self {
            target: context.target.clone(),
            log: context.log.clone(),
            again: context.attempts > 0,
            deadline: context.deadline.map(steadfast_core::Deadline::instant),
            callers: true,
            started: None,
        }
    }

    /// When the call must be over, as far as the caller says.
    #[inline]
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// The call was made `now` and ends at `at`, by this layer's own limit.
    #[inline]
    pub(crate) fn own_deadline(&mut self, now: Instant, at: Instant) {
        self.deadline = Some(at);
        self.callers = false;
        self.started = Some(now);
    }

    /// The call was made `now`.
    #[inline]
    pub(crate) fn started(&mut self, now: Instant) {
        self.started = Some(now);
    }
}

impl Clocks {
    /// Those of the call that `seed` is about.
    #[inline]
    pub(crate) fn new(shared: Near<Shared>, seed: Seed) -> Self {
        let Seed { target, log, again, deadline, callers, started } = seed;
        let times = Times { started, again, deadline, ..Times::default() };
        Self {
            shared,
            times,
            callers,
            fresh: false,
            delivered: false,
            unseen: 0,
            settled: false,
            timer: None,
            target,
            log,
        }
    }

    pub(crate) fn limits(&self) -> &Limits {
        &self.shared.limits
    }

    pub(crate) fn floor(&self) -> Option<Floor> {
        self.shared.limits.floor
    }

    /// Whether any limit wants to know content from mere signs of life.
    pub(crate) fn tells_content(&self) -> bool {
        let limits = self.limits();
        limits.stall.is_some() || limits.first_content.is_some() || limits.floor.is_some()
    }

    /// The limit that has been reached, if any. To be polled whenever what is waited for is not
    /// ready; wakes the task when a limit is due.
    pub fn poll_fired(&mut self, cx: &mut Context<'_>) -> Poll<Failure> {
        self.unseen = 0;
        if let Some(timer) = &mut self.timer
            && (self.settled || !self.fresh)
        {
            if std::mem::take(&mut self.fresh) && self.shared.limits.stall.is_some() {
                self.times.progress = Some(Instant::now());
            }
            ready!(timer.poll(cx));
        }
        loop {
            let now = Instant::now();
            let Some(due) = self.due(now) else { return Poll::Pending };
            if due.at <= now {
                return Poll::Ready(self.fire(due, now));
            }
            self.settled = self.times.content;
            let timer = match &mut self.timer {
                None => self.timer.insert(Alarm::at(due.at)),
                Some(timer) => {
                    // Moving a timer is dear and progress is frequent, so a timer is not moved
                    // later: it fires early, once a limit at most, and is set anew then.
                    if timer.is_elapsed() || timer.deadline() > due.at {
                        timer.reset(due.at);
                    }
                    timer
                }
            };
            ready!(timer.poll(cx));
        }
    }

    /// The limit that has been passed, if any, looked at only once in a while and without waiting
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

    /// A piece of the reply has come; `content` says that it was more than a sign of life.
    pub fn came(&mut self, content: bool) {
        self.unseen = self.unseen.saturating_add(1);
        self.fresh |= content;
        self.times.content |= content;
    }

    /// Progress that is no content, such as a tool call that is complete.
    pub(crate) fn progressed(&mut self) {
        self.fresh = true;
    }

    /// Content has been handed on to the caller.
    pub fn delivered(&mut self) {
        self.delivered = true;
    }

    /// `failure`, which says whether content has reached the caller. What is under this layer
    /// may take content for delivered that is `held` back here.
    pub(crate) fn told(&self, failure: Failure, held: bool) -> Failure {
        match (self.delivered, held) {
            (true, _) => failure.with_delivered(),
            (false, true) => failure.without_delivered(),
            (false, false) => failure,
        }
    }

    /// The beginning of the answer is measured from now on for `floor`'s window. What began is
    /// content, so the timer is looked at anew in any case.
    pub(crate) fn open_window(&mut self, floor: &Floor) {
        self.times.window = Instant::now().checked_add(floor.window);
        self.settled = false;
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

    /// The deadline had passed before the call was made.
    pub(crate) fn refuse(&self, now: Instant) -> Failure {
        let due = Due { at: now, limit: steadfast_core::TimeLimit::Pipeline };
        self.fire(due, now).with_attempts(0)
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
