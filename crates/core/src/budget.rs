//! The budget of retries.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU32, AtomicU64, Ordering},
    },
};

use crate::{
    CallContext, Lease, LeaseEnd, Observer, Outcome, Permit, PermitKind, Reason, RecoveryLog,
};

/// The capacity of a budget and the costs of retries; plain fields.
///
/// The numbers are those of the AWS SDKs: 500 tokens hold about 35 retries of transient
/// errors, so that a dead provider costs a bounded share of traffic and not a multiple of it.
/// Throttling is cheaper, because a throttled provider works.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
#[cfg_attr(feature = "serde", serde(default, deny_unknown_fields))]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub struct BudgetPolicy {
    /// The capacity of the token bucket that is drawn from by retries beyond a call's first two at a target,
    /// further rounds over the targets, hedges and resumes.
    #[cfg_attr(feature = "serde", serde(rename = "budget"))]
    pub capacity: u32,
    /// What a retry after anything but throttling takes out.
    #[cfg_attr(feature = "serde", serde(rename = "budget_transient"))]
    pub transient: u32,
    /// What a retry after `rate_limit` or `overloaded` takes out.
    #[cfg_attr(feature = "serde", serde(rename = "budget_throttling"))]
    pub throttling: u32,
    /// What a retry after `network` takes out. A connection that failed costs the provider nothing.
    #[cfg_attr(feature = "serde", serde(rename = "budget_network"))]
    pub network: u32,
    /// How many retries of a call at one target are free. 2, as many as the official SDKs make by
    /// themselves, which they leave to us.
    #[cfg_attr(feature = "serde", serde(rename = "budget_free"))]
    pub free: u32,
    /// What a first attempt that succeeds puts back.
    #[cfg_attr(feature = "serde", serde(rename = "budget_refill"))]
    pub refill: u32,
    /// How many calls may wait between their attempts at once; beyond that they end with what they have. 1,024:
    /// each keeps its request in memory. Of those that share it
    /// ([`RetryBudget::sharing`]) none takes more than three times what it leaves to the others. 0 for no limit,
    /// which there is not without a budget either.
    pub max_waiting: u32,
    /// How many bytes of memory the calls that wait may [hold](crate::CallContext::held_bytes), shared in the
    /// same way. 0, the default, for no limit.
    #[cfg_attr(feature = "serde", serde(skip))]
    #[cfg_attr(feature = "schemars", schemars(skip))]
    pub max_waiting_bytes: u64,
}

impl Default for BudgetPolicy {
    fn default() -> Self {
        Self {
            capacity: 500,
            transient: 14,
            throttling: 5,
            network: 5,
            free: 2,
            refill: 1,
            max_waiting: 1_024,
            max_waiting_bytes: 0,
        }
    }
}

/// A token bucket that a stack's retries beyond a call's first two, its further rounds, hedges and resumes draw
/// from: a handle, shared by cloning.
///
/// A retry [reserves](Self::reserve) what it costs before it is made, and spends it when it is. When
/// the call then succeeds, its cost is put back; a first attempt that succeeds puts back one token. So
/// under a healthy provider the bucket is always full, and under a dead one retries stop after the
/// bucket is empty.
///
/// Of several layers that share a bucket one refills it; the others take a
/// [`drawing`](Self::drawing) handle, or one success would count once a layer.
#[derive(Clone)]
pub struct RetryBudget {
    // Behind one pointer: each call has several handles.
    share: Arc<Share>,
    /// Whether successes that took nothing out put something back.
    refills: bool,
}

/// A bucket, and what one of those that share it pay.
struct Share {
    bucket: Arc<Bucket>,
    /// Calls that wait, of this one.
    waiting: Arc<Waits>,
    policy: BudgetPolicy,
}

/// How many calls wait, and what they hold.
#[derive(Debug, Default)]
struct Waits {
    calls: AtomicU32,
    bytes: AtomicU64,
}

