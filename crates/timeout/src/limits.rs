//! The limits of a call, and which of them is due next: pure, no clock.

use std::time::Duration;

use steadfast_core::TimeLimit;
use tokio::time::Instant;

use crate::Floor;

/// The limits of a layer; none by default.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct TimeLimits {
    pub(crate) stall: Option<Duration>,
    pub(crate) first_content: Option<Duration>,
    pub(crate) makespan: Option<Duration>,
    pub(crate) attempt: Option<Duration>,
    pub(crate) attempt_to_end: bool,
    pub(crate) whole: Option<Duration>,
    pub(crate) pipeline: Option<Duration>,
    pub(crate) floor: Option<Floor>,
}

impl TimeLimits {
    /// Whether any limit has to distinguish content from keep-alives.
    pub(crate) fn need_content(&self) -> bool {
        self.stall.is_some() || self.first_content.is_some() || self.floor.is_some()
    }
}

/// The times of a call, as far as known.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Times {
    /// When the call had to be waited for first.
    pub(crate) started: Option<Instant>,
    /// When content, or other progress, was last seen.
    pub(crate) progress: Option<Instant>,
    /// Content has come.
    pub(crate) content: bool,
    /// It is not the first attempt of its request.
    pub(crate) is_retry: bool,
    /// Its answer comes whole, so that nothing can be concluded from its silence.
    pub(crate) is_whole: bool,
    /// When the call must be over.
    pub(crate) deadline: Option<Instant>,
    /// The end of the window over which the rate is measured.
    pub(crate) window: Option<Instant>,
}

/// A limit and when it fires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Due {
    pub(crate) at: Instant,
    pub(crate) limit: TimeLimit,
}

impl Times {
    /// The limit that fires first. Of several at once, the first of this list: those that do not
    /// count against the provider, then the more specific ones.
    pub(crate) fn due(&self, limits: &TimeLimits) -> Option<Due> {
        let after = |from: Option<Instant>, limit: Option<Duration>| from?.checked_add(limit?);
        let Self { started, progress, content, is_retry, is_whole, deadline, window } = *self;
        let first_content = limits.first_content.filter(|_| !content && !is_whole);
        // Once there is content, this limit would break a healthy stream, unless it is meant to.
        let lasts = limits.attempt_to_end || (!content && !is_whole);
        let attempt = limits.attempt.filter(|_| is_retry && lasts);
        let stall = limits.stall.filter(|_| !is_whole);
        let whole = limits.whole.filter(|_| is_whole);
        [
            (deadline, TimeLimit::Pipeline),
            (after(started, limits.makespan), TimeLimit::Makespan),
            (after(started, attempt), TimeLimit::Attempt),
            (after(started, whole), TimeLimit::Whole),
            (window, TimeLimit::Throughput),
            (after(started, first_content), TimeLimit::FirstContent),
            (after(progress.or(started), stall), TimeLimit::Stall),
        ]
        .into_iter()
        .filter_map(|(at, limit)| at.map(|at| Due { at, limit }))
        // The first of equals.
        .min_by_key(|due| due.at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secs(secs: u64) -> Duration {
        Duration::from_secs(secs)
    }

    #[tokio::test(start_paused = true)]
    async fn the_earliest_fires() {
        let start = Instant::now();
        let limits = TimeLimits {
            stall: Some(secs(180)),
            first_content: Some(secs(30)),
            makespan: Some(secs(1_800)),
            attempt: Some(secs(60)),
            attempt_to_end: false,
            whole: None,
            pipeline: None,
            floor: None,
        };
        let started = Times { started: Some(start), ..Times::default() };
        let with_content =
            |at| Times { content: true, progress: Some(start + secs(at)), ..started };
        let due = |at, limit| Some(Due { at: start + secs(at), limit });
        for (times, limits, expected) in [
            (started, limits, due(30, TimeLimit::FirstContent)),
            (with_content(20), limits, due(200, TimeLimit::Stall)),
            (with_content(1_700), limits, due(1_800, TimeLimit::Makespan)),
            (
                Times { is_retry: true, ..started },
                TimeLimits { first_content: None, ..limits },
                due(60, TimeLimit::Attempt),
            ),
            (Times { is_retry: true, ..with_content(20) }, limits, due(200, TimeLimit::Stall)),
            (
                Times { is_retry: true, ..with_content(20) },
                TimeLimits { attempt_to_end: true, ..limits },
                due(60, TimeLimit::Attempt),
            ),
            (
                Times { is_retry: true, is_whole: true, ..started },
                TimeLimits { attempt_to_end: true, ..limits },
                due(60, TimeLimit::Attempt),
            ),
            (
                with_content(20),
                TimeLimits { attempt_to_end: true, ..limits },
                due(200, TimeLimit::Stall),
            ),
            // The silence of an answer that comes whole says nothing, whichever attempt it is.
            (
                Times { is_whole: true, is_retry: true, ..started },
                limits,
                due(1_800, TimeLimit::Makespan),
            ),
            (
                Times { is_whole: true, ..started },
                TimeLimits { whole: Some(secs(90)), ..limits },
                due(90, TimeLimit::Whole),
            ),
            (
                started,
                TimeLimits { whole: Some(secs(9)), ..limits },
                due(30, TimeLimit::FirstContent),
            ),
            (
                Times { window: Some(start + secs(25)), ..with_content(20) },
                limits,
                due(25, TimeLimit::Throughput),
            ),
            (
                Times { deadline: Some(start), ..with_content(20) },
                limits,
                due(0, TimeLimit::Pipeline),
            ),
            // Of equal times, the caller's limit before the provider's.
            (
                Times { deadline: Some(start + secs(30)), ..started },
                limits,
                due(30, TimeLimit::Pipeline),
            ),
            (
                started,
                TimeLimits { first_content: Some(secs(180)), ..limits },
                due(180, TimeLimit::FirstContent),
            ),
            // Not started, nothing set, or too long to represent: nothing is due.
            (Times::default(), limits, None),
            (started, TimeLimits::default(), None),
            (started, TimeLimits { stall: Some(Duration::MAX), ..TimeLimits::default() }, None),
        ] {
            assert_eq!(times.due(&limits), expected, "{times:?} {limits:?}");
        }
    }
}
