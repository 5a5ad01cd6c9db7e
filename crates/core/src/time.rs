//! Deadlines, timers, and the only place that reads wall time.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::OnceLock,
    task::{Context, Poll, Waker},
    time::{Duration, SystemTime},
};

use tokio::{
    task::coop::has_budget_remaining,
    time::{Instant, Sleep},
};

/// When a call must be over. Shared by every layer; inner layers can only make it earlier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Deadline {
    at: Instant,
    /// The limit of ours that it is the end of.
    limit: Option<Duration>,
}

impl Deadline {
    /// A deadline at `at`.
    pub const fn at(at: Instant) -> Self {
        Self { at, limit: None }
    }

    /// The same, of a limit that a layer has set.
    pub const fn of_limit(at: Instant, limit: Duration) -> Self {
        Self { at, limit: Some(limit) }
    }

    /// The limit that a layer has set; `None` when it is the caller's own deadline.
    pub const fn limit(self) -> Option<Duration> {
        self.limit
    }

    /// A deadline `limit` from now; thirty years from now for a limit too long to represent.
    pub fn after(limit: Duration) -> Self {
        Self::at(later(Instant::now(), limit))
    }

    /// The instant itself.
    pub const fn instant(self) -> Instant {
        self.at
    }

    /// What is left at `now`; zero once past.
    pub fn remaining_at(self, now: Instant) -> Duration {
        self.at.saturating_duration_since(now)
    }

    /// What is left; zero once past.
    pub fn remaining(self) -> Duration {
        self.remaining_at(Instant::now())
    }

    /// Whether it has passed.
    pub fn is_past(self) -> bool {
        Instant::now() >= self.at
    }
}

/// A timer that is polled far more often than it fires, such as the limit on the time between two
/// pieces of an answer. Polling it again from the same task costs almost nothing, whereas polling a
/// [`Sleep`] registers its waker each time.
pub struct Alarm {
    sleep: Pin<Box<Sleep>>,
    /// The waker that is registered with `sleep`.
    waker: Option<Waker>,
}

impl Alarm {
    /// A timer that fires at `at`.
    pub fn at(at: Instant) -> Self {
        Self { sleep: Box::pin(tokio::time::sleep_until(at)), waker: None }
    }

    /// When it fires, or fired.
    pub fn deadline(&self) -> Instant {
        self.sleep.deadline()
    }

    /// Whether it has fired.
    pub fn is_elapsed(&self) -> bool {
        self.sleep.is_elapsed()
    }

    /// Moves it to `at`; it has to be polled again to register a waker.
    pub fn reset(&mut self, at: Instant) {
        self.waker = None;
        self.sleep.as_mut().reset(at);
    }

    /// Ready once it has fired; until then it wakes the task that polled it last.
    pub fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if let Some(waker) = &self.waker
            && waker.will_wake(cx.waker())
            && !self.sleep.is_elapsed()
        {
            return Poll::Pending;
        }
        // Without cooperative budget the sleep is pending and does not register the waker.
        let registers = has_budget_remaining();
        let polled = self.sleep.as_mut().poll(cx);
        self.waker = (registers && polled.is_pending()).then(|| cx.waker().clone());
        polled
    }
}

impl fmt::Debug for Alarm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Alarm").field("deadline", &self.deadline()).finish_non_exhaustive()
    }
}

/// `now + wait`, or thirty years from now when that can not be represented.
pub fn later(now: Instant, wait: Duration) -> Instant {
    now.checked_add(wait).unwrap_or_else(|| now + Duration::from_secs(946_080_000))
}

/// Whole milliseconds, as events and settings have them.
pub fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Wall time, for HTTP dates and logs: the time of the first call, advanced by tokio's clock. So it
/// follows a paused clock, and never runs backwards.
#[expect(clippy::disallowed_methods, reason = "the only place that reads wall time")]
pub fn wall() -> SystemTime {
    static START: OnceLock<(Instant, SystemTime)> = OnceLock::new();
    let (instant, wall) = START.get_or_init(|| (Instant::now(), SystemTime::now()));
    *wall + instant.elapsed()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn follows_the_paused_clock() {
        let deadline = Deadline::after(Duration::from_secs(10));
        let before = wall();
        tokio::time::advance(Duration::from_secs(4)).await;
        assert_eq!(deadline.remaining(), Duration::from_secs(6));
        assert_eq!(wall().duration_since(before).unwrap(), Duration::from_secs(4));
        assert!(!deadline.is_past());
        tokio::time::advance(Duration::from_secs(7)).await;
        assert!(deadline.is_past());
        assert_eq!(deadline.remaining(), Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn endless_limits_do_not_overflow() {
        assert!(Deadline::after(Duration::MAX).remaining() > Duration::from_secs(900_000_000));
    }
}