impl Waits {
    /// One more; how many and how much there was before.
    fn add(&self, bytes: u64) -> (u32, u64) {
        let calls = self.calls.fetch_add(1, Ordering::Relaxed);
        (calls, self.bytes.fetch_add(bytes, Ordering::Relaxed))
    }

    fn remove(&self, bytes: u64) {
        self.calls.fetch_sub(1, Ordering::Relaxed);
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
    }
}

/// Whether `more` may be added to what one of those that share holds, where all hold `held`: one that holds three times
/// what is left gets no more.
fn fits(most: u64, held: u64, own: u64, more: u64) -> bool {
    let left = most.saturating_sub(held);
    most == 0 || (left >= more && own < left.saturating_mul(3))
}

#[derive(Debug)]
struct Bucket {
    capacity: AtomicU32,
    tokens: AtomicU32,
    /// Calls that wait, of all.
    waiting: Waits,
}

/// A place among the calls that wait, until it is dropped.
#[derive(Debug)]
#[must_use = "the place is given up when this is dropped"]
pub struct Waiting {
    bucket: Arc<Bucket>,
    share: Arc<Waits>,
    bytes: u64,
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.share.remove(self.bytes);
        self.bucket.waiting.remove(self.bytes);
    }
}

/// Which budget a layer draws from.
#[derive(Clone, Debug, Default)]
pub enum BudgetSource {
    /// The request's ([`CallContext::budget`]), else the layer's.
    #[default]
    Default,
    /// This one, even if the request has one.
    Own(RetryBudget),
    /// None.
    Unlimited,
}

impl BudgetSource {
    /// The budget for a call with `context`; `layers` is that of the layer.
    #[inline]
    pub fn of<'a>(
        &'a self,
        context: &'a CallContext,
        layers: &'a RetryBudget,
    ) -> Option<&'a RetryBudget> {
        match self {
            Self::Default => Some(context.budget.as_ref().unwrap_or(layers)),
            Self::Own(budget) => Some(budget),
            Self::Unlimited => None,
        }
    }
}

/// What a retry spent of a [`RetryBudget`], to be put back if it helps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[must_use = "put back with `RetryBudget::refund` when the retried call succeeds"]
pub struct Withdrawal(u32);

/// The cost of a retry that will be made. Dropped before it is [spent](Self::spend), it is put back:
/// no provider was called.
#[derive(Debug)]
#[must_use = "when dropped, it is put back into the budget"]
pub struct Reservation {
    bucket: Arc<Bucket>,
    cost: u32,
}

impl Reservation {
    /// The retry is made.
    pub fn spend(mut self) -> Withdrawal {
        Withdrawal(std::mem::take(&mut self.cost))
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.bucket.put_back(self.cost);
    }
}

impl Withdrawal {
    /// The sum of both.
    pub fn and(self, other: Withdrawal) -> Self {
        Self(self.0.saturating_add(other.0))
    }
}

impl Default for RetryBudget {
    fn default() -> Self {
        Self::new(BudgetPolicy::default())
    }
}

impl RetryBudget {
    /// A full bucket.
    pub fn new(policy: BudgetPolicy) -> Self {
        let full = || AtomicU32::new(policy.capacity);
        let bucket = Bucket { capacity: full(), tokens: full(), waiting: Waits::default() };
        let share = Share { bucket: Arc::new(bucket), waiting: Arc::default(), policy };
        Self { share: Arc::new(share), refills: true }
    }

