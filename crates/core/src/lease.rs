//! What a layer holds while an answer is under way.

use std::{fmt, sync::Arc, time::Duration};

use tokio::time::Instant;

use crate::{Failure, RecoveryLog, Usage};

/// State that hands out leases and is told how each ended.
///
/// Implemented by a layer's per-key state, so that a [`Lease`] is a counted pointer to it and two
/// words: handing one out allocates nothing.
pub trait Settle: Send + Sync + 'static {
    /// Called exactly once a lease, from wherever the answer ended: a poll, or a drop. Must not
    /// panic or block.
    fn settle(&self, settled: Settled<'_>);
}

/// What the state wrote on the lease when it handed it out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Token {
    /// The generation the call was admitted under. A lease from an earlier one decides nothing.
    pub generation: u64,
    /// Whatever else the state needs to know it by, such as a probe's number.
    pub mark: u64,
}

/// How an answer ended.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Outcome<'a> {
    /// It arrived whole.
    Success,
    /// It failed, at its head or in the middle.
    Failure(&'a Failure),
    /// The caller stopped listening: it frees what was held and says nothing of the provider.
    Cancelled,
}

/// What a lease tells the state that handed it out.
#[derive(Debug)]
#[non_exhaustive]
pub struct Settled<'a> {
    /// What the state wrote on the lease.
    pub token: Token,
    /// How the answer ended.
    pub outcome: Outcome<'a>,
    /// From [`Lease::started`] to the first content; `None` when there was none, or when nobody
    /// asked for it.
    pub first_content: Option<Duration>,
    /// What the answer used, as far as reported; of an answer that arrived whole only when somebody
    /// asked for it ([`Lease::metered`]).
    pub usage: Option<&'a Usage>,
    /// The request's recovery log.
    pub log: &'a RecoveryLog,
}

/// A place in a layer's books, held from admission until the answer has ended.
///
/// It settles once: by [`success`](Self::success), [`failure`](Self::failure), or by being
/// dropped, which counts as *cancelled*, or as a failure while the thread panics. The state that
/// handed it out keeps the time limit: a lease it has not heard of for too long is taken back by
/// moving on the generation.
#[must_use = "a dropped lease counts as cancelled"]
pub struct Lease {
    /// `None` once settled, and when nobody waits for it.
    settle: Option<Arc<dyn Settle>>,
    token: Token,
    log: RecoveryLog,
    timing: Timing,
    /// There when somebody asked for it. Boxed: most never ask, and a lease is handed on a few times.
    usage: Option<Box<Option<Usage>>>,
}

#[derive(Clone, Copy)]
enum Timing {
    Untimed,
    Waiting(Instant),
    Began(Duration),
}

impl Lease {
    /// A lease on `state`.
    #[inline]
    pub fn new(state: Arc<dyn Settle>, token: Token, log: RecoveryLog) -> Self {
        Self { settle: Some(state), token, log, timing: Timing::Untimed, usage: None }
    }

    /// A lease that nobody waits for: for an answer that changes nothing, whichever way it ends.
    #[inline]
    pub const fn idle() -> Self {
        let token = Token { generation: 0, mark: 0 };
        let log = RecoveryLog::disabled();
        Self { settle: None, token, log, timing: Timing::Untimed, usage: None }
    }

    /// Whether nobody waits for it.
    #[inline]
    pub const fn is_idle(&self) -> bool {
        self.settle.is_none()
    }

    /// Asks for the time from `at` to the first content. Without it the clock is not read.
    #[inline]
    pub fn started(mut self, at: Instant) -> Self {
        self.timing = Timing::Waiting(at);
        self
    }

    /// Asks for what the answer uses. Without it nothing is added up.
    pub fn metered(mut self) -> Self {
        self.usage = Some(Box::default());
        self
    }

    /// Whether it wants to know when content comes.
    #[inline]
    pub const fn awaits_content(&self) -> bool {
        matches!(self.timing, Timing::Waiting(_))
    }

    /// Notes that content has come; the first call counts.
    #[inline]
    pub fn content(&mut self) {
        if let Timing::Waiting(started) = self.timing {
            self.timing = Timing::Began(started.elapsed());
        }
    }

    /// Whether somebody asked for what the answer uses.
    #[inline]
    pub const fn is_metered(&self) -> bool {
        self.usage.is_some()
    }

