//! Leases: how a layer learns of the end of an answer.

use std::{fmt, sync::Arc, time::Duration};

use tokio::time::Instant;

use crate::{AnswerRecord, Failure, RecoveryLog, Usage, Witness};

/// State that hands out leases and learns how each ended.
///
/// Implemented by a layer's per-key state, so that a [`Lease`] is a counted pointer to it and a few
/// words: handing one out allocates nothing.
pub trait Observer: Send + Sync + 'static {
    /// The first content of the answer has come `at` that moment, `after` the call's start: called at
    /// most once a lease, before its end, and only for leases that [ask for it](Lease::observing_content).
    /// Must not panic or block.
    fn first_content(&self, permit: Permit, at: Instant, after: Duration, log: &RecoveryLog) {
        let _ = (permit, at, after, log);
    }

    /// An attempt of the call has failed and another one may follow under the same permit: reported by
    /// a layer that makes several attempts of a call ([`Routed::failed`](crate::Routed::failed)). Must
    /// not panic or block.
    fn attempt_failed(&self, permit: Permit, failure: &Failure, log: &RecoveryLog) {
        let _ = (permit, failure, log);
    }

    /// Whether what the call goes to is resting now: another attempt there would be refused, or others
    /// are preferred to it.
    fn rests(&self, permit: Permit) -> bool {
        let _ = permit;
        false
    }

    /// Whether what the call goes to has answered somebody so lately that it is not believed when it asks for a
    /// wait longer than calls take.
    fn answered_lately(&self, permit: Permit) -> bool {
        let _ = permit;
        false
    }

    /// The answer is over: called exactly once a lease, from a poll or a drop. Must not panic or block.
    fn ended(&self, end: LeaseEnd<'_>);
}

/// What is known about a call since its admission.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Permit {
    /// Why it was let through.
    pub kind: PermitKind,
    /// Its position in the order in which calls began, from 1.
    pub order: u64,
    /// The caller as far as failures are concerned: those of one witness count once where two are
    /// required.
    pub witness: Witness,
    /// Any further data of the observer.
    pub tag: [u32; 5],
}

/// Why a call was let through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PermitKind {
    /// The circuit is closed.
    Ordinary,
    /// To find out whether a resting target works again.
    Probe,
    /// It has no other target.
    Lone,
}

impl Permit {
    /// The permit of the call that began as the `order`th.
    pub const fn new(kind: PermitKind, order: u64) -> Self {
        Self { kind, order, witness: Witness::NONE, tag: [0; 5] }
    }
}

/// How an answer ended.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Outcome<'a> {
    /// It arrived whole.
    Success,
    /// It failed, at its head or in the middle.
    Failure(&'a Failure),
    /// The caller dropped it: what was held is released, and nothing counts against the provider.
    Cancelled,
}

/// What an [`Observer`] learns of the end of a call.
#[derive(Debug)]
#[non_exhaustive]
pub struct LeaseEnd<'a> {
    /// Its permit.
    pub permit: Permit,
    /// How the answer ended.
    pub outcome: Outcome<'a>,
    /// From the call's start to its first content; `None` when there was none, or when it was not
    /// [observed](Lease::observing_content).
    pub first_content: Option<Duration>,
    /// Whether the observer has been notified of the first content: not when it is a success that came without.
    pub content_reported: bool,
    /// The usage that was reported in the answer; of a lease that [counts](Lease::counting).
    pub usage: Usage,
    /// How many bytes of the answer have come; of a lease that [counts](Lease::counting).
    pub bytes: u64,
    /// What the provider says of its answer; of a lease that is [described](Lease::describing).
    pub answer: Option<&'a AnswerRecord>,
    /// The request's recovery log.
    pub log: &'a RecoveryLog,
}

/// Held from admission until the answer has ended.
///
/// It ends once: by [`success`](Self::success), [`failure`](Self::failure), or by being
/// dropped, which counts as *cancelled*, or as a failure while the thread panics. A time limit is the
/// observer's task: it gives up a lease that has not ended for too long.
#[must_use = "a dropped lease counts as cancelled"]
pub struct Lease {
    /// `None` once it has ended, and for an idle lease.
    observer: Option<Arc<dyn Observer>>,
    permit: Permit,
    log: RecoveryLog,
    content: Content,
    counted: Option<Box<Counted>>,
}

/// What has come of an answer.
#[derive(Clone, Debug, Default)]
struct Counted {
    usage: Usage,
    bytes: u64,
    /// Where it is asked for.
    answer: Option<AnswerRecord>,
}