    /// The costs of this budget, drawn from the bucket of `other`, which has this one's capacity from now
    /// on: what has been taken out of it stays taken out. Calls of both wait beside each other, and neither's can
    /// take [all places](Self::wait).
    #[must_use]
    pub fn sharing(&self, other: &Self) -> Self {
        let Share { waiting, policy, .. } = &*self.share;
        let bucket = other.share.bucket.clone();
        let before = bucket.capacity.swap(policy.capacity, Ordering::Relaxed);
        let _ = bucket.tokens.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |tokens| {
            Some(policy.capacity.saturating_sub(before.saturating_sub(tokens)))
        });
        let share = Share { bucket, waiting: waiting.clone(), policy: *policy };
        Self { share: Arc::new(share), refills: self.refills }
    }

    /// The same bucket, for a layer beside the one that refills it: what it draws for a call is
    /// put back when the call succeeds, and a call that drew nothing puts nothing back.
    ///
    /// ```
    /// use steadfast_core::{Reason, RetryBudget, Withdrawal};
    ///
    /// let budget = RetryBudget::default();
    /// let failover = budget.drawing();
    /// let drawn = failover.reserve(Reason::ServerError).expect("the bucket is full").spend();
    /// assert_eq!(budget.remaining(), 486);
    /// failover.refund(Withdrawal::default());
    /// assert_eq!(budget.remaining(), 486);
    /// failover.refund(drawn);
    /// assert_eq!(budget.remaining(), 500);
    /// ```
    #[must_use]
    pub fn drawing(&self) -> Self {
        Self { refills: false, ..self.clone() }
    }

    /// A place to wait in between two attempts, for a call that [holds](crate::CallContext::held_bytes) `bytes` of
    /// memory; `None` when there are too many calls that wait, or they hold too much.
    ///
    /// Of the places that the others leave, at most three quarters are taken, so that there is always one for a
    /// route whose calls have not waited before.
    ///
    /// ```
    /// use steadfast_core::{BudgetPolicy, RetryBudget};
    ///
    /// let policy = BudgetPolicy { max_waiting: 8, ..BudgetPolicy::default() };
    /// let one = RetryBudget::new(policy);
    /// let other = RetryBudget::new(policy).sharing(&one);
    /// let places: Vec<_> = std::iter::from_fn(|| one.wait(0)).collect();
    /// assert_eq!(places.len(), 6);
    /// assert!(other.wait(0).is_some());
    /// ```
    pub fn wait(&self, bytes: u64) -> Option<Waiting> {
        let Share { bucket, waiting: share, policy } = &*self.share;
        let (own_calls, own_bytes) = share.add(bytes);
        let (calls, held) = bucket.waiting.add(bytes);
        // Dropped, it gives both up again.
        let slot = Waiting { bucket: bucket.clone(), share: share.clone(), bytes };
        let has_slot = fits(policy.max_waiting.into(), calls.into(), own_calls.into(), 1);
        // Where nothing is held, one call may wait whatever it holds: it keeps nobody from waiting.
        let has_room = held == 0 || fits(policy.max_waiting_bytes, held, own_bytes, bytes);
        (has_slot && has_room).then_some(slot)
    }

    /// How many calls wait.
    pub fn waiting(&self) -> u32 {
        self.share.bucket.waiting.calls.load(Ordering::Relaxed)
    }

    /// Takes out what a retry after `reason` costs, or `None` when there is too little left.
    pub fn reserve(&self, reason: Reason) -> Option<Reservation> {
        let Share { bucket, policy, .. } = &*self.share;
        let cost = match reason {
            reason if reason.is_throttling() => policy.throttling,
            Reason::Network => policy.network,
            // Our own refusals cost the provider nothing.
            reason if reason.is_refusal() => 0,
            _ => policy.transient,
        };
        bucket
            .tokens
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |tokens| tokens.checked_sub(cost))
            .ok()
            .map(|_| Reservation { bucket: bucket.clone(), cost })
    }

    /// The same for the `repeat`th retry of a call at its target, counted from 1: the
    /// [first](BudgetPolicy::free) are free.
    pub fn reserve_retry(&self, reason: Reason, repeat: u32) -> Option<Reservation> {
        if repeat <= self.share.policy.free {
            return Some(Reservation { bucket: self.share.bucket.clone(), cost: 0 });
        }
        self.reserve(reason)
    }

    /// A call succeeded: puts back what its retries took out, or one refill when it took none.
    pub fn refund(&self, withdrawal: Withdrawal) {
        self.share.bucket.put_back(self.refund_of(withdrawal));
    }

    /// A lease that [refunds](Self::refund) when its answer has ended successfully, and not before:
    /// a stream that breaks half way puts nothing back. While the bucket is full, the answer to a
    /// call that took nothing has nothing to put back, and the lease is [`idle`](Lease::idle).
    /// Allocates nothing.
    #[inline]
    pub fn lease(&self, withdrawal: Withdrawal) -> Lease {
        if withdrawal.0 == 0 && (!self.refills || self.is_full()) {
            return Lease::idle();
        }
        let mut permit = Permit::new(PermitKind::Ordinary, 0);
        permit.tag[0] = self.refund_of(withdrawal);
        Lease::new(self.share.bucket.clone(), permit, RecoveryLog::disabled())
    }

    /// Whether it holds its full capacity.
    #[inline]
    pub fn is_full(&self) -> bool {
        self.remaining() >= self.share.bucket.capacity.load(Ordering::Relaxed)
    }

    /// What a success puts back.
    fn refund_of(&self, withdrawal: Withdrawal) -> u32 {
        match withdrawal.0 {
            0 if self.refills => self.share.policy.refill,
            withdrawn => withdrawn,
        }
    }

    /// Tokens left.
    pub fn remaining(&self) -> u32 {
        self.share.bucket.tokens.load(Ordering::Relaxed)
    }

    /// The capacity and costs of the bucket.
    pub fn policy(&self) -> &BudgetPolicy {
        &self.share.policy
    }

    /// Fills the bucket.
    pub fn reset(&self) {
        let Bucket { capacity, tokens, .. } = &*self.share.bucket;
        tokens.store(capacity.load(Ordering::Relaxed), Ordering::Relaxed);
    }
}

