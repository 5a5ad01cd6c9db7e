//! Deadlines, timers, and the only place that reads wall time.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::OnceLock,
    task::{Context, Poll, Waker},
    time::{Duration, SystemTime, UNIX_EPOCH},
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
pub fn wall() -> SystemTime {
    wall_at(Instant::now())
}

/// The system's own wall time, which may be set at any moment and follows no paused clock: for what another machine
/// compares with its own, such as a signature.
#[expect(
    clippy::disallowed_methods,
    reason = "a signature is compared with another machine's clock"
)]
pub fn utc() -> SystemTime {
    SystemTime::now()
}

/// The wall time of a moment of tokio's clock; see [`wall`].
#[expect(clippy::disallowed_methods, reason = "the only place that reads wall time")]
pub fn wall_at(at: Instant) -> SystemTime {
    static START: OnceLock<(Instant, SystemTime)> = OnceLock::new();
    let (instant, wall) = START.get_or_init(|| (Instant::now(), SystemTime::now()));
    match at.checked_duration_since(*instant) {
        Some(since) => *wall + since,
        // Paused clocks differ, and several threads can come here at once.
        None => *wall - instant.saturating_duration_since(at),
    }
}

/// One moment by tokio's clock and by the wall: what is kept over a restart has wall time, in milliseconds
/// since 1970, since an [`Instant`] means nothing to another process.
#[derive(Clone, Copy, Debug)]
pub struct WallClock {
    at: Instant,
    /// Since 1970.
    unix: Duration,
}

impl WallClock {
    /// Now, by [`wall`].
    pub fn now() -> Self {
        let at = Instant::now();
        Self { at, unix: wall_at(at).duration_since(UNIX_EPOCH).unwrap_or_default() }
    }

    /// The moment `at`, which is `unix` after 1970.
    pub const fn new(at: Instant, unix: Duration) -> Self {
        Self { at, unix }
    }

    /// By tokio's clock.
    pub const fn at(self) -> Instant {
        self.at
    }

    /// By the wall, in milliseconds since 1970.
    pub fn unix_ms(self) -> u64 {
        millis(self.unix)
    }

    /// `instant` in whole milliseconds since 1970; the same in every process that lasts, as long as nobody changes
    /// the wall clock.
    pub fn to_unix_ms(self, instant: Instant) -> u64 {
        let unix = match instant.checked_duration_since(self.at) {
            Some(ahead) => self.unix.saturating_add(ahead),
            None => self.unix.saturating_sub(self.at.saturating_duration_since(instant)),
        };
        millis(unix)
    }

    /// The instant that is `unix_ms` milliseconds after 1970. For one too early to represent, this moment; for one
    /// too late, in thirty years.
    pub fn to_instant(self, unix_ms: u64) -> Instant {
        let unix = Duration::from_millis(unix_ms);
        match unix.checked_sub(self.unix) {
            Some(ahead) => later(self.at, ahead),
            None => self.at.checked_sub(self.unix.saturating_sub(unix)).unwrap_or(self.at),
        }
    }
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
    async fn instants_have_wall_times() {
        let clock = WallClock::now();
        let later = clock.at() + Duration::from_millis(1_500);
        let earlier = clock.at().checked_sub(Duration::from_millis(700)).unwrap();
        let times = [earlier, clock.at(), later].map(|instant| clock.to_unix_ms(instant));
        tokio::time::advance(Duration::from_micros(123_456)).await;
        let next = WallClock::now();
        assert_eq!(
            [earlier, clock.at(), later].map(|at| next.to_unix_ms(at)),
            times,
            "always the same"
        );
        assert_eq!([times[1] - times[0], times[2] - times[1]], [700, 1_500]);
        // In whole milliseconds.
        let exact = WallClock::new(clock.at(), Duration::from_secs(1_000));
        for ms in [0, 999_999, 1_000_000, 1_000_001, 5_000_000] {
            assert_eq!(exact.to_unix_ms(exact.to_instant(ms)), ms);
        }
        assert!(exact.to_instant(u64::MAX) > exact.at(), "no overflow");
    }

    #[tokio::test(start_paused = true)]
    async fn endless_limits_do_not_overflow() {
        assert!(Deadline::after(Duration::MAX).remaining() > Duration::from_secs(900_000_000));
    }
}