#[derive(Clone, Copy)]
enum Content {
    /// Not observed.
    Ignored,
    /// It has not come yet; with the start of the call.
    Awaited(Instant),
    Came(Duration),
}

impl Content {
    /// The observer knows of it.
    const fn is_known(self) -> bool {
        matches!(self, Self::Came(_))
    }
}

impl Lease {
    /// A lease whose end is reported to `observer`.
    #[inline]
    pub fn new(observer: Arc<dyn Observer>, permit: Permit, log: RecoveryLog) -> Self {
        Self { observer: Some(observer), permit, log, content: Content::Ignored, counted: None }
    }

    /// A lease without an observer: for an answer whose outcome changes nothing.
    #[inline]
    pub const fn idle() -> Self {
        let permit = Permit::new(PermitKind::Ordinary, 0);
        let log = RecoveryLog::disabled();
        Self { observer: None, permit, log, content: Content::Ignored, counted: None }
    }

    /// With the recovery log of the call, for a lease that was made without it: the answer gets the log with
    /// its lease.
    #[inline]
    pub fn with_log(mut self, log: RecoveryLog) -> Self {
        self.log = log;
        self
    }

    /// The recovery log of the call.
    #[inline]
    pub const fn log(&self) -> &RecoveryLog {
        &self.log
    }

    /// Whether it has no observer.
    #[inline]
    pub const fn is_idle(&self) -> bool {
        self.observer.is_none()
    }

    /// Measures the time from `began` to the first content, and calls [`Observer::first_content`] when
    /// it comes. Without this the clock is not read.
    #[inline]
    pub fn observing_content(mut self, began: Instant) -> Self {
        self.content = Content::Awaited(began);
        self
    }

    /// Counts what comes of the answer, for its [end](LeaseEnd): tokens as they are reported, and bytes.
    pub fn counting(mut self) -> Self {
        self.counted = Some(Box::default());
        self
    }

    /// Asks whoever reads the answer for what the provider says of it, for its [end](LeaseEnd).
    pub fn describing(mut self) -> Self {
        self.counted.get_or_insert_default().answer = Some(AnswerRecord::default());
        self
    }

    /// What is known of the answer, to be added to; `None` unless it is [asked for](Self::describing).
    #[inline]
    pub fn description(&mut self) -> Option<&mut AnswerRecord> {
        self.counted.as_mut()?.answer.as_mut()
    }

    /// So many bytes of the answer have come, with a report of its usage if there is one.
    #[inline]
    pub fn received(&mut self, bytes: usize, usage: impl FnOnce() -> Option<Usage>) {
        if let Some(counted) = &mut self.counted {
            counted.bytes = counted.bytes.saturating_add(bytes as u64);
            if let Some(usage) = usage() {
                counted.usage.update(&usage);
            }
        }
    }

    /// Content has come; the first call counts.
    #[inline]
    pub fn content(&mut self) {
        if let Content::Awaited(began) = self.content {
            let now = Instant::now();
            let after = now.saturating_duration_since(began);
            self.content = Content::Came(after);
            if let Some(observer) = &self.observer {
                observer.first_content(self.permit, now, after, &self.log);
            }
        }
    }

    /// Takes it and leaves an [idle](Self::idle) one.
    #[inline]
    pub const fn take(&mut self) -> Self {
        std::mem::replace(self, Self::idle())
    }

    /// The answer arrived whole.
    #[inline]
    pub fn success(mut self) {
        if let Some(observer) = self.observer.take() {
            // A successful answer without content counts as having it at its end.
            let reported = self.content.is_known();
            if let Content::Awaited(began) = self.content {
                self.content = Content::Came(began.elapsed());
            }
            self.end(&*observer, Outcome::Success, reported);
        }
    }

    /// The answer failed.
    pub fn failure(self, failure: &Failure) {
        self.failure_rests(failure);
    }

    /// The answer failed; whether what it went to [rests](Observer::rests) now.
    pub fn failure_rests(mut self, failure: &Failure) -> bool {
        let Some(observer) = self.observer.take() else { return false };
        self.end(&*observer, Outcome::Failure(failure), self.content.is_known());
        observer.rests(self.permit)
    }

    /// The caller dropped the answer; the same as dropping the lease.
    pub fn cancel(self) {}

