//! What one call with all its attempts spends.

use std::{fmt, sync::Arc};

use parking_lot::Mutex;
use tokio::time::Instant;

use super::{Account, Spend, SpendAccount, SpendCaps, SpendLease, SpendLedger, SpendRefusal};

/// What one call may spend, over all its attempts: retries, other targets, resumes and hedges. It travels in
/// the [context](crate::CallContext::spend) of the call, and its clones share it.
///
/// An attempt takes its part with [`attempt`](Self::attempt), beyond what is reserved from what the caps leave,
/// and is charged what it did cost. What is left is given back by [`end`](Self::end), or when the last clone
/// is dropped.
#[derive(Clone)]
pub struct CallSpend(Arc<CallState>);

struct CallState {
    ledger: SpendLedger,
    accounts: Box<[(Arc<Account>, SpendCaps)]>,
    free: Mutex<Free>,
}

struct Free {
    /// Reserved, and not in the hands of an attempt.
    left: Spend,
    attempts: u32,
    spent: Spend,
    /// What attempts under way leave goes back to the accounts.
    ended: bool,
}

impl CallSpend {
    /// Reserves the most that a call may spend in each of its accounts.
    ///
    /// # Errors
    ///
    /// With the first cap that leaves less; nothing is reserved then.
    pub fn reserve(
        ledger: &SpendLedger,
        accounts: impl IntoIterator<Item = (SpendAccount, SpendCaps)>,
        most: Spend,
        now: Instant,
    ) -> Result<Self, SpendRefusal> {
        let accounts = accounts.into_iter();
        let accounts = accounts.map(|(name, caps)| (ledger.account(&name, now), caps)).collect();
        Self::of(ledger.clone(), accounts, most, now)
    }

    /// Reserves the most that a further call may spend which this one needs, such as a summary: in the accounts of
    /// this call, and in others of the same ledger.
    ///
    /// # Errors
    ///
    /// With the first cap that leaves less; nothing is reserved then.
    pub fn beside(
        &self,
        others: impl IntoIterator<Item = (SpendAccount, SpendCaps)>,
        most: Spend,
        now: Instant,
    ) -> Result<Self, SpendRefusal> {
        let ledger = self.0.ledger.clone();
        let others = others.into_iter().map(|(name, caps)| (ledger.account(&name, now), caps));
        let accounts = self.0.accounts.iter().cloned().chain(others).collect();
        Self::of(ledger, accounts, most, now)
    }

    fn of(
        ledger: SpendLedger,
        accounts: Box<[(Arc<Account>, SpendCaps)]>,
        most: Spend,
        now: Instant,
    ) -> Result<Self, SpendRefusal> {
        let free = Free { left: Spend::ZERO, attempts: 0, spent: Spend::ZERO, ended: false };
        let call = Self(Arc::new(CallState { ledger, accounts, free: Mutex::new(free) }));
        call.0.hold(most, now)?;
        call.0.free.lock().left = most;
        Ok(call)
    }

    /// Whether its accounts are those of `ledger`.
    pub fn is_of(&self, ledger: &SpendLedger) -> bool {
        Arc::ptr_eq(&self.0.ledger.0, &ledger.0)
    }

    /// An attempt is about to be made that may cost `most`.
    ///
    /// # Errors
    ///
    /// With the cap that leaves too little for it; the attempt must not be made.
    pub fn attempt(&self, most: Spend, now: Instant) -> Result<AttemptSpend, SpendRefusal> {
        let mut free = self.0.free.lock();
        let missing = most.minus(free.left);
        self.0.hold(missing, now)?;
        free.left = free.left.plus(missing).minus(most);
        free.attempts = free.attempts.saturating_add(1);
        drop(free);
        Ok(AttemptSpend { call: Some(self.0.clone()), held: most })
    }

    /// Asks the state that several processes share for what an attempt needs that may cost `most`: after a refusal of
    /// [`attempt`](Self::attempt) which is [`unasked`](SpendRefusal::unasked).
    pub fn lease(&self, most: Spend) -> SpendLease {
        let missing = most.minus(self.0.free.lock().left);
        SpendLease::new(&self.0.ledger, self.0.accounts.to_vec(), missing)
    }

    /// How many attempts were made so far.
    pub fn attempts(&self) -> u32 {
        self.0.free.lock().attempts
    }

    /// What the attempts that are over have cost.
    pub fn spent(&self) -> Spend {
        self.0.free.lock().spent
    }

    /// What is reserved and not in the hands of an attempt.
    pub fn left(&self) -> Spend {
        self.0.free.lock().left
    }

    /// The call is over: what no attempt holds is given back now, and the rest as its attempts end.
    pub fn end(&self, now: Instant) {
        self.0.end(now);
    }
}

impl CallState {
    /// In all accounts, or in none.
    fn hold(&self, most: Spend, now: Instant) -> Result<(), SpendRefusal> {
        if most == Spend::ZERO {
            return Ok(());
        }
        for (held, (account, caps)) in self.accounts.iter().enumerate() {
            if let Err(refusal) = account.hold(caps, most, now, self.ledger.0.fleet.get()) {
                for (account, _) in &self.accounts[..held] {
                    account.charge(most, Spend::ZERO, now);
                }
                return Err(refusal);
            }
        }
        Ok(())
    }

    fn charge(&self, held: Spend, spent: Spend, now: Instant) {
        for (account, _) in &self.accounts {
            account.charge(held, spent, now);
        }
    }

    fn end(&self, now: Instant) {
        let mut free = self.free.lock();
        free.ended = true;
        let left = std::mem::take(&mut free.left);
        drop(free);
        if left != Spend::ZERO {
            self.charge(left, Spend::ZERO, now);
        }
    }

    fn attempt_ended(&self, held: Spend, actual: Spend, now: Instant) {
        let mut free = self.free.lock();
        free.spent = free.spent.plus(actual);
        let released = if free.ended {
            held
        } else {
            free.left = free.left.plus(held.minus(actual));
            held.min(actual)
        };
        drop(free);
        self.charge(released, actual, now);
    }
}

impl Drop for CallState {
    fn drop(&mut self) {
        self.end(Instant::now());
    }
}

impl fmt::Debug for CallSpend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let free = self.0.free.lock();
        f.debug_struct("CallSpend")
            .field("left", &free.left)
            .field("attempts", &free.attempts)
            .field("spent", &free.spent)
            .finish_non_exhaustive()
    }
}

/// What one attempt holds. Dropped without [`charge`](Self::charge), all of it is spent: nobody knows what
/// such an attempt did cost.
#[must_use = "what is not charged is spent"]
pub struct AttemptSpend {
    /// `None` once charged.
    call: Option<Arc<CallState>>,
    held: Spend,
}

impl AttemptSpend {
    /// What it holds.
    pub const fn held(&self) -> Spend {
        self.held
    }

    /// The attempt has cost `actual`; more than it held counts, too.
    pub fn charge(mut self, actual: Spend, now: Instant) {
        if let Some(call) = self.call.take() {
            call.attempt_ended(self.held, actual, now);
        }
    }
}

impl Drop for AttemptSpend {
    fn drop(&mut self) {
        if let Some(call) = self.call.take() {
            call.attempt_ended(self.held, self.held, Instant::now());
        }
    }
}

impl fmt::Debug for AttemptSpend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AttemptSpend").field("held", &self.held).finish_non_exhaustive()
    }
}