impl Bucket {
    fn put_back(&self, amount: u32) {
        let capacity = self.capacity.load(Ordering::Relaxed);
        let tokens = &self.tokens;
        // A full bucket, the usual case, is not written to: no contention for its cache line.
        if amount == 0 || tokens.load(Ordering::Relaxed) >= capacity {
            return;
        }
        let _ = tokens.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |tokens| {
            Some(tokens.saturating_add(amount).min(capacity))
        });
    }
}

impl Observer for Bucket {
    fn ended(&self, end: LeaseEnd<'_>) {
        if let Outcome::Success = end.outcome {
            self.put_back(end.permit.tag[0]);
        }
    }
}

impl fmt::Debug for RetryBudget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let capacity = self.share.bucket.capacity.load(Ordering::Relaxed);
        write!(f, "RetryBudget({} of {capacity})", self.remaining())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_dead_provider_costs_a_bounded_number_of_retries() {
        let budget = RetryBudget::default();
        let retries = (0..1_000)
            .filter_map(|_| budget.reserve(Reason::ServerError))
            .map(Reservation::spend)
            .count();
        assert_eq!(retries, 35);
        // Throttling is cheaper, and our own refusals are free.
        assert!(budget.reserve(Reason::RateLimit).is_some());
        assert!(budget.reserve(Reason::CircuitOpen).is_some());
        budget.reset();
        assert_eq!(budget.remaining(), 500);
    }

    #[test]
    fn a_lease_refunds_on_success_alone() {
        let budget = RetryBudget::default();
        drop(budget.reserve(Reason::ServerError));
        assert_eq!(budget.remaining(), 500, "a retry that was not made costs nothing");
        let withdrawal = budget.reserve(Reason::ServerError).unwrap().spend();
        drop(budget.lease(withdrawal));
        budget.lease(withdrawal).failure(&crate::Failure::new(Reason::Network, "cut"));
        assert_eq!(budget.remaining(), 486);
        budget.lease(withdrawal).success();
        assert_eq!(budget.remaining(), 500);
    }

    #[test]
    fn calls_that_wait_leave_room_for_those_of_other_routes() {
        let policy = BudgetPolicy { max_waiting: 16, ..BudgetPolicy::default() };
        let budget = RetryBudget::new(policy);
        let share = || RetryBudget::new(policy).sharing(&budget);
        let all_of =
            |share: &RetryBudget| -> Vec<_> { std::iter::from_fn(|| share.wait(0)).collect() };
        let (second, third) = (share(), share());
        let by_first = all_of(&budget.drawing());
        let by_second = all_of(&second);
        let by_third = all_of(&third);
        assert_eq!((by_first.len(), by_second.len(), by_third.len()), (12, 3, 1));
        assert!(budget.wait(0).is_none() && share().wait(0).is_none());
        assert_eq!(budget.waiting(), 16);
        drop((by_first, by_second, by_third));
        assert_eq!(budget.waiting(), 0);
        let bytes = BudgetPolicy { max_waiting_bytes: 1_000, ..policy };
        let (one, other) = (RetryBudget::new(bytes), RetryBudget::new(bytes));
        let other = other.sharing(&one);
        let large = [one.wait(400), one.wait(300)];
        assert!(large.iter().all(Option::is_some));
        assert!(one.wait(301).is_none(), "there are 300");
        let more = one.wait(200);
        assert!(more.is_some() && one.wait(1).is_none() && other.wait(1).is_some());
        drop((large, more));
        assert!(one.wait(1_000).is_some());
        let alone = one.wait(5_000);
        assert!(alone.is_some() && one.wait(1).is_none() && other.wait(1).is_none());
        drop(alone);
        assert!(other.wait(1).is_some());
        let open = RetryBudget::new(BudgetPolicy { max_waiting: 0, ..BudgetPolicy::default() });
        assert_eq!(
            (0..5_000).map_while(|_| open.wait(u64::MAX / 8_000)).collect::<Vec<_>>().len(),
            5_000
        );
    }

    #[test]
    fn what_was_drawn_stays_drawn_under_other_numbers() {
        for (capacity, left) in [(500, 486), (100, 86), (14, 0), (10, 0), (1_000, 986)] {
            let old = RetryBudget::default();
            let _ = old.reserve(Reason::ServerError).unwrap().spend();
            let policy = BudgetPolicy { capacity, transient: 1, ..BudgetPolicy::default() };
            let new = RetryBudget::new(policy).sharing(&old);
            assert_eq!((new.remaining(), old.remaining()), (left, left), "{capacity}");
            let _ = new.reserve(Reason::ServerError).map(Reservation::spend);
            assert_eq!(old.remaining(), left.saturating_sub(1), "the new cost, of the one bucket");
            old.refund(Withdrawal(capacity));
            assert_eq!(new.remaining(), capacity, "never above the new capacity");
        }
    }

    proptest! {
        /// Compared with arithmetic: never above capacity, never below zero, nothing lost.
        #[test]
        fn agrees_with_arithmetic(
            capacity in 0u32..200,
            ops in proptest::collection::vec((0u8..4, any::<bool>()), 0..200),
        ) {
            let policy = BudgetPolicy { capacity, ..BudgetPolicy::default() };
            let budget = RetryBudget::new(policy);
            let mut model = i64::from(capacity);
            for (kind, helps) in ops {
                let reason = [Reason::ServerError, Reason::Overloaded, Reason::Network, Reason::Cooling]
                    [usize::from(kind)];
                let cost = [14i64, 5, 5, 0][usize::from(kind)];
                let got = budget.reserve(reason).map(Reservation::spend);
                prop_assert_eq!(got.is_some(), model >= cost);
                if let Some(withdrawal) = got {
                    model -= cost;
                    if helps {
                        budget.refund(withdrawal);
                        model = (model + cost.max(1)).min(i64::from(capacity));
                        if cost == 0 { /* a refusal that took nothing refills one */ }
                    }
                }
                prop_assert_eq!(i64::from(budget.remaining()), model);
            }
        }
    }
}