    /// Notes what the answer says it has used so far. Later reports complete earlier ones.
    pub fn used(&mut self, usage: &Usage) {
        if let Some(sum) = &mut self.usage {
            sum.get_or_insert_default().update(usage);
        }
    }

    /// Takes it out of its place and leaves an [idle](Self::idle) one there.
    #[inline]
    pub const fn take(&mut self) -> Self {
        std::mem::replace(self, Self::idle())
    }

    /// The answer arrived whole.
    #[inline]
    pub fn success(mut self) {
        if let Some(state) = self.settle.take() {
            self.succeeded(&*state);
        }
    }

    /// Apart, so that an idle lease is seen to be nothing.
    #[inline(never)]
    fn succeeded(&mut self, state: &dyn Settle) {
        self.content();
        self.tell(state, Outcome::Success, None);
    }

    /// The answer failed.
    pub fn failure(mut self, failure: &Failure) {
        if let Some(state) = self.settle.take() {
            self.tell(&*state, Outcome::Failure(failure), failure.usage());
        }
    }

    /// The caller stopped listening; the same as dropping the lease.
    pub fn cancel(self) {}

    /// Gives the place back without telling anyone: for a state that has already settled it.
    pub fn forget(mut self) {
        self.settle = None;
    }

    #[inline]
    fn tell(&self, state: &dyn Settle, outcome: Outcome<'_>, usage: Option<&Usage>) {
        let first_content = match self.timing {
            Timing::Began(took) => Some(took),
            Timing::Untimed | Timing::Waiting(_) => None,
        };
        let usage = usage.or_else(|| self.usage.as_deref()?.as_ref());
        state.settle(Settled { token: self.token, outcome, first_content, usage, log: &self.log });
    }

    /// Dropped before its time.
    #[cold]
    fn abandon(&self, state: &dyn Settle) {
        if std::thread::panicking() {
            self.tell(state, Outcome::Failure(&Failure::panicked()), None);
        } else {
            self.tell(state, Outcome::Cancelled, None);
        }
    }
}

impl Drop for Lease {
    #[inline]
    fn drop(&mut self) {
        if let Some(state) = self.settle.take() {
            self.abandon(&*state);
        }
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lease")
            .field("token", &self.token)
            .field("settled", &self.settle.is_none())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use parking_lot::Mutex;

    use super::*;
    use crate::Reason;

    #[derive(Default)]
    struct Book(Mutex<Vec<(u64, String, Option<Duration>)>>);

    impl Settle for Book {
        fn settle(&self, settled: Settled<'_>) {
            let outcome = match settled.outcome {
                Outcome::Success => "success".to_owned(),
                Outcome::Failure(failure) => failure.reason().to_string(),
                Outcome::Cancelled => "cancelled".to_owned(),
            };
            self.0.lock().push((settled.token.mark, outcome, settled.first_content));
        }
    }

    fn lease(book: &Arc<Book>, mark: u64) -> Lease {
        Lease::new(book.clone(), Token { generation: 0, mark }, RecoveryLog::default())
    }

    #[test]
    fn settles_once_whatever_happens() {
        let book = Arc::new(Book::default());
        lease(&book, 1).success();
        lease(&book, 2).failure(&Failure::new(Reason::Timeout, ""));
        drop(lease(&book, 3));
        lease(&book, 4).cancel();
        lease(&book, 5).forget();
        let panicking = {
            let lease = lease(&book, 6);
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(move || {
                let _lease = lease;
                panic!("inner service");
            }))
        };
        assert!(panicking.is_err());
        let told: Vec<_> =
            book.0.lock().iter().map(|(mark, how, _)| (*mark, how.clone())).collect();
        let expected =
            [(1, "success"), (2, "timeout"), (3, "cancelled"), (4, "cancelled"), (6, "unknown")];
        assert_eq!(told, expected.map(|(mark, how)| (mark, how.to_owned())));
        assert_eq!(Arc::strong_count(&book), 1, "nothing is held afterwards");
        assert!(Lease::idle().is_idle());
        Lease::idle().success();
    }

    #[tokio::test(start_paused = true)]
    async fn times_the_first_content_only() {
        let book = Arc::new(Book::default());
        let mut lease = lease(&book, 1).started(Instant::now());
        tokio::time::advance(Duration::from_secs(2)).await;
        lease.content();
        tokio::time::advance(Duration::from_secs(5)).await;
        lease.content();
        lease.success();
        assert_eq!(book.0.lock()[0].2, Some(Duration::from_secs(2)));
    }
}