    #[inline]
    fn end(&self, observer: &dyn Observer, outcome: Outcome<'_>, content_reported: bool) {
        let first_content = match self.content {
            Content::Came(after) => Some(after),
            Content::Ignored | Content::Awaited(_) => None,
        };
        let (permit, log) = (self.permit, &self.log);
        let (usage, bytes, answer) = match self.counted.as_deref() {
            Some(counted) => (counted.usage, counted.bytes, counted.answer.as_ref()),
            None => (Usage::default(), 0, None),
        };
        let end = LeaseEnd {
            permit,
            outcome,
            first_content,
            content_reported,
            usage,
            bytes,
            answer,
            log,
        };
        observer.ended(end);
    }
}

impl Drop for Lease {
    #[inline]
    fn drop(&mut self) {
        if let Some(observer) = self.observer.take() {
            let reported = self.content.is_known();
            if std::thread::panicking() {
                self.end(&*observer, Outcome::Failure(&Failure::panicked()), reported);
            } else {
                self.end(&*observer, Outcome::Cancelled, reported);
            }
        }
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lease")
            .field("permit", &self.permit)
            .field("idle", &self.is_idle())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use parking_lot::Mutex;

    use super::*;
    use crate::Reason;

    #[derive(Default)]
    struct Ends(Mutex<Vec<(u64, String, Option<Duration>)>>);

    impl Observer for Ends {
        fn ended(&self, end: LeaseEnd<'_>) {
            let outcome = match end.outcome {
                Outcome::Success => "success".to_owned(),
                Outcome::Failure(failure) => failure.reason().to_string(),
                Outcome::Cancelled => "cancelled".to_owned(),
            };
            self.0.lock().push((end.permit.order, outcome, end.first_content));
        }
    }

    fn lease(ends: &Arc<Ends>, order: u64) -> Lease {
        let permit = Permit::new(PermitKind::Ordinary, order);
        Lease::new(ends.clone(), permit, RecoveryLog::default())
    }

    #[test]
    fn ends_exactly_once() {
        let ends = Arc::new(Ends::default());
        lease(&ends, 1).success();
        lease(&ends, 2).failure(&Failure::new(Reason::Timeout, ""));
        drop(lease(&ends, 3));
        lease(&ends, 4).cancel();
        let panicking = {
            let lease = lease(&ends, 6);
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(move || {
                let _lease = lease;
                panic!("inner service");
            }))
        };
        assert!(panicking.is_err());
        let seen: Vec<_> =
            ends.0.lock().iter().map(|(order, how, _)| (*order, how.clone())).collect();
        let expected =
            [(1, "success"), (2, "timeout"), (3, "cancelled"), (4, "cancelled"), (6, "unknown")];
        assert_eq!(seen, expected.map(|(order, how)| (order, how.to_owned())));
        assert_eq!(Arc::strong_count(&ends), 1, "nothing is held afterwards");
        assert!(Lease::idle().is_idle());
        Lease::idle().success();
    }

    #[tokio::test(start_paused = true)]
    async fn times_the_first_content_only() {
        let ends = Arc::new(Ends::default());
        let mut lease = lease(&ends, 1).observing_content(Instant::now());
        tokio::time::advance(Duration::from_secs(2)).await;
        lease.content();
        tokio::time::advance(Duration::from_secs(5)).await;
        lease.content();
        lease.success();
        assert_eq!(ends.0.lock()[0].2, Some(Duration::from_secs(2)));
    }

    #[tokio::test(start_paused = true)]
    async fn the_end_says_whether_the_first_content_was_reported() {
        #[derive(Default)]
        struct Reported(Mutex<(u32, Vec<bool>)>);
        impl Observer for Reported {
            fn first_content(&self, _: Permit, _: Instant, _: Duration, _: &RecoveryLog) {
                self.0.lock().0 += 1;
            }
            fn ended(&self, end: LeaseEnd<'_>) {
                self.0.lock().1.push(end.content_reported);
            }
        }
        let reported = Arc::new(Reported::default());
        let lease = || {
            let permit = Permit::new(PermitKind::Ordinary, 1);
            Lease::new(reported.clone(), permit, RecoveryLog::default())
        };
        let with_content = || {
            let mut lease = lease().observing_content(Instant::now());
            lease.content();
            lease
        };
        lease().observing_content(Instant::now()).success();
        with_content().success();
        with_content().failure(&Failure::new(Reason::Timeout, ""));
        drop(with_content());
        lease().success();
        assert_eq!(*reported.0.lock(), (3, vec![false, true, true, true, false]));
    }
}
