//! The place a call holds in its breaker's books.

use std::{fmt, sync::Arc, time::Duration};

use steadfast_core::{Failure, Lease, Outcome, RecoveryLog, Settle, Token};
use tokio::time::Instant;

use crate::cell::Last;

/// The place a call holds in its breaker's books: what a [`Lease`] is made of when the answer has
/// one. Dropped, it settles as a lease does.
pub(crate) struct Ticket<K: Clone + Send + Sync + 'static> {
    /// `None` once settled.
    cell: Option<Last<K>>,
    token: Token,
    log: RecoveryLog,
    /// Set when it matters how long the first content takes.
    started: Option<Instant>,
}

/// Settles when it is dropped, which is only while the inner service panics as it is called: there is
/// no ticket yet, because one that is made afterwards is made where it stays.
pub(crate) struct Guard<'a, K: Clone + Send + Sync + 'static> {
    pub(crate) cell: &'a Last<K>,
    pub(crate) token: Token,
    pub(crate) log: &'a RecoveryLog,
}

impl<K: Clone + Send + Sync + 'static> Drop for Guard<'_, K> {
    #[cold]
    fn drop(&mut self) {
        drop(Ticket::new(self.cell.clone(), self.token, self.log.clone(), None));
    }
}

impl<K: Clone + Send + Sync + 'static> Ticket<K> {
    #[inline]
    pub(crate) fn new(
        cell: Last<K>,
        token: Token,
        log: RecoveryLog,
        started: Option<Instant>,
    ) -> Self {
        Self { cell: Some(cell), token, log, started }
    }

    /// The answer is there and whole. Whether there was anything to settle.
    #[inline]
    pub(crate) fn succeed(&mut self) -> bool {
        let took = self.started.map(|started| started.elapsed());
        self.settle(&Outcome::Success, took)
    }

    /// The call failed. Whether there was anything to settle.
    pub(crate) fn fail(&mut self, failure: &Failure) -> bool {
        self.settle(&Outcome::Failure(failure), None)
    }

    #[inline]
    fn settle(&mut self, outcome: &Outcome<'_>, took: Option<Duration>) -> bool {
        let Some(cell) = self.cell.take() else { return false };
        cell.ended(self.token, outcome, took, &self.log);
        true
    }

    /// The answer has begun, and ends when the lease says so. `None` once settled.
    #[inline]
    pub(crate) fn lease(&mut self) -> Option<Lease> {
        let settle: Arc<dyn Settle> = match self.cell.take()? {
            Last::New(cell) => cell,
            Last::Known(known) => known,
        };
        let lease = Lease::new(settle, self.token, std::mem::take(&mut self.log));
        Some(match self.started {
            Some(started) => lease.started(started),
            None => lease,
        })
    }

    /// The caller went away, or the inner service panics.
    #[cold]
    pub(crate) fn abandon(&mut self) {
        drop(self.lease());
    }
}

impl<K: Clone + Send + Sync + 'static> Drop for Ticket<K> {
    #[inline]
    fn drop(&mut self) {
        if self.cell.is_some() {
            self.abandon();
        }
    }
}

impl<K: Clone + Send + Sync + 'static> fmt::Debug for Ticket<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ticket")
            .field("token", &self.token)
            .field("settled", &self.cell.is_none())
            .finish_non_exhaustive()
    }
}
